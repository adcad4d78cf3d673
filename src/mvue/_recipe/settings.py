"""Every constant of the default recipe, in one value that `fit` and `survey` accept.

The rule: what may change an estimate, or how many simulations it is made from, is a setting. What
stays in its module is implementation (sizes of pieces that are computed at a time, guards against
rounding) and what is not the recipe's alone, such as the input range that a saved model has.
"""

import dataclasses
import math
from typing import Any

from .._serialise.registry import register
from ..losses._objectives import DEFAULT_BIAS_WEIGHTS


def _setting(default: Any, *, least: float | None = None, most: float = math.inf) -> Any:
    """A field with its limits; without a least value, a number must be positive."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


class _Settings:
    """What the groups share: values are checked, and `repr` shows what is not the default."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, _checked(_name(type(self)), value, field))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in changes(self).items())
        return f"{_name(type(self))}({shown})"


def _name(settings: type) -> str:
    """The name that users know: groups are attributes of `Recipe`."""
    name = settings.__name__
    return f"Recipe.{name.removesuffix('Settings')}" if name.endswith("Settings") else name


def changes(settings: Any) -> dict[str, Any]:
    """The fields that differ from the default."""
    default = type(settings)()
    names = [field.name for field in dataclasses.fields(settings)]
    pairs = {name: (getattr(settings, name), getattr(default, name)) for name in names}
    return {name: value for name, (value, usual) in pairs.items() if value != usual}


def _checked(owner: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    name = f"{owner}.{field.name}"
    if field.default_factory is not dataclasses.MISSING:
        group = type(field.default_factory())
        if type(value) is not group:
            raise TypeError(f"{name} must be {_name(group)}(...), got {value!r}")
        return value
    default, limits = field.default, field.metadata
    if not isinstance(default, tuple):
        return _checked_number(name, value, default, **limits)
    pair = len(default) == 2
    if not isinstance(value, (tuple, list)) or not value or (pair and len(value) != 2):
        raise TypeError(f"{name} must be {'two' if pair else 'a tuple of'} numbers, got {value!r}")
    return tuple(_checked_number(name, one, default[0], **limits) for one in value)


def _checked_number(name: str, value: Any, default: Any, least: float | None, most: float) -> Any:
    kind = {bool: "True or False", int: "a whole number", float: "a number"}[type(default)]
    # 3 will do for a float, but neither True for a number nor 3.0 for a whole number.
    if type(value) not in ((int, float) if isinstance(default, float) else (type(default),)):
        raise TypeError(f"{name} must be {kind}, got {value!r}")
    if isinstance(default, bool):
        return value
    enough = value > 0 if least is None else value >= least
    if not (math.isfinite(value) and enough and value <= most):
        limits = "positive" if least is None else f"at least {least:g}"
        limits += "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{name} must be {limits}, got {value!r}")
    return type(default)(value)


@dataclasses.dataclass(frozen=True, repr=False)
class SurveySettings(_Settings):
    """How `survey` measures with what deviation theta can be told, and where it trains."""

    pilot: int = _setting(1024, least=64)
    """Units of the first look at the simulator, which also shows what is exchangeable."""
    pilot_repeats: int = _setting(4, least=2)
    """Measurements of each of them."""
    budget: int = _setting(2**28, least=0)
    """Simulated numbers of the whole survey, within the least that will do: larger simulators are
    looked at from fewer points."""
    simulations: int = _setting(512, least=2)
    """At each value of theta."""
    fewest_simulations: int = _setting(96, least=2)
    """However large a measurement is: with fewer, noise looks like information."""
    contexts: int = _setting(3)
    """Values of the other coordinates at which each coordinate is looked at."""
    nodes: int = _setting(11, least=2)
    """Values of each coordinate inside the range of interest."""
    fewest_nodes: int = _setting(5, least=2)
    """However large a measurement is."""
    most_looks: int = _setting(4)
    """Rounds in which nodes are spread evenly in standard deviations; fewer if nothing moves."""
    same: float = _setting(2.0, least=1.0)
    """Factor between deviations of two rounds that count as the same."""
    reach: float = _setting(2.5, least=0.0)
    """Standard deviations by which training goes beyond the range of interest, because estimates
    near an end are made from data that also come from beyond it."""
    step: float = _setting(0.5)
    """Standard deviations between looks on the way out, and over which slopes are taken."""
    goes_on: float = _setting(1.5, least=1.0)
    """Factor between deviations on both sides of zero and above it for a location that passes
    zero; at an end it is 2 or more."""
    least_shown: float = _setting(0.1, most=1.0)
    """Share of the information seen that is not put down to chance."""
    between: int = _setting(16)
    """Values between two nodes from which distances are added up."""
    table: int = _setting(65, least=3)
    """Entries of the tables of training values."""
    end_density: float = _setting(0.05, most=1.0)
    """Density of training values at the far ends, where few are needed, of that inside."""


