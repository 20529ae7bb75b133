"""A station: a site of one study, which nobody can overrule.

What a coordinator proposes is held against the site's own file before anything is priced: model, method, unit,
adjacency, rounds, budget, noise of every release, columns and bounds. Then each message goes to `federated.site.Site`,
which prices, charges, reads, stores and sends. The ledger, its budget and the noise are the site's; no number in a
message enters the accounting. Every message that is answered is in the audit log before the answer leaves.

The folder `state` beside the data:

| file                     | what                                                                                 |
|--------------------------|--------------------------------------------------------------------------------------|
| `ledger.sqlite`          | what has been spent of the data set's budget, over all studies                       |
| `STUDY/*.store`          | the factor and the last answer of each phase, from which a round is answered again   |
| `STUDY/scaling.tree`     | the scales of columns that this study uses; they stay                                |
| `identity`               | the key by which the site signs in secure sums                                       |
| `held-out.key`           | the secret by which records are held out of studies                                  |
| `audit.jsonl`            | a line for every message answered, each with the hash of the one before              |
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.config import SiteFile, Unfit, read_site
from tacit.engines.nvflare import Answer, Answerer
from tacit.federated.assembly import MASK, Delegate, new_identity, public_identity
from tacit.federated.held_out import kept, kept_secret, seeded_secret
from tacit.federated.messages import Broadcast, Refusal, Update, decode, decode_tree, encode, encode_tree
from tacit.federated.site import NO_ROOM, SEEDED, Site, _write
from tacit.network.agreement import Agreement, form_of
from tacit.privacy import accounting, events
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.ledger import SLACK, BudgetExceeded, Entry, Ledger
from tacit.privacy.mechanism import Exact
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.scaling import Range, Scaling
from tacit.study import Setup, name_of

PHASES = ("scaling", "inference", "evaluation")
SITE_FILE = "TACIT_SITE"  # the variable by which `tacit join` tells FLARE's children where the site's file is
LOCK_PATIENCE = 60.0  # seconds for which a new process waits for an old one of the same site to end
UNWRITABLE = "the site cannot write its audit log; ask those who run it"
HELLO = b"hello"  # a request for the note alone


class Refused(ValueError):
    """What a site does not do, in words that may leave it."""


class Station:
    """`station(request) -> (answer, note)`, in bytes. Made of the site's file and of the study that a job carries.

    A study that the site does not accept is refused at every message, with the reason.
    """

    def __init__(self, file: SiteFile, study: bytes) -> None:
        self.file, self.name = file, file.settings.name
        self.journal = Journal(file.state_folder / "audit.jsonl")
        self.study, self.refusal = "unknown", ""
        self._sites: dict[str, Site | Delegate] = {}
        self._lock: Any = None
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
            self._lock.close()
            self._lock = None

    # --- Before a study ------------------------------------------------------------------------------------------

    def _open(self, study: bytes) -> None:
        try:
            agreement = Agreement.from_json(study)
        except ValueError as error:
            raise Refused(str(error)) from None
        self.agreement, self.plan = agreement, agreement.plan
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
        # The name of a study is the coordinator's: no letter of it may lead elsewhere.
        self.folder = self.file.state_folder / re.sub("[^A-Za-z0-9_-]", "_", self.study)
        self.ledger = self._ledger()
        self._check_budget(public)
        self.file.check()  # as a whole: which columns a study asks for must not tell which of them fit
        records = self.file.table(agreement.columns, agreement.target, self.plan.link)
        seed = self.file.settings.insecure_seed
        self.key = secure_key() if seed is None else insecure_key(seed)
        self.setup = agreement.setup(outline, self.name, records)
        if self.plan.evaluation:
            secret = kept_secret(self.file.state_folder) if seed is None else seeded_secret(seed)
            self.setup = self.setup.splitting({self.name: secret})
        charged = {entry.study for entry in self.ledger.entries()}
        for phase in PHASES:  # that were begun before: their last rounds are to be told
            if (self.folder / f"{phase}.store").exists() or (
                self.plan.secure_sum and f"{self.study}/{phase}" in charged
            ):
                self._site(phase)

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
        if limits.most_rounds is not None and plan.rounds > limits.most_rounds:
            yield f"rounds={plan.rounds}; expected at most {limits.most_rounds} here"
        if not self.epsilon <= limits.epsilon:
            yield f"epsilon={self.epsilon:g} is asked for; expected at most {limits.epsilon:g} here"
        if self.delta != limits.delta:
            yield f"delta={self.delta:g} is asked for; expected {limits.delta:g}, at which this site keeps its ledger"
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
            if any(self.file.state_folder.glob("*/*.store")) or self.journal.answered():
                raise ValueError(f"ledger={path} is gone, and studies were answered; go back to a sound copy")
            settings: dict[str, Any] = {"unit": limits.unit, "adjacency": limits.adjacency}
            return Ledger.create(path, data_set=self.name, epsilon=limits.epsilon, delta=limits.delta, **settings)
        found = Ledger.open(path)
        if (found.epsilon, found.delta, found.adjacency) != (limits.epsilon, limits.delta, limits.adjacency):
            raise ValueError(
                f"ledger={path} has epsilon={found.epsilon}, delta={found.delta}, {found.adjacency}; expected "
                "those of [limits]: a ledger's budget is not changed"
            )
        if found.unit != limits.unit:
            raise ValueError(f"ledger={path} is of each {found.unit}; expected unit = {found.unit!r} in [limits]")
        charged = {(entry.study, entry.round) for entry in found.entries()}
        lost = [pair for pair in self.journal.answered() if pair not in charged]
        if lost:
            raise ValueError(
                f"ledger={path} does not have round {lost[0][1]} of {lost[0][0]}, which was answered; an older copy "
                "was put back, so go back to a newer one"
            )
        return found

    def _check_budget(self, setup: Setup) -> None:
        """A study that cannot be paid for to its end is not begun."""
        begun = any(entry.study.startswith(f"{self.study}/") for entry in self.ledger.entries())
        whole = setup.cost(self.place)
        if whole is not None and not begun and self.ledger.remaining_after(whole) < -1e-9 * self.ledger.epsilon:
            raise Refused(
                "what is left of this site's budget does not pay for the study; lower epsilon or leave it out"
            )

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
            self.folder.mkdir(exist_ok=True)
            scaling, content = _opened(broadcast.content)
            self._check_scaling(phase, scaling)
            site = self._site(phase)
        except Refused as error:
            return self._refuse(broadcast, str(error))
        except OSError:
            return self._refuse(broadcast, NO_ROOM)
        except ValueError:
            return self._refuse(broadcast, "the site is not ready for this study; ask those who run it")
        try:
            return site(Broadcast(broadcast.study, broadcast.round, content))
        except (ValueError, ArithmeticError, MemoryError):  # settings with which no update can be made
            return self._refuse(broadcast, "no update can be made with these settings; begin a study with others")

    def _site(self, phase: str) -> "Site | Delegate":
        """The site of a phase, made when it is first asked."""
        if phase not in self._sites:
            setup, place = self.setup, self.place
            found = None if phase == "scaling" else self._scaling()
            if self.plan.secure_sum:
                self._sites[phase] = self._delegate(phase, found)
                return self._sites[phase]
            algorithm = setup.algorithm(phase, place)
            access = setup.access(phase, place, found)
            store = self.folder / f"{phase}.store"
            most = setup.most_updates(phase)
            study = f"{self.study}/{phase}"
            part: Any = Part(self.ledger, self.study, self.epsilon)
            tells = self.file.settings.shares.spent
            self._sites[phase] = Site(self.name, study, algorithm, access, self.key, part, store, most, tells)
        return self._sites[phase]

    def _delegate(self, phase: str, scaling: Scaling | None) -> Delegate:
        terms = self.setup.terms(phase, f"{self.study}/{phase}", self._roster())
        part: Any = Part(self.ledger, self.study, self.epsilon)
        access, own = self.setup.own_access(phase, self.place, scaling), identity_of(self.file.state_folder)
        return Delegate(self.name, terms, access, self.key, part, own, self.file.settings.shares.spent)

    # --- Scales of columns: the first that come are the study's ---------------------------------------------------

    def _check_scaling(self, phase: str, scaling: Any) -> None:
        if phase == "scaling":
            return
        path, data = self.folder / "scaling.tree", encode_tree(scaling)
        if path.exists():
            if path.read_bytes() != data:
                raise Refused("the scales of columns differ from those that this study began with; begin a new study")
            return
        like = jax.tree.map(np.asarray, asdict_of(self.setup.public_scaling()))
        same = jax.tree.structure(scaling) == jax.tree.structure(like) and all(
            np.shape(a) == np.shape(b) and np.asarray(a).dtype == b.dtype and np.all(np.isfinite(a))
            for a, b in zip(jax.tree.leaves(scaling), jax.tree.leaves(like), strict=True)
        )
        if not same or not np.all(np.asarray(scaling["scale"]) > 0):
            raise Refused("the scales of columns are not of this study's form; begin a new study")
        _write(path, data)

    def _scaling(self) -> Scaling:
        found = decode_tree((self.folder / "scaling.tree").read_bytes())
        found = jax.tree.map(jnp.asarray, found)
        return Scaling(Range(found["low"], found["high"]), found["location"], found["scale"])

    # --- Notes ---------------------------------------------------------------------------------------------------

    def _note(self) -> str:
        """What the coordinator is told beside the answers: nothing of it depends on a record."""
        note: dict[str, Any] = {"study": self.study, "refusal": self.refusal}
        if not self.refusal:
            whole = self.ledger.entries()
            entries = [entry for entry in whole if entry.study.startswith(f"{self.study}/")]
            counts = Counter(entry.event for entry in entries)
            note["seeded"] = any(entry.note == SEEDED for entry in entries)
            note["events"] = [[events.to_dict(event), count] for event, count in counts.items()]
            note["rounds"] = {phase: site.last_round for phase, site in self._sites.items()}
            note["updates"] = {phase: site.updates for phase, site in self._sites.items()}
            if self.plan.secure_sum:
                note["key"] = public_identity(identity_of(self.file.state_folder)).hex()
            if self.file.settings.shares.spent:
                note |= {"spent": whole[-1].spent if whole else 0.0, "epsilon": self.ledger.epsilon}
        return json.dumps(note)


@dataclass(frozen=True)
class Part:
    """A ledger of which one study may spend so much, whatever else is left there."""

    ledger: Ledger
    study: str
    epsilon: float

    def entries(self) -> list[Entry]:
        """All of the ledger."""
        return list(self.ledger.entries())

    def charge(self, event: Event, *, study: str, round: int, note: str = "") -> Entry:
        """As the ledger's, if this study's charges and this one are within its part."""
        entries = self.ledger.entries()
        if all((entry.study, entry.round) != (study, round) for entry in entries):
            own = Counter([event, *(e.event for e in entries if e.study.startswith(f"{self.study}/"))])
            whole = compose(*(Repeated(one, count) for one, count in own.items()))
            total = accounting.epsilon(whole, self.ledger.delta, self.ledger.accountant, self.ledger.adjacency)
            if not total <= self.epsilon * (1 + SLACK):
                raise BudgetExceeded(f"epsilon={self.epsilon:g} of this study is spent; end it here")
        return self.ledger.charge(event, study=study, round=round, note=note)


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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None

    def write(self, kind: str, study: str, round: int, request: bytes, answer: bytes, words: str) -> None:
        """Append a line, durably."""
        if self._last is None:
            self._last = self._mended()
        plain = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "study": study,
            "round": round,
            "request": hashlib.sha256(request).hexdigest(),
            "answer": hashlib.sha256(answer).hexdigest() if answer else "",
            "words": words,
            "previous": self._last,
        }
        line = json.dumps(plain).encode()
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

    def _mended(self) -> str:
        """The hash of the last line, after what is left of one that was never finished is cut off."""
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self.path, len(whole))
        return hashlib.sha256(whole.splitlines()[-1]).hexdigest() if whole else ""

    def answered(self) -> list[tuple[str, int]]:
        """(study, round) of all that was answered."""
        found = []
        for line in self.path.read_bytes().splitlines() if self.path.exists() else []:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["kind"] == "answered":
                    found.append((entry["study"], entry["round"]))
        return found

    def verify(self) -> int:
        """How many lines there are, if each follows the one before; a ValueError otherwise."""
        previous, lines = "", self.path.read_bytes().splitlines() if self.path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)["previous"]
            except (ValueError, KeyError, TypeError):
                found = None
            if found != previous:
                raise ValueError(f"log={self.path}: line {number} does not follow the one before; go back to a copy")
            previous = hashlib.sha256(line).hexdigest()
        return len(lines)


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


# --- FLARE's side -------------------------------------------------------------------------------------------------


class StationExecutor(Answerer):
    """The executor that a job names. Its settings are in the site's file; it takes none from a job."""

    def open(self, study: bytes) -> Answer:
        self._station = Station(read_site(Path(os.environ[SITE_FILE])), study)
        return self._station

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._station.close()
