"""Files that users write, read with errors that name the place in the file and the remedy.

A study file says all public settings of a study and where its records are. Everything in it is checked, alone and
against the rest, before a record is read or a budget is touched. Every refusal is one sentence.
"""

import csv
import difflib
import json
import math
import os
import re
import reprlib
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.privacy.events import Event, Gaussian, PoissonSampled, Repeated

if TYPE_CHECKING:  # they load JAX and pandas
    import numpy as np

    from tacit.data.simulated import Simulated
    from tacit.data.tables import Facts, Table
    from tacit.study import Member, Plan

SCHEDULE_COLUMNS = ("noise_multiplier", "sampling_rate", "steps")
MOST_LEVELS = 32  # distinct ones: heterogeneous accounting stays cheap


def read_schedule(path: Path) -> list[Event]:
    """The levels of a CSV file with the columns noise_multiplier, sampling_rate and steps, in order.

    A ValueError names the file, the line and what is expected.
    """
    expected = f"a CSV file with the columns {', '.join(SCHEDULE_COLUMNS)}"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not readable text"
        raise ValueError(f"schedule={path}: {reason}; expected {expected}") from None
    if not rows:
        raise ValueError(f"schedule={path} has no levels; expected {expected}")
    levels: list[Event] = []
    for line, row in rows:
        missing = [name for name in SCHEDULE_COLUMNS if not (row.get(name) or "").strip()]
        if missing:
            raise ValueError(f"schedule={path}, line {line}: no value for {', '.join(missing)}; expected {expected}")
        try:
            noise, rate, steps = (float(row[name]) for name in SCHEDULE_COLUMNS)
        except ValueError:
            values = ", ".join(repr(row[name]) for name in SCHEDULE_COLUMNS)
            raise ValueError(f"schedule={path}, line {line}: {values}; expected three numbers") from None
        try:
            mechanism: Event = Gaussian(noise)
            if rate != 1:
                mechanism = PoissonSampled(rate, mechanism)
            count = int(steps) if math.isfinite(steps) and steps == int(steps) else steps
            levels.append(Repeated(mechanism, count))  # type: ignore[arg-type]  # a fraction is refused there
        except ValueError as error:
            raise ValueError(f"schedule={path}, line {line}: {error}") from None
    distinct = len({level.event for level in levels if isinstance(level, Repeated)})
    if distinct > MOST_LEVELS:
        raise ValueError(f"schedule={path} has {distinct} different levels; expected at most {MOST_LEVELS}")
    return levels


# --- What a study file may say -----------------------------------------------------------------------------------

MOST_SITES = 10_000  # far above what one process is asked for; a slip of the finger is refused
LONGEST_NAME = 100  # characters: of a study or a site, with room for what is added in messages
SHARMA = ("A", "B", "C", "D")


def _number(expected: str, **limits: Any) -> Any:
    """A finite number that may be left out."""
    return Field(None, allow_inf_nan=False, description=f"a number {expected}", **limits)


def _whole(least: int, most: int | None = None) -> Any:
    words = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    return Field(None, ge=least, le=most, description=words)


def _text(expected: str, **limits: Any) -> Any:
    return Field(None, min_length=1, description=expected, **limits)


def _one_of(*choices: str) -> Any:
    return Field(None, description="one of " + ", ".join(choices))


def _epsilon() -> Any:
    return Field(None, gt=0, description="a number above 0, or inf for no privacy")


class _Section(BaseModel):
    """Part of a file: no unknown names, no text where a number belongs. `description` is what a refusal expects."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class VISettings(_Section):
    """[vi]: what an update is, with method = "vi"."""

    steps: int | None = _whole(1)
    clip: float | None = _number("above 0", gt=0)
    noise_multiplier: float | None = _number("above 0", gt=0)
    sampling_rate: float | None = _number("above 0 and at most 1", gt=0, le=1)
    learning_rate: float | None = _number("above 0", gt=0)
    damping: float | None = _number("above 0 and at most 1", gt=0, le=1)
    is_adaptive: bool | None = Field(None, description="true or false: whether the clip follows the gradients")


class DataEntry(_Section):
    """[data]: one public or made-up data set, spread over sites."""

    dataset: Literal["adult", "abalone", "heart"] | None = _one_of("adult", "abalone", "heart")
    file: str | None = _text("the name of a CSV or Parquet file")
    split: Literal["A", "B", "C", "D", "equal", "dirichlet", "group"] = Field(
        description="one of A, B, C, D, equal, dirichlet, group"
    )
    sites: int | None = _whole(1, MOST_SITES)
    seed: int | None = _whole(0)
    concentration: float | None = _number("above 0", gt=0)
    by: str | None = _text("the column that says at which site a record is")


class SiteEntry(_Section):
    """[[site]]: a site with its own file, and a budget where it differs from the study's."""

    name: str = Field(min_length=1, max_length=LONGEST_NAME, description="a name for the site")
    file: str = Field(min_length=1, description="the name of a CSV or Parquet file")
    epsilon: float | None = _epsilon()
    delta: float | None = _number("above 0 and below 1", gt=0, lt=1)
    ledger: str | None = _text("the path of a ledger that exists")


