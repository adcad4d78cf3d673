"""Numerical methods for batches in JAX: small matrices, sorting, Newton's method.

Nothing here knows what an estimator is.
"""
