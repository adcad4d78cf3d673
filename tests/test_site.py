"""The site of the documentation opens from disk: nothing is loaded, and the search finds."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "404.html").unlink()  # for servers, which know where the site begins
    return folder


class Links(HTMLParser):
    """What a page loads, where its links lead, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.followed, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.add(attributes.get("id"))
        if tag == "a" or (tag == "link" and attributes.get("rel") in ("next", "prev", "canonical")):
            self.followed.append(attributes.get("href"))
        else:
            self.loaded += [attributes[name] for name in ("src", "href") if name in attributes]


@pytest.fixture(scope="module")
def pages(site):
    return {path: Links(path.read_text()) for path in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert len(pages) > 20
    for path, links in pages.items():
        assert links.loaded
        for link in links.loaded:
            assert not urlsplit(link).netloc, f"{path.name} loads {link}"
            assert not link.startswith("/"), f"{path.name} loads {link}"
            assert (path.parent / unquote(urlsplit(link).path)).is_file(), f"{path.name}: {link}"
    for path in site.rglob("*.css"):
        loaded = re.findall(r"url\(([^)]*)\)|@import([^;]*)", path.read_text())
        assert not [one for one in loaded if "//" in "".join(one).replace("data:", "")[:12]]


def test_links_lead_to_files(pages):
    """Not to folders, of which a browser shows the contents where a server shows a page."""
    for path, links in pages.items():
        for link in filter(None, links.followed):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                continue
            assert not parts.scheme, f"{path.name}: {link}"
            assert not link.startswith("/"), f"{path.name}: {link}"
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


def test_the_search_is_in_the_site(site, pages):
    """Browsers let no page on disk read a file or start a worker: both come as scripts."""
    text = (site / "search" / "search_index.js").read_text()
    name, _, index = text.partition(" = ")
    assert name == "var __index"
    documents = json.loads(index.rstrip().rstrip(";"))["docs"]
    places = {tuple(document["location"].partition("#")[::2]) for document in documents}
    for file, anchor in places:
        assert (site / file).is_file()
        assert not anchor or unquote(anchor) in pages[site / file].anchors
    found = {site / file for file, _ in places}
    assert found == set(pages)
    words = " ".join(document["text"] for document in documents)
    assert "control variate" in words
    bundles = list((site / "assets" / "javascripts").glob("bundle.*.js"))
    assert any("search/search_index.js" in bundle.read_text() for bundle in bundles)


def test_pages_start_the_search_without_a_worker(site, pages):
    for path in pages:
        text = path.read_text()
        config = json.loads(re.search(r'<script id="__config"[^>]*>(.*?)</script>', text).group(1))
        assert (path.parent / config["search"]).resolve().is_file()
        assert (path.parent / config["base"]).resolve() == site.resolve()
        replaced, bundle = text.index("window.Worker = class"), text.index("javascripts/bundle.")
        assert replaced < bundle
