"""The protocol of models: a prior over θ, the log-likelihood of one record, and a prediction."""

from typing import Any, Protocol

from jax import Array

from tacit.basics.trees import Tree


class Model(Protocol):
    """A prior, `log_likelihood(theta, record)` and `predict`. Solvers see the likelihood only, never the model."""

    @property
    def prior(self) -> Any:
        """A family (or a dict of families) over θ."""
        ...

    def log_likelihood(self, theta: Tree, record: Tree) -> Array:
        """log p(record | θ) of one record, a scalar. The solver and the mechanism sum over records."""
        ...

    def predict(self, posterior: Any, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the prediction at each row of `features`."""
        ...
