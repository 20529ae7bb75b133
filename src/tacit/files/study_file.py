"""A checked study file: its sites with their records, and the folder that it claims."""

import hashlib
import json
import math
import reprlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.basics import durable
from tacit.basics.schema import LONGEST_NAME, expected_of
from tacit.files.forms import SHARMA, DataEntry, SiteEntry, StudyForm, site_names
from tacit.files.refusals import read_form, refusing_at
from tacit.files.spread import encoded_table, listed_with, spread_dataset, spread_file
from tacit.privacy.ledger import Ledger
from tacit.study import own_models
from tacit.study.charging import beside
from tacit.study.plan import Plan
from tacit.study.sites import Site, slots_by_size
from tacit.tables.facts import PAID, Facts
from tacit.tables.files import bookkeeping, read_frame
from tacit.tables.table import Table


def _own_ledgers(out: Path) -> list[Path]:
    """The ledgers that a study in this folder has made."""
    return [*out.glob("sites/*/ledger.sqlite"), *out.glob("coordinator/ledger.sqlite")]


def _is_unspent(out: Path) -> bool:
    """Whether nothing was charged for the study of a folder: no trace of a round, here or reported by a remote site."""
    told = out / "notes.json"
    notes = json.loads(told.read_text(encoding="utf-8")).values() if told.exists() else ()
    traces = [*out.rglob("*.progress"), *out.rglob("*.store"), *out.glob("history.json")]
    is_charged = any(Ledger.open(path).entries() for path in _own_ledgers(out))
    return not traces and not is_charged and not any(note.get("events") for note in notes)


