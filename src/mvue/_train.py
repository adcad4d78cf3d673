"""Training: one compiled program that simulates, estimates and updates, run in pieces.

The host is visited a few times a second, for the progress bar, interruption, validation on
held-out unknowns and checkpoints. Nothing that the result depends on happens in between: a run
cut into other pieces, or stopped and resumed, ends with the same bits.
"""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ._checkpoint import Checkpoints, program_digest
from ._fit import Fit, Outcome
from ._losses import unit_mse, unit_squared_bias
from ._networks import PILOT_UNITS, default_network, trainable
from ._objectives import Loss, bce
from ._problem import Draw, Problem, check_count, check_nonfinite, finite_units, pilot_draw
from ._progress import progress_bar
from ._types import Estimator, Key
from ._version import __version__

RECORDS = 100  # rows of the history of a whole run
VALIDATION_BATCHES = 4
PIECE_SECONDS = 0.3  # how often the host is visited
AVERAGED_FRACTION = 0.05  # of the steps, the horizon of the weight average

Keep = Literal["average", "best", "last"]


class Sums(NamedTuple):
    """Sums over the steps since the last record."""

    loss: Float[Array, ""]
    mse: Float[Array, ""]
    squared_bias: Float[Array, ""]
    steps: Float[Array, ""]

    @classmethod
    def zero(cls) -> "Sums":
        return cls(*(jnp.zeros(()),) * 4)


class State(NamedTuple):
    """Everything the next step needs, and what the end of training chooses from."""

    step: Int[Array, ""]
    params: PyTree
    average: PyTree
    best: PyTree
    opt_state: PyTree
    sums: Sums
    nonfinite: Int[Array, ""]
    diverged: Int[Array, ""]


