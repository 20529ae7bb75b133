"""The agreement: what all processes of a study must agree on. It holds no record, no path and no code."""

import math
import sys
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import from_json

from tacit.basics.plain import finite
from tacit.basics.schema import Root, Section
from tacit.files.forms import MOST_SLOTS, can_name_folder
from tacit.files.study_file import StudyFile
from tacit.study import own_models
from tacit.study.plan import NATURAL, Plan, VISettings
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.table import Table

FORMAT = 3
MOST_ROUNDS = 10_000  # a site makes a list this long, however few rounds it is asked for
MOST_STEPS = 100_000  # of an update of method "vi", which cannot be interrupted
MOST_RECORDS = 10**8  # of persons at a site: room is made for `most_records` of each
MOST_BUDGETS = 100  # different ones: noise is calibrated for each
LONGEST_TEXT = 200  # characters


def _check_text(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= LONGEST_TEXT:
        raise ValueError("a name is not printable text")
    return text


class SiteTerms(Section):
    """A site of the study: its name, its budget of this study and its public number of slots."""

    name: str
    epsilon: float = Field(gt=0, le=sys.float_info.max, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    slots: int = Field(gt=0, le=MOST_SLOTS)


class TableForm(Section):
    """The public facts of the encoded table, which all sites must share."""

    names: list[str]
    numbers: list[int]
    low: list[float | None]
    high: list[float | None]
    classes: list[Any] | None

    @classmethod
    def of(cls, table: Table) -> "TableForm":
        """The form of a table, as plain data."""
        ends = {end: [finite(number) for number in getattr(table, end)] for end in ("low", "high")}
        labels = None if table.classes is None else [_plain(label) for label in table.classes]
        return cls(names=list(table.names), numbers=list(table.numbers), **ends, classes=labels)


class Agreement(Root):
    """The plan, the columns as the study names them and as they are encoded, and the sites with their budgets.

    columns and target are None for a data set that has its own. source: the hash of the source of a model "module:name"
    (`study.own_models`), which is not loaded here; None for others.
    """

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    plan: Plan
    source: str | None
    columns: list[str] | None
    target: str | None
    table: TableForm
    sites: list[SiteTerms]

    @model_validator(mode="after")
    def _check(self) -> "Agreement":
        target = () if self.target is None else (self.target,)
        for text in (self.plan.name, *(self.columns or ()), *target, *(site.name for site in self.sites)):
            _check_text(text)
        # A model of a site's own is not loaded here: it may sample, and then slots enter the price.
        is_named, rate = self.plan.is_named, self.plan.sampling_rate
        is_sampled = rate < 1 or is_named or self.plan.method_used not in NATURAL
        budgets = {(site.epsilon, site.delta, site.slots if is_sampled else 0) for site in self.sites}
        if len(budgets) > MOST_BUDGETS:
            raise ValueError(f"its sites have more than {MOST_BUDGETS} different budgets or, for samples, slots")
        records = (self.plan.most_records or 1) * max((site.slots for site in self.sites), default=1)
        if records > max(MOST_RECORDS, *(site.slots for site in self.sites)):
            raise ValueError(f"its sites have room for more than {MOST_RECORDS} records of persons")
        if self.plan.is_named != (self.source is not None):
            raise ValueError("its source is the hash of a model's own, and of no other")
        if self.source is not None and not own_models.SOURCE.fullmatch(self.source):
            raise ValueError("its source is no hash")
        if not can_name_folder(self.plan.name):
            raise ValueError("its name cannot name a folder")
        for name, value, most in (
            ("rounds", self.plan.rounds, MOST_ROUNDS),
            ("steps", self.plan.vi.steps, MOST_STEPS),
        ):
            if value is not None and value > most:
                raise ValueError(f"its {name} are more than {most}")
        return self

    @classmethod
    def of(cls, study: StudyFile) -> "Agreement":
        """The agreement of a study file. No site's records are read."""
        if not isinstance(study.settings.model, str):
            raise ValueError(f"study={study.path}: its model is an object; expected a name over a network")
        sites, _ = study.outline()
        if study.plan.trusts_coordinator:
            raise ValueError(
                f"study={study.path}: noise={study.plan.noise!r} needs a coordinator that is trusted with sums; "
                'expected unit = "record" or noise = "per-site" over a network'
            )
        if any(math.isinf(site.epsilon) for site in sites):
            raise ValueError(f"study={study.path}: epsilon=inf, which no site's ledger can pay; expected a budget")
        table, given = sites[0].table, study.settings
        own = given.data is not None and given.data.dataset is not None
        try:
            return cls(
                plan=study.plan.replace(model=study.settings.model),
                source=study.source,
                columns=None if own else [kind["name"] for kind in table.schema["columns"]],
                target=None if own else given.target,
                table=TableForm.of(table),
                sites=[
                    SiteTerms(name=site.name, epsilon=site.epsilon, delta=site.delta, slots=site.slots or 0)
                    for site in sites
                ],
            )
        except ValueError as error:
            raise ValueError(f"study={study.path}: {error}, over a network") from None

    def to_json(self) -> bytes:
        """As JSON: equal agreements have equal text."""
        return (self.model_dump_json(indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Agreement":
        """Read an agreement from elsewhere. Anything else is refused, in one sentence."""
        try:
            plain = from_json(data, allow_inf_nan=False)
            if not isinstance(plain, dict) or set(plain) != set(cls.model_fields):
                raise ValueError("it has other fields than this version of tacit knows")
            for settings, form in ((plain["plan"], Plan), (plain["plan"]["vi"], VISettings)):
                lacking = set(form.model_fields) - set(settings)
                if lacking:  # another version's defaults would make another plan
                    raise ValueError(f"its plan has no {min(lacking)}")
            return cls(**plain)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            words = " ".join(str(error).split())
            raise ValueError(
                f"the study that was sent cannot be read ({words}); use the same version of tacit"
            ) from None

    def setup(self, table: Table, own: str | None = None, records: Table | None = None, model: Any = None) -> Setup:
        """The study's set-up. table: without records. records: those of the site `own`. model: a named one, loaded."""
        plan = self.plan.replace(model=model) if self.plan.is_named and model is not None else self.plan
        sites = [
            Site(
                site.name,
                records if site.name == own and records is not None else table,
                site.epsilon,
                site.delta,
                slots=site.slots,
            )
            for site in self.sites
        ]
        return Setup(plan, sites, is_remote=True)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