@dataclasses.dataclass(frozen=True, repr=False)
class ErrorModelSettings(_Settings):
    """The smooth model of the expected error: kernel ridge regression on scattered points."""

    points: int = _setting(256, least=8)
    """Values of theta at which the size of errors is measured."""
    fewest_points: int = _setting(64, least=8)
    """However large a measurement is."""
    spread: int = _setting(128, least=2)
    """Values of theta around each point that tell how much y varies."""
    lengths: tuple[float, ...] = _setting((1.0, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0, 25.0, 50.0))
    """Kernel widths in standard deviations, to choose from by leaving one out."""
    noises: tuple[float, ...] = _setting((0.03, 0.1, 0.3, 1.0, 3.0))
    """Ridges to choose from."""
    much_better: float = _setting(0.7, most=1.0)
    """Share of the squared error that must be left for y to be taken as a guide besides theta."""


@dataclasses.dataclass(frozen=True, repr=False)
class ExchangeabilitySettings(_Settings):
    """The test whether the order of measured numbers matters."""

    largest_set: int = _setting(1024)
    """Numbers of sets that are looked at; larger ones have an order unless the problem says no."""
    largest_element: int = _setting(8)
    """Numbers of one element."""
    coordinates: int = _setting(256)
    """Coordinates of theta along which elements may change; of more, random mixtures of all."""
    directions: int = _setting(16)
    """The same for pairs of elements, which take more time."""
    companions: int = _setting(64, least=0)
    """Other numbers of the measurement with which elements may go together."""
    operations: int = _setting(2**32)
    """Of the products of pairs; more elements are looked at in fewer draws."""
    fewest_draws: int = _setting(512, least=2)
    """However many elements there are."""
    tail: float = _setting(20.0)
    """Minus the logarithm of the probability that chance looks like an order."""


@register(name="mvue.SummariesSettings", check=lambda loaded: loaded.__post_init__())
@dataclasses.dataclass(frozen=True, repr=False)
class SummariesSettings(_Settings):
    """Which summary statistics of a measurement there are."""

    natural: bool = _setting(True)
    """Statistics given by hand whose sums are estimates themselves (one over the mean, ratios,
    inverses, products, the mean in units of the noise), for the baseline. Without them the
    baseline and the network have means, moments, sorted values and logarithms."""
    largest_sorted: int = _setting(32, least=2)
    """Sorted values of a set of scalars; larger sets are seen by so many quantiles."""
    largest_quadratic: int = _setting(24, least=0)
    """Numbers of x of which all products are statistics."""
    largest_quartic: int = _setting(3, least=0)
    """Components of set elements of which products of products are statistics."""
    largest_inverse: int = _setting(8, least=0)
    """The same for inverses, and for all that is about the mean."""
    largest_parts: int = _setting(4, least=0)
    """Sets of scalars of whose statistics products are statistics."""
    fewest_axes: int = _setting(3)
    """Components of set elements with powers along principal directions: of two there are all."""
    largest_axes: int = _setting(64, least=0)
    """Beyond that, the directions of a pilot are noise."""
    largest_pairs: int = _setting(4096)
    """Components of set elements, of which all products are statistics."""
    fewest_inverse: int = _setting(6, least=2)
    """Numbers of whose variance the inverse is a statistic: of fewer it has no variance."""
    least_noise: float = _setting(0.01)
    """Of that of the quietest measurement seen; what is less may be rounding."""
    relative_floor: float = _setting(1e-6)
    """Of the typical size of x: logarithms see nothing smaller."""


@dataclasses.dataclass(frozen=True, repr=False)
class BaselineSettings(_Settings):
    """The estimate in closed form that the default network corrects."""

    units: int = _setting(512, least=2)
    """Units of each piece of simulations."""
    repeats: int = _setting(16, least=2)
    """Measurements of each of them."""
    pieces: int = _setting(32)
    """Pieces that the linear estimator is fitted to."""
    plug_in_units: int = _setting(2048)
    """Units that the plug-in estimate is fitted to."""
    largest_total: int = _setting(2**26)
    """Numbers held of all pieces; of large measurements there are fewer pieces."""
    random_features: int = _setting(200)
    """Of the plug-in estimate."""
    feature_scale: float = _setting(1.5)
    """Size of their arguments, in standard deviations."""
    ridge: float = _setting(1e-4)
    """Of the plug-in estimate, for standardised statistics."""
    linear_ridge: float = _setting(1e-5)
    """Of the linear estimator."""
    bias_weight: float = _setting(20.0, least=0.0)
    """λ of the linear estimator; the network takes out the rest of the bias."""
    largest_input: float = _setting(5.0)
    """Standard deviations up to which network inputs are as they are; beyond, logarithms."""
    fewest_draws: int = _setting(8)
    """That may carry the fourth moment of a statistic; what fewer carry has no scale."""


