"""Lower bounds on the covariance of unbiased estimators: Fisher information and Cramér-Rao.

A new bound, or a new way to compute one, belongs here.
"""
