"""Tacit learns Bayesian posteriors from data that may not be shared.

The public index. Names are imported when they are first used, so `import tacit` and `tacit --help` stay quick.
"""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit import audit, data, estimators, families, links, models, posterior, privacy, solvers, study, tables
    from tacit.families import DiagonalGaussian, FullGaussian
    from tacit.models import LinearRegression
    from tacit.posterior import diagnostics
    from tacit.posterior.posterior import Posterior
    from tacit.privacy import events
    from tacit.privacy.accounting import Calibration, calibrate, delta, epsilon
    from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
    from tacit.privacy.randomness import insecure_key, secure_key
    from tacit.privacy.released import Released, price, repeat
    from tacit.privacy.statement import Statement
    from tacit.solvers import VI, NaturalVI, Target, conjugate
    from tacit.study import policy
    from tacit.study.front import federate, fit
    from tacit.tables.table import Table

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("DiagonalGaussian", "FullGaussian"), "tacit.families"),
    **dict.fromkeys(("Calibration", "calibrate", "delta", "epsilon"), "tacit.privacy.accounting"),
    **dict.fromkeys(("Access", "Exact", "SubsampledGaussian"), "tacit.privacy.mechanism"),
    **dict.fromkeys(("insecure_key", "secure_key"), "tacit.privacy.randomness"),
    **dict.fromkeys(("Released", "price", "repeat"), "tacit.privacy.released"),
    **dict.fromkeys(("VI", "NaturalVI", "Target", "conjugate"), "tacit.solvers"),
    "LinearRegression": "tacit.models",
    "Posterior": "tacit.posterior.posterior",
    "Statement": "tacit.privacy.statement",
    "Table": "tacit.tables.table",
    "federate": "tacit.study.front",
    "fit": "tacit.study.front",
    "diagnostics": "tacit.posterior.diagnostics",
    "events": "tacit.privacy.events",
    "policy": "tacit.study.policy",
    **{
        room: f"tacit.{room}"
        for room in (
            *("audit", "data", "estimators", "families", "links", "models"),
            *("posterior", "privacy", "solvers", "study", "tables"),
        )
    },
}
__all__ = [
    "VI",
    "Access",
    "Calibration",
    "DiagonalGaussian",
    "Exact",
    "FullGaussian",
    "LinearRegression",
    "NaturalVI",
    "Posterior",
    "Released",
    "Statement",
    "SubsampledGaussian",
    "Table",
    "Target",
    "__version__",
    "audit",
    "calibrate",
    "conjugate",
    "data",
    "delta",
    "diagnostics",
    "epsilon",
    "estimators",
    "events",
    "families",
    "federate",
    "fit",
    "insecure_key",
    "links",
    "models",
    "policy",
    "posterior",
    "price",
    "privacy",
    "repeat",
    "secure_key",
    "solvers",
    "study",
    "tables",
]
__getattr__, __dir__ = lazily(__name__, _HOMES)
