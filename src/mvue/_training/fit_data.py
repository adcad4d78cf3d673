"""`fit_data`: train an estimator on fixed data with repeats."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._core.checks import check_count, check_estimator
from .._core.estimators import as_estimator
from .._core.keys import host_random, key_for
from .._core.types import Estimator, Key
from .._data.repeats import Repeats, penalised_units
from .._data.simulated import SimulatedData
from .._default.description import describe_estimator
from .._finish.input_range import trained_on_rows
from .._runtime.devices import mesh_for
from .._runtime.digest import arrays_digest
from .._runtime.progress import progress_for
from ..exceptions import NoRepeatsWarning
from ..losses._functions import Penalty
from ..losses._loss import Loss, as_loss
from ..losses._objectives import BiasConstrained, bce
from ..nn._frozen import count_weights
from ..nn._layers import perceptron
from ..nn._measurements import flatten
from ..nn._standardize import Standardized, scale_back, scaling
from .batches import DataBatches
from .loop import Keys, Schedule, refuse_tracing, train
from .pools import Prepared, Split, padded_pool, prepare, rounded_up
from .program import Keep, Program
from .result import Fit


def fit_data(
    data: Repeats | SimulatedData,
    network: Estimator | None = None,
    loss: Loss | None = None,
    *,
    key: Key,
    hidden: Sequence[int] = (64, 64),
    activation: Callable[[Any], Any] = jax.nn.gelu,
    validation: float = 0.1,
    split: Split = "units",
    steps: int = 3_000,
    batch_rows: int = 256,
    batch_units: int = 32,
    repeats: int = 64,
    optimizer: Any = None,
    keep: Keep | None = None,
    validations: int = 100,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    progress: bool | None = None,
) -> Fit:
    """Train an estimator on fixed data.

    Every step takes a batch of single rows, for the mean squared error, and one of whole units, for
    the bias. A part of the data is held out, and the weights that are best on it are returned: on
    data that are not renewed, too long a training learns the noise.

    Args:
        data: `Repeats.from_rows(x, y)`, or what `simulate` returns, which may be larger than
            memory: parts of it then take turns.
        network: as in `fit`; by default a perceptron in the units of the data.
        loss: `bce` or `emmse`. By default `bce(10.0)`, with the plug-in penalty.
        key: decides all random numbers.
        hidden: sizes of the hidden layers of the default network.
        activation: of the default network.
        validation: share of the data that is held out, 0 for none.
        split: whether whole ``"units"`` are held out, to be good at new parameters, or ``"rows"``
            of all units, to be good at new measurements of these units.
        steps: how many updates.
        batch_rows: rows in a batch.
        batch_units: units in a batch.
        repeats: rows of one unit at most; of larger units, a random part is taken each time.
        optimizer: as in `fit`.
        keep: as in `fit`; by default the best on held-out data, or an average if there are none.
        validations: as in `fit`.
        patience: as in `fit`.
        checkpoint: as in `fit`.
        checkpoint_every: as in `fit`.
        progress: as in `fit`.

    Returns:
        The estimator, how training ended and how it went.
    """
    started = time.perf_counter()
    refuse_tracing(key)
    if not isinstance(data, (Repeats, SimulatedData)):
        raise TypeError(
            f"data must be mvue.Repeats or mvue.SimulatedData, got {type(data).__name__}: rows x "
            "and y become the former by mvue.Repeats.from_rows(x, y)"
        )
    loss = _on_data(loss)
    keep = keep or ("best" if validation else "average")
    schedule = Schedule(steps, patience, checkpoint, checkpoint_every, validations)
    stages = progress_for(progress)
    schedule.check(keep, optimizer)
    for name, value in (
        ("batch_rows", batch_rows),
        ("batch_units", batch_units),
        ("repeats", repeats),
    ):
        check_count(name, value)
    network_key, train_key, validation_key, split_key = keys_of(key)
    rng = host_random(split_key)
    with stages.stage("preparing the data"):
        prepared = prepare(data, validation, split, batch_units, rng)
    training, held_out = prepared.training, prepared.held_out
    if network is None:
        network = default_data_network(training, hidden, activation, key=network_key)
    network = as_estimator(network, "network")
    x = jax.ShapeDtypeStruct(training.x.shape[1:], training.x.dtype)
    check_estimator("network", network, x, training.y.shape[1])
    lam = max(float(loss.bias_weight_at(progress)) for progress in np.linspace(0, 1, 11))
    if lam > 0:
        check_count("repeats", repeats, least=2)
    penalty = _checked_penalty(loss, lam, prepared, repeats, network)
    loss = dataclasses.replace(loss, penalty=penalty)
    sizes = training.sizes
    # In round numbers, so that the parts of a cross-validation are trained by one program.
    repeats = int(min(repeats, rounded_up(int(sizes.max()), 16)))
    units = batch_units if lam > 0 else 0
    mesh = mesh_for(batch_rows + units * repeats)
    source = DataBatches(training.y.shape[1], batch_rows, units, repeats, mesh)
    same_as = _hashable(
        *(loss, training.y.shape[1], batch_rows, units, repeats, steps, optimizer, keep),
        *jax.tree.flatten(eqx.filter(network, eqx.is_array, inverse=True)),
    )
    program = Program(source, network, loss, steps, optimizer, keep, same_as=same_as)
    batch = f"{batch_rows} rows" + (
        f" and {batch_units} units of up to {repeats} rows" if source.units else ""
    )
    settings = {
        "loss": loss.describe(_typical_repeats(sizes, repeats)),
        "training": repr(training if prepared.shards is None else data),
        **describe_estimator(network, x),
        "steps": steps,
        "keep": keep,
        "validations": validations,
        "patience": patience,
        "validation": validation,
        "split": split,
        "batch": batch,
        "held_out": "no data were held out: this is the training data"
        if not validation
        else f"{len(held_out.x):,} rows of {len(held_out.y):,} units"
        + (", on which the weights were chosen" if keep == "best" else ""),
    }
    trained = train(
        program,
        Keys(key, train_key, validation_key, train_key),
        schedule,
        settings=settings,
        identity={
            **settings,
            "rows": prepared.rows,
            "data": arrays_digest([training.x, training.y, training.starts]),
        },
        started=started,
        progress=stages,
        feed=lambda step: prepared.feed(step, steps),
        held_out=padded_pool(held_out),
    )
    return dataclasses.replace(trained, trained_on=trained_on_rows(training.x, training.y))


def keys_of(key: Key) -> Key:
    """For the initial weights, for training, for validation and for what is held out."""
    return jr.split(key_for("fit_data", key), 4)


def default_data_network(
    data: Repeats, hidden: Sequence[int], activation: Callable[[Any], Any], *, key: Key
) -> Standardized:
    """A perceptron in the units of the data."""
    flat = jnp.asarray(data.x.reshape(len(data.x), -1))
    y = jnp.asarray(np.repeat(data.y, data.sizes, axis=0))
    network = perceptron(flat.shape[1], hidden, y.shape[1], activation, key=key)
    return Standardized(flatten, scaling(flat), network, scale_back(y))


def _hashable(*parts: Any) -> Hashable | None:
    """What tells programs apart, or None if one of the parts has no equal, not even itself."""
    parts = tuple(tuple(part) if isinstance(part, list) else part for part in parts)
    try:
        hash(parts)
    except TypeError:
        return None
    return parts


def _on_data(loss: Loss | None) -> BiasConstrained:
    loss = bce(weight=None) if loss is None else as_loss(loss)
    if not isinstance(loss, BiasConstrained):
        raise TypeError(
            f"loss must be mvue.bce(...) or mvue.emmse(...) on fixed data, got {loss!r}: others "
            "need fresh simulations"
        )
    return loss.on_data()


def _checked_penalty(
    loss: BiasConstrained, lam: float, prepared: Prepared, repeats: int, network: Any
) -> Penalty:
    """The penalty to use, if it is safe."""
    if lam == 0:
        return "plug-in"
    sizes = prepared.training.sizes
    if sizes.max() == 1:
        warnings.warn(
            "no unit of the training data was measured twice: noise and bias cannot be told apart, "
            "and the penalty is the mean squared error once more. Give unit_ids, or y that repeats "
            "exactly",
            NoRepeatsWarning,
            stacklevel=4,
        )
        if loss.penalty == "unbiased":
            raise ValueError("penalty='unbiased' needs units that were measured at least twice")
    elif prepared.held_out.sizes.max() == 1:
        warnings.warn(
            "no unit of the held-out data was measured twice: the weights are chosen by their mean "
            "squared error alone. Hold out more, or whole units",
            NoRepeatsWarning,
            stacklevel=4,
        )
    if loss.penalty != "unbiased":
        return "plug-in"
    repeated = sizes[penalised_units(sizes)]
    seen = np.minimum(repeated, repeats)
    limit = (len(repeated) * repeated * (seen - 1)).min() / sizes.sum()
    weights = count_weights(network)
    units = prepared.rows * len(sizes) / sizes.sum()
    # Beyond the limit, noise in the means of units must not look like a negative squared bias.
    needed = 4 * lam**2 * weights
    if lam > limit and units < needed:
        raise ValueError(
            f"penalty='unbiased' has no lower bound on these data for bias_weight above "
            f"{limit:.3g}, got {lam:g}: a network of {weights:,} weights can make it as small as "
            f"it likes. Use penalty='plug-in', a smaller bias_weight, or more units (here "
            f"{needed:,.0f} would be safe)"
        )
    return "unbiased"


def _typical_repeats(sizes: np.ndarray, repeats: int) -> int:
    """The M of equal units at which the plug-in penalty acts as on these."""
    shown = np.minimum(sizes[penalised_units(sizes)], repeats)
    return max(1, round(1 / np.mean(1 / shown)))
