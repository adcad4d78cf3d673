"""Experiment: soft labels on CIFAR-10 with bias constrained students.

Data, teacher's labels, students, measures and the experiment that joins them.
"""
