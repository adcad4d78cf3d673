"""Speed and memory of linear fits, as ratios measured in one run.

Every round times all candidates one after the other; ratios are medians over the rounds, so that
other work on the machine hits all of them alike.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from sklearn.linear_model import Ridge

import mvue
from mvue.sklearn import LinearBCE, linear_bce_path

REPEATS = 5
BIAS_WEIGHT = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rows", type=int, help="default 500,000")
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=50_000, help="rows of a chunk")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = options.rows or (50_000 if options.quick else 500_000)
    if options.stream:
        print(peak_of_stream(options.stream, options.features, options.chunk))
        return
    warnings.simplefilter("ignore", mvue.exceptions.UnresolvedSignalWarning)
    # Memory first: a child process starts with the peak of its parent.
    report_memory(rows, options.features, options.chunk)
    report_times(rows, options.features, options.chunk, options.rounds)


def report_times(rows: int, features: int, chunk: int, rounds: int) -> None:
    X, y = (np.concatenate(parts) for parts in zip(*chunks(rows, features, rows), strict=True))
    X_transposed = X.T

    def stream() -> None:
        model = LinearBCE(BIAS_WEIGHT)
        for i in range(0, rows, chunk):
            model.partial_fit(X[i : i + chunk], y[i : i + chunk])
        _ = model.coef_

    candidates: dict[str, Callable[[], object]] = {
        "X.T @ X": lambda: X_transposed @ X,
        "Ridge(solver='cholesky').fit": lambda: Ridge(solver="cholesky").fit(X, y),
        "LinearBCE.fit": lambda: LinearBCE(BIAS_WEIGHT).fit(X, y),
        "LinearBCE.partial_fit, all chunks": stream,
        "linear_bce_path, 50 bias weights, 5 folds": lambda: linear_bce_path(X, y),
    }
    seconds = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            seconds[name].append(time.perf_counter() - start)
    print(f"{rows:,} x {features} float64, {REPEATS} repeats of each unit, {rounds} rounds")
    if rows < 500_000:
        print("  the aims are for 500,000 rows; fixed costs weigh more here")
    for name, values in seconds.items():
        print(f"  {name:<44}{np.median(values):8.3f} s   (fastest {min(values):.3f} s)")
    product, ridge, fit, streamed, path = (np.array(values) for values in seconds.values())
    for name, ratio, limit in (
        ("fit / (X.T @ X)", fit / product, 1.5),
        ("fit / Ridge(cholesky)", fit / ridge, 1.0),
        ("path of 50 bias weights / fit", path / fit, 1.5),
        (f"partial_fit in chunks of {chunk:,} / fit", streamed / fit, 1.3),
    ):
        print(f"  {name:<44}{np.median(ratio):8.2f}     (aim: at most {limit})")


def report_memory(rows: int, features: int, chunk: int) -> None:
    """Peak memory of streams of two lengths, each in a process of its own."""
    lengths = (4 * chunk, max(rows, 16 * chunk))
    peaks = []
    for length in lengths:
        command = [sys.executable, __file__, "--stream", str(length)]
        command += ["--features", str(features), "--chunk", str(chunk)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    megabytes = [peak / 2**20 for peak in peaks]
    data = [length * features * 8 / 2**20 for length in lengths]
    print("peak memory of partial_fit over chunks, with the chunk itself")
    for length, peak, size in zip(lengths, megabytes, data, strict=True):
        print(f"  {length:>9,} rows ({size:6.0f} MB of data) {peak:8.1f} MB")
    print(f"  ratio {megabytes[1] / megabytes[0]:.3f}     (aim: 1, whatever the number of rows)")


def peak_of_stream(rows: int, features: int, chunk: int) -> int:
    """The largest resident size in bytes while a stream is fitted."""
    import resource

    model = LinearBCE(BIAS_WEIGHT)
    for X, y in chunks(rows, features, chunk):
        model.partial_fit(X, y)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def chunks(rows: int, features: int, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for i in range(0, rows, chunk):
        size = min(chunk, rows - i)
        y = np.repeat(rng.normal(size=size // REPEATS + 1), REPEATS)[:size]
        X = rng.normal(size=(size, features))
        X[:, :10] += y[:, None]
        yield X, y


if __name__ == "__main__":
    main()
