"""The audit log of a site: a line for every message answered, chained by hashes."""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tacit.basics import durable
from tacit.basics.words import now

PART = 4 * 2**20  # bytes of the audit log, after which a new file is begun
A_MINUTE = 100  # the most lines a minute for messages that a coordinator can cause without end
MOST_ELSE = 16 * 2**20  # bytes of such lines, after which there is one a day
MOST_WORDS = 20  # the most kinds of left-out messages that are counted apart
LONGEST_WORDS = 4000  # characters of a line
DAY = 86_400.0  # seconds


class AuditLog:
    """The audit log: a line of JSON for every message answered, each with the hash of the line before.

    It holds hashes of messages, not messages, and nothing of a record. Like the ledger's, its chain has no secret. A
    line that a crash or a full disk left unfinished is cut off: its answer has not left the site.

    A log that has grown to `PART` bytes is put aside as `audit-0001.jsonl`, and so on; the chain goes on over all of
    them. A first answer always has its line: it decides whether a ledger is complete, and the ledger's budget bounds
    how many there are. A coordinator can cause other lines without end: refusals, repeated answers, exchanged keys.
    There are at most `A_MINUTE` of these a minute and, once they fill `MOST_ELSE` bytes, one a day. A line of the kind
    "summary" says how many were left out, and with which words.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None
        self._known: set[tuple[str, int, str]] = set()  # first answers: study, round, hash
        self._times: deque[float] = deque(maxlen=A_MINUTE)  # when other lines were written
        self._else = 0  # bytes of them
        self._left_out: Counter[str] = Counter()

    def write(self, kind: str, study: str, round: int, request: bytes, answer: bytes, words: str) -> None:
        """Append a line, durably, or count it as left out."""
        if self._last is None:
            self._load()
        digest = hashlib.sha256(answer).hexdigest() if answer else ""
        key = (study, round, digest)
        if kind == "answered" and key not in self._known:
            self._summarise()
            self._append(kind, study, round, request, digest, words)
            self._known.add(key)
        elif self._has_room():
            self._summarise()
            self._append(kind, study, round, request, digest, words)
        else:
            what = f"{kind}: {words}" if words else kind
            is_new = what not in self._left_out and len(self._left_out) >= MOST_WORDS
            self._left_out["other messages" if is_new else what] += 1

    def close(self) -> None:
        """Append a summary of what was left out, if there is room for it."""
        if self._left_out and self._has_room():
            with contextlib.suppress(OSError):
                self._summarise()

    def _has_room(self) -> bool:
        """Whether a line other than a first answer may be written now."""
        span, most = (DAY, 1) if self._else > MOST_ELSE else (60.0, A_MINUTE)
        recent = sum(time.time() - span < then for then in self._times)
        return recent < most

    def _summarise(self) -> None:
        """Append one line for all that was left out since the last summary."""
        if not self._left_out or not self._has_room():
            return
        words = "; ".join(f"{count} x {what}" for what, count in self._left_out.most_common())
        self._append("summary", "", 0, b"", "", words)
        self._left_out.clear()

    def _append(self, kind: str, study: str, round: int, request: bytes, digest: str, words: str) -> None:
        plain = {
            "time": now(),
            "kind": kind,
            "study": study,
            "round": round,
            "request": hashlib.sha256(request).hexdigest(),
            "answer": digest,
            "words": words[:LONGEST_WORDS],
            "previous": self._last,
        }
        line = json.dumps(plain).encode()
        if self.path.exists() and self.path.stat().st_size >= PART:
            self._put_aside()
        with self.path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(line + b"\n") <= len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise
        self._last = hashlib.sha256(line).hexdigest()
        if kind != "answered" or (study, round, digest) in self._known:
            self._times.append(time.time())
            self._else += len(line) + 1

    def _put_aside(self) -> None:
        """Begin a new file, whose first line has the hash of this one's last."""
        aside = [part.stem.removeprefix(f"{self.path.stem}-") for part in self.parts()[:-1]]
        number = 1 + max((int(name) for name in aside if name.isdecimal()), default=0)
        os.rename(self.path, self.path.with_name(f"{self.path.stem}-{number:04d}{self.path.suffix}"))
        durable.sync_folder(self.path.parent)

    def parts(self) -> list[Path]:
        """All files of the log, oldest first; the last one is written to."""
        aside = self.path.parent.glob(f"{self.path.stem}-[0-9]*{self.path.suffix}")
        return [*sorted(aside, key=lambda path: (len(path.name), path.name)), self.path]

    def lines(self) -> Iterator[bytes]:
        """All parts, oldest first."""
        for part in self.parts():
            if part.exists():
                yield from part.read_bytes().splitlines()

    def _load(self) -> None:
        """Cut off an unfinished line, and read what earlier processes wrote."""
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self.path, len(whole))
        self._last = ""
        for line in self.lines():
            self._last = hashlib.sha256(line).hexdigest()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)
                key = (found["study"], found["round"], found["answer"])
                if found["kind"] == "answered" and key not in self._known:
                    self._known.add(key)
                    continue
                self._else += len(line) + 1
                self._times.append(datetime.fromisoformat(found["time"]).timestamp())

    def answered(self) -> list[tuple[str, int]]:
        """(study, round) of all that was answered."""
        found = []
        for line in self.lines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["kind"] == "answered":
                    found.append((entry["study"], entry["round"]))
        return found

    def verify(self) -> int:
        """The number of lines in all parts. Refuses a line that does not follow the one before."""
        previous, number = "", 0
        for line in self.lines():
            number += 1
            try:
                found = json.loads(line)["previous"]
            except (ValueError, KeyError, TypeError):
                found = None
            if found != previous:
                raise ValueError(f"log={self.path}: line {number} does not follow the one before; go back to a copy")
            previous = hashlib.sha256(line).hexdigest()
        return number
