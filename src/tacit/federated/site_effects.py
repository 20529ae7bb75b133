"""Site effects: each site has its own deviation from the common coefficients, with a spread that is learned.

    θ ~ N(m₀, P₀⁻¹)        δ_s ~ N(0, diag τ²)        β_s = θ + E δ_s        records of site s depend on x·β_s

E selects the columns that may differ. A site does exactly what it does in partitioned inference (`pvi`), at the same
price: it is sent a q, and releases Σ a x and Σ w xxᵀ there. Only the q differs: it is over the site's own β_s. All that
joins sites is a function of released numbers, and costs nothing.

**What a site has told.** Its factor is an average over its updates k, with the weights u_k of PVI's damping,

    r_s = Σ_k u_k (g_k + H_s m_k)        g_k = gradient at m_k + ξ_k,  ξ_k ~ N(0, γ_k² I)

and the curvature H_s, which is noised too. An update that releases curvature has damping 1, so H_s is the same in all
terms since. The points m_k were sent, so c_s = Σ u_k m_k is known, and any other curvature Ĥ_s may take its place
without a change of the gradients: r_s + (Ĥ_s - H_s) c_s is then what the site would have sent. For a likelihood that is
nearly quadratic around its maximum b_s, with curvature Ĥ_s, this is

    r_s = Ĥ_s b_s + ξ,  b_s | β_s ~ N(β_s, Ĥ_s⁻¹),  ξ ~ N(0, v_s I),  v_s = Σ u_k² γ_k²

so r_s | β_s ~ N(Ĥ_s β_s, Ĥ_s + v_s I). As a function of β_s this is a Gaussian factor of precision A_s and pull h_s,

    A_s = Ĥ_s (Ĥ_s + v_s I)⁻¹ Ĥ_s        h_s = Ĥ_s (Ĥ_s + v_s I)⁻¹ r_s

in which privacy's noise is part of the error of b_s, and so is not taken for a difference between sites. Ĥ_s may be
singular. At a fixed point of the rounds, Σ_s W_s g_s balances the prior, W_s = Ĥ_s (Ĥ_s + v_s I)⁻¹, for any Ĥ_s: an
error of curvature makes sites weigh a little more or less, but moves nothing.

**Curvature.** A small site's is hidden by noise, but the shape of curvature is much the same everywhere. With H the
denoised sum of all sites (`families.denoise`), Ĥ_s = a_s H + k_s (H_s - a_s H), with a_s by least squares, and k_s the
share of the remainder that noise does not explain (James & Stein 1961).

**The joint posterior** of (θ, δ_1, ..., δ_M) has a precision in the form of an arrow. Given θ, a site's deviation has

    covariance S_s = T (I + T A_EE T)⁻¹ T,  T = diag τ        mean S_s (h_E - A_E θ)

(A_E: the rows of A_s that E selects). Without it the site tells of θ the precision A_s - A_Eᵀ S_s A_E and the pull
h_s - A_Eᵀ S_s h_E, which add up over sites with the prior to Λ and η. The logarithm of the evidence for τ is

    ½ ηᵀΛ⁻¹η - ½ log |Λ| + Σ_s (½ h_Eᵀ S_s h_E - ½ log |I + T A_EE T|)

up to a constant. With a half-Cauchy prior (Gelman 2006) each τ has a density on a grid of log τ, given the others.
Between rounds τ is at the mean of log τ. The reported posterior is the mixture over the grid; with several columns, the
changes that each column's grid makes are added up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from tacit.basics.trees import Tree
from tacit.families import FullGaussian, denoise, register
from tacit.federated.pvi import PVI, Noise, SiteState
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released

LEAST_SITES = 3  # with two, one difference would have to tell a spread
LOWEST, HIGHEST = 3e-3, 30.0  # ends of the first grid of τ, in scales of its prior
POINTS, PASSES, SWEEPS = 33, 3, 2  # of a grid; grids, each over what the one before left; rounds of columns
NEGLIGIBLE = 14.0  # densities below exp(-14) of the highest are left out


@register()
@dataclass(frozen=True)
class EffectsState:
    """The coordinator's state; arrays have the sites in front.

    factors: as sites sent them. centres: c_s; variances: v_s; counts: of each site's updates. means, covariances: of
    the q over each site's coefficients that is sent. common: the mean of θ; spread: τ. arrived: answers since the last
    broadcast.
    """

    factors: FullGaussian
    centres: Array
    variances: Array
    counts: Array
    means: Array
    covariances: Array
    common: Array
    spread: Array
    arrived: Array


@register("places")
@dataclass(frozen=True)
class Effects:
    """The posterior of a study with site effects.

    mean, covariance: of the common coefficients. means, covariances: of each site's coefficients. deviations,
    deviation_covariances: of each site's δ. places: the columns of δ. grid, weights: a density of each column's τ;
    variances: the mean of each τ².
    """

    mean: Array
    covariance: Array
    means: Array
    covariances: Array
    deviations: Array
    deviation_covariances: Array
    grid: Array
    weights: Array
    variances: Array
    places: tuple[int, ...]


@register("places")
@dataclass(frozen=True)
class SiteEffects:
    """`SiteEffects(pvi, places, gradients, early, curvatures, scale)`: an `Algorithm`, with the sites' part of `pvi`.

    places: the columns whose coefficients differ between sites. gradients, early, curvatures: the standard deviations
    of each site's noise, `early` at its first `pvi.noise.until` updates. scale: of the prior of τ. near: the means of
    all sites' coefficients at which the coordinator begins, by default the prior's.

    Answers are counted as they are taken in; if one was lost after a site made it, its centre and its noise are those
    of one update earlier.
    """

    pvi: PVI
    places: tuple[int, ...]
    gradients: Array
    early: Array
    curvatures: Array
    scale: Array
    near: Any = None

    def __post_init__(self) -> None:
        if not self.places or len(set(self.places)) < len(self.places):
            raise ValueError(f"places={self.places}; expected at least one column, each once")
        if not isinstance(self.pvi.prior, FullGaussian) or self.pvi.noise is None:
            raise ValueError("site effects need a prior that is a full Gaussian, and noise=; use natural steps")

    # --- A site: as in partitioned inference ------------------------------------------------------------------------

    @property
    def units(self) -> tuple[Any, Any]:
        """The sizes of a typical record's slope and curvature."""
        return self.pvi.units

    def site_init(self) -> SiteState:
        return self.pvi.site_init()

    def kind(self, count: int) -> int:
        return self.pvi.kind(count)

    def site_step(self, key: Array, state: SiteState, content: Tree, access: Access, kind: int) -> Released[SiteState]:
        return self.pvi.site_step(key, state, content, access, kind)

    def answer(self, state: SiteState) -> Tree:
        return self.pvi.answer(state)

    # --- The coordinator --------------------------------------------------------------------------------------------

    def coordinator_init(self, sites: int) -> EffectsState:
        if sites < 1:
            raise ValueError(f"sites={sites}; expected at least 1")
        prior = self.pvi.prior
        zeros = jax.tree.map(lambda leaf: jnp.zeros((sites, *leaf.shape), leaf.dtype), prior)
        begin = prior.mean if self.near is None else self.near
        means = jnp.broadcast_to(begin, (sites, *prior.precision_mean.shape))
        spread = jnp.full(len(self.places), self.scale, means.dtype)
        own = prior.covariance.at[self._square].add(jnp.diag(spread**2))
        nothing = jnp.zeros(sites, means.dtype)
        return EffectsState(
            zeros,
            means,
            nothing,
            jnp.zeros(sites, jnp.int32),
            means,
            jnp.broadcast_to(own, (sites, *own.shape)),
            jnp.mean(means, axis=0),
            spread,
            jnp.int32(0),
        )

    def coordinator_step(self, state: EffectsState, sites: Array, answers: Tree) -> EffectsState:
        counts = state.counts[sites]
        rhos = jnp.asarray(self.pvi.damping, state.means.dtype)
        rho = rhos[jnp.minimum(counts, len(self.pvi.damping) - 1)]
        noise = jnp.where(counts < self._noise.until, self.early[sites], self.gradients[sites])
        centres = (1 - rho)[:, None] * state.centres[sites] + rho[:, None] * state.means[sites]
        variances = (1 - rho) ** 2 * state.variances[sites] + (rho * noise) ** 2
        return replace(
            state,
            factors=jax.tree.map(lambda all, new: all.at[sites].set(new), state.factors, answers),
            centres=state.centres.at[sites].set(centres),
            variances=state.variances.at[sites].set(variances),
            counts=state.counts.at[sites].add(1),
            arrived=state.arrived + jnp.int32(sites.shape[0]),
        )

    def broadcast(self, state: EffectsState) -> tuple[EffectsState, Tree]:
        """Aggregate, and send each site the q over its own coefficients."""
        found = self._aggregated(state)
        is_new = state.arrived > 0
        state = jax.tree.map(lambda new, old: jnp.where(is_new, new, old), found, state)
        precisions = jax.vmap(_inverse)(state.covariances)
        content = FullGaussian(jnp.einsum("sij,sj->si", precisions, state.means), precisions)
        return replace(state, arrived=jnp.int32(0)), content

    def addressed(self, content: Tree, site: Any) -> Tree:
        """The part of a broadcast that one site is sent."""
        return jax.tree.map(lambda leaf: leaf[site], content)

    def posterior(self, state: EffectsState) -> Effects:
        """The posterior over θ, all δ_s and τ, with the noise and with what τ may be."""
        told = self._told(state, is_raised=False)
        spread, grids, weights = self._spread(told, state.spread)
        base = self._solved(told, spread)
        whole = base
        for j in range(len(self.places)):
            mixed = self._mixed(told, spread, j, grids[j], weights[j], base)
            whole = jax.tree.map(lambda all, new, old: all + (new - old), whole, mixed, base)
        variances = jnp.sum(weights * grids**2, axis=1)
        mean, covariance, deviations, spreads, means, covariances = whole
        moved = mean + state.common, covariance, means + state.common, covariances
        return Effects(*moved, deviations, spreads, grids, weights, variances, self.places)

    # --- What sites have told, as functions of released numbers -----------------------------------------------------

    @property
    def _noise(self) -> Noise:
        assert self.pvi.noise is not None
        return self.pvi.noise

    @property
    def _columns(self) -> Array:
        return jnp.asarray(self.places, jnp.int32)

    @property
    def _square(self) -> tuple[Array, Array]:
        """The rows and columns of E in a matrix."""
        return self._columns[:, None], self._columns[None, :]

    def _aggregated(self, state: EffectsState) -> EffectsState:
        told = self._told(state, is_raised=True)
        spread, _, _ = self._spread(told, state.spread)
        mean, _, _, _, means, covariances = self._solved(told, spread)
        change = means + state.common - state.means
        length = jnp.linalg.norm(change, axis=1, keepdims=True)
        means = state.means + change * jnp.minimum(1, self._noise.reach / jnp.maximum(length, 1e-30))
        return replace(state, means=means, covariances=covariances, common=state.common + mean, spread=spread)

    def _told(self, state: EffectsState, *, is_raised: bool) -> tuple[Array, Array, Array]:
        """A_s and h_s of all sites, and the pull of the prior, all relative to `state.common`.

        is_raised: with a share of the noise's largest eigenvalue added to the curvature, which noise could hide; for
        steps that do not overshoot.
        """
        dtype, sent = state.means.dtype, state.factors.precision
        curvatures, edge = self._curvatures(state)
        if is_raised:
            has_told = jnp.any(sent != 0, axis=(1, 2))
            share = self._noise.share * edge / jnp.maximum(1, jnp.sum(has_told)).astype(dtype)
            raised = jnp.where(has_told, share, 0)[:, None, None] * jnp.eye(sent.shape[-1], dtype=dtype)
            curvatures = curvatures + raised
        pulls = state.factors.precision_mean + jnp.einsum("sij,sj->si", curvatures - sent, state.centres)
        precisions, pulls = jax.vmap(_noised)(curvatures, pulls, state.variances)
        prior = self.pvi.prior
        pulls = pulls - precisions @ state.common
        return precisions, pulls, prior.precision_mean - prior.precision @ state.common

    def _curvatures(self, state: EffectsState) -> tuple[Array, Array]:
        """Ĥ_s of all sites, and the largest eigenvalue that noise alone shows in their sum."""
        sent = (state.factors.precision + jnp.swapaxes(state.factors.precision, 1, 2)) / 2
        sites, size, _ = sent.shape
        noises = jnp.where(state.counts > 0, self.curvatures[:sites], 0).astype(sent.dtype)
        total = jnp.sqrt(jnp.sum(noises**2))
        pooled, edge = denoise(jnp.sum(sent, axis=0), total, self._noise.shrinkage)
        free = size * (size + 1) / 2 - 1  # numbers of a symmetric matrix, less one for a_s

        def own(matrix: Array, noise: Array) -> Array:
            likeness = jnp.sum(matrix * pooled) / jnp.maximum(jnp.sum(pooled**2), 1e-30)
            base = jnp.maximum(0, likeness) * pooled
            rest = matrix - base
            kept = 1 - free * noise**2 / jnp.maximum(jnp.sum(rest**2), 1e-30)
            values, vectors = jnp.linalg.eigh(base + jnp.clip(kept, 0, 1) * rest)
            return (vectors * jnp.maximum(values, 0)) @ vectors.T

        return jax.vmap(own)(sent, noises), jnp.asarray(edge, sent.dtype)

    # --- The joint posterior ----------------------------------------------------------------------------------------

    def _eliminated(self, told: tuple[Array, Array, Array], spread: Array) -> tuple[Array, ...]:
        """Sites without their deviations: S_s, A_E, h_E, and Λ, η and the log evidence of all of them for τ."""
        precisions, pulls, pull = told
        rows, ends = precisions[:, self._columns], pulls[:, self._columns]

        def one(row: Array, end: Array) -> tuple[Array, Array, Array]:
            relative = jnp.eye(len(self.places), dtype=row.dtype) + spread[:, None] * row[:, self._columns] * spread
            own = spread[:, None] * _inverse(relative) * spread
            root = jnp.linalg.cholesky((relative + relative.T) / 2)
            return own, row.T @ own, end @ own @ end / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))

        own, gains, values = jax.vmap(one)(rows, ends)
        precision = self.pvi.prior.precision + jnp.sum(precisions - gains @ rows, axis=0)
        total = pull + jnp.sum(pulls - jnp.einsum("sij,sj->si", gains, ends), axis=0)
        root = jnp.linalg.cholesky((precision + precision.T) / 2)
        whitened = jax.scipy.linalg.solve_triangular(root, total, lower=True)
        value = jnp.sum(values) + jnp.sum(whitened**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))
        return own, rows, ends, precision, total, value

    def _solved(self, told: tuple[Array, Array, Array], spread: Array) -> tuple[Array, ...]:
        """Means and covariances at a τ: of θ, of each δ_s, and of each β_s."""
        own, rows, ends, precision, total, _ = self._eliminated(told, spread)
        covariance = _inverse(precision)
        mean = covariance @ total

        def one(own: Array, row: Array, end: Array) -> tuple[Array, ...]:
            gain = own @ row
            deviation = own @ (end - row @ mean)
            through = jnp.eye(mean.shape[0], dtype=mean.dtype).at[self._columns].add(-gain)
            around = _symmetric(through @ covariance @ through.T).at[self._square].add(own)
            moved = mean.at[self._columns].add(deviation)
            return deviation, _symmetric(own + gain @ covariance @ gain.T), moved, around

        return mean, covariance, *jax.vmap(one)(own, rows, ends)

    def _mixed(
        self, told: tuple[Array, Array, Array], spread: Array, column: int, grid: Array, weights: Array, base: Any
    ) -> tuple[Array, ...]:
        """`_solved`, averaged over the grid of one column's τ, with the variance of the means over it. base: at τ."""

        def add(sums: Any, point: tuple[Array, Array]) -> tuple[Any, None]:
            value, weight = point
            found = self._solved(told, spread.at[column].set(value))
            moved = jax.tree.map(jnp.subtract, found, base)
            firsts = [weight * part for part in moved]
            seconds = [weight * part[..., :, None] * part[..., None, :] for part in moved[::2]]
            return jax.tree.map(jnp.add, sums, (firsts, seconds)), None

        zeros = [jnp.zeros_like(part) for part in base]
        squares = [jnp.zeros_like(part) for part in base[1::2]]
        (firsts, seconds), _ = lax.scan(add, (zeros, squares), (grid, weights))
        found = [part + first for part, first in zip(base, firsts, strict=True)]
        for place, second in enumerate(seconds):
            first = firsts[2 * place]
            found[2 * place + 1] = found[2 * place + 1] + second - first[..., :, None] * first[..., None, :]
        return tuple(found)

    # --- The spread between sites -----------------------------------------------------------------------------------

    def _spread(self, told: tuple[Array, Array, Array], spread: Array) -> tuple[Array, Array, Array]:
        """τ at the mean of its logarithm, and for each column a grid of τ with weights, given the other columns."""

        def improve(spread: Array, column: Array) -> tuple[Array, tuple[Array, Array]]:
            def density(logarithm: Array) -> Array:
                value = jnp.exp(logarithm)
                evidence = self._eliminated(told, spread.at[column].set(value))[-1]
                return evidence + logarithm - jnp.log1p((value / self.scale) ** 2)

            places, weights = _on_grid(density, jnp.log(self.scale * LOWEST), jnp.log(self.scale * HIGHEST))
            return spread.at[column].set(jnp.exp(jnp.sum(weights * places))), (jnp.exp(places), weights)

        count = len(self.places)
        order = jnp.arange(count * (SWEEPS if count > 1 else 1), dtype=jnp.int32) % count
        spread, (grids, weights) = lax.scan(improve, spread, order)
        return spread, grids[-count:], weights[-count:]


