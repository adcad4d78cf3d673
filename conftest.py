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
    *("README.md", "test_train.py", "test_survey.py", "test_cifar10.py", "training.md"),
    *("test_assess.py", "test_rssi_experiment.py", "test_cli.py", "test_regressor.py"),
    *("test_covariance_experiment.py", "test_anchor.py", "test_checkpoint.py", "test_devices.py"),
    *("covariance.md", "test_covariance.py", "test_refit.py", "test_sensors_experiment.py"),
    *("test_save.py", "test_fisher.py", "test_mle.py", "test_textbook_experiment.py"),
    *("test_textbook.py", "test_fit_data.py", "linear.md"),
)
# Files whose programs run for longer than they are compiled, as those of the docs do.
RUNNING = {"test_cifar10.py", "test_rssi_experiment.py", "test_survey.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    rank = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Programs that run for long are worth compiling well."""
    long = item.path.suffix == ".md" or item.path.name in RUNNING
    jax.config.update("jax_disable_most_optimizations", not long)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget the programs of a file with its last test: a process can map only so many."""
    if nextitem is None or nextitem.path != item.path:
        jax.clear_caches()
