"""The figure of a check, and the parts of a page that show it."""

import numpy as np

from .._display.figures import COLOURS, Figure, new_figure, share_legend
from .._display.pages import Section
from .result import LEVEL, Check, FamilyCheck

READING = (
    "Each measurement is compared with simulations at the values that are estimated from it. p is "
    "the share of simulated data sets that are at least as far from what is typical, for a family "
    "by itself; the next column is for all families together, and is the one to go by. 'Away' is "
    "how far the mean of the summary that differs most is from what is simulated, in standard "
    "errors, with theta accounted for.",
)
SHOWN = 5.0  # |away| beyond the widest simulated data set: farther ones stand at the edge
SMALL_TEXT = 8


def plot_check(check: Check) -> Figure:
    """The distance of each family from what is typical, beside simulated data sets."""
    families = check.families[::-1]
    figure = new_figure(8.6, 1.5 + 0.34 * len(families))
    ax = figure.subplots()
    units = [_unit(family) for family in families]
    widest = max(
        float((family.distances / unit).max()) for family, unit in zip(families, units, strict=True)
    )
    farthest = max(f.distance / unit for f, unit in zip(families, units, strict=True))
    edge = min(widest + SHOWN, 1.05 * max(widest, farthest))
    for k, (family, unit) in enumerate(zip(families, units, strict=True)):
        _draw_simulated(ax, family.distances / unit, k)
        far = family.adjusted <= LEVEL
        place = family.distance / unit
        ax.plot(
            min(place, edge),
            k,
            marker=">" if place > edge else "o",
            markersize=6,
            linestyle="none",
            color=COLOURS[1] if far else "black",
            label="measurements, differ at 5 %" if far else "measurements",
        )
        words = f"p = {family.p:.3g}" + (f", {family.statement}" if far else "")
        ax.annotate(
            words,
            (1.01, k),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=SMALL_TEXT,
            color=COLOURS[1] if far else "black",
        )
    ax.set_yticks(range(len(families)), [family.name for family in families])
    ax.set_ylim(-0.6, len(families) - 0.4)
    ax.set_xlim(0, edge * 1.03)
    ax.set_xlabel("distance; 95 % of data sets are below 1")
    share_legend(figure, [ax])
    return figure


def _unit(family: FamilyCheck) -> float:
    """The distance that one in twenty simulated data sets exceeds."""
    unit = float(np.quantile(family.distances, 0.95))
    return unit if unit > 0 else 1.0


def _draw_simulated(ax, distances: np.ndarray, place: int) -> None:
    low, first, middle, third, high = np.quantile(distances, [0.005, 0.25, 0.5, 0.75, 0.995])
    line = {"color": COLOURS[0], "solid_capstyle": "butt"}
    ax.plot([low, high], [place, place], linewidth=2, alpha=0.35, label="99 % of data sets", **line)
    ax.plot([first, third], [place, place], linewidth=7, alpha=0.5, label="half of them", **line)
    ax.plot(middle, place, marker="|", markersize=9, color=COLOURS[0], linestyle="none")


def check_sections(check: Check) -> list[Section]:
    """The parts of a page that show one check."""
    statement = f"{check.statement[0].upper()}{check.statement[1:]}."
    notes = [f"{note[0].upper()}{note[1:]}." for note in check.notes]
    words = (f"{check.headline}. {statement}", *notes, *READING)
    return [Section("Measurements and simulator", words, figure=check.plot(), table=check.rows())]
