"""Every constant of the default recipe, in one value that `fit` and `survey` accept.

The rule: what may change an estimate, or how many simulations it is made from, is a setting. What
stays in its module is implementation (sizes of pieces that are computed at a time, guards against
rounding) and what is not the recipe's alone, such as the input range that a saved model has.
"""

import dataclasses
from typing import Any

from .._serialise.settings import Settings, setting
from .._summaries.settings import ExchangeabilitySettings, SummariesSettings
from ..losses._objectives import DEFAULT_BIAS_WEIGHTS


@dataclasses.dataclass(frozen=True, repr=False)
class SurveySettings(Settings):
    """How `survey` measures with what deviation theta can be told, and where it trains."""

    pilot: int = setting(1024, least=64)
    """Units of the first look at the simulator, which also shows what is exchangeable."""
    pilot_repeats: int = setting(4, least=2)
    """Measurements of each of them."""
    budget: int = setting(2**28, least=0)
    """Simulated numbers of the whole survey, within the least that will do: larger simulators are
    looked at from fewer points."""
    seconds: float = setting(15.0)
    """Of processor time for all its simulations; a large number where speed shall not matter."""
    simulations: int = setting(1024, least=4)
    """Around each value of theta."""
    fewest_simulations: int = setting(256, least=4)
    """However large a measurement is: with fewer, noise looks like information."""
    most_summaries: int = setting(256, least=1)
    """That information is looked for in; of more, combinations that differ most between units."""
    contexts: int = setting(3)
    """Values of the other coordinates at which each coordinate is looked at."""
    most_alone: int = setting(2, least=1)
    """Coordinates that are looked at one after the other; more of them all at once, each point
    with another value of all: the number of points does not grow with that of coordinates."""
    nodes: int = setting(11, least=2)
    """Values of each coordinate inside the range of interest."""
    fewest_nodes: int = setting(5, least=2)
    """However large a measurement is."""
    most_looks: int = setting(4)
    """Rounds in which nodes are spread evenly in standard deviations; fewer if nothing moves."""
    same: float = setting(2.0, least=1.0)
    """Factor between deviations of two rounds that count as the same."""
    reach: float = setting(2.5, least=0.0)
    """Standard deviations by which training goes beyond the range of interest, because estimates
    near an end are made from data that also come from beyond it."""
    reach_share: float = setting(0.1, least=0.0)
    """Share of a wide range by which training goes beyond it, at most `farthest_reach`: the pull of
    the end of what is trained on falls like a normal density, and room costs little there."""
    farthest_reach: float = setting(5.0, least=0.0)
    """Standard deviations, of ranges that are that wide."""
    step: float = setting(0.5)
    """Standard deviations between looks on the way out, and over which slopes are taken."""
    goes_on: float = setting(1.5, least=1.0)
    """Factor between deviations on both sides of zero and above it for a location that passes
    zero; at an end it is 2 or more."""
    least_shown: float = setting(0.1, most=1.0)
    """Share of the information seen that is not put down to chance."""
    between: int = setting(16)
    """Values between two nodes from which distances are added up."""
    table: int = setting(65, least=3)
    """Entries of the tables of training values."""


@dataclasses.dataclass(frozen=True, repr=False)
class ErrorModelSettings(Settings):
    """The smooth model of the expected error: kernel ridge regression on scattered points."""

    points: int = setting(256, least=8)
    """Values of theta at which the size of errors is measured."""
    fewest_points: int = setting(64, least=8)
    """However large a measurement is."""
    spread: int = setting(128, least=2)
    """Values of theta around each point that tell how much y varies."""
    lengths: tuple[float, ...] = setting((1.0, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0, 25.0, 50.0))
    """Kernel widths in standard deviations, to choose from by leaving one out."""
    noises: tuple[float, ...] = setting((0.03, 0.1, 0.3, 1.0, 3.0))
    """Ridges to choose from."""
    much_better: float = setting(0.7, most=1.0)
    """Share of the squared error that must be left for y to be taken as a guide besides theta."""


