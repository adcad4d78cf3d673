"""Problems where theory stops short: no estimator is uniformly best."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from scipy import special

from ..._core.checks import check_count
from ..._core.types import Key, Theta
from .._snr import snr, snr_corrected_mle
from .normal import sd_factor
from .problem import Span, Textbook, make, spread_over

LOCATION = Span(-2.0, 2.0)
PITMAN = "Unbiased estimators exist, none is best at every location."


def uniform_location(n: int = 8) -> Textbook:
    """U(θ-½, θ+½): the location."""
    check_count("n", n)

    def log_likelihood(location: Array, x: Array) -> Array:
        inside = jnp.max(jnp.abs(x - location)) <= 0.5
        return jnp.where(inside, 0.0, -jnp.inf)

    return make(
        "uniform-location",
        "centre of a uniform sample of width 1",
        LOCATION,
        parameter="location",
        simulate=lambda key, location: location + jr.uniform(key, (n,)) - 0.5,
        log_likelihood=log_likelihood,
        reference=lambda x: 0.5 * (jnp.min(x) + jnp.max(x)),
        variance=lambda _: 1 / (2 * (n + 1) * (n + 2)),
        kind="no-uniform-mvue",
        notes=f"{PITMAN} The reference is the midrange, best among those that shift with the data.",
    )


def laplace_location(n: int = 8) -> Textbook:
    """Laplace, scale 1: the location."""
    check_count("n", n)
    return make(
        "laplace-location",
        "centre of a Laplace sample, scale 1",
        LOCATION,
        parameter="location",
        likelihood=lambda location: dist.Laplace(location, 1.0).expand((n,)),
        reference=_laplace_pitman,
        crb=lambda _: jnp.asarray(1 / n),
        attained=False,
        kind="no-uniform-mvue",
        notes=f"{PITMAN} The reference is Pitman's: best among those that shift with the data.",
    )


def logistic_location(n: int = 8) -> Textbook:
    """Logistic, scale 1: the location."""
    check_count("n", n)
    return make(
        "logistic-location",
        "centre of a logistic sample, scale 1",
        LOCATION,
        parameter="location",
        likelihood=lambda location: dist.Logistic(location, 1.0).expand((n,)),
        reference=_pitman(lambda e: -jnp.abs(e) - 2 * jnp.log1p(jnp.exp(-jnp.abs(e))), reach=12.0),
        crb=lambda _: jnp.asarray(3 / n),
        attained=False,
        kind="no-uniform-mvue",
        notes=f"{PITMAN} The reference is Pitman's: best among those that shift with the data.",
    )


def cauchy_location(n: int = 8) -> Textbook:
    """Cauchy, scale 1: the location."""
    check_count("n", n, least=5)
    return make(
        "cauchy-location",
        "centre of a Cauchy sample, scale 1",
        LOCATION,
        parameter="location",
        likelihood=lambda location: dist.Cauchy(location, 1.0).expand((n,)),
        reference=_pitman(lambda e: -jnp.log1p(e**2), reach=25.0),
        crb=lambda _: jnp.asarray(2 / n),
        attained=False,
        kind="no-uniform-mvue",
        notes=f"{PITMAN} The reference is Pitman's: best among those that shift with the data. The "
        "sample mean has no mean.",
    )


RELATIVE_SD = 0.5


def normal_known_variation(n: int = 8) -> Textbook:
    """N(θ, (θ/2)²): the mean."""
    check_count("n", n, least=2)
    c = sd_factor(n)
    of_mean, of_sd = RELATIVE_SD**2 / n, c**2 - 1  # variances relative to the squared mean
    weight = of_sd / (of_mean + of_sd)

    def reference(x: Array) -> Array:
        from_sd = c / RELATIVE_SD * jnp.std(x, ddof=1)
        return weight * jnp.mean(x) + (1 - weight) * from_sd

    return make(
        "normal-known-variation",
        "mean of a normal sample whose standard deviation is half the mean",
        Span(0.5, 4.0),
        parameter="mean",
        likelihood=lambda mean: dist.Normal(mean, RELATIVE_SD * mean).expand((n,)),
        reference=reference,
        variance=lambda mean: mean**2 * of_mean * weight,
        crb=lambda mean: RELATIVE_SD**2 * mean**2 / (n * (1 + 2 * RELATIVE_SD**2)),
        attained=False,
        kind="no-uniform-mvue",
        notes="Mean and standard deviation both tell the parameter, and none of the unbiased "
        "estimators is best everywhere. The reference is the best weighted mean of the two.",
    )


def nonparametric_variance(n: int = 8) -> Textbook:
    """Samples of several laws: the variance."""
    check_count("n", n, least=2)
    kurtosis = np.array([3.0, 1.8, 6.0, 9.0])

    def simulate(key: Key, t: Theta) -> Array:
        uniform_key, sign_key, normal_key = jr.split(key, 3)
        uniform = jr.uniform(uniform_key, (n,))
        waits = -jnp.log1p(-uniform)
        signs = jr.rademacher(sign_key, (n,), dtype=waits.dtype)
        laws = jnp.stack(
            [
                jr.normal(normal_key, (n,)),
                np.sqrt(12.0) * (uniform - 0.5),
                signs * waits / np.sqrt(2.0),
                waits - 1,
            ]
        )
        return t["mean"] + jnp.sqrt(t["variance"]) * laws[t["law"]]

    def variance(t: Theta) -> np.ndarray:
        fourth = kurtosis[t["law"].astype(int)] / n
        return t["variance"] ** 2 * (fourth - (n - 3) / (n * (n - 1)))

    return make(
        "nonparametric-variance",
        "variance of a sample of unknown law: normal, uniform, Laplace or exponential",
        {"mean": LOCATION, "law": Span(0, 3, whole=True), "variance": Span(0.5, 4.0)},
        parameter="variance",
        target=lambda theta: theta["variance"],
        simulate=simulate,
        mvue=lambda x: jnp.var(x, ddof=1),
        variance=variance,
        kind="nonparametric",
        notes="The sample variance is best among estimators that are unbiased for every law. "
        "Trained on four laws only, an estimator may do better on these.",
    )


def snr_of_symbols(n: int = 50) -> Textbook:
    """Binary symbols in noise: the signal-to-noise ratio."""
    check_count("n", n, least=4)
    problem = snr(n)
    spans = {"h": Span(1.0, 10.0), "snr": Span(2.0, 50.0)}
    return Textbook(
        name="snr-of-symbols",
        title="signal-to-noise ratio of unknown binary symbols",
        problem=problem,
        second={name: span.second() for name, span in spans.items()},
        at=spread_over(spans),
        kind="open",
        notes="No exact answer is known. The reference, maximum likelihood with the correction for "
        "known symbols, has little bias and is close to the bound.",
        reference=snr_corrected_mle,
        core=True,
    )


def _pitman(
    log_density: Callable[[Array], Array], reach: float, step: float = 0.2
) -> Callable[[Array], Array]:
    """The mean of the likelihood as a density of the location.

    The trapezoid rule: its error for a function that is analytic near the real line falls
    exponentially with the reciprocal of the step.
    """
    offsets = np.arange(-reach, reach + step / 2, step)

    def estimate(x: Array) -> Array:
        middle = jnp.median(x)
        errors = (x - middle)[:, None] - jnp.asarray(offsets, x.dtype)[None, :]
        weights = jax.nn.softmax(jnp.sum(log_density(errors), axis=0))
        return middle + jnp.sum(weights * jnp.asarray(offsets, x.dtype))

    return estimate


def _laplace_pitman(x: Array) -> Array:
    """The same for a density with kinks: Gauss-Legendre between one observation and the next."""
    n = x.shape[0]
    nodes, node_weights = (jnp.asarray(a, x.dtype) for a in special.roots_legendre(16))
    inner = jnp.sort(x)
    beyond = jnp.asarray([30.0 / n], x.dtype)  # the likelihood falls as exp(-n distance)
    edges = jnp.concatenate([inner[:1] - beyond, inner, inner[-1:] + beyond])
    half, centre = 0.5 * jnp.diff(edges), 0.5 * (edges[1:] + edges[:-1])
    points = centre[:, None] + half[:, None] * nodes[None, :]
    logs = -jnp.sum(jnp.abs(x[:, None, None] - points[None]), axis=0)
    weights = half[:, None] * node_weights[None, :] * jnp.exp(logs - jnp.max(logs))
    middle = jnp.median(x)
    return middle + jnp.sum(weights * (points - middle)) / jnp.sum(weights)


ENTRIES = (
    uniform_location,
    laplace_location,
    logistic_location,
    cauchy_location,
    normal_known_variation,
    nonparametric_variance,
    snr_of_symbols,
)
