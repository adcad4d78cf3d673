"""The figure of a report: bias, standard deviation and MSE against y."""

import numpy as np

from .._display.figures import (
    COLOURS,
    Axes,
    Figure,
    draw_bound,
    draw_series,
    new_figure,
    share_legend,
    use_log_axis,
)
from .certificate import Certificate
from .report import Report

MAX_COMPONENTS = 6


def plot_report(report: Report) -> Figure:
    """Bias / sd, MSE and MSE / bound of each component against its true value.

    Bands are two standard errors wide to each side.
    """
    shown = min(len(report.names), MAX_COMPONENTS)
    columns = 3 if report.bound_variance is not None else 2
    figure = new_figure(4.2 * columns, 3.4 * shown)
    axes = figure.subplots(shown, columns, squeeze=False)
    for c in range(shown):
        plot_bias_over_sd(axes[c, 0], report, c)
        plot_mse(axes[c, 1], report, c)
        if report.bound_variance is not None:
            plot_efficiency(axes[c, 2], report, c)
        for ax in axes[c]:
            ax.set_xlabel(report.names[c])
            use_log_axis(ax, report.y[:, c])
    share_legend(figure, axes.ravel())
    if shown < len(report.names):
        figure.suptitle(f"the first {shown} of {len(report.names)} components")
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
    if report.bound_variance is not None:
        draw_bound(ax, y, report.bound_variance[:, component], report.bound_is)
    ax.set_yscale("log")
    ax.set_title("mean squared error")


def plot_efficiency(ax: Axes, report: Report, component: int = 0) -> None:
    """Mean squared error in units of the bound."""
    assert report.bound_variance is not None
    bound = report.bound_variance[:, component]
    ax.axhline(1, color="black", linestyle="--", linewidth=1)
    for i, (name, one) in enumerate(report.estimators.items()):
        draw_series(
            ax,
            report.y[:, component],
            one.mse[:, component] / bound,
            one.mse_se[:, component] / bound,
            name,
            i,
        )
    ax.set_title(f"mean squared error / {report.bound_is}")


def plot_coverage(report: Report) -> Figure:
    """How often the intervals of each estimator cover, against the true value."""
    shown = min(len(report.names), MAX_COMPONENTS)
    figure = new_figure(5.6, 3.4 * shown)
    axes = figure.subplots(shown, 1, squeeze=False)[:, 0]
    level = next(iter(report.coverage.values())).level
    for c, ax in enumerate(axes):
        ax.axhline(level, color="black", linestyle="--", linewidth=1, label=f"level {level:g}")
        for i, (name, one) in enumerate(report.coverage.items()):
            draw_series(ax, report.y[:, c], one.rate[:, c], one.rate_se[:, c], name, i)
        ax.set_xlabel(report.names[c])
        use_log_axis(ax, report.y[:, c])
        ax.set_title("coverage")
    share_legend(figure, axes)
    return figure


def plot_certificate(certificate: Certificate) -> Figure:
    """Bias / sd with limits that hold for all values at once, and the limit that it must keep."""
    shown = min(len(certificate.names), MAX_COMPONENTS)
    figure = new_figure(5.6, 3.4 * shown)
    axes = figure.subplots(shown, 1, squeeze=False)[:, 0]
    most, curve = certificate.limit.max_bias_over_sd, certificate.curve
    for c, ax in enumerate(axes):
        ax.axhspan(-most, most, color="0.92", zorder=0, label=f"limit, ± {most:g}")
        if curve is not None:
            ax.fill_between(
                curve.y, curve.lower, curve.upper, color=COLOURS[0], alpha=0.2, linewidth=0
            )
            ax.plot(curve.y, curve.value, color=COLOURS[0], linewidth=1, label="curve with band")
        known = certificate.covered & np.isfinite(certificate.bias_upper[:, c])
        known &= np.isfinite(certificate.bias_over_sd[:, c])
        value = certificate.bias_over_sd[known, c]
        away = [value - certificate.bias_lower[known, c], certificate.bias_upper[known, c] - value]
        ax.errorbar(
            certificate.y[known, c],
            value,
            away,
            fmt="o",
            markersize=3,
            linewidth=1,
            capsize=2,
            color="black",
            label=f"values, limits at confidence {certificate.limit.confidence:.6g}",
        )
        ax.set_xlabel(certificate.names[c])
        use_log_axis(ax, certificate.y[:, c])
        ax.set_title("bias / standard deviation")
    share_legend(figure, axes)
    figure.suptitle(str(certificate.decision))
    return figure