class TestEntry(_Section):
    """[test]: public records to score posteriors on."""

    __test__ = False  # not pytest's
    file: str = Field(min_length=1, description="the name of a CSV or Parquet file of public records")


class Settings(_Section):
    """All that a study file may say. What is left out is by the default of `tacit.study.Plan`."""

    name: str | None = _text(f"a name of at most {LONGEST_NAME} characters", max_length=LONGEST_NAME)
    model: Literal["logistic", "probit", "linear"] = Field(description="one of logistic, probit, linear")
    rounds: int | None = _whole(1)
    schedule: Literal["synchronous", "sequential", "asynchronous"] | None = _one_of(
        "synchronous", "sequential", "asynchronous"
    )
    dropout: float | None = _number("of at least 0 and below 1", ge=0, lt=1)
    straggling: float | None = _number("from 0 to 1", ge=0, le=1)
    delay: int | None = _whole(0)
    schedule_seed: int | None = _whole(0)
    epsilon: float | None = _epsilon()
    delta: float | None = _number("above 0 and below 1", gt=0, lt=1)
    adjacency: Literal["add-remove", "replace-one"] | None = _one_of("add-remove", "replace-one")
    prior_deviation: float | None = _number("above 0", gt=0)
    noise_scale: float | None = _number("above 0", gt=0)
    evaluation: float | None = _number("of at least 0 and below 0.75, a share of the budget", ge=0, lt=0.75)
    method: Literal["natural", "vi", "ep", "sep"] | None = _one_of("natural", "vi", "ep", "sep")
    unit: Literal["record", "site"] | None = _one_of("record", "site")
    noise: Literal["tied", "central", "per-site"] | None = _one_of("tied", "central", "per-site")
    reset: int | None = _whole(1)
    participation: float | None = _number("above 0 and at most 1", gt=0, le=1)
    ledger: str | None = _text("the path of a ledger that exists, of a trusted coordinator")
    target: str | None = _text("the name of a column")
    columns: list[str] | None = Field(None, min_length=1, description='a list of columns, as ["age", "sex"]')
    facts: str | dict[str, Any] | None = Field(
        None, description="a table [facts] with bounds, categories and classes, or the name of a TOML file with them"
    )
    vi: VISettings | None = Field(None, description="a table [vi] of settings")
    data: DataEntry | None = Field(None, description="a table [data]")
    site: list[SiteEntry] | None = Field(
        None, min_length=1, description="tables [[site]], in two brackets, one for each site"
    )
    test: TestEntry | None = Field(None, description="a table [test]")


def _field(section: type[BaseModel], place: Sequence[int | str]) -> tuple[list[str], Any]:
    """The names that lead to a place in the file, and the field there; further parts are not names of fields."""
    names, found = [], None
    for part in place:
        inner = _sections(found)
        if isinstance(part, int) and names:
            names[-1] = f"{names[-1]} {part + 1}"  # [[site]] is counted from 1
            continue
        section = inner or section
        if part not in section.model_fields or (found is not None and inner is None):
            break
        names.append(str(part))
        found = section.model_fields[str(part)]
    return names, found


def _sections(field: Any) -> type[BaseModel] | None:
    """The kind of section that a field holds, if it holds any."""
    waiting = [] if field is None else [field.annotation]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        waiting += getattr(kind, "__args__", ())
    return None


