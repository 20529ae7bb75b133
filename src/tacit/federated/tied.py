"""Data-set level privacy: the unit of privacy is a site with all its records.

A unit of the `Access` here is a whole site (`of_sites`). It contributes the result of its local solver on q: its new
factor, or the difference from the old one. Contributions are clipped, added up and noised, so one site more or less
moves a sum by at most the clip, for any records and any number of them. Local solvers run inside a contribution and
without noise; only that one clipped vector leaves them.

`Whole` is that release as a solver for `PVI`. Its meaning depends on the access:

| in `PVI` over       | is                                                   | noise in q, natural, unclipped    |
|---------------------|------------------------------------------------------|-----------------------------------|
| M sites             | per-site noise: messages private by themselves (3.8) | √M times that of tied factors     |
| one respondent      | tied factors: a trusted coordinator adds one noise   | stationary: variance ασ²C²/(2-α)  |
| it, `Central`, k    | Liu's algorithm 4 with his remedy (3.18)             | walks for k rounds at a time      |
| it, `Central`, None | Liu's algorithm 4                                    | walks on: α²σ²C² more every round |

With tied factors, a site's factor is the public average, t = (Π of all factors)^(1/M), so a site keeps no state and may
take part only once. `Central` ties them every `reset` rounds; in between, a site's factor follows from its own data and
the released posteriors. It is recomputed each time: only released numbers are kept (docs/errata.md, 3 and 4).
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

from tacit.basics.trees import Tree
from tacit.families import FullGaussian, power, product, quotient, register
from tacit.federated.pvi import PVI
from tacit.privacy.clipping import clip_weights, per_record
from tacit.privacy.mechanism import Access, Exact, PricedMechanism, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released
from tacit.solvers.base import Target

Norm = Literal["natural", "centred", "preconditioned"]


def of_sites(
    sites: Sequence[Tree], mechanism: PricedMechanism, *, records: int | None = None, slots: int | None = None
) -> Access:
    """An access whose units are sites. Each site: a tree of arrays with its records in front, at least one record.

    records: the public maximum number of records used per site, the first ones; by default the number at the largest
    site, which is then public. slots: the public number of slots for sites.
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
    return Access.of(together, mechanism, groups=groups, most_records=most, unit="site", slots=slots)


# --- One site's update, in units that compare ---------------------------------------------------------------------


def _update(solver: Any, likelihood: Any, q: Any, factor: Any, site: Tree) -> Any:
    """How a site would change q, without noise: its new posterior divided by q. Use it only inside a contribution."""
    records, filled = site
    inner = Access(jax.tree.map(lambda leaf: leaf[:, None], records), filled[:, None], Exact())
    target = Target(quotient(q, factor), q, likelihood, corrects_prior=False)
    # A local solver's draws are not privacy noise and may be public: equal draws give an equal factor again. All sites
    # use the same draws; if they depended on a site's position, they would change whenever an earlier site is gone. The
    # clipped vector is a function of the site's records and public numbers, so sites need no different draws. 0 · n
    # makes the key a value of the running program, as releases require.
    release = solver(jax.random.fold_in(insecure_key(0), 0 * jnp.sum(filled, dtype=jnp.int32)), target, inner)
    return quotient(release.value, q)


def to_units(change: Any, q: Any, norm: Norm) -> dict[str, Array]:
    """Express a change of natural parameters in the units that are clipped: a public linear map of the change.

    natural: as they are, with very different scales. centred: the pull g = Δ(Λμ) - ΔΛ m at q's mean m. preconditioned:
    the pull in units of q's standard deviation, L⁻¹g, and the relative change of precision L⁻¹ ΔΛ L⁻ᵀ/√2, where
    Λ = LLᵀ: the length of a step in q's Fisher information.
    """
    is_full = isinstance(q, FullGaussian)
    if norm == "natural":
        return {"pull": change.precision_mean, "curvature": change.precision}
    pull = change.precision_mean - (change.precision @ q.mean if is_full else change.precision * q.mean)
    if norm == "centred":
        return {"pull": pull, "curvature": change.precision}
    if is_full:
        solve = partial(jax.scipy.linalg.solve_triangular, jnp.linalg.cholesky(q.precision), lower=True)
        return {"pull": solve(pull), "curvature": solve(solve(change.precision).T) / math.sqrt(2)}
    return {"pull": pull / jnp.sqrt(q.precision), "curvature": change.precision / (math.sqrt(2) * q.precision)}


