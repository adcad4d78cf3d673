"""`fit`: train an estimator on fresh simulations; what is not given, the recipe decides."""

import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from .._core.checks import check_count, check_estimator, describe_shapes
from .._core.estimators import as_estimator
from .._core.keys import key_for, several
from .._core.problem import Draw, Problem
from .._core.sampling import Simulations, pilot_draw
from .._core.types import Estimator, Key
from .._data.repeats import Repeats
from .._data.simulated import SimulatedData
from .._default.decisions import Decisions, Question
from .._default.description import describe_estimator
from .._finish.calibration import calibrate
from .._finish.verdict import Judgement, judge
from .._recipe.cost import describe_uses, uses_of
from .._recipe.settings import Recipe, checked_recipe
from .._recipe.survey import Survey
from .._runtime.devices import mesh_for
from .._runtime.progress import Progress, progress_for
from .._serialise.settings import changes
from ..exceptions import PoorFitWarning
from ..losses._loss import Loss, as_loss
from ..losses._objectives import BiasConstrained, bce, geometric_schedule
from ..nn._frozen import count_weights
from ..nn._staged import Given, WithBaseline
from ..nn._standardize import PILOT_UNITS
from .batches import SimulatedBatches
from .checkpoint import kept_decisions, typical
from .control_variate import Control, ThetaFeatures
from .loop import Keys, Schedule, refuse_tracing, train
from .program import Keep, Program
from .result import Fit, Outcome

WEIGHTS_CHECKED = 64  # unknowns whose weights are looked at before anything else


