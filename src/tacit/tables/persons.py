"""Ids of persons: which records belong together."""

from typing import Any

import numpy as np
import pandas

from tacit.tables.facts import label_text


def persons_of(groups: Any) -> np.ndarray | None:
    """The id of each record as text, from whatever type it has; None if there are no groups.

    Guarantee: the text of an id depends on that id alone. NumPy would infer one type for all of them, and so one
    record's id could merge the ids of other persons, or turn a missing one into the word "nan".

    >>> persons_of([1, 2.0, "x"]).tolist()
    ['1', '2', 'x']
    """
    if groups is None:
        return None
    if np.ndim(groups) != 1:
        raise ValueError(f"groups have {np.ndim(groups)} axes; expected one id for each record")
    given = list(groups)
    if any(_is_missing(one) for one in given):
        raise ValueError("groups lack an id: all such records would count as one person; give each record an id")
    found = np.empty(len(given), object)  # not an array of words, which are cut at a zero byte and padded to one length
    found[:] = [label_text(one) for one in given]
    return found


def _is_missing(one: Any) -> bool:
    return one is None or (isinstance(one, str) and not one.strip()) or (np.ndim(one) == 0 and bool(pandas.isna(one)))
