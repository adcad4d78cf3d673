"""The frame of every experiment: settings, presets, the folder of a run and the files in it."""

import dataclasses
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.random as jr

import mvue

from .._display.pages import Section, write_json, write_page
from .._serialise.files import opened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOKE = "smoke"
MEANS_NOTHING = "smoke preset: checks that it runs; the numbers mean nothing"
TIMED_BATCH = 100_000
Say = Callable[[str], None]


class InterruptedRunError(Exception):
    """Training was interrupted; what was done is kept for the next run."""


class OptionError(ValueError):
    """An option of an experiment that cannot be meant; the message says what can."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of an experiment: where, how large, with which seed."""

    preset: str
    settings: Any
    seed: int
    folder: Path
    say: Say
    progress: bool | None = None
    fits: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What was trained, by name: fits, or fitted estimators of scikit-learn."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Values of the options that the experiment has."""

    @property
    def key(self) -> jax.Array:
        """The key that all random numbers of the run come from."""
        return jr.key(self.seed)

    @property
    def unfinished(self) -> Path:
        """Where interrupted training is kept until the run is complete."""
        return self.folder / "unfinished" / f"{self.preset}-seed{self.seed}"

    def fit(self, name: str, *args: Any, **settings: Any) -> mvue.Fit:
        """Train one estimator as `mvue.fit` does; interrupted training resumes in the next run."""
        self.say(f"training {name} ...")
        saving = {"checkpoint": self.unfinished / name, "progress": self.progress}
        with warnings.catch_warnings():
            # The run itself judges every estimator, and shows what it finds.
            warnings.simplefilter("ignore", mvue.exceptions.PoorFitWarning)
            fit = mvue.fit(*args, **settings, **saving)
        self.say(str(fit))
        if fit.outcome is mvue.Outcome.INTERRUPTED:
            raise InterruptedRunError
        self.fits[name] = fit
        return fit


@dataclasses.dataclass(frozen=True)
class Findings:
    """What an experiment found."""

    estimators: Mapping[str, Mapping[str, Any]]
    """One entry for each estimator, for ``results.json``."""
    lead: str
    """The finding in one or two sentences."""
    sections: Sequence[Section]
    """The body of the page."""
    figures: Mapping[str, "Figure"]
    """Saved under these names."""
    table: str
    """What the command line prints."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further entries of ``results.json``, such as results nested by problem."""


@dataclasses.dataclass(frozen=True)
class Option:
    """A choice that one experiment leaves to whoever runs it: ``--NAME VALUE``."""

    default: str
    help: str


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment that anyone can repeat with one command."""

    name: str
    title: str
    summary: str
    presets: Mapping[str, Any]
    """Settings by name: ``smoke`` for seconds, ``quick`` for minutes, ``paper`` for the paper's."""
    body: Callable[[Run], Findings]
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    """By name; all are text."""

    def with_defaults(self, given: Mapping[str, str]) -> dict[str, str]:
        """The value of every option."""
        unknown = [name for name in given if name not in self.options]
        if unknown:
            known = ", ".join(f"--{name}" for name in self.options) or "none of its own"
            raise OptionError(f"{self.name} has no option --{unknown[0]}; it has {known}")
        return {name: option.default for name, option in self.options.items()} | dict(given)

    def reproduce(
        self,
        *,
        preset: str = "quick",
        seed: int = 0,
        out: str | Path | None = None,
        say: Say = lambda _: None,
        progress: bool | None = None,
        options: Mapping[str, str] | None = None,
    ) -> tuple[Findings, Path]:
        """Run and leave results in a folder.

        These are ``index.html``, ``results.json``, ``figures/`` and ``model-NAME.mvue`` for all
        that was trained, to use with `mvue.load` and on the command line.

        Args:
            preset: how large.
            seed: decides all random numbers.
            out: the folder, by default ``runs/NAME``.
            say: called with a line of text now and then.
            progress: show progress bars; by default on a terminal only.
            options: values of options of this experiment; the others have their defaults.
        """
        if preset not in self.presets:
            raise ValueError(f"preset must be one of {list(self.presets)}, got {preset!r}")
        chosen = self.with_defaults(options or {})
        folder = Path(out) if out is not None else Path("runs") / self.name
        folder.mkdir(parents=True, exist_ok=True)
        settings = self.presets[preset]
        run = Run(preset, settings, seed, folder, say, progress, options=chosen)
        notice = MEANS_NOTHING if preset == SMOKE else ""
        if notice:
            say(notice)
        started = time.perf_counter()
        found = self.body(run)
        seconds = time.perf_counter() - started
        if notice:
            found = _marked(found, notice)
        config = dataclasses.asdict(settings) | chosen
        results = {
            "experiment": self.name,
            "preset": preset,
            "meaningful": not notice,
            "seed": seed,
            "seconds": round(seconds, 3),
            "versions": versions(),
            "config": config,
            "estimators": found.estimators,
            **found.more,
        }
        figures = folder / "figures"
        figures.mkdir(exist_ok=True)
        for name, figure in found.figures.items():
            for kind in ("png", "svg"):
                with opened(figures / f"{name}.{kind}") as stream:
                    figure.savefig(stream, format=kind)
        facts = {
            "experiment": self.name,
            "preset": preset,
            "seed": seed,
            "seconds": f"{seconds:.0f}",
            "mvue": mvue.__version__,
        }
        write_page(
            folder / "index.html",
            title=self.title,
            notice=notice,
            lead=found.lead,
            facts=facts,
            sections=[*found.sections, settings_section(config)],
        )
        for name, fit in run.fits.items():
            summary = headline(found.estimators.get(name))
            if notice:
                summary = (summary or {}) | {"notice": notice}
            mvue.save(fit, folder / f"model-{name}.mvue", assessment=summary)
        write_json(folder / "results.json", results)
        shutil.rmtree(run.unfinished, ignore_errors=True)
        if run.unfinished.parent.exists() and not any(run.unfinished.parent.iterdir()):
            run.unfinished.parent.rmdir()
        return found, folder


