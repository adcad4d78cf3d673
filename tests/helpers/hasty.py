"""Recipes of few simulations, for where it does not matter how good the estimator is."""

import dataclasses

import mvue

HASTY_SURVEY = mvue.Recipe(survey=mvue.Recipe.Survey(budget=0))
"""For fits with a network of their own, which have no other use for a recipe."""
HASTY_END = dataclasses.replace(
    HASTY_SURVEY,
    calibration=mvue.Recipe.Calibration(draws=0),
    verdict=mvue.Recipe.Verdict(values=0),
)
"""The same without what ends a fit."""
HASTY = dataclasses.replace(
    HASTY_END,
    baseline=mvue.Recipe.Baseline(pieces=4),
)
