"""What `fit` decides by itself: a survey of the problem, summaries, the default network, settings.

A new summary or a new rule of the default recipe belongs here.
"""
