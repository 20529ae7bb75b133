"""Files that users write, read with errors that name the place in the file and the remedy.

A study file says all public settings of a study and where its records are. A site file is a site's own: where its
records are, what is public about them, and what it lets studies do. Everything in them is checked, alone and against
the rest, before a record is read or a budget is touched. Every refusal is one sentence.
"""

import csv
import difflib
import hashlib
import json
import math
import os
import re
import reprlib
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

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
MOST_PLACES = 10**9  # for records of a site; likewise
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


def _places() -> Any:
    words = "a whole number of at least 1: the public number of places for records, at least as many as the site has"
    return Field(None, ge=1, le=MOST_PLACES, description=words)


def _facts() -> Any:
    words = "a table [facts] with bounds, categories and classes, or the name of a TOML file with them"
    return Field(None, description=words)


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
    """[[site]]: a site with its own file, and a budget where it differs from the study's.

    The file is for a simulation, the places are for a network, over which the file's name is the site's own business.
    """

    name: str = Field(min_length=1, max_length=LONGEST_NAME, description="a name for the site")
    file: str | None = _text("the name of a CSV or Parquet file")
    places: int | None = _places()
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
    secure_sum: bool | None = Field(None, description="true or false")
    absent: int | None = _whole(0)
    pooling: int | None = _whole(0)
    allow_large_delta: bool | None = Field(None, description="true or false: whether delta may be 1 / slots or more")
    ledger: str | None = _text("the path of a ledger that exists, of a trusted coordinator")
    target: str | None = _text("the name of a column")
    columns: list[str] | None = Field(None, min_length=1, description='a list of columns, as ["age", "sex"]')
    facts: str | dict[str, Any] | None = _facts()
    vi: VISettings | None = Field(None, description="a table [vi] of settings")
    data: DataEntry | None = Field(None, description="a table [data]")
    site: list[SiteEntry] | None = Field(
        None, min_length=1, description="tables [[site]], in two brackets, one for each site"
    )
    test: TestEntry | None = Field(None, description="a table [test]")


# --- What a site file may say ------------------------------------------------------------------------------------

FILE, TABLE = "a file", "a table"  # the two forms of `data`; pydantic has them among the names of a place
LEAST_NOISE = 0.5  # a single release with this noise costs ε = 10 at δ = 1e-5
Link = Literal["logistic", "probit", "linear"]
Method = Literal["natural", "vi", "ep", "sep"]
Unit = Literal["record", "site"]


def _list_of(*choices: str, default: Any = ...) -> Any:
    return Field(default, min_length=1, description="a list of some of " + ", ".join(choices))


class Limits(_Section):
    """[limits]: what a site lets studies do. A coordinator proposes, and can change none of it."""

    epsilon: float = Field(
        gt=0, allow_inf_nan=False, description="a number above 0, the budget of the records over all studies"
    )
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False, description="a number above 0 and below 1")
    least_noise: float = Field(
        LEAST_NOISE, gt=0, allow_inf_nan=False, description="a number above 0, the least noise multiplier of a release"
    )
    models: list[Link] = _list_of("logistic", "probit", "linear")
    methods: list[Method] = _list_of("natural", "vi", "ep", "sep", default=["natural", "vi", "ep", "sep"])
    unit: Unit = Field("record", description="one of record, site: whose the budget is")
    adjacency: Literal["add-remove", "replace-one"] = Field("add-remove", description="one of add-remove, replace-one")
    rule: Literal["gaussian", "renyi"] | None = _one_of("gaussian", "renyi")
    studies: list[str] | None = Field(None, min_length=1, description='a list of names of studies, as ["heart"]')
    most_rounds: int = Field(1000, ge=1, description="a whole number of at least 1: the most rounds of a study")
    most_studies: int = Field(100, ge=1, description="a whole number of at least 1: the most studies in all")
    allow_large_delta: bool = Field(
        default=False, description="true or false: whether delta may be 1 / places or more, in studies that say so"
    )
    pooling: int = Field(1, ge=0, description="a whole number of sites that secure sums must stand, if they pool")

    @property
    def own_rule(self) -> str:
        """By which a ledger counts: proved whatever is chosen after seeing results. Samples need the looser one.

        Under replace-one neither proved rule prices samples: a site whose studies all sample has `pld`, which covers
        only what was fixed beforehand, and any other one refuses them.
        """
        if self.rule is not None or "vi" not in self.methods:
            return self.rule or "gaussian"
        if self.adjacency == "add-remove":
            return "renyi"
        return "pld" if set(self.methods) == {"vi"} else "gaussian"


