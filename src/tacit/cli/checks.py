"""Checks and output that commands share."""

import json
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
