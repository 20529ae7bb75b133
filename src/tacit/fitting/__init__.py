"""One site in one call: the plan, the program and the policy of a fit."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.fitting.front import fit

_HOMES = {
    "fit": "tacit.fitting.front",
}
__all__ = ["fit"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
