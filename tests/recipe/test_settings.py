"""The recipe: one value with every constant, which fit and survey obey."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import mvue
from helpers.hasty import HASTY
from helpers.plain import plain_fit

R = mvue.Recipe


@pytest.fixture(scope="module")
def problem():
    return mvue.Problem(
        dist.Uniform(0.5, 2.0), lambda k, t: t * jr.exponential(k, (8,)), exchangeable=True
    )


CHANGED = dataclasses.replace(
    HASTY,
    survey=R.Survey(budget=0, reach=0.0),
    summaries=R.Summaries(natural=False),
    network=R.Network(width=5, depth=1),
    schedule=R.Schedule(steps=6, batch_size=4, repeats=3, anchors=0, validations=2),
)


@pytest.fixture(scope="module")
def changed(problem):
    """A fit by a recipe that differs in many places."""
    return mvue.fit(problem, key=jr.key(0), recipe=CHANGED)


@pytest.fixture(scope="module")
def hasty(problem, tmp_path_factory):
    """A fit of two steps, and where its checkpoints are."""
    folder = tmp_path_factory.mktemp("hasty") / "run"
    fit = mvue.fit(problem, key=jr.key(0), steps=2, recipe=HASTY, checkpoint=folder)
    return fit, folder


def test_repr_shows_what_differs_and_makes_the_same_again():
    assert repr(R()) == "Recipe()"
    changed = R(survey=R.Survey(budget=0, reach=3), network=R.Network(width=16))
    text = "Recipe(survey=Recipe.Survey(budget=0, reach=3.0), network=Recipe.Network(width=16))"
    assert repr(changed) == text
    assert eval(text, {"Recipe": R}) == changed
    assert len({R(), R(), changed}) == 2


@pytest.mark.parametrize(
    ("group", "wrong"),
    [
        (R.Survey, {"reach": -1.0}),
        (R.Survey, {"least_shown": 2.0}),
        (R.ErrorModel, {"noises": (0.1, float("nan"))}),
        (R.Schedule, {"learning_rate": 0.0}),
    ],
)
def test_wrong_values_are_refused_by_name(group, wrong):
    name = f"{repr(group())[:-2]}.{next(iter(wrong))} must be"
    with pytest.raises(ValueError, match=name):
        group(**wrong)


def test_every_field_has_its_reason():
    """Documented where it stands: a line below each field."""
    import ast
    import inspect

    from mvue._recipe import settings

    for node in ast.walk(ast.parse(inspect.getsource(settings))):
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Settings", "Recipe")):
            for one, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(one, ast.AnnAssign):
                    assert isinstance(after, ast.Expr), ast.unparse(one)


def test_fit_and_survey_obey(problem, changed, key):
    fit = changed
    assert [layer.weight.shape[0] for layer in fit.estimator.network.layers] == [5, 1]
    assert fit.step == 6
    assert fit.history["step"] == [3, 6]
    for name, value in {"batch_size": 4, "repeats": 3, "anchors": 0}.items():
        assert fit.settings[name] == value
    assert eval(fit.settings["recipe"], {"Recipe": R}) == CHANGED
    alone = mvue.survey(problem, key=key, recipe=CHANGED)
    assert alone.ranges == fit.survey.ranges
    assert alone.ranges[0].training == pytest.approx(alone.ranges[0].interest, rel=1e-3)


def test_arguments_of_fit_stand_in_the_recipe(line, key):
    network = eqx.nn.MLP(2, 2, 4, 1, key=key)
    fit = plain_fit(line, network, key=key, steps=3)
    assert "Schedule(steps=3" in fit.settings["recipe"]
    with pytest.raises(ValueError, match=r"steps is 3 and recipe.schedule.steps is 4: say it once"):
        plain_fit(line, network, key=key, steps=3, recipe=R(schedule=R.Schedule(steps=4)))


def test_bias_weights_hold_where_the_loss_leaves_them_open(line, key):
    network = eqx.nn.MLP(2, 2, 4, 1, key=key)
    recipe = R(schedule=R.Schedule(bias_weights=(3.0, 7.0)))
    asked = {"key": key, "steps": 2, "training_prior": line.prior, "recipe": recipe}
    fit = mvue.fit(line, network, mvue.bce(weight=None), **asked)
    assert "λ from 3 to 7" in fit.settings["loss"]
    with pytest.raises(ValueError, match=r"recipe.schedule.bias_weights has no use here"):
        mvue.fit(line, network, mvue.bce(4.0, weight=None), **asked)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (R(survey=R.Survey(budget=0)), "recipe.survey has no use here"),
        (R(network=R.Network(width=3)), "recipe.network has no use here"),
        (R(baseline=R.Baseline(pieces=3)), "recipe.baseline has no use here"),
        (R(schedule=R.Schedule(warm_up=0.1)), "recipe.schedule.warm_up has no use here"),
        (R(schedule=R.Schedule(learning_rate=0.1)), "recipe.schedule.learning_rate has no use"),
    ],
)
def test_settings_that_nothing_comes_of_are_refused(recipe, name, line, key):
    network = eqx.nn.MLP(2, 2, 4, 1, key=key)
    asked = {"steps": 2, "optimizer": optax.adam(1e-3), "recipe": recipe}
    with pytest.raises(ValueError, match=name):
        mvue.fit(line, network, mvue.emmse(), key=key, **asked)


def test_another_recipe_does_not_resume(problem, hasty, key):
    other = dataclasses.replace(HASTY, survey=R.Survey(budget=1))
    with pytest.raises(mvue.exceptions.CheckpointError, match="recipe"):
        mvue.fit(problem, key=key, steps=2, recipe=other, checkpoint=hasty[1])


def test_without_natural_statistics(changed, tmp_path):
    fit, x = changed, jnp.ones(8)
    assert fit.survey.statistics.natural(x).shape == (0,)
    mvue.save(fit, tmp_path / "model.mvue")
    loaded = mvue.load(tmp_path / "model.mvue")
    assert loaded.estimator.statistics.settings == CHANGED.summaries
    np.testing.assert_allclose(loaded(x), fit.estimator(x), rtol=1e-6)


def test_print_says_what_the_estimator_is(hasty):
    lines = str(hasty[0]).splitlines()
    assert max(map(len, lines)) <= 100
    text = " ".join(line.strip() for line in lines)
    assert "of a set of 8 scalars (moments, logarithms, sorted values)" in text
    assert "linear BCE in 59 terms, 10 of them natural statistics" in text
    assert "dense layers 48 → 64 → 64 → 1; 7,361 weights" in text
    assert "calibration  none" in text
    assert "0.5 … 2" in text


def test_print_of_other_networks(line, key):
    network = eqx.nn.MLP(2, 2, 4, 1, key=key)
    fit = plain_fit(line, network, key=key, steps=1)
    assert "summaries    none: the network sees x itself" in str(fit)
    assert "dense layers 2 → 4 → 2; 22 weights" in str(fit)
    fit = plain_fit(line, key=key, steps=1, baseline=lambda x: x)
    assert "the numbers of x, standardised: 2 numbers" in str(fit)
    assert "the baseline that was given, corrected by the network" in str(fit)
