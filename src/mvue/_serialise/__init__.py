"""Model files: which classes may stand in them, how objects become a tree, and the file itself.

A file names only what was registered; loading runs no code that a file contains.
"""
