"""Speed of the networks of the CIFAR-10 experiment against PyTorch, in one run.

Forward, backward and update in float32, images per second of wall time and of CPU time, which
other work on the machine changes less; CPU time includes threads that wait for each
other. JAX with this project's convolutions and with `lax.conv` as it is.

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

from mvue.experiments import _cifar10_students as students
from mvue.experiments import _cifar10_teacher as teachers

BATCH, UNIT, ROUNDS = 160, 20, 7
rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (BATCH, 32, 32, 3), np.uint8)
LABELS = rng.integers(0, 10, BATCH)


def plain_batch(images, kernel):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=layout)


def measured(step):
    """The best of some rounds, wall and CPU seconds."""
    step()
    rounds = []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        rounds.append((time.perf_counter() - wall, time.process_time() - cpu))
    return np.min(rounds, axis=0)


def jax_step(params, loss):
    optimizer = optax.sgd(0.01, 0.9, nesterov=True)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, images):
        updates, state = optimizer.update(jax.grad(loss)(params, images), state, params)
        return optax.apply_updates(params, updates), state

    held = [jax.tree.map(jnp.array, params), optimizer.init(params)]
    images = jnp.asarray(IMAGES)

    def step():
        held[:] = jax.block_until_ready(update(*held, images))

    return step


def student_loss(student, images):
    q = jax.vmap(student)(images).reshape(-1, UNIT, 10)
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


def torch_step(network, loss):
    layout = torch.channels_last
    network = network.to(memory_format=layout)
    images = torch.as_tensor(IMAGES).permute(0, 3, 1, 2).float().div(255)
    images = images.contiguous(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9, nesterov=True)

    def step():
        optimizer.zero_grad()
        loss(network(images)).backward()
        optimizer.step()

    return step


def main():
    student, (teacher, _) = students.Student(jr.key(0)), teachers.initial(jr.key(0))
    ours = students.convolve, teachers.convolve_batch
    print(f"{'images per second':32}{'wall':>8}{'CPU':>8}")
    for name, params, loss, torch_network, torch_loss in (
        ("student", student, student_loss, TorchStudent, torch_student_loss),
        ("teacher", teacher, teacher_loss, TorchTeacher, torch_teacher_loss),
    ):
        steps = {"JAX, ours": functools.partial(jax_step, params, loss)}
        for threads in (1, torch.get_num_threads()):
            steps[f"PyTorch, {threads} threads"] = functools.partial(
                torch_step, torch_network(), torch_loss
            )
        for way in ("JAX, lax.conv", *steps):
            if way == "JAX, lax.conv":
                students.convolve = lambda x, w: plain_batch(x[None], w)[0]
                teachers.convolve_batch = plain_batch
                step = jax_step(params, loss)
                wall, cpu = measured(step)
                students.convolve, teachers.convolve_batch = ours
            else:
                default = torch.get_num_threads()
                if way == "PyTorch, 1 threads":
                    torch.set_num_threads(1)
                wall, cpu = measured(steps[way]())
                torch.set_num_threads(default)
            print(f"{name + ': ' + way:32}{BATCH / wall:8.0f}{BATCH / cpu:8.0f}", flush=True)


if __name__ == "__main__":
    main()
