"""Published numbers to compare with: algorithms for perfusion, estimators of long memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array

import mvue

from ..._display.pages import Section
from ...datasets import DatasetError, IVIMResults, ivim_results
from ...problems import FieldProblem
from .results import LEARNED, JudgedProblem

IVIM = {"ivim-30": 30, "ivim-50": 50, "ivim-100": 100}
COMPONENTS = ("D", "f", "D*")
USELESS = 0.5  # of the truth: an unbiased estimator of a larger sd tells little
HURST = {
    "hurst-exponent-100": {"R/S": 0.0276, "Whittle": 0.00433, "LSTM": 0.00407},
    "hurst-exponent-400": {"LSTM": 9.1e-4},
    "hurst-exponent-1600": {"Whittle": 3.24e-4, "LSTM": 2.24e-4},
}
"""Mean squared errors of a public study (aielte-research/LMSParEst), exponents from 0 to 1."""
HURST_GRID = 12


def tissues_in_range(results: IVIMResults, entry: FieldProblem) -> list[int]:
    """The first row of each truth that lies in the range of the problem."""
    rows, seen = [], set()
    prior: Any = entry.problem.prior
    low, high = (np.asarray(end)[:3] for end in (prior.base_dist.low, prior.base_dist.high))
    for row, truth in enumerate(results.truth):
        inside = (truth >= low * (1 - 1e-6)).all() and (truth <= high * (1 + 1e-6)).all()
        if inside and tuple(truth) not in seen:
            seen.add(tuple(truth))
            rows.append(row)
    return rows


def compare_ivim(one: JudgedProblem, results: IVIMResults, repeats: int, key: Array) -> dict:
    """Bias and sd at each tissue, beside those of the public algorithms."""
    snr, entry = IVIM[one.entry.name], one.entry
    rows = tissues_in_range(results, entry)
    theta = np.concatenate([results.truth[rows], np.ones((len(rows), 1))], axis=1)
    report = mvue.assess(
        one.fits[LEARNED], entry.known, at=theta, repeats=repeats, key=key, progress=False
    )
    ours, bound = report["estimator"], report.crb
    assert bound is not None
    tissues = {}
    for k, row in enumerate(rows):
        tissue, truth = str(results.tissue[row]), results.truth[row]
        public = (results.tissue == tissue) & (results.snr == snr)
        tissues[tissue] = {
            "truth": truth.tolist(),
            "sd_of_bound": np.sqrt(bound[k]).tolist(),
            "bce": {"bias": ours.bias[k].tolist(), "sd": ours.sd[k].tolist()},
            "algorithms": {
                str(results.algorithm[i]): {
                    "bias": (results.mean[i] - truth).tolist(),
                    "sd": results.sd[i].tolist(),
                }
                for i in np.flatnonzero(public)
            },
        }
    return tissues


def ivim_rows(tissues: dict) -> list[list[str]]:
    """A table in percent of the truth."""
    rows = [["tissue", "", "truth", "CRB\nsd %", "default recipe\nbias / sd %"]]
    rows[0] += ["public, median\n|bias| / sd %", "public, least biased\nbias / sd %", "name"]
    for tissue, found in tissues.items():
        names = list(found["algorithms"])
        bias, sd = (
            np.array([found["algorithms"][name][part] for name in names]) for part in ("bias", "sd")
        )
        for c, component in enumerate(COMPONENTS):
            unit = found["truth"][c] / 100
            ours = found["bce"]["bias"][c] / unit, found["bce"]["sd"][c] / unit
            middle = np.nanmedian(np.abs(bias[:, c])) / unit, np.nanmedian(sd[:, c]) / unit
            least = int(np.nanargmin(np.abs(bias[:, c])))
            row = [tissue if c == 0 else "", component, f"{found['truth'][c]:g}"]
            row += [f"{found['sd_of_bound'][c] / unit:.0f}", f"{ours[0]:+.1f} / {ours[1]:.0f}"]
            row += [f"{middle[0]:.1f} / {middle[1]:.0f}"]
            row += [f"{bias[least, c] / unit:+.1f} / {sd[least, c] / unit:.0f}", names[least]]
            rows.append(row)
    return rows


def ivim_sections(
    problems: Sequence[JudgedProblem], repeats: int, key: Array
) -> tuple[list[Section], dict]:
    """A section for each signal-to-noise ratio, and the numbers; what is missing is said."""
    judged = [one for one in problems if one.entry.name in IVIM]
    if not judged:
        return [], {}
    try:
        results = ivim_results()
    except (DatasetError, ImportError) as error:
        missing = f"The comparison with public algorithms is left out, without its data: {error}"
        return [Section("Perfusion beside public algorithms", [missing])], {"missing": str(error)}
    sections, numbers = [], {}
    for one in judged:
        tissues = compare_ivim(one, results, repeats, key)
        numbers[one.entry.name] = tissues
        sections.append(
            Section(
                f"Perfusion beside {len(np.unique(results.algorithm))} public algorithms, SNR "
                f"{IVIM[one.entry.name]}",
                [ivim_sentence(tissues), IVIM_READING],
                table=ivim_rows(tissues),
            )
        )
    return sections, numbers


IVIM_READING = (
    "Bias and standard deviation in percent of the truth; those of the algorithms are of 300 fits. "
    "They were measured on absolute values of the noisy signal, where the default recipe sees the "
    "signal itself; several algorithms clip their output, which makes sd small and bias large. "
    "Tissues without perfusion, or of blood alone, are not in the range: there D* or D leaves no "
    "trace in the data, and no estimator of it is unbiased."
)


def ivim_sentence(tissues: dict) -> str:
    """Where unbiasedness is worth nothing."""
    ratios = {
        tissue: found["sd_of_bound"][2] / found["truth"][2] for tissue, found in tissues.items()
    }
    useless = [tissue for tissue, ratio in ratios.items() if ratio > USELESS]
    if not useless:
        return (
            f"The bound on the sd of D* is at most {max(ratios.values()):.0%} of the truth in all "
            f"{len(ratios)} tissues."
        )
    return (
        f"In {len(useless)} of {len(ratios)} tissues ({', '.join(useless)}) every unbiased "
        f"estimator of D* has an sd of more than {USELESS:.0%} of the truth: to be unbiased is "
        "worth little there, and prior knowledge or more data are needed."
    )


def hurst_section(problems: Sequence[JudgedProblem]) -> Section | None:
    """Mean squared errors of Hurst exponents beside those of a public study."""
    judged = [one for one in problems if one.entry.name in HURST]
    if not judged:
        return None
    rows = [["problem", "default recipe", "mean CRB", "published"]]
    for one in judged:
        published = HURST[one.entry.name]
        rows.append(
            [
                one.entry.name,
                f"{one.reports[LEARNED][LEARNED].prior.bmse:.3g}",
                f"{mean_bound(one.entry):.3g}",
                ", ".join(f"{name} {value:.3g}" for name, value in published.items()),
            ]
        )
    text = (
        "Mean squared error averaged over the exponent, here evenly from 0.05 to 0.95, in the "
        "public study (aielte-research/LMSParEst) from 0 to 1. Those estimators are biased, which "
        "may bring an average error below the mean of the bound."
    )
    return Section("Hurst exponents beside published errors", [text], table=rows)


def mean_bound(entry: FieldProblem) -> float:
    """The bound averaged over the prior of the exponent."""
    middles = 0.05 + 0.9 * (np.arange(HURST_GRID) + 0.5) / HURST_GRID
    bounds = entry.crb(np.stack([middles, np.ones(HURST_GRID)], axis=1))
    assert bounds is not None
    return float(bounds.mean())