def _in_words(error: Any, form: type[BaseModel]) -> str:
    """One of pydantic's errors as field, value and what is expected. form: the section that is the whole file."""
    names, field = _field(form, error["loc"])
    if error["type"] == "extra_forbidden":
        unknown, section = str(error["loc"][-1]), (_sections(field) or form)
        near = difflib.get_close_matches(unknown, section.model_fields, n=1)
        known = near[0] if near else f"one of {', '.join(section.model_fields)}"
        if section is not form and unknown in form.model_fields:
            known = "it above all tables"
        return f"{': '.join([*names, repr(unknown)])} is not known there; expected {known}"
    expected = f"expected {field.description}"
    if error["type"] == "missing":
        return f"there is no {' of '.join(reversed(names))}; {expected}"
    value = error["input"]
    return f"{': '.join(names)}={value if isinstance(value, float) else _shown(value)}; {expected}"


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no integer of 5,000 digits in decimal
        return f"0x{value:x}"[:20] + "..."


# --- What must hold between its parts ----------------------------------------------------------------------------


def _clashes(given: Settings) -> Iterator[str]:
    """What does not fit together, each in words that end with a remedy."""
    if (given.data is None) == (given.site is None):
        both = "both [data] and [[site]]" if given.data else "neither [data] nor [[site]]"
        yield f"{both}; expected [data] for one data set spread over sites, or a [[site]] for each site's file"
    if given.name is not None and not given.name.isprintable():
        yield f"name={given.name!r}; expected printable characters on one line"
    yield from _plan_clashes(given)
    yield from _unit_clashes(given)
    yield from _budget_clashes(given)
    yield from _data_clashes(given)
    yield from _site_clashes(given.site or [])
    has_dataset = given.data is not None and given.data.dataset is not None
    for name in ("target", "columns", "facts", "test"):
        if has_dataset and getattr(given, name) is not None:
            yield f"{name} with a dataset of [data]; expected it for files only, so leave it out"
    if not has_dataset and given.target is None:
        yield "there is no target; expected the name of the column to explain, above all tables"


def _plan_clashes(given: Settings) -> Iterator[str]:
    schedule, method = given.schedule or "synchronous", given.method or "natural"
    for name in ("dropout", "straggling"):
        if getattr(given, name) and schedule != "synchronous":
            yield f'{name} with schedule="{schedule}"; expected it for a synchronous schedule only, so leave it out'
    if given.delay and schedule != "asynchronous":
        yield f'delay with schedule="{schedule}"; expected it for an asynchronous schedule only, so leave it out'
    if given.noise_scale is not None and given.model != "linear":
        yield f'noise_scale with model="{given.model}"; expected it for a linear model only, so leave it out'
    if given.vi is not None and method != "vi":
        yield f'[vi] with method="{method}"; expected method = "vi", or no [vi]'
    if given.evaluation and (given.model == "linear" or method == "vi"):
        yield f'evaluation={given.evaluation}; expected it with two classes and not with "vi", so leave it out'


def _unit_clashes(given: Settings) -> Iterator[str]:
    unit, noise = given.unit or "record", given.noise or "tied"
    if given.ledger is not None and (unit == "record" or noise == "per-site"):
        yield "ledger above all tables is a trusted coordinator's; expected it in each [[site]]"
    for name in ("noise", "reset", "participation"):
        if getattr(given, name) is not None and unit == "record":
            yield f'{name} with unit="record"; expected it with unit = "site", or not at all'
    if unit == "record":
        return
    if given.reset is not None and noise != "central":
        yield f'reset with noise="{noise}"; expected it with noise = "central" only, so leave it out'
    if given.participation is not None and noise != "tied":
        yield f'participation with noise="{noise}"; expected it with noise = "tied" only, so leave it out'
    if given.method not in (None, "natural"):
        yield f'method="{given.method}" with unit="site"; expected method = "natural", so leave it out'
    if noise == "per-site":
        return
    if (given.schedule or "synchronous") != "synchronous" or given.dropout or given.straggling:
        yield f'noise="{noise}" asks all sites at once; expected a synchronous schedule without dropout and straggling'
    for entry in given.site or []:
        for name in ("epsilon", "delta", "ledger"):
            if getattr(entry, name) is not None:
                yield (
                    f'site {entry.name}: {name} with noise="{noise}", which has one budget and one ledger for all '
                    "sites; leave it out"
                )


