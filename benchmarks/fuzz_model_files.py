"""Many mutations of model files: only documented errors, nothing opened, imported or executed.

python benchmarks/fuzz_model_files.py --mutations 1000000 --seed 1
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import fuzz_models, models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deep", type=float, default=0.5, help="share with a sound checksum")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{kind}.mvue" for kind in models.KINDS]
        for file in files:
            models.save_kind(file.stem, file)
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
