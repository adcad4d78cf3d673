"""Data sets: what is in them, and that a file is the right one or is not used."""

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import requests

from mvue.datasets import DatasetError, _fetch, _ivim, _rssi, ivim_results, rssi
from mvue.datasets._fetch import SourceFile, fetch, sha256_of

CONTENT = b"location,date,b3001,b3002\r\nK04,4-9-2016 9:05:07,-60,-200\r\n"
SOURCE = SourceFile(
    "toy", "toy.csv", hashlib.sha256(CONTENT).hexdigest(), "https://example.org/t.zip"
)

DATA_DIR = os.environ.get(_fetch.DATA_DIR)
needs_file = pytest.mark.skipif(
    not DATA_DIR or not (Path(DATA_DIR) / _rssi.SOURCE.place).is_file(),
    reason=f"needs {_rssi.SOURCE.place} in the folder that {_fetch.DATA_DIR} names",
)


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache and no folder of the user's."""
    monkeypatch.delenv(_fetch.DATA_DIR, raising=False)
    monkeypatch.setattr(_fetch, "_cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch):
    """What a download brings: bytes or an error, instead of the network."""
    state = {"answer": OSError("no network in tests"), "urls": []}

    def download(url, path):
        state["urls"].append(url)
        if isinstance(state["answer"], Exception):
            path.write_bytes(CONTENT[:20])  # what had come before the connection broke
            raise state["answer"]
        path.write_bytes(state["answer"])

    monkeypatch.setattr(_fetch, "_downloader", lambda: download)
    return state


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "answer",
    [
        CONTENT,
        zipped(toy_csv=CONTENT, other_csv=b"no"),
        zipped(folder__toy_csv=CONTENT),
        zipped(notes_txt=b"no", inner_zip=zipped(folder__toy_csv=CONTENT)),
    ],
    ids=["plain", "zip", "in a folder", "zip in zip"],
)
def test_download_is_unpacked_checked_and_kept(cache, server, answer):
    server["answer"] = answer
    for _ in range(2):
        path = fetch(SOURCE)
        assert path == cache / "toy" / "toy.csv"
        assert path.read_bytes() == CONTENT
    assert server["urls"] == [SOURCE.url]  # once
    assert files_in(cache) == [path]


def test_own_folder_comes_first(cache, server, tmp_path, monkeypatch):
    own = tmp_path / "own" / "toy" / "toy.csv"
    own.parent.mkdir(parents=True)
    own.write_bytes(CONTENT)
    monkeypatch.setenv(_fetch.DATA_DIR, str(tmp_path / "own"))
    assert fetch(SOURCE) == own
    assert not server["urls"]


def test_own_folder_without_the_file_is_passed_over(cache, server, tmp_path, monkeypatch):
    monkeypatch.setenv(_fetch.DATA_DIR, str(tmp_path / "own"))
    with pytest.raises(DatasetError, match="own, where the file is not"):
        fetch(SOURCE)
    server["answer"] = CONTENT
    assert fetch(SOURCE) == cache / "toy" / "toy.csv"


def test_wrong_file_in_own_folder_is_refused_and_left_alone(cache, server, tmp_path, monkeypatch):
    own = tmp_path / "own" / "toy" / "toy.csv"
    own.parent.mkdir(parents=True)
    own.write_bytes(CONTENT[:-1])
    monkeypatch.setenv(_fetch.DATA_DIR, str(tmp_path / "own"))
    with pytest.raises(DatasetError) as error:
        fetch(SOURCE)
    for part in (str(own), SOURCE.sha256, sha256_of(own), "Remove it, or replace it"):
        assert part in str(error.value)
    assert own.read_bytes() == CONTENT[:-1]
    assert not server["urls"]


