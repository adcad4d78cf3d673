"""Image classification with soft labels and many crops: the fourth experiment of the paper."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..._display.figures import draw_series, new_figure, share_legend
from ..._display.pages import Section
from .._common import Experiment, Findings, Option, OptionError, Run, as_text, estimate_microseconds
from .labels import HELP, PACKAGED
from .measures import AVERAGED
from .runs import VARIANTS, CIFAR10Settings, JudgedStudent, prepare, run_pair
from .students import SOFT_LOSSES, TEMPERATURE

MAIN = AVERAGED[0]
FIELDS = "squared_bias", "variance"
CLAIM = (
    "The paper: on a single crop EMMSE is slightly more accurate; averaged over many crops BCE is."
)
DEVIATIONS = (
    "The teacher is a small residual network that was trained here, not a DLA network of accuracy "
    "0.95.",
    "L_bias has the mean over crops, where the text of the paper has a sum without its divisor. "
    "L_hard, L_MSE and L_bias are means over images (and crops) and sums over classes.",
    f"The text compares probabilities at temperature {TEMPERATURE:g}, the authors' code their "
    "logarithms. "
    + "; ".join(f"{name} is {v.words}" for name, v in VARIANTS.items())
    + ". The last has the weight that soft labels have in the work on distillation that the paper "
    "follows, so that their gradients do not vanish.",
    "The five checkpoints are equally spaced over the second half of the training.",
    "The preset quick trains on 5 crops of each image in a batch, the preset paper on 20.",
    "The paper does not say which scores it averages over crops. The main curve averages what is "
    f"estimated, soft labels at temperature {TEMPERATURE:g}; probabilities at temperature 1 and "
    "logits are in the table.",
    "Both students of a seed start from the same weights and see the same crops of the same "
    "images, so that their difference is paired.",
)
Pairs = Mapping[str, Mapping[str, Sequence[JudgedStudent]]]
"""By loss, and by kind of student: one entry for each seed."""


class Difference(NamedTuple):
    """BCE minus EMMSE, paired by seed: of accuracies with 1, 2, ... crops, or of moments."""

    mean: np.ndarray
    se: np.ndarray


def body(run: Run) -> Findings:
    """Train pairs of students for every loss, and compare them."""
    s: CIFAR10Settings = run.settings
    losses = chosen_losses(run)
    material = prepare(run)
    labels = material.soft_labels.source
    run.say(f"{material.source}; soft labels: {labels}")
    problem = material.problem()
    judged: dict[str, dict[str, list[JudgedStudent]]] = {}
    entries: dict[str, dict[str, Any]] = {}
    for loss in losses:
        judged[loss] = {kind: [] for kind in SOFT_LOSSES}
        for seed in range(s.seeds):
            run.say(f"training students with loss {loss}, pair {seed + 1} of {s.seeds} ...")
            pair = run_pair(run, material, problem, loss, seed)
            for kind, (trained, one) in pair.items():
                judged[loss][kind].append(one)
                run.say(f"  {kind}: {in_words(one)}; {trained.seconds:.0f} s")
                entries[entry_name(kind, loss)] = {
                    "loss": trained.loss,
                    "train_seconds": round(trained.seconds, 3),
                    "estimate_microseconds": estimate_microseconds(
                        trained.checkpoints[-1], material.data.x_test[:1_000]
                    ),
                }
        for kind, found in judged[loss].items():
            entries[entry_name(kind, loss)] |= entry(found)
    differences = {
        loss: {way: paired_difference(pair, way) for way in AVERAGED}
        for loss, pair in judged.items()
    }
    rows, figure = accuracy_rows(judged, differences, s.crops), plot(entries, differences)
    bias_rows = moment_rows(judged, s.crops)
    return Findings(
        estimators=entries,
        lead=verdict(differences, s),
        sections=[
            Section(
                "Accuracy against the number of crops",
                [
                    CLAIM,
                    f"{material.source}; {len(material.data.x_test):,} images are tested. Soft "
                    f"labels: {labels}.",
                    f"Mean over {s.checkpoints} checkpoints and {s.seeds} seeds; bands are one "
                    "standard deviation over checkpoints to each side, as in the paper. Below, the "
                    "difference paired by seed, with two standard errors. Scores "
                    f"are soft labels at temperature {TEMPERATURE:g}, averaged over crops.",
                ],
                figure=figure,
            ),
            Section(
                "Accuracies and differences",
                [
                    "The difference of BCE and EMMSE is paired by seed; its standard error is over "
                    f"{s.seeds} seeds, the test images being the same."
                ],
                table=rows,
            ),
            Section(
                "Why: bias and variance of the estimated soft label over crops",
                [
                    "Sums over classes, times 10⁴, on training images that the students did not "
                    "learn from and on those that they did. The mean squared error of an average "
                    "of m crops is squared bias + variance / m. Standard errors of students are "
                    "over images, which both share; those of differences are over seeds.",
                    "The mean squared error for one crop is L_MSE: with the loss text, the term in "
                    "which the two students differ is tiny beside the cross-entropy.",
                ],
                table=bias_rows,
            ),
            Section("Where this differs from the paper", items=DEVIATIONS),
        ],
        figures={"cifar10": figure},
        table=as_text(rows) + "\n\n" + as_text(bias_rows),
        more={
            "difference_bce_minus_emmse": {
                loss: {
                    way: {"mean": d.mean.tolist(), "se": d.se.tolist()} for way, d in ways.items()
                }
                for loss, ways in differences.items()
            },
            "images": material.source,
            "soft_labels": labels,
        },
    )


def chosen_losses(run: Run) -> list[str]:
    """The variants of the loss to train with."""
    given = run.options["losses"]
    names = run.settings.losses if given == "preset" else given.split(",")
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise OptionError(
            f"losses must be one or more of {', '.join(VARIANTS)}, separated by commas, got "
            f"{unknown[0]!r}"
        )
    return list(dict.fromkeys(names))


def entry_name(kind: str, loss: str) -> str:
    """The name of a student in ``results.json``: the text's loss needs no suffix."""
    return kind if loss == "text" else f"{kind}_{loss}"