class Shares(_Section):
    """[shares]: what the coordinator is told beside private updates."""

    spent: bool = Field(default=True, description="true or false: whether the coordinator is told what was spent")
    evaluation: bool = Field(
        default=True, description="true or false: whether private scores on held-out records are made"
    )


class SiteSettings(_Section):
    """All that a site file may say."""

    name: str = Field(min_length=1, max_length=LONGEST_NAME, description="the site's name, as in its certificate")
    kit: str = Field("kit", min_length=1, description="the folder of the start-up kit")
    state: str = Field("state", min_length=1, description="the folder of the ledger, the answers and the audit log")
    data: Annotated[
        Annotated[str, Field(min_length=1), Tag(FILE)] | Annotated[DataEntry, Tag(TABLE)],
        Discriminator(lambda given: TABLE if isinstance(given, dict | DataEntry) else FILE),
    ] = Field(description="the name of a CSV or Parquet file, or a table [data] to try a study out on public records")
    target: str | None = _text("the name of a column")
    columns: list[str] | None = Field(
        None, min_length=1, description='a list of the columns that studies may use, as ["age", "sex"]'
    )
    places: int | None = _places()
    insecure_seed: int | None = _whole(0)
    facts: str | dict[str, Any] | None = _facts()
    limits: Limits = Field(description="a table [limits] with epsilon, delta and models")
    shares: Shares = Field(Shares(), description="a table [shares]")
    peers: dict[str, Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]] = Field(
        {}, description="a table [peers] of other sites' keys, 64 hexadecimal digits each, for secure sums"
    )


# --- Refusals in words -------------------------------------------------------------------------------------------


def _field(section: type[BaseModel], place: Sequence[int | str]) -> tuple[list[str], Any]:
    """The names that lead to a place in the file, and the field there; further parts are not names of fields."""
    names, found = [], None
    for part in place:
        inner = _sections(found)
        if isinstance(part, int) and names:
            names[-1] = f"{names[-1]} {part + 1}"  # [[site]] is counted from 1
            continue
        if part in (FILE, TABLE):
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


