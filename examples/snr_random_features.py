"""The SNR problem in seconds, without training: random features and a linear estimator.

Moments of the data go through random Fourier features into `LinearBCE`, once with a bias weight
of 0 (least squares) and once with 1000. Prints bias and MSE of both beside the corrected maximum
likelihood.

    python examples/snr_random_features.py
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mvue
from mvue.experiments.snr import inverse_bound, moment_features
from mvue.problems import snr, snr_corrected_mle
from mvue.sklearn import LinearBCE


def main(units: int = 20_000, unit_repeats: int = 8, repeats: int = 20_000) -> mvue.Report:
    """Fit, judge and print."""
    problem = snr(snr_prior=dist.LogUniform(1.5, 70.0))
    draw = problem.draw(jr.key(0), units, unit_repeats)
    features = np.asarray(jax.vmap(moment_features)(draw.x.reshape(-1, 50)), np.float64)
    y = np.repeat(np.asarray(draw.y[:, 0], np.float64), unit_repeats)
    weights = np.repeat(
        np.asarray(jax.vmap(inverse_bound(problem, 1.5, 70.0))(draw.y)), unit_repeats
    )
    weights /= weights.mean()  # weights count rows

    estimators = {"mle_corrected": snr_corrected_mle}
    for bias_weight in (0.0, 1000.0):
        began = time.perf_counter()
        model = make_pipeline(
            StandardScaler(),
            RBFSampler(gamma=0.05, n_components=200, random_state=0),
            LinearBCE(bias_weight),
        )
        model.fit(features, y, linearbce__sample_weight=weights)
        print(f"λ = {bias_weight:g}: fitted in {time.perf_counter() - began:.1f} s")
        estimators[f"linear_{bias_weight:g}"] = as_estimator(model)
    at = {"snr": jnp.geomspace(2.0, 50.0, 7), "h": jnp.ones(7)}
    report = mvue.assess(estimators, snr(), at=at, repeats=repeats, key=jr.key(1))
    print(report)
    return report


def as_estimator(model: object) -> Callable[[jax.Array], jax.Array]:
    """The fitted pipeline as a function of one measurement."""
    scaler, fourier, linear = (step for _, step in model.steps)  # type: ignore[attr-defined]
    scale = np.sqrt(2 / fourier.random_offset_.size)

    def features(x: jax.Array) -> jax.Array:
        standard = (moment_features(x) - scaler.mean_) / scaler.scale_
        return scale * jnp.cos(standard @ fourier.random_weights_ + fourier.random_offset_)

    weight, bias = jnp.atleast_2d(linear.coef_), jnp.atleast_1d(linear.intercept_)
    return lambda x: weight @ features(x) + bias


if __name__ == "__main__":
    main()
