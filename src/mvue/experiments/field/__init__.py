"""Experiment: the default recipe on problems of the field, beside maximum likelihood.

Results, figures, published numbers and the experiment that joins them.
"""
