"""Tries to break what must hold, and prints one line for each family of attempts.

Nothing that was simulated is lost by kills and full disks; model files that are damaged or hostile
are refused at once; odd inputs give finite numbers or an error that says what to do.

python benchmarks/soundness.py --kills 50 --disks 20 --mutated 20000 --hostile 5000 --odd 1000
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import soundness


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--mutated", type=int, default=5_000)
    parser.add_argument("--hostile", type=int, default=500)
    parser.add_argument("--odd", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    families = [
        soundness.kills(options.kills, options.seed),
        soundness.full_disks(options.disks),
        soundness.odd_inputs(options.odd, options.seed),
        *soundness.model_files(options.mutated, options.hostile, options.seed),
    ]
    for family in families:
        print(family)
        for line in family.broken[:50]:
            print(f"    {line}")
    sys.exit(any(family.broken for family in families))


if __name__ == "__main__":
    main()
