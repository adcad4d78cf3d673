"""Losses against direct formulas, in three array libraries."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mvue

N, M, D = 5, 4, 3


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(N, D, D))
    return {
        "estimates": rng.normal(size=(N, M, D)),
        "y": rng.normal(size=(N, D)),
        "weights": rng.uniform(0.5, 2.0, N),
        "fisher": root @ root.swapaxes(1, 2),
        "crb": rng.uniform(0.2, 3.0, (N, D)),
    }


LOSSES = {
    "mse": lambda a: mvue.losses.emmse_loss(a["estimates"], a["y"]),
    "mse weighted": lambda a: mvue.losses.emmse_loss(a["estimates"], a["y"], weights=a["weights"]),
    "mse weighted by component": lambda a: mvue.losses.emmse_loss(
        a["estimates"], a["y"], weights=a["crb"]
    ),
    "bias unbiased": lambda a: mvue.losses.squared_bias(a["estimates"], a["y"]),
    "bias plug-in": lambda a: mvue.losses.squared_bias(a["estimates"], a["y"], penalty="plug-in"),
    "bce": lambda a: mvue.losses.bce_loss(
        a["estimates"], a["y"], bias_weight=7.0, weights=a["weights"]
    ),
    "bce plug-in": lambda a: mvue.losses.bce_loss(
        a["estimates"], a["y"], bias_weight=7.0, penalty="plug-in"
    ),
    "norm": lambda a: mvue.losses.fisher_mse_loss(a["estimates"], a["y"], a["fisher"]),
    "mse/crb": lambda a: mvue.losses.relative_mse_loss(a["estimates"], a["y"], a["crb"]),
    "bias reduced": lambda a: mvue.losses.bias_reduced_loss(
        a["estimates"], a["y"], a["crb"], hinge_weight=2.0, threshold=0.5
    ),
}


def by_hand(name, a):
    """Every loss written out as sums over single measurements."""
    e = a["estimates"] - a["y"][:, None]
    w = a["weights"]
    pairs = [(j, k) for j, k in itertools.product(range(M), repeat=2) if j != k]
    u = np.stack([sum(e[i, j] * e[i, k] for j, k in pairs) / len(pairs) for i in range(N)])
    square = (e**2).mean(axis=1)
    plug = e.mean(axis=1) ** 2
    return {
        "mse": square.sum(1).mean(),
        "mse weighted": (w * square.sum(1)).mean(),
        "mse weighted by component": (a["crb"] * square).sum(1).mean(),
        "bias unbiased": u.sum(1).mean(),
        "bias plug-in": plug.sum(1).mean(),
        "bce": (w * (square + 7 * u).sum(1)).mean(),
        "bce plug-in": (square + 7 * plug).sum(1).mean(),
        "norm": np.einsum("nmi,nij,nmj->nm", e, a["fisher"], e).mean(),
        "mse/crb": (square / a["crb"]).mean(),
        "bias reduced": (plug / a["crb"]).mean()
        + 2 * np.maximum(e.var(axis=1) / a["crb"] - 0.5, 0).mean(),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
def test_equals_formula_in_numpy_and_jax(name, seed):
    a = arrays(seed)
    expected = by_hand(name, a)
    assert LOSSES[name](a) == pytest.approx(expected, rel=1e-12)
    with jax.enable_x64(True):
        in_jax = jax.jit(LOSSES[name])({k: jnp.asarray(v) for k, v in a.items()})
        assert float(in_jax) == pytest.approx(expected, rel=1e-12)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", LOSSES)
def test_equals_formula_in_torch(name, seed, torch):
    a = arrays(seed)
    found = LOSSES[name]({k: torch.tensor(v) for k, v in a.items()})
    assert float(found) == pytest.approx(by_hand(name, a), rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_between_jax_and_torch(name, torch):
    a = arrays()
    leaf = torch.tensor(a["estimates"], requires_grad=True)
    tensors = {k: torch.tensor(v) for k, v in a.items()} | {"estimates": leaf}
    LOSSES[name](tensors).backward()
    with jax.enable_x64(True):
        in_jax = jax.grad(lambda e: LOSSES[name]({**a_jax, "estimates": e}))
        a_jax = {k: jnp.asarray(v) for k, v in a.items()}
        gradient = in_jax(a_jax["estimates"])
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-10, atol=1e-14)


def test_penalties_estimate_what_they_say(seed):
    """At bias b and deviation s: unbiased -> b², plug-in -> b² + s²/M."""
    rng = np.random.default_rng(seed)
    n, m, b, s = 200_000, 3, 0.4, 1.0
    y = np.zeros((n, 1))
    estimates = b + s * rng.normal(size=(n, m, 1))
    for penalty, expected in (("unbiased", b**2), ("plug-in", b**2 + s**2 / m)):
        value = mvue.losses.squared_bias(estimates, y, penalty=penalty)
        per_unit = [
            mvue.losses.squared_bias(part, np.zeros((n // 100, 1)), penalty=penalty)
            for part in np.split(estimates, 100)
        ]
        assert abs(value - expected) < 4.5 * np.std(per_unit) / 10


@settings(max_examples=50, deadline=None)
@given(
    bias_weight=st.floats(0, 1e6),
    repeats=st.integers(2, 1000),
    bias=st.floats(-10, 10),
    variance=st.floats(1e-3, 10),
)
def test_effective_bias_weight_gives_the_same_trade(bias_weight, repeats, bias, variance):
    """The plug-in loss is, up to a factor, the exact loss at the effective weight."""
    plugin = bias**2 + variance + bias_weight * (bias**2 + variance / repeats)
    lam = mvue.losses.effective_bias_weight(bias_weight, repeats)
    exact = bias**2 + variance + lam * bias**2
    assert plugin == pytest.approx((1 + bias_weight / repeats) * exact, rel=1e-9)


def test_effective_bias_weight_of_the_paper():
    assert mvue.losses.effective_bias_weight(1000, 100) == pytest.approx(90.0)
    assert mvue.losses.effective_bias_weight(1000, 20) == pytest.approx(18.63, abs=0.01)
    assert mvue.losses.effective_bias_weight(float("inf"), 20) == 19.0


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(N)), st.permutations(range(M)))
def test_order_of_unknowns_and_replicates_does_not_matter(units, repeats):
    a = arrays()
    shuffled = a["estimates"][units][:, repeats]
    args = {"bias_weight": 3.0}
    assert mvue.losses.bce_loss(shuffled, a["y"][units], **args) == pytest.approx(
        mvue.losses.bce_loss(a["estimates"], a["y"], **args), rel=1e-12
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: mvue.losses.emmse_loss(a["estimates"][:, 0], a["y"]),
            r"estimates must have shape \(N, M, d\)",
        ),
        (
            lambda a: mvue.losses.emmse_loss(a["estimates"], a["y"][:1]),
            r"y must have shape \(5, 3\)",
        ),
        (
            lambda a: mvue.losses.emmse_loss(a["estimates"], a["y"][:, :1]),
            r"y must have shape \(5, 3\)",
        ),
        (
            lambda a: mvue.losses.emmse_loss(a["estimates"], a["y"], weights=a["y"][0]),
            "weights must have shape",
        ),
        (lambda a: mvue.losses.squared_bias(a["estimates"][:, :1], a["y"]), "at least 2, got 1"),
        (
            lambda a: mvue.losses.bce_loss(a["estimates"], a["y"], bias_weight=-1.0),
            "bias_weight must be",
        ),
        (
            lambda a: mvue.losses.bce_loss(a["estimates"], a["y"], bias_weight=np.inf),
            "must be finite",
        ),
        (
            lambda a: mvue.losses.fisher_mse_loss(a["estimates"], a["y"], a["crb"]),
            "fisher must have",
        ),
        (
            lambda a: mvue.losses.relative_mse_loss(a["estimates"], a["y"], a["weights"]),
            "crb must have shape",
        ),
        (lambda _: mvue.losses.effective_bias_weight(1.0, 0), "repeats must be at least 1"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(arrays())


def test_libraries_are_not_mixed(torch):
    a = arrays()
    with pytest.raises(TypeError, match="arrays of one library"):
        mvue.losses.emmse_loss(torch.tensor(a["estimates"]), a["y"])


def test_no_penalty_needs_no_replicates():
    a = arrays()
    assert np.isfinite(mvue.losses.bce_loss(a["estimates"][:, :1], a["y"], bias_weight=0.0))


def test_a_control_variate_changes_the_penalty_alone():
    a = arrays()
    variate = np.random.default_rng(1).normal(size=(N, M, D))
    found = mvue.losses.bce_loss(
        a["estimates"], a["y"], bias_weight=7.0, weights=a["weights"], control_variate=variate
    )
    mse = mvue.losses.emmse_loss(a["estimates"], a["y"], weights=a["weights"])
    bias2 = mvue.losses.squared_bias(a["estimates"] - variate, a["y"], weights=a["weights"])
    assert found == pytest.approx(mse + 7 * bias2, rel=1e-12)
    with pytest.raises(ValueError, match="control_variate must have shape"):
        mvue.losses.bce_loss(a["estimates"], a["y"], bias_weight=7.0, control_variate=a["y"])


def test_losses_of_equal_settings_are_equal():
    assert mvue.bce(3.0, weight=None) == mvue.bce(3.0, weight=None) != mvue.bce(4.0, weight=None)
    assert hash(mvue.bce(3.0)) == hash(mvue.bce(3.0))
    assert mvue.bce(0.0, weight=None) == mvue.emmse()


def batch():
    problem = mvue.Problem(
        dist.Uniform(jnp.ones(1), 2 * jnp.ones(1)), lambda key, y: y + jr.normal(key, (3,))
    )
    return problem, problem.draw(jr.key(0), 4, 3)


def test_the_expected_error_is_known_to_fit_alone():
    _, draw = batch()
    with pytest.raises(ValueError, match="weight='auto' is decided by fit"):
        mvue.bce(3.0)(draw.x[..., :1], draw, 0.0)
    loss = mvue.bce(3.0).weighted_by(lambda theta: 1 / theta)
    expected = mvue.losses.bce_loss(draw.x[..., :1], draw.y, bias_weight=3.0, weights=1 / draw.y)
    np.testing.assert_allclose(loss(draw.x[..., :1], draw, 0.0), expected, rtol=1e-6)


class Absolute(mvue.losses.Loss):
    """Mean absolute error + λ · squared bias."""

    min_repeats = 2
    takes_control_variate = True

    def __init__(self):
        self.variates = []

    def __call__(self, estimates, draw, progress, control_variate=None):
        error = jnp.abs(estimates - draw.y[:, None, :]).mean()
        if control_variate is not None:
            self.variates.append(control_variate.shape)
            estimates = estimates - control_variate
        return error + 10.0 * mvue.losses.squared_bias(estimates, draw.y)

    def describe(self, repeats):
        return f"absolute error, M = {repeats}"


def test_an_own_loss_is_trained_on_as_it_says():
    problem, _ = batch()
    loss, settings = Absolute(), {"key": jr.key(0), "steps": 3, "batch_size": 4}
    network = eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0))
    with pytest.raises(ValueError, match="repeats must be at least 2 for this loss, got 1"):
        mvue.fit(problem, network, loss, repeats=1, **settings)
    fit = mvue.fit(problem, network, loss, repeats=5, anchors=1, **settings)
    assert fit.settings["loss"] == "absolute error, M = 5"
    assert fit.settings["anchors"] == 1
    assert set(loss.variates) == {(4, 5, 1)}
    assert fit.survey is None  # nothing was left to it
    with pytest.raises(TypeError, match=r"must be mvue\.bce.* on fixed data"):
        mvue.fit_data(mvue.Repeats.from_rows(np.ones((4, 3)), np.ones(4)), loss=loss, key=jr.key(0))


@pytest.mark.parametrize("wrong", [40.0, "bce", Absolute])
def test_what_is_no_loss_is_refused(wrong):
    problem, _ = batch()
    with pytest.raises(TypeError, match="loss"):
        mvue.fit(problem, loss=wrong, key=jr.key(0))


@pytest.mark.parametrize(
    ("weights", "match"), [(np.zeros(3), "all are 0"), (-np.ones(3), "-1"), ([1, 1, np.nan], "nan")]
)
def test_weights_that_cannot_be_meant_are_refused(weights, match):
    estimates, y = np.ones((3, 2, 1)), np.zeros((3, 1))
    for loss in (mvue.losses.emmse_loss, functools.partial(mvue.losses.bce_loss, bias_weight=1.0)):
        with pytest.raises(ValueError, match=f"weights must be finite and positive, .*{match}"):
            loss(estimates, y, weights=np.asarray(weights))
        assert loss(estimates, y, weights=np.array([0.0, 0.0, 3.0])) > 0


def test_complex_estimates_are_refused():
    estimates, y = np.ones((1, 2, 1)) * (1 + 1j), np.zeros((1, 1))
    for loss in (mvue.losses.emmse_loss, lambda e, y: mvue.losses.bce_loss(e, y, bias_weight=1.0)):
        with pytest.raises(TypeError, match="must be real numbers, got complex"):
            loss(estimates, y)
