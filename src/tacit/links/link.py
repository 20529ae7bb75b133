"""The declaration of a kind of regression: `Link`. All lists of links, here and elsewhere, are read from `LINKS`.

Importing this module loads neither NumPy nor JAX, so that the command line lists its links at once: functions import
what they need, and `Link.model` is imported at its first use.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Array = Any  # NumPy's, unless a docstring says JAX


@dataclass(frozen=True)
class TargetKind:
    """The values that a regression's target may hold.

    name: the word for them. classes: the number of public labels that its values stand for; 0 for a numeric target,
    None for any number of labels. expected: the words of a refusal.
    """

    name: Literal["label", "labels", "number", "count"]
    classes: int | None
    expected: str

    @property
    def is_number(self) -> bool:
        """Whether the target is numeric, with bounds in place of classes."""
        return self.classes == 0

    @property
    def has_two_classes(self) -> bool:
        """Whether the target is 0 or 1."""
        return self.classes == 2

    def admits(self, y: Array, classes: int | None = None) -> bool:
        """Whether all values are possible. classes: the number of public labels, if the kind leaves it open."""
        import numpy as np

        match self.name:
            case "label":
                return bool(np.all((y == 0) | (y == 1)))
            case "labels":
                return bool(np.all((y >= 0) & (y < (classes or 0)) & (y == np.round(y))))
            case "count":
                return bool(np.all((y >= 0) & (y == np.round(y))))
        return True


LABEL = TargetKind("label", 2, "0 or 1")
LABELS = TargetKind("labels", None, "0, 1, ..., one for each class")
NUMBER = TargetKind("number", 0, "numbers")
COUNT = TargetKind("count", 0, "whole numbers from 0 on")


@dataclass(frozen=True)
class Simulator:
    """How simulated targets are drawn.

    draw: `(z, balance, rng) -> (target, intercept, unit)` at linear predictors z of mean 0. The intercept is added to z
    to reach the requested balance; unit is the size of one unit of z on the target's scale. bounds: `(signal, balance,
    reach) -> (low, high)`, public bounds of a numeric target. learned: the range of standard deviations of z that
    policies are learned on; planned: the two that studies are planned with. learned_balances and planned_balances:
    the same for the balance. seed: of the tasks that policies are learned on.
    """

    draw: Callable[[Array, float, Any], tuple[Array, float, float]]
    learned: tuple[float, float]
    planned: tuple[float, float]
    learned_balances: tuple[float, float] = (0.15, 0.6)
    planned_balances: tuple[float, float] = (0.25, 0.5)
    bounds: Callable[[float, float, float], tuple[float, float]] | None = None
    seed: int = 0


@dataclass(frozen=True)
class Link:
    """Everything that depends on the kind of regression.

    model_path: a class of `tacit.models`, or its location as "module:Class". target: the values of the target.
    inverse: maps the linear predictor z to the mean of the target; link: maps it back. expected: the mean of `inverse`
    over z ~ N(mean, sd²), as a function of (mean, sd); by quadrature if left out. outcome_sd: the standard deviation of
    one new outcome, from its expectation, the sd of z and the noise sd of a linear regression.

    slope and curvature: the size of a record's f' and f'' in z, in the target's own unit if it has one (its standard
    deviation, or the root of its mean). least_clip and most_clip: the range of the gradients' clip in those units and
    in typical lengths of x; a small clip adds little noise, a large one little bias. caution: the share by which
    curvature may grow during the fit. start: the intercept's start from the target's released mean (JAX); the units of
    slope and curvature then follow that mean.

    equation: the model as a sentence with the placeholder {target}. effect: the meaning of a coefficient, for an axis.
    simulator: None if no policy is learned for it. written: the name in a sentence, if that differs (a person's).
    """

    name: str
    model_path: str | type
    target: TargetKind
    inverse: Callable[[Array], Array]
    link: Callable[[Array], Array]
    slope: float
    curvature: float
    least_clip: float
    most_clip: float
    equation: str
    effect: str
    expected: Callable[[Array, Array], Array] | None = None
    outcome_sd: Callable[[Array, Array, float], Array] | None = None
    simulator: Simulator | None = None
    caution: float = 0.0
    start: Callable[[Any], Any] | None = None
    written: str = ""

    @property
    def words(self) -> str:
        """The kind of regression in a sentence."""
        return f"{self.written or self.name} regression"

    @property
    def model(self) -> Any:
        """The model's class."""
        if isinstance(self.model_path, type):
            return self.model_path
        module, _, name = self.model_path.partition(":")
        return getattr(importlib.import_module(module), name)

    @property
    def is_multiclass(self) -> bool:
        """Whether each class but the first has a linear predictor; curvature is then not released separately."""
        return self.target is LABELS

    @property
    def learns_scale(self) -> bool:
        """Whether the target is standardised like the features, and the noise around its mean learned."""
        return self.target is NUMBER

    def mean_of(self, mean: Array, sd: Array) -> Array:
        """The expected target for z ~ N(mean, sd²)."""
        import numpy as np

        if self.expected is not None:
            return self.expected(mean, sd)
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        z = np.asarray(mean)[..., None] + np.asarray(sd)[..., None] * nodes
        return self.inverse(z) @ (weights / math.sqrt(2 * math.pi))


LINKS: dict[str, Link] = {}
INTERCEPT_SD = 5.0  # of the prior, at least


def declare(link: Link) -> Link:
    """Add a link to `LINKS`; from then on it works everywhere."""
    if link.name in LINKS:
        raise ValueError(f"link={link.name!r} is declared already; expected a name of its own")
    LINKS[link.name] = link
    return link


@contextmanager
def declared(link: Link) -> Iterator[Link]:
    """Declare a link for the length of a `with` block, such as in a test."""
    declare(link)
    try:
        yield link
    finally:
        LINKS.pop(link.name, None)


def link_of(name: str) -> Link:
    """The link of this name; an unknown name is refused with the list of links."""
    if name not in LINKS:
        raise ValueError(f"model={name!r}; expected one of {', '.join(LINKS)}")
    return LINKS[name]


def names(*, learned: bool = False) -> tuple[str, ...]:
    """Names of all links, or of those that policies are learned for."""
    return tuple(link.name for link in LINKS.values() if link.simulator is not None or not learned)
