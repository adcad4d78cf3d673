"""Linear estimators in closed form: from a known model, from data with repeats, as a last layer.

Moments are added up in pieces; LMMSE, WLS and linear BCE are read off one eigendecomposition.
"""
