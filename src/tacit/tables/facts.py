"""What is public about the columns of a file."""

import csv
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.basics.toml_files import read_toml

PAID = "paid"  # in place of public bounds: a private release finds the range, and part of the budget pays for it


@dataclass(frozen=True)
class Facts:
    """What is public about the columns of a file: bounds of numbers, categories of others, classes of the target.

    Bounds that are None stand for a number whose range is paid for.
    """

    bounds: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None

    @classmethod
    def given(
        cls,
        schema: Path | None = None,
        bounds: Iterable[str] = (),
        categories: Iterable[str] = (),
        classes: str | None = None,
    ) -> "Facts":
        """Facts from a TOML file and from the command line, which takes precedence.

        >>> Facts.given(bounds=["age=0:100"], categories=["sex=F,M"], classes="no,yes")
        Facts(bounds={'age': (0.0, 100.0)}, categories={'sex': ('F', 'M')}, classes=('no', 'yes'))
        """
        found = cls() if schema is None else cls.read(schema)
        limits, lists = dict(found.bounds), dict(found.categories)
        for text in bounds:
            name, _, pair = text.rpartition("=")
            limits[name.strip()] = _ends(
                f"bounds={text!r}",
                pair.strip(),
                pair.split(":"),
                f'"column=low:high", as in "age=0:100", or "age={PAID}"',
            )
        for text in categories:
            name, _, rest = text.partition("=")
            example = '"column=a,b", as in "sex=F,M"'
            lists[name.strip()] = _labels(f"categories={text!r}", split_list(rest) if name else [], example)
        chosen = found.classes
        if classes is not None:
            chosen = _labels(f"classes={classes!r}", split_list(classes), "at least two, as in no,yes", 2)
        return cls(limits, lists, chosen)

    @classmethod
    def read(cls, path: Path, what: str = "schema") -> "Facts":
        """Facts from a TOML file with [bounds], [categories] and classes. what: the argument's name in a refusal."""
        plain = read_toml(path, what, f"a TOML file with {_FACTS_FORM}")
        return cls.from_dict(plain, f"{what}={path}")

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], what: str) -> "Facts":
        """Facts from the plain data of such a file. what: their source, for a refusal."""
        bounds, categories, classes = (plain.get(name, empty) for name, empty in _FACTS)
        unknown = [name for name in plain if name not in dict(_FACTS)]
        if unknown or not isinstance(bounds, dict) or not isinstance(categories, dict):
            odd = next(iter(unknown), "bounds" if not isinstance(bounds, dict) else "categories")
            above = "; settings of a study stand above all tables" if unknown and what == "facts" else ""
            raise ValueError(f"{what} has {odd!r}, which is not known in this form; expected {_FACTS_FORM}{above}")
        return cls(
            {
                name: _ends(
                    f"{what}: bounds of {name!r}",
                    pair,
                    pair if isinstance(pair, list) else [],
                    f'[low, high] or "{PAID}"',
                )
                for name, pair in bounds.items()
            },
            {
                name: _labels(f"{what}: categories of {name!r}", labels, 'a list, as ["F", "M"]')
                for name, labels in categories.items()
            },
            None if classes is None else _labels(f"{what}: classes", classes, "a list of at least two", 2),
        )

    def listed(self, target: str | None = None) -> dict[str, tuple[str, ...]]:
        """Categories by column, including the target's classes: the columns that `read_frame` reads as text."""
        classes = {} if target is None or self.classes is None else {target: self.classes}
        return {**self.categories, **classes}


def split_list(text: str) -> list[str]:
    """The parts of "a,b,c"; a part with a comma is put in double quotes."""
    try:
        return [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"{reprlib.repr(text)} is not a list ({error}); expected one line, as in a,b") from None


def _ends(what: str, given: Any, ends: Sequence[Any], expected: str) -> tuple[float, float] | None:
    if given == PAID:
        return None
    try:
        low, high = map(float, ends)
    except (TypeError, ValueError, OverflowError):  # OverflowError: an integer larger than any float
        raise ValueError(f"{what}; expected {expected}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{what}; expected finite numbers, the lower one first")
    return low, high


def _labels(what: str, labels: Any, expected: str, least: int = 1) -> tuple[str, ...]:
    is_list = isinstance(labels, list) and all(isinstance(label, str | int | float) for label in labels)
    found = tuple(map(label_text, labels)) if is_list else ()
    if len(found) < least or "" in found:
        raise ValueError(f"{what}; expected {expected}")
    if len(set(found)) < len(found):
        raise ValueError(f"{what} has the same entry twice; expected each once")
    return found


def label_text(value: Any) -> str:
    """A category as text: 2.0 as "2"."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    try:
        return str(value)
    except ValueError:  # an integer of 5,000 digits is not a category
        return ""


_FACTS: tuple[tuple[str, Any], ...] = (("bounds", {}), ("categories", {}), ("classes", None))
_FACTS_FORM = "[bounds], [categories] and classes"
