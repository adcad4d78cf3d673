"""Speed of the networks of the CIFAR-10 experiment against PyTorch, in one run.

Forward, backward and update in float32, images per second: of wall time, and of CPU time, which
other work on the machine changes less. The ways take turns, and the best of the rounds counts. The
student does some steps in one program, as `mvue.fit` does; everything else one after the other.
PyTorch gets fresh memory from the system in every step; with the two variables of the second
line it keeps it, which is the hardest comparison.

For one core, which a student of a pair has, without threads that wait for each other:

    export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000
    taskset -c 1 python benchmarks/cnn.py

For the whole machine, which means something only if nothing else runs:

    python benchmarks/cnn.py
"""

import functools
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import torch
from torch import nn
from torch.nn import functional

import cifar10_teacher as teachers
from mvue.experiments.cifar10 import students

BATCH, UNIT, STEPS, ROUNDS = 160, 20, 4, 15
rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (BATCH, 32, 32, 3), np.uint8)
LABELS = rng.integers(0, 10, BATCH)
SGD = optax.sgd(0.01, 0.9, nesterov=True)


def plain_convolve(images, kernel, margin=0):
    layout, padding = ("NHWC", "HWIO", "NHWC"), [(margin, margin)] * 2
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), padding, dimension_numbers=layout)


def plain_pool(images):
    parts = (images[:, i::2, j::2] for i in (0, 1) for j in (0, 1))
    return functools.reduce(jnp.maximum, parts)


def jax_steps(params, loss, in_one=1):
    """Steps, so many in one program; no step of a program has the images of the step before."""

    @functools.partial(jax.jit, donate_argnums=0)
    def update(held, images):
        def step(i, held):
            params, state = held
            grads = jax.grad(loss)(params, images ^ i.astype(jnp.uint8))
            updates, state = SGD.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        if in_one == 1:
            return step(jnp.int32(1), held)
        return jax.lax.fori_loop(0, in_one, step, held)

    held, images = [(jax.tree.map(jnp.array, params), SGD.init(params))], jnp.asarray(IMAGES)
    compiled = update.lower(held[0], images).compile()

    def run():
        for _ in range(STEPS // in_one):
            held[0] = jax.block_until_ready(compiled(held[0], images))

    return run


def student_loss(student, images):
    q = jax.vmap(student)(images).reshape(-1, UNIT, 10)
    soft = jnp.full((len(q), 10), 0.1)
    return students.hard_loss(q, jnp.asarray(LABELS[::UNIT])) + students.bias_loss(q, soft)


def plain_student_loss(student, images):
    """Without `by_image`, which is for few images at a time."""
    x = plain_convolve(students.standardized(images), student.first)
    x = plain_convolve(jax.nn.relu(x + student.first_bias), student.second)
    x = jax.nn.relu(plain_pool(x) + student.second_bias)
    z = x.reshape(len(x), -1) @ student.linear + student.linear_bias
    q = jax.nn.softmax(z / students.TEMPERATURE).reshape(-1, UNIT, 10)
    soft = jnp.full((len(q), 10), 0.1)
    return students.hard_loss(q, jnp.asarray(LABELS[::UNIT])) + students.bias_loss(q, soft)


def teacher_loss(params, images):
    logits, _ = teachers.forward(params, images, None)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(LABELS)).mean()


class TorchStudent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3)
        self.out = nn.Linear(32 * 14 * 14, 10)

    def forward(self, x):
        x = functional.relu(self.second(functional.relu(self.first(x))))
        return self.out(functional.max_pool2d(x, 2).flatten(1))


class TorchTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, before = nn.ModuleList(), 3
        for after in teachers.WIDTHS:
            for channels in (before, after):
                self.layers.append(nn.Conv2d(channels, after, 3, padding=1, bias=False))
                self.layers.append(nn.BatchNorm2d(after))
            before = after
        self.out = nn.Linear(before, 10, bias=False)

    def forward(self, x):
        for i in range(0, len(self.layers), 4):
            halve, norm, keep, norm2 = self.layers[i : i + 4]
            x = functional.relu(norm(functional.max_pool2d(halve(x), 2)))
            x = x + functional.relu(norm2(keep(x)))
        return self.out(x.amax((2, 3)))


def torch_student_loss(logits):
    q = functional.softmax(logits / 20, 1).reshape(-1, UNIT, 10)
    hard = functional.cross_entropy(logits, torch.as_tensor(LABELS))
    return hard + ((q.mean(1) - 0.1) ** 2).sum(-1).mean()


def torch_teacher_loss(logits):
    return functional.cross_entropy(logits, torch.as_tensor(LABELS))


def torch_steps(network, loss, threads):
    layout = torch.channels_last
    network = network.to(memory_format=layout)
    images = torch.as_tensor(IMAGES).permute(0, 3, 1, 2).float().div(255)
    images = images.contiguous(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9, nesterov=True)

    def run():
        torch.set_num_threads(threads)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(network(images)).backward()
            optimizer.step()

    return run


def measured(ways):
    """Wall and CPU seconds of each way, the best of some rounds of all."""
    best = dict.fromkeys(ways, np.full(2, np.inf))
    for run in ways.values():
        run()
    for _ in range(ROUNDS):
        for name, run in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = np.minimum(best[name], spent)
    return best


def torch_ways(network, loss):
    threads = sorted({1, torch.get_num_threads()})
    return {f"PyTorch, threads: {n}": torch_steps(network(), loss, n) for n in threads}


def main():
    student, (teacher, _) = students.Student(jr.key(0)), teachers.initial(jr.key(0))
    print(f"{'images per second':32}{'wall':>8}{'CPU':>8}")
    ways = {
        "student": {
            "JAX, this project": jax_steps(student, student_loss, STEPS),
            "JAX, plain lax.conv": jax_steps(student, plain_student_loss),
            **torch_ways(TorchStudent, torch_student_loss),
        }
    }
    ours = {"JAX, this project": jax_steps(teacher, teacher_loss)}
    teachers.convolve, teachers.max_pool = plain_convolve, plain_pool
    ours["JAX, plain lax.conv"] = jax_steps(teacher, teacher_loss)
    ways["teacher"] = ours | torch_ways(TorchTeacher, torch_teacher_loss)
    for name, ways_of_one in ways.items():
        for way, (wall, cpu) in measured(ways_of_one).items():
            done = BATCH * STEPS
            print(f"{name + ': ' + way:32}{done / wall:8.0f}{done / cpu:8.0f}", flush=True)


if __name__ == "__main__":
    main()
