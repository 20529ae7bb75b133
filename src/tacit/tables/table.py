"""Tables: features and a target as numbers, with public facts about them; from arrays, CSV and Parquet files.

No public fact is taken from private records: categories, classes and bounds are given, never inferred. Two things are
read from a file and treated as public: which columns it has, and whether each holds numbers, True and False, or text.
A file that cannot be encoded is refused with a message that names columns but no values. Such a message still reveals
something about the records: keep it with the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tacit.tables.digests import digests_of, digests_of_columns
from tacit.tables.encoding import (
    check_classes,
    encode_columns,
    encode_target,
    encoded_names,
    feature_names,
    kinds_of,
    public_kind,
    refuse_missing,
    refuse_unlabelled,
    target_of,
)
from tacit.tables.facts import PAID, Facts
from tacit.tables.files import bookkeeping
from tacit.tables.persons import persons_of
from tacit.tables.remarks import id_columns, remarks_on

Bounds = tuple[Any, Any] | Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Table:
    """Records (features, target) without a column for the intercept, and the public facts about their columns.

    `numbers` are the numeric columns; the others are indicators, 0 or 1. `low` and `high` are public bounds of each
    number and, last, of the target (NaN if there are none). `classes` are the labels that the target's 0, 1, ...
    stand for. `notes` go into the statement; `schema` is what `encode` needs for further records.
    `remarks` and `ids` (features that look like names of records) are for the holder of the data alone: they are facts
    about the records and go into no result.
    `digests` identify the content of each record of a file (see `digests_of`); None for records from arrays.
    """

    features: np.ndarray
    target: np.ndarray
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    classes: tuple[Any, ...] | None = None
    groups: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    schema: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    digests: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        features: Any,
        target: Any,
        *,
        names: Sequence[str] | None = None,
        indicators: Sequence[int | str] = (),
        bounds: Bounds | None = None,
        target_bounds: tuple[float, float] | None = None,
        classes: Sequence[Any] | None = None,
        groups: Any = None,
        notes: tuple[str, ...] = (),
        schema: dict[str, Any] | None = None,
    ) -> "Table":
        """A table from arrays.

        indicators: columns, by name or place, that are 0 or 1 and are not rescaled. bounds: public limits of the other
        columns: (low, high), each one number or one for each column, or a dict by name that may leave columns out.
        """
        try:
            x = _single(features)
        except (TypeError, ValueError):
            raise ValueError("features hold something that is not a number; encode it by public categories") from None
        try:  # one fixed type: the one that numpy infers from all records could change with a single record
            y = np.asarray(target)
            y = y if y.dtype == np.float32 else y.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError("the target holds something that is not a number; recode it") from None
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise ValueError(f"features of shape {x.shape} and a target of shape {y.shape}; expected (n, p) and (n,)")
        named = tuple(map(str, names)) if names is not None else tuple(f"x{j + 1}" for j in range(x.shape[1]))
        if len(named) != x.shape[1] or len(set(named)) != len(named):
            raise ValueError(f"{len(set(named))} different names for {x.shape[1]} columns; expected one for each")
        places = {_place(column, named) for column in indicators}
        numbers = tuple(j for j in range(x.shape[1]) if j not in places)
        low, high = _bounds(bounds, named)
        ends = [np.array([end], float) for end in (target_bounds or (np.nan, np.nan))]
        low, high = (np.concatenate([e[list(numbers)], t]) for e, t in zip((low, high), ends, strict=True))
        with np.errstate(over="ignore"):
            is_range = (low.astype(np.float32) < high.astype(np.float32)) & np.isfinite(high - low)
        if np.any(~is_range & ~(np.isnan(low) & np.isnan(high))):
            raise ValueError(
                "a lower bound is not below its upper bound in single precision; expected finite pairs (low, high)"
            )
        return cls(x, y, named, numbers, low, high, _maybe_tuple(classes), persons_of(groups), notes, schema or {})

    @classmethod
    def of_frame(
        cls,
        frame: Any,
        target: str | None,
        model: str,
        *,
        unit: str | None = None,
        columns: Sequence[str] | None = None,
        facts: "Facts | None" = None,
    ) -> "Table":
        """A table from a pandas frame, for a regression of the kind `model`, or for a model of the user's own by name.

        Numbers stay numbers, a column of True and False without bounds is an indicator, and a column with public
        categories becomes one indicator, "column=category", for each category but the first, the reference. Text
        without public categories is refused. unit: the column that says which person or group a record belongs to; it
        is not a feature. columns: the features; by default all other columns. target: None for a model of the user's
        own that explains no column; if it explains one, public classes make it a label, and public bounds a number.

        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [31.0, 58.0], "sex": ["F", "M"], "ill": ["no", "yes"]})
        >>> facts = Facts(categories={"sex": ("F", "M")}, classes=("no", "yes"))
        >>> table = Table.of_frame(frame, "ill", "logistic", facts=facts)
        >>> table.names, table.target.tolist()
        (('age', 'sex=M'), [0.0, 1.0])
        """
        facts = facts or Facts()
        names = feature_names(list(map(str, frame.columns)), target, unit, columns, facts, bookkeeping(frame))
        if len(frame) < 2:
            raise ValueError(f"the file has {len(frame) or 'no'} record{'s' * (len(frame) == 0)}; expected at least 2")
        others = [name for name in (target, unit) if name is not None]
        refuse_missing(frame, [*names, *others])
        kinds = kinds_of(frame, names, facts)
        refuse_unlabelled(frame, list(dict.fromkeys([*facts.listed(target), *([] if unit is None else [unit])])))
        y, classes = np.zeros(len(frame), np.float32), None
        if target is not None:
            y, classes = encode_target(frame[target], target, target_of(model, facts), facts.classes)
        features = encode_columns(frame, kinds, "give them with --categories, or recode them")
        # By the id itself: a number by order of appearance would depend on the persons before.
        groups = None if unit is None else persons_of(frame[unit])
        table = cls._of_kinds(features, y, kinds, target, classes, facts, groups)
        more: dict[str, Any] = {"ids": id_columns(frame, names), "digests": digests_of(frame)}
        return replace(table, remarks=remarks_on(frame, names, target), **more)

    @classmethod
    def of_facts(cls, target: str | None, model: str, columns: Sequence[str], facts: "Facts") -> "Table":
        """The empty table that `of_frame` would make from any file with these columns, from public facts alone.

        The facts must be complete: bounds or categories of every column, and classes (or bounds) of the target.

        >>> facts = Facts({"age": (0.0, 110.0)}, {"sex": ("F", "M")}, ("no", "yes"))
        >>> table = Table.of_facts("ill", "logistic", ["age", "sex"], facts)
        >>> table.names, table.features.shape
        (('age', 'sex=M'), (0, 2))
        """
        explained = [] if target is None else [target]
        there: list[str] = list(dict.fromkeys([*columns, *facts.bounds, *facts.categories, *explained]))
        names = feature_names(there, target, None, columns, facts)
        known = {name: public_kind(name, facts) for name in names}
        bare = [name for name, kind in known.items() if kind is None]
        if bare:
            raise ValueError(
                f"column {bare[0]!r} has neither bounds nor categories; give [low, high] in [facts.bounds] or a list "
                f'in [facts.categories], which are public, or "{PAID}" in [facts.bounds]'
            )
        link = target_of(model, facts)
        is_number = link.target.is_number
        if target is None:
            return cls._of_kinds(*_nothing(known), None, None, facts)
        check_classes(target, link, facts.classes)
        if is_number and target not in facts.bounds:
            raise ValueError(
                f'target {target!r} has no bounds; give [low, high], which are public, or "{PAID}" in [facts.bounds]'
            )
        if not is_number and facts.classes is None:
            raise ValueError(
                f"target {target!r} has no classes; give its two labels as facts.classes, first the one that counts "
                "as 0"
            )
        return cls._of_kinds(*_nothing(known), target, facts.classes, facts)

    @classmethod
    def _of_kinds(
        cls,
        features: np.ndarray,
        y: np.ndarray,
        kinds: list[dict[str, Any]],
        target: str | None,
        classes: tuple[Any, ...] | None,
        facts: "Facts",
        groups: Any = None,
    ) -> "Table":
        """A table of records encoded by `kinds`."""
        names, indicators = encoded_names(kinds)
        return cls.of(
            features,
            y,
            names=names,
            indicators=indicators,
            bounds={kind["name"]: tuple(kind["bounds"]) for kind in kinds if kind.get("bounds")},
            target_bounds=facts.bounds.get(target) if target is not None and classes is None else None,
            classes=classes,
            groups=groups,
            notes=(
                "The columns, their kinds and their categories are treated as public, and so is that every record has "
                "a finite value or a listed category in each.",
            ),
            schema={"columns": kinds, "target": target, "classes": None if classes is None else list(classes)},
        )

    def without_records(self) -> "Table":
        """The public part of the table: the same columns and no rows."""
        return replace(self.rows(slice(0)), groups=None, remarks=(), ids=())

    def rows(self, places: Any) -> "Table":
        """A table of these records alone. places: any index that NumPy takes."""
        groups, digests = (None if part is None else part[places] for part in (self.groups, self.digests))
        return replace(self, features=self.features[places], target=self.target[places], groups=groups, digests=digests)

    def contents(self) -> np.ndarray:
        """16 bytes for each record, from its own content alone: no other record and no position enters them.

        From a file, the whole row enters (`digests_of`); from arrays, the features and the target in single precision,
        as they are learned from, never in the type that NumPy inferred from all records. Equal records get equal bytes.
        """
        if self.digests is None:
            names = [*map(str, range(self.features.shape[1])), "target"]
            columns = [*self.features.T, self.target]
            singles = {name: _single(column) for name, column in zip(names, columns, strict=True)}
            return digests_of_columns(singles, len(self.target))
        if len(self.digests) != len(self.target):
            raise ValueError(
                f"{len(self.digests)} digests for {len(self.target)} records; take a part of a table by rows(...)"
            )
        return self.digests

    @property
    def categories(self) -> int:
        """The number of attributes behind the indicators: one for all "attribute=value", one for each other."""
        others = (name for j, name in enumerate(self.names) if j not in set(self.numbers))
        return len({name.partition("=")[0] for name in others})


def _nothing(known: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Features and target of no record, and the kinds of the columns."""
    kinds = [kind for kind in known.values() if kind is not None]
    return np.zeros((0, len(encoded_names(kinds)[0])), np.float32), np.zeros(0, np.float32), kinds