def in_words(one: JudgedStudent) -> str:
    """Accuracy of one student, mean over checkpoints."""
    curve = one.accuracy[MAIN].mean(axis=0)
    return f"accuracy {curve[0]:.4f} with 1 crop, {curve[-1]:.4f} with {len(curve)}"


def entry(found: Sequence[JudgedStudent]) -> dict[str, Any]:
    """What all seeds of one kind of student gave, for ``results.json``."""
    return {
        "accuracy": {
            way: {
                "mean": np.mean([one.accuracy[way].mean(axis=0) for one in found], axis=0).tolist(),
                "sd_over_checkpoints": checkpoint_sd(found, way).tolist(),
                "seeds": [one.accuracy[way].mean(axis=0).tolist() for one in found],
            }
            for way in AVERAGED
        },
        "soft_label": {
            part: [getattr(one, part)._asdict() for one in found] for part in ("held_out", "seen")
        },
    }


def checkpoint_sd(found: Sequence[JudgedStudent], way: str) -> np.ndarray:
    """Standard deviation over checkpoints for each number of crops, averaged over seeds."""
    return np.mean([one.accuracy[way].std(axis=0, ddof=1) for one in found], axis=0)


def paired_difference(pair: Mapping[str, Sequence[JudgedStudent]], way: str) -> Difference:
    """Of the two students of each seed, each a mean over checkpoints."""
    curves = {
        kind: np.stack([one.accuracy[way].mean(axis=0) for one in found])
        for kind, found in pair.items()
    }
    return difference_over_seeds(curves["bce"] - curves["emmse"])


def difference_over_seeds(each: np.ndarray) -> Difference:
    """Mean and standard error of differences, one row for each seed."""
    n = len(each)
    se = each.std(axis=0, ddof=1) / n**0.5 if n > 1 else np.full(each.shape[1], np.nan)
    return Difference(each.mean(axis=0), se)


def verdict(differences: Mapping[str, Mapping[str, Difference]], s: CIFAR10Settings) -> str:
    """Whether BCE is more accurate with all crops, for every loss."""
    sentences = []
    for loss, ways in differences.items():
        d = ways[MAIN]
        far = abs(d.mean[-1]) > 2 * d.se[-1]
        answer = ("above" if d.mean[-1] > 0 else "below") if far else "not told apart from"
        sentences.append(
            f"With the loss {loss} ({VARIANTS[loss].words}) BCE is {answer} EMMSE at {s.crops} "
            f"crops: {percent(d, -1)} percentage points over {s.seeds} seeds; at one crop "
            f"{percent(d, 0)}."
        )
    return " ".join(sentences)


def percent(d: Difference, i: int) -> str:
    """A difference in percentage points, with its standard error."""
    return f"{100 * d.mean[i]:+.2f} ± {100 * d.se[i]:.2f}"


