"""`fit_data`: train an estimator on fixed data, with repeats or without."""

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
from .._data.theta_basis import ThetaBasis, is_bank
from .._default.description import describe_estimator
from .._finish.input_range import trained_on_rows
from .._runtime.devices import mesh_for
from .._runtime.progress import progress_for
from ..exceptions import NoRepeatsWarning
from ..losses._functions import Penalty, effective_bias_weight
from ..losses._loss import Loss, as_loss
from ..losses._objectives import BiasConstrained, bce
from ..nn._frozen import count_weights
from ..nn._layers import perceptron
from ..nn._measurements import flatten
from ..nn._standardize import Standardized, scale_back, scaling
from .batches import DataBatches, PairBatches
from .loop import Keys, Schedule, refuse_tracing, train
from .pools import Prepared, Split, digest_of, padded_pool, prepare, rounded_up
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
    the bias. Where no unit was measured twice, the bias is what smooth functions of theta see of
    the errors of all rows in a batch; `str(fit)` says which functions. A part of the data is held
    out, and the weights that are best on it are returned: on data that are not renewed, too long a
    training learns the noise.

    Args:
        data: `Repeats.from_rows(x, y)`, or what `simulate` returns. What is larger than memory, in
            the folder of the latter or mapped from a file by the former, takes turns in parts.
        network: as in `fit`; by default a perceptron in the units of the data.
        loss: `bce` or `emmse`. By default `bce(10.0)`, with the plug-in penalty; without repeats
            with the unbiased one, which then has a lower bound.
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
            Without repeats, `batch_units` times so many rows come to those of `batch_rows`.
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
    lam = max(float(loss.bias_weight_at(progress)) for progress in np.linspace(0, 1, 11))
    pairs = batch_rows + batch_units * repeats
    with stages.stage("preparing the data"):
        data = _without_copies(data)
        # All of the data, of which a pool has only a part.
        told_apart = "" if checkpoint is None else digest_of(data)
        prepared = prepare(data, validation, split, batch_units, rng, pairs=pairs)
        if lam > 0 and is_bank(prepared.training.sizes):
            prepared = prepared._replace(basis=_basis_of(prepared.training))
    training, held_out, basis = prepared.training, prepared.held_out, prepared.basis
    if network is None:
        network = default_data_network(training, hidden, activation, key=network_key)
    network = as_estimator(network, "network")
    x = jax.ShapeDtypeStruct(training.x.shape[1:], training.x.dtype)
    check_estimator("network", network, x, training.y.shape[1])
    if lam > 0 and basis is None:
        check_count("repeats", repeats, least=2)
    penalty = _checked_penalty(loss, lam, prepared, repeats, network)
    loss = dataclasses.replace(loss, penalty=penalty)
    sizes = training.sizes
    # In round numbers, so that the parts of a cross-validation are trained by one program.
    repeats = int(min(repeats, rounded_up(int(sizes.max()), 16)))
    units = batch_units if lam > 0 else 0
    if basis is None:
        mesh = mesh_for(batch_rows + units * repeats)
        source = DataBatches(training.y.shape[1], batch_rows, units, repeats, mesh)
        batch = f"{batch_rows} rows" + (
            f" and {batch_units} units of up to {repeats} rows" if source.units else ""
        )
        acts_at = _typical_repeats(sizes, repeats)
    else:
        source = PairBatches(training.y.shape[1], pairs, mesh_for(pairs))
        batch = f"{pairs:,} rows"
        acts_at = max(1, pairs // basis.size)  # of the plug-in
    same_as = _hashable(
        *(loss, training.y.shape[1], batch_rows, units, repeats, steps, optimizer, keep),
        None if basis is None else (pairs, basis.size),
        *jax.tree.flatten(eqx.filter(network, eqx.is_array, inverse=True)),
    )
    program = Program(source, network, loss, steps, optimizer, keep, same_as=same_as)
    settings = {
        "loss": loss.describe(acts_at),
        **({} if basis is None else {"bias": _describe_bias(basis, lam, prepared.rows)}),
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
            "data": told_apart,
        },
        started=started,
        progress=stages,
        feed=lambda step: prepared.feed(step, steps),
        held_out=padded_pool(held_out, basis),
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


def _without_copies(data: Repeats | SimulatedData) -> Repeats | SimulatedData:
    """The data, each row once if some are copies of others: those are no repeats."""
    if isinstance(data, SimulatedData):
        return data
    found = data.without_copies()
    copies = len(data.x) - len(found.x)
    if copies:
        warnings.warn(
            f"{copies:,} of {len(data.x):,} rows are copies of others, with equal y and equal x, "
            "and no unit has two different rows: each is used once",
            NoRepeatsWarning,
            stacklevel=3,
        )
    return found


def _basis_of(data: Repeats) -> ThetaBasis:
    """Functions of theta that show the bias, with warnings about what they may not see."""
    y = np.repeat(data.y, data.sizes, axis=0)
    theta = None if data.theta is None else np.repeat(data.theta, data.sizes, axis=0)
    basis = ThetaBasis.of(y, theta)
    if data.theta is None:
        warnings.warn(
            "no unit was measured twice: the bias is looked for as a smooth function of y. Give "
            "Repeats.from_rows theta=, all that measurements depend on, or theta=y if that is y; "
            "rows of one unit need equal y or equal unit_ids",
            NoRepeatsWarning,
            stacklevel=3,
        )
    if basis.left_out:
        warnings.warn(
            f"theta has {len(basis.coordinates)} coordinates, and {len(data.x):,} rows are enough "
            f"for {basis.size} functions: a bias that depends on the last {basis.left_out} of them "
            "is not seen. Simulate more, measure units several times, or give fewer coordinates",
            NoRepeatsWarning,
            stacklevel=3,
        )
    return basis


def _describe_bias(basis: ThetaBasis, lam: float, rows: int) -> str:
    """How the bias is told from noise, and what is left of λ by the noise in so many rows."""
    acts = effective_bias_weight(lam, max(1, rows // basis.size))
    return (
        f"no unit was measured twice: it is what {basis.describe()} see of the errors; with "
        f"{rows:,} rows λ = {lam:g} acts as {acts:.3g}"
    )


def _checked_penalty(
    loss: BiasConstrained, lam: float, prepared: Prepared, repeats: int, network: Any
) -> Penalty:
    """The penalty to use, if it is safe."""
    if lam == 0:
        return "plug-in"
    if prepared.basis is not None:
        # Pairs are drawn with replacement: its mean is that of all data, which is not negative.
        return loss.penalty or "unbiased"
    sizes = prepared.training.sizes
    if prepared.held_out.sizes.max() == 1:
        warnings.warn(
            "no unit of the held-out data was measured twice: the weights are chosen by their mean "
            "squared error alone. Hold out more, or whole units",
            NoRepeatsWarning,
            stacklevel=3,
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
