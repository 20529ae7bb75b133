"""The agreement: what every party of a study must know alike. It holds no record, no path and no code."""

import json
import math
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tacit.config import MOST_PLACES, Settings, Study, VISettings, can_name_folder
from tacit.data.tables import Table
from tacit.study import Member, Plan, Setup

FORMAT = 1
MOST_ROUNDS = 10_000  # a site makes a list of them, however few it will be asked for
MOST_STEPS = 100_000  # of an update of method "vi", which cannot be interrupted
MOST_BUDGETS = 100  # that differ: noise is calibrated for each


@dataclass(frozen=True)
class Agreement:
    """The plan, the columns as the study names them, what they come to, and who takes part, with what budget.

    columns and target are None for a data set that has its own. form: the public facts of the encoded table.
    """

    plan: Plan
    columns: tuple[str, ...] | None
    target: str | None
    form: dict[str, Any]
    sites: tuple[tuple[str, float, float, int], ...]  # name, ε, δ, places for records

    @classmethod
    def of(cls, study: Study) -> "Agreement":
        """From a study file. No site's records are read."""
        members, _ = study.outline()
        if study.plan.is_pooled:
            raise ValueError(
                f"study={study.path}: noise={study.plan.noise!r} needs a coordinator that is trusted with sums; "
                'expected unit = "record" or noise = "per-site" over a network'
            )
        if any(math.isinf(member.epsilon) for member in members):
            raise ValueError(f"study={study.path}: epsilon=inf, which no site's ledger can pay; expected a budget")
        try:
            _check_plan(study.plan)
        except ValueError as error:
            raise ValueError(f"study={study.path}: {error}, over a network") from None
        table, given = members[0].table, study.settings
        own = given.data is not None and given.data.dataset is not None
        columns = None if own else tuple(kind["name"] for kind in table.schema["columns"])
        sites = tuple((member.name, member.epsilon, member.delta, _places(member)) for member in members)
        return cls(study.plan, columns, None if own else given.target, form_of(table), sites)

    def to_json(self) -> bytes:
        """One text for one agreement."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Agreement":
        """Read what came from elsewhere; a ValueError in one sentence if it is not an agreement."""
        try:
            plain = json.loads(data)
            if plain.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            known = {field.name: field.type for field in fields(Plan)}
            settings = plain["plan"]
            if set(settings) != set(known) or set(plain) != {field.name for field in fields(cls)}:
                raise ValueError("it has other fields than this version of tacit knows")
            for name, value in settings.items():
                _check_type(name, value, known[name])
            _text(settings["name"])
            sites = tuple(_site(*entry) for entry in plain["sites"])
            if len({(epsilon, delta) for _, epsilon, delta, _ in sites}) > MOST_BUDGETS:
                raise ValueError(f"its sites have more than {MOST_BUDGETS} different budgets")
            columns = plain["columns"] if plain["columns"] is None else tuple(map(_text, plain["columns"]))
            target = plain["target"] if plain["target"] is None else _text(plain["target"])
            form = plain["form"]
            if not isinstance(form, dict) or set(form) != {"names", "numbers", "low", "high", "classes"}:
                raise ValueError("its columns are not described")
            plan = Plan(**settings)
            _check_plan(plan)
            return cls(plan, columns, target, form, sites)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"the study that was sent cannot be read ({error}); use the same version of tacit"
            ) from None

    def setup(self, table: Table, own: str | None = None, records: Table | None = None) -> Setup:
        """The plan as it comes to its sites. table: without records. records: of the site that is `own`."""
        members = [
            Member(name, records if name == own and records is not None else table, epsilon, delta, places=places)
            for name, epsilon, delta, places in self.sites
        ]
        return Setup(self.plan, members, is_remote=True)


def form_of(table: Table) -> dict[str, Any]:
    """The public facts of a table that all sites must share, as plain data."""
    ends = {end: [_finite(number) for number in getattr(table, end)] for end in ("low", "high")}
    classes = None if table.classes is None else [_plain(label) for label in table.classes]
    return {"names": list(table.names), "numbers": list(table.numbers), **ends, "classes": classes}


def _places(member: Member) -> int:
    assert member.places is not None  # an outline has them
    return member.places


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _check_type(name: str, value: Any, expected: Any) -> None:
    """Plans are plain data; each value must be of the type that its field has."""
    try:
        TypeAdapter(expected).validate_python(value, strict=True)
    except ValidationError:
        raise ValueError(f"its {name} is of another type") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its {name} is not finite")


def _check_plan(plan: Plan) -> None:
    """A plan that came as a message keeps the rules of study files. Its name will be that of a folder at every site."""
    plain = asdict(plan)
    steps = {name: plain.pop(name) for name in VISettings.model_fields}
    plain |= {"model": plain.pop("link"), "schedule_seed": plain.pop("seed"), "vi": steps}
    try:
        Settings.model_validate(plain)
    except ValidationError as errors:
        place = ": ".join(map(str, errors.errors()[0]["loc"]))
        raise ValueError(f"its {place} is none that a study can have") from None
    if not can_name_folder(plan.name):
        raise ValueError("its name cannot name a folder")
    for name, most in (("rounds", MOST_ROUNDS), ("steps", MOST_STEPS)):
        if getattr(plan, name) > most:
            raise ValueError(f"its {name} are more than {most}")


def _site(name: Any, epsilon: Any, delta: Any, places: Any) -> tuple[str, float, float, int]:
    numbers = all(type(value) in (int, float) for value in (epsilon, delta)) and type(places) is int
    if not numbers or not (0 < epsilon <= sys.float_info.max and 0 < delta < 1 and 0 < places <= MOST_PLACES):
        raise ValueError("the budget or the places of a site are no sensible numbers")
    return _text(name), float(epsilon), float(delta), places


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
        raise ValueError("a name is no printable text")
    return value
