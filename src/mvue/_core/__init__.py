"""The vocabulary: problems, parameters, measurements and keys, and the checks that all rooms share.

A new fact about what a user brings belongs here.
"""
