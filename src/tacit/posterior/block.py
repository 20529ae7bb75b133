"""A Gaussian over a named vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


@dataclass(frozen=True, eq=False)
class Block:
    """A Gaussian over a named vector: its mean, and a covariance matrix or a vector of variances."""

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def standard_deviation(self) -> np.ndarray:
        return np.sqrt(self.covariance if self.covariance.ndim == 1 else np.diagonal(self.covariance))

    def sample(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        """Draws, (draws, size)."""
        noise = rng.standard_normal((draws, len(self.mean)))
        if self.covariance.ndim == 1:
            return self.mean + noise * np.sqrt(self.covariance)
        values, vectors = np.linalg.eigh(self.covariance)  # rounding can leave an eigenvalue below 0
        return self.mean + (noise * np.sqrt(np.maximum(values, 0))) @ vectors.T

    def to_plain(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"names": list(self.names), "mean": self.mean.tolist(), "covariance": self.covariance.tolist()}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "Block":
        """From what `to_plain` made; anything else raises a ValueError, KeyError, TypeError or AttributeError."""
        mean, covariance = (np.asarray(plain[part], float) for part in ("mean", "covariance"))
        size = len(plain["names"])
        if mean.shape != (size,) or covariance.shape not in ((size,), (size, size)):
            raise ValueError
        return cls(tuple(map(str, plain["names"])), mean, covariance)


def width_of(level: float) -> float:
    """Half the width of a central interval of probability `level`, in standard deviations."""
    if not 0 < level < 1:
        raise ValueError(f"level={level}; expected a probability between 0 and 1")
    return float(stats.norm.ppf(0.5 + level / 2))
