"""What `fit` decides before it builds a network: the settings of all it does, and the survey.

A setting of the default, or something else that simulations tell before training, belongs here.
"""
