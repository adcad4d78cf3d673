"""Theta in one flat form: names, vectors and coordinates in the same order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

from mvue._core.coordinates import Bijection, Coordinates, Numbers, Scaled
from mvue._core.theta import (
    ThetaLayout,
    column_name,
    theta_columns,
    theta_rows,
    theta_tree,
    theta_vector,
)

THETA = {"b": {"c": jnp.arange(4.0).reshape(2, 2)}, "a": jnp.asarray(7)}
NAMES = ("a", "b.c[0, 0]", "b.c[0, 1]", "b.c[1, 0]", "b.c[1, 1]")


def test_all_flat_forms_have_one_order():
    layout = ThetaLayout.of(THETA)
    assert layout.names == NAMES
    np.testing.assert_array_equal(theta_vector(THETA), [7.0, 0.0, 1.0, 2.0, 3.0])
    rows = theta_rows(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), THETA))
    np.testing.assert_array_equal(rows, [[7, 0, 1, 2, 3], [8, 1, 2, 3, 4]])
    assert rows.dtype == np.float64
    columns = theta_columns(jax.tree.map(np.asarray, THETA))
    assert tuple(map(column_name, columns)) == layout.arrays == ("a", "b.c")
    jax.tree.map(np.testing.assert_array_equal, theta_tree(columns), THETA)
    jax.tree.map(np.testing.assert_array_equal, layout.to_theta(theta_vector(THETA)), THETA)


def test_one_array_is_called_theta():
    assert ThetaLayout.of(jnp.zeros(())).names == ("theta",)
    assert ThetaLayout.of(jnp.zeros(2)).names == ("theta[0]", "theta[1]")
    assert column_name(()) == "theta"


def test_coordinates_of_every_kind_lead_back():
    theta = {
        "count": jnp.asarray(3),
        "scale": jnp.asarray([2.0, 5.0]),
        "shares": jnp.asarray([0.2, 0.3, 0.5]),
    }
    maps = [
        Numbers((), whole=True),
        Scaled(np.zeros(2), np.ones(2), np.array([True, False])),
        Bijection.of(biject_to(constraints.simplex), theta["shares"]),
    ]
    coordinates = Coordinates.of(ThetaLayout.of(theta), maps)
    names = ("count", "scale[0]", "scale[1]", "shares (free 0)", "shares (free 1)")
    assert coordinates.names == names
    u = coordinates.from_theta(theta)
    np.testing.assert_allclose(u[:3], [3.0, np.log(2.0), 5.0], rtol=1e-6)
    back = coordinates.to_theta(u)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), back, theta)
    assert back["count"].dtype == theta["count"].dtype
    assert coordinates.to_theta(u.at[0].set(3.4))["count"] == pytest.approx(3)
