"""What the commands of a study between machines do: make kits, serve, join, withdraw.

One process is a site (`join`), and one is the coordinator (`serve`). Both live as long as the command. A **session** is
what one call of `serve` does while enough sites are there; when all have gone, it waits for them and begins another.
"""

import contextlib
import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.config import SiteFile, Study, example_site, read_site, read_study
from tacit.engines import certificates
from tacit.engines.certificates import COORDINATOR, Kit
from tacit.engines.coordinator import Deserted
from tacit.engines.nvflare import Answer, Answerer, Connection, Exchange, Post
from tacit.network.agreement import Agreement
from tacit.network.coordinator import Session, now, put, read_status
from tacit.network.station import Station
from tacit.study import shortened

POLL = 0.5  # seconds between looks
GATHERING = 10.0  # seconds for which a study that could begin waits for the sites that are not there yet
UNSETTLED = 5.0  # seconds without a connection after which a site looks for the reason
LAST_WAIT = 10.0  # seconds for which a site that is told to end waits for an update under way
MOST_SESSIONS = 5  # that end in a row without a step, after which a study is given up
Say = Callable[[str], None]


# --- tacit network init -------------------------------------------------------------------------------------------


def init(
    study: Study, folder: Path, sites: Sequence[str], host: str, port: int, renew: Sequence[str] = ()
) -> list[Path]:
    """Certificates, a start-up kit and a site file to edit for each site of a study; the folders to hand out.

    sites: those to make kits for; all of the study by default. A folder that exists gets what it lacks.
    """
    Agreement.of(study)  # or it could not be served
    known = study.names()
    odd = [name for name in (*sites, *renew) if name not in (*known, COORDINATOR)]
    if odd:
        raise ValueError(f"site {odd[0]!r} is not in the study; expected some of {', '.join(known[:10])}")
    place = folder / "network.json"
    noted: dict[str, Any] = {}
    if place.exists():
        noted = read_network(folder)
        if (noted["host"], noted["port"]) != (host, port):
            raise ValueError(
                f"network={folder} is for {noted['host']}:{noted['port']}; expected the same address, or a new folder"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"network={folder} is not empty and not a network's; take a new folder")
    chosen = list(dict.fromkeys([*noted.get("sites", []), *(sites or known)]))
    texts = {name: example_site(study, name) for name in chosen if name in known}
    certificates.check(chosen, host)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    certificates.provision(folder, study.plan.name, chosen, host, port, renew)
    place.write_text(json.dumps({"host": host, "port": port, "sites": chosen}, indent=1) + "\n")
    made = []
    for name in chosen:
        own = folder / "sites" / name
        if name in texts and not (own / "site.toml").exists():
            (own / "site.toml").write_text(texts[name], encoding="utf-8")
        made.append(own)
    return made


def read_network(folder: Path) -> dict[str, Any]:
    """What `init` noted."""
    try:
        return json.loads((folder / "network.json").read_text())
    except (OSError, ValueError):
        raise ValueError(f"network={folder} has no network.json; make it by 'tacit network init'") from None


# --- tacit join ---------------------------------------------------------------------------------------------------


def join(path: Path, say: Say, is_over: Callable[[], bool] = lambda: False) -> None:
    """Be a site until told to stop. Lines for whoever watches: what was asked, and what was answered."""
    file = read_site(path)
    kit, name = _checked_kit(file), file.settings.name
    file.check()  # before anybody can ask, so that no answer tells of it
    state = file.state_folder
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    with _alone(state / "join.lock", f"site {name} is joined already; end that process first"):
        log, seen = state / "audit.jsonl", 0
        seen = log.stat().st_size if log.exists() else 0
        say(f"{name}: joining; records stay here, the ledger is {state / 'ledger.sqlite'}")
        keep_compiled(state)
        stations = Stations(path)
        answerer = Answerer(stations.open, stations.close)
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
            _tell(log, seen, say)  # also what came last, before a signal
            if not is_closed:
                say(f"{name}: an update under way is cut off; what was charged for it stays charged")
                sys.stdout.flush()
                os._exit(1)  # as a kill would: charges and stores are whole or not there at all


class Stations:
    """The station of the study that is under way, made anew from the site's file in each session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._station: Station | None = None

    def open(self, study: bytes) -> Answer:
        self._station = Station(read_site(self.path), study)
        return self._station

    def close(self) -> None:
        if self._station is not None:
            self._station.close()
            self._station = None


class _Watch:
    """Says when a connection is there, and why it is not."""

    def __init__(self, kit: Kit, connection: Connection, say: Say) -> None:
        self.kit, self.connection, self.say = kit, connection, say
        self._since = time.monotonic()
        self._said = ""
        self._was_connected = False

    def look(self) -> None:
        """To be called now and then."""
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
        raise ValueError(f"state={state} and kit={own} are one inside the other; give them folders of their own")
    return kit


def _tell(log: Path, seen: int, say: Say) -> int:
    """Say what is new in an audit log; how far it was read."""
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


def keep_compiled(folder: Path) -> None:
    """Keep compiled programs in a folder of our own, so that a process that begins again is quick."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder.resolve() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


# --- tacit serve --------------------------------------------------------------------------------------------------


