"""Intervals: confidence intervals and regions for one estimate, and how often they cover.

Another way to make an interval, or a measure of intervals, belongs here.
"""
