"""The default recipe, `mvue.fit(problem, key=key)`, against exact answers over several seeds.

Problems are named, or `core`, or `others` for those of the catalogue with an exact answer that are
not in the core, or `plain` or `further` for simulators that the catalogue does not have. The table
has the worst |bias| in standard deviations of the exact estimator and the smallest … largest ratio
of the MSEs, over values that span the range, for each seed.

    python benchmarks/recipe.py others --seeds 0 1 2

The last column tells whether the exact answer lies in the span of the natural statistics, which the
recipe is given by hand: whether a linear function of them leaves less than a millionth of its
variance at each of the values. Where it does, finding the answer is a regression. An ablation
leaves these statistics out:

    python benchmarks/recipe.py core --without natural
"""

import argparse

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import mvue
from further_problems import FURTHER
from mvue._summaries.joint import choose_statistics
from mvue._summaries.layout import layout_of
from mvue.experiments.textbook.results import BIAS_BAND, MSE_BAND, JudgedProblem
from mvue.problems import textbook
from plain_problems import PLAIN

UNEXPLAINED = 1e-6  # share of the variance of an answer that lies in the span


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


def in_span(entry, draws=2_000):
    """Whether the best estimator is a linear function of the natural statistics."""
    if entry.mvue is None:
        return None
    recipe, pilot = mvue.Recipe(), entry.problem.draw(jr.key(0), 1024, 4)
    layout = layout_of(entry.problem, pilot, recipe.exchangeability, recipe.summaries)
    statistics = choose_statistics(pilot.x, layout, recipe.summaries)

    def both(key, theta):
        x = entry.problem.simulate(key, theta)
        return statistics.natural(x), jnp.reshape(entry.mvue(x), (-1,))

    count = len(jax.tree.leaves(entry.at)[0])
    keys = jr.split(jr.key(1), (count, draws))
    thetas = jax.tree.map(jnp.asarray, entry.at)
    found = jax.jit(jax.vmap(jax.vmap(both, (0, None))))(keys, thetas)
    natural, answer = (np.asarray(part, np.float64) for part in found)
    size = np.abs(natural).max(axis=(0, 1))
    natural = natural / np.where(size > 0, size, 1.0)
    rows = np.concatenate([natural, np.ones((count, draws, 1))], axis=2)
    spread = answer.std(axis=1, keepdims=True)
    worst = 0.0
    for j in range(answer.shape[2]):
        unit = 1 / spread[:, :, j]
        weighted = (rows * unit[:, :, None]).reshape(-1, rows.shape[2])
        solution = np.linalg.lstsq(weighted, (answer[:, :, j] * unit).ravel(), rcond=1e-13)[0]
        rest = (answer[:, :, j] - rows @ solution) * unit
        worst = max(worst, np.mean(rest**2, axis=1).max())
    return bool(worst < UNEXPLAINED)


def judge(entry, seed, repeats, recipe):
    fit = mvue.fit(entry.problem, key=jr.key(seed), recipe=recipe, progress=False)
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
    parser.add_argument("--steps", type=int, help="by default those of the recipe")
    parser.add_argument("--without", choices=["natural"], help="statistics to leave out")
    given = parser.parse_args()
    recipe = mvue.Recipe(
        summaries=mvue.Recipe.Summaries(natural=given.without != "natural"),
        schedule=mvue.Recipe.Schedule(**({} if given.steps is None else {"steps": given.steps})),
    )
    print(f"{recipe}\n")
    inside = trainings = 0
    spanned, outside = [], []
    print("| problem | worst \\|bias\\|/sd | MSE/MVUE | seconds | in the span |")
    print("|---|---|---|---|---|")
    for entry in named(given.problems):
        found = [judge(entry, seed, given.repeats, recipe) for seed in given.seeds]
        biases = ", ".join(one.worst_bias("bce").text() for one in found)
        ratios = ", ".join(one.mse("bce").text() for one in found)
        seconds = ", ".join(f"{one.fits['bce'].seconds:.0f}" for one in found)
        span = in_span(entry)
        known = {None: "no exact answer", True: "yes", False: "no"}[span]
        print(f"| `{entry.name}` | {biases} | {ratios} | {seconds} | {known} |", flush=True)
        if span is not None:
            (spanned if span else outside).append(entry.name)
        inside += sum(one.is_within("bce") for one in found)
        trainings += len(found)
    print(f"\nwithin both bands ({BIAS_BAND}, {MSE_BAND}): {inside} of {trainings} trainings")
    print(f"in the span of the natural statistics: {', '.join(spanned) or 'none'}")
    print(f"outside of it: {', '.join(outside) or 'none'}")


if __name__ == "__main__":
    main()
