"""`tacit join`: be a site until stopped."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tacit.files.site_file import SiteFile, read_site
from tacit.network import certificates
from tacit.network.certificates import Kit
from tacit.network.channel import Answerer, Connection, RequestHandler
from tacit.network.processes import POLL, alone, keep_compiled
from tacit.network.site_session import SiteSession
from tacit.study.folder import shortened

UNSETTLED = 5.0  # seconds without a connection after which a site looks for the reason
LAST_WAIT = 10.0  # seconds for which a site that is told to end waits for an update under way
Say = Callable[[str], None]


def join(path: Path, say: Say, is_over: Callable[[], bool] = lambda: False) -> None:
    """Be a site until told to stop. say: called with lines on requests and answers."""
    file = read_site(path)
    kit, name = _checked_kit(file), file.settings.name
    file.check()  # before any request, so that no answer reveals the outcome
    state = file.state_folder
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    with alone(state / "join.lock", f"site {name} is joined already; end that process first"):
        log, seen = state / "audit.jsonl", 0
        seen = log.stat().st_size if log.exists() else 0
        say(f"{name}: joining; records stay here, the ledger is {state / 'ledger.sqlite'}")
        keep_compiled(state)
        sessions = SiteSessions(path)
        answerer = Answerer(sessions.open, sessions.close)
        connection = Connection(kit, answerer, state / "flare.log")
        try:
            watch = _Watch(kit, connection, say)
            while not is_over():
                seen = _tell(log, seen, say)
                watch.look()
                time.sleep(POLL)
        finally:
            connection.close()
            is_closed = answerer.close(LAST_WAIT)
            _tell(log, seen, say)  # also the last lines before a signal
            if not is_closed:
                say(f"{name}: an update under way is cut off; what was charged for it stays charged")
                sys.stdout.flush()
                os._exit(1)  # as a kill would: charges and stores are whole or not there at all


class SiteSessions:
    """The current session of a site, made anew from the site file in each session of a study."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session: SiteSession | None = None

    def open(self, study: bytes) -> RequestHandler:
        self._session = SiteSession(read_site(self.path), study)
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class _Watch:
    """Says when the connection is up, or why it is not."""

    def __init__(self, kit: Kit, connection: Connection, say: Say) -> None:
        self.kit, self.connection, self.say = kit, connection, say
        self._since = time.monotonic()
        self._said = ""
        self._was_connected = False

    def look(self) -> None:
        """Look at the connection; call this regularly."""
        if self.connection.is_connected():
            self._since, self._was_connected = time.monotonic(), True
            self._tell("connected to the coordinator; waiting for what it asks")
        elif time.monotonic() - self._since > UNSETTLED:
            self._since = time.monotonic()
            found = certificates.trouble(self.kit) or self._said
            is_gone = found == certificates.AWAY and self._was_connected
            self._tell("the coordinator has gone; waiting for its next study" if is_gone else found)

    def _tell(self, words: str) -> None:
        if words != self._said:
            self.say(f"{self.kit.name}: {words}")
        self._said = words


def _checked_kit(file: SiteFile) -> Kit:
    kit, name = Kit.read(file.kit_folder), file.settings.name
    if kit.name != name:
        raise ValueError(f"kit={kit.folder} is of {kit.name!r}; expected one of {name!r}, as the site file says")
    own, state = kit.folder.resolve(), file.state_folder.resolve()
    if own == state or own in state.parents or state in own.parents:
        raise ValueError(f"state={state} and kit={own} are one inside the other; give each a folder of its own")
    return kit


def _tell(log: Path, seen: int, say: Say) -> int:
    """Say what is new in an audit log, and return how far it was read."""
    if not log.exists() or log.stat().st_size == seen:
        return seen
    seen = 0 if log.stat().st_size < seen else seen  # a new file was begun
    with log.open("rb") as file:
        file.seek(seen)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            words = f": {entry['words']}" if entry["words"] else ""
            study = shortened(entry["study"])
            say(f"{entry['time'][11:19]} {entry['kind']} round {entry['round']} of {study}{words}")
    return seen + len(whole)
