"""Bytes between a coordinator and its sites, over NVIDIA FLARE's authenticated channel. Nothing here reads a study.

FLARE brings connections that sites open (they dial out), mutual TLS, and names that are bound to certificates. Nothing
else of it is used: one `CoreCell` in each process, with one kind of message. There are no jobs, no job processes,
no administration, no file transfer and no code that travels. What a site runs is installed there, and always the same.

| part          | where       | what                                                                                |
|---------------|-------------|-------------------------------------------------------------------------------------|
| `Exchange`    | coordinator | who is connected; a request to one of them, and its reply                            |
| `Post`        | coordinator | requests to many sites at once, sent again until there is an answer or patience ends |
| `Answerer`    | site        | what a site does with a request: `open(study)` gives the function that answers bytes |
| `Connection`  | site        | dials the coordinator, and passes its requests to an answerer                        |

**The gate** checks each message that enters a cell, before FLARE decodes, counts or keeps anything of it. A site
accepts requests of the coordinator, and the coordinator accepts replies of the site that was asked, in plain bytes.
Everything else is dropped without an answer: FLARE's own requests, input for its deserialiser, messages forwarded for
others, and replies in another's name. What a peer sends reaches FLARE's framing (lengths, and headers in msgpack),
`Answerer` here, and `federated.messages`; no other parser.

**A request** is one byte for its kind, 16 bytes for the session, 32 bytes for the hash of the study, and the rest. A
site that does not know the session's study asks for it, so that sites may leave and return at any time. A request may
be sent twice: the site, not the channel, makes sure that a round is answered once.
"""

import contextlib
import hashlib
import logging
import logging.handlers
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # `certificates.trouble` says what is wrong with a connection

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey, MessageType, ReturnCode
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.message import Message

from tacit.network.certificates import Kit

SERVER = "server"  # what FLARE calls the coordinator
CHANNEL, TOPIC = "tacit", "ask"
OPEN, ASK = b"O", b"A"  # kinds of requests
ANSWER, BUSY, UNKNOWN, FAILED = b"a", b"b", b"u", b"f"  # kinds of replies
SESSION, DIGEST = 16, 32  # bytes
MOST_STUDY = 2**20  # bytes
MOST_MESSAGE = 2**28
MOST_LOG = 2**20
HOLD = 5.0  # seconds for which a busy site holds a request before it replies that it is busy
UNHEARD = 2 * HOLD  # seconds without any word after which a request is sent again
PAUSE = 0.5  # seconds before a site that cannot be reached is tried again
ALIVE = 10_000  # milliseconds without a byte after which a connection is probed

RequestHandler = Callable[[bytes], tuple[bytes, str]]


# --- The channel --------------------------------------------------------------------------------------------------


def refuses(message: Message, own: str) -> bool:
    """The gate: whether this process drops a message. own: the name of this process.

    The sender that a message names must be the peer of its connection, which FLARE checks against the certificate.
    """
    head = message.get_header
    is_site = own != SERVER
    endpoint = message.get_prop(MessagePropKey.ENDPOINT)
    peer = getattr(endpoint, "name", None)
    payload = message.payload
    encodings = (Encoding.BYTES,) if is_site else (Encoding.BYTES, Encoding.NONE)
    return not (
        (peer == SERVER) == is_site
        and head(MessageHeaderKey.MSG_TYPE) == (MessageType.REQ if is_site else MessageType.REPLY)
        and head(MessageHeaderKey.ORIGIN) == head(MessageHeaderKey.FROM_CELL) == peer
        and head(MessageHeaderKey.DESTINATION) == head(MessageHeaderKey.TO_CELL) == own
        and (head(MessageHeaderKey.CHANNEL), head(MessageHeaderKey.TOPIC)) == (CHANNEL, TOPIC)
        and _is_direct(head(MessageHeaderKey.ROUTE), peer)
        and head(MessageHeaderKey.PAYLOAD_ENCODING) in encodings
        and not head(MessageHeaderKey.SECURE)
        and (payload is None or isinstance(payload, bytes | bytearray | memoryview))
        and (payload is None or len(payload) <= MOST_MESSAGE)
    )


def _is_direct(route: Any, peer: str | None) -> bool:
    """Whether a message's route has only one stop, its connection's peer: FLARE keeps statistics by route."""
    return isinstance(route, list) and len(route) == 1 and len(route[0]) == 2 and route[0][0] == peer


class GatedCell(CoreCell):
    """A FLARE cell that takes in only what passes the gate."""

    def process_message(self, endpoint: Any, connection: Any, app_id: int, message: Message) -> None:
        message.set_prop(MessagePropKey.ENDPOINT, endpoint)
        try:
            if refuses(message, self.get_fqcn()):
                return
        except Exception:  # headers may be anything
            return
        super().process_message(endpoint, connection, app_id, message)


