"""The coordinator's side: its view of sites elsewhere, of which it believes nothing, and the study's state on disk.

| file of `--out`     | what                                                                            |
|---------------------|---------------------------------------------------------------------------------|
| `*.progress`        | where each phase is; written after every step, and before a site is asked        |
| `status.json`       | what `tacit network status` shows                                                |
| `sight.json`        | the posterior and the scores as they move, where `tacit serve --dashboard` asks  |
| `notes.json`        | what each site last said of itself                                               |
| `log.jsonl`         | a line for every event: sessions, rounds, refusals, sites that went and came     |
| `withdraw/NAME`     | a request to divide a site's factor out of the posterior                         |
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tacit
from tacit.config import Study
from tacit.engines.coordinator import Answer, Away, Courier, Deserted, Fault
from tacit.engines.nvflare import Failed, Lost, Post, Reply
from tacit.federated.assembly import Assembly
from tacit.federated.messages import LAST_ROUND, LONGEST_REASON, Broadcast, Refusal, Update, decode, encode
from tacit.network.agreement import Agreement
from tacit.network.station import HELLO, PHASES, asdict_of
from tacit.privacy import accounting, events
from tacit.privacy.events import Composed, Event, Gaussian, NonPrivate, Repeated, TruncatedPoissonSampled, compose
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import words_of
from tacit.privacy.statement import Statement
from tacit.scaling import Scaling
from tacit.study import ABSENT, ADAPTIVE, SILENT, UNTRUSTED, Gathering, Setup, Sight, conduct, name_of

MOST_NOTE = 2**20  # characters of a note
GREETING = 300.0  # seconds for which a site may take to read its records and greet
_OF_LEDGERS = ("ledger_spent", "budget", "first_budget")  # what a note says of a ledger, if the site shares it
MOST_NUMBERS = 2**30  # of a release
MOST_SHARE = 2000  # bytes of what a site sends for another one: a name twice, two shares and what is said of them
ELSEWHERE = "Each site keeps its own ledger, where its other studies count too; this statement is of this study alone."
AWAY = "The site was away at the end: this is the larger of what it last told and what the plan has."
PUBLIC = "Ranges of numeric columns are public bounds; categories, classes and places for records are public."


class Remote:
    """The sites of a study, each behind its certificate. A `study.Host`."""

    is_remote = True

    def __init__(self, setup: Setup, post: Post, place: Path, *, forgives: bool) -> None:
        """place: the file of what sites said of themselves, also in earlier sessions."""
        self.setup, self.post, self.place, self.forgives = setup, post, place, forgives
        self.names, self.study = [owner.name for owner in setup.owners], name_of(setup)
        self.assembly: Assembly | None = None  # of the inference, where sums are secure
        known = json.loads(place.read_text()) if place.exists() else {}
        self.notes: dict[str, dict[str, Any]] = {name: known.get(name, {}) for name in self.names}
        self.heard: dict[str, str] = {}
        self.refusing: dict[str, str] = {}
        self._here = self.greet()

    def greet(self) -> set[str]:
        """Ask all sites that are here for their notes: what they have spent, and the last rounds; who told them."""
        here = [name for name in self.names if name in self.post.sites]
        for name in here:
            self.post.ask(name, HELLO, GREETING)
        told = set()
        for _ in here:
            name, reply = self.post.receive()
            if isinstance(reply, Reply):
                self.note(name, reply)
                told.add(name)
        return told

    def note(self, name: str, reply: Reply) -> None:
        """Keep what a site says of itself, of what an honest one would; it is shown, and enters its statement alone."""
        try:
            found = json.loads(reply.note) if len(reply.note) <= MOST_NOTE else {}
        except (ValueError, RecursionError):
            found = {}
        sound = _sound(found, self._made(self.names.index(name))) if isinstance(found, dict) else {}
        old = self.notes[name]
        # What was released stays so, whatever is said later.
        for key in ("events", "rounds", "updates", "spent", *_OF_LEDGERS, "rule", "raised", "key"):
            if not sound.get(key) and old.get(key):
                sound[key] = old[key]
        sound["seeded"] = bool(sound.get("seeded") or old.get("seeded"))
        self.notes[name] = sound
        self.heard[name] = now()
        put(self.place, json.dumps(self.notes))

    def _made(self, place: int) -> dict[Event, int]:
        """What a site's releases are by the plan, and how many at most, with room for some that were lost."""
        setup, plan = self.setup, self.setup.plan
        most = 10 * (plan.rounds + 1) * (plan.steps if plan.method == "vi" else 1)
        slots = setup.slots if plan.unit == "site" else setup.capacities[place]
        made = (mechanism.level_events(slots, plan.unit, 0) for mechanism in setup.mechanisms[place].values())
        return dict.fromkeys((_bare(event) for levels in made for event in levels), most)

    def consents(self) -> dict[str, str | Away]:
        """As sites said when they were greeted: one that says nothing of this study does not accept it."""
        found: dict[str, str | Away] = {}
        for name in self.names:
            note = self.notes[name]
            if name not in self._here or name not in self.post.sites:
                found[name] = Away("it is not connected" if name not in self.post.sites else "it did not answer")
            elif note.get("refusal"):
                found[name] = note["refusal"]
            else:
                found[name] = "" if note.get("study") == self.study else Away("it did not say that it takes part")
        return found

    def leave_out(self, refusing: Mapping[str, str]) -> None:
        self.refusing = dict(refusing)

    def open(self, phase: str, study: str, scaling: Scaling | None) -> Courier:
        line = Line(self, phase, scaling)
        if self.setup.trust is None:
            return line
        terms = self.setup.terms(phase, study, self._roster())
        assembly = Assembly(
            terms, self.setup.form(phase, scaling), partial(line.ask_all, study), self.place.with_name(f"{phase}.store")
        )
        if phase == "inference":
            self.assembly = assembly
        return Gathering(assembly)

    def _roster(self) -> dict[str, bytes]:
        """The keys that sites say are theirs. Sites have each other's from elsewhere, and compare."""
        keys = {name: note.get("key") for name, note in self.notes.items()}
        lacking = [name for name, key in keys.items() if key is None]
        if lacking:
            why = self.notes[lacking[0]].get("refusal") or "it was not here yet"
            raise ValueError(f"the key of {lacking[0]} for secure sums is not known ({why}); begin with all sites")
        return {name: bytes.fromhex(key) for name, key in keys.items() if key is not None}

    def absent(self) -> dict[str, str]:
        return {} if self.assembly is None else self.assembly.absent

    def last_rounds(self, phase: str) -> dict[int, int]:
        if self.setup.trust is not None:  # what all sites together have answered is in the coordinator's store alone
            return {}
        return {place: self.notes[name].get("rounds", {}).get(phase, -1) for place, name in enumerate(self.names)}

    def spent(self) -> dict[str, float]:
        return {name: note.get("spent", math.nan) for name, note in self.notes.items()}

    def totals(self) -> dict[str, tuple[float, float]]:
        pairs = {name: (note.get("ledger_spent"), note.get("budget")) for name, note in self.notes.items()}
        return {name: (spent, budget) for name, (spent, budget) in pairs.items() if spent is not None and budget}

    def updates(self) -> dict[str, int]:
        if self.setup.trust is not None:
            return dict.fromkeys(self.names, 0) if self.assembly is None else dict(self.assembly.present)
        return {name: note.get("updates", {}).get("inference", 0) for name, note in self.notes.items()}

    def is_seeded(self) -> bool:
        return any(note.get("seeded") for note in self.notes.values())

    def statements(self, present: Collection[str]) -> dict[str, Statement | str]:
        """What each site says that it released for this study.

        What is in the result was released, so a site that is in it and says nothing has released what the plan has at
        most. One that is not in it has no statement but of what it says.
        """
        told = self.greet()
        found: dict[str, Statement | str] = {}
        whom = UNTRUSTED if self.setup.trust is None else self.setup.trust.words
        for place, (name, party) in enumerate(zip(self.names, self.setup.owners, strict=True)):
            note, planned = self.notes[name], self.setup.cost(place) or NonPrivate()
            events_told = [Repeated(events.from_dict(event), count) for event, count in note.get("events", [])]
            if not events_told and name not in present:
                has_said = "events" in note or note.get("refusal")
                found[name] = (ABSENT if has_said else SILENT).format(name=name)
                continue
            choices = [compose(*events_told)] if events_told else [planned]
            notes = [PUBLIC, whom, *self.setup.remarks(place), ELSEWHERE]
            notes += [ADAPTIVE.format(words=_rule_words(note, party.delta))] if "rule" in note else []
            if events_told and name in present and name not in told:  # it may have released more than it could say
                choices.append(planned)
                notes.append(AWAY)
            made = [
                Statement.of(
                    event,
                    party.delta,
                    seeded=self.is_seeded() if self.setup.trust else bool(note.get("seeded")),
                    adjacency=self.setup.plan.adjacency,
                    notes=tuple(notes),
                )
                for event in choices
            ]
            found[name] = max(made, key=lambda statement: statement.epsilon)
        return found


