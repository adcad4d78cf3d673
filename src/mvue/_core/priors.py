"""Priors: one distribution or a dict of them, and the support of single elements."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def element_support(distribution: Any) -> Any:
    """The constraint on single elements of what a distribution draws; None if it names none."""
    return element_constraint(getattr(distribution, "support", None))


def element_constraint(constraint: Any) -> Any:
    """The constraint on single elements in one on arrays of them."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    return constraint


def support_ends(support: Any) -> tuple[Any, Any] | None:
    """The ends of a constraint on single elements, infinite where open; None if it names none."""
    if not hasattr(support, "lower_bound") and not hasattr(support, "upper_bound"):
        return None
    return getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)


def prior_leaves(prior: Any) -> list[Any]:
    """The priors in a dict of priors, or the only one."""
    return jax.tree.leaves(prior, is_leaf=_is_prior_leaf)


def _is_prior_leaf(node: Any) -> bool:
    return not isinstance(node, Mapping)


def _check_prior(prior: Any) -> None:
    if not callable(getattr(prior, "sample", None)):
        raise TypeError(
            "prior must be a numpyro distribution, an object with a method sample(key), or a dict "
            f"of these; got {type(prior).__name__}"
        )
