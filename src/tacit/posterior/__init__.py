"""Released posteriors, and measures of their quality."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.posterior.posterior import Block, Posterior

_HOMES = {
    "Block": "tacit.posterior.posterior",
    "Posterior": "tacit.posterior.posterior",
}
__all__ = ["Block", "Posterior"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