@dataclasses.dataclass(frozen=True, repr=False)
class LikelihoodSettings(Settings):
    """The use of a likelihood in training: its score is a control variate."""

    used: bool = setting(True)
    """Whether it is used."""
    fewest_good: float = setting(0.9, most=1.0)
    """Share of values of theta at which scores must be finite."""
    surely: float = setting(6.0)
    """Standard errors by which a mean score that is not zero shows that it is none."""
    least_off: float = setting(0.05)
    """Standard deviations of an estimate that it must amount to, besides."""


@dataclasses.dataclass(frozen=True, repr=False)
class BaselineSettings(Settings):
    """The estimate in closed form that the default network corrects."""

    units: int = setting(512, least=2)
    """Units of each piece of simulations."""
    repeats: int = setting(16, least=2)
    """Measurements of each of them."""
    pieces: int = setting(32)
    """Pieces that the linear estimator is fitted to."""
    seconds: float = setting(15.0)
    """Of processor time that these simulations may take: slow ones are fewer."""
    fewest_pieces: int = setting(4, least=2)
    """However slow simulations are."""
    fewest_units: int = setting(256, least=2)
    """Units of a piece, however slow simulations are."""
    plug_in_units: int = setting(2048)
    """Units that the plug-in estimate is fitted to."""
    hopeless: float = setting(4.0)
    """Squared error over the expected one, after a few pieces, at which no more are simulated."""
    richer_features: int = setting(400)
    """Random features of the summaries that tell whether an error that is larger than expected can
    be made smaller at all."""
    improvable: float = setting(0.15, most=1.0)
    """Share of the squared error that they must explain for that."""
    largest_total: int = setting(2**26)
    """Numbers held of all pieces; of large measurements there are fewer pieces."""
    operations: int = setting(2**40)
    """Of the least squares; of many parameters and statistics there are fewer pieces."""
    random_features: int = setting(200)
    """Of the plug-in estimate."""
    feature_scale: float = setting(1.5)
    """Size of their arguments, in standard deviations."""
    ridge: float = setting(1e-4)
    """Of the plug-in estimate, for standardised statistics."""
    linear_ridges: tuple[float, ...] = setting((1e-5, 1e-8, 1e-11))
    """Of the linear estimator: the first, unless a later one is much better on new simulations, as
    where y is told to a small share of its range."""
    bias_weight: float = setting(20.0, least=0.0)
    """λ of the linear estimator; the network takes out the rest of the bias."""
    largest_input: float = setting(5.0)
    """Standard deviations up to which network inputs are as they are; beyond, logarithms."""
    least_reach: float = setting(10.0)
    """Standard deviations by which linear estimates may differ from the plug-in, or by what is seen
    where that is more."""
    fewest_draws: int = setting(8)
    """That may carry the fourth moment of a statistic; what fewer carry has no scale."""


