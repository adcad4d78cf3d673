"""The structure of the library: layers, exports, and nothing done at import."""

import ast
import subprocess
import sys
from pathlib import Path

import mvue

PACKAGE = Path(mvue.__file__).parent
LAYERS = [
    {
        "_types",
        "_time_limit",
        "_jit",
        "_memory",
        "_signals",
        "_version",
        "_threads",
        "_registry",
        "_small_matrices",
        "_sorting",
    },
    {"_frozen", "_model_file", "_model_tree", "_devices"},
    {
        "_exchange",
        "_losses",
        "_problem",
        "_theta_columns",
        "_moments",
        "_averaged",
        "_progress",
        "_checkpoint",
        "_unit_rows",
    },
    {
        "_statistics",
        "_order",
        "_draws",
        "_smooth",
        "_theta_features",
        "_repeats",
        "_compiled",
        "_input_range",
    },
    {"_coordinates", "_compiled", "_executors", "_shard_files", "_unknowns", "_newton", "_anchor"},
    {"_theta_range"},
    {"_objectives", "_simulated", "_report", "_moment_totals", "_open_units", "_linear", "_look"},
    {"_survey", "_filling", "_pools", "_simulations", "_fixed_data"},
    {
        "_fit",
        "_blackbox",
        "_baseline",
        "_grouped_moments",
        "_information",
        "_quadrature",
        "_biased_bound",
    },
    {"_networks", "_noise_spectrum", "_gaussian_information", "_score_sampling", "_support"},
    {"_program", "_scalar_information"},
    {"_loop", "_fisher"},
    {"_fit_data"},
    {"_train"},
    {"_bounds", "_error_pieces"},
    {"_assess", "_average", "_linear_path", "_refit", "_mle"},
    {"_bootstrap", "_model"},
    {"_saved", "_export", "_data_files"},
    {"problems", "plot", "sklearn", "datasets", "distributed"},
    {"report"},
    {"experiments"},
    {"_cli_models"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def module_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_at_top(path):
    """Modules of the package that a file imports when it is itself imported."""
    nested = len(path.relative_to(PACKAGE).parts) > 1
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level == (2 if nested else 1) and node.module:
            yield node.module
        elif node.level == 0 and (node.module or "").startswith("mvue."):
            yield node.module.split(".")[1]


def test_imports_go_down_only():
    files = [p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name != "__init__.py"]
    assert {module_of(p) for p in files} == set(LEVEL)
    for path in files:
        for used in imports_at_top(path):
            name = used.split(".")[0]
            assert LEVEL[name] < LEVEL[module_of(path)], f"{path.name} imports {name}"


def test_experiments_use_public_names_only():
    for path in (PACKAGE / "experiments").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                private = [part for part in node.module.split(".") if part.startswith("_")]
                assert not (node.module.startswith("mvue") and private), path.name


def public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    return [
        a.asname for n in tree.body if isinstance(n, ast.ImportFrom) and n.level for a in n.names
    ]


def test_every_public_name_is_documented():
    reference = (PACKAGE.parents[1] / "docs" / "reference.md").read_text()
    for name in public_names():
        assert getattr(mvue, name).__doc__, f"{name} has no docstring"
        assert name == "__version__" or f"::: mvue.{name}\n" in reference, f"{name} not in docs"


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
