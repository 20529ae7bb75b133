"""FLARE moves bytes and is allowed nothing else: the gate; posts and answerers without a network."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.message import Message

from tacit.network import channel as nvflare
from tacit.network.certificates import Kit, provision
from tacit.network.channel import (
    ANSWER,
    ASK,
    BUSY,
    DIGEST,
    FAILED,
    MOST_STUDY,
    OPEN,
    SERVER,
    SESSION,
    UNKNOWN,
    Answerer,
    Failed,
    Lost,
    Post,
    Reply,
    refuses,
)

SITES = ("north", "south")


# --- The gate -----------------------------------------------------------------------------------------------------


def message(own: str, peer: str, kind: str, payload: Any = b"x", **changes: Any) -> Message:
    """A message as FLARE hands it to a filter. changes: of headers, by FLARE's own names for them."""
    headers = {
        "MSG_TYPE": kind,
        "ORIGIN": peer,
        "FROM_CELL": peer,
        "DESTINATION": own,
        "TO_CELL": own,
        "CHANNEL": nvflare.CHANNEL,
        "TOPIC": nvflare.TOPIC,
        "PAYLOAD_ENCODING": Encoding.BYTES,
        "SECURE": False,
        "ROUTE": [(peer, 0.0)],
    }
    headers |= {name: value for name, value in changes.items() if name != "over"}
    found = Message({getattr(MessageHeaderKey, name): value for name, value in headers.items()}, payload)
    found.set_prop(MessagePropKey.ENDPOINT, SimpleNamespace(name=changes.get("over", peer)))
    return found


def test_a_site_hears_the_coordinator_and_a_coordinator_the_site_that_was_asked() -> None:
    assert not refuses(message("north", SERVER, MessageType.REQ), "north")
    assert not refuses(message(SERVER, "north", MessageType.REPLY), SERVER)
    empty = {"payload": None, "PAYLOAD_ENCODING": Encoding.NONE}  # FLARE's own word that there is no answer
    assert not refuses(message(SERVER, "north", MessageType.REPLY, **empty), SERVER)


OTHERWISE = [
    {"ORIGIN": "south"},  # in another's name
    {"FROM_CELL": "south"},  # passed on
    {"over": "south"},  # over another's connection
    {"ORIGIN": "south", "FROM_CELL": "south", "over": "south"},  # of another site
    {"ORIGIN": None},
    {"DESTINATION": "south"},  # to be passed on
    {"TO_CELL": "south"},
    {"CHANNEL": "admin"},  # FLARE's jobs, shell and files
    {"CHANNEL": "cellnet.channel", "TOPIC": "bulk"},
    {"CHANNEL": "_net_manager", "TOPIC": "stop_cell"},
    {"CHANNEL": "credential_manager", "TOPIC": "key_exchange"},
    {"TOPIC": "more"},
    {"TOPIC": None},
    {"PAYLOAD_ENCODING": Encoding.FOBS},  # FLARE's deserialiser
    {"PAYLOAD_ENCODING": None},
    {"SECURE": True},
    {"ROUTE": [("south", 0.0)]},
    {"ROUTE": [("server", 0.0), ("south", 0.0)]},
    {"ROUTE": "server"},
    {"ROUTE": None},
    {"MSG_TYPE": MessageType.RETURN},
    {"MSG_TYPE": None},
    {"payload": {"data": b"x"}},
    {"payload": "text"},
]


def test_the_gate_lets_nothing_else_through() -> None:
    for changes in OTHERWISE:
        assert refuses(message("north", SERVER, MessageType.REQ, **changes), "north"), changes
        if changes.get("ORIGIN") != changes.get("over", "north"):  # south may answer the coordinator for itself
            assert refuses(message(SERVER, "north", MessageType.REPLY, **changes), SERVER), changes


def test_a_site_gets_no_replies_and_a_coordinator_no_requests() -> None:
    assert refuses(message("north", SERVER, MessageType.REPLY), "north")
    assert refuses(message(SERVER, "north", MessageType.REQ), SERVER)
    assert refuses(message("north", SERVER, MessageType.REQ, payload=None, PAYLOAD_ENCODING=Encoding.NONE), "north")