def accuracy_rows(
    judged: Pairs, differences: Mapping[str, Mapping[str, Difference]], crops: int
) -> list[list[str]]:
    """Accuracy with some numbers of crops, in per cent, and the paired difference."""
    shown = [m for m in (1, 2, 5, 10, 20) if m <= crops]
    rows = [["loss", "averaged", "student", *(f"{m} crop{'s' * (m > 1)}" for m in shown)]]
    for loss, pair in judged.items():
        for way in AVERAGED:
            for kind, found in pair.items():
                mean = np.mean([one.accuracy[way].mean(axis=0) for one in found], axis=0)
                sd = checkpoint_sd(found, way)
                cells = [f"{100 * mean[m - 1]:.2f} ± {100 * sd[m - 1]:.2f}" for m in shown]
                rows.append([loss, way, kind, *cells])
            change = [percent(differences[loss][way], m - 1) for m in shown]
            rows.append([loss, way, "bce − emmse", *change])
    return rows


def moment_rows(judged: Pairs, crops: int) -> list[list[str]]:
    """Squared bias and variance over crops, mean over seeds, and their paired differences."""
    rows = [["loss", "images", "student", "bias²", "variance", "MSE, 1 crop", f"{crops} crops"]]
    for loss, pair in judged.items():
        for part, words in (("held_out", "held out"), ("seen", "learned from")):
            table = {}
            for kind, found in pair.items():
                moments = [getattr(one, part) for one in found]
                errors = [[m.error_of_mean(n) for n in (1, crops)] for m in moments]
                table[kind] = 1e4 * np.array(
                    [[m.squared_bias, m.variance, *e] for m, e in zip(moments, errors, strict=True)]
                )
                # Seeds share the images, so that their errors do not average out.
                se = [np.mean([getattr(m, f"{f}_se") for m in moments]) for f in FIELDS]
                means = table[kind].mean(axis=0)
                cells = [f"{m:.3g} ± {1e4 * e:.1g}" for m, e in zip(means, se, strict=False)]
                rows.append([loss, words, kind, *cells, *(f"{m:.3g}" for m in means[2:])])
            change = difference_over_seeds(table["bce"] - table["emmse"])
            cells = [f"{m:+.3f} ± {e:.3f}" for m, e in zip(*change, strict=True)]
            rows.append([loss, words, "bce − emmse", *cells])
    return rows


def plot(
    entries: Mapping[str, Mapping[str, Any]],
    differences: Mapping[str, Mapping[str, Difference]],
) -> Figure:
    """Accuracy against the number of crops, and the paired difference, a column for each loss."""
    figure = new_figure(4.4 * len(differences), 5.4)
    axes = figure.subplots(
        2, len(differences), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 2)
    )
    for (above, below), (loss, ways) in zip(axes.T, differences.items(), strict=True):
        crops = np.arange(1, len(ways[MAIN].mean) + 1)
        for i, kind in enumerate(SOFT_LOSSES):
            found = entries[entry_name(kind, loss)]["accuracy"][MAIN]
            sd = np.asarray(found["sd_over_checkpoints"])
            draw_series(above, crops, np.asarray(found["mean"]), sd, kind, i, width=1.0)
        below.axhline(0, color="0.6", linewidth=0.8)
        mean, se = (100 * values for values in ways[MAIN])
        draw_series(below, crops, mean, se, "bce − emmse, ± 2 standard errors over seeds", 2)
        below.xaxis.get_major_locator().set_params(integer=True)
        above.set_title(f"loss: {loss}")
        above.set_ylabel("accuracy")
        below.set_ylabel("percentage points")
        below.set_xlabel("crops in the test")
    share_legend(figure, list(axes.ravel()))
    return figure


EXPERIMENT = Experiment(
    name="cifar10",
    title="Image classification with soft labels",
    summary="accuracy of distilled students against the number of crops that are averaged",
    presets={
        "smoke": CIFAR10Settings(
            images=40,
            steps=4,
            test_images=20,
            losses=("text",),
            seeds=2,
            batch_size=4,
            repeats=2,
            crops=4,
            checkpoints=2,
            unchecked_parts=0,
            held_out=10,
        ),
        "quick": CIFAR10Settings(
            images=10_000,
            steps=600,
            test_images=2_000,
            losses=("text", "scaled"),
            batch_size=32,
            repeats=5,
        ),
        # The paper does not say how long it trains.
        "paper": CIFAR10Settings(
            images=49_000,
            steps=2_400,
            test_images=10_000,
            losses=("text", "scaled"),
            batch_size=16,
            repeats=20,
        ),
    },
    body=body,
    options={
        "teacher": Option(PACKAGED, HELP),
        "losses": Option(
            "preset",
            "; ".join(f"{name}: {v.words}" for name, v in VARIANTS.items())
            + "; several are separated by commas",
        ),
    },
)
