"""Text files that are written whole or not at all, and JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    pass


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all, with the folders it is in."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def json_text(value: Any) -> str:
    """Standard JSON, which has no word for NaN and infinity: null in their place."""

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: plain(child) for name, child in node.items()}
        if isinstance(node, (list, tuple)):
            return [plain(child) for child in node]
        return None if isinstance(node, float) and not np.isfinite(node) else node

    return json.dumps(plain(value), indent=2, allow_nan=False)
