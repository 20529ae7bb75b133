"""The part of a posterior that differs between sites: each site's coefficients, and the spread between sites."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.posterior.block import Block, width_of


@dataclass(frozen=True, eq=False)
class BetweenSites:
    """Site effects in the units of the data.

    columns: whose coefficients differ between sites. sites: the coefficients of each site, by name; deviations: the
    same less the common coefficients, where they differ. new: the deviation of a site that is not among them: its mean
    is 0, and its covariance the expected one of all sites' deviations.

    spread_values, spread_weights: for each column, values and probabilities of the standard deviation between sites.
    That of an intercept is at `middle`: the values of the columns (by name) that were their zero in the fit.
    """

    columns: tuple[str, ...]
    sites: dict[str, Block]
    deviations: dict[str, Block]
    new: Block
    spread_values: np.ndarray
    spread_weights: np.ndarray
    middle: dict[str, float]

    def of(self, site: str) -> Block:
        """The coefficients of one site."""
        if site not in self.sites:
            raise ValueError(f"site={site!r}; expected one of {', '.join(self.sites)}, or no site for a new one")
        return self.sites[site]

    def spread(self, level: float = 0.95) -> list[dict[str, Any]]:
        """One row for each column: the standard deviation between sites, as mean, median and ends of its interval."""
        width_of(level)
        rows = []
        for name, values, weights in zip(self.columns, self.spread_values, self.spread_weights, strict=True):
            low, median, high = (_quantile(values, weights, at) for at in ((1 - level) / 2, 0.5, (1 + level) / 2))
            mean = float(weights @ values)
            rows.append({"name": name, "mean": mean, "median": median, "low": low, "high": high})
        return rows

    def summary(self, level: float = 0.95) -> list[dict[str, Any]]:
        """One row for each site and column that differs: site, name, and mean, sd and interval of the deviation."""
        width, rows = width_of(level), []
        for site, block in self.deviations.items():
            for name, mean, sd in zip(block.names, block.mean, block.standard_deviation, strict=True):
                ends = {"low": float(mean - width * sd), "high": float(mean + width * sd)}
                rows.append({"site": site, "name": name, "mean": float(mean), "sd": float(sd), **ends})
        return rows

    def at_middle(self, level: float = 0.95) -> dict[str, list[dict[str, Any]]]:
        """The rows of `summary` for each column, by name, with intercepts at `middle` in place of 0."""
        width = width_of(level)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.columns}
        for site, block in self.deviations.items():
            for name in self.columns:
                row = np.array([float(other == name) for other in block.names])
                if name == "intercept":
                    row += [self.middle.get(other, 0.0) for other in block.names]
                mean, sd = float(row @ block.mean), float(np.sqrt(max(0.0, row @ block.covariance @ row)))
                found[name].append({"site": site, "mean": mean, "low": mean - width * sd, "high": mean + width * sd})
        return found

    def draws(self, count: int, seed: int) -> dict[str, np.ndarray]:
        """Draws of the deviations (count, sites, columns) and of the spread (count, columns), each by itself.

        Those of a site belong together. Those of two sites, or of a site and the spread, are drawn apart, so only each
        one's own distribution is that of the posterior.
        """
        generator = np.random.default_rng(seed)
        deviations = [block.sample(generator, count) for block in self.deviations.values()]
        pairs = zip(self.spread_values, self.spread_weights, strict=True)
        spread = [generator.choice(values, count, p=weights / weights.sum()) for values, weights in pairs]
        return {"deviations": np.stack(deviations, axis=1), "spread": np.stack(spread, axis=1)}

    # --- As plain data ----------------------------------------------------------------------------------------------

    def to_plain(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {
            "columns": list(self.columns),
            "sites": {name: block.to_plain() for name, block in self.sites.items()},
            "deviations": {name: block.to_plain() for name, block in self.deviations.items()},
            "new": self.new.to_plain(),
            "spread_values": self.spread_values.tolist(),
            "spread_weights": self.spread_weights.tolist(),
            "middle": self.middle,
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "BetweenSites":
        """From what `to_plain` made; anything else raises a ValueError, KeyError, TypeError or AttributeError."""
        columns = tuple(map(str, plain["columns"]))
        values, weights = (np.asarray(plain[f"spread_{part}"], float) for part in ("values", "weights"))
        if values.shape != weights.shape or values.ndim != 2 or len(values) != len(columns):
            raise ValueError
        sites, deviations = (
            {str(name): Block.of_plain(block) for name, block in plain[part].items()}
            for part in ("sites", "deviations")
        )
        middle = {str(name): float(value) for name, value in plain["middle"].items()}
        return cls(columns, sites, deviations, Block.of_plain(plain["new"]), values, weights, middle)


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """A quantile of values in order, each standing for half of the way to its neighbours."""
    below = np.cumsum(weights) - weights / 2
    return float(np.exp(np.interp(share, below, np.log(values))))
