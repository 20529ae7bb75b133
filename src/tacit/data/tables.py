"""Tables: features and a target as numbers, with what is public about them; from arrays, CSV and Parquet files.

Nothing is taken from private records on the way: categories, classes and bounds are given, never found. What is read
off a file and treated as public is which columns it has and whether each holds numbers, True and False, or text. A file
that cannot be encoded is refused in words that name columns and no values. They still say something about the records,
to whoever sees them: keep them with the data.
"""

import csv
import hashlib
import math
import re
import reprlib
import struct
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.datasets import Dataset

Bounds = tuple[Any, Any] | Mapping[str, tuple[float, float]]
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A")  # in text; unless a category
FILES = "a file that ends in .csv or .parquet"
MOST_NAMED = 10  # columns or categories in a message
DIGEST_BYTES = 16  # of a record's content
INDEX = "tacit: columns of the index"  # of a frame's attributes, by which `read_frame` says what Parquet says of them
_CELL_BYTES = 9  # of one value on the way there: what it is, and eight bytes of it


@dataclass(frozen=True, eq=False)
class Table:
    """Records (features, target) without a column for the intercept, and the public facts about their columns.

    `numbers` are the columns that are measured; the others are indicators, 0 or 1. `low` and `high` are public bounds
    of each number and, last, of the target (NaN where there are none). `classes` are the labels that the target's
    0, 1, ... stand for. `notes` go into the statement, `schema` to whoever encodes further records in the same way.
    `remarks` are for the holder of the data alone: they are facts about the records, and go into no result; so are
    `ids`, the columns among the features that look like names of records.
    `digests` stand for the content of each record, as `digests_of` makes them of a file; None for records from arrays.
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
        columns: (low, high), each a number or one for each column, or a dict by name, where a column may be left out.
        """
        try:
            x = _single(features)
        except (TypeError, ValueError):
            raise ValueError("features hold something that is not a number; encode it by public categories") from None
        try:  # in one type, whatever numpy finds for all of them together: one record can change that
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
        groups = None if groups is None else np.asarray(groups)
        return cls(x, y, named, numbers, low, high, _maybe_tuple(classes), groups, notes, schema or {})

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> "Table":
        """An embedded data set, with its public ranges."""
        names = dataset.feature_names[1:]
        numbers = {name for name in dataset.numbers}
        return cls.of(
            dataset.features[:, 1:],
            dataset.target,
            names=names,
            indicators=[name for name in names if name not in numbers],
            bounds=(0.0, 1.0),
            classes=(0, 1),
            notes=(f"{dataset.name}: columns are encoded by public categories and ranges.",),
        )

    @classmethod
    def of_frame(
        cls,
        frame: Any,
        target: str,
        model: str,
        *,
        unit: str | None = None,
        columns: Sequence[str] | None = None,
        facts: "Facts | None" = None,
    ) -> "Table":
        """A table from a pandas frame, for a regression of the kind `model`.

        Numbers stay numbers, a column of True and False without bounds is an indicator, and a column with public
        categories becomes one indicator, "column=category", for each but the first, which the others are compared with.
        Text without public categories is refused. unit: the column that says whose record it is; no feature. columns:
        the features; all others by default.

        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [31.0, 58.0], "sex": ["F", "M"], "ill": ["no", "yes"]})
        >>> facts = Facts(categories={"sex": ("F", "M")}, classes=("no", "yes"))
        >>> table = Table.of_frame(frame, "ill", "logistic", facts=facts)
        >>> table.names, table.target.tolist()
        (('age', 'sex=M'), [0.0, 1.0])
        """
        facts = facts or Facts()
        names = _features(list(map(str, frame.columns)), target, unit, columns, facts, bookkeeping(frame))
        if len(frame) < 2:
            raise ValueError(f"the file has {len(frame) or 'no'} record{'s' * (len(frame) == 0)}; expected at least 2")
        _refuse_missing(frame, [*names, target, *([] if unit is None else [unit])])
        kinds = _kinds(frame, names, facts)
        _refuse_unlabelled(frame, [*facts.listed(target), *([] if unit is None else [unit])])
        y, classes = _target(frame[target], target, model, facts.classes)
        features = _encode(frame, kinds, "give them with --categories, or recode them")
        groups = None if unit is None else frame[unit].factorize()[0]
        table = cls._of_kinds(features, y, kinds, target, classes, facts, groups)
        more: dict[str, Any] = {"ids": _ids(frame, names), "digests": digests_of(frame)}
        return replace(table, remarks=_remarks(frame, names, target), **more)

    @classmethod
    def of_facts(cls, target: str, model: str, columns: Sequence[str], facts: "Facts") -> "Table":
        """The table without records that `of_frame` makes of any file with these columns, from public facts alone.

        The facts must say all: bounds or categories of every column, and the classes (or the bounds) of the target.

        >>> facts = Facts({"age": (0.0, 110.0)}, {"sex": ("F", "M")}, ("no", "yes"))
        >>> table = Table.of_facts("ill", "logistic", ["age", "sex"], facts)
        >>> table.names, table.features.shape
        (('age', 'sex=M'), (0, 2))
        """
        there = list(dict.fromkeys([*columns, *facts.bounds, *facts.categories, target]))
        names = _features(there, target, None, columns, facts)
        known = {name: _kind(name, facts) for name in names}
        bare = [name for name, kind in known.items() if kind is None]
        if bare:
            raise ValueError(
                f"column {bare[0]!r} has neither bounds nor categories; give [low, high] in [facts.bounds], or a list "
                "in [facts.categories], which are public"
            )
        _check_classes(target, model, facts.classes)
        is_number = model in _NUMERIC
        if is_number and target not in facts.bounds:
            raise ValueError(f"target {target!r} has no bounds; give [low, high] in [facts.bounds], which are public")
        if not is_number and facts.classes is None:
            raise ValueError(
                f"target {target!r} has no classes; give its two labels as facts.classes, first the one that counts "
                "as 0"
            )
        kinds = [kind for kind in known.values() if kind is not None]
        none = np.zeros((0, len(_encoded(kinds)[0])), np.float32)
        return cls._of_kinds(none, np.zeros(0, np.float32), kinds, target, facts.classes, facts)

    @classmethod
    def _of_kinds(
        cls,
        features: np.ndarray,
        y: np.ndarray,
        kinds: list[dict[str, Any]],
        target: str,
        classes: tuple[Any, ...] | None,
        facts: "Facts",
        groups: Any = None,
    ) -> "Table":
        """Records that were encoded by `kinds`."""
        names, indicators = _encoded(kinds)
        return cls.of(
            features,
            y,
            names=names,
            indicators=indicators,
            bounds={kind["name"]: tuple(kind["bounds"]) for kind in kinds if kind.get("bounds")},
            target_bounds=facts.bounds.get(target) if classes is None else None,
            classes=classes,
            groups=groups,
            notes=(
                "The columns, their kinds and their categories are treated as public, and so is that every record has "
                "a finite value or a listed category in each.",
            ),
            schema={"columns": kinds, "target": target, "classes": None if classes is None else list(classes)},
        )

    def without_records(self) -> "Table":
        """What is public about the table: the same columns and no rows."""
        return replace(self.rows(slice(0)), groups=None, remarks=(), ids=())

    def rows(self, places: Any) -> "Table":
        """These records alone, as an index of numpy's chooses them."""
        groups, digests = (None if part is None else part[places] for part in (self.groups, self.digests))
        return replace(self, features=self.features[places], target=self.target[places], groups=groups, digests=digests)

    def contents(self) -> np.ndarray:
        """16 bytes for each record, of its own content alone: no other record and no place has a part in them.

        Of a file, its whole row (`digests_of`); of arrays, its features and its target as they are learned from, in
        single precision: never in the type that numpy found for all of them together. Equal records have equal ones.
        """
        if self.digests is None:
            names = [*map(str, range(self.features.shape[1])), "target"]
            columns = [*self.features.T, self.target]
            singles = {name: _single(column) for name, column in zip(names, columns, strict=True)}
            return _digests(singles, len(self.target))
        if len(self.digests) != len(self.target):
            raise ValueError(
                f"{len(self.digests)} digests for {len(self.target)} records; take a part of a table by rows(...)"
            )
        return self.digests

    @property
    def categories(self) -> int:
        """How many attributes the indicators come from: "attribute=value" by attribute, others by themselves."""
        others = (name for j, name in enumerate(self.names) if j not in set(self.numbers))
        return len({name.partition("=")[0] for name in others})


