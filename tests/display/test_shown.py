"""What is seen of results: the same text everywhere, and tables and figures in notebooks."""

from html.parser import HTMLParser

import numpy as np
import pytest

import mvue
from helpers.notebook import enter_notebook
from helpers.plain import plain_fit
from mvue._recipe.survey import Range, Survey


class Cells(HTMLParser):
    """The text of all cells; refuses tags that are not closed, and anything from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert not {"src", "href"} & dict(attrs).keys()
        assert "color" not in str(attrs)
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data


@pytest.fixture
def report(line, key):
    at = np.array([[0.0, 0.0], [0.5, -0.5]])
    named = {"as <it> is": lambda x: x, "half": lambda x: x / 2}
    return mvue.assess(named, line, at=at, repeats=20, key=key)


def test_text_is_the_same_in_a_notebook_and_nothing_is_displayed(report, monkeypatch, capsys):
    text = str(report)
    shell = enter_notebook(monkeypatch)
    assert str(report) == repr(report) == text
    assert "as <it> is" in text
    assert not shell.shown
    assert capsys.readouterr() == ("", "")


def test_a_report_in_a_notebook_has_the_numbers_of_its_text(report):
    shown = Cells(report._repr_html_()).cells
    assert "as <it> is" in shown
    words = set(str(report).split())
    assert {word for cell in shown for word in cell.split()} <= words
    assert f"{report['half'].bias_in_sd[1, 0]:+.3f}" in shown


def test_a_problem_in_a_notebook(line):
    cells = ["y", "(east, north)", "x", "shape (2,)", "known", "crb"]
    assert Cells(line._repr_html_()).cells == cells
    assert repr(line) == "Problem(y = (east, north), x = shape (2,), known: crb)"


def test_a_fit_in_a_notebook(line, key):
    fit = plain_fit(line, key=key, steps=2)
    cells = Cells(fit._repr_html_()).cells
    assert cells[::2][:2] == ["loss", "batch"]
    assert all(cell in str(fit) for cell in cells)
    assert str(fit).splitlines()[0] in fit._repr_html_()


def test_a_survey_in_a_notebook():
    seen = object.__new__(Survey)
    vars(seen).update(ranges=(Range("east", (-1.0, 1.0), (-3.0, 3.0), 12.0),), note="evenly")
    assert repr(seen) == str(seen)
    cells = Cells(seen._repr_html_()).cells
    assert cells[4:] == ["east", "-3 … 3", "-1 … 1", "12.0"]
    assert "<p>evenly</p>" in seen._repr_html_()


def test_figures_are_shown_as_values_of_cells(report):
    figure = report.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    import matplotlib.pyplot as plt

    assert not plt.get_fignums()
