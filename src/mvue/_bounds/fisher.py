"""Fisher information of a problem, by the best method that applies."""

import contextlib

import jax
import jax.random as jr
import numpy as np

from .._core.checks import check_count
from .._core.keys import key_for
from .._core.problem import Problem, check_problem
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Key, Theta
from .._runtime.jit import on_host
from .._runtime.progress import SILENT, Progress, progress_for
from ..exceptions import BoundError, IrregularModelError
from .gaussian import gaussian_informations
from .monte_carlo import GROUPS, LEAST_SAMPLES, group_error, sampled_informations
from .regularity import outside_of_model, refuse_moving_support, refuse_wrong_likelihood
from .result import Information, Informations, layout_of, one_theta
from .scalar import integrated_informations

METHODS = ("auto", "gaussian", "quadrature", "monte carlo")


def fisher_information(
    problem: Problem,
    theta: Theta,
    *,
    method: str = "auto",
    key: Key | None = None,
    samples: int | None = None,
    relative_error: float | None = None,
    progress: bool | None = None,
) -> Information:
    """Fisher information about theta in one measurement.

    Args:
        problem: a problem with a `log_likelihood`, which is differentiated.
        theta: where; one value, as the prior draws it.
        method: ``"gaussian"``, the closed form, for `Problem.from_likelihood` with a normal
            distribution; ``"quadrature"``, over one draw, for x of independent scalars
            (unless ``exchangeable=False``), continuous or whole numbers; ``"monte carlo"``, the
            mean outer product of simulated scores, for everything else; ``"auto"``, the first of
            these that applies.
        key: decides the draws; by default ``jax.random.key(0)``.
        samples: draws for Monte Carlo, by default 16,384, at least 4 for each number in theta;
            with `relative_error` the most that may be used, by default 8 million.
        relative_error: draw until the standard errors on the diagonal are this fraction of it.
        progress: show how far Monte Carlo is; by default in a terminal or notebook.

    Raises:
        IrregularModelError: if the support of the data depends on theta, or scores are not
            finite: the bound does not hold then.
        BoundError: if there is no likelihood, theta is discrete, tied (a simplex) or outside of
            the model, or the method does not apply.
    """
    check_problem(problem)
    layout = layout_of(problem)
    flat = theta_rows(one_theta(problem, theta))
    found = informations(
        problem,
        layout,
        flat,
        method=method,
        key=key,
        samples=samples,
        relative_error=relative_error,
        progress=progress_for(progress),
    )
    failure, groups = found.failure[0], found.groups[0]
    if failure:
        raise failure
    return Information(
        found.matrix[0],
        layout.names,
        found.method[0],
        None if groups is None else group_error(groups),
        found.mean_score[0],
        found.samples[0],
    )


def informations(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    *,
    method: str = "auto",
    key: Key | None = None,
    samples: int | None = None,
    relative_error: float | None = None,
    progress: Progress = SILENT,
) -> Informations:
    """Information at K values of theta, flat (K, p); see `fisher_information`."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if samples is not None:
        check_count("samples", samples, least=max(2 * GROUPS, LEAST_SAMPLES * len(layout.names)))
    if relative_error is not None and not 0 < relative_error < 1:
        raise ValueError(f"relative_error must be between 0 and 1, got {relative_error}")
    if problem.log_likelihood is None:
        raise BoundError(
            "the problem has no log_likelihood: give one, or a known bound as crb, to Problem"
        )
    _check_likelihood(problem)
    key = key_for("information", jr.key(0) if key is None else key)
    found = Informations.empty(*flat.shape)
    for k, value in enumerate(flat):
        found.failure[k] = outside_of_model(problem, layout.to_theta(on_host(value)))
    good = [k for k, failure in enumerate(found.failure) if failure is None]
    if good:
        inside = _by_method(
            problem, layout, flat[good], method, key, samples, relative_error, progress
        )
        found.replace(good, inside)
    return found


def _by_method(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    method: str,
    key: Key,
    samples: int | None,
    relative_error: float | None,
    progress: Progress,
) -> Informations:
    if method == "gaussian":
        return gaussian_informations(problem, layout, flat)
    if method == "quadrature":
        found = integrated_informations(problem, layout, flat, key=key)
        refuse_moving_support(problem, layout, flat, found, key)
        refuse_wrong_likelihood(problem, layout, flat, found, key)
        return found
    if method == "auto":
        with contextlib.suppress(BoundError):
            return gaussian_informations(problem, layout, flat)
    found = Informations.empty(*flat.shape)
    found.fail(range(len(flat)), BoundError("not computed"))
    if method == "auto":
        with contextlib.suppress(BoundError):
            found = integrated_informations(problem, layout, flat, key=key)
    # Where quadrature has seen that the model is irregular, draws have nothing to add.
    left = [k for k, f in enumerate(found.failure) if f and not isinstance(f, IrregularModelError)]
    if left:
        sampled = sampled_informations(
            problem,
            layout,
            flat[left],
            key=key,
            samples=samples,
            relative_error=relative_error,
            progress=progress,
        )
        found.replace(left, sampled)
    refuse_moving_support(problem, layout, flat, found, key)
    refuse_wrong_likelihood(problem, layout, flat, found, key)
    return found


def _check_likelihood(problem: Problem) -> None:
    x, _ = problem.shapes()
    theta = jax.eval_shape(problem.sample_prior, jr.key(0))
    try:
        value = jax.eval_shape(problem.log_likelihood, theta, x)  # type: ignore[arg-type]
        size = int(np.prod(value.shape))
    except Exception as error:
        raise BoundError(
            "log_likelihood(theta, x) cannot be differentiated, it must be written in JAX: "
            f"{type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
    if size != 1:
        raise BoundError(
            f"log_likelihood(theta, x) must return one number, got shape {value.shape}"
        )
