"""Strict mode for all tests: shapes checked at run time, no silent rank promotion."""

import os
import tempfile
from pathlib import Path

# One worker has one core, and threads that wait for each other have been seen to wait for ever.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_multi_thread_eigen=false",
)
# Tests compile much and compute little, and so do the processes that they start: what one has
# compiled, the others need not. The first process makes the folder, all others inherit its name.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jaxtyping

# Before any test imports the library, so that annotations are enforced. Not where warnings point
# to the line of the caller: the checks put frames in between.
_source = Path(__file__).parents[1] / "src" / "mvue"
_unchecked = ("sklearn", "_linear/spectrum", "_linear/path", "__init__", "__main__")
_modules = (path.relative_to(_source).with_suffix("") for path in _source.rglob("*.py"))
_checked = [
    "mvue." + ".".join(module.parts)
    for module in _modules
    if not module.as_posix().startswith(_unchecked)
]
_hook = jaxtyping.install_import_hook(_checked, "helpers.strict.typechecker")

import jax  # noqa: E402
import jax.random as jr  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")

import mvue  # noqa: E402


@pytest.fixture(params=[0, 1, 2])
def seed(request: pytest.FixtureRequest) -> int:
    """Statistical tests hold for every seed, not for a lucky one."""
    return request.param


@pytest.fixture
def swept_key(seed: int) -> jax.Array:
    return jr.key(seed)


@pytest.fixture
def key() -> jax.Array:
    """For what holds whatever the numbers are."""
    return jr.key(0)


@pytest.fixture
def line() -> mvue.Problem:
    """y ~ U(-1, 1)², x = y + noise of standard deviation 0.5: everything is known exactly."""
    return mvue.Problem(
        prior=dist.Uniform(-1.0, 1.0).expand((2,)),
        simulate=lambda key, y: y + 0.5 * jr.normal(key, (2,)),
        names=("east", "north"),
        crb=lambda y: 0.25 * jax.numpy.eye(2),
    )
