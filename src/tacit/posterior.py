"""The posterior that a person holds: a table of coefficients, intervals, predictions, and files without pickle.

Everything here is made of released numbers, so nothing here costs privacy. NumPy only: a saved posterior opens quickly.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

FORMAT = "tacit-posterior-1"
MOST_NUMBERS = 2**22  # that a prediction by draws holds at once
LINKS = ("linear", "logistic", "probit", "poisson", "softmax")


@dataclass(frozen=True, eq=False)
class Block:
    """A Gaussian over a named vector: its mean, and a covariance matrix or a vector of variances."""

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(self.covariance if self.covariance.ndim == 1 else np.diagonal(self.covariance))

    def sample(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        noise = rng.standard_normal((draws, len(self.mean)))
        if self.covariance.ndim == 1:
            return self.mean + noise * np.sqrt(self.covariance)
        values, vectors = np.linalg.eigh(self.covariance)  # rounding can leave an eigenvalue below 0
        return self.mean + (noise * np.sqrt(np.maximum(values, 0))) @ vectors.T


@dataclass(frozen=True, eq=False)
class Posterior:
    """A released posterior in the units of the data, with its statement and plan.

    blocks: the parameters, by name; for regressions one, "coefficients", intercept first. link: what kind of regression
    it is, or "" for another model, whose predictions are the model's own (`families`). statement and plan: plain data;
    statement_text: the statement in words. chains: samples of each block, (chains, samples, size), where the method
    makes some; the blocks then have their moments.
    """

    blocks: dict[str, Block]
    link: str
    statement: dict[str, Any]
    statement_text: str
    plan: dict[str, Any]
    noise_scale: float | None = None  # of a linear regression's target
    classes: tuple[Any, ...] | None = None  # what the target's 0, 1, ... stand for
    details: dict[str, Any] = field(default_factory=dict)  # such as released scalings and the table's schema
    chains: dict[str, np.ndarray] | None = None

    @property
    def epsilon(self) -> float:
        """What was spent; infinite where nothing is promised."""
        return math.inf if self.statement["epsilon"] is None else self.statement["epsilon"]

    @property
    def coefficients(self) -> Block:
        """The coefficients of a regression."""
        if "coefficients" not in self.blocks:
            raise ValueError(f"this model has {', '.join(self.blocks)} and no coefficients; use posterior.blocks")
        return self.blocks["coefficients"]

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The central interval of each parameter that holds it with probability `level`; ends in order of `summary`."""
        rows = self.summary(level)
        return np.array([row["low"] for row in rows]), np.array([row["high"] for row in rows])

    def summary(self, level: float = 0.95) -> list[dict[str, Any]]:
        """One row for each parameter: name, mean, deviation, and the ends of its central interval."""
        width = _width(level)
        rows = []
        for block in self.blocks.values():
            for name, mean, deviation in zip(block.names, block.mean, block.deviation, strict=True):
                ends = {"low": float(mean - width * deviation), "high": float(mean + width * deviation)}
                rows.append({"name": name, "mean": float(mean), "deviation": float(deviation), **ends})
        return rows

    def sample(self, draws: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws of each block, (draws, size), from its samples if there are any. They read no record: any seed."""
        rng = np.random.default_rng(seed)
        if self.chains is not None:
            every = {name: drawn.reshape(-1, drawn.shape[-1]) for name, drawn in self.chains.items()}
            chosen = rng.integers(len(next(iter(every.values()))), size=draws)
            return {name: drawn[chosen] for name, drawn in every.items()}
        return {name: block.sample(rng, draws) for name, block in self.blocks.items()}

    # --- Predictions of regressions ------------------------------------------------------------------------------

    def linear_predictor(self, features: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of intercept + x·θ at each row of `features` (without a column for the intercept)."""
        if self.link not in LINKS or self.link == "softmax":
            raise ValueError(
                f"a {self.link or 'general'} model has no single linear predictor; use predict or families"
            )
        x = self._rows(features)
        block = self.coefficients
        if block.covariance.ndim == 1:
            return x @ block.mean, np.sqrt(x**2 @ block.covariance)
        return x @ block.mean, np.sqrt(np.maximum(0, np.sum((x @ block.covariance) * x, axis=1)))

    def _rows(self, features: Any) -> np.ndarray:
        x = np.asarray(features, float)
        expected = len(self.coefficients.mean) // max(1, len(self.classes or ()) - 1 if self.link == "softmax" else 1)
        if x.ndim != 2 or x.shape[1] != expected - 1:
            raise ValueError(f"features of shape {x.shape}; expected (rows, {expected - 1})")
        scaling = self.details.get("range")
        if scaling is not None:  # training moved values into this range; so does prediction
            low, high = (
                np.array([end if v is None else v for v in scaling[name]], float)
                for name, end in (("low", -np.inf), ("high", np.inf))
            )
            x = np.clip(x, low, high)
        return np.column_stack([np.ones(len(x)), x])

    def predict(self, features: Any, *, method: str = "closed", draws: int = 2000, seed: int = 0) -> np.ndarray:
        """What is expected at each row: a mean, P(y = 1), or for several classes (rows, classes) probabilities.

        method: "closed" uses a formula (logistic: the probit approximation of MacKay 1992; probit, linear and Poisson:
        exact); "sampling" averages over `draws` draws of the posterior, as several classes always do.
        """
        if method not in ("closed", "sampling"):
            raise ValueError(f"method={method!r}; expected 'closed' or 'sampling'")
        if self.link == "softmax":
            return self._softmax(features, draws, seed)
        if method == "sampling":
            theta = self.sample(draws, seed)["coefficients"]
            z = self._rows(features) @ theta.T
            return {"linear": lambda z: z, "logistic": special.expit, "probit": special.ndtr, "poisson": np.exp}[
                self.link
            ](z).mean(axis=1)
        mean, deviation = self.linear_predictor(features)
        match self.link:
            case "logistic":
                return special.expit(mean / np.sqrt(1 + math.pi / 8 * deviation**2))
            case "probit":
                return special.ndtr(mean / np.sqrt(1 + deviation**2))
            case "poisson":
                return np.exp(mean + deviation**2 / 2)
        return mean

    def predict_interval(self, features: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The interval that holds the mean response (a probability, a rate, an expected value) at each row.

        It is about what the model expects there, not about one new outcome, which varies more.
        """
        mean, deviation = self.linear_predictor(features)
        width = _width(level)
        link = {"logistic": special.expit, "probit": special.ndtr, "poisson": np.exp}.get(self.link, lambda z: z)
        return link(mean - width * deviation), link(mean + width * deviation)

    def _softmax(self, features: Any, draws: int, seed: int) -> np.ndarray:
        """(rows, classes), by draws of the posterior, some rows at a time."""
        x = self._rows(features)
        assert self.classes is not None
        free = len(self.classes) - 1
        theta = self.sample(draws, seed)["coefficients"].reshape(draws, free, -1)
        size = max(1, MOST_NUMBERS // (draws * (free + 1)))
        found = [np.empty((0, free + 1))]
        for start in range(0, len(x), size):
            z = np.einsum("nd,skd->snk", x[start : start + size], theta)
            z = np.concatenate([np.zeros((*z.shape[:2], 1)), z], axis=2)
            found.append(special.softmax(z, axis=2).mean(axis=0))
        return np.concatenate(found)

    # --- Elsewhere ---------------------------------------------------------------------------------------------------

    def families(self) -> Any:
        """The posterior as `tacit.families`, for a model's own `predict`."""
        from tacit.families import DiagonalGaussian, FullGaussian

        def family(block: Block) -> Any:
            if block.covariance.ndim == 1:
                return DiagonalGaussian.of(block.mean, block.deviation)
            return FullGaussian.of(block.mean, block.covariance)

        found = {name: family(block) for name, block in self.blocks.items()}
        return found["coefficients"] if set(found) == {"coefficients"} else found

    def to_arviz(self, draws: int = 1000, chains: int = 4, seed: int = 0) -> Any:
        """Draws as ArviZ's InferenceData, with the statement among its attributes.

        Where the method samples, they are its chains as they are; draws, chains and seed then do not count.
        """
        try:
            import arviz
        except ImportError:
            raise ValueError("ArviZ is not installed; install tacit[arviz]") from None
        found = {}
        coords, dims = {}, {}
        drawn = self.chains
        if drawn is None:
            flat = self.sample(draws * chains, seed)
            drawn = {name: values.reshape(chains, draws, -1) for name, values in flat.items()}
        for name, values in drawn.items():
            found[name] = values
            coords[f"{name}_name"] = list(self.blocks[name].names)
            dims[name] = [f"{name}_name"]
        data = arviz.from_dict(posterior=found, coords=coords, dims=dims)
        data.attrs["tacit_statement"] = json.dumps(self.statement)
        return data

    def save(self, path: Path | str) -> None:
        """Write the posterior as JSON: plain numbers and names, nothing that runs."""
        blocks = {
            name: {"names": list(b.names), "mean": b.mean.tolist(), "covariance": b.covariance.tolist()}
            for name, b in self.blocks.items()
        }
        plain = {
            "format": FORMAT,
            "link": self.link,
            "blocks": blocks,
            "noise_scale": self.noise_scale,
            "classes": None if self.classes is None else list(self.classes),
            "statement": self.statement,
            "statement_text": self.statement_text,
            "plan": self.plan,
            "details": self.details,
        }
        if self.chains is not None:
            plain["chains"] = {name: values.tolist() for name, values in self.chains.items()}
        Path(path).write_text(json.dumps(plain, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "Posterior":
        """A posterior that `save` wrote; anything else is refused."""
        expected = "expected a file that posterior.save or 'tacit fit' wrote"
        try:
            plain = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(plain, dict) or plain.get("format") != FORMAT:
                raise ValueError
            blocks = {}
            for name, block in plain["blocks"].items():
                mean, covariance = (np.asarray(block[part], float) for part in ("mean", "covariance"))
                size = len(block["names"])
                if mean.shape != (size,) or covariance.shape not in ((size,), (size, size)):
                    raise ValueError
                blocks[name] = Block(tuple(map(str, block["names"])), mean, covariance)
            classes = None if plain["classes"] is None else tuple(plain["classes"])
            names = ("statement", "statement_text", "plan", "noise_scale")
            statement, text, plan, noise_scale = (plain[name] for name in names)
            chains = None
            if plain.get("chains") is not None:
                chains = {name: np.asarray(plain["chains"][name], float) for name in blocks}
                if any(drawn.ndim != 3 or drawn.shape[2] != len(blocks[n].names) for n, drawn in chains.items()):
                    raise ValueError
            words = (statement, text, plan, noise_scale, classes, plain["details"], chains)
            return cls(blocks, str(plain["link"]), *words)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}; {expected}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is not a saved posterior; {expected}") from None


def _width(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level={level}; expected a probability between 0 and 1")
    return float(stats.norm.ppf(0.5 + level / 2))
