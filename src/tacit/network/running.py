"""The commands of a study between machines: make kits, serve, join, look, withdraw."""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.config import SiteFile, Study, example_site, read_site, read_study
from tacit.engines import nvflare
from tacit.network.agreement import Agreement
from tacit.network.coordinator import SERVED, now
from tacit.network.station import SITE_FILE

CONTROLLER, EXECUTOR = "tacit.network.coordinator.StudyController", "tacit.network.station.StationExecutor"
POLL = 0.5  # seconds between looks
MOST_IN_VAIN = 3  # sittings that are ended for a site to be seated again, while it makes no update
MOST_SITTINGS = 5  # that end in a row without a step, after which a study is given up
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
    odd = [name for name in (*sites, *renew) if name not in (*known, "coordinator", "operator")]
    if odd:
        raise ValueError(f"site {odd[0]!r} is not in the study; expected some of {', '.join(known[:10])}")
    place = folder / "network.json"
    noted: dict[str, Any] = {}
    if place.exists():
        noted = json.loads(place.read_text())
        if (noted["host"], noted["port"]) != (host, port):
            raise ValueError(
                f"network={folder} is for {noted['host']}:{noted['port']}; expected the same address, or a new folder"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"network={folder} is not empty and not a network's; take a new folder")
    chosen = list(dict.fromkeys([*noted.get("sites", []), *(sites or known)]))
    texts = {name: example_site(study, name) for name in chosen}
    project = noted.get("project") or (re.sub("[^a-z0-9]+", "_", study.plan.name.lower()).strip("_") or "study")
    nvflare.check(chosen, host)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    nvflare.provision(folder, project, chosen, host, port, renew)
    place.write_text(json.dumps({"project": project, "host": host, "port": port, "sites": chosen}, indent=1) + "\n")
    made = []
    for name in chosen:
        own = folder / "sites" / name
        if not (own / "site.toml").exists():
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
    kit = _checked_kit(file)
    file.check()  # before anybody can ask, so that no answer tells of it
    state = file.state_folder
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    with _alone(state / "join.lock", f"site {file.settings.name} is joined already; end that process first"):
        for old in kit.iterdir():  # of earlier sittings
            if JOB.match(old.name):
                shutil.rmtree(old)
        log, flare = state / "audit.jsonl", state / "flare.log"
        seen, heard, trouble = (log.stat().st_size if log.exists() else 0), 0, ""
        say(f"{file.settings.name}: joining; records stay here, the ledger is {state / 'ledger.sqlite'}")
        while not is_over():
            nvflare.harden(kit, [EXECUTOR], state)
            own = {SITE_FILE: str(path.resolve()), **compiled(state)}
            heard = flare.stat().st_size if flare.exists() else 0
            process = nvflare.start(kit, flare, own)
            try:
                while process.poll() is None and not is_over():
                    seen = _tell(log, seen, say)
                    heard, found = _trouble(flare, heard, trouble)
                    if found and found != trouble:
                        say(f"{file.settings.name}: {found}")
                    trouble = found
                    time.sleep(POLL)
            finally:
                nvflare.stop(process)
                seen = _tell(log, seen, say)  # also what came last, before a signal
            if not is_over():
                say(f"{file.settings.name}: the connection ended; trying again (see {state / 'flare.log'})")
                time.sleep(10 * POLL)


JOB = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")  # FLARE's folder of a job
TROUBLES = (
    ("CERTIFICATE_VERIFY_FAILED|CertificateError", "the coordinator's certificate is not of this kit's authority"),
    (
        "ALERT|claimed endpoint",
        "the coordinator does not accept this site's certificate: expired, unknown or another's",
    ),
    ("Cannot connect to host|Connection refused", "the coordinator cannot be reached; trying on"),
    ("Successfully registered|joined", ""),
)


def _trouble(log: Path, heard: int, before: str) -> tuple[int, str]:
    """(how far FLARE's log was read, what is wrong with the connection, in words)."""
    if not log.exists() or log.stat().st_size <= heard:
        return heard, before
    with log.open("rb") as file:
        file.seek(heard)
        data = file.read()
    for line in data.decode(errors="replace").splitlines():
        before = next((words for pattern, words in TROUBLES if re.search(pattern, line)), before)
    return heard + len(data), before


