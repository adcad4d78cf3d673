"""Assessment: bias, variance and MSE per value with standard errors, and the report of them.

A new measure of quality, table or figure of a report belongs here.
"""
