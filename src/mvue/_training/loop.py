"""The training loop on the host: one compiled program, run in pieces.

The host is visited a few times a second, for the progress bar, interruption, validation on
held-out draws and checkpoints. Nothing that the result depends on happens in between: a run cut
into other pieces, or stopped and resumed, ends with the same bits.
"""

import functools
import signal
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._core.checks import check_count
from .._core.sampling import Batches, nonfinite_error
from .._core.types import Key
from .._recipe.survey import Survey
from .._runtime.devices import agreed, everywhere, from_first, replicated, same_everywhere
from .._runtime.digest import arrays_identity, program_identity
from .._runtime.jit import as_array, is_tracing
from .._runtime.memory import bytes_needed, require_memory
from .._runtime.programs import compiled
from .._runtime.progress import Progress
from .._runtime.signals import stop_signals
from .batches import SimulatedBatches
from .checkpoint import Checkpoints, versions_and_key
from .pools import RenewedPools, SimulatedPools, joined
from .program import Program
from .result import Fit, History, Outcome
from .state import Arrays, State, Sums, check_optimizer

T = TypeVar("T")
PIECE_SECONDS = 0.3  # how often the host is visited
FRESH = 2**31 - 1  # number of the key for unknowns on which no weights were chosen


class Keys(NamedTuple):
    """What decides the random numbers of a run."""

    user: Key
    train: Key
    validation: Key
    anchor: Key


class Schedule(NamedTuple):
    """What the user decides about the course of a run."""

    steps: int
    patience: int | None
    checkpoint: str | Path | None
    checkpoint_every: float
    validations: int = 100

    def check(self, keep: str, optimizer: Any) -> None:
        """Refuse what cannot be meant."""
        check_optimizer(optimizer)
        check_count("steps", self.steps)
        check_count("validations", self.validations)
        if self.patience is not None:
            check_count("patience", self.patience)
        if keep not in ("average", "best", "last"):
            raise ValueError(f"keep must be 'average', 'best' or 'last', got {keep!r}")
        if self.checkpoint is not None and not (
            isinstance(self.checkpoint, (str, Path)) and str(self.checkpoint)
        ):
            raise TypeError(
                f"checkpoint must be the name of a folder, or None for none, got "
                f"{self.checkpoint!r}"
            )
        if not self.checkpoint_every >= 0:
            raise ValueError(
                f"checkpoint_every must be at least 0 seconds, got {self.checkpoint_every}"
            )


Feed = Callable[[int], tuple[PyTree, int]]
"""From the number of a step to the pool that it is drawn from, and where the next one begins."""