def _printable(words: str) -> str:
    """Names in a file may hold line ends and worse; a refusal is one line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


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
    if given.data is not None:
        yield from _data_clashes(given.data, [given.model], given.target)
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
    for name in ("absent", "pooling"):
        if getattr(given, name) is not None and not given.secure_sum:
            yield f"{name} without secure_sum = true; leave it out, or ask for secure sums"
    if given.ledger is not None and (unit == "record" or noise == "per-site" or given.secure_sum):
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
    if noise == "per-site" or given.secure_sum:
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


def _data_clashes(data: DataEntry, models: Sequence[str], target: str | None) -> Iterator[str]:
    if (data.dataset is None) == (data.file is None):
        both = "both dataset and file" if data.file else "neither dataset nor file"
        yield f"data: {both}; expected one of the two"
    if data.dataset is not None and "linear" in models:
        yield f'data: dataset="{data.dataset}" has two classes; expected a model "logistic" or "probit"'
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
    if "linear" in models and data.split in (*SHARMA, "dirichlet"):
        yield f"{spread} goes by two classes; expected equal or group for a linear model"
    if data.split in SHARMA and data.sites is not None and data.sites % 2:
        yield f"data: sites={data.sites}; expected an even number for split {data.split}, half of them small"
    if data.by is not None and data.by == target:
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
    bare = [entry.name for entry in sites if entry.places is None]
    if 0 < len(bare) < len(sites):
        yield f"there is no places of site {bare[0]}; expected it in each [[site]], or in none"
    for entry in sites:
        if not can_name_folder(entry.name):
            yield f"site {entry.name!r}; expected a name that can name a folder"


def can_name_folder(name: str) -> bool:
    """Whether a name is that of a folder inside another, wherever it comes from."""
    return name not in (".", "..") and not any(letter in name for letter in "/\\") and name.isprintable()


def _site_file_clashes(given: SiteSettings) -> Iterator[str]:
    """The same for a site file."""
    if not can_name_folder(given.name):
        yield f"name={given.name!r}; expected a name that can name a folder"
    data = given.data if isinstance(given.data, DataEntry) else None
    if data is not None:
        yield from _data_clashes(data, given.limits.models, given.target)
        names = _site_names(data)
        if names and given.name not in names:
            yield f"name={given.name!r} is none of the {len(names)} sites of [data]; expected {names[0]} to {names[-1]}"
        if given.places is not None:
            yield "places with [data], whose split says how many there are; leave it out"
    elif given.places is None:
        yield f"there is no places; expected {SiteSettings.model_fields['places'].description}"
    if given.limits.rule == "gaussian" and "vi" in given.limits.methods:
        yield 'limits: rule="gaussian" with the method "vi", whose samples it does not cover; leave one of them out'
    for name in ("target", "columns", "facts"):
        is_given = getattr(given, name) is not None
        if data is not None and data.dataset is not None:
            if is_given:
                yield f"{name} with a dataset of [data]; expected it for files only, so leave it out"
        elif not is_given:
            yield f"there is no {name}; expected {SiteSettings.model_fields[name].description}"


# --- A study that was read ---------------------------------------------------------------------------------------


def _own_ledgers(out: Path) -> list[Path]:
    """The ledgers that a study in this folder has made."""
    return [*out.glob("sites/*/ledger.sqlite"), *out.glob("coordinator/ledger.sqlite")]


def _is_unspent(out: Path) -> bool:
    """Whether nothing was charged for the study of a folder: no trace of a round, here or told by a site elsewhere."""
    from tacit.privacy.ledger import Ledger

    told = out / "notes.json"
    notes = json.loads(told.read_text(encoding="utf-8")).values() if told.exists() else ()
    traces = [*out.rglob("*.progress"), *out.rglob("*.store"), *out.glob("history.json")]
    is_charged = any(Ledger.open(path).entries() for path in _own_ledgers(out))
    return not traces and not is_charged and not any(note.get("events") for note in notes)


def _make_room(out: Path) -> None:
    """Forget the study of a folder for which nothing was charged: its ledgers have no entry."""
    noted = ("study.json", "consents.json", "notes.json", "status.json", "settings.json")
    for path in [*_own_ledgers(out), *(out / name for name in noted)]:
        path.unlink(missing_ok=True)


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
        self._check_ledgers(self.settings.site or [])
        if self.settings.data is not None:
            return self._spread_out(self.settings.data)
        members = self._own_files(self.settings.site or [])
        return members, self._test(members)

    def outline(self) -> "tuple[list[Member], Table | None]":
        """What `gather` gives, of public facts alone: tables without rows, and the places of each site.

        No file or ledger of a site is opened. Data that are public, as those of [data] must be, are read.
        """
        from tacit.study import _capacities

        self._check_ledgers([])
        if self.settings.data is None:
            members = self._outlined(self.settings.site or [])
            return members, self._test(members)
        members, test = self._spread_out(self.settings.data)
        places = _capacities([len(member.table.target) for member in members])
        return [
            replace(member, table=member.table.without_records(), places=own)
            for member, own in zip(members, places, strict=True)
        ], test

    def names(self) -> list[str]:
        """The sites' names. No site's own file is read; public data are, where only they say the names."""
        data = self.settings.data
        if data is None:
            return [entry.name for entry in self.settings.site or []]
        return _site_names(data) or [member.name for member in self._spread_out(data)[0]]

    def budgets(self) -> list[tuple[float, float]]:
        """(ε, δ) of each site that the file names, or of one that stands for all; nothing is read."""
        given = self.settings
        pairs = [(entry.epsilon, entry.delta) for entry in given.site or []] or [(None, None)]
        found = [(given.epsilon if e is None else e, given.delta if d is None else d) for e, d in pairs]
        return [(e, d) for e, d in found if e is not None and d is not None]

    def claim(self, out: Path) -> None:
        """Note in the folder which study it is for, or refuse one that holds another. Call it before any spending.

        The engine knows a study by its plan and budgets; of targets, classes and files it knows nothing. A study for
        which nothing was charged, such as one that sites refused, makes room for another.
        """
        place, mine = out / "settings.json", self._noted()
        try:
            if place.exists() and json.loads(place.read_text(encoding="utf-8")) != mine and _is_unspent(out):
                _make_room(out)
            if place.exists():
                theirs = json.loads(place.read_text(encoding="utf-8"))
                for name in dict.fromkeys([*theirs, *mine]):
                    if theirs.get(name) != mine.get(name):
                        values = [noted.get(name) for noted in (theirs, mine)]
                        is_plain = all(isinstance(value, str | int | float | None) for value in values)
                        found, given = map(reprlib.repr, values)
                        differs = f", {found} and not {given}" if is_plain else ""
                        raise ValueError(
                            f"out={out} holds a study with another {name}{differs}, whose budget is spent; take a new "
                            "folder"
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
        for entry in given["site"] or ():
            if entry["places"] is None:  # as in folders that were begun before there were any
                del entry["places"]
        whole = {**asdict(self.plan), **given, "facts": asdict(self.facts)}
        return json.loads(json.dumps(whole), parse_constant=str)  # JSON has no infinity

    def _place(self, name: str) -> Path:
        return self.path.parent / name

    def _check_ledgers(self, sites: Sequence[SiteEntry]) -> None:
        """A ledger that cannot be charged for this study is refused before any other is charged."""
        from tacit.privacy.ledger import Ledger

        made: dict[str, str] = {}  # the first that has a ledger, by its genesis
        entries: list[tuple[str, str | None, float | None]] = [("", self.settings.ledger, None)]
        entries += [(f"site {entry.name}", entry.ledger, entry.delta) for entry in sites]
        for place, path, own in entries:
            if path is None:
                continue
            with _at(self.path, place):
                ledger = Ledger.open(self._place(path))
                other = made.setdefault(ledger.genesis, place)
                if other != place:  # also by a link, or as a copy, which forgets what is charged to the other
                    raise ValueError(f"its ledger is that of {other}; expected each site's own")
                delta = self.settings.delta if own is None else own
                if ledger.delta != delta:
                    raise ValueError(f"delta={delta}, and {ledger.delta} in its ledger; expected the ledger's")
                if (ledger.unit, ledger.adjacency) != (self.plan.unit, self.plan.adjacency):
                    raise ValueError(
                        f"its ledger is of one {ledger.unit} ({ledger.adjacency}); expected one of a {self.plan.unit} "
                        f"({self.plan.adjacency}), as the study's"
                    )

    def _spread_out(self, data: DataEntry) -> "tuple[list[Member], Table | None]":
        """Sites that share the data of [data], and the public test set."""
        from tacit.study import Member

        given = self.settings
        with _at(self.path, "data"):
            if data.dataset is not None:
                spread = _spread_dataset(data)
            else:
                spread = _spread_file(
                    self._place(str(data.file)), data, str(given.target), self.plan.link, given.columns, self.facts
                )
        assert given.epsilon is not None
        assert given.delta is not None
        members = [
            Member(name, spread.part(m), given.epsilon, given.delta, self._ledger(given.ledger))
            for m, name in enumerate(spread.names)
        ]
        return members, spread.test if data.dataset is not None else self._test(members)

    def _own_files(self, entries: Sequence[SiteEntry]) -> "list[Member]":
        from tacit.data.tables import bookkeeping, read_frame
        from tacit.study import check_apart

        members, columns, given = [], self.settings.columns, self.settings
        with _at(self.path):
            _check_apart([(entry.name, self._place(entry.file)) for entry in entries if entry.file is not None])
        for entry in entries:
            with _at(self.path, f"site {entry.name}"):
                if entry.file is None:
                    raise ValueError(
                        "there is no file; expected the name of a CSV or Parquet file of its records, or `tacit serve` "
                        "for a study over a network"
                    )
                if (entry.ledger or given.ledger) is None:
                    _check_beside(self._place(entry.file), self._remedy(entry))
                frame = read_frame(self._place(entry.file), self.facts.listed(given.target), "file")
                apart = bookkeeping(frame)
                names = [name for name in map(str, frame.columns) if name not in apart]
                if columns is None:  # the order of the first file is everybody's
                    columns = [name for name in names if name != given.target]
                more = [name for name in names if name not in (*columns, given.target)]
                if more and given.columns is None:
                    raise ValueError(
                        f"column {more[0]!r} is not in the file of {entries[0].name}; expected the same ones, or a "
                        "list of columns above all tables"
                    )
                table = self._table(frame, columns)
                _check_places(table, entry.places)
            members.append(self._member(entry, table, entry.ledger or given.ledger))
        with _at(self.path):
            check_apart(members)
        return members

    def _remedy(self, entry: SiteEntry) -> str:
        """Where the ledger of a site's file is to be named."""
        if math.inf in (entry.epsilon, self.settings.epsilon if entry.epsilon is None else None):
            return "expected a finite epsilon, for a ledger cannot count what is published exactly"
        if self.plan.is_pooled:
            return 'expected ledger = "..." above all tables, of the coordinator, which then counts apart'
        return 'expected its name as ledger = "..." in this [[site]], or that of another one, which then counts apart'

    def _outlined(self, entries: Sequence[SiteEntry]) -> "list[Member]":
        from tacit.data.tables import Table

        given = self.settings
        with _at(self.path):
            if given.columns is None:
                raise ValueError(
                    'there is no columns; expected a list of them above all tables, as columns = ["age", "sex"], for '
                    "a study over a network has no file to take them from"
                )
            table = Table.of_facts(str(given.target), self.plan.link, given.columns, self.facts)
        for entry in entries:
            if entry.places is None:
                with _at(self.path, f"site {entry.name}"):
                    raise ValueError(f"there is no places; expected {SiteEntry.model_fields['places'].description}")
        return [self._member(entry, table, given.ledger) for entry in entries]

    def _member(self, entry: SiteEntry, table: "Table", ledger: str | None) -> "Member":
        from tacit.study import Member

        epsilon = self.settings.epsilon if entry.epsilon is None else entry.epsilon
        delta = self.settings.delta if entry.delta is None else entry.delta
        assert epsilon is not None
        assert delta is not None
        return Member(entry.name, table, epsilon, delta, self._ledger(ledger), places=entry.places)

    def _ledger(self, name: str | None) -> Path | None:
        return None if name is None else self._place(name)

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
        return _encoded(frame, str(self.settings.target), self.plan.link, columns, self.facts)


