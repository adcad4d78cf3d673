"""The entry point `mvue`: experiments, and the commands of the other files."""

import dataclasses
import enum
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from .._version import __version__
from ..exceptions import CheckpointError
from .models import add_commands

app = typer.Typer(
    name="mvue",
    help="Learn minimum-variance unbiased estimators, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Preset(enum.StrEnum):
    """How large a run is."""

    SMOKE = "smoke"
    QUICK = "quick"
    PAPER = "paper"


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"mvue {__version__}")
        raise typer.Exit


@app.command("list")
def list_experiments(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """List the experiments that `mvue reproduce` can run."""
    from ..experiments import EXPERIMENTS

    if as_json:
        rows = [
            {
                "name": e.name,
                "summary": e.summary,
                "presets": list(e.presets),
                "options": {name: dataclasses.asdict(o) for name, o in e.options.items()},
            }
            for e in EXPERIMENTS.values()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(map(len, EXPERIMENTS))
    for experiment in EXPERIMENTS.values():
        typer.echo(f"{experiment.name:<{width}}  {experiment.summary}")
        for option, about in experiment.options.items():
            typer.echo(f"{'':<{width}}  --{option}, by default {about.default}: {about.help}")


@app.command(context_settings={"ignore_unknown_options": True})
def reproduce(
    name: Annotated[str, typer.Argument(help="Which experiment; `mvue list` names them.")],
    own: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--OPTION VALUE]...", help="Options of this experiment; `mvue list` has them."
        ),
    ] = None,
    preset: Annotated[
        Preset,
        typer.Option(
            help="How large: smoke tests the files, quick takes minutes, paper follows the paper."
        ),
    ] = Preset.QUICK,
    seed: Annotated[int, typer.Option(min=0, help="Decides all random numbers.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="runs/NAME")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print results.json instead of the table.")
    ] = False,
) -> None:
    """Run an experiment and write its report.

    Leaves index.html (open it in a browser), results.json, figures/ and model-NAME.mvue (see
    `mvue info`) in the folder. Ctrl-C stops it with exit code 130,
    SIGTERM with 143; the same command resumes.
    """
    from ..datasets import DatasetError
    from ..experiments import EXPERIMENTS, InterruptedRunError, OptionError

    console = Console(stderr=True, highlight=False, emoji=False)
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        console.print(
            f"there is no experiment {name!r}; there are: {known}", style="red", markup=False
        )
        raise typer.Exit(2)
    try:
        with _told_of_sigterm():
            found, folder = EXPERIMENTS[name].reproduce(
                preset=preset.value,
                seed=seed,
                out=out,
                say=lambda line: console.print(line, markup=False, soft_wrap=True),
                options=_own_options(own or []),
            )
    except (InterruptedRunError, KeyboardInterrupt):
        _end("interrupted", EXIT_INTERRUPTED)
    except OptionError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    except (CheckpointError, DatasetError, ImportError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except OSError as error:
        console.print(f"cannot write the results: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"))
    else:
        typer.echo(found.table)
        typer.echo(f"\nReport: {folder / 'index.html'}\nNumbers: {folder / 'results.json'}")


@contextmanager
def _told_of_sigterm() -> Iterator[None]:
    """End with a message when SIGTERM comes; during training, once its state is saved.

    The first process of a container has to do that by itself: the signal alone does not end it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: _end("terminated", EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(how: str, code: int) -> NoReturn:
    sys.stdout.flush()
    # Neither by the usual ways, which a signal may have cut short, nor by unwinding: threads of a
    # computation that was cut short can crash on the way out.
    os.write(2, f"{how}; run the same command again to go on from here\n".encode())
    os._exit(code)


def _own_options(words: list[str]) -> dict[str, str]:
    """Options of one experiment, ``--name value`` or ``--name=value``."""
    found, rest = {}, list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise typer.BadParameter(f"unexpected argument {word!r}")
        if not equals:
            if not rest:
                raise typer.BadParameter(f"{word} needs a value")
            value = rest.pop(0)
        found[name] = value
    return found


add_commands(app)


def main() -> None:
    """Entry point of the command."""
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer cannot be written either: it must not be tried again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        reason = "it was closed" if isinstance(error, BrokenPipeError) else error.strerror
        sys.stderr.write(f"mvue: cannot write to standard output: {reason}\n")
        sys.exit(1)
