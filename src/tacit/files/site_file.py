"""A checked site file: what a site lets studies see of its records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tacit.basics.schema import shown
from tacit.files.forms import DataEntry, SiteForm
from tacit.files.refusals import read_form, refusing_at
from tacit.files.spread import Spread, encoded_table, listed_with, spread_dataset, spread_file
from tacit.files.study_file import check_beside, check_slots, count_of, facts_of
from tacit.links import link_of
from tacit.study.own_models import is_name
from tacit.study.sites import slots_by_size
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table


class Unfit(ValueError):
    """A site cannot take part with its records. The message stays at the site; `public` may go to others."""

    def __init__(
        self, words: str, public: str = "the records do not fit the site's own file; its log says why"
    ) -> None:
        super().__init__(words)
        self.public = public


@dataclass(frozen=True)
class SiteFile:
    """A checked site file: its `settings`, and the site's own public `facts`."""

    path: Path
    settings: SiteForm
    facts: Facts

    @property
    def kit_folder(self) -> Path:
        """The folder of the start-up kit."""
        return self.path.parent / self.settings.kit

    @property
    def state_folder(self) -> Path:
        """The folder of the ledger, the answers and the audit log."""
        return self.path.parent / self.settings.state

    @cached_property
    def slots(self) -> int:
        """The public number of slots for records. The public data of [data] are read for it; a file is not."""
        if self.settings.slots is not None:
            return self.settings.slots
        with self._unfit():
            given = self.settings
            spread = self._spread(given.columns, given.target, given.limits.every_model[0])
            sizes = [count_of(spread.part(site)) for site in range(len(spread.names))]
            return slots_by_size(sizes)[self._own(spread)]

    def table(self, columns: Sequence[str] | None, target: str | None, model: str) -> Table:
        """The records as a study asks for them, encoded by the site's own facts.

        columns, target: what the study names; None for the file's own. The `public` words of an `Unfit` contain no
        value of a record, no number of records and no path.
        """
        explained = self._explained(columns, target, model)
        columns = self._granted(columns, target, model)
        with self._unfit():
            if isinstance(self.settings.data, DataEntry):
                spread = self._spread(columns, explained, model)
                return spread.part(self._own(spread))
            facts, person = self._facts(explained, model), self.settings.person
            frame = read_frame(self.path.parent / self.settings.data, listed_with(facts, explained, person), "data")
            found = encoded_table(frame, explained, model, columns, facts, person)
            check_slots(found, self.settings.slots)
            return found

    def check(self) -> None:
        """Raise `Unfit` if the records, as a whole, do not fit the file.

        Call it before any study is seen: whether records fit reveals something of them, so it must not depend on what a
        study asks.
        """
        if isinstance(self.settings.data, str):
            with self._unfit():
                check_beside(
                    self.path.parent / self.settings.data,
                    f"expected it as {self.settings.state}/ledger.sqlite, with its budget and rule in [limits], or "
                    "elsewhere, to count apart",
                )
        for model in self.settings.limits.every_model:
            self.table(None, None, model)

    def public_table(self, columns: Sequence[str] | None, target: str | None, model: str) -> Table:
        """The same table without records. None is read, except public records of a data set."""
        explained = self._explained(columns, target, model)
        columns = self._granted(columns, target, model)
        with self._unfit():
            if columns is None:
                return self._dataset.table.without_records()
            return Table.of_facts(explained, model, columns, self._facts(explained, model))

    def _explained(self, columns: Sequence[str] | None, target: str | None, model: str) -> str | None:
        """The column to explain: the file's own, unless a model of the user's own is asked for without one."""
        is_without = is_name(model) and columns is not None and target is None
        return None if is_without else self.settings.target

    def _granted(self, columns: Sequence[str] | None, target: str | None, model: str) -> list[str] | None:
        """The columns for a study, if the site grants what it asks for; always None, which is all, for a data set."""
        given = self.settings
        with self._unfit():
            offered = list(self._dataset.table.names if given.columns is None else given.columns)
        others = [name for name in columns or () if name not in offered]
        words = None
        if model not in given.limits.every_model:
            words = f"model={shown(model)} is none of the site's; expected one of {', '.join(given.limits.every_model)}"
        elif target not in (None, given.target):
            words = f"target={shown(target)} is not the site's; expected the one that it offers"
        elif others:
            words = f"columns name {shown(others[0])}, which the site does not offer; expected some of its own"
        elif columns is not None and (not columns or len(set(columns)) < len(columns)):
            words = "columns are empty, or name one twice; expected each once"
        elif given.columns is None and columns is not None and list(columns) != offered:
            words = "columns choose among those of a data set; expected all of them, so leave columns out"
        if words is not None:
            raise Unfit(f"site={self.path}: {words}", words)
        if given.columns is None:
            return None
        return list(given.columns if columns is None else columns)

    def check_facts(self, model: str) -> None:
        """Refuse facts that are not enough for a model."""
        target = self.settings.target
        Table.of_facts(target, model, self.settings.columns or (), self._facts(target, model))

    def _facts(self, target: str | None, model: str) -> Facts:
        """The site's facts, for one model: the target's classes, or its bounds; classes are those of a target alone."""
        is_number = target is None or (not is_name(model) and link_of(model).target.is_number)
        return replace(self.facts, classes=None) if is_number else self.facts

    @contextmanager
    def _unfit(self) -> Iterator[None]:
        try:
            with refusing_at(self.path, what="site"):
                yield
        except ValueError as error:
            raise Unfit(str(error)) from None

    @cached_property
    def _dataset(self) -> Spread:
        assert isinstance(self.settings.data, DataEntry)
        return spread_dataset(self.settings.data)

    def _spread(self, columns: Sequence[str] | None, target: str | None, model: str) -> Spread:
        data = self.settings.data
        assert isinstance(data, DataEntry)
        if data.dataset is not None:
            return self._dataset
        facts, person = self._facts(target, model), self.settings.person
        return spread_file(self.path.parent / str(data.file), data, target, model, columns, facts, person)

    def _own(self, spread: "Spread") -> int:
        if self.settings.name not in spread.names:
            raise ValueError(f"name={self.settings.name!r} is none of the sites of [data]; expected one of its groups")
        return spread.names.index(self.settings.name)


def read_site(path: Path) -> SiteFile:
    """Read and check a site file, but not its records. A ValueError names the file, the field and a remedy."""
    given = read_form(path, "site", SiteForm)
    with refusing_at(path, what="site"):
        found = SiteFile(path, given, facts_of(given.facts, path.parent))
        for model in given.limits.every_model if given.columns is not None else ():
            found.check_facts(model)
    return found
