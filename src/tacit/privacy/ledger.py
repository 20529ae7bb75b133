"""The ledger: what a site has spent of one data set's budget. Charge, then read.

`charge` prices everything charged so far together with the new event and commits it, or refuses, in one durable
transaction. A site calls it *before* it reads a record, so a crash at any instant counts at most one update too many
and never one too few. All studies on a data set share one ledger.

**Durability.** SQLite with a rollback journal (`journal_mode=DELETE`) and `synchronous=EXTRA`. A rollback journal
commits by deleting a file, and `FULL` leaves that deletion to the file system: after a power loss the journal can come
back and undo a charge whose record was read. `EXTRA` is `FULL` and a sync of the folder, which closes that gap. A
write-ahead log is durable too, but keeps the last charges in a second file: who copies only the first loses them.

**Chain.** Each entry holds the hash of the one before, and its own sha256 over its canonical JSON. Every reading checks
the chain, and a broken one is refused. Hashes have no secret: whoever may write the file can rewrite all of it or cut
its tail, and the file alone cannot tell. Note `head()` elsewhere and hand it to `verify`.

**Rule.** A ledger prices all its entries as one composition, by the rule that it was made with (`accountant`):

| rule                | analyses chosen after seeing earlier results (fully adaptive composition)                     |
|---------------------|-----------------------------------------------------------------------------------------------|
| `gaussian`          | covered: the Gaussian-DP filter. It refuses samples and Laplace noise; its price is exact     |
| `renyi`             | covered: the Rényi filter, at an order that is fixed when the ledger is made                  |
| any of `accounting` | **not** covered: the number and the settings of all analyses must have been fixed beforehand  |

`filters` has the theorems and their proofs. A filter's parameters (`gaussian(reserve=0.001)`) are part of the genesis.

**Budget.** It stays as it was made, but for `extend`: an act of the holder, which is an entry of the chain. A filter's
theorem is about a bound that was fixed beforehand: what is covered is the budget, and not what of it happens to be
spent when an analyst stops. It covers a raised budget if that was decided without looking at results. `rule_words` says
both.
"""

import hashlib
import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.privacy import accounting, events, filters
from tacit.privacy.events import Adjacency, Event, check_number
from tacit.privacy.filters import Filter

# By how much ε may pass the budget, relatively. The price of the same releases depends in its last digits on the order
# they are added up in (roots are found to 1e-12, and Fourier transforms round): 4 × 0.25 must fit into 1.
SLACK = 1e-9
TIMEOUT = 60.0  # seconds to wait for another process; one price takes a few at most

_APPLICATION = 0x7AC17  # "tacit", as SQLite's mark of whose file it is
_FORMAT = 2
_FORMATS = (1, 2)  # that can be read: the first had neither filters nor extensions
_LARGEST = 2**63 - 1  # SQLite's integers
_SCHEMA = (
    "CREATE TABLE genesis (format INTEGER NOT NULL, data_set TEXT NOT NULL, epsilon REAL NOT NULL, "
    "delta REAL NOT NULL, unit TEXT NOT NULL, adjacency TEXT NOT NULL, accountant TEXT NOT NULL, "
    "created TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE entries (position INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, "
    "round INTEGER NOT NULL, event TEXT NOT NULL, spent REAL NOT NULL, note TEXT NOT NULL, previous TEXT NOT NULL, "
    "hash TEXT NOT NULL, UNIQUE (study, round))",
    *(
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
        for table in ("genesis", "entries")
        for verb in ("UPDATE", "DELETE")
    ),
)
_GENESIS = "format, data_set, epsilon, delta, unit, adjacency, accountant, created"
_ENTRY = "position, time, study, round, event, spent, note, previous"
_EXTENSIONS = "(budget)"  # what stands for the study in the entries that raise the budget
RULES = (*filters.NAMES, *accounting.ACCOUNTANTS)


class BudgetExceeded(ValueError):
    """The event does not fit into what is left of the budget. Nothing was charged."""


class AlreadyCharged(ValueError):
    """This round of this study is in the ledger: answer it from the store, do not run it again."""


class Unwritable(ValueError):
    """The file cannot be written now: the disk is full or fails, it is read-only, or another process holds it."""


class BrokenLedger(ValueError):
    """The file is not what its hashes say: an entry was edited, removed, moved or added by other means."""