def from_units(units: dict[str, Array], q: Any, norm: Norm) -> Any:
    """The inverse of `to_units`; without curvature, the change given by the pull alone.

    The precision is made symmetric, because noise is not.
    """
    pull, curvature = units["pull"], units.get("curvature")
    is_full = isinstance(q, FullGaussian)
    root = jnp.linalg.cholesky(q.precision) if is_full else jnp.sqrt(q.precision)
    if norm == "preconditioned":
        pull = root @ pull if is_full else root * pull
    if curvature is None:
        return replace(q, precision_mean=pull, precision=jnp.zeros_like(q.precision))
    if is_full:
        curvature = (curvature + curvature.T) / 2
    if norm == "preconditioned":
        curvature = math.sqrt(2) * (root @ curvature @ root.T if is_full else q.precision * curvature)
    if norm != "natural":
        pull = pull + (curvature @ q.mean if is_full else curvature * q.mean)
    return replace(q, precision_mean=pull, precision=curvature)


@register("solver", "curvature", "norm", "clips")
@dataclass(frozen=True)
class Whole:
    """A solver whose units are sites: the sum of `solver`'s updates, each clipped, with noise. For `PVI`.

    PVI's damping applies. With clips="factor", Δ = α(Σ clip(η_m) + σC z - η), where η is the factor that is refined:
    the product of all units', in which each has the same share η/M. clips="update" releases Σ clip(η_m - η/M) + σC z,
    as in Liu: contributions are smaller, but η/M contains the noise of earlier rounds, and where that exceeds the clip,
    nothing corrects it any more.

    curvature: the mechanism that releases precisions. "joint": the access's, as one vector with the rest; a mechanism:
    in a sum of their own; None: not at all, for updates in between, which leave the precision as it is.

    Guarantee: add-remove of a site moves each sum by at most its clip, and replace-one by twice that. Given q and the
    product of factors, which are released, an update is a function of its own site's records alone.
    """

    solver: Any
    curvature: PricedMechanism | Literal["joint"] | None = "joint"
    norm: Norm = "preconditioned"
    clips: Literal["factor", "update"] = "factor"

    def __post_init__(self) -> None:
        if self.norm == "natural" and self.curvature != "joint":
            raise ValueError("norm='natural' without the curvature in the same sum; use norm='centred'")

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
        """A site's contribution without noise and clip, one part for each sum. Use it only inside a contribution."""
        change = _update(self.solver, likelihood, q, factor, site)
        units = to_units(change if self.clips == "update" else product(change, factor), q, self.norm)
        if self.curvature == "joint":
            return (units,)
        pull = {"pull": units["pull"]}
        return (pull,) if self.curvature is None else (pull, {"curvature": units["curvature"]})

    def release(self, key: Array, q: Any, access: Access, update: Callable[[Tree], tuple[Tree, ...]]) -> Released[Any]:
        """q times the sum of all sites' contributions, possibly improper."""
        sites, (first, second) = access.whole(), jax.random.split(key)
        found = sites.sum(first, per_record(lambda site: update(site)[0]))
        if isinstance(self.curvature, SubsampledGaussian | Exact):
            curvature = sites.through(self.curvature).sum(second, per_record(lambda site: update(site)[1]))
            found = found.join(curvature).map(lambda parts: parts[0] | parts[1])
        return found.map(lambda total: product(q, from_units(total, q, self.norm)))

    def clipped(self, access: Access, q: Any, parts: tuple[Tree, ...]) -> Any:
        """A site's update as it enters the sums, as a change of q. Use it only inside a contribution."""
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
    """The product of all factors, the number of rounds, and q and that product at each earlier round. All released."""

    factor: Any
    count: Array
    posteriors: Any
    factors: Any


@register("solvers", "kinds", "damping", "prior_steps", "rounds", "reset")
@dataclass(frozen=True)
class Central(PVI):
    """`PVI` with one respondent for all sites, in which each site refines its own factor, which never has noise added.

    rounds: the largest number of rounds. reset: after how many rounds factors are tied to the public average again;
    None means never. Solvers are `Whole(..., clips="update")`. Sites may not be sampled: a site's factor needs every
    round.
    """

    rounds: int = 1
    reset: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(solver, Whole) and solver.clips == "update" for solver in self.solvers):
            raise ValueError("only a site itself knows its factor here; use solvers Whole(..., clips='update')")
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
            raise ValueError("sites are sampled, but their factors need every round; use tied factors")
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
        """The site's factor, recomputed from released numbers and its own data: tied, then refined round by round."""
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
