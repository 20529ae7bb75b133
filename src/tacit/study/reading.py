"""How a model reads a site's records: as arrays, one unit of privacy to a slot, standardised by released scales."""

import hashlib
import inspect
import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.trees import Tree
from tacit.links import COUNT, Link
from tacit.study.plan import Plan
from tacit.tables.digests import digests_of_columns
from tacit.tables.scaling import Range, Scaling
from tacit.tables.standardising import bounds_of, check_target, measured, model_of, standardise
from tacit.tables.table import Table


class Reading(Protocol):
    """How records of one model are read.

    model: with its prior. columns: how many columns are rescaled; unknown: those of them without public bounds.
    typical: the length of a typical record.
    """

    @property
    def model(self) -> Any: ...

    @property
    def columns(self) -> int: ...

    @property
    def unknown(self) -> tuple[int, ...]: ...

    @property
    def typical(self) -> float: ...

    def records(self, table: Any) -> Tree:
        """A site's records as arrays with the records in front."""
        ...

    def measured(self, record: Tree) -> Array:
        """The numbers of a record that are rescaled."""
        ...

    def ready(self, scaling: Scaling, record: Tree) -> Tree:
        """A record as the model takes it."""
        ...

    def bounds(self) -> Range:
        """Public bounds of the columns that are rescaled; [-1, 1] where there are none."""
        ...


@dataclass(frozen=True, eq=False)
class OfTable:
    """A regression on a table: columns are standardised. table: any site's, for its public facts."""

    link: Link
    table: Table
    prior_deviation: float

    @property
    def model(self) -> Any:
        return model_of(self.link, self.table, self.prior_deviation)

    @property
    def columns(self) -> int:
        return len(self.table.numbers) + self.link.target.is_number

    @property
    def unknown(self) -> tuple[int, ...]:
        ends = [*self.table.low[:-1], *([self.table.low[-1]] if self.link.target.is_number else [])]
        return tuple(j for j, end in enumerate(ends) if math.isnan(end))

    @property
    def typical(self) -> float:
        return math.sqrt(1 + len(self.table.numbers) + self.table.categories)

    def records(self, table: Table) -> Tree:
        return table.features, table.target.astype(np.float32)

    def measured(self, record: Tree) -> Array:
        return measured(self.link, self.table.numbers, record)

    def ready(self, scaling: Scaling, record: Tree) -> Tree:
        return standardise(self.link, self.table.numbers, scaling, record)

    def bounds(self) -> Range:
        found = bounds_of(self.table, self.columns)
        return at_least_zero(found) if self.link.target is COUNT else found


@dataclass(frozen=True, eq=False)
class OfModel:
    """A model given as an object, which takes records as they are. names: of its parameters, if a table has them."""

    model: Any
    width: int
    names: tuple[str, ...] = ()
    columns = 0
    unknown = ()

    @property
    def typical(self) -> float:
        return math.sqrt(max(1, self.width))

    def records(self, table: Any) -> Tree:
        return records_for(self.model, table)

    def measured(self, record: Tree) -> Array:
        del record
        return jnp.zeros(0)

    def ready(self, scaling: Scaling, record: Tree) -> Tree:
        del scaling
        return record

    def bounds(self) -> Range:
        return Range(jnp.zeros(0), jnp.zeros(0))


def reading_of(plan: Plan, table: Any) -> Reading:
    """How the records of a plan's model are read. table: any site's records, or its public part."""
    if plan.is_table:
        assert plan.link is not None
        return OfTable(plan.link, table, plan.prior_deviation)
    form = jax.tree.leaves(records_for(plan.model, table))[0]
    names = ("intercept", *table.names) if plan.has_one_predictor and isinstance(table, Table) else ()
    return OfModel(plan.model, form.shape[-1] if plan.has_one_predictor else 0, names)


def records_for(model: Any, table: Any) -> Tree:
    """The records that a model given as an object takes, as they are, or from a table by its columns.

    | model                      | a record                                                                |
    |----------------------------|-------------------------------------------------------------------------|
    | with one linear predictor  | (1, features) and the target                                            |
    | NumPyro's                  | its arguments: each the column of its name, and the last one the target |
    | any other, with a target   | features and the target                                                 |
    | any other, without one     | features                                                                |

    An argument of a NumPyro model that holds a vector takes all features, in the order of columns. A column with two
    public categories is known by its own name and holds 1 for the second. Every column must be taken. Numbers are not
    rescaled; they come in the type of the model's example, rounded where those are whole numbers.
    """
    if not isinstance(table, Table):
        return table
    has_target = table.schema.get("target", "") is not None
    if hasattr(model, "of_linear"):
        ones = np.ones((len(table.features), 1), np.float32)
        features = np.concatenate([ones, table.features], axis=1)
        return (features, table.target) if has_target else _refuse_targetless(model)
    if hasattr(model, "example"):
        return _arguments(model, table, has_target)
    return (table.features, table.target) if has_target else table.features


def _refuse_targetless(model: Any) -> Tree:
    raise ValueError(f"a {type(model).__name__} explains a target and none is given; expected target, a column")


