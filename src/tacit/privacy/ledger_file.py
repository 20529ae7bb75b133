"""A ledger's file: an SQLite database whose entries are chained by hashes."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any


class BrokenLedger(ValueError):
    """The file does not match its hashes: an entry was edited, removed, moved or added by other means."""


class Unwritable(ValueError):
    """The file cannot be written now: the disk is full or fails, it is read-only, or another process holds it."""


TIMEOUT = 60.0  # seconds to wait for another process; one price takes a few at most
APPLICATION = 0x7AC17  # "tacit": SQLite's mark of the application that owns the file
FORMAT = 2
_FORMATS = (1, 2)  # that can be read: the first had neither filters nor extensions
SCHEMA = (
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
GENESIS = "format, data_set, epsilon, delta, unit, adjacency, accountant, created"
ENTRY = "position, time, study, round, event, spent, note, previous"


def canonical(plain: Any) -> str:
    """The one JSON text of plain data, for hashes."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_of(columns: str, values: Any) -> str:
    """The hash of an entry: its columns and their values."""
    plain = dict(zip(columns.split(", "), values, strict=True))
    return hashlib.sha256(canonical(plain).encode()).hexdigest()


def check_hash(path: Path, place: str, found: Any, columns: str, values: Any) -> None:
    """Refuse an entry that was changed after it was written."""
    try:
        same = found == hash_of(columns, values)
    except (TypeError, ValueError):  # bytes or an infinity where text or a number belongs
        same = False
    if not same:
        raise BrokenLedger(f"path={path}: {place} was changed after it was written; go back to a sound copy")


def genesis_of(path: Path, connection: sqlite3.Connection) -> list[Any]:
    """The genesis entry and its hash, if it is as it was written."""
    rows = connection.execute(f"SELECT {GENESIS}, hash FROM genesis").fetchall()
    if len(rows) != 1:
        raise BrokenLedger(f"path={path} has {len(rows)} genesis entries instead of one; go back to a sound copy")
    *values, found = rows[0]
    check_hash(path, "genesis entry", found, GENESIS, values)
    if values[0] not in _FORMATS:
        known = ", ".join(map(str, _FORMATS))
        raise ValueError(f"path={path} is of ledger format {values[0]!r}; this version of tacit reads {known}")
    check_types(path, "genesis entry", GENESIS, values)
    return [*values, found]


def check_types(path: Path, place: str, columns: str, values: Any) -> None:
    """Refuse values of another type: SQLite also stores text in a column of numbers."""
    kinds = {"epsilon": float, "delta": float, "spent": float, "format": int, "position": int, "round": int}
    pairs = zip(columns.split(", "), values, strict=True)
    if not all(type(value) is kinds.get(name, str) for name, value in pairs):
        raise BrokenLedger(f"path={path}: {place} has a value of another type; go back to a sound copy")


def question_marks(values: Any) -> str:
    """Placeholders of an SQL statement, one per value."""
    return ", ".join("?" * len(values))


@contextmanager
def connected(path: Path, timeout: float, new: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection to a ledger, for one call. Rewrites SQLite's errors as plain sentences."""
    try:
        # rw, never rwc: a missing file must not be created anew, empty. A read-only file opens too.
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
        raise ValueError(f"path={path}: {_DAMAGED}; expected one made by `tacit ledger create`") from None


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        raise ValueError(f"path={path} is empty, not a ledger; if its creation was interrupted, delete and create it")
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION,):
        raise ValueError(f"path={path} is not a ledger; expected one made by `tacit ledger create`")
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if found != set(SCHEMA):
        raise BrokenLedger(f"path={path} has other tables or triggers than a ledger; go back to a sound copy")


_DAMAGED = "not a ledger, or a damaged one"


def _plain(error: sqlite3.Error) -> str:
    """In printable characters: SQLite quotes what is in the file."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(error))


def _is_passing(error: sqlite3.Error, path: Path) -> bool:
    """Whether the cause is the disk or another process, not the content of the file."""
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
        return f"{_DAMAGED} ({_plain(error)}); expected one made by `tacit ledger create`"
    if str(error).startswith("Could not decode"):  # Python quotes the bytes, which must not be shown
        return f"{_DAMAGED}; expected one made by `tacit ledger create`"
    return f"{_plain(error)}; read no record before a charge succeeds"


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing; hold the only write lock from the first line on."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
