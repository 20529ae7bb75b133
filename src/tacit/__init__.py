"""Tacit learns Bayesian posteriors from data that may not be shared.

The public index. Names are imported when they are first used, so `import tacit` and `tacit --help` stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Access": "tacit.privacy.mechanism",
    "Calibration": "tacit.privacy.accounting",
    "DiagonalGaussian": "tacit.families",
    "Exact": "tacit.privacy.mechanism",
    "FullGaussian": "tacit.families",
    "LinearRegression": "tacit.models",
    "NaturalVI": "tacit.solvers",
    "Posterior": "tacit.posterior",
    "Released": "tacit.privacy.released",
    "Statement": "tacit.privacy.statement",
    "SubsampledGaussian": "tacit.privacy.mechanism",
    "Table": "tacit.data",
    "Target": "tacit.solvers",
    "VI": "tacit.solvers",
    "calibrate": "tacit.privacy.accounting",
    "conjugate": "tacit.solvers",
    "delta": "tacit.privacy.accounting",
    "epsilon": "tacit.privacy.accounting",
    "federate": "tacit.study",
    "fit": "tacit.fitting",
    "insecure_key": "tacit.privacy.randomness",
    "price": "tacit.privacy.released",
    "repeat": "tacit.privacy.released",
    "secure_key": "tacit.privacy.randomness",
}
_MODULES = ("data", "diagnostics", "estimators", "families", "models", "policy", "privacy", "solvers", "study")

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
    "models",
    "policy",
    "price",
    "privacy",
    "repeat",
    "secure_key",
    "solvers",
    "study",
]

if TYPE_CHECKING:
    from tacit import data, diagnostics, estimators, families, models, policy, privacy, solvers, study
    from tacit.data import Table
    from tacit.families import DiagonalGaussian, FullGaussian
    from tacit.fitting import fit
    from tacit.models import LinearRegression
    from tacit.posterior import Posterior
    from tacit.privacy import events
    from tacit.privacy.accounting import Calibration, calibrate, delta, epsilon
    from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
    from tacit.privacy.randomness import insecure_key, secure_key
    from tacit.privacy.released import Released, price, repeat
    from tacit.privacy.statement import Statement
    from tacit.solvers import VI, NaturalVI, Target, conjugate
    from tacit.study import federate


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "events":
        return importlib.import_module("tacit.privacy.events")
    if name in _MODULES:
        return importlib.import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
