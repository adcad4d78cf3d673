"""Which summaries are moments of x, and of which order."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers.layouts import statistics_for
from mvue._summaries.joint import moment_orders

CASES = {
    "set of vectors": ((12, 2), {"sets": [(0,)]}),
    "set of long vectors": ((12, 40), {"sets": [(0,)]}),
    "series": ((20,), {"kind": "series"}),
    "complex series": ((20,), {"kind": "series"}),
    "image": ((7, 6), {"kind": "image"}),
    "vector": ((9,), {"kind": "vector"}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_moments_are_polynomials_of_x_of_their_order(case, seed):
    shape, layout = CASES[case]
    kind = complex if "complex" in case else float
    base, x, step = jr.normal(jr.key(seed), (3, 50, *shape), kind)
    statistics = statistics_for(base, **layout)
    along = jax.jit(jax.vmap(lambda t: statistics.inputs(x[0] + t * step[0])))
    values = np.asarray(along(jnp.arange(4.0)), np.float64)
    orders = moment_orders(statistics, x[0])
    assert len(orders) == values.shape[1]
    assert {1, 2, None} <= set(orders)
    size = np.abs(values).max(axis=0)
    for order in (1, 2):
        some = np.array([k == order for k in orders])
        rest = np.abs(np.diff(values, order + 1, axis=0)).max(axis=0)
        assert (rest <= 1e-4 * size + 1e-5)[some].all()
    # What is no moment bends otherwise: logarithms, correlations.
    others = np.array([k is None for k in orders])
    assert (np.abs(np.diff(values, 3, axis=0)).max(axis=0) > 1e-4 * size)[others].any()


def test_orders_of_several_arrays(key):
    x = [jr.normal(key, (50, 12)), jr.normal(key, (50, 12, 2))]
    settings = {"sets": [(1,)], "kind": "series"}
    orders = moment_orders(
        statistics_for(x, **settings, own=(lambda x: x[0][0],)), [x[0][0], x[1][0]]
    )
    parts = [
        moment_orders(statistics_for(part, **layout), part[0])
        for part, layout in ((x[1], {"sets": [(0,)]}), (x[0], {"kind": "series"}))
    ]
    together = [*parts[0], *parts[1]]
    assert orders[: len(together)] == together
    # What is between the parts, and what users add, is no moment of a known order.
    assert set(orders[len(together) :]) == {None}
