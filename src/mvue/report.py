"""Self-contained HTML pages: text, tables and figures in one file."""

import dataclasses
import functools
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._report import Report, json_text, summary_rows, value_rows, write_atomically
from ._version import __version__

try:
    import jinja2
except ImportError as error:
    raise ImportError("HTML reports need jinja2: pip install 'mvue[report]'") from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READING = (
    "Every number is a Monte Carlo average over repeated measurements of one fixed unknown, with "
    "its standard error. Bias is estimate minus truth. |bias|/sd says how much of the error is "
    "systematic: below about 0.1 it cannot be seen in a single estimate. MSE/CRB is 1 for an "
    "efficient unbiased estimator; below 1 means that bias was traded for variance.",
)


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    paragraphs: Sequence[str] = ()
    figure: "Figure | None" = None
    table: Sequence[Sequence[str]] | None = None
    items: Sequence[str] = ()

    @property
    def svg(self) -> str:
        """The figure as inline SVG."""
        return "" if self.figure is None else _inline_svg(self.figure)


def write_page(
    path: str | Path,
    *,
    title: str,
    lead: str = "",
    facts: Mapping[str, Any] | None = None,
    sections: Sequence[Section] = (),
    report: Report | None = None,
) -> None:
    """Write one HTML file that needs no other.

    Args:
        path: where to; replaced whole or not at all.
        title: heading of the page.
        lead: one or two sentences that say what was found.
        facts: short labelled values, shown at the top.
        sections: the body.
        report: a report to add at the end, with figure and tables.
    """
    if report is not None:
        sections = [*sections, *report_sections(report)]
    text = _template().render(
        title=title, lead=lead, facts=facts or {}, sections=sections, version=__version__
    )
    write_atomically(path, text)


def report_sections(report: Report) -> list[Section]:
    """The parts of a page that show one report."""
    reading = (*READING, f"{report.bound_note}.") if report.bound_note else READING
    return [
        Section("Summary", reading, figure=report.plot(), table=summary_rows(report)),
        Section("Every value", table=value_rows(report)),
    ]


def write_json(path: str | Path, value: Any) -> None:
    """Write standard JSON, whole or not at all; null for what is not finite."""
    write_atomically(path, json_text(value))


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("mvue")
    return jinja2.Environment(loader=loader, autoescape=True).get_template("page.html")


def _inline_svg(figure: "Figure") -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)
