"""Commands for saved models: what is in a file, estimates from data, assessment, export."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console

from .._assessment.certificate import BiasLimit, Decision
from .._core.checks import checked_names, describe_shapes
from .._core.problem import Problem
from .._intervals.interval import checked_level
from .._models.model import Model
from .._models.save import load, save
from .._serialise.text import json_text
from ..exceptions import ExportError, ModelFileError
from .data_files import KINDS, read_pieces, writing
from .measurements import to_measurements

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_OUTSIDE = 3
EXIT_OF = {Decision.PASS: 0, Decision.FAIL: 1, Decision.UNDECIDED: 2}
CERTIFY_REPEATS = 1_000_000
CODES = "Exit codes: 0 done, 1 a file cannot be read, used or written, 2 wrong arguments"

ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A file that mvue.save wrote, such as model.mvue.")
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog=f"{CODES}.")(info)
    outside = f"{EXIT_OUTSIDE} with --strict, some rows are unlike those of training"
    app.command(epilog=f"{CODES}, {outside}.")(predict)
    decided = "with --certify: 0 pass, 1 fail, 2 undecided, so that only a pass is 0"
    app.command(epilog=f"{CODES}; {decided}.")(assess)
    app.command(epilog=f"{CODES}.")(export)


def info(model: ModelPath, as_json: AsJSON = False) -> None:
    """Say what is in a model file.

    What it estimates, from which measurements, and how it was trained and judged. Nothing in the
    file is executed.
    """
    with _explained():
        loaded = load(model)
    typer.echo(json_text(_facts(loaded)) if as_json else str(loaded))


def predict(
    model: ModelPath,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Measurements: .csv (one measurement in each line, its numbers in order, complex "
            "ones as 0.5-0.3j or as real and imaginary part side by side; names in the first line "
            "are optional), .npy (first axis: measurements) or .parquet.",
        ),
    ],
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of a .csv file has names.",
            show_default="if all of its cells begin with a letter",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the estimates: .csv, .npy or .parquet.", show_default="stdout"),
    ] = None,
    flag: Annotated[
        bool, typer.Option("--flag", help="Add a column that is 1 for rows unlike training.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 if any row is unlike training.")
    ] = False,
    level: Annotated[
        float | None,
        typer.Option(
            help="Add confidence intervals of this level, such as 0.9: two columns more "
            "for each parameter, lower_NAME and upper_NAME."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a summary as JSON; needs --out.")
    ] = False,
) -> None:
    """Estimate from every measurement in a file.

    Files of any length are read and written a piece at a time: one row of estimates for each
    measurement, NaN where it is not finite. Rows that are far outside of what the estimator was
    trained on are counted, and a warning tells how many there are.
    """
    if as_json and out is None:
        _fail("--json prints a summary: say with --out where the estimates go", EXIT_USAGE)
    if header is not None and data.suffix.lower() != ".csv":
        _fail(f"--header and --no-header are for .csv files, got {data.name}", EXIT_USAGE)
    if out is not None and out.suffix.lower() not in KINDS:
        _fail(f"--out must end in {', '.join(KINDS)}, got {out.name}", EXIT_USAGE)
    _keep(out, data, model)
    outside = 0
    with _explained():
        loaded = load(model)
        if loaded.trained_on is None or loaded.names is None:
            raise ValueError(
                f"{model} does not tell the shape of a measurement: save it with mvue.save(..., "
                "problem=problem)"
            )
        features = getattr(loaded.estimator, "feature_names_in_", None)
        features = None if features is None else list(features)
        intervals = None
        if level is not None:
            intervals = loaded.intervals
            intervals.curves.check(checked_level(level))
        ends = [f"{end}_{name}" for name in loaded.names for end in ("lower", "upper")]
        names = [*loaded.names, *([] if level is None else ends), *(["outside"] if flag else [])]
        with writing(out, names) as writer:
            for piece in read_pieces(data, features, header=header):
                x = to_measurements(piece.values, loaded.x, piece.names, writer.rows)
                if not len(piece.values):
                    continue
                unlike = loaded.outside(x)
                estimates = loaded.predict(x, warn=False).reshape(len(unlike), -1)
                outside += int(unlike.sum())
                columns = [estimates]
                if intervals is not None:
                    lower, upper, *_ = intervals.of_estimates(estimates, level)
                    columns.append(np.stack([lower, upper], axis=2).reshape(len(unlike), -1))
                writer.write(np.column_stack([*columns, unlike] if flag else columns))
    if outside:
        Console(stderr=True, highlight=False, emoji=False).print(
            f"warning: {outside:,} of {writer.rows:,} rows are far outside of what the estimator "
            "was trained on, or not finite; do not rely on their estimates",
            style="yellow",
            soft_wrap=True,
        )
    if as_json:
        summary = {"rows": writer.rows, "outside": outside, "names": names, "out": str(out)}
        typer.echo(json.dumps(summary))
    if strict and outside:
        raise typer.Exit(EXIT_OUTSIDE)


def assess(
    model: ModelPath,
    problem: Annotated[
        str,
        typer.Option(
            help="Where measurements come from: a name of the catalogue (an unknown one lists "
            "them), or module:attribute, a Problem of your own. The latter imports and runs that "
            "module.",
        ),
    ],
    repeats: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Measurements at each value; with --certify, the most.",
            show_default="10000, with --certify 1000000",
        ),
    ] = None,
    certify: Annotated[
        float | None,
        typer.Option(
            metavar="LIMIT",
            help="Decide whether |bias|/sd is at most LIMIT at every value, such as 0.05; "
            "simulates until that is decided.",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Of the answer to --certify.", show_default="0.95"),
    ] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Keep the answer to --certify in the model file.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Decides all random numbers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write a report: .html or .json.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Measure bias, variance and MSE of a model by simulation.

    Prints a table with standard errors, and the Cramér-Rao bound where it is known.
    """
    import jax.random as jr

    from .._assessment.assess import assess as measure

    until = _limit(certify, confidence, store)
    repeats = repeats or (10_000 if until is None else CERTIFY_REPEATS)
    if out is not None and out.suffix not in (".html", ".json"):
        _fail(f"--out must end in .html or .json, got {out.name}", EXIT_USAGE)
    found = _problem(problem)
    with _explained():
        loaded = load(model)
        x, _ = found.shapes()
        if loaded.x is not None and _shapes(loaded.x) != _shapes(x):
            raise ValueError(
                f"the model is for measurements of {describe_shapes(loaded.x)}, the problem "
                f"simulates {describe_shapes(x)}"
            )
        nameless = checked_names(None, len(found.names or ()))
        if store and loaded.names not in (None, nameless, found.names) and found.names != nameless:
            raise ValueError(
                f"--store is for the problem of the model, of {', '.join(loaded.names)}; got one "
                f"of {', '.join(found.names or ())}: leave --store out"
            )
        estimator = {model.stem: loaded}
        report = measure(estimator, found, repeats=repeats, until=until, key=jr.key(seed))
        if store:
            save(loaded, model, assessment=report)
        if out is not None:
            (report.to_json if out.suffix == ".json" else report.to_html)(out)
    typer.echo(report.to_json() if as_json else str(report))
    for certificate in report.certificates.values():
        raise typer.Exit(EXIT_OF[certificate.decision])