def test_corrupt_cached_file_is_fetched_again(cache, server):
    path = cache / "toy" / "toy.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    server["answer"] = zipped(toy_csv=CONTENT)
    assert fetch(SOURCE).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    server["answer"] = OSError("offline")
    with pytest.raises(DatasetError, match="offline"):
        fetch(SOURCE)
    assert not path.exists()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (CONTENT[:-1], hashlib.sha256(CONTENT[:-1]).hexdigest()),
        (zipped(toy_csv=CONTENT)[:-30], "but is"),
        (zipped(toy_csv=b"changed"), hashlib.sha256(b"changed").hexdigest()),
        (zipped(other_csv=CONTENT), "the archive has no toy.csv"),
    ],
    ids=["cut short", "half an archive", "changed", "not there"],
)
def test_wrong_download_is_never_used(cache, server, answer, found):
    server["answer"] = answer
    with pytest.raises(DatasetError) as error:
        fetch(SOURCE)
    for part in (SOURCE.url, SOURCE.sha256, found, "Nothing was kept", _fetch.DATA_DIR):
        assert part in str(error.value)
    assert not files_in(cache)


def test_damaged_archive_is_never_used(cache, server):
    damaged = bytearray(zipped(toy_csv=CONTENT))
    damaged[40:50] = b"0123456789"
    server["answer"] = bytes(damaged)
    with pytest.raises(DatasetError):
        fetch(SOURCE)
    assert not files_in(cache)


def test_broken_download_leaves_nothing_and_says_what_to_do(cache, server):
    server["answer"] = ConnectionError("network is unreachable")
    with pytest.raises(DatasetError) as error:
        fetch(SOURCE)
    for part in (SOURCE.url, "network is unreachable", "toy/toy.csv", "set MVUE_DATA_DIR to"):
        assert part in str(error.value)
    assert not files_in(cache)


def http_error():
    response = requests.Response()
    response.status_code, response.reason = 404, "Not Found"
    return requests.HTTPError("404 Client Error: Not Found for url: https://…", response=response)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (requests.ConnectionError("HTTPSConnectionPool(host='example.org')"), "(no connection)"),
        (requests.ReadTimeout("HTTPSConnectionPool(host='example.org')"), "(no answer in time)"),
        (requests.exceptions.SSLError("bad"), "(its certificate cannot be verified)"),
        (http_error(), "(the answer was 404 Not Found)"),
    ],
)
def test_errors_of_the_network_are_told_in_a_few_words(error, words, cache, server):
    server["answer"] = error
    with pytest.raises(DatasetError) as told:
        fetch(SOURCE)
    assert words in str(told.value)
    assert "Pool" not in str(told.value)


