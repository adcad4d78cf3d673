"""Negative controls: parameters for which no unbiased estimator exists."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from ..._core.checks import check_count
from ..._core.types import Estimator
from .counts import poisson, poisson_log_likelihood
from .problem import Span, Textbook, make

POLYNOMIAL = "the mean of any estimator is a polynomial in p"


def binomial_odds(n: int = 8) -> Textbook:
    """Bernoulli: the odds."""
    return _binomial(
        n,
        "binomial-odds",
        "odds p/(1-p) of a success",
        "odds",
        lambda p: p / (1 - p),
        lambda successes: successes / (n - successes + 1),
        f"No unbiased estimator: {POLYNOMIAL}, and the odds are not. The reference is below by the "
        "factor 1-pⁿ.",
        core=True,
    )


def binomial_reciprocal(n: int = 8) -> Textbook:
    """Bernoulli: the mean number of trials to a success."""
    return _binomial(
        n,
        "binomial-reciprocal",
        "mean number 1/p of trials to a success",
        "trials",
        lambda p: 1 / p,
        lambda successes: (n + 1) / (successes + 1),
        f"No unbiased estimator: {POLYNOMIAL}. The reference is below by the factor 1-(1-p)ⁿ⁺¹.",
    )


def binomial_root(n: int = 8) -> Textbook:
    """Bernoulli: the square root of the probability."""
    return _binomial(
        n,
        "binomial-root",
        "square root of the probability of success",
        "root",
        jnp.sqrt,
        lambda successes: jnp.sqrt(successes / n),
        f"No unbiased estimator: {POLYNOMIAL}. The reference is maximum likelihood.",
    )


def binomial_log(n: int = 8) -> Textbook:
    """Bernoulli: the logarithm of the probability."""
    return _binomial(
        n,
        "binomial-log",
        "logarithm of the probability of success",
        "log-probability",
        jnp.log,
        lambda successes: jnp.log((successes + 0.5) / (n + 0.5)),
        f"No unbiased estimator: {POLYNOMIAL}. The reference adds half a success.",
    )


def _binomial(
    n: int,
    name: str,
    title: str,
    parameter: str,
    target: Callable[[Any], Any],
    reference: Estimator,
    notes: str,
    core: bool = False,
) -> Textbook:
    check_count("n", n)
    return make(
        name,
        title,
        Span(0.1, 0.9),
        parameter=parameter,
        target=target,
        likelihood=lambda p: dist.Bernoulli(probs=p).expand((n,)),
        reference=lambda x: reference(jnp.sum(x)),
        kind="control",
        notes=notes,
        core=core,
    )


def poisson_reciprocal(n: int = 8) -> Textbook:
    """Poisson: the reciprocal of the mean."""
    check_count("n", n)
    return make(
        "poisson-reciprocal",
        "reciprocal of the mean of Poisson counts",
        Span(0.5, 5.0),
        parameter="reciprocal",
        target=lambda rate: 1 / rate,
        simulate=lambda key, rate: poisson(key, jnp.broadcast_to(rate, (n,))),
        log_likelihood=poisson_log_likelihood,
        reference=lambda x: n / (jnp.sum(x) + 1),
        kind="control",
        notes="No unbiased estimator: the mean of any is finite as the rate falls to 0. The "
        "reference is below by the factor 1-exp(-n rate).",
    )


def normal_absolute_mean(n: int = 8) -> Textbook:
    """N(μ, 1): the absolute mean."""
    check_count("n", n)
    return make(
        "normal-absolute-mean",
        "absolute value of the mean of a normal sample, variance 1",
        Span(-2.0, 2.0),
        parameter="absolute mean",
        target=jnp.abs,
        likelihood=lambda mean: dist.Normal(mean, 1.0).expand((n,)),
        reference=lambda x: jnp.abs(jnp.mean(x)),
        kind="control",
        notes="No unbiased estimator: the mean of any is a smooth function, |mean| has a kink. The "
        "reference is maximum likelihood.",
        core=True,
    )


def normal_larger_mean(n: int = 8) -> Textbook:
    """N(μ₁, 1) and N(μ₂, 1): the larger mean."""
    check_count("n", n)

    def likelihood(means: Array) -> dist.Distribution:
        return dist.Normal(jnp.broadcast_to(means[None, :], (n, 2)), 1.0)

    return make(
        "normal-larger-mean",
        "larger mean of two normal samples, variances 1",
        Span(-1.0, 1.0, (2,)),
        parameter="larger mean",
        target=jnp.max,
        likelihood=likelihood,
        reference=lambda x: jnp.max(jnp.mean(x, axis=0)),
        kind="control",
        notes="No unbiased estimator: the larger of two has a kink where they are equal. The "
        "reference is maximum likelihood; it is above.",
    )


ENTRIES = (
    binomial_odds,
    binomial_reciprocal,
    binomial_root,
    binomial_log,
    poisson_reciprocal,
    normal_absolute_mean,
    normal_larger_mean,
)
