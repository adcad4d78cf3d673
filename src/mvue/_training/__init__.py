"""Training: `fit` and `fit_data`, the compiled loop, batches, control variate and checkpoints.

A new source of batches, or a change to a training step, belongs here.
"""
