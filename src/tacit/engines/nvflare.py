"""Bytes between a coordinator and sites on other machines, by NVIDIA FLARE. Nothing here knows a study or a posterior.

FLARE brings certificates, mutual TLS, connections that sites open (they dial out), and a process for each job. A
**job** is one sitting of a study: it carries `study.json` and the names of two classes that are installed with tacit,
and no code. What a site's policy lets a job do is written by `harden`, into the site's own kit: nothing but the one
executor, no code of a job's, no shell, no streaming of logs.

| part          | where       | what                                                                                |
|---------------|-------------|-------------------------------------------------------------------------------------|
| `provision`   | organiser   | a certificate authority, and a start-up kit for the coordinator and for every site   |
| `start`       | both        | FLARE's own process, tied to the life of ours                                        |
| `Operator`    | coordinator | who is connected; begins and ends sittings                                           |
| `Coordinator` | coordinator | the job's controller: `conduct(post)` is all that is left to say                     |
| `Answerer`    | site        | the job's executor: `open(study)` gives the function that answers bytes by bytes     |

Messages are requests over FLARE's auxiliary channel, one round trip each. (Its tasks are fetched by sites that ask now
and then, in three round trips.) A site that is still at work says so every few seconds; so one that says nothing is
away. A request may be sent twice: that a round is answered once is the site's business, not the channel's.
"""

import contextlib
import hashlib
import io
import json
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.utils.argument_utils import parse_vars

from tacit.engines.guarded import OWN_NAME

TOPIC = "tacit"
GUARDED = "tacit.engines.guarded"  # all of FLARE's programs are begun through it
COORDINATOR = "TACIT_COORDINATOR"  # the variable that says what the coordinator calls itself, by the site's own kit
HOLD = 5.0  # seconds for which a site that is at work holds a request, before it says that it is
UNHEARD = 2 * HOLD  # seconds without any word after which a request is sent again
PAUSE = 0.5  # seconds before a site that cannot be reached is tried again
HEARTBEAT = 2  # seconds between signs of life of a site's process
DAYS_BEHIND = 2  # by which a site's clock may be behind that of who makes certificates
AUTHORITY_DAYS = 3650  # of the authority's own certificate; FLARE gives the others 360
OPERATOR = "operator@tacit.local"
ORGANISATION = "coordinator"
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
TAKEN = ("server", "all", "coordinator", "operator")  # by FLARE and by the other kits
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
MOST_STUDY = 2**20  # bytes of a study in a job


# --- Certificates and kits ----------------------------------------------------------------------------------------


def check_site_name(name: str) -> None:
    """Refuse what cannot be in a certificate, or what FLARE would read as a number or as yes and no."""
    if not NAME.fullmatch(name) or parse_vars([f"uid={name}"])["uid"] != name or name in TAKEN:
        raise ValueError(
            f"site {name!r}; expected a name of two or more letters, digits, - and _, a letter first, for a certificate"
        )


def check(sites: Sequence[str], host: str) -> None:
    """Refuse what `provision` would."""
    for name in sites:
        check_site_name(name)
    if not ADDRESS.fullmatch(host):
        raise ValueError(f"address={host!r}; expected the host name of the coordinator, as sites will dial it")


