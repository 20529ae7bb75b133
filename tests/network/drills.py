"""Drills: what goes wrong between machines, done on purpose to real processes over mutual TLS on this machine.

`python -m tests.network.drills [NAME...]` prints a line for each: its name, PASS or FAIL, seconds, what was done and
what was seen. After every drill `Consortium.check` holds what the coordinator and the sites have left against each
other.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.engines.coordinator import WITHDRAWN, Progress
from tacit.federated.messages import Broadcast, Refusal, Update, decode, decode_tree, encode
from tacit.files.site_file import read_site
from tacit.files.study_file import read_study
from tacit.network import certificates
from tacit.network.agreement import Agreement
from tacit.network.audit_log import AuditLog
from tacit.network.certificates import Kit
from tacit.network.channel import Arrival, Reply
from tacit.network.remote import Remote
from tacit.network.scales import asdict_of
from tacit.network.site_session import HELLO, SiteSession, folder_of
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.ledger import Ledger
from tacit.study.coordinator import FACTOR_GAP, StudyResult, coordinate
from tacit.study.folder import name_of
from tacit.study.setup import Setup

NAMES = ("north", "south", "east", "west", "centre")
TAG = "TACIT_DRILL"  # in the environment of every process of a consortium: by it they are found, and ended
# As the Makefile's QUICK.
XLA = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
POLL = 0.05  # seconds
LONG = 180.0  # seconds to wait for something that is to come, on a machine that is busy
TACIT = str(Path(sys.executable).with_name("tacit"))


class DrillFailed(AssertionError):
    """What a drill expected and did not find."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def compiled_folder() -> Path:
    """Compiled programs, shared by all processes of all drills and kept between them."""
    folder = Path(tempfile.gettempdir()) / f"tacit-drills-{os.getuid()}" / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Consortium:
    """A small study of made-up records, its certificates, and its coordinator and sites as processes.

    with Consortium(folder) as group:
        group.start()
        result = group.wait_finished()
        group.check()

    study: lines of the study file, by name, such as schedule="sequential". listen: where the coordinator listens, if
    it is not `port`, at which sites dial it. No process outlives the `with`.
    """

    def __init__(
        self,
        folder: Path,
        sites: int = 3,
        *,
        rounds: int = 6,
        records: Sequence[int] = (80, 120, 60, 100, 70),
        epsilon: float = 3.0,
        port: int | None = None,
        study: Mapping[str, Any] | None = None,
        budgets: Mapping[str, float] | None = None,
        seed: int = 7,
    ) -> None:
        self.folder, self.names, self.rounds = folder, list(NAMES[:sites]), rounds
        self.network, self.out, self.study = folder / "network", folder / "out", folder / "drill.toml"
        self.port = free_port() if port is None else port
        self.epsilon, self.seed = epsilon, seed
        self._id = uuid.uuid4().hex
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        self._write_records(records)
        self.write_study(budgets or {}, **(study or {}))
        self.tacit(
            "network", "init", self.study, "--sites", ",".join(self.names), "--out", self.network, "--port", self.port
        )
        for name in self.names:
            self.edit_site(name, data=str(folder / f"{name}.csv"), insecure_seed=seed)

    # --- Files ---------------------------------------------------------------------------------------------------

    def _write_records(self, records: Sequence[int]) -> None:
        for place, (name, count) in enumerate(zip(self.names, records, strict=False)):
            rng = np.random.default_rng(place)
            age, dose, sex = rng.uniform(20, 80, count), rng.uniform(0, 10, count), rng.choice(["f", "m"], count)
            chance = 1 / (1 + np.exp(-(0.05 * (age - 50) + 0.3 * (dose - 5) + 0.8 * (sex == "m") - 0.4)))
            ill = np.where(rng.uniform(size=count) < chance, "yes", "no")
            rows = [f"{a:.1f},{d:.2f},{s},{y}" for a, d, s, y in zip(age, dose, sex, ill, strict=True)]
            (self.folder / f"{name}.csv").write_text("\n".join(["age,dose,sex,ill", *rows]) + "\n")

    def write_study(self, budgets: Mapping[str, float], **more: Any) -> None:
        """The study file, for `tacit simulate` as well. budgets: ε of sites that have another one."""
        top = {"name": "drill", "model": "logistic", "rounds": self.rounds, "epsilon": self.epsilon, "delta": 1e-3}
        top |= {"target": "ill", "columns": ["age", "dose", "sex"], **more}
        lines = [f"{name} = {json.dumps(value)}" for name, value in top.items()]
        lines += ["[facts]", 'classes = ["no", "yes"]', "[facts.bounds]", "age = [20, 80]", "dose = [0, 10]"]
        lines += ["[facts.categories]", 'sex = ["f", "m"]']
        for name in self.names:
            lines += ["[[site]]", f'name = "{name}"', f'file = "{name}.csv"', "slots = 128"]
            lines += [f"epsilon = {budgets[name]}"] if name in budgets else []
        self.study.write_text("\n".join(lines) + "\n")

    def site_file(self, name: str) -> Path:
        return self.network / "sites" / name / "site.toml"

    def edit_site(self, name: str, **values: Any) -> None:
        """Lines of a site's file; those that are not there come first."""
        place = self.site_file(name)
        text = place.read_text()
        for key, value in values.items():
            line = f"{key} = {json.dumps(value)}"
            text, found = re.subn(rf"(?m)^{key} *=.*$", lambda _, line=line: line, text)
            text = text if found else f"{line}\n{text}"
        place.write_text(text)

    def introduce(self) -> None:
        """Give each site the keys of the others, for secure sums, as those who run them would."""
        keys = {name: self.tacit("network", "key", self.site_file(name)).strip() for name in self.names}
        for name in self.names:
            others = "\n".join(line for other, line in keys.items() if other != name)
            place = self.site_file(name)
            place.write_text(
                re.sub(r"(?m)^\[peers\].*$", lambda _, others=others: f"[peers]\n{others}", place.read_text())
            )

    def site_state(self, name: str) -> Path:
        """The folder of a site's ledger, stores and audit log."""
        return read_site(self.site_file(name)).state_folder

    def ledger(self, name: str) -> Ledger | None:
        """A site's ledger; None before the first study."""
        path = self.site_state(name) / "ledger.sqlite"
        return Ledger.open(path) if path.exists() else None

    def charges(self, name: str) -> list[tuple[str, int]]:
        """(phase, round) of all that a site's ledger holds."""
        found = self.ledger(name)
        return [] if found is None else [(entry.study.rpartition("/")[2], entry.round) for entry in found.entries()]

    def audit(self, name: str, kind: str | None = None) -> list[dict[str, Any]]:
        """Lines of a site's audit log, of one kind or of group."""
        path = self.site_state(name) / "audit.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if kind in (None, line["kind"])]

    def answered(self, name: str, phase: str = "inference") -> set[int]:
        """The rounds of a phase that a site has answered."""
        return {line["round"] for line in self.audit(name, "answered") if line["study"].endswith(f"/{phase}")}

    def status(self) -> dict[str, Any]:
        """As `tacit network status` finds it; empty before the study has begun."""
        try:
            return json.loads((self.out / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def posterior(self) -> dict[str, Any]:
        """The numbers of the released posterior."""
        return json.loads((self.out / "posterior.json").read_text())["blocks"]

    @cached_property
    def setup(self) -> Setup:
        """The study as the coordinator has it."""
        study = read_study(self.study)
        return Agreement.of(study).setup(study.outline()[0][0].table, model=study.plan.model)

    def progress(self, phase: str = "inference") -> Progress:
        """What the coordinator has stored."""
        data = (self.out / f"{phase}.progress").read_bytes()
        return Progress.from_bytes(data, self.setup.algorithm(phase, 0), len(self.names))

    def answered_all(self, *names: str) -> bool:
        """Whether these sites have answered all that the plan has."""
        return all(len(self.answered(name)) >= self.rounds for name in names)

    def kit(self, name: str) -> Path:
        return self.network / "sites" / name / "kit"

    def dial(self, port: int) -> None:
        """Let sites dial another port, of something between them and the coordinator."""
        for name in self.names:
            place = self.kit(name) / "kit.json"
            place.write_text(json.dumps(json.loads(place.read_text()) | {"port": port}))

    def certify(self, name: str, *, ends_in_days: float = 30.0, is_known: bool = True) -> None:
        """A certificate and key of a site, signed by the network's authority or by an unknown one of the same name."""
        authority, kit = self.network / "authority", self.kit(name)
        root = x509.load_pem_x509_certificate((authority / "authority.pem").read_bytes())
        known = serialization.load_pem_private_key((authority / "key.pem").read_bytes(), None)
        signer = known if is_known else ec.generate_private_key(ec.SECP256R1())
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        more: dict[str, Any] = {"is_server": False, "days": ends_in_days}
        made = certificates.certificate(name, root.subject, signer, key.public_key(), **more)
        (kit / "holder.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        certificates._put_key(kit / "key.pem", key)

    # --- Without processes ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def sessions(self) -> Iterator[dict[str, SiteSession]]:
        """All sites in this process."""
        study = Agreement.of(read_study(self.study)).to_json()
        found = {name: SiteSession(read_site(self.site_file(name)), study) for name in self.names}
        yield found
        for session in found.values():
            session.close()

    def asks(self) -> Callable[..., bytes]:
        """asks(round, moved): a request of inference, whose q is moved by so much."""
        setup = self.setup
        algorithm = setup.algorithm("inference", 0)
        scaling = {name: np.asarray(value) for name, value in asdict_of(setup.public_scaling()).items()}
        q = algorithm.broadcast(algorithm.coordinator_init(len(self.names)))[1]

        def ask(round: int, moved: float = 0.0) -> bytes:
            content = replace(q, precision_mean=np.asarray(q.precision_mean + moved, np.float32))
            return encode(Broadcast(f"{name_of(setup)}/inference", round, {"scaling": scaling, "content": content}))

        return ask

    def simulated(self) -> dict[str, Any]:
        """The posterior of the same study in one process, with the same seeds and no network."""
        out = self.folder / "simulated"
        self.tacit("simulate", self.study, "--out", out, "--insecure-seed", self.seed)
        return json.loads((out / "posterior.json").read_text())["blocks"]

    def expect_undisturbed(self) -> None:
        """The posterior is that of a run in which nothing went wrong."""
        expect(self.posterior() == self.simulated(), "the posterior is not that of an undisturbed run")

    # --- Processes -----------------------------------------------------------------------------------------------

    def __enter__(self) -> "Consortium":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for role in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._processes[role].pid, signal.SIGKILL)
        self._end(self._family())
        for process in self._processes.values():
            process.wait()
        left = self._family()
        if left and error is None:
            raise DrillFailed(f"processes outlive the consortium: {left}")

    def environment(self, role: str, **more: str) -> dict[str, str]:
        """Of every process of a role: "serve", or a site's name."""
        own = {TAG: f"{self._id}:{role}", "JAX_COMPILATION_CACHE_DIR": str(compiled_folder()), "XLA_FLAGS": XLA}
        return {**os.environ, "JAX_PLATFORMS": "cpu", **own, **more}

    def tacit(self, *arguments: object) -> str:
        """A command that ends by itself, and its output."""
        command = [TACIT, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment("command"), capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise DrillFailed(f"tacit {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
        return done.stdout

    def refused(self, *arguments: object) -> str:
        """What a command says that is expected to fail."""
        try:
            found = self.tacit(*arguments)
        except DrillFailed as error:
            return str(error)
        raise DrillFailed(f"tacit {' '.join(map(str, arguments))} was not refused: {found}")

    def shake_hands(self, name: str) -> str:
        """What is wrong with a site's certificate, as it finds out by dialling; nothing if it is let in."""
        kit = json.loads((self.kit(name) / "kit.json").read_text())
        return certificates.trouble(Kit(self.kit(name), kit["name"], kit["host"], kit["port"]))

    def _start(self, role: str, arguments: Sequence[object], more: Mapping[str, str]) -> None:
        if role in self._processes and self._processes[role].poll() is None:
            raise DrillFailed(f"{role} is running already")
        with (self.folder / "logs" / f"{role}.log").open("ab") as log:
            self._processes[role] = subprocess.Popen(
                [TACIT, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(role, **more),
                start_new_session=True,
            )

    def start(self, hooks: Mapping[str, "Hooks"] | None = None, **options: Any) -> None:
        """All sites and the coordinator. hooks: of "serve" or of sites."""
        hooks = hooks or {}
        for name in self.names:
            self.start_site(name, hooks.get(name))
        self.start_serve(hooks.get("serve"), **options)

    def start_site(self, name: str, hooks: "Hooks | None" = None) -> None:
        self._start(name, ["join", self.site_file(name)], self._hooked(hooks))

    def start_serve(self, hooks: "Hooks | None" = None, *, patience: float = 60.0, at_least: int | None = None) -> None:
        options = [] if at_least is None else ["--at-least", at_least]
        folders = ["--network", self.network, "--out", self.out]
        command = ["serve", self.study, *folders, "--patience", patience, *options]
        self._start("serve", command, self._hooked(hooks))

    def _hooked(self, hooks: "Hooks | None") -> dict[str, str]:
        if hooks is None:
            return {}
        place = self.folder / "hooks"
        if not place.exists():  # a process that is starting may be reading it
            place.mkdir()
            (place / "sitecustomize.py").write_text(SITECUSTOMIZE)
        path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {"PYTHONPATH": path, "TACIT_DRILL_HOOKS": json.dumps(asdict(hooks))}

    def hold(self, at: str, phase: str, number: int) -> "Hold":
        """Where a process is to stop until it is let go, or killed."""
        flag = self.folder / f"hold-{uuid.uuid4().hex[:8]}"
        flag.touch()
        return Hold(self, flag, Pause(at, phase, number, flag=str(flag)))

    def _family(self, role: str | None = None) -> list[psutil.Process]:
        """All processes of a role, or of all."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                tag = process.environ().get(TAG, "")
                if process.status() != psutil.STATUS_ZOMBIE and tag.partition(":")[0] == self._id:
                    found += [process] if role in (None, tag.partition(":")[2]) else []
        return found

    def _end(self, family: Sequence[psutil.Process], number: int = signal.SIGKILL) -> None:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        psutil.wait_procs(family, timeout=20)

    def kill(self, role: str) -> None:
        """kill -9 of all processes of the coordinator or of a site."""
        while family := self._family(role):
            self._end(sorted(family, key=lambda process: process.create_time()))
        self._processes[role].wait()

    def kill_site(self, name: str) -> None:
        """kill -9 of `tacit join`."""
        self.kill(name)

    def kill_serve(self) -> None:
        """kill -9 of `tacit serve`."""
        self.kill("serve")

    def stop(self, role: str) -> None:
        """End a process as a service manager does, and wait until all of its children have ended."""
        self._processes[role].send_signal(signal.SIGTERM)
        self.wait_for(lambda: not self._family(role), LONG, f"{role} ends by a signal", watch_serve=False)
        self._processes[role].wait()

    def is_running(self, role: str) -> bool:
        return role in self._processes and self._processes[role].poll() is None

    # --- Waiting -------------------------------------------------------------------------------------------------

    def wait_for(
        self, condition: Callable[[], Any], seconds: float, what: str, *, watch_serve: bool = True, poll: float = POLL
    ) -> Any:
        """Until a condition holds; what it gave."""
        end = time.monotonic() + seconds
        while True:
            if found := condition():
                return found
            serve = self._processes.get("serve")
            if watch_serve and serve is not None and serve.poll() not in (None, 0, -signal.SIGKILL):
                raise DrillFailed(f"waiting for: {what}; tacit serve ended with {serve.returncode}\n{self.tails()}")
            if time.monotonic() > end:
                raise DrillFailed(f"waited {seconds:g} s for: {what}\n{self.tails()}")
            time.sleep(poll)

    def wait_step(self, done: int, seconds: float = LONG, phase: str = "inference") -> None:
        """Until so many steps of a phase are done."""

        def is_there() -> bool:
            found = self.status()
            return found.get("phase") == phase and found.get("done", 0) >= done

        self.wait_for(is_there, seconds, f"step {done} of {phase}")

    def wait_charged(self, name: str, phase: str, round: int, seconds: float = LONG) -> None:
        """Until a round is in a site's ledger."""
        self.wait_for(lambda: (phase, round) in self.charges(name), seconds, f"{name} charges round {round} of {phase}")

    def wait_finished(self, seconds: float = LONG) -> dict[str, Any]:
        """Until `tacit serve` has ended well; the result."""

        def is_done() -> bool:
            return not self.is_running("serve") and (self.out / "result.json").exists()

        self.wait_for(is_done, seconds, "the study finishes")
        return json.loads((self.out / "result.json").read_text())

    def tails(self, lines: int = 15) -> str:
        """The ends of all logs."""
        found = [*sorted((self.folder / "logs").glob("*.log")), self.out / "flare.log", self.out / "log.jsonl"]
        found += sorted(self.network.glob("sites/*/state/flare.log"))
        parts = [f"--- {path}\n" + "\n".join(_lines(path)[-lines:]) for path in found if path.exists()]
        return "\n".join(parts)

    # --- What must hold after every drill ------------------------------------------------------------------------

    def check(self, *, is_whole: bool = True) -> str:
        """Ledgers, audit logs, stores and the coordinator's state agree; in words.

        - Every ledger and every audit log verifies.
        - Every round that was answered is charged; ε recorded is at least ε of what was answered.
        - No round was answered in two ways.
        - No answer counted twice: each site was taken at most as often as it answered different rounds, and its factor
          in q is the last that it sent; q is the product of prior and factors.

        is_whole: the coordinator has never lost its state, and took every answer that was made.
        """
        words = self.check_sites()
        self._check_coordinator(is_whole)
        return words

    def check_sites(self) -> str:
        """The part of the sites."""
        return "; ".join(self._check_site(name) for name in self.names)

    def _check_site(self, name: str) -> str:
        state = self.site_state(name)
        AuditLog(state / "audit.jsonl").verify()
        hashes: dict[tuple[str, int], set[str]] = {}
        for line in self.audit(name, "answered"):
            hashes.setdefault((line["study"], line["round"]), set()).add(line["answer"])
        for place, found in hashes.items():
            expect(len(found) == 1, f"{name} answered {place} in {len(found)} ways")
        ledger = self.ledger(name)
        if ledger is None:
            expect(not hashes, f"{name} answered without a ledger")
            return f"{name} 0 charged"
        ledger.verify()
        charged = {(entry.study, entry.round): entry.event for entry in ledger.entries()}
        expect(set(hashes) <= set(charged), f"{name} answered what it did not charge: {set(hashes) - set(charged)}")
        expect(len(charged) == len(ledger.entries()), f"{name} charged a round twice")
        really = price_of([charged[place] for place in hashes], ledger)
        expect(really <= ledger.spent() * (1 + 1e-9), f"{name} spent {really} and recorded {ledger.spent()}")
        for store in state.glob("*/*.store"):
            place = (f"{name_of(self.setup)}/{store.stem}", int(decode_tree(store.read_bytes())["place"][0]))
            expect(place in charged, f"{name} stored {place}, which it did not charge")
        return f"{name} {len(charged)} charged, {len(hashes)} answered, ε {ledger.spent():.3g} ≥ {really:.3g}"

    def _check_coordinator(self, is_whole: bool) -> None:
        result = json.loads((self.out / "result.json").read_text())
        now, study = self.progress(), name_of(self.setup)
        expect(result["history"][-1]["factor_gap"] <= FACTOR_GAP, "q is not the product of its factors")
        expect(result["communications"] == sum(now.taken.values()), "communications are not the updates taken")
        for place, name in enumerate(self.names):
            rounds, taken = self.answered(name), now.taken.get(place, 0)
            expect(taken <= len(rounds), f"{name} answered {len(rounds)} rounds and was taken {taken} times")
            if is_whole and now.refused.get(place) != WITHDRAWN:
                expect(taken == len(rounds), f"{name} answered {len(rounds)} rounds and was taken {taken} times")
            factor = [np.asarray(leaf)[place] for leaf in _leaves(now.state.factors)]
            if now.refused.get(place) == WITHDRAWN or not taken:
                expect(all(np.all(leaf == 0) for leaf in factor), f"{name} has a factor in q")
                continue
            stored = decode_tree((self.site_state(name) / folder_of(study) / "inference.store").read_bytes())
            if int(stored["place"][0]) == now.answered[place]:
                same = all(np.array_equal(a, b) for a, b in zip(factor, _leaves(stored["answer"]), strict=True))
                expect(same, f"the factor of {name} in q is not the last that it sent")


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def expect(holds: Any, words: str) -> None:
    """An assertion that `python -O` keeps."""
    if not holds:
        raise DrillFailed(words)


def price_of(events: Sequence[Event], ledger: Ledger) -> float:
    """ε of these events by a ledger's accountant."""
    if not events:
        return 0.0
    whole = compose(*(Repeated(event, events.count(event)) for event in dict.fromkeys(events)))
    return ledger.price(whole)


# --- What is done to processes from inside ------------------------------------------------------------------------


@dataclass(frozen=True)
class Pause:
    """A stop of a process: after a site has charged a round (at="charge"), or after a coordinator's step (at="step").

    number: of the round, or of the steps done; None is any. seconds: how long; None is as long as the file `flag` is
    there. With both, it takes so long while the file is there.
    """

    at: str
    phase: str
    number: int | None = None
    seconds: float | None = None
    flag: str | None = None


@dataclass(frozen=True)
class Hooks:
    """pauses: stops. clock: seconds by which all clocks of the process are ahead. repeats: requests of the coordinator
    are sent this often more, each time up to `late` seconds later, over the same channel. is_unchecked: a site does not
    look at its own certificate. is_broken: it cannot open a study."""

    pauses: tuple[Pause, ...] = ()
    clock: float = 0.0
    repeats: int = 0
    late: float = 0.0
    is_unchecked: bool = False
    is_broken: bool = False


@dataclass(frozen=True)
class Hold:
    """A pause that ends when the drill says so."""

    consortium: Consortium
    flag: Path
    pause: Pause

    @property
    def hooks(self) -> Hooks:
        return Hooks((self.pause,))

    def wait(self, seconds: float = LONG) -> None:
        """Until a process has come here."""
        held = self.flag.with_name(f"{self.flag.name}.held")
        self.consortium.wait_for(held.exists, seconds, f"a process comes to {self.pause}")

    def release(self) -> None:
        self.flag.unlink(missing_ok=True)


# Python runs it first of all in every process that has its folder on PYTHONPATH.
SITECUSTOMIZE = """
import datetime, importlib.abc, importlib.util, json, os, random, sys, threading, time

GIVEN = json.loads(os.environ.get("TACIT_DRILL_HOOKS", "{}"))

if GIVEN.get("clock"):
    real, shift = time.time, GIVEN["clock"]
    time.time = lambda: real() + shift
    time.time_ns = lambda: int(time.time() * 1e9)


class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=GIVEN.get("clock", 0.0))


def pause(at, phase, number):
    for rule in GIVEN.get("pauses", ()):
        if (rule["at"], rule["phase"]) != (at, phase) or rule["number"] not in (None, number):
            continue
        if rule["flag"] is None or os.path.exists(rule["flag"]) and rule["seconds"] is not None:
            time.sleep(rule["seconds"])
        elif os.path.exists(rule["flag"]):
            open(rule["flag"] + ".held", "w").close()
            while os.path.exists(rule["flag"]):
                time.sleep(0.005)


def of_ledger(module):
    charge = module.Ledger.charge

    def charged(self, event, *, study, round, note=""):
        entry = charge(self, event, study=study, round=round, note=note)
        pause("charge", study.rpartition("/")[2], round)
        return entry

    module.Ledger.charge = charged


def of_status(module):
    show = module.Status.show

    def shown(self, host, phase, done, *rest):
        show(self, host, phase, done, *rest)
        pause("step", phase, done)

    module.Status.show = shown


def of_channel(module):
    carry = module.Post._carry

    def again(self, site, data):
        time.sleep(random.random() * GIVEN["late"])
        self._tried(site, module.ASK + self._head + data)

    def carried(self, site, data, *rest):
        for _ in range(GIVEN.get("repeats", 0)):
            threading.Thread(target=again, args=(self, site, data), daemon=True).start()
        carry(self, site, data, *rest)

    module.Post._carry = carried


def of_kits(module):
    if GIVEN.get("is_unchecked"):
        module.Kit.check = lambda self: None


def of_session(module):
    if GIVEN.get("is_broken"):
        def broken(self, file, study):
            raise RuntimeError("broken on purpose")

        module.SiteSession.__init__ = broken


PATCHES = {
    "tacit.network.certificates": of_kits,
    "tacit.network.site_session": of_session,
    "tacit.privacy.ledger": of_ledger,
    "tacit.network.status": of_status,
    "tacit.network.channel": of_channel,
}


class Patched(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        patch = PATCHES.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            if GIVEN.get("clock") and hasattr(module, "datetime") and name.startswith("tacit."):
                module.datetime = Shifted
            patch(module)

        spec.loader.exec_module = executed
        return spec


sys.meta_path.insert(0, Patched())
"""


# --- What is done to them from outside ---------------------------------------------------------------------------


class Skipped(Exception):
    """This machine does not allow what a drill needs."""


class Proxy:
    """A port that hands everything on to another one, until it is cut."""

    def __init__(self, target: int) -> None:
        self.target, self.port, self.carried = target, free_port(), 0
        self._open = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> "Proxy":
        self.mend()
        return self

    def __exit__(self, *error: object) -> None:
        self.cut(silently=False)

    def mend(self) -> None:
        self._open.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64, reuse_port=True)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self, *, silently: bool) -> None:
        """Reset all connections and refuse new ones; silently: keep them, and hand nothing on."""
        self._open.clear()
        if silently:
            return
        listener, self._listener = self._listener, None
        for each in [*self._sockets, *([listener] if listener else [])]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()
        self._open.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                self._open.wait()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                if self._listener is not listener:
                    return
                with contextlib.suppress(UnboundLocalError):
                    near.close()
                continue
            self._sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._open.wait()
                sink.sendall(data)
                self.carried += len(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int = 4) -> Iterator[Path]:
    """A file system that is soon full."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise Skipped("there is no mount") from None
    if done.returncode:
        raise Skipped(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Until not a single block is left."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))


class Shuffled:
    """Stands in for `nvflare.Post`, in one process. With a seed, messages come repeated and in any order."""

    repeats = True

    def __init__(self, sessions: Mapping[str, SiteSession], seed: int | None) -> None:
        self.sessions, self.sites = sessions, list(sessions)
        self._chance = None if seed is None else random.Random(seed)
        self._phase = ""
        self._requests: list[tuple[str, bytes]] = []
        self._answers: list[tuple[str, Arrival]] = []

    def ask(self, site: str, data: bytes, longest: float | None = None) -> None:
        del longest
        phase = "" if data == HELLO else decode(data).study
        if phase != self._phase:  # a post hands nothing of an earlier phase on
            self._phase = phase
            self._requests.clear()
            self._answers.clear()
        copies = 1 if self._chance is None or data == HELLO else self._chance.randint(1, 3)
        self._requests += [(site, data)] * copies

    def receive(self) -> tuple[str, Arrival]:
        while True:
            if self._requests and not (self._answers and self._toss()):
                site, data = self._taken(self._requests)
                answer = Reply(*self.sessions[site](data))
                self._answers += [(site, answer)] * (2 if data != HELLO and self._toss() else 1)
            elif self._toss() or not self._requests:
                return self._taken(self._answers)

    def _toss(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.5

    def _taken(self, bag: list[Any]) -> Any:
        return bag.pop(0 if self._chance is None else self._chance.randrange(len(bag)))


def _coordinated(group: Consortium, out: Path, post: Shuffled) -> StudyResult:
    out.mkdir(parents=True)
    return coordinate(group.setup, out, Remote(group.setup, post, out / "notes.json", forgives=False))  # type: ignore[arg-type]


# --- The drills ---------------------------------------------------------------------------------------------------

Drill = Callable[[Path], str]
DRILLS: dict[str, Drill] = {}
SHORT = 8.0  # seconds of patience, where a drill has to wait for it to end
DAY = 86_400.0
UNHURRIED = Hooks((Pause("charge", "inference", None, seconds=1.5),))  # rounds in which a site can come back


def drill(function: Drill) -> Drill:
    """A drill has a folder to itself, raises if something does not hold, and says what was seen."""
    DRILLS[function.__name__.replace("_", "-")] = function
    return function


@drill
def kill_a_site(folder: Path) -> str:
    """kill -9 of a site after it charged a round and before it answered, then `tacit join` again"""
    with Consortium(folder, rounds=12) as group:
        hold = group.hold("charge", "inference", 2)
        group.start({"south": hold.hooks, "north": UNHURRIED}, patience=SHORT)
        hold.wait()
        group.kill_site("south")
        hold.release()
        group.start_site("south")
        group.wait_finished()
        words, rounds = group.check(), group.answered("south")
        expect(("inference", 2) in group.charges("south"), "the round was not charged before the kill")
        expect(2 not in rounds, "a round that was lost was answered")
        expect(max(rounds) == 11, f"south did not take part again: {sorted(rounds)}")
        return f"south answered rounds {sorted(rounds)}, round 2 stays charged; {words}"


@drill
def break_a_site(folder: Path) -> str:
    """a site whose program fails whenever a study is opened, as with a broken installation"""
    with Consortium(folder) as group:
        group.start({"south": Hooks(is_broken=True)}, patience=15, at_least=2)
        result = group.wait_finished()
        words = group.check()
        reasons = {site["name"]: site["refused"] for site in result["sites"] if site["refused"]}
        expect(set(reasons) == {"south"}, f"{reasons}")
        expect(not group.charges("south"), "south charged something")
        return f"south: {reasons['south']}; {words}"


@drill
def kill_the_coordinator_between_rounds(folder: Path) -> str:
    """kill -9 of the coordinator between two rounds, then `tacit serve` again"""
    with Consortium(folder) as group:
        hold = group.hold("step", "inference", 2)
        group.start({"serve": hold.hooks})
        hold.wait()
        group.kill_serve()
        hold.release()
        group.start_serve()
        group.wait_finished()
        words = group.check()
        group.expect_undisturbed()
        return f"posterior bit for bit that of tacit simulate; {words}"


@drill
def kill_the_coordinator_in_a_round(folder: Path) -> str:
    """kill -9 of the coordinator while a site is at work on its request, then `tacit serve` again"""
    with Consortium(folder) as group:
        hold = group.hold("charge", "inference", 3)
        group.start({"south": hold.hooks})
        hold.wait()
        group.kill_serve()
        hold.release()
        group.wait_for(lambda: 3 in group.answered("south"), LONG, "south stores its answer")
        group.start_serve()
        group.wait_finished()
        words = group.check()
        group.expect_undisturbed()
        return f"posterior bit for bit that of tacit simulate; {words}"


@drill
def lose_the_coordinator(folder: Path) -> str:
    """kill -9 of the coordinator in mid-study, all of its --out folder lost, `tacit serve` with an empty one"""
    with Consortium(folder) as group:
        hold = group.hold("step", "inference", 3)
        group.start({"serve": hold.hooks})
        hold.wait()
        group.kill_serve()
        hold.release()
        shutil.rmtree(group.out)
        group.start_serve()
        group.wait_finished()
        words = group.check(is_whole=False)
        for name in group.names:
            expect(max(group.answered(name)) == 5, f"{name} did not come to the end: {sorted(group.answered(name))}")
        return words


def _cut(folder: Path, *, silently: bool, seconds: float = 30.0, patience: float = 60.0) -> str:
    with Consortium(folder, rounds=10) as group, Proxy(group.port) as proxy:
        group.dial(proxy.port)
        hold = group.hold("charge", "inference", 2)
        group.start({"south": hold.hooks}, patience=patience)
        hold.wait()
        proxy.cut(silently=silently)
        hold.release()
        start = time.monotonic()
        group.wait_for(lambda: time.monotonic() - start > seconds, seconds + 5, "the cut")
        expect(not (group.out / "result.json").exists(), "the study went on without a network")
        proxy.mend()
        group.wait_finished()
        after = time.monotonic() - start - seconds
        expect(proxy.carried > 0, "the sites do not go through the proxy")
        words = group.check(is_whole=patience > seconds)  # else an answer may come when the round is over
        rounds = [len(group.answered(name)) for name in group.names]
        some = set[int]().union(*map(group.answered, group.names))
        expect(some == set(range(10)), f"only rounds {sorted(some)} of 10 were answered by anybody")
        return f"finished {after:.0f} s after the network was back, rounds answered {rounds}; {words}"


@drill
def cut_the_network(folder: Path) -> str:
    """the port is gone for 30 s in mid-round: all connections are reset, new ones refused"""
    return _cut(folder, silently=False)


@drill
def cut_the_network_silently(folder: Path) -> str:
    """for 30 s nothing gets through in mid-round, and nothing says so"""
    return _cut(folder, silently=True)


@drill
def cut_the_network_for_long(folder: Path) -> str:
    """the port is gone for 45 s, which is longer than the coordinator's patience"""
    return _cut(folder, silently=False, seconds=45.0, patience=SHORT)


@drill
def repeat_requests(folder: Path) -> str:
    """the coordinator's channel delivers every request three times, up to 1 s late, so old ones after new ones"""
    with Consortium(folder, rounds=10) as group:
        slow = Hooks((Pause("charge", "inference", None, seconds=0.2),))
        group.start({"serve": Hooks(repeats=2, late=1.0), "south": slow})
        group.wait_finished()
        words = group.check()
        group.expect_undisturbed()
        answers, refusals = (
            sum(len(group.audit(name, kind)) for name in group.names) for kind in ("answered", "refused")
        )
        charges = sum(len(group.charges(name)) for name in group.names)
        expect(charges == 3 * 11, f"{charges} charges; expected {3 * 11}")
        expect(answers + refusals > charges, "no request came twice")
        return f"{charges} charged, {answers} answers and {refusals} refusals of old rounds left the sites; {words}"


@drill
def reorder_answers(folder: Path) -> str:
    """in one process: requests and answers of all sites repeated and shuffled on their way"""
    with Consortium(folder) as group, group.sessions() as sessions:
        shuffled = _coordinated(group, folder / "shuffled", Shuffled(sessions, seed=1))
        words = group.check_sites()
        reasons = [site["refused"] for site in shuffled.sites]
        expect(reasons == [None] * 3 and shuffled.communications == 3 * 6, f"{shuffled.communications}, {reasons}")
    with Consortium(folder / "again") as group, group.sessions() as sessions:
        plain = _coordinated(group, folder / "plain", Shuffled(sessions, seed=None))
        found = [(block.mean.tolist(), block.covariance.tolist()) for block in plain.posterior.blocks.values()]
        other = [(block.mean.tolist(), block.covariance.tolist()) for block in shuffled.posterior.blocks.values()]
        expect(found == other, "the order of messages changed the posterior")
    return f"the posterior is that of messages in order, bit for bit; {words}"


@drill
def fill_the_disk(folder: Path) -> str:
    """a site's disk is full in mid-study: refused before a charge; room again, `tacit serve` again: it takes part"""
    with small_disk(folder / "disk") as disk, Consortium(folder, rounds=8) as group:
        group.edit_site("south", state=str(disk / "state"))
        full, end = group.hold("step", "inference", 2), group.hold("step", "inference", 5)
        group.start({"serve": Hooks((full.pause, end.pause))}, patience=SHORT)
        full.wait()
        charged = group.charges("south")
        fill(disk)
        full.release()
        end.wait()
        expect(group.charges("south") == charged, "a site with a full disk charged a round")
        reason = group.status()["sites"]["south"]["reason"]
        expect(group.status()["sites"]["south"]["state"] == "left out", f"{group.status()}")
        group.kill_serve()
        end.release()
        (disk / "ballast").unlink()
        group.start_serve()
        group.wait_finished()
        words, rounds = group.check(), group.answered("south")
        expect(max(rounds) == 7, f"south did not take part again: {sorted(rounds)}")
        expect(not {2, 3, 4} & rounds, "a round that was refused was answered")
        return f"refused: {reason}; afterwards south answered rounds {sorted(rounds)}; {words}"


@drill
def set_clocks_apart(folder: Path) -> str:
    """a site whose clock is a day ahead, and one whose clock is a day behind"""
    with Consortium(folder) as group:
        group.start({"south": Hooks(clock=DAY), "east": Hooks(clock=-DAY)})
        group.wait_finished()
        words = group.check()
        group.expect_undisturbed()
        apart = [
            _seconds_between(group.audit(name)[-1]["time"], group.audit("north")[-1]["time"]) for name in group.names
        ]
        expect(abs(apart[1] - DAY) < 60 and abs(apart[2] + DAY) < 60, f"the clocks are not apart: {apart}")
        return f"the posterior is that of one clock, bit for bit; {words}"


@drill
def show_false_certificates(folder: Path) -> str:
    """three sites with a certificate that is expired, of an unknown authority, and another site's; two true ones"""
    with Consortium(folder, 5) as group:
        group.certify("south", ends_in_days=-1)
        group.certify("east", is_known=False)
        for file in ("holder.pem", "key.pem"):
            shutil.copy2(group.kit("north") / file, group.kit("west") / file)
        for name, words in (("south", "expired"), ("east", "authority"), ("west", "is of 'north'")):
            said = group.refused("join", group.site_file(name))
            expect(words in said, f"tacit join said of {name}'s certificate: {said}")
        hold = group.hold("step", "inference", 2)
        for name in ("north", "centre"):
            group.start_site(name)
        group.start_site("west", Hooks(is_unchecked=True))  # it dials all the same, and south and east do below
        group.start_serve(hold.hooks, at_least=2, patience=SHORT)
        hold.wait()
        heard = {name: group.shake_hands(name) for name in ("north", "south", "east")}
        expect(not heard["north"], f"a true certificate is not let in: {heard}")
        expect(heard["south"] and heard["east"], f"a false certificate is let in: {heard}")
        log, words = group.out / "flare.log", "authenticated as 'north' but claimed endpoint 'west'"
        group.wait_for(lambda: words in log.read_text(errors="replace"), LONG, "west is turned away")
        hold.release()
        result = group.wait_finished()
        words = group.check()
        for name in ("south", "east", "west"):
            expect(group.ledger(name) is None and not group.audit(name), f"{name} was let in")
            site = next(site for site in result["sites"] if site["name"] == name)
            expect(site["updates"] == 0, f"{name} took part")
        return f"tacit join names each; the port is closed to all three, and says to south: {heard['south']}; {words}"


@drill
def ask_for_too_much(folder: Path) -> str:
    """a study with more ε than a site allows, less noise than another, a model unknown to a third; two agree"""
    with Consortium(folder, 5) as group:
        group.edit_site("south", epsilon=1.0)
        group.edit_site("east", least_noise=100.0)
        group.edit_site("west", models=["probit"])
        group.start(patience=SHORT, at_least=2)
        result = group.wait_finished()
        words = group.check()
        reasons = {site["name"]: site["refused"] for site in result["sites"] if site["refused"]}
        for name, part in (("south", "epsilon=3 is asked for"), ("east", "the noise of"), ("west", "model='logistic'")):
            expect(part in reasons.get(name, ""), f"{name} said {reasons.get(name)}")
            expect(not group.charges(name), f"{name} charged {group.charges(name)}")
        expect(set(reasons) == {"south", "east", "west"}, f"{reasons}")
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return f"{told}; {words}"


@drill
def lie_about_rounds(folder: Path) -> str:
    """in one process: a coordinator that asks for earlier rounds, huge ones, and the same ones with another q"""
    with Consortium(folder) as group, group.sessions() as sessions:
        south, asks = sessions["south"], group.asks()
        first = south(asks(0))[0]
        expect(south(asks(0))[0] == first, "a round was answered in two ways")
        expect(south(asks(0, moved=1.0))[0] == first, "a repeated round with another q was made anew")
        later = south(asks(4))[0]
        expect(isinstance(decode(later), Update), "a later round was refused")
        for round in (0, 1, 3):
            expect(isinstance(decode(south(asks(round))[0]), Refusal), f"the earlier round {round} was answered")
        expect(south(asks(4, moved=2.0))[0] == later, "a repeated round with another q was made anew")
        expect(len(group.charges("south")) == 2, f"{group.charges('south')}")
        huge = 2**62
        expect(isinstance(decode(south(asks(huge))[0]), Update), "a round is a name; none is too large to be answered")
        expect(isinstance(decode(south(asks(5))[0]), Refusal), "a round before a huge one was answered")
        for more in range(1, 10):  # the plan has 6 updates
            south(asks(huge + more))
        expect(
            len(group.charges("south")) == 6, f"{len(group.charges('south'))} charges; expected 6, which the plan has"
        )
        words = group.check_sites()
        return f"6 updates of 6 charged, whatever was asked; {words}"


@drill
def slow_one_site_down(folder: Path) -> str:
    """an asynchronous study in which one site becomes ten times slower on the way"""
    with Consortium(folder, rounds=60, study={"schedule": "asynchronous"}) as group:
        flag = group.folder / "slow"
        work = Pause("charge", "inference", None, seconds=0.2)
        slow = Hooks((work, Pause("charge", "inference", None, seconds=1.8, flag=str(flag))))
        group.start({"north": Hooks((work,)), "south": Hooks((work,)), "east": slow})
        group.wait_for(
            lambda: min(len(group.answered(name)) for name in group.names) >= 12, LONG, "12 updates of each site"
        )
        flag.touch()
        start = time.time()
        group.wait_for(lambda: group.answered_all("north", "south"), LONG, "the fast sites end")
        end, slowly = time.time(), len(group.answered("east"))
        flag.unlink()
        group.wait_finished()
        words = group.check()
        before, after = {}, {}
        for name in ("north", "south"):
            times = _times(group.audit(name, "answered"))
            early, late = [t for t in times[3:] if t < start], [t for t in times if t > start + 0.5]
            before[name], after[name] = (_rate(part) for part in (early, late))
        own = [t for t in _times(group.audit("east", "answered")) if start < t < end]
        fast = sum(start < t < end for t in _times(group.audit("north", "answered")))
        expect(fast >= 3 * len(own), f"north made {fast} updates while east made {len(own)}")
        kept = sum(after.values()) / sum(before.values())
        expect(kept > 0.5, f"the others kept {kept:.0%} of their pace")
        return (
            f"north and south: {before['north']:.2f} and {before['south']:.2f} updates/s before, {after['north']:.2f} "
            f"and {after['south']:.2f} after ({kept:.0%}); meanwhile north made {fast}, east {len(own)} ({slowly} in "
            f"all); {words}"
        )


@drill
def withdraw_a_site(folder: Path) -> str:
    """`tacit network withdraw` of a site in mid-study"""
    with Consortium(folder) as group:
        hold = group.hold("step", "inference", 3)
        group.start({"serve": hold.hooks})
        hold.wait()
        group.tacit("network", "withdraw", "south", "--out", group.out)
        hold.release()
        result = group.wait_finished()
        words, now = group.check(), group.progress()
        expect(max(group.answered("south")) == 2, "a site that has withdrawn was asked again")
        reasons = {site["name"]: site["refused"] for site in result["sites"]}
        expect(reasons["south"] == WITHDRAWN, f"{reasons}")
        study = name_of(group.setup)
        stored = [
            decode_tree((group.site_state(n) / folder_of(study) / "inference.store").read_bytes())
            for n in ("north", "east")
        ]
        product = [a + b for a, b in zip(*(_leaves(found["answer"]) for found in stored), strict=True)]
        close = all_close(product, _leaves(now.state.total))
        expect(close, "q is not the product of the prior and the factors of those who stayed")
        return f"q is the product of prior, north's and east's factors; {words}"


def all_close(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Up to rounding in single precision."""
    pairs = zip(found, expected, strict=True)
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-5 * float(np.abs(b).max())) for a, b in pairs)


def _times(lines: Sequence[Mapping[str, Any]], phase: str = "inference") -> list[float]:
    return [datetime.fromisoformat(line["time"]).timestamp() for line in lines if line["study"].endswith(phase)]


def _seconds_between(one: str, other: str) -> float:
    return (datetime.fromisoformat(one) - datetime.fromisoformat(other)).total_seconds()


def _rate(times: Sequence[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


# --- By hand ------------------------------------------------------------------------------------------------------


def main(names: Sequence[str]) -> int:
    """Run these, or all; a line for each."""
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        print(f"no drill {unknown[0]!r}; expected some of {', '.join(DRILLS)}")
        return 2
    failures = 0
    for name in names or DRILLS:
        folder = Path(tempfile.mkdtemp(prefix=f"drill-{name}-"))
        start, kept = time.monotonic(), ""
        try:
            verdict, seen = "PASS", DRILLS[name](folder)
        except Skipped as reason:
            verdict, seen = "SKIP", str(reason)
        except Exception as error:
            verdict, seen = "FAIL", f"{type(error).__name__}: {error}"
            failures, kept = failures + 1, f" [{folder}]"
        if not kept:
            shutil.rmtree(folder)
        print(
            f"{name:36} {verdict} {time.monotonic() - start:4.0f} s  {DRILLS[name].__doc__}: {seen}{kept}", flush=True
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
