"""Experiments: linear models, where everything has a closed form.

The bridge from LMMSE to WLS, and bias constraints as regularisation.
"""
