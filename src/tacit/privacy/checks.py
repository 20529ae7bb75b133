"""Checks that a number is a valid ε or δ."""

import math
from typing import Any

from tacit.privacy.events import check_number


def check_delta(delta: Any) -> None:
    """Refuse a δ outside (0, 1)."""
    valid = isinstance(delta, int | float) and 0 < delta < 1
    check_number("delta", delta, "a number above 0 and below 1", valid)


def check_delta_of(delta: float, records: int, allowed: bool = False) -> None:
    """Refuse a δ of 1 / records or more, unless it is `allowed`: it may mean that some record is published as it is.

    records: the public number of units (slots) that δ is promised to.

    >>> check_delta_of(1e-5, 99_999)
    >>> check_delta_of(1e-2, 100)
    Traceback (most recent call last):
    ValueError: delta=0.01 for 100 records; expected less than 1 / records = 0.01, because ...
    """
    check_delta(delta)
    if not allowed and records > 0 and delta >= 1 / records:
        raise ValueError(
            f"delta={delta!r} for {records} records; expected less than 1 / records = {1 / records:.3g}, because a "
            "larger one allows publishing a record; lower delta, or allow it (allow_large_delta, --allow-large-delta)"
        )


def check_epsilon(epsilon: Any) -> None:
    """Refuse an ε that is not a finite number above 0."""
    valid = isinstance(epsilon, int | float) and math.isfinite(epsilon) and epsilon > 0
    check_number("epsilon", epsilon, "a finite number above 0", valid)
