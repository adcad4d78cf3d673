"""The figure of the field experiment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._display.figures import new_figure, share_legend
from .results import JudgedProblem

ROW = 0.5
DODGE = 0.6  # of a row
FLOOR = 1e-3
BIAS_SHOWN = (0.009, 1.1)  # at least
BIAS_TICKS = (0.001, 0.01, 0.05, 0.1, 1, 10, 100)
MSE_SHOWN = (0.2, 50.0)  # at most
MSE_TICKS = (0.2, 0.5, 1, 1.2, 1.5, 2, 5, 10, 20, 50)


class SeriesStyle(NamedTuple):
    """How an estimator is drawn."""

    colour: str
    marker: str
    label: str


LOOKS = {
    "bce": SeriesStyle("#0072B2", "o", "default recipe"),
    "mle": SeriesStyle("#009E73", "D", "maximum likelihood"),
    "mle_corrected": SeriesStyle("#D55E00", "s", "bias-corrected maximum likelihood"),
    "other": SeriesStyle("0.45", "^", "estimators of the field"),
}


def plot_overview(problems: Sequence[JudgedProblem]) -> Any:
    """Worst bias and range of MSE, a row for each problem; all seeds."""
    figure = new_figure(12, 1.6 + ROW * len(problems))
    bias, mse = figure.subplots(1, 2, sharey=True)
    for row, one in enumerate(problems):
        for name in one.names:
            _draw(bias, mse, row, one, name)
    mse.axvline(1, color="0.6", linewidth=0.8)
    bias.set(xscale="log", title="worst |bias| / sd")
    mse.set(xscale="log", title="MSE / CRB (or best rival), smallest to largest")
    low, high = bias.get_xlim()
    bias.set_xlim(min(low, BIAS_SHOWN[0]), max(high, BIAS_SHOWN[1]))
    low, high = mse.get_xlim()
    mse.set_xlim(max(min(low, 0.9), MSE_SHOWN[0]), min(max(high, 2.1), MSE_SHOWN[1]))
    for ax, ticks in (bias, BIAS_TICKS), (mse, MSE_TICKS):
        ends = ax.get_xlim()
        shown = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
        ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
        ax.minorticks_off()
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


def _draw(bias: Any, mse: Any, row: int, one: JudgedProblem, name: str) -> None:
    kind = "bce" if name in one.seeds else name if name in LOOKS else "other"
    look, place = LOOKS[kind], list(LOOKS).index(kind)
    y = row + DODGE * (place / (len(LOOKS) - 1) - 0.5)
    style = {"color": look.colour, "marker": look.marker, "markersize": 5, "linestyle": "none"}
    bias.plot(max(one.worst_bias(name), FLOOR), y, label=look.label, **style)
    span = one.span(name)
    if span is not None:
        mse.plot([span.low, span.high], [y, y], color=look.colour, linewidth=1.4)
        mse.plot(span.middle, y, **style)