@dataclass(frozen=True)
class Entry:
    """One charge. `spent` is ε of all entries up to and including this one.

    `budget` is what an entry raised the budget to; its event is then nothing. None of a charge.
    """

    position: int
    time: str
    study: str
    round: int
    event: Event
    spent: float
    note: str
    previous: str
    hash: str
    budget: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain data."""
        return {**self.__dict__, "event": events.to_dict(self.event)}


@dataclass(frozen=True)
class Ledger:
    """A site's record of what was spent of one data set's budget. Made by `create` or `open`.

    It keeps no connection: each call opens the file, so that a ledger may be shared by threads and forked processes.

    Guarantee: if `charge` returned, the charge survives a crash and a loss of power; and ε of all entries together, at
    `delta` and by `accountant`, is at most `epsilon` · (1 + SLACK), however many processes charge at once. Whether that
    holds for analyses that were chosen after seeing results, `rule_words` says.

    accountant: the rule, with the parameters that it was made with. epsilon: the budget when it was opened.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.create(
    ...     Path(folder.name) / "a.ledger", data_set="a", epsilon=1.0, delta=1e-5, accountant="basic"
    ... )
    >>> for round in range(4):
    ...     entry = ledger.charge(events.Laplace(4.0), study="heart", round=round)
    >>> ledger.spent()
    1.0
    >>> ledger.charge(events.Laplace(4.0), study="lung", round=0)
    Traceback (most recent call last):
    tacit.privacy.ledger.BudgetExceeded: epsilon=1.0 would be passed by this update: spent 1, price 0.25, δ=1e-05; ...
    >>> folder.cleanup()
    """

    path: Path
    data_set: str
    epsilon: float
    delta: float
    unit: str
    adjacency: Adjacency
    accountant: str
    created: str
    genesis: str  # its hash
    first_epsilon: float  # before any extension
    timeout: float = TIMEOUT

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        data_set: str,
        epsilon: float,
        delta: float,
        unit: str = "record",
        adjacency: Adjacency = "add-remove",
        accountant: str = "pld",
        timeout: float = TIMEOUT,
    ) -> "Ledger":
        """A new ledger. Refuses a file that exists: that would forget its entries.

        accountant: the rule, "gaussian", "renyi" (their parameters are found from ε and δ) or one of `accounting`; or a
        rule with its parameters, as `str` of a `Filter` writes it.
        """
        _check_text("data_set", data_set)
        accounting.check_epsilon(epsilon)
        accounting.check_delta(delta)
        _check_text("unit", unit)
        events.check_adjacency(adjacency)
        known = accountant in RULES or Filter.read(str(accountant)) is not None
        check_number("accountant", repr(accountant), "one of " + ", ".join(RULES), known)
        if accountant in filters.NAMES:
            accountant = str(Filter.of(accountant, epsilon, delta))  # type: ignore[arg-type]  # one of the names
        _check_timeout(timeout)
        path = Path(path).absolute()
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise ValueError(
                f"path={path} exists; open it with Ledger.open, for a new one forgets its spending"
            ) from None
        except OSError as error:
            raise ValueError(f"path={path}: {error.strerror}; expected a file to make in an existing folder") from None
        values = (_FORMAT, data_set, float(epsilon), float(delta), unit, adjacency, accountant, _now())
        try:
            with _connection(path, timeout, new=True) as connection, _transaction(connection):
                connection.execute(f"PRAGMA application_id={_APPLICATION}")
                for statement in _SCHEMA:
                    connection.execute(statement)
                sealed = (*values, _hash(_GENESIS, values))
                connection.execute(f"INSERT INTO genesis VALUES ({_places(sealed)})", sealed)
        except BaseException:
            if path.exists() and path.stat().st_size == 0:  # else it is committed, and somebody may have charged it
                path.unlink()
            raise
        return cls.open(path, timeout=timeout)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, timeout: float = TIMEOUT) -> "Ledger":
        """The ledger at `path`. `timeout` is how many seconds a call waits for another process."""
        _check_timeout(timeout)
        path = Path(path).absolute()
        if not os.path.isfile(path):  # pathlib's raises for a name that is too long
            what = "is not a file" if os.path.exists(path) else "does not exist"
            raise ValueError(f"path={path} {what}; expected a ledger made by Ledger.create")
        with _connection(path, timeout) as connection:
            _, data_set, epsilon, delta, unit, adjacency, accountant, created, genesis = _genesis(path, connection)
            budget = _raised(connection) or epsilon
        return cls(path, data_set, budget, delta, unit, adjacency, accountant, created, genesis, epsilon, timeout)

    @property
    def rule_words(self) -> str:
        """Whether analyses that were chosen after seeing earlier results are covered, by which theorem, and how far."""
        return words_of(
            self.accountant,
            self.delta,
            is_raised=self.epsilon != self.first_epsilon,
            budget=self.epsilon,
            first=self.first_epsilon,
        )

    def charge(self, event: Event, *, study: str, round: int, note: str = "") -> Entry:
        """Commit the price of `event` durably, or refuse. Call it before a record is read.

        | raises           | when                                                                     |
        |------------------|--------------------------------------------------------------------------|
        | `BudgetExceeded` | ε of all entries and this one is above the budget                        |
        | `AlreadyCharged` | `round` of `study` is in the ledger                                      |
        | `BrokenLedger`   | the file was tampered with                                               |
        | `Unwritable`     | it is locked or read-only, the disk is full                              |
        | `ValueError`     | no guarantee (ε = ∞), another unit or adjacency                          |

        Whatever it raises, the caller must not read. After an error of the disk the charge may still be there: it is
        then counted and not used.
        """
        _check_text("study", study)
        check_number(
            "study", repr(study), "another name: this one stands for what raises the budget", study != _EXTENSIONS
        )
        whole = isinstance(round, int) and not isinstance(round, bool) and 0 <= round <= _LARGEST
        check_number("round", repr(round), "a whole number of at least 0", whole)
        if note != "":
            _check_text("note", note)
        text = self._stored(event)
        # IMMEDIATE: nobody else writes between the pricing and the commit.
        with _connection(self.path, self.timeout) as connection, _transaction(connection):
            entries = self._read(connection)
            if any((e.study, e.round) == (study, round) for e in entries):
                raise AlreadyCharged(_twice(study, round))
            budget = self._budget(entries)
            total = self._price(_counts(entries) + Counter([text]), budget)
            if not self._fits(total, budget):
                raise BudgetExceeded(self._refusal(self._price(_counts(entries), budget), total, budget))
            return self._append(connection, entries, study, int(round), text, total, note)

    def extend(self, epsilon: float, *, note: str = "") -> Entry:
        """Raise the budget to `epsilon`, as an entry of the chain: a decision of the data's holder, never of a study.

        A ledger that was opened before keeps to the new budget from its next charge on; open it again to see it.
        """
        accounting.check_epsilon(epsilon)
        if note != "":
            _check_text("note", note)
        with _connection(self.path, self.timeout) as connection, _transaction(connection):
            entries = self._read(connection)
            budget = self._budget(entries)
            check_number("epsilon", epsilon, f"more than the budget of {self.path}, {budget:g}", epsilon > budget)
            total = self._price(_counts(entries), epsilon)
            if not self._fits(total, epsilon):
                raise BudgetExceeded(
                    f"epsilon={epsilon} asks more of δ={self.delta!r} for each draw of noise than was set aside; raise "
                    "the budget by less"
                )
            text = _canonical({"type": "budget", "epsilon": float(epsilon)})
            return self._append(connection, entries, _EXTENSIONS, len(entries) + 1, text, total, note)

    def _append(
        self,
        connection: sqlite3.Connection,
        entries: list[Entry],
        study: str,
        round: int,
        text: str,
        total: float,
        note: str,
    ) -> Entry:
        previous = entries[-1].hash if entries else self.genesis
        values = (len(entries) + 1, _now(), study, round, text, total, note, previous)
        sealed = (*values, _hash(_ENTRY, values))
        try:
            connection.execute(f"INSERT INTO entries VALUES ({_places(sealed)})", sealed)
        except sqlite3.IntegrityError:
            raise AlreadyCharged(_twice(study, round)) from None
        return _entry(sealed, *_meaning(text))

    def spent(self) -> float:
        """ε of everything charged so far, at the budget's δ."""
        entries = self.entries()
        return self._price(_counts(entries), self._budget(entries))

    def price(self, event: Event) -> float:
        """ε of `event` by this ledger's rule, as if it were all that was done. Charges nothing."""
        return self._price(Counter([self._stored(event)]), self._budget(self.entries()))

    def remaining_after(self, event: Event) -> float:
        """What would be left of ε after charging `event`; below 0 if that would be refused. Charges nothing."""
        entries = self.entries()
        budget = self._budget(entries)
        return budget - self._price(_counts(entries) + Counter([self._stored(event)]), budget)

    def entries(self) -> tuple[Entry, ...]:
        """All charges, first to last, their chain checked."""
        with _connection(self.path, self.timeout) as connection:
            return tuple(self._read(connection))

    def find(self, study: str, round: int) -> Entry | None:
        """The charge for a round of a study, or None."""
        return next((e for e in self.entries() if (e.study, e.round) == (study, round)), None)

    def head(self) -> str:
        """The hash of the last entry: it stands for all before. Note it outside the site's machine, for `verify`."""
        return self._head(self.entries())

    def verify(self, expected_head: str | None = None) -> str:
        """Check that entries are unchanged, in order, without gaps, and within the budget; returns the head's hash.

        Raises `BrokenLedger` with what is wrong. A tail that was cut off, or a whole history written anew, cannot be
        seen in the file alone. `expected_head`, a head that was noted at any time before, must be in the chain: then
        everything up to it is as it was.
        """
        with _connection(self.path, self.timeout) as connection:
            entries = self._read(connection)
            sound = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
        if sound != ["ok"]:
            raise BrokenLedger(f"path={self.path} is damaged: {' '.join(str(sound[0]).split())}; go back to a copy")
        budget = self.first_epsilon
        for entry in entries:
            budget = entry.budget or budget
            if not self._fits(entry.spent, budget):
                raise BrokenLedger(
                    f"path={self.path}: entry {entry.position} passes the budget epsilon={budget}; stop here"
                )
        total = self._price(_counts(entries), budget)
        if not self._fits(total, budget):
            raise BrokenLedger(f"path={self.path}: its entries cost {total:.6g}, more than epsilon={budget}; stop here")
        if expected_head is not None and expected_head not in {self.genesis, *(e.hash for e in entries)}:
            raise BrokenLedger(
                f"path={self.path}: expected_head={expected_head} is not among its {len(entries)} entries; "
                "its tail was cut off or it is another ledger, so go back to a copy that has it"
            )
        return self._head(entries)

    def to_dict(self) -> dict[str, Any]:
        """Budget, spending and entries as plain data."""
        entries = self.entries()
        budget = self._budget(entries)
        spent = self._price(_counts(entries), budget)
        settings = {name: value for name, value in asdict(self).items() if name not in ("path", "timeout")}
        return {
            "path": str(self.path),
            **settings,
            "epsilon": budget,
            "adaptive_analyses": self.rule_words,
            "spent": spent,
            "remaining": max(0.0, budget - spent),
            "head": self._head(entries),
            "entries": [entry.to_dict() for entry in entries],
        }

    def _head(self, entries: tuple[Entry, ...] | list[Entry]) -> str:
        return entries[-1].hash if entries else self.genesis

    def _budget(self, entries: tuple[Entry, ...] | list[Entry]) -> float:
        """What may be spent after these entries."""
        return next((e.budget for e in reversed(entries) if e.budget is not None), self.first_epsilon)

    def _fits(self, total: float, budget: float) -> bool:
        return total <= budget * (1 + SLACK)

    def _refusal(self, spent: float, total: float, budget: float) -> str:
        if math.isinf(total):
            return (
                f"epsilon={budget} would be passed by this update: its draws of noise need more of δ={self.delta!r} "
                f"than {self.accountant} sets aside for them; make fewer releases or fit fewer parameters"
            )
        return (
            f"epsilon={budget} would be passed by this update: spent {spent:.4g}, "
            f"price {max(0.0, total - spent):.4g}, δ={self.delta!r}; lower steps or sampling_rate, "
            "raise noise_multiplier, or end the study here"
        )

    def _stored(self, event: Event) -> str:
        """The event as it is stored, once it is sure that it can be read back and belongs here."""
        try:
            text = _canonical(events.to_dict(event))
            same = events.from_json(text) == event
            units = _units(event)
        except RecursionError:
            raise ValueError(f"an event nested more than {events.DEEPEST} deep; no plan is") from None
        if not same:
            raise ValueError(f"event={event} does not survive being stored; build it from plain numbers")
        if units - {self.unit}:
            names = ", ".join(sorted(units))
            raise ValueError(
                f"event of unit {names}; expected {self.unit!r}, the unit of this ledger: keep one for each"
            )
        if accounting.parts(event, self.adjacency) is None:
            raise ValueError("event without a guarantee (ε = ∞); no budget covers it, so add noise")
        return text

    def _price(self, counts: Counter[str], budget: float) -> float:
        """ε of events that occur so often. Equal events are one `Repeated`; sorted, so that order does not matter."""
        whole = _whole(counts)
        rule = Filter.read(self.accountant)
        if rule is not None:
            return rule.price(whole, budget, self.delta, self.adjacency)
        accountant: Any = self.accountant  # checked there
        return accounting.epsilon(whole, self.delta, accountant, self.adjacency)

    def _read(self, connection: sqlite3.Connection) -> list[Entry]:
        """All entries, if their chain holds."""
        other = BrokenLedger(f"path={self.path} is another ledger than the one that was opened; open it again")
        settings = [self.delta, self.unit, self.adjacency, self.accountant, self.created, self.genesis]
        if _genesis(self.path, connection)[1:] != [self.data_set, self.first_epsilon, *settings]:
            raise other
        known: dict[str, tuple[Event, float | None]] = {}
        entries: list[Entry] = []
        previous = self.genesis
        for *values, found in connection.execute(f"SELECT {_ENTRY}, hash FROM entries ORDER BY position"):
            place = f"entry {len(entries) + 1}"
            if values[0] != len(entries) + 1:
                raise BrokenLedger(f"path={self.path}: {place} is missing before entry {values[0]}; go back to a copy")
            if values[-1] != previous:
                raise BrokenLedger(f"path={self.path}: {place} does not follow the one before it; go back to a copy")
            _check_hash(self.path, place, found, _ENTRY, values)
            _check_types(self.path, place, _ENTRY, values)
            text = values[4]
            if text not in known:
                try:
                    known[text] = _meaning(text)
                except json.JSONDecodeError:
                    raise BrokenLedger(f"path={self.path}: {place} is no event; go back to a sound copy") from None
            entries.append(_entry((*values, found), *known[text]))
            previous = found
        if self.epsilon not in {self.first_epsilon, *(e.budget for e in entries)}:
            raise other
        return entries