def fit(
    problem: Problem,
    network: Estimator | None = None,
    loss: Loss | Callable[[Any, Draw, Any], Any] | None = None,
    *,
    key: Key,
    steps: int = 5_000,
    batch_size: int = 128,
    replicates: int = 8,
    optimizer: optax.GradientTransformation | float | None = None,
    keep: Keep = "average",
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    progress: bool | None = None,
) -> Fit:
    """Train an estimator on fresh simulations.

    Every step draws `batch_size` unknowns from the prior and `replicates` measurements of each.
    Ctrl-C ends training after the current piece and returns what is there.

    Args:
        problem: what to estimate.
        network: a function of one measurement with trainable arrays (an Equinox module) that
            returns y, used as it is; see `standardize`. By default one that suits the problem,
            in the problem's own units.
        loss: what to minimise, by default `bce`; see there and `Loss` for others.
        key: decides all random numbers.
        steps: how many updates.
        batch_size: N, unknowns in a batch.
        replicates: M, measurements of each unknown.
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
    _check_settings(steps, batch_size, replicates, keep, patience, checkpoint_every)
    loss = bce() if loss is None else loss
    least = getattr(loss, "min_replicates", 1)
    if replicates < least:
        raise ValueError(
            f"replicates must be at least {least} for this loss, got {replicates}: a bias cannot "
            "be seen in one measurement of each unknown"
        )
    started = time.perf_counter()
    pilot_key, network_key, train_key, validation_key = jr.split(key, 4)
    pilot = pilot_draw(problem, pilot_key, PILOT_UNITS, 1)
    if network is None:
        network = default_network(problem, pilot, key=network_key)
    check_estimator(network, problem)
    program = _Program(problem, network, loss, steps, batch_size, replicates, optimizer, keep)
    state = program.initial_state()
    traced = jax.jit(program.run).trace(state, jnp.asarray(0), train_key)
    run = traced.lower().compile()
    validate = eqx.filter_jit(program.validate)
    compile_seconds = time.perf_counter() - started

    settings = {
        "loss": _describe(loss, replicates),
        "network": describe_network(network),
        "steps": steps,
        "batch_size": batch_size,
        "replicates": replicates,
        "keep": keep,
        "patience": patience,
    }
    history: dict[str, list[float]] = {}
    checkpoints = None
    if checkpoint is not None:
        identity = settings | {
            "y": list(problem.names or ()),
            "key": np.asarray(jr.key_data(jnp.asarray(key))).tolist(),
            "program": program_digest(traced.jaxpr),
            "mvue": __version__,
            "jax": jax.__version__,
        }
        checkpoints = Checkpoints(checkpoint, identity)
        restored = checkpoints.restore(state)
        if restored is not None:
            state, history = restored

    def record() -> None:
        nonlocal state
        validation = validate(program.candidate(state), validation_key)
        row = {
            "step": int(state.step),
            "loss": float(state.sums.loss / state.sums.steps),
            "mse": float(state.sums.mse / state.sums.steps),
            "squared_bias": float(state.sums.squared_bias / state.sums.steps),
            **{f"held_out_{name}": float(value) for name, value in validation.items()},
            "seconds": seconds_before + time.perf_counter() - started,
        }
        scores = history.get("held_out_loss", [])
        if np.isfinite(row["held_out_loss"]) and row["held_out_loss"] < min(scores, default=np.inf):
            state = state._replace(best=program.candidate(state))
        for name, value in row.items():
            history.setdefault(name, []).append(value)
        state = state._replace(sums=Sums.zero())

    seconds_before = history["seconds"][-1] if history else 0.0
    every = max(1, round(steps / RECORDS))
    piece, saved = 1, time.perf_counter()
    outcome = _ended(state, history, steps, patience)
    with (
        _interruptible() as interrupted,
        progress_bar("training", steps, show=progress, start=int(state.step)) as advance,
    ):
        while outcome is None:
            step = int(state.step)
            count = min(piece, every - step % every, steps - step)
            begun = time.perf_counter()
            state = run(state, jnp.asarray(count), train_key)
            reached = int(state.step)
            elapsed = time.perf_counter() - begun
            piece = max(1, min(2 * piece, int(count * PIECE_SECONDS / max(elapsed, 1e-6))))
            if reached > step and (reached % every == 0 or reached == steps):
                record()
                check_nonfinite(int(state.nonfinite), reached * batch_size)
            advance(reached, _message(history))
            outcome = _ended(state, history, steps, patience)
            if outcome is None and interrupted():
                outcome = Outcome.INTERRUPTED
            due = time.perf_counter() - saved > checkpoint_every
            if checkpoints is not None and (due or outcome is not None):
                checkpoints.save(reached, state, history)
                saved = time.perf_counter()
    if checkpoints is not None:
        checkpoints.close()

    params, chosen = _choose(program, state, history, keep, outcome)
    return Fit(
        estimator=eqx.combine(params, program.frozen),
        outcome=outcome,
        step=int(state.step),
        weights=chosen,
        history={name: np.asarray(values) for name, values in history.items()},
        seconds=seconds_before + time.perf_counter() - started,
        compile_seconds=compile_seconds,
        nonfinite=int(state.nonfinite),
        settings=settings,
    )


class _Program:
    """The functions of one training run that are compiled."""

    def __init__(
        self,
        problem: Problem,
        network: Estimator,
        loss: Callable[[Any, Draw, Any], Any],
        steps: int,
        batch_size: int,
        replicates: int,
        optimizer: optax.GradientTransformation | float | None,
        keep: Keep,
    ) -> None:
        self.problem, self.loss = problem, loss
        self.steps, self.batch_size, self.replicates = steps, batch_size, replicates
        self.keep = keep
        self.params, self.frozen = eqx.partition(network, trainable(network))
        if not jax.tree.leaves(self.params):
            raise ValueError(
                "network has no trainable arrays: give an Equinox module whose leaves are "
                "floating-point JAX arrays"
            )
        if optimizer is None or isinstance(optimizer, (int, float)):
            optimizer = default_optimizer(steps, 3e-3 if optimizer is None else optimizer)
        self.optimizer = optimizer

    def initial_state(self) -> State:
        # Copies, so that the compiled program never sees one buffer under two names.
        params, average, best = (jax.tree.map(jnp.array, self.params) for _ in range(3))
        return State(
            step=jnp.asarray(0),
            params=params,
            average=average,
            best=best,
            opt_state=jax.tree.map(jnp.asarray, self.optimizer.init(params)),
            sums=Sums.zero(),
            nonfinite=jnp.asarray(0),
            diverged=jnp.asarray(False),
        )

    def candidate(self, state: State) -> PyTree:
        """The weights that training would return if it ended now."""
        return state.average if self.keep == "average" else state.params

    def estimate(self, params: PyTree, x: PyTree) -> Float[Array, "n m d"]:
        estimator = eqx.combine(params, self.frozen)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
        estimates = jax.vmap(lambda one: jnp.reshape(estimator(one), (-1,)))(flat)
        n, m = jax.tree.leaves(x)[0].shape[:2]
        return estimates.reshape(n, m, -1)

    def run(self, state: State, count: Int[Array, ""], key: Key) -> State:
        """At most `count` steps; ends early when training diverges."""

        def wanted(carry: tuple[Array, State]) -> Array:
            done, state = carry
            return (done < count) & ~state.diverged

        def body(carry: tuple[Array, State]) -> tuple[Array, State]:
            done, state = carry
            return done + 1, self.step(state, jr.fold_in(key, state.step))

        return jax.lax.while_loop(wanted, body, (jnp.asarray(0), state))[1]

    def step(self, state: State, key: Key) -> State:
        draw, bad = _replace_nonfinite(self.problem.draw(key, self.batch_size, self.replicates))
        progress = state.step / self.steps

        def objective(params: PyTree) -> tuple[Array, Array]:
            estimates = self.estimate(params, draw.x)
            return self.loss(estimates, draw, progress), estimates

        (value, estimates), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        share = jnp.maximum(1 / (state.step + 1), 1 / (1 + AVERAGED_FRACTION * self.steps))
        average = optax.incremental_update(params, state.average, share)
        mse, bias2 = _moments(estimates, draw.y)
        sums = Sums(*map(jnp.add, state.sums, (value, mse.mean(), bias2.mean(), jnp.ones(()))))
        after = state._replace(
            step=state.step + 1,
            params=params,
            average=average,
            opt_state=opt_state,
            sums=sums,
            nonfinite=state.nonfinite + bad,
        )
        good = jnp.isfinite(value) & _all_finite(params)
        kept = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, state)
        return kept._replace(diverged=~good)

    def validate(self, params: PyTree, key: Key) -> dict[str, Array]:
        """Loss, MSE and squared bias on unknowns that training never sees.

        The same draws every time, simulated anew, so that they cost no memory.
        """

        def batch(i: Array) -> tuple[Array, Array, Array]:
            draw = self.problem.draw(jr.fold_in(key, i), self.batch_size, self.replicates)
            draw, _ = _replace_nonfinite(draw)
            estimates = self.estimate(params, draw.x)
            mse, bias2 = _moments(estimates, draw.y)
            return self.loss(estimates, draw, jnp.asarray(1.0)), mse, bias2

        losses, mse, bias2 = jax.lax.map(batch, jnp.arange(VALIDATION_BATCHES))
        root = jnp.sqrt(mse.size)
        return {
            "loss": losses.mean(),
            "mse": mse.mean(),
            "mse_se": mse.std() / root,
            "squared_bias": bias2.mean(),
            "squared_bias_se": bias2.std() / root,
        }


def default_optimizer(steps: int, peak: float) -> optax.GradientTransformation:
    """Adam, warmed up over the first hundredth of training, then a cosine decay to zero."""
    if not peak > 0:
        raise ValueError(f"optimizer, as a learning rate, must be positive, got {peak}")
    warmup = max(1, steps // 100)
    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(steps, warmup + 1)))


def check_estimator(estimator: Estimator, problem: Problem) -> None:
    """Refuse an estimator that does not turn a measurement into a y."""
    x, y = problem.shapes()
    try:
        output = eqx.filter_eval_shape(estimator, x)
    except Exception as error:
        raise ValueError(
            f"the network failed on one measurement x: {type(error).__name__}: {error}"
        ) from error
    check_output(output, y.shape[0])


def check_output(output: Any, d: int) -> None:
    """Refuse an estimate whose shape is not that of y."""
    shape = getattr(output, "shape", None)
    if shape != (d,) and not (d == 1 and shape == ()):
        got = f"shape {shape}" if shape is not None else type(output).__name__
        raise ValueError(
            f"an estimator must return an array of the shape of y, ({d},), for one measurement; "
            f"this one returns {got}"
        )


def describe_network(network: Any) -> str:
    """Kind and size of a network in a few words."""
    inner = getattr(network, "network", network)
    weights = jax.tree.leaves(eqx.filter(network, trainable(network)))
    name = type(inner).__name__
    return f"{name}, {sum(w.size for w in weights):,} weights"


def _moments(estimates: Array, y: Array) -> tuple[Array, Array]:
    """Squared error and squared bias of each unknown, summed over components, (N,)."""
    errors = estimates - y[:, None, :]
    mse = unit_mse(errors).sum(axis=-1)
    if errors.shape[1] < 2:
        return mse, jnp.full_like(mse, jnp.nan)
    return mse, unit_squared_bias(errors, "unbiased").sum(axis=-1)


def _replace_nonfinite(draw: Draw) -> tuple[Draw, Int[Array, ""]]:
    """Put another unknown of the batch in the place of each whose simulation failed.

    Whole unknowns are replaced: leaving out single measurements would change the distribution
    that the estimator is judged by.
    """
    finite = finite_units(draw)
    n = finite.shape[0]
    # The j-th failed unknown is replaced by the j-th good one.
    good_first = jnp.argsort(~finite, stable=True)
    source = jnp.where(finite, jnp.arange(n), good_first[(jnp.cumsum(~finite) - 1) % n])
    bad = n - finite.sum()
    draw = jax.lax.cond(
        bad > 0, lambda d: jax.tree.map(lambda leaf: leaf[source], d), lambda d: d, draw
    )
    return draw, bad


def _all_finite(tree: PyTree) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def _ended(
    state: State, history: dict[str, list[float]], steps: int, patience: int | None
) -> Outcome | None:
    if bool(state.diverged):
        return Outcome.DIVERGED
    if int(state.step) >= steps:
        return Outcome.FINISHED
    scores = history.get("held_out_loss", [])
    if patience is not None and scores and len(scores) - 1 - int(np.argmin(scores)) >= patience:
        return Outcome.STOPPED_EARLY
    return None


def _choose(
    program: _Program,
    state: State,
    history: dict[str, list[float]],
    keep: Keep,
    outcome: Outcome,
) -> tuple[PyTree, str]:
    """The weights to return, and which they are, in words."""
    scores = history.get("held_out_loss", [])
    if scores and (keep == "best" or outcome in (Outcome.STOPPED_EARLY, Outcome.DIVERGED)):
        step = int(history["step"][int(np.argmin(scores))])
        return state.best, f"of step {step}, the best on held-out unknowns"
    if keep == "average":
        return state.average, "averaged over the last steps"
    return program.candidate(state), "of the last step"


def _describe(loss: Any, replicates: int) -> str:
    describe = getattr(loss, "describe", None)
    return describe(replicates) if describe else getattr(loss, "__name__", type(loss).__name__)


def _message(history: dict[str, list[float]]) -> str:
    if not history:
        return ""
    last = {name: values[-1] for name, values in history.items()}
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

    def handler(signum: int, frame: Any) -> None:
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
    keep: str,
    patience: int | None,
    checkpoint_every: float,
) -> None:
    check_count("steps", steps)
    check_count("batch_size", batch_size)
    check_count("replicates", replicates)
    if patience is not None:
        check_count("patience", patience)
    if keep not in ("average", "best", "last"):
        raise ValueError(f"keep must be 'average', 'best' or 'last', got {keep!r}")
    if not checkpoint_every >= 0:
        raise ValueError(f"checkpoint_every must be at least 0 seconds, got {checkpoint_every}")