def _maybe_tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _single(values: Any) -> np.ndarray:
    """In single precision, by way of double: so each number is the same whatever type numpy finds for all of them."""
    with np.errstate(over="ignore"):  # beyond single precision is infinite: bounded by the range, or contributes 0
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
            low[_place(name, names)], high[_place(name, names)] = pair
    elif bounds is not None:
        if len(bounds) != 2:
            raise ValueError(f"bounds of length {len(bounds)}; expected (low, high) or a dict of such pairs by column")
        low[:], high[:] = bounds
    return low, high


# --- From files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What is public about the columns of a file: bounds of numbers, categories of others, classes of the target."""

    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
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
        """Facts from a TOML file and from the command line, which goes before the file.

        >>> Facts.given(bounds=["age=0:100"], categories=["sex=F,M"], classes="no,yes")
        Facts(bounds={'age': (0.0, 100.0)}, categories={'sex': ('F', 'M')}, classes=('no', 'yes'))
        """
        found = cls() if schema is None else cls.read(schema)
        limits, lists = dict(found.bounds), dict(found.categories)
        for text in bounds:
            name, _, pair = text.rpartition("=")
            limits[name.strip()] = _pair(f"bounds={text!r}", pair.split(":"), '"column=low:high", as in "age=0:100"')
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
        """Facts from a TOML file with [bounds], [categories] and classes. what: its name in a refusal."""
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ValueError(f"{what}={path}: {error.strerror}; expected a TOML file with {_FACTS_FORM}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{what}={path} cannot be read ({toml_fault(error)}); expected a TOML file with {_FACTS_FORM}"
            ) from None
        return cls.from_dict(plain, f"{what}={path}")

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], what: str) -> "Facts":
        """Facts from the plain data of such a file. what: where they were found, for a refusal."""
        bounds, categories, classes = (plain.get(name, empty) for name, empty in _FACTS)
        unknown = [name for name in plain if name not in dict(_FACTS)]
        if unknown or not isinstance(bounds, dict) or not isinstance(categories, dict):
            odd = next(iter(unknown), "bounds" if not isinstance(bounds, dict) else "categories")
            raise ValueError(f"{what} has {odd!r}, which is not known in this form; expected {_FACTS_FORM}")
        return cls(
            {
                name: _pair(f"{what}: bounds of {name!r}", pair if isinstance(pair, list) else [], "[low, high]")
                for name, pair in bounds.items()
            },
            {
                name: _labels(f"{what}: categories of {name!r}", labels, 'a list, as ["F", "M"]')
                for name, labels in categories.items()
            },
            None if classes is None else _labels(f"{what}: classes", classes, "a list of at least two", 2),
        )

    def listed(self, target: str | None = None) -> dict[str, tuple[str, ...]]:
        """Categories by column, the target's classes among them: what `read_frame` reads as text."""
        classes = {} if target is None or self.classes is None else {target: self.classes}
        return {**self.categories, **classes}


