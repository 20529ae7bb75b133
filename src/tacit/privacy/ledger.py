"""The ledger: what a site has spent of one data set's budget. Charge, then read.

`charge` prices everything charged so far together with the new event and commits it, or refuses, in one durable
transaction. A site calls it *before* it reads a record, so a crash at any instant counts at most one update too many
and never one too few. All studies on a data set share one ledger.

**Durability.** SQLite with a rollback journal (`journal_mode=DELETE`) and `synchronous=EXTRA`. A rollback journal
commits by deleting a file, and `FULL` leaves that deletion to the file system: after a power loss the journal can come
back and undo a charge whose record was read. `EXTRA` is `FULL` and a sync of the folder, which closes that gap. A
write-ahead log is durable too, but keeps the last charges in a second file: a copy of the first alone loses them.

**Chain.** Each entry holds the hash of the one before, and its own sha256 over its canonical JSON. Every reading checks
the chain and refuses a broken one. The hashes use no secret: anyone who can write the file can rewrite all of it or cut
its tail, and the file alone cannot show that. Keep `head()` elsewhere and pass it to `verify`.

**Rule.** A ledger prices all its entries as one composition, by the rule that it was made with (`accountant`):

| rule                | analyses chosen after seeing earlier results (fully adaptive composition)                     |
|---------------------|-----------------------------------------------------------------------------------------------|
| `gaussian`          | covered: the Gaussian-DP filter. It refuses samples and Laplace noise; its price is exact     |
| `renyi`             | covered: the Rényi filter, at an order that is fixed when the ledger is made                  |
| any of `accounting` | **not** covered: the number and the settings of all analyses must have been fixed beforehand  |

`filters` has the theorems and their proofs. A filter's parameters (`gaussian(reserve=0.001)`) are part of the genesis.

**Budget.** Only `extend` changes it: a decision of the data's holder, recorded as an entry of the chain. A filter's
theorem is about a bound fixed beforehand: it covers the budget, not the part of it that happens to be spent when an
analyst stops. It covers a raised budget if the raise was decided without looking at results. `rule_words` says both.
"""

import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.privacy import accounting, events, filters, parts
from tacit.privacy.checks import check_delta, check_epsilon
from tacit.privacy.events import Adjacency, Event, check_number
from tacit.privacy.filters import Filter
from tacit.privacy.ledger_file import (
    APPLICATION,
    ENTRY,
    FORMAT,
    GENESIS,
    SCHEMA,
    TIMEOUT,
    BrokenLedger,
    canonical,
    check_hash,
    check_types,
    connected,
    genesis_of,
    hash_of,
    question_marks,
    transaction,
)

# How far ε may exceed the budget, relatively. The last digits of a price depend on the order in which releases are
# added up (roots are found to 1e-12, and Fourier transforms round): 4 × 0.25 must fit into 1.
SLACK = 1e-9
_LARGEST = 2**63 - 1  # SQLite's integers
_EXTENSIONS = "(budget)"  # the study's name in entries that raise the budget
RULES = (*filters.NAMES, *accounting.ACCOUNTANTS)


class BudgetExceeded(ValueError):
    """The event does not fit into what is left of the budget. Nothing was charged."""


class AlreadyCharged(ValueError):
    """This round of this study is in the ledger: answer it from the store, do not run it again."""


