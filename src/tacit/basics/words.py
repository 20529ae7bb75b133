"""Wording of messages."""

from collections.abc import Sequence
from datetime import UTC, datetime

MOST_NAMED = 10  # columns or categories in a message


def holds(names: Sequence[str]) -> str:
    """The verb that agrees with so many names."""
    return "holds" if len(names) == 1 else "hold"


def columns_named(names: Sequence[str]) -> str:
    """The columns by name, for a message."""
    return f"column{'s' * (len(names) > 1)} {enumerated([repr(name) for name in names])}"


def enumerated(names: Sequence[str]) -> str:
    """Names with commas; of many, the first and how many more."""
    rest = len(names) - MOST_NAMED
    shown = [name if name.isprintable() else repr(name) for name in names[:MOST_NAMED]]  # a message is one line
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def now() -> str:
    """The current time (UTC), for logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
