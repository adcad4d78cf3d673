"""Does the confidence of certificates hold? Wrong answers in many repetitions of assessments.

The bias of each estimator is at the limit at its worst value, a little beyond it to count a wrong
"pass" and just within it to count a wrong "fail": there these are most frequent. Four problems:
normal errors of two correlated components; skewed errors of an exponential rate; Student's t with 3
degrees of freedom (no fourth moment); rare large errors, one in a hundred, which make up half of
the variance. The last one again with the opposite sign, so that few draws show a bias that rare
ones cancel: a fail is not protected against that.

    python benchmarks/certificate.py --repetitions 1000
"""

import argparse
import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from scipy import stats

import mvue
from mvue._assessment.certificate import Decision, certify

LIMIT, CONFIDENCE = 0.2, 0.95  # a wide limit needs few repeats, which is the harder case
PRIOR = dist.Uniform(0.0, 1.0)
AT = np.linspace(0.0, 1.0, 7)


def shifted(noise, sd):
    """X = y + noise, and estimators that are x with a bias / sd that is a given function of y.

    The second number of x is y itself, so that an estimator can have any bias that one likes.
    """
    problem = mvue.Problem(PRIOR, lambda key, y: jnp.stack([y + noise(key), y]), names=("y",))
    return problem, lambda bias: lambda x: x[0] + sd * bias(x[1])


def correlated():
    """Two components with correlation 0.9."""
    root = jnp.linalg.cholesky(jnp.array([[1.0, 0.9], [0.9, 1.0]]))
    problem = mvue.Problem(
        PRIOR,
        lambda key, y: jnp.append(jnp.stack([y, -y]) + root @ jr.normal(key, (2,)), y),
        target=lambda y: jnp.stack([y, -y]),
        names=("a", "b"),
    )
    return problem, lambda bias: lambda x: x[:2] + jnp.full(2, bias(x[2]))


def rare(key):
    """Normal, or with probability 1/100 shifted by 10, centred."""
    one, two = jr.split(key)
    return jr.normal(one) + 10.0 * jr.bernoulli(two, 0.01) - 0.1


def exponential(key):
    """The error of the best estimate of a rate 1 from 4 draws, 3 / sum: variance 1/2."""
    return 3 / jr.exponential(key, (4,)).sum() - 1


PROBLEMS = {
    "normal, two components": correlated,
    "exponential rate": lambda: shifted(exponential, np.sqrt(0.5)),
    "Student's t(3)": lambda: shifted(lambda key: jr.t(key, 3.0), np.sqrt(3.0)),
    "rare large errors": lambda: shifted(rare, np.sqrt(1 + 100 * 0.01 * 0.99)),
    "… against the bias": lambda: shifted(lambda key: -rare(key), np.sqrt(1 + 100 * 0.01 * 0.99)),
}


def at_one_end(bias_over_sd):
    """Largest at one value."""
    return lambda y: bias_over_sd * y**4


def everywhere(bias_over_sd):
    """The same at all values: most occasions for a wrong fail."""
    return lambda y: bias_over_sd + 0.0 * y


def certificates(report, name, limit, looks):
    """Of each repetition: a report of all of them has the values of one after the other."""
    one = report[name]
    for start in range(0, len(report.y), len(AT)):
        part = slice(start, start + len(AT))
        fields = {
            field: value[part]
            for field, value in vars(one).items()
            if isinstance(value, np.ndarray)
        }
        yield certify(
            dataclasses.replace(
                report,
                y=report.y[part],
                theta=report.theta[part],
                estimators={name: dataclasses.replace(one, **fields)},
                looks=looks,
            ),
            name,
            limit,
        )


def judge(name, repetitions, most, seed):
    """Shares of wrong answers of one problem, for a fixed number of repeats and for stopping.

    All repetitions are values of one assessment, which has measurements of its own for each. Those
    of fewer repeats are the first of those of more: so assessments with as many repeats as there
    are at each look show what stopping at the first decision would have answered.
    """
    problem, make = PROBLEMS[name]()
    biases = {"beyond": at_one_end(1.001 * LIMIT), "within": everywhere(0.999 * LIMIT)}
    estimators = {n: make(bias) for n, bias in {**biases, "unbiased": everywhere(0.0)}.items()}
    limit = mvue.BiasLimit(LIMIT, CONFIDENCE)
    looks = limit.looks(most, len(AT) * len(problem.names))
    reports = [
        mvue.assess(estimators, problem, at=np.tile(AT, repetitions), repeats=n, key=jr.key(seed))
        for n in looks
    ]

    fixed = {n: list(certificates(reports[0], n, limit, 1)) for n in estimators}
    ended = {
        n: [
            first_decision(one)
            for one in zip(
                *(certificates(report, n, limit, len(looks)) for report in reports), strict=True
            )
        ]
        for n in estimators
    }
    return {"fixed": shares(fixed), "until": shares(ended)}


def first_decision(looks):
    """The certificate at which an assessment would have stopped."""
    decided = (one for one in looks if one.decision is not Decision.UNDECIDED)
    return next(decided, looks[-1])


def shares(found):
    """Shares of wrong answers and of limits that miss."""
    truth = 0.999 * LIMIT

    def misses(lower, upper):
        return bool(((lower > truth) | (upper < truth)).any())

    within = found["within"]
    curves = [c.curve for c in within if c.curve is not None]
    return {
        "wrong pass": np.mean([c.decision is Decision.PASS for c in found["beyond"]]),
        "wrong fail": np.mean([c.decision is Decision.FAIL for c in within]),
        "upper limit too small": np.mean([c.upper < 1.001 * LIMIT for c in found["beyond"]]),
        "value outside its limits": np.mean([misses(c.bias_lower, c.bias_upper) for c in within]),
        "curve outside its band": np.mean([misses(c.lower, c.upper) for c in curves] or [0.0]),
        "unbiased passes": np.mean([c.passed for c in found["unbiased"]]),
        "repeats of unbiased": np.mean([c.repeats for c in found["unbiased"]]),
    }


def main() -> None:
    """Print the shares, and those that are too large to be chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--most", type=int, default=1_600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    allowed = 1 - CONFIDENCE
    chance = stats.binom.isf(0.001, args.repetitions, allowed) / args.repetitions
    found = {}
    for name in args.problems:
        found[name] = judge(name, args.repetitions, args.most, args.seed)
        print(f"{name} (allowed {allowed:.3f}, by chance up to {chance:.3f})", flush=True)
        for how, seen in found[name].items():
            text = ", ".join(f"{what} {share:.4g}" for what, share in seen.items())
            wrong = [what for what, share in list(seen.items())[:5] if share > chance]
            print(f"  {how}: {text}{'; TOO LARGE: ' + ', '.join(wrong) if wrong else ''}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
