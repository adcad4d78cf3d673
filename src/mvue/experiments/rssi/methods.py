"""What is compared on the RSSI data: splits, methods and measures."""

import copy
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mvue

from ...datasets import DatasetError, rssi
from ...problems import rssi_room
from ...sklearn import (
    BCERegressor,
    LinearBCE,
    WithinUnitsBlockSplit,
    WithinUnitsShuffleSplit,
    mean_squared_bias,
)

MANY = 8  # rows of a location, from which on the paper measures its bias


@dataclasses.dataclass(frozen=True)
class RSSISettings:
    """How large a run is."""

    splits: int
    """Random splits into training and test rows."""
    bias_weights: tuple[float, ...] = (0.0, 1.0, 3.0)
    """λ of the networks."""
    linear_bias_weights: tuple[float, ...] = (0.0, 0.3, 1.0, 3.0, 10.0)
    """λ of the linear estimators."""
    steps: tuple[int, ...] = (750, 1_500)
    """Of the networks, to choose from."""
    time_splits: int = 3
    tuning_splits: int = 2
    """Splits on whose training rows the steps and λ are chosen."""
    features: int = 500
    """Random Fourier features of the linear estimators."""
    trees: int = 100
    hidden: int = 20
    test_share: float = 1 / 3
    validation_share: float = 0.2
    """Of the training rows."""
    room_steps: int = 2_000
    room_repeats: int = 10_000
    """Measurements at each place of the simulated room."""
    room_places: int = 25


class Table(NamedTuple):
    """Rows of readings and the places they were taken at."""

    x: np.ndarray
    y: np.ndarray
    source: str
    """Where they come from, in words."""
    measured: bool


class Measures(NamedTuple):
    """What is measured on test rows, in squared grid cells per dimension."""

    mse: float
    plug_in_many: float
    """Plug-in squared bias, locations with at least eight rows: the paper's."""
    unbiased_many: float
    """Unbiased squared bias on the same locations."""
    unbiased: float
    """Unbiased squared bias, all locations with at least two rows: the primary one."""


class TrainedMethod(NamedTuple):
    """A method fitted to training rows."""

    predict: Callable[[np.ndarray], np.ndarray]
    seconds: float

    @property
    def estimator(self) -> Any:
        """Whose method `predict` is."""
        return getattr(self.predict, "__self__", None)


def load_table(seed: int, *, may_simulate: bool = False) -> Table:
    """The measurements, or, if asked for, simulated ones where they cannot be had."""
    try:
        data = rssi()
    except (DatasetError, ImportError) as error:
        if not may_simulate:
            raise
        return simulated_table(seed, str(error))
    return Table(data.x, data.y, repr(data), measured=True)


def simulated_table(seed: int, reason: str) -> Table:
    """1420 scans at 105 places of the simulated room."""
    rng, room = np.random.default_rng(seed), rssi_room(1)
    cells = np.stack(np.meshgrid(np.arange(4, 24), np.arange(1, 16)), axis=-1).reshape(-1, 2)
    places = cells[rng.permutation(len(cells))[:105]].astype(np.float32)
    sizes = 2 + rng.multinomial(1420 - 2 * 105, rng.dirichlet(np.ones(105)))
    y = np.repeat(places, sizes, axis=0)
    keys = jr.split(jr.key(seed), len(y))
    x = np.asarray(jax.vmap(room.problem.simulate)(keys, jnp.asarray(y)))[:, 0]
    source = f"simulated, because the measurements could not be had: {reason}"
    return Table(x, y, source, measured=False)


