"""The check of real measurements: p-values are uniform if all is well, misfits are named."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._reality import check as check_file
from mvue._reality.compare import compared
from mvue._reality.guard import families_at_fault
from mvue._reality.simulated import Machine
from mvue._summaries.families import Families
from mvue._summaries.layout import Layout, Part
from mvue._training.result import History

N = 25
ELEMENTS = 20
DATA_SETS = 99
REPLICATES = 25
TRIALS = 16


def normals():
    """A set of normals: the mean is estimated, the standard deviation a nuisance."""
    return mvue.Problem(
        {"mean": dist.Uniform(-3.0, 3.0), "sd": dist.LogUniform(0.3, 3.0)},
        lambda key, t: t["mean"] + t["sd"] * jr.normal(key, (ELEMENTS,)),
        target=lambda t: t["mean"],
        names=("mean",),
        exchangeable=True,
    )


def series():
    """A moving average of noise."""

    def simulate(key, a):
        noise = jr.normal(key, (31,))
        return noise[1:] + a * noise[:-1]

    return mvue.Problem(dist.Uniform(-0.7, 0.7), simulate, names=("a",), layout="series")


DESIGN = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)


def vectors():
    """A linear model."""
    return mvue.Problem(
        dist.Uniform(-1.0, 1.0).expand((2,)),
        lambda key, t: jnp.asarray(DESIGN) @ t + 0.3 * jr.normal(key, (6,)),
        layout="vector",
    )


def tones():
    """Theta is told, but by no smooth function of the summaries."""
    times = jnp.arange(24)
    return mvue.Problem(
        {"frequency": dist.Uniform(0.1, 0.4), "phase": dist.Uniform(0.0, 2 * np.pi)},
        lambda key, t: (
            2 * jnp.cos(2 * jnp.pi * t["frequency"] * times + t["phase"])
            + 0.5 * jr.normal(key, times.shape)
        ),
        target=lambda t: t["frequency"],
        layout="series",
    )


def nearest_neighbours(x):
    return jnp.mean(x[1:] * x[:-1])


PROBLEMS = {
    "normals": (normals, jnp.mean),
    "poor": (normals, lambda x: 0.1 * x[0] ** 2),
    "series": (series, nearest_neighbours),
    "vectors": (vectors, lambda x: jnp.linalg.pinv(jnp.asarray(DESIGN)) @ x),
    "tones": (tones, lambda x: 0.25 + 0.0 * x[0]),
}
SAME_THETA = {"normals": {"mean": 1.0, "sd": 1.0}, "poor": {"mean": -2.0, "sd": 0.5}}


@pytest.fixture
def hasty(monkeypatch):
    """For what holds however well the comparison was learned."""
    monkeypatch.setattr("mvue._reality.simulated.LEARNED", 2**12)
    monkeypatch.setattr("mvue._reality.guard.FEWEST", 20)


_machines = {}


def machine_of(name):
    """What a check learns before it looks at measurements: once for all tests."""
    if name not in _machines:
        make, estimator = PROBLEMS[name]
        problem = make()
        keys = list(jr.split(jr.key(0), 4))
        families = Families(check_file._layout(estimator, problem, keys[0]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mvue._reality.simulated.LEARNED", 2**14)
            machine = Machine.of(problem, lambda x: jnp.asarray(estimator(x)), families, keys)
        _machines[name] = machine, families.columns(problem.shapes()[0])
    return _machines[name]


def checked(name, x, seed=0, data_sets=499):
    machine, columns = machine_of(name)
    seen = machine.see_all(np.asarray(x))
    keys = list(jr.split(jr.key(seed), 2))
    return compared(machine, columns, seen, machine.y_range, REPLICATES, data_sets, keys)


def measured(problem, key, theta=None, count=N):
    """Measurements, each of a theta of the prior, or all of one."""
    if theta is None:
        return jax.tree.map(lambda leaf: leaf[:, 0], problem.draw(key, count, 1).x)
    one = jax.tree.map(jnp.asarray, theta)
    return jax.vmap(lambda k: problem.simulate(k, one))(jr.split(key, count))


def excess_of_small(p):
    """By how much more of these are small than of uniform ones, at the worst place."""
    p = np.sort(p)
    return np.max(np.arange(1, len(p) + 1) / len(p) - p)


@pytest.mark.parametrize(
    ("name", "theta"),
    [
        *((name, "of the prior") for name in ("series", "vectors")),
        *((name, "all the same") for name in ("normals", "poor")),
    ],
)
def test_p_values_are_uniform_under_the_simulator(name, theta):
    """Whatever the estimator, and though real theta are not draws from the prior."""
    problem = PROBLEMS[name][0]()
    given = None if theta == "of the prior" else SAME_THETA[name]
    draw = jax.jit(lambda key: measured(problem, key, given))
    found = [checked(name, draw(jr.key(k)), k, DATA_SETS) for k in range(TRIALS)]
    most = np.sqrt(np.log(1000) / (2 * TRIALS))  # Dvoretzky, Kiefer and Wolfowitz: one in 1000
    assert excess_of_small([check.p for check in found]) < most
    families = [family.name for family in found[0].families]
    p = {name: np.array([check[name].p for check in found]) for name in families}
    for one in families:
        assert excess_of_small(p[one]) < most, one
        if one not in ("ties", "estimates"):  # these may be always one
            assert excess_of_small(1 - p[one] + 1 / (DATA_SETS + 1)) < most, one


def noise(key, theta, count=N):
    return theta["mean"][:, None], theta["sd"][:, None] * jr.normal(key, (count, ELEMENTS))


def heavy(key, mean, around):
    return mean + around * jnp.sqrt(3.0 / jr.chisquare(key, 3.0, around.shape))


def correlated(key, mean, around):
    return mean + (around + 0.6 * jnp.roll(around, 1, axis=1)) / np.sqrt(1.36)


def drifting(key, mean, around):
    return mean + around + 0.8 * jnp.linspace(-1, 1, ELEMENTS)[None]


def saturated(key, mean, around):
    return jnp.clip(mean + around, -1.5, 1.5)


MISFITS = {
    "shape": heavy,
    "lag products": correlated,
    "trend": drifting,
    "ties": saturated,
}


@pytest.mark.parametrize("family", MISFITS)
def test_misfits_are_found_and_named(family, seed):
    keys = jr.split(jr.key(seed), 3)
    theta = jax.vmap(normals().sample_prior)(jr.split(keys[0], N))
    x = MISFITS[family](keys[2], *noise(keys[1], theta))
    check = checked("normals", x, seed)
    assert family in [one.name for one in check.found[:2]], check
    assert check[family].adjusted < 0.1
    assert check.p == min(one.adjusted for one in check.families)
    assert family in check.statement


def test_a_wrong_noise_level_is_found(seed):
    x = jr.normal(jr.key(seed), (N, 6)) * 0.45 + (jnp.asarray([0.5, -0.2]) @ DESIGN.T)[None]
    check = checked("vectors", x, seed)
    assert check.p <= 0.05
    numbers = check["numbers"]
    assert numbers.adjusted <= 0.05
    assert numbers.away[-1] > 3  # the scatter about what the estimates explain


def test_wrong_correlations_of_a_series_are_found(seed):
    e = jr.normal(jr.key(seed), (N, 33))
    check = checked("series", e[:, 3:] + 0.5 * e[:, :-3], seed)
    assert "lag products" in [one.name for one in check.found]
    of = check["lag products"]
    assert of.summaries[of.most] == "at lag 3"
    assert of.away[of.most] > 5


def test_estimates_beyond_the_range_of_interest_are_found(seed):
    x = 6.0 + jr.normal(jr.key(seed), (N, ELEMENTS))
    check = checked("normals", x, seed)
    assert check["estimates"].adjusted <= 0.1
    assert "beyond the range" in check["estimates"].statement


def loudest(x):
    return jnp.argmax(jnp.abs(jnp.fft.rfft(x, 256))) / 256.0


def test_what_would_be_wrong_for_one_theta_is_left_out(hasty, key):
    problem = tones()
    x = np.asarray(measured(problem, jr.key(1), {"frequency": 0.22, "phase": 1.0}, 50))
    sizes = {"simulations": 2**15, "data_sets": 99}
    check = mvue.check(loudest, problem, x, key=key, **sizes)
    assert not check.found
    assert "course" in check.left_out
    assert not {family.name for family in check.families} & set(check.left_out)
    assert "of what could be compared, nothing speaks" in check.statement
    assert f"left out: {', '.join(check.left_out)}: summaries do not tell theta" in str(check)
    assert check.to_dict()["left_out"] == list(check.left_out)


def test_tones_of_one_theta_are_no_misfit_for_a_constant_estimator(monkeypatch):
    machine, columns = machine_of("tones")
    x = measured(tones(), jr.key(1), {"frequency": 0.22, "phase": 1.0}, 50)
    seen = machine.see_all(np.asarray(x))
    assert "course" in [family.name for family in checked("tones", x).found]  # all are compared
    left_out = families_at_fault(machine, columns, seen, 1000, jr.key(0))
    settings = machine.y_range, REPLICATES, DATA_SETS, list(jr.split(jr.key(0), 2))
    assert not compared(machine, columns, seen, *settings, left_out).found
    monkeypatch.setattr("mvue._reality.guard._wrong", lambda found: np.ones(found.shape[2], bool))
    with pytest.raises(ValueError, match=r"x cannot be checked: .* of 40 such data sets .*; give"):
        families_at_fault(machine, columns, seen, 1000, jr.key(0))


@pytest.mark.parametrize("name", ["normals", "series"])
def test_nothing_is_left_out_where_p_values_hold(name):
    machine, columns = machine_of(name)
    x = measured(PROBLEMS[name][0](), jr.key(2))
    seen = machine.see_all(np.asarray(x))
    assert families_at_fault(machine, columns, seen, 2**14, jr.key(0)) == ()


def test_one_measurement_has_little_power_and_says_so(hasty, key):
    problem = normals()
    x = np.asarray(measured(problem, jr.key(1), count=1))
    check = mvue.check(jnp.mean, problem, x, key=key, simulations=1000, data_sets=99)
    assert check.count == 1
    assert check.replicates == 99
    assert "only large differences" in str(check)
    assert 0.01 <= check.p <= 1
    far = x.copy()
    far[0, 3] = 1e4
    check = mvue.check(jnp.mean, problem, far, key=key, simulations=1000, data_sets=99)
    assert check["shape"].p == 0.01


def fit_of(problem, network):
    done = {"seconds": 0.0, "compile_seconds": 0.0, "nonfinite": 0, "settings": {}}
    finished = mvue.Outcome.FINISHED
    return mvue.Fit(
        network, finished, 1, "last", {}, History(), survey=None, problem=problem, **done
    )


def test_a_fit_a_report_and_files(hasty, tmp_path, key):
    problem = normals()
    x = np.asarray(measured(problem, jr.key(1)))
    fit = fit_of(problem, jnp.mean)
    sizes = {"simulations": 1000, "data_sets": 99}
    check = fit.check(x, **sizes)
    again = mvue.check(jnp.mean, problem, x, key=key, **sizes)
    assert str(check) == str(again)
    assert check.estimates.shape == (N, 1)
    np.testing.assert_allclose(check.estimates[:, 0], x.mean(axis=1), atol=1e-5)
    assert check["spread"].measured[0] == pytest.approx(np.log(x.std(axis=1)).mean(), abs=1e-4)
    report = mvue.assess(jnp.mean, problem, key=key, repeats=200)
    assert "simulated data sets" not in str(report)
    both = report.with_check(check)
    assert check.headline in str(both)
    assert both.to_dict()["measurements"]["p"] == check.p
    for one, name in ((check, "check.html"), (both, "report.html")):
        one.to_html(tmp_path / name)
        text = (tmp_path / name).read_text()
        assert "lag products" in text
        assert "<svg" in text
    assert check.to_json(tmp_path / "check.json").startswith("{")
    assert "<table" in check._repr_html_()
    with pytest.raises(ValueError, match=r"trained on data: give mvue.check\(fit, problem"):
        fit_of(None, jnp.mean).check(x)
    with pytest.raises(KeyError, match="no family named 'lags'; there are"):
        check["lags"]


def test_own_summaries_are_a_family(hasty, key):
    problem = normals()
    x = np.asarray(measured(problem, jr.key(1)))
    x = np.where(np.arange(ELEMENTS) == 3, 2 * x, x)

    def fourth(x):
        return x[3] - jnp.mean(x)

    sizes = {"simulations": 1000, "data_sets": 99}
    check = mvue.check(jnp.mean, problem, x, key=key, summaries=fourth, **sizes)
    assert check["own summaries"].summaries == ("fourth", "scatter between measurements")
    assert check["own summaries"].p < 0.05


def test_what_a_measurement_does_not_tell_is_drawn_and_said(hasty, key):
    problem = mvue.Problem(
        {"level": dist.Uniform(0.0, 5.0), "silent": dist.Uniform(0.0, 1.0)},
        lambda key, t: t["level"] + 0.0 * t["silent"] + jr.normal(key, (5,)),
        target=lambda t: t["level"],
        exchangeable=True,
    )
    x = np.asarray(measured(problem, jr.key(1)))
    check = mvue.check(np.mean, problem, x, key=key, simulations=1000, data_sets=99)
    assert check.unseen == ("silent",)
    assert "does not tell silent" in str(check)
    assert check.p > 0.01


class Simplex:
    """A prior without coordinates: theta are taken from its own draws."""

    def sample(self, key):
        return jr.dirichlet(key, jnp.ones(3))


def test_priors_without_ranges_and_several_arrays(hasty, key):
    problem = mvue.Problem(
        Simplex(),
        lambda key, t: {
            "counts": jr.multinomial(key, 60, t, shape=(3,)),
            "image": t[0] + jr.normal(key, (6, 7)),
        },
        target=lambda t: t[:2],
        layout={"counts": "vector", "image": "image"},
    )
    x = jax.tree.map(np.asarray, measured(problem, key, count=12))
    sizes = {"simulations": 1000, "data_sets": 99}
    estimator = lambda x: x["counts"][:2] / 60  # noqa: E731
    check = mvue.check(estimator, problem, x, key=key, **sizes)
    assert check.p > 0.01
    assert "x['image']: lag products" in [family.name for family in check.families]
    rows = np.sort(x["image"], axis=1)
    check = mvue.check(estimator, problem, x | {"image": rows}, key=key, **sizes)
    assert check["x['image']: lag products"].adjusted <= 0.1


def test_vectors_channels_and_complex_numbers_have_families(key):
    x = {
        "set": jax.ShapeDtypeStruct((12, 3), jnp.float32),
        "series": jax.ShapeDtypeStruct((40,), jnp.complex64),
        "vector": jax.ShapeDtypeStruct((100,), jnp.float32),
    }
    parts = (Part("series", (0,)), Part("set", (1,), 0), Part("vector", (2,)))
    families = Families(Layout(parts, told=True))
    columns = families.columns(x)
    assert len(columns) == len(set(columns)) == jax.eval_shape(families, x).shape[0]
    names = {column.family for column in columns}
    assert {"x['set']: correlations", "x['series']: spectrum", "x['vector']: numbers"} <= names
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)
    assert jnp.isfinite(families(zeros)).all()


def test_the_figure_names_families_and_what_was_found(key):
    theta = jax.vmap(normals().sample_prior)(jr.split(key, N))
    check = checked("normals", drifting(key, *noise(jr.key(1), theta)))
    figure = check.plot()
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()][::-1] == [
        family.name for family in check.families
    ]
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert words.count("than simulated") == len(check.found) > 0


BAD = [
    (lambda x: x[0], "x must be measurements with a leading axis, got one measurement: give x"),
    (lambda x: x[:0], "x must hold at least one measurement, got none"),
    (lambda x: x[:, :5], r"x must be one measurement of shape \(20,\) or a batch of shape \(n, 20"),
    (lambda x: np.where(np.arange(N)[:, None] == 2, np.nan, x), "1 of 25 .* is number 2: leave"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_measurements_that_cannot_be_checked_are_refused(change, match, key):
    x = np.asarray(measured(normals(), key))
    with pytest.raises(ValueError, match=match):
        mvue.check(jnp.mean, normals(), change(x), key=key)


def test_too_few_simulations_are_refused(key):
    x = np.asarray(measured(normals(), key))
    for name, least in (("simulations", 1000), ("data_sets", 99)):
        with pytest.raises(ValueError, match=f"{name} must be a whole number of at least {least}"):
            mvue.check(jnp.mean, normals(), x, key=key, **{name: 10})


def test_the_pieces_do_not_matter(monkeypatch):
    """Many measurements are looked at some at a time, with the same result."""
    machine, _ = machine_of("normals")
    x = np.asarray(measured(normals(), jr.key(1)))
    t, s = machine.see_all(x)
    monkeypatch.setattr("mvue._reality.simulated.AT_ONCE", 7)
    for one, other in zip((t, s), machine.see_all(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