def fit(
    problem: Problem,
    network: Estimator | None = None,
    loss: Loss | Callable[[Any, Draw, Any], Any] | None = None,
    *,
    key: Key,
    baseline: Estimator | None = None,
    training_prior: Any = None,
    recipe: Recipe | None = None,
    summaries: Any = None,
    steps: int | None = None,
    batch_size: int | None = None,
    repeats: int | None = None,
    anchors: int | None = None,
    optimizer: Any = None,
    keep: Keep = "average",
    validations: int | None = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    progress: bool | None = None,
) -> Fit:
    """Train an estimator on fresh simulations.

    Every step draws `batch_size` units and `repeats` measurements of each. Ctrl-C ends
    training after the current piece and returns what is there.

    What is not given is decided by a recipe that starts with a `survey` of the problem; its
    decisions stand in the `Fit`.

    Args:
        problem: what to estimate; its prior says which values are of interest. `fit_data`
            takes fixed data.
        network: a function of one measurement with trainable arrays (an Equinox module) that
            returns y, used as it is; see `standardize`. By default one that corrects a closed-form
            estimate, in units of the error to expect.
        loss: what to minimise, by default `bce`: another of `mvue.losses`, a `Loss` of your own, or
            a function ``(estimates, draw, progress) -> scalar``.
        key: decides all random numbers.
        baseline: an estimator that is known to be unbiased, if there is one. The network then
            learns a correction to it, and only the bias of the correction is penalised: the error
            of the baseline is a control variate.
        training_prior: where to draw parameters, as `Problem.prior`. By default, for `bce`, whose
            answer does not depend on it, evenly over a range wider than the one of interest (see
            `survey`); for other losses the prior of the problem.
        summaries: a function of one measurement, or several, that return arrays: statistics that
            the default network sees besides those that the layout of x suggests.
        recipe: the constants of all that is decided here; `Recipe()` by default.
        steps: how many updates; this and other numbers that are None are those of
            ``recipe.schedule``, which has fewer for corrections of an estimate in closed form.
        batch_size: N, units in a batch; stages of learned Fisher scoring have a default of their
            own, ``recipe.schedule.scoring_batch_size``.
        repeats: M, measurements of each unit; the same, ``scoring_repeats``.
        anchors: how many times, at equal distances, the bias of the estimator is measured on many
            simulations, as a smooth function of theta. What remains of its errors is noise, the
            control variate of the penalty in the steps that follow. 0 for never; of the losses
            here, only `bce` with the U-statistic takes one.
        optimizer: an Optax optimizer, or the peak learning rate of the default: Adam with a
            short warm-up and a cosine decay to zero.
        keep: which weights to return: an average over the last steps, those with the best
            held-out loss, or the last.
        validations: about how many times the estimator is judged on held-out units, at equal
            distances; each costs four batches of estimates.
        patience: stop after this many validations in a row without a better held-out loss;
            None never stops early.
        checkpoint: a folder to save the state in; the same call resumes from it.
        checkpoint_every: seconds between checkpoints; there is always one at the end.
        progress: show what is being done and how far it is; by default in a terminal or notebook.

    Returns:
        The estimator, how training ended and how it went.
    """
    refuse_tracing(key)
    if isinstance(problem, (Repeats, SimulatedData)):
        raise TypeError(
            f"problem must be a Problem, got data ({type(problem).__name__}): use fit_data"
        )
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")
    recipe = checked_recipe(recipe)
    said = changes(recipe.schedule).keys() | {
        name
        for name, value in (("steps", steps), ("batch_size", batch_size), ("repeats", repeats))
        if value is not None
    }
    recipe = _with_arguments(
        recipe,
        steps=steps,
        batch_size=batch_size,
        repeats=repeats,
        anchors=anchors,
        validations=validations,
    )
    numbers = recipe.schedule
    steps, batch_size, repeats = numbers.steps, numbers.batch_size, numbers.repeats
    anchors, validations = numbers.anchors, numbers.validations
    schedule = Schedule(steps, patience, checkpoint, checkpoint_every, validations)
    stages = progress_for(progress)
    schedule.check(keep, optimizer)
    loss = bce() if loss is None else as_loss(loss)
    if repeats < loss.min_repeats:
        raise ValueError(
            f"repeats must be at least {loss.min_repeats} for this loss, got {repeats}: a bias "
            "cannot be seen in one measurement of each unit"
        )
    chooses_prior = training_prior is None and loss.any_prior
    surveys = network is None or chooses_prior or loss.weights_from_survey
    is_open = isinstance(loss, BiasConstrained) and loss.bias_weight is None
    _refuse_unused(recipe, surveys, network is not None, optimizer, is_open)
    if summaries is not None and network is not None:
        raise ValueError("summaries has no use here, since network is given: leave one of them out")
    if isinstance(loss, BiasConstrained) and is_open:
        loss = dataclasses.replace(loss, bias_weight=geometric_schedule(*numbers.bias_weights))
    if training_prior is not None:
        _check_training_prior(problem, training_prior)
    _check_weight(problem, loss)
    x, y = problem.shapes()
    network = None if network is None else as_estimator(network, "network")
    baseline = None if baseline is None else as_estimator(baseline, "baseline")
    for name, function in (("network", network), ("baseline", baseline)):
        if function is not None:
            check_estimator(name, function, x, y.shape[0])
    trial = loss
    if loss.weights_from_survey:
        trial = loss.weighted_by(lambda _: jnp.ones(y.shape[0]))
    _check_loss(problem, batch_size, repeats, trial)
    started = time.perf_counter()
    keys = several(key_for("fit", key), 6)
    pilot_key, network_key, train_key, validation_key, anchor_key, features_key = keys
    finish_key = key_for("finish", key)
    asked_for = {
        "y": list(problem.names or ()),
        "loss": loss.describe(repeats),
        "recipe": repr(recipe),
        "keep": keep,
        "patience": patience,
        "anchors": anchors,
        "validations": validations,
    }
    sizes = {"steps": steps, "batch_size": batch_size, "repeats": repeats}
    decisions: Decisions | None = None
    asked = problem
    if surveys:
        question = Question(
            problem,
            key=key,
            network_key=network_key,
            recipe=recipe,
            summaries=summaries,
            training_prior=training_prior,
            chooses_prior=chooses_prior,
            correction=baseline is not None,
            makes_network=network is None,
        )
        identity = lambda: {**asked_for, **sizes, "problem": question.identity()}  # noqa: E731
        decisions = kept_decisions(checkpoint, question, identity, stages)
        problem = question.trained(decisions.survey)
        asked = dataclasses.replace(asked, exchangeable=problem.exchangeable)
    elif training_prior is not None:
        problem = dataclasses.replace(problem, prior=training_prior, crb=None)
    seen = None if decisions is None else decisions.survey
    if loss.weights_from_survey:
        assert seen is not None
        loss = loss.weighted_by(seen.weight)
    pilot = pilot_draw(problem, pilot_key, PILOT_UNITS, 1) if seen is None else seen.pilot
    places, is_default = None, network is None
    if network is None:
        assert decisions is not None
        made = decisions.made
        assert seen is not None
        assert made is not None
        network, places = made.network, made.places
        if not made.improvable:
            # By what is reached the result is judged, for no estimator was seen to do better.
            seen = seen.with_errors(np.maximum(made.start, 1.0).tolist())
        if "steps" not in said and baseline is None:
            steps = made.steps(numbers)
            schedule = schedule._replace(steps=steps)
        if places is not None:
            batch_size = batch_size if "batch_size" in said else numbers.scoring_batch_size
            fewest = max(numbers.scoring_repeats, loss.min_repeats)
            repeats = repeats if "repeats" in said else fewest
        elif made.is_nearest and "batch_size" not in said:
            batch_size = numbers.nearest_batch_size
    if baseline is not None:
        network = WithBaseline(Given(baseline), network)
    control = None
    if loss.takes_control_variate and (anchors or baseline is not None):
        widths = [along.width for along in seen.ranges] if chooses_prior and seen else []
        features = ThetaFeatures(problem, features_key, recipe.control_variate, widths)
        control = Control(features, loss.weights)
    mesh = mesh_for(batch_size)
    source = SimulatedBatches(problem, batch_size, repeats, mesh, numbers.validation_batches)
    efficient_error = None
    if loss.takes_control_variate and chooses_prior and seen is not None:
        efficient_error = seen.efficient_error
    uses, about_uses = 1, ""
    if seen is not None and mesh is None:
        wanted = steps * batch_size * repeats
        uses = uses_of(wanted, seen.seconds, count_weights(network), numbers)
        about_uses = describe_uses(uses, seen.seconds)
    program = Program(
        source,
        network,
        loss,
        steps,
        optimizer,
        keep,
        control,
        settings=numbers,
        places=places,
        efficient_error=efficient_error,
        uses=uses,
    )
    if baseline is not None:
        source.check_baseline(lambda x: program.prepare(program.arrays, x), pilot_key)
    settings = {
        "loss": loss.describe(repeats),
        "training": str(seen) if chooses_prior else "drawn from the prior that was given",
        **describe_estimator(network, x),
        "recipe": repr(recipe),
        "steps": steps,
        "batch_size": batch_size,
        "repeats": repeats,
        "anchors": anchors if control else 0,
        "keep": keep,
        "validations": validations,
        "patience": patience,
        "batch": f"N = {batch_size}, M = {repeats}{about_uses}",
        "held_out": "averages over the parameters trained on",
    }
    trained = train(
        program,
        Keys(key, train_key, validation_key, anchor_key),
        schedule,
        settings=settings,
        identity={
            **asked_for,
            "steps": steps,
            "batch_size": batch_size,
            "repeats": repeats,
            "uses": uses,
            "pilot": typical(pilot),
        },
        started=started,
        progress=stages,
        anchors=anchors,
        survey=seen,
    )
    trained = dataclasses.replace(trained, problem=problem)
    finished = trained.outcome in (Outcome.FINISHED, Outcome.STOPPED_EARLY)
    if seen is None or not is_default or not loss.any_prior or not finished:
        return trained
    simulations = program.simulations or program.on_one_device().simulations
    assert simulations is not None
    return _finished(trained, asked, seen, recipe, simulations, finish_key, stages, started)


