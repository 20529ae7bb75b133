"""Audits: attacks on tacit's own privacy claims, and lower bounds on ε."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.audit.attacks import Attack, attribute, membership
    from tacit.audit.studies import of_fit, of_study
    from tacit.audit.subjects import of_mechanism

_HOMES = {
    "Attack": "tacit.audit.attacks",
    "attribute": "tacit.audit.attacks",
    "membership": "tacit.audit.attacks",
    "of_fit": "tacit.audit.studies",
    "of_mechanism": "tacit.audit.subjects",
    "of_study": "tacit.audit.studies",
}
__all__ = ["Attack", "attribute", "membership", "of_fit", "of_mechanism", "of_study"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
