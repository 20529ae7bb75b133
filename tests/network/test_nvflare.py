"""FLARE moves bytes and is allowed nothing else: kits, policies and jobs; posts and answerers without a network."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from tacit.engines import nvflare
from tacit.engines.nvflare import (
    COORDINATOR,
    MOST_STUDY,
    OPERATOR,
    Answerer,
    Coordinator,
    Failed,
    Lost,
    Post,
    Recess,
    Reply,
    check_site_name,
    harden,
    provision,
    write_job,
)

SITES = ("north", "south")


# --- Certificates and kits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits that are not changed."""
    return provisioned(tmp_path_factory.mktemp("network"))


def provisioned(folder: Path) -> Path:
    provision(folder, "clinics", SITES, "localhost", 8102)
    return folder


def kits(folder: Path) -> dict[str, Path]:
    sites = {name: folder / "sites" / name / "kit" for name in SITES}
    return {"coordinator": folder / "coordinator", "operator": folder / "operator", **sites}


def certificate(kit: Path) -> x509.Certificate:
    place = next((kit / "startup").glob("*r.crt"), None) or kit / "startup" / "client.crt"
    return x509.load_pem_x509_certificate(place.read_bytes())


def test_each_party_has_a_key_and_a_certificate_of_one_authority(network: Path) -> None:
    roots, keys = set(), set()
    for name, kit in kits(network).items():
        own = certificate(kit)
        root = x509.load_pem_x509_certificate((kit / "startup" / "rootCA.pem").read_bytes())
        own.verify_directly_issued_by(root)
        (key,) = (load_pem_private_key(place.read_bytes(), None) for place in (kit / "startup").glob("*.key"))
        assert key.public_key() == own.public_key()
        (subject,) = own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert subject.value == {"coordinator": "localhost", "operator": OPERATOR}.get(name, name)
        assert own.not_valid_before_utc <= datetime.now(UTC) < own.not_valid_after_utc
        roots.add(root.public_bytes(Encoding.PEM))
        keys.add(own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert (len(roots), len(keys)) == (1, 4)


def test_secrets_are_for_their_owner_alone(network: Path) -> None:
    for kit in kits(network).values():
        assert kit.stat().st_mode & 0o777 == 0o700
        for place in kit.rglob("*.key"):
            assert place.stat().st_mode & 0o777 == 0o600
    assert (network / "authority").stat().st_mode & 0o777 == 0o700
    signing = [place for place in network.rglob("*") if place.is_file() and b"PRIVATE KEY" in place.read_bytes()]
    assert signing
    for place in signing:  # keys of the kits, and the authority's own, which is nowhere else
        assert place.suffix == ".key" or (network / "authority") in place.parents


def test_a_kit_has_no_code_for_a_job(network: Path) -> None:
    """Settings, certificates, texts, and FLARE's own scripts to start it, which are not used."""
    for name in SITES:
        files = [place for place in kits(network)[name].rglob("*") if place.is_file()]
        plain = {".json", ".default", ".sample", ".txt", ".crt", ".key", ".pem"}
        assert {place.suffix for place in files} <= plain | {".sh"}
        assert not any("custom" in place.parts for place in files)
        assert {place.name for place in files if place.suffix == ".sh"} == {"start.sh", "stop_fl.sh", "sub_start.sh"}


def test_sites_dial_the_coordinator_by_mutual_tls_and_open_nothing(network: Path) -> None:
    for name in SITES:
        found = json.loads((kits(network)[name] / "startup" / "fed_client.json").read_text())
        assert [server["service"]["target"] for server in found["servers"]] == ["localhost:8102"]
        assert found["client"]["connection_security"] == "mtls"
        assert found["client"]["fqsn"] == name
    found = json.loads((kits(network)["coordinator"] / "startup" / "fed_server.json").read_text())
    assert found["servers"][0]["service"]["target"] == "localhost:8102"
    assert found["servers"][0]["connection_security"] == "mtls"


def test_a_kit_that_is_renewed_has_a_new_certificate_and_the_site_s_own_settings(tmp_path: Path) -> None:
    folder = provisioned(tmp_path / "network")
    before = {name: certificate(kit) for name, kit in kits(folder).items()}
    local = kits(folder)["north"] / "local"
    (local / "resources.json").write_text('{"mine": 1}')
    (local / "authorization.json.default").write_text('{"mine": 2}')
    startup = (kits(folder)["south"] / "startup" / "client.crt").stat().st_mtime_ns
    provision(folder, "clinics", (*SITES, "east"), "localhost", 8102, renew=["north", "coordinator"])
    after = {name: certificate(kit) for name, kit in kits(folder).items()}
    assert {name for name in before if before[name] != after[name]} == {"north", "coordinator"}
    assert after["north"].public_key() != before["north"].public_key()
    (key,) = (load_pem_private_key(p.read_bytes(), None) for p in (local.parent / "startup").glob("*.key"))
    assert key.public_key() == after["north"].public_key()
    assert (local.parent / "startup" / "client.key").stat().st_mode & 0o777 == 0o600
    assert (local / "resources.json").read_text() == '{"mine": 1}'
    assert (local / "authorization.json.default").read_text() == '{"mine": 2}'
    assert (kits(folder)["south"] / "startup" / "client.crt").stat().st_mtime_ns == startup
    root = (folder / "sites" / "east" / "kit" / "startup" / "rootCA.pem").read_bytes()
    assert root == (kits(folder)["south"] / "startup" / "rootCA.pem").read_bytes()  # the same authority
    certificate(folder / "sites" / "east" / "kit").verify_directly_issued_by(x509.load_pem_x509_certificate(root))


@pytest.mark.parametrize("name", ["north", "site-01", "ward_7", "ab", "yesterday", "X" * 63])
def test_names_for_certificates(name: str) -> None:
    check_site_name(name)


ODD = ["", "1", "01", "yes", "no", "true", "False", "a b", "ü", "𝐚𝐛", "a/b", "../a", "-a", "_a", "a.b", "a=b", "a,b"]


@pytest.mark.parametrize("name", [*ODD, "server", "all", "operator", "coordinator", "X" * 64, "north\n", "a\0"])
def test_names_that_a_certificate_or_flare_would_read_otherwise_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="for a certificate"):
        check_site_name(name)
    with pytest.raises(ValueError, match="for a certificate"):
        provision(tmp_path / "network", "clinics", [name], "localhost", 8102)
    assert not (tmp_path / "network").exists()


