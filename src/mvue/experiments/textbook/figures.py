"""Figures of the textbook experiment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._display.figures import new_figure, share_legend, use_log_axis
from .results import BIAS_BAND, MSE_BAND, JudgedProblem

ROW = 0.62
DODGE = 0.72  # of a row
FLOOR = 1e-3
COLUMNS = 4
MSE_SHOWN = (0.2, 20.0)


class SeriesStyle(NamedTuple):
    """How an estimator is drawn; open markers and dashes are the second prior."""

    colour: str
    marker: str
    filled: bool
    label: str


LOOKS = {
    "mvue": SeriesStyle("0.45", "|", True, "exact MVUE (noise alone) or reference"),
    "mle": SeriesStyle("#009E73", "D", True, "mle"),
    "emmse": SeriesStyle("#D55E00", "s", True, "emmse"),
    "emmse_second": SeriesStyle("#D55E00", "s", False, "emmse, second prior"),
    "bce": SeriesStyle("#0072B2", "o", True, "bce"),
    "bce_second": SeriesStyle("#0072B2", "o", False, "bce, second prior"),
}


def plot_overview(problems: Sequence[JudgedProblem]) -> Any:
    """Worst bias and range of MSE, a row for each problem."""
    figure = new_figure(12, 1.5 + ROW * len(problems))
    bias, mse = figure.subplots(1, 2, sharey=True)
    for row, one in enumerate(problems):
        _draw_row(bias, mse, row, one)
    bias.axvline(BIAS_BAND, color="black", linestyle="--", linewidth=1, label="bands")
    mse.axvline(MSE_BAND, color="black", linestyle="--", linewidth=1)
    mse.axvline(1, color="0.6", linewidth=0.8)
    bias.set(xscale="log", title="worst |bias| / sd of the MVUE")
    mse.set(xscale="log", title="MSE / MSE of the MVUE, smallest to largest")
    low, high = mse.get_xlim()
    mse.set_xlim(max(low, MSE_SHOWN[0]), min(high, MSE_SHOWN[1]))
    _plain_ticks(bias, (0.001, 0.01, 0.1, 1, 10, 100))
    _plain_ticks(mse, (0.2, 0.5, 1, 2, 5, 10, 20))
    bias.set_yticks(range(len(problems)), [one.label for one in problems])
    bias.set_ylim(len(problems) - 0.5, -0.5)
    for ax in (bias, mse):
        for edge in np.arange(0.5, len(problems) - 1):
            ax.axhline(edge, color="0.9", linewidth=0.8)
    share_legend(figure, (bias, mse))
    for ax in (bias, mse):
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
    return figure


def _draw_row(bias: Any, mse: Any, row: int, one: JudgedProblem) -> None:
    places = np.linspace(-DODGE / 2, DODGE / 2, len(LOOKS))
    for (name, look), shift in zip(LOOKS.items(), places, strict=True):
        known = one.against if name == "mvue" else name
        if known not in one.report.estimators:
            continue
        style = {
            "color": look.colour,
            "marker": look.marker,
            "markersize": 5,
            "markerfacecolor": look.colour if look.filled else "white",
            "linestyle": "none",
        }
        worst, y = one.worst_bias(known), row + shift
        ends = np.maximum([worst.value - 2 * worst.se, worst.value + 2 * worst.se], FLOOR)
        bias.plot(ends, [y, y], color=look.colour, linewidth=1)
        bias.plot(max(worst.value, FLOOR), y, label=look.label, **style)
        ratio = one.mse(known)
        if ratio is not None and name != "mvue":
            ends = [ratio.low.value, ratio.high.value]
            mse.plot(ends, [y, y], color=look.colour, linewidth=1.6)
            mse.plot(ends, [y, y], **style | {"markersize": 4})
    if one.is_control:
        mse.text(
            0.5,
            row,
            "no unbiased estimator exists: residual bias on the left",
            transform=mse.get_yaxis_transform(),
            ha="center",
            va="center",
            color="0.4",
            fontsize=9,
            bbox={"facecolor": "0.96", "edgecolor": "none"},
        )
        for ax in (bias, mse):
            ax.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)


def plot_biases(problems: Sequence[JudgedProblem]) -> Any:
    """Bias along the range of the parameter, a panel for each problem."""
    columns = min(COLUMNS, len(problems))
    rows = -(-len(problems) // columns)
    figure = new_figure(3.3 * columns, 2.7 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, one in zip(axes, problems, strict=False):
        place, name_of_place, in_line = _axis(one)
        order = np.argsort(place, kind="stable")
        ax.axhspan(-BIAS_BAND, BIAS_BAND, color="0.88", linewidth=0, zorder=0)
        for name in ("emmse", "emmse_second", "bce", "bce_second"):
            look = LOOKS[name]
            bias, error = (part[order, 0] for part in one.bias(name))
            ax.plot(
                place[order],
                bias,
                color=look.colour,
                marker=look.marker,
                markersize=3.5,
                markerfacecolor=look.colour if look.filled else "white",
                linestyle="-" if look.filled else "--",
                linewidth=1.3 if in_line else 0.5,
                label=look.label,
            )
            ax.fill_between(
                place[order],
                bias - 2 * error,
                bias + 2 * error,
                color=look.colour,
                alpha=0.15,
                linewidth=0,
            )
        ax.set_title(one.label, fontsize=10)
        ax.set_xlabel(name_of_place, fontsize=9)
        ax.tick_params(labelsize=8)
        use_log_axis(ax, place)
    for ax in axes[len(problems) :]:
        ax.set_axis_off()
    for ax in axes[::columns]:
        ax.set_ylabel("bias / sd of the MVUE", fontsize=9)
    share_legend(figure, axes[: len(problems)])
    return figure


def _axis(one: JudgedProblem) -> tuple[np.ndarray, str, bool]:
    """What to draw a bias against, its name, and whether the values lie on one line.

    That is the first component of y; or theta, if it is one number and y neither rises nor falls.
    """
    y, theta = one.report.y[:, 0], one.report.theta
    rises = bool((np.diff(y) > 0).all() or (np.diff(y) < 0).all())
    if isinstance(theta, np.ndarray) and theta.ndim == 1 and not rises:
        return np.asarray(theta, np.float64), "theta", True
    return y, one.report.names[0], rises


def _plain_ticks(ax: Any, ticks: Sequence[float]) -> None:
    low, high = ax.get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
    ax.minorticks_off()