def provision(
    folder: Path, project: str, sites: Sequence[str], host: str, port: int, renew: Sequence[str] = ()
) -> None:
    """Certificates and start-up kits: `folder/coordinator`, `folder/operator`, `folder/sites/NAME/kit`.

    `folder/authority` holds the key that signs them all. Kits that are there stay as they are, but for those that are
    named in `renew`, which get new keys and certificates ("coordinator" and "operator" too).
    """
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    class Backdated(CertBuilder):
        """A certificate that is new is valid also by a clock that is behind."""

        @staticmethod
        def _generate_cert(*args: Any, not_valid_before: datetime | None = None, **more: Any) -> Any:
            start = (not_valid_before or datetime.now(UTC)) - timedelta(days=DAYS_BEHIND)
            return CertBuilder._generate_cert(*args, not_valid_before=start, **more)

    check(sites, host)
    if project in sites:  # it is what the coordinator calls itself, and by which sites know it
        raise ValueError(f"site {project!r} has the name of the study; give one of them another name")
    authority = folder / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    places = {"coordinator": folder / "coordinator", "operator": folder / "operator"}
    places |= {name: folder / "sites" / name / "kit" for name in sites}
    subjects = {"coordinator": host, "operator": OPERATOR} | {name: name for name in sites}
    kept = {name for name, place in places.items() if place.exists() and name not in renew}
    _forget(authority / project / "state" / "cert.json", [subjects[name] for name in places if name not in kept])
    plan = Project(project, "a study of tacit", props={"api_version": 3})
    plan.set_server(host, ORGANISATION, {"fed_learn_port": port, "admin_port": port})
    plan.add_admin(OPERATOR, ORGANISATION, {"role": "project_admin"})
    for name in sites:
        plan.add_client(name, re.sub("[^A-Za-z0-9_]", "_", name), {"allow_log_streaming": False})
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        builders = [
            WorkspaceBuilder(["master_template.yml"]),
            StaticFileBuilder(config_folder="config"),
            Backdated(root_valid_days=AUTHORITY_DAYS),
            SignatureBuilder(),
        ]
        made = Provisioner(str(authority), builders).provision(plan)
    if made.get("build_error"):
        raise ValueError(f"certificates could not be made: {said.getvalue().strip().splitlines()[-1]}")
    source = max((authority / project).glob("prod_*"))
    for name, place in places.items():
        if name in kept:
            continue
        if place.exists():  # what a site has changed in its own policy stays
            for file in (source / subjects[name] / "startup").iterdir():
                shutil.copy2(file, place / "startup" / file.name)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source / subjects[name], place)
        place.chmod(0o700)
    shutil.rmtree(source)


def _forget(state: Path, subjects: Sequence[str]) -> None:
    """Certificates of these are made anew."""
    if state.exists():
        known = json.loads(state.read_text())
        state.write_text(json.dumps({name: value for name, value in known.items() if name not in subjects}))


def check_certificate(kit: Path, name: str) -> None:
    """Refuse a kit whose certificate nobody would accept: another's, of another authority, or out of date.

    FLARE's own process says nothing of it, and waits for good.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    startup = kit / "startup"
    place = startup / ("server.crt" if (startup / "server.crt").exists() else "client.crt")
    remedy = "ask who runs the network for a new kit, made by 'tacit network init --renew'"
    try:
        own, root = (x509.load_pem_x509_certificate(file.read_bytes()) for file in (place, startup / "rootCA.pem"))
        names = [
            part.rfc4514_string().removeprefix("CN=")
            for part in own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        ]
        own.verify_directly_issued_by(root)
    except (OSError, ValueError, TypeError, InvalidSignature):
        raise ValueError(f"certificate={place} is not of the kit's authority; {remedy}") from None
    if names != [name]:
        raise ValueError(f"certificate={place} is of {names[0] if names else 'nobody'!r}, not of {name!r}; {remedy}")
    if datetime.now(UTC) > own.not_valid_after_utc:
        raise ValueError(f"certificate={place} expired on {own.not_valid_after_utc:%Y-%m-%d}; {remedy}")


# What the operator of a study may ask of a site, and nobody anything else. "byoc" is code that comes with a job.
ALLOWED = {"submit_job": "any", "manage_job": "any", "view": "any"}
RIGHTS: tuple[str, ...] = (*ALLOWED, "clone_job", "download_job", "operate", "shell_commands", "byoc")
RIGHTS += ("server-predeployed-flwr",)


def harden(kit: Path, classes: Sequence[str], folder: Path) -> None:
    """Write the policy of a kit: jobs may use these classes and bring no code; no shell, no logs that leave.

    folder: where a coordinator's FLARE keeps its files. Call it whenever a process is started: it is the site's word
    that counts, not what the kit came with.
    """
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": list(classes),
        "allow_log_streaming": False,
    }
    kept = [part for part in resources["components"] if "log" not in part["id"]]
    is_site = (kit / "startup" / "fed_client.json").exists()
    for part in kept:
        if part["id"] == "process_launcher":
            part["path"] = f"{__name__}.{'SiteLauncher' if is_site else 'CoordinatorLauncher'}"
        if part["id"] == "job_scheduler":
            part["args"] = {"max_jobs": 1, "min_schedule_interval": 1.0, "max_schedule_interval": 5.0}
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(folder / "jobs")
    resources["components"] = kept
    if "snapshot_persistor" in resources:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(folder / "snapshots")
        resources["servers"][0]["heart_beat_timeout"] = 15 * HEARTBEAT
    permissions = {role: dict.fromkeys(RIGHTS, "none") for role in ("project_admin", "org_admin", "lead", "member")}
    permissions["project_admin"] |= ALLOWED
    put(local / "resources.json", json.dumps(resources, indent=1))
    put(local / "authorization.json", json.dumps({"format_version": "1.0", "permissions": permissions}, indent=1))


def put(path: Path, text: str) -> None:
    """All or nothing: a reader finds the old file or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


