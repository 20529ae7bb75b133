"""Remote sites. The coordinator trusts nothing that they say."""

import json
import math
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.basics import durable
from tacit.basics.words import now
from tacit.engines.coordinator import Answer, Away, Fault, Transport
from tacit.federated.messages import Broadcast, Refusal, Update, decode, encode
from tacit.federated.secure_aggregator import SecureAggregator
from tacit.network.channel import Failed, Lost, Post, Reply
from tacit.network.notes import OF_LEDGERS, bare, sound_note
from tacit.network.scales import asdict_of
from tacit.network.site_session import HELLO
from tacit.privacy import events
from tacit.privacy.events import Event, NonPrivate, Repeated, compose
from tacit.privacy.ledger import words_of
from tacit.privacy.statement import Statement
from tacit.study.folder import name_of
from tacit.study.program import INFERENCE
from tacit.study.setup import Setup
from tacit.study.statements import ABSENT, ADAPTIVE, SILENT, assumptions
from tacit.study.transport import SecureTransport
from tacit.tables.scaling import Scaling

MOST_NOTE = 2**20  # characters of a note
GREETING = 300.0  # seconds for which a site may take to read its records and greet
MOST_SHARE = 2000  # bytes that a site sends for each other one: a name twice, two shares and their framing
ELSEWHERE = "Each site keeps its own ledger, where its other studies count too; this statement covers this study alone."
AWAY = "The site was away at the end: this is the larger of what it last reported and what the plan has."