def _finished(
    trained: Fit,
    asked: Problem,
    seen: Survey,
    recipe: Recipe,
    simulations: Simulations,
    key: Key,
    stages: Progress,
    started: float,
) -> Fit:
    """The fit with its estimator calibrated and judged."""
    calibrate_key, judge_key = several(key, 2)
    assert trained.problem is not None
    if recipe.calibration.draws:
        with stages.stage("calibrating"):
            found = calibrate(
                trained.estimator,
                simulations,
                seen.log_sd,
                _scale_of(trained.estimator),
                seen.seconds,
                recipe.calibration,
                key=calibrate_key,
            )
        settings = {**trained.settings, "calibration": found.note}
        trained = dataclasses.replace(trained, estimator=found.estimator, settings=settings)
    if recipe.verdict.values:
        with stages.stage("judging"):
            verdict = judge(
                trained.estimator, asked, seen, recipe.verdict, simulations, key=judge_key
            )
        trained = dataclasses.replace(trained, verdict=verdict)
        if verdict.judgement is Judgement.POOR:
            warnings.warn(f"the trained estimator is {verdict}", PoorFitWarning, stacklevel=3)
    return dataclasses.replace(trained, seconds=time.perf_counter() - started)


def _scale_of(estimator: Any) -> tuple[Any, Any]:
    """A scale in which the error of y is about one, and the y there, of a default network."""
    inner: Any = estimator.network if isinstance(estimator, WithBaseline) else estimator
    return inner.plug_in.scale, inner.plug_in.table


