"""Averages of estimates from several measurements of one parameter.

Unbiased estimates keep improving when they are averaged; biased ones do not.
"""
