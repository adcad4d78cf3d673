"""What an estimator sees of a measurement: its layout, and the summary statistics that fit it.

A new layout of data or a new family of statistics belongs here.
"""
