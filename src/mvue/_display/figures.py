"""Figures in one style: series with bands of standard errors, bounds, one legend."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'mvue[report]'") from error


# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"


class ShownFigure(Figure):
    """A figure that a notebook shows as the value of a cell.

    Those of matplotlib are shown by pyplot only, which keeps all of them and so would show them
    twice.
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in the house style; no global state is touched."""
    return ShownFigure(figsize=(width, height), layout="constrained", dpi=130)


def stamp(figure: Figure, text: str) -> None:
    """Write across a figure what must not be overlooked."""
    width, height = figure.get_size_inches()
    figure.text(
        0.5,
        0.5,
        text.replace(": ", ":\n").replace("; ", ";\n"),
        ha="center",
        va="center",
        fontsize=min(7.0 * height, 4.0 * width),
        color="#B00020",
        alpha=0.45,
        zorder=100,
    ).set_in_layout(False)


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
