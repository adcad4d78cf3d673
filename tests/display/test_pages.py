"""Pages of reports: one file that needs no other, and paper that shows all of it."""

import re
from html.parser import HTMLParser

import pytest

from mvue._display.figures import new_figure
from mvue._display.pages import Section, write_page

COLUMNS = 24


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with a figure, and a table that is wider than paper."""
    path = tmp_path_factory.mktemp("pages") / "page.html"
    figure = new_figure(4, 3)
    figure.subplots().plot([0, 1])
    table = [[f"column {j}" for j in range(COLUMNS)], *[["1.2345 ± 0.0067"] * COLUMNS] * 60]
    parts = [Section("Wide", ["Words."], figure=figure, table=table, items=["One."])]
    write_page(path, title="A <page>", notice="Careful", facts={"seed": 0}, sections=parts)
    return path.read_text()


class Elements(HTMLParser):
    """All elements, each with those that it is in; refuses tags that are not closed."""

    NEVER_CLOSED = ("meta", "path", "use")

    def __init__(self, text):
        super().__init__()
        self.within, self.found = [], []
        self.feed(text)
        assert not self.within

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), tuple(self.within)))
        if tag not in self.NEVER_CLOSED:
            self.within.append(
                tag if "class" not in dict(attrs) else f"{tag}.{dict(attrs)['class']}"
            )

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs), tuple(self.within)))

    def handle_endtag(self, tag):
        if tag not in self.NEVER_CLOSED:
            assert self.within.pop().partition(".")[0] == tag


def rules(css):
    """Selectors and declarations, in order; of nested rules those of printing only."""
    screen, printed = re.fullmatch(r"(.*)@media print \{(.*?\n  \})(.*)", css, re.DOTALL).group(
        1, 2
    )
    screen = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", screen)
    found = []
    for text in (screen, printed):
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
            declared = dict(re.findall(r"([\w-]+):\s*([^;]+?)\s*(?:;|$)", body))
            found += [(one.strip(), declared, text is printed) for one in selectors.split(",")]
    return found


@pytest.fixture(scope="module")
def css(page):
    return re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)


def on_paper(css, selector, name):
    """What a property of a selector is when printed: the last rule decides."""
    values = [rule[name] for which, rule, _ in rules(css) if which == selector and name in rule]
    return values[-1] if values else None


def test_rules_for_paper_are_the_last(css):
    """After all others of the same elements, which would win otherwise."""
    after = css.partition("@media print")[2].partition("\n  }")[2]
    kinds = {selector for selector, _, printed in rules(css) if printed}
    others = {one.strip() for group in re.findall(r"([^{}]+)\{", after) for one in group.split(",")}
    assert kinds & others == set()


def test_nothing_is_cut_off_on_paper(css):
    clipped = {which for which, rule, _ in rules(css) for name in rule if "overflow-" in name}
    clipped -= {"th", "td"}  # where it breaks words
    assert clipped == {"figure", ".scroll"}
    for which in clipped:
        assert on_paper(css, which, "overflow") == "visible"
    for which in ("main", "p", "li"):
        assert on_paper(css, which, "max-width") == "none"
    assert on_paper(css, "table", "width") == "100%"
    for cell in ("th", "td"):
        assert on_paper(css, cell, "white-space") in ("normal", "pre-line")
        assert on_paper(css, cell, "overflow-wrap") == "anywhere"
    assert not any(
        "nowrap" in rule.get("white-space", "") for _, rule, printed in rules(css) if printed
    )
    for which in ("figure", "tr"):
        assert on_paper(css, which, "break-inside") == "avoid"
    assert on_paper(css, "thead", "display") == "table-header-group"


def test_paper_is_white(css):
    assert (on_paper(css, ":root", "--back"), on_paper(css, ":root", "--ink")) == ("#fff", "#000")


def test_the_rules_are_about_what_is_on_the_page(page):
    found = Elements(page).found
    cells = [within for tag, _, within in found if tag in ("th", "td")]
    assert len(cells) == 61 * COLUMNS
    assert all("div.scroll" in within and "main" in within for within in cells)
    assert sum(tag == "thead" for tag, _, _ in found) == 1
    assert {"figure", "svg", "tr"} <= {tag for tag, _, _ in found}


def test_a_page_needs_nothing_else(page, css):
    for tag, attributes, _ in Elements(page).found:
        assert tag not in ("script", "link", "iframe", "img")
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
    assert "url(" not in css
    assert "@import" not in css
    assert "A &lt;page&gt;" in page