def toml_fault(error: Exception) -> str:
    """Why a TOML file cannot be read, in one line."""
    if isinstance(error, tomllib.TOMLDecodeError):
        return " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def split_list(text: str) -> list[str]:
    """The parts of "a,b,c"; a part with a comma is put in double quotes."""
    try:
        return [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"{reprlib.repr(text)} is no list ({error}); expected one line, as in a,b") from None


def _pair(what: str, ends: Sequence[Any], expected: str) -> tuple[float, float]:
    try:
        low, high = map(float, ends)
    except (TypeError, ValueError, OverflowError):  # OverflowError: an integer beyond all floats
        raise ValueError(f"{what}; expected {expected}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{what}; expected finite numbers, the lower one first")
    return low, high


def _labels(what: str, labels: Any, expected: str, least: int = 1) -> tuple[str, ...]:
    is_list = isinstance(labels, list) and all(isinstance(label, str | int | float) for label in labels)
    found = tuple(map(_label, labels)) if is_list else ()
    if len(found) < least or "" in found:
        raise ValueError(f"{what}; expected {expected}")
    if len(set(found)) < len(found):
        raise ValueError(f"{what} has the same entry twice; expected each once")
    return found


def _label(value: Any) -> str:
    """A category as text: 2.0 as "2"."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    try:
        return str(value)
    except ValueError:  # an integer of 5,000 digits: nobody's category
        return ""


_FACTS: tuple[tuple[str, Any], ...] = (("bounds", {}), ("categories", {}), ("classes", None))
_FACTS_FORM = "[bounds], [categories] and classes"


def read_frame(path: Path, listed: Mapping[str, Sequence[str]] | None = None, what: str = "data") -> Any:
    """A CSV or Parquet file as a pandas frame; the ending says which.

    listed: columns that are read as text, whatever they look like, with the values that do not stand for "missing"
    there (a category may be called NA). what: the argument's name in a refusal.
    """
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise ValueError(f"{what}={path}; expected {FILES}")
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise ValueError(f"{what}={path}: {error.strerror}; expected {FILES}") from None
    if is_empty:
        raise ValueError(f"{what}={path} is empty; expected a line of column names and records")
    frame = _read_csv(path, listed or {}, what) if ending == ".csv" else _read_parquet(path, what)
    _refuse_repeated(f"{what}={path}", list(map(str, frame.columns)))
    if not len(frame):
        raise ValueError(f"{what}={path} has no records; expected at least one below the column names")
    return frame


def _refuse_repeated(what: str, names: list[str]) -> None:
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ValueError(f"{what} has more than one {_named(repeated)}; rename or remove all but one")


def _read_csv(path: Path, listed: Mapping[str, Sequence[str]], what: str) -> Any:
    import pandas

    # Numbers as Python reads them: else the last digit of one would depend on whether another row makes the column
    # text. From version 3.1 on pandas does so by itself, and the option is gone.
    is_old = tuple(map(int, pandas.__version__.split(".")[:2])) < (3, 1)
    precision: dict[str, Any] = {"float_precision": "round_trip"} if is_old else {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next((line for line in csv.reader(file, skipinitialspace=True) if line), [])
        _refuse_repeated(f"{what}={path}", [name for name in header if name])  # before pandas renames one
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(
                path,
                dtype={name: str for name in listed if name in header},  # type: ignore[arg-type]
                encoding="utf-8-sig",
                index_col=False,
                keep_default_na=False,
                low_memory=False,
                na_values={name: [v for v in MISSING if v not in listed.get(name, ())] for name in header},
                skipinitialspace=True,
                **precision,
            )
    except pandas.errors.ParserWarning:
        reason = "a line has more values than there are column names"
    except pandas.errors.EmptyDataError:
        reason = "it has no column names"
    except pandas.errors.ParserError as error:
        reason = " ".join(str(error).partition("C error: ")[2].split()).rstrip(".") or "its lines differ in length"
    except (UnicodeDecodeError, csv.Error):
        reason = "it is not text in UTF-8"
    except OSError as error:
        reason = error.strerror
    raise ValueError(f"{what}={path} cannot be read as CSV: {reason}; expected a line of column names and records")


def _read_parquet(path: Path, what: str) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        _refuse_repeated(f"{what}={path}", table.column_names)
        frame = table.to_pandas(ignore_metadata=True)
        frame.attrs[INDEX] = _index_columns(table.schema)
        return frame
    except (pyarrow.ArrowException, OSError):
        raise ValueError(f"{what}={path} cannot be read as Parquet; expected {FILES}") from None


def _index_columns(schema: Any) -> list[str]:
    """The columns that a Parquet file made by pandas has for the index of its frame."""
    try:
        found = schema.pandas_metadata
    except ValueError:  # somebody else's, or broken
        return []
    listed = found.get("index_columns") if isinstance(found, dict) else None
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []  # a range is no name


_INDEX_NAME = re.compile(r"__index_level_\d+__")


def bookkeeping(frame: Any) -> list[str]:
    """The columns that programs add: an index of pandas', and columns without a name, such as row numbers.

    They say where a record stood in some table. Deleting a row can renumber them, or make one appear, so they are no
    content of a record and no feature.
    """
    names = map(str, frame.columns)
    return [name for name in names if _is_unnamed(name) or _INDEX_NAME.fullmatch(name) or name in _indices(frame)]


def _indices(frame: Any) -> Sequence[str]:
    return frame.attrs.get(INDEX, ())


def _is_unnamed(name: str) -> bool:
    return not name.strip() or name.startswith("Unnamed: ")


# --- What a record is, whatever stands beside it ------------------------------------------------------------------


def digests_of(frame: Any) -> np.ndarray:
    """16 bytes for each row of a frame, (rows, 16), that depend on nothing but the values in that row.

    Not on its place, on the order of columns, on which of them a study uses, or on what pandas takes a column for,
    which one other row can change: each value is brought to one form by itself.

    | value                                              | stands as                                |
    |----------------------------------------------------|------------------------------------------|
    | a number, or text that Python reads as one         | the nearest number of double precision   |
    | missing, not-a-number, or a text of `MISSING`      | one word for all                         |
    | True and False, or these words, whatever the case  | the word                                 |
    | any other                                          | its text, without spaces around it       |

    Columns of `bookkeeping` are left out, such as row numbers without a name: they are facts about other rows.
    """
    left = set(bookkeeping(frame))
    columns = {str(name): frame.iloc[:, place] for place, name in enumerate(frame.columns)}
    return _digests({name: column for name, column in columns.items() if name not in left}, len(frame))


def _digests(columns: Mapping[str, Any], count: int) -> np.ndarray:
    cells = [_cells(columns[name]) for name in sorted(columns)]
    rows = np.ascontiguousarray(np.concatenate([np.zeros((count, 0), np.uint8), *cells], axis=1))
    width, plain = rows.shape[1], rows.tobytes()
    made = (plain[start : start + width] for start in range(0, width * count, width)) if width else (b"",) * count
    found = b"".join(hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() for row in made)
    return np.frombuffer(found, np.uint8).reshape(-1, DIGEST_BYTES)


def _cells(column: Any) -> np.ndarray:
    """(rows, 9) bytes of a column: for each value what it is, and its number or the hash of its word."""
    if column.dtype.kind in "iuf":
        values = column.to_numpy(float, na_value=np.nan) if hasattr(column, "to_numpy") else column.astype(float)
        missing = np.isnan(values)
        numbers = np.where(missing, 0.0, values + 0.0).astype("<f8")[:, None]  # + 0.0: there is one zero
        return np.concatenate([np.where(missing, 0, 1).astype(np.uint8)[:, None], numbers.view(np.uint8)], axis=1)
    known: dict[str, bytes] = {}  # of text alone: 1 and True would be one key
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
    """One value, by itself."""
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
        except OverflowError:  # an integer beyond all floats
            return math.inf if value > 0 else -math.inf
    word = str(value).strip()
    try:
        return math.nan if word in MISSING else float(word)
    except ValueError:
        return None


# --- From columns to numbers -------------------------------------------------------------------------------------


def encode(frame: Any, schema: Mapping[str, Any]) -> np.ndarray:
    """Features of further records, encoded as the schema of a table says; other columns are left aside."""
    there = set(map(str, frame.columns))
    kinds = schema["columns"]
    absent = [kind["name"] for kind in kinds if kind["name"] not in there]
    if absent:
        raise ValueError(f"the file has no {_named(absent)}; expected every column that the model was fitted with")
    _refuse_missing(frame, [kind["name"] for kind in kinds])
    text = [kind["name"] for kind in kinds if kind["kind"] != "category" and not _is_number(frame[kind["name"]])]
    if text:
        raise ValueError(f"{_named(text)} held numbers in the fit and {_holds(text)} text here; expected numbers")
    return _encode(frame, kinds, "recode them")


def _features(
    there: list[str],
    target: str,
    unit: str | None,
    columns: Sequence[str] | None,
    facts: Facts,
    apart: Sequence[str] = (),
) -> list[str]:
    """The names of the features, after all names that were given have been looked up. apart: no features."""
    if target not in there:
        hint = ", with commas between columns" if len(there) == 1 and (";" in there[0] or "\t" in there[0]) else ""
        raise ValueError(f"target={target!r} is not a column; expected one of {_list(there)}{hint}")
    if unit is not None and (unit not in there or unit == target):
        raise ValueError(f"unit={unit!r} is not a column beside the target; expected one of {_list(there)}")
    for what, given in (("bounds", facts.bounds), ("categories", facts.categories), ("columns", columns or ())):
        unknown = [name for name in given if name not in there]
        if unknown:
            raise ValueError(f"{what} name {unknown[0]!r}, which is not a column; expected one of {_list(there)}")
    both = [name for name in facts.bounds if name in facts.categories]
    if both:
        raise ValueError(f"{_named(both)} has bounds and categories; expected one of the two")
    if target in facts.categories:
        raise ValueError(f"{target!r} is the target; expected its labels as --classes, not as categories")
    if columns is None:
        names = [name for name in there if name not in (target, unit, *apart)]
    else:
        names = list(columns)
        _refuse_repeated("columns", names)
        if target in names or unit in names:
            raise ValueError(f"columns have {target if target in names else unit!r}; expected features alone")
        numbering = [name for name in names if name in apart]
        if numbering:
            raise ValueError(
                f"columns have {numbering[0]!r}, which numbers the rows of some table and says nothing of a record; "
                "leave it out, or write the file anew with the column under a name of its own"
            )
    if not names:
        raise ValueError("no column is left as a feature; expected at least one beside the target")
    return names


def _kinds(frame: Any, names: list[str], facts: Facts) -> list[dict[str, Any]]:
    """What each column is, as plain data."""
    import pandas

    found, text = [], []
    for name in names:
        kind = _kind(name, facts)
        if (kind is None or kind["kind"] == "number") and not _is_number(frame[name]):
            text.append(name)
        elif kind is not None:
            found.append(kind)
        elif pandas.api.types.is_bool_dtype(frame[name]):
            found.append({"name": name, "kind": "indicator"})
        else:
            found.append({"name": name, "kind": "number", "bounds": None})
    if text:
        raise ValueError(
            f"{_named(text)} {_holds(text)} text; give the public list of categories, as in "
            f'--categories "{text[0]}=a,b", or leave {"it" if len(text) == 1 else "them"} out with --columns'
        )
    return found


def _kind(name: str, facts: Facts) -> dict[str, Any] | None:
    """What a column is by public facts, if they say so; then no record has a say."""
    if name in facts.categories:
        return {"name": name, "kind": "category", "categories": list(facts.categories[name])}
    if name in facts.bounds:
        return {"name": name, "kind": "number", "bounds": list(facts.bounds[name])}
    return None


def _encoded(kinds: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The names of the columns as `_encode` gives them, and which of them are indicators."""
    names, indicators = [], []
    for kind in kinds:
        # The first is the reference: all together add up to the intercept, and noise alone would tell them apart.
        new = [f"{kind['name']}={category}" for category in kind.get("categories", ())[1:]]
        new = new if kind["kind"] == "category" else [kind["name"]]
        names += new
        indicators += [] if kind["kind"] == "number" else new
    return names, indicators