def random_splits(
    table: Table, s: RSSISettings, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows, drawn at random as in the paper."""
    for number in range(s.splits):
        order = np.random.default_rng([seed, number]).permutation(len(table.y))
        held = round(s.test_share * len(table.y))
        yield order[held:], order[:held]


def time_splits(table: Table, s: RSSISettings) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A stretch of each location is held out at a time: near-copies stay on one side."""
    yield from WithinUnitsBlockSplit(n_splits=s.time_splits).split(table.x, table.y)


def measure(y: np.ndarray, estimates: np.ndarray, many: int = MANY) -> Measures:
    """All measures of some estimates."""
    return Measures(
        float(np.mean((estimates - y) ** 2)),
        float(mean_squared_bias(y, estimates, unbiased=False, min_repeats=many)),
        float(mean_squared_bias(y, estimates, min_repeats=many)),
        float(mean_squared_bias(y, estimates)),
    )


def network(
    bias_weight: float, steps: int, s: RSSISettings, x: np.ndarray, y: np.ndarray, seed: int
) -> TrainedMethod:
    """The paper's network with a penalty."""
    begun = time.perf_counter()
    model = BCERegressor(
        bias_weight,
        hidden=(s.hidden,),
        steps=steps,
        batch_units=16,
        batch_rows=128,
        learning_rate=3e-2,
        early_stopping=False,
        random_state=seed,
    ).fit(x, y)
    return TrainedMethod(model.predict, time.perf_counter() - begun)


class Choice(NamedTuple):
    """What was chosen on validation rows."""

    steps: dict[float, int]
    """For each λ."""
    bias_weight: float
    validation: dict[float, tuple[float, float]]
    """MSE and squared bias of each λ with its steps."""


def choose(table: Table, s: RSSISettings, splits: list[np.ndarray], seed: int) -> Choice:
    """Steps and λ, on a part of the training rows of a few splits.

    The steps of each λ are those of the lowest loss. Of the λ whose MSE is within a fifth of
    EMMSE's, the one of least squared bias.
    """
    found: dict[tuple[float, int], np.ndarray] = {}
    for lam in s.bias_weights:
        for steps in s.steps:
            values = []
            for number, rows in enumerate(splits):
                x, y = table.x[rows], table.y[rows]
                splitter = WithinUnitsShuffleSplit(
                    1, test_size=s.validation_share, random_state=seed + number
                )
                train, held = next(splitter.split(x, y))
                trained = network(lam, steps, s, x[train], y[train], seed + number)
                judged = measure(y[held], trained.predict(x[held]), many=2)
                values.append((judged.mse, judged.unbiased))
            found[lam, steps] = np.mean(values, axis=0)

    def loss(lam: float, steps: int) -> float:
        mse, bias2 = found[lam, steps]
        return float(mse + lam * bias2)

    chosen = {lam: min(s.steps, key=lambda n, lam=lam: loss(lam, n)) for lam in s.bias_weights}
    held = {lam: found[lam, steps] for lam, steps in chosen.items()}
    penalised = [lam for lam in s.bias_weights if lam > 0]
    allowed = [lam for lam in penalised if held[lam][0] <= 1.2 * held[0.0][0]] or penalised[:1]
    best = min(allowed, key=lambda lam: held[lam][1])
    return Choice(chosen, best, {lam: (float(m), float(b)) for lam, (m, b) in held.items()})


def linear(s: RSSISettings, x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, TrainedMethod]:
    """Linear BCE on random Fourier features: one pass over the data for all λ."""
    begun = time.perf_counter()
    features = make_pipeline(
        StandardScaler(), RBFSampler(gamma=0.1, n_components=s.features, random_state=seed)
    ).fit(x)
    first = LinearBCE(regularization=0.1).partial_fit(features.transform(x), y)
    shared, found = time.perf_counter() - begun, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mvue.exceptions.UnresolvedSignalWarning)
        for lam in s.linear_bias_weights:
            begun = time.perf_counter()
            first.set_params(bias_weight=lam).coef_  # noqa: B018  # solved when it is asked for
            model = copy.copy(first)
            found[linear_name(lam)] = TrainedMethod(
                make_pipeline(features, model).predict, shared + time.perf_counter() - begun
            )
    return found


def classical(name: str, s: RSSISettings, x: np.ndarray, y: np.ndarray, seed: int) -> TrainedMethod:
    """What scikit-learn offers."""
    models: dict[str, Any] = {
        "ridge": make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1e-2, 1e3, 11))),
        "knn": KNeighborsRegressor(10),
        "random_forest": RandomForestRegressor(s.trees, random_state=seed, n_jobs=-1),
    }
    begun = time.perf_counter()
    model = models[name].fit(x, y)
    return TrainedMethod(model.predict, time.perf_counter() - begun)


CLASSICAL = ("ridge", "knn", "random_forest")


Method = Callable[[np.ndarray, np.ndarray, int], dict[str, TrainedMethod]]


def methods_of(s: RSSISettings, steps: dict[float, int]) -> list[Method]:
    """All methods; some give several estimators at once."""
    networks: list[Method] = [
        lambda x, y, seed, lam=lam: {network_name(lam): network(lam, steps[lam], s, x, y, seed)}
        for lam in s.bias_weights
    ]
    others: list[Method] = [
        lambda x, y, seed, name=name: {name: classical(name, s, x, y, seed)} for name in CLASSICAL
    ]
    return [*networks, lambda x, y, seed: linear(s, x, y, seed), *others]


def network_name(bias_weight: float) -> str:
    """How the network with this λ is called."""
    return "emmse" if bias_weight == 0 else f"bce_{bias_weight:g}"


def linear_name(bias_weight: float) -> str:
    """How the linear estimator with this λ is called."""
    return f"linear_bce_{bias_weight:g}"
