"""Expectation propagation: replace each record's likelihood by a factor that gives the same moments with its cavity.

    cavity_n = q / f_n         what is known without record n
    f_n      = proj[cavity_n · p(x_n | θ)] / cavity_n        (moments matched; natural parameters subtract)
    q        = prior · Π f_n

`SEP` (Li, Hernández-Lobato & Turner 2015) sets all f_n to their average f = (Π f_n)^(1/N), so that a record's cavity is
q / f and nothing is stored per record. `EP` gives each record its own factor. It is a function of that record and the
posteriors released before, and is recomputed when needed: no hidden state is kept.

**Privacy** (DP-SEP after Vinaroz & Park; docs/errata.md, 6 and 9). A step releases Σ clip(f_n, C) over a Poisson
sample, scaled by the public 1/rate, and the product of all factors moves towards it by the damping ρ:

    F ← (1 - ρ) F + ρ (Σ_sample clip(f_n, C) + σC z) / rate

Given q, which is released, f_n is a function of record n alone and has norm at most C: under add-remove one record
moves the sum by at most C, and the step costs what `SubsampledGaussian` says. The paper's sensitivity of 2γC/N is the
same in other terms: replace-one (2C), one record a step (1/rate = N) and ρ = γ/N². Where noise takes a precision below
zero, q is projected to a proper one, which is post-processing; skipping such a step would be a decision on the data.

Factors come in closed form from `log_evidence` (probit, Gaussian), by quadrature in one dimension (any model in which
θ enters through x·θ), or from the model's own `match`. Power EP (Minka 2004) takes f^α out and matches p^α, whose
factor is f^α; α = 1 is EP, and α → 0 is variational inference.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian, FullGaussian, over_parts, power, product, project, quotient
from tacit.privacy.clipping import per_record
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Level, Released, repeat
from tacit.solvers.base import Target

NODES = 32  # of the Gauss-Hermite rule: tilted distributions are further from Gaussian than what VI averages
LEAST_PRECISION = 0.1  # of q, as a share of the start's
RAISED = 0.4  # of the largest eigenvalue of noise
CLOSER = 0.3  # a heated start scales the distance of its means from the cavity's by this
REFINED = 3  # rounds in which a record's own factor is found
MOST_OF_OWN = 0.9  # the largest share of q's precision along a record's x that its own factor may have
MOST_CERTAIN = 0.99  # a factor removes at most this share of its cavity's variance


def evidence_slopes(likelihood: Any, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
    """First and second derivative, in the mean, of one record's log Z = log ∫ p(y | z) N(z; mean, variance) dz."""
    closed = getattr(likelihood, "log_evidence", None)
    if closed is not None:

        def slope(m: Array) -> Array:
            return jax.grad(closed)(m, variance, y)

        return jax.jvp(slope, (mean,), (jnp.ones_like(mean),))
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    z = mean + jnp.sqrt(variance) * jnp.asarray(points, mean.dtype)
    of_linear = likelihood.of_linear

    def at(z: Array) -> tuple[Array, Array, Array]:
        first, second = jax.jvp(lambda z: jax.grad(of_linear)(z, y), (z,), (jnp.ones_like(z),))
        return of_linear(z, y), first, second

    # With Z = E[e^f]: (log Z)' = E_t[f'] and (log Z)'' = E_t[f''] + Var_t[f'], over the tilted distribution t.
    logs, firsts, seconds = jax.vmap(at)(z)
    tilted = jax.nn.softmax(logs + jnp.log(jnp.asarray(weights / weights.sum(), mean.dtype)))
    first = tilted @ firsts
    return first, tilted @ seconds + tilted @ jnp.square(firsts - first)