def _arguments(model: Any, table: Table, has_target: bool) -> Tree:
    """The arguments of a NumPyro model, by name, and last the target."""
    names = [*inspect.signature(model.model).parameters][: len(model.example)]
    taken = names[:-1] if has_target else names
    places, found = _places(table), []
    is_whole = len(taken) == 1 and np.ndim(model.example[0]) == 1
    if is_whole and np.shape(model.example[0]) != (len(table.names),):
        raise ValueError(
            f"the model's argument {taken[0]!r} holds {np.shape(model.example[0])[0]} numbers and there are "
            f"{len(table.names)} columns; expected as many"
        )
    unknown = [name for name in taken if name not in places]
    left = [name for name in places if name not in taken and places[name] not in {places.get(one) for one in taken}]
    if not is_whole and unknown:
        raise ValueError(
            f"the model takes {unknown[0]!r}, and no column has this name and one number; expected columns named as "
            f"its arguments, {', '.join(taken)}{', and last the target' if has_target else ''}"
        )
    if not is_whole and left:
        raise ValueError(f"column {left[0]!r} is none of the model's arguments, {', '.join(taken)}; leave it out")
    for name, like in zip(taken, model.example, strict=False):
        found.append(_typed(name, table.features if is_whole else table.features[:, places[name]], like))
    if has_target:
        found.append(_typed(names[-1], table.target, model.example[-1]))
    return tuple(found)


def _places(table: Table) -> dict[str, int]:
    """The place of each column, also by the name of an attribute with two categories."""
    found = {name: place for place, name in enumerate(table.names)}
    attributes = [name.partition("=")[0] for name in table.names]
    return found | {name: attributes.index(name) for name in attributes if attributes.count(name) == 1}


def _typed(name: str, values: np.ndarray, like: Any) -> np.ndarray:
    """Values in the type of the example's argument."""
    like = np.asarray(like)
    if np.ndim(like) != values.ndim - 1:
        raise ValueError(f"the model's argument {name!r} has {like.ndim} axes for one record; expected one number")
    kind = jax.dtypes.canonicalize_dtype(like.dtype)
    if kind.kind in "iu":  # the nearest whole number of the type; of none, 0
        ends = np.iinfo(kind)
        values = np.clip(np.rint(np.nan_to_num(np.asarray(values, np.float64), nan=0.0)), ends.min, ends.max)
    return np.asarray(values).astype(kind)


def at_least_zero(found: Range) -> Range:
    """The range with a last column of counts, which are at least 0."""
    return replace(found, low=found.low.at[-1].set(0), high=found.high.at[-1].max(1))


# --- Units of privacy ---------------------------------------------------------------------------------------------


def size_of(table: Any) -> int:
    """The number of records."""
    return len(table.target) if isinstance(table, Table) else int(np.shape(jax.tree.leaves(table)[0])[0])


def units_of(plan: Plan, table: Any, groups: Any) -> int:
    """The number of units of privacy, or with whole sites of records."""
    if plan.unit != "person":
        return size_of(table)
    return 0 if groups is None else len(np.unique(groups))


def contents_of(table: Any) -> np.ndarray:
    """Bytes for each record, from its own content alone."""
    if isinstance(table, Table):
        return table.contents()
    if size_of(table) == 0:
        return np.zeros((0, 1), np.uint8)
    leaves = [_canonical(leaf) for leaf in jax.tree.leaves(table)]
    rows = zip(*leaves, strict=True)
    marks = (hashlib.sha256(b"".join(part.tobytes() for part in row)).digest() for row in rows)
    return np.frombuffer(b"".join(marks), np.uint8).reshape(size_of(table), -1)


def contents_of_persons(persons: np.ndarray) -> np.ndarray:
    """Bytes for each record that name its person alone, by which all records of a person are on one side."""
    return digests_of_columns({"person": persons}, len(persons))


def _canonical(leaf: Any) -> np.ndarray:
    """An array's records as rows of doubles, whatever type NumPy inferred from all; with one zero and one NaN."""
    found = np.asarray(leaf).astype(np.float64).reshape(len(leaf), -1) + 0.0
    return np.ascontiguousarray(np.where(np.isnan(found), np.nan, found))


def _check_arguments(count: int, records: Any) -> None:
    """Refuse records that are not one array for each argument of a NumPyro model."""
    found = len(records) if isinstance(records, tuple | list) else 1
    if found != count:
        raise ValueError(
            f"the model takes {count} argument{'s' * (count != 1)} and records have {found}; expected a tuple with an "
            "array for each"
        )


def check_records(plan: Plan, table: Any) -> None:
    """Refuse records that the model does not allow; the message names no record."""
    if plan.is_table:
        assert plan.link is not None
        if not isinstance(table, Table):
            raise ValueError(f"records are a {type(table).__name__}; expected a Table for model={plan.model!r}")
        check_target(plan.link, table)
        return
    if hasattr(plan.model, "example") and not isinstance(table, Table):
        _check_arguments(len(plan.model.example), table)
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(records_for(plan.model, table))}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(f"records have lengths {sorted(map(str, lengths))}; expected arrays of one common length")
