"""The teacher of the CIFAR-10 experiment: a small residual network, trained in about an hour.

    python benchmarks/cifar10_teacher.py teacher.npz
    mvue reproduce cifar10 --teacher teacher.npz

made the soft labels that come with the package, and makes others.
The loop is plain Optax and not `mvue.fit`: the network keeps running means of its batches, which
an estimator that is a function of one measurement cannot, and all of its data are fixed labels.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from mvue.datasets import CIFAR10, cifar10
from mvue.experiments.cifar10.images import random_crop, standardized
from mvue.nn._convolutions import convolve, max_pool

WIDTHS, CLASSES = (32, 96, 192), 10
LOGIT_SCALE = 1 / 8
PADDING = 2  # crops that differ less suit a training this short
EPOCHS, BATCH = 10, 256
PEAK_RATE, WARM_UP, MOMENTUM, DECAY = 0.25, 0.2, 0.9, 5e-4
STATISTICS_MEMORY = 0.95
Say = Callable[[str], None]


class Layer(NamedTuple):
    """A convolution of 3 x 3 pixels and what its normalised output is scaled and shifted by."""

    kernel: Array
    scale: Array
    shift: Array


class Statistics(NamedTuple):
    """Mean and variance by channel, of a batch or of many."""

    mean: Array
    variance: Array


class Teacher(NamedTuple):
    """A trained teacher."""

    params: PyTree
    statistics: PyTree
    accuracy: float
    """On the test images, each seen plain and mirrored."""
    seconds: float


def initial(key: Array) -> tuple[dict[str, Any], dict[str, Statistics]]:
    """Weights and statistics before training."""
    channels = {}
    for i, (before, after) in enumerate(zip((3, *WIDTHS), WIDTHS, strict=False)):
        channels |= {f"halve{i}": (before, after), f"keep{i}": (after, after)}
    keys = dict(zip((*channels, "out"), jr.split(key, len(channels) + 1), strict=True))
    params: dict[str, Any] = {
        name: Layer(
            jr.normal(keys[name], (3, 3, c, o)) * (2 / (9 * c)) ** 0.5, jnp.ones(o), jnp.zeros(o)
        )
        for name, (c, o) in channels.items()
    }
    params["out"] = jr.normal(keys["out"], (WIDTHS[-1], CLASSES)) * WIDTHS[-1] ** -0.5
    stats = {name: Statistics(jnp.zeros(o), jnp.ones(o)) for name, (_, o) in channels.items()}
    return params, stats


def forward(
    params: dict[str, Any], images: Array, known: dict[str, Statistics] | None
) -> tuple[Float[Array, "n 10"], dict[str, Statistics]]:
    """Logits, and the statistics of this batch; it is normalised by the known ones, if any."""
    found: dict[str, Statistics] = {}

    def block(name: str, x: Array, halve: bool = False) -> Array:
        layer: Layer = params[name]
        x = convolve(x, layer.kernel, 1)
        if halve:
            x = max_pool(x)
        if known is None:
            mean = x.mean(axis=(0, 1, 2))
            found[name] = Statistics(mean, (x * x).mean(axis=(0, 1, 2)) - mean**2)
        used = found[name] if known is None else known[name]
        scale = layer.scale / jnp.sqrt(used.variance + 1e-5)
        shift = layer.shift - used.mean * scale
        return jax.nn.relu(x * scale[None, None, None] + shift[None, None, None])

    x = standardized(images)
    for i in range(len(WIDTHS)):
        x = block(f"halve{i}", x, halve=True)
        x = x + block(f"keep{i}", x)
    return x.max(axis=(1, 2)) @ params["out"] * LOGIT_SCALE, found


@jax.jit
def _logits_both_ways(params: PyTree, stats: PyTree, images: Array) -> Array:
    """Mean of the logits of images and of their mirror images."""
    return (forward(params, images, stats)[0] + forward(params, images[:, :, ::-1], stats)[0]) / 2


def logits_of(params: PyTree, stats: PyTree, images: np.ndarray) -> np.ndarray:
    """Logits of many images, without crops."""
    pieces = np.array_split(images, -(-len(images) // 500))
    return np.concatenate([np.asarray(_logits_both_ways(params, stats, p)) for p in pieces])


def train_teacher(
    data: CIFAR10,
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    say: Say = print,
    save: Path | None = None,
) -> Teacher:
    """Train on the training images with random crops, flips and hard labels.

    Args:
        data: the images.
        epochs: how many times each image is seen.
        seed: decides all random numbers.
        say: called with a line after every epoch.
        save: a file to write weights and statistics to after every epoch.
    """
    started = time.perf_counter()
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("batch",))
    key, init_key = jr.split(jr.key(seed))
    params, stats = initial(init_key)
    per_epoch = len(data.x_train) // BATCH
    steps = epochs * per_epoch
    peak = max(1, round(WARM_UP * steps))
    rate = optax.join_schedules(
        [
            optax.linear_schedule(0.0, PEAK_RATE, peak),
            optax.linear_schedule(PEAK_RATE, 0.0, max(1, steps - peak)),
        ],
        [peak],
    )
    optimizer = optax.chain(
        optax.add_decayed_weights(DECAY), optax.sgd(rate, MOMENTUM, nesterov=True)
    )
    opt_state = optimizer.init(params)

    def loss(params: PyTree, x: Array, y: Array) -> tuple[Array, tuple[PyTree, Array]]:
        logits, found = forward(params, x, None)
        value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return value, (found, (logits.argmax(-1) == y).mean())

    everywhere, split = PartitionSpec(), PartitionSpec("batch")

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(everywhere, everywhere, everywhere, split, split),
        out_specs=everywhere,
        check_vma=False,
    )
    def gradient(params: PyTree, x: Array, y: Array, keys: Array, rows: Array) -> PyTree:
        crops = jax.vmap(lambda k, i: random_crop(k, x[i], PADDING))(keys, rows)
        found = jax.value_and_grad(loss, has_aux=True)(params, crops, y[rows])
        return jax.lax.pmean(found, "batch")

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, stats, opt_state, x, y, rows, key):
        keys = jr.split(key, len(rows))
        (value, (found, hits)), grads = gradient(params, x, y, keys, rows)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        stats = optax.incremental_update(found, stats, 1 - STATISTICS_MEMORY)
        return optax.apply_updates(params, updates), stats, opt_state, jnp.stack([value, hits])

    x, y = jax.device_put(
        (data.x_train, data.y_train.astype(np.int32)),
        NamedSharding(mesh, everywhere),
    )
    accuracy = 0.0
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(data.x_train))
        totals = []
        for i in range(per_epoch):
            rows = jnp.asarray(order[i * BATCH : (i + 1) * BATCH])
            key, step_key = jr.split(key)
            params, stats, opt_state, seen = step(params, stats, opt_state, x, y, rows, step_key)
            totals.append(seen)
            if i % 20 == 19:
                jax.block_until_ready(seen)  # so that not a whole epoch is waiting in a queue
        here = jax.device_get((params, stats))
        found = logits_of(here[0], here[1], data.x_test)
        accuracy = float((found.argmax(-1) == data.y_test).mean())
        value, hits = np.mean(totals, axis=0)
        say(
            f"epoch {epoch + 1} of {epochs}: training loss {value:.3f}, accuracy {hits:.3f}; test "
            f"accuracy {accuracy:.4f}; {time.perf_counter() - started:.0f} s"
        )
        if save is not None:
            leaves, _ = jax.tree.flatten(here)
            np.savez(save, *leaves)
    params, stats = jax.device_get((params, stats))
    return Teacher(params, stats, accuracy, time.perf_counter() - started)


def main() -> None:
    """Train, and write the soft labels of the training images."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path, help="the .npz file to write")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=2, help="as so many devices of JAX")
    parser.add_argument("--weights", type=Path, help="an .npz file for the weights")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", args.cores)
    data = cifar10()
    teacher = train_teacher(
        data,
        epochs=args.epochs,
        seed=args.seed,
        save=args.weights,
        say=functools.partial(print, flush=True),
    )
    logits = logits_of(teacher.params, teacher.statistics, data.x_train)
    np.savez_compressed(
        args.out, logits=logits.astype(np.float16), test_accuracy=np.float32(teacher.accuracy)
    )
    print(f"{args.out}: test accuracy {teacher.accuracy:.4f}, {teacher.seconds:.0f} s")


if __name__ == "__main__":
    main()