def _is_number(column: Any) -> bool:
    import pandas

    types = pandas.api.types
    return (types.is_numeric_dtype(column) or types.is_bool_dtype(column)) and not types.is_complex_dtype(column)


def _numbers(column: Any) -> np.ndarray:
    with np.errstate(over="ignore"):  # beyond single precision is infinite, and refused
        return column.to_numpy(float, na_value=np.nan).astype(np.float32)


def _codes(column: Any, categories: Sequence[str]) -> np.ndarray:
    """The place of each value in `categories`, -1 if it has none; 01 and 1 are the same where only one is listed."""
    places = {label: j for j, label in enumerate(categories)}
    plain: dict[str, int] = {}
    for label, j in places.items():
        plain[_plain(label)] = -1 if _plain(label) in plain else j
    found: dict[str, int] = {}  # by text: as keys, 1 and True would be one, and the first of them stand for both
    codes = []
    for value in column:
        label = _label(value)
        if label not in found:
            found[label] = places.get(label, plain.get(_plain(label), -1))
        codes.append(found[label])
    return np.array(codes, int)


def _plain(label: str) -> str:
    try:
        return _label(float(label))
    except (ValueError, OverflowError):
        return label.lower() if label.lower() in ("true", "false") else label


def _encode(frame: Any, kinds: Sequence[Mapping[str, Any]], remedy: str) -> np.ndarray:
    """The features, in the columns that `_encoded` names."""
    blocks = []
    endless, outside, odd = [], {}, []
    for kind in kinds:
        name, column = kind["name"], frame[kind["name"]]
        if kind["kind"] == "category":
            codes = _codes(column, kind["categories"])
            if np.any(codes < 0):
                outside[name] = kind["categories"]
            blocks.append(codes[:, None] == np.arange(1, len(kind["categories"])))
            continue
        values = _numbers(column)
        if not np.all(np.isfinite(values)):
            endless.append(name)
        if kind["kind"] == "indicator" and not np.all((values == 0) | (values == 1)):
            odd.append(name)
        blocks.append(values[:, None])
    if endless:
        raise ValueError(f"{_named(endless)} {_holds(endless)} numbers that are not finite; remove those records")
    if odd:
        raise ValueError(f"{_named(odd)} held True and False in the fit; expected these, or 1 and 0")
    for name, categories in outside.items():
        raise ValueError(f"column {name!r} has values outside its categories {_list(categories)}; {remedy}")
    return np.concatenate(blocks, axis=1).astype(np.float32)


