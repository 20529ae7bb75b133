"""Private regressions in scikit-learn's conventions."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.estimators.estimators import PrivateLinearRegression, PrivateLogisticRegression, PrivatePoissonRegression

_HOMES = {
    "PrivateLinearRegression": "tacit.estimators.estimators",
    "PrivateLogisticRegression": "tacit.estimators.estimators",
    "PrivatePoissonRegression": "tacit.estimators.estimators",
}
__all__ = ["PrivateLinearRegression", "PrivateLogisticRegression", "PrivatePoissonRegression"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
