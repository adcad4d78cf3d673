"""Exact errors of linear estimators of y in x = H y + n."""

from typing import Any, NamedTuple

import numpy as np


class LinearModel(NamedTuple):
    """x = H y + n with zero means."""

    H: np.ndarray  # (m, d)
    noise_cov: np.ndarray  # (m, m)
    prior_cov: np.ndarray  # (d, d)

    @property
    def bound(self) -> np.ndarray:
        """Covariance of the best unbiased estimator, (d, d)."""
        return np.linalg.inv(self.H.T @ np.linalg.solve(self.noise_cov, self.H))

    def errors(self, weight: np.ndarray) -> tuple[float, float]:
        """Squared bias, averaged over the prior, and variance of the estimator ``weight @ x``."""
        bias_matrix = weight @ self.H - np.eye(weight.shape[0])
        bias2 = np.trace(bias_matrix @ self.prior_cov @ bias_matrix.T)
        return float(bias2), float(np.trace(weight @ self.noise_cov @ weight.T))

    def entry(self, weight: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        """Exact numbers at given values of y, shape (K, d), for ``results.json``."""
        bias = y @ (weight @ self.H - np.eye(y.shape[1])).T
        sd = np.broadcast_to(np.sqrt(np.diag(weight @ self.noise_cov @ weight.T)), y.shape)
        crb = np.broadcast_to(np.diag(self.bound), y.shape)
        mse = bias**2 + sd**2
        ratio = mse / crb
        bias2, variance = self.errors(weight)
        columns = {"y": y, "bias": bias, "sd": sd, "mse": mse, "crb": crb}
        return {
            "max_bias_over_sd": float((np.abs(bias) / sd).max()),
            "mse_over_crb": {
                "min": float(ratio.min()),
                "median": float(np.median(ratio)),
                "max": float(ratio.max()),
            },
            "squared_bias": bias2,
            "variance": variance,
            "bmse": bias2 + variance,
            "train_seconds": 0.0,
            **{name: values.tolist() for name, values in columns.items()},
            "bias_se": np.zeros_like(y).tolist(),
            "mse_se": np.zeros_like(y).tolist(),
        }
