"""Experiment: averaging the estimates of many sensors.

Scenes, networks and the experiment that joins them.
"""