# --- Processes ----------------------------------------------------------------------------------------------------


def start(kit: Path, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """FLARE's process of a kit, the coordinator's or a site's. It ends when ours does, whatever ends ours."""
    is_site = (kit / "startup" / "fed_client.json").exists()
    if is_site:
        settled = json.loads((kit / "startup" / "fed_client.json").read_text())
        name = settled["client"]["fqsn"]
        environment = {**environment, COORDINATOR: settled["servers"][0]["name"], OWN_NAME: name}
        module, file, more = "client.client_train", "fed_client.json", [f"uid={name}", f"org={name}"]
    else:
        module, file, more = "server.server_train", "fed_server.json", [f"org={ORGANISATION}"]
    settings = ["secure_train=true", "config_folder=config", f"heart_beat_interval={HEARTBEAT}", *more]
    command = [sys.executable, "-m", GUARDED, f"nvflare.private.fed.app.{module}"]
    command += ["-m", str(kit.resolve()), "-s", file, "--set"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, *settings],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        )


class SiteLauncher(ClientProcessJobLauncher):
    """Begins a job's process at a site as `start` begins that of the site."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        return _guarded(super().get_command(job_meta, fl_ctx))


class CoordinatorLauncher(ServerProcessJobLauncher):
    """The same at the coordinator."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        return _guarded(super().get_command(job_meta, fl_ctx))


def _guarded(command: str) -> str:
    before, found, after = command.partition("-m nvflare.private.fed.app.")
    if not found:
        raise RuntimeError("FLARE begins a job in another way than this version of tacit knows; use FLARE 2.9")
    return f"{before}-m {GUARDED} {found.removeprefix('-m ')}{after}"


def stop(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End a process that `start` began, and the jobs it began."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=patience)
        for member in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


# --- The coordinator's hand ---------------------------------------------------------------------------------------


def write_job(folder: Path, name: str, sites: Sequence[str], controller: str, executor: str, study: bytes) -> Path:
    """A job for these sites: the study, and the names of classes that are installed there. It holds no code."""
    if len(study) > MOST_STUDY:
        raise ValueError(f"a study of {len(study)} bytes; expected at most {MOST_STUDY}: fewer columns or categories")
    shutil.rmtree(folder, ignore_errors=True)
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    workflow = {"format_version": 2, "workflows": [{"id": "coordinator", "path": controller, "args": {}}]}
    tasks = {"format_version": 2, "executors": [{"tasks": ["*"], "executor": {"path": executor, "args": {}}}]}
    meta = {"name": name, "min_clients": 1, "deploy_map": {"app": ["server", *sites]}}
    for place, plain in (
        (config / "config_fed_server.json", workflow),
        (config / "config_fed_client.json", tasks),
        (folder / "meta.json", meta),
    ):
        place.write_text(json.dumps(plain, indent=1))
    (config / "study.json").write_bytes(study)
    return folder


class Operator:
    """The coordinator's session with its own FLARE server."""

    def __init__(self, kit: Path, patience: float = 60.0) -> None:
        from nvflare.fuel.flare_api.flare_api import Session

        settled = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]
        end = time.monotonic() + patience
        _await_port(settled["host"], settled["port"], end)  # a session that begins too early may never get through
        while True:
            with _quiet():
                session = Session(OPERATOR, str(kit.resolve()))
            try:
                with _quiet():
                    session.try_connect(timeout=15.0)
                self._session = session
                return
            except Exception as error:  # FLARE has many, for a server that is not quite there
                with _quiet(), contextlib.suppress(Exception):
                    session.api.close()
                if time.monotonic() > end:
                    raise ValueError(f"the coordinator does not answer ({error}); look into its log") from None
                time.sleep(PAUSE)

    def connected(self) -> dict[str, float]:
        """Sites that are connected, each with the seconds since it was last heard."""
        with _asking():
            clients = self._session.get_system_info().client_info
        return {client.name: time.time() - (client.last_connect_time or 0.0) for client in clients}

    def submit(self, job: Path) -> str:
        """Begin a sitting; its name."""
        with _asking():
            return self._session.submit_job(str(job.resolve()))

    def is_over(self, job: str) -> bool:
        """Whether a sitting has ended, in whatever way."""
        with _asking():
            status = str(self._session.get_job_meta(job).get("status"))
        return status.startswith("FINISHED") or status.startswith("FAILED")

    def abort(self, job: str) -> None:
        with _quiet(), contextlib.suppress(Exception):
            self._session.abort_job(job)

    def close(self) -> None:
        with _quiet(), contextlib.suppress(Exception):
            self._session.close()