def _encoded(frame: Any, target: str, link: str, columns: Sequence[str] | None, facts: "Facts") -> "Table":
    from tacit.data.tables import Table

    table = Table.of_frame(frame, target, link, columns=columns, facts=facts)
    ends = zip([table.names[j] for j in table.numbers], table.low[:-1], strict=True)
    bare = [name for name, low in ends if math.isnan(low)]
    if bare:
        raise ValueError(f"column {bare[0]!r} has no bounds; give [low, high] in [facts.bounds], which are public")
    return table


def _check_apart(files: Sequence[tuple[str, Path]]) -> None:
    """Refuse sites whose files are one, by a link or a copy: neither site's budget alone would protect its records.

    Copies in another order or form are seen once they are read (`study.check_apart`).
    """
    seen: dict[Any, str] = {}
    for name, path in files:
        try:
            known = path.stat()
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # whoever reads it says so
            continue
        for mark in ((known.st_dev, known.st_ino), content):
            other = seen.setdefault(mark, name)
            if other != name:
                raise ValueError(
                    f"site {name}: file={path.name!r} holds the same records as that of site {other}, by a link or a "
                    "copy; expected each site's own records"
                )


def _check_beside(path: Path, remedy: str) -> None:
    """Refuse a file of records whose budget is counted in a ledger beside it, which is not the one to be charged."""
    from tacit.spending import beside

    own = beside(path)
    if own.exists():
        raise ValueError(f"file={path.name!r} has the ledger {own.name} beside it, which 'tacit fit' charges; {remedy}")


