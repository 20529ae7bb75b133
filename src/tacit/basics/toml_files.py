"""Reading TOML files; a refusal is one sentence."""

import tomllib
from pathlib import Path
from typing import Any


def read_toml(path: Path, what: str, expected: str = "a TOML file") -> dict[str, Any]:
    """A TOML file as plain data. what: its name in a refusal; expected: what the refusal asks for."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{what}={path}: {error.strerror}; expected {expected}") from None
    except (ValueError, RecursionError) as error:  # ValueError: also bytes, not text, and integers of 5,000 digits
        raise ValueError(f"{what}={path} cannot be read ({_fault(error)}); expected {expected}") from None


def _fault(error: Exception) -> str:
    """Why a TOML file cannot be read, in one line."""
    if isinstance(error, tomllib.TOMLDecodeError):
        return " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
