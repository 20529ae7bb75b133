"""Solvers: from a cavity and private records to a released posterior, `(key, Target, Access) -> Released[Family]`."""

from tacit.solvers.base import Solver, Target
from tacit.solvers.conjugate import conjugate

__all__ = ["Solver", "Target", "conjugate"]
