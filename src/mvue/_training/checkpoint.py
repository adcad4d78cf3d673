"""Checkpoints of training states: atomic, and tied to the identity of the run.

Each checkpoint holds the leaves of the training state and a record: what the run is (its
identity), its history so far, and a digest of the leaves. A run resumes only from a checkpoint
of the same identity. That comes from what was asked, so that a run can be resumed on another kind
of machine: what was decided before training from simulations is kept in a file of its own.
"""

import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jaxtyping import PyTree

from .._core.problem import Draw
from .._core.types import Key
from .._data.shards import holds_simulations
from .._default.decisions import Decisions, Question, as_contents, decide, from_contents
from .._runtime.devices import agreed, from_first, is_first_process
from .._runtime.digest import TOLERANCE, arrays_digest, same_identity
from .._runtime.locks import FolderInUseError, only_one
from .._runtime.progress import Progress
from .._serialise.container import Contents, read_stream, write
from .._serialise.tree import BrokenTreeError, UnsavableError
from .._version import __version__
from ..exceptions import CheckpointError, CheckpointWarning, ModelFileError

KEEP = 3
DECISIONS = "decisions.safetensors"
TOLERANCES = {"pilot": 1e-2}  # simulations may magnify rounding
UNFINISHED = ".orbax-checkpoint-tmp"
"""In the names of folders that Orbax is still writing."""


