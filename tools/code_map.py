"""The rooms of the library and who imports whom, as a picture.

    python tools/code_map.py

writes ``docs/assets/rooms.svg``. A test compares the file with the code.
"""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src" / "mvue"
PICTURE = PROJECT / "docs" / "assets" / "rooms.svg"
LINE_BEGINS = "`exceptions → "
APART = {"version", "main__"}  # one number, and the door of ``python -m mvue``

COLUMN, ROW, GAP, MARGIN = 206, 80, 22, 14


def levels() -> list[list[str]]:
    """The rooms in the one line of CONTRIBUTING.md, level by level."""
    lines = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(LINE_BEGINS))
    return [level.split(", ") for level in line.strip("`").split(" → ")]


def source_files() -> list[Path]:
    """All files of the library but the list of public names at its root."""
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


def room_of(path: Path) -> str:
    """The folder, or the file at the root, that a file belongs to; without the underscore."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").lstrip("_")


def imports(path: Path, *, inside_functions: bool = True) -> Iterator[tuple[str, ...]]:
    """Modules and names of the library that a file imports, as parts of their paths."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if inside_functions else tree.body:
        if isinstance(node, ast.Import):
            names = (name.name.split(".") for name in node.names)
            yield from (tuple(parts[1:]) for parts in names if parts[0] == "mvue" and parts[1:])
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module.split(".") if node.module else []
        if node.level:
            module = [*here[: len(here) - node.level], *module]
        elif module[:1] == ["mvue"]:
            module = module[1:]
        else:
            continue
        yield from ((*module, name.name) for name in node.names)


def graph() -> dict[str, set[str]]:
    """Each room and the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in source_files():
        room = room_of(path)
        if room not in APART:
            used = {parts[0].lstrip("_") for parts in imports(path)}
            found.setdefault(room, set()).update(used - {room} - APART)
    return found


def without_detours(uses: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without edges that a longer path makes superfluous."""
    below: dict[str, set[str]] = {}

    def reach(room: str) -> set[str]:
        if room not in below:
            below[room] = set()  # a cycle ends here; the test of the direction reports it
            below[room] = set().union(uses.get(room, set()), *map(reach, uses.get(room, ())))
        return below[room]

    return {
        room: used - set().union(*(reach(other) for other in used)) for room, used in uses.items()
    }


def picture(rows: list[list[str]], edges: dict[str, set[str]]) -> str:
    """The rooms level by level, top down; each says from which others it is built."""
    most = max(map(len, rows))
    width, height = 2 * MARGIN + COLUMN * most - GAP, 2 * MARGIN + ROW * len(rows) - GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The rooms of mvue, and from which others each is built</title>",
        "<style>rect{fill:#e8f1f8;stroke:#0072b2}text{font:11px sans-serif;fill:#456;"
        "text-anchor:middle}.room{font-weight:bold;font-size:14px;fill:#123}"
        ".arrow{fill:#0072b2;font-size:16px}</style>",
        f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>',
    ]
    for i, row in enumerate(rows):
        y = MARGIN + ROW * i
        if i:
            lines.append(f'<text class="arrow" x="{width // 2}" y="{y - GAP // 2 + 6}">↓</text>')
        for j, room in enumerate(row):
            x = MARGIN + COLUMN * (2 * j + most - len(row)) // 2
            middle = x + (COLUMN - GAP) // 2
            lines.append(
                f'<rect x="{x}" y="{y}" width="{COLUMN - GAP}" height="{ROW - GAP}" rx="6"/>'
            )
            lines.append(f'<text class="room" x="{middle}" y="{y + 19}">{room}</text>')
            for k, note in enumerate(textwrap.wrap(", ".join(sorted(edges.get(room, ()))), 34)):
                lines.append(f'<text x="{middle}" y="{y + 35 + 14 * k}">{note}</text>')
    return "\n".join([*lines, "</svg>", ""])


def current() -> str:
    """The picture of the code as it is."""
    return picture(levels(), without_detours(graph()))


if __name__ == "__main__":
    PICTURE.write_text(current(), encoding="utf-8")