@dataclass(frozen=True)
class Allowance:
    """What one study may take of a ledger, whatever else is left there: the rule of every host of a study.

    Guarantee: ε of all charges of this study together, at the ledger's δ, is at most `epsilon` · (1 + SLACK), as long
    as one process at a time charges for the study. It is priced by `pld`, as statements are: what a study releases is
    fixed by its plan. The ledger's own rule prices all studies together, which may follow from each other's results.

    study: charges of `STUDY/PHASE` are the study's own.
    """

    ledger: Ledger
    study: str
    epsilon: float

    @property
    def path(self) -> Path:
        """Of the ledger."""
        return self.ledger.path

    def own(self) -> list[Entry]:
        """The study's own charges."""
        return [entry for entry in self.ledger.entries() if entry.study.startswith(f"{self.study}/")]

    def entries(self) -> tuple[Entry, ...]:
        """All charges of the ledger, also those of other studies."""
        return self.ledger.entries()

    def spent(self) -> float:
        """ε of the study's own charges, by `pld`."""
        return self._price(_counts(self.own()))

    def _price(self, counts: Counter[str]) -> float:
        return accounting.epsilon(_whole(counts), self.ledger.delta, "pld", self.ledger.adjacency)

    def charge(self, event: Event, *, study: str, round: int, note: str = "") -> Entry:
        """As `Ledger.charge`, if the study's charges and this one are within its allowance."""
        own = self.own()
        if all((entry.study, entry.round) != (study, round) for entry in own):
            total = self._price(_counts(own) + Counter([self.ledger._stored(event)]))
            if not total <= self.epsilon * (1 + SLACK):
                raise BudgetExceeded(f"epsilon={self.epsilon:g} of this study is spent; end it here")
        return self.ledger.charge(event, study=study, round=round, note=note)

    def objection(self, whole: Event, *, tells: bool = True) -> str:
        """Why a study that costs `whole` cannot be paid for to its end; "" if it can, or if it was begun.

        tells: whether the words may say what is left. Charges nothing.
        """
        if self.own():
            return ""
        plain = Counter([self.ledger._stored(whole)])
        alone = self._price(plain)
        if not alone <= self.epsilon * (1 + SLACK):
            return (
                f"epsilon={self.epsilon:g} of the study does not pay for it, which costs {alone:.4g} or more; "
                "raise it, or lower steps"
            )
        try:  # reads no file: words about that would hold its path
            self.ledger._price(plain, self.ledger.epsilon)
        except ValueError as error:
            return f"the site's ledger does not admit the study: {error}"
        left = self.ledger.remaining_after(whole)
        if math.isinf(left):
            return (
                f"the site's ledger admits nothing of the study by its rule, {self.ledger.accountant}, for its draws "
                "of noise need more of δ than is set aside; take a ledger with a smaller epsilon"
            )
        if left >= -SLACK * self.ledger.epsilon:
            return ""
        words = f" (epsilon={self.ledger.epsilon:g} would be passed by {-left:.4g})" if tells else ""
        return f"what is left of this site's budget does not pay for the study{words}; lower epsilon or leave it out"