def _marked(found: Findings, notice: str) -> Findings:
    """Findings that nobody can take for results: the notice in all figures and around the table."""
    from .._display.figures import stamp

    in_sections = (s.figure for s in found.sections if s.figure is not None)
    for figure in {id(f): f for f in (*in_sections, *found.figures.values())}.values():
        stamp(figure, notice)
    return dataclasses.replace(found, table=f"{notice}\n\n{found.table}\n\n{notice}")


def headline(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An entry of ``results.json`` without the numbers at each value."""
    if entry is None:
        return None
    return {
        name: headline(value) if isinstance(value, Mapping) else value
        for name, value in entry.items()
        if not isinstance(value, list)
    }


def settings_section(config: Mapping[str, Any]) -> Section:
    """The settings of a run as a table."""

    def text(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    rows = [["setting", "value"], *([name, text(value)] for name, value in config.items())]
    return Section("Settings", table=rows)


def estimate_microseconds(estimator: Any, x: Any) -> float:
    """Time of one estimate in a large batch, the best of a few rounds."""
    function = jax.jit(jax.vmap(estimator))
    return best_microseconds(lambda: jax.block_until_ready(function(x)), len(jax.tree.leaves(x)[0]))


def best_microseconds(batch: Callable[[], Any], count: int) -> float:
    """Time of one of the `count` things that a call does, the best of a few after the first."""
    batch()
    seconds: list[float] = []
    while len(seconds) < 5 and sum(seconds) < 1.0:
        begun = time.perf_counter()
        batch()
        seconds.append(time.perf_counter() - begun)
    return min(seconds) / count * 1e6


def costs(name: str, estimator: Any, fits: Mapping[str, mvue.Fit], x: Any) -> dict[str, Any]:
    """Entries of ``results.json``: what an estimator was trained for, how long, and its speed."""
    entry: dict[str, Any] = {
        "train_seconds": round(fits[name].seconds, 3) if name in fits else 0.0,
        "estimate_microseconds": estimate_microseconds(estimator, x),
    }
    return entry | ({"loss": fits[name].settings["loss"]} if name in fits else {})


def as_text(rows: list[list[str]]) -> str:
    """A table for the terminal."""
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = ["   ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = ("mvue", "jax", "jaxlib", "equinox", "optax", "numpyro", "numpy")
    return {"python": platform.python_version()} | {p: metadata.version(p) for p in packages}
