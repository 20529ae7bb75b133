"""A site that is away is seated again when it is back; one that never answers does not keep the others."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tacit.engines import nvflare
from tacit.network import running


class Sittings:
    """FLARE's part. North answers every round; south is connected, and answers if takes(sitting, its first step)."""

    def __init__(self, out: Path, rounds: int, takes: Any) -> None:
        self.out, self.rounds, self.takes = out, rounds, takes
        self.sittings = self.done = self.updates = 0

    def connected(self) -> dict[str, float]:
        return {"north": 0.0, "south": 0.0}

    def submit(self, job: Path) -> str:
        self.sittings += 1
        self.looks = 0
        return "job"

    def is_over(self, job: str) -> bool:
        self.looks += 1
        if (self.out / "recess").exists():
            return True
        if self.looks % 20 == 0:  # long enough that who is back can be seen
            self.done += 1
            answers = self.takes(self.sittings, self.looks == 20)
            self.updates += answers
            south = {"state": "here" if answers else "away", "updates": self.updates}
            sites = {"north": {"state": "here", "updates": self.done}, "south": south}
            plain = {"time": str(self.done), "phase": "inference", "done": self.done, "sites": sites}
            nvflare.put(self.out / "status.json", json.dumps(plain))
        if self.done >= self.rounds:
            (self.out / "result.json").touch()
        return self.done >= self.rounds


@pytest.mark.parametrize(
    ("takes", "sittings"),
    [
        (lambda sitting, first: True, 1),
        (lambda sitting, first: False, 1 + running.MOST_IN_VAIN),
        (lambda sitting, first: sitting > 1, 2),
        (lambda sitting, first: sitting == 2 and first, 2 + running.MOST_IN_VAIN),  # it took part between
    ],
    ids=["always", "never", "later", "at times"],
)
def test_sittings_end_for_a_site_a_few_times_in_vain_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: Any, sittings: int
) -> None:
    monkeypatch.setattr(running, "POLL", 0.001)
    monkeypatch.setattr(nvflare, "HEARTBEAT", 0.001)
    monkeypatch.setattr(nvflare, "write_job", lambda *rest: tmp_path)
    operator: Any = Sittings(tmp_path, 30, takes)
    agreement: Any = SimpleNamespace(
        sites=[("north", 1, 1, 1), ("south", 1, 1, 1)], to_json=lambda: b"", plan=SimpleNamespace(name="")
    )
    process: Any = SimpleNamespace(poll=lambda: None)
    running._sittings(operator, process, agreement, tmp_path, 2, 1.0, lambda words: None, lambda status: None)
    assert operator.sittings == sittings
