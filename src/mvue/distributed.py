"""Training on several machines: every process runs the same program, and they share the work.

After `initialize`, `mvue.fit`, `mvue.fit_data`, `mvue.assess` and `mvue.refit_last_layer` divide
their work over the devices of all processes, and `mvue.sklearn.LinearBCE.fit_pieces` its pieces
over the processes. Give each process the same arguments.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

import jax

LOST = 75  # exit code: a temporary failure, start again
BEAT = 1.0  # seconds between signs of life

_watched: "_Watch | None" = None


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: float = 60.0,
) -> None:
    """Join the other processes of a job. Call this before anything else that uses JAX.

    What is not given is taken from the variables ``MVUE_COORDINATOR``, ``MVUE_PROCESSES`` and
    ``MVUE_PROCESS``, or from SLURM, Kubernetes, Open MPI or a TPU pod, which JAX knows how to ask.

    If one process ends before the others, by an error or because its machine is lost, the others
    say so and end with exit code 75. A job with a checkpoint goes on from there when it is started
    again, on as many devices as there are then.

    Args:
        coordinator: address and port of the first process, such as ``"node1:1234"``.
        processes: how many there are.
        process: the number of this one, from 0.
        timeout: seconds to wait for the others at the start, and after which a process that gives
            no sign of life is taken for lost.
    """
    global _watched
    if _watched is not None:
        raise RuntimeError("mvue.distributed.initialize was called before: once is enough")
    if not timeout > 0:
        raise ValueError(f"timeout must be positive, in seconds, got {timeout!r}")
    coordinator = coordinator or os.environ.get("MVUE_COORDINATOR")
    processes = _number("processes", processes, "MVUE_PROCESSES")
    process = _number("process", process, "MVUE_PROCESS")
    if None not in (processes, process) and not 0 <= process < processes:  # type: ignore[operator]
        raise ValueError(f"process must be from 0 to {processes} - 1, got {process}")  # type: ignore[operator]
    if coordinator is not None and ":" not in coordinator:
        raise ValueError(f"coordinator must be 'address:port', got {coordinator!r}")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=max(1, round(timeout)),
            # Ours comes first, and speaks plainly.
            heartbeat_timeout_seconds=max(10, round(2 * timeout)),
        )
    except ValueError as error:
        raise ValueError(
            "coordinator, processes and process must be given, here, as MVUE_COORDINATOR, "
            "MVUE_PROCESSES and MVUE_PROCESS, or by a scheduler that JAX knows: "
            f"{error}"
        ) from error
    if threading.current_thread() is threading.main_thread():
        # JAX has begun to swallow SIGTERM, which training answers by saving its state.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    _watched = _Watch(timeout)


def shutdown() -> None:
    """Leave the job, once all processes are done. Happens by itself when Python ends."""
    global _watched
    if _watched is not None:
        _watched.leave()
        _watched = None
        jax.distributed.shutdown()


class _Watch:
    """Tells the others that this process lives, and ends it when one of them does not.

    The heartbeat of JAX ends them as surely and as soon, but by aborting with a stack trace of
    C++: nobody is told which process was lost, and no exit code says that the job can be started
    again.
    """

    def __init__(self, timeout: float) -> None:
        from jax._src.distributed import global_state  # the only door to the shared notes

        self.client: Any = global_state.client
        self.timeout, self.own = timeout, jax.process_index()
        self.others = [i for i in range(jax.process_count()) if i != self.own]
        self.done = threading.Event()
        self.seen: dict[int, tuple[str, float]] = {}
        """The last sign of each other process, and when it came."""
        self.sign("0")
        threading.Thread(target=self.watch, daemon=True, name="mvue-watch").start()
        atexit.register(self.leave)

    def sign(self, text: str) -> None:
        self.client.key_value_set(f"mvue/alive/{self.own}", text, allow_overwrite=True)

    def leave(self) -> None:
        """Say that this process is done, so that nobody waits for its signs."""
        if self.done.is_set():
            return
        if hasattr(sys, "last_value"):
            self.fail()
        self.done.set()
        with contextlib.suppress(Exception):  # the others may be gone already
            self.sign("done")

    def fail(self) -> None:
        """End after an error, which may be a consequence of another process being lost."""
        for _ in range(2):  # a first sign may have been given before the process was lost
            now = time.monotonic()
            while not all(self.lives(i, now) for i in self.others):
                time.sleep(BEAT / 4)  # the watch ends this process if no sign comes
        self.done.set()
        with contextlib.suppress(Exception):
            self.sign("failed")
        sys.stderr.flush()
        os._exit(1)  # the usual way out would wait for all

    def lives(self, other: int, since: float) -> bool:
        """Whether another process has given a sign of life since a time, or is done."""
        text, when = self.seen.get(other, ("", since))
        return text == "done" or when > since

    def watch(self) -> None:
        beats, unheard = 0, 0.0
        while not self.done.wait(BEAT):
            beats += 1
            try:
                self.sign(str(beats))
                signs = dict(self.client.key_value_dir_get("mvue/alive/"))
                unheard = 0.0
            except Exception:
                unheard += BEAT
                if unheard > min(self.timeout, 5 * BEAT) and not self.done.is_set():
                    self.end("the first process, which coordinates the job, is gone")
                continue
            for other in self.others:
                self.look(other, signs.get(f"mvue/alive/{other}", ""))

    def look(self, other: int, text: str) -> None:
        """Judge the latest sign of another process."""
        now = time.monotonic()
        if other not in self.seen or self.seen[other][0] != text:
            self.seen[other] = (text, now)
        if text == "failed":
            self.end(f"process {other} ended with an error")
        elif text != "done" and now - self.seen[other][1] > self.timeout:
            self.end(f"process {other} gave no sign of life for {self.timeout:g} seconds")

    def end(self, reason: str) -> None:
        """Nothing that waits for the lost process would ever return: end this one, too."""
        sys.stderr.write(
            f"mvue: process {self.own} of {len(self.others) + 1} stops, because {reason}. What was "
            "saved with checkpoint= is kept: start the job again, on any number of devices, to go "
            "on from there.\n"
        )
        sys.stderr.flush()
        os._exit(LOST)


def _number(name: str, value: int | None, variable: str) -> int | None:
    if value is None and variable in os.environ:
        text = os.environ[variable]
        if not text.strip().isdigit():
            raise ValueError(f"{variable} must be a whole number, got {text!r}")
        return int(text)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value
