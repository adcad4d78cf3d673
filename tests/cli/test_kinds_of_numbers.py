"""Tables of complex and of whole numbers."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import mvue
from mvue.cli import app

Z = np.array([[0.5 - 0.3j, 0.25 + 2e-3j, 1 - 1j], [1.5, -2j, 3.0]])


@mvue.register(name="test_kinds.Weighted")
class Weighted(eqx.Module):
    """Tells the places of numbers, and their real and imaginary parts."""

    weight: jax.Array

    def __call__(self, x):
        total = jnp.sum(self.weight * x)
        return jnp.stack([jnp.real(total), jnp.imag(total)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kinds")
    pair = dist.Uniform(-1.0, 1.0).expand((2,))
    waves = mvue.Problem(
        pair, lambda key, y: y[0] + 1j * y[1] + jr.normal(key, (3,), dtype=jnp.complex64)
    )
    counts = mvue.Problem(
        dist.Uniform(1.0, 5.0).expand((2,)), lambda key, y: jr.poisson(key, y.sum(), (3,))
    )
    weight = jnp.array([1.0, 10.0, 100.0])
    mvue.save(Weighted(weight), path / "waves.mvue", problem=waves)
    mvue.save(Weighted(weight), path / "counts.mvue", problem=counts)
    return path


def predict(folder, model, data):
    out = folder / "out.npy"
    out.unlink(missing_ok=True)
    done = CliRunner().invoke(
        app, ["predict", str(folder / f"{model}.mvue"), str(data), "--out", str(out)]
    )
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done, np.load(out) if out.exists() else None


def text(folder, lines):
    (folder / "x.csv").write_text("\n".join(lines) + "\n")
    return folder / "x.csv"


def parts(*columns):
    return [",".join(f"{value:.9g}" for value in row) for row in np.stack(columns, axis=1)]


INTERLEAVED = parts(*[f(column) for column in Z.T for f in (np.real, np.imag)])
IN_HALVES = parts(*Z.real.T, *Z.imag.T)


@pytest.mark.parametrize(
    "lines",
    [
        [",".join(f"{z.real:.9g}{z.imag:+.9g}j" for z in row) for row in Z],
        [",".join(f"({z.real:.9g}{z.imag:+.9g}i)" for z in row) for row in Z],
        ["a,b,c", "0.5-0.3J, 0.25+2e-3j ,1-j".replace("-j", "-1j"), '"1.5",-2j,3'],
        INTERLEAVED,
        ["a,b,c,d,e,f", *INTERLEAVED],
        ["re1,im1,re2,im2,re3,im3", *INTERLEAVED],
        ["re1,re2,re3,im1,im2,im3", *IN_HALVES],
        ["Re(x1),Re(x2),Re(x3),Im(x1),Im(x2),Im(x3)", *IN_HALVES],
        ["x_1_real,x_2_real,x_3_real,x_1_imag,x_2_imag,x_3_imag", *IN_HALVES],
        ["xRe0,xRe1,xRe2,xIm0,xIm1,xIm2", *IN_HALVES],
    ],
)
def test_complex_numbers_are_written_as_such_or_side_by_side(folder, lines):
    done, found = predict(folder, "waves", text(folder, lines))
    assert done.exit_code == 0, done.stderr
    expected = Z @ np.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], expected, rtol=1e-5)


def test_arrays_of_complex_numbers_and_of_pairs(folder):
    for array in (Z, np.stack([Z.real, Z.imag], axis=-1), Z.view(float)):
        np.save(folder / "x.npy", array)
        done, found = predict(folder, "waves", folder / "x.npy")
        assert done.exit_code == 0, done.stderr
        np.testing.assert_allclose(found[:, 0], (Z @ [1, 10, 100]).real, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "lines", "message"),
    [
        ("waves", ["re1,im1,re2,im2,re3,im4", *INTERLEAVED], "tell the real and the imaginary"),
        ("waves", ["re1,im1,re2,im2,a,b", *INTERLEAVED], "such as re1, im1, re2, im2, or of none"),
        ("waves", ["1,2,3"], "6 numbers in all, for each complex one its real part and then"),
        ("waves", ["1j,2j,3j,4j,5j,6j"], "3 numbers in all, for complex numbers, got rows"),
        ("counts", ["1,2,3j"], "must be real numbers, as the model takes them, got complex"),
        (
            "counts",
            ["1,2,3", "1.5,2,3"],
            "must be whole numbers that int32 can hold, .*1.5 in row 2",
        ),
        ("counts", ["a,b,c", "1,2,3", "2,3e9,3"], r"got 3e\+09 in row 2"),
    ],
)
def test_other_numbers_are_refused(folder, model, lines, message):
    done, found = predict(folder, model, text(folder, lines))
    assert done.exit_code == 1
    assert found is None
    assert re.search(message, done.stderr), done.stderr


def test_missing_whole_numbers_have_no_estimate(folder):
    done, found = predict(folder, "counts", text(folder, ["1,2,3", ",2,3", "1,nan,3", "inf,2,3"]))
    assert done.exit_code == 0
    assert np.isnan(found[:, 0]).tolist() == [False, True, True, True]
    assert "3 of 4 rows" in done.stderr


def test_the_index_of_a_table_is_no_column(folder):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({f"x{i}": [1, 2, 3] for i in range(3)}, index=[7, 3, 5])
    expected = 111.0 * np.array([1, 2, 3])
    for named in (table, table.rename_axis("time"), table.reset_index(drop=True)):
        named.to_parquet(folder / "x.parquet")
        done, found = predict(folder, "counts", folder / "x.parquet")
        assert done.exit_code == 0, done.stderr
        np.testing.assert_allclose(found[:, 0], expected)