def serve(
    path: Path,
    network: Path,
    out: Path,
    *,
    patience: float = 60.0,
    longest: float = 3600.0,
    at_least: int | None = None,
    say: Say = lambda words: None,
    watch: Callable[[Mapping[str, Any]], None] = lambda status: None,
    dashboard: bool = False,
) -> None:
    """Coordinate a study until it is finished, in one session or in many. The same call goes on from where it was.

    at_least: how many sites must be connected, and accept the study, to begin; all by default. patience: seconds for
    which a session or a round waits for a site that is away; longest: for one that is at work. watch: is told of the
    status as it changes. dashboard: also keep `sight.json`, with the posterior as it moves.
    """
    study, noted = read_study(path), read_network(network)
    agreement = Agreement.of(study)
    names = [entry[0] for entry in agreement.sites]
    lacking = [name for name in names if name not in noted["sites"]]
    if lacking:
        raise ValueError(f"network={network} has no kit of site {lacking[0]!r}; make it by 'tacit network init'")
    at_least = len(names) if at_least is None else at_least
    if not 1 <= at_least <= len(names):
        raise ValueError(f"at_least={at_least}; expected a number of sites from 1 to {len(names)}")
    for name, seconds in (("patience", patience), ("longest", longest)):
        if not 1 <= seconds <= 86_400:
            raise ValueError(f"{name}={seconds}; expected seconds from 1 to 86400")
    out.mkdir(parents=True, exist_ok=True)
    study.claim(out)
    if (out / "result.json").exists():
        return
    with _alone(out / "serve.lock", f"another coordinator works in {out}; end that process first"):
        (out / "sight.json").unlink(missing_ok=True)  # of an earlier command
        if "failed" in read_status(out):
            (out / "status.json").unlink()
        kit = Kit.read(network / COORDINATOR)
        keep_compiled(out)
        exchange = Exchange(kit, names, out / "flare.log")
        try:
            say(f"listening on {kit.host}:{kit.port}")
            session = Session(study, agreement, out, at_least, True, dashboard, watch, say)
            _sessions(exchange, session, at_least, patience, longest, say)
        finally:
            exchange.close()


def _sessions(exchange: Exchange, session: Session, at_least: int, patience: float, longest: float, say: Say) -> None:
    """One session after the other, until there is a result."""
    out, agreement = session.out, session.agreement
    idle, last = 0, None
    while not (out / "result.json").exists():
        is_begun = (out / "study.json").exists()
        here = _wait_for(exchange, agreement, at_least, patience if is_begun else math.inf, out, say)
        say(f"{len(here)} of {len(agreement.sites)} sites are connected; at first each reads its records and compiles")
        post = Post(exchange, agreement.to_json(), patience, longest)
        try:
            session.hold(post)
        except Deserted:
            say("no site is there any more; waiting for them")
        finally:
            post.close()
        session = replace(session, forgives=False)
        status = read_status(out)
        place = (status.get("phase"), status.get("done"))
        idle = idle + 1 if place == last else 0
        last = place
        if idle >= MOST_SESSIONS:
            raise ValueError(f"{MOST_SESSIONS} sessions ended without a step; look into {out / 'log.jsonl'}")


def _wait_for(
    exchange: Exchange, agreement: Agreement, at_least: int, patience: float, out: Path, say: Say
) -> list[str]:
    """The sites that are connected, once they are enough; or all that are there when patience ends.

    A study that was not begun waits a little for the others too: those that are there may refuse it.
    """
    names, told = [entry[0] for entry in agreement.sites], None
    end, enough = time.monotonic() + patience, math.inf
    while True:
        here = exchange.connected()
        missing = [name for name in names if name not in here]
        if missing != told:
            told = missing
            _put_waiting(out, agreement, here)
            if missing:
                more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
                say(f"{len(here)} of {len(names)} sites are connected; waiting for {', '.join(missing[:5])}{more}")
        if len(here) >= at_least:
            enough = min(enough, time.monotonic() + (0 if math.isfinite(patience) else GATHERING))
        if here and (not missing or time.monotonic() >= min(end, enough)):
            return here
        time.sleep(POLL)


def _put_waiting(out: Path, agreement: Agreement, here: Sequence[str]) -> None:
    """The status of a study before its first step."""
    if read_status(out).get("phase", "waiting") != "waiting":
        return
    sites = {
        name: {"state": "here" if name in here else "away", "updates": 0, "spent": None, "epsilon": epsilon}
        | {"heard": None, "reason": ""}
        for name, epsilon, _, _ in agreement.sites
    }
    plain = {"study": agreement.plan.name, "time": now(), "phase": "waiting", "sites": sites}
    put(out / "status.json", json.dumps(plain, indent=1))


# --- tacit network withdraw ---------------------------------------------------------------------------------------


def withdraw(out: Path, site: str) -> None:
    """Ask that a site's factor be divided out of the posterior. It is, before the next step."""
    sites = read_status(out).get("sites", {})
    if site not in sites:
        raise ValueError(
            f"site {site!r} is not in the study of {out}; expected one of {', '.join(sites) or 'none yet'}"
        )
    if (out / "result.json").exists():
        raise ValueError(f"out={out} is finished, and its posterior was released; begin a new study without the site")
    if read_status(out).get("secure_sum"):
        raise ValueError(
            f"out={out} is a study of secure sums, in which nobody has a site's factor; end {site} instead"
        )
    (out / "withdraw").mkdir(exist_ok=True)
    (out / "withdraw" / site).touch()


def is_served(out: Path) -> bool:
    """Whether a coordinator works in a study's folder now."""
    try:
        with _alone(out / "serve.lock", ""):
            return False
    except (ValueError, OSError):
        return True


@contextlib.contextmanager
def _alone(path: Path, words: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(words) from None
        yield
