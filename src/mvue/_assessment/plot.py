"""The figure of a report: bias, standard deviation and MSE against y."""

from .._display.figures import (
    Axes,
    Figure,
    draw_bound,
    draw_series,
    new_figure,
    share_legend,
    use_log_axis,
)
from .report import Report

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
