"""Recipes of few simulations, for where it does not matter how good the estimator is."""

import dataclasses

import mvue

HASTY_SURVEY = mvue.Recipe(survey=mvue.Recipe.Survey(budget=0))
"""For fits with a network of their own, which have no other use for a recipe."""
HASTY = dataclasses.replace(
    HASTY_SURVEY,
    baseline=mvue.Recipe.Baseline(pieces=4),
    calibration=mvue.Recipe.Calibration(draws=0),
    verdict=mvue.Recipe.Verdict(values=0),
)