def _budget_clashes(given: Settings) -> Iterator[str]:
    for name in ("epsilon", "delta"):
        lacking = [entry.name for entry in given.site or [] if getattr(entry, name) is None]
        if getattr(given, name) is None and (given.site is None or lacking):
            whose = f" of site {lacking[0]}" if lacking else ""
            yield f"there is no {name}{whose}; expected it above all tables, for every site, or in each [[site]]"
    budgets = {given.epsilon if entry.epsilon is None else entry.epsilon for entry in given.site or []}
    if math.inf in budgets and len(budgets) > 1:
        yield "epsilon=inf at some sites and a budget at others; expected a budget for all, or for none"
    for entry in given.site or []:
        if entry.ledger is not None and math.inf in budgets:
            yield f"site {entry.name}: ledger with epsilon=inf, which no ledger can pay; leave it out"


def _data_clashes(given: Settings) -> Iterator[str]:
    data = given.data
    if data is None:
        return
    if (data.dataset is None) == (data.file is None):
        both = "both dataset and file" if data.file else "neither dataset nor file"
        yield f"data: {both}; expected one of the two"
    if data.dataset is not None and given.model == "linear":
        yield f'data: dataset="{data.dataset}" has two classes; expected model = "logistic" or "probit"'
    is_group, spread = data.split == "group", f'data: split="{data.split}"'
    if is_group == (data.sites is not None):
        remedy = "the groups say how many there are, so leave it out" if is_group else "expected how many there are"
        yield f"{spread} {'with' if is_group else 'without'} sites; {remedy}"
    if (data.split == "dirichlet") != (data.concentration is not None):
        words = "without concentration; expected one above 0" if data.concentration is None else "with concentration"
        yield f"{spread} {words}{'' if data.concentration is None else '; expected it for dirichlet only'}"
    if data.by is not None and not (is_group and data.file):
        yield f'{spread} with by; expected it for a file and split = "group" only, so leave it out'
    if is_group and data.file is not None and data.by is None:
        yield f"{spread} without by; expected the column that says at which site a record is"
    if is_group and data.dataset in ("adult", "abalone"):
        yield f'{spread} of {data.dataset}, which has no groups; expected another split, or dataset = "heart"'
    if given.model == "linear" and data.split in (*SHARMA, "dirichlet"):
        yield f"{spread} goes by two classes; expected equal or group for a linear model"
    if data.split in SHARMA and data.sites is not None and data.sites % 2:
        yield f"data: sites={data.sites}; expected an even number for split {data.split}, half of them small"
    if data.by is not None and data.by == given.target:
        yield f"data: by={data.by!r} is the target; expected another column"


def _site_clashes(sites: Sequence[SiteEntry]) -> Iterator[str]:
    if not sites:
        return
    for what, remedy in (
        ("name", "names that differ"),
        ("file", "each site's own records"),
        ("ledger", "each site's own ledger"),
    ):
        given = [getattr(entry, what) for entry in sites if getattr(entry, what) is not None]
        # Two spellings of one file are one: a record at two sites is protected by neither's budget alone.
        plain = given if what == "name" else [os.path.normpath(path) for path in given]
        twice = [value for value in plain if plain.count(value) > 1]
        if twice:
            yield f"two sites have {what}={twice[0]!r}; expected {remedy}"
    for entry in sites:
        is_folder = entry.name not in (".", "..") and not any(letter in entry.name for letter in "/\\")
        if not (is_folder and entry.name.isprintable()):
            yield f"site {entry.name!r}; expected a name that can name a folder"


