"""Networks and parts of networks that are not tied to one problem.

A network is any function of ONE measurement whose arrays are trained; Equinox modules are.
"""
