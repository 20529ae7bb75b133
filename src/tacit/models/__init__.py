"""Models: a prior and the likelihood of one record. No batches, no N and no privacy in them."""

from tacit.models.base import Model
from tacit.models.linear import LinearRegression

__all__ = ["LinearRegression", "Model"]
