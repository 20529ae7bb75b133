"""The dashboard without a browser: who is let in, what is said and in which order, and what is never said."""

import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
import typer

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import tacit
from tacit.posterior.posterior import Block, Posterior
from tacit.report import dashboard
from tacit.report.dashboard import Board, Server
from tacit.study.host import Snapshot

NAMES = ["intercept", *(f"column-{j}" for j in range(20))]


def posterior(shift: float = 0.0) -> Posterior:
    """Coefficients 1, 2, ... 20 of equal deviation, intercept first."""
    mean = np.arange(21, dtype=float) + shift
    return Posterior({"coefficients": Block(tuple(NAMES), mean, np.full(21, 0.25))}, "logistic", {}, "", {})


def site(
    name: str, state: str = "here", reason: str = "", spent: float | None = 0.5, updates: int = 1
) -> dict[str, Any]:
    return {"name": name, "epsilon": 2.0, "updates": updates, "spent": spent, "state": state, "reason": reason}


def snapshot(done: int = 1, *sites: dict[str, Any], **more: Any) -> Snapshot:
    history = [{"round": k + 1, "communications": 2 * k, "factor_gap": 0.0, "accuracy": 0.8} for k in range(done)]
    whole: dict[str, Any] = {"posterior": posterior(), "history": history, "seeded": False} | more
    return Snapshot("inference", done, 9, list(sites) or [site("north"), site("south")], **whole)


@pytest.fixture
def board() -> Board:
    found = Board()
    found.about("clinics: a logistic regression of ill at 2 sites")
    return found


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Ten times as quick as for people."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dashboard, "BEAT", dashboard.BEAT / 10)
        yield


@pytest.fixture
def server(board: Board) -> Iterator[Server]:
    found = Server(board)
    yield found
    found.close()
    assert not found._thread.is_alive()


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    """A server to which nothing happens, for those who come to its door."""
    found = Server(Board())
    yield found
    found.close()


OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def hung_up() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def ask(server: Server, path: str | None = None, method: str = "GET", **headers: str) -> HTTPResponse:
    """What comes to a request, read but for a stream. path: with the token by default."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    OPEN.append(connection)
    connection.putrequest(method, f"/{server.token}/" if path is None else path, skip_host="host" in headers)
    for name, value in headers.items():
        if value:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    OPEN.append(connection.getresponse())
    return OPEN[-1]


class Stream:
    """The events of a server, one after the other."""

    def __init__(self, server: Server, last: str = "") -> None:
        self.response = ask(server, f"/{server.token}/events", **({"last_event_id": last} if last else {}))
        assert self.response.status == 200

    def lines(self) -> list[str]:
        """Those of the next block; none at the end."""
        found = []
        while line := self.response.readline().decode().rstrip("\n"):
            found.append(line)
        return found

    def next(self) -> tuple[str, dict[str, Any]]:
        """Id and content of the next event."""
        while True:
            found = dict(line.split(": ", 1) for line in self.lines())
            assert found, "the stream ended"
            if "data" in found:
                return found["id"], json.loads(found["data"])


# --- Who is let in -----------------------------------------------------------------------------------------------


def test_the_address_lets_in(door):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", door.address)
    assert ask(door).status == 200
    assert ask(door, f"/{door.token}/events").status == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/events", "//", "/favicon.ico", "/TOKE/", "/TOKENx/", "/TOKE/events", "/x/TOKEN/", "/?TOKEN", "/%00/"],
)
def test_without_the_whole_token_nothing_is_let_in(door, path):
    answer = ask(door, path.replace("TOKEN", door.token).replace("TOKE", door.token[:-1]))
    assert answer.status == 403
    assert b"<" not in answer.read()


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:PORT", "127.0.0.1.evil.example", "localhost.evil.example:PORT", "0.0.0.0:PORT"],
)
def test_under_another_name_nothing_is_let_in(door, host):
    """A web page whose own name was made to point here would send its name."""
    port = str(door.port)
    assert ask(door, host=host.replace("PORT", port)).status in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1:PORT", "localhost:PORT", "localhost:9000", "[::1]:9000", "localhost"])
def test_under_the_names_of_this_machine_it_is_also_at_the_other_end_of_a_tunnel(door, host):
    assert ask(door, host=host.replace("PORT", str(door.port))).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_can_be_changed(door, method):
    assert ask(door, method=method).status == 405
    assert ask(door, f"/{door.token}/events", method=method).status == 405


def test_no_other_address_of_this_machine_listens(door):
    host, port = door._socket.getsockname()
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match=r"refused|unreachable|assign"):
        socket.create_connection(("127.0.0.2", port), timeout=2)  # answers whoever listens on all addresses


@pytest.mark.parametrize("path", [None, "/", "/events", "EVENTS", "MISSING"])
def test_every_answer_forbids_to_keep_it_to_frame_it_and_to_load_anything_else(door, path):
    path = path and {"EVENTS": f"/{door.token}/events", "MISSING": f"/{door.token}/no"}.get(path, path)
    answer = ask(door, path)
    for name, words in dashboard.HEADERS.items():
        if path is not None or name != "Content-Security-Policy":
            assert answer.headers.get_all(name) == [words]
    assert "server" not in answer.headers


def test_the_page_may_run_its_own_script_alone_and_loads_nothing(door):
    answers = [ask(door), ask(door)]
    policies = [answer.headers["Content-Security-Policy"] for answer in answers]
    pages = [answer.read().decode() for answer in answers]
    policy = dict(part.strip().split(" ", 1) for part in policies[0].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"] == policy["style-src"]
    nonce = re.fullmatch(r"'nonce-([\w-]{22})'", policy["script-src"])
    assert nonce is not None
    assert pages[0].count(f'nonce="{nonce[1]}"') == 2
    assert policies[0] != policies[1]
    assert "NONCE" not in pages[0]
    addresses = set(re.findall(r"https?://[^\s'\"`]+", pages[0]))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name space, from which nothing is loaded"


def test_the_page_makes_text_of_what_it_is_told_and_never_markup():
    source = Path(dashboard.__file__).with_name("dashboard.html").read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"):
        assert way not in source
    assert not re.search(r"\son\w+=", source), "a handler in markup"
    assert not re.search(r"\sstyle=", source), "a style in markup, which its policy forbids"


def test_the_page_is_valid_html():
    html5lib = pytest.importorskip("html5lib")
    source = Path(dashboard.__file__).with_name("dashboard.html").read_text(encoding="utf-8")
    html5lib.HTMLParser(strict=True).parse(source)


# --- What is said ------------------------------------------------------------------------------------------------


def test_whoever_comes_is_told_all_and_then_every_change_in_order(server, board):
    board.see(snapshot(1))
    stream = Stream(server)
    first, state = stream.next()
    assert (state["state"], state["phase"], state["done"], state["of"]) == ("running", "inference", 1, 9)
    assert state["title"] == "clinics: a logistic regression of ill at 2 sites"
    assert [row["name"] for row in state["sites"]] == ["north", "south"]
    seen = []
    for done in (2, 3, 4):
        board.see(snapshot(done, posterior=posterior(shift=done)))
        again, state = stream.next()
        assert again != first
        seen.append((state["done"], state["history"][-1]["round"], state["posterior"]["rows"][0]["mean"]))
    assert seen == [(2, 2, 11.0), (3, 3, 12.0), (4, 4, 13.0)]
    assert state["posterior"]["rows"][0]["trail"] == [9.0, 11.0, 12.0]
    assert state["elapsed"] >= 0


def test_who_comes_back_is_told_only_what_is_new(server, board):
    board.see(snapshot(1))
    last, _ = Stream(server).next()
    stream = Stream(server, last)
    time.sleep(3 * dashboard.BEAT)
    board.see(snapshot(2))
    new, state = stream.next()
    assert (new != last, state["done"]) == (True, 2)
    for stranger in (last, "another-7", "0"):  # older, or of another command: all of it
        assert Stream(server, stranger).next()[1]["done"] == 2


def test_while_nothing_happens_a_comment_keeps_the_connection_alive(server, monkeypatch):
    monkeypatch.setattr(dashboard, "KEEP_ALIVE", 0.1)
    stream = Stream(server)
    stream.next()
    assert stream.lines() == [": nothing new"]


def test_the_last_word_reaches_all_pages_and_then_the_streams_end(board):
    server = Server(board)
    streams = [Stream(server) for _ in range(3)]
    board.end("finished", "Finished: report.html is in study")
    board.say("and more")
    board.see(snapshot(5))
    server.close()
    for stream in streams:
        state = stream.next()[1]
        while state["state"] == "running":
            state = stream.next()[1]
        assert (state["state"], state["words"], state["done"]) == ("finished", "Finished: report.html is in study", 0)
        assert stream.response.read() == b"", "it was ended, not broken off"
    with pytest.raises(OSError, match="refused"):
        ask(server)


def test_sites_that_refuse_go_and_come_are_noted_with_the_reason(board):
    board.see(snapshot(1, site("a"), site("b", "away"), site("c", "refused", "not now")))
    board.see(snapshot(2, site("a", "away", "it is not connected"), site("b"), site("c", "left out", "never")))
    board.see(snapshot(3, site("a"), site("b"), site("c", "left out", "never")))
    lines = [(line["site"], line["state"], line["reason"]) for line in json.loads(board.event()[1])["log"]]
    assert lines == [
        ("c", "refused", "not now"),
        ("a", "away", "it is not connected"),
        ("b", "here", ""),
        ("c", "left out", "never"),
        ("a", "here", ""),
    ]


def test_what_grows_with_a_study_is_cut(board, monkeypatch):
    monkeypatch.setattr(dashboard, "MOST_LINES", 20)
    monkeypatch.setattr(dashboard, "MOST_POINTS", 20)
    for done in range(1, 3 * dashboard.MOST_LINES):
        reason = "x" * 10_000
        board.see(snapshot(done, site("a", ("here", "away")[done % 2], reason), posterior=posterior(done)))
    state = json.loads(board.event()[1])
    assert len(state["log"]) == dashboard.MOST_LINES
    assert len(state["sites"][0]["reason"]) == dashboard.MOST_LETTERS
    assert len(state["history"]) <= dashboard.MOST_POINTS
    assert state["history"][-1]["round"] == 3 * dashboard.MOST_LINES - 1
    assert len(state["posterior"]["rows"]) == dashboard.MOST_COEFFICIENTS
    assert len(state["posterior"]["rows"][0]["trail"]) == dashboard.MOST_TRAIL


def test_the_coefficients_clearest_from_0_are_shown_in_the_order_of_the_columns(board):
    board.see(snapshot(1))
    found = json.loads(board.event()[1])["posterior"]
    assert [row["name"] for row in found["rows"]] == NAMES[9:]
    assert (found["of"], found["level"], found["effect"]) == (20, 0.95, "change of the log-odds")
    expected = posterior().summary(0.95)[9]
    assert {part: found["rows"][0][part] for part in ("mean", "low", "high")} == {
        part: expected[part] for part in ("mean", "low", "high")
    }


def test_numbers_that_are_not_known_or_not_finite_are_left_open(board):
    strange = posterior()
    strange.blocks["coefficients"].mean[3] = np.nan
    endless = {"epsilon": np.inf, "budget": np.nan, "ledger_spent": np.inf}
    history = [{"round": 1, "accuracy": np.nan}, {"round": 2, "accuracy": 0.5, "log_likelihood": -np.inf}]
    board.see(snapshot(1, site("a", spent=None) | endless, posterior=strange, history=history))
    state = json.loads(board.event()[1], parse_constant=lambda name: pytest.fail(name))
    unknown = dict.fromkeys(("spent", "epsilon", "budget", "ledger_spent"))
    assert state["sites"][0] | unknown == state["sites"][0]
    assert "column-2" not in [row["name"] for row in state["posterior"]["rows"]]
    assert state["history"] == [{"round": 2, "accuracy": 0.5}]


def test_what_a_study_spent_and_what_a_ledger_has_in_all_are_shown_apart(board):
    board.see(snapshot(1, site("north") | {"ledger_spent": 2.5, "budget": 8.0}, site("south")))
    north, south = json.loads(board.event()[1])["sites"]
    assert (north["spent"], north["epsilon"], north["ledger_spent"], north["budget"]) == (0.5, 2.0, 2.5, 8.0)
    assert (south["spent"], south["epsilon"], south["ledger_spent"], south["budget"]) == (0.5, 2.0, None, None)


# --- What is never said ------------------------------------------------------------------------------------------


def test_nothing_is_said_but_what_is_named_here(server, board):
    """Public settings and released values: what is added to a snapshot is not shown before somebody adds it here."""
    extra = {"records": 4711, "secret": "4711"}
    rich = [{**row, **extra} for row in snapshot(3).history]
    board.see(snapshot(3, site("north", "refused", "why") | extra, history=rich, seeded=True))
    _, state = Stream(server).next()
    assert set(state) == {
        *("version", "title", "state", "words", "phase", "done", "of", "sites", "posterior", "history", "seeded"),
        *("log", "elapsed", "left"),
    }
    assert set(state["sites"][0]) == {
        *("name", "state", "reason", "updates", "spent", "epsilon", "ledger_spent", "budget")
    }
    assert set(state["history"][0]) == {"round", "communications", "accuracy"}
    assert set(state["posterior"]) == {"effect", "level", "of", "lacks_noise", "rows"}
    assert set(state["posterior"]["rows"][0]) == {"name", "per", "mean", "low", "high", "trail"}
    assert set(state["log"][0]) == {"time", "site", "state", "reason"}
    assert "4711" not in json.dumps(state)
    assert state["version"] == tacit.__version__


def test_an_error_that_may_be_about_records_is_for_the_terminal_alone(capfd, monkeypatch):
    boards = []
    with pytest.raises(ValueError, match="41 years"), dashboard.showing(True) as board:  # noqa: PT012
        boards.append(board)
        raise ValueError("a record of 41 years has no target")
    state = json.loads(boards[0].event()[1])
    assert (state["state"], state["words"]) == ("failed", "Failed. The terminal says why.")
    assert "41 years" not in json.dumps(state)
    assert re.fullmatch(r"tacit: watch it at http://127\.0\.0\.1:\d+/[\w-]{32}/\n", capfd.readouterr().err)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), typer.Exit(130), SystemExit(130)], ids=repr)
def test_a_command_that_is_stopped_says_how_it_goes_on(stop):
    boards = []
    with pytest.raises(type(stop)), dashboard.showing(True) as board:  # noqa: PT012
        boards.append(board)
        raise stop
    assert json.loads(boards[0].event()[1])["words"] == "Stopped. Run the same command again to resume."


# --- Where it is opened ------------------------------------------------------------------------------------------


def test_a_browser_is_opened_only_for_a_person_at_this_desktop(monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(dashboard.webbrowser, "open", lambda address: opened.append(address) is None and False)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    with dashboard.showing(True):
        pass
    assert opened == [], "standard error is no terminal here"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with dashboard.showing(True):
        pass
    assert len(opened) == 1
    assert opened[0].startswith("file:///"), "what a command is given, all users of the machine can see"
    assert not Path(url2pathname(urlsplit(opened[0]).path)).exists(), "no browser was there to read it"
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 5 192.0.2.2 22")
    with dashboard.showing(True):
        pass
    assert len(opened) == 1


def test_a_browser_is_led_to_the_address_by_a_file_that_only_its_user_can_read(monkeypatch):
    seen = []

    def read(address: str) -> bool:
        path = Path(url2pathname(urlsplit(address).path))
        seen.extend([path, path.read_text(), path.parent.stat().st_mode & 0o077])
        return True

    monkeypatch.setattr(dashboard.webbrowser, "open", read)
    folder = dashboard._opened("http://127.0.0.1:1/token/")
    assert folder is not None
    assert 'content="0;url=http://127.0.0.1:1/token/"' in seen[1]
    assert seen[2] == 0
    shutil.rmtree(folder)


def test_whoever_only_connects_cannot_use_up_the_files_of_a_study(monkeypatch):
    """Without the token: more connections than are let in are closed, and those that ask for nothing before long."""
    monkeypatch.setattr(dashboard, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(dashboard, "FIRST_REQUEST", 0.5)
    server = Server(Board())
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(12)]
    try:
        for one in idle:
            one.settimeout(10)
        ended = 0
        for one in idle:
            try:
                ended += one.recv(1) == b""
            except ConnectionResetError:
                ended += 1
        assert ended == 12
        assert ask(server).status == 200
    finally:
        for one in idle:
            one.close()
        server.close()


def test_without_being_asked_for_nothing_is_served(capfd, monkeypatch):
    monkeypatch.setattr(dashboard, "Server", lambda *_: pytest.fail("served"))
    with dashboard.showing(False) as board:
        board.see(snapshot())
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match="dashboard_port=8000 without a dashboard"), dashboard.showing(False, 8000):
        pass


def test_what_is_lacking_is_said_with_the_remedy(monkeypatch):
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs Starlette and uvicorn; .* pip install 'tacit\[dashboard\]'"):
        Server(Board())


def test_every_server_has_a_token_of_its_own(server, door):
    assert server.token != door.token


def test_a_port_that_is_taken_or_none_is_refused(door):
    taken = door.port
    with pytest.raises(ValueError, match=f"dashboard_port={taken}: .*; take another one, or leave it out"):
        Server(Board(), taken)
    with pytest.raises(ValueError, match="dashboard_port=70000; expected"):
        Server(Board(), 70_000)


# --- A study in another process ----------------------------------------------------------------------------------


def write(folder: Path, status: dict[str, Any] | None = None, seen: Snapshot | None = None) -> None:
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    if seen is not None:
        (folder / "snapshot.json").write_text(json.dumps(dashboard.plain(seen)))


def status(phase: str, done: int, **sites: dict[str, Any]) -> dict[str, Any]:
    rows = {name: {part: value for part, value in row.items() if part != "name"} for name, row in sites.items()}
    return {"study": "clinics", "time": "now", "phase": phase, "done": done, "of": 9, "sites": rows}


def test_a_folder_is_followed_from_waiting_to_the_end(board, tmp_path):
    def now() -> dict[str, Any]:
        board.follow(tmp_path)
        return json.loads(board.event()[1])

    assert now()["sites"] == []
    waiting = {"phase": "waiting", "study": "clinics", "time": "now"}
    write(tmp_path, waiting | {"sites": {"north": site("", "away", spent=None)}})
    board.say("0 of 1 sites are connected; waiting for north")
    state = now()
    assert (state["phase"], state["words"]) == ("", "0 of 1 sites are connected; waiting for north")
    assert state["sites"][0]["state"] == "away"
    # A status calls both a refusal and an absence "away"; a snapshot that is as new knows better.
    write(tmp_path, status("inference", 2, north=site("", "away", "no")), snapshot(2, site("north", "refused", "no")))
    state = now()
    assert (state["phase"], state["done"], state["sites"][0]["state"]) == ("inference", 2, "refused")
    assert state["posterior"]["rows"]
    # One that an earlier command left does not.
    write(tmp_path, status("inference", 3, north=site("", "here")))
    assert now()["sites"][0]["state"] == "here"
    (tmp_path / "snapshot.json").write_text("{ torn")
    write(tmp_path, status("evaluation", 1, north=site("")))
    state = now()
    assert state["phase"] == "evaluation"
    assert state["posterior"]["rows"], "what was known stays"
    write(tmp_path, {"phase": "failed", "failed": "no site took part", "sites": {}})
    assert now()["sites"], "what was known stays"


def test_a_study_that_was_finished_before_is_shown_from_its_folder(board, tmp_path):
    posterior().save(tmp_path / "posterior.json")
    rows = [{"name": "north", "spent": 1.5, "updates": 9, "refused": "too much", "epsilon": 2.0, "budget": 2.0}]
    result = {"sites": rows, "history": snapshot(9).history, "randomness": "seeded"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    board.finish(tmp_path)
    state = json.loads(board.event()[1])
    assert (state["state"], state["words"]) == ("finished", f"Finished: report.html is in {tmp_path}")
    assert (state["sites"][0]["state"], state["sites"][0]["reason"]) == ("refused", "too much")
    assert state["seeded"]
    assert len(state["history"]) == 9
    assert state["posterior"]["of"] == 20
