"""CSV and Parquet files as frames."""

import csv
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.basics.words import columns_named

FILES = "a file that ends in .csv or .parquet"
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A")  # in text; not if a category
INDEX = "tacit: columns of the index"  # a frame's attribute, set by `read_frame`


def read_frame(path: Path, listed: Mapping[str, Sequence[str]] | None = None, what: str = "data") -> Any:
    """Read a CSV or Parquet file, chosen by its ending, as a pandas frame.

    listed: columns that are always read as text, each with the values that do not mean "missing" there (a category may
    be called NA). what: the argument's name in a refusal.
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
    refuse_repeated(f"{what}={path}", list(map(str, frame.columns)))
    if not len(frame):
        raise ValueError(f"{what}={path} has no records; expected at least one below the column names")
    return frame


def refuse_repeated(what: str, names: list[str]) -> None:
    """Refuse names that occur more than once."""
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ValueError(f"{what} has more than one {columns_named(repeated)}; rename or remove all but one")


def _read_csv(path: Path, listed: Mapping[str, Sequence[str]], what: str) -> Any:
    import pandas

    # Read numbers as Python does: otherwise a number's last digit could depend on another row that makes the column
    # text. From version 3.1 on pandas does so by itself, and the option is gone.
    is_old = tuple(map(int, pandas.__version__.split(".")[:2])) < (3, 1)
    precision: dict[str, Any] = {"float_precision": "round_trip"} if is_old else {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next((line for line in csv.reader(file, skipinitialspace=True) if line), [])
        refuse_repeated(f"{what}={path}", [name for name in header if name])  # before pandas renames one
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
        refuse_repeated(f"{what}={path}", table.column_names)
        frame = table.to_pandas(ignore_metadata=True)
        frame.attrs[INDEX] = _index_columns(table.schema)
        return frame
    except (pyarrow.ArrowException, OSError):
        raise ValueError(f"{what}={path} cannot be read as Parquet; expected {FILES}") from None


def _index_columns(schema: Any) -> list[str]:
    """The columns in which a Parquet file made by pandas stores the index of its frame."""
    try:
        found = schema.pandas_metadata
    except ValueError:  # from another program, or broken
        return []
    listed = found.get("index_columns") if isinstance(found, dict) else None
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []  # a range has no name


_INDEX_NAME = re.compile(r"__index_level_\d+__")


def bookkeeping(frame: Any) -> list[str]:
    """The columns that programs add: an index of pandas', and columns without a name, such as row numbers.

    They say where a record stood in some table. Deleting a row can renumber them, or make one appear, so they are
    neither content of a record nor features.
    """
    names = map(str, frame.columns)
    return [name for name in names if _is_unnamed(name) or _INDEX_NAME.fullmatch(name) or name in _indices(frame)]


def _indices(frame: Any) -> Sequence[str]:
    return frame.attrs.get(INDEX, ())


def _is_unnamed(name: str) -> bool:
    return not name.strip() or name.startswith("Unnamed: ")
