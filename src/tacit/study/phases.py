"""The phases of a study, in order. Each is a function of what earlier phases released."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from tacit.basics.trees import Tree
from tacit.federated.site_effects import Effects
from tacit.study.setup import Setup
from tacit.tables.scaling import Scaling

Play = Callable[[str, Any, Scaling | None], Tree]  # (phase, algorithm, scaling) to the coordinator's last state


@dataclass(frozen=True)
class Conducted:
    """What the phases of a study released. found: by the last phase of inference; scores: of held-out records."""

    found: Any
    scaling: Scaling
    scores: Tree | None = None


def conduct(setup: Setup, play: Play) -> Conducted:
    """All phases of a study. play: runs the algorithm of one phase at all sites, which read records by `scaling`."""
    scaling = setup.public_scaling()
    known: Scaling | None = None  # what sites must be sent: public bounds they know
    if "ranges" in setup.phases:
        known = scaling = setup.ranged(play("ranges", setup.algorithm("ranges", 0), None))
    if "scaling" in setup.phases:
        scaling = setup.scaled(play("scaling", setup.algorithm("scaling", 0, scaling), known), scaling)
    found = _inferred(setup, play, "inference", scaling)
    if "residual" in setup.phases:
        mean = mean_of(found)
        state = play("residual", setup.algorithm("residual", 0, scaling, mean), scaling)
        scaling = setup.with_residual(scaling, state)
        found = _inferred(setup, play, "refinement", scaling, mean)
    if "evaluation" not in setup.phases:
        return Conducted(found, scaling)
    return Conducted(found, scaling, play("evaluation", setup.evaluation(found), scaling))


def _inferred(setup: Setup, play: Play, phase: str, scaling: Scaling, near: Any = None) -> Any:
    algorithm = setup.algorithm(phase, 0, scaling, near)
    return algorithm.posterior(play(phase, algorithm, scaling))


def mean_of(found: Any) -> Any:
    """The mean of what an algorithm found: (mean, covariance), a family, samples, or all sites' coefficients."""
    if isinstance(found, tuple):
        return found[0]
    if isinstance(found, Effects):  # of each site
        return found.means
    return found.mean if hasattr(found, "precision") else jnp.mean(found, axis=(0, 1))
