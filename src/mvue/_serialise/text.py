"""JSON as text."""

import json
from typing import Any

import numpy as np


def json_text(value: Any) -> str:
    """Standard JSON, which has no word for NaN and infinity: null in their place."""

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: plain(child) for name, child in node.items()}
        if isinstance(node, (list, tuple)):
            return [plain(child) for child in node]
        return None if isinstance(node, float) and not np.isfinite(node) else node

    return json.dumps(plain(value), indent=2, allow_nan=False)
