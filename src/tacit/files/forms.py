"""The forms of study and site files. `study.plan.Plan` declares the settings of a plan."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from tacit.basics.methods import METHODS
from tacit.basics.schema import LONGEST_NAME, REQUIRED, TAG, OneOf, Root, Section, expected_of, setting, shown
from tacit.links import link_of, names
from tacit.study.own_models import EXAMPLE, SOURCE, is_name
from tacit.study.plan import AdjacencyName, MethodName, Plan, Unit

MOST_SITES = 10_000  # far above any real study; refuses typing errors
MOST_SLOTS = 10**9  # of a site; likewise
SHARMA = ("A", "B", "C", "D")
SAMPLING = {"vi", "sgld"}  # methods that read samples of records by default
LEAST_NOISE = 0.5  # a single release with this noise costs ε = 10 at δ = 1e-5
LinkName = Annotated[str, OneOf(names)]
_EPSILON = "a number above 0, or inf for no privacy"
_FACTS = "a table [facts] with bounds, categories and classes, or the name of a TOML file with them"
_FILE = "the name of a CSV or Parquet file"
_PERSON = "the name of the column with each record's person"
_COLUMNS = 'a list of columns, as ["age", "sex"]'


def _delta(meaning: str, default: Any = None) -> Any:
    return setting(default, meaning, gt=0, lt=1, allow_inf_nan=False)


def _slots() -> Any:
    words = "a whole number of at least 1: the public number of slots for records, at least as many as the site has"
    return setting(None, "the public number of slots for records", expected=words, ge=1, le=MOST_SLOTS)


class DataEntry(Section):
    """[data]: one public or made-up data set, spread over sites."""

    dataset: Literal["adult", "abalone", "heart"] | None = setting(None, "an embedded data set")
    file: str | None = setting(None, "a file in place of a data set", expected=_FILE, min_length=1)
    split: Literal["A", "B", "C", "D", "equal", "dirichlet", "group"] = setting(REQUIRED, "how records are spread")
    sites: int | None = setting(None, "how many sites there are", ge=1, le=MOST_SITES)
    seed: int | None = setting(None, "the seed of the split; 0 by default", ge=0)
    concentration: float | None = setting(
        None, "`dirichlet`: large for sites that are alike", gt=0, allow_inf_nan=False
    )
    by: str | None = setting(
        None,
        "`group` of a file: the column of sites",
        expected="the column that says at which site a record is",
        min_length=1,
    )

    def clashes(self, models: Sequence[str], target: str | None) -> Iterator[str]:
        """Settings that do not fit together, or do not fit the models and the target of the data."""
        if (self.dataset is None) == (self.file is None):
            both = "both dataset and file" if self.file else "neither dataset nor file"
            yield f"data: {both}; expected one of the two"
        known = [link_of(model) for model in models if ":" not in model]
        others = [link.name for link in known if not link.target.has_two_classes]
        numeric = [link.name for link in known if link.target.is_number]
        if self.dataset is not None and others:
            yield f'data: dataset="{self.dataset}" has two classes; expected a model for them, not "{others[0]}"'
        is_group, spread = self.split == "group", f'data: split="{self.split}"'
        if is_group == (self.sites is not None):
            remedy = "the groups say how many there are, so leave it out" if is_group else "expected how many there are"
            yield f"{spread} {'with' if is_group else 'without'} sites; {remedy}"
        if (self.split == "dirichlet") != (self.concentration is not None):
            is_lacking = self.concentration is None
            words = "without concentration; expected one above 0" if is_lacking else "with concentration"
            yield f"{spread} {words}{'' if is_lacking else '; expected it for dirichlet only'}"
        if self.by is not None and not (is_group and self.file):
            yield f'{spread} with by; expected it for a file and split = "group" only, so leave it out'
        if is_group and self.file is not None and self.by is None:
            yield f"{spread} without by; expected the column that says at which site a record is"
        if is_group and self.dataset in ("adult", "abalone"):
            yield f'{spread} of {self.dataset}, which has no groups; expected another split, or dataset = "heart"'
        if numeric and self.split in (*SHARMA, "dirichlet"):
            yield f"{spread} goes by two classes; expected equal or group for a {numeric[0]} model"
        if self.split in SHARMA and self.sites is not None and self.sites % 2:
            yield f"data: sites={self.sites}; expected an even number for split {self.split}, half of them small"
        if self.by is not None and self.by == target:
            yield f"data: by={self.by!r} is the target; expected another column"


class SiteEntry(Section):
    """[[site]]: a site with its own file, and a budget where it differs from the study's.

    `file` is for a simulation. `slots` is for a study over a network, in which each site names its file itself.
    """

    name: str = setting(
        REQUIRED, "the site's name", expected="a name for the site", min_length=1, max_length=LONGEST_NAME
    )
    file: str | None = setting(None, "its records, for a simulation", expected=_FILE, min_length=1)
    slots: int | None = _slots()
    epsilon: float | None = setting(None, "its own ε", expected=_EPSILON, gt=0)
    delta: float | None = _delta("its own δ")
    ledger: str | None = setting(
        None,
        "the data set's ledger, if other studies have charged it",
        expected="the path of a ledger that exists",
        min_length=1,
    )


class TestEntry(Section):
    """[test]: public records to score posteriors on."""

    __test__ = False  # not pytest's
    file: str = setting(REQUIRED, "public records", expected=f"{_FILE} of public records", min_length=1)


class StudyForm(Plan):
    """The form of a study file: the settings of a plan, and where records and budgets are."""

    epsilon: float | None = setting(
        None, "ε of every site that has none of its own; inf for no privacy", expected=_EPSILON, gt=0
    )
    delta: float | None = _delta("δ of every site that has none of its own")
    ledger: str | None = setting(
        None,
        "a trusted coordinator's ledger, if other studies of these sites have charged it",
        expected="the path of a ledger that exists, of a trusted coordinator",
        min_length=1,
    )
    target: str | None = setting(
        None,
        "the column to explain; a model of your own may do without",
        expected="the name of a column",
        min_length=1,
    )
    person: str | None = setting(
        None, '`unit = "person"`: the column with the id of each record\'s person', expected=_PERSON, min_length=1
    )
    columns: list[str] | None = setting(None, "the features; all columns by default", expected=_COLUMNS, min_length=1)
    facts: str | dict[str, Any] | None = setting(None, "what is public about the columns", expected=_FACTS)
    data: DataEntry | None = setting(None, "one data set, spread over sites", expected="a table [data]")
    site: list[SiteEntry] | None = setting(
        None, "a site with its own file", expected="tables [[site]], in two brackets, one for each site", min_length=1
    )
    test: TestEntry | None = setting(None, "public records to score on", expected="a table [test]")

    @property
    def plan(self) -> Plan:
        """The settings of the plan alone."""
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields})

    @property
    def sites(self) -> list[SiteEntry]:
        """The sites with files of their own."""
        return self.site or []

    def clashes(self) -> Iterator[str]:
        """Settings that do not fit together, each as a sentence that ends with a remedy."""
        if (self.data is None) == (self.site is None):
            both = "both [data] and [[site]]" if self.data else "neither [data] nor [[site]]"
            yield f"{both}; expected [data] for one data set spread over sites, or a [[site]] for each site's file"
        yield from super().clashes()
        yield from self._account_clashes()
        yield from self._budget_clashes()
        if self.data is not None:
            yield from self.data.clashes([str(self.model)], self.target)
            yield from self._person_clashes(self.data)
        if self.person is not None and self.unit != "person":
            yield 'person with another unit; expected it with unit = "person" and most_records, so leave it out'
        if self.person is not None and self.person == self.target:
            yield f"person={self.person!r} is the target; expected another column"
        if self.test is not None and self.is_named:
            yield "test with a model of your own, which has no scores there; leave it out"
        yield from _site_clashes(self.sites)
        if self.unit == "person" and self.person is None and any(entry.file is not None for entry in self.sites):
            yield f'there is no person; expected {_PERSON}, for unit = "person" with files'
        has_dataset = self.data is not None and self.data.dataset is not None
        for name in ("target", "columns", "facts", "test"):
            if has_dataset and getattr(self, name) is not None:
                yield f"{name} with a dataset of [data]; expected it for files only, so leave it out"
        if not has_dataset and self.target is None and not self.is_named:
            yield "there is no target; expected the name of the column to explain, above all tables"

    def _person_clashes(self, data: DataEntry) -> Iterator[str]:
        """Persons of one data set: known by a column, and each at one site."""
        if self.unit != "person":
            return
        if data.dataset is not None:
            yield f'unit="person" with dataset="{data.dataset}", whose records are of different persons; leave it out'
        elif self.person is None:
            yield f'there is no person; expected {_PERSON}, for unit = "person" with files'
        elif data.split != "group":
            yield (
                f'data: split="{data.split}" with persons would put one person\'s records at several sites; expected '
                'split = "group"'
            )

    def _account_clashes(self) -> Iterator[str]:
        """One ledger and one budget for all sites, or one at each."""
        if self.ledger is not None and not self.trusts_coordinator:
            yield "ledger above all tables is a trusted coordinator's; expected it in each [[site]]"
        for entry in self.sites if self.trusts_coordinator else ():
            for name in ("epsilon", "delta", "ledger"):
                if getattr(entry, name) is not None:
                    yield (
                        f'site {entry.name}: {name} with noise="{self.noise}", which has one budget and one ledger for '
                        "all sites; leave it out"
                    )

    def _budget_clashes(self) -> Iterator[str]:
        for name in ("epsilon", "delta"):
            lacking = [entry.name for entry in self.sites if getattr(entry, name) is None]
            if getattr(self, name) is None and (self.site is None or lacking):
                whose = f" of site {lacking[0]}" if lacking else ""
                yield f"there is no {name}{whose}; expected it above all tables, for every site, or in each [[site]]"
        budgets = {self.epsilon if entry.epsilon is None else entry.epsilon for entry in self.sites}
        if inf in budgets and len(budgets) > 1:
            yield "epsilon=inf at some sites and a budget at others; expected a budget for all, or for none"
        for entry in self.sites:
            if entry.ledger is not None and inf in budgets:
                yield f"site {entry.name}: ledger with epsilon=inf, which no ledger can pay; leave it out"


def _site_clashes(sites: Sequence[SiteEntry]) -> Iterator[str]:
    for what, remedy in (
        ("name", "names that differ"),
        ("file", "each site's own records"),
        ("ledger", "each site's own ledger"),
    ):
        given = [getattr(entry, what) for entry in sites if getattr(entry, what) is not None]
        # Two spellings of one file are one: a record at two sites is protected by neither's budget alone.
        plain = given if what == "name" else [os.path.normpath(path) for path in given]
        twice = [value for value, count in Counter(plain).items() if count > 1]
        if twice:
            yield f"two sites have {what}={twice[0]!r}; expected {remedy}"
    bare = [entry.name for entry in sites if entry.slots is None]
    if 0 < len(bare) < len(sites):
        yield f"site {bare[0]} has no slots; expected a number of slots in each [[site]], or in none"
    for entry in sites:
        if not can_name_folder(entry.name):
            yield f"site {entry.name!r}; expected a name that can name a folder"


def can_name_folder(name: str) -> bool:
    """Whether a name, from whatever source, can name a folder inside another one."""
    return name not in (".", "..") and not any(letter in name for letter in "/\\") and name.isprintable()


# --- Site files ---------------------------------------------------------------------------------------------------


class Limits(Section):
    """[limits]: what a site lets studies do. A coordinator can change none of it."""

    epsilon: float = setting(
        REQUIRED,
        "the budget of the records over all studies; fixed once the ledger exists",
        expected="a number above 0, the budget of the records over all studies",
        gt=0,
        allow_inf_nan=False,
    )
    delta: float = _delta("the budget's δ, at which the ledger is kept", REQUIRED)
    least_noise: float = setting(
        LEAST_NOISE,
        "the least noise multiplier of every single release, as the site itself computes it",
        expected="a number above 0, the least noise multiplier of a release",
        gt=0,
        allow_inf_nan=False,
    )
    models: list[LinkName] = setting([], "the models of studies")
    own_models: dict[str, Annotated[str, Field(pattern=f"^{SOURCE.pattern}$")]] = setting(
        {},
        "further models of studies, of modules that are installed here: for each its name and the hash of its source, "
        "from `tacit study hash`",
        expected=f'a table [limits.own_models], as "{EXAMPLE}" = "sha256:...", from \'tacit study hash\'',
    )
    methods: list[MethodName] = setting(list(METHODS), "the methods of studies", min_length=1)
    unit: Unit = setting("record", "the unit of privacy; it cannot be changed later")
    adjacency: AdjacencyName = setting("add-remove", "which data sets are neighbours")
    rule: Literal["gaussian", "renyi"] | None = setting(
        None, "how the ledger adds up what studies spend; by `methods` if it is left out"
    )
    studies: list[str] | None = setting(
        None,
        "names of studies that the site takes part in; any by default",
        expected='a list of names of studies, as ["heart"]',
        min_length=1,
    )
    most_rounds: int = setting(1000, "the most rounds of a study", ge=1)
    most_studies: int = setting(100, "the most studies that the ledger ever has", ge=1)
    allow_large_delta: bool = setting(False, "whether `delta` may be 1 / `slots` or more, in studies that say so")
    colluding: int = setting(
        1,
        "secure sums: how many other sites may collude with the coordinator; a study that tolerates fewer is refused",
        ge=0,
    )

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if not self.models and not self.own_models:
            words = ", ".join(names())
            raise ValueError(f"models=[]; expected a list of some of {words}, or a table [limits.own_models]")
        for name in self.own_models:
            if not is_name(name):
                raise ValueError(f'own_models: {shown(name)}; expected "module:name", as "{EXAMPLE}"')
        return self

    @property
    def every_model(self) -> list[str]:
        """The names of all models that studies may have."""
        return [*self.models, *self.own_models]

    @property
    def own_rule(self) -> str:
        """The ledger's rule, valid also for studies chosen after seeing results. Samples need the looser of the two.

        Under replace-one neither prices samples. A site whose studies all sample then has `pld`, which covers only what
        was fixed beforehand; any other site refuses samples.
        """
        methods = set(self.methods)
        if self.rule is not None or not methods & SAMPLING:
            return self.rule or "gaussian"
        if self.adjacency == "add-remove":
            return "renyi"
        return "pld" if methods <= SAMPLING else "gaussian"


class Shares(Section):
    """[shares]: what the coordinator is told beside private updates."""

    spent: bool = setting(True, "whether the coordinator is told what all studies have spent, and the ledger's budget")
    evaluation: bool = setting(True, "whether private scores on held-out records, which are charged, may be asked for")


FILE, TABLE = f"{TAG}file", f"{TAG}table"  # the two forms of `data`


class SiteForm(Root):
    """The form of a site file."""

    name: str = setting(
        REQUIRED,
        "the site's name, as in its certificate and in the study",
        expected="the site's name, as in its certificate",
        min_length=1,
        max_length=LONGEST_NAME,
    )
    kit: str = setting("kit", "the folder of the start-up kit", expected="the folder of the start-up kit", min_length=1)
    state: str = setting(
        "state",
        "the folder of the ledger, the answers and the audit log: the site's memory",
        expected="the folder of the ledger, the answers and the audit log",
        min_length=1,
    )
    data: Annotated[
        Annotated[str, Field(min_length=1), Tag(FILE)] | Annotated[DataEntry, Tag(TABLE)],
        Discriminator(lambda given: TABLE if isinstance(given, dict | DataEntry) else FILE),
    ] = setting(
        REQUIRED,
        "the records; or a table [data] as in a study file, to try a study out on public records",
        expected=f"{_FILE}, or a table [data] to try a study out on public records",
    )
    target: str | None = setting(
        None,
        "the column to explain, the only one that studies may ask for",
        expected="the name of a column",
        min_length=1,
    )
    person: str | None = setting(
        None,
        '`unit = "person"`: the column with the id of each record\'s person, which no study is told',
        expected=_PERSON,
        min_length=1,
    )
    columns: list[str] | None = setting(
        None,
        "the columns that studies may use; a study may take some of them",
        expected='a list of the columns that studies may use, as ["age", "sex"]',
        min_length=1,
    )
    slots: int | None = _slots()
    insecure_seed: int | None = setting(
        None,
        "noise from a seed, for drills on made-up records; void as protection, and marked in ledger and statement",
        ge=0,
    )
    facts: str | dict[str, Any] | None = setting(
        None, "what is public about the columns; it must match the study's", expected=_FACTS
    )
    limits: Limits = setting(
        REQUIRED, "what studies may do", expected="a table [limits] with epsilon, delta and models"
    )
    shares: Shares = setting(Shares(), "what the coordinator is told", expected="a table [shares]")
    peers: dict[str, Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]] = setting(
        {},
        "secure sums: the keys of the other sites, by name",
        expected="a table [peers] of other sites' keys, 64 hexadecimal digits each, for secure sums",
    )

    @model_validator(mode="after")
    def _check_clashes(self) -> Self:
        for words in self.clashes():
            raise ValueError(words)
        return self

    def clashes(self) -> Iterator[str]:
        """Settings that do not fit together, each as a sentence that ends with a remedy."""
        if not can_name_folder(self.name):
            yield f"name={self.name!r}; expected a name that can name a folder"
        data = self.data if isinstance(self.data, DataEntry) else None
        if data is not None:
            yield from data.clashes(self.limits.every_model, self.target)
            names = site_names(data)
            if names and self.name not in names:
                expected = f"expected {names[0]} to {names[-1]}"
                yield f"name={self.name!r} is none of the {len(names)} sites of [data]; {expected}"
            if self.slots is not None:
                yield "slots with [data], whose split says how many there are; leave it out"
        elif self.slots is None:
            yield f"slots is missing; expected {expected_of(SiteForm.model_fields['slots'])}"
        sampling = [method for method in self.limits.methods if method in SAMPLING]
        if self.limits.rule == "gaussian" and sampling:
            what = f'the method "{sampling[0]}", whose samples it does not cover; leave one of them out'
            yield f'limits: rule="gaussian" with {what}'
        yield from self._person_clashes(data)
        for name in ("target", "columns", "facts"):
            is_given = getattr(self, name) is not None
            if name == "target" and not self.limits.models and self.target is None:
                continue  # models of one's own may do without
            if data is not None and data.dataset is not None:
                if is_given:
                    yield f"{name} with a dataset of [data]; expected it for files only, so leave it out"
            elif not is_given:
                yield f"there is no {name}; expected {expected_of(SiteForm.model_fields[name])}"

    def _person_clashes(self, data: DataEntry | None) -> Iterator[str]:
        is_person = self.limits.unit == "person"
        if self.person is not None and not is_person:
            yield f'person with unit="{self.limits.unit}" in [limits]; expected unit = "person" there, or leave it out'
        elif is_person and data is not None and data.dataset is not None:
            yield f'unit="person" with dataset="{data.dataset}", whose records are of different persons; leave it out'
        elif is_person and self.person is None:
            yield f'there is no person; expected {_PERSON}, for unit = "person" in [limits]'
        if self.person is not None and self.person in (self.target, *(self.columns or ())):
            yield f"person={self.person!r} is the target or one of columns; an id is never a feature"


def site_names(data: DataEntry) -> list[str]:
    """The sites' names, if they are known without reading a record; else none."""
    count = data.sites or 0
    return [f"site-{m + 1:0{len(str(count))}d}" for m in range(count)]
