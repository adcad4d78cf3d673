"""The parts of a page that show a report."""

from .._display.pages import Section
from .._reality.plot import check_sections
from .plot import plot_coverage
from .report import Report
from .tables import coverage_rows, summary_rows, value_rows

READING = (
    "Every number is a Monte Carlo average over repeated measurements at one value of the "
    "parameter, with its standard error. Bias is estimate minus truth. |bias|/sd says how much of "
    "the error is systematic: below about 0.1 it cannot be seen in a single estimate. MSE/CRB is 1 "
    "for an efficient unbiased estimator; below 1 means that bias was traded for variance.",
)

ABOUT_ESTIMATED = (
    "There is no likelihood here, so that an estimated bound takes the place of the CRB. It is an "
    "upper estimate: an estimator may be below it without any bias."
)

COVERAGE = (
    "How often a confidence interval has the true value in it, at each value of the parameter, and "
    "the mean width of intervals with both ends within the range that was simulated; the others "
    "are counted as open.",
)


def report_sections(report: Report) -> list[Section]:
    """The parts of a page that show one report."""
    reading = (*READING, ABOUT_ESTIMATED) if report.is_estimated else READING
    reading = (*reading, f"{report.bound_note}.") if report.bound_note else reading
    certificates = [
        Section(
            "Certificate" if len(report.certificates) == 1 else f"Certificate of {name}",
            (f"{one.statement}.", *(f"{note[0].upper()}{note[1:]}." for note in one.notes)),
            figure=one.plot(),
        )
        for name, one in report.certificates.items()
    ]
    covered = []
    if report.coverage:
        covered = [
            Section("Coverage", COVERAGE, figure=plot_coverage(report), table=coverage_rows(report))
        ]
    return [
        *certificates,
        Section("Summary", reading, figure=report.plot(), table=summary_rows(report)),
        *covered,
        Section("Every value", table=value_rows(report)),
        *([] if report.measurements is None else check_sections(report.measurements)),
    ]
