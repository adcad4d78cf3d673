"""Training: one compiled program, run in pieces.

The host is visited a few times a second, for the progress bar, interruption, validation on
held-out unknowns and checkpoints. Nothing that the result depends on happens in between: a run
cut into other pieces, or stopped and resumed, ends with the same bits.
"""

import dataclasses
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from ._anchor import Control
from ._checkpoint import Checkpoints, arrays_digest, program_digest
from ._fit import Fit, History, Outcome
from ._frozen import trainable
from ._networks import PILOT_UNITS, Given, WithBaseline, default_network
from ._objectives import Loss, bce
from ._problem import (
    Draw,
    Problem,
    check_count,
    check_output,
    key_for,
    nonfinite_error,
    pilot_draw,
)
from ._program import Arrays, Keep, Program, State, Sums
from ._progress import progress_bar
from ._survey import Survey, survey
from ._theta_features import ThetaFeatures
from ._types import Estimator, Key
from ._version import __version__

RECORDS = 100  # rows of the history of a whole run
PIECE_SECONDS = 0.3  # how often the host is visited
BIAS_SHOWN = 5.0  # standard errors above which a baseline is called biased
FRESH = 2**31 - 1  # number of the key for unknowns on which no weights were chosen


def fit(
    problem: Problem,
    network: Estimator | None = None,
    loss: Loss | Callable[[Any, Draw, Any], Any] | None = None,
    *,
    key: Key,
    baseline: Estimator | None = None,
    training_prior: Any = None,
    steps: int = 6_000,
    batch_size: int = 128,
    replicates: int = 8,
    anchors: int = 6,
    optimizer: Any = None,
    keep: Keep = "average",
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    progress: bool | None = None,
) -> Fit:
    """Train an estimator on fresh simulations.

    Every step draws `batch_size` unknowns and `replicates` measurements of each. Ctrl-C ends
    training after the current piece and returns what is there.

    What is not given is decided by a recipe that starts with a `survey` of the problem; its
    decisions stand in the `Fit`.

    Args:
        problem: what to estimate; its prior says which unknowns are of interest.
        network: a function of one measurement with trainable arrays (an Equinox module) that
            returns y, used as it is; see `standardize`. By default one that corrects a closed-form
            estimate, in units of the error to expect.
        loss: what to minimise, by default `bce`; see there and `Loss` for others.
        key: decides all random numbers.
        baseline: an estimator that is known to be unbiased, if there is one. The network then
            learns a correction to it, and only the bias of the correction is penalised: the noise
            of the baseline is known and taken out.
        training_prior: where to draw unknowns, as `Problem.prior`. By default, for `bce`, whose
            answer does not depend on it, evenly over a range wider than the one of interest (see
            `survey`); for other losses the prior of the problem.
        steps: how many updates.
        batch_size: N, unknowns in a batch.
        replicates: M, measurements of each unknown.
        anchors: how many times, at equal distances, the bias of the estimator is measured on many
            simulations, as a smooth function of theta. What remains of its errors is noise, and
            is taken out of the penalty of the steps that follow. 0 for never; losses other than
            `bce` with its unbiased penalty have no use for it.
        optimizer: an Optax optimizer, or the peak learning rate of the default: Adam with a
            short warm-up and a cosine decay to zero.
        keep: which weights to return: an average over the last steps, those with the best
            held-out loss, or the last.
        patience: stop after this many validations in a row without a better held-out loss;
            None never stops early. There are about 100 validations in a run.
        checkpoint: a folder to save the state in; the same call resumes from it.
        checkpoint_every: seconds between checkpoints; there is always one at the end.
        progress: show a progress bar; by default on a terminal only.

    Returns:
        The estimator, how training ended and how it went.
    """
    if isinstance(key, Tracer):
        raise TypeError("fit cannot be traced: call it outside of jax.jit, jax.vmap and jax.grad")
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")
    _check_settings(steps, batch_size, replicates, anchors, keep, patience, checkpoint_every)
    loss = bce() if loss is None else loss
    if not callable(loss):
        raise TypeError(f"loss must be callable, such as mvue.bce(40.0), got {loss!r}")
    least = getattr(loss, "min_replicates", 1)
    if replicates < least:
        raise ValueError(
            f"replicates must be at least {least} for this loss, got {replicates}: a bias cannot "
            "be seen in one measurement of each unknown"
        )
    started = time.perf_counter()
    keys = jr.split(key_for("fit", key), 6)
    pilot_key, network_key, train_key, validation_key, anchor_key, features_key = keys
    chooses_prior = training_prior is None and getattr(loss, "any_prior", False)
    weighted_by = getattr(loss, "weighted_by", None)
    seen: Survey | None = None
    if network is None or chooses_prior or weighted_by:
        seen = survey(problem, key=key)
    if chooses_prior:
        assert seen is not None
        training_prior = seen.training_prior
    if training_prior is not None:
        problem = dataclasses.replace(problem, prior=training_prior, crb=None)
    if weighted_by:
        assert seen is not None
        loss = cast(Loss, weighted_by(seen.weight))
    pilot = pilot_draw(problem, pilot_key, PILOT_UNITS, 1) if seen is None else seen.pilot
    if network is None:
        assert seen is not None
        network = default_network(problem, seen, correction=baseline is not None, key=network_key)
    _check_estimator("network", network, problem)
    if baseline is not None:
        _check_estimator("baseline", baseline, problem)
        network = WithBaseline(Given(baseline), network)
    control, weights = None, getattr(loss, "penalty_weights", None)
    if weights and (anchors or baseline is not None):
        control = Control(ThetaFeatures(problem, features_key), weights)
    program = Program(
        problem, network, loss, steps, batch_size, replicates, optimizer, keep, control
    )
    _check_loss(program, loss)
    if baseline is not None:
        _check_baseline(program, pilot_key)
    state, history = program.initial_state(), History()
    constants = program.arrays.constants
    traced = jax.jit(program.run).trace(state, jnp.asarray(0), train_key, constants)
    run = traced.lower().compile()
    validate, measure = jax.jit(program.validate), jax.jit(program.measure)
    if program.measures_loss:
        first = abs(float(validate(program.arrays, validation_key)["loss"]))
        state = state._replace(loss_unit=jnp.asarray(first if 0 < first < np.inf else 1.0))
    compile_seconds = time.perf_counter() - started

    settings = {
        "loss": _describe_loss(loss, replicates),
        "training": str(seen) if chooses_prior else "drawn from the prior that was given",
        "network": _describe_network(network),
        "steps": steps,
        "batch_size": batch_size,
        "replicates": replicates,
        "anchors": anchors if control else 0,
        "keep": keep,
        "patience": patience,
    }
    checkpoints = None
    if checkpoint is not None:
        identity = settings | {
            "y": list(problem.names or ()),
            "key": np.asarray(jr.key_data(key)).tolist(),
            "program": program_digest(traced.jaxpr),
            "first_state": arrays_digest((state, constants)),
            "pilot": _typical(pilot),
            "mvue": __version__,
            "jax": jax.__version__,
        }
        checkpoints = Checkpoints(checkpoint, identity)
        restored = checkpoints.restore(state)
        if restored is not None:
            state, history = restored[0], History(restored[1])

    started -= history.last.get("seconds", 0.0)
    every = max(1, round(steps / RECORDS))
    anchored = {i * steps // anchors for i in range(anchors)} if control else set()
    piece, saved = 1, time.perf_counter()
    outcome = _outcome(state, history, steps, patience)
    with (
        _interruptible() as interrupted,
        progress_bar("training", steps, show=progress, start=int(state.step)) as advance,
    ):
        while outcome is None:
            step = int(state.step)
            if control and step in anchored:
                # Moments of one state and key, whatever came before: a resumed run has the same.
                sums = measure(state.average, jr.fold_in(anchor_key, step), constants)
                state = state._replace(anchor=control.solve(_copy(state.average), sums))
            stops = [every - step % every, steps - step, *(a - step for a in anchored if a > step)]
            count = min(piece, *stops)
            begun = time.perf_counter()
            state = run(state, jnp.asarray(count), train_key, constants)
            reached = int(state.step)
            elapsed = time.perf_counter() - begun
            piece = max(1, min(2 * piece, int(count * PIECE_SECONDS / max(elapsed, 1e-6))))
            if reached > step and (reached % every == 0 or reached == steps):
                state = _record(program, validate, validation_key, state, history, started)
            advance(reached, _message(history))
            outcome = _outcome(state, history, steps, patience)
            if outcome is None and interrupted():
                outcome = Outcome.INTERRUPTED
            failing = nonfinite_error(int(state.nonfinite), reached * batch_size)
            due = time.perf_counter() - saved > checkpoint_every
            if checkpoints is not None and (due or failing or outcome is not None):
                checkpoints.save(reached, state, history)
                saved = time.perf_counter()
            if failing:
                raise failing
    if checkpoints is not None:
        checkpoints.close()

    params, chosen = _choose(program, state, history, outcome)
    arrays = Arrays(params, constants)
    held_out = validate(arrays, jr.fold_in(validation_key, FRESH))
    return Fit(
        estimator=program.estimator(arrays),
        outcome=outcome,
        step=int(state.step),
        weights=chosen,
        held_out={name: float(value) for name, value in held_out.items()},
        history=history,
        seconds=time.perf_counter() - started,
        compile_seconds=compile_seconds,
        nonfinite=int(state.nonfinite),
        settings=settings,
        survey=seen,
    )


def _record(
    program: Program,
    validate: Callable[..., dict[str, Any]],
    key: Key,
    state: State,
    history: History,
    started: float,
) -> State:
    """Validate, add a row to the history, keep the weights if they are the best so far."""
    candidate = program.candidate(state)
    held_out = validate(Arrays(candidate, program.arrays.constants), key)
    sums = state.sums
    history.add(
        {
            "step": int(state.step),
            "loss": float(sums.loss / sums.steps),
            "mse": float(sums.mse / sums.steps),
            "squared_bias": float(sums.squared_bias / sums.steps),
            **{f"held_out_{name}": float(value) for name, value in held_out.items()},
            "seconds": time.perf_counter() - started,
        }
    )
    if history.best == len(history["step"]) - 1:
        state = state._replace(best=candidate)
    return state._replace(sums=Sums.zero())


def _outcome(state: State, history: History, steps: int, patience: int | None) -> Outcome | None:
    """How training has ended, if it has."""
    if bool(state.diverged):
        return Outcome.DIVERGED
    if int(state.step) >= steps:
        return Outcome.FINISHED
    if patience is not None and history.best is not None:
        waited = len(history["step"]) - 1 - history.best
        return Outcome.STOPPED_EARLY if waited >= patience else None
    return None


def _choose(
    program: Program, state: State, history: History, outcome: Outcome
) -> tuple[PyTree, str]:
    """The weights to return, and which they are, in words."""
    failed = outcome in (Outcome.STOPPED_EARLY, Outcome.DIVERGED)
    if history.best is not None and (program.keep == "best" or failed):
        step = int(history["step"][history.best])
        return state.best, f"weights of step {step:,}, the best on held-out unknowns"
    if program.keep == "average":
        return state.average, "weights averaged over the last steps"
    return state.params, "weights of the last step"


def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.array, tree)


