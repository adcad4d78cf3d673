"""The tables of a report: headline figures, and the numbers at each value."""

from typing import TYPE_CHECKING

import numpy as np

from .._display.tables import with_error

if TYPE_CHECKING:
    from .report import Report

_SINGLE = ("bias", "sd", "MSE", "|bias|/sd")


def summary_rows(report: "Report") -> list[list[str]]:
    """The headline figures as text: a header, then a row for each estimator."""
    ratios = f"MSE/{report.bound_is} min … median … max"
    rows = [["estimator", "max |bias|/sd", "max relative bias", ratios]]
    rows[0] += ["prior MSE", "prior bias²", "failures"]
    for name in report.estimators:
        s = report.summary(name)
        ratio = s.get("mse_over_crb") or s.get("mse_over_estimated_bound")
        relative = s.get("max_relative_bias")
        rows.append(
            [
                name,
                f"{s['max_bias_over_sd']:.3f} ± {s['max_bias_over_sd_se']:.3f}",
                "" if relative is None else f"{relative:.1%}",
                ""
                if ratio is None
                else f"{ratio['min']:.3f} … {ratio['median']:.3f} … {ratio['max']:.3f}",
                with_error(s["bmse"], s["bmse_se"]),
                with_error(s["squared_bias"], s["squared_bias_se"]),
                f"{s['failures'] + s['prior_failures']:,}",
            ]
        )
    keep = [j for j in range(len(rows[0])) if any(row[j] not in ("", "0") for row in rows[1:])]
    return [[row[j] for j in keep] for row in rows]


def value_rows(report: "Report") -> list[list[str]]:
    """The numbers at each value as text: a header, then a row for each value and component.

    All of one estimator; of several, side by side, bias/sd and MSE (in units of the bound, where
    it is known).
    """
    several = len(report.names) > 1
    single = len(report.estimators) == 1
    rows = [[*(["component", "y"] if several else report.names)]]
    if report.bound_variance is not None:
        rows[0].append(report.bound_is)
    for name in report.estimators:
        rows[0] += _SINGLE if single else [f"{name}\nbias/sd", f"{name}\nMSE"]
    if single and report.bound_variance is not None:
        rows[0].append(f"MSE/{report.bound_is}")
    elif report.bound_variance is not None:
        rows[0] = [f"{h}/{report.bound_is}" if h.endswith("MSE") else h for h in rows[0]]
    for k, c in np.ndindex(*report.y.shape):
        row = [report.names[c]] if several else []
        row.append(f"{report.y[k, c]:.4g}")
        if report.bound_variance is not None:
            row.append(f"{report.bound_variance[k, c]:.4g}")
        for name, one in report.estimators.items():
            ratio = report.mse_over_bound(name)
            relative = None if ratio is None else f"{ratio[k, c]:.3f}"
            mse = with_error(one.mse[k, c], one.mse_se[k, c])
            if single:
                row += [
                    with_error(one.bias[k, c], one.bias_se[k, c]),
                    f"{one.sd[k, c]:.4g}",
                    mse,
                    f"{one.bias_over_sd[k, c]:.3f}",
                ]
                row += [relative] if relative else []
            else:
                row += [f"{one.bias_in_sd[k, c]:+.3f}", relative or mse]
        rows.append(row)
    return rows


def coverage_rows(report: "Report") -> list[list[str]]:
    """How often intervals cover, and their width, as text: a row for each value and component."""
    several = len(report.names) > 1
    rows = [[*(["component", "y"] if several else report.names)]]
    for name in report.coverage:
        label = "" if len(report.coverage) == 1 else f"{name}\n"
        rows[0] += [f"{label}{column}" for column in ("coverage", "mean width", "open")]
    for k, c in np.ndindex(*report.y.shape):
        row = [report.names[c]] if several else []
        row.append(f"{report.y[k, c]:.4g}")
        for one in report.coverage.values():
            row.append(f"{one.rate[k, c]:.2%} ± {one.rate_se[k, c]:.2%}")
            row.append(with_error(one.width[k, c], one.width_se[k, c]))
            row.append(f"{one.open[k, c]:.1%}" if one.open[k, c] else "")
        rows.append(row)
    keep = [j for j in range(len(rows[0])) if any(row[j] for row in rows[1:])]
    return [[row[j] for j in keep] for row in rows]