class Checkpoints:
    """The checkpoints of one training run in one folder.

    Args:
        directory: the folder; made if it is not there.
        identity: what the run is, as a flat dict that JSON can hold.
    """

    def __init__(self, directory: str | Path, identity: dict[str, Any]) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise ImportError("checkpoint= needs Orbax: pip install 'mvue[checkpoint]'") from error
        self._args = ocp.args
        self.directory = Path(directory).resolve()
        self.identity = identity
        self._manager: Any = None
        self._lock = ExitStack()
        if not is_first_process():
            return  # one process writes for all
        self._lock.enter_context(_locked(self.directory))
        self._remove_unfinished()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEEP,
            enable_async_checkpointing=False,
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes={0}),
        )
        with _quiet():
            self._manager = ocp.CheckpointManager(
                self.directory, options=options, item_names=("record", "state")
            )

    def save(self, step: int, state: PyTree, history: dict[str, Any]) -> None:
        """Write the state after `step` steps, unless it is there already."""
        if self._manager is None or step == self._manager.latest_step():
            return
        leaves = jax.tree.map(np.asarray, _numbered(state))
        record = {"identity": self.identity, "history": history, "digest": arrays_digest(leaves)}
        args = self._args.Composite(
            state=self._args.StandardSave(leaves), record=self._args.JsonSave(record)
        )
        try:
            with _quiet():
                self._manager.save(step, args=args)
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the state of step {step} could not be saved in {self.directory}: {error}. "
                "Training goes on, and saving is tried again",
                CheckpointWarning,
                stacklevel=4,
            )

    def restore(self, like: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """The newest readable state and its history, or None in an empty folder.

        A checkpoint that cannot be read is set aside, with a warning, once an older one has been
        read in its place.

        Args:
            like: a state of the same structure.
        """
        try:
            return self._restored(like)
        except BaseException:
            self.close()
            raise

    def _restored(self, like: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        found, error = None, None
        if self._manager is not None:
            try:
                found = self._newest(like)
            except CheckpointError as problem:
                error = problem
        text = b"" if found is None else json.dumps(found[1]).encode()
        failed, there, length = agreed(error is not None, found is not None, len(text))[0]
        if failed:
            raise error or CheckpointError("the first process cannot resume; it says why")
        if not there:
            return None
        state, history = (like, bytes(int(length))) if found is None else (found[0], text)
        state, history = from_first((state, np.frombuffer(history, np.uint8)))
        return state, json.loads(history.tobytes())

    def _newest(self, like: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        damaged: list[int] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                record = self._restore(step, record=self._args.JsonRestore()).record
                identity = record["identity"]
            except Exception:
                damaged.append(step)
                continue
            _check_identity(self.directory, identity, self.identity)
            try:
                target = jax.tree.map(_as_struct, _numbered(like))
                leaves = self._restore(step, state=self._args.StandardRestore(target)).state
                if arrays_digest(leaves) != record["digest"]:
                    raise ValueError("digest differs")
            except Exception:
                damaged.append(step)
                continue
            for bad in damaged:
                warnings.warn(
                    f"the checkpoint of step {bad} in {self.directory} is damaged; resuming from "
                    f"the one of step {step}",
                    stacklevel=4,
                )
                self._set_aside(bad)
            ordered = [leaves[name] for name in _numbered(like)]
            return jax.tree.unflatten(jax.tree.structure(like), ordered), record["history"]
        if damaged:
            raise CheckpointError(
                f"none of the checkpoints in {self.directory} can be read (steps "
                f"{', '.join(map(str, sorted(damaged)))}): delete the folder or choose another"
            )
        return None

    def _set_aside(self, step: int) -> None:
        """Rename a folder that cannot be read: whatever it is, it is not ours to delete."""
        folder = self.directory / str(step)
        name = f"{step}.damaged"
        while (self.directory / name).exists():
            name += "+"
        folder.rename(self.directory / name)
        with _quiet():
            self._manager.reload()

    def _remove_unfinished(self) -> None:
        """Remove what a process has left that was killed while it saved."""
        for folder in self.directory.glob(f"*{UNFINISHED}*"):
            if folder.name.partition(".")[0].isdigit():
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Finish writing, and let others use the folder."""
        if self._manager is not None:
            with _quiet():
                self._manager.close()
        self._lock.close()

    def _restore(self, step: int, **items: Any) -> Any:
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            return self._manager.restore(step, args=self._args.Composite(**items))


def kept_decisions(
    directory: str | Path | None,
    question: Question,
    identity: Callable[[], dict[str, Any]],
    stages: Progress,
) -> Decisions:
    """The decisions of a run: those that its checkpoints began with, or new ones, which are kept.

    Args:
        directory: of the checkpoints; None if there are none.
        question: what is to be decided.
        identity: of all that was asked.
        stages: where to say how far it is.
    """
    if directory is None:
        return decide(question, stages)
    folder = Path(directory).resolve()
    asked = {**identity(), **versions_and_key(question.key)}
    found = _read_decisions(folder, asked)
    if found is None:
        made = decide(question, stages)
        try:
            contents = as_contents(question, made)
        except UnsavableError:
            return made  # whoever resumes decides again
        contents.header["identity"] = asked
        # Whoever was faster has decided.
        found = _read_decisions(folder, asked, or_write=contents)
        if found is None:
            return made
    try:
        return from_contents(question, found)
    except BrokenTreeError as error:
        raise CheckpointError(
            f"{folder / DECISIONS} cannot be used: {error}. Choose another folder, or delete this "
            "one to start afresh"
        ) from error


def _read_decisions(
    folder: Path, asked: dict[str, Any], or_write: Contents | None = None
) -> Contents | None:
    """What is in the folder, in all processes; None if nothing is, or all of it is damaged."""
    data, error = b"", None
    if is_first_process():
        try:
            data = _decisions_of(folder, asked, or_write)
        except CheckpointError as problem:
            error = problem
    failed, length = agreed(error is not None, len(data))[0]
    if failed:
        raise error or CheckpointError("the first process cannot resume; it says why")
    if not length:
        return None
    data = from_first(np.frombuffer(data or bytes(int(length)), np.uint8)).tobytes()
    return read_stream(io.BytesIO(data), len(data))


def _decisions_of(folder: Path, asked: dict[str, Any], or_write: Contents | None) -> bytes:
    path = folder / DECISIONS
    with _locked(folder):
        if path.exists():
            data = path.read_bytes()
            try:
                found = read_stream(io.BytesIO(data), len(data)).header["identity"]
            except (ModelFileError, KeyError):
                warnings.warn(f"{path} is damaged: what it held is decided again", stacklevel=5)
                path.rename(path.with_name(f"{DECISIONS}.damaged"))
            else:
                _check_identity(folder, found, asked)
                return data
        # Beside checkpoints that have none, they might be those of another run.
        if or_write is not None and not any(f.name.isdigit() for f in folder.iterdir()):
            try:
                write(path, or_write)
            except OSError as error:
                warnings.warn(
                    f"what was decided before training could not be saved in {folder}: {error}. "
                    "Training goes on",
                    CheckpointWarning,
                    stacklevel=5,
                )
    return b""


def typical(pilot: Draw) -> list[float]:
    """Moments of a pilot draw: they tell problems apart whose program looks the same."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((pilot.y, pilot.x))]
    leaves = [np.abs(leaf.astype(np.result_type(leaf, np.float64))) for leaf in leaves]
    return [float(value) for leaf in leaves for value in (leaf.mean(), leaf.std())]


def versions_and_key(key: Key) -> dict[str, Any]:
    """What every identity has."""
    return {
        "key": np.asarray(jr.key_data(key)).tolist(),
        "mvue": __version__,
        "jax": jax.__version__,
        "double precision": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
    }


def _check_identity(folder: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    def same(name: str) -> bool:
        tolerance = TOLERANCES.get(name, TOLERANCE)
        return same_identity(found.get(name), asked.get(name), tolerance)

    names = [name for name in asked | found if not same(name)]
    if names:
        lines = "\n".join(_difference(n, found.get(n), asked.get(n)) for n in names)
        raise CheckpointError(
            f"the checkpoint in {folder} is of another training run:\n{lines}\n"
            "Nothing was changed. Choose another folder, or delete this one to start afresh."
        )


def _difference(name: str, found: Any, asked: Any) -> str:
    numbers = name in ("program", "problem", "first_state", "pilot")
    return f"  {name}: " + ("another" if numbers else f"{found!r} there, {asked!r} here")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A folder to write in, which nobody else does."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"checkpoint must be a folder, got the file {folder}")
    if holds_simulations(folder):
        raise CheckpointError(
            f"checkpoint must be a folder of its own, got {folder}, which holds simulated data: "
            "choose another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CheckpointError(f"checkpoint must be a folder to write in: {error}") from error
    lock = ExitStack()
    try:
        lock.enter_context(only_one(folder))
    except FolderInUseError as error:
        raise CheckpointError(
            f"checkpoint {folder} is in use: {error}. Wait until it has finished, or choose "
            "another folder"
        ) from None
    with lock:
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the many lines that Orbax logs about what it does."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _numbered(state: PyTree) -> dict[str, Any]:
    return {f"{i:05d}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}


def _as_struct(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