def test_a_message_that_is_too_long_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvflare, "MOST_MESSAGE", 10)
    assert not refuses(message("north", SERVER, MessageType.REQ, bytes(10)), "north")
    assert refuses(message("north", SERVER, MessageType.REQ, bytes(11)), "north")


def test_a_cell_answers_our_requests_and_has_one_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's own handlers are those that every cell is made with, all behind the gate: no jobs, no administration."""
    provision(tmp_path, "clinics", SITES, "localhost", 8102)
    log = tmp_path / "flare.log"
    for place in (tmp_path / "coordinator", tmp_path / "sites" / "north" / "kit"):
        cell = nvflare._cell(Kit.read(place), log)
        try:
            cell.register_request_cb(nvflare.CHANNEL, nvflare.TOPIC, lambda message: None)
            handled = set(cell.req_reg.reg)
            assert handled <= {
                "tacit:ask",
                "cellnet.channel:bulk",
                "cellnet.channel:bye",
                "credential_manager:key_exchange",
            }
            assert cell.communicator.conn_manager.receivers == {cell.APP_ID: cell}
            own, taken = cell.get_fqcn(), list[Any]()
            monkeypatch.setattr(CoreCell, "process_message", lambda *given, taken=taken: taken.append(given[-1]))
            kind, peer = (MessageType.REPLY, "north") if own == SERVER else (MessageType.REQ, SERVER)
            sound, odd = message(own, peer, kind), message(own, peer, kind, CHANNEL="cellnet.channel", TOPIC="bulk")
            for one in (sound, odd, message(own, peer, kind, ROUTE=[1, 2]), message(own, peer, kind, ROUTE=[None])):
                cell.process_message(SimpleNamespace(name=peer), None, cell.APP_ID, one)
            assert taken == [sound]
            monkeypatch.undo()
            cell.process_message(SimpleNamespace(name=peer), None, cell.APP_ID, odd)
            assert not cell.received_msg_counter_pool.cat_counters  # nothing of it is kept
            assert cell.connector_manager.adhoc_allowed is False
            assert cell.secure
        finally:
            cell.ALL_CELLS.pop(cell.get_fqcn())
            cell.communicator.stop()


# --- Requests -----------------------------------------------------------------------------------------------------


class Exchange:
    """Each request is answered by a function of site and what is asked, or by what a site does not know the study."""

    def __init__(self, answer: Callable[[str, bytes], Any]) -> None:
        self.answer, self.here = answer, list(SITES)
        self.sent: list[tuple[str, bytes]] = []

    def connected(self) -> list[str]:
        return self.here

    def request(self, site: str, data: bytes, timeout: float) -> bytes | None:
        del timeout
        self.sent.append((site, data))
        return self.answer(site, data)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvflare, "PAUSE", 0.01)


def post_of(answer: Callable[[str, bytes], Any], patience: float = 0.05, longest: float = 60.0) -> Any:
    return Post(Exchange(answer), b"{}", patience, longest)


def answer_of(data: bytes, note: bytes = b"{}") -> bytes:
    return ANSWER + len(note).to_bytes(4, "big") + note + data


@pytest.mark.usefixtures("_quick")
def test_a_post_brings_back_what_each_site_answers() -> None:
    post = post_of(lambda site, data: answer_of(data[-3:] + site.encode()))
    assert post.sites == ["north", "south"]
    for site in SITES:
        post.ask(site, b"to ")
    assert {post.receive() for _ in SITES} == {(site, Reply(b"to " + site.encode(), "{}")) for site in SITES}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([answer_of(b"", b"")], Reply(b"", "")),
        ([ANSWER], Reply(b"", "")),
        ([ANSWER + b"\xff\xff\xff\xffhalf"], Reply(b"", "half")),
        ([answer_of(b"x", b"\xff")], Reply(b"x", "\N{REPLACEMENT CHARACTER}")),
        ([None, b"", b"?", answer_of(b"x", b"")], Reply(b"x", "")),
        ([BUSY] * 20 + [answer_of(b"x", b"")], Reply(b"x", "")),
        ([FAILED], Failed()),
    ],
    ids=["nothing", "no length", "a false length", "no text", "unreachable", "at work", "a fault"],
)
def test_a_request_is_sent_until_there_is_an_answer(answers: list[Any], expected: Any) -> None:
    left = [*answers]
    post = post_of(lambda site, data: left.pop(0), patience=5.0)
    post.ask("north", b"asked")
    assert post.receive() == ("north", expected)
    assert [(site, data[-5:]) for site, data in post._exchange.sent] == [("north", b"asked")] * len(answers)


