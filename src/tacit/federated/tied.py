"""Data-set level: the unit of privacy is a site, with all it has.

A unit of the `Access` here is a whole site (`of_sites`), and what it contributes is its update: how its local solver
would change q. That one vector is clipped, added up and noised, so one site more or less moves a sum by at most the
clip, whatever its records and however many. Local solvers run inside of a contribution and without noise; nothing of
them leaves but the clipped update.

`Whole` is a solver of one site: its message is private by itself (Liu 3.8), and `PVI` keeps what was sent as factor.
`Tied` is for a coordinator that is trusted with the noise: one noise for all sites. Its factors are tied to the public
average, t = (q/p)^(1/M), every `reset` rounds; between, a site's factor follows from its own data and the posteriors
that were released, so it is computed anew each time and no state is kept anywhere (docs/errata.md, 3 and 4).

| reset | what it is                                    | noise in q, in natural parameters, unclipped     |
|-------|-----------------------------------------------|--------------------------------------------------|
| 1     | tied factors                                  | stationary: variance at most ασ²C²/(2 - α)       |
| k     | Liu's algorithm 4 with his remedy (3.18)      | walks for k rounds at a time                     |
| None  | Liu's algorithm 4                             | a random walk: α²σ²C² more with every round      |
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.families import FullGaussian, power, product, project, quotient, register
from tacit.privacy.clipping import clip_weights, per_record
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import Level, Released, repeat
from tacit.solvers.base import Target

Tree = Any


def of_sites(
    sites: Sequence[Tree],
    mechanism: SubsampledGaussian | Exact,
    *,
    records: int | None = None,
    capacity: int | None = None,
) -> Access:
    """An access whose units are sites. Each site: a tree of arrays with its records in front.

    records: the public most records of a site that are used, the first ones; those of the largest by default, which is
    then public. capacity: the public number of places for sites.
    """
    sizes = [len(jax.tree.leaves(site)[0]) for site in sites]
    most = max(sizes, default=1) if records is None else records
    if most < 1:
        raise ValueError(f"records={records}; expected a public whole number of at least 1")

    def padded(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)[:most]
        return np.concatenate([array, np.zeros((most - len(array), *array.shape[1:]), array.dtype)])

    filled = [np.arange(most) < size for size in sizes]
    whole = [(jax.tree.map(padded, site), there) for site, there in zip(sites, filled, strict=True)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *whole)
    return Access.of((stacked, np.arange(len(sites), dtype=np.int32)), mechanism, unit="site", capacity=capacity)


# --- One site's update, in units that compare ---------------------------------------------------------------------


def _update(solver: Any, likelihood: Any, key: Array, q: Any, factor: Any, site: Tree) -> Any:
    """How a site would change q, without noise: its new posterior divided by q. For a contribution alone."""
    (records, filled), number = site
    inner = Access(jax.tree.map(lambda leaf: leaf[:, None], records), filled[:, None], Exact())
    target = Target(quotient(q, factor), q, likelihood, corrects_prior=False)
    # A key for each site, since releases in one program must not share theirs; there is no noise in them.
    release = solver(jax.random.fold_in(key, number), target, inner)
    return quotient(release.value, q)


def to_units(change: Any, q: Any, is_preconditioned: bool) -> dict[str, Array]:
    """A change of natural parameters as what is clipped; linear in the change, and public but for it.

    Raw natural parameters have wildly different scales. Preconditioned, the change is seen from where q is: the pull
    g = Δ(Λμ) - ΔΛ m in units of q's standard deviation, L⁻¹g, and the relative change of precision L⁻¹ ΔΛ L⁻ᵀ/√2, where
    Λ = LLᵀ: the length of a step as q's Fisher information measures it.
    """
    if not is_preconditioned:
        return {"pull": change.precision_mean, "bend": change.precision}
    if isinstance(q, FullGaussian):
        root = jnp.linalg.cholesky(q.precision)
        solve = partial(jax.scipy.linalg.solve_triangular, root, lower=True)
        pull = solve(change.precision_mean - change.precision @ q.mean)
        return {"pull": pull, "bend": solve(solve(change.precision).T) / math.sqrt(2)}
    pull = (change.precision_mean - change.precision * q.mean) / jnp.sqrt(q.precision)
    return {"pull": pull, "bend": change.precision / (math.sqrt(2) * q.precision)}


def from_units(units: dict[str, Array], q: Any, is_preconditioned: bool) -> Any:
    """The change that `to_units` took apart; its precision is made symmetric, as noise is not."""
    bend, pull = units["bend"], units["pull"]
    if bend.ndim == 2:
        bend = (bend + bend.T) / 2
    if not is_preconditioned:
        return replace(q, precision_mean=pull, precision=bend)
    if isinstance(q, FullGaussian):
        root = jnp.linalg.cholesky(q.precision)
        precision = math.sqrt(2) * root @ bend @ root.T
        return FullGaussian(root @ pull + precision @ q.mean, precision)
    precision = math.sqrt(2) * q.precision * bend
    return replace(q, precision_mean=jnp.sqrt(q.precision) * pull + precision * q.mean, precision=precision)


@register("solver", "is_preconditioned")
@dataclass(frozen=True)
class Whole:
    """A solver for a site that is the unit of privacy: `solver`'s update, clipped and noised as one vector.

    For `PVI`, whose damping applies: Δ = α(clip(Δη) + σC z) of Liu's (3.8). The access has one slot, the site.
    """

    solver: Any
    is_preconditioned: bool = True

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        q, factor = target.start, quotient(target.start, target.cavity)
        update_key, key = jax.random.split(key)

        def contribution(site: Tree) -> dict[str, Array]:
            change = _update(self.solver, target.likelihood, update_key, q, factor, site)
            return to_units(change, q, self.is_preconditioned)

        release = access.sum(key, per_record(contribution))
        return release.map(lambda total: product(q, from_units(total, q, self.is_preconditioned)))


@register("solver", "reset", "is_preconditioned")
@dataclass(frozen=True)
class Tied:
    """Inference over sites that a trusted coordinator adds up: `tied(key, rounds, access)` to all its posteriors.

        q ← q · exp(α (Σ clip(Δη_m) + σC z)),   Δη_m = solver(q / t_m) - q

    damping is α. reset: after how many rounds factors are tied to the public average again; 1 is always, None never.
    Sites may be sampled (`SubsampledGaussian.sampling_rate`) if they are tied in every round: a site that appears once
    then serves as well as another.

    Guarantee: each round is one release of a sum over sites; add-remove of a site moves it by at most the clip, and
    replace-one by twice that. The posteriors that come out are all of it, so the price is that of `rounds` releases.
    """

    prior: Any
    likelihood: Any
    solver: Any
    damping: float | Array = 1.0
    reset: int | None = 1
    is_preconditioned: bool = True

    def __post_init__(self) -> None:
        if self.reset is not None and isinstance(self.reset, int) and self.reset < 1:
            raise ValueError(f"reset={self.reset}; expected a whole number of at least 1, or None for never")

    def __call__(self, key: Array, rounds: int, access: Access) -> Released[Any]:
        """The posteriors, with the rounds in front: the prior first, then one after each round."""
        if self.reset != 1 and any(rate < 1 for rate in access.mechanism.sampling_rates):
            raise ValueError(f"reset={self.reset} with sampled sites, who would not know what they missed; use reset=1")
        update_key, key = jax.random.split(key)
        path = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rounds + 1, *leaf.shape)), self.prior)

        def step(key: Array, level: Level, state: tuple[Any, Array]) -> Released[tuple[Any, Array]]:
            path, t = state
            q = _at(path, t)

            def contribution(site: Tree) -> dict[str, Array]:
                factor = self._factor(update_key, path, t, access, site)
                change = _update(self.solver, self.likelihood, update_key, q, factor, site)
                return to_units(change, q, self.is_preconditioned)

            def move(total: dict[str, Array]) -> tuple[Any, Array]:
                change = power(from_units(total, q, self.is_preconditioned), self.damping)
                new = project(product(q, change), self.prior)  # noise may take it below what is known without data
                kept = jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(new), new, old), new, q)
                return jax.tree.map(lambda all, leaf: all.at[t + 1].set(leaf), path, kept), t + 1

            return access.at(level).sum(key, per_record(contribution)).map(move)

        return repeat(key, rounds, step, (path, jnp.int32(0))).map(lambda state: state[0])

    def _factor(self, key: Array, path: Any, t: Array, access: Access, site: Tree) -> Any:
        """The site's factor, from released posteriors and its own data: tied, and then as it would have refined it."""
        begin = jnp.int32(0) if self.reset is None else t - t % self.reset
        tied = power(quotient(_at(path, begin), self.prior), 1 / access.slots)
        if self.reset == 1:
            return tied
        mechanism = access.mechanism
        clip = math.inf if isinstance(mechanism, Exact) else mechanism.clips[0]

        def refine(s: Array, factor: Any) -> Any:
            q = _at(path, s)
            change = _update(self.solver, self.likelihood, key, q, factor, site)
            length = jnp.sqrt(sum(jnp.sum(part**2) for part in to_units(change, q, self.is_preconditioned).values()))
            return product(factor, power(change, self.damping * clip_weights(length, clip)))

        return lax.fori_loop(begin, t, refine, tied)


def _at(path: Any, t: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[t], path)
