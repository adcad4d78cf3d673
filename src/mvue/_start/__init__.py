"""Estimates in closed form that default networks start from.

Another first estimate that needs no training belongs here.
"""
