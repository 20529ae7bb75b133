"""One site or many, one posterior: plans, sites, coordinators and hosts."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.study.coordinator import StudyResult
    from tacit.study.front import federate, fit
    from tacit.study.plan import Plan
    from tacit.study.policy import Policy, Rule
    from tacit.study.settings import Settings
    from tacit.study.setup import Setup
    from tacit.study.sites import Site

_HOMES = {
    "StudyResult": "tacit.study.coordinator",
    "Site": "tacit.study.sites",
    "Plan": "tacit.study.plan",
    "Setup": "tacit.study.setup",
    "Policy": "tacit.study.policy",
    "Rule": "tacit.study.policy",
    "Settings": "tacit.study.settings",
    "federate": "tacit.study.front",
    "fit": "tacit.study.front",
}
__all__ = ["Plan", "Policy", "Rule", "Settings", "Setup", "Site", "StudyResult", "federate", "fit"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