def _check_places(table: "Table", places: int | None) -> None:
    if places is not None and len(table.target) > places:
        raise ValueError(f"places={places} and more records; expected a place for each, so raise places")


# --- A site file that was read -----------------------------------------------------------------------------------


class Unfit(ValueError):
    """A site cannot take part with its records. The words are for its holder; `public` ones may go to others."""

    def __init__(
        self, words: str, public: str = "the records do not fit the site's own file; its log says why"
    ) -> None:
        super().__init__(words)
        self.public = public


@dataclass(frozen=True)
class SiteFile:
    """A site file that was read and found sound. `settings` is what it says; `facts` are the site's own."""

    path: Path
    settings: SiteSettings
    facts: "Facts"

    @property
    def kit_folder(self) -> Path:
        """Where the start-up kit is."""
        return self.path.parent / self.settings.kit

    @property
    def state_folder(self) -> Path:
        """Where the ledger, the answers and the audit log are."""
        return self.path.parent / self.settings.state

    @cached_property
    def record_places(self) -> int:
        """The public number of places for records. The public data of [data] are read for it; a file is not."""
        from tacit.study import _capacities

        if self.settings.places is not None:
            return self.settings.places
        with self._unfit():
            spread = self._spread(self.settings.columns, self.settings.limits.models[0])
            return _capacities([len(part) for part in spread.parts])[self._own(spread)]

    def table(self, columns: Sequence[str] | None, target: str | None, link: str) -> "Table":
        """The records as a study asks for them, encoded by the site's own facts.

        columns, target: what the study names; None is what the file does. An `Unfit` has words for the coordinator,
        with no value of a record, no number of records and no path in them.
        """
        from tacit.data.tables import read_frame

        columns = self._granted(columns, target, link)
        with self._unfit():
            if isinstance(self.settings.data, DataEntry):
                spread = self._spread(columns, link)
                return spread.part(self._own(spread))
            facts, target = self._facts(link), str(self.settings.target)
            frame = read_frame(self.path.parent / self.settings.data, facts.listed(target), "data")
            found = _encoded(frame, target, link, columns, facts)
            _check_places(found, self.settings.places)
            return found

    def check(self) -> None:
        """An `Unfit` if the records do not fit the file, as a whole.

        Call it before any study is seen: whether they fit tells of records, and must not depend on what is asked.
        """
        if isinstance(self.settings.data, str):
            with self._unfit():
                _check_beside(
                    self.path.parent / self.settings.data,
                    f"expected it as {self.settings.state}/ledger.sqlite, with its budget and rule in [limits], or "
                    "elsewhere, to count apart",
                )
        for link in self.settings.limits.models:
            self.table(None, None, link)

    def public_table(self, columns: Sequence[str] | None, target: str | None, link: str) -> "Table":
        """The same without records, none of which is read, except public ones of a data set."""
        from tacit.data.tables import Table

        columns = self._granted(columns, target, link)
        with self._unfit():
            if columns is None:
                return self._dataset.table.without_records()
            return Table.of_facts(str(self.settings.target), link, columns, self._facts(link))

    def _granted(self, columns: Sequence[str] | None, target: str | None, link: str) -> list[str] | None:
        """The columns for a study, if the site lets it have what it asks for; of a data set, always None for all."""
        given = self.settings
        with self._unfit():
            offered = list(self._dataset.table.names if given.columns is None else given.columns)
        others = [name for name in columns or () if name not in offered]
        words = None
        if link not in given.limits.models:
            words = f"model={_shown(link)} is none of the site's; expected one of {', '.join(given.limits.models)}"
        elif target not in (None, given.target):
            words = f"target={_shown(target)} is not the site's; expected the one that it offers"
        elif others:
            words = f"columns name {_shown(others[0])}, which the site does not offer; expected some of its own"
        elif columns is not None and (not columns or len(set(columns)) < len(columns)):
            words = "columns are none, or name one twice; expected each once"
        elif given.columns is None and columns is not None and list(columns) != offered:
            words = "columns choose among those of a data set; expected all of them, so leave columns out"
        if words is not None:
            raise Unfit(f"site={self.path}: {words}", words)
        if given.columns is None:
            return None
        return list(given.columns if columns is None else columns)

    def _facts(self, link: str) -> "Facts":
        """The site's facts, for one model: the target's classes, or its bounds."""
        return replace(self.facts, classes=None) if link == "linear" else self.facts

    @contextmanager
    def _unfit(self) -> Iterator[None]:
        try:
            with _at(self.path, what="site"):
                yield
        except ValueError as error:
            raise Unfit(str(error)) from None

    @cached_property
    def _dataset(self) -> "_Spread":
        assert isinstance(self.settings.data, DataEntry)
        return _spread_dataset(self.settings.data)

    def _spread(self, columns: Sequence[str] | None, link: str) -> "_Spread":
        data = self.settings.data
        assert isinstance(data, DataEntry)
        if data.dataset is not None:
            return self._dataset
        place, target = self.path.parent / str(data.file), str(self.settings.target)
        return _spread_file(place, data, target, link, columns, self._facts(link))

    def _own(self, spread: "_Spread") -> int:
        if self.settings.name not in spread.names:
            raise ValueError(f"name={self.settings.name!r} is none of the sites of [data]; expected one of its groups")
        return spread.names.index(self.settings.name)


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


