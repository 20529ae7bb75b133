"""Three clinics and their study between machines, all in this process: site sessions, and a post that calls them."""

import errno
import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare")

from tacit.families import FullGaussian
from tacit.federated.messages import Broadcast, Message, Refusal, decode, encode
from tacit.files.example_site import _toml, example_site
from tacit.files.site_file import read_site
from tacit.files.study_file import StudyFile, read_study
from tacit.network.agreement import Agreement
from tacit.network.audit_log import AuditLog
from tacit.network.channel import Arrival, Reply
from tacit.network.remote import Remote
from tacit.network.site_session import HELLO, SiteSession
from tacit.privacy.ledger import Ledger
from tacit.study.coordinator import StudyResult, coordinate
from tacit.study.folder import name_of
from tacit.study.setup import Setup
from tacit.tables.scaling import Scaling

SEED, ROUNDS, SLOTS, DELTA = 3, 3, 40, 1e-4
NORTH = "north"
RECORDS = {"north": 40, "south": 36, "west": 32}
STUDY = f"""
name = "clinics"
model = "logistic"
target = "ill"
columns = ["age", "sex"]
rounds = {ROUNDS}
epsilon = 2.0
delta = {DELTA}
"""
FACTS = """
[facts]
classes = ["no", "yes"]

[facts.bounds]
age = [0, 110]

[facts.categories]
sex = ["F", "M"]
"""


# A posterior of three coefficients.
STANDARD = FullGaussian(np.zeros(3, np.float32), np.eye(3, dtype=np.float32))  # type: ignore[arg-type]


def records(name: str) -> pd.DataFrame:
    """The records of a clinic."""
    rng = np.random.default_rng(list(RECORDS).index(name))
    age, sex = rng.integers(18, 90, RECORDS[name]).astype(float), rng.choice(["F", "M"], RECORDS[name])
    ill = rng.random(RECORDS[name]) < 1 / (1 + np.exp(-0.08 * (age - 50)))
    return pd.DataFrame({"age": age, "sex": sex, "ill": np.where(ill, "yes", "no")})


class Clinics:
    """A study file, and for each clinic a site file with what belongs to it, in a folder."""

    SiteSession: Any = SiteSession
    facts = FACTS

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.study = self.read()
        for name in RECORDS:
            (folder / name).mkdir()
            records(name).to_csv(folder / name / f"{name}.csv", index=False)
            records(name).to_csv(folder / f"{name}.csv", index=False)
            self.set(name)
        self.sessions: dict[str, Any] = {}
        self._setup: Setup | None = None

    def read(self, **settings: Any) -> StudyFile:
        """The study, with other settings above all tables; None leaves one out."""
        lines = [line for line in STUDY.splitlines() if line.split(" ")[0] not in settings]
        lines += [f"{name} = {written(value)}" for name, value in settings.items() if value is not None]
        for name in RECORDS:
            lines += ["[[site]]", f'name = "{name}"', f'file = "{name}.csv"', f"slots = {SLOTS}"]
        path = self.folder / "study.toml"
        path.write_text("\n".join(lines) + self.facts)
        return read_study(path)

    def set(self, name: str, **changes: Any) -> None:
        """A clinic's file, as its example has it but for these lines, wherever in it they are; None leaves one out."""
        changes = {"insecure_seed": SEED, **changes}
        found = []
        for line in example_site(self.study, name).splitlines():
            key = line.split(" ")[0]
            if key in changes:
                value = changes.pop(key)
                line = "" if value is None else f"{key} = {_toml(value)}"
            found.append(line)
        added = [f"{key} = {_toml(value)}" for key, value in changes.items() if value is not None]
        self.path(name).write_text("\n".join([*added, *found]))

    def path(self, name: str) -> Path:
        return self.folder / name / "site.toml"

    def state(self, name: str) -> Path:
        """What a clinic keeps."""
        return self.folder / name / "state"

    def agreement(self) -> dict[str, Any]:
        """As plain data, to be changed."""
        return json.loads(Agreement.of(self.study).to_json())

    def open(self, name: str, sent: bytes | dict[str, Any] | None = None) -> Any:
        """A clinic's session, made anew from its folder. sent: in place of the study that they agreed on."""
        if name in self.sessions:
            self.sessions[name].close()
        if isinstance(sent, dict):
            sent = json.dumps(sent).encode()
        data = Agreement.of(self.study).to_json() if sent is None else sent
        self.sessions[name] = self.SiteSession(read_site(self.path(name)), data)
        return self.sessions[name]

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()

    def setup(self) -> Setup:
        """Of the public facts alone, as a coordinator has it."""
        if self._setup is None or self._setup.plan != self.study.plan:
            table = self.study.outline()[0][0].table
            self._setup = Agreement.of(self.study).setup(table, model=self.study.plan.model)
        return self._setup

    def ask(
        self, name: str, round: int = 0, phase: str = "inference", content: Any = None, scaling: Any = None, **more: Any
    ) -> Message:
        """What a clinic answers to a message. content, scaling: such as a coordinator might send, by default."""
        return decode(self.sessions[name](self.request(round, phase, content, scaling, **more))[0])

    def request(
        self, round: int = 0, phase: str = "inference", content: Any = None, scaling: Any = None, study: str = ""
    ) -> bytes:
        setup = self.setup()
        if content is None:
            bounds = setup.bounds()
            content = {"low": bounds.low, "high": bounds.high} if phase == "scaling" else STANDARD
        whole = {"content": content}
        if phase != "scaling":
            whole["scaling"] = plain(setup.public_scaling()) if scaling is None else scaling
        return encode(Broadcast(study or f"{name_of(setup)}/{phase}", round, whole))

    def ledger(self, name: str) -> Ledger:
        return Ledger.open(self.state(name) / "ledger.sqlite")

    def charged(self, name: str) -> int:
        """How many entries a clinic's ledger has, 0 if there is none."""
        return len(self.ledger(name).entries()) if (self.state(name) / "ledger.sqlite").exists() else 0

    def hosted(self, **answers: "Answers") -> Remote:
        """All clinics as a coordinator has them. answers: what stands in for some of them."""
        for name in RECORDS:
            if name not in answers:
                self.open(name)
        sites = {name: answers.get(name) or self.sessions[name] for name in RECORDS}
        return Remote(self.setup(), FakePost(sites), self.folder / "notes.json", forgives=False)  # type: ignore[arg-type]

    def coordinate(self, host: Remote | None = None, **more: Any) -> StudyResult:
        """The whole study through their sessions."""
        host = host or self.hosted()
        return coordinate(host.setup, self.folder / "out", host, **more)


