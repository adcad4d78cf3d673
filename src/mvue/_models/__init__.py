"""Using a trained estimator elsewhere: saving, loading, predicting, and export.

A new export format belongs here.
"""
