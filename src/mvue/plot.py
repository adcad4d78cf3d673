"""Figures from reports."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ._linear_path import LinearBCEPath
from ._report import Report

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'mvue[report]'") from error

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
MAX_COMPONENTS = 6


def plot_report(report: Report) -> Figure:
    """Bias / sd, MSE and MSE / CRB of each component against its true value.

    Bands are two standard errors wide to each side.
    """
    shown = min(len(report.names), MAX_COMPONENTS)
    columns = 3 if report.crb is not None else 2
    figure = new_figure(4.2 * columns, 3.4 * shown)
    axes = figure.subplots(shown, columns, squeeze=False)
    for c in range(shown):
        plot_bias_over_sd(axes[c, 0], report, c)
        plot_mse(axes[c, 1], report, c)
        if report.crb is not None:
            plot_efficiency(axes[c, 2], report, c)
        for ax in axes[c]:
            ax.set_xlabel(report.names[c])
            use_log_axis(ax, report.y[:, c])
    share_legend(figure, axes.ravel())
    if shown < len(report.names):
        figure.suptitle(f"the first {shown} of {len(report.names)} components")
    return figure


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


def plot_bias_over_sd(ax: Axes, report: Report, component: int = 0) -> None:
    """Signed bias in units of the estimator's own standard deviation."""
    ax.axhline(0, color="0.6", linewidth=0.8)
    for i, (name, one) in enumerate(report.estimators.items()):
        values, errors = one.bias_in_sd[:, component], one.bias_over_sd_se[:, component]
        draw_series(ax, report.y[:, component], values, errors, name, i)
    ax.set_title("bias / standard deviation")


def plot_mse(ax: Axes, report: Report, component: int = 0) -> None:
    """Mean squared error with the bound, on a log axis."""
    y = report.y[:, component]
    for i, (name, one) in enumerate(report.estimators.items()):
        draw_series(ax, y, one.mse[:, component], one.mse_se[:, component], name, i)
    if report.crb is not None:
        draw_bound(ax, y, report.crb[:, component])
    ax.set_yscale("log")
    ax.set_title("mean squared error")


def plot_efficiency(ax: Axes, report: Report, component: int = 0) -> None:
    """Mean squared error in units of the bound."""
    assert report.crb is not None
    crb = report.crb[:, component]
    ax.axhline(1, color="black", linestyle="--", linewidth=1)
    for i, (name, one) in enumerate(report.estimators.items()):
        draw_series(
            ax,
            report.y[:, component],
            one.mse[:, component] / crb,
            one.mse_se[:, component] / crb,
            name,
            i,
        )
    ax.set_title("mean squared error / CRB")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in the house style; no global state is touched."""
    return Figure(figsize=(width, height), layout="constrained", dpi=130)


def draw_series(
    ax: Axes, x: Any, values: Any, errors: Any, name: str, index: int, width: float = 2.0
) -> None:
    """A line with a band of `width` standard errors to each side."""
    order = np.argsort(x)
    x, values, errors = (np.asarray(a)[order] for a in (x, values, errors))
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    ax.plot(x, values, color=colour, marker=marker, markersize=3.5, linewidth=1.3, label=name)
    ax.fill_between(
        x, values - width * errors, values + width * errors, color=colour, alpha=0.2, linewidth=0
    )


def draw_bound(ax: Axes, x: Any, values: Any, name: str = "CRB") -> None:
    """The bound as a dashed black line."""
    order = np.argsort(x)
    ax.plot(np.asarray(x)[order], np.asarray(values)[order], "k--", linewidth=1.2, label=name)


def use_log_axis(ax: Axes, x: np.ndarray) -> None:
    """A log axis for positive values that span a wide range."""
    if (x > 0).all() and x.max() > 8 * x.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())


def share_legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend for all panels, below them, in as few rows as fit the width."""
    entries: dict[str, Any] = {}
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    for columns in range(min(len(entries), 7), 0, -1):
        legend = figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