class Line:
    """Messages of one phase to all sites: an `engines.coordinator.Courier`."""

    def __init__(self, host: Remote, phase: str, scaling: Scaling | None) -> None:
        self.host, self.phase = host, phase
        self.sent = {} if scaling is None else {"scaling": jax.tree.map(np.asarray, asdict_of(scaling))}
        self.repeats = getattr(host.post, "repeats", False)  # whether a post hands answers on late, or twice
        self.gone: list[int] = []  # asked, and not connected
        shape = self.host.setup.answer_shape(phase)
        # The numbers of an answer, and what is said around them.
        self.most = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shape)) + 4096
        if host.setup.trust is not None:  # integers of 64 bits, and something for each of the others
            self.most = 2 * self.most + MOST_SHARE * len(host.names)

    def send(self, site: int, broadcast: Broadcast) -> None:
        if self.host.names[site] not in self.host.post.sites:
            self.gone.append(site)
            return
        whole = Broadcast(broadcast.study, broadcast.round, {**self.sent, "content": broadcast.content})
        self.host.post.ask(self.host.names[site], encode(whole))

    def receive(self) -> tuple[int, Answer]:
        if self.gone:
            return self.gone.pop(), Away("it is not connected")
        name, reply = self.host.post.receive()
        site = self.host.names.index(name)
        if isinstance(reply, Lost):
            return site, Away(reply.reason)
        if isinstance(reply, Failed):
            return site, Fault(reply.reason)
        self.host.note(name, reply)
        return site, self._judged(name, reply.data)

    def ask_all(self, study: str, round: int, contents: Mapping[str, Any]) -> dict[str, Update | str]:
        """Send a content to each of some sites, and wait for what comes of it: an answer, or why there is none."""
        found: dict[str, Update | str] = {name: why for name, why in self.host.refusing.items() if name in contents}
        asked = {name: content for name, content in contents.items() if name not in found}
        waiting = {self.host.names.index(name): int(content["stage"]) for name, content in asked.items()}
        for site in waiting:
            self.send(site, Broadcast(study, round, contents[self.host.names[site]]))
        while waiting:
            site, answer = self.receive()
            if site not in waiting:
                continue
            if isinstance(answer, Update):
                fits = isinstance(answer.content, dict) and answer.content.get("stage") == waiting[site]
                if self.repeats and not (fits and (answer.study, answer.round) == (study, round)):
                    continue  # late, or again
                found[self.host.names[site]] = answer
            else:
                found[self.host.names[site]] = answer.reason
            del waiting[site]
        return found

    def _judged(self, name: str, data: bytes) -> Answer:
        if len(data) > self.most:
            return Fault(f"its answer has {len(data)} bytes, more than the study's {self.most}")
        try:
            answer = decode(data)
        except ValueError as error:
            return Fault(f"its answer cannot be read: {error}")
        if not isinstance(answer, Update | Refusal):
            return Fault("its answer is no answer")
        return answer if answer.site == name else Fault(f"its answer is signed {answer.site!r}")


