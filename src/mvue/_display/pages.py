"""Self-contained HTML pages: text, tables and figures in one file."""

import dataclasses
import functools
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._serialise.files import write_text
from .._serialise.text import json_text
from .._version import __version__

try:
    import jinja2
except ImportError as error:
    raise ImportError("HTML reports need jinja2: pip install 'mvue[report]'") from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    notice: str = "",
    lead: str = "",
    facts: Mapping[str, Any] | None = None,
    sections: Sequence[Section] = (),
) -> None:
    """Write one HTML file that needs no other.

    Args:
        path: where to; replaced whole or not at all.
        title: heading of the page.
        notice: a warning above everything else.
        lead: one or two sentences that say what was found.
        facts: short labelled values, shown at the top.
        sections: the body.
    """
    text = _template().render(
        title=title,
        notice=notice,
        lead=lead,
        facts=facts or {},
        sections=sections,
        version=__version__,
    )
    write_text(path, text)


def write_json(path: str | Path, value: Any) -> None:
    """Write standard JSON, whole or not at all; null for what is not finite."""
    write_text(path, json_text(value))


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("mvue._display")
    return jinja2.Environment(loader=loader, autoescape=True).get_template("page.html")


def _inline_svg(figure: "Figure") -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)