@dataclasses.dataclass(frozen=True, repr=False)
class NetworkSettings(_Settings):
    """The default network."""

    width: int = _setting(64)
    """Of the hidden layers."""
    depth: int = _setting(2)
    """How many hidden layers."""
    inner_width: int = _setting(16)
    """Of the hidden layers of the network of each element of a set of vectors."""
    inner_depth: int = _setting(1)
    """How many of these."""
    inner_out: int = _setting(8)
    """Learned averages over the elements."""


@dataclasses.dataclass(frozen=True, repr=False)
class ScheduleSettings(_Settings):
    """The course of training. Arguments of `fit` that have the same name come first."""

    steps: int = _setting(6_000)
    """Updates."""
    batch_size: int = _setting(128)
    """N, units in a batch."""
    repeats: int = _setting(8)
    """M, measurements of each unit."""
    anchors: int = _setting(6, least=0)
    """How many times the bias is measured, for the control variate of the penalty."""
    validations: int = _setting(100)
    """About how many times the estimator is judged on held-out units."""
    validation_batches: int = _setting(4)
    """Batches of held-out units each time."""
    bias_weights: tuple[float, float] = _setting(DEFAULT_BIAS_WEIGHTS)
    """λ at the start and at the end, where the loss leaves it open: small enough to learn quickly,
    then large enough to unbias."""
    learning_rate: float = _setting(5e-3)
    """The peak of the default optimizer."""
    warm_up: float = _setting(0.01, least=0.0, most=1.0)
    """Share of the steps in which the learning rate rises to its peak."""
    averaged: float = _setting(0.15, least=0.0)
    """Horizon of the average of the weights, as a share of the steps."""


@dataclasses.dataclass(frozen=True, repr=False)
class ControlVariateSettings(_Settings):
    """The control variate of the bias penalty: the bias at an anchor as a function of theta."""

    share: float = _setting(1 / 12, most=1.0)
    """Batches that an anchor is measured from, as a share of the steps."""
    draws: int = _setting(2048, least=2)
    """Of theta, from which its ranks are known."""
    table: int = _setting(65, least=2)
    """Entries of the tables of ranks."""
    most_features: int = _setting(256)
    """Polynomials of theta: as high a degree as gives no more."""
    highest_degree: int = _setting(24, least=0)
    """Of these polynomials."""
    ridge: float = _setting(1e-6)
    """Of the regression of the bias on them."""


@dataclasses.dataclass(frozen=True, repr=False)
class Recipe(_Settings):
    """Every constant of the default recipe of `fit`, in groups.

    A frozen value whose groups are made by `Recipe.Survey`, `Recipe.Network` and so on, as in
    ``mvue.Recipe(network=mvue.Recipe.Network(width=128))``. Its `repr` shows only what differs
    from the default.
    """

    Survey = SurveySettings
    ErrorModel = ErrorModelSettings
    Exchangeability = ExchangeabilitySettings
    Summaries = SummariesSettings
    Baseline = BaselineSettings
    Network = NetworkSettings
    Schedule = ScheduleSettings
    ControlVariate = ControlVariateSettings

    survey: SurveySettings = dataclasses.field(default_factory=SurveySettings)
    """Where to train, and with what deviation theta can be told there."""
    error_model: ErrorModelSettings = dataclasses.field(default_factory=ErrorModelSettings)
    """The expected error as a smooth function of theta."""
    exchangeability: ExchangeabilitySettings = dataclasses.field(
        default_factory=ExchangeabilitySettings
    )
    """Whether the order of measured numbers matters."""
    summaries: SummariesSettings = dataclasses.field(default_factory=SummariesSettings)
    """What the default network sees of a measurement."""
    baseline: BaselineSettings = dataclasses.field(default_factory=BaselineSettings)
    """The estimate in closed form that it corrects."""
    network: NetworkSettings = dataclasses.field(default_factory=NetworkSettings)
    """The sizes of the default network."""
    schedule: ScheduleSettings = dataclasses.field(default_factory=ScheduleSettings)
    """The course of training."""
    control_variate: ControlVariateSettings = dataclasses.field(
        default_factory=ControlVariateSettings
    )
    """What is taken out of the noise of the bias penalty."""


def checked_recipe(recipe: Any) -> Recipe:
    """The recipe that was given, or the default."""
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a mvue.Recipe, got {recipe!r}")
    return Recipe() if recipe is None else recipe