def read_site(path: Path) -> SiteFile:
    """The site of a TOML file, checked; its records are not read. A ValueError names the file, the field, a remedy."""
    from tacit.data.tables import Table

    given = _validated(path, "site", SiteSettings)
    for words in _site_file_clashes(given):
        raise ValueError(f"site={path}: {_printable(words)}")
    with _at(path, what="site"):
        found = SiteFile(path, given, _facts_of(given.facts, path.parent))
        for link in given.limits.models if given.columns is not None else ():
            Table.of_facts(str(given.target), link, given.columns or (), found._facts(link))
    return found


def example_site(study: Study, name: str) -> str:
    """The text of a site file for one site of a study, to be looked over and edited at the site.

    A ValueError says what the study does not: all that is public about its columns, and a budget.
    """
    names = study.names()
    if name not in names or not can_name_folder(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"site={name!r} is none that the study can have; expected one of {', '.join(names[:10])}, which can name "
            "a folder"
        )
    given, plan = study.settings, study.plan
    entry = next((entry for entry in given.site or [] if entry.name == name), None)
    epsilon = given.epsilon if entry is None or entry.epsilon is None else entry.epsilon
    if epsilon == math.inf:
        raise ValueError(f"study={study.path}: epsilon=inf, which no site's ledger can pay; expected a budget")
    columns, facts = _public_columns(study)
    top = [
        ("name", name, "as in its certificate"),
        ("kit", "kit", "the folder of the start-up kit; paths are relative to this file"),
        ("state", "state", "the folder of the ledger and of what was answered; never put an older copy back"),
    ]
    if entry is not None:
        top += [("data", entry.file or "records.csv", "the records, CSV or Parquet")]
    if columns:
        top += [("target", given.target, ""), ("columns", columns, "what studies may use")]
    if entry is not None:
        top += [("places", entry.places or EXAMPLE_PLACES, "public; at least as many as there are records")]
    limits = [
        ("epsilon", epsilon, "the budget of these records over all studies, not of this one alone"),
        ("delta", given.delta if entry is None or entry.delta is None else entry.delta, ""),
        ("least_noise", LEAST_NOISE, "the least noise multiplier of a single release"),
        ("models", [plan.link], ""),
        ("methods", [plan.method], ""),
        ("unit", plan.unit, "whose the budget is, for good"),
        ("adjacency", plan.adjacency, ""),
        ("studies", [plan.name], "left out, any study"),
        ("most_rounds", plan.rounds, "left out, 1000"),
    ]
    if plan.allow_large_delta:
        limits += [("allow_large_delta", True, "delta may be 1 / places or more: a record may be published as it is")]
    if plan.secure_sum:
        limits += [
            ("pooling", max(1, plan.trust(len(names)).pooling), "sites that may pool what they know with others")
        ]
    shares = [
        ("spent", True, "whether the coordinator is told what was spent"),
        ("evaluation", True, "whether private scores on held-out records may be asked for"),
    ]
    parts = [f"# A site of the study {_toml(plan.name)}. Look it over and edit it; it stays at the site.", ""]
    parts += [*map(_line, top), "", "[limits]", *map(_line, limits), "", "[shares]", *map(_line, shares)]
    if plan.secure_sum:
        parts += ["", "[peers]  # as the others tell you themselves, by 'tacit network key'; not by the coordinator"]
        parts += [f'# {_toml(other)} = "64 hexadecimal digits"' for other in names if other != name]
    if given.data is not None:
        parts += ["", "[data]  # public records, to try the study out: the site has the part with its name"]
        parts += map(_line, given.data.model_dump(exclude_none=True).items())
    if columns:
        parts += ["", "[facts]  # what is public about the columns"]
        parts += [] if facts.classes is None else [_line(("classes", facts.classes, "the first counts as 0"))]
        for title, known in (("bounds", facts.bounds), ("categories", facts.categories)):
            parts += ["", f"[facts.{title}]", *map(_line, known.items())] if known else []
    return "\n".join(parts) + "\n"


