"""Estimation of a structured covariance matrix: problem, classical solution and networks.

The covariance is a known matrix plus a linear combination of basis matrices.
"""
