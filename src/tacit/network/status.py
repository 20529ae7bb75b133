"""The visible state of a running study."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.basics import durable
from tacit.basics.words import now
from tacit.network.remote import Remote
from tacit.study.setup import Setup


class Status:
    """`status.json` and `log.jsonl` of a study, with no data and only what was released."""

    def __init__(self, out: Path, name: str, setup: Setup) -> None:
        self.out, self.name, self.setup = out, name, setup
        self._said: dict[str, str] = {}

    def show(
        self, host: Remote, phase: str, done: int, total: int, away: Mapping[str, str], left: Mapping[str, str]
    ) -> None:
        """Write the current state of the study."""
        spent, updates, totals = host.spent(), host.updates(), host.totals()
        sites, left = {}, {**host.refusing, **left}
        for account in self.setup.accounts:
            reason = left.get(account.name) or away.get(account.name) or ""
            state = "left out" if account.name in left else "away" if account.name in away else "here"
            sites[account.name] = {
                "state": state,
                "updates": updates[account.name],
                "spent": spent[account.name] if math.isfinite(spent[account.name]) else None,
                "epsilon": account.epsilon,
                **dict(zip(("ledger_spent", "budget"), totals.get(account.name, (None, None)), strict=True)),
                "heard": host.heard.get(account.name),
                "reason": reason,
            }
            if self._said.get(account.name, "here") != state:
                self.log("site", site=account.name, state=state, reason=reason)
                self._said[account.name] = state
        self.log("step", phase=phase, done=done, of=total)
        secure = {} if self.setup.tolerance is None else {"secure_sum": True}
        self._write({"phase": phase, "done": done, "of": total, "sites": sites, **secure})

    def fail(self, reason: str) -> None:
        self.log("failed", reason=reason)
        self._write({"phase": "failed", "failed": reason, "sites": {}})

    def _write(self, plain: dict[str, Any]) -> None:
        durable.write(self.out / "status.json", json.dumps({"study": self.name, "time": now(), **plain}, indent=1))

    def log(self, event: str, **more: Any) -> None:
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps({"time": now(), "event": event, "study": self.name, **more}) + "\n")


def withdrawn(out: Path, names: Sequence[str]) -> Collection[int]:
    """Sites whose withdrawal was asked for."""
    folder = out / "withdraw"
    return [names.index(place.name) for place in folder.iterdir() if place.name in names] if folder.is_dir() else ()


def read_status(out: Path) -> dict[str, Any]:
    """The current state of a study; empty if it has not begun."""
    try:
        return json.loads((out / "status.json").read_text())
    except (OSError, ValueError):
        return {}