@dataclasses.dataclass(frozen=True, repr=False)
class MinimumDistanceSettings(Settings):
    """The start by minimum distance, which is tried where the linear one is poor."""

    used: bool = setting(True)
    """Whether it is."""
    most_coordinates: int = setting(8)
    """Of theta, up to which it is tried."""
    pieces: int = setting(32, least=2)
    """Pieces of simulations, of the size of those of the baseline, that the mean is fitted to."""
    directions: int = setting(128)
    """Combinations of summaries that are compared: those whose mean changes most with theta, in
    units of their noise."""
    largest_whitened: int = setting(1024)
    """Summaries whose noise is made even; of more, those with most signal."""
    least_noise: float = setting(1e-6)
    """Share of the largest variance of a combination, below which it may be rounding."""
    degree: int = setting(6)
    """Of polynomials of each coordinate in the mean."""
    waves: int = setting(64)
    """Plane waves that are added at a time."""
    most_waves: int = setting(384)
    """In all."""
    candidates: int = setting(2048)
    """Waves that they are chosen from, by how much of the mean they explain."""
    seen: int = setting(8192)
    """Values of theta that are looked at for that."""
    finest_wave: float = setting(4.0)
    """Standard deviations within which the mean may change."""
    ridge: float = setting(1e-6)
    """Of the least squares."""
    exact: float = setting(1e-3)
    """Squared error of the mean, over the variance of its noise, at which no more are added."""
    gain: float = setting(0.9, most=1.0)
    """Share of it that may be left by the waves last added, for more to be tried."""
    codes: int = setting(2048)
    """Values of theta of which the nearest one is the first estimate."""
    most_codes: int = setting(16384)
    """The same where fewer leave estimates far from the truth, and so many do not."""
    far: float = setting(5.0)
    """Expected errors from which on an estimate is far from the truth."""
    farthest_step: float = setting(15.0)
    """Standard deviations that a step of Gauss and Newton may go."""
    good: float = setting(1.1, least=0.0)
    """Squared error over the expected one, up to which stages have little left to learn."""
    usable: float = setting(10.0)
    """The same, up to which stages start from it."""


@dataclasses.dataclass(frozen=True, repr=False)
class NetworkSettings(Settings):
    """The default network."""

    width: int = setting(64)
    """Of the hidden layers."""
    depth: int = setting(2)
    """How many hidden layers."""
    inner_width: int = setting(16)
    """Of the hidden layers of the network of each element of a set of vectors."""
    inner_depth: int = setting(1)
    """How many of these."""
    inner_out: int = setting(8)
    """Learned averages over the elements."""
    good_start: float = setting(1.6, least=0.0)
    """Squared error of the start in closed form, over the expected one, up to which a network that
    corrects it will do; a worse start gives way to stages of learned Fisher scoring."""
    stages: int = setting(3)
    """Of learned Fisher scoring, after a first estimate that is learned."""
    later_stages: int = setting(2)
    """The same after one by minimum distance."""
    rank: int = setting(64)
    """Products of a summary and a coefficient in each of them."""
    first_width: int = setting(128)
    """Of the hidden layers of the network that makes the first estimate."""
    hidden_state: int = setting(16, least=0)
    """Numbers that stages hand on besides the estimates."""
    most_nuisances: int = setting(16, least=0)
    """Nuisance parameters that are estimated on the way."""
    finest_wave: float = setting(4.0)
    """Standard deviations within which coefficients may change."""
    waves: int = setting(64, least=0)
    """Sines of the estimates that coefficients are made from."""
    excess_degree: int = setting(6)
    """Of the polynomials that tell where errors are larger than expected."""
    excess_layers: int = setting(24, least=0)
    """How many layers at the ends besides."""


