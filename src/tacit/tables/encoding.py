"""From columns to numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.basics.words import columns_named, enumerated, holds
from tacit.links import LABELS, NUMBER, Link, TargetKind, link_of
from tacit.tables.facts import Facts, label_text
from tacit.tables.files import refuse_repeated


def encode(frame: Any, schema: Mapping[str, Any]) -> np.ndarray:
    """Features of further records, encoded by the schema of a table; other columns are ignored."""
    there = set(map(str, frame.columns))
    kinds = schema["columns"]
    absent = [kind["name"] for kind in kinds if kind["name"] not in there]
    if absent:
        raise ValueError(
            f"the file has no {columns_named(absent)}; expected every column that the model was fitted with"
        )
    refuse_missing(frame, [kind["name"] for kind in kinds])
    text = [kind["name"] for kind in kinds if kind["kind"] != "category" and not holds_numbers(frame[kind["name"]])]
    if text:
        raise ValueError(f"{columns_named(text)} held numbers in the fit and {holds(text)} text here; expected numbers")
    return encode_columns(frame, kinds, "recode them")


def feature_names(
    there: list[str],
    target: str | None,
    unit: str | None,
    columns: Sequence[str] | None,
    facts: Facts,
    apart: Sequence[str] = (),
) -> list[str]:
    """The names of the features, after checking all given names. apart: columns that are never features."""
    if target is not None and target not in there:
        hint = ", with commas between columns" if len(there) == 1 and (";" in there[0] or "\t" in there[0]) else ""
        raise ValueError(f"target={target!r} is not a column; expected one of {enumerated(there)}{hint}")
    if unit is not None and (unit not in there or unit == target):
        raise ValueError(f"unit={unit!r} is not a column beside the target; expected one of {enumerated(there)}")
    for what, given in (("bounds", facts.bounds), ("categories", facts.categories), ("columns", columns or ())):
        unknown = [name for name in given if name not in there]
        if unknown:
            raise ValueError(f"{what} name {unknown[0]!r}, which is not a column; expected one of {enumerated(there)}")
    both = [name for name in facts.bounds if name in facts.categories]
    if both:
        raise ValueError(f"{columns_named(both)} has bounds and categories; expected one of the two")
    if target in facts.categories:
        raise ValueError(f"{target!r} is the target; expected its labels as --classes, not as categories")
    if columns is None:
        names = [name for name in there if name not in (target, unit, *apart)]
    else:
        names = list(columns)
        refuse_repeated("columns", names)
        for name in (target, unit):
            if name in names:
                raise ValueError(f"columns have {name!r}; expected features alone")
        numbering = [name for name in names if name in apart]
        if numbering:
            raise ValueError(
                f"columns have {numbering[0]!r}, which numbers the rows of some table and says nothing about a record; "
                "leave it out, or write the file again with the column under a name of its own"
            )
    if not names:
        raise ValueError("no column is left as a feature; expected at least one beside the target")
    return names


def kinds_of(frame: Any, names: list[str], facts: Facts) -> list[dict[str, Any]]:
    """The kind of each column, as plain data."""
    import pandas

    found, text = [], []
    for name in names:
        kind = public_kind(name, facts)
        if (kind is None or kind["kind"] == "number") and not holds_numbers(frame[name]):
            text.append(name)
        elif kind is not None:
            found.append(kind)
        elif pandas.api.types.is_bool_dtype(frame[name]):
            found.append({"name": name, "kind": "indicator"})
        else:
            found.append({"name": name, "kind": "number", "bounds": None})
    if text:
        raise ValueError(
            f"{columns_named(text)} {holds(text)} text; give the public list of categories, as in "
            f'--categories "{text[0]}=a,b", or leave {"it" if len(text) == 1 else "them"} out with --columns'
        )
    return found


def public_kind(name: str, facts: Facts) -> dict[str, Any] | None:
    """The kind of a column by public facts, if they give it; records then do not matter."""
    if name in facts.categories:
        return {"name": name, "kind": "category", "categories": list(facts.categories[name])}
    if name in facts.bounds:
        ends = facts.bounds[name]
        return {"name": name, "kind": "number", "bounds": None if ends is None else list(ends)}
    return None


def encoded_names(kinds: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The names of the columns that `encode_columns` makes, and which of them are indicators."""
    names, indicators = [], []
    for kind in kinds:
        # The first is the reference: all indicators sum to the intercept, and only noise would tell them apart.
        new = [f"{kind['name']}={category}" for category in kind.get("categories", ())[1:]]
        new = new if kind["kind"] == "category" else [kind["name"]]
        names += new
        indicators += [] if kind["kind"] == "number" else new
    return names, indicators


