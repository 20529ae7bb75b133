"""A released posterior: a table of coefficients, intervals, predictions, and files without pickle.

Everything here uses released numbers only, so nothing here costs privacy. It needs NumPy and SciPy but not JAX, so that
a saved posterior opens quickly.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.basics import durable
from tacit.links import LINKS, Link, link_of
from tacit.posterior.block import Block, width_of
from tacit.posterior.site_effects import BetweenSites

__all__ = ["Block", "Posterior"]

FORMAT = "tacit-posterior-1"
MOST_NUMBERS = 2**22  # held at once by a prediction by draws


@dataclass(frozen=True, eq=False)
class Posterior:
    """A released posterior in the units of the data, with its statement and plan.

    blocks: the parameters, by name; regressions have one, "coefficients", intercept first. link: the kind of
    regression, or "" for other models, which predict by themselves (see `families`). statement and plan: plain data;
    statement_text: the statement in words. chains: samples of each block, (chains, samples, size), if the method makes
    any; the blocks then hold their moments. site_effects: what differs between the sites of a study, if its plan has
    site effects; predictions are then for a new site, unless a site is named.
    """

    blocks: dict[str, Block]
    link: str
    statement: dict[str, Any]
    statement_text: str
    plan: dict[str, Any]
    noise_scale: float | None = None  # of a linear regression's target
    classes: tuple[Any, ...] | None = None  # the labels behind the target's 0, 1, ...
    details: dict[str, Any] = field(default_factory=dict)  # such as released scalings and the table's schema
    chains: dict[str, np.ndarray] | None = None
    site_effects: BetweenSites | None = None

    def __repr__(self) -> str:
        size = sum(len(block.mean) for block in self.blocks.values())
        # Rounded up: a stated ε must not be below the true one.
        epsilon = "∞" if math.isinf(self.epsilon) else f"{math.ceil(self.epsilon * 1e4) / 1e4:g}"
        model, delta = self.link or self.plan.get("model", "model"), self.statement.get("delta")
        what = f"{size} coefficient{'s' * (size != 1)}"
        return f"<Posterior: {model}, {what}, ε = {epsilon}{'' if delta is None else f', δ = {delta:g}'}>"

    @property
    def epsilon(self) -> float:
        """The ε that was spent; infinite without a guarantee."""
        return math.inf if self.statement["epsilon"] is None else self.statement["epsilon"]

    @property
    def coefficients(self) -> Block:
        """The coefficients of a regression."""
        if "coefficients" not in self.blocks:
            raise ValueError(f"this model has {', '.join(self.blocks)} and no coefficients; use posterior.blocks")
        return self.blocks["coefficients"]

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Ends of each parameter's central interval of probability `level`, in the order of `summary`."""
        rows = self.summary(level)
        return np.array([row["low"] for row in rows]), np.array([row["high"] for row in rows])

    def summary(self, level: float = 0.95) -> list[dict[str, Any]]:
        """One row for each parameter: name, mean, standard deviation, and the ends of its central interval."""
        width = width_of(level)
        rows = []
        for block in self.blocks.values():
            for name, mean, sd in zip(block.names, block.mean, block.standard_deviation, strict=True):
                ends = {"low": float(mean - width * sd), "high": float(mean + width * sd)}
                rows.append({"name": name, "mean": float(mean), "sd": float(sd), **ends})
        return rows

    def sample(self, draws: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws of each block, (draws, size), from its samples if any. No record is read: any seed is safe."""
        rng = np.random.default_rng(seed)
        if self.chains is not None:
            every = {name: drawn.reshape(-1, drawn.shape[-1]) for name, drawn in self.chains.items()}
            chosen = rng.integers(len(next(iter(every.values()))), size=draws)
            return {name: drawn[chosen] for name, drawn in every.items()}
        return {name: block.sample(rng, draws) for name, block in self.blocks.items()}

    # --- Predictions of regressions ------------------------------------------------------------------------------

    @property
    def _link(self) -> Link | None:
        """The link of a regression; None for other models."""
        return LINKS.get(self.link)

    @property
    def _predictors(self) -> int:
        """The number of linear predictors: one, or one for each class but the first."""
        is_multiclass = self._link is not None and self._link.is_multiclass
        return max(1, len(self.classes or ()) - 1) if is_multiclass else 1

    def linear_predictor(self, features: Any, *, site: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of intercept + x·θ at each row of `features` (without a column for the intercept).

        site: with site effects, the site that the rows are from; by default a new one, whose deviation adds to the sd.
        """
        if self._link is None:
            raise ValueError(
                "this posterior is of a model of your own, which predicts by itself; use "
                "model.predict(posterior.families(), ...) of the model that was fitted, or posterior.sample"
            )
        if self._link.is_multiclass:
            raise ValueError(f"a {self._link.words} has one linear predictor for each class but the first; use predict")
        x = self._rows(features)
        block = self._coefficients_at(site)
        if block.covariance.ndim == 1:
            return x @ block.mean, np.sqrt(x**2 @ block.covariance)
        return x @ block.mean, np.sqrt(np.maximum(0, np.sum((x @ block.covariance) * x, axis=1)))

    def _coefficients_at(self, site: str | None) -> Block:
        """The coefficients of a site, or of a new one; without site effects the common ones."""
        found, common = self.site_effects, self.coefficients
        if found is None:
            if site is not None:
                raise ValueError(f"site={site!r} for a posterior without site effects; leave site out")
            return common
        if site is not None:
            return found.of(site)
        covariance = common.covariance.copy()
        places = [common.names.index(name) for name in found.new.names]
        covariance[np.ix_(places, places)] += found.new.covariance
        return Block(common.names, common.mean, covariance)

    def _rows(self, features: Any) -> np.ndarray:
        expected = len(self.coefficients.mean) // self._predictors
        try:
            x = np.asarray(features, float)
        except (TypeError, ValueError):
            names = ", ".join(self.coefficients.names[1:expected][:10])
            raise ValueError(
                f"features are a {type(features).__name__} that is no array of numbers; expected (rows, "
                f"{expected - 1}), the columns {names}"
            ) from None
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

    def predict(
        self, features: Any, *, method: str = "closed", draws: int = 2000, seed: int = 0, site: str | None = None
    ) -> np.ndarray:
        """The expected target at each row: a mean, P(y = 1), or (rows, classes) probabilities for several classes.

        method: "closed" uses the link's formula (logistic: the probit approximation of MacKay 1992; probit, linear and
        Poisson: exact); "sampling" averages over `draws` draws of the posterior. Several classes always use sampling.

        site: with site effects, the site that the rows are from; by default a new one.
        """
        if method not in ("closed", "sampling"):
            raise ValueError(f"method={method!r}; expected 'closed' or 'sampling'")
        if self._link is not None and self._link.is_multiclass:
            self._coefficients_at(site)  # refuses a site
            return self._probabilities(features, draws, seed)
        mean, sd = self.linear_predictor(features, site=site)
        link = link_of(self.link)
        if method == "closed":
            return link.mean_of(mean, sd)
        theta = self.sample(draws, seed)["coefficients"]
        if self.site_effects is not None:
            theta = self._coefficients_at(site).sample(np.random.default_rng(seed), draws)
        return link.inverse(self._rows(features) @ theta.T).mean(axis=1)

    def predict_interval(
        self, features: Any, level: float = 0.95, *, site: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The interval of the mean response (a probability, a rate, an expected value) at each row.

        site: as for `predict`. A single new outcome varies more: see `outcome_sd`.
        """
        mean, sd = self.linear_predictor(features, site=site)
        width, link = width_of(level), link_of(self.link)
        return link.inverse(mean - width * sd), link.inverse(mean + width * sd)

    def outcome_sd(self, features: Any, *, site: str | None = None) -> np.ndarray:
        """The sd of one new outcome at each row, from the posterior and from outcomes around their mean."""
        mean, sd = self.linear_predictor(features, site=site)
        link = link_of(self.link)
        if link.outcome_sd is None:
            raise ValueError(f"a {link.words} has no closed standard deviation of an outcome; use posterior.sample")
        return link.outcome_sd(link.mean_of(mean, sd), sd, self.noise_scale or 0.0)

    def _probabilities(self, features: Any, draws: int, seed: int) -> np.ndarray:
        """(rows, classes), by draws of the posterior, some rows at a time."""
        x, link, free = self._rows(features), link_of(self.link), self._predictors
        theta = self.sample(draws, seed)["coefficients"].reshape(draws, free, -1)
        size = max(1, MOST_NUMBERS // (draws * (free + 1)))
        found = [np.empty((0, free + 1))]
        for start in range(0, len(x), size):
            found.append(link.inverse(np.einsum("nd,skd->snk", x[start : start + size], theta)).mean(axis=0))
        return np.concatenate(found)

    # --- Other forms and files ---------------------------------------------------------------------------------------

    def families(self) -> Any:
        """The posterior as `tacit.families`, for the `predict` of a model."""
        from tacit.families import DiagonalGaussian, FullGaussian

        def family(block: Block) -> Any:
            if block.covariance.ndim == 1:
                return DiagonalGaussian.of(block.mean, block.standard_deviation)
            return FullGaussian.of(block.mean, block.covariance)

        found = {name: family(block) for name, block in self.blocks.items()}
        return found["coefficients"] if set(found) == {"coefficients"} else found

    def to_arviz(self, draws: int = 1000, chains: int = 4, seed: int = 0) -> Any:
        """Draws as ArviZ's InferenceData, with the statement among its attributes.

        If the method samples, they are its chains, unchanged; draws, chains and seed are then ignored. Site effects are
        `deviations` and `spread`, each of which is drawn by itself (`BetweenSites.draws`).
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
        if self.site_effects is not None:
            more = self.site_effects.draws(draws * chains, seed + 1)
            found |= {name: values.reshape(chains, draws, *values.shape[1:]) for name, values in more.items()}
            names = next(iter(self.site_effects.deviations.values())).names
            coords |= {
                "site": list(self.site_effects.sites),
                "effect": list(names),
                "column": list(self.site_effects.columns),
            }
            dims |= {"deviations": ["site", "effect"], "spread": ["column"]}
        data = arviz.from_dict(posterior=found, coords=coords, dims=dims)
        data.attrs["tacit_statement"] = json.dumps(self.statement)
        return data

    def save(self, path: Path | str) -> None:
        """Write the posterior as JSON: numbers and names, no code."""
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise ValueError(f"path={path}: there is no folder {folder}; make it first")
        blocks = {name: block.to_plain() for name, block in self.blocks.items()}
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
        if self.site_effects is not None:
            plain["site_effects"] = self.site_effects.to_plain()
        durable.write(Path(path), json.dumps(plain, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "Posterior":
        """A posterior that `save` wrote; anything else is refused."""
        expected = "expected a file that posterior.save or 'tacit fit' wrote"
        try:
            plain = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(plain, dict) or plain.get("format") != FORMAT:
                raise ValueError
            blocks = {name: Block.of_plain(block) for name, block in plain["blocks"].items()}
            classes = None if plain["classes"] is None else tuple(plain["classes"])
            names = ("statement", "statement_text", "plan", "noise_scale")
            statement, text, plan, noise_scale = (plain[name] for name in names)
            chains = None
            if plain.get("chains") is not None:
                chains = {name: np.asarray(plain["chains"][name], float) for name in blocks}
                if any(drawn.ndim != 3 or drawn.shape[2] != len(blocks[n].names) for n, drawn in chains.items()):
                    raise ValueError
            effects = None if plain.get("site_effects") is None else BetweenSites.of_plain(plain["site_effects"])
            words = (statement, text, plan, noise_scale, classes, plain["details"], chains, effects)
            return cls(blocks, str(plain["link"]), *words)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}; {expected}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is not a saved posterior; {expected}") from None
