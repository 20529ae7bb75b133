"""Attackers of a posterior succeed without privacy, and are held to the limit with it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import audit
from tacit.audit import attacks
from tacit.privacy import accounting

DELTA = 1e-5


@pytest.mark.slow
def test_attackers_of_a_posterior_succeed_without_privacy_and_are_held_to_the_limit_with_it():
    # 500 runs of each world: at most 2.3 % is the standard error of a rate, and four of them are allowed.
    small = {"runs": 1000, "records": 40, "columns": 6, "seed": 1}
    free = attacks.membership(math.inf, **small)
    assert free.area > 0.75
    assert free.limit(0.1) == 1
    for held in (attacks.membership(1.0, **small), attacks.attribute(1.0, **small)):
        assert held.area < 0.65
        assert held.hits(0.1) <= held.limit(0.1) + 4 * 0.023


def make_believe(name: str) -> Any:
    def attack(epsilon: float, *, delta: float, runs: int, seed: int) -> attacks.Attack:
        scores = np.random.default_rng(seed).normal(size=(2, runs // 2)) + np.array([[0.0], [1.0]])
        event = None if math.isinf(epsilon) else accounting.calibrate(epsilon, delta).event
        return attacks.Attack(*scores, event, "add-remove")

    attack.__name__ = name
    return attack


def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    code = "\n".join(blocks)
    assert "RUNS = 4000" in code
    monkeypatch.chdir(tmp_path)
    for name in ("membership", "attribute"):  # themselves under test above
        monkeypatch.setattr(audit, name, make_believe(name))
    exec(compile(code, "docs/audit.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.count("area") == 6
    assert (tmp_path / "attacks.png").is_file()