def _make_room(out: Path) -> None:
    """Delete the study of a folder for which nothing was charged: its ledgers have no entry."""
    noted = ("study.json", "consents.json", "notes.json", "status.json", "settings.json")
    for path in [*_own_ledgers(out), *(out / name for name in noted)]:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class StudyFile:
    """A checked study file: its `settings`, and the `plan` and `facts` made of them.

    A model "module:name" is loaded in `plan`; `source` is the hash of its source.
    """

    path: Path
    settings: StudyForm
    plan: Plan
    facts: Facts
    source: str | None = None

    @property
    def data_words(self) -> str:
        """The source of the records, for a reader of the result."""
        data = self.settings.data
        if data is None:
            return f"{len(self.settings.sites)} sites with files of their own"
        split = (
            f"distribution {data.split} of Sharma et al. (2019)" if data.split in SHARMA else f"split {data.split!r}"
        )
        return f"{data.dataset or data.file}, one data set, spread over simulated sites by {split}"

    def gather(self) -> tuple[list[Site], Table | None]:
        """The sites with their records, and the public test set, if there is one. Reads; spends nothing."""
        self._check_ledgers(self.settings.sites)
        if self.settings.data is not None:
            return self._spread_out(self.settings.data)
        sites = self._own_files(self.settings.sites)
        return sites, self._test(sites)

    def outline(self) -> tuple[list[Site], Table | None]:
        """`gather` from public facts only: tables without rows, and the slots of each site.

        No file or ledger of a site is opened. The data of [data], which must be public, are read.
        """
        self._check_ledgers([])
        if self.settings.data is None:
            sites = self._outlined(self.settings.sites)
            return sites, self._test(sites)
        sites, test = self._spread_out(self.settings.data)
        slots = slots_by_size([count_of(site.table) for site in sites])
        return [
            replace(site, table=site.table.without_records(), slots=own) for site, own in zip(sites, slots, strict=True)
        ], test

    def names(self) -> list[str]:
        """The sites' names. No site's own file is read; public data are, where only they have the names."""
        data = self.settings.data
        if data is None:
            return [entry.name for entry in self.settings.sites]
        return site_names(data) or [site.name for site in self._spread_out(data)[0]]

    def budgets(self) -> list[tuple[float, float]]:
        """(ε, δ) of each site that the file names, or one pair for all; nothing is read."""
        given = self.settings
        pairs = [(entry.epsilon, entry.delta) for entry in given.sites] or [(None, None)]
        found = [(given.epsilon if e is None else e, given.delta if d is None else d) for e, d in pairs]
        return [(e, d) for e, d in found if e is not None and d is not None]

    def claim(self, out: Path) -> None:
        """Note in the folder which study it is for, or refuse one that holds another. Call it before any spending.

        The engine identifies a study by its plan and budgets, not by its target, classes or files. Another study may
        replace one for which nothing was charged, such as one that sites refused.
        """
        path, mine = out / "settings.json", self._noted()
        try:
            if path.exists() and json.loads(path.read_text(encoding="utf-8")) != mine and _is_unspent(out):
                _make_room(out)
            if path.exists():
                theirs = json.loads(path.read_text(encoding="utf-8"))
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
                durable.write(path, json.dumps(mine, indent=2) + "\n")
        except OSError as error:
            raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None

    def _noted(self) -> dict[str, Any]:
        """The settings that identify this study, as read back from JSON. The test set is left out: it costs nothing."""
        given = self.settings.model_dump(include={"epsilon", "delta", "target", "columns", "data", "site", "ledger"})
        for entry in given["site"] or ():
            if entry["slots"] is None:  # as in folders begun before there were slots
                del entry["slots"]
        if self.settings.person is not None:
            given["person"] = self.settings.person
        if self.source is not None:
            given["source"] = self.source
        whole = {**self.plan.identity(), **given, "facts": asdict(self.facts)}
        return json.loads(json.dumps(whole), parse_constant=str)  # JSON has no infinity

    def _path(self, name: str) -> Path:
        return self.path.parent / name

    def _check_ledgers(self, sites: Sequence[SiteEntry]) -> None:
        """Refuse ledgers that cannot be charged for this study, before any is charged."""
        made: dict[str, str] = {}  # the first place with each ledger, by the ledger's genesis
        entries: list[tuple[str, str | None, float | None]] = [("", self.settings.ledger, None)]
        entries += [(f"site {entry.name}", entry.ledger, entry.delta) for entry in sites]
        for place, path, own in entries:
            if path is None:
                continue
            with refusing_at(self.path, place):
                ledger = Ledger.open(self._path(path))
                other = made.setdefault(ledger.genesis, place)
                if other != place:  # also a link, or a copy, which misses what is charged to the other
                    raise ValueError(f"it has the ledger of {other}; expected each site's own")
                delta = self.settings.delta if own is None else own
                if ledger.delta != delta:
                    raise ValueError(f"delta={delta}, and {ledger.delta} in its ledger; expected the ledger's")
                if (ledger.unit, ledger.adjacency) != (self.plan.unit, self.plan.adjacency):
                    raise ValueError(
                        f"its ledger is for each {ledger.unit} ({ledger.adjacency}); expected one for each "
                        f"{self.plan.unit} ({self.plan.adjacency}), as in the study"
                    )

    def _spread_out(self, data: DataEntry) -> tuple[list[Site], Table | None]:
        """Sites that share the data of [data], and the public test set."""
        given = self.settings
        with refusing_at(self.path, "data"):
            if data.dataset is not None:
                spread = spread_dataset(data)
            else:
                shape = given.target, str(given.model), given.columns, self.facts, given.person
                spread = spread_file(self._path(str(data.file)), data, *shape)
        assert given.epsilon is not None
        assert given.delta is not None
        sites = [
            Site(name, spread.part(m), given.epsilon, given.delta, self._ledger(given.ledger))
            for m, name in enumerate(spread.names)
        ]
        if self.settings.is_named:
            return sites, None
        return sites, spread.test if data.dataset is not None else self._test(sites)

    def _own_files(self, entries: Sequence[SiteEntry]) -> list[Site]:
        from tacit.study.sites import check_apart

        sites, columns, given = [], self.settings.columns, self.settings
        with refusing_at(self.path):
            _check_apart([(entry.name, self._path(entry.file)) for entry in entries if entry.file is not None])
        for entry in entries:
            with refusing_at(self.path, f"site {entry.name}"):
                if entry.file is None:
                    raise ValueError(
                        "there is no file; expected the name of a CSV or Parquet file of its records, or `tacit serve` "
                        "for a study over a network"
                    )
                if (entry.ledger or given.ledger) is None:
                    check_beside(self._path(entry.file), self._remedy(entry))
                frame = read_frame(self._path(entry.file), listed_with(self.facts, given.target, given.person), "file")
                others = (given.target, given.person, *bookkeeping(frame))
                names = [name for name in map(str, frame.columns) if name not in others]
                if columns is None:  # all files take the order of the first
                    columns = names
                more = [name for name in names if name not in columns]
                if more and given.columns is None:
                    raise ValueError(
                        f"column {more[0]!r} is not in the file of {entries[0].name}; expected the same ones, or a "
                        "list of columns above all tables"
                    )
                table = self._table(frame, columns, given.person)
                check_slots(table, entry.slots)
            sites.append(self._site(entry, table, entry.ledger or given.ledger))
        with refusing_at(self.path):
            check_apart(sites)
        return sites

    def _remedy(self, entry: SiteEntry) -> str:
        """The place to name the ledger of a site's file."""
        if math.inf in (entry.epsilon, self.settings.epsilon if entry.epsilon is None else None):
            return "expected a finite epsilon, because a ledger cannot count what is published exactly"
        if self.plan.trusts_coordinator:
            return 'expected ledger = "..." above all tables, of the coordinator, which then counts apart'
        return 'expected its name as ledger = "..." in this [[site]], or that of another one, which then counts apart'

    def _outlined(self, entries: Sequence[SiteEntry]) -> list[Site]:
        given = self.settings
        with refusing_at(self.path):
            if given.columns is None:
                raise ValueError(
                    'there is no columns; expected a list of them above all tables, as columns = ["age", "sex"], since '
                    "a study over a network has no file to take them from"
                )
            table = Table.of_facts(given.target, str(given.model), given.columns, self.facts)
        for entry in entries:
            if entry.slots is None:
                with refusing_at(self.path, f"site {entry.name}"):
                    raise ValueError(f"slots is missing; expected {expected_of(SiteEntry.model_fields['slots'])}")
        return [self._site(entry, table, given.ledger) for entry in entries]

    def _site(self, entry: SiteEntry, table: Table, ledger: str | None) -> Site:
        epsilon = self.settings.epsilon if entry.epsilon is None else entry.epsilon
        delta = self.settings.delta if entry.delta is None else entry.delta
        assert epsilon is not None
        assert delta is not None
        return Site(entry.name, table, epsilon, delta, self._ledger(ledger), slots=entry.slots)

    def _ledger(self, name: str | None) -> Path | None:
        return None if name is None else self._path(name)

    def _test(self, sites: Sequence[Site]) -> Table | None:
        """The public test set, encoded as the sites' records are."""
        if self.settings.test is None:
            return None
        with refusing_at(self.path, "test"):
            schema = sites[0].table.schema
            frame = read_frame(self._path(self.settings.test.file), self.facts.listed(self.settings.target), "file")
            test = self._table(frame, [kind["name"] for kind in schema["columns"]])
            if test.names != sites[0].table.names or test.classes != sites[0].table.classes:
                raise ValueError("its columns hold other kinds of values than the sites'; expected the same kinds")
        return test

    def _table(self, frame: Any, columns: Sequence[str] | None, person: str | None = None) -> Table:
        given = self.settings
        return encoded_table(frame, given.target, str(given.model), columns, self.facts, person)