def written(value: Any) -> str:
    """A value in a line of TOML, also a table."""
    if not isinstance(value, dict):
        return _toml(value)
    return f"{{ {', '.join(f'{name} = {_toml(inner)}' for name, inner in value.items())} }}"


Answers = Callable[[bytes], "tuple[bytes, str] | Arrival"]


class FakePost:
    """Answers in the order in which they were asked for."""

    def __init__(self, sites: dict[str, Answers]) -> None:
        self.answers, self.sites = sites, list(sites)
        self.asked: deque[tuple[str, bytes]] = deque()

    def ask(self, site: str, data: bytes, longest: float | None = None) -> None:
        del longest
        self.asked.append((site, data))

    def receive(self) -> tuple[str, Arrival]:
        site, data = self.asked.popleft()
        found = self.answers[site](data)
        return site, Reply(*found) if isinstance(found, tuple) else found


def plain(scaling: Scaling) -> dict[str, np.ndarray]:
    """Scales of columns as messages carry them."""
    found = {"low": scaling.range.low, "high": scaling.range.high, "location": scaling.location, "scale": scaling.scale}
    return {name: np.asarray(value) for name, value in found.items()}


# --- What tests say of a site's session -----------------------------------------------------------------------------


def note_of(session: Any) -> dict[str, Any]:
    """What it says beside its answers."""
    answer, note = session(HELLO)
    assert answer == b""
    return json.loads(note)


def log_of(clinics: Any, name: str = NORTH) -> AuditLog:
    """The audit log of a clinic."""
    return AuditLog(clinics.state(name) / "audit.jsonl")


def check_refused(clinics: Any, session: Any, words: str) -> None:
    """It says why, also to messages; nothing was charged, and what it says has no path in it."""
    assert words in session.refusal
    told = [session.refusal, json.dumps(note_of(session))]
    for phase in ("scaling", "inference"):
        answer = clinics.ask(NORTH, phase=phase)
        assert isinstance(answer, Refusal)
        assert words in answer.reason
        told.append(answer.reason)
    assert clinics.charged(NORTH) == 0
    for text in told:
        assert not any(part in text for part in (str(clinics.folder), "site.toml", ".csv", "/tmp"))


def full(*arguments: Any, **settings: Any) -> Any:
    """In place of something that writes: the disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def clinics(tmp_path: Path) -> Any:
    made = Clinics(tmp_path)
    yield made
    made.close()
