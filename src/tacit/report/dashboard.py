"""A page that shows a study while it runs: `tacit simulate --watch` and `tacit serve --dashboard`.

`Board` holds the content, and `Server` serves it to browsers on this machine. A board holds public settings and
released values only, so the page reveals no more than the study's folder for publication.

| request                                             | answer                                                     |
|-----------------------------------------------------|------------------------------------------------------------|
| from another machine                                | none: the server listens on 127.0.0.1 only                 |
| under another name than this machine's own          | 403: a web page had its own name point here                |
| without the token of the address                    | 403: another user of this machine, or a web page           |
| with anything but GET                               | 405: nothing can be changed from the page                  |
| GET /TOKEN/                                         | the page, which may load nothing from anywhere else        |
| GET /TOKEN/events                                   | the whole board as JSON, now and whenever it has changed   |

Needs the extra `tacit[dashboard]`, which is loaded when a server is made.
"""

import asyncio
import json
import math
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tacit
from tacit.basics.plain import finite
from tacit.links import link_of
from tacit.report import forest
from tacit.report.progress import PHASES, Watch

if TYPE_CHECKING:  # it loads JAX, which should load while progress is shown
    from tacit.posterior.posterior import Posterior
    from tacit.study.host import Snapshot

LEVEL = 0.95  # of intervals
MOST_COEFFICIENTS = 12  # shown while they move: those clearest from 0
MOST_TRAIL = 8  # earlier means of each
MOST_POINTS = 200  # of a curve
MOST_LINES = 200  # of the log
MOST_LETTERS = 400  # of a site's reason
BEAT = 0.2  # seconds between checks of the board, and so between events
KEEP_ALIVE = 15.0  # seconds without an event before a comment is sent to keep the connection open
MOST_CONNECTIONS = 32  # of browsers, at once
FIRST_REQUEST = 5.0  # seconds for a new connection to send a request
GRACE = 2.0  # seconds for the last event to reach all pages
FIRST_LOOK = 5.0  # seconds to wait for an opened browser, if the command ends before
HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")  # any port: a tunnel may start at another one
SCORES = ("accuracy", "log_likelihood", "root_mean_square_error")
ENDS = {"finished", "failed", "stopped"}


# --- Content -----------------------------------------------------------------------------------------------------


def plain(snapshot: "Snapshot") -> dict[str, Any]:
    """The content of a snapshot as plain data."""
    return {
        "phase": snapshot.phase,
        "done": snapshot.done,
        "of": snapshot.total,
        "sites": snapshot.sites,
        "posterior": None if snapshot.posterior is None else _moving(snapshot.posterior),
        "history": _curve(snapshot.history),
        "seeded": snapshot.seeded,
    }


def _moving(posterior: "Posterior") -> dict[str, Any]:
    """The coefficients clearest from 0, in the order of the columns."""
    rows = [row for row in forest.effects(posterior, LEVEL) if math.isfinite(row.high - row.low)]
    by_clarity = sorted(rows, key=lambda row: -abs(row.mean) / max(row.high - row.low, sys.float_info.min))
    kept = {id(row) for row in by_clarity[:MOST_COEFFICIENTS]}
    parts = ("name", "per", "mean", "low", "high")
    return {
        "effect": link_of(posterior.link).effect,
        "level": LEVEL,
        "of": len(rows),
        "lacks_noise": forest.lacks_noise(posterior.plan),
        "rows": [{part: getattr(row, part) for part in parts} for row in rows if id(row) in kept],
    }