class Remote:
    """The sites of a study, each behind its certificate. A `study.Host`."""

    is_remote = True

    def __init__(self, setup: Setup, post: Post, place: Path, *, forgives: bool) -> None:
        """place: the file of the sites' notes, also those of earlier sessions."""
        self.setup, self.post, self.place, self.forgives = setup, post, place, forgives
        self.names, self.study = [account.name for account in setup.accounts], name_of(setup)
        self.aggregators: dict[str, SecureAggregator] = {}  # of phases of inference, where sums are secure
        known = json.loads(place.read_text()) if place.exists() else {}
        self.notes: dict[str, dict[str, Any]] = {name: known.get(name, {}) for name in self.names}
        self.heard: dict[str, str] = {}
        self.refusing: dict[str, str] = {}
        self._here = self.greet()

    def greet(self) -> set[str]:
        """Ask all connected sites for notes: what they spent, and their last rounds. Returns who answered."""
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
        """Keep the sound parts of a site's note. They are shown, and enter only that site's statement."""
        try:
            found = json.loads(reply.note) if len(reply.note) <= MOST_NOTE else {}
        except (ValueError, RecursionError):
            found = {}
        kept = sound_note(found, self._made(self.names.index(name))) if isinstance(found, dict) else {}
        old = self.notes[name]
        # A release stays a release, whatever a later note says.
        for key in ("events", "rounds", "updates", "spent", *OF_LEDGERS, "rule", "raised", "key"):
            if not kept.get(key) and old.get(key):
                kept[key] = old[key]
        kept["seeded"] = bool(kept.get("seeded") or old.get("seeded"))
        self.notes[name] = kept
        self.heard[name] = now()
        durable.write(self.place, json.dumps(self.notes))

    def _made(self, place: int) -> dict[Event, int]:
        """The releases of a site by the plan, and the most of each, with room for some that were lost."""
        setup, plan, program = self.setup, self.setup.plan, self.setup.program
        most = 10 * (program.rounds + 1) * program.steps
        units = setup.sites_each if plan.unit == "site" else setup.slots[place]
        made = (mechanism.level_events(units, plan.unit, 0) for mechanism in setup.mechanisms[place].values())
        return dict.fromkeys((bare(event) for levels in made for event in levels), most)

    def consents(self) -> dict[str, str | Away]:
        """The sites' replies to the greeting. A site that did not mention this study does not accept it."""
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

    def open(self, phase: str, study: str, scaling: Scaling | None) -> Transport:
        line = Line(self, phase, scaling)
        if self.setup.tolerance is None:
            return line
        terms = self.setup.terms(phase, study, self._roster(), scaling)
        aggregator = SecureAggregator(
            terms, self.setup.form(phase, scaling), partial(line.ask_all, study), self.place.with_name(f"{phase}.store")
        )
        if phase in INFERENCE:
            self.aggregators[phase] = aggregator
        return SecureTransport(aggregator)

    def _roster(self) -> dict[str, bytes]:
        """The keys that sites say are theirs. Sites get each other's keys another way, and compare."""
        keys = {name: note.get("key") for name, note in self.notes.items()}
        lacking = [name for name, key in keys.items() if key is None]
        if lacking:
            why = self.notes[lacking[0]].get("refusal") or "it was not here yet"
            raise ValueError(f"the key of {lacking[0]} for secure sums is not known ({why}); begin with all sites")
        return {name: bytes.fromhex(key) for name, key in keys.items() if key is not None}

    def absent(self) -> dict[str, str]:
        latest = [self.aggregators[phase] for phase in INFERENCE if phase in self.aggregators]
        return latest[-1].absent if latest else {}

    def last_rounds(self, phase: str) -> dict[int, int]:
        if self.setup.tolerance is not None:  # only the coordinator's store has the answers to secure sums
            return {}
        return {place: self.notes[name].get("rounds", {}).get(phase, -1) for place, name in enumerate(self.names)}

    def spent(self) -> dict[str, float]:
        return {name: note.get("spent", math.nan) for name, note in self.notes.items()}

    def totals(self) -> dict[str, tuple[float, float]]:
        pairs = {name: (note.get("ledger_spent"), note.get("budget")) for name, note in self.notes.items()}
        return {name: (spent, budget) for name, (spent, budget) in pairs.items() if spent is not None and budget}

    def updates(self) -> dict[str, int]:
        if self.setup.tolerance is not None:
            present = [aggregator.present for aggregator in self.aggregators.values()]
            return {name: sum(made.get(name, 0) for made in present) for name in self.names}
        told = {name: note.get("updates", {}) for name, note in self.notes.items()}
        return {name: sum(made.get(phase, 0) for phase in INFERENCE) for name, made in told.items()}

    def is_seeded(self) -> bool:
        return any(note.get("seeded") for note in self.notes.values())

    def statements(self, present: Collection[str]) -> dict[str, Statement | str]:
        """The statement of each site, on what it says that it released for this study.

        A site that is in the result has released something: if it says nothing, the statement is on all that the plan
        has. A site that is not in the result has a statement only on what it says.
        """
        told = self.greet()
        found: dict[str, Statement | str] = {}
        for place, (name, account) in enumerate(zip(self.names, self.setup.accounts, strict=True)):
            note, planned = self.notes[name], self.setup.cost(place) or NonPrivate()
            events_told = [Repeated(events.from_dict(event), count) for event, count in note.get("events", [])]
            if not events_told and name not in present:
                has_said = "events" in note or note.get("refusal")
                found[name] = (ABSENT if has_said else SILENT).format(name=name)
                continue
            choices = [compose(*events_told)] if events_told else [planned]
            notes = [*assumptions(self.setup, place), ELSEWHERE]
            notes += [ADAPTIVE.format(words=_rule_words(note, account.delta))] if "rule" in note else []
            if events_told and name in present and name not in told:  # it may have released more than it could say
                choices.append(planned)
                notes.append(AWAY)
            made = [
                Statement.of(
                    event,
                    account.delta,
                    seeded=self.is_seeded() if self.setup.tolerance else bool(note.get("seeded")),
                    adjacency=self.setup.plan.adjacency,
                    notes=tuple(notes),
                )
                for event in choices
            ]
            found[name] = max(made, key=lambda statement: statement.epsilon)
        return found


class Line:
    """Messages of one phase to all sites: an `engines.coordinator.Transport`."""

    def __init__(self, host: Remote, phase: str, scaling: Scaling | None) -> None:
        self.host, self.phase = host, phase
        self.sent = {} if scaling is None else {"scaling": jax.tree.map(np.asarray, asdict_of(scaling))}
        self.repeats = getattr(host.post, "repeats", False)  # whether a post may deliver answers late, or twice
        self.gone: list[int] = []  # asked, and not connected
        shape = self.host.setup.answer_shape(phase)
        # The numbers of an answer, and their framing.
        self.most = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shape)) + 4096
        if host.setup.tolerance is not None:  # integers of 64 bits, and shares for each other site
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
        """Send each site its content, and wait for an answer from each, or the reason why there is none."""
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
            return Fault("it sent a message that is not an answer")
        return answer if answer.site == name else Fault(f"its answer is signed {answer.site!r}")


def _rule_words(note: Mapping[str, Any], delta: float) -> str:
    """The coverage of a site's ledger, in words. A site may hide its budget, but not that it was raised."""
    budgets = {"budget": note.get("budget"), "first": note.get("first_budget")}
    return words_of(note["rule"], delta, is_raised="raised" in note, **budgets)