# --- A study that was read ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """A study file that was read and found sound. `settings` is what it says; `plan` and `facts` are made of it."""

    path: Path
    settings: Settings
    plan: "Plan"
    facts: "Facts"

    @property
    def data_words(self) -> str:
        """Where the records are from, for a reader of the result."""
        data = self.settings.data
        if data is None:
            return f"{len(self.settings.site or [])} sites with files of their own"
        split = (
            f"distribution {data.split} of Sharma et al. (2019)" if data.split in SHARMA else f"split {data.split!r}"
        )
        return f"{data.dataset or data.file}, one data set, spread over simulated sites by {split}"

    def gather(self) -> "tuple[list[Member], Table | None]":
        """The sites with their records, and the public test set, if there is one. Reads; spends nothing."""
        self._check_ledgers()
        given = self.settings
        if given.data is None:
            members = self._own_files(given.site or [])
        elif given.data.dataset is not None:
            return self._dataset(given.data)
        else:
            members = self._one_file(given.data)
        return members, self._test(members)

    def budgets(self) -> list[tuple[float, float]]:
        """(ε, δ) of each site that the file names, or of one that stands for all; nothing is read."""
        given = self.settings
        pairs = [(entry.epsilon, entry.delta) for entry in given.site or []] or [(None, None)]
        found = [(given.epsilon if e is None else e, given.delta if d is None else d) for e, d in pairs]
        return [(e, d) for e, d in found if e is not None and d is not None]

    def claim(self, out: Path) -> None:
        """Note in the folder which study it is for, or refuse one that holds another. Call it before any spending.

        The engine knows a study by its plan and budgets; of targets, classes and files it knows nothing.
        """
        place, mine = out / "settings.json", self._noted()
        try:
            if place.exists():
                theirs = json.loads(place.read_text(encoding="utf-8"))
                for name in dict.fromkeys([*theirs, *mine]):
                    if theirs.get(name) != mine.get(name):
                        found, given = (reprlib.repr(noted.get(name)) for noted in (theirs, mine))
                        raise ValueError(
                            f"out={out} holds a study with another {name}, {found} and not {given}, whose budget is "
                            "spent; take a new folder"
                        )
            elif (out / "study.json").exists():
                raise ValueError(f"out={out} holds a study that was not made from a study file; take a new folder")
            else:
                place.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None

    def _noted(self) -> dict[str, Any]:
        """What makes this study this one, as JSON gives it back. The test set is left out: it costs nothing."""
        given = self.settings.model_dump(include={"epsilon", "delta", "target", "columns", "data", "site", "ledger"})
        whole = {**asdict(self.plan), **given, "facts": asdict(self.facts)}
        return json.loads(json.dumps(whole), parse_constant=str)  # JSON has no infinity

    def _place(self, name: str) -> Path:
        return self.path.parent / name

    def _check_ledgers(self) -> None:
        """A ledger that cannot be charged for this study is refused before any other is charged."""
        from tacit.privacy.ledger import Ledger

        entries: list[tuple[str, str | None, float | None]] = [("", self.settings.ledger, None)]
        entries += [(f"site {entry.name}", entry.ledger, entry.delta) for entry in self.settings.site or []]
        for place, path, own in entries:
            if path is None:
                continue
            with _at(self.path, place):
                ledger = Ledger.open(self._place(path))
                delta = self.settings.delta if own is None else own
                if ledger.delta != delta:
                    raise ValueError(f"delta={delta}, and {ledger.delta} in its ledger; expected the ledger's")
                if (ledger.unit, ledger.adjacency) != (self.plan.unit, self.plan.adjacency):
                    raise ValueError(
                        f"its ledger is of one {ledger.unit} ({ledger.adjacency}); expected one of a {self.plan.unit} "
                        f"({self.plan.adjacency}), as the study's"
                    )

    def _members(self, table: "Table", parts: "Sequence[np.ndarray]", names: Sequence[str]) -> "list[Member]":
        """Sites that share a table, each with the records at its places."""
        from tacit.study import Member

        epsilon, delta = self.settings.epsilon, self.settings.delta
        assert epsilon is not None
        assert delta is not None
        ledger = None if self.settings.ledger is None else self._place(self.settings.ledger)
        tables = [replace(table, features=table.features[part], target=table.target[part]) for part in parts]
        return [Member(name, own, epsilon, delta, ledger) for name, own in zip(names, tables, strict=True)]

    def _dataset(self, data: DataEntry) -> "tuple[list[Member], Table]":
        from tacit.data import datasets
        from tacit.data.tables import Table

        with _at(self.path, "data"):
            found = {"adult": datasets.adult, "abalone": datasets.abalone, "heart": datasets.heart}[str(data.dataset)]()
            table = Table.of_dataset(found)
            parts, names = _spread(data, table, found.groups)
        test = replace(table, features=found.test_features[:, 1:], target=found.test_target)
        return self._members(table, parts, names), test

    def _one_file(self, data: DataEntry) -> "list[Member]":
        from tacit.data.tables import read_frame

        with _at(self.path, "data"):
            by = {} if data.by is None else {data.by: ()}
            frame = read_frame(self._place(str(data.file)), self.facts.listed(self.settings.target) | by, "file")
            groups = None
            if data.by is not None:
                if data.by not in frame.columns:
                    raise ValueError(f"by={data.by!r} is not a column; expected one of the file's")
                if frame[data.by].isna().any():
                    raise ValueError(f"by={data.by!r} has missing values; expected a site for each record")
                groups = frame[data.by].astype(str).to_numpy(object).astype(str)
                frame = frame.drop(columns=data.by)
            table = self._table(frame, self.settings.columns)
            parts, names = _spread(data, table, groups)
        return self._members(table, parts, names)

    def _own_files(self, entries: Sequence[SiteEntry]) -> "list[Member]":
        from tacit.data.tables import read_frame
        from tacit.study import Member

        members, columns, given = [], self.settings.columns, self.settings
        for entry in entries:
            with _at(self.path, f"site {entry.name}"):
                frame = read_frame(self._place(entry.file), self.facts.listed(given.target), "file")
                names = list(map(str, frame.columns))
                if columns is None:  # the order of the first file is everybody's
                    columns = [name for name in names if name != given.target]
                more = [name for name in names if name not in (*columns, given.target)]
                if more and given.columns is None:
                    raise ValueError(
                        f"column {more[0]!r} is not in the file of {entries[0].name}; expected the same ones, or a "
                        "list of columns above all tables"
                    )
                table = self._table(frame, columns)
            epsilon = given.epsilon if entry.epsilon is None else entry.epsilon
            delta = given.delta if entry.delta is None else entry.delta
            assert epsilon is not None
            assert delta is not None
            own = entry.ledger or given.ledger
            ledger = None if own is None else self._place(own)
            members.append(Member(entry.name, table, epsilon, delta, ledger))
        return members

    def _test(self, members: "Sequence[Member]") -> "Table | None":
        """The public test set, encoded as the sites' records are."""
        from tacit.data.tables import read_frame

        if self.settings.test is None:
            return None
        with _at(self.path, "test"):
            schema = members[0].table.schema
            frame = read_frame(self._place(self.settings.test.file), self.facts.listed(self.settings.target), "file")
            test = self._table(frame, [kind["name"] for kind in schema["columns"]])
            if test.names != members[0].table.names or test.classes != members[0].table.classes:
                raise ValueError("its columns hold other kinds of values than the sites'; expected the same kinds")
        return test

    def _table(self, frame: Any, columns: Sequence[str] | None) -> "Table":
        from tacit.data.tables import Table

        assert self.settings.target is not None
        table = Table.of_frame(frame, self.settings.target, self.settings.model, columns=columns, facts=self.facts)
        ends = zip([table.names[j] for j in table.numbers], table.low[:-1], strict=True)
        bare = [name for name, low in ends if math.isnan(low)]
        if bare:
            raise ValueError(f"column {bare[0]!r} has no bounds; give [low, high] in [facts.bounds], which are public")
        return table