def _on_grid(density: Callable[[Array], Array], low: Array, high: Array) -> tuple[Array, Array]:
    """Places and weights of a density on a line, given by its logarithm: a grid over where it is not negligible."""

    def narrow(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        places, heights = laid(ends)
        step, is_kept = places[1] - places[0], heights > -NEGLIGIBLE
        kept = jnp.where(is_kept, places, jnp.inf), jnp.where(is_kept, places, -jnp.inf)
        return jnp.maximum(low, jnp.min(kept[0]) - step), jnp.minimum(high, jnp.max(kept[1]) + step)

    def laid(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        shares = jnp.linspace(0.0, 1.0, POINTS, dtype=low.dtype)
        places = ends[0] + (ends[1] - ends[0]) * shares
        heights = lax.map(density, places)
        return places, heights - jnp.max(heights)

    places, heights = laid(lax.fori_loop(0, PASSES - 1, narrow, (low, high)))
    return places, jax.nn.softmax(heights)


def _noised(curvature: Array, pull: Array, variance: Array) -> tuple[Array, Array]:
    """A and h of a site from Ĥ, r and v: Ĥ (Ĥ + v I)⁻¹ times Ĥ and r, by eigenvalues, which may be 0."""
    values, vectors = jnp.linalg.eigh(_symmetric(curvature))
    values = jnp.maximum(values, 0)
    shares = values / jnp.maximum(values + variance, 1e-30)
    return (vectors * (shares * values)) @ vectors.T, (vectors * shares) @ (vectors.T @ pull)


def _inverse(matrix: Array) -> Array:
    return _symmetric(jnp.linalg.inv(_symmetric(matrix)))


def _symmetric(matrix: Array) -> Array:
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2
