"""A site's session: its part of one study, within its own limits.

A proposed study is checked against the site's own file before anything is priced: model, method, unit, adjacency,
rounds, budget, noise of every release, columns and bounds. Then each message goes to a `federated.responder.Responder`,
which prices, charges, reads, stores and sends. The ledger, its budget and the noise are the site's; no number in a
message enters the accounting. Every message that is answered is in the audit log before the answer leaves.

The folder `state` beside the data:

| file                     | what                                                                                 |
|--------------------------|--------------------------------------------------------------------------------------|
| `ledger.sqlite`          | what has been spent of the data set's budget, over all studies                       |
| `study-*/*.store`        | the factor and the last answer of each phase, from which a round is answered again   |
| `study-*/scaling.tree`   | the scales of columns that this study uses; they stay (`residual.tree` and           |
|                          | `ranges.tree` too: `network.scales`)                                                 |
| `study-*/held-out.mark`  | a hash of the secret by which this study holds out records                           |
| `identity`               | the key by which the site signs in secure sums                                       |
| `held-out.key`           | the secret by which records are held out of studies                                  |
| `audit.jsonl`            | a line for every message answered, each with the hash of the one before; older ones  |
|                          | are in `audit-0001.jsonl` and so on                                                  |
"""

import fcntl
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.basics import durable
from tacit.federated.held_out import kept_secret, mark_of, seeded_secret
from tacit.federated.messages import Broadcast, Refusal, Update, decode, encode
from tacit.federated.responder import NO_ROOM, SEEDED, Responder
from tacit.federated.secure_responder import SecureResponder
from tacit.federated.secure_terms import MASK, new_identity, public_identity
from tacit.federated.traces import Trace, check_complete, trace_of
from tacit.files.site_file import SiteFile, Unfit
from tacit.network.agreement import Agreement, TableForm
from tacit.network.audit_log import AuditLog
from tacit.network.scales import Scales, StudyRefused
from tacit.privacy import events
from tacit.privacy.allowance import Allowance
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import Entry, Ledger
from tacit.privacy.mechanism import Exact
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.study import own_models
from tacit.study.folder import name_of
from tacit.study.program import PHASES, Program
from tacit.study.setup import Setup
from tacit.tables.scaling import Scaling
from tacit.tables.table import Table

LOCK_PATIENCE = 60.0  # seconds for which a new process waits for an old one of the same site to end
UNWRITABLE = "the site cannot write its audit log; ask those who run it"
HELLO = b"hello"  # a request for the note alone