# --- The state that can be looked at ------------------------------------------------------------------------------


class Status:
    """`status.json` and `log.jsonl` of a study: no data, and nothing that was not released."""

    def __init__(self, out: Path, name: str, setup: Setup) -> None:
        self.out, self.name, self.setup = out, name, setup
        self._said: dict[str, str] = {}

    def show(
        self, host: Remote, phase: str, done: int, total: int, away: Mapping[str, str], left: Mapping[str, str]
    ) -> None:
        """Write where the study is."""
        spent, updates, totals = host.spent(), host.updates(), host.totals()
        sites, left = {}, {**host.refusing, **left}
        for party in self.setup.owners:
            reason = left.get(party.name) or away.get(party.name) or ""
            state = "left out" if party.name in left else "away" if party.name in away else "here"
            sites[party.name] = {
                "state": state,
                "updates": updates[party.name],
                "spent": spent[party.name] if math.isfinite(spent[party.name]) else None,
                "epsilon": party.epsilon,
                **dict(zip(("ledger_spent", "budget"), totals.get(party.name, (None, None)), strict=True)),
                "heard": host.heard.get(party.name),
                "reason": reason,
            }
            if self._said.get(party.name, "here") != state:
                self.log("site", site=party.name, state=state, reason=reason)
                self._said[party.name] = state
        self.log("step", phase=phase, done=done, of=total)
        secure = {} if self.setup.trust is None else {"secure_sum": True}
        self._write({"phase": phase, "done": done, "of": total, "sites": sites, **secure})

    def fail(self, reason: str) -> None:
        self.log("failed", reason=reason)
        self._write({"phase": "failed", "failed": reason, "sites": {}})

    def _write(self, plain: dict[str, Any]) -> None:
        put(self.out / "status.json", json.dumps({"study": self.name, "time": now(), **plain}, indent=1))

    def log(self, event: str, **more: Any) -> None:
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps({"time": now(), "event": event, "study": self.name, **more}) + "\n")


