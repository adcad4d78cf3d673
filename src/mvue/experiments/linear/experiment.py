"""The bridge from LMMSE to weighted least squares: Theorems 2 and 3 of the paper."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue

from ..._display.figures import new_figure, share_legend
from ..._display.pages import Section
from ...sklearn import linear_bce_path
from .._common import TIMED_BATCH, Experiment, Findings, Run, as_text, estimate_microseconds
from .theory import LinearModel

SHOWN = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0, np.inf)
"""Bias weights that Monte Carlo is run for."""
COLOURS = {"MSE": "#0072B2", "bias²": "#D55E00", "variance": "#009E73"}


@dataclasses.dataclass(frozen=True)
class LinearSettings:
    """How large a run is."""

    repeats: int
    """Measurements at each value in the assessment."""
    units: int
    """Parameters in the sample that linear estimators are fitted to."""
    unit_repeats: int = 5
    """Measurements of each of them."""
    measurements: int = 10
    parameters: int = 4
    values: int = 12


def build_model(s: LinearSettings, seed: int) -> LinearModel:
    """A random H; noise that is correlated between neighbours; parameters of unequal size."""
    rng = np.random.default_rng(seed)
    distance = np.abs(np.subtract.outer(np.arange(s.measurements), np.arange(s.measurements)))
    return LinearModel(
        H=rng.normal(size=(s.measurements, s.parameters)) / np.sqrt(s.measurements),
        noise_cov=0.5**distance,
        prior_cov=np.diag(np.geomspace(2.0, 0.2, s.parameters)),
    )


def as_problem(model: LinearModel) -> mvue.Problem:
    """The model as a simulator."""
    H, root = jnp.asarray(model.H), jnp.asarray(np.linalg.cholesky(model.noise_cov))
    bound = jnp.asarray(model.bound)
    d = H.shape[1]
    return mvue.Problem(
        prior=dist.MultivariateNormal(jnp.zeros(d), jnp.asarray(model.prior_cov)),
        simulate=lambda key, y: H @ y + root @ jr.normal(key, (H.shape[0],)),
        crb=lambda y: bound.astype(y.dtype),
    )


def label(bias_weight: float) -> str:
    """The name of an estimator in the results."""
    return {0.0: "lmmse", np.inf: "wls"}.get(bias_weight, f"bce_{bias_weight:g}")


def body(run: Run) -> Findings:
    """Theory, Monte Carlo, and estimators fitted to a sample."""
    s: LinearSettings = run.settings
    model = build_model(s, run.seed)
    problem = as_problem(model)
    sample_key, assess_key, timing_key, value_key = jr.split(run.key, 4)
    grid = np.concatenate([[0.0], np.geomspace(1e-2, 1e4, 49), [np.inf]])
    theory = np.array([model.errors(_weight(model, lam)) for lam in grid])

    estimators: dict[str, Any] = {label(lam): _estimator(model, lam) for lam in SHOWN}
    run.say("assessing ...")
    y = jax.vmap(problem.sample_prior)(jr.split(value_key, s.values))
    report = mvue.assess(
        estimators, problem, at=y, repeats=s.repeats, key=assess_key, progress=run.progress
    )

    run.say("fitting to a sample ...")
    draw = problem.draw(sample_key, s.units, s.unit_repeats)
    rows = np.asarray(draw.x, np.float64).reshape(-1, s.measurements)
    truths = np.repeat(np.asarray(draw.y, np.float64), s.unit_repeats, axis=0)
    ids = np.repeat(np.arange(s.units), s.unit_repeats)
    began = time.perf_counter()
    path = linear_bce_path(rows, truths, bias_weights=grid, unit_ids=ids, fit_intercept=False)
    path_seconds = time.perf_counter() - began
    fitted = np.array([model.errors(weight) for weight in path.coef])

    x = problem.draw(timing_key, TIMED_BATCH, 1).x[:, 0]
    results = report.to_dict()["estimators"]
    for lam in SHOWN:
        entry = results[label(lam)]
        bias2, variance = model.errors(_weight(model, lam))
        sample_bias2, sample_variance = fitted[np.searchsorted(grid, lam)]
        entry |= {
            "train_seconds": 0.0,
            "estimate_microseconds": estimate_microseconds(estimators[label(lam)], x),
            "bias_weight": lam if np.isfinite(lam) else "inf",
            "theory": {"squared_bias": bias2, "variance": variance, "bmse": bias2 + variance},
            "from_sample": {"squared_bias": sample_bias2, "variance": sample_variance},
        }
    gauss_markov = float(np.abs(_weight(model, np.inf) @ model.H - np.eye(s.parameters)).max())
    sample_gap = float(np.abs(path.coef[-1] @ model.H - np.eye(s.parameters)).max())
    results["wls"]["max_abs_AH_minus_I"] = gauss_markov
    results["wls"]["from_sample"]["max_abs_AH_minus_I"] = sample_gap
    figure = plot_bridge(grid, theory, fitted, report)
    table = bridge_rows(model, report, fitted, grid)
    worst = max(
        abs(report[label(lam)].prior.bmse - sum(model.errors(_weight(model, lam))))
        / report[label(lam)].prior.bmse_se
        for lam in SHOWN
    )
    return Findings(
        estimators=results,
        lead=(
            "One number, the bias weight, leads from LMMSE to weighted least squares. "
            f"Monte Carlo agrees with theory within {worst:.1f} standard errors. At λ = ∞, A H is "
            f"the identity to {gauss_markov:.0e} with a known model, and to {sample_gap:.2g} when "
            f"fitted to {s.units:,} units measured {s.unit_repeats} times ({path_seconds:.1f} s "
            f"for {grid.size} bias weights)."
        ),
        sections=[
            Section(
                "From LMMSE to weighted least squares",
                [
                    "Lines are theory, points Monte Carlo averages over the prior with two "
                    "standard errors (where they exceed four), crosses the exact errors of "
                    "estimators fitted to a sample."
                ],
                figure=figure,
                table=table,
            )
        ],
        figures={"linear": figure},
        table=as_text(table),
    )


def plot_bridge(
    grid: np.ndarray, theory: np.ndarray, fitted: np.ndarray, report: mvue.Report
) -> Any:
    """MSE, squared bias and variance against λ."""
    figure = new_figure(8, 5)
    ax = figure.subplots()
    place = np.clip(grid, grid[1] / 3, grid[-2] * 3)
    shown = np.clip(np.array(SHOWN), place[0], place[-1])
    averages = [report[label(lam)].prior for lam in SHOWN]
    bias2 = np.array([(a.squared_bias, a.squared_bias_se) for a in averages])
    mse = np.array([(a.bmse, a.bmse_se) for a in averages])
    variance = np.stack([mse[:, 0] - bias2[:, 0], np.hypot(mse[:, 1], bias2[:, 1])], axis=1)
    curves = {
        "MSE": (theory.sum(axis=1), fitted.sum(axis=1), mse),
        "bias²": (theory[:, 0], fitted[:, 0], bias2),
        "variance": (theory[:, 1], fitted[:, 1], variance),
    }
    for name, (exact, sample, simulated) in curves.items():
        colour = COLOURS[name]
        ax.plot(place, np.maximum(exact, 1e-12), color=colour, label=name)
        ax.plot(place, np.maximum(sample, 1e-12), "x", color=colour, markersize=4, alpha=0.6)
        value, error = simulated.T
        clear = value > 4 * error
        ax.errorbar(shown[clear], value[clear], 2 * error[clear], fmt="o", color=colour, capsize=3)
    ax.set(xscale="log", yscale="log", xlabel="bias weight λ")
    ax.set_ylim(1e-4 * theory.sum(axis=1).max(), 3 * theory.sum(axis=1).max())
    decades = 10.0 ** np.arange(-2, 5)
    ticks = {place[0]: "0\nLMMSE"} | {t: f"{t:g}" for t in decades} | {place[-1]: "∞\nWLS"}
    ax.set_xticks(list(ticks), list(ticks.values()))
    share_legend(figure, [ax])
    return figure


def bridge_rows(
    model: LinearModel, report: mvue.Report, fitted: np.ndarray, grid: np.ndarray
) -> list[list[str]]:
    """Theory, Monte Carlo and sample side by side."""
    rows = [["λ", "bias² theory", "Monte Carlo", "from sample", "MSE theory", "Monte Carlo"]]
    rows[0].append("from sample")
    for lam in SHOWN:
        bias2, variance = model.errors(_weight(model, lam))
        average = report[label(lam)].prior
        sample = fitted[np.searchsorted(grid, lam)]
        rows.append(
            [
                "∞" if np.isinf(lam) else f"{lam:g}",
                f"{bias2:.4g}",
                f"{average.squared_bias:.4f} ± {average.squared_bias_se:.4f}",
                f"{sample[0]:.4g}",
                f"{bias2 + variance:.4f}",
                f"{average.bmse:.4f} ± {average.bmse_se:.4f}",
                f"{sample.sum():.4f}",
            ]
        )
    return rows


def _estimator(model: LinearModel, bias_weight: float) -> Any:
    return mvue.linear_bce(model.H, model.noise_cov, model.prior_cov, bias_weight)


def _weight(model: LinearModel, bias_weight: float) -> np.ndarray:
    return _estimator(model, bias_weight).weight


EXPERIMENT = Experiment(
    name="linear",
    title="From LMMSE to weighted least squares",
    summary="linear models: MSE, bias² and variance from LMMSE to WLS, theory and Monte Carlo",
    presets={
        "smoke": LinearSettings(repeats=400, units=500),
        "quick": LinearSettings(repeats=20_000, units=20_000),
        "paper": LinearSettings(repeats=200_000, units=200_000),
    },
    body=body,
)