def test_interrupted_download_leaves_nothing(cache, monkeypatch):
    def download(url, path):
        path.write_bytes(CONTENT[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(_fetch, "_downloader", lambda: download)
    with pytest.raises(KeyboardInterrupt):
        fetch(SOURCE)
    assert not files_in(cache)


def test_missing_pooch_names_the_extra(monkeypatch):
    monkeypatch.delenv(_fetch.DATA_DIR, raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'mvue\[data\]'.*MVUE_DATA_DIR"):
        rssi()


def test_cache_is_that_of_the_user(monkeypatch):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda project: Path("somewhere") / project)
    assert _fetch._cache_folder() == Path("somewhere/mvue")


def test_import_is_light():
    code = (
        "import sys, mvue.datasets; assert not {'pooch', 'requests', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


ROWS = """location,date,b3001,b3002,b3003
K04,10-18-2016 11:15:21,-200,-78,-200
A01,4-9-2016 9:05:07,-60,-199,-88
K04,10-3-2016 13:00:00,-198,-200,-55
"""


def toy(tmp_path, missing):
    path = tmp_path / "toy.csv"
    path.write_bytes(ROWS.replace("\n", "\r\n").encode())
    return _rssi.read(path, missing)


def test_rows_are_read(tmp_path):
    data = toy(tmp_path, -100.0)
    assert data.x.tolist() == [[-100, -78, -100], [-60, -100, -88], [-100, -100, -55]]
    assert data.y.tolist() == [[11, 4], [1, 1], [11, 4]]
    assert data.x.dtype == data.y.dtype == np.float32
    assert data.location.tolist() == ["K04", "A01", "K04"]
    assert data.time.tolist() == [
        np.datetime64(t).item()
        for t in ("2016-10-18T11:15:21", "2016-04-09T09:05:07", "2016-10-03T13:00:00")
    ]
    assert data.time.dtype == "datetime64[s]"
    assert data.beacons == ("b3001", "b3002", "b3003")
    assert data.unit_ids.tolist() == [1, 0, 1]
    assert data.heard.sum() == 4
    assert repr(data) == (
        "RSSI(3 rows of 3 beacons at 2 places, 2016-04-09 to 2016-10-18; "
        "55.6% of the readings not heard)"
    )


def test_unheard_readings_as_asked_for(tmp_path):
    as_in_file = toy(tmp_path, None)
    assert as_in_file.x.tolist() == [[-200, -78, -200], [-60, -199, -88], [-198, -200, -55]]
    absent = toy(tmp_path, np.nan)
    np.testing.assert_array_equal(np.isnan(absent.x), ~as_in_file.heard)
    np.testing.assert_array_equal(absent.heard, as_in_file.heard)


@needs_file
def test_rssi_has_the_published_counts():
    data = rssi()
    assert data.x.shape == data.heard.shape == (1420, 13)
    assert data.y.shape == (1420, 2)
    assert data.beacons == tuple(f"b{3000 + k}" for k in range(1, 14))
    names, rows = np.unique(data.location, return_counts=True)
    assert len(names) == 105
    assert (rows.min(), rows.max()) == (2, 34)
    assert (rows >= 8).sum() == 81
    assert rows[rows >= 8].sum() == 1306
    np.testing.assert_array_equal(names[data.unit_ids], data.location)
    np.testing.assert_array_equal(np.bincount(data.unit_ids), rows)
    assert data.y.mean(axis=0) == pytest.approx([13.65, 5.17], abs=0.005)
    assert data.y.var(axis=0) == pytest.approx([17.44, 13.08], abs=0.005)
    letters = {chr(ord("A") + int(column) - 1) for column in data.y[:, 0]}
    assert letters == set("DEFGIJKLMNOPQRSTUVW")
    assert set(data.y[:, 1]) == {*range(1, 11), 13, 14, 15}


@needs_file
def test_rssi_readings():
    data, raw = rssi(), rssi(missing=None)
    assert (raw.x == -200).mean() == pytest.approx(0.889, abs=5e-4)
    assert [(raw.x == mark).sum() for mark in (-198, -199)] == [11, 4]
    heard = data.x[data.heard]
    assert (heard.min(), heard.max()) == (-88, -55)
    assert set(data.x[~data.heard]) == {-100}
    assert np.bincount((raw.x > -200).sum(axis=1)).tolist()[:4] == [0, 908, 415, 84]
    assert np.isnan(rssi(missing=np.nan).x).sum() == (~data.heard).sum()
    assert len(np.unique(raw.x, axis=0)) == 648
    assert str(data.time.min())[:4] == str(data.time.max())[:4] == "2016"
    assert "1420 rows of 13 beacons at 105 places" in repr(data)


def test_missing_must_be_a_number(monkeypatch):
    """Before anything is fetched, as a user meets it: without the type checker of the tests."""
    code = (
        "import mvue.datasets\n"
        "try: mvue.datasets.rssi(missing='nan')\n"
        "except TypeError as error: assert 'missing must be a number' in str(error)\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(
    not DATA_DIR or not (Path(DATA_DIR) / _ivim.SOURCE.place).is_file(),
    reason=f"needs {_ivim.SOURCE.place} in the folder that {_fetch.DATA_DIR} names",
)
def test_results_for_perfusion():
    results = ivim_results()
    assert "19 algorithms, 27 tissues, SNR 10, 30, 50, 100, 200" in repr(results)
    assert results.truth.shape == results.mean.shape == results.sd.shape == (2565, 3)
    liver = results.truth[results.tissue == "Liver"]
    assert (liver == [[0.0015, 0.11, 0.1]]).all()
