"""The networks that `fit` builds when it is given none, and words for what an estimator is.

Another default network, or a rule that chooses one, belongs here.
"""
