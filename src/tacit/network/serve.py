"""`tacit serve`: coordinate a study until it is finished."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.basics import durable
from tacit.basics.words import now
from tacit.engines.coordinator import Deserted
from tacit.files.study_file import read_study
from tacit.network.agreement import Agreement
from tacit.network.certificates import COORDINATOR, Kit
from tacit.network.channel import Exchange, Post
from tacit.network.coordinator_session import CoordinatorSession
from tacit.network.join import Say
from tacit.network.processes import POLL, alone, keep_compiled
from tacit.network.provision import read_network
from tacit.network.status import read_status

GATHERING = 10.0  # seconds for which a study that could begin waits for further sites
MOST_SESSIONS = 5  # in a row without a step, after which a study is given up


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
    """Coordinate a study until it is finished, in one session or many. The same call resumes it.

    at_least: how many sites must be connected, and accept the study, to begin; all by default. patience: seconds for
    which a session or a round waits for a site that is away; longest: for one that is at work. watch: called with the
    status when it changes. dashboard: also keep `snapshot.json`, with the current posterior.
    """
    study, noted = read_study(path), read_network(network)
    agreement = Agreement.of(study)
    names = [site.name for site in agreement.sites]
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
    with alone(out / "serve.lock", f"another coordinator works in {out}; end that process first"):
        (out / "snapshot.json").unlink(missing_ok=True)  # of an earlier command
        if "failed" in read_status(out):
            (out / "status.json").unlink()
        kit = Kit.read(network / COORDINATOR)
        keep_compiled(out)
        exchange = Exchange(kit, names, out / "flare.log")
        try:
            say(f"listening on {kit.host}:{kit.port}")
            session = CoordinatorSession(study, agreement, out, at_least, True, dashboard, watch, say)
            _sessions(exchange, session, at_least, patience, longest, say)
        finally:
            exchange.close()


def _sessions(
    exchange: Exchange, session: CoordinatorSession, at_least: int, patience: float, longest: float, say: Say
) -> None:
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
            say("no site is connected any more; waiting for sites")
        finally:
            post.close()
        session = replace(session, forgives=False)
        status = read_status(out)
        place = (status.get("phase"), status.get("done"))
        idle = idle + 1 if place == last else 0
        last = place
        if idle >= MOST_SESSIONS:
            raise ValueError(f"{MOST_SESSIONS} sessions ended without a step; see {out / 'log.jsonl'}")


def _wait_for(
    exchange: Exchange, agreement: Agreement, at_least: int, patience: float, out: Path, say: Say
) -> list[str]:
    """The connected sites, once there are enough of them, or when patience ends.

    A study that has not begun waits a little for further sites, because some may refuse it.
    """
    names, told = [site.name for site in agreement.sites], None
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
        site.name: {"state": "here" if site.name in here else "away", "updates": 0, "spent": None}
        | {"epsilon": site.epsilon, "heard": None, "reason": ""}
        for site in agreement.sites
    }
    plain = {"study": agreement.plan.name, "time": now(), "phase": "waiting", "sites": sites}
    durable.write(out / "status.json", json.dumps(plain, indent=1))


def withdraw(out: Path, site: str) -> None:
    """Have a site's factor divided out of the posterior before the next step."""
    sites = read_status(out).get("sites", {})
    if site not in sites:
        raise ValueError(
            f"site {site!r} is not in the study of {out}; expected one of {', '.join(sites) or 'none yet'}"
        )
    if (out / "result.json").exists():
        raise ValueError(f"out={out} is finished, and its posterior was released; begin a new study without the site")
    if read_status(out).get("secure_sum"):
        raise ValueError(f"out={out} is a study with secure sums, so nobody has a site's factor; stop {site} instead")
    (out / "withdraw").mkdir(exist_ok=True)
    (out / "withdraw" / site).touch()


def is_served(out: Path) -> bool:
    """Whether a coordinator works in a study's folder now."""
    try:
        with alone(out / "serve.lock", ""):
            return False
    except (ValueError, OSError):
        return True
