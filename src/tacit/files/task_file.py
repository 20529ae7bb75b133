"""Tasks to learn a policy on: a TOML file of simulated tables and public files."""

import math
from pathlib import Path
from typing import Annotated

import numpy as np

from tacit.basics.schema import REQUIRED, OneOf, Root, Section, setting
from tacit.data.simulated import Simulated, Task, simulate
from tacit.files.refusals import read_form
from tacit.links import names
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table

LearnedModelName = Annotated[str, OneOf(lambda: names(learned=True))]


class TaskEntry(Section):
    """[[task]]: simulated tables of one shape, or a public file."""

    model: LearnedModelName = setting(REQUIRED, "the kind of regression")
    records: int | None = setting(None, "records of a simulated table", ge=10)
    numbers: int | None = setting(None, "columns that are measured", ge=0)
    categories: list[int] | None = setting(
        None, "how many categories each further column has", expected="how many each column has, as [3, 8]"
    )
    signal: float | None = setting(None, "the standard deviation of x·θ", gt=0, allow_inf_nan=False)
    balance: float | None = setting(None, "the share of ones, or the mean of a count", gt=0, allow_inf_nan=False)
    correlation: float | None = setting(None, "the share of a number's variance that is common", ge=0, lt=1)
    bounds: float | None = setting(None, "how far bounds reach, in standard deviations", ge=0, allow_inf_nan=False)
    skew: float | None = setting(None, "the share of numbers that are log-normal", ge=0, le=1)
    draws: int | None = setting(None, "how many tables; 3 by default", ge=1, le=100)
    file: str | None = setting(
        None, "public records", expected="the name of a CSV or Parquet file of public records", min_length=1
    )
    is_public: bool | None = setting(
        None, "whether the file's records are public", expected="true, if the records of the file are public"
    )
    target: str | None = setting(None, "the file's target", expected="the column to explain", min_length=1)
    facts: str | None = setting(
        None, "what is public", expected="the name of a TOML file with bounds, categories and classes", min_length=1
    )


class TasksFile(Root):
    """The tasks that a policy is learned on."""

    epsilons: list[float] | None = setting(
        None, "the ε to try", expected="a list of numbers above 0, as [0.3, 1, 3]", min_length=1
    )
    sites: list[int] | None = setting(
        None,
        "the numbers of sites to try; 1 by default",
        expected="a list of whole numbers of at least 1, as [1, 10]",
        min_length=1,
    )
    seeds: int | None = setting(None, "seeds of each", ge=1, le=100)
    task: list[TaskEntry] = setting(REQUIRED, "the tasks", expected="at least one [[task]]", min_length=1)


def read_tasks(path: Path) -> tuple[TasksFile, list[tuple[str, list[Simulated]]]]:
    """The tasks of a TOML file: for each entry its model, and tables of one shape with records to test on."""
    given = read_form(path, "tasks", TasksFile)
    groups = []
    for place, entry in enumerate(given.task):
        try:
            groups.append((entry.model, _tasks(path, entry, place)))
        except ValueError as error:
            raise ValueError(f"tasks={path}, task {place + 1}: {error}") from None
    for epsilon in given.epsilons or ():
        if not 0 < epsilon < math.inf:
            raise ValueError(f"tasks={path}: epsilons has {epsilon}; expected numbers above 0")
    for sites in given.sites or ():
        if sites < 1:
            raise ValueError(f"tasks={path}: sites has {sites}; expected whole numbers of at least 1")
    return given, groups


def _tasks(path: Path, entry: TaskEntry, place: int) -> list[Simulated]:
    shape = ("records", "numbers", "categories", "signal", "balance", "correlation", "bounds", "skew", "draws")
    given = {name: getattr(entry, name) for name in shape if getattr(entry, name) is not None}
    if entry.file is None:
        if (entry.target, entry.facts, entry.is_public) != (None, None, None) or entry.records is None:
            raise ValueError("expected records (and numbers, ...) to simulate, or file and target of public records")
        draws = given.pop("draws", 3)
        given["categories"] = tuple(given.get("categories", ()))
        task = Task(entry.model, **{"numbers": 0, **given})
        return [simulate(task, 1000 * place + draw) for draw in range(draws)]
    if given or entry.target is None:
        raise ValueError("file needs target, and takes neither records nor other settings of simulated tables")
    if not entry.is_public:
        raise ValueError(
            f"file={entry.file} without is_public = true; a policy tells of what it was learned on, so take public ones"
        )
    facts = Facts() if entry.facts is None else Facts.read(path.parent / entry.facts, "facts")
    frame = read_frame(path.parent / entry.file, facts.listed(entry.target))
    table = Table.of_frame(frame, entry.target, entry.model, facts=facts)
    is_test = np.arange(len(table.target)) % 5 == 4  # every fifth
    if not is_test.any():
        raise ValueError(f"file={entry.file} has {len(table.target)} records; expected at least 5")
    tests = table.features[is_test], np.asarray(table.target, float)[is_test]
    train = table.rows(~is_test)
    return [Simulated(train, *tests, np.full(len(table.names) + 1, np.nan))]
