"""The structure of the library: rooms, direction of imports, exports, nothing done at import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mvue

PACKAGE = Path(mvue.__file__).parent
PROJECT = PACKAGE.parents[1]


def direction():
    """The rooms in the one line of CONTRIBUTING.md, level by level."""
    (line,) = (
        line
        for line in (PROJECT / "CONTRIBUTING.md").read_text().splitlines()
        if line.startswith("`exceptions → ")
    )
    return [level.split(", ") for level in line.strip("`").split(" → ")]


def room_of(path):
    """The folder, or the file at the root, that a file belongs to; without the underscore."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").lstrip("_")


def imports(path):
    """Modules of the package that a file imports, also inside of functions."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = list(here[: len(here) - node.level])
                found = [*base, *(node.module or "").split(".")] if node.module else base
            elif (node.module or "").split(".")[0] == "mvue":
                found = node.module.split(".")[1:]
            else:
                continue
            for name in node.names:
                yield (*found, name.name)
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("mvue."):
                    yield tuple(name.name.split(".")[1:])


FILES = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE) != Path("__init__.py")]
FREE = {"version", "main__"}  # one number, and the door of ``python -m mvue``


def test_imports_follow_the_one_line():
    level = {room: i for i, rooms in enumerate(direction()) for room in rooms}
    assert {room_of(p) for p in FILES} - FREE == set(level)
    for path in FILES:
        room = room_of(path)
        if room in FREE:
            continue
        for found in imports(path):
            used = found[0].lstrip("_")
            if used in (room, "version"):
                continue
            assert level[used] < level[room], f"{path.relative_to(PACKAGE)} imports {used}"


def test_no_two_files_import_each_other():
    """Imports for type checkers alone do not count."""
    module = {p: p.relative_to(PACKAGE).with_suffix("").parts for p in FILES}
    by_name = {parts: p for p, parts in module.items()}
    uses = {
        path: {
            by_name[parts]
            for found in imports_at_run_time(path)
            for parts in (found, found[:-1])
            if parts in by_name and by_name[parts] != path
        }
        for path in FILES
    }
    done, open_files = set(), []

    def visit(path):
        assert path not in open_files, f"a cycle through {path.relative_to(PACKAGE)}"
        if path in done:
            return
        open_files.append(path)
        for used in uses[path]:
            visit(used)
        open_files.pop()
        done.add(path)

    for path in FILES:
        visit(path)


def imports_at_run_time(path):
    """As `imports`, without those in blocks for type checkers and inside of functions."""
    tree = ast.parse(path.read_text())
    here = path.relative_to(PACKAGE).with_suffix("").parts
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*here[: len(here) - node.level], *(node.module or "").split(".")]
            for name in node.names:
                yield tuple(part for part in [*base, name.name] if part)


@pytest.mark.parametrize("room", sorted(PACKAGE.rglob("__init__.py")), ids=str)
def test_rooms_are_small_and_say_what_they_are_for(room):
    files = [p for p in room.parent.glob("*.py") if p.name != "__init__.py"]
    assert 2 <= len(files) <= 10
    doc = ast.get_docstring(ast.parse(room.read_text()))
    assert doc
    assert room.parent == PACKAGE or len(doc.splitlines()) >= 2


def names_of(module):
    """The names that a public module lists."""
    tree = ast.parse(Path(module.__file__).read_text())
    return [
        a.asname or a.name
        for n in tree.body
        if isinstance(n, ast.ImportFrom) and n.level
        for a in n.names
    ]


def test_the_root_has_about_thirty_names():
    assert 25 <= len(names_of(mvue)) <= 42


def test_every_public_name_is_documented():
    reference = (PROJECT / "docs" / "reference.md").read_text()
    for module in (mvue, mvue.losses, mvue.nn):
        for name in names_of(module):
            assert getattr(module, name).__doc__, f"{name} has no docstring"
            places = {f"::: {module.__name__}.{name}\n", f"::: mvue.{name}\n"}
            shown = any(place in reference for place in places)
            assert shown or name in {"__version__", "exceptions", "losses", "nn"}, name
    for name, value in vars(mvue.exceptions).items():
        assert not isinstance(value, type) or f"::: mvue.exceptions.{name}\n" in reference, name


IMPORT_CHECK = """
import logging, sys
import jax

before, handlers = jax.config.values.copy(), logging.root.handlers[:]
import mvue

assert jax.config.values == before
assert logging.root.handlers == handlers
heavy = {"matplotlib", "orbax", "pandas", "sklearn", "torch", "jinja2"} & set(sys.modules)
assert not heavy, heavy
"""


def test_types_are_for_users_too():
    assert (PACKAGE / "py.typed").exists()


def test_import_is_light_and_changes_nothing():
    subprocess.run([sys.executable, "-c", IMPORT_CHECK], check=True)


def test_no_file_is_too_long():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path.name