def _entry(row: tuple[Any, ...], event: Event, budget: float | None) -> Entry:
    position, time, study, round, _, spent, note, previous, own = row
    return Entry(position, time, study, round, event, spent, note, previous, own, budget)


def _meaning(text: str) -> tuple[Event, float | None]:
    """What an entry's text says: an event, or what the budget was raised to."""
    plain = json.loads(text)
    if isinstance(plain, dict) and plain.get("type") == "budget":
        return events.Composed(), float(plain["epsilon"])
    return events.from_dict(plain), None


def _raised(connection: sqlite3.Connection) -> float | None:
    """What the budget was raised to last, as the file says: each reading of the entries checks it by their chain."""
    last = "SELECT event FROM entries WHERE study = ? ORDER BY position DESC LIMIT 1"
    row = connection.execute(last, (_EXTENSIONS,)).fetchone()
    try:
        return None if row is None else _meaning(row[0])[1]
    except (ValueError, KeyError, TypeError):  # tampered with: the first reading of the entries says so
        return None


def _counts(entries: Sequence[Entry]) -> Counter[str]:
    counts = Counter(e.event for e in entries if e.budget is None)
    return Counter({_canonical(events.to_dict(event)): count for event, count in counts.items()})


def _whole(counts: Counter[str]) -> Event:
    """Events that occur so often. Equal events are one `Repeated`; sorted, so that order does not matter."""
    return events.Composed(
        tuple(events.Repeated(events.from_json(text), count) for text, count in sorted(counts.items()))
    )