def withdrawn(out: Path, names: Sequence[str]) -> Collection[int]:
    """Sites whose withdrawal was asked for."""
    folder = out / "withdraw"
    return [names.index(place.name) for place in folder.iterdir() if place.name in names] if folder.is_dir() else ()


def now() -> str:
    """The time, for those who read logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _sound(note: Mapping[str, Any], made: Mapping[Event, int]) -> dict[str, Any]:
    """What of a note has the form of an honest one: all else could stop the study, or keep its accountant busy.

    made: the releases that the site's plan has, and how many of them to believe.
    """
    found: dict[str, Any] = {}
    for name in ("study", "refusal"):
        if isinstance(text := note.get(name), str):  # it is shown on terminals and written into pages
            found[name] = text[:LONGEST_REASON] if text.isprintable() else "(words that cannot be shown)"
    if isinstance(key := note.get("key"), str) and re.fullmatch("[0-9a-f]{64}", key):
        found["key"] = key
    if isinstance(rule := note.get("rule"), str) and (rule in accounting.ACCOUNTANTS or Filter.read(rule)):
        found["rule"] = rule
    if note.get("raised") is True:
        found["raised"] = True
    for name in ("spent", *_OF_LEDGERS):
        if type(note.get(name)) in (int, float) and 0 <= note[name] <= sys.float_info.max:
            found[name] = float(note[name])
    for name, least in (("rounds", -1), ("updates", 0)):
        given = note.get(name)
        numbers = {phase: given.get(phase) for phase in PHASES} if isinstance(given, dict) else {}
        found[name] = {phase: n for phase, n in numbers.items() if type(n) is int and least <= n <= LAST_ROUND}
    try:
        parts = [Repeated(events.from_dict(event), count) for event, count in note["events"]]
        counts: Counter[Event] = Counter()
        for part in parts:
            for event, count in _leaves(part):
                counts[_bare(event)] += count
        distinct = {event for part in parts for event, _ in _leaves(part)}
        if len(distinct) <= 2 * len(made) and all(count <= made.get(event, 0) for event, count in counts.items()):
            found["events"] = [[events.to_dict(part.event), part.steps] for part in parts]
    except (KeyError, TypeError, ValueError):
        pass
    return found | {"seeded": note.get("seeded") is True}


def _rule_words(note: Mapping[str, Any], delta: float) -> str:
    """What a site's ledger covers. A site may keep its budget to itself, but not that it was raised."""
    budgets = {"budget": note.get("budget"), "first": note.get("first_budget")}
    return words_of(note["rule"], delta, is_raised="raised" in note, **budgets)


