"""The default recipe, `mvue.fit(problem, key=key)`, against exact answers over several seeds.

Problems are named, or `core`, or `others` for those of the catalogue with an exact answer that are
not in the core, or `plain` or `further` for simulators that the catalogue does not have. The table
has the worst |bias| in standard deviations of the exact estimator and the smallest … largest ratio
of the MSEs, over values that span the range, for each seed.

    python benchmarks/recipe.py others --seeds 0 1 2
"""

import argparse

import jax.random as jr
import numpy as np

import mvue
from further_problems import FURTHER
from mvue.experiments.textbook.results import BIAS_BAND, MSE_BAND, JudgedProblem
from mvue.problems import textbook
from plain_problems import PLAIN


def named(names):
    if names == ["core"]:
        return [entry for entry in textbook().values() if entry.core and entry.kind != "control"]
    if names == ["others"]:
        return [entry for entry in textbook().values() if entry.mvue and not entry.core]
    if names == ["plain"]:
        return PLAIN
    if names == ["further"]:
        return FURTHER
    known = {entry.name: entry for entry in [*PLAIN, *FURTHER]}
    entries = [known[name] if name in known else textbook(name) for name in names]
    for entry in entries:
        if entry.kind == "control":
            raise SystemExit(f"{entry.name} is a control: nothing unbiased to compare with")
    return entries


def judge(entry, seed, repeats):
    fit = mvue.fit(entry.problem, key=jr.key(seed), progress=False)
    report = mvue.assess(
        {"bce": fit.estimator, "best": entry.mvue or entry.reference},
        entry.problem,
        at=entry.at,
        repeats=repeats,
        key=jr.fold_in(jr.key(seed), 1),
        progress=False,
    )
    sd = report["best"].sd if entry.variance is None else np.sqrt(entry.variance(entry.at))
    return JudgedProblem(entry, report, "best", sd, {"bce": fit}, {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--repeats", type=int, default=40_000)
    given = parser.parse_args()
    inside = trainings = 0
    print("| problem | worst \\|bias\\|/sd | MSE/MVUE | seconds |\n|---|---|---|---|")
    for entry in named(given.problems):
        found = [judge(entry, seed, given.repeats) for seed in given.seeds]
        biases = ", ".join(one.worst_bias("bce").text() for one in found)
        ratios = ", ".join(one.mse("bce").text() for one in found)
        seconds = ", ".join(f"{one.fits['bce'].seconds:.0f}" for one in found)
        print(f"| `{entry.name}` | {biases} | {ratios} | {seconds} |", flush=True)
        inside += sum(one.is_within("bce") for one in found)
        trainings += len(found)
    print(f"\nwithin both bands ({BIAS_BAND}, {MSE_BAND}): {inside} of {trainings} trainings")


if __name__ == "__main__":
    main()