@pytest.mark.usefixtures("_quick")
def test_a_site_that_does_not_know_the_study_is_sent_it() -> None:
    answers = [UNKNOWN, BUSY, answer_of(b"x", b"")]
    post = post_of(lambda site, data: answers.pop(0))
    post.ask("north", b"asked")
    assert post.receive() == ("north", Reply(b"x", ""))
    first, second, third = (data for _, data in post._exchange.sent)
    assert first == third
    assert first[:1] + second[:1] == ASK + OPEN
    assert first[1 : 1 + SESSION + DIGEST] == second[1 : 1 + SESSION + DIGEST]
    assert second[1 + SESSION :] == hashlib.sha256(b"{}").digest() + b"{}"


def test_each_session_has_a_name_of_its_own_and_no_study_is_huge() -> None:
    assert post_of(lambda site, data: None)._head != post_of(lambda site, data: None)._head
    with pytest.raises(ValueError, match="fewer columns or categories"):
        Post(Exchange(lambda site, data: None), bytes(MOST_STUDY + 1), 1.0, 1.0)


@pytest.mark.usefixtures("_quick")
def test_a_site_that_does_not_answer_is_lost_after_the_coordinator_s_patience() -> None:
    post = post_of(lambda site, data: None)
    post.ask("north", b"asked")
    begun = time.monotonic()
    assert post.receive() == ("north", Lost("it did not answer for 0.05 seconds"))
    assert 0.04 < time.monotonic() - begun < 5


@pytest.mark.usefixtures("_quick")
def test_a_site_that_has_gone_may_be_back_in_a_moment_until_it_is_lost() -> None:
    post = post_of(lambda site, data: None)
    assert post.sites == ["north", "south"]
    post._exchange.here = ["south"]
    assert post.sites == ["south", "north"]
    post.ask("north", b"asked")
    post.receive()
    assert post.sites == ["south"]
    post._exchange.here = ["north", "south"]
    assert post.sites == ["north", "south"]


@pytest.mark.usefixtures("_quick")
def test_a_site_that_is_at_work_for_ever_is_given_up_in_the_end() -> None:
    post = post_of(lambda site, data: BUSY, longest=0.05)
    post.ask("north", b"asked")
    site, found = post.receive()
    assert site == "north"
    assert isinstance(found, Failed)


@pytest.mark.usefixtures("_quick")
def test_a_channel_that_fails_is_a_site_that_is_away() -> None:
    """Else nobody would ever hear of the request again."""

    def broken(site: str, data: bytes) -> Any:
        raise RuntimeError("the cell is closed")

    post = post_of(broken)
    post.ask("north", b"asked")
    site, found = post.receive()
    assert site == "north"
    assert isinstance(found, Lost)


@pytest.mark.usefixtures("_quick")
def test_a_session_that_has_ended_asks_no_more() -> None:
    post = post_of(lambda site, data: None, patience=60.0)
    post.ask("north", b"asked")
    time.sleep(0.05)
    post.close()
    time.sleep(0.05)
    sent = len(post._exchange.sent)
    time.sleep(0.05)
    assert 0 < sent == len(post._exchange.sent)


# --- Answers ------------------------------------------------------------------------------------------------------


