"""Solvers: from a cavity and private records to a released posterior, `(key, Target, Access) -> Released[Family]`."""

from tacit.solvers.adaptive import Adaptive
from tacit.solvers.base import Solver, Target
from tacit.solvers.conjugate import conjugate
from tacit.solvers.ep import EP, SEP
from tacit.solvers.natural import NaturalStep, NaturalVI
from tacit.solvers.sgld import SGLD
from tacit.solvers.vi import VI

__all__ = ["EP", "SEP", "SGLD", "VI", "Adaptive", "NaturalStep", "NaturalVI", "Solver", "Target", "conjugate"]