def _units(event: Event) -> set[str]:
    match event:
        case events.Gaussian() | events.Laplace():
            return {event.unit}
        case events.Composed(inner):
            return set().union(*map(_units, inner))
        case events.NonPrivate():
            return set()
    return _units(event.event)  # type: ignore[attr-defined]  # samples and repetitions: the table of events is closed


def words_of(
    accountant: str, delta: float, *, is_raised: bool, budget: float | None = None, first: float | None = None
) -> str:
    """Whether a ledger's rule covers analyses that were chosen after seeing earlier results, by which theorem, how far.

    What a filter covers is the budget. ε that is spent when an analyst stops is less, and no promise to anybody: when
    to stop may have followed from results. budget: now; first: as it was made; without them the words say no number.
    """
    rule = Filter.read(accountant)
    whole = f"the budget, {'' if budget is None else f'ε = {budget:g} '}at δ = {delta!r}"
    if rule is None:
        return (
            f"not covered by the rule {accountant!r}: the number and the settings of all analyses must have been fixed "
            f"beforehand, and then they are together at most {whole}"
        )
    words = f"{rule.words}: all together are at most {whole}; what of it is spent so far is no promise"
    if not is_raised:
        return words
    size = "" if budget is None or first is None else f" from ε = {first:g} to {budget:g}"
    return f"{words}; the budget was raised{size}, which is covered if it was decided without looking at results"


