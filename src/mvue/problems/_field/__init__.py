"""Problems of the field: signals, curves, series, images, counts and samples, one file a family.

A new problem of these kinds belongs in the file of its family.
"""