def _typical(pilot: Draw) -> list[str]:
    """Rounded moments of a pilot draw: they tell problems apart whose program looks the same."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((pilot.y, pilot.x))]
    return [f"{value:.3g}" for leaf in leaves for value in (leaf.mean(), leaf.std())]


def _check_loss(program: Program, loss: Callable[[Any, Draw, Any], Any]) -> None:
    key = jr.key(0)
    draw = jax.eval_shape(lambda: program.problem.draw(key, program.batch_size, program.replicates))
    estimates = jax.ShapeDtypeStruct(
        (program.batch_size, program.replicates, draw.y.shape[1]), draw.y.dtype
    )
    try:
        value = jax.eval_shape(loss, estimates, draw, jax.ShapeDtypeStruct((), jnp.float32))
    except TypeError as error:
        raise TypeError(
            "loss is called as loss(estimates, draw, progress), with estimates of shape (N, M, d); "
            f"it failed: {error}"
        ) from error
    if getattr(value, "shape", None) != ():
        raise ValueError(f"loss must return a scalar, got {value}")


def _check_estimator(name: str, estimator: Any, problem: Problem) -> None:
    if not callable(estimator):
        raise TypeError(f"{name} must be callable, got {type(estimator).__name__}")
    x, y = problem.shapes()
    try:
        output = eqx.filter_eval_shape(estimator, x)
    except Exception as error:
        raise ValueError(
            f"{name} failed on one measurement x: {type(error).__name__}: {error}"
        ) from error
    check_output(name, output, y.shape[0])


def _check_baseline(program: Program, key: Key) -> None:
    """Warn if the estimator that is said to be unbiased is not."""
    shown, se = jax.jit(program.baseline_bias)(program.arrays, key)
    worst = int(np.argmax(np.asarray(shown / se)))
    if shown[worst] > BIAS_SHOWN * se[worst]:
        warnings.warn(
            f"baseline is biased: its squared bias, component {worst}, is {shown[worst]:.3g} ± "
            f"{se[worst]:.1g} of its variance on average. The trained estimator keeps this bias. "
            "Give a baseline that is unbiased, or none",
            stacklevel=3,
        )


def _describe_network(network: Any) -> str:
    inner = getattr(network, "network", network)
    weights = jax.tree.leaves(eqx.filter(network, trainable(network)))
    return f"{type(inner).__name__}, {sum(w.size for w in weights):,} weights"


def _describe_loss(loss: Any, replicates: int) -> str:
    describe = getattr(loss, "describe", None)
    return describe(replicates) if describe else getattr(loss, "__name__", type(loss).__name__)


def _message(history: History) -> str:
    if not history:
        return ""
    last = history.last
    return (
        f"loss {last['loss']:.4g}  held out: MSE {last['held_out_mse']:.4g}, "
        f"bias² {last['held_out_squared_bias']:.2g} ± {last['held_out_squared_bias_se']:.1g}"
    )


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag; a second one interrupts at once."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handler(*_: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def _check_settings(
    steps: int,
    batch_size: int,
    replicates: int,
    anchors: int,
    keep: str,
    patience: int | None,
    checkpoint_every: float,
) -> None:
    check_count("steps", steps)
    check_count("batch_size", batch_size)
    check_count("replicates", replicates)
    if not (isinstance(anchors, int) and anchors >= 0):
        raise ValueError(f"anchors must be a whole number of at least 0, got {anchors!r}")
    if patience is not None:
        check_count("patience", patience)
    if keep not in ("average", "best", "last"):
        raise ValueError(f"keep must be 'average', 'best' or 'last', got {keep!r}")
    if not checkpoint_every >= 0:
        raise ValueError(f"checkpoint_every must be at least 0 seconds, got {checkpoint_every}")