def _cell(kit: Kit, log: Path) -> GatedCell:
    """This process's end of the channel; not yet started."""
    _log_to(log)
    # Without this, FLARE would look for a settings file and read the environment.
    CommConfigurator._configuration = {
        "allow_adhoc_conns": False,
        "max_message_size": MOST_MESSAGE,
        "use_aio_grpc": False,
        "grpc": {"max_workers": 1000, "options": _OPTIONS},
    }
    CommConfigurator._config_loaded = True
    role = "server" if kit.is_coordinator else "client"
    credentials = {"ca_cert": str(kit.authority), "connection_security": "mtls"}
    credentials |= {f"{role}_cert": str(kit.certificate), f"{role}_key": str(kit.key)}
    own = SERVER if kit.is_coordinator else kit.name
    is_here = kit.host in ("localhost", "127.0.0.1")
    address = kit.host if is_here or not kit.is_coordinator else "0.0.0.0"
    return GatedCell(own, f"grpc://{address}:{kit.port}", True, credentials, auth_identity_map={SERVER: kit.host})


_OPTIONS = [
    ("grpc.max_send_message_length", MOST_MESSAGE),
    ("grpc.max_receive_message_length", MOST_MESSAGE),
    ("grpc.so_reuseport", 0),  # one coordinator at a port
    ("grpc.keepalive_time_ms", ALIVE),
    ("grpc.keepalive_timeout_ms", ALIVE),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", ALIVE // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", ALIVE // 2),
]


def _log_to(path: Path) -> None:
    """FLARE's own log goes into a file of bounded size, and not to the terminal."""
    logger = logging.getLogger("nvflare")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=MOST_LOG, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message).2000s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


# --- The coordinator ----------------------------------------------------------------------------------------------


class Exchange:
    """The coordinator's end of the channel. sites: all that may be asked."""

    def __init__(self, kit: Kit, sites: Collection[str], log: Path) -> None:
        self.sites = list(sites)
        with socket.socket() as probe:
            probe.settimeout(PAUSE)
            if probe.connect_ex(("127.0.0.1", kit.port)) == 0:
                raise ValueError(f"port={kit.port} is in use on this machine; end what listens there")
        self._cell = _cell(kit, log)
        self._cell.start()
        end = time.monotonic() + UNHEARD
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", kit.port), timeout=PAUSE):
                return
            if time.monotonic() > end:
                self.close()
                raise ValueError(f"port={kit.port} cannot be listened on; take another port, and see {log}")
            time.sleep(PAUSE / 10)

    def connected(self) -> list[str]:
        """Sites that have a connection open now."""
        return [name for name in self.sites if name in self._cell.agents]

    def request(self, site: str, data: bytes, timeout: float) -> bytes | None:
        """A site's reply; None if it cannot be reached, or does not reply in time."""
        message = Message(payload=data)
        reply = self._cell.send_request(CHANNEL, TOPIC, site, message, timeout=timeout, optional=True)
        code, payload = reply.get_header(MessageHeaderKey.RETURN_CODE), reply.payload
        if code == ReturnCode.PROCESS_EXCEPTION:
            return FAILED
        return bytes(payload) if code == ReturnCode.OK and payload else None

    def close(self) -> None:
        self._cell.stop()


@dataclass(frozen=True)
class Reply:
    """A site's answer. note: JSON beside the message, without data."""

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


class Requests(Protocol):
    """The part of an `Exchange` that a post uses."""

    def connected(self) -> list[str]: ...

    def request(self, site: str, data: bytes, timeout: float) -> bytes | None: ...


class Post:
    """One session of a study: requests to sites, each in its own thread, and answers in order of arrival.

    patience: seconds for which a site may be away before this request to it is given up. longest: seconds for which it
    may be at work, or say so.
    """

    def __init__(self, exchange: Requests, study: bytes, patience: float, longest: float) -> None:
        if len(study) > MOST_STUDY:
            raise ValueError(
                f"a study of {len(study)} bytes; expected at most {MOST_STUDY}: fewer columns or categories"
            )
        self._exchange, self._study, self.patience, self.longest = exchange, study, patience, longest
        self._head = os.urandom(SESSION) + hashlib.sha256(study).digest()
        self._arrived: queue.Queue[tuple[str, Arrival]] = queue.Queue()
        self._ended = threading.Event()
        self._lost: set[str] = set()
        self._seen: set[str] = set()

    @property
    def sites(self) -> list[str]:
        """Sites that are connected, or were in this session and may be back in a moment."""
        here = self._exchange.connected()
        self._seen |= set(here)
        return [*here, *sorted(self._seen - set(here) - self._lost)]

    def ask(self, site: str, data: bytes, longest: float | None = None) -> None:
        """Send a request; `receive` gives its answer. A site that was away is not waited for again."""
        patience = 0.0 if site in self._lost else self.patience
        longest = self.longest if longest is None else min(longest, self.longest)
        threading.Thread(target=self._carry, args=(site, data, patience, longest), daemon=True).start()

    def receive(self) -> tuple[str, Arrival]:
        """The next answer."""
        while True:  # a wait that ends now and then lets Ctrl-C through
            with contextlib.suppress(queue.Empty):
                site, found = self._arrived.get(timeout=PAUSE)
                (self._lost.add if isinstance(found, Lost) else self._lost.discard)(site)
                return site, found

    def close(self) -> None:
        """End what is still being asked."""
        self._ended.set()

    def _carry(self, site: str, data: bytes, patience: float, longest: float) -> None:
        last = time.monotonic() + longest
        end = time.monotonic() + patience
        while not self._ended.is_set():
            kind, rest = self._tried(site, ASK + self._head + data)
            if kind == UNKNOWN:
                kind, rest = self._tried(site, OPEN + self._head + self._study)
            if kind == ANSWER:
                self._arrived.put((site, _reply(rest)))
                return
            if kind == FAILED:
                self._arrived.put((site, Failed()))
                return
            if kind == BUSY:
                end = time.monotonic() + self.patience  # it is at work
                if time.monotonic() > last:
                    self._arrived.put((site, Failed(f"it worked on one answer for more than {longest:g} seconds")))
                    return
                continue
            if time.monotonic() > end:
                self._arrived.put((site, Lost(f"it did not answer for {patience or UNHEARD:g} seconds")))
                return
            self._ended.wait(PAUSE)

    def _tried(self, site: str, request: bytes) -> tuple[bytes, bytes]:
        """The kind of a reply and the rest of it; both empty if none came."""
        found = None
        with contextlib.suppress(Exception):  # FLARE raises many when connections end
            found = self._exchange.request(site, request, UNHEARD)
        found = found or b""
        return found[:1], found[1:]


