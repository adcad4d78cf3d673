"""The structure of the library: rooms, direction of imports, exports, nothing done at import."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import code_map
import mvue

PACKAGE = Path(mvue.__file__).parent
PROJECT = PACKAGE.parents[1]
FILES = code_map.source_files()


def test_imports_follow_the_one_line():
    level = {room: i for i, rooms in enumerate(code_map.levels()) for room in rooms}
    uses = code_map.graph()
    assert set(uses) == set(level)
    for room, used in uses.items():
        wrong = {other for other in used if level[other] >= level[room]}
        assert not wrong, f"{room} imports {wrong}"


def test_the_picture_of_the_rooms_is_true():
    assert code_map.PICTURE.read_text(encoding="utf-8") == code_map.current(), (
        "run python tools/code_map.py"
    )


def test_every_room_is_in_the_table():
    table = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in {PACKAGE / path.relative_to(PACKAGE).parts[0] for path in FILES}:
        name = path.name.removesuffix(".py")
        assert name in ("_version", "__main__") or f"\n| `{name}` |" in table, name


def test_no_two_files_import_each_other():
    """Imports inside of functions and for type checkers do not count."""
    parts_of = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in FILES}
    uses = {
        path: {
            parts_of[parts]
            for found in code_map.imports(path, inside_functions=False)
            for parts in (found, found[:-1])
            if parts in parts_of and parts_of[parts] != path
        }
        for path in FILES
    }
    tuple(graphlib.TopologicalSorter(uses).static_order())  # raises for a cycle


@pytest.mark.parametrize("room", sorted(PACKAGE.rglob("__init__.py")), ids=str)
def test_rooms_are_small_and_say_what_they_are_for(room):
    files = [p for p in room.parent.glob("*.py") if p.name != "__init__.py"]
    assert 2 <= len(files) <= 10
    doc = ast.get_docstring(ast.parse(room.read_text()))
    assert doc
    assert room.parent == PACKAGE or len(doc.splitlines()) >= 2


def test_the_hooks_before_a_commit_are_those_of_make():
    """The last lines of the target `lint`, and the entries of the hooks."""
    makefile = (PROJECT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    target = makefile[makefile.index("lint:") :].split("\n\n")[0].splitlines()[1:]
    hooks = (PROJECT / ".pre-commit-config.yaml").read_text().splitlines()
    entries = [line.split("entry: ")[1] for line in hooks if "entry: " in line]
    assert entries == [line.strip() for line in target]


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
    assert 25 <= len(names_of(mvue)) <= 44


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
