"""Digests of records: each depends on the content of its own record alone."""

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit.tables.files import MISSING, bookkeeping

DIGEST_BYTES = 16  # of a record's content
_CELL_BYTES = 9  # of one value before hashing: its kind, and eight bytes


def digests_of(frame: Any) -> np.ndarray:
    """16 bytes for each row of a frame, (rows, 16), that depend on the values in that row alone.

    They do not depend on the row's place, on the order of columns, on which of them a study uses, or on the type that
    pandas gives a column, which one other row can change: each value is brought to one form by itself.

    | value                                              | form                                     |
    |----------------------------------------------------|------------------------------------------|
    | a number, or text that Python reads as one         | the nearest number of double precision   |
    | missing, not-a-number, or a text of `MISSING`      | one word for all                         |
    | True and False, or these words, whatever the case  | the word                                 |
    | any other                                          | its text, without spaces around it       |

    Columns of `bookkeeping` are left out, such as row numbers without a name: they are facts about other rows.
    """
    left = set(bookkeeping(frame))
    columns = {str(name): frame.iloc[:, place] for place, name in enumerate(frame.columns)}
    return digests_of_columns({name: column for name, column in columns.items() if name not in left}, len(frame))


def digests_of_columns(columns: Mapping[str, Any], count: int) -> np.ndarray:
    """A digest of each record, from its cells in the order of the columns' names."""
    cells = [_cells(columns[name]) for name in sorted(columns)]
    rows = np.ascontiguousarray(np.concatenate([np.zeros((count, 0), np.uint8), *cells], axis=1))
    width, plain = rows.shape[1], rows.tobytes()
    made = (plain[start : start + width] for start in range(0, width * count, width)) if width else (b"",) * count
    found = b"".join(hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() for row in made)
    return np.frombuffer(found, np.uint8).reshape(-1, DIGEST_BYTES)


def _cells(column: Any) -> np.ndarray:
    """(rows, 9) bytes of a column: for each value its kind, and its number or the hash of its word."""
    if column.dtype.kind in "iuf":
        values = column.to_numpy(float, na_value=np.nan) if hasattr(column, "to_numpy") else column.astype(float)
        missing = np.isnan(values)
        numbers = np.where(missing, 0.0, values + 0.0).astype("<f8")[:, None]  # + 0.0: there is one zero
        return np.concatenate([np.where(missing, 0, 1).astype(np.uint8)[:, None], numbers.view(np.uint8)], axis=1)
    known: dict[str, bytes] = {}  # keys are text only: 1 and True would be the same key
    found = []
    for value in column:
        if type(value) is not str:
            found.append(_cell(value))
            continue
        if value not in known:
            known[value] = _cell(value)
        found.append(known[value])
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, _CELL_BYTES)


def _cell(value: Any) -> bytes:
    """The 9 bytes of one value."""
    number, word = _number(value), ""
    if number is None:
        word = str(value).strip()
        word = word.lower() if word.lower() in ("true", "false") else word
        return b"\2" + hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=_CELL_BYTES - 1).digest()
    return bytes(_CELL_BYTES) if math.isnan(number) else b"\1" + struct.pack("<d", number + 0.0)


def _number(value: Any) -> float | None:
    """A value as a number, not-a-number if it is missing; None for other words."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | float | np.integer | np.floating):
        try:
            return float(value)
        except OverflowError:  # an integer larger than any float
            return math.inf if value > 0 else -math.inf
    word = str(value).strip()
    try:
        return math.nan if word in MISSING else float(word)
    except ValueError:
        return None
