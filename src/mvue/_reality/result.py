"""The result of a check: arrays first, then text, a figure and a page of them."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._display.tables import Rows, html_of, text_of
from .._serialise.files import write_text
from .._serialise.text import json_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ESTIMATES = "estimates"
SIZE = "scatter between measurements"
LEVEL = 0.05  # below it the words say that something was found
FEW = 10
REMEDY = (
    "give an estimator of all of theta (target returns it), a prior that has what is known to be "
    "the same, or summaries of your own that do not depend on theta"
)


@dataclasses.dataclass(frozen=True, eq=False)
class FamilyCheck:
    """One family of summaries of the measurements, beside simulated data sets."""

    name: str
    p: float
    """Share of the data sets, the measurements among them, that are at least as far from what is
    typical: valid for this family alone."""
    adjusted: float
    """The same for all families together: probability, under the simulator, that any of them has a
    p-value as small."""
    summaries: tuple[str, ...]
    """What belongs to the family."""
    away: np.ndarray
    """How far the mean of each summary is from what is simulated, in standard errors, with theta
    accounted for."""
    measured: np.ndarray
    """Mean of each summary."""
    simulated: np.ndarray
    """The same at the estimated values; it need not agree exactly, because the estimates have
    errors, and NaN for the scatter."""
    distance: float
    """Of the measurements: the largest of |away|, or how far an estimate is beyond the range of
    interest."""
    distances: np.ndarray
    """Of each simulated data set."""

    @property
    def most(self) -> int | None:
        """Number of the summary that is farthest away; None for the estimates."""
        return int(np.abs(self.away).argmax()) if len(self.away) else None

    @property
    def statement(self) -> str:
        """What differs most, in words."""
        k = self.most
        if k is None:
            return (
                "beyond the range of interest"
                if self.distance > 0
                else "within the range of interest"
            )
        side = "larger" if self.away[k] > 0 else "smaller"
        return f"{self.summaries[k]}: {side} than simulated"


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """Measurements beside simulations at the values estimated from them; what `check` returns."""

    families: tuple[FamilyCheck, ...]
    p: float
    """That any family is as far away as the farthest was, under the simulator."""
    count: int
    """N, measurements that were checked."""
    data_sets: int
    """Simulated data sets."""
    replicates: int
    """Simulations for each measurement, which data sets are put together from."""
    estimates: np.ndarray
    """(N, d)."""
    names: tuple[str, ...]
    """Of the parameters."""
    interest: np.ndarray
    """The range of interest, (2, d)."""
    unseen: tuple[str, ...] = ()
    """Parts of theta that a measurement does not tell: they are taken as the prior draws them."""
    left_out: tuple[str, ...] = ()
    """Families that are not compared: in data sets with one theta throughout, simulated like the
    measurements, their p-values were not right."""

    def __getitem__(self, name: str) -> FamilyCheck:
        for family in self.families:
            if family.name == name:
                return family
        raise KeyError(f"no family named {name!r}; there are {[f.name for f in self.families]}")

    @property
    def found(self) -> tuple[FamilyCheck, ...]:
        """Families that differ, at five per cent for all together, the farthest first."""
        differ = [family for family in self.families if family.adjusted <= LEVEL]
        strength = lambda f: (f.adjusted, -np.abs(f.away).max(initial=0.0))  # noqa: E731
        return tuple(sorted(differ, key=strength))

    @property
    def statement(self) -> str:
        """What was found, in a sentence."""
        if not self.found:
            which = "of what could be compared, " if self.left_out else ""
            return (
                f"{which}nothing speaks against the simulator (p = {self.p:.3g} for all families "
                "together)"
            )
        first = self.found[0]
        others = [family.name for family in self.found[1:]]
        also = f"; also {', '.join(others)}" if others else ""
        return (
            f"the simulator does not make such measurements (p = {self.p:.3g}): {first.name}, "
            f"{first.statement}{also}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about these p-values."""
        notes = []
        if self.count < FEW:
            notes.append(
                f"{self.count} measurement{'s' if self.count > 1 else ''}: only large differences "
                "can be found"
            )
        if self.unseen:
            shown = ", ".join(self.unseen[:6]) + (" …" if len(self.unseen) > 6 else "")
            notes.append(
                f"one measurement does not tell {shown}: taken as the prior draws it, for each "
                "measurement anew"
            )
        if self.left_out:
            notes.append(
                f"left out: {', '.join(self.left_out)}: summaries do not tell theta well enough "
                f"for p-values that hold if theta is the same in all measurements; {REMEDY}"
            )
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the estimates and the simulated data sets, as lists and numbers."""
        return {
            "p": self.p,
            "statement": self.statement,
            "notes": list(self.notes),
            "measurements": self.count,
            "data_sets": self.data_sets,
            "replicates": self.replicates,
            "left_out": list(self.left_out),
            "families": {
                f.name: {
                    "p": f.p,
                    "adjusted": f.adjusted,
                    "statement": f.statement,
                    "distance": f.distance,
                    "summaries": list(f.summaries),
                    "away": f.away.tolist(),
                    "measured": f.measured.tolist(),
                    "simulated": f.simulated.tolist(),
                }
                for f in self.families
            },
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The same as JSON text, also written to `path`; null for what is not finite."""
        text = json_text(self.to_dict())
        if path is not None:
            write_text(path, text)
        return text

    def plot(self) -> "Figure":
        """How far the measurements are from simulations, beside simulated data sets."""
        from .plot import plot_check

        return plot_check(self)

    def to_html(self, path: str | Path, *, title: str = "Measurements and simulator") -> None:
        """Write a self-contained page with the figure and the table."""
        from .._display.pages import write_page
        from .plot import check_sections

        write_page(path, title=title, sections=check_sections(self))

    def rows(self) -> Rows:
        """A table: one row for each family."""
        rows = [["family", "p", "all together", "farthest", "away", "measured", "simulated"]]
        for f in self.families:
            k = f.most
            shown = [f.statement, f"{f.distance:+.1f}", "", ""]
            if k is not None:
                numbers = _number(f.measured[k]), _number(f.simulated[k])
                shown = [f.summaries[k], f"{f.away[k]:+.1f}", *numbers]
            rows.append([f.name, f"{f.p:.3g}", f"{f.adjusted:.3g}", *shown])
        return rows

    @property
    def headline(self) -> str:
        """What was compared."""
        return (
            f"Check of {self.count:,} measurement{'s' if self.count > 1 else ''} against "
            f"{self.data_sets:,} simulated data sets at the estimated values"
        )

    def parts(self) -> list[str | Rows]:
        """What is shown, as lines and tables."""
        statement = self.statement[0].upper() + self.statement[1:]
        return [self.headline, f"{statement}.", *self.notes, self.rows()]

    def __str__(self) -> str:
        return text_of(*self.parts())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(*self.parts())


def _number(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else ""