def _curve(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Scores against rounds, thinned if there are many."""
    found = (
        {part: row[part] for part in ("round", "communications", *SCORES) if math.isfinite(row.get(part, math.nan))}
        for row in history
    )
    rows = [row for row in found if any(score in row for score in SCORES)]
    step = -(-len(rows) // MOST_POINTS) or 1
    return rows[::-1][::step][::-1]  # keeps the newest


class Board:
    """The content shown for one command, with its running time. Any thread may write; each change is a new version."""

    def __init__(self) -> None:
        self.version = 0
        self.was_seen = False  # by a browser
        self.is_closed = False  # nothing more will be written
        self._mark = secrets.token_hex(4)  # sets event ids apart from those of other commands
        self._lock = threading.Lock()
        self._begun, self._ended = time.monotonic(), 0.0
        self._pace = Watch()
        self._known: dict[str, str] = {}  # the state of each site
        self._trail: dict[str, list[float]] = {}
        self._state: dict[str, Any] = {
            "version": tacit.__version__,
            "title": "",
            "state": "running",
            "words": "Starting",
            "phase": "",
            "done": 0,
            "of": 0,
            "sites": [],
            "posterior": None,
            "history": [],
            "seeded": False,
            "log": [],
        }

    def about(self, title: str, seeded: bool = False) -> None:
        """Set the title. seeded: whether the command's own noise is."""
        self._write({"title": title, "seeded": seeded})

    def say(self, words: str) -> None:
        """Show the current activity outside of rounds."""
        self._write({"words": words, "phase": ""})

    def see(self, snapshot: "Snapshot") -> None:
        """Show a snapshot of a study."""
        self._show(plain(snapshot))

    def follow(self, folder: Path) -> None:
        """Show the study in a folder, from files that another process writes there."""
        status, snapshot = (_read(folder / name) for name in ("status.json", "snapshot.json"))
        status = {"sites": {}, "phase": "waiting", "done": 0, "of": 0} | status
        sites = [{"name": name, **row} for name, row in status["sites"].items()]
        if snapshot and _place(snapshot) >= _place(status):
            sites = snapshot["sites"]  # they distinguish refusals from absences
        self._show({**snapshot, "phase": status["phase"], "done": status["done"], "of": status["of"], "sites": sites})

    def finish(self, folder: Path) -> None:
        """Show the results of a finished study from its folder, also of one that finished earlier."""
        from tacit.posterior.posterior import Posterior

        result = _read(folder / "result.json")
        rows = [
            {**row, "state": "refused" if row["refused"] else "here", "reason": row["refused"]}
            for row in result.get("sites", [])
        ]
        found: dict[str, Any] = {"phase": "", "sites": [] if self._known else rows}
        found |= {"history": _curve(result.get("history", [])), "seeded": result.get("randomness") == "seeded"}
        self._show({**found, "posterior": _moving(Posterior.load(folder / "posterior.json"))})
        self.end("finished", f"Finished: report.html is in {folder}")

    def end(self, state: str, words: str) -> None:
        """Show how the command ended; later calls are ignored."""
        assert state in ENDS
        self._write({"state": state, "words": words, "phase": ""})

    def event(self) -> tuple[str, str]:
        """The id of the newest version, and the whole board as JSON."""
        with self._lock:
            now = self._ended or time.monotonic()
            left = None if self._ended else self._pace.left(now)
            whole = {**self._state, "elapsed": round(now - self._begun, 1), "left": left and round(left, 1)}
            return self._id(), json.dumps(whole, allow_nan=False)

    @property
    def id(self) -> str:
        """The id of the newest version."""
        with self._lock:
            return self._id()

    def _id(self) -> str:
        return f"{self._mark}-{self.version}"

    def _write(self, changes: Mapping[str, Any], lines: Iterable[Mapping[str, Any]] = ()) -> None:
        with self._lock:
            if self._state["state"] in ENDS:
                return
            log = [*self._state["log"], *lines][-MOST_LINES:]
            self._state |= {**changes, "log": log}
            self._ended = time.monotonic() if self._state["state"] in ENDS else 0.0
            self.version += 1

    def _show(self, found: Mapping[str, Any]) -> None:
        sites = [self._site(row) for row in found["sites"]]
        changes: dict[str, Any] = {"sites": sites} if sites else {}
        phase = found["phase"]
        if phase in PHASES:
            self._pace.step(phase, found["done"], found["of"], {})
            changes |= {"phase": phase, "words": PHASES[phase], "done": found["done"], "of": found["of"]}
        if found.get("posterior"):
            changes["posterior"] = self._trailed(found["posterior"])
        if found.get("history"):
            changes["history"] = found["history"]
        if found.get("seeded"):
            changes["seeded"] = True
        self._write(changes, self._lines(sites))

    def _site(self, row: Mapping[str, Any]) -> dict[str, Any]:
        kept = {part: row.get(part) for part in ("name", "state", "updates")}
        kept |= {part: finite(row.get(part)) for part in ("spent", "epsilon", "ledger_spent", "budget")}
        return kept | {"reason": (row.get("reason") or "")[:MOST_LETTERS]}

    def _lines(self, sites: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A log line for every site that left, came back or refused since the last call."""
        found = []
        for row in sites:
            name, state = row["name"], row["state"]
            before = self._known.get(name)
            self._known[name] = state
            if state != before and (before is not None or state in ("refused", "left out")):
                found.append({"time": time.time(), "site": name, "state": state, "reason": row["reason"]})
        return found

    def _trailed(self, posterior: Mapping[str, Any]) -> dict[str, Any]:
        """The posterior with earlier means of each coefficient, oldest first."""
        rows = []
        for row in posterior["rows"]:
            means = self._trail.setdefault(row["name"], [])
            if not means or means[-1] != row["mean"]:
                means.append(row["mean"])
                del means[: -MOST_TRAIL - 1]
            rows.append({**row, "trail": means[:-1]})
        return {**posterior, "rows": rows}


def _place(found: Mapping[str, Any]) -> tuple[int, int]:
    """A study's progress as a sortable pair."""
    order = [*PHASES]
    return order.index(found["phase"]) if found.get("phase") in order else -1, found.get("done", 0)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# --- The server --------------------------------------------------------------------------------------------------


class Server:
    """Serves a board to the browsers of this machine from its own thread, until it is closed."""

    def __init__(self, board: Board, port: int = 0) -> None:
        """Start to serve. port: any free one by default."""
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            raise ValueError(
                "the dashboard needs Starlette and uvicorn; install them with: pip install 'tacit[dashboard]'"
            )
        import uvicorn

        if not 0 <= port <= 65535:
            raise ValueError(f"dashboard_port={port}; expected a number from 1 to 65535, or none for any free port")
        try:
            self._socket = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise ValueError(f"dashboard_port={port}: {error.strerror}; take another one, or leave it out") from None
        self.board, self.token, self.port = board, secrets.token_urlsafe(24), self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/{self.token}/"
        settings: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False}
        settings |= {"lifespan": "off", "ws": "none", "loop": "asyncio", "server_header": False, "http": _bounded()}
        config = uvicorn.Config(application(board, self.token), timeout_graceful_shutdown=int(GRACE), **settings)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="dashboard", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Let the last event reach all pages, then stop."""
        self.board.is_closed = True
        time.sleep(2 * BEAT)  # for pages that are just connecting
        self._server.should_exit = True
        self._thread.join(2 * GRACE)
        self._socket.close()


def _bounded() -> Any:
    """The web protocol with a limit on connections, which closes silent ones.

    Any user of this machine can connect. Without a limit, one could use up the open files that a study needs.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= MOST_CONNECTIONS:
                transport.abort()
                return
            super().connection_made(transport)
            self.loop.call_later(FIRST_REQUEST, self._end_if_silent)

        def connection_lost(self, exc: Exception | None) -> None:
            if hasattr(self, "transport") and self.transport is not None:
                super().connection_lost(exc)

        def _end_if_silent(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.abort()

    return Bounded


def application(board: Board, token: str) -> Any:
    """The web application: one page, and its events."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, StreamingResponse
    from starlette.routing import Route

    whole = resources.files("tacit.report").joinpath("dashboard.html").read_text(encoding="utf-8")

    async def page(request: Request) -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        own = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'"
        return HTMLResponse(whole.replace("NONCE", nonce), headers={"Content-Security-Policy": f"{NOTHING}; {own}"})

    async def events(request: Request) -> StreamingResponse:
        board.was_seen = True
        stream = _events(board, request.headers.get("last-event-id"))
        return StreamingResponse(stream, media_type="text/event-stream")

    routes = [Route("/{token}/", page), Route("/{token}/events", events)]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, token=token)])


async def _events(board: Board, last: str | None) -> AsyncIterator[str]:
    """Server-sent events: the board if `last` is not its newest version, and again after every change."""
    yield "retry: 1000\n\n"
    heard = time.monotonic()
    while True:
        is_closed = board.is_closed
        if board.id != last:
            last, text = board.event()
            heard = time.monotonic()
            yield f"id: {last}\ndata: {text}\n\n"
        elif is_closed:
            return
        elif time.monotonic() - heard > KEEP_ALIVE:
            heard = time.monotonic()
            yield ": nothing new\n\n"
        await asyncio.sleep(BEAT)


NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": NOTHING,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Guard:
    """Admits only GET requests under this machine's own name with the token; sets headers on every answer."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import PlainTextResponse

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                more = ((name.lower().encode(), words.encode()) for name, words in HEADERS.items())
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in own)]
            await send(message)

        fault = self._fault(scope)
        answer = self.app if fault is None else PlainTextResponse(fault[1], fault[0])
        await answer(scope, receive, send_with_headers)

    def _fault(self, scope: Any) -> tuple[int, str] | None:
        """The status and message of a refusal; None for admitted requests."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
            return 403, "This page has another address. Use the address that the command printed."
        given = scope["path"].partition("/")[2].partition("/")[0]
        if not secrets.compare_digest(given.encode(), self.token):
            return 403, "The address lacks its token. Use the whole address that the command printed."
        return None if scope["method"] == "GET" else (405, "This page can only be read.")


@contextmanager
def showing(is_wanted: bool, port: int | None = None) -> Iterator[Board]:
    """A board for a command to write on; if wanted, it is served, and opened on a desktop.

    A failure is shown without its reason, which may be about records and appears in the terminal only. A command whose
    reasons may be shown calls `end` itself.
    """
    board = Board()
    if not is_wanted:
        if port is not None:
            raise ValueError(f"dashboard_port={port} without a dashboard; ask for one, or leave the port out")
        yield board
        return
    server = Server(board, port or 0)
    print(f"tacit: watch it at {server.address}", file=sys.stderr, flush=True)
    opener = _opened(server.address) if _is_desktop() else None
    is_opened = opener is not None
    try:
        yield board
    except (KeyboardInterrupt, GeneratorExit):
        board.end("stopped", "Stopped. Run the same command again to resume.")
        raise
    except BaseException as error:
        if 130 in (getattr(error, "exit_code", None), getattr(error, "code", None)):  # Ctrl-C
            board.end("stopped", "Stopped. Run the same command again to resume.")
        board.end("failed", "Failed. The terminal says why.")
        raise
    finally:
        board.end("stopped", "The command has ended.")
        end = time.monotonic() + FIRST_LOOK
        while is_opened and not board.was_seen and time.monotonic() < end:
            time.sleep(BEAT)
        server.close()
        if opener is not None:
            shutil.rmtree(opener, ignore_errors=True)


def _opened(address: str) -> Path | None:
    """Open an address in a browser, via a file that redirects to it: all users can see arguments of commands."""
    folder = Path(tempfile.mkdtemp(prefix="tacit-"))  # for this user alone
    page = folder / "dashboard.html"
    page.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={address}"><title>tacit</title>')
    if webbrowser.open(page.as_uri()):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _is_desktop() -> bool:
    """Whether a person at this machine would see a browser open: never in tests, in jobs, or over ssh."""
    if not sys.stderr.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