def test_no_site_has_the_name_by_which_sites_know_their_coordinator(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="site 'clinics' has the name of the study; give one of them another name"):
        provision(tmp_path / "network", "clinics", ["north", "clinics"], "localhost", 8102)
    assert not (tmp_path / "network").exists()


@pytest.mark.parametrize("host", ["", "a b", "-x", "x;reboot", "http://x", "x:1", "x\n", "ü"])
def test_addresses_that_are_none_are_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="address="):
        provision(tmp_path / "network", "clinics", ["north"], host, 8102)
    assert not (tmp_path / "network").exists()


# --- What a site lets a job do ------------------------------------------------------------------------------------

EXECUTOR = "tacit.network.station.StationExecutor"


def test_a_site_runs_one_class_and_no_code_of_a_job(tmp_path: Path) -> None:
    """Whatever the kit came with, or was changed to."""
    kit = kits(provisioned(tmp_path / "network"))["north"]
    (kit / "local" / "resources.json").write_text('{"class_list_enforcement_mode": "off"}')
    (kit / "local" / "authorization.json").write_text('{"permissions": {"project_admin": "any"}}')
    harden(kit, [EXECUTOR], tmp_path)
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == [EXECUTOR]
    assert resources["class_list_enforcement_mode"] == "enforce"
    permissions = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
    assert set(permissions) == {"project_admin", "org_admin", "lead", "member"}  # all roles that FLARE has
    for role, rights in permissions.items():
        allowed = {right for right, who in rights.items() if who != "none"}
        assert allowed == ({"submit_job", "manage_job", "view"} if role == "project_admin" else set())
        assert {"byoc", "shell_commands", "operate", "download_job"} <= set(rights)


def test_flare_s_own_reading_of_the_policy_is_ours(tmp_path: Path) -> None:
    """By its own code, and not by the files alone."""
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    kit = kits(provisioned(tmp_path / "network"))["north"]
    harden(kit, [EXECUTOR], tmp_path)
    authorizer = FLAuthorizer("north", json.loads((kit / "local" / "authorization.json").read_text()))
    for role in ("project_admin", "org_admin", "lead", "member"):
        user = Person("somebody", "coordinator", role)
        for right in ("submit_job", "manage_job", "view", "byoc", "operate", "shell_commands", "download_job"):
            may, _ = authorizer.authorize(AuthzContext(right, user, user))
            assert bool(may) == (role == "project_admin" and right in ("submit_job", "manage_job", "view"))