def _limit(certify: float | None, confidence: float | None, store: bool) -> BiasLimit | None:
    """What to certify, if anything."""
    if certify is None:
        if confidence is not None or store:
            given = "--store" if confidence is None else "--confidence"
            _fail(f"{given} is about a certificate: give --certify LIMIT, too", EXIT_USAGE)
        return None
    try:
        return BiasLimit(certify, BiasLimit.confidence if confidence is None else confidence)
    except ValueError as error:
        message = str(error).replace("max_bias_over_sd", "--certify")
        _fail(message.replace("confidence must", "--confidence must"), EXIT_USAGE)


def export(
    model: ModelPath,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write, such as out.onnx.")
    ],
    as_json: AsJSON = False,
) -> None:
    """Write a model as an ONNX file, for devices without Python or JAX.

    It takes any number of measurements at once. onnxruntime and JAX are compared first: they must
    agree to 1e-5.
    """
    from .._models.onnx import export_onnx

    _keep(out, model)
    with _explained():
        done = export_onnx(load(model), out)
    if as_json:
        inputs = {name: list(shape) for name, shape in done.inputs.items()}
        typer.echo(json.dumps({"path": str(out), "inputs": inputs, "difference": done.difference}))
    else:
        typer.echo(f"{out}: agrees with JAX to {done.difference:.1g} of the largest estimate")


def _facts(model: Model) -> dict[str, Any]:
    import jax

    known = model.trained_on
    return {
        "estimator": model.kind,
        "names": None if model.names is None else list(model.names),
        "x": [
            {"shape": list(leaf.shape), "dtype": leaf.dtype.name}
            for leaf in jax.tree.leaves(model.x)
        ],
        "y_range": None if known is None or known.y_range is None else known.y_range.tolist(),
        "training": model.training,
        "assessment": model.assessment,
        "certificate": model.certificate,
        "versions": model.versions,
    }


def _shapes(x: Any) -> list[tuple[int, ...]]:
    import jax

    return [tuple(leaf.shape) for leaf in jax.tree.leaves(x)]


def _problem(name: str) -> Problem:
    """A problem of the catalogue, or one that the user names as module:attribute."""
    from .. import problems

    others: dict[str, Callable[[], Any]] = {
        "snr": problems.snr,
        "structured-covariance": problems.structured_covariance,
        "rssi-room": problems.rssi_room,
    }
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            sys.path.insert(0, "")  # as `python -m` has it: a module in this folder is found
            found = getattr(importlib.import_module(module), attribute)
            found = found if isinstance(found, Problem) or hasattr(found, "problem") else found()
        else:
            found = others[name]() if name in others else problems.textbook(name)
    except Exception as error:
        more = "" if ":" in name else f", {', '.join(others)}, or module:attribute"
        _fail(f"--problem {name}: {error}{more}", EXIT_USAGE)
    found: Any = getattr(found, "problem", found)
    if not isinstance(found, Problem):
        _fail(f"--problem {name} is not a mvue.Problem but {type(found).__name__}", EXIT_USAGE)
    return found


def _keep(out: Path | None, *inputs: Path) -> None:
    """Refuse to write over what is read."""
    for path in inputs:
        with _explained():
            same = out is not None and out.exists() and path.exists() and out.samefile(path)
        if same:
            _fail(f"{out} is read and would be written over: give another file", EXIT_USAGE)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors that a user can mend, in one sentence."""
    try:
        yield
    except OSError as error:
        named = error.filename2 or error.filename
        if named is None and error.strerror is not None:
            raise  # it concerns standard output
        _fail(str(error) if named is None else f"{named}: {error.strerror}", EXIT_FAILED)
    except (ModelFileError, ExportError, ImportError, ValueError, TypeError) as error:
        _fail(str(error), EXIT_FAILED)


def _fail(message: str, code: int) -> NoReturn:
    console = Console(stderr=True, highlight=False, emoji=False)
    console.print(message, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)
