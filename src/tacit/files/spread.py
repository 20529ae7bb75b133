"""One data set, spread over sites."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data import datasets, partition
from tacit.files.forms import DataEntry, site_names
from tacit.tables.digests import digests_of
from tacit.tables.facts import PAID, Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table


@dataclass(frozen=True)
class Spread:
    """The records of all sites, which of them are at each site, the sites' names, and a public test set."""

    table: Table
    parts: list[np.ndarray]
    names: list[str]
    test: Table | None = None

    def part(self, site: int) -> Table:
        """One site's records."""
        return self.table.rows(self.parts[site])


def spread_dataset(data: DataEntry) -> Spread:
    """A data set with its public test part."""
    found = {"adult": datasets.adult, "abalone": datasets.abalone, "heart": datasets.heart}[str(data.dataset)]()
    table = found.to_table()
    test = found.test_table()
    return Spread(table, *_spread(data, table, found.groups), test)


def spread_file(
    path: Path,
    data: DataEntry,
    target: str | None,
    model: str,
    columns: Sequence[str] | None,
    facts: Facts,
    person: str | None = None,
) -> Spread:
    """A file of records; one of its columns may say at which site each record is, and one of which person it is."""
    by = {} if data.by is None else {data.by: ()}
    frame = read_frame(path, listed_with(facts, target, person) | by, "file")
    groups, digests = None, digests_of(frame)
    if data.by is not None:
        if data.by not in frame.columns:
            raise ValueError(f"by={data.by!r} is not a column; expected one of the file's")
        if frame[data.by].isna().any():
            raise ValueError(f"by={data.by!r} has missing values; expected a site for each record")
        groups = frame[data.by].astype(str).to_numpy(object).astype(str)
        frame = frame.drop(columns=data.by)
    found = encoded_table(frame, target, model, columns, facts, person)
    table = replace(found, digests=digests)  # of whole rows of the file
    return Spread(table, *_spread(data, table, groups))


def _spread(data: DataEntry, table: Table, groups: Any) -> tuple[list[np.ndarray], list[str]]:
    """Which records are at each site, and the sites' names."""
    seed, sites = data.seed or 0, data.sites or 0
    if data.split == "group":
        parts, found = partition.by_group(groups)
        return parts, [str(name) for name in found]
    if data.split == "equal":
        parts = partition.equal(len(table.target), sites, seed)
    elif data.split == "dirichlet":
        assert data.concentration is not None
        parts = partition.dirichlet(table.target, sites, data.concentration, seed)
    else:
        try:
            parts = partition.rho_kappa(table.target, sites, seed=seed, **partition.SHARMA[data.split])
        except ValueError as error:  # its remedies name arguments that a study file does not have
            reason = str(error).rpartition(": ")[0]
            raise ValueError(f"split {data.split} does not fit these records ({reason}); take another split") from None
    return parts, site_names(data)


def listed_with(facts: Facts, target: str | None, person: str | None) -> dict[str, Sequence[str]]:
    """The columns of a file that are read as text: labels, and the id of a person."""
    ids: dict[str, Sequence[str]] = {} if person is None else {person: ()}
    return {**facts.listed(target), **ids}


def encoded_table(
    frame: Any, target: str | None, model: str, columns: Sequence[str] | None, facts: Facts, person: str | None = None
) -> Table:
    """A file's records, refused where a number has no public bounds. person: the column with each record's person."""
    table = Table.of_frame(frame, target, model, unit=person, columns=columns, facts=facts)
    ends = zip([table.names[j] for j in table.numbers], table.low[:-1], strict=True)
    bare = [name for name, low in ends if np.isnan(low) and name not in facts.bounds]
    if bare:
        raise ValueError(
            f'column {bare[0]!r} has no bounds; give [low, high], which are public, or "{PAID}" in [facts.bounds]'
        )
    return table
