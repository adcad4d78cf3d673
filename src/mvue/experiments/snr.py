"""SNR of unknown binary symbols in noise: the first experiment of the paper."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

import mvue

from .._assessment.sections import report_sections
from .._display.figures import draw_bound, draw_series, new_figure, share_legend
from .._display.pages import Section
from ..problems import snr, snr_corrected_mle, snr_mle
from ._common import TIMED_BATCH, Experiment, Findings, Run, as_text, costs

SNR_RANGE = (2.0, 50.0)
VALUES = 13
HIDDEN = 50

DEVIATIONS = (
    "The paper does not draw the Cramér-Rao bound; here it is added, by quadrature.",
    "The curve that the paper calls MLE is maximum likelihood followed by a bias correction. Both "
    "are shown: mle is the plain one, mle_corrected the other.",
    "h is drawn from [1, 10] as in the text; no estimator here depends on it.",
    "The mean of |x| joins the fourth and sixth moments as a feature of all three networks: the "
    "information in those two moments alone bounds the MSE at 1.1 times that of the corrected "
    "maximum likelihood at low SNR. The network corrects a method-of-moments estimate.",
    "Bias is estimate minus truth. The third panel is a mean squared error, not its root.",
    "bce is ours: the unbiased penalty, few measurements of many units in a batch, parameters "
    "drawn evenly on a log scale over a wider range and weighted by the inverse of the bound. "
    "emmse and bce_paper keep the paper's prior and loss.",
    "emmse and bce_paper see 1000 measurements in a batch as in the paper: bce_paper 100 of each "
    "of 10 units, emmse of 1000 units. The learning rate falls along a cosine, not in steps.",
    "Step counts of emmse and bce_paper are the paper's in the preset paper only; otherwise fewer "
    "steps with a larger learning rate.",
)


@dataclasses.dataclass(frozen=True)
class SNRSettings:
    """How large a run is."""

    steps: int
    """Updates of our estimator."""
    paper_steps: int
    """Updates of the two estimators of the paper."""
    paper_learning_rate: float
    repeats: int
    """Measurements at each value in the assessment."""
    bias_weight: float = 40.0
    batch_size: int = 64
    batch_repeats: int = 16
    learning_rate: float = 5e-3
    training_range: tuple[float, float] = (1.5, 70.0)
    """Our estimator trains beyond the range it is judged on; at its own edges it is biased."""


@mvue.register
def moment_features(x: Float[Array, " n"]) -> Float[Array, " 4"]:
    """Moments of a measurement of unit power, as functions that are nearly linear in log SNR.

    The fourth and the sixth moment are at least 1, and 1 without noise.
    """
    power = jnp.mean(x**2)
    square = x**2 / power
    fourth = jnp.mean(square**2) - 1
    sixth = jnp.mean(square**3) - 1
    first = 1 - jnp.mean(jnp.abs(x)) ** 2 / power
    tiny = 1e-6
    logs = jnp.log(jnp.stack([fourth, sixth, first]) + tiny)
    return jnp.concatenate([logs, fourth[None]])


@mvue.register
def refine_crude_estimate(x: Float[Array, " n"], z: Float[Array, " 1"]) -> Float[Array, " 1"]:
    """The method of moments, corrected by the network by a factor.

    A signal of power share S has a fourth moment of 3 - 2 S², so that y + 1 = 1 / (1 - S) is about
    4 / (fourth moment - 1) - 1 / 2.
    """
    crude = 4 / (moment_features(x)[3] + 1e-6) + 0.5
    return crude * (1 + z) - 2


def build_network(problem: mvue.Problem, key: Array) -> mvue.nn.Standardized:
    """One hidden layer on the moment features."""
    network_key, pilot_key = jr.split(key)
    return mvue.standardize(
        eqx.nn.MLP(4, 1, HIDDEN, 1, jax.nn.gelu, key=network_key),
        problem,
        features=moment_features,
        head=refine_crude_estimate,
        whiten=True,
        key=pilot_key,
    )


def inverse_bound(problem: mvue.Problem, low: float, high: float) -> Callable[[Array], Array]:
    """The weight 1/CRB(y), interpolated from a table so that it costs nothing in training."""
    assert problem.crb is not None
    table = jnp.geomspace(low, high, 64)
    crb = jax.jit(jax.vmap(problem.crb))({"h": jnp.ones(64), "snr": table})[:, 0, 0]
    return lambda y: 1 / jnp.exp(jnp.interp(jnp.log(y[0]), jnp.log(table), jnp.log(crb)))


def train(run: Run) -> dict[str, mvue.Fit]:
    """The three learned estimators."""
    s: SNRSettings = run.settings
    network_key, emmse_key, paper_key, bce_key = jr.split(run.key, 4)
    problem = snr()
    network = build_network(problem, network_key)
    plugin = mvue.bce(1000.0, penalty="plug-in", weight=None)
    emmse = run.fit("emmse", **emmse_recipe(s, network_key), key=emmse_key)
    paper = run.fit(
        "bce_paper",
        problem,
        network,
        plugin,
        key=paper_key,
        training_prior=problem.prior,
        steps=s.paper_steps,
        batch_size=10,
        repeats=100,
        optimizer=s.paper_learning_rate,
    )
    bce = run.fit("bce", **bce_recipe(s, network_key), key=bce_key)
    return {"emmse": emmse, "bce_paper": paper, "bce": bce}


def emmse_recipe(s: SNRSettings, key: Array) -> dict[str, Any]:
    """Arguments of `fit` for the posterior mean.

    The mean squared error needs no repeats: as many simulations, all of new parameters.
    """
    problem = snr()
    return {
        "problem": problem,
        "network": build_network(problem, key),
        "loss": mvue.emmse(),
        "steps": s.paper_steps,
        "batch_size": 1000,
        "repeats": 1,
        "optimizer": s.paper_learning_rate,
    }


def bce_recipe(s: SNRSettings, key: Array) -> dict[str, Any]:
    """Arguments of `fit` for our estimator.

    The same network with the unbiased penalty, trained evenly on the log scale over a wider range,
    errors weighted by the bound.
    """
    problem = snr(snr_prior=dist.LogUniform(*s.training_range))
    return {
        "problem": problem,
        "network": build_network(problem, key),
        "loss": mvue.bce(s.bias_weight, weight=inverse_bound(problem, *s.training_range)),
        "training_prior": problem.prior,
        "steps": s.steps,
        "batch_size": s.batch_size,
        "repeats": s.batch_repeats,
        "optimizer": s.learning_rate,
    }


def body(run: Run) -> Findings:
    """Train, assess, and tell."""
    s: SNRSettings = run.settings
    fits = train(run)
    problem = snr()
    estimators = {
        "mle": snr_mle,
        "mle_corrected": snr_corrected_mle,
        **{name: fit.estimator for name, fit in fits.items()},
    }
    assess_key, timing_key = jr.split(jr.fold_in(run.key, 1))
    run.say("assessing ...")
    values = jnp.geomspace(*SNR_RANGE, VALUES)
    design: dict[str, Any] = {
        "at": {"snr": values, "h": jnp.ones(VALUES)},
        "repeats": s.repeats,
        "key": assess_key,
        "progress": run.progress,
    }
    report = mvue.assess(estimators, problem, **design)
    inverse = mvue.assess(estimators, problem, of=lambda y: 1 / y, **design)
    x = jax.tree.map(lambda leaf: leaf[:, 0], problem.draw(timing_key, TIMED_BATCH, 1).x)
    results = report.to_dict()["estimators"]
    for name, entry in results.items():
        ratio, error = report.mse_ratio(name, "mle_corrected")
        entry["mse_over_mle_corrected"] = ratio.tolist()
        entry["mse_over_mle_corrected_se"] = error.tolist()
        entry["inverse"] = inverse.to_dict()["estimators"][name]
        entry |= costs(name, estimators[name], fits, x)
    figure = plot_panels(report, inverse)
    rows = headline_rows(results)
    return Findings(
        estimators=results,
        lead=lead(results),
        sections=[
            Section(
                "The paper's figure, with the bound",
                [
                    "Bands are two standard errors wide to each side. A curve that leaves the last "
                    "panel at the top has estimates so near zero that the MSE of their inverse is "
                    "not finite, or nearly so."
                ],
                figure=figure,
                table=rows,
            ),
            Section("Claims", table=claim_rows(results)),
            Section("Where this differs from the paper", items=DEVIATIONS),
            *report_sections(report),
        ],
        figures={"snr": figure, "snr-assessment": report.plot()},
        table=f"{report}\n\n{as_text(rows)}",
    )


def plot_panels(report: mvue.Report, inverse: mvue.Report) -> Any:
    """MSE of the SNR, its bias, and MSE of the inverse SNR, against the SNR in dB."""
    figure = new_figure(13, 4)
    mse, bias, inverse_mse = figure.subplots(1, 3)
    decibel = 10 * np.log10(report.y[:, 0])
    for i, name in enumerate(report.estimators):
        one, other = report[name], inverse[name]
        draw_series(mse, decibel, one.mse[:, 0], one.mse_se[:, 0], name, i)
        draw_series(bias, decibel, one.bias[:, 0], one.bias_se[:, 0], name, i)
        draw_series(inverse_mse, decibel, other.mse[:, 0], other.mse_se[:, 0], name, i)
    assert report.crb is not None
    assert inverse.crb is not None
    draw_bound(mse, decibel, report.crb[:, 0])
    draw_bound(inverse_mse, decibel, inverse.crb[:, 0])
    bias.axhline(0, color="0.6", linewidth=0.8)
    for ax, title, scale in (
        (mse, "MSE of the SNR", "log"),
        (bias, "bias of the SNR", "linear"),
        (inverse_mse, "MSE of 1/SNR", "log"),
    ):
        ax.set(title=title, xlabel="SNR (dB)", yscale=scale)
    inverse_mse.set_ylim(inverse.crb.min() / 3, 30 * inverse.crb.max())
    share_legend(figure, (mse, bias, inverse_mse))
    return figure


def headline_rows(results: dict[str, Any]) -> list[list[str]]:
    """What a reader wants to know first."""
    rows = [["estimator", "max |bias|/sd", "max relative bias", "MSE / corrected MLE"]]
    rows[0] += ["training s", "µs per estimate"]
    for name, entry in results.items():
        ratio = entry["mse_over_mle_corrected"]
        rows.append(
            [
                name,
                f"{entry['max_bias_over_sd']:.3f}",
                f"{entry['max_relative_bias']:.1%}",
                f"{min(ratio):.2f} … {max(ratio):.2f}",
                f"{entry['train_seconds']:.1f}",
                f"{entry['estimate_microseconds']:.2f}",
            ]
        )
    return rows


def lead(results: dict[str, Any]) -> str:
    """The finding in two sentences."""
    bce, emmse = results["bce"], results["emmse"]
    ratio = bce["mse_over_mle_corrected"]
    return (
        f"Between {SNR_RANGE[0]:g} and {SNR_RANGE[1]:g}, the bias of the learned estimator (bce) "
        f"is at most {bce['max_bias_over_sd']:.3f} of its standard deviation, its MSE between "
        f"{min(ratio):.2f} and {max(ratio):.2f} times that of the bias-corrected maximum "
        f"likelihood. The network trained for mean squared error (emmse) is off by up to "
        f"{emmse['max_relative_bias']:.0%} of the truth."
    )


def claim_rows(results: dict[str, Any]) -> list[list[str]]:
    """The paper's claims beside our numbers."""

    def relative(name: str) -> str:
        return f"{results[name]['max_relative_bias']:.1%}"

    def inverse(name: str) -> str:
        ratios = np.divide(results[name]["inverse"]["mse"], results[name]["inverse"]["crb"])
        return f"{ratios.min():.2f} … {ratios.max():.3g}"

    return [
        ["claim of the paper", "bce", "bce_paper", "emmse", "mle_corrected"],
        [
            "BCE is near the MLE in bias; EMMSE is very biased (largest relative bias)",
            *map(relative, ("bce", "bce_paper", "emmse", "mle_corrected")),
        ],
        [
            "MLE and BCE stand the inverse transformation; EMMSE does not (MSE of 1/SNR / CRB)",
            *map(inverse, ("bce", "bce_paper", "emmse", "mle_corrected")),
        ],
    ]


EXPERIMENT = Experiment(
    name="snr",
    title="Signal-to-noise ratio without bias",
    summary="SNR of unknown binary symbols in noise: MLE, EMMSE and BCE against the bound",
    presets={
        "smoke": SNRSettings(steps=12, paper_steps=6, paper_learning_rate=3e-3, repeats=500),
        "quick": SNRSettings(
            steps=5_000, paper_steps=5_000, paper_learning_rate=5e-3, repeats=20_000
        ),
        "paper": SNRSettings(
            steps=30_000, paper_steps=300_000, paper_learning_rate=2e-5, repeats=100_000
        ),
    },
    body=body,
)
