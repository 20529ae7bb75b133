"""Natural-gradient inference for models in which θ enters through x·θ: release curvature seldom, gradients often.

A Gaussian q = N(m, Λ⁻¹) maximises the bound of `vi` where

    Λ = Λ_cavity - Σ_i E_q[f''(z_i)] x_i x_iᵀ      and      Σ_i E_q[f'(z_i)] x_i = Λ_cavity (m - m_cavity)

with f the log-likelihood as a function of z_i = x_i·θ. Each *stage* releases the matrix Σ E_q[-f''] xxᵀ once, and then
steps by released gradients, m ← m + Λ⁻¹ (Σ E_q[f'] x - Λ_cavity (m - m_cavity)). With this preconditioner, ten or
twenty steps are enough for features of any scale, so each step may have little noise.

The answer accounts for the noise. For stepping, the eigenvalues of a released matrix are raised by what noise could
hide; for the answer, they are shrunk by what noise could have made. The error of m from noise and from too few steps
follows a linear recursion whose settings are public or released. Its covariance is added to Λ⁻¹, so that intervals
cover the data's uncertainty *and* the noise. All of this is post-processing.

Expectation propagation has the same two sums, with a record's factor N(z; ν/τ, 1/τ) in their place (`ep`):

    Λ = Λ_cavity + Σ_i τ_i x_i x_iᵀ      and      Σ_i (ν_i - τ_i x_i·m) x_i = Λ_cavity (m - m_cavity)

| expansion | f'  and -f'' above are                                                                            |
|-----------|---------------------------------------------------------------------------------------------------|
| "vi"      | means over q                                                                                      |
| "ep"      | (ν - τ z, τ) of the factor that matches the record's moments; its cavity is q without that factor |
| "sep"     | the same; its cavity is q without the average factor, the N-th root of the product of all factors |
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian, FullGaussian, denoise, power, project, quotient
from tacit.privacy.clipping import Linear, Outer
from tacit.privacy.mechanism import Access, Mechanism
from tacit.privacy.released import Level, Released, repeat
from tacit.solvers.base import Target
from tacit.solvers.ep import own_pulls, pulls
from tacit.solvers.quadrature import over_linear

Expansion = Literal["vi", "ep", "sep"]


@dataclass(frozen=True)
class NaturalVI:
    """`NaturalVI(curvature, steps=(10, 10))(key, target, access)`: one release of curvature before each group of steps.

    curvature: the mechanism of those releases. steps: gradient steps of each stage. gradients: the mechanism of each
    stage's gradients; by default that of `access`. learning_rate: the step length, relative to Newton's. average: the
    share of the last stage's steps that are averaged. floor: how far eigenvalues are raised, as a share of the largest
    that noise alone would show. reach: the longest step, since x·θ should not change by much more than 1 where features
    are standardised. caution: the share by which the first stage's curvature is assumed to grow along the way.
    noise_aware: add the covariance of the noise to that of q. shrinkage: the share kept of curvature that noise hides
    (`families.denoise`): intervals are narrower with it, and too narrow if the true share is smaller. expansion: of a
    record's likelihood, as in the table above.

    `units` of a call are the sizes of a typical record's slope f' and curvature f'' (released numbers, or 1):
    contributions are clipped relative to them.
    """

    curvature: Mechanism
    steps: tuple[int, ...] = (10, 10)
    gradients: tuple[Mechanism, ...] | None = None
    learning_rate: float = 1.0
    average: float = 1.0
    floor: float = 0.4
    reach: float = math.inf
    caution: float = 0.0
    noise_aware: bool = True
    shrinkage: float | None = None
    expansion: Expansion = "vi"

    def __post_init__(self) -> None:
        if not self.steps or min(self.steps) < 1:
            raise ValueError(f"steps={self.steps}; expected a whole number of at least 1 for each stage")
        if not 0 < self.average <= 1:
            raise ValueError(f"average={self.average}; expected a share above 0 and at most 1")
        if self.gradients is not None and len(self.gradients) != len(self.steps):
            raise ValueError(
                f"gradients has {len(self.gradients)} mechanisms; expected {len(self.steps)}, one for each stage"
            )

    def __call__(
        self, key: Array, target: Target, access: Access, units: tuple[Array | float, Array | float] = (1.0, 1.0)
    ) -> Released[Any]:
        """q in the family of `target.start`, priced for all releases."""
        return self.moments(key, target, access, units).map(lambda found: _family(*found, target.start))

    def moments(
        self, key: Array, target: Target, access: Access, units: tuple[Array | float, Array | float] = (1.0, 1.0)
    ) -> Released[tuple[Array, Array]]:
        """Mean and covariance of a full q. They lose less to single precision than natural parameters do."""
        _check(target)
        cavity = target.cavity.full()
        centre = target.start.full().mean
        slope_unit, curvature_unit = (jnp.asarray(unit, centre.dtype) for unit in units)
        # No spread at first: the start's covariance says how little is known, not where curvature is.
        release = Released(_State(centre))
        keys = jax.random.split(key, (len(self.steps), 2))
        for stage, count in enumerate(self.steps):
            averaged = max(1, round(self.average * count)) if stage + 1 == len(self.steps) else 1

            def climb(state: _State, keys: Array = keys[stage], stage: int = stage, averaged: int = averaged) -> Any:
                through = access.through(self.curvature)
                spread = through.map(_without_spread) if stage == 0 else _spread(through, state.spread)
                at = self._at(target, state, cavity, access.slots)
                curved = _curvature(keys[0], at, spread, curvature_unit)
                ready = curved.map(
                    lambda found: self._prepare(found, state, cavity, curvature_unit, access.slots, is_first=stage == 0)
                )
                inner = access if self.gradients is None else access.through(self.gradients[stage])
                return ready.then(
                    lambda s: self._climb(keys[1], s, self.steps[stage], averaged, cavity, inner, target, slope_unit)
                )

            release = release.then(climb)
        return release.map(lambda s: (s.mean, s.covariance + s.error if self.noise_aware else s.covariance))

    def _at(self, target: Target, state: "_State", cavity: FullGaussian, units: int) -> "_At":
        """The expansion of a record at this mean. The average factor pulls at it by Λ_cavity (m - m_cavity) / N."""
        beside = state.mean
        if self.expansion == "sep" and state.spread is not None:
            beside = beside - state.spread @ (cavity.precision @ state.mean - cavity.precision_mean) / units
        return _At(self.expansion, target.likelihood, state.mean, beside)

    def _prepare(
        self, curvature: Array, state: "_State", cavity: FullGaussian, unit: Array, units: int, is_first: bool
    ) -> "_State":
        """The preconditioner and the shrunk precision, from a noised matrix.

        For stepping, a share of the noise's largest eigenvalue is added: noise could hide as much.
        """
        shrunk, edge = denoise(curvature, self.curvature.standard_deviation * unit, self.shrinkage)
        precision = cavity.precision + shrunk
        raised = precision + self.floor * edge * jnp.eye(curvature.shape[0], dtype=curvature.dtype)
        if is_first:
            raised = raised + self.caution * (precision - cavity.precision)
        root = jnp.linalg.cholesky(cavity.precision)
        covariance, told = _inverse(precision, root)
        # Before any step, the answer's distance from the start has the covariance that the data will remove.
        error = told if is_first else state.error
        spread = _inverse(raised, root)[0]
        step = self.learning_rate * spread
        if self.expansion == "sep":  # without the average factor
            spread = _inverse(raised - (raised - cavity.precision) / units, root)[0]
        return _State(state.mean, step, spread, precision, covariance, error)

    def _climb(
        self,
        key: Array,
        state: "_State",
        steps: int,
        averaged: int,
        cavity: FullGaussian,
        access: Access,
        target: Target,
        unit: Array,
    ) -> "Released[_State]":
        """The steps of one stage, and the covariance of the error of their average."""
        contraction = jnp.eye(state.mean.shape[0], dtype=state.mean.dtype) - state.step @ state.precision
        added = (access.mechanism.standard_deviation * unit) ** 2 * (state.step @ state.step)
        zeros = jnp.zeros_like(state.step)
        spread = _spread(access, state.spread)

        def step(key: Array, level: Level, climb: _Climb) -> Released[_Climb]:
            def update(gradient: Array) -> _Climb:
                uphill = gradient + cavity.precision_mean - cavity.precision @ climb.mean
                change = state.step @ uphill
                mean = climb.mean + change * jnp.minimum(1, self.reach / jnp.maximum(jnp.linalg.norm(change), 1e-30))
                # Errors of the mean, of its running sum, and between the two: e ← G e - M ξ, s ← s + e.
                error = contraction @ climb.error @ contraction.T + added
                is_averaged = (climb.count >= steps - averaged).astype(mean.dtype)
                moved = contraction @ climb.cross
                total_error = climb.total_error + is_averaged * (moved + moved.T + error)
                cross = moved + is_averaged * error
                return _Climb(climb.count + 1, mean, climb.total + is_averaged * mean, error, cross, total_error)

            at = self._at(target, replace(state, mean=climb.mean), cavity, access.slots)
            return _gradient(key, at, spread.at(level), unit).map(update)

        start = _Climb(jnp.int32(0), state.mean, jnp.zeros_like(state.mean), state.error, zeros, zeros)
        return repeat(key, steps, step, start).map(
            lambda end: replace(state, mean=end.total / averaged, error=end.total_error / averaged**2)
        )


@dataclass(frozen=True)
class NaturalStep:
    """One release as a site's whole update: its factor becomes the likelihood's second-order expansion at q's mean m.

        t = (Σ_i E_q[f'(z_i)] x_i + H m, H)      H = Σ_i E_q[-f''(z_i)] x_i x_iᵀ

    At a fixed point of partitioned inference q is then the variational optimum. A full q releases H through the
    mechanism `curvature`, in a sum of its own. Where that is None, H is the precision of the factor that is replaced: a
    fixed point stays one, and from elsewhere the mean goes to where gradients balance at that precision. A diagonal q
    releases gradient and the diagonal of H together, under one clip. Noise can make the factor improper: it is passed
    on as it is, and the product of all factors is made proper later.

    spread: whether expectations are over q; else they are at its mean, for a q that has learnt nothing yet. units: as
    in `NaturalVI`, public numbers. expansion: as above; for "sep", the average factor is that of this site's records.
    gradients: the mechanism of the gradient; by default that of `access`.
    """

    curvature: Mechanism | None = None
    spread: bool = True
    units: tuple[float, float] = (1.0, 1.0)
    expansion: Expansion = "vi"
    gradients: Mechanism | None = None

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        """Cavity times the new factor, possibly improper."""
        _check(target)
        if self.gradients is not None:
            access = access.through(self.gradients)
        q, mean = target.start, target.start.mean
        slope, curvature = (jnp.asarray(unit, mean.dtype) for unit in self.units)
        beside = q
        if self.expansion == "sep" and self.spread:
            beside = project(quotient(q, power(quotient(q, target.cavity), 1 / access.slots)), power(q, 0.5))
        at = _At(self.expansion, target.likelihood, mean, beside.mean)
        if isinstance(q, DiagonalGaussian):
            return self._diagonal(key, at, beside.variance, access, slope, curvature).map(lambda t: target.cavity + t)
        gradient_key, curvature_key = jax.random.split(key)
        # Without spread, do not multiply by a matrix of zeros: XLA for CPUs miscompiles that in a loop.
        spread = _spread(access, beside.covariance) if self.spread else access.map(_without_spread)
        gradient = _gradient(gradient_key, at, spread, slope)
        if self.curvature is None:
            factor = q - target.cavity
            return gradient.map(lambda g: target.cavity + FullGaussian(g + factor.precision @ mean, factor.precision))
        curved = _curvature(curvature_key, at, spread.through(self.curvature), curvature)
        return gradient.join(curved).map(
            lambda found: target.cavity + FullGaussian(found[0] + found[1] @ mean, found[1])
        )

    def _diagonal(
        self, key: Array, at: "_At", variances: Array, access: Access, slope: Array, curvature: Array
    ) -> Released[DiagonalGaussian]:
        def contribution(records: Tree) -> Linear:
            x, y = records
            first, second = at(x, y, x**2 @ variances if self.spread else jnp.zeros_like(x[:, 0]))
            return Linear({"slope": first / slope, "curvature": second / curvature}, {"slope": x, "curvature": x**2})

        def factor(total: Tree) -> DiagonalGaussian:
            precision = total["curvature"] * curvature
            return DiagonalGaussian(total["slope"] * slope + precision * at.mean, precision)

        return access.sum(key, contribution).map(factor)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _State:
    """Between stages: m, the preconditioner M, the covariance that gives records their spread, the shrunk precision
    and its inverse, the covariance of m's error."""

    mean: Array
    step: Any = None
    spread: Any = None
    precision: Any = None
    covariance: Any = None
    error: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Climb:
    """Within a stage."""

    count: Array
    mean: Array
    total: Array
    error: Array
    cross: Array
    total_error: Array


def _inverse(precision: Array, root: Array) -> tuple[Array, Array]:
    """Λ⁻¹ and Λ₀⁻¹ - Λ⁻¹, where Λ₀ = RRᵀ is the cavity's precision and Λ at least that.

    It uses eigenvalues relative to the cavity, which are at least 1: a plain inverse in single precision loses the weak
    directions next to strong ones.
    """
    half = jax.scipy.linalg.solve_triangular(root, precision, lower=True)
    relative = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
    values, vectors = jnp.linalg.eigh((relative + relative.T) / 2)
    share = 1 / jnp.maximum(values, 1)
    back = jax.scipy.linalg.solve_triangular(root.T, vectors, lower=False)
    return (back * share) @ back.T, (back * (1 - share)) @ back.T


def _family(mean: Array, covariance: Array, start: Any) -> Any:
    q = FullGaussian.of(mean, covariance)
    return q if isinstance(start, FullGaussian) else q.diagonal()


def _spread(access: Access, covariance: Array) -> Access:
    """The records (x, y), each with the variance xᵀΣx of its linear predictor: the same for all steps of a stage."""

    def add(record: Tree) -> Tree:
        x, y = record
        return x, y, jnp.maximum(0, x @ covariance @ x)  # rounding can take it below

    return access.map(add)


def _without_spread(record: Tree) -> Tree:
    x, y = record
    return x, y, jnp.zeros((), x.dtype)


@dataclass(frozen=True)
class _At:
    """The expansion of records at a mean: (slope, -curvature) of each, to be multiplied by x and xxᵀ.

    beside: the mean of q without the average factor, if the expansion uses it.
    """

    expansion: Expansion
    likelihood: Any
    mean: Array
    beside: Array

    def __call__(self, x: Array, y: Array, variance: Array) -> tuple[Array, Array]:
        z = x @ self.mean
        if self.expansion == "vi":
            slope, curvature = over_linear(self.likelihood.of_linear, z, variance, y)
            return slope, -curvature
        if self.expansion == "ep":
            return jax.vmap(lambda z, v, y: own_pulls(self.likelihood, z, v, y))(z, variance, y)
        return jax.vmap(lambda z, m, v, y: pulls(self.likelihood, z, m, v, y))(z, x @ self.beside, variance, y)


def _check(target: Target) -> None:
    if not hasattr(target.likelihood, "of_linear") or isinstance(target.start, dict):
        raise ValueError(f"{type(target.likelihood).__name__} does not depend on θ through x·θ alone; use VI")


def _gradient(key: Array, at: _At, access: Access, unit: Array) -> Released[Array]:
    """Σ E[f'(z_i)] x_i, from records with their spread."""

    def contribution(records: Tree) -> Linear:
        x, y, variance = records
        return Linear(at(x, y, variance)[0] / unit, x)

    return access.sum(key, contribution).map(lambda total: total * unit)


def _curvature(key: Array, at: _At, access: Access, unit: Array) -> Released[Array]:
    """Σ E[-f''(z_i)] x_i x_iᵀ, from records with their spread; made symmetric, because the noise is not."""

    def contribution(records: Tree) -> Outer:
        x, y, variance = records
        return Outer(at(x, y, variance)[1] / unit, x)

    return access.sum(key, contribution).map(lambda total: (total + total.T) * (unit / 2))
