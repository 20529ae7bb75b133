"""The audit log: a chain of hashes that grows no faster than the budget allows, and holds nothing of a record."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.network.conftest import NORTH, full, log_of

from tacit.network import audit_log
from tacit.network.audit_log import AuditLog

pytestmark = pytest.mark.xdist_group("clinics")  # one process, so that their programs are compiled once

STRANGE = 987654.321  # the value of a record, to be looked for where no record may be


def filled(path: Path, lines: int = 4) -> AuditLog:
    log = AuditLog(path)
    for number in range(lines):
        log.write("answered", "heart/inference", number, b"asked", b"answered", "")
    return log


def test_a_changed_line_of_the_log_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert AuditLog(path).verify() == 0
    assert filled(path).verify() == 4
    lines = path.read_text().splitlines(keepends=True)
    for number in range(3):
        changed = [*lines]
        changed[number] = changed[number].replace("answered", "refused", 1)
        for others in (changed, lines[:number] + lines[number + 1 :], lines[: number + 1] + lines[number:]):
            path.write_text("".join(others))
            with pytest.raises(ValueError, match="does not follow the one before"):
                AuditLog(path).verify()
    path.write_text("".join(lines))
    assert filled(path).verify() == 8


def test_what_a_crash_or_a_full_disk_left_of_a_line_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    log = filled(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            log.write("answered", "heart/inference", 4, b"", b"", "")
    assert log.verify() == 4
    log.write("answered", "heart/inference", 4, b"", b"", "")
    assert log.verify() == 5
    with path.open("ab") as file:
        file.write(b'{"time": "2026-')  # a crash
    assert filled(path, 1).verify() == 6


class Clock:
    """A time that moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        monkeypatch.setattr(audit_log.time, "time", lambda: self.now)


def flood(log: AuditLog, clock: Clock, count: int, apart: float, words: str = "no") -> None:
    """So many refusals, some seconds apart."""
    for number in range(count):
        clock.now += apart
        log.write("refused", "heart/inference", number, b"asked", b"refusal", words)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("audit*"))


def test_refusals_that_are_asked_for_without_end_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of them, and every first answer among them is there."""
    clock, path = Clock(monkeypatch), tmp_path / "audit.jsonl"
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(audit_log, "MOST_ELSE", 60_000)
    monkeypatch.setattr(audit_log, "PART", 20_000)
    log = AuditLog(path)
    flood(log, clock, 20_000, 0.001)
    one_burst = size(tmp_path)
    assert one_burst < 60_000
    assert (
        len(path.read_bytes().splitlines()) + sum(len(part.read_bytes().splitlines()) for part in log.parts()[:-1])
        <= 2 * audit_log.A_MINUTE
    )
    answered = []
    for day in range(365):
        flood(log, clock, 300, 288.0, f"no {day % 3}")
        if day % 10 == 0:
            log = AuditLog(path)  # a new process knows what was written
            log.write("answered", "heart/inference", day, b"asked", f"{day}".encode(), "")
            answered.append(("heart/inference", day))
            for _ in range(50):  # the same answer, again
                log.write("answered", "heart/inference", day, b"asked", f"{day}".encode(), "")
    assert size(tmp_path) < 60_000 + 20_000 + 365 * 2 * 450
    assert list(dict.fromkeys(log.answered())) == answered
    assert log.verify() > 400
    words = [json.loads(line)["words"] for line in log.lines() if b'"summary"' in line]
    assert any("x refused: no 1" in text for text in words)


def test_a_log_is_put_aside_when_it_is_long_and_its_chain_goes_on_over_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "PART", 1500)
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(40):
        log.write("answered", "heart/inference", number, b"asked", f"{number}".encode(), "")
    parts = log.parts()
    assert len(parts) > 5
    assert path == parts[-1]
    assert {part.name for part in parts[:2]} == {"audit-0001.jsonl", "audit-0002.jsonl"}
    assert max(part.stat().st_size for part in parts) < 1500 + 600
    assert AuditLog(path).verify() == 40
    assert AuditLog(path).answered() == [("heart/inference", number) for number in range(40)]
    path.unlink()  # a crash between the old file's new name and the first line of the new one
    kept = AuditLog(path).verify()
    AuditLog(path).write("answered", "heart/inference", 40, b"", b"x", "")
    assert AuditLog(path).verify() == kept + 1
    lines = parts[1].read_bytes().splitlines(keepends=True)
    parts[1].write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ValueError, match="does not follow the one before"):
        AuditLog(path).verify()
    parts[1].unlink()
    with pytest.raises(ValueError, match="does not follow the one before"):
        AuditLog(path).verify()
    names = {part.name for part in log.parts()[:-1]}
    for number in range(50, 60):
        log.write("answered", "heart/inference", number, b"asked", f"{number}".encode(), "")
    assert names < {part.name for part in log.parts()}, "no part takes the place of another"


def test_a_log_is_of_hashes_and_its_folder_is_the_site_s_own(clinics: Any) -> None:
    session, request = clinics.open(NORTH), clinics.request()
    data, _ = session(request)
    assert clinics.state(NORTH).stat().st_mode & 0o777 == 0o700
    line = json.loads(log_of(clinics).path.read_text().splitlines()[-1])
    assert line["request"] == hashlib.sha256(request).hexdigest()
    assert line["answer"] == hashlib.sha256(data).hexdigest()
    assert set(line) == {"time", "kind", "study", "round", "request", "answer", "words", "previous"}


def test_no_value_of_a_record_is_in_the_log_the_notes_or_refusals(clinics: Any) -> None:
    """Also where records do not fit, and the holder is told why."""
    path = clinics.folder / NORTH / "north.csv"
    sound = path.read_text()
    told = []

    def hold() -> None:
        session = clinics.open(NORTH)
        for phase in ("scaling", "inference"):
            data, note = session(clinics.request(phase=phase))
            told.extend([data.decode("latin-1"), note, session.refusal])

    for column, value in (("age", str(STRANGE)), ("age", f"a{STRANGE}"), ("sex", str(STRANGE)), ("ill", str(STRANGE))):
        header, first, *rest = sound.splitlines()
        cells = dict(zip(header.split(","), first.split(","), strict=True)) | {column: value}
        path.write_text("\n".join([header, ",".join(cells.values()), *rest]))
        hold()
    refused = sum("the records do not fit" in text for text in told)
    assert refused == 3 * 2 * 3  # note, refusal and message, of both phases; to be outside of bounds is no fault
    for text in (*told, log_of(clinics).path.read_text()):
        assert "987654" not in text
    stored = [place.read_bytes() for place in clinics.state(NORTH).rglob("*") if place.is_file()]
    assert not any(b"987654" in data for data in stored)
