"""Networks of sensors that average their estimates: Section V of the paper."""

from typing import Any

import jax
import jax.random as jr
from jaxtyping import Array

import mvue

from ..._assessment.sections import report_sections
from ..._display.figures import draw_series, new_figure, share_legend
from ..._display.pages import Section
from .._common import TIMED_BATCH, Experiment, Findings, Run, as_text, costs
from .networks import Curve, Networks, Theory, joined, unstacked
from .problems import SCENES, Scene, SensorsSettings

BIASED = 0.1  # |bias| in standard deviations from which an estimator is called biased

NOTES = (
    "The paper states the theorem and shows no experiment with sensors; this is its measurement.",
    "Every sensor has measurements of its own of the same unit. The MSE of M sensors is that of "
    "the plain average of their simulated estimates. It is in units of the Cramér-Rao bound of one "
    "sensor, summed over the parameters, so that different ones can be averaged.",
    "A network of the largest size also makes as many networks of M sensors as fit into it. "
    "Standard errors are over the largest networks, which are independent.",
    "Theory is bias² + variance / M, from a separate measurement of one sensor's bias and variance "
    "with random numbers of its own. Of bias² its noise is taken off.",
    "mle is the average of every sensor's maximum likelihood estimate, mle_centralised maximises "
    "the likelihood of all measurements together: what could be had if all of them were sent to "
    "one place. Both are measured on fewer networks than the others. Curves end where there are "
    "fewer than 100 groups of sensors to average over; beyond, the bound stands for the latter.",
    "SNR: bce_network is trained as in the experiment snr. bce is a function of its estimate: "
    "eight polynomials with coefficients from linear BCE with λ = ∞ on fresh simulations over the "
    "whole range, which takes off the bias that training leaves. emmse is trained on the paper's "
    "prior.",
    "Covariance: bce is the masked sample covariance, which is unbiased, with a correction that is "
    "trained with λ up to 10 000. It and emmse are trained on parameters between 0 and 1 and "
    "judged between 0.1 and 0.9.",
    "No estimator is adapted to the values at which it is judged.",
)


def body(run: Run) -> Findings:
    """Train, build networks of sensors, and tell."""
    scenes = [SCENES[name](run) for name in run.settings.problems]
    found = {scene.name: fuse(run, scene, i) for i, scene in enumerate(scenes)}
    results: dict[str, Any] = {}
    for scene in scenes:
        for name, entry in found[scene.name].entries.items():
            results.setdefault(name, {})[scene.name] = entry
    figures = {f"sensors-{name}": plot(one) for name, one in found.items()}
    rows = headline_rows(found)
    ratios = ratio_rows(found)
    return Findings(
        estimators=results,
        lead=lead(found),
        sections=[
            *(
                Section(one.scene.title, [READING], figure=figures[f"sensors-{name}"])
                for name, one in found.items()
            ),
            Section("Slopes and errors", [SLOPES], table=rows),
            Section("Against the network trained for mean squared error", table=ratios),
            Section("How this was measured", items=NOTES),
            *(part for one in found.values() for part in report_sections(one.report)),
        ],
        figures=figures,
        table=f"{lead(found)}\n\n{as_text(rows)}\n\n{as_text(ratios)}",
    )


READING = (
    "Points are measured, with bands of two standard errors to each side; dotted lines are bias² + "
    "variance / M. The dashed black line is the bound for all measurements together. First panel: "
    "every network has a parameter of its own from the prior; the others: fixed values."
)
SLOPES = (
    "Slope of log MSE against log M, from 10 sensors on, ± standard error; -1 is an average "
    "without bias. The MSE in the last column is that of so many sensors, in units of the bound "
    "for all of their measurements."
)
PRIOR = "prior"