S = TypeVar("S", bound=_Section)


def _validated(path: Path, what: str, form: type[S]) -> S:
    """A TOML file in the form of a section. what: its name in a refusal."""
    from tacit.data.tables import toml_fault

    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{what}={path}: {error.strerror}; expected a TOML file") from None
    except (ValueError, RecursionError) as error:  # ValueError: also text that is none, and integers of 5,000 digits
        raise ValueError(f"{what}={path} cannot be read ({toml_fault(error)}); expected a TOML file") from None
    try:
        return form.model_validate(plain)
    except ValidationError as errors:
        # A name in the wrong place first: it is often the one that is missing elsewhere.
        first = min(errors.errors(), key=lambda error: error["type"] != "extra_forbidden")
        raise ValueError(f"{what}={path}: {_in_words(first, form)}") from None


def read_study(path: Path) -> Study:
    """The study of a TOML file, checked. A ValueError names the file, the field and a remedy."""
    from tacit.data.tables import Facts
    from tacit.study import Plan

    given = _validated(path, "study", Settings)
    for words in _clashes(given):
        raise ValueError(f"study={path}: {words}")
    with _at(path):
        facts = Facts()
        if isinstance(given.facts, str):
            facts = Facts.read(path.parent / given.facts, "facts")
        elif given.facts is not None:
            facts = Facts.from_dict(given.facts, "facts")
        _check_facts(given, facts)
        settings = ("rounds", "schedule", "dropout", "straggling", "delay", "adjacency", "prior_deviation")
        settings += ("noise_scale", "evaluation", "method", "unit", "noise", "reset", "participation")
        chosen: dict[str, Any] = {name: getattr(given, name) for name in settings} | {"seed": given.schedule_seed}
        chosen |= {} if given.vi is None else given.vi.model_dump()
        name = given.name or path.stem[:LONGEST_NAME]
        plan = Plan(given.model, name, **{key: value for key, value in chosen.items() if value is not None})
    return Study(path, given, plan, facts)


