"""Files are replaced whole; what else they are to their owner stays as it was."""

import os
import stat
import threading
from pathlib import Path

import pytest

from tacit.basics import durable


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    durable.write(path, "first, which is longer")
    durable.write(path, b"second")
    assert path.read_text() == "second"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_only_its_owner_may_read_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "posterior.json"
    path.write_text("old")
    path.chmod(0o600)
    durable.write(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    durable.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are of POSIX systems")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null are."""
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    durable.write(tmp_path / "pipe", "through")
    reader.join(10)
    assert read == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_of_two_processes_that_make_a_file_once_the_first_wins(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert durable.write_once(path, lambda: b"first") == b"first"
    assert durable.write_once(path, lambda: b"second") == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
