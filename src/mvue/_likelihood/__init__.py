"""Estimators from a likelihood: maximum likelihood, and its parametric bootstrap correction.

They are what learned estimators are compared with.
"""
