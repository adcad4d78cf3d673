"""The commands for saved models."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import mvue
from helpers import models
from mvue.cli.data_files import read_pieces, writing
from mvue.cli.main import app
from mvue.sklearn import LinearBCE

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder):
    """A linear estimator of two parameters from three numbers, and its file."""
    path = folder / "linear.mvue"
    problem = mvue.Problem(
        prior=models.line_problem().prior,
        simulate=lambda key, y: jnp.append(y, 0.0) + 0.5 * jr.normal(key, (3,)),
        names=("east", "north"),
    )
    estimator = mvue.wls(np.eye(3)[:, :2], 0.25)
    mvue.save(estimator, path, problem=problem)
    return path


def run(*arguments, code=0):
    result = runner.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_intervals_are_two_columns_more(model, tmp_path):
    problem = models.line_problem()
    estimator = mvue.wls(np.eye(2), 0.25)
    intervals = mvue.interval(estimator, problem, key=jr.key(0), simulations=4000)
    mvue.save(estimator, tmp_path / "line.mvue", problem=problem, intervals=intervals)
    x = models.numbers(6, 2) / 10
    np.save(tmp_path / "x.npy", x)
    run(
        "predict",
        tmp_path / "line.mvue",
        tmp_path / "x.npy",
        "--level",
        0.8,
        "--out",
        tmp_path / "out.csv",
    )
    header, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert header.split(",")[2:] == ["lower_east", "upper_east", "lower_north", "upper_north"]
    found = intervals(x, level=0.8)
    numbers = np.array([row.split(",") for row in rows], float)
    np.testing.assert_allclose(numbers[:, 2], found.lower[:, 0], rtol=1e-5)
    np.testing.assert_allclose(numbers[:, 5], found.upper[:, 1], rtol=1e-5)
    for level, message in ((1.5, "between 0 and 1"), (0.9999, "simulations")):
        wrong = run("predict", tmp_path / "line.mvue", tmp_path / "x.npy", "--level", level, code=1)
        assert message in wrong.output
    without = run("predict", model, tmp_path / "x.npy", "--level", 0.8, code=1)
    assert "saved without intervals" in without.output


def test_every_kind_of_file_gives_the_same_estimates(model, tmp_path):
    x = models.numbers(50, 3) / 3
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "plain.csv", x, delimiter=",")
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", header="a,b,c", comments="")
    parquet.write_table(
        pyarrow.table({n: x[:, i] for i, n in enumerate("abc")}), tmp_path / "x.parquet"
    )
    expected = mvue.load(model).predict(x)
    np.testing.assert_allclose(expected, x[:, :2], rtol=1e-5)
    for data in ("x.npy", "plain.csv", "x.csv", "x.parquet"):
        for out in ("out.csv", "out.npy", "out.parquet"):
            result = run("predict", model, tmp_path / data, "--out", tmp_path / out, "--json")
            assert json.loads(result.stdout)["rows"] == 50
            (piece,) = read_pieces(tmp_path / out)
            np.testing.assert_allclose(piece.values, expected, rtol=1e-6)
            assert piece.names in (None, ["east", "north"])
    lines = run("predict", model, tmp_path / "x.csv").stdout.splitlines()
    assert lines[0] == "east,north"
    assert len(lines) == 51
    assert np.load(tmp_path / "out.npy").shape == (50, 2)


def test_rows_unlike_training_are_counted(model, tmp_path):
    x = models.numbers(30, 3) / 3
    x[3], x[7, 1], x[9] = 1000.0, np.nan, -50.0
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "out.csv"
    result = run("predict", model, tmp_path / "x.npy", "--out", out, "--flag", "--strict", code=3)
    assert "3 of 30 rows are far outside" in result.stderr
    (piece,) = read_pieces(out)
    assert piece.names == ["east", "north", "outside"]
    assert np.flatnonzero(piece.values[:, 2]).tolist() == [3, 7, 9]
    with pytest.warns(mvue.exceptions.OutsideTrainingWarning, match="3 of 30 measurements"):
        mvue.load(model).predict(x)


@pytest.mark.parametrize("is_set", [True, False])
def test_few_false_alarms(is_set, seed):
    """Fewer than one in a thousand, for tails as heavy as they come and for many dimensions."""
    from mvue._finish.input_range import DRAWS, InputRange

    rng = np.random.default_rng(seed)
    for shape in ((1, 1), (20, 2)) if is_set else ((1,), (30,)):
        for name in ("standard_normal", "standard_cauchy", "standard_exponential", "poisson"):
            draw = getattr(rng, name)
            at = (0.3,) if name == "poisson" else ()
            known = InputRange.of_draws([draw(*at, size=(DRAWS, *shape))], is_set=is_set)
            fresh = draw(*at, size=(50_000, *shape)).astype(float)
            assert known.outside(fresh).mean() < 1e-3
            assert known.outside(np.full_like(fresh[:1], np.nan)).all()
        few = InputRange.of_draws([rng.normal(size=(100, *shape))], is_set=is_set)
        assert few.outside(rng.normal(size=(50_000, *shape))).mean() < 1e-3
        assert few.outside(100 * rng.normal(size=(1000, *shape))).mean() > 0.5


def test_a_shift_of_all_numbers_is_seen():
    from mvue._finish.input_range import InputRange

    rng = np.random.default_rng(0)
    known = InputRange.of_draws([rng.normal(size=(16_384, 100))], is_set=False)
    assert known.outside(1.0 + rng.normal(size=(1000, 100))).mean() > 0.95
    assert known.outside(2.0 * rng.normal(size=(1000, 100))).mean() > 0.95


def test_memory_does_not_grow_with_the_rows(model, tmp_path):
    loaded = mvue.load(model)
    peaks = []
    for rows in (20_000, 200_000):
        path = tmp_path / "x.csv"
        with path.open("w") as stream:
            for _ in range(rows // 1000):
                stream.write("0.1,0.2,0.3\n" * 1000)
        tracemalloc.start()
        with writing(tmp_path / "out.npy", loaded.names) as writer:
            for piece in read_pieces(path):
                writer.write(loaded.predict(piece.values, warn=False))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (rows, 2)
    assert peaks[1] < 1.3 * peaks[0]


def test_columns_by_name(tmp_path):
    import pandas as pd

    X, y = models.rows()
    front = LinearBCE().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    mvue.save(front, tmp_path / "m.mvue")
    mixed = pd.DataFrame(X[:, [2, 0, 1]], columns=["c", "a", "b"]).assign(other=1.0)
    mixed.to_csv(tmp_path / "x.csv", index=False)
    run("predict", tmp_path / "m.mvue", tmp_path / "x.csv", "--out", tmp_path / "out.npy")
    expected = X @ front.coef_.T + front.intercept_
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected)
    # Columns besides those may hold anything.
    noted = mixed.assign(note=['a, "b"', "c"] * (len(X) // 2))
    noted.to_csv(tmp_path / "x.csv", index=False)
    noted.assign(note="plain").to_csv(tmp_path / "plain.csv")
    noted.to_parquet(tmp_path / "x.parquet")
    for data in ("x.csv", "plain.csv", "x.parquet"):
        run("predict", tmp_path / "m.mvue", tmp_path / data, "--out", tmp_path / "out.npy")
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected)
    mixed.drop(columns="b").to_csv(tmp_path / "x.csv", index=False)
    result = run("predict", tmp_path / "m.mvue", tmp_path / "x.csv", code=1)
    assert "no column b" in result.stderr


def test_info(model):
    assert "estimates  east, north" in run("info", model).stdout
    facts = json.loads(run("info", model, "--json").stdout)
    assert facts["names"] == ["east", "north"]
    assert facts["x"] == [{"shape": [3], "dtype": "float32"}]


def test_assess(model, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp, jax.random as jr, mvue, numpyro.distributions as dist\n"
        "problem = mvue.Problem(prior=dist.Uniform(-1.0, 1.0).expand((2,)), "
        "simulate=lambda key, y: jnp.append(y, 0.0) + 0.5 * jr.normal(key, (3,)))\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ("--problem", "mine:problem", "--repeats", "200")
    result = run("assess", model, *options, "--json", "--out", "report.json")
    found = json.loads(result.stdout)["estimators"]["linear"]
    assert found["max_bias_over_sd"] < 0.4
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(result.stdout)
    result = run("assess", model, "--problem", "exponential-rate", code=1)
    assert "the model is for measurements of shape (3,)" in result.stderr
    assert "exponential-rate" in run("assess", model, "--problem", "nothing", code=2).stderr
    assert "no attribute 'x'" in run("assess", model, "--problem", "mine:x", code=2).stderr


def test_gaps_and_quotes_in_tables(model, tmp_path):
    (tmp_path / "x.csv").write_text('"0.1",,0.3\n"0.1","0.2","0.3"\n')
    result = run("predict", model, tmp_path / "x.csv", "--flag", "--out", tmp_path / "out.csv")
    assert "1 of 2 rows" in result.stderr
    found = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1)
    assert np.isnan(found[0, :2]).all()
    assert np.isfinite(found[1]).all()
    (tmp_path / "x.csv").write_text("a,b,c\n")
    assert run("predict", model, tmp_path / "x.csv").stdout == "east,north\n"


def test_every_line_has_its_row(model, tmp_path):
    """Whatever the first line is, and with lines that end a file in several ways."""
    data, out = tmp_path / "x.csv", tmp_path / "out.npy"

    def predicted(text, *options):
        data.write_text(text)
        run("predict", model, data, "--out", out, *options)
        return np.load(out)

    lines = "0.1,0.2,0.3\n0.4,0.5,0.6\n"
    names = ("east,north,up\n", ",a,b\n", "nan_a,inf b,c\n", '"x, y",b,c\n')
    for text in (lines, lines.rstrip(), lines + "\n\n", lines.replace("\n", "\r\n")):
        for first in ("", *names):
            np.testing.assert_allclose(predicted(first + text), [[0.1, 0.2], [0.4, 0.5]])
    assert np.isnan(predicted("nan,0.2,0.3\n" + lines)[0]).all()
    assert len(predicted("1,2,3\n" + lines, "--header")) == 2
    assert len(predicted("a,2,3\n" + lines, "--header")) == 2
    data.write_text("a,b,c\n" + lines)
    result = run("predict", model, data, "--no-header", code=1)
    assert "got 'a' in column 1 of line 1" in result.stderr
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    assert "--header" in run("predict", model, tmp_path / "x.npy", "--header", code=2).stderr


def test_an_empty_line_is_a_missing_number_where_a_line_has_one(tmp_path):
    mvue.save(mvue.wls(np.eye(1), 1.0), tmp_path / "m.mvue")
    (tmp_path / "x.csv").write_text("x\n1\n\n3\n")
    run("predict", tmp_path / "m.mvue", tmp_path / "x.csv", "--out", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy").ravel(), [1, np.nan, 3])


def test_measurements_that_are_not_finite_have_no_estimate(tmp_path):
    """Also where the estimator would make a number of them."""
    cut = eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu), eqx.nn.Linear(2, 2, key=jr.key(0))])
    mvue.save(cut, tmp_path / "m.mvue", problem=models.line_problem())
    assert np.isfinite(cut(jnp.array([-jnp.inf, 0.0]))).all()
    (tmp_path / "x.csv").write_text("0.1,0.2\n-inf,0.2\n0.1,inf\n,0.2\n1e300,0\n")
    run("predict", tmp_path / "m.mvue", tmp_path / "x.csv", "--out", tmp_path / "out.npy")
    found = np.load(tmp_path / "out.npy")
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1:]).all()


def test_pipelines_take_columns_by_name(tmp_path):
    import pandas as pd

    X, y = models.rows()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.iloc[::5, 1] = np.nan
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), LinearBCE(1.0)).fit(table, y)
    mvue.save(pipeline, tmp_path / "m.mvue")
    table.assign(other=1.0)[["other", "c", "b", "a"]].to_csv(tmp_path / "x.csv", index=False)
    run("predict", tmp_path / "m.mvue", tmp_path / "x.csv", "--out", tmp_path / "y.npy", "--strict")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), pipeline.predict(table), rtol=1e-9)
    facts = json.loads(run("info", tmp_path / "m.mvue", "--json").stdout)
    assert facts["estimator"] == "SimpleImputer → StandardScaler → LinearBCE"
    assert "scikit-learn" in facts["versions"]
    # A row of which nothing was measured is not an ordinary one, whatever is filled in.
    np.save(tmp_path / "x.npy", np.full((2, 3), np.nan))
    result = run("predict", tmp_path / "m.mvue", tmp_path / "x.npy", "--strict", code=3)
    assert "2 of 2 rows" in result.stderr


def test_wrong_inputs_are_refused(model, tmp_path):
    cases = {
        "one measurement of shape (3,), 3 numbers in all, got rows of shape (2,)": "1,2\n",
        "must have 3 numbers in every line, got 2 in line 2": "1,2,3\n1,2\n",
        "but line 2 is empty": "1,2,3\n\n1,2,3\n",
        "got 'bad' in column 2 of line 1: write a number or leave it empty": "1,bad,3\n1,2,3\n",
        "got 'n/a' in column 1 of line 1": "n/a,n/a,n/a\n1,2,3\n",
        "a name of its own for each column, got 'a' twice": "a,b,a\n1,2,3\n",
        "must have 2 numbers in every line, got 3 in line 2": "a,b\n1,2,3\n",
        "got 'x' in column 2 of line 2": "a,b,c\n1,x,3\n",
        "must have commas between columns": "1;2;3\n",
        "is empty": "",
        "got rows of shape (4,)": "a,b,c,d\n",
    }
    data = tmp_path / "x.csv"
    for message, text in cases.items():
        data.write_text(text)
        result = run("predict", model, data, "--out", tmp_path / "out.csv", code=1)
        assert message in result.stderr
        assert not (tmp_path / "out.csv").exists()
        assert run("predict", model, data, code=1).stdout == ""
    data.write_bytes("1,2,3".encode("utf-16"))
    assert "not a text in UTF-8" in run("predict", model, data, code=1).stderr
    (tmp_path / "x.npy").write_bytes(b"")
    assert "not a NumPy file of numbers" in run("predict", model, tmp_path / "x.npy", code=1).stderr
    assert not list(tmp_path.glob(".*.part"))
    assert "no file" in run("predict", model, tmp_path / "none.csv", code=1).stderr
    data.with_suffix(".txt").write_text("1,2,3")
    result = run("predict", model, data.with_suffix(".txt"), code=1)
    assert ".parquet, got x.txt" in result.stderr
    assert "not a model file" in run("info", data, code=1).stderr
    missing = run("info", tmp_path / "none.mvue", code=1).stderr
    assert missing.strip().endswith("none.mvue: No such file or directory")
    assert ".parquet, got o.txt" in run("predict", model, data, "--out", "o.txt", code=2).stderr
    assert "--problem no:x: No" in run("assess", model, "--problem", "no:x", code=2).stderr
    assert "--out" in run("predict", model, data, "--json", code=2).stderr
    loaded = mvue.load(model)
    for x, message in (
        (np.zeros((4, 2)), r"of shape \(3,\) or a batch of shape \(n, 3\), got \(4, 2\)"),
        (np.zeros(3), "got one measurement, .*call the estimator itself"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded.predict(x)
    with pytest.raises(TypeError, match="numbers of the kind float32, got complex"):
        loaded.predict(np.zeros((4, 3), complex))
    assert loaded.predict(np.zeros((0, 3))).shape == (0, 2)


@pytest.mark.parametrize("command", ["info", "predict", "assess", "export"])
def test_help_is_for_newcomers(command):
    text = run(command, "--help").stdout
    assert "Exit codes: 0 done" in " ".join(text.split())
    assert "MODEL" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_what_cannot_be_printed_is_told_in_one_sentence(model, tmp_path):
    (tmp_path / "x.csv").write_text("0.1,0.2,0.3\n")
    for arguments in (["info", model], ["predict", model, tmp_path / "x.csv"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "mvue", *map(str, arguments)],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr == "mvue: cannot write to standard output: No space left on device\n"


def test_a_pipe_that_is_closed_ends_without_a_traceback(model):
    command = [sys.executable, "-m", "mvue", "info", str(model)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert "Traceback" not in said
    assert "Exception" not in said


def test_the_command_itself(model):
    done = subprocess.run(
        [sys.executable, "-m", "mvue", "info", str(model)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Model: LinearEstimator")


def test_assess_certifies(model, tmp_path, monkeypatch):
    path = tmp_path / "certified.py"
    path.write_text(
        "import jax.numpy as jnp, jax.random as jr, mvue, numpyro.distributions as dist\n"
        "def problem(shift=0.0):\n"
        "    return mvue.Problem(dist.Uniform(-1.0, 1.0).expand((2,)),\n"
        "        lambda key, y: jnp.append(y, 0.0) + shift + 0.5 * jr.normal(key, (3,)),\n"
        "        names=('east', 'north'))\n"
        "shifted = problem(0.2)\n"
        "near = problem(0.05)\n"
    )
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy.mvue"
    copy.write_bytes(model.read_bytes())
    certify = ("--certify", "0.1", "--repeats", "8000")
    result = run("assess", copy, "--problem", "certified:problem", *certify, "--store")
    assert "pass: |bias|/sd ≤ 0.1 at all 13 values of east, north" in result.stdout
    assert "pass: |bias|/sd ≤ 0.1" in run("info", copy).stdout
    assert json.loads(run("info", copy, "--json").stdout)["certificate"]["decision"] == "pass"
    result = run("assess", copy, "--problem", "certified:shifted", *certify, "--json", code=1)
    assert json.loads(result.stdout)["certificates"]["copy"]["decision"] == "fail"
    near = ("assess", copy, "--problem", "certified:near", "--repeats", "3000")
    assert "undecided" in run(*near, "--certify", "0.1", code=2).stdout
    before = ("assess", model, "--problem", "certified:problem")
    assert "--certify must be" in run(*before, "--certify", "0", code=2).stderr
    assert "--confidence must be" in run(*before, *certify, "--confidence", "1", code=2).stderr
    assert "--store is about" in run(*before, "--store", code=2).stderr
    assert "--confidence is about" in run(*before, "--confidence", "0.9", code=2).stderr


def test_what_is_read_is_not_written_over(model, tmp_path):
    data, link = tmp_path / "x.csv", tmp_path / "link.csv"
    data.write_text("1,2,3\n")
    link.symlink_to(data)
    before = model.read_bytes()
    for out in (data, link):
        assert "would be written over" in run("predict", model, data, "--out", out, code=2).output
    assert "would be written over" in run("export", model, model, code=2).output
    assert data.read_text() == "1,2,3\n"
    assert model.read_bytes() == before


@pytest.mark.parametrize("rows", ["1_0,2,3\n1,2,3\n", "1,2,3\n1_0,2,3\n"])
def test_digits_with_underscores_are_no_numbers(model, tmp_path, rows):
    (tmp_path / "x.csv").write_text(rows)
    assert "got '1_0'" in run("predict", model, tmp_path / "x.csv", code=1).output


def test_files_that_were_appended_to_each_other_are_refused(tmp_path):
    """The rows of all but one would be lost without a word."""
    one, other = (np.arange(6.0).reshape(rows, 2) for rows in (3, 3))
    with (tmp_path / "x.npy").open("wb") as stream:
        np.save(stream, one)
        np.save(stream, other)
    with pytest.raises(ValueError, match="must hold one array, got 176 bytes after that of shape"):
        list(read_pieces(tmp_path / "x.npy"))
    with writing(tmp_path / "x.parquet", ["a", "b"]) as table:
        table.write(one)
    alone = (tmp_path / "x.parquet").read_bytes()
    (found,) = read_pieces(tmp_path / "x.parquet")
    np.testing.assert_array_equal(found.values, one)
    (tmp_path / "x.parquet").write_bytes(2 * alone)
    with pytest.raises(ValueError, match="must be one Parquet file, got several that were joined"):
        list(read_pieces(tmp_path / "x.parquet"))
    (tmp_path / "x.parquet").write_bytes(alone[:4] + alone)
    with pytest.raises(ValueError, match=r"not a sound Parquet file|several that were joined"):
        list(read_pieces(tmp_path / "x.parquet"))
    with writing(tmp_path / "x.csv", ["a", "b"]) as table:
        table.write(one)
    (tmp_path / "x.csv").write_text(2 * (tmp_path / "x.csv").read_text())
    with pytest.raises(ValueError, match="must have numbers only, got 'a' in column 1 of line 5"):
        list(read_pieces(tmp_path / "x.csv"))
