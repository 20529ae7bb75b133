"""Checks and output that commands share."""

import json
import os
from pathlib import Path
from typing import Any

import typer

from tacit.basics.plain import finite


def check_level(level: float) -> None:
    """Refuse a level that is not a probability between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level={level}; expected a probability between 0 and 1")


def check_positive(**given: float | None) -> None:
    """Refuse a given number that is not finite and above 0."""
    for name, number in given.items():
        if number is not None and not 0 < number < float("inf"):
            raise ValueError(f"{name}={number}; expected a finite number above 0")


def compute_in_one_thread() -> None:
    """Let XLA compute in one thread, unless the environment says otherwise. Call it before the first computation.

    Commands that run thousands of studies side by side need it: on processors, XLA (jaxlib 0.10.2) with two threads or
    more was seen to wait for ever in such a program, with all of its threads idle.
    """
    os.environ.setdefault("NPROC", "1")


def make_folder(out: Path) -> None:
    """Refuse a folder that cannot be written to before any budget is spent."""
    import tempfile

    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None


def show(result: dict[str, Any], as_json: bool, words: str) -> None:
    """Print a result as JSON or in words."""
    if as_json:
        result = {k: finite(v) if isinstance(v, float) else v for k, v in result.items()}
    typer.echo(json.dumps(result) if as_json else words)
