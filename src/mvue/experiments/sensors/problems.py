"""The measurements of the sensors, and the estimators that they are given."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array

import mvue

from ...experiments import snr as single_sensor
from ...problems import CovarianceMLP, snr, snr_mle, structured_covariance
from .._common import Run

SNR_VALUES = (3.0, 8.0, 20.0, 45.0)
COVARIANCE_VALUES = (0.1, 0.5, 0.9)
COVARIANCE_RANGE = (0.1, 0.9)
SHIFT = 2.0  # SNR + 2 is safely positive, also of estimates
COVARIANCE_BIAS_WEIGHTS = (100.0, 10_000.0)


@dataclasses.dataclass(frozen=True)
class SensorsSettings:
    """How large a run is."""

    snr_steps: int
    """Updates of each estimator of the SNR."""
    refit_units: int
    """Parameters, eight measurements of each, to take off the bias that is left for the SNR."""
    polynomials: int
    """How many functions of the estimate that bias is taken off with."""
    covariance_steps: int
    """Updates of each estimator of the covariance."""
    sensors: int
    """In the largest networks."""
    networks: int
    """At each of the fixed parameters."""
    prior_networks: int
    """With a parameter each, from the prior."""
    mle_networks: dict[str, int]
    """At each of the fixed parameters, in which the likelihood is maximised, by problem; four times
    as many with parameters from the prior."""
    repeats: int
    """Measurements of each fixed parameter from which bias and variance are measured."""
    problems: tuple[str, ...] = ("snr", "covariance")


@dataclasses.dataclass(frozen=True)
class Scene:
    """What all sensors measure, and what they estimate with."""

    name: str
    title: str
    problem: mvue.Problem
    """Its prior is that of the parameters that the estimators are judged on."""
    values: Any
    """Fixed thetas, with a leading axis."""
    labels: tuple[str, ...]
    estimators: dict[str, Any]
    fits: dict[str, mvue.Fit]
    mle: Callable[[Array], Array]
    """Of one sensor."""
    pooled_mle: Callable[[Array], Array]
    """Of all measurements of a set of sensors."""


def snr_scene(run: Run) -> Scene:
    """The SNR of binary symbols, from 50 samples in each sensor."""
    s: SensorsSettings = run.settings
    quick = single_sensor.EXPERIMENT.presets["quick"]
    alone = dataclasses.replace(quick, steps=s.snr_steps, paper_steps=s.snr_steps)
    problem = snr()
    network_key, emmse_key, bce_key, refit_key = jr.split(jr.fold_in(run.key, 1), 4)
    emmse = run.fit("snr-emmse", **single_sensor.emmse_recipe(alone, network_key), key=emmse_key)
    recipe = single_sensor.bce_recipe(alone, network_key)
    bce = run.fit("snr-bce", **recipe, key=bce_key)
    run.say("taking off what bias is left ...")
    unbiased = mvue.refit_last_layer(
        None,
        recipe["problem"],
        jnp.inf,
        key=refit_key,
        features=functions_of(bce.estimator, s.polynomials, *alone.training_range),
        weight=single_sensor.inverse_bound(problem, *alone.training_range),
        units=s.refit_units,
    )
    values = jnp.asarray(SNR_VALUES)
    return Scene(
        name="snr",
        title="SNR of binary symbols, 50 samples in each sensor",
        problem=problem,
        values={"snr": values, "h": jnp.ones(len(SNR_VALUES))},
        labels=tuple(f"SNR {value:g}" for value in SNR_VALUES),
        estimators={"emmse": emmse.estimator, "bce_network": bce.estimator, "bce": unbiased},
        fits={"emmse": emmse, "bce_network": bce, "bce": bce},
        mle=snr_mle,
        pooled_mle=lambda x: snr_mle(x.reshape(-1)),
    )


def functions_of(
    estimator: Callable[[Array], Array], count: int, low: float, high: float
) -> Callable[[Array], Array]:
    """Estimates of the SNR, times polynomials (Chebyshev's) of their logarithm.

    A linear combination of them is what `bce` is: so few numbers are known so well from some
    million simulations that hardly a bias is left.
    """
    bottom, top = (float(jnp.log(value + SHIFT)) for value in (low, high))

    def functions(x: Array) -> Array:
        power = estimator(x)[0] + SHIFT
        place = (2 * jnp.log(jnp.maximum(power, 0.1)) - bottom - top) / (top - bottom)
        values = [jnp.ones_like(place), place]
        while len(values) < count:
            values.append(2 * place * values[-1] - values[-2])
        return power * jnp.stack(values)

    return functions


def covariance_scene(run: Run) -> Scene:
    """A 5 by 5 covariance with nine parameters, from 200 samples in each sensor."""
    s: SensorsSettings = run.settings
    structure = structured_covariance()
    training = structure.problem
    network_key, emmse_key, bce_key = jr.split(jr.fold_in(run.key, 2), 3)
    emmse = run.fit(
        "covariance-emmse",
        training,
        CovarianceMLP(structure, key=network_key),
        mvue.emmse(),
        key=emmse_key,
        steps=s.covariance_steps,
    )
    # With an unbiased baseline the penalty has little noise, so that λ may be large.
    bce = run.fit(
        "covariance-bce",
        training,
        CovarianceMLP(structure, correction=True, key=network_key),
        mvue.bce(
            mvue.losses.geometric_schedule(*COVARIANCE_BIAS_WEIGHTS, begin=0.2),
            weight=lambda y: 1 / jnp.diagonal(structure.crb(y)),
        ),
        baseline=structure.masked,
        training_prior=training.prior,
        key=bce_key,
        steps=s.covariance_steps,
        batch_size=256,
        repeats=4,
    )
    judged = structured_covariance(
        prior=dist.Uniform(*COVARIANCE_RANGE).expand((structure.d,)).to_event(1)
    )
    return Scene(
        name="covariance",
        title="covariance with nine parameters, 200 samples in each sensor",
        problem=judged.problem,
        values=jnp.stack([jnp.full(structure.d, value) for value in COVARIANCE_VALUES]),
        labels=tuple(f"all parameters {value:g}" for value in COVARIANCE_VALUES),
        estimators={
            "emmse": emmse.estimator,
            "masked_sample_covariance": structure.masked,
            "bce": bce.estimator,
        },
        fits={"emmse": emmse, "bce": bce},
        mle=structure.maximum_likelihood,
        # The mean of the sample covariances is that of all samples.
        pooled_mle=lambda x: structure.maximum_likelihood(x.mean(axis=0), tolerance=1e-5),
    )


SCENES = {"snr": snr_scene, "covariance": covariance_scene}
