"""Data-set level: the unit of privacy is a site, with all it has.

A unit of the `Access` here is a whole site (`of_sites`), and what it contributes is what its local solver makes of q:
its new factor, or how that differs from the old one. That is clipped, added up and noised, so one site more or less
moves a sum by at most the clip, whatever its records and however many. Local solvers run inside of a contribution and
without noise; nothing of them leaves but that one vector, clipped.

`Whole` is that release as a solver for `PVI`. What it means depends on whose access it is given:

| in `PVI` over       | is                                                   | noise in q, natural, unclipped    |
|---------------------|------------------------------------------------------|-----------------------------------|
| M sites             | per-site noise: messages private by themselves (3.8) | √M times that of tied factors     |
| one party for all   | tied factors: a trusted coordinator adds one noise   | stationary: variance ασ²C²/(2-α)  |
| it, `Central`, k    | Liu's algorithm 4 with his remedy (3.18)             | walks for k rounds at a time      |
| it, `Central`, None | Liu's algorithm 4                                    | walks on: α²σ²C² more every round |

With tied factors a site's is the public average, t = (Π of all factors)^(1/M), so it keeps nothing and may appear only
once. `Central` ties them every `reset` rounds; between, a site's factor follows from its own data and the posteriors
that were released. It is computed anew each time: no state but released numbers is kept (docs/errata.md, 3 and 4).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.families import FullGaussian, power, product, quotient, register
from tacit.federated.pvi import PVI
from tacit.privacy.clipping import clip_weights, per_record
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released
from tacit.solvers.base import Target

Tree = Any
Mechanism = SubsampledGaussian | Exact
Norm = Literal["natural", "centred", "preconditioned"]


def of_sites(
    sites: Sequence[Tree], mechanism: Mechanism, *, records: int | None = None, capacity: int | None = None
) -> Access:
    """An access whose units are sites. Each site: a tree of arrays with its records in front, of at least one.

    records: the public most records of a site that are used, the first ones; those of the largest by default, which is
    then public. capacity: the public number of places for sites.
    """
    lengths = [{len(leaf) for leaf in jax.tree.leaves(site)} for site in sites]
    if any(len(found) != 1 for found in lengths):
        raise ValueError("a site has arrays of different lengths; expected one row of each for every record")
    sizes = [min(found) for found in lengths]
    if not sizes or min(sizes) < 1:
        raise ValueError("no sites, or one without records; expected at least one site, and one record of each")
    most = max(sizes) if records is None else records
    if most < 1:
        raise ValueError(f"records={records}; expected a public whole number of at least 1")
    together = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *sites)
    groups = np.repeat(np.arange(len(sites)), sizes)
    return Access.of(together, mechanism, groups=groups, most_records=most, unit="site", capacity=capacity)


# --- One site's update, in units that compare ---------------------------------------------------------------------


def _update(solver: Any, likelihood: Any, q: Any, factor: Any, site: Tree) -> Any:
    """How a site would change q, without noise: its new posterior divided by q. For a contribution alone."""
    records, filled = site
    inner = Access(jax.tree.map(lambda leaf: leaf[:, None], records), filled[:, None], Exact())
    target = Target(quotient(q, factor), q, likelihood, corrects_prior=False)
    # Draws of a local solver are in no noise, and may be public: the same ones lead to the same factor again. They are
    # the same at all sites: by its place, a site would draw others whenever one before it is gone. What is clipped is
    # a function of the site's records and public numbers, and needs no draws that differ from another site's. 0 · n
    # makes the key a value of the running program, as releases ask for.
    release = solver(jax.random.fold_in(insecure_key(0), 0 * jnp.sum(filled, dtype=jnp.int32)), target, inner)
    return quotient(release.value, q)


def to_units(change: Any, q: Any, norm: Norm) -> dict[str, Array]:
    """A change of natural parameters as what is clipped; linear in the change, and public but for it.

    natural: as they are, whose scales differ wildly. centred: the pull g = Δ(Λμ) - ΔΛ m, as it is felt where q is.
    preconditioned: that in units of q's standard deviation, L⁻¹g, and the relative change of precision L⁻¹ ΔΛ L⁻ᵀ/√2,
    where Λ = LLᵀ: the length of a step as q's Fisher information measures it.
    """
    is_full = isinstance(q, FullGaussian)
    if norm == "natural":
        return {"pull": change.precision_mean, "bend": change.precision}
    pull = change.precision_mean - (change.precision @ q.mean if is_full else change.precision * q.mean)
    if norm == "centred":
        return {"pull": pull, "bend": change.precision}
    if is_full:
        solve = partial(jax.scipy.linalg.solve_triangular, jnp.linalg.cholesky(q.precision), lower=True)
        return {"pull": solve(pull), "bend": solve(solve(change.precision).T) / math.sqrt(2)}
    return {"pull": pull / jnp.sqrt(q.precision), "bend": change.precision / (math.sqrt(2) * q.precision)}


def from_units(units: dict[str, Array], q: Any, norm: Norm) -> Any:
    """The change that `to_units` took apart, of its pull alone where there is no bend.

    Its precision is made symmetric, as noise is not.
    """
    pull, bend = units["pull"], units.get("bend")
    is_full = isinstance(q, FullGaussian)
    root = jnp.linalg.cholesky(q.precision) if is_full else jnp.sqrt(q.precision)
    if norm == "preconditioned":
        pull = root @ pull if is_full else root * pull
    if bend is None:
        return replace(q, precision_mean=pull, precision=jnp.zeros_like(q.precision))
    if is_full:
        bend = (bend + bend.T) / 2
    if norm == "preconditioned":
        bend = math.sqrt(2) * (root @ bend @ root.T if is_full else q.precision * bend)
    if norm != "natural":
        pull = pull + (bend @ q.mean if is_full else bend * q.mean)
    return replace(q, precision_mean=pull, precision=bend)


@register("solver", "curvature", "norm", "clips")
@dataclass(frozen=True)
class Whole:
    """A solver whose units are sites: the sum of `solver`'s updates, each clipped, with noise. For `PVI`.

    PVI's damping applies: Δ = α(Σ clip(η_m) + σC z - η) with η the factor that is refined, the product of all units',
    in which each has the same share η/M. clips="factor" is that. clips="update" is Σ clip(η_m - η/M) + σC z, as Liu has
    it: smaller contributions, but η/M holds the noise of earlier rounds, and where that is above the clip, nothing
    pushes back any more.

    curvature: through which mechanism precisions are released. "joint": the access's, as one vector with the rest; a
    mechanism: in a sum of their own; None: not at all, for updates between, which leave the precision as it is.

    Guarantee: add-remove of a site moves each sum by at most its clip, and replace-one by twice that. Given q and the
    product of factors, which are released, an update is a function of its own site's records alone.
    """

    solver: Any
    curvature: Mechanism | Literal["joint"] | None = "joint"
    norm: Norm = "preconditioned"
    clips: Literal["factor", "update"] = "factor"

    def __post_init__(self) -> None:
        if self.norm == "natural" and self.curvature != "joint":
            raise ValueError("norm='natural' without the bend in the same sum; use norm='centred'")

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        q = target.start
        whole = quotient(q, target.cavity)
        tied = power(whole, 1 / access.slots)
        found = self.release(key, q, access, lambda site: self.update(target.likelihood, q, tied, site))
        if self.clips == "update":
            return found
        known = to_units(whole, q, self.norm)
        if self.curvature is None:
            known = {"pull": known["pull"]}
        return found.map(lambda new: quotient(new, from_units(known, q, self.norm)))

    def update(self, likelihood: Any, q: Any, factor: Any, site: Tree) -> tuple[Tree, ...]:
        """What a site contributes, without noise and clip, a part for each sum. For a contribution alone."""
        change = _update(self.solver, likelihood, q, factor, site)
        units = to_units(change if self.clips == "update" else product(change, factor), q, self.norm)
        if self.curvature == "joint":
            return (units,)
        pull = {"pull": units["pull"]}
        return (pull,) if self.curvature is None else (pull, {"bend": units["bend"]})

    def release(self, key: Array, q: Any, access: Access, update: Callable[[Tree], tuple[Tree, ...]]) -> Released[Any]:
        """q times the sum of what all sites contribute, possibly improper."""
        sites, (first, second) = access.whole(), jax.random.split(key)
        found = sites.sum(first, per_record(lambda site: update(site)[0]))
        if isinstance(self.curvature, SubsampledGaussian | Exact):
            bend = sites.through(self.curvature).sum(second, per_record(lambda site: update(site)[1]))
            found = found.join(bend).map(lambda parts: parts[0] | parts[1])
        return found.map(lambda total: product(q, from_units(total, q, self.norm)))

    def clipped(self, access: Access, q: Any, parts: tuple[Tree, ...]) -> Any:
        """A site's update as it enters the sums, as a change of q. For a contribution alone."""
        through: tuple[Any, ...] = (access.mechanism, self.curvature)
        found: dict[str, Array] = {}
        for part, mechanism in zip(parts, through, strict=False):
            length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in part.values()))
            weight = clip_weights(length, math.inf if isinstance(mechanism, Exact) else mechanism.clips[0])
            found |= {name: jnp.where(weight > 0, weight * leaf, 0) for name, leaf in part.items()}
        return from_units(found, q, self.norm)