def _check_facts(given: Settings, facts: "Facts") -> None:
    """What of the facts can be judged without a file."""
    if given.target is None:
        return
    if given.model == "linear":
        if facts.classes is not None:
            raise ValueError('facts: classes with model="linear", whose target is a number; leave them out')
        if given.target not in facts.bounds:
            raise ValueError(
                f"facts: no bounds of the target {given.target!r}; give [low, high] in [facts.bounds], which are public"
            )
    elif facts.classes is not None and len(facts.classes) != 2:
        raise ValueError(f"facts: {len(facts.classes)} classes; expected 2 for a {given.model} model")


def _spread(data: DataEntry, table: "Table", groups: Any) -> "tuple[list[np.ndarray], list[str]]":
    """The places of each site's records, and the sites' names."""
    from tacit.data import partition

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
        except ValueError as error:  # its remedies are arguments that a study file has not
            reason = str(error).rpartition(": ")[0]
            raise ValueError(f"split {data.split} does not fit these records ({reason}); take another split") from None
    return parts, [f"site-{m + 1:0{len(str(sites))}d}" for m in range(sites)]


# What a table's refusal calls an option of `tacit fit` is a field of the study file here.
_OPTIONS = re.compile(r"--(categories|classes|columns)(?: \"[^\"]*\"| \w+(?:,\w+)+)?")
_FIELDS = {"categories": "[facts.categories]", "classes": "facts.classes", "columns": "columns"}


@contextmanager
def _at(path: Path, place: str = "") -> Iterator[None]:
    """Refusals inside begin with the file and the place in it."""
    try:
        yield
    except ValueError as error:
        words = _OPTIONS.sub(lambda found: _FIELDS[found[1]], str(error)).removesuffix(".")
        raise ValueError(f"study={path}{', ' if place else ''}{place}: {words}") from None


# --- Tasks to learn a policy on ----------------------------------------------------------------------------------

KINDS = ("logistic", "linear", "probit", "poisson")


class TaskEntry(_Section):
    """[[task]]: simulated tables of one shape, or a public file."""

    model: Literal["logistic", "linear", "probit", "poisson"] = Field(description="one of " + ", ".join(KINDS))
    records: int | None = _whole(10)
    numbers: int | None = _whole(0)
    categories: list[int] | None = Field(None, description="how many each column has, as [3, 8]")
    signal: float | None = _number("above 0", gt=0)
    balance: float | None = _number("above 0", gt=0)
    correlation: float | None = _number("of at least 0 and below 1", ge=0, lt=1)
    bounds: float | None = _number("of at least 0", ge=0)
    skew: float | None = _number("from 0 to 1", ge=0, le=1)
    draws: int | None = _whole(1, 100)
    file: str | None = _text("the name of a CSV or Parquet file of public records")
    is_public: bool | None = Field(None, description="true, if the records of the file are public")
    target: str | None = _text("the column to explain")
    facts: str | None = _text("the name of a TOML file with bounds, categories and classes")


class TasksFile(_Section):
    """What a policy is learned on."""

    epsilons: list[float] | None = Field(None, min_length=1, description="a list of numbers above 0, as [0.3, 1, 3]")
    seeds: int | None = _whole(1, 100)
    task: list[TaskEntry] = Field(min_length=1, description="at least one [[task]]")


def read_tasks(path: Path) -> "tuple[TasksFile, list[tuple[str, list[Simulated]]]]":
    """The tasks of a TOML file: for each entry its model, and tables of one shape with records to test on."""
    given = _validated(path, "tasks", TasksFile)
    groups = []
    for place, entry in enumerate(given.task):
        try:
            groups.append((entry.model, _tasks(path, entry, place)))
        except ValueError as error:
            raise ValueError(f"tasks={path}, task {place + 1}: {error}") from None
    for epsilon in given.epsilons or ():
        if not 0 < epsilon < math.inf:
            raise ValueError(f"tasks={path}: epsilons has {epsilon}; expected numbers above 0")
    return given, groups


def _tasks(path: Path, entry: TaskEntry, place: int) -> "list[Simulated]":
    import numpy as np

    from tacit.data.simulated import Simulated, Task, simulate
    from tacit.data.tables import Facts, Table, read_frame

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
    train = replace(table, features=table.features[~is_test], target=table.target[~is_test])
    return [Simulated(train, *tests, np.full(len(table.names) + 1, np.nan))]
