"""Every Python block in the README and the docs is a test."""

import os

# One worker has one core: threads of BLAS would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.md"]).pytest()


# Files that take long, which come first: at the end, no worker waits for another.
LONG = (
    *("README.md", "test_train.py", "test_covariance_experiment.py", "training.md", "test_cli.py"),
    *("test_survey.py", "test_devices.py", "test_checkpoint.py", "test_regressor.py"),
    *("test_fisher.py", "test_textbook_experiment.py", "test_anchor.py", "test_save.py"),
    *("test_cifar10.py", "test_sensors_experiment.py", "linear.md", "covariance.md"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    rank = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Programs that run for long are worth compiling well."""
    long = item.path.suffix == ".md" or item.get_closest_marker("trains") is not None
    jax.config.update("jax_disable_most_optimizations", not long)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget the programs of a file with its last test: a process can map only so many."""
    if nextitem is None or nextitem.path != item.path:
        jax.clear_caches()