def _checked_kit(file: SiteFile) -> Path:
    kit, name = file.kit_folder, file.settings.name
    place = kit / "startup" / "fed_client.json"
    try:
        own = json.loads(place.read_text())["client"]["fqsn"]
    except (OSError, ValueError, KeyError):
        raise ValueError(f"kit={kit} is no start-up kit of a site; expected one of 'tacit network init'") from None
    if own != name:
        raise ValueError(f"kit={kit} is of site {own!r}; expected one of {name!r}, as the site file says")
    nvflare.check_certificate(kit, name)
    return kit


def _tell(log: Path, seen: int, say: Say) -> int:
    """Say what is new in an audit log; how far it was read."""
    if not log.exists() or log.stat().st_size <= seen:
        return seen
    with log.open("rb") as file:
        file.seek(seen)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            words = f": {entry['words']}" if entry["words"] else ""
            say(f"{entry['time'][11:19]} {entry['kind']} round {entry['round']} of {entry['study']}{words}")
    return seen + len(whole)


def compiled(folder: Path) -> dict[str, str]:
    """Keep compiled programs in a folder of our own, so that a process that begins again is quick."""
    return {
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder.resolve() / "compiled")),
        "JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }


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
    """Coordinate a study until it is finished, in one sitting or in many. The same call goes on from where it was.

    at_least: how many sites must be connected to begin; all by default. patience: seconds for which a sitting or a
    round waits for a site that is away; longest: for one that is at work. watch: is told of the status as it changes.
    dashboard: also keep `sight.json`, with the posterior as it moves.
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
        served = out / "served.json"
        more = {"patience": patience, "longest": longest, "dashboard": dashboard}
        served.write_text(json.dumps({"study": str(path.resolve()), "out": str(out.resolve()), **more}) + "\n")
        (out / "forgive").touch()
        (out / "sight.json").unlink(missing_ok=True)  # of an earlier command
        if "failed" in read_status(out):
            (out / "status.json").unlink()
        flare = out.resolve() / "flare"
        for old in ("jobs", "snapshots", "job"):
            shutil.rmtree(flare / old, ignore_errors=True)
        flare.mkdir(exist_ok=True)
        kit = network / "coordinator"
        nvflare.check_certificate(kit, noted["host"])
        nvflare.check_certificate(network / "operator", nvflare.OPERATOR)
        nvflare.harden(kit, [CONTROLLER], flare)
        process = nvflare.start(kit, out / "flare.log", {SERVED: str(served.resolve()), **compiled(flare)})
        try:
            say(f"listening on {noted['host']}:{noted['port']}")
            operator = nvflare.Operator(network / "operator")
            try:
                _sittings(operator, process, agreement, out, at_least, patience, say, watch)
            finally:
                operator.close()
        finally:
            nvflare.stop(process)


def _sittings(
    operator: nvflare.Operator,
    process: subprocess.Popen[bytes],
    agreement: Agreement,
    out: Path,
    at_least: int,
    patience: float,
    say: Say,
    watch: Callable[[Mapping[str, Any]], None],
) -> None:
    """One sitting after the other, until there is a result."""
    idle, last = 0, None
    vain: Counter[str] = Counter()  # sittings that ended for a site, since it last made an update
    updates: dict[str, int] = {}
    while not (out / "result.json").exists():
        is_begun = (out / "study.json").exists()
        here = _wait_for(operator, process, agreement, at_least, patience if is_begun else math.inf, out, say)
        for old in ("recess", "silent.json"):
            (out / old).unlink(missing_ok=True)
        job = nvflare.write_job(out / "flare" / "job", "study", here, CONTROLLER, EXECUTOR, agreement.to_json())
        begun = operator.submit(job)
        say(f"{len(here)} of {len(agreement.sites)} sites take part; at first each reads its records and compiles")
        hopeless = {name for name, count in vain.items() if count >= MOST_IN_VAIN}
        ended_for = _watch(operator, process, begun, here, hopeless, out, watch)
        status = read_status(out)
        for name, site in status.get("sites", {}).items():
            if site["updates"] > updates.get(name, 0):
                vain[name], updates[name] = 0, site["updates"]
        vain.update(ended_for)
        if status.get("failed"):
            raise ValueError(f"the study cannot go on: {status['failed']}")
        place = (status.get("phase"), status.get("done"))
        idle = idle + 1 if place == last else 0
        last = place
        if idle >= MOST_SITTINGS:
            raise ValueError(f"{MOST_SITTINGS} sittings ended without a step; look into {out / 'flare.log'}")


def _wait_for(
    operator: nvflare.Operator,
    process: subprocess.Popen[bytes],
    agreement: Agreement,
    at_least: int,
    patience: float,
    out: Path,
    say: Say,
) -> list[str]:
    """The sites that are connected, once they are enough; or all that are there when patience ends."""
    names, told = [entry[0] for entry in agreement.sites], None
    end = time.monotonic() + patience
    while True:
        if process.poll() is not None:
            raise ValueError("the coordinator's process ended; is its port in use? Look into flare.log")
        here = [name for name, age in operator.connected().items() if name in names and age < 5 * nvflare.HEARTBEAT]
        missing = [name for name in names if name not in here]
        if missing != told:
            told = missing
            _put_waiting(out, agreement, here)
            if missing:
                more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
                say(f"{len(here)} of {len(names)} sites are connected; waiting for {', '.join(missing[:5])}{more}")
        if len(here) >= at_least or (here and time.monotonic() > end):
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
    nvflare.put(out / "status.json", json.dumps(plain, indent=1))


def _watch(
    operator: nvflare.Operator,
    process: subprocess.Popen[bytes],
    job: str,
    here: Sequence[str],
    hopeless: Collection[str],
    out: Path,
    watch: Callable[[Mapping[str, Any]], None],
) -> set[str]:
    """Until the sitting is over. It is ended for another one when a site that is away can be reached again: for whom.

    hopeless: for whom none is ended any more.
    """
    ended_for: set[str] = set()
    earlier = read_status(out).get("time")  # of another sitting: it does not say who is away from this one
    seen, since = None, time.monotonic()
    while not operator.is_over(job):
        if process.poll() is not None:
            raise ValueError("the coordinator's process ended; give the same command again to go on")
        status = read_status(out)
        if status.get("time") != seen:
            seen = status.get("time")
            watch(status)
        is_settled = status.get("time") != earlier and time.monotonic() - since > 3 * nvflare.HEARTBEAT
        silent = (
            _read_silent(out) if time.monotonic() - since > 10 * nvflare.HEARTBEAT else []
        )  # it takes time to begin
        if (is_settled or silent) and not ended_for:
            ended_for = _back(operator, status, here, silent) - set(hopeless)
            if ended_for:
                (out / "recess").touch()
        time.sleep(POLL)
    watch(read_status(out))
    return ended_for


def _read_silent(out: Path) -> list[str]:
    try:
        return json.loads((out / "silent.json").read_text())
    except (OSError, ValueError):
        return []


def _back(
    operator: nvflare.Operator, status: Mapping[str, Any], here: Sequence[str], silent: Sequence[str]
) -> set[str]:
    """Sites that have no part in this sitting, or lost it, and are connected."""
    sites = status.get("sites", {})
    if status.get("phase") == "waiting":
        return set()
    left = {name for name, site in sites.items() if site["state"] == "left out"}
    lost = {*silent, *(name for name, site in sites.items() if site["state"] == "away")}
    fresh = {name for name, age in operator.connected().items() if age < 3 * nvflare.HEARTBEAT}
    return ((fresh - set(here)) | (fresh & lost)) & (set(sites) - left)


# --- tacit network status, withdraw -------------------------------------------------------------------------------


def read_status(out: Path) -> dict[str, Any]:
    """Where a study is; empty if it was not begun."""
    try:
        return json.loads((out / "status.json").read_text())
    except (OSError, ValueError):
        return {}


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


@contextlib.contextmanager
def _alone(path: Path, words: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(words) from None
        yield