def _check_apart(files: Sequence[tuple[str, Path]]) -> None:
    """Refuse sites whose files are one, by a link or a copy: neither site's budget alone would protect its records.

    Copies in another order or form are found once they are read (`study.check_apart`).
    """
    seen: dict[Any, str] = {}
    for name, path in files:
        try:
            known = path.stat()
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # refused where the file is read
            continue
        for mark in ((known.st_dev, known.st_ino), content):
            other = seen.setdefault(mark, name)
            if other != name:
                raise ValueError(
                    f"site {name}: file={path.name!r} holds the same records as that of site {other}, by a link or a "
                    "copy; expected each site's own records"
                )


def check_beside(path: Path, remedy: str) -> None:
    """Refuse a file of records whose budget is counted in a ledger beside it, which is not the one to be charged."""
    own = beside(path)
    if own.exists():
        raise ValueError(f"file={path.name!r} has the ledger {own.name} beside it, which 'tacit fit' charges; {remedy}")


def check_slots(table: Table, slots: int | None) -> None:
    """Refuse too few slots, in words that do not say how many records, or persons, there are."""
    if slots is not None and count_of(table) > slots:
        what = "records" if table.groups is None else "persons"
        raise ValueError(f"slots={slots} and more {what}; expected a slot for each, so raise slots")


def count_of(table: Table) -> int:
    """How many records a table has, or persons, if it says whose they are."""
    return len(table.target) if table.groups is None else len(set(table.groups))


def facts_of(given: str | dict[str, Any] | None, folder: Path) -> Facts:
    """Public facts: from a file beside the study file, in place, or none."""
    if isinstance(given, str):
        return Facts.read(folder / given, "facts")
    return Facts() if given is None else Facts.from_dict(given, "facts")


def read_study(path: Path) -> StudyFile:
    """Read and check a study file. A ValueError names the file, the field and a remedy."""
    given = read_form(path, "study", StudyForm, name=path.stem[:LONGEST_NAME])
    with refusing_at(path):
        facts = facts_of(given.facts, path.parent)
        _check_facts(given, facts)
        plan, source = _loaded(given)
    return StudyFile(path, given, plan, facts, source)


def _loaded(given: StudyForm) -> tuple[Plan, str | None]:
    """The plan with its model, and the hash of the model's source if it is the user's own."""
    plan = given.plan
    if not plan.is_named:
        return plan, None
    source = own_models.Source.of(plan.model).digest
    return plan.replace(model=own_models.load(plan.model, source)), source


def _check_facts(given: StudyForm, facts: Facts) -> None:
    """Refuse facts that do not fit the model, as far as this shows without a file."""
    if given.target is None:
        return
    if given.is_named:
        if facts.classes is None and given.target not in facts.bounds:
            raise ValueError(
                f"facts: neither classes nor bounds of the target {given.target!r}; give its labels as facts.classes, "
                "or [low, high] in [facts.bounds], which are public"
            )
        return
    assert given.link is not None
    if given.link.target.is_number:
        if facts.classes is not None:
            raise ValueError(f'facts: classes with model="{given.model}", whose target is a number; leave them out')
        if given.target not in facts.bounds:
            raise ValueError(
                f"facts: no bounds of the target {given.target!r}; give [low, high], which are public, or "
                f'"{PAID}" in [facts.bounds]'
            )
    elif facts.classes is not None and len(facts.classes) != 2 and given.link.target.has_two_classes:
        raise ValueError(f"facts: {len(facts.classes)} classes; expected 2 for a {given.model} model")
