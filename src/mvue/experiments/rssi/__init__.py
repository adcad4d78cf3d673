"""Experiment: localisation from received signal strengths.

Methods, network, figures and the experiment that joins them.
"""