class Fused:
    """What was found for one scene: curves and theory by place and estimator."""

    def __init__(self, scene: Scene, report: mvue.Report) -> None:
        self.scene, self.report = scene, report
        self.curves: dict[str, dict[str, Curve]] = {}
        self.theory: dict[str, dict[str, Theory]] = {}
        self.entries: dict[str, dict[str, Any]] = {}

    def note(self) -> None:
        """Make the entries of ``results.json``."""
        for place, curves in self.curves.items():
            for name, curve in curves.items():
                entry = curve.to_dict()
                if name in self.theory[place]:
                    entry |= self.theory[place][name].to_dict(curve.sizes)
                self.entries.setdefault(name, {}).setdefault("fused", {})[place] = entry


def fuse(run: Run, scene: Scene, index: int) -> Fused:
    """Measure one sensor, and networks of them, at fixed parameters and over the prior."""
    s: SensorsSettings = run.settings
    few = s.mle_networks[scene.name]
    keys = jr.split(jr.fold_in(run.key, 10 + index), 5)
    prior = unstacked(jax.vmap(scene.problem.sample_prior)(jr.split(keys[0], s.prior_networks)))
    run.say(f"{scene.name}: one sensor ...")
    report = mvue.assess(
        scene.estimators,
        scene.problem,
        at=scene.values,
        repeats=s.repeats,
        key=keys[1],
        progress=run.progress,
    )
    found = Fused(scene, report)
    networks = Networks(scene.estimators, scene.problem, s.sensors)
    likelihood = Networks({"mle": scene.mle}, scene.problem, s.sensors, scene.pooled_mle)
    found.theory[PRIOR] = networks.theory(prior, keys[2])
    for k, label in enumerate(scene.labels):
        found.theory[label] = {name: Theory.at(report, name, k) for name in scene.estimators}

    def over_prior(networks: Networks, thetas: list[Any], key: Array) -> dict[str, Curve]:
        parts = [networks.curves(t, 1, jr.fold_in(key, k)) for k, t in enumerate(thetas)]
        return {name: joined([part[name] for part in parts]) for name in parts[0]}

    for kind, sensors, count, thetas, key in (
        ("averages", networks, s.networks, prior, keys[3]),
        ("likelihood", likelihood, few, prior[: 4 * few], keys[4]),
    ):
        run.say(f"{scene.name}: networks of {s.sensors:,} sensors, {kind} ...")
        found.curves.setdefault(PRIOR, {}).update(over_prior(sensors, thetas, key))
        for k, theta in enumerate(unstacked(scene.values)):
            curves = sensors.curves(theta, count, jr.fold_in(key, s.prior_networks + k))
            found.curves.setdefault(scene.labels[k], {}).update(curves)
    draw = scene.problem.draw(jr.fold_in(run.key, 20 + index), TIMED_BATCH // 10, 1)
    for name, estimator in scene.estimators.items():
        found.entries[name] = report.to_dict()["estimators"][name]
        found.entries[name] |= costs(name, estimator, scene.fits, draw.x[:, 0])
    found.note()
    return found


def plot(found: Fused) -> Any:
    """MSE against the number of sensors, over the prior and at fixed parameters."""
    count = len(found.curves)
    columns = 3 if count > 4 else 2
    figure = new_figure(13.2, 3.7 * -(-count // columns))
    panels = list(figure.subplots(-(-count // columns), columns, squeeze=False).ravel())
    names = list(found.curves[PRIOR])
    for ax, (place, curves) in zip(panels, found.curves.items(), strict=False):
        for i, name in enumerate(names):
            curve = curves[name].trusted()
            draw_series(ax, curve.sizes, curve.mse, curve.se, name, i)
            theory = found.theory[place].get(name)
            if theory is not None:
                label = "bias² + variance / M" if i == 0 else None
                values = theory.mse(curve.sizes)
                ax.plot(curve.sizes, values, ":", color="0.2", linewidth=1.6, label=label)
        sizes = curves[names[0]].sizes
        ax.plot(sizes, 1 / sizes, "k--", linewidth=1.2, label="CRB")
        ax.set(
            title="parameters from the prior" if place == PRIOR else place,
            xlabel="sensors M",
            ylabel="MSE / bound of one sensor",
            xscale="log",
            yscale="log",
        )
        ax.set_ylim(bottom=0.4 / sizes[-1])
    for ax in panels[count:]:
        ax.remove()
    share_legend(figure, panels[:count])
    return figure


def headline_rows(found: dict[str, Fused]) -> list[list[str]]:
    """Slope, bias and final error of every estimator at every place."""
    rows = [["problem", "parameter", "estimator", "slope", "bias²/variance"]]
    rows[0] += ["sensors", "MSE / all-data bound"]
    for problem, one in found.items():
        for place, curves in one.curves.items():
            for name, curve in curves.items():
                curve = curve.trusted()
                slope, error = curve.slope()
                theory = one.theory[place].get(name)
                last = curve.sizes[-1]
                rows.append(
                    [
                        problem,
                        place,
                        name,
                        f"{slope:.3f} ± {error:.3f}" if error > 0 else "",
                        "" if theory is None else str(theory),
                        f"{last:,}",
                        f"{curve.mse[-1] * last:.3g} ± {curve.se[-1] * last:.2g}",
                    ]
                )
    return rows


def ratio_rows(found: dict[str, Fused]) -> list[list[str]]:
    """MSE of the largest networks, bce over emmse."""
    rows = [["problem", "parameter", "|bias|/sd of emmse", "MSE of bce / MSE of emmse"]]
    for problem, one in found.items():
        for place, curves in one.curves.items():
            ratio, error = curves["bce"].last_over(curves["emmse"])
            bias = one.theory[place]["emmse"].bias_over_sd
            rows.append([problem, place, f"{bias:.2f}", f"{ratio:.2g} ± {error:.1g}"])
    return rows


def lead(found: dict[str, Fused]) -> str:
    """The finding in two sentences."""
    slopes, ratios = [], []
    for one in found.values():
        slopes.append(one.curves[PRIOR]["bce"].slope())
        for place, curves in one.curves.items():
            if one.theory[place]["emmse"].bias_over_sd > BIASED:
                ratios.append(curves["bce"].last_over(curves["emmse"])[0])
    sizes = next(iter(found.values())).curves[PRIOR]["bce"].sizes
    told = " and ".join(f"{slope:.3f} ± {error:.3f}" for slope, error in slopes)
    largest = f"{max(ratios):.2g}" if ratios else "unknown"
    return (
        f"The average of bce goes on improving with the number of sensors: its MSE falls with "
        f"slopes of {told} ({' and '.join(found)}). With {sizes[-1]:,} sensors it is at most "
        f"{largest} times that of emmse, which stops at its bias, wherever that is more than "
        f"{BIASED:g} of its standard deviation."
    )


EXPERIMENT = Experiment(
    name="sensors",
    title="Averaging sensors without bias",
    summary="networks of up to 10 000 sensors: averages of EMMSE and BCE against all data at once",
    presets={
        "smoke": SensorsSettings(
            snr_steps=12,
            refit_units=4_000,
            polynomials=3,
            covariance_steps=6,
            sensors=100,
            networks=40,
            prior_networks=40,
            mle_networks={"snr": 2, "covariance": 2},
            repeats=2_000,
            problems=("snr",),
        ),
        "quick": SensorsSettings(
            snr_steps=2_000,
            refit_units=1_000_000,
            polynomials=8,
            covariance_steps=2_000,
            sensors=10_000,
            networks=100,
            prior_networks=200,
            mle_networks={"snr": 8, "covariance": 2},
            repeats=500_000,
        ),
        "paper": SensorsSettings(
            snr_steps=20_000,
            refit_units=4_000_000,
            polynomials=8,
            covariance_steps=20_000,
            sensors=10_000,
            networks=1_000,
            prior_networks=1_000,
            mle_networks={"snr": 50, "covariance": 20},
            repeats=2_000_000,
        ),
    },
    body=body,
)