def _maybe_tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _single(values: Any) -> np.ndarray:
    """Convert to single precision via double, so that a number does not depend on the type NumPy infers for all."""
    with np.errstate(over="ignore"):  # values beyond single precision become infinite: bounded by the range, or 0
        return np.asarray(values).astype(np.float64).astype(np.float32)


def _place(column: int | str, names: tuple[str, ...]) -> int:
    if isinstance(column, str):
        if column not in names:
            raise ValueError(f"no column is named {column!r}; there are {', '.join(names[:10])}")
        return names.index(column)
    if not -len(names) <= column < len(names):
        raise ValueError(f"column {column} of {len(names)}; expected a place in the table")
    return column % len(names)


def _bounds(bounds: Bounds | None, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.full(len(names), np.nan), np.full(len(names), np.nan)
    if isinstance(bounds, Mapping):
        for name, pair in bounds.items():
            place = _place(name, names)
            low[place], high[place] = _pair(f"bounds of {name!r}", pair)
    elif bounds is not None:
        ends = _pair("bounds", bounds)
        try:
            low[:], high[:] = ends
        except (TypeError, ValueError):
            raise ValueError(f"bounds={bounds!r}; {_PAIRS}, each one number or one for each column") from None
    return low, high


_PAIRS = "expected (low, high), or a dict of such pairs by column"


def _pair(what: str, ends: Any) -> tuple[Any, Any]:
    if np.ndim(ends) == 0 or len(ends) != 2:
        raise ValueError(f"{what} are {ends!r}; {_PAIRS}")
    return tuple(ends)