def _reply(rest: bytes) -> Reply:
    """Split a reply into a note and a message. The site may have sent anything."""
    size = int.from_bytes(rest[:4], "big")
    note = rest[4 : 4 + size].decode(errors="replace")
    return Reply(rest[4 + size :], note)


# --- A site -------------------------------------------------------------------------------------------------------


class Answerer:
    """Answers requests at a site, one at a time. `open(study)` is called once in each session of a study.

    A reply is an answer, or one of three single bytes. It never contains an error of the site.
    """

    def __init__(self, open: Callable[[bytes], RequestHandler], close: Callable[[], None] = lambda: None) -> None:
        self._open, self._close = open, close
        self._worker = ThreadPoolExecutor(1, "tacit")
        self._head = b""
        self._opened: Future[RequestHandler] | None = None
        self._latest: tuple[bytes, Future[tuple[bytes, str]]] | None = None
        self._lock = threading.Lock()

    def __call__(self, request: bytes) -> bytes:
        kind, rest = request[:1], request[1:]
        head, content = rest[: SESSION + DIGEST], rest[SESSION + DIGEST :]
        if kind == OPEN and hashlib.sha256(content).digest() == head[SESSION:] and len(content) <= MOST_STUDY:
            return self._begin(head, content)
        return self._answer(head, content) if kind == ASK else FAILED

    def close(self, patience: float) -> bool:
        """Let work under way end, and close the study; whether this took at most `patience` seconds."""
        closed = self._worker.submit(self._close)
        self._worker.shutdown(wait=False)
        return bool(wait([closed], patience).done)

    def _begin(self, head: bytes, study: bytes) -> bytes:
        """Open a study once work under way has ended, so that nothing piles up."""
        wait(self._under_way(), HOLD)
        with self._lock:
            if head != self._head and all(future.done() for future in self._under_way()):
                self._head, self._latest = head, None
                self._opened = self._worker.submit(self._reopen, study)
        return BUSY

    def _under_way(self) -> list[Future[Any]]:
        latest = None if self._latest is None else self._latest[1]
        return [future for future in (self._opened, latest) if future is not None]

    def _reopen(self, study: bytes) -> RequestHandler:
        self._close()
        return self._open(study)

    def _answer(self, head: bytes, data: bytes) -> bytes:
        """Answer a request. One under way is not begun again: a repeat waits for the same answer."""
        digest = hashlib.sha256(data).digest()
        with self._lock:
            if head != self._head or self._opened is None:
                return UNKNOWN
            is_other = self._latest is None or self._latest[0] != digest
            if self._latest is None or self._latest[1].done():
                self._latest, is_other = (digest, self._worker.submit(self._work, data)), False
            future = self._latest[1]
        try:
            answer, note = future.result(timeout=HOLD)
        except NotYet:
            return BUSY
        except Exception:  # a bug; its message could contain data, so it stays here
            logging.getLogger("nvflare.tacit").exception("an answer could not be made")
            return BUSY if is_other else FAILED
        if is_other:  # it waited for an earlier request
            return BUSY
        words = note.encode()
        return ANSWER + len(words).to_bytes(4, "big") + words + answer

    def _work(self, data: bytes) -> tuple[bytes, str]:
        assert self._opened is not None
        return self._opened.result()(data)


class Connection:
    """A site's end of the channel: it keeps dialling the coordinator and passes requests to an answerer."""

    def __init__(self, kit: Kit, answerer: Callable[[bytes], bytes], log: Path) -> None:
        self._cell = _cell(kit, log)
        self._cell.register_request_cb(
            CHANNEL, TOPIC, lambda message: Message(payload=answerer(bytes(message.payload)))
        )
        self._cell.start()

    def is_connected(self) -> bool:
        return SERVER in self._cell.agents

    def close(self) -> None:
        self._cell.stop()