def _leaves(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """Single releases of an event, and how many of each."""
    if isinstance(event, Repeated):
        yield from _leaves(event.event, times * event.steps)
    elif isinstance(event, Composed):
        for part in event.events:
            yield from _leaves(part, times)
    else:
        yield event, times


def _bare(event: Event) -> Event:
    """A release but for how many numbers it has, and for digits of its noise in which machines may differ."""
    if isinstance(event, Gaussian) and event.coordinates <= MOST_NUMBERS:
        return replace(event, noise_multiplier=float(f"{event.noise_multiplier:.6g}"), coordinates=0)
    if isinstance(event, TruncatedPoissonSampled):
        return replace(event, event=_bare(event.event))
    return event


# --- A session ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Session:
    """What one session of a study is conducted with, from where the last one ended.

    at_least: how many sites must accept the study before any is charged; all by default. forgives: sites that refused
    in an earlier session are asked again. is_watched: keep `sight.json` too. watch: is told of the status as it
    changes; say: who does not take part.
    """

    study: Study
    agreement: Agreement
    out: Path
    at_least: int | None = None
    forgives: bool = False
    is_watched: bool = False
    watch: Callable[[Mapping[str, Any]], None] = lambda status: None
    say: Callable[[str], None] = lambda words: None

    def hold(self, post: Post) -> None:
        """Until the study is finished; raises Deserted if nobody is there any more."""
        members, test = self.study.outline()
        setup = self.agreement.setup(members[0].table)
        status = Status(self.out, self.study.plan.name, setup)
        status.log("session", sites=post.sites)
        try:
            self._conduct(setup, test, status, post)
        except Deserted:
            status.log("deserted")
            raise
        except ValueError as error:
            status.fail(str(error))
            raise ValueError(f"the study cannot go on: {error}") from None

    def _conduct(self, setup: Setup, test: Any, status: Status, post: Post) -> None:
        from tacit.report import dashboard, studied

        host = Remote(setup, post, self.out / "notes.json", forgives=self.forgives)

        def observe(phase: str, done: int, total: int, spent: dict[str, float], progress: Any) -> None:
            names = host.names
            away = {names[j]: why for j, why in {**progress.missed, **progress.away}.items()}
            left = {names[j]: why for j, why in progress.refused.items()}
            if setup.trust is not None:  # all sites are one to the engine
                away, left = host.absent(), {}
            status.show(host, phase, done, total, away, left)
            self.watch(read_status(self.out))

        def look(sight: Sight) -> None:
            put(self.out / "sight.json", json.dumps(dashboard.plain(sight)))

        done = conduct(
            setup,
            self.out,
            host,
            test=test,
            observe=observe,
            withdrawn=lambda: withdrawn(self.out, host.names),
            look=look if self.is_watched else None,
            at_least=self.at_least,
            say=self.say,
        )
        about = {
            "version": tacit.__version__,
            "name": self.study.plan.name,
            "model": self.study.settings.model,
            "target": self.study.settings.target,
            "data": f"{len(setup.owners)} sites over a network",
        }
        studied.write(self.out, done, about, 0 if test is None else len(test.target))
        status.log("finished")


def read_status(out: Path) -> dict[str, Any]:
    """Where a study is; empty if it was not begun."""
    try:
        return json.loads((out / "status.json").read_text())
    except (OSError, ValueError):
        return {}


def put(path: Path, text: str) -> None:
    """All or nothing: a reader finds the old file or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