@dataclass(frozen=True)
class Entry:
    """One charge. `spent` is ε of all entries up to and including this one.

    `budget` is the new budget if the entry raised it (its event is then empty), and None for a charge.
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

    It keeps no connection: each call opens the file, so threads and forked processes can share a ledger.

    Guarantee: if `charge` returned, the charge survives a crash and a loss of power; and ε of all entries together, at
    `delta` and by `accountant`, is at most `epsilon` · (1 + SLACK), however many processes charge at once. `rule_words`
    says whether that holds for analyses that were chosen after seeing results.

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
    tacit.privacy.ledger.BudgetExceeded: epsilon=1.0 would be exceeded by this update: spent 1, price 0.25, δ=1e-05; ...
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
        check_epsilon(epsilon)
        check_delta(delta)
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
                f"path={path} exists; open it with Ledger.open, because a new one would forget its spending"
            ) from None
        except OSError as error:
            raise ValueError(f"path={path}: {error.strerror}; expected a new file in an existing folder") from None
        values = (FORMAT, data_set, float(epsilon), float(delta), unit, adjacency, accountant, _now())
        try:
            with connected(path, timeout, new=True) as connection, transaction(connection):
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                for statement in SCHEMA:
                    connection.execute(statement)
                sealed = (*values, hash_of(GENESIS, values))
                connection.execute(f"INSERT INTO genesis VALUES ({question_marks(sealed)})", sealed)
        except BaseException:
            if path.exists() and path.stat().st_size == 0:  # else it is committed, and may have been charged
                path.unlink()
            raise
        return cls.open(path, timeout=timeout)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, timeout: float = TIMEOUT) -> "Ledger":
        """The ledger at `path`. `timeout` is how many seconds a call waits for another process."""
        _check_timeout(timeout)
        path = Path(path).absolute()
        if not os.path.isfile(path):  # pathlib's version raises for a name that is too long
            what = "is not a file" if os.path.exists(path) else "does not exist"
            raise ValueError(f"path={path} {what}; expected a ledger made by `tacit ledger create`")
        with connected(path, timeout) as connection:
            _, data_set, epsilon, delta, unit, adjacency, accountant, created, genesis = genesis_of(path, connection)
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

        Whatever it raises, the caller must not read a record. After a disk error the charge may still be in the file:
        it is then counted but not used.
        """
        _check_text("study", study)
        check_number(
            "study", repr(study), "another name: this one is for entries that raise the budget", study != _EXTENSIONS
        )
        whole = isinstance(round, int) and not isinstance(round, bool) and 0 <= round <= _LARGEST
        check_number("round", repr(round), "a whole number of at least 0", whole)
        if note != "":
            _check_text("note", note)
        text = self.stored_form(event)
        # IMMEDIATE: no other process writes between the pricing and the commit.
        with connected(self.path, self.timeout) as connection, transaction(connection):
            entries = self._read(connection)
            if any((e.study, e.round) == (study, round) for e in entries):
                raise AlreadyCharged(_twice(study, round))
            budget = self._budget(entries)
            total = self.price_of(counts_of(entries) + Counter([text]), budget)
            if not self._fits(total, budget):
                raise BudgetExceeded(self._refusal(self.price_of(counts_of(entries), budget), total, budget))
            return self._append(connection, entries, study, int(round), text, total, note)

    def extend(self, epsilon: float, *, note: str = "") -> Entry:
        """Raise the budget to `epsilon`, as an entry of the chain: a decision of the data's holder, never of a study.

        A ledger object opened before applies the new budget from its next charge on; open it again to see it.
        """
        check_epsilon(epsilon)
        if note != "":
            _check_text("note", note)
        with connected(self.path, self.timeout) as connection, transaction(connection):
            entries = self._read(connection)
            budget = self._budget(entries)
            check_number("epsilon", epsilon, f"more than the budget of {self.path}, {budget:g}", epsilon > budget)
            total = self.price_of(counts_of(entries), epsilon)
            if not self._fits(total, epsilon):
                raise BudgetExceeded(
                    f"epsilon={epsilon} needs more of δ={self.delta!r} for each draw of noise than was set aside; "
                    "raise the budget by less"
                )
            text = canonical({"type": "budget", "epsilon": float(epsilon)})
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
        sealed = (*values, hash_of(ENTRY, values))
        try:
            connection.execute(f"INSERT INTO entries VALUES ({question_marks(sealed)})", sealed)
        except sqlite3.IntegrityError:
            raise AlreadyCharged(_twice(study, round)) from None
        return _entry(sealed, *_meaning(text))

    def spent(self) -> float:
        """ε of everything charged so far, at the budget's δ."""
        entries = self.entries()
        return self.price_of(counts_of(entries), self._budget(entries))

    def price(self, event: Event) -> float:
        """ε of `event` by this ledger's rule, as if it were all that was done. Charges nothing."""
        return self.price_of(Counter([self.stored_form(event)]), self._budget(self.entries()))

    def remaining_after(self, event: Event) -> float:
        """What would be left of ε after charging `event`; below 0 if that would be refused. Charges nothing."""
        entries = self.entries()
        budget = self._budget(entries)
        return budget - self.price_of(counts_of(entries) + Counter([self.stored_form(event)]), budget)

    def entries(self) -> tuple[Entry, ...]:
        """All charges, first to last, their chain checked."""
        with connected(self.path, self.timeout) as connection:
            return tuple(self._read(connection))

    def find(self, study: str, round: int) -> Entry | None:
        """The charge for a round of a study, or None."""
        return next((e for e in self.entries() if (e.study, e.round) == (study, round)), None)

    def head(self) -> str:
        """The hash of the last entry, which covers all before it. Keep it outside the site's machine, for `verify`."""
        return self._head(self.entries())

    def verify(self, expected_head: str | None = None) -> str:
        """Check that entries are unchanged, in order, without gaps, and within the budget; returns the head's hash.

        Raises `BrokenLedger` with what is wrong. The file alone cannot show that its tail was cut off or that all of it
        was rewritten. `expected_head`, a head noted at any earlier time, must be in the chain: then everything up to it
        is unchanged.
        """
        with connected(self.path, self.timeout) as connection:
            entries = self._read(connection)
            sound = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
        if sound != ["ok"]:
            raise BrokenLedger(f"path={self.path} is damaged: {' '.join(str(sound[0]).split())}; go back to a copy")
        budget = self.first_epsilon
        for entry in entries:
            budget = entry.budget or budget
            if not self._fits(entry.spent, budget):
                raise BrokenLedger(
                    f"path={self.path}: entry {entry.position} exceeds the budget epsilon={budget}; stop here"
                )
        total = self.price_of(counts_of(entries), budget)
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
        spent = self.price_of(counts_of(entries), budget)
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
                f"epsilon={budget} would be exceeded by this update: its draws of noise need more of δ={self.delta!r} "
                f"than {self.accountant} sets aside for them; make fewer releases or fit fewer parameters"
            )
        return (
            f"epsilon={budget} would be exceeded by this update: spent {spent:.4g}, "
            f"price {max(0.0, total - spent):.4g}, δ={self.delta!r}; lower steps or sampling_rate, "
            "raise noise_multiplier, or end the study here"
        )

    def stored_form(self, event: Event) -> str:
        """The event as text to store. Refuses one that could not be read back or does not belong here."""
        try:
            text = canonical(events.to_dict(event))
            same = events.from_json(text) == event
            units = _units(event)
        except RecursionError:
            raise ValueError(f"an event nested more than {events.DEEPEST} deep; expected one made by a plan") from None
        if not same:
            raise ValueError(f"event={event} cannot be stored and read back; build it from plain numbers")
        if units - {self.unit}:
            names = ", ".join(sorted(units))
            raise ValueError(
                f"event of unit {names}; expected {self.unit!r}, the unit of this ledger: keep one ledger for each"
            )
        if parts.parts(event, self.adjacency) is None:
            raise ValueError("event without a guarantee (ε = ∞); no budget covers it, so add noise")
        return text

    def price_of(self, counts: Counter[str], budget: float) -> float:
        """ε of events with these counts. Equal events become one `Repeated`; sorted, so that order does not matter."""
        whole = whole_of(counts)
        rule = Filter.read(self.accountant)
        if rule is not None:
            return rule.price(whole, budget, self.delta, self.adjacency)
        accountant: Any = self.accountant  # checked there
        return accounting.epsilon(whole, self.delta, accountant, self.adjacency)

    def _read(self, connection: sqlite3.Connection) -> list[Entry]:
        """All entries, if their chain holds."""
        other = BrokenLedger(f"path={self.path} is not the ledger that was opened; open it again")
        settings = [self.delta, self.unit, self.adjacency, self.accountant, self.created, self.genesis]
        if genesis_of(self.path, connection)[1:] != [self.data_set, self.first_epsilon, *settings]:
            raise other
        known: dict[str, tuple[Event, float | None]] = {}
        entries: list[Entry] = []
        previous = self.genesis
        for *values, found in connection.execute(f"SELECT {ENTRY}, hash FROM entries ORDER BY position"):
            place = f"entry {len(entries) + 1}"
            if values[0] != len(entries) + 1:
                raise BrokenLedger(f"path={self.path}: {place} is missing before entry {values[0]}; go back to a copy")
            if values[-1] != previous:
                raise BrokenLedger(f"path={self.path}: {place} does not follow the one before it; go back to a copy")
            check_hash(self.path, place, found, ENTRY, values)
            check_types(self.path, place, ENTRY, values)
            text = values[4]
            if text not in known:
                try:
                    known[text] = _meaning(text)
                except json.JSONDecodeError:
                    raise BrokenLedger(f"path={self.path}: {place} is not an event; go back to a sound copy") from None
            entries.append(_entry((*values, found), *known[text]))
            previous = found
        if self.epsilon not in {self.first_epsilon, *(e.budget for e in entries)}:
            raise other
        return entries


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
    """The budget after the last raise, as the file says; reading the entries checks it against the chain."""
    last = "SELECT event FROM entries WHERE study = ? ORDER BY position DESC LIMIT 1"
    row = connection.execute(last, (_EXTENSIONS,)).fetchone()
    try:
        return None if row is None else _meaning(row[0])[1]
    except (ValueError, KeyError, TypeError):  # tampered with: reading the entries reports it
        return None


def counts_of(entries: Sequence[Entry]) -> Counter[str]:
    """How often each event is charged in these entries, by its canonical text."""
    counts = Counter(e.event for e in entries if e.budget is None)
    return Counter({canonical(events.to_dict(event)): count for event, count in counts.items()})


def whole_of(counts: Counter[str]) -> Event:
    """Events with these counts, as one. Equal events become one `Repeated`; sorted, so that order does not matter."""
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

    A filter covers the budget. The ε spent when an analyst stops is less, and is not a promise: the decision to stop
    may have depended on results. budget: now; first: when the ledger was made; without them the answer has no number.
    """
    rule = Filter.read(accountant)
    whole = f"the budget, {'' if budget is None else f'ε = {budget:g} '}at δ = {delta!r}"
    if rule is None:
        return (
            f"not covered by the rule {accountant!r}: the number and the settings of all analyses must have been fixed "
            f"beforehand, and then they are together at most {whole}"
        )
    words = f"{rule.words}: all together are at most {whole}; the part of it spent so far is not a promise"
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