def _with_arguments(recipe: Recipe, **given: int | None) -> Recipe:
    """The recipe with the numbers that are arguments of `fit`: each is said in one place."""
    said = changes(recipe.schedule)
    values: dict[str, int] = {}
    for name, value in given.items():
        if value is None:
            continue
        check_count(name, value, least=0 if name == "anchors" else 1)
        values[name] = int(value)
        if name in said and said[name] != value:
            raise ValueError(
                f"{name} is {value} and recipe.schedule.{name} is {said[name]}: say it once"
            )
    schedule = dataclasses.replace(recipe.schedule, **values)
    return dataclasses.replace(recipe, schedule=schedule)


def _refuse_unused(
    recipe: Recipe, surveys: bool, has_network: bool, optimizer: Any, loss_is_open: bool
) -> None:
    """Refuse settings that nothing would come of."""
    unused: dict[str, str] = {}
    if not surveys:
        why = "there is no survey: network and training_prior are given, and loss needs no weights"
        groups = ("survey", "error_model", "likelihood", "exchangeability", "summaries")
        unused |= dict.fromkeys(groups, why)
    if has_network:
        groups = ("baseline", "network", "calibration", "verdict")
        unused |= dict.fromkeys(groups, "network is given")
    for name, why in unused.items():
        if changes(getattr(recipe, name)):
            raise ValueError(f"recipe.{name} has no use here, since {why}: leave one of them out")
    said, unused = changes(recipe.schedule), {}
    if optimizer is not None:
        unused["learning_rate"] = "optimizer is given"
    if isinstance(optimizer, optax.GradientTransformation):
        unused["warm_up"] = "optimizer is given"
    if not loss_is_open:
        unused["bias_weights"] = "loss says what it is, or has none"
    for name, why in unused.items():
        if name in said:
            raise ValueError(
                f"recipe.schedule.{name} has no use here, since {why}: leave one of them out"
            )


def _check_training_prior(problem: Problem, prior: Any) -> None:
    """Refuse one that does not draw what the prior of the problem draws."""
    try:
        trained = dataclasses.replace(problem, prior=prior, crb=None)
        found = jax.eval_shape(trained.sample_prior, jr.key(0))
    except Exception as error:
        raise ValueError(f"training_prior does not fit the problem: {error}") from error
    expected = jax.eval_shape(problem.sample_prior, jr.key(0))
    shapes = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (expected, found)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"training_prior must draw what the prior of the problem draws, "
            f"{describe_shapes(expected)}; it draws {describe_shapes(found)}"
        )


def _check_weight(problem: Problem, loss: Loss) -> None:
    if loss.weights_from_survey:
        return
    keys = jr.split(jr.key(0), WEIGHTS_CHECKED)
    theta = jax.vmap(problem.sample_prior)(keys)
    drawn = jax.vmap(problem.y_of)(theta)
    values = loss.weights(Draw(theta, drawn, ()))
    if values is None:
        return
    values = np.asarray(values)
    wrong = ~(np.isfinite(values) & (values > 0)).reshape(len(values), -1).all(axis=1)
    if wrong.any():
        value, y = values[np.argmax(wrong)], np.asarray(drawn)[np.argmax(wrong)]
        raise ValueError(f"weight(y) must be positive and finite, got {value} at y = {y}")


def _check_loss(problem: Problem, batch_size: int, repeats: int, loss: Loss) -> None:
    draw = jax.eval_shape(lambda: problem.draw(jr.key(0), batch_size, repeats))
    shape = (batch_size, repeats, draw.y.shape[1])
    estimates = jax.ShapeDtypeStruct(shape, draw.y.dtype)
    try:
        progress = jax.ShapeDtypeStruct((), jnp.float32)
        value = jax.eval_shape(lambda *batch: loss(*batch), estimates, draw, progress)
    except TypeError as error:
        raise TypeError(
            "loss is called as loss(estimates, draw, progress), with estimates of shape (N, M, d); "
            f"it failed: {error}"
        ) from error
    if getattr(value, "shape", None) != ():
        raise ValueError(f"loss must return a scalar, got {value}")