def pulls(likelihood: Any, at: Array, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
    """One record's factor in z = x·θ, as its pull at `at`: (ν - τ at, τ), from a cavity of this mean and variance.

    With s and b of `evidence_slopes`: τ = -b / (1 + b v) and ν = s / (1 + b v) + τ mean.
    """
    slope, curvature = evidence_slopes(likelihood, mean, variance, y)
    left = jnp.maximum(1 + curvature * variance, 1 - MOST_CERTAIN)
    precision = jnp.minimum(-curvature, MOST_CERTAIN / jnp.maximum(variance, 1e-30)) / left
    return slope / left + precision * (mean - at), precision


def own_pulls(likelihood: Any, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
    """The pull of the factor whose cavity, times the record's likelihood, has q's own mean and variance of z.

    It is the fixed point of `EP` for this q, found by some rounds of its iteration: a function of q and the record.
    """

    def refine(_: int, factor: tuple[Array, Array]) -> tuple[Array, Array]:
        pull, precision = factor
        taken = jnp.clip(precision * variance, 0, MOST_OF_OWN)
        wider = variance / (1 - taken)
        return pulls(likelihood, mean, mean - pull * wider, wider, y)

    return lax.fori_loop(0, REFINED, refine, pulls(likelihood, mean, mean, variance, y))


def match(likelihood: Any, cavity: Any, record: Tree) -> Any:
    """The factor f with proj[cavity · p(record | θ)] = cavity · f, in the family of the cavity."""
    own = getattr(likelihood, "match", None)
    if own is not None:
        return own(cavity, record)
    if not hasattr(likelihood, "of_linear") or isinstance(cavity, dict):
        raise ValueError(f"{type(likelihood).__name__} has no moments to match: use VI, or give the model a `match`")
    x, y = record
    if isinstance(cavity, DiagonalGaussian):
        variance = cavity.variance
        slope, curvature = evidence_slopes(likelihood, x @ cavity.mean, x**2 @ variance, y)
        # For each coordinate: m' = m + v x s, v' = v + v² x² b; b is below 0 where the record is informative.
        taken = jnp.minimum(-curvature * x**2 * variance, MOST_CERTAIN)
        precision = taken / (variance * (1 - taken))
        return DiagonalGaussian(slope * x / (1 - taken) + precision * cavity.mean, precision)
    mean, variance = x @ cavity.mean, jnp.maximum(x @ cavity.covariance @ x, 1e-12)
    weight, precision = pulls(likelihood, jnp.zeros_like(mean), mean, variance, y)
    return FullGaussian(weight * x, precision * jnp.outer(x, x))


@dataclass(frozen=True)
class _Powered:
    """A likelihood to a power, for models in which θ enters through x·θ."""

    likelihood: Any
    exponent: float

    def of_linear(self, linear: Array, y: Array) -> Array:
        return self.exponent * self.likelihood.of_linear(linear, y)


@dataclass(frozen=True)
class SEP:
    """`SEP(steps=50, damping=0.5)(key, target, access)`: stochastic expectation propagation.

    steps: how many, or how many at each level of the mechanism's schedule. damping: ρ above. average: the share of late
    steps whose factors are averaged; 0 takes the last. is_centred: clip and noise a factor as its pull at q's mean m,
    (Λμ - Λm, Λ), not as (Λμ, Λ): noise in Λ then does not move q's mean. reach: the longest step of a mean. power: α of
    power EP. heat: the temperature of the first step, for models whose `match` has one; it falls to 1, by equal
    factors, until half of the steps are done. With heat, means begin close to the cavity's, and the records separate
    the clusters; means that begin far out may end up in one cluster and stay there.

    A dict of Gaussians needs a model with its own `match`, and power α = 1.
    """

    steps: int | tuple[int, ...]
    damping: float = 0.5
    average: float = 0.5
    is_centred: bool = True
    reach: float = math.inf
    power: float = 1.0
    heat: float = 1.0

    def __post_init__(self) -> None:
        if not self.heat >= 1:
            raise ValueError(f"heat={self.heat}; expected a number of at least 1")
        for name in ("damping", "power"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}; expected a number above 0 and at most 1")
        if not 0 <= self.average < 1:
            raise ValueError(f"average={self.average}; expected a share of at least 0 and below 1")

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        """q, projected to a proper one, priced for all steps."""
        units, target = access.slots, self._ready(target)

        def factor(state: "_State", record: Tree) -> Any:
            return self._match(target, quotient(state.q, power(state.factor, self.power / units)), record, state.count)

        return self._run(key, target, access, factor)

    def _ready(self, target: Target) -> Target:
        """The target with its cavity in the family of the start, and its start moved closer if there is heat."""

        def cavity(part: Any, start: Any) -> Any:
            return part.full() if isinstance(start, FullGaussian) else part

        def closer(part: Any, beside: Any) -> Any:
            mean = beside.mean + CLOSER * (part.mean - beside.mean)
            weighted = part.precision @ mean if part.precision.ndim == 2 else part.precision * mean
            return replace(part, precision_mean=weighted)

        known = over_parts(target.cavity, cavity, target.start)
        start = over_parts(target.start, closer, known) if self.heat > 1 else target.start
        return replace(target, cavity=known, start=start)

    def _match(self, target: Target, cavity: Any, record: Tree, count: Array) -> Any:
        if self.heat > 1:
            total = self.steps if isinstance(self.steps, int) else sum(self.steps)
            cooled = jnp.minimum(1, count.astype(jnp.result_type(float)) / max(1, total // 2))
            return target.likelihood.match(cavity, record, self.heat ** (1 - cooled))  # type: ignore[attr-defined]
        if self.power == 1:
            return match(target.likelihood, cavity, record)
        if not hasattr(target.likelihood, "of_linear"):
            raise ValueError(f"power={self.power}; {type(target.likelihood).__name__} has moments of power 1 only")
        return power(match(_Powered(target.likelihood, self.power), cavity, record), 1 / self.power)

    def _run(
        self, key: Array, target: Target, access: Access, factor: Callable[["_State", Tree], Any]
    ) -> Released[Any]:
        total = self.steps if isinstance(self.steps, int) else sum(self.steps)
        first_averaged = total - max(1, round(self.average * total))
        noise = access.mechanism.standard_deviation * math.sqrt(self.damping / (2 - self.damping))  # what remains in F

        def step(key: Array, level: Level, state: _State) -> Released[_State]:
            release = access.at(level).sum(
                key, per_record(lambda record: self._seen(factor(state, record), state.q, -1))
            )

            def move(total: Any) -> _State:
                found = self._seen(total, state.q, 1)
                new = product(power(state.factor, 1 - self.damping), power(found, self.damping))
                late = (state.count >= first_averaged).astype(jnp.result_type(float))
                number = jnp.maximum(1, state.count - first_averaged + 1).astype(late.dtype)
                mean = product(state.mean, power(quotient(new, state.mean), late / number))
                mean = jax.tree.map(lambda a, b: jnp.where(late > 0, a, b), mean, new)
                q = self._proper(product(target.cavity, new), state.q, target.start, noise)
                return _State(q, new, mean, state.count + 1, self._kept(state, q))

            return release.map(move)

        first = quotient(target.start, target.cavity)
        begin = _State(target.start, first, first, jnp.int32(0), self._path(target.start, total))
        return repeat(key, self.steps, step, begin).map(
            lambda end: self._proper(product(target.cavity, end.mean), end.q, target.start, noise)
        )

    def _proper(self, raw: Any, old: Any, start: Any, noise: float) -> Any:
        """A proper distribution from a noised product: raised around q's old mean if centred, else with Λμ kept."""
        if self.is_centred:
            return _proper(raw, old, start, noise, self.reach)
        return project(raw, power(start, LEAST_PRECISION))

    def _seen(self, factor: Any, q: Any, sign: int) -> Any:
        """A factor as its pull at q's mean m, (Λμ - Λm, Λ), for sign -1; the way back for sign 1."""
        if not self.is_centred:
            return factor

        def one(part: Any, at: Any) -> Any:
            moved = part.precision @ at.mean if part.precision.ndim == 2 else part.precision * at.mean
            return replace(part, precision_mean=part.precision_mean + sign * moved)

        return over_parts(factor, one, q)

    def _path(self, q: Any, total: int) -> Any:
        """The store for earlier posteriors: none here."""
        del q, total
        return ()

    def _kept(self, state: "_State", q: Any) -> Any:
        del q
        return state.path


def _proper(raw: Any, old: Any, start: Any, noise: float, reach: float) -> Any:
    """Repair a product that noise (or a factor of negative precision) left improper: add precision at q's old mean.

    Post-processing of released numbers (docs/errata.md, 9). A pull towards q's mean does not move a fixed point. Where
    a precision is negative, its absolute value limits the step, as in a saddle-free Newton step. Precisions are raised
    by a share of what noise of this standard deviation could hide.
    """

    def one(part: Any, was: Any, begin: Any) -> Any:
        if part.precision.ndim == 2:
            values, vectors = jnp.linalg.eigh((part.precision + part.precision.T) / 2)
            edge = noise * math.sqrt(2 * values.shape[0])
            sized = replace(part, precision=(vectors * (jnp.abs(values) + RAISED * edge)) @ vectors.T)
        else:
            sized = replace(part, precision=jnp.abs(part.precision) + RAISED * 2 * noise)
        proper = sized.project(begin * LEAST_PRECISION)
        added = proper.precision - part.precision
        pull = added @ was.mean if added.ndim == 2 else added * was.mean
        change = replace(proper, precision_mean=part.precision_mean + pull).mean - was.mean
        mean = was.mean + change * jnp.minimum(1, reach / jnp.maximum(jnp.linalg.norm(change), 1e-30))
        weighted = proper.precision @ mean if added.ndim == 2 else proper.precision * mean
        held = replace(proper, precision_mean=weighted)
        finite = jnp.all(jnp.isfinite(held.precision_mean)) & jnp.all(jnp.isfinite(held.precision))
        return jax.tree.map(lambda new, kept: jnp.where(finite, new, kept), held, was)

    return over_parts(raw, one, old, start)


@dataclass(frozen=True)
class EP(SEP):
    """`EP(steps=10)(key, target, access)`: expectation propagation, with a factor for each record.

    A record's factor is computed from the posteriors released before, so a step needs as many matches as there were
    steps: use few steps. Only sums are released, and `SEP`'s guarantee holds unchanged.
    """

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        target = self._ready(target)
        first = power(quotient(target.start, target.cavity), 1 / access.slots)

        def factor(state: "_State", record: Tree) -> Any:
            def refine(t: Array, own: Any) -> Any:
                q = jax.tree.map(lambda leaf: leaf[t], state.path)
                new = self._match(target, self._cavity(q, own), record, t)
                return product(power(own, 1 - self.damping), power(new, self.damping))

            own = lax.fori_loop(0, state.count, refine, first)
            return self._match(target, self._cavity(state.q, own), record, state.count)

        return self._run(key, target, access, factor)

    def _cavity(self, q: Any, own: Any) -> Any:
        """q without a factor; where noise has left too little precision, a small share of q's."""
        return project(quotient(q, power(own, self.power)), power(q, 1e-2))

    def _path(self, q: Any, total: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (total + 1, *leaf.shape)), q)

    def _kept(self, state: "_State", q: Any) -> Any:
        return jax.tree.map(lambda all, now: all.at[state.count + 1].set(now), state.path, q)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _State:
    """q, the product of all factors, its average over late steps, the number of steps, and earlier posteriors."""

    q: Any
    factor: Any
    mean: Any
    count: Array
    path: Any
