"""Where the time of a default fit goes, beside a bare jitted loop of the same steps.

Eight problems: three samples of independent draws, one of them with a likelihood, a series, a
complex array, a curve, an image and an image of counts. For each: CPU and wall seconds of every
stage of the fit, how many programs were compiled and for how long, how much of training was
simulation, and a bare loop (simulate, mean squared error of a perceptron on the raw numbers, Adam)
of the same steps and batch in the same process.

    python benchmarks/default_fit.py [NAME ...] [--steps STEPS]
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
import optax

import mvue
from mvue._core.sampling import Simulations
from mvue._runtime import progress as progress_module
from mvue.nn._measurements import flatten

COMPILED = "/jax/core/compile/backend_compile_duration"
STAGES = {
    "surveying": "survey",
    "making the network": "start",
    "compiling": "compile",
    "training": "train",
    "calibrating": "calibrate",
    "judging": "verdict",
}


def problems() -> dict[str, mvue.Problem]:
    def times(key, rate):
        return jr.exponential(key, (10,)) / rate

    normal = mvue.Problem.from_likelihood(
        prior=dist.Uniform(jnp.array([-1.0, 0.5]), jnp.array([1.0, 2.0])).to_event(1),
        likelihood=lambda theta: dist.Normal(theta[0], theta[1]).expand((12,)),
        names=("mean", "sd"),
    )
    field = ("autoregression", "direction-of-arrival", "decay", "field-range", "spot")
    return {
        "exponential-rate": mvue.Problem(dist.Uniform(0.5, 5.0), times, names=("rate",)),
        "normal-sd": mvue.problems.textbook("normal-sd").problem,
        "normal-likelihood": normal,
        **{name: mvue.problems.field(name).problem for name in field},
    }


class Clock:
    """CPU and wall seconds by stage; a view of `Progress`."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self._began: dict[str, tuple[float, float]] = {}

    def begin(self, stage: progress_module.Stage) -> None:
        self._began[stage.name] = time.process_time(), time.perf_counter()

    def update(self, stage: progress_module.Stage) -> None:
        """Nothing: stages are timed as a whole."""

    def end(self, stage: progress_module.Stage) -> None:
        cpu, wall = self._began[stage.name]
        self.seconds[stage.name] = time.process_time() - cpu, time.perf_counter() - wall


@contextlib.contextmanager
def watched(clock: Clock) -> Iterator[dict[str, float]]:
    """Let fits report to the clock; count programs, and the seconds of simulation."""
    from mvue._training import fit as module

    found = {"programs": 0, "compiling": 0.0, "simulating": 0.0}

    def listen(name: str, seconds: float, **_: object) -> None:
        if name == COMPILED:
            found["programs"] += 1
            found["compiling"] += seconds

    def timed(self: Simulations, *args: object) -> object:
        begun = time.perf_counter()
        made = jax.block_until_ready(simulate(self, *args))
        found["simulating"] += time.perf_counter() - begun
        return made

    jax.monitoring.register_event_duration_secs_listener(listen)
    simulate, before = Simulations.at, module.progress_for
    Simulations.at = timed
    module.progress_for = lambda _: progress_module.Progress(clock)
    try:
        yield found
    finally:
        Simulations.at, module.progress_for = simulate, before
        jax.monitoring.unregister_event_duration_listener(listen)


def bare_loop(problem: mvue.Problem, fit: mvue.Fit) -> float:
    """Wall seconds of a plain training loop of the same steps and batch, compilation included."""
    n, m, steps = (int(fit.settings[name]) for name in ("batch_size", "repeats", "steps"))
    x, y = problem.shapes()

    size = jax.eval_shape(flatten, x).shape[0]
    network = eqx.nn.MLP(size, y.shape[0], 64, 2, key=jr.key(0))
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit
    def train(network, key):
        params, static = eqx.partition(network, eqx.is_array)

        def loss(params, draw):
            estimate = jax.vmap(jax.vmap(lambda x: eqx.combine(params, static)(flatten(x))))
            return jnp.mean((estimate(draw.x) - draw.y[:, None, :]) ** 2)

        def step(i, state):
            params, moments = state
            grads = jax.grad(loss)(params, problem.draw(jr.fold_in(key, i), n, m))
            updates, moments = optimizer.update(grads, moments)
            return optax.apply_updates(params, updates), moments

        return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))

    begun = time.perf_counter()
    jax.block_until_ready(train(network, jr.key(1)))
    return time.perf_counter() - begun


def import_seconds() -> float:
    """Of mvue, in a process of its own."""
    code = "import time; t = time.perf_counter(); import mvue; print(time.perf_counter() - t)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    known = problems()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    print(f"import {import_seconds():.1f} s; seconds as CPU / wall")
    columns = [*STAGES.values(), "whole", "programs", "of it compiling", "simulating", "bare loop"]
    print("| problem | " + " | ".join(columns) + " | ratio |")
    print("|---" * (len(columns) + 2) + "|")
    for name in given.names or known:
        problem, clock = known[name], Clock()
        cpu, wall = time.process_time(), time.perf_counter()
        with watched(clock) as found:
            fit = mvue.fit(problem, key=jr.key(0), steps=given.steps)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        spent = [clock.seconds.get(stage, (0.0, 0.0)) for stage in STAGES]
        bare = bare_loop(problem, fit)
        cells = [f"{a:.1f} / {b:.1f}" for a, b in [*spent, (cpu, wall)]]
        cells += [f"{found['programs']}", f"{found['compiling']:.1f}"]
        cells += [f"{found['simulating']:.1f}", f"{bare:.1f}", f"{wall / bare:.1f}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
