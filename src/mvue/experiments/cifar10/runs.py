"""The runs of the CIFAR-10 experiment: images, pairs of students, and what is measured of them."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array

import mvue

from ...datasets import CIFAR10, DatasetError, cifar10
from .._common import Run
from .labels import HARD, PACKAGED, SoftLabels, soft_labels
from .measures import SoftLabelMoments, accuracy_by_crops, crop_logits, soft_label_moments
from .students import (
    CLASSES,
    SIDE,
    SOFT_LOSSES,
    TEMPERATURE,
    Matched,
    Student,
    StudentLoss,
    soft_label_problem,
)


class Variant(NamedTuple):
    """What the second term of the loss is."""

    matched: Matched
    weight: float
    words: str


VARIANTS = {
    "text": Variant("probabilities", 1.0, "as the paper writes it"),
    "log": Variant("log-probabilities", 1.0, "as in the authors' code"),
    "scaled": Variant(
        "probabilities", TEMPERATURE**2, "the text's, times the square of the temperature"
    ),
}


@dataclasses.dataclass(frozen=True)
class CIFAR10Settings:
    """How large a run is."""

    images: int
    """Training images that the students see."""
    steps: int
    """Updates of each student."""
    test_images: int
    losses: tuple[str, ...]
    """Variants of the loss, unless the option says otherwise."""
    batch_size: int
    """N, images in a batch."""
    repeats: int
    """M, crops of each."""
    seeds: int = 3
    """Pairs of students."""
    crops: int = 20
    """Of each image, in the test."""
    learning_rate: float = 0.005
    momentum: float = 0.9
    checkpoints: int = 5
    unchecked_parts: int = 3
    """How many distances between checkpoints the first one is after its own part."""
    held_out: int = 1_000
    """Training images that the students never see, for bias and variance."""


class Material(NamedTuple):
    """What students learn from and are tested on."""

    data: CIFAR10
    soft_labels: SoftLabels
    source: str
    """Where the images come from, in words."""
    seen: np.ndarray
    """Numbers of the training images that students learn from."""
    held_out: np.ndarray
    """Numbers of those that they do not."""

    def problem(self) -> mvue.Problem:
        """To estimate soft labels from crops."""
        data, seen = self.data, self.seen
        return soft_label_problem(
            data.x_train[seen], data.y_train[seen], self.soft_labels.values[seen]
        )


class TrainedStudent(NamedTuple):
    """One student."""

    checkpoints: list[Student]
    seconds: float
    loss: str


class JudgedStudent(NamedTuple):
    """What was measured of one student."""

    accuracy: dict[str, np.ndarray]
    """(checkpoints, crops), for each way to average."""
    seen: SoftLabelMoments
    """On images that it learned from, at the end."""
    held_out: SoftLabelMoments


def prepare(run: Run) -> Material:
    """The images and their soft labels; the preset smoke makes up what is not on this machine."""
    s: CIFAR10Settings = run.settings
    smoke, teacher = run.preset == "smoke", run.options["teacher"]
    try:
        data = cifar10(download=not smoke)
        source = repr(data)
    except (DatasetError, ImportError):
        if not smoke:
            raise
        data, source = made_up_images(s, run.seed), "made-up images (CIFAR-10 is not here)"
        teacher = HARD if teacher == PACKAGED else teacher
    labels = soft_labels(teacher, data)
    order = np.random.default_rng(run.seed).permutation(len(data.x_train))
    data = dataclasses.replace(
        data, x_test=data.x_test[: s.test_images], y_test=data.y_test[: s.test_images]
    )
    return Material(data, labels, source, order[: s.images], order[-s.held_out :])


def made_up_images(s: CIFAR10Settings, seed: int) -> CIFAR10:
    """Noisy stripes, whose direction and colour tell the class."""
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:SIDE, :SIDE] / SIDE

    def some(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, CLASSES, n)
        angle = np.pi * labels[:, None, None] / CLASSES
        wave = np.sin(20 * (row * np.sin(angle) + column * np.cos(angle)))
        colour = 1 + np.sin(labels[:, None] + np.arange(3))
        noise = rng.normal(0, 40, (n, SIDE, SIDE, 3))
        images = 128 + 30 * wave[..., None] * colour[:, None, None] + noise
        return images.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)

    return CIFAR10(*some(s.images + s.held_out), *some(s.test_images))


def run_pair(
    run: Run, material: Material, problem: mvue.Problem, variant: str, seed: int
) -> dict[str, tuple[TrainedStudent, JudgedStudent]]:
    """Train and judge both students of a seed: the same first weights, the same crops.

    Side by side, because a network this small keeps no more than one core busy.
    """
    crop_key, pair_key = jr.fold_in(run.key, 0), jr.fold_in(run.key, 1 + seed)
    key, network_key = jr.split(pair_key)
    first = Student(network_key)

    def work(kind: str) -> tuple[TrainedStudent, JudgedStudent]:
        trained = train(run, problem, first, kind, variant, seed, key)
        return trained, judge(trained, material, run.settings, crop_key)

    with ThreadPoolExecutor(len(SOFT_LOSSES)) as threads:
        return dict(zip(SOFT_LOSSES, threads.map(work, SOFT_LOSSES), strict=True))


def train(
    run: Run,
    problem: mvue.Problem,
    student: Student,
    kind: str,
    variant: str,
    seed: int,
    key: Array,
) -> TrainedStudent:
    """One student, by SGD in equal parts; checkpoints are the ends of the last of them."""
    s: CIFAR10Settings = run.settings
    parts = s.checkpoints + s.unchecked_parts
    matched, weight, _ = VARIANTS[variant]
    loss = StudentLoss(kind, matched, weight)
    optimizer = optax.sgd(s.learning_rate, s.momentum, nesterov=True)
    quiet = dataclasses.replace(run, say=lambda _: None)
    checkpoints, started = [], time.perf_counter()
    for part in range(parts):
        fit = quiet.fit(
            f"{kind}-{variant}-{seed}-{part}",
            problem,
            student,
            loss,
            key=jr.fold_in(key, part),
            steps=max(1, s.steps // parts),
            batch_size=s.batch_size,
            repeats=s.repeats,
            optimizer=optimizer,
            keep="last",
            validations=1,
        )
        student = cast(Student, fit.estimator)
        if part >= parts - s.checkpoints:
            checkpoints.append(student)
    return TrainedStudent(checkpoints, time.perf_counter() - started, loss.describe(s.repeats))


def judge(
    trained: TrainedStudent, material: Material, s: CIFAR10Settings, key: Array
) -> JudgedStudent:
    """Accuracy on the test images, bias and variance on training images, by the same crops."""
    data, values = material.data, material.soft_labels.values
    found = [
        accuracy_by_crops(crop_logits(student, data.x_test, key, s.crops), data.y_test)
        for student in trained.checkpoints
    ]

    def moments(rows: np.ndarray) -> SoftLabelMoments:
        logits = crop_logits(trained.checkpoints[-1], data.x_train[rows], key, s.crops)
        return soft_label_moments(logits, values[rows])

    return JudgedStudent(
        {way: np.stack([one[way] for one in found]) for way in found[0]},
        moments(material.seen[: s.held_out]),
        moments(material.held_out),
    )
