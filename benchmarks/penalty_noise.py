"""What makes training work at a large bias weight: ways against the noise of the penalty.

The structured covariance, one network, the same number of simulated measurements for each way.

    python benchmarks/penalty_noise.py --seeds 0 1 2 --figure penalty-noise.png
"""

import argparse
import json
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import mvue
from mvue._display.figures import new_figure
from mvue.problems import CovarianceMLP, structured_covariance

STEPS, N, M = 6000, 256, 4
structure = structured_covariance()


def loss(bias_weight):
    return mvue.bce(bias_weight, weight=lambda y: 1 / jnp.diagonal(structure.crb(y)))


PLAIN = {"anchors": 0, "keep": "last"}
ANNEALED = mvue.losses.geometric_schedule(20.0, 100.0)
WAYS = {
    "λ = 100 throughout": (100.0, PLAIN),
    "λ from 20 to 100": (ANNEALED, PLAIN),
    "… 4 times the batch, ¼ of the steps": (
        ANNEALED,
        PLAIN | {"batch_size": 4 * N, "steps": STEPS // 4},
    ),
    "… weight average": (ANNEALED, {"anchors": 0}),
    "… weight average, anchors": (ANNEALED, {}),
    "… weight average, anchors, baseline": (ANNEALED, {"baseline": structure.masked}),
}


def judge(estimator, key):
    found = {}
    for name, high in (("0 to 1", 1.0), ("0 to 0.1", 0.1)):
        at = high * jr.uniform(jr.key(7), (40, 9))
        report = mvue.assess({"it": estimator}, structure.problem, at=at, repeats=10_000, key=key)
        one = report["it"]
        bound = report.crb.sum(axis=1)
        ratio = one.mse.sum(axis=1) / bound
        bias2 = (one.bias**2 - one.bias_se**2).sum(axis=1) / bound
        found[name] = {
            "median": float(np.median(ratio)),
            "max": float(ratio.max()),
            "bias2": float(bias2.mean()),
        }
    return found


def run(way, seed):
    bias_weight, changes = WAYS[way]
    correction = "baseline" in changes
    network = CovarianceMLP(structure, correction=correction, key=jr.key(100 + seed))
    settings = {"steps": STEPS, "batch_size": N, "repeats": M} | changes
    prior = structure.problem.prior
    fit = mvue.fit(
        structure.problem,
        network,
        loss(bias_weight),
        training_prior=prior,
        key=jr.key(seed),
        **settings,
    )
    return {"seconds": fit.seconds} | judge(fit.estimator, jr.key(200 + seed))


def draw(results, path):
    figure = new_figure(10, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    names = list(results)
    for i, name in enumerate(names):
        for shift, (where, colour) in zip(
            (-0.12, 0.12), (("0 to 1", "#0072b2"), ("0 to 0.1", "#d55e00")), strict=True
        ):
            for one in results[name]:
                value = one[where]
                panels[0].plot([value["median"], value["max"]], [i + shift] * 2, color=colour)
                panels[0].plot(value["median"], i + shift, "o", color=colour)
                panels[0].plot(value["max"], i + shift, "|", color=colour, markersize=9)
                panels[1].plot(max(value["bias2"], 1e-5), i + shift, "o", color=colour)
    for where, colour in (("0 to 1", "#0072b2"), ("0 to 0.1", "#d55e00")):
        panels[0].plot([], [], "o-", color=colour, label=f"parameters from {where}")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].axvline(1, color="grey", linewidth=0.8)
    panels[0].set(xlabel="MSE / CRB, median to largest")
    panels[1].set(xlabel="bias² / CRB, mean", xscale="log")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--figure", default="penalty-noise.png")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    results = {way: [run(way, seed) for seed in arguments.seeds] for way in WAYS}
    for way, found in results.items():
        for one in found:
            inside, outside = one["0 to 1"], one["0 to 0.1"]
            print(
                f"{way:38s} {one['seconds']:5.0f} s  MSE/CRB {inside['median']:.3f} … "
                f"{inside['max']:.3f}, bias²/CRB {inside['bias2']:.4f};  small: "
                f"{outside['median']:.3f} … {outside['max']:.3f}, {outside['bias2']:.4f}",
                flush=True,
            )
    draw(results, arguments.figure)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
