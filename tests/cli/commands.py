"""What tests of commands share: a command as a user starts it, what it prints, and how it refuses."""

import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.privacy.accountants import ACCOUNTANTS
from tacit.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated

SCRIPT = Path(sysconfig.get_path("scripts")) / "tacit"
PATIENCE = 600  # seconds for a process: it takes few, and a machine may be busy
HEADER = "noise_multiplier,sampling_rate,steps\n"
PLAN = ("account", "--noise-multiplier", "5", "--steps", "10", "--delta", "1e-4")
LEVELS = ((5.0, 0.02, 100), (3.0, 1.0, 2), (8.0, 0.05, 50), (5.0, 0.02, 20))
SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}

Run = Callable[..., tuple[int, str, str]]


def shell(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it: a process of its own."""
    words = [str(word) for word in command]
    env = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(words, capture_output=True, encoding="utf-8", env=env, timeout=PATIENCE)


def one_object(text: str) -> dict[str, Any]:
    """The one JSON object, on one line, that is all of `text`."""
    assert text.count("\n") == 1
    assert text.endswith("\n")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def assert_refused(outcome: tuple[int, str, str], *named: str) -> str:
    """Exit code 2, nothing on standard output, and one sentence that holds every word of `named`; the sentence."""
    code, out, err = outcome
    assert code == 2
    assert out == ""
    assert err.startswith("tacit: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    sentence = err.removeprefix("tacit: ").rstrip("\n")
    is_usage = re.search(r"See 'tacit[a-z ]* --help'\.$", sentence)  # the library's own words may add a suggestion
    if not is_usage:
        assert not re.search(r"[.!?]\s", sentence), f"more than one sentence: {sentence}"
    for word in named:
        assert word in sentence
    return sentence


def write_schedule(folder: Path, content: str | bytes) -> Path:
    path = folder / "schedule.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def event_of(levels: tuple[tuple[float, float, int], ...]) -> Event:
    """The levels as an event, written out here so that it does not share code with the reader of files."""
    sampled = [(Gaussian(s) if q == 1 else PoissonSampled(q, Gaussian(s)), n) for s, q, n in levels]
    return Composed(tuple(Repeated(mechanism, n) for mechanism, n in sampled))


# What refusals of prices expect.
NOISE, RATE = "a finite number above 0", "a number above 0 and at most 1"
STEPS, DELTA = "a whole number of at least 1", "a number above 0 and below 1"
ACCOUNTED = f"one of {', '.join(ACCOUNTANTS)}"
ADJACENT = "'add-remove' or 'replace-one'"


def refused(name: str, value: Any, expected: str) -> Any:
    """The parameters of a test that an option's value is refused."""
    return pytest.param(name, value, expected, id=f"{name}={value}")
