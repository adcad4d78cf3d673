"""The parts of a page that show a report."""

from .._display.pages import Section
from .report import Report
from .tables import summary_rows, value_rows

READING = (
    "Every number is a Monte Carlo average over repeated measurements at one value of the "
    "parameter, with its standard error. Bias is estimate minus truth. |bias|/sd says how much of "
    "the error is systematic: below about 0.1 it cannot be seen in a single estimate. MSE/CRB is 1 "
    "for an efficient unbiased estimator; below 1 means that bias was traded for variance.",
)


def report_sections(report: Report) -> list[Section]:
    """The parts of a page that show one report."""
    reading = (*READING, f"{report.bound_note}.") if report.bound_note else READING
    certificates = [
        Section(
            "Certificate" if len(report.certificates) == 1 else f"Certificate of {name}",
            (f"{one.statement}.", *(f"{note[0].upper()}{note[1:]}." for note in one.notes)),
            figure=one.plot(),
        )
        for name, one in report.certificates.items()
    ]
    return [
        *certificates,
        Section("Summary", reading, figure=report.plot(), table=summary_rows(report)),
        Section("Every value", table=value_rows(report)),
    ]