@dataclasses.dataclass(frozen=True, repr=False)
class ScheduleSettings(Settings):
    """The course of training. Arguments of `fit` that have the same name come first."""

    steps: int = setting(6_000)
    """Updates."""
    corrected_steps: int = setting(2_000)
    """The same of a default network that corrects an estimate in closed form."""
    nearest_steps: int = setting(1_000)
    """The same of stages that start from a good estimate by minimum distance."""
    started_steps: int = setting(3_000)
    """The same of stages that start from a fair one."""
    batch_size: int = setting(128)
    """N, units in a batch."""
    nearest_batch_size: int = setting(64)
    """The same for stages that start from a good estimate by minimum distance."""
    repeats: int = setting(8)
    """M, measurements of each unit."""
    anchors: int = setting(6, least=0)
    """How many times the bias is measured, for the control variate of the penalty."""
    seconds: float = setting(60.0)
    """Of processor time that the simulations of a default fit may take. Slow ones are kept and
    used several times each, while a part of them is always renewed."""
    most_uses: int = setting(16)
    """Of a simulation, on average."""
    fewest_simulations: float = setting(4.0)
    """For each weight of the network: with fewer, it would learn their noise."""
    kept_numbers: int = setting(2**25)
    """Of summaries, in simulations that are kept, at most."""
    validations: int = setting(100)
    """About how many times the estimator is judged on held-out units."""
    validation_batches: int = setting(4)
    """Batches of held-out units each time."""
    bias_weights: tuple[float, float] = setting(DEFAULT_BIAS_WEIGHTS)
    """λ at the start and at the end, where the loss leaves it open: small enough to learn quickly,
    then large enough to unbias."""
    scoring_batch_size: int = setting(256)
    """N of stages of learned Fisher scoring, where `batch_size` is not given."""
    scoring_repeats: int = setting(2)
    """M of these: while they learn, many values of theta tell more than many measurements."""
    robust: float = setting(0.6, least=0.0, most=1.0)
    """Share of the steps in which stages of learned Fisher scoring learn by a robust loss, that of
    all stages and of nuisance parameters, too: while errors are large, squares say little."""
    robust_scales: tuple[float, float] = setting((1.0, 4.0))
    """Standard deviations from which on errors count less than their squares, at the start and
    when the robust loss gives way."""
    robust_fades: float = setting(0.1, most=1.0)
    """Share of the steps in which the robust loss then gives way."""
    excess_batches: int = setting(256)
    """Batches that tell where errors are larger than expected, before the penalty sets in."""
    nuisance_weight: float = setting(0.3, least=0.0)
    """Of all nuisance parameters in the robust loss, against the parameters of interest."""
    learning_rate: float = setting(5e-3)
    """The peak of the default optimizer."""
    scoring_rate: float = setting(2e-3)
    """The same for stages of learned Fisher scoring."""
    fine_rate: float = setting(0.15, most=1.0)
    """Share of it that is left once the robust loss gives way to the penalty."""
    warm_up: float = setting(0.01, least=0.0, most=1.0)
    """Share of the steps in which the learning rate rises to its peak."""
    averaged: float = setting(0.15, least=0.0)
    """Horizon of the average of the weights, as a share of the steps."""


@dataclasses.dataclass(frozen=True, repr=False)
class ControlVariateSettings(Settings):
    """The control variate of the bias penalty: the bias at an anchor as a function of theta."""

    share: float = setting(1 / 12, most=1.0)
    """Batches that an anchor is measured from, as a share of the steps."""
    draws: int = setting(2048, least=2)
    """Of theta, from which its ranks are known."""
    table: int = setting(65, least=2)
    """Entries of the tables of ranks."""
    most_features: int = setting(256)
    """Polynomials of theta: as high a degree as gives no more."""
    highest_degree: int = setting(24, least=0)
    """Of these polynomials."""
    most_layers: int = setting(48, least=0)
    """Layers at the ends of what is trained on, where the bias changes within a few standard
    deviations."""
    ridge: float = setting(1e-6)
    """Of the regression of the bias on them."""


@dataclasses.dataclass(frozen=True, repr=False)
class CalibrationSettings(Settings):
    """The calibration that ends a fit: smooth functions of the estimate against its last bias."""

    draws: int = setting(2**18, least=0)
    """Simulations that it is fitted to; 0 for no calibration."""
    budget: int = setting(2**27)
    """Simulated numbers at most."""
    seconds: float = setting(15.0)
    """Of processor time that these simulations may take: slow ones are fewer."""
    degree: int = setting(8)
    """Of the polynomials of a single parameter."""
    degree_of_many: int = setting(4)
    """Of the polynomials of each of several parameters."""
    most_terms: int = setting(64)
    """How many polynomials there are at most."""
    most_layers: int = setting(24, least=0)
    """How many layers at the ends."""
    excess_degree: int = setting(6)
    """Of the polynomials that tell where errors are larger than expected."""
    most_ripples: int = setting(48, least=0)
    """How many sines and cosines of parameters whose range is wide."""
    ridge: float = setting(1e-5)
    """Share of the strongest direction below which nothing is corrected."""
    largest_error: float = setting(100.0)
    """Expected errors beyond which a unit is left out."""


