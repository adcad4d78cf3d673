"""Files are written whole or not at all, whoever else writes them."""

import os
import subprocess
import sys

import pytest

from mvue._serialise.files import opened, replacing, write_bytes, write_text

WRITER = """
import sys
from mvue._serialise.files import write_bytes
print("ready", flush=True)
sys.stdin.readline()
for _ in range(8):
    write_bytes(sys.argv[1], sys.argv[2].encode() * 2**20)
"""


def test_two_processes_that_write_one_file_leave_one_whole_file(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"a" * 2**20)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", WRITER, path, name], **pipes) for name in "ab"]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    while any(process.poll() is None for process in both):
        data = path.read_bytes()
        assert data == data[:1] * 2**20
    for process in both:
        process.communicate()
        assert process.returncode == 0
    assert path.read_bytes() in (b"a" * 2**20, b"b" * 2**20)
    assert list(tmp_path.iterdir()) == [path]


def fail():
    raise RuntimeError("in the middle")


def write_half(path):
    with opened(path) as stream:
        stream.write(b"half")
        fail()


def write_half_of_a_folder(path):
    with replacing(path) as new:
        new.mkdir()
        (new / "inside").write_text("half")
        fail()


@pytest.mark.parametrize("write", [write_half, write_half_of_a_folder])
def test_a_failure_leaves_what_was_there(write, tmp_path):
    path = tmp_path / "file"
    with pytest.raises(RuntimeError, match="in the middle"):
        write(path)
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    with pytest.raises(RuntimeError, match="in the middle"):
        write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_and_links_followed(tmp_path):
    write_text(tmp_path / "new" / "folder" / "file", "naïve\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "folder" / "file")
    assert link.read_bytes() == "naïve\n".encode()
    write_text(link, "changed")
    assert link.is_symlink()
    assert (tmp_path / "new" / "folder" / "file").read_text() == "changed"


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match=name):
            write_text(tmp_path / name, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_long_names_and_errors(tmp_path):
    write_text(tmp_path / ("n" * 255), "text")
    assert (tmp_path / ("n" * 255)).read_text() == "text"
    with pytest.raises(OSError, match="'/proc/nothing'"):
        write_text("/proc/nothing", "where no file can be made")
