"""The bias weight as a regulariser when the prior covariance is known from few samples only."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import mvue

from ..._display.figures import draw_series, new_figure, share_legend
from ..._display.pages import Section
from .._common import TIMED_BATCH, Experiment, Findings, Run, as_text, estimate_microseconds
from .theory import LinearModel

GRID = np.concatenate([[0.0], np.geomspace(1e-2, 1e3, 26)])
METHODS = ("oracle", "lmmse", "lbce", "ridge", "wls")
MEANING = {
    "oracle": "LMMSE with the true prior covariance; out of reach",
    "lmmse": "LMMSE with the estimated prior covariance",
    "lbce": "linear BCE with it, λ chosen on the validation set",
    "ridge": "LMMSE with it and a multiple of the noise variance added to the noise covariance, "
    "chosen on the validation set",
    "wls": "weighted least squares, which needs no prior",
}


@dataclasses.dataclass(frozen=True)
class RegularizationSettings:
    """How large a run is."""

    repeats: int
    """Independent repetitions of the whole procedure for each sample size."""
    samples: tuple[int, ...] = (20, 30, 40, 60, 80)
    """Samples of y that the prior covariance is estimated from."""
    validation: int = 100
    """Measurements with known y that λ and the ridge are chosen on."""
    parameters: int = 20
    noise_variance: float = 0.01


def build_model(s: RegularizationSettings, rng: np.random.Generator) -> LinearModel:
    """A random square H and a prior whose variances fall by a factor of 100."""
    d = s.parameters
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return LinearModel(
        H=rng.normal(size=(d, d)) / np.sqrt(d),
        noise_cov=s.noise_variance * np.eye(d),
        prior_cov=basis @ np.diag(np.geomspace(3.0, 0.03, d)) @ basis.T,
    )


def repetition(s: RegularizationSettings, samples: int, rng: np.random.Generator) -> dict[str, Any]:
    """One model, one sample: the weights and choices of all methods."""
    model = build_model(s, rng)
    root, noise_root = np.linalg.cholesky(model.prior_cov), np.sqrt(s.noise_variance)
    known = rng.normal(size=(samples, s.parameters)) @ root.T
    estimated = known.T @ known / samples
    y = rng.normal(size=(s.validation, s.parameters)) @ root.T
    x = y @ model.H.T + noise_root * rng.normal(size=y.shape)

    def bce(bias_weight: float) -> np.ndarray:
        return mvue.linear_bce(model.H, model.noise_cov, estimated, bias_weight).weight

    def ridge(factor: float) -> np.ndarray:
        noise = model.noise_cov + factor * s.noise_variance * np.eye(s.parameters)
        return mvue.lmmse(model.H, noise, estimated).weight

    def choose(family: Callable[[float], np.ndarray]) -> tuple[float, np.ndarray]:
        candidates = [family(value) for value in GRID]
        best = int(np.argmin([np.mean((x @ a.T - y) ** 2) for a in candidates]))
        return float(GRID[best]), candidates[best]

    (bias_weight, lbce), (factor, ridged) = choose(bce), choose(ridge)
    return {
        "model": model,
        "weights": {
            "oracle": mvue.lmmse(*model).weight,
            "lmmse": bce(0.0),
            "lbce": lbce,
            "ridge": ridged,
            "wls": mvue.wls(model.H, model.noise_cov).weight,
        },
        "bias_weight": bias_weight,
        "ridge": factor,
    }


def body(run: Run) -> Findings:
    """Repeat for every sample size and compare exact errors."""
    s: RegularizationSettings = run.settings
    mse = np.empty((len(METHODS), len(s.samples), s.repeats))
    choices = np.empty((2, len(s.samples), s.repeats))
    last: dict[str, Any] = {}
    for i, samples in enumerate(s.samples):
        run.say(f"prior covariance from {samples} samples ...")
        for r in range(s.repeats):
            rng = np.random.default_rng([run.seed, samples, r])
            last = repetition(s, samples, rng)
            choices[:, i, r] = last["bias_weight"], last["ridge"]
            for j, name in enumerate(METHODS):
                mse[j, i, r] = sum(last["model"].errors(last["weights"][name]))
    relative = mse / mse[:1]
    paired = relative[METHODS.index("lmmse")] - relative[METHODS.index("lbce")]
    against_ridge = relative[METHODS.index("ridge")] - relative[METHODS.index("lbce")]

    model: LinearModel = last["model"]
    y = np.random.default_rng(run.seed).normal(size=(12, s.parameters))
    y = y @ np.linalg.cholesky(model.prior_cov).T
    x = jr.normal(run.key, (TIMED_BATCH, s.parameters))
    results = {}
    for j, name in enumerate(METHODS):
        weight = jnp.asarray(last["weights"][name])
        results[name] = model.entry(last["weights"][name], y) | {
            "estimate_microseconds": estimate_microseconds(lambda one, w=weight: w @ one, x),
            "samples": list(s.samples),
            "mse_over_oracle_mean": relative[j].mean(axis=1).tolist(),
            "mse_over_oracle_sd": relative[j].std(axis=1, ddof=1).tolist(),
        }
    results["lbce"]["chosen_bias_weight_median"] = np.median(choices[0], axis=1).tolist()
    results["ridge"]["chosen_factor_median"] = np.median(choices[1], axis=1).tolist()
    figure = plot_errors(s, relative)
    table = error_rows(s, relative, choices)
    gain, gain_se = paired[0].mean(), paired[0].std(ddof=1) / np.sqrt(s.repeats)
    edge, edge_se = against_ridge[0].mean(), against_ridge[0].std(ddof=1) / np.sqrt(s.repeats)
    return Findings(
        estimators=results,
        lead=(
            f"With the prior covariance of {s.parameters} parameters estimated from {s.samples[0]} "
            f"samples, the bias weight lowers the MSE of the LMMSE estimator by {gain:.3f} ± "
            f"{gain_se:.3f} of the oracle's, and that of ridge by {edge:.3f} ± {edge_se:.3f} "
            "(means over repetitions with standard errors)."
        ),
        sections=[
            Section(
                "MSE over that of the oracle",
                [
                    "Mean over repetitions with a band of one standard deviation between "
                    "repetitions; weighted least squares is far above the figure. Errors are "
                    "exact for the true model; λ and the ridge are chosen "
                    f"on {s.validation} validation measurements, never on the errors shown."
                ],
                figure=figure,
                table=table,
            ),
            Section("Estimators", items=[f"{name}: {text}" for name, text in MEANING.items()]),
        ],
        figures={"regularization": figure},
        table=as_text(table),
    )


def plot_errors(s: RegularizationSettings, relative: np.ndarray) -> Any:
    """MSE over that of the oracle against the number of samples, without far-off WLS."""
    figure = new_figure(7.5, 4.5)
    ax = figure.subplots()
    for j, name in enumerate(METHODS[1:-1], start=1):
        spread = relative[j].std(axis=1, ddof=1)
        draw_series(ax, s.samples, relative[j].mean(axis=1), spread, name, j - 1, width=1.0)
    ax.axhline(1, color="black", linestyle="--", linewidth=1, label="oracle")
    ax.set(xlabel="samples of y", ylabel="MSE / MSE of the oracle")
    share_legend(figure, [ax])
    return figure


def error_rows(
    s: RegularizationSettings, relative: np.ndarray, choices: np.ndarray
) -> list[list[str]]:
    """Mean ± standard deviation of every method, and what was chosen."""
    rows = [["samples", *METHODS[1:], "median λ", "median ridge"]]
    for i, samples in enumerate(s.samples):
        cells = [
            f"{relative[j, i].mean():.3f} ± {relative[j, i].std(ddof=1):.3f}"
            for j in range(1, len(METHODS))
        ]
        medians = [f"{np.median(choices[k, i]):.3g}" for k in range(2)]
        rows.append([str(samples), *cells, *medians])
    return rows


EXPERIMENT = Experiment(
    name="regularization",
    title="The bias weight as a regulariser",
    summary="prior covariance from few samples: linear BCE against LMMSE and ridge",
    presets={
        "smoke": RegularizationSettings(repeats=3, samples=(20, 40)),
        "quick": RegularizationSettings(repeats=50),
        "paper": RegularizationSettings(repeats=500),
    },
    body=body,
)
