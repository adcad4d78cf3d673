"""What `mvue.load` makes of files that are damaged, changed or hostile.

Mutations of real files must give documented errors only, with nothing opened, imported or executed.
Hostile files are well formed, with a sound checksum, and ask for as much as the grammar of the
format lets them: none may take more than 1 s of CPU and 100 MB.

python benchmarks/fuzz_model_files.py --mutations 1000000 --hostile 5000 --seed 1
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import fuzz_models, hostile_models, models

MOST_SECONDS, MOST_BYTES = 1.0, 100 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=200_000)
    parser.add_argument("--hostile", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deep", type=float, default=0.5, help="share with a sound checksum")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{kind}.mvue" for kind in models.KINDS]
        for file in files:
            models.save_kind(file.stem, file)
        if options.hostile:
            report_hostile(files, options, folder)
        if options.mutations:
            report_mutations(files, options, folder)


def report_hostile(files: list[Path], options: argparse.Namespace, folder: str) -> None:
    counts, costs = hostile_models.run(
        files, count=options.hostile, seed=options.seed, folder=folder
    )
    broken = [cost for cost in costs if cost[0] > MOST_SECONDS or cost[1] > MOST_BYTES]
    print(f"hostile files: {dict(counts)}, {len(broken)} beyond the limits")
    for name, place in (("slowest", 0), ("largest", 1)):
        for cost in sorted(costs, key=lambda cost: -cost[place])[:5]:
            print(f"  {name}  {cost[0]:.2f} s  {cost[1] / 2**20:5.1f} MB  {cost[2][:100]}")


def report_mutations(files: list[Path], options: argparse.Namespace, folder: str) -> None:
    begun = time.process_time()
    found = fuzz_models.run(
        files,
        mutations=options.mutations,
        seed=options.seed,
        folder=folder,
        watch=True,
        deep_share=options.deep,
    )
    print(found)
    print(f"{(time.process_time() - begun) / options.mutations * 1e3:.2f} ms of CPU each")


if __name__ == "__main__":
    main()
