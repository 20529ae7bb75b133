"""A station: a site of one study, which nobody can overrule.

What a coordinator proposes is held against the site's own file before anything is priced: model, method, unit,
adjacency, rounds, budget, noise of every release, columns and bounds. Then each message goes to `federated.site.Site`,
which prices, charges, reads, stores and sends. The ledger, its budget and the noise are the site's; no number in a
message enters the accounting. Every message that is answered is in the audit log before the answer leaves.

The folder `state` beside the data:

| file                     | what                                                                                 |
|--------------------------|--------------------------------------------------------------------------------------|
| `ledger.sqlite`          | what has been spent of the data set's budget, over all studies                       |
| `study-*/*.store`        | the factor and the last answer of each phase, from which a round is answered again   |
| `study-*/scaling.tree`   | the scales of columns that this study uses; they stay                                |
| `study-*/held-out.mark`  | a hash of the secret by which this study holds out records                           |
| `identity`               | the key by which the site signs in secure sums                                       |
| `held-out.key`           | the secret by which records are held out of studies                                  |
| `audit.jsonl`            | a line for every message answered, each with the hash of the one before; older ones  |
|                          | are in `audit-0001.jsonl` and so on                                                  |
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.config import SiteFile, Unfit
from tacit.federated.assembly import MASK, Delegate, new_identity, public_identity
from tacit.federated.held_out import kept, kept_secret, mark_of, seeded_secret
from tacit.federated.messages import Broadcast, Refusal, Update, decode, decode_tree, encode, encode_tree
from tacit.federated.site import NO_ROOM, SEEDED, Site, Trace, _write, check_complete, trace_of
from tacit.network.agreement import Agreement, form_of
from tacit.privacy import events
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import Allowance, Entry, Ledger
from tacit.privacy.mechanism import Exact
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.scaling import Range, Scaling
from tacit.study import PHASES, Setup, name_of

LOCK_PATIENCE = 60.0  # seconds for which a new process waits for an old one of the same site to end
UNWRITABLE = "the site cannot write its audit log; ask those who run it"
PART = 4 * 2**20  # bytes of the audit log, after which a new file is begun
A_MINUTE = 100  # lines of it that a coordinator can ask for without end
MOST_ELSE = 16 * 2**20  # bytes of such lines, after which there is one a day
MOST_WORDS = 20  # kinds of what is left out that are told apart
LONGEST_WORDS = 4000  # characters of a line
DAY = 86_400.0  # seconds
HELLO = b"hello"  # a request for the note alone


class Refused(ValueError):
    """What a site does not do, in words that may leave it."""


class Station:
    """`station(request) -> (answer, note)`, in bytes. Made of the site's file and of a study that was proposed.

    A study that the site does not accept is refused at every message, with the reason.
    """

    def __init__(self, file: SiteFile, study: bytes) -> None:
        self.file, self.name = file, file.settings.name
        self.journal = Journal(file.state_folder / "audit.jsonl")
        self.study, self.refusal = "unknown", ""
        self._sites: dict[str, Site | Delegate] = {}
        self._lock: Any = None
        self._mark = ""  # of the secret by which records are held out, if any are
        try:
            _make_folder(file.state_folder)
            self._lock = locked(file.state_folder / "lock")
            self._open(study)
            words = "accepted"
        except Refused as error:
            self.refusal = words = str(error)
        except Unfit as error:
            self.refusal, words = error.public, str(error)
        except (ValueError, ArithmeticError, MemoryError, OSError) as error:  # the site's own: words may hold paths
            self.refusal, words = "the site is not ready for this study; ask those who run it", str(error)
        except BaseException:
            self.close()
            raise
        try:
            self._write("refused" if self.refusal else "opened", self.study, 0, study, b"", words)
        except OSError:
            self.refusal = UNWRITABLE

    def _write(self, *entry: Any) -> None:
        """A line of the audit log. It is that of the process with the lock: two at once would break its chain."""
        if self._lock is not None:
            self.journal.write(*entry)

    def close(self) -> None:
        """Let another process of the same site begin."""
        if self._lock is not None:
            self.journal.close()
            self._lock.close()
            self._lock = None

    # --- Before a study ------------------------------------------------------------------------------------------

    def _open(self, study: bytes) -> None:
        try:
            agreement = Agreement.from_json(study)
        except ValueError as error:
            raise Refused(str(error)) from None
        self.agreement, self.plan, self.study = agreement, agreement.plan, agreement.plan.name
        names = [entry[0] for entry in agreement.sites]
        if names.count(self.name) != 1:
            raise Refused(f"the study does not name {self.name}; make the kits anew, or correct the study")
        self.place = names.index(self.name)
        _, self.epsilon, self.delta, places = agreement.sites[self.place]
        for reason in self._objections(places):
            raise Refused(reason)
        outline = self.file.public_table(agreement.columns, agreement.target, self.plan.link)
        if form_of(outline) != agreement.form:
            raise Refused(
                "the study's columns, bounds, categories or classes are not this site's; agree on the same facts"
            )
        public = agreement.setup(outline)
        self._check_noise(public)
        self.study = name_of(public)
        self.folder = self.file.state_folder / folder_of(self.study)
        self.ledger = self._ledger()
        self.allowance = Allowance(self.ledger, self.study, self.epsilon)
        self.least = public.least(self.place)
        self._check_count()
        self._check_budget()
        self.file.check()  # as a whole: which columns a study asks for must not tell which of them fit
        records = self.file.table(agreement.columns, agreement.target, self.plan.link)
        seed = self.file.settings.insecure_seed
        self.key = secure_key() if seed is None else insecure_key(seed)
        self.setup = agreement.setup(outline, self.name, records)
        if self.plan.evaluation:
            secret = self._secret() if seed is None else seeded_secret(seed)
            self.setup = self.setup.splitting({self.name: secret})
        charged = {entry.study for entry in self.ledger.entries()}
        for phase in PHASES:  # that were begun before: their last rounds are to be told
            if (self.folder / f"{phase}.store").exists() or (
                self.plan.secure_sum and f"{self.study}/{phase}" in charged
            ):
                self._site(phase, None if phase == "scaling" else _scaling_of(self.scales.read_bytes()))

    def _secret(self) -> bytes:
        """By which this study holds out records: the one that it was begun with."""
        mark = self.folder / "held-out.mark"
        secret = kept_secret(self.file.state_folder, mark.read_text() if mark.exists() else None)
        self._mark = mark_of(secret)
        return secret

    def _objections(self, places: int) -> Iterator[str]:
        """What of the plan is beyond the site's limits, which are in its own file."""
        plan, limits, shares = self.plan, self.file.settings.limits, self.file.settings.shares
        if limits.studies is not None and plan.name not in limits.studies:
            yield f"study {plan.name!r} is not among those that this site takes part in"
        for what, asked, allowed in (
            ("model", plan.link, limits.models),
            ("method", plan.method, limits.methods),
            ("unit", plan.unit, [limits.unit]),
            ("adjacency", plan.adjacency, [limits.adjacency]),
        ):
            if asked not in allowed:
                yield f"{what}={asked!r} is not allowed here; expected one of {', '.join(allowed)}"
        if plan.is_pooled:
            yield "this study trusts the coordinator with sums; this site adds its own noise or none takes part"
        if plan.secure_sum:
            yield from self._distrusts()
        if plan.rounds > limits.most_rounds:
            yield f"rounds={plan.rounds}; expected at most {limits.most_rounds} here"
        if not self.epsilon <= limits.epsilon:
            yield f"epsilon={self.epsilon:g} is asked for; expected at most {limits.epsilon:g} here"
        if self.delta != limits.delta:
            yield f"delta={self.delta:g} is asked for; expected {limits.delta:g}, at which this site keeps its ledger"
        if plan.allow_large_delta and not limits.allow_large_delta:
            yield "allow_large_delta is not allowed here; leave it out"
        if plan.evaluation and not shares.evaluation:
            yield "scores on held-out records are not shared here; leave evaluation out"
        if places != self.file.record_places:
            yield f"places={places} in the study; expected {self.file.record_places}, this site's public number"

    def _distrusts(self) -> Iterator[str]:
        """What of secure sums this site does not trust."""
        names, file = [entry[0] for entry in self.agreement.sites], self.file.settings
        lacking = [name for name in names if name != self.name and name not in file.peers]
        keys = [key.lower() for name, key in file.peers.items() if name in names and name != self.name]
        if lacking:
            yield f"this site has no key of {lacking[0]} in [peers]; ask those who run it, who get it from that site"
        if len({*keys, public_identity(identity_of(self.file.state_folder)).hex()}) <= len(keys):
            yield "two sites have one key in [peers], or one has this site's own; ask those who run it"
        try:
            pooling = self.plan.trust(len(names)).pooling
        except ValueError as error:
            yield str(error)
        else:
            if pooling < file.limits.pooling:
                yield (
                    f"secure sums that stand {pooling} sites which pool what they know; expected at least "
                    f"{file.limits.pooling} here"
                )

    def _roster(self) -> dict[str, bytes]:
        """The keys of all sites: this one's own, and those that its file has of others."""
        peers = {name: bytes.fromhex(key) for name, key in self.file.settings.peers.items()}
        own = public_identity(identity_of(self.file.state_folder))
        return {name: own if name == self.name else peers[name] for name, *_ in self.agreement.sites}

    def _check_noise(self, setup: Setup) -> None:
        """Every release has at least the noise that the site asks for, by the site's own reckoning."""
        least = self.file.settings.limits.least_noise
        for name, mechanism in setup.mechanisms[self.place].items():
            noise = 0.0 if isinstance(mechanism, Exact) else float(np.min(mechanism.noise_multiplier))
            if not noise >= least:
                raise Refused(
                    f"the noise of {name} would be {noise:.3g} times its clip; expected at least {least:g} here: "
                    "lower epsilon or raise rounds"
                )

    def _ledger(self) -> Ledger:
        """The data set's, made at its first study."""
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
            raise ValueError(f"ledger={path} is of each {found.unit}; expected unit = {found.unit!r} in [limits]")
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
        """What the audit log and the stores of all studies say was answered. entries: of the ledger."""
        answered = self.journal.answered()
        for study, round in answered:
            yield Trace(study, frozenset([round]), 0, self.journal.path.name)
        studies = dict.fromkeys([*(entry.study for entry in entries), *(study for study, _ in answered)])
        for store in sorted(self.file.state_folder.glob("*/*.store")):
            trace = trace_of(store, self.name, studies)
            if trace is not None:
                yield trace

    def _check_count(self) -> None:
        """One study more, however little it costs, is a folder and lines of logs that stay."""
        known = {entry.study.rpartition("/")[0] for entry in self.ledger.entries()} | {self.study}
        if len(known) > self.file.settings.limits.most_studies:
            raise Refused("this site has taken part in as many studies as it allows; ask those who run it")

    def _check_budget(self) -> None:
        """A study that cannot be paid for to its end is not begun."""
        tells = self.file.settings.shares.spent
        if reason := self.allowance.objection(self.least, tells=tells):
            raise Refused(reason)

    # --- Messages ------------------------------------------------------------------------------------------------

    def __call__(self, request: bytes) -> tuple[bytes, str]:
        if request == HELLO:
            return b"", self._note()
        try:
            broadcast = decode(request)
            if not isinstance(broadcast, Broadcast):
                raise ValueError("it is no broadcast")
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
        if phase != "inference" and phase not in self.setup.mechanisms[self.place]:
            return self._refuse(broadcast, f"the plan has no {phase}; use the same study file")
        try:
            sent, content = _opened(broadcast.content)
            scaling = None if phase == "scaling" else self._checked_scaling(sent)
            site = self._site(phase, scaling)
        except Refused as error:
            return self._refuse(broadcast, str(error))
        except OSError:
            return self._refuse(broadcast, NO_ROOM)
        except ValueError:
            return self._refuse(broadcast, "the site is not ready for this study; ask those who run it")
        try:
            answer = site(Broadcast(broadcast.study, broadcast.round, content))
        except (ValueError, ArithmeticError, MemoryError):  # settings with which no update can be made
            answer = self._refuse(broadcast, "no update can be made with these settings; begin a study with others")
        if isinstance(answer, Update):
            try:
                self._begin(scaling)
            except OSError:
                return self._refuse(broadcast, NO_ROOM)
        elif not self.scales.exists():
            self._sites.pop(phase, None)  # it was made for scales that nothing was answered by
        return answer

    def _begin(self, scaling: Scaling | None) -> None:
        """Make the study's folder, and note the scales and the secret by which it holds out records.

        Not before a message is known to be sound, and before any record is read for it.
        """
        self.folder.mkdir(exist_ok=True)
        mark = self.folder / "held-out.mark"
        if self._mark and not mark.exists():
            _write(mark, self._mark.encode())
        if scaling is not None and not self.scales.exists():
            _write(self.scales, encode_tree(jax.tree.map(np.asarray, asdict_of(scaling))))

    def _site(self, phase: str, found: Scaling | None) -> "Site | Delegate":
        """The site of a phase, made when it is first asked. found: the scales by which it reads."""
        if phase not in self._sites:
            setup, place = self.setup, self.place
            if self.plan.secure_sum:
                self._sites[phase] = self._delegate(phase, found)
                return self._sites[phase]
            algorithm = setup.algorithm(phase, place)
            access = setup.access(phase, place, found)
            store = self.folder / f"{phase}.store"
            most = setup.most_updates(phase)
            study = f"{self.study}/{phase}"
            tells = self.file.settings.shares.spent
            self._sites[phase] = Site(
                *(self.name, study, algorithm, access, self.key, self.allowance, store, most, tells),
                prepare=partial(self._begin, found),
            )
        return self._sites[phase]

    def _delegate(self, phase: str, scaling: Scaling | None) -> Delegate:
        terms = self.setup.terms(phase, f"{self.study}/{phase}", self._roster())
        access, own = self.setup.own_access(phase, self.place, scaling), identity_of(self.file.state_folder)
        return Delegate(self.name, terms, access, self.key, self.allowance, own, self.file.settings.shares.spent)

    # --- Scales of columns: the first that come are the study's ---------------------------------------------------

    @property
    def scales(self) -> Path:
        """The file of the scales that the study began with."""
        return self.folder / "scaling.tree"

    def _checked_scaling(self, scaling: Any) -> Scaling:
        data = encode_tree(scaling)
        if self.scales.exists():
            if self.scales.read_bytes() != data:
                raise Refused("the scales of columns differ from those that this study began with; begin a new study")
            return _scaling_of(data)
        like = jax.tree.map(np.asarray, asdict_of(self.setup.public_scaling()))
        same = jax.tree.structure(scaling) == jax.tree.structure(like) and all(
            np.shape(a) == np.shape(b) and np.asarray(a).dtype == b.dtype and np.all(np.isfinite(a))
            for a, b in zip(jax.tree.leaves(scaling), jax.tree.leaves(like), strict=True)
        )
        if not same or not np.all(np.asarray(scaling["scale"]) > 0):
            raise Refused("the scales of columns are not of this study's form; begin a new study")
        return _scaling_of(data)

    # --- Notes ---------------------------------------------------------------------------------------------------

    def _note(self) -> str:
        """What the coordinator is told beside the answers: nothing of it depends on a record.

        A study that was accepted and not begun is refused here too, once another one has spent what it would need.
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
    """Where a site keeps what it knows of a study. The study's name is the coordinator's, and chooses no name here."""
    return f"study-{hashlib.sha256(study.encode()).hexdigest()[:32]}"


def _scaling_of(data: bytes) -> Scaling:
    found = jax.tree.map(jnp.asarray, decode_tree(data))
    return Scaling(Range(found["low"], found["high"]), found["location"], found["scale"])


def asdict_of(scaling: Scaling) -> dict[str, Any]:
    """Scales of columns as a message carries them."""
    return {"low": scaling.range.low, "high": scaling.range.high, "location": scaling.location, "scale": scaling.scale}


def _opened(content: Any) -> tuple[Any, Any]:
    """(scales, content) of a broadcast over the network."""
    if not isinstance(content, dict) or not {"content"} <= set(content) <= {"content", "scaling"}:
        raise Refused("the message has another form than this version's; use the same version of tacit")
    return content.get("scaling", {}), content["content"]


def identity_of(state: Path) -> bytes:
    """The key by which a site signs in secure sums, made when it is first asked for. It stays in the state folder."""
    if not state.exists():
        _make_folder(state)
    return kept(state / "identity", new_identity)


# --- Durable files ------------------------------------------------------------------------------------------------


class Journal:
    """The audit log: a line of JSON for every message answered, each with the hash of the line before.

    It holds hashes of messages, not messages, and nothing of a record. Like the ledger's, its chain has no secret. What
    a crash or a full disk has left of a line is cut off: the answer that it was about has not left the site.

    A log that has grown to `PART` bytes is put aside as `audit-0001.jsonl`, and so on; the chain goes on over all of
    them. A first answer always has its line, for it decides whether a ledger is complete, and the ledger's budget
    bounds how many there are. All else a coordinator can ask for without end: refusals, the same answer again, keys
    that are exchanged. Of these there are `A_MINUTE` lines a minute at most, and once they fill `MOST_ELSE` bytes one
    a day; a line of the kind "summary" says how many were left out, and with which words.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None
        self._known: set[tuple[str, int, str]] = set()  # first answers: study, round, hash
        self._times: deque[float] = deque(maxlen=A_MINUTE)  # when other lines were written
        self._else = 0  # bytes of them
        self._left_out: Counter[str] = Counter()

    def write(self, kind: str, study: str, round: int, request: bytes, answer: bytes, words: str) -> None:
        """Append a line, durably, or count it among those that are left out."""
        if self._last is None:
            self._load()
        digest = hashlib.sha256(answer).hexdigest() if answer else ""
        key = (study, round, digest)
        if kind == "answered" and key not in self._known:
            self._summarise()
            self._append(kind, study, round, request, digest, words)
            self._known.add(key)
        elif self._has_room():
            self._summarise()
            self._append(kind, study, round, request, digest, words)
        else:
            what = f"{kind}: {words}" if words else kind
            is_new = what not in self._left_out and len(self._left_out) >= MOST_WORDS
            self._left_out["other messages" if is_new else what] += 1

    def close(self) -> None:
        """Say what was left out until now, if there is room for it."""
        if self._left_out and self._has_room():
            with contextlib.suppress(OSError):
                self._summarise()

    def _has_room(self) -> bool:
        """Whether a line that a coordinator can ask for without end may be written now."""
        span, most = (DAY, 1) if self._else > MOST_ELSE else (60.0, A_MINUTE)
        recent = sum(time.time() - span < then for then in self._times)
        return recent < most

    def _summarise(self) -> None:
        """A line for all that was left out since the last one."""
        if not self._left_out or not self._has_room():
            return
        words = "; ".join(f"{count} x {what}" for what, count in self._left_out.most_common())
        self._append("summary", "", 0, b"", "", words)
        self._left_out.clear()

    def _append(self, kind: str, study: str, round: int, request: bytes, digest: str, words: str) -> None:
        plain = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "study": study,
            "round": round,
            "request": hashlib.sha256(request).hexdigest(),
            "answer": digest,
            "words": words[:LONGEST_WORDS],
            "previous": self._last,
        }
        line = json.dumps(plain).encode()
        if self.path.exists() and self.path.stat().st_size >= PART:
            self._put_aside()
        with self.path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(line + b"\n") <= len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise
        self._last = hashlib.sha256(line).hexdigest()
        if kind != "answered" or (study, round, digest) in self._known:
            self._times.append(time.time())
            self._else += len(line) + 1

    def _put_aside(self) -> None:
        """Begin a new file, whose first line has the hash of this one's last."""
        aside = [part.stem.removeprefix(f"{self.path.stem}-") for part in self.parts()[:-1]]
        number = 1 + max((int(name) for name in aside if name.isdecimal()), default=0)
        os.rename(self.path, self.path.with_name(f"{self.path.stem}-{number:04d}{self.path.suffix}"))
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def parts(self) -> list[Path]:
        """All files of the log, oldest first; the last one is written to."""
        aside = self.path.parent.glob(f"{self.path.stem}-[0-9]*{self.path.suffix}")
        return [*sorted(aside, key=lambda path: (len(path.name), path.name)), self.path]

    def lines(self) -> Iterator[bytes]:
        """All parts, oldest first."""
        for part in self.parts():
            if part.exists():
                yield from part.read_bytes().splitlines()

    def _load(self) -> None:
        """What earlier processes wrote, after what is left of a line that was never finished is cut off."""
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self.path, len(whole))
        self._last = ""
        for line in self.lines():
            self._last = hashlib.sha256(line).hexdigest()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)
                key = (found["study"], found["round"], found["answer"])
                if found["kind"] == "answered" and key not in self._known:
                    self._known.add(key)
                    continue
                self._else += len(line) + 1
                self._times.append(datetime.fromisoformat(found["time"]).timestamp())

    def answered(self) -> list[tuple[str, int]]:
        """(study, round) of all that was answered."""
        found = []
        for line in self.lines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["kind"] == "answered":
                    found.append((entry["study"], entry["round"]))
        return found

    def verify(self) -> int:
        """How many lines there are in all parts, if each follows the one before; a ValueError otherwise."""
        previous, number = "", 0
        for line in self.lines():
            number += 1
            try:
                found = json.loads(line)["previous"]
            except (ValueError, KeyError, TypeError):
                found = None
            if found != previous:
                raise ValueError(f"log={self.path}: line {number} does not follow the one before; go back to a copy")
            previous = hashlib.sha256(line).hexdigest()
        return number


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def locked(path: Path) -> Any:
    """The open file of a lock that only one process has, until it is closed; it waits for one that is about to end."""
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
