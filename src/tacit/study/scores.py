"""Scores of a posterior on public records."""

from typing import Any

import numpy as np

from tacit.links import link_of
from tacit.posterior import diagnostics
from tacit.posterior.posterior import Posterior
from tacit.tables.table import Table


def scores(posterior: Posterior, test: Table) -> dict[str, float]:
    """Scores of a posterior on public records."""
    predicted, target = posterior.predict(test.features), np.asarray(test.target, float)
    if not link_of(posterior.link).target.has_two_classes:
        return {"root_mean_square_error": float(np.sqrt(np.mean((predicted - target) ** 2)))}
    return {
        "accuracy": diagnostics.accuracy(predicted, target),
        "log_likelihood": diagnostics.log_likelihood(predicted, target),
        "calibration_error": diagnostics.calibration_error(predicted, target),
    }


def judged(posterior: Posterior, test: Table) -> dict[str, Any]:
    """The rows of a calibration plot: predictions for public records beside their outcomes."""
    if not link_of(posterior.link).target.has_two_classes:
        return {}
    return {"calibration": diagnostics.calibration(posterior.predict(test.features), np.asarray(test.target, float))}
