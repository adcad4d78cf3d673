"""What training costs against the size of the problem: slopes of log time and log memory.

One size is varied at a time, the others stay at their middle values. Times are those of steps
alone, without compilation; memory is what the compiled step takes. With ``--devices K``, the same
on K devices of this machine.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

SIZES = {
    "N, units in a batch": ("batch", (64, 256, 1024, 4096)),
    "M, measurements of each": ("repeats", (2, 8, 32, 128)),
    "n, samples in a measurement": ("samples", (10, 40, 160, 640)),
    "d, parameters to estimate": ("unknowns", (1, 4, 16, 64)),
    "steps": ("steps", (200, 400, 800, 1600)),
}
MIDDLE = {"batch": 256, "repeats": 8, "samples": 40, "unknowns": 4, "steps": 400}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the two smallest of all sizes")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--json", help="a file for all numbers")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={options.devices} "
        + os.environ.get("XLA_FLAGS", "")
    )
    found = {}
    print(f"{'size':<30}{'values':>22}{'seconds':>28}{'slope':>7}{'MB':>22}{'slope':>7}")
    for title, (name, values) in SIZES.items():
        values = values[:2] if options.quick else values
        measured = [cost(**{**MIDDLE, name: value}) for value in values]
        seconds, memory = ([one[i] for one in measured] for i in range(2))
        if name == "steps":  # the whole run, not a step of it
            seconds = [s * v for s, v in zip(seconds, values, strict=True)]
        found[name] = {"values": values, "seconds": seconds, "bytes": memory}
        row = f"{title:<30}{' '.join(map(str, values)):>22}"
        row += f"{' '.join(f'{s:.2g}' for s in seconds):>28}{slope(values, seconds):>7.2f}"
        row += f"{' '.join(f'{m / 1e6:.3g}' for m in memory):>22}{slope(values, memory):>7.2f}"
        print(row, flush=True)
    if options.json:
        everything = {"devices": options.devices, "middle": MIDDLE, "sizes": found}
        Path(options.json).write_text(json.dumps(everything, indent=2), encoding="utf-8")


def slope(values: tuple[int, ...], costs: list[float]) -> float:
    """Of the logarithm of a cost, between the two largest sizes."""
    import numpy as np

    return float(np.log(costs[-1] / costs[-2]) / np.log(values[-1] / values[-2]))


def cost(batch: int, repeats: int, samples: int, unknowns: int, steps: int) -> tuple[float, int]:
    """Seconds of a step, the best of three rounds, and bytes."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    import numpyro.distributions as dist

    import mvue
    from mvue._runtime.devices import mesh_for
    from mvue._runtime.memory import bytes_needed
    from mvue._runtime.programs import compiled
    from mvue._training.batches import SimulatedBatches
    from mvue._training.program import Program

    problem = mvue.Problem(
        dist.Uniform(0.0, 1.0).expand((unknowns,)).to_event(1),
        lambda key, y: y[None, :] + jr.normal(key, (samples, unknowns)),
    )

    class Network(eqx.Module):
        body: eqx.nn.MLP

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.body(jnp.concatenate([x.mean(axis=0), x.std(axis=0)]))

    network = Network(eqx.nn.MLP(2 * unknowns, unknowns, 64, 2, key=jr.key(0)))
    mesh = mesh_for(batch)
    source = SimulatedBatches(problem, batch, repeats, mesh)
    program = Program(source, network, mvue.bce(10.0, weight=None), steps, None, "average")
    state = program.initial_state()
    simulations, key = program.simulations, jr.key(1)

    def pool_at(first: int) -> Any:
        return () if simulations is None else simulations.at(key, first)

    arguments = (key, program.arrays.constants, pool_at(0))
    run, _, executable = compiled(program.run, state, jnp.asarray(0), *arguments, mesh=mesh)
    run(state, jnp.asarray(1), *arguments)
    size = steps // 10 if simulations is None else simulations.count
    memory = bytes_needed(executable)
    memory += 0 if simulations is None else bytes_needed(simulations.prepare())
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        for first in range(0, max(steps // 10, 1), size):
            state = run(state, jnp.asarray(size), *arguments[:2], pool_at(first))
        jax.block_until_ready(state)
        count = -(-max(steps // 10, 1) // size) * size
        seconds.append((time.perf_counter() - begun) / count)
    return min(seconds), memory


if __name__ == "__main__":
    main()
