"""Textbook problems with exact minimum-variance unbiased estimators, one file a family.

A new textbook problem belongs in the file of its family, or in `beyond`.
"""