def _public_columns(study: Study) -> "tuple[list[str], Facts]":
    """The columns of a study, none for a data set, and what is public about them, checked to be enough for a site."""
    from tacit.data.tables import Facts, Table

    given, facts = study.settings, study.facts
    if given.data is not None and given.data.dataset is not None:
        return [], facts
    columns = given.columns
    if columns is None and given.data is not None:
        columns = [kind["name"] for kind in study.outline()[0][0].table.schema["columns"]]
    elif columns is None:
        columns = [name for name in (*facts.bounds, *facts.categories) if name != given.target]
    used = {*columns, given.target}
    bounds = {name: pair for name, pair in facts.bounds.items() if name in used}
    facts = Facts(bounds, {name: labels for name, labels in facts.categories.items() if name in used}, facts.classes)
    with _at(study.path):
        Table.of_facts(str(given.target), study.plan.link, columns, facts)
    return columns, facts


EXAMPLE_PLACES = 1000  # where a study says none
_COMMENTS = 28  # where comments begin, if there is room


def _line(entry: Sequence[Any]) -> str:
    """A line of TOML: name, value and, if there is one, a comment."""
    name, value, *comment = entry
    words = f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else _toml(name)} = {_toml(value)}"
    return f"{words:{_COMMENTS}}  # {comment[0]}" if comment and comment[0] else words


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() if value >= 2**63:
            return hex(value)  # Python writes no integer of 5,000 digits in decimal
        case str():
            # JSON's text is TOML's, but for one letter that TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def _facts_of(given: str | dict[str, Any] | None, folder: Path) -> "Facts":
    from tacit.data.tables import Facts

    if isinstance(given, str):
        return Facts.read(folder / given, "facts")
    return Facts() if given is None else Facts.from_dict(given, "facts")


