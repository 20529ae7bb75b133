"""Models: a prior and the likelihood of one record. They contain no batches, no N and no privacy."""

from tacit.models.base import Model
from tacit.models.glm import GeneralisedLinear, LogisticRegression, PoissonRegression, ProbitRegression
from tacit.models.linear import LinearRegression
from tacit.models.mixture import GaussianClusters, GaussianMixture
from tacit.models.neural import NeuralNetwork
from tacit.models.numpyro import NumPyroModel, from_numpyro
from tacit.models.softmax import SoftmaxRegression

__all__ = [
    "GaussianClusters",
    "GaussianMixture",
    "GeneralisedLinear",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "NeuralNetwork",
    "NumPyroModel",
    "PoissonRegression",
    "ProbitRegression",
    "SoftmaxRegression",
    "from_numpyro",
]
