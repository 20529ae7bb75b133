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
from tacit.study.program import Program
from tacit.tables.facts import Facts
from tacit.tables.table import Table

EXAMPLE_SLOTS = 1000  # if the study gives none
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
    parts += ["", "[limits]", *map(_line, _limits(study, entry, len(names)))]
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
        yield "target", study.settings.target, ""
        yield "columns", columns, "what studies may use"
    if entry is not None:
        yield "slots", entry.slots or EXAMPLE_SLOTS, "public; at least as many as there are records"


def _limits(study: StudyFile, entry: SiteEntry | None, sites: int) -> Iterator[_Line]:
    given, plan = study.settings, study.plan
    epsilon = given.epsilon if entry is None or entry.epsilon is None else entry.epsilon
    if epsilon == math.inf:
        raise ValueError(f"study={study.path}: epsilon=inf, which no site's ledger can pay; expected a budget")
    yield "epsilon", epsilon, "the budget of these records over all studies, not of this one alone"
    yield "delta", given.delta if entry is None or entry.delta is None else entry.delta, ""
    yield "least_noise", LEAST_NOISE, "the least noise multiplier of a single release"
    yield "models", [plan.model], ""
    yield "methods", [plan.method], ""
    yield "unit", plan.unit, "the unit of privacy; it cannot be changed later"
    yield "adjacency", plan.adjacency, ""
    yield "studies", [plan.name], "any study, if left out"
    yield "most_rounds", plan.rounds, "1000, if left out"
    if plan.allow_large_delta:
        yield "allow_large_delta", True, "delta may be 1 / slots or more: a record may be published as it is"
    if plan.secure_sum:
        colluding = max(1, Program(plan).tolerance(sites).colluding)
        yield "colluding", colluding, "the number of colluding sites that is tolerated"


def _facts(facts: Facts) -> Iterator[str]:
    yield from ("", "[facts]  # what is public about the columns")
    if facts.classes is not None:
        yield _line(("classes", facts.classes, "the first counts as 0"))
    for title, known in (("bounds", facts.bounds), ("categories", facts.categories)):
        if known:
            yield from ("", f"[facts.{title}]", *(_line((name, value, "")) for name, value in known.items()))


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
    used = {*columns, given.target}
    bounds = {name: pair for name, pair in facts.bounds.items() if name in used}
    facts = Facts(bounds, {name: labels for name, labels in facts.categories.items() if name in used}, facts.classes)
    with refusing_at(study.path):
        Table.of_facts(str(given.target), study.plan.model, columns, facts)
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
