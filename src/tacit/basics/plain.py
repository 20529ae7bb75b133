"""Plain data: what JSON can hold."""

import math


def finite(number: float | None) -> float | None:
    """The number, or None if JSON cannot hold it.

    >>> finite(2.5), finite(math.inf), finite(None)
    (2.5, None, None)
    """
    return None if number is None or not math.isfinite(number) else float(number)