def test_no_log_leaves_a_site(tmp_path: Path) -> None:
    folder = provisioned(tmp_path / "network")
    for name in ("north", "coordinator"):
        kit = kits(folder)[name]
        harden(kit, [EXECUTOR], tmp_path / "state")
        resources = json.loads((kit / "local" / "resources.json").read_text())
        assert resources["allow_log_streaming"] is False
        assert not any("log" in part["path"].lower() for part in resources["components"])
        assert not list((kit / "local").glob("*.new"))
        kept = [part["id"] for part in resources["components"]]
        assert kept  # or FLARE could start no job at all
    assert str(tmp_path / "state" / "jobs") in json.dumps(resources)
    assert "/tmp/nvflare" not in json.dumps(resources)


def test_a_job_is_a_study_and_two_names(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "study", SITES, "a.Controller", "b.Executor", b'{"format": 1}')
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "evil.py").write_text("print()")  # what an earlier job may have left
    assert write_job(job, "study", SITES, "a.Controller", "b.Executor", b'{"format": 1}') == job
    files = {str(place.relative_to(job)): place for place in job.rglob("*") if place.is_file()}
    config = "app/config"
    assert set(files) == {
        "meta.json",
        f"{config}/study.json",
        f"{config}/config_fed_server.json",
        f"{config}/config_fed_client.json",
    }
    assert files[f"{config}/study.json"].read_bytes() == b'{"format": 1}'
    found = {name: json.loads(place.read_text()) for name, place in files.items()}
    assert found["meta.json"]["deploy_map"] == {"app": ["server", "north", "south"]}
    assert found[f"{config}/config_fed_server.json"]["workflows"] == [
        {"id": "coordinator", "path": "a.Controller", "args": {}}
    ]
    assert found[f"{config}/config_fed_client.json"]["executors"] == [
        {"tasks": ["*"], "executor": {"path": "b.Executor", "args": {}}}
    ]
    with pytest.raises(ValueError, match="fewer columns or categories"):
        write_job(tmp_path / "job", "study", SITES, "a", "b", bytes(MOST_STUDY + 1))


# --- Requests -----------------------------------------------------------------------------------------------------


class Engine:
    """FLARE's engine, as far as a post needs it: each request is answered by a function."""

    def __init__(self, answer: Callable[[str, bytes], Any]) -> None:
        self.answer, self.sent = answer, []

    def get_clients(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in SITES]

    @contextmanager
    def new_context(self) -> Iterator[FLContext]:
        yield FLContext()

    def send_aux_request(self, targets: list[str], topic: str, request: Shareable, **rest: Any) -> dict[str, Any]:
        (site,) = targets
        assert topic == nvflare.TOPIC
        self.sent.append((site, request["data"]))
        found = self.answer(site, request["data"])
        return {} if found is None else {site: found}


def reply(code: str = ReturnCode.OK, **content: Any) -> Shareable:
    found = make_reply(code)
    found.update(content)
    return found


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvflare, "PAUSE", 0.01)


def post_of(answer: Callable[[str, bytes], Any], patience: float = 0.05, **more: Any) -> Any:
    made = {"is_over": lambda: False, "patience": patience, "longest": 60.0, **more}
    return Post(Engine(answer), **made)


@pytest.mark.usefixtures("_quick")
def test_a_post_brings_back_what_each_site_answers() -> None:
    post = post_of(lambda site, data: reply(data=data + site.encode(), note="{}"))
    assert post.sites == ["north", "south"]
    for site in SITES:
        post.ask(site, b"to ")
    assert {post.receive() for _ in SITES} == {(site, Reply(b"to " + site.encode(), "{}")) for site in SITES}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([reply(data="text", note=b"bytes")], Reply(b"", "")),
        ([reply()], Reply(b"", "")),
        ([None, reply(ReturnCode.COMMUNICATION_ERROR), reply(data=b"x", note="")], Reply(b"x", "")),
        ([reply(is_busy=True)] * 20 + [reply(data=b"x", note="")], Reply(b"x", "")),
        ([reply(ReturnCode.EXECUTION_EXCEPTION)], Failed()),
    ],
    ids=["other types", "nothing", "unreachable twice", "at work", "a fault"],
)
def test_a_request_is_sent_until_there_is_an_answer(answers: list[Any], expected: Any) -> None:
    left = [*answers]
    post = post_of(lambda site, data: left.pop(0))
    post.ask("north", b"asked")
    assert post.receive() == ("north", expected)
    assert post._engine.sent == [("north", b"asked")] * len(answers)


