"""Remarks for the holder of a file alone: no result may contain them."""

from typing import Any

import numpy as np

from tacit.basics.words import columns_named
from tacit.tables.encoding import holds_numbers
from tacit.tables.files import bookkeeping


def remarks_on(frame: Any, names: list[str], target: str | None) -> tuple[str, ...]:
    """Remarks for the holder alone. A refusal instead would reveal whether a single record differs."""
    found = []
    constant = [name for name in names if frame[name].nunique() < 2]
    if constant:
        it, has = ("it", "has") if len(constant) == 1 else ("them", "have")
        found.append(f"{columns_named(constant)} {has} one value in all records, so nothing is learned about {it}.")
    if target is not None and frame[target].nunique() < 2:
        found.append(f"target {target!r} has one value in all records, so there is little to learn.")
    left = bookkeeping(frame)
    if left:
        found.append(
            f"{columns_named(left)} {'numbers' if len(left) == 1 else 'number'} rows, which is not part of a record."
        )
    numbering = [name for name in map(str, frame.columns) if name not in left and _numbers_rows(frame[name])]
    if numbering:
        found.append(
            f"{columns_named(numbering)} {'counts' if len(numbering) == 1 else 'count'} the rows of this file; if "
            "deleting a row renumbers the others, then all later records change, which no guarantee covers: remove it "
            "from the file."
        )
    return tuple(found)


LEAST_IDS = 20  # records: fewer whole numbers may differ by chance


def _numbers_rows(column: Any) -> bool:
    """Whether a column holds 0, 1, 2, ... or 1, 2, 3, ... in the order of the file."""
    if len(column) < LEAST_IDS or not holds_numbers(column):
        return False
    values = column.to_numpy(float, na_value=np.nan)
    return any(np.array_equal(values, np.arange(first, first + len(values))) for first in (0, 1))


def id_columns(frame: Any, names: list[str]) -> tuple[str, ...]:
    """Columns of text or whole numbers whose values are all different."""
    if len(frame) < LEAST_IDS:
        return ()

    def is_whole(column: Any) -> bool:
        try:
            return bool((column.astype(float) % 1 == 0).all())
        except (TypeError, ValueError):
            return False

    every = (name for name in names if frame[name].nunique() == len(frame))  # row numbers included
    return tuple(name for name in every if frame[name].dtype.kind not in "iufb" or is_whole(frame[name]))