def train(
    program: Program,
    keys: Keys,
    schedule: Schedule,
    *,
    settings: dict[str, Any],
    identity: dict[str, Any],
    started: float,
    progress: Progress,
    feed: Feed | None = None,
    held_out: PyTree = (),
    anchors: int = 0,
    survey: Survey | None = None,
) -> Fit:
    """Run a program to its end, or to where it is stopped.

    Args:
        program: what to run.
        keys: of all random numbers.
        schedule: how long, and what is kept of it on the way.
        settings: what is trained, for the reader.
        identity: what tells this run from others, besides the program.
        started: when the call began.
        progress: where to say how far it is.
        feed: pools of data; None for simulations.
        held_out: the pool to validate on.
        anchors: how many times the bias is measured.
        survey: for the record.
    """
    steps, control, mesh = schedule.steps, program.control, program.source.mesh
    simulations = program.simulations
    if simulations is not None:
        pools = SimulatedPools(simulations, keys.train)
        if program.uses > 1:
            kept = program.settings.kept_numbers
            pools = RenewedPools(simulations, keys.train, steps, program.uses, kept)
        feed = pools.feed
    program.arrays = from_first(program.arrays)
    state, history = program.initial_state(), History()
    constants, held_out = replicated((program.arrays.constants, held_out), mesh)

    def pool_at(step: int) -> tuple[PyTree, int]:
        pool, renewed = ((), steps) if feed is None else feed(step)
        return replicated(pool, mesh), renewed

    same = {"mesh": mesh, "same_as": program.same_as}
    held_data = held_out
    with progress.stage("compiling"):
        if simulations is not None:
            require_memory(bytes_needed(simulations.prepare()), program.source.sizes)
            held_out = _held_out(program, keys.validation)
        pool, renewed = pool_at(0)
        first_run = (state, as_array(0, int), keys.train, constants, pool)
        judging = program.arrays, keys.validation, held_out
        run, traced, executable = compiled(program.run, *first_run, **same)
        require_memory(bytes_needed(executable), program.source.sizes)
        validate = compiled(program.validate, *judging, **same).run
        if program.measures_loss:
            first = abs(float(validate(*judging)["loss"]))
            state = state._replace(loss_unit=as_array(first if 0 < first < np.inf else 1.0))
    measure = everywhere(same_everywhere(program.measure, mesh), mesh)
    measure_excess = everywhere(same_everywhere(program.measure_excess, mesh), mesh)

    def measured(function: Callable[..., T], sums: T, count: int, params: PyTree, key: Key) -> T:
        """The sums over so many batches; whatever came before, a resumed run has the same."""
        at_once = count if simulations is None else simulations.count
        for first in range(0, count, at_once):
            numbers = as_array(first, int), as_array(min(first + at_once, count), int)
            batches = pool if simulations is None else simulations.at(key, first)
            sums = function(sums, params, numbers, key, constants, batches)
        return sums

    compile_seconds = time.perf_counter() - started

    checkpoints = None
    if schedule.checkpoint is not None:
        alone = program
        if mesh is not None:  # a run may be resumed on any number of devices
            alone = program.on_one_device()
            traced = _traced(alone, first_run)
        programs = [program_identity(traced.jaxpr)]
        if alone.simulations is not None:
            programs.append(program_identity(alone.simulations.trace().jaxpr))
        identity = {
            **identity,
            "program": programs,
            "first_state": arrays_identity((first_run[0], constants, held_data)),
            **versions_and_key(keys.user),
        }
        checkpoints = Checkpoints(schedule.checkpoint, identity)
        restored = checkpoints.restore(state)
        if restored is not None:
            state, history = restored[0], History(restored[1])
            pool, renewed = pool_at(int(state.step))

    started -= history.last.get("seconds", 0.0)
    every = max(1, round(steps / schedule.validations))
    # The control variate is that of the penalty: before it there is none to measure.
    begin = program.first_penalised
    anchored = (
        {begin + i * (steps - begin) // anchors for i in range(anchors)} if control else set()
    )
    piece, saved = 1, time.perf_counter()
    outcome = _outcome(state, history, steps, schedule.patience)
    stop = 0
    with (
        nullcontext() if checkpoints is None else closing(checkpoints),
        stop_signals() as stop_signal,
        progress.stage("training", steps, int(state.step)) as advance,
    ):
        while outcome is None:
            step = int(state.step)
            if step >= renewed:
                pool, renewed = pool_at(step)
            if step == begin and program.lowers_weights:
                assert program.places is not None
                advance(step, "measuring errors")
                sums = measured(
                    measure_excess,
                    program.no_excess_sums(),
                    program.excess_batches,
                    state.average,
                    jr.fold_in(keys.anchor, steps),
                )
                state = state._replace(excess=program.places.excess.solve(sums))
            if control and step in anchored:
                advance(step, "measuring the bias")
                sums = measured(
                    measure,
                    control.zero(program.d),
                    program.measured_batches,
                    state.average,
                    jr.fold_in(keys.anchor, step),
                )
                state = state._replace(anchor=control.solve(_copy(state.average), sums))
            halts = anchored | ({begin} if program.lowers_weights else set())
            stops = [every - step % every, steps - step, *(a - step for a in halts if a > step)]
            count = min(piece, renewed - step, *stops)
            begun = time.perf_counter()
            state = run(state, as_array(count, int), keys.train, constants, pool)
            reached = int(state.step)
            elapsed = time.perf_counter() - begun
            piece = max(1, min(2 * piece, int(count * PIECE_SECONDS / max(elapsed, 1e-6))))
            if reached > step and (reached % every == 0 or reached == steps):
                candidate = Arrays(program.candidate(state), constants)
                judged = validate(candidate, keys.validation, held_out)
                state = _record(candidate.params, judged, state, history, started)
            advance(reached, _message(history))
            outcome = _outcome(state, history, steps, schedule.patience)
            # Whoever is asked to stop, all stop together; the first one's clock is everyone's.
            due = time.perf_counter() - saved > schedule.checkpoint_every
            asked = agreed(stop_signal(), due, piece)
            stop, due, piece = int(asked[:, 0].max()), bool(asked[0, 1]), int(asked[0, 2])
            if outcome is None and stop:
                outcome = Outcome.INTERRUPTED
            simulated = reached * program.source.batch_size
            failing = nonfinite_error(int(state.nonfinite), simulated, program.undefined)
            if checkpoints is not None and (due or failing or outcome is not None):
                checkpoints.save(reached, state, history)
                saved = time.perf_counter()
            if failing:
                raise failing
    if stop == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # what there is has been saved: now do as asked

    params, chosen = _choose(program, state, history, outcome)
    arrays = Arrays(params, program.arrays.constants)
    fresh = jr.fold_in(keys.validation, FRESH)
    judged = validate(arrays, fresh, _held_out(program, fresh) if simulations else held_out)
    # Restored weights are NumPy arrays, which would count as constants where it is compiled.
    is_numpy = lambda leaf: isinstance(leaf, np.ndarray)  # noqa: E731
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_numpy(leaf) else leaf, arrays)
    return Fit(
        estimator=program.estimator(arrays),
        outcome=outcome,
        step=int(state.step),
        weights=chosen,
        held_out={name: float(value) for name, value in judged.items()},
        history=history,
        seconds=time.perf_counter() - started,
        compile_seconds=compile_seconds,
        nonfinite=int(state.nonfinite),
        settings=settings,
        survey=survey,
    )