def read_study(path: Path) -> Study:
    """The study of a TOML file, checked. A ValueError names the file, the field and a remedy."""
    from tacit.study import Plan

    given = _validated(path, "study", Settings)
    for words in _clashes(given):
        raise ValueError(f"study={path}: {_printable(words)}")
    with _at(path):
        facts = _facts_of(given.facts, path.parent)
        _check_facts(given, facts)
        settings = sorted({field.name for field in fields(Plan)} & set(Settings.model_fields) - {"name"})
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


# --- One data set, spread over sites -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spread:
    """The records of all sites, the places of each site's own among them, the sites' names, and a public test set."""

    table: "Table"
    parts: "list[np.ndarray]"
    names: list[str]
    test: "Table | None" = None

    def part(self, site: int) -> "Table":
        return self.table.rows(self.parts[site])


def _spread_dataset(data: DataEntry) -> _Spread:
    from tacit.data import datasets
    from tacit.data.tables import Table

    found = {"adult": datasets.adult, "abalone": datasets.abalone, "heart": datasets.heart}[str(data.dataset)]()
    table = Table.of_dataset(found)
    test = replace(table, features=found.test_features[:, 1:], target=found.test_target)
    return _Spread(table, *_spread(data, table, found.groups), test)


def _spread_file(
    path: Path, data: DataEntry, target: str, link: str, columns: Sequence[str] | None, facts: "Facts"
) -> _Spread:
    from tacit.data.tables import digests_of, read_frame

    by = {} if data.by is None else {data.by: ()}
    frame = read_frame(path, facts.listed(target) | by, "file")
    groups, digests = None, digests_of(frame)
    if data.by is not None:
        if data.by not in frame.columns:
            raise ValueError(f"by={data.by!r} is not a column; expected one of the file's")
        if frame[data.by].isna().any():
            raise ValueError(f"by={data.by!r} has missing values; expected a site for each record")
        groups = frame[data.by].astype(str).to_numpy(object).astype(str)
        frame = frame.drop(columns=data.by)
    table = replace(_encoded(frame, target, link, columns, facts), digests=digests)  # of whole rows of the file
    return _Spread(table, *_spread(data, table, groups))


def _site_names(data: DataEntry) -> list[str]:
    """The sites' names, where no record is needed to tell."""
    count = data.sites or 0
    return [f"site-{m + 1:0{len(str(count))}d}" for m in range(count)]


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
    return parts, _site_names(data)


# What a table's refusal calls an option of `tacit fit` is a field of the study file here.
_OPTIONS = re.compile(r"--(categories|classes|columns)(?: \"[^\"]*\"| \w+(?:,\w+)+)?")
_FIELDS = {"categories": "[facts.categories]", "classes": "facts.classes", "columns": "columns"}


@contextmanager
def _at(path: Path, place: str = "", what: str = "study") -> Iterator[None]:
    """Refusals inside begin with the file and the place in it."""
    try:
        yield
    except ValueError as error:
        words = _printable(_OPTIONS.sub(lambda found: _FIELDS[found[1]], str(error)).removesuffix("."))
        raise ValueError(f"{what}={path}{', ' if place else ''}{place}: {words}") from None


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
    train = table.rows(~is_test)
    return [Simulated(train, *tests, np.full(len(table.names) + 1, np.nan))]