def _await_port(host: str, port: int, end: float) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=PAUSE):
            return
        time.sleep(PAUSE)
    raise ValueError(f"nothing listens on {host}:{port}; is the port in use? Look into the coordinator's log")


@contextlib.contextmanager
def _quiet() -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _asking() -> Any:
    """FLARE's errors in one sentence."""
    try:
        with _quiet():
            yield
    except Exception as error:  # it has many, and no common one
        words = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"the coordinator's FLARE server says: {words}; give the same command again to go on"
        ) from None


# --- Messages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """What a site answered. note: data-free words beside the message, as JSON."""

    data: bytes
    note: str


@dataclass(frozen=True)
class Lost:
    """A site that did not answer within the coordinator's patience."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """A site that could not make an answer, which is a fault of its program."""

    reason: str = "it failed to make an answer; its own log says why"


Arrival = Reply | Lost | Failed


class Recess(Exception):
    """The sitting is to end, and the study to go on in another one."""


class Post:
    """Requests to sites, each in its own thread; answers in the order in which they come.

    patience: seconds for which a site may be away before it is given up for this time; longest: for which it may be at
    work, or say so. is_over: asked now and then whether the sitting is to end.
    """

    def __init__(self, engine: Any, is_over: Callable[[], bool], patience: float, longest: float) -> None:
        self._engine, self._is_over, self.patience, self.longest = engine, is_over, patience, longest
        self._arrived: queue.Queue[tuple[str, Arrival]] = queue.Queue()
        self._ended = threading.Event()
        self._lost: set[str] = set()
        self._heard: set[str] = set()
        self._silent: dict[str, float] = {}  # since when each that is asked has said nothing
        self.sites = [client.name for client in engine.get_clients()]

    def ask(self, site: str, data: bytes, longest: float | None = None) -> None:
        """Send a request; its answer is one of those that `receive` gives. Who was away is not waited for again."""
        patience = 0.0 if site in self._lost else self.patience
        longest = self.longest if longest is None else min(longest, self.longest)
        threading.Thread(target=self._carry, args=(site, data, patience, longest), daemon=True).start()

    def receive(self) -> tuple[str, Arrival]:
        """The next answer. Raises Recess when the sitting is to end."""
        while True:
            with contextlib.suppress(queue.Empty):
                site, found = self._arrived.get(timeout=PAUSE)
                (self._lost.add if isinstance(found, Lost) else self._lost.discard)(site)
                return site, found
            if self._is_over():
                self._ended.set()
                raise Recess

    def silent(self) -> list[str]:
        """Sites that were heard, and say nothing for a while, though those at work say that they are."""
        now = time.monotonic()
        return [site for site, since in self._silent.copy().items() if site in self._heard and now - since > HOLD]

    def _carry(self, site: str, data: bytes, patience: float, longest: float) -> None:
        last = time.monotonic() + longest
        end = time.monotonic() + patience
        while not self._ended.is_set():
            request, found = Shareable({"data": data}), None
            # FLARE's own errors, such as of a connection that ends, are those of a site that cannot be reached.
            with contextlib.suppress(Exception), self._engine.new_context() as context:
                found = self._engine.send_aux_request(
                    targets=[site], topic=TOPIC, request=request, timeout=UNHEARD, fl_ctx=context, optional=True
                )
            reply = (found or {}).get(site)
            code = None if reply is None else reply.get_return_code()
            if code in (ReturnCode.OK, ReturnCode.EXECUTION_EXCEPTION):
                self._silent.pop(site, None)
                self._heard.add(site)
            else:
                self._silent.setdefault(site, time.monotonic())
            if reply is not None and code == ReturnCode.OK:
                if not reply.get("is_busy"):
                    self._arrived.put((site, _reply(reply)))
                    return
                end = time.monotonic() + self.patience  # it is at work
                if time.monotonic() > last:
                    self._arrived.put((site, Failed(f"it worked on one answer for more than {longest:g} seconds")))
                    return
                continue
            if code == ReturnCode.EXECUTION_EXCEPTION:
                self._arrived.put((site, Failed()))
                return
            if time.monotonic() > end:
                self._arrived.put((site, Lost(f"it did not answer for {patience or UNHEARD:g} seconds")))
                return
            self._ended.wait(PAUSE)


def _reply(found: Shareable) -> Reply:
    data, note = found.get("data"), found.get("note")
    return Reply(data if isinstance(data, bytes) else b"", note if isinstance(note, str) else "")


class Coordinator(Controller):
    """The controller of a job. `conduct` is what there is to do with the sites that are there."""

    def conduct(self, post: Post) -> None:
        raise NotImplementedError

    def recess(self, silent: Sequence[str]) -> bool:
        """Whether this sitting is to end; asked now and then, and told who has said nothing for a while."""
        del silent
        return False

    patience = 60.0
    longest = 3600.0

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        def is_over() -> bool:
            return bool(abort_signal.triggered) or self.recess(post.silent())

        post = Post(fl_ctx.get_engine(), is_over, self.patience, self.longest)
        try:
            self.conduct(post)
        except Recess:
            self.log_info(fl_ctx, "this sitting ends; the study goes on in the next one")

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass


Answer = Callable[[bytes], tuple[bytes, str]]


class Answerer(Executor):
    """The executor of a job at a site. `open(study)` is called once, with what the job carries."""

    def open(self, study: bytes) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def __init__(self) -> None:
        super().__init__()
        self._worker = ThreadPoolExecutor(1, "tacit")  # one thing at a time
        self._opened: Future[Answer] | None = None
        self._latest: tuple[bytes, Future[tuple[bytes, str]]] | None = None
        self._lock = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            place = Path(str(fl_ctx.get_prop(FLContextKey.APP_ROOT))) / "config" / "study.json"
            study = place.read_bytes() if place.stat().st_size <= MOST_STUDY else b""
            self._opened = self._worker.submit(self.open, study)
            engine: Any = fl_ctx.get_engine()
            engine.register_aux_message_handler(TOPIC, self._answer)
        elif event_type == EventType.END_RUN:
            self._worker.submit(self.close)
            self._worker.shutdown(wait=True)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)  # nothing comes as a task

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A request that is being worked on is not begun again: whoever asks waits for the same answer."""
        peer = fl_ctx.get_peer_context()
        data = request.get("data")
        if peer is None or not _is_coordinator(peer) or not isinstance(data, bytes) or self._opened is None:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        digest = hashlib.sha256(data).digest()
        with self._lock:
            if self._latest is None or self._latest[0] != digest or self._latest[1].done():
                self._latest = digest, self._worker.submit(self._work, data)
            future = self._latest[1]
        reply = make_reply(ReturnCode.OK)
        try:
            reply["data"], reply["note"] = future.result(timeout=HOLD)
        except NotYet:
            reply["is_busy"] = True
        except Exception:  # a bug; what it says could hold data, so it is written here and not sent
            self.logger.exception("an answer could not be made")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return reply

    def _work(self, data: bytes) -> tuple[bytes, str]:
        assert self._opened is not None
        return self._opened.result()(data)


def _is_coordinator(peer: FLContext) -> bool:
    """Whether a request says that it is the coordinator's, and not another site's."""
    name = os.environ.get(COORDINATOR)
    return bool(name) and peer.get_identity_name() == name
