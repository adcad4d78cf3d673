"""Time of one training step of the paper's network for structured covariances: JAX and PyTorch.

Both have the same 50 untied iterations, the same initial weights, and take the same steps of Adam
on the same sample covariances, M = 20 of one unknown, with the plug-in loss of λ = 1000. Every
round times all candidates one after the other; ratios are medians over the rounds, so that other
work on the machine hits all of them alike. Simulation is not part of the step, compilation is
told apart.

    python benchmarks/covariance.py [--quick] [--rounds R] [--steps S]
"""

import argparse
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import torch

import mvue
from mvue.problems import StructuredCovariance, UnrolledCovariance, structured_covariance

LEARNING_RATE = 1e-4
BIAS_WEIGHT = 1000.0
REPLICATES = 20
AGREE = 1e-3  # relative difference of the losses after some steps


class TorchUnrolled(torch.nn.Module):
    """The same network, with the same weights."""

    def __init__(self, network: UnrolledCovariance) -> None:
        super().__init__()
        self.step, self.state = network.step, network.state
        self.hidden, self.out = (
            torch.nn.ModuleList([_linear(layer, k) for k in range(network.iterations)])
            for layer in (network.update.hidden, network.update.out)
        )
        structure = network.structure
        rows, columns = np.triu_indices(structure.p)
        self.upper = torch.tensor(rows), torch.tensor(columns)
        basis, offset = structure.basis[:, rows, columns], structure.offset[rows, columns]
        self.basis = torch.tensor(basis, dtype=torch.float32)
        self.offset = torch.tensor(offset, dtype=torch.float32)

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        matrix = sample[:, self.upper[0], self.upper[1]]
        d = len(self.basis)
        position = torch.cat(
            [torch.full((len(sample), d), 0.5), torch.zeros(len(sample), self.state)], 1
        )
        for hidden, out in zip(self.hidden, self.out, strict=True):
            inputs = torch.cat([matrix, position[:, d:]], 1)
            position = position + self.step * out(torch.relu(hidden(inputs)))
            matrix = self.offset + position[:, :d] @ self.basis
        return position[:, :d]


def _linear(layer: eqx.nn.Linear, k: int) -> torch.nn.Linear:
    weight, bias = np.array(layer.weight[k]), np.array(layer.bias[k])
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        linear.weight.copy_(torch.tensor(weight))
        linear.bias.copy_(torch.tensor(bias))
    return linear


def loss_of(estimates, y):
    return mvue.losses.bce_loss(estimates, y, bias_weight=BIAS_WEIGHT, penalty="plug-in")


def in_jax(network: UnrolledCovariance, x: jax.Array, y: jax.Array) -> Callable[[int], float]:
    """A function that takes so many steps and returns the last loss."""
    params, static = eqx.partition(network, eqx.is_inexact_array)
    optimizer = optax.adam(LEARNING_RATE)

    def step(params, opt_state, x, y):
        def objective(params):
            return loss_of(jax.vmap(eqx.combine(params, static))(x)[None], y)

        value, gradients = jax.value_and_grad(objective)(params)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    state = params, optimizer.init(params)
    began = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*state, x, y).compile()
    print(f"  JAX: compiled in {time.perf_counter() - began:.1f} s")
    state = jax.tree.map(jnp.array, state)  # a copy: the buffers are given away

    def run(steps: int) -> float:
        nonlocal state
        value = jnp.nan
        for _ in range(steps):
            *state, value = compiled(*state, x, y)
        return float(value)

    return run


def in_torch(
    network: UnrolledCovariance, x: jax.Array, y: jax.Array, *, fused: bool
) -> Callable[[int], float]:
    """The same, eager."""
    model = TorchUnrolled(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=fused)
    sample, truth = torch.tensor(np.array(x)), torch.tensor(np.array(y))

    def run(steps: int) -> float:
        value = torch.tensor(float("nan"))
        for _ in range(steps):
            value = loss_of(model(sample)[None], truth)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        return float(value.detach())

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, help="in a round, of each candidate")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 11)
    steps = options.steps or (10 if options.quick else 40)

    # Such small matrices are multiplied fastest by one thread, above all on a busy machine.
    torch.set_num_threads(1)
    structure: StructuredCovariance = structured_covariance()
    network = UnrolledCovariance(structure, key=jr.key(0))
    draw = structure.problem.draw(jr.key(1), 1, REPLICATES)
    x, y = draw.x[0], draw.y
    weights = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array)))
    print(f"{network.iterations} untied iterations, {weights:,} weights, N = 1, M = {REPLICATES}")
    candidates = {
        "JAX, one compiled step": in_jax(network, x, y),
        "PyTorch, eager": in_torch(network, x, y, fused=False),
        "PyTorch, eager, fused Adam": in_torch(network, x, y, fused=True),
    }
    losses = {name: run(steps) for name, run in candidates.items()}  # not timed: a warm-up
    ours, *theirs = losses.values()
    assert all(abs(loss - ours) <= AGREE * abs(ours) for loss in theirs), losses

    millis = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            began = time.perf_counter()
            run(steps)
            millis[name].append((time.perf_counter() - began) / steps * 1e3)
    base = np.array(millis["JAX, one compiled step"])
    print(f"{'':<32}{'median':>10}{'fastest':>10}{'over JAX':>10}   ({rounds} rounds of {steps})")
    for name, values in millis.items():
        ratio = np.median(np.array(values) / base)
        print(f"  {name:<30}{np.median(values):7.2f} ms{min(values):7.2f} ms{ratio:10.1f}")
    print("  aim: PyTorch, eager, over JAX at least 4")


if __name__ == "__main__":
    main()