class SiteSession:
    """`session(request) -> (answer, note)`, in bytes. Made from the site's file and a proposed study.

    If the site does not accept the study, it refuses every message, with the reason.
    """

    def __init__(self, file: SiteFile, study: bytes) -> None:
        self.file, self.name = file, file.settings.name
        self.log = AuditLog(file.state_folder / "audit.jsonl")
        self.study, self.refusal = "unknown", ""
        self._sites: dict[str, Responder | SecureResponder] = {}
        self._lock: Any = None
        self._mark = ""  # the hash of the secret by which records are held out, if any are
        try:
            _make_folder(file.state_folder)
            self._lock = locked(file.state_folder / "lock")
            self._open(study)
            words = "accepted"
        except StudyRefused as error:
            self.refusal = words = str(error)
        except Unfit as error:
            self.refusal, words = error.public, str(error)
        except (
            ValueError,
            ArithmeticError,
            MemoryError,
            OSError,
        ) as error:  # the site's own: words may hold paths
            self.refusal, words = "the site is not ready for this study; ask those who run it", str(error)
        except BaseException:
            self.close()
            raise
        try:
            self._write("refused" if self.refusal else "opened", self.study, 0, study, b"", words)
        except OSError:
            self.refusal = UNWRITABLE

    def _write(self, *entry: Any) -> None:
        """Write a line of the audit log, with the lock only: two processes at once would break its chain."""
        if self._lock is not None:
            self.log.write(*entry)

    def close(self) -> None:
        """Let another process of the same site begin."""
        if self._lock is not None:
            self.log.close()
            self._lock.close()
            self._lock = None

    # --- Before a study ------------------------------------------------------------------------------------------

    def _open(self, study: bytes) -> None:
        try:
            agreement = Agreement.from_json(study)
        except ValueError as error:
            raise StudyRefused(str(error)) from None
        self.agreement, self.plan, self.study = agreement, agreement.plan, agreement.plan.name
        names = [site.name for site in agreement.sites]
        if names.count(self.name) != 1:
            raise StudyRefused(f"the study does not name {self.name}; make the kits anew, or correct the study")
        self.place = names.index(self.name)
        own = agreement.sites[self.place]
        self.epsilon, self.delta = own.epsilon, own.delta
        for reason in self._objections(own.slots):
            raise StudyRefused(reason)
        outline = self.file.public_table(agreement.columns, agreement.target, self.named)
        if TableForm.of(outline) != agreement.table:
            raise StudyRefused(
                "the study's columns, bounds, categories or classes are not this site's; agree on the same facts"
            )
        if self.plan.is_named:
            self._load()
        public = self._public(outline)
        for reason in self._objections_to_program(public):
            raise StudyRefused(reason)
        self._check_noise(public)
        self.study = name_of(public)
        self.folder = self.file.state_folder / folder_of(self.study)
        self.ledger = self._ledger()
        self.allowance = Allowance(self.ledger, self.study, self.epsilon)
        self.least = public.least(self.place)
        self._check_count()
        self._check_budget()
        self.file.check()  # as a whole: the columns that a study asks for must not reveal which of them fit
        records = self.file.table(agreement.columns, agreement.target, self.named)
        seed = self.file.settings.insecure_seed
        self.key = secure_key() if seed is None else insecure_key(seed)
        self.setup = agreement.setup(outline, self.name, records, self.plan.model)
        if self.plan.evaluation:
            secret = self._secret() if seed is None else seeded_secret(seed)
            self.setup = self.setup.splitting({self.name: secret})
        self.scales = Scales(self.folder, self.setup)
        charged = {entry.study for entry in self.ledger.entries()}
        for phase in PHASES:  # the note tells the last rounds of phases begun before
            if (self.folder / f"{phase}.store").exists() or (
                self.plan.secure_sum and f"{self.study}/{phase}" in charged
            ):
                self._site(phase, self.scales.kept(phase))

    @property
    def named(self) -> str:
        """The name of the study's model, as the agreement has it."""
        return self.agreement.plan.model

    def _load(self) -> None:
        """Import a model "module:name", which the site's own file allows, if its source on this disk is the one there.

        Nothing of the module is executed before its hash was compared. What fails is told at the site alone.
        """
        try:
            model = own_models.load(self.named, self.agreement.source)
        except ValueError as error:
            raise Unfit(
                str(error), f"this site does not have {self.named} as its file says; ask those who run it"
            ) from None
        try:
            self.plan = self.plan.replace(model=model)
        except ValueError as error:  # about the plan and the model, which are public
            raise Unfit(str(error), f"the plan does not fit {self.named} ({error})") from None

    def _public(self, outline: Table) -> Setup:
        """The set-up of the study without any record."""
        try:
            return self.agreement.setup(outline, model=self.plan.model)
        except ValueError as error:  # about the plan, the columns and the model: all of them public
            raise Unfit(str(error), f"the study cannot be made of these settings and columns ({error})") from None

    def _secret(self) -> bytes:
        """The secret by which this study holds out records: the one that it began with."""
        mark = self.folder / "held-out.mark"
        secret = kept_secret(self.file.state_folder, mark.read_text() if mark.exists() else None)
        self._mark = mark_of(secret)
        return secret

    def _objections(self, slots: int) -> Iterator[str]:
        """Reasons to refuse the plan, by the limits in the site's own file."""
        plan, limits, shares = self.plan, self.file.settings.limits, self.file.settings.shares
        if limits.studies is not None and plan.name not in limits.studies:
            yield f"study {plan.name!r} is not among those that this site takes part in"
        for what, asked, allowed in (
            ("model", plan.model, limits.every_model),
            ("unit", plan.unit, [limits.unit]),
            ("adjacency", plan.adjacency, [limits.adjacency]),
        ):
            if asked not in allowed:
                yield f"{what}={asked!r} is not allowed here; expected one of {', '.join(allowed)}"
        if plan.is_named and limits.own_models.get(plan.model) != self.agreement.source:
            yield f"model={plan.model!r} has another source than the one that is allowed here; agree on one"
        if plan.trusts_coordinator:
            yield "this study trusts the coordinator with sums; this site takes part only if it adds its own noise"
        if plan.secure_sum:
            yield from self._distrusts()
        if not self.epsilon <= limits.epsilon:
            yield f"epsilon={self.epsilon:g} is asked for; expected at most {limits.epsilon:g} here"
        if self.delta != limits.delta:
            yield f"delta={self.delta:g} is asked for; expected {limits.delta:g}, at which this site keeps its ledger"
        if plan.allow_large_delta and not limits.allow_large_delta:
            yield "allow_large_delta is not allowed here; leave it out"
        if plan.evaluation and not shares.evaluation:
            yield "scores on held-out records are not shared here; leave evaluation out"
        if slots != self.file.slots:
            yield f"slots={slots} in the study; expected {self.file.slots}, this site's public number"

    def _objections_to_program(self, setup: Setup) -> Iterator[str]:
        """Reasons to refuse what the plan leaves open and the model, or the policy, decides."""
        limits, method, rounds = self.file.settings.limits, setup.plan.method_used, setup.program.rounds
        if method not in limits.methods:
            yield f"method={method!r} is not allowed here; expected one of {', '.join(limits.methods)}"
        if rounds > limits.most_rounds:
            yield f"rounds={rounds}; expected at most {limits.most_rounds} here"

    def _distrusts(self) -> Iterator[str]:
        """Reasons to refuse the study's secure sums."""
        names, file = [site.name for site in self.agreement.sites], self.file.settings
        lacking = [name for name in names if name != self.name and name not in file.peers]
        keys = [key.lower() for name, key in file.peers.items() if name in names and name != self.name]
        if lacking:
            yield f"this site has no key of {lacking[0]} in [peers]; ask those who run it, who get it from that site"
        if len({*keys, public_identity(identity_of(self.file.state_folder)).hex()}) <= len(keys):
            yield "two sites have one key in [peers], or one has this site's own; ask those who run it"
        try:
            colluding = Program(self.plan).tolerance(len(names)).colluding
        except ValueError as error:
            yield str(error)
        else:
            if colluding < file.limits.colluding:
                count = "1 colluding site" if colluding == 1 else f"{colluding} colluding sites"
                yield f"the study's secure sums tolerate {count}; this site requires at least {file.limits.colluding}"

    def _roster(self) -> dict[str, bytes]:
        """The keys of all sites: this site's own, and the others' from its file."""
        peers = {name: bytes.fromhex(key) for name, key in self.file.settings.peers.items()}
        own = public_identity(identity_of(self.file.state_folder))
        return {
            name: own if name == self.name else peers[name] for name in (site.name for site in self.agreement.sites)
        }

    def _check_noise(self, setup: Setup) -> None:
        """Refuse a release with less noise than the site asks for, as the site itself computes it."""
        least = self.file.settings.limits.least_noise
        for name, mechanism in setup.mechanisms[self.place].items():
            noise = 0.0 if isinstance(mechanism, Exact) else float(np.min(mechanism.noise_multiplier))
            if not noise >= least:
                raise StudyRefused(
                    f"the noise of {name} would be {noise:.3g} times its clip; expected at least {least:g} here: "
                    "lower epsilon or raise rounds"
                )

    def _ledger(self) -> Ledger:
        """The data set's ledger, made at its first study."""
        path, limits = self.file.state_folder / "ledger.sqlite", self.file.settings.limits
        if not path.exists():
            check_complete(path, None, self._traces(()))
            settings: dict[str, Any] = {
                "unit": limits.unit,
                "adjacency": limits.adjacency,
                "accountant": limits.own_rule,
            }
            return Ledger.create(path, data_set=self.name, epsilon=limits.epsilon, delta=limits.delta, **settings)
        found = Ledger.open(path)
        if (found.epsilon, found.delta, found.adjacency) != (limits.epsilon, limits.delta, limits.adjacency):
            raise ValueError(
                f"ledger={path} has epsilon={found.epsilon}, delta={found.delta}, {found.adjacency}; expected "
                "those of [limits]: a ledger's budget is not changed"
            )
        if found.unit != limits.unit:
            raise ValueError(f"ledger={path} is for each {found.unit}; expected unit = {found.unit!r} in [limits]")
        rule = Filter.read(found.accountant)
        if limits.rule is not None and (rule is None or rule.name != limits.rule):
            raise ValueError(
                f"ledger={path} has the rule {found.accountant}; expected rule = {limits.rule!r} of [limits]: a "
                "ledger's rule is not changed"
            )
        entries = found.entries()
        check_complete(path, entries, self._traces(entries))
        return found

    def _traces(self, entries: Sequence[Entry]) -> Iterator[Trace]:
        """Traces of answers in the audit log and the stores of all studies. entries: the ledger's."""
        answered = self.log.answered()
        for study, round in answered:
            yield Trace(study, frozenset([round]), 0, self.log.path.name)
        studies = dict.fromkeys([*(entry.study for entry in entries), *(study for study, _ in answered)])
        for store in sorted(self.file.state_folder.glob("*/*.store")):
            trace = trace_of(store, self.name, studies)
            if trace is not None:
                yield trace

    def _check_count(self) -> None:
        """Refuse one study too many: however little it costs, its folder and log lines stay."""
        known = {entry.study.rpartition("/")[0] for entry in self.ledger.entries()} | {self.study}
        if len(known) > self.file.settings.limits.most_studies:
            raise StudyRefused("this site has taken part in as many studies as it allows; ask those who run it")

    def _check_budget(self) -> None:
        """Refuse a study that cannot be paid for to its end."""
        tells = self.file.settings.shares.spent
        if reason := self.allowance.objection(self.least, tells=tells):
            raise StudyRefused(reason)

    # --- Messages ------------------------------------------------------------------------------------------------

    def __call__(self, request: bytes) -> tuple[bytes, str]:
        if request == HELLO:
            return b"", self._note()
        try:
            broadcast = decode(request)
            if not isinstance(broadcast, Broadcast):
                raise ValueError("it is not a broadcast")
        except ValueError as error:
            broadcast = Broadcast(self.study, 0, {})
            answer: Update | Refusal = self._refuse(broadcast, f"the message cannot be read: {error}")
        else:
            answer = self._answer(broadcast)
        data = encode(answer)
        kind, words = ("refused", answer.reason) if isinstance(answer, Refusal) else ("answered", "")
        if isinstance(answer, Update) and self.plan.secure_sum and int(answer.content["stage"]) < MASK:
            kind = "exchanged"  # keys, and nothing that is charged
        try:
            self._write(kind, broadcast.study, broadcast.round, request, data, words)
        except OSError:
            data = encode(self._refuse(broadcast, UNWRITABLE))
        return data, self._note()

    def _refuse(self, broadcast: Broadcast, reason: str) -> Refusal:
        return Refusal(broadcast.study, self.name, broadcast.round, reason[:2000])

    def _answer(self, broadcast: Broadcast) -> Update | Refusal:
        if self.refusal:
            return self._refuse(broadcast, self.refusal)
        study, _, phase = broadcast.study.rpartition("/")
        if study != self.study or phase not in PHASES:
            return self._refuse(broadcast, f"study={broadcast.study!r}; this site takes part in {self.study!r} only")
        if phase not in self.setup.phases:
            return self._refuse(broadcast, f"the plan has no {phase}; use the same study file")
        try:
            sent, content = _opened(broadcast.content)
            scaling = self.scales.checked(phase, sent)
            site = self._site(phase, scaling)
        except StudyRefused as error:
            return self._refuse(broadcast, str(error))
        except OSError:
            return self._refuse(broadcast, NO_ROOM)
        except (ValueError, MemoryError):
            return self._refuse(broadcast, "the site is not ready for this study; ask those who run it")
        try:
            answer = site(Broadcast(broadcast.study, broadcast.round, content))
        except (ValueError, ArithmeticError, MemoryError):  # settings with which no update can be made
            answer = self._refuse(broadcast, "no update can be made with these settings; begin a study with others")
        if isinstance(answer, Update):
            try:
                self._begin(phase, scaling)
            except OSError:
                return self._refuse(broadcast, NO_ROOM)
        elif not self.scales.has(phase):
            self._sites.pop(phase, None)  # no answer used the scales that it was made for
        return answer

    def _begin(self, phase: str, scaling: Scaling | None) -> None:
        """Make the study's folder, and note the scales and the secret by which it holds out records.

        This comes after a message is known to be sound, and before any record is read for it.
        """
        self.folder.mkdir(exist_ok=True)
        mark = self.folder / "held-out.mark"
        if self._mark and not mark.exists():
            durable.write(mark, self._mark.encode())
        self.scales.keep(phase, scaling)

    def _site(self, phase: str, found: Scaling | None) -> Responder | SecureResponder:
        """The responder of a phase, made on its first request. found: the scales by which it reads."""
        if phase not in self._sites:
            setup, place = self.setup, self.place
            if self.plan.secure_sum:
                self._sites[phase] = self._secure_responder(phase, found)
                return self._sites[phase]
            algorithm = setup.algorithm(phase, place, found)
            access = setup.access(phase, place, found)
            store = self.folder / f"{phase}.store"
            most = setup.most_updates(phase)
            study = f"{self.study}/{phase}"
            tells = self.file.settings.shares.spent
            self._sites[phase] = Responder(
                *(self.name, study, algorithm, access, self.key, self.allowance, store, most, tells),
                prepare=partial(self._begin, phase, found),
            )
        return self._sites[phase]

    def _secure_responder(self, phase: str, scaling: Scaling | None) -> SecureResponder:
        terms = self.setup.terms(phase, f"{self.study}/{phase}", self._roster(), scaling)
        access, own = self.setup.own_access(phase, self.place, scaling), identity_of(self.file.state_folder)
        return SecureResponder(self.name, terms, access, self.key, self.allowance, own, self.file.settings.shares.spent)

    # --- Notes ---------------------------------------------------------------------------------------------------

    def _note(self) -> str:
        """The note beside an answer. Nothing in it depends on a record.

        A study that was accepted but not begun is refused here too, once another study has spent what it needs.
        """
        note: dict[str, Any] = {"study": self.study, "refusal": self.refusal}
        if not self.refusal:
            note["refusal"] = self.allowance.objection(self.least, tells=self.file.settings.shares.spent)
            whole, entries = self.ledger.entries(), self.allowance.own()
            counts = Counter(entry.event for entry in entries)
            note["seeded"] = any(entry.note == SEEDED for entry in entries)
            note["events"] = [[events.to_dict(event), count] for event, count in counts.items()]
            note["rounds"] = {phase: site.last_round for phase, site in self._sites.items()}
            note["updates"] = {phase: site.updates for phase, site in self._sites.items()}
            if self.plan.secure_sum:
                note["key"] = public_identity(identity_of(self.file.state_folder)).hex()
            ledger = self.ledger
            note |= {"spent": self.allowance.spent(), "rule": ledger.accountant}
            note["raised"] = ledger.epsilon != ledger.first_epsilon
            if self.file.settings.shares.spent:
                note |= {"ledger_spent": whole[-1].spent if whole else 0.0, "budget": ledger.epsilon}
                note["first_budget"] = ledger.first_epsilon
        return json.dumps(note)


def folder_of(study: str) -> str:
    """The name of a study's folder at a site: a hash, because the coordinator chooses the study's name."""
    return f"study-{hashlib.sha256(study.encode()).hexdigest()[:32]}"


def _opened(content: Any) -> tuple[Any, Any]:
    """(scales, content) of a broadcast over the network."""
    if not isinstance(content, dict) or not {"content"} <= set(content) <= {"content", "scaling"}:
        raise StudyRefused("the message has another form than this version's; use the same version of tacit")
    return content.get("scaling", {}), content["content"]


def identity_of(state: Path) -> bytes:
    """The key by which a site signs in secure sums, made on first use. It stays in the state folder."""
    if not state.exists():
        _make_folder(state)
    return durable.write_once(state / "identity", new_identity)


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def locked(path: Path) -> Any:
    """Lock a file, for one process at a time, until it is closed. Waits for a process that is about to end."""
    file = path.open("w")
    end = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > end:
                file.close()
                raise ValueError(f"another process works in {path.parent}; end it first") from None
            time.sleep(0.2)