def holds_numbers(column: Any) -> bool:
    """Whether a column holds real numbers or truth values."""
    import pandas

    types = pandas.api.types
    return (types.is_numeric_dtype(column) or types.is_bool_dtype(column)) and not types.is_complex_dtype(column)


def _numbers(column: Any) -> np.ndarray:
    with np.errstate(over="ignore"):  # values beyond single precision become infinite, and are refused
        return column.to_numpy(float, na_value=np.nan).astype(np.float32)


def _codes(column: Any, categories: Sequence[str]) -> np.ndarray:
    """The place of each value in `categories`, -1 if it has none; 01 and 1 are the same if only one is listed."""
    places = {label: j for j, label in enumerate(categories)}
    plain: dict[str, int] = {}
    for label, j in places.items():
        plain[_plain(label)] = -1 if _plain(label) in plain else j
    found: dict[str, int] = {}  # keys are text: 1 and True would be the same key
    codes = []
    for value in column:
        label = label_text(value)
        if label not in found:
            found[label] = places.get(label, plain.get(_plain(label), -1))
        codes.append(found[label])
    return np.array(codes, int)


def _plain(label: str) -> str:
    try:
        return label_text(float(label))
    except (ValueError, OverflowError):
        return label.lower() if label.lower() in ("true", "false") else label


def encode_columns(frame: Any, kinds: Sequence[Mapping[str, Any]], remedy: str) -> np.ndarray:
    """The features, in the columns that `encoded_names` names."""
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
        raise ValueError(f"{columns_named(endless)} {holds(endless)} numbers that are not finite; remove those records")
    if odd:
        raise ValueError(f"{columns_named(odd)} held True and False in the fit; expected these, or 1 and 0")
    for name, categories in outside.items():
        raise ValueError(f"column {name!r} has values outside its categories {enumerated(categories)}; {remedy}")
    return np.concatenate(blocks, axis=1).astype(np.float32)


@dataclass(frozen=True)
class OwnTarget:
    """The target of a model of the user's own, in place of a link: public facts say whether it is a label."""

    target: TargetKind
    words = "model of your own"

    @property
    def is_multiclass(self) -> bool:
        """Whether it has any number of classes."""
        return self.target is LABELS


def target_of(model: str, facts: Facts) -> Link | OwnTarget:
    """What the target of a model may hold. model: the name of a regression, or "module:name"."""
    if ":" not in model:
        return link_of(model)
    return OwnTarget(NUMBER if facts.classes is None else LABELS)


def check_classes(name: str, link: Link | OwnTarget, classes: tuple[str, ...] | None) -> None:
    """Check the classes as far as possible without records."""
    if link.target.is_number:
        if classes is not None:
            raise ValueError(f"classes are for a target of labels; that of a {link.words} is a number")
    elif link.is_multiclass:
        if classes is None:
            raise ValueError(f"a {link.words} needs the public classes of {name!r}; give --classes a,b,c")
    elif classes is not None and len(classes) != 2:
        raise ValueError(f"{len(classes)} classes; expected 2 for a {link.words}, or --model softmax")


def encode_target(
    column: Any, name: str, link: Link | OwnTarget, classes: tuple[str, ...] | None
) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """The target as numbers, and the labels behind 0, 1, ... of a classification."""
    import pandas

    check_classes(name, link, classes)
    if link.target.is_number:
        if not holds_numbers(column):
            raise ValueError(f"target {name!r} holds text; a {link.words} needs numbers")
        y = _numbers(column)
        if not np.all(np.isfinite(y)):
            raise ValueError(f"target {name!r} has numbers that are not finite; remove those records")
        if not link.target.admits(y):
            raise ValueError(
                f"target {name!r} has values other than {link.target.expected}, which a {link.words} needs"
            )
        return y, None
    labels: tuple[Any, ...] | None = classes
    if labels is None:
        is_number = holds_numbers(column)
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
            raise ValueError(f"target {name!r} has labels outside the classes {enumerated(labels)}; give all of them")
    return y.astype(np.float32), labels


def refuse_missing(frame: Any, names: list[str]) -> None:
    """Refuse columns with missing values."""
    missing = [name for name in names if frame[name].isna().any()]
    if missing:
        raise ValueError(f"{columns_named(missing)} {holds(missing)} missing values; fill or drop them first")


def refuse_unlabelled(frame: Any, names: list[str]) -> None:
    """Refuse labels that cannot be looked up, such as lists, which Parquet allows."""
    odd = []
    for name in names:
        try:
            frame[name].map({value: label_text(value) for value in frame[name].unique()})
        except (TypeError, ValueError, NotImplementedError):  # not hashable, or dates beyond Python's range
            odd.append(name)
    if odd:
        raise ValueError(f"{columns_named(odd)} {holds(odd)} neither text nor numbers; recode or leave them out")