class Desk:
    """A session whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.go = threading.Event()
        self.events: list[Any] = []

    def open(self, study: bytes) -> Any:
        self.events.append(study)
        if study == b"broken":
            raise RuntimeError("a path: /987654")

        def answer(data: bytes) -> tuple[bytes, str]:
            self.begun.append(data)
            assert self.go.wait(10)
            if data == b"fault":
                raise RuntimeError("a record: 987654.321")
            return b"answer to " + data, "{}"

        return answer

    def close(self) -> None:
        self.events.append("closed")


def head_of(study: bytes, session: int = 1) -> bytes:
    return bytes([session] * SESSION) + hashlib.sha256(study).digest()


@contextmanager
def answering(patch: pytest.MonkeyPatch, study: bytes = b"{}") -> Iterator[tuple[Any, Desk, Callable[[bytes], bytes]]]:
    """An answerer, what stands behind it, and the function by which the coordinator asks in the first session."""
    patch.setattr(nvflare, "HOLD", 0.05)
    desk = Desk()
    answerer = Answerer(desk.open, desk.close)
    head = head_of(study)
    assert answerer(ASK + head + b"one") == UNKNOWN
    assert answerer(OPEN + head + study) == BUSY
    try:
        yield answerer, desk, lambda data: answerer(ASK + head + data)
    finally:
        desk.go.set()
        assert answerer.close(10.0)
        assert desk.events[-1] == "closed"


def test_a_request_that_is_being_worked_on_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks meanwhile is told that the site is busy, and another request waits: nothing piles up."""
    with answering(monkeypatch) as (_, desk, ask):
        for _ in range(3):
            assert ask(b"one") == BUSY
        threads = [threading.Thread(target=ask, args=(name,)) for name in (b"one", b"two", b"three", b"one")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert desk.begun == [b"one"]
        monkeypatch.setattr(nvflare, "HOLD", 10.0)
        desk.go.set()
        found = ask(b"two")
        assert found in (BUSY, answer_of(b"answer to two"))  # busy if it waited for the first
        assert ask(b"two") == answer_of(b"answer to two")
        assert ask(b"one") == answer_of(b"answer to one")  # done, it is the session's to answer, from its store
        assert desk.begun[:2] == [b"one", b"two"]


def test_what_an_exception_says_does_not_leave_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch) as (_, desk, ask):
        desk.go.set()
        assert ask(b"fault") == FAILED
        assert ask(b"two") == answer_of(b"answer to two")  # and the next one is answered
    with answering(monkeypatch, b"broken") as (_, _, ask):
        assert ask(b"one") == FAILED


def test_a_study_is_opened_once_in_each_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch) as (answerer, desk, ask):
        desk.go.set()
        for _ in range(3):
            assert answerer(OPEN + head_of(b"{}") + b"{}") == BUSY
        assert ask(b"one") == answer_of(b"answer to one")
        assert desk.events == ["closed", b"{}"]
        again = head_of(b"{}", 2)
        assert answerer(OPEN + again + b"{}") == BUSY
        assert ask(b"one") == UNKNOWN
        assert answerer(ASK + again + b"one") == answer_of(b"answer to one")
        assert desk.events == ["closed", b"{}", "closed", b"{}"]


def test_a_site_that_is_told_to_end_waits_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch) as (answerer, desk, ask):
        assert ask(b"one") == BUSY
        assert not answerer.close(0.01)
        desk.go.set()
        monkeypatch.setattr(answerer, "close", lambda patience: True)
        while desk.events[-1] != "closed":
            time.sleep(0.01)


def test_a_study_is_not_opened_while_another_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch) as (answerer, desk, ask):
        assert ask(b"one") == BUSY
        for session in range(2, 40):
            assert answerer(OPEN + head_of(b"more", session) + b"more") == BUSY
            monkeypatch.setattr(nvflare, "HOLD", 0.001)
        assert desk.events == ["closed", b"{}"]
        desk.go.set()


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"?",
        ASK,
        OPEN,
        OPEN + bytes(SESSION + DIGEST),
        OPEN + head_of(b"{}", 2) + b"{ }",
        OPEN + head_of(bytes(MOST_STUDY + 1), 2) + bytes(MOST_STUDY + 1),
        os.urandom(200),
    ],
    ids=["nothing", "unknown", "ask", "open", "no study", "another hash", "huge", "noise"],
)
def test_a_request_that_is_none_opens_nothing(monkeypatch: pytest.MonkeyPatch, request_: bytes) -> None:
    with answering(monkeypatch) as (answerer, desk, ask):
        assert answerer(request_) in (FAILED, UNKNOWN)
        desk.go.set()
        assert ask(b"one") == answer_of(b"answer to one")
        assert desk.events == ["closed", b"{}"]
