"""What ends every fit: a calibration of the estimate in closed form, and the verdict on it.

A new check of a trained estimator, or another last correction of its bias, belongs here.
"""