# --- Liu's algorithm 4 -------------------------------------------------------------------------------------------


@register()
@dataclass(frozen=True)
class CentralState:
    """The product of all factors, the number of rounds, and of each round before: q and that product. All released."""

    factor: Any
    count: Array
    posteriors: Any
    factors: Any


@register("solvers", "kinds", "damping", "prior_steps", "rounds", "reset")
@dataclass(frozen=True)
class Central(PVI):
    """`PVI` of one party for all sites, in which each site refines a factor of its own that never sees the noise.

    rounds: the most there will be. reset: after how many rounds factors are tied to the public average again; None is
    never. Solvers are `Whole(..., clips="update")`. Sites may not be sampled: they would not know what they missed.
    """

    rounds: int = 1
    reset: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(solver, Whole) and solver.clips == "update" for solver in self.solvers):
            raise ValueError("a site's own factor is known to it alone here; use solvers Whole(..., clips='update')")
        if self.reset is not None and self.reset < 1:
            raise ValueError(f"reset={self.reset}; expected a whole number of at least 1, or None for never")

    def site_init(self) -> CentralState:  # type: ignore[override]
        plain = super().site_init()
        paths = (
            jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.rounds, *leaf.shape)), part)
            for part in (self.prior, plain.factor)
        )
        return CentralState(plain.factor, plain.count, *paths)

    def site_step(  # type: ignore[override]
        self, key: Array, state: CentralState, content: Tree, access: Access, kind: int
    ) -> Released[CentralState]:
        if any(rate < 1 for rate in access.mechanism.sampling_rates):
            raise ValueError("sites that are sampled would not know what they missed; use tied factors")
        count, solver = state.count, self.solvers[kind]
        assert isinstance(solver, Whole)
        pairs = ((state.posteriors, content), (state.factors, state.factor))
        posteriors, factors = (jax.tree.map(lambda all, now: all.at[count].set(now), *pair) for pair in pairs)

        def update(site: Tree) -> tuple[Tree, ...]:
            factor = self._factor(posteriors, factors, count, access, site)
            return solver.update(self.likelihood, content, factor, site)

        def refine(new: Tree) -> CentralState:
            change = power(quotient(new, content), self._damping(count))
            return CentralState(product(state.factor, change), count + 1, posteriors, factors)

        return solver.release(key, content, access, update).map(refine)

    def _factor(self, posteriors: Any, factors: Any, count: Array, access: Access, site: Tree) -> Any:
        """The site's factor, from released numbers and its own data: tied once, then as it would have refined it."""
        begin = jnp.int32(0) if self.reset is None else count - count % self.reset
        tied = power(_at(factors, begin), 1 / access.slots)
        kinds = jnp.asarray(self.kinds, jnp.int32)

        def refine(s: Array, factor: Any) -> Any:
            q = _at(posteriors, s)

            def by(solver: Any, factor: Any) -> Any:
                return solver.clipped(access, q, solver.update(self.likelihood, q, factor, site))

            kind = kinds[jnp.minimum(s, len(self.kinds) - 1)]
            change = lax.switch(kind, [partial(by, solver) for solver in self.solvers], factor)
            return product(factor, power(change, self._damping(s)))

        return lax.fori_loop(begin, count, refine, tied)


def _at(path: Any, t: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[t], path)
