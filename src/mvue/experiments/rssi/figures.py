"""Figures of the RSSI experiment."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._display.figures import new_figure, share_legend
from .methods import CLASSICAL, RSSISettings, Table, linear_name, network_name

BLUE, ORANGE, GREY, GREEN = "#0072b2", "#d55e00", "#777777", "#009e73"


def plot_trade_off(s: RSSISettings, mean: Mapping[str, np.ndarray]) -> Any:
    """MSE against squared bias over λ; lower left is better."""
    figure = new_figure(7.5, 5.0)
    ax = figure.subplots()
    curves = (
        ("network", [network_name(v) for v in s.bias_weights], s.bias_weights, BLUE, "o", (6, 6)),
        (
            "linear BCE on random features",
            [linear_name(v) for v in s.linear_bias_weights],
            s.linear_bias_weights,
            GREEN,
            "s",
            (-8, -14),
        ),
    )
    for label, names, weights, colour, marker, offset in curves:
        points = np.array([[mean[name][0], mean[name][3]] for name in names])
        ax.plot(*points.T, marker=marker, color=colour, label=label)
        for point, weight in zip(points, weights, strict=True):
            ax.annotate(
                f"{weight:g}", point, textcoords="offset points", xytext=offset, color=colour
            )
    for name, marker in zip(CLASSICAL, "^vD", strict=True):
        ax.plot(mean[name][0], mean[name][3], marker, color=ORANGE, label=name.replace("_", " "))
    near = np.array([mean[n][[0, 3]] for n in mean if n != "ridge"])
    low, high = near.min(axis=0), near.max(axis=0)
    margin = 0.12 * (high - low)
    ax.set(
        xlim=(low[0] - margin[0], high[0] + margin[0]),
        ylim=(low[1] - margin[1], high[1] + margin[1]),
        xlabel="MSE, cells² per dimension",
        ylabel="squared bias, cells² per dimension",
        title=f"numbers: λ; ridge is at ({mean['ridge'][0]:.2f}, {mean['ridge'][3]:.2f})",
    )
    share_legend(figure, [ax])
    return figure


def plot_locations(
    table: Table, rows: np.ndarray, estimates: Mapping[str, np.ndarray], count: int = 4
) -> Any:
    """Estimates at the locations with most test rows: truth, centres and two-sd ellipses."""
    y = table.y[rows]
    places, inverse, sizes = np.unique(y, axis=0, return_inverse=True, return_counts=True)
    chosen = np.argsort(-sizes, kind="stable")[:count]
    figure = new_figure(3.2 * count, 3.9)
    axes = figure.subplots(1, count)
    for ax, place in zip(axes, chosen, strict=True):
        here = inverse.ravel() == place
        for (name, values), colour in zip(estimates.items(), (ORANGE, BLUE), strict=True):
            points = values[here]
            centre = points.mean(axis=0)
            ax.plot(*points.T, ".", color=colour, alpha=0.4, markersize=5)
            ax.plot(*centre, "P", color=colour, markersize=9, label=f"{name}, centre")
            ax.plot(*_ellipse(points), color=colour, linewidth=1.2)
        ax.plot(*places[place], "k*", markersize=12, label="truth")
        ax.set(title=f"({places[place][0]:g}, {places[place][1]:g}), {sizes[place]} rows")
        ax.set_aspect("equal", adjustable="datalim")
    share_legend(figure, list(axes))
    return figure


def _ellipse(points: np.ndarray) -> np.ndarray:
    """Two standard deviations about the centre."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    angle = np.linspace(0, 2 * np.pi, 80)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    spread = vectors * (2 * np.sqrt(np.maximum(values, 0.0)))[None, :]
    return points.mean(axis=0)[:, None] + spread @ circle


def plot_room(places: np.ndarray, ratio: Mapping[str, np.ndarray], beacons: np.ndarray) -> Any:
    """Worst |bias|/sd of the two coordinates at each place of the simulated room."""
    figure = new_figure(4.4 * len(ratio), 3.8)
    axes = np.atleast_1d(figure.subplots(1, len(ratio)))
    drawn: Any = None
    for ax, (name, values) in zip(axes, ratio.items(), strict=True):
        ax.scatter(*beacons.T, marker="x", color=GREY, label="beacon")
        drawn = ax.scatter(*places.T, c=np.log10(values), cmap="viridis", vmin=-2.5, vmax=0.5, s=90)
        ax.set(title=f"{name}: largest {values.max():.2g}", xlabel="x, cells", ylabel="y, cells")
        ax.set_aspect("equal")
    bar = figure.colorbar(drawn, ax=list(axes), ticks=[-2, -1, 0], shrink=0.8)
    bar.ax.set_yticklabels(["0.01", "0.1", "1"])
    bar.set_label("|bias| / sd")
    return figure