_NUMERIC = ("linear", "poisson")  # models whose target is a number


def _check_classes(name: str, model: str, classes: tuple[str, ...] | None) -> None:
    """What of the classes can be judged without a record."""
    if model in _NUMERIC:
        if classes is not None:
            raise ValueError(f"classes are for a target of labels; a {model} regression's is a number")
    elif model == "softmax":
        if classes is None:
            raise ValueError(f"a softmax regression needs the public classes of {name!r}; give --classes a,b,c")
    elif classes is not None and len(classes) != 2:
        raise ValueError(f"{len(classes)} classes; expected 2 for a {model} regression, or --model softmax")


def _target(
    column: Any, name: str, model: str, classes: tuple[str, ...] | None
) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """The target as numbers, and the labels behind 0, 1, ... of a classification."""
    import pandas

    _check_classes(name, model, classes)
    if model in _NUMERIC:
        if not _is_number(column):
            raise ValueError(f"target {name!r} holds text; a {model} regression's must be a number")
        y = _numbers(column)
        if not np.all(np.isfinite(y)):
            raise ValueError(f"target {name!r} has numbers that are not finite; remove those records")
        if model == "poisson" and not np.all((y >= 0) & (y == np.round(y))):
            raise ValueError(f"target {name!r} has negative numbers or fractions; a poisson regression's is a count")
        return y, None
    labels: tuple[Any, ...] | None = classes
    if labels is None:
        is_number = _is_number(column)
        y = _numbers(column) if is_number else np.full(len(column), -1)
        if not np.all((y == 0) | (y == 1)):
            raise ValueError(
                f"target {name!r} is not 0 or 1; give its two public classes, first the one that counts as 0, as in "
                "--classes no,yes"
            )
        labels = (False, True) if pandas.api.types.is_bool_dtype(column) else (0, 1)
    else:
        y = _codes(column, labels)
        if np.any(y < 0):
            raise ValueError(f"target {name!r} has labels outside the classes {_list(labels)}; give all of them")
    return y.astype(np.float32), labels


