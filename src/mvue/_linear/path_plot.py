"""The figure of a path of linear estimators."""

import numpy as np

from .._display.figures import Figure, draw_series, new_figure, share_legend
from .path import LinearBCEPath


def plot_linear_path(path: LinearBCEPath) -> Figure:
    """Cross-validated MSE, squared bias and variance against the bias weight.

    The ends of the axis are λ = 0, the LMMSE estimator, and λ = ∞, weighted least squares. Bands
    are two standard errors wide to each side; values that are not positive are left out.
    """
    figure = new_figure(6.0, 4.0)
    ax = figure.subplots()
    finite = path.bias_weights[(path.bias_weights > 0) & np.isfinite(path.bias_weights)]
    low, high = (finite.min(), finite.max()) if finite.size else (1.0, 1.0)
    place = np.clip(path.bias_weights, low / 5, high * 5)
    series = (
        ("MSE", path.mse, path.mse_se),
        ("squared bias", path.squared_bias, path.squared_bias_se),
        ("variance", path.variance, path.variance_se),
    )
    for i, (name, values, errors) in enumerate(series):
        draw_series(ax, place, np.where(values > 0, values, np.nan), errors, name, i)
    ax.set_xscale("log")
    ax.set_yscale("log")
    decades = 10.0 ** np.arange(np.ceil(np.log10(low)), np.floor(np.log10(high)) + 1)
    ticks = {low / 5: "0\nLMMSE"} | {t: f"{t:g}" for t in decades} | {high * 5: "∞\nWLS"}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xlabel("bias weight λ")
    share_legend(figure, [ax])
    return figure
