"""One process of a job: trains, assesses and fits linear estimators, and leaves the numbers.

Arguments, as JSON: output, steps, checkpoint, data (a folder of simulated data), and, for several
processes, coordinator, processes, process and die (end without a word once there is a checkpoint).
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import mvue
import mvue.distributed

asked = json.loads(sys.argv[1])
if "coordinator" in asked:
    mvue.distributed.initialize(
        asked["coordinator"], asked["processes"], asked["process"], timeout=asked["timeout"]
    )

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from mvue._linear import refit as _refit  # noqa: E402


class Small(eqx.Module):
    """A network whose training takes no time."""

    layer: eqx.nn.Linear
    scale: jax.Array

    def __call__(self, x):
        return self.scale * jnp.exp(self.layer(jnp.stack([jnp.mean(x), jnp.log(jnp.std(x))])))


def problem():
    return mvue.Problem.from_likelihood(
        dist.Uniform(1.0, 4.0), lambda sd: dist.Normal(0.0, sd).expand([10])
    )


def train(steps, checkpoint=None):
    network = Small(eqx.nn.Linear(2, 1, key=jr.key(0)), jnp.ones(()))
    return mvue.fit(
        problem(),
        network,
        mvue.bce(10.0, weight=None),
        training_prior=dist.Uniform(0.5, 5.0),
        key=jr.key(2),
        steps=steps,
        batch_size=32,
        repeats=4,
        anchors=2,
        validations=10,
        checkpoint=checkpoint,
        checkpoint_every=0.0,
    )


def numbers(fit):
    """Everything that must not depend on who computed it."""
    report = mvue.assess(fit, problem(), key=jr.key(3), at=jnp.array([1.5, 3.0]), repeats=1000)
    one = report["estimator"]
    weights = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(fit.estimator)]
    return {
        "weights": np.concatenate(weights),
        "held_out": np.array([fit.held_out["mse"], fit.held_out["squared_bias"]]),
        "mse": one.mse,
        "bias": one.bias,
        "prior": np.array([one.prior.bmse, one.prior.squared_bias]),
        "devices": np.array(len(jax.devices())),
    }


def linear_numbers(folder):
    """Linear estimators from streams: of simulations, of data in a folder, of pieces."""
    from mvue.sklearn import LinearBCE

    # More unknowns than devices can share evenly, in several pieces.
    _refit.PIECE_NUMBERS = 20_000
    features = {"features": lambda x: jnp.stack([jnp.std(x), jnp.mean(jnp.abs(x))])}
    simulated = mvue.refit_last_layer(
        None, problem(), 10.0, key=jr.key(4), units=1001, repeats=4, **features
    )
    draw = problem().draw(jr.key(5), 333, 4)
    fixed = mvue.refit_last_layer(None, draw, 1.0, **features)
    data = mvue.SimulatedData.open(folder)
    from_folder = LinearBCE(10.0).fit_pieces(data)
    table = [np.concatenate(parts) for parts in zip(*data.pieces(), strict=True)]
    borders = np.arange(0, len(table[0]), 50)  # most units lie in two pieces
    pieces = [tuple(part[i : i + 50] for part in table) for i in borders]
    from_pieces = LinearBCE(10.0).fit_pieces(iter(pieces))
    alone = LinearBCE(10.0).fit_pieces([tuple(table)])  # nothing for a second process
    whole = LinearBCE(10.0).fit(*table[:2], unit_ids=table[2])
    for X, _, _ in pieces[1:2]:
        X[0] = np.nan
    try:
        LinearBCE().fit_pieces(pieces)
    except (ValueError, RuntimeError) as error:
        said = str(error)
    wanted = "x must be finite" if jax.process_index() in (1, jax.process_count() - 1) else "1 of 2"
    assert wanted in said, said
    return {
        "refit": np.append(simulated.weight, simulated.bias),
        "refit_fixed": np.append(fixed.weight, fixed.bias),
        "units": np.array([each.n_units_ for each in (from_folder, from_pieces, alone)]),
        **{
            f"linear_{i}": np.append(each.coef_, each.intercept_)
            for i, each in enumerate((from_folder, from_pieces, alone, whole))
        },
    }


def die_when_saved(folder):
    while not (folder.exists() and any(p.name.isdigit() for p in folder.iterdir())):
        time.sleep(0.01)
    os._exit(9)


if __name__ == "__main__":
    if asked.get("die"):
        folder = Path(asked["checkpoint"])
        threading.Thread(target=die_when_saved, args=(folder,), daemon=True).start()
    found = numbers(train(asked["steps"], asked.get("checkpoint")))
    if "data" in asked:
        found |= linear_numbers(asked["data"])
    np.savez(asked["output"], **found)