def _refuse_missing(frame: Any, names: list[str]) -> None:
    missing = [name for name in names if frame[name].isna().any()]
    if missing:
        raise ValueError(f"{_named(missing)} {_holds(missing)} missing values; fill or drop them before")


def _refuse_unlabelled(frame: Any, names: list[str]) -> None:
    """Refuse labels that cannot be looked up: lists and the like, which Parquet has."""
    odd = []
    for name in names:
        try:
            frame[name].map({value: _label(value) for value in frame[name].unique()})
        except (TypeError, ValueError, NotImplementedError):  # no hash, or dates beyond Python's
            odd.append(name)
    if odd:
        raise ValueError(f"{_named(odd)} {_holds(odd)} neither text nor numbers; recode or leave them out")


def _remarks(frame: Any, names: list[str], target: str) -> tuple[str, ...]:
    """What the holder should know, and no result may say: refusing here would tell of a single record that differs."""
    found = []
    constant = [name for name in names if frame[name].nunique() < 2]
    if constant:
        it, has = ("it", "has") if len(constant) == 1 else ("them", "have")
        found.append(f"{_named(constant)} {has} one value in all records, so nothing is learned of {it}.")
    if frame[target].nunique() < 2:
        found.append(f"target {target!r} has one value in all records, so there is little to learn.")
    left = bookkeeping(frame)
    if left:
        found.append(f"{_named(left)} {'numbers' if len(left) == 1 else 'number'} rows, which is no part of a record.")
    numbering = [name for name in map(str, frame.columns) if name not in left and _numbers_rows(frame[name])]
    if numbering:
        found.append(
            f"{_named(numbering)} {'counts' if len(numbering) == 1 else 'count'} the rows of this file; if it is "
            "counted anew when a row is deleted, then all later records change with it, which no guarantee covers: "
            "remove it from the file."
        )
    return tuple(found)


