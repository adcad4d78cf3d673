"""Experiment: the default recipe on textbook problems with exact answers.

Results, figures and the experiment that joins them.
"""