@pytest.mark.usefixtures("_quick")
def test_a_site_that_does_not_answer_is_lost_after_the_coordinator_s_patience() -> None:
    post = post_of(lambda site, data: None)
    post.ask("north", b"asked")
    begun = time.monotonic()
    assert post.receive() == ("north", Lost("it did not answer for 0.05 seconds"))
    assert 0.04 < time.monotonic() - begun < 5


@pytest.mark.usefixtures("_quick")
def test_a_site_that_is_at_work_for_ever_is_given_up_in_the_end() -> None:
    post = post_of(lambda site, data: reply(is_busy=True), longest=0.05)
    post.ask("north", b"asked")
    site, found = post.receive()
    assert site == "north"
    assert isinstance(found, Failed)


@pytest.mark.usefixtures("_quick")
def test_an_engine_that_fails_is_a_site_that_is_away() -> None:
    """Else nobody would ever hear of the request again."""

    def broken(site: str, data: bytes) -> Any:
        raise RuntimeError("the cell is closed")

    post = post_of(broken)
    post.ask("north", b"asked")
    site, found = post.receive()
    assert site == "north"
    assert isinstance(found, Lost)


@pytest.mark.usefixtures("_quick")
def test_a_sitting_that_is_to_end_ends_while_it_waits() -> None:
    is_over = threading.Event()
    post = post_of(lambda site, data: is_over.set(), patience=60.0, is_over=is_over.is_set)
    post.ask("north", b"asked")
    with pytest.raises(Recess):
        post.receive()
    sent = len(post._engine.sent)
    time.sleep(0.05)
    assert len(post._engine.sent) <= sent + 1  # it is not asked any more


@pytest.mark.usefixtures("_quick")
def test_a_controller_conducts_until_it_is_done_or_aborted() -> None:
    heard, signal = [], Signal()

    class Conducted(Coordinator):
        def conduct(self, post: Post) -> None:
            post.ask("north", b"asked")
            heard.append(post.receive())
            post.ask("south", b"never")
            post.receive()

    def answer(site: str, data: bytes) -> Any:
        if site == "south":
            signal.trigger("abort")
            return None
        return reply(data=b"answered", note="")

    context = FLContext()
    context.get_engine = lambda: Engine(answer)  # type: ignore[method-assign]
    Conducted().control_flow(signal, context)
    assert heard == [("north", Reply(b"answered", ""))]


# --- Answers ------------------------------------------------------------------------------------------------------


class Held(Answerer):
    """Its answers wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[bytes] = []
        self.go = threading.Event()
        self.closed = False

    def open(self, study: bytes) -> Any:
        self.study = study

        def answer(data: bytes) -> tuple[bytes, str]:
            self.begun.append(data)
            assert self.go.wait(10)
            if data == b"fault":
                raise RuntimeError("a record: 987654.321")
            return b"answer to " + data, "{}"

        return answer

    def close(self) -> None:
        self.closed = True


def context_of(peer: str | None = "clinics", folder: Path | None = None, handlers: Any = None) -> Any:
    """FLARE's context of a message, or of an event."""
    identity = None if peer is None else SimpleNamespace(get_identity_name=lambda: peer)
    engine = SimpleNamespace(register_aux_message_handler=lambda topic, handler: handlers.update({topic: handler}))
    return SimpleNamespace(
        get_peer_context=lambda: identity,
        get_prop=lambda key: str(folder) if key == FLContextKey.APP_ROOT else None,
        get_engine=lambda: engine,
    )


@contextmanager
def answering(folder: Path, patch: pytest.MonkeyPatch, study: bytes = b"{}") -> Iterator[tuple[Any, Any]]:
    """An answerer in a job, and the function that FLARE calls with a message."""
    patch.setattr(nvflare, "HOLD", 0.05)
    patch.setenv(COORDINATOR, "clinics")
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "study.json").write_bytes(study)
    handlers: dict[str, Any] = {}
    answerer = Held()
    answerer.handle_event(EventType.START_RUN, context_of(folder=folder, handlers=handlers))
    assert list(handlers) == [nvflare.TOPIC]

    def ask(data: Any, peer: str | None = "clinics") -> Shareable:
        return handlers[nvflare.TOPIC](nvflare.TOPIC, Shareable({"data": data}), context_of(peer))

    try:
        yield answerer, ask
    finally:
        answerer.go.set()
        answerer.handle_event(EventType.END_RUN, context_of())