LEAST_IDS = 20  # records: fewer whole numbers may differ by chance


def _numbers_rows(column: Any) -> bool:
    """Whether a column holds 0, 1, 2, ... or 1, 2, 3, ... in the order of the file."""
    if len(column) < LEAST_IDS or not _is_number(column):
        return False
    values = column.to_numpy(float, na_value=np.nan)
    return any(np.array_equal(values, np.arange(first, first + len(values))) for first in (0, 1))


def _ids(frame: Any, names: list[str]) -> tuple[str, ...]:
    """Columns of text or whole numbers whose values are all different."""
    if len(frame) < LEAST_IDS:
        return ()

    def is_whole(column: Any) -> bool:
        try:
            return bool((column.astype(float) % 1 == 0).all())
        except (TypeError, ValueError):
            return False

    every = (name for name in names if frame[name].nunique() == len(frame))  # numbers of rows among them
    return tuple(name for name in every if frame[name].dtype.kind not in "iufb" or is_whole(frame[name]))


def _holds(names: Sequence[str]) -> str:
    return "holds" if len(names) == 1 else "hold"


def _named(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {_list([repr(name) for name in names])}"


def _list(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    shown = [name if name.isprintable() else repr(name) for name in names[:MOST_NAMED]]  # a message is one line
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
