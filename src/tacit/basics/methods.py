"""Methods of inference, declared once: the names that users choose them by and their descriptions in reports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """words: its description in reports. in_fit: whether `fit` takes this name; in_studies: whether studies do."""

    words: str
    in_fit: bool = True
    in_studies: bool = True


METHODS = {
    # For regressions, `fit` runs this one under the name "vi".
    "natural": Method("natural-gradient variational inference with curvature released seldom", in_fit=False),
    "vi": Method("variational inference by noised gradients"),
    "ep": Method("expectation propagation"),
    "sep": Method("stochastic expectation propagation"),
    "sgld": Method("stochastic-gradient Langevin dynamics", in_studies=False),
}


def fit_methods() -> tuple[str, ...]:
    """Names of the methods that `fit` offers."""
    return tuple(name for name, method in METHODS.items() if method.in_fit)


def study_methods() -> tuple[str, ...]:
    """Names of the methods that studies offer."""
    return tuple(name for name, method in METHODS.items() if method.in_studies)
