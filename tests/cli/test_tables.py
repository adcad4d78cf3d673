"""Tables that other programs write: no row of theirs is lost without a word."""

import numpy as np
import pytest
from typer.testing import CliRunner

import mvue
from mvue.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables")
    mvue.save(mvue.wls(np.eye(3), 1.0), path / "three.mvue")
    mvue.save(mvue.wls(np.eye(1), 1.0), path / "one.mvue")
    return path


def predict(folder, data, model="three", out="out.npy"):
    (folder / "out.npy").unlink(missing_ok=True)
    done = CliRunner().invoke(
        app, ["predict", str(folder / f"{model}.mvue"), str(data), "--out", str(folder / out)]
    )
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("−0.5,−0.2,−0.1", "−0.5"),  # with the sign that typesetters use
        ("-nan(ind),1.#QNAN,1.#IND", "-nan(ind)"),
        ("#DIV/0!,#NAME?,#REF!", "#DIV/0!"),
        ("1.0D-3,2.0D-3,3.0D-3", "1.0D-3"),
        ("0x10,0x11,0x12", "0x10"),
        ("1.0 V,2.0 V,3.0 V", "1.0 V"),
        ('"1,000","2,000","3,000"', "1,000"),
        ("a,-,c", "-"),
        ("n.a.,missing,NaT", "n.a."),
    ],
)
def test_numbers_in_another_notation_are_not_taken_for_names(folder, first, names):
    data = folder / "x.csv"
    data.write_text(first + "\n1,2,3\n", encoding="utf-8")
    done = predict(folder, data)
    assert done.exit_code == 1
    assert f"got {names!r} in column" in done.stderr
    assert "give --header" in done.stderr


@pytest.mark.parametrize("first", ["0.1 0.2", "12 V", "1.5 # first", "#NAME?"])
def test_the_same_where_a_row_has_one_number(folder, first):
    (folder / "x.csv").write_text(first + "\n2\n3\n")
    assert "numbers only or names only" in predict(folder, folder / "x.csv", "one").stderr


@pytest.mark.parametrize("first", ["# a,b,c", "#a,(b),µ", '"a ""1""",_b,Δt', ",b,c", "x 1,$y$,|z|"])
def test_names_of_many_kinds(folder, first):
    (folder / "x.csv").write_text(first + "\n1,2,3\n", encoding="utf-8")
    assert predict(folder, folder / "x.csv").exit_code == 0
    assert np.load(folder / "out.npy").tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("text", ['a,b,c\n1,2,"3\n4,5,6\n', "a" * 200_000 + ",b,c\n1,2,3\n"])
def test_cells_without_end_are_refused(folder, text):
    (folder / "x.csv").write_text(text)
    assert (
        "cells that end in their line, and quotes in pairs"
        in predict(folder, folder / "x.csv").stderr
    )


def test_arrays_of_other_programs(folder):
    """Swapped bytes, as FITS has them, and more digits than JAX knows."""
    x = np.arange(6.0).reshape(2, 3)
    for dtype in (">f8", ">f4", ">i2", np.longdouble):
        np.save(folder / "x.npy", x.astype(dtype))
        assert predict(folder, folder / "x.npy").exit_code == 0
        assert np.load(folder / "out.npy").tolist() == x.tolist()
        assert mvue.load(folder / "three.mvue")(x.astype(dtype)).tolist() == x.tolist()


def test_files_that_cannot_be_used_are_told_in_words(folder):
    np.savez(folder / "x", a=np.ones((2, 3)), b=np.ones(2))
    (folder / "x.npz").replace(folder / "archive.npy")
    done = predict(folder, folder / "archive.npy")
    assert "must hold one array, got an archive of 2" in done.stderr
    np.save(folder / "x.npy", np.ones((2, 3)))
    assert "File name too long" in predict(folder, folder / "x.npy", out="n" * 300 + ".csv").stderr