def test_a_request_that_is_being_worked_on_is_not_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks meanwhile is told that the site is busy."""
    with answering(tmp_path, monkeypatch) as (answerer, ask):
        for _ in range(3):
            busy = ask(b"one")
            assert busy.get_return_code() == ReturnCode.OK
            assert busy["is_busy"] is True
            assert "data" not in busy
        threads = [threading.Thread(target=ask, args=(b"one",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        monkeypatch.setattr(nvflare, "HOLD", 10.0)
        answerer.go.set()
        assert ask(b"two")["data"] == b"answer to two"  # after all that was begun before
        assert answerer.begun == [b"one", b"two"]
        assert ask(b"one")["data"] == b"answer to one"  # done, it is the station's to answer, from its store
        assert answerer.begun == [b"one", b"two", b"one"]


def test_another_site_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tmp_path, monkeypatch) as (answerer, ask):
        answerer.go.set()
        for peer in ("south", "", None, "server", "Clinics"):
            assert ask(b"one", peer).get_return_code() == ReturnCode.BAD_REQUEST_DATA
        for data in (None, "text", 3, {"data": b"one"}):
            assert ask(data).get_return_code() == ReturnCode.BAD_REQUEST_DATA
        monkeypatch.delenv(COORDINATOR)
        for peer in ("clinics", "", None):
            assert ask(b"one", peer).get_return_code() == ReturnCode.BAD_REQUEST_DATA
        assert answerer.begun == []


def test_what_an_exception_says_does_not_leave_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tmp_path, monkeypatch) as (answerer, ask):
        answerer.logger = SimpleNamespace(exception=lambda words: None)
        answerer.go.set()
        found = ask(b"fault")
        assert found.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
        assert "987654" not in json.dumps(found, default=str)
        assert ask(b"two")["data"] == b"answer to two"  # and the next one is answered


def test_a_station_that_cannot_be_opened_fails_without_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, study: bytes) -> Any:
        raise RuntimeError("987654.321")

    monkeypatch.setattr(Held, "open", broken)
    with answering(tmp_path, monkeypatch) as (answerer, ask):
        answerer.logger = SimpleNamespace(exception=lambda words: None)
        found = ask(b"one")
        assert found.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
        assert "987654" not in json.dumps(found, default=str)


def test_a_job_s_study_is_read_once_and_not_if_it_is_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (study, expected) in enumerate([(b'{"a": 1}', b'{"a": 1}'), (bytes(MOST_STUDY + 1), b"")]):
        with answering(tmp_path / str(number), monkeypatch, study) as (answerer, ask):
            answerer.go.set()
            ask(b"one")
            assert answerer.study == expected
        assert answerer.closed


def test_nothing_comes_as_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tmp_path, monkeypatch) as (answerer, _):
        found = answerer.execute("train", Shareable({"data": b"one"}), FLContext(), Signal())
        assert found.get_return_code() == ReturnCode.TASK_UNKNOWN
        assert answerer.begun == []


def test_what_is_started_is_flare_s_own_program_with_the_kit_s_settings(tmp_path: Path) -> None:
    """By our own Python, and it ends when we do."""
    kit = kits(provisioned(tmp_path / "network"))["north"]
    seen: dict[str, Any] = {}

    class Popen:
        def __init__(self, command: list[str], **rest: Any) -> None:
            seen.update(rest, command=command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvflare.subprocess, "Popen", Popen)
        nvflare.start(kit, tmp_path / "log", {"A": "b"})
    assert seen["command"][:2] == [nvflare.sys.executable, "-m"]
    assert "nvflare.private.fed.app.client.client_train" in seen["command"]
    assert "secure_train=true" in seen["command"]
    assert (seen["env"]["A"], seen["env"][COORDINATOR]) == ("b", "clinics")
    assert seen["env"]["PATH"] == os.environ["PATH"]
    assert seen["command"][1:3] == ["-m", nvflare.GUARDED]