def _twice(study: str, round: int) -> str:
    return f"round={round} of study={study!r} is charged already; answer it from the store, it must not run again"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _check_text(name: str, value: Any) -> None:
    # Printable: it is shown on terminals, one line an entry.
    valid = isinstance(value, str) and value != "" and value.isprintable()
    check_number(name, repr(value), "some printable text on one line", valid)


def _check_timeout(value: Any) -> None:
    valid = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    check_number("timeout", value, "seconds, a finite number of at least 0", valid)


# --- Hashes ------------------------------------------------------------------------------------------------------


def _canonical(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(columns: str, values: Any) -> str:
    plain = dict(zip(columns.split(", "), values, strict=True))
    return hashlib.sha256(_canonical(plain).encode()).hexdigest()


def _check_hash(path: Path, place: str, found: Any, columns: str, values: Any) -> None:
    try:
        same = found == _hash(columns, values)
    except (TypeError, ValueError):  # bytes or an infinity where text or a number belongs
        same = False
    if not same:
        raise BrokenLedger(f"path={path}: {place} was changed after it was written; go back to a sound copy")


def _genesis(path: Path, connection: sqlite3.Connection) -> list[Any]:
    """The genesis entry and its hash, if it is as it was written."""
    rows = connection.execute(f"SELECT {_GENESIS}, hash FROM genesis").fetchall()
    if len(rows) != 1:
        raise BrokenLedger(f"path={path} has {len(rows)} genesis entries instead of one; go back to a sound copy")
    *values, found = rows[0]
    _check_hash(path, "genesis entry", found, _GENESIS, values)
    if values[0] not in _FORMATS:
        known = ", ".join(map(str, _FORMATS))
        raise ValueError(f"path={path} is of ledger format {values[0]!r}; this version of tacit reads {known}")
    _check_types(path, "genesis entry", _GENESIS, values)
    return [*values, found]


def _check_types(path: Path, place: str, columns: str, values: Any) -> None:
    """SQLite keeps text in a column of numbers, if that is what it is given."""
    kinds = {"epsilon": float, "delta": float, "spent": float, "format": int, "position": int, "round": int}
    pairs = zip(columns.split(", "), values, strict=True)
    if not all(type(value) is kinds.get(name, str) for name, value in pairs):
        raise BrokenLedger(f"path={path}: {place} has a value of another type; go back to a sound copy")


# --- SQLite ------------------------------------------------------------------------------------------------------


def _places(values: Any) -> str:
    return ", ".join("?" * len(values))


@contextmanager
def _connection(path: Path, timeout: float, new: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection to a ledger, for one call. What SQLite refuses becomes a sentence."""
    try:
        # rw, and never rwc: a file that is gone is not made anew, empty. A file that may not be written opens too.
        uri = f"{path.as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            if mode != "delete":
                raise ValueError(f"path={path} has journal mode {mode}; close other programs that hold it open")
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.execute("PRAGMA fullfsync=ON")  # macOS: through the disk's own cache; elsewhere nothing
            if not new:
                _check_schema(path, connection)
            yield connection
    except sqlite3.Error as error:
        kind = Unwritable if _is_passing(error, path) else ValueError
        raise kind(f"path={path}: {_in_words(error, timeout)}") from None
    except UnicodeDecodeError:  # SQLite's own words, with bytes of the file in them
        raise ValueError(f"path={path}: {_DAMAGED}; expected one made by Ledger.create") from None


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        raise ValueError(f"path={path} is empty, not a ledger; if its creation was interrupted, delete and create it")
    if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
        raise ValueError(f"path={path} is not a ledger; expected one made by Ledger.create")
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if found != set(_SCHEMA):
        raise BrokenLedger(f"path={path} has other tables or triggers than a ledger; go back to a sound copy")


_DAMAGED = "not a ledger, or a damaged one"


def _plain(error: sqlite3.Error) -> str:
    """In printable characters: SQLite quotes what is in the file."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(error))


def _is_passing(error: sqlite3.Error, path: Path) -> bool:
    """Whether it is about the disk or about others, and not about what the file holds."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_CANTOPEN"):  # its journal, if the file is there
        return os.path.isfile(path)
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR"))


def _in_words(error: sqlite3.Error, timeout: float) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"locked by another process for more than timeout={timeout:g} seconds; try again, or end that process"
    if name.startswith("SQLITE_READONLY"):
        return "the ledger is read-only; make the file and its folder writable to the site's user"
    if name.startswith("SQLITE_CANTOPEN"):
        return "the ledger cannot be opened; make the file and its folder writable to the site's user"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return f"{_DAMAGED} ({_plain(error)}); expected one made by Ledger.create"
    if str(error).startswith("Could not decode"):  # Python quotes the bytes, which are not to be shown
        return f"{_DAMAGED}; expected one made by Ledger.create"
    return f"{_plain(error)}; nothing may be read before a charge succeeds"


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; with the only right to write from its first line on."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
