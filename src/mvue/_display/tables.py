"""Tables as text, and numbers to the digits that their standard errors leave meaningful."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    pass


def with_error(value: Any, error: Any) -> str:
    """A number to the last digit that its standard error leaves meaningful."""
    if not (np.isfinite(value) and np.isfinite(error)) or error <= 0:
        return f"{value:.4g}"
    digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 8))
    if error >= 1e5 or (digits == 8 and error < 1e-7):
        return f"{value:.3e} ± {error:.1e}"
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def text_table(rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in rows[0]:
        left = name in ("estimator", "component")
        table.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table
