"""What a model is: a prior over θ, the log-likelihood of one record, and a prediction."""

from typing import Any, Protocol

from jax import Array

Tree = Any


class Model(Protocol):
    """A prior, `log_likelihood(theta, record)` and `predict`. Solvers see the likelihood only, never the model."""

    @property
    def prior(self) -> Any:
        """A family (or a dict of families) over θ."""
        ...

    def log_likelihood(self, theta: Tree, record: Tree) -> Array:
        """log p(record | θ), a scalar. One record: sums over records are the solver's and the mechanism's business."""
        ...

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the prediction at each row of `features`."""
        ...
