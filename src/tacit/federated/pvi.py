"""Partitioned variational inference: q = prior · t_0 · Π_m t_m, and each site refines the factor of its own records.

    cavity_m = q / t_m
    q_m      = argmin KL(q_m ‖ cavity_m · p(data_m | θ))       (`solver`, which alone reads records)
    t_m      ← t_m · (q_m / q)^ρ                               (ρ: the damping of this update)

after Bui et al. (2018), with privacy at the sites after Sharma et al. (2019) and Liu (2019). A site sends its factor,
so a message that is lost, late or repeated does no lasting harm: the next one replaces it.

**Improper products.** Noise can take precision away. The coordinator then adds its own factor t_0, a Gaussian of
precision P - Λ at m: m is q's current mean, Λ the precision of the prior and the sites, P the nearest plausible one.
It pulls q towards m, and so does not move a fixed point: there the sites' gradients balance the prior's, for any P.
Its centre follows q at the sites' damping. A prior outside the family is one more factor, refined by the coordinator.
All of this is a function of released numbers and costs nothing. The product of all factors is q, at all times.

**Cavities** are computed from what the coordinator sent and the site's own released factor, never from unreleased noise
(docs/errata.md, 3).
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from scipy.special import ndtri
from scipy.stats import qmc

from tacit.basics.trees import Tree
from tacit.families import denoise, over_parts, power, product, project, quotient, register
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released
from tacit.solvers.base import Solver, Target

LEAST_PRECISION = 0.1  # of q, as a share of the prior's: data may make q somewhat less certain than the prior
PRIOR_STEPS = 32  # halve the distance each, once the width is q's own: to rounding
LEAST_TOLD = 1e-5  # of the prior's covariance: what rounding leaves in directions about which data say nothing
POINTS = 64  # pairs of points at which a prior outside the family is evaluated


@register()
@dataclass(frozen=True)
class Noise:
    """The public standard deviations of noise in the sum of all sites' factors: of gradients, and of curvature.

    share: P is raised by this share of the noise's largest eigenvalue, because noise could hide as much. reach: the
    longest step of q's mean. shrinkage: the share kept of curvature that noise hides (`families.denoise`). early: the
    standard deviation of gradients at the first `until` updates, if it differs. caution: the share by which curvature
    is assumed to grow during those updates; P is raised by it. pull: how much of the way the reported mean is shrunk
    towards the prior's by what is known of its noise.
    """

    gradient: float = 0.0
    curvature: float = 0.0
    share: float = 0.4
    reach: float = math.inf
    shrinkage: float | None = None
    early: float | None = None
    until: int = 0
    caution: float = 0.0
    pull: float = 1.0

    def at(self, turn: Array) -> Array:
        """The standard deviation of gradients at an update."""
        early = self.gradient if self.early is None else self.early
        return jnp.where(turn < self.until, early, self.gradient)


@register()
@dataclass(frozen=True)
class SiteState:
    """A site's factor in q, how many updates it has made, and its solvers' memory, which is computed from releases."""

    factor: Tree
    count: Array
    memory: Tree = ()


@register()
@dataclass(frozen=True)
class CoordinatorState:
    """q = prior · refined · own · Π factors. factors: of all sites, stacked; total: their product.

    refined: the ratio of the prior to the family's member in its place; own: the pull that keeps q proper. error: the
    covariance of q's mean that comes from noise, where that is known. arrived: answers since the last broadcast;
    answered: in all. left, noised: where noise is known, the part of the way to the data's mean that is left (a
    matrix), and the part of `error` that comes from noise alone.
    """

    q: Tree
    factors: Tree
    total: Tree
    refined: Tree
    own: Tree
    error: Tree
    arrived: Array
    answered: Array
    left: Tree = ()
    noised: Tree = ()


@register("solvers", "kinds", "damping", "prior_steps")
@dataclass(frozen=True)
class PVI:
    """`PVI(prior, likelihood, solvers=(conjugate,))`: an `Algorithm`.

    prior: in the family of q. likelihood: of one record, as solvers use it. solvers: what a site may run; `kinds` says
    which of them at its first, second, ... update, and `damping` the ρ of each; the last entry holds for all later
    updates. noise: needed by solvers that release noised curvature (`NaturalStep`). prior_steps: in how many steps the
    coordinator refines a prior outside the family (a likelihood with `log_prior_correction`) between rounds; with 0 the
    solver takes that prior as it is, which is exact and for one site only. units: the sizes of a
    typical record's slope and curvature, for solvers that clip relative to them. near: the mean at which the
    coordinator begins, by default the prior's. start: where solvers begin as long as nothing is known, by default at q.
    """

    prior: Any
    likelihood: Any
    solvers: tuple[Solver, ...]
    kinds: tuple[int, ...] = (0,)
    damping: tuple[float, ...] = (1.0,)
    noise: Noise | None = None
    prior_steps: int = PRIOR_STEPS
    units: tuple[Any, Any] = (1.0, 1.0)
    near: Any = None
    start: Any = None

    def __post_init__(self) -> None:
        if not self.solvers or not self.kinds or not set(self.kinds) <= set(range(len(self.solvers))):
            raise ValueError(f"kinds={self.kinds}; expected indices of the {len(self.solvers)} solvers, at least one")
        if not self.damping or not all(_is_array(rho) or 0 < rho <= 1 for rho in self.damping):
            raise ValueError(f"damping={self.damping}; expected numbers above 0 and at most 1")
        if self.noise is not None and isinstance(self.prior, dict):
            raise ValueError("noise= is for one Gaussian; use it with a prior that is not a dict, or leave it out")
        if self.noise is not None and hasattr(self.likelihood, "log_prior_correction"):
            name = type(self.likelihood).__name__
            raise ValueError(f"noise= with {name}, whose prior is not in the family and would be left out; use VI")

    def coordinator_init(self, sites: int) -> CoordinatorState:
        if sites < 1:
            raise ValueError(f"sites={sites}; expected at least 1")
        flat = power(self.prior, 0.0)
        factors = jax.tree.map(lambda leaf: jnp.zeros((sites, *leaf.shape), leaf.dtype), self.prior)
        error: Tree = ()
        left: Tree = ()
        noised: Tree = ()
        if self.noise is not None:
            error, noised = (jnp.zeros_like(self.prior.precision) for _ in range(2))
            left = _identity(self.prior.precision)
        zero = jnp.int32(0)
        if self.near is not None:
            q = replace(self.prior, precision_mean=_dot(self.prior.precision, self.near))
            own = quotient(q, self.prior)
            return CoordinatorState(q, factors, flat, flat, own, error, zero, zero, left, noised)
        return CoordinatorState(self.prior, factors, flat, flat, flat, error, zero, zero, left, noised)

    def broadcast(self, state: CoordinatorState) -> tuple[CoordinatorState, Tree]:
        """Aggregate, and send q."""
        # The round that has ended: each site's last update was its number `turn`, on average.
        sites = jax.tree.leaves(state.factors)[0].shape[0]
        turn = jnp.maximum(0, (state.answered - 1) // sites)
        rho = self._damping(turn) * jnp.minimum(1, state.arrived.astype(jnp.result_type(float)) / sites)
        aggregated = self._aggregate(state, rho, turn)
        state = jax.tree.map(partial(jnp.where, state.arrived > 0), aggregated, state)
        return replace(state, arrived=jnp.int32(0)), state.q

    def site_init(self) -> SiteState:
        begin = self.prior if self.start is None else self.start
        target = Target(self.prior, begin, self.likelihood, corrects_prior=False)
        found = (getattr(solver, "memory", None) for solver in self.solvers)
        return SiteState(power(self.prior, 0.0), jnp.int32(0), tuple(make(target) if make else () for make in found))

    def kind(self, count: int) -> int:
        return self.kinds[min(count, len(self.kinds) - 1)]

    def site_step(self, key: Array, state: SiteState, content: Tree, access: Access, kind: int) -> Released[SiteState]:
        cavity, exact = quotient(content, state.factor), self.prior_steps == 0
        target = Target(cavity, self._begin(content), self.likelihood, corrects_prior=exact)
        memory = state.memory or self.site_init().memory

        def refine(new: Tree, own: Tree = ()) -> SiteState:
            change = power(quotient(new, content), self._damping(state.count))
            kept = (*memory[:kind], own, *memory[kind + 1 :])
            return SiteState(product(state.factor, change), state.count + 1, kept)

        solver = self.solvers[kind]
        if hasattr(solver, "units"):
            solver = replace(solver, units=self.units)  # type: ignore[type-var]  # a dataclass
        if not hasattr(solver, "resume"):
            return solver(key, target, access).map(refine)
        return solver.resume(key, target, access, memory[kind]).map(lambda found: refine(*found))  # type: ignore[attr-defined]

    def _begin(self, content: Tree) -> Tree:
        """Where a solver begins: at what was sent, or at `start` if that is still the prior."""
        if self.start is None:
            return content
        pairs = zip(jax.tree.leaves(content), jax.tree.leaves(self.prior), strict=True)
        is_new = jnp.all(jnp.stack([jnp.all(sent == known) for sent, known in pairs]))
        return jax.tree.map(partial(jnp.where, is_new), self.start, content)

    def answer(self, state: SiteState) -> Tree:
        return state.factor

    def coordinator_step(self, state: CoordinatorState, sites: Array, answers: Tree) -> CoordinatorState:
        factors = jax.tree.map(lambda all, new: all.at[sites].set(new), state.factors, answers)
        count = jnp.int32(sites.shape[0])
        return replace(
            state,
            factors=factors,
            # Recomputed, not updated by differences: the rounding of a factor that once was huge would stay for good.
            total=jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), factors),
            arrived=state.arrived + count,
            answered=state.answered + count,
        )

    def posterior(self, state: CoordinatorState) -> Tree:
        """The posterior to report: q, or, where noise is known, (mean, covariance) that account for data and noise.

        The mean m of the data's posterior is known with an error of covariance E. Before the data, m - m₀ has
        covariance T, the prior's covariance minus the posterior's. The best mean is m₀ + T(T + E)⁻¹(q's - m₀). Where
        noise hides the curvature, T is a guess, and q's own cautious steps have shrunk its mean already. So the
        reported mean is m₀ + S(q's - m₀), S = 1 + pull (T(T + E)⁻¹ - 1). The mean of q is m₀ + (1 - K)(m - m₀) plus
        noise of covariance N, where K is the part of the way that is left. So for any S the reported covariance is that
        of the data's posterior plus (1 - S(1 - K)) T (1 - S(1 - K))ᵀ + S N Sᵀ, in no direction more than the prior's.
        """
        if self.noise is None:
            return state.q
        shrunk, _ = _denoised(state.total.precision, self.noise)
        covariance = _inverse(self.prior.precision + shrunk)
        told = _inverse(self.prior.precision) - covariance
        known = told + LEAST_TOLD * _inverse(self.prior.precision)
        whole = _dot(known, _inverse(known + state.error))
        share = _identity(told) + self.noise.pull * (whole - _identity(told))
        mean = self.prior.mean + _dot(share, state.q.mean - self.prior.mean)
        missed = _identity(told) - _dot(share, _identity(told) - state.left)
        spread = covariance + _around(missed, told) + _around(share, state.noised)
        return mean, _at_most(spread, self.prior.precision)

    def _damping(self, count: Array) -> Array:
        rhos = jnp.asarray(self.damping, jnp.result_type(float))
        return rhos[jnp.minimum(count, len(self.damping) - 1)]

    # --- Aggregating: everything here is a function of released numbers ---------------------------------------------

    def _aggregate(self, state: CoordinatorState, rho: Array, turn: Array) -> CoordinatorState:
        if self.noise is not None:
            return self._aggregate_noised(state, self.noise, rho, turn)
        refined = self._refined(state)
        raw = product(self.prior, refined, state.total)
        q = over_parts(raw, partial(_held, rho), self._proper(raw), state.q, state.own)
        return replace(state, q=q, refined=refined, own=quotient(q, raw))

    def _proper(self, raw: Tree) -> Tree:
        return project(raw, power(self.prior, LEAST_PRECISION))

    def _refined(self, state: CoordinatorState) -> Tree:
        """The family's member in place of the prior, relative to `prior`.

        r ← (r · expansion at q)^½ with q = prior · r · total

        The first expansions are over less than q's width: over a wide q, a prior of a logarithm is as steep as it is at
        its worst point. One that is not finite is left out.
        """
        correction = getattr(self.likelihood, "log_prior_correction", None)
        if correction is None or self.prior_steps == 0:
            return state.refined

        def refine(step: Array, refined: Tree) -> Tree:
            width = jnp.minimum(1, 2 * (step + 1) / self.prior_steps)
            q = self._proper(product(self.prior, refined, state.total))
            new = power(product(refined, _expansion(q, correction, width)), 0.5)
            is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
            return jax.tree.map(partial(jnp.where, is_finite), new, refined)

        return jax.lax.fori_loop(0, self.prior_steps, refine, state.refined)

    def _aggregate_noised(self, state: CoordinatorState, noise: Noise, rho: Array, turn: Array) -> CoordinatorState:
        """Aggregate where the precision is noised: shrink it, then raise it by a share of the noise."""
        mean, prior = state.q.mean, self.prior
        rho = rho.astype(mean.dtype)
        found, edge = _denoised(state.total.precision, noise)
        shrunk = prior.precision + found
        identity = _identity(shrunk)
        growth = noise.caution * (turn < noise.until).astype(mean.dtype)
        raised = shrunk + noise.share * edge * identity + growth * found
        added = raised - prior.precision - state.total.precision
        pull = (1 - rho) * state.own.precision_mean + rho * _dot(added, mean)
        fixed = prior.precision_mean + state.total.precision_mean
        change = replace(prior, precision_mean=fixed + pull, precision=raised).mean - mean
        mean = mean + change * jnp.minimum(1, noise.reach / jnp.maximum(jnp.linalg.norm(change), 1e-30))
        # The error of m follows e ← (1 - ρ P⁻¹Λ) e + ρ P⁻¹ξ; before the first answer, it is what the data will tell.
        step = _inverse(raised)
        told = _inverse(prior.precision) - _inverse(shrunk)
        error = jnp.where(state.answered > state.arrived, state.error, told)
        keep = identity - rho * _dot(step, shrunk)
        added_error = (rho * noise.at(turn).astype(mean.dtype)) ** 2
        error = _around(keep, error) + added_error * _dot(step, step)
        left = _dot(keep, state.left)
        noised = _around(keep, state.noised) + added_error * _dot(step, step)
        q = replace(prior, precision_mean=_dot(raised, mean), precision=raised)
        own = replace(prior, precision_mean=q.precision_mean - fixed, precision=added)
        return replace(state, q=q, own=own, error=error, left=left, noised=noised)


def _denoised(precision: Array, noise: Noise) -> tuple[Array, float | Array]:
    """The shrunk precision and the reach of its noise: by `denoise`, or two standard deviations for a diagonal."""
    if precision.ndim == 2:
        return denoise(precision, noise.curvature, noise.shrinkage)
    return jnp.maximum(0, precision - noise.curvature), 2 * noise.curvature


def _is_array(value: Any) -> bool:
    """Whether a setting is a number of a compiled program, which cannot be checked before it runs."""
    return isinstance(value, jax.Array)


def _at_most(covariance: Array, precision: Array) -> Array:
    """The covariance, reduced to that of the prior in directions in which it is larger."""
    if covariance.ndim == 1:
        return jnp.minimum(covariance, 1 / precision)
    root = jnp.linalg.cholesky(precision)
    values, vectors = jnp.linalg.eigh(_symmetric(root.T @ covariance @ root))
    back = jax.scipy.linalg.solve_triangular(root.T, vectors, lower=False)
    return (back * jnp.minimum(values, 1)) @ back.T


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _identity(like: Array) -> Array:
    """The identity, as a matrix or a diagonal."""
    return jnp.eye(like.shape[0], dtype=like.dtype) if like.ndim == 2 else jnp.ones_like(like)


def _around(a: Array, b: Array) -> Array:
    """a b aᵀ of matrices or diagonals."""
    return _dot(_dot(a, b), a.T)


def _dot(a: Array, b: Array) -> Array:
    """a b of matrices or diagonals."""
    return a @ b if a.ndim == 2 else a * b


def _expansion(q: Tree, function: Any, width: Array) -> Tree:
    """exp(function) as a factor: its second-order expansion, averaged over q, with a diagonal precision.

    width: the share of q's standard deviations over which it is averaged.

    By Stein's identity E[∂²f/∂θ_i²] = E[∂f/∂θ_i (θ_i - m_i)] / σ_i², so gradients suffice. The points are ± pairs of
    a Sobol sequence, so the coordinator needs no key.
    """
    sizes = over_parts(q, lambda part: part.precision_mean.shape[0])
    widths, treedef = jax.tree.flatten(sizes)
    # Shifted by half a step: all points are inside, and each coordinate takes the middles of 64 equal parts.
    uniform = qmc.Sobol(sum(widths), scramble=False).random(POINTS) + 0.5 / POINTS
    normal = jnp.asarray(ndtri(uniform), jnp.result_type(float))
    points = jnp.concatenate([normal, -normal])
    places = [sum(widths[:j]) for j in range(1, len(widths))]
    noises = treedef.unflatten(jnp.split(points, places, axis=1))

    def move(noise: Tree) -> Tree:
        return over_parts(q, lambda part, e: part.mean + _narrowed(part, width) * e, noise)

    gradients = jax.vmap(lambda noise: jax.grad(function)(move(noise)))(noises)

    def factor(part: Any, slopes: Array, noise: Array) -> Any:
        precision = -jnp.mean(slopes * noise, axis=0) / _narrowed(part, width)
        weight = jnp.mean(slopes, axis=0) + precision * part.mean
        return replace(part, precision_mean=weight, precision=_like(precision, part.precision))

    return over_parts(q, factor, gradients, noises)


def _narrowed(part: Any, width: Array) -> Array:
    return part.standard_deviation * width.astype(part.precision_mean.dtype)


def _like(diagonal: Array, precision: Array) -> Array:
    return jnp.diag(diagonal) if precision.ndim == 2 else diagonal


def _inverse(precision: Array) -> Array:
    if precision.ndim == 1:
        return 1 / precision
    inverse = jnp.linalg.inv(precision)
    return (inverse + inverse.T) / 2


def _held(rho: Array, raw: Any, proper: Any, old: Any, own: Any) -> Any:
    """The product with a raised precision, and a pull towards q's current mean that does not move a fixed point.

    The pull follows the sites' damping: a pull that runs ahead of their factors drives q away from its mean.
    """
    added = quotient(proper, raw).precision
    centre = added @ old.mean if added.ndim == 2 else added * old.mean
    rho = rho.astype(centre.dtype)
    return replace(proper, precision_mean=raw.precision_mean + (1 - rho) * own.precision_mean + rho * centre)
