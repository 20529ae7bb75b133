"""Many sites, one posterior: plans, sites, coordinators and hosts."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.study.coordinator import StudyResult
    from tacit.study.front import federate
    from tacit.study.plan import Plan
    from tacit.study.setup import Setup
    from tacit.study.sites import Site

_HOMES = {
    "StudyResult": "tacit.study.coordinator",
    "Site": "tacit.study.sites",
    "Plan": "tacit.study.plan",
    "Setup": "tacit.study.setup",
    "federate": "tacit.study.front",
}
__all__ = ["Plan", "Setup", "Site", "StudyResult", "federate"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
