"""Lines and tables as text and as HTML, and numbers to the digits that mean something."""

import io
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]
"""A header, then the rows of a table."""

LEFT = ("estimator", "component", "parameter", "")  # headers of columns of words
COLUMNS = 100  # of lines with labels
ANY_WIDTH = 10_000  # a table that is cut loses numbers


def with_error(value: Any, error: Any) -> str:
    """A number to the last digit that its standard error leaves meaningful."""
    if not (np.isfinite(value) and np.isfinite(error)) or error <= 0:
        return f"{value:.4g}"
    digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 8))
    if error >= 1e5 or (digits == 8 and error < 1e-7):
        return f"{value:.3e} ± {error:.1e}"
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def text_of(*parts: str | Rows) -> str:
    """Lines and tables as plain text, the same in a terminal, a file and a notebook."""
    # In a notebook, rich would display the text and write nothing to the file.
    console = Console(
        file=io.StringIO(),
        force_jupyter=False,
        width=ANY_WIDTH,
        color_system=None,
        highlight=False,
    )
    for part in parts:
        console.print(Text(part) if isinstance(part, str) else _text_table(part))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def labelled_text(headline: str, rows: Rows) -> str:
    """A line, and below it labels with text of one or more lines each, broken where too long."""
    width = max((len(label) for label, _ in rows), default=0)
    wrapper = textwrap.TextWrapper(COLUMNS - width - 4, break_long_words=False)
    lines = [
        f"  {'' if i else label:<{width}}  {line}"
        for label, text in rows
        for i, line in enumerate(part for line in text.splitlines() for part in wrapper.wrap(line))
    ]
    return "\n".join([headline, *lines])


def labelled_html(headline: str, rows: Rows) -> str:
    """The same for a notebook."""
    return html_of(headline, [["", ""], *rows])


def html_of(*parts: str | Rows) -> str:
    """Lines and tables as HTML for a notebook, in the colours of whatever is around it."""
    return "".join(
        f"<p>{escape(part)}</p>" if isinstance(part, str) else _html_table(part) for part in parts
    )


def _text_table(rows: Rows) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in rows[0]:
        justify = "left" if name in LEFT else "right"
        table.add_column(Text(name), justify=justify, no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def _html_table(rows: Rows) -> str:
    aligned = ["left" if name in LEFT else "right" for name in rows[0]]

    def line(tag: str, row: Sequence[str]) -> str:
        cells = (
            f'<{tag} style="text-align: {side}; white-space: pre-line">{escape(cell)}</{tag}>'
            for side, cell in zip(aligned, row, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = f"<thead>{line('th', rows[0])}</thead>" if any(rows[0]) else ""
    body = "".join(line("td", row) for row in rows[1:])
    return f'<div style="overflow-x: auto"><table>{head}<tbody>{body}</tbody></table></div>'