@dataclasses.dataclass(frozen=True, repr=False)
class VerdictSettings(Settings):
    """The independent assessment that ends a fit, and what counts as poor."""

    values: int = setting(24, least=0)
    """Of theta, over the range of interest; 0 for no verdict."""
    repeats: int = setting(8192, least=2)
    """Simulations at each of them."""
    fewest: int = setting(256, least=2)
    """However large a measurement is."""
    budget: int = setting(2**26)
    """Simulated numbers at most."""
    seconds: float = setting(10.0)
    """Of processor time that these simulations may take: slow ones are fewer."""
    fair_bias: float = setting(0.05)
    """|bias|/sd that an unbiased estimator may have."""
    poor_bias: float = setting(0.15)
    """|bias|/sd from which on a warning is given, when it is beyond chance."""
    fair_error: float = setting(1.25)
    """MSE over the expected one, in the middle, that a good estimator may have."""
    poor_error: float = setting(1.6)
    """The same from which on a warning is given."""
    fair_worst: float = setting(2.0)
    """The same at any value, that a good estimator may have."""
    worst_error: float = setting(4.0)
    """The same from which on a warning is given."""
    second_order_draws: int = setting(8192, least=512)
    """Simulations at each value for Bhattacharyya's bound, where errors are far from the CRB."""
    failures: float = setting(1e-3)
    """Share of estimates that may be without a number."""
    unidentified: float = setting(0.5)
    """Share of the range of a parameter that a standard deviation is, where the data tell next to
    nothing about it."""
    not_followed: float = setting(0.25)
    """Share of the spread of a parameter that the bias is, where estimates do not follow it."""
    alike: int = setting(512, least=2)
    """Simulations that tell whether the data are the same at both ends of a range."""
    looked_at: int = setting(64)
    """Coordinates whose ends are compared."""


@dataclasses.dataclass(frozen=True, repr=False)
class Recipe(Settings):
    """Every constant of the default recipe of `fit`, in groups.

    A frozen value whose groups are made by `Recipe.Survey`, `Recipe.Network` and so on, as in
    ``mvue.Recipe(network=mvue.Recipe.Network(width=128))``. Its `repr` shows only what differs
    from the default.
    """

    Survey = SurveySettings
    ErrorModel = ErrorModelSettings
    Exchangeability = ExchangeabilitySettings
    Summaries = SummariesSettings
    Likelihood = LikelihoodSettings
    Baseline = BaselineSettings
    MinimumDistance = MinimumDistanceSettings
    Network = NetworkSettings
    Schedule = ScheduleSettings
    ControlVariate = ControlVariateSettings
    Calibration = CalibrationSettings
    Verdict = VerdictSettings

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
    likelihood: LikelihoodSettings = dataclasses.field(default_factory=LikelihoodSettings)
    """What a likelihood is used for."""
    baseline: BaselineSettings = dataclasses.field(default_factory=BaselineSettings)
    """The estimate in closed form that it corrects."""
    minimum_distance: MinimumDistanceSettings = dataclasses.field(
        default_factory=MinimumDistanceSettings
    )
    """Another one, by minimum distance, where that is poor."""
    network: NetworkSettings = dataclasses.field(default_factory=NetworkSettings)
    """The sizes of the default network."""
    schedule: ScheduleSettings = dataclasses.field(default_factory=ScheduleSettings)
    """The course of training."""
    control_variate: ControlVariateSettings = dataclasses.field(
        default_factory=ControlVariateSettings
    )
    """What is taken out of the noise of the bias penalty."""
    calibration: CalibrationSettings = dataclasses.field(default_factory=CalibrationSettings)
    """What is taken out of the bias in the end."""
    verdict: VerdictSettings = dataclasses.field(default_factory=VerdictSettings)
    """How the result is judged."""


def checked_recipe(recipe: Any) -> Recipe:
    """The recipe that was given, or the default."""
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a mvue.Recipe, got {recipe!r}")
    return Recipe() if recipe is None else recipe
