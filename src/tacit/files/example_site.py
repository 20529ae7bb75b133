"""The text of a site file, to be looked over and edited at the site."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tacit.basics.schema import LONGEST_NAME
from tacit.files.forms import LEAST_NOISE, SiteEntry, can_name_folder
from tacit.files.refusals import refusing_at
from tacit.files.study_file import StudyFile
from tacit.privacy import filters
from tacit.study.program import Program
from tacit.study.setup import Setup
from tacit.tables.facts import PAID, Facts
from tacit.tables.table import Table

EXAMPLE_SLOTS, EXAMPLE_PERSON = 1000, "person"  # if the study gives none
_COMMENTS = 28  # where comments begin, if there is room
_Line = tuple[str, Any, str]  # name, value, comment


def example_site(study: StudyFile, name: str) -> str:
    """The text of a site file for one site of a study, to be looked over and edited at the site.

    A ValueError names what the study lacks: public facts about its columns, or a budget.
    """
    names = study.names()
    if name not in names or not can_name_folder(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"site={name!r} is not a site of the study; expected one of {', '.join(names[:10])}, with a name that can "
            "name a folder"
        )
    entry = next((entry for entry in study.settings.sites if entry.name == name), None)
    columns, facts = _public_columns(study)
    parts = [f"# A site of the study {_toml(study.plan.name)}. Look it over and edit it; it stays at the site.", ""]
    parts += map(_line, _top(study, name, entry, columns))
    parts += ["", "[limits]", *map(_line, _limits(study, name, len(names)))]
    if study.source is not None:
        own = f"{_toml(str(study.settings.model))} = {_toml(study.source)}"
        why = "runs here: install it, read its source, compare 'tacit study hash', and only then take away the #"
        parts += ["", f"[limits.own_models]  # {why}", f"# {own}"]
    parts += [
        "",
        "[shares]",
        _line(("spent", True, "whether the coordinator is told what was spent")),
        _line(("evaluation", True, "whether private scores on held-out records may be asked for")),
    ]
    if study.plan.secure_sum:
        parts += [
            "",
            "[peers]  # keys from 'tacit network key', told by the sites themselves and not by the coordinator",
        ]
        parts += [f'# {_toml(other)} = "64 hexadecimal digits"' for other in names if other != name]
    if study.settings.data is not None:
        parts += ["", "[data]  # public records, to try the study out: the site has the part with its name"]
        parts += [_line((name, value, "")) for name, value in study.settings.data.model_dump(exclude_none=True).items()]
    return "\n".join([*parts, *(_facts(facts) if columns else ())]) + "\n"


def _top(study: StudyFile, name: str, entry: SiteEntry | None, columns: Sequence[str]) -> Iterator[_Line]:
    yield "name", name, "as in its certificate"
    yield "kit", "kit", "the folder of the start-up kit; paths are relative to this file"
    yield "state", "state", "the folder of the ledger and the answers; never put an older copy back"
    if entry is not None:
        yield "data", entry.file or "records.csv", "the records, CSV or Parquet"
    if columns:
        if study.settings.target is not None:
            yield "target", study.settings.target, ""
        if study.plan.unit == "person":
            person = study.settings.person or EXAMPLE_PERSON
            yield "person", person, "the column with each record's person, under this site's own name"
        yield "columns", columns, "what studies may use"
    if entry is not None:
        yield "slots", entry.slots or EXAMPLE_SLOTS, "public; at least as many as there are records"


def _limits(study: StudyFile, name: str, sites: int) -> Iterator[_Line]:
    given, plan, program = study.settings, study.plan, Program(study.plan, sites=sites)
    entry = next((entry for entry in given.sites if entry.name == name), None)
    epsilon = given.epsilon if entry is None or entry.epsilon is None else entry.epsilon
    if epsilon == math.inf:
        raise ValueError(f"study={study.path}: epsilon=inf, which no site's ledger can pay; expected a budget")
    yield (
        "epsilon",
        _budget(study, name, epsilon),
        "the budget of these records over all studies, not of this one alone",
    )
    yield "delta", given.delta if entry is None or entry.delta is None else entry.delta, ""
    yield "least_noise", LEAST_NOISE, "the least noise multiplier of a single release"
    if study.source is None:
        yield "models", [plan.model], ""
    yield "methods", [plan.method_used], ""
    if plan.is_natural and plan.sampling_rate < 1 and plan.adjacency == "add-remove":
        yield "rule", "renyi", "for samples of records"
    yield "unit", plan.unit, "the unit of privacy; it cannot be changed later"
    yield "adjacency", plan.adjacency, ""
    yield "studies", [plan.name], "any study, if left out"
    yield "most_rounds", program.rounds, "1000, if left out"
    if plan.allow_large_delta:
        yield "allow_large_delta", True, "delta may be 1 / slots or more: a record may be published as it is"
    if plan.secure_sum:
        colluding = max(1, program.tolerance(sites).colluding)
        yield "colluding", colluding, "the number of colluding sites that is tolerated"


def _budget(study: StudyFile, name: str, epsilon: Any) -> float:
    """A budget with room for the study, by the rule of the site's ledger.

    A rule that also holds for studies that are chosen later prices samples above the study's own ε.
    """
    given, plan = study.settings, study.plan
    is_sampled = not plan.is_natural or plan.sampling_rate < 1
    is_known = given.data is not None or (given.columns is not None and all(one.slots for one in given.sites))
    if not is_sampled or not is_known or plan.trusts_coordinator or plan.is_published:
        return epsilon
    sites, _ = study.outline()
    place = [site.name for site in sites].index(name)
    event = Setup(plan, sites, is_remote=True).cost(place)
    assert event is not None
    rule: Any = None if plan.is_natural or plan.adjacency == "replace-one" else "renyi"
    return filters.first(event, epsilon, sites[place].delta, plan.adjacency, rule)


def _facts(facts: Facts) -> Iterator[str]:
    yield from ("", "[facts]  # what is public about the columns")
    if facts.classes is not None:
        yield _line(("classes", facts.classes, "the first counts as 0"))
    for title, known in (("bounds", facts.bounds), ("categories", facts.categories)):
        lines = (_line((name, PAID if value is None else value, "")) for name, value in known.items())
        if known:
            yield from ("", f"[facts.{title}]", *lines)


def _public_columns(study: StudyFile) -> tuple[list[str], Facts]:
    """The columns of a study (none for a data set) and the public facts about them, checked to suffice for a site."""
    given, facts = study.settings, study.facts
    if given.data is not None and given.data.dataset is not None:
        return [], facts
    columns = given.columns
    if columns is None and given.data is not None:
        columns = [kind["name"] for kind in study.outline()[0][0].table.schema["columns"]]
    elif columns is None:
        columns = [name for name in (*facts.bounds, *facts.categories) if name != given.target]
    used = {*columns, *([] if given.target is None else [given.target])}
    bounds = {name: pair for name, pair in facts.bounds.items() if name in used}
    facts = Facts(bounds, {name: labels for name, labels in facts.categories.items() if name in used}, facts.classes)
    with refusing_at(study.path):
        Table.of_facts(given.target, str(given.model), columns, facts)
    return columns, facts


def _line(entry: _Line) -> str:
    """A line of TOML: name, value and, if there is one, a comment."""
    name, value, comment = entry
    words = f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else _toml(name)} = {_toml(value)}"
    return f"{words:{_COMMENTS}}  # {comment}" if comment else words


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() if value >= 2**63:
            return hex(value)  # Python writes no integer of 5,000 digits in decimal
        case str():
            # A JSON string is a TOML string, except for one character that TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
