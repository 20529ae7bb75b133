"""The folder of a study: its name, what it is bound to, its history."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.basics import durable
from tacit.study.setup import Setup
from tacit.study.sites import COORDINATOR
from tacit.tables.table import Table


def name_of(setup: Setup) -> str:
    """The name under which a study is charged. Plans, columns, budgets or slots that differ have names that differ.

    It contains their whole hash. With secure sums, sites sign this name and so agree on everything in it. With a
    shorter hash, a coordinator could find two plans of one name and have sites add different noise to one sum.
    """
    return f"{setup.plan.name}-{_mark(setup)}"


def shortened(name: str) -> str:
    """The name of a study for terminals: the first letters of its hash."""
    return re.sub("-([0-9a-f]{12})[0-9a-f]{52}(?=$|/)", r"-\1", name)


def _mark(setup: Setup) -> str:
    facts = _facts(setup.table)
    budgets = [(site.name, site.epsilon, site.delta) for site in setup.sites]
    plain = json.dumps([setup.plan.identity(), facts, budgets, setup.slots], sort_keys=True, default=str)
    return hashlib.sha256(plain.encode()).hexdigest()


def _facts(table: Any) -> list[Any]:
    """The public facts of records: of a table's columns, or the forms of arrays."""
    if isinstance(table, Table):
        return [table.names, table.numbers, table.low.tolist(), table.high.tolist(), table.classes]
    leaves, form = jax.tree.flatten(table)
    return [str(form), [(np.shape(leaf)[1:], str(np.asarray(leaf).dtype)) for leaf in leaves]]


def claim(setup: Setup, folder: Path) -> None:
    """Refuse a folder with another study in it."""
    path, mark = folder / "study.json", _mark(setup)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if json.loads(path.read_text(encoding="utf-8")).get("plan") != mark:
                raise ValueError(
                    f"out={folder} holds a study with another plan, whose budget is spent; take a new folder"
                )
        elif any([*folder.glob("sites/*/ledger.sqlite"), *folder.glob(f"{COORDINATOR}/ledger.sqlite")]):
            raise ValueError(f"out={folder} holds ledgers and no study.json; take a new folder")
        else:
            durable.write(path, json.dumps({"plan": mark}) + "\n")


def bound_to(folder: Path, what: str) -> dict[str, str]:
    """The notes of study.json for each account since the start of the study. what: "ledgers" or "held_out"."""
    return json.loads((folder / "study.json").read_text(encoding="utf-8")).get(what, {})


def bind(folder: Path, **found: Mapping[str, str]) -> None:
    """Note in study.json what a study begins with. Earlier notes stay."""
    path = folder / "study.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    whole = known | {what: {**marks, **known.get(what, {})} for what, marks in found.items()}
    if whole != known:
        durable.write(path, json.dumps(whole) + "\n")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn disk errors inside into a refusal of one sentence."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"out={folder}: {error.strerror}; expected a folder that can be written to") from None


class History:
    """Rows of rounds, kept beside the study so that a resumed one has them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def changes(self, what: str, done: int, now: Mapping[str, float | None]) -> dict[str, float]:
        """The values of `now` that differ from those in the rows of earlier rounds, by name."""
        known: dict[str, float] = {}
        for row in self.rows:
            if row["round"] < done:
                known |= row.get(what, {})
        return {name: value for name, value in now.items() if value and value != known.get(name)}

    def last(self, what: str) -> dict[str, Any]:
        """The value of each name after all rows."""
        known: dict[str, Any] = {}
        for row in self.rows:
            known |= row.get(what, {})
        return known

    def add(self, row: dict[str, Any]) -> None:
        """Append a row. It replaces rows of this and later rounds that an earlier process wrote."""
        self.rows = [old for old in self.rows if old["round"] < row["round"]] + [row]
        durable.write(self.path, json.dumps(self.rows))