def _held_out(program: Program, key: Key) -> Batches:
    """Units that training never sees: the first batches of a key."""
    assert program.simulations is not None
    assert isinstance(program.source, SimulatedBatches)
    count = program.source.validation_batches
    at_once = program.simulations.count
    found = [program.simulations.at(key, first) for first in range(0, count, at_once)]
    return _joined(found, count)


@functools.partial(jax.jit, static_argnums=1)
def _joined(parts: list[Batches], count: int) -> Batches:
    """The first of all batches."""
    return jax.tree.map(lambda leaf: leaf[:count], joined(parts))


def _traced(program: Program, first_run: tuple[Any, ...]) -> Any:
    """The run of a program, as one device traces it."""
    *rest, pool = first_run
    if program.simulations is not None:
        pool = program.simulations.shapes()
    return jax.jit(program.run).trace(*rest, pool)


def refuse_tracing(key: Key) -> None:
    """Training decides on the host; it cannot be part of a compiled function."""
    if isinstance(key, Tracer) or is_tracing():
        raise TypeError("fit cannot be traced: call it outside of jax.jit, jax.vmap and jax.grad")


def _record(
    candidate: PyTree,
    held_out: dict[str, Any],
    state: State,
    history: History,
    started: float,
) -> State:
    """Add a row to the history; keep the weights if they are the best so far."""
    loss, mse, squared_bias, steps = map(float, state.sums)
    history.add(
        {
            "step": int(state.step),
            "loss": loss / steps,
            "mse": mse / steps,
            "squared_bias": squared_bias / steps,
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
        return state.best, f"weights of step {step:,}, the best on held-out units"
    if program.keep == "average":
        return state.average, "weights averaged over the last steps"
    return state.params, "weights of the last step"


@jax.jit
def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


def _message(history: History) -> str:
    if not history:
        return ""
    last = history.last
    return (
        f"loss {last['loss']:.4g}  held out: MSE {last['held_out_mse']:.4g}, "
        f"bias² {last['held_out_squared_bias']:.2g} ± {last['held_out_squared_bias_se']:.1g}"
    )
