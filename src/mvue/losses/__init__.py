"""Losses: pure functions of arrays, and objectives that `mvue.fit` minimises.

The functions take NumPy, JAX or PyTorch arrays; the objectives bind them to their settings.
"""
