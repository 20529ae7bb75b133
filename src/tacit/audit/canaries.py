"""Canaries: records whose contributions are marked and scored, read through the same access as all others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.basics.trees import Tree
from tacit.privacy.clipping import Contributions, Dense, Limit, Linear, Outer, clip_weights
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.randomness import insecure_key, is_secure, witness
from tacit.privacy.released import Released

SELECTION = 0.2  # the share of runs that choose the threshold (and a direction); they are not counted
HUGEST = 1e30  # the largest score
HUGE = 1e6  # size of the worst canary's contribution before clipping
DIRECTIONS = 3  # the seed of the canaries' directions, which are public and no part of the noise
NORMAL = NormalDist()


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["records", "present", "level"],
    meta_fields=["mechanism", "unit", "canaries", "is_worst"],
)
@dataclass(frozen=True)
class Canaried(Access):
    """Records whose first `canaries` slots are canaries, read by the same code as others; releases are scored.

    With `is_worst` a canary contributes a huge vector in one direction, whatever its record, so that its clipped
    contribution is constant and as large as possible. Otherwise it contributes its record's own vector.
    Make it with `Canaried.on`; `records` are then pairs of a record and its canary's number, 0 for none.
    """

    canaries: int = 1
    is_worst: bool = True

    @classmethod
    def on(cls, access: Access, canaries: int = 1, is_worst: bool = True) -> "Canaried":
        """An access whose first slots are canaries."""
        if not 1 <= canaries <= access.slots:
            raise ValueError(f"canaries={canaries}; expected from 1 to the number of slots, {access.slots}")
        places = jnp.arange(1, access.slots + 1, dtype=jnp.int32)
        numbers = jnp.where(access.present & (places <= canaries)[:, None], places[:, None], 0)
        return cls(
            (access.records, numbers), access.present, access.mechanism, access.unit, access.level, canaries, is_worst
        )

    def _own(self) -> tuple[Tree, Array]:
        """The canaries' records, and which of them exist."""
        own = jax.tree.map(lambda leaf: leaf[: self.canaries], self.records)
        return own, own[1] > 0

    def having(self, included: Any) -> "Canaried":
        """The same records with exactly the canaries present whose entry of `included` is true."""
        inside = jnp.asarray(included, bool).reshape(self.canaries, 1)
        return replace(self, present=self.present.at[: self.canaries].set(inside & self._own()[1]))

    def map(self, function: Callable[[Tree], Tree]) -> "Canaried":
        return replace(self, records=(jax.vmap(jax.vmap(function))(self.records[0]), self.records[1]))

    def where(self, predicate: Callable[[Tree], Array]) -> "Canaried":
        records, numbers = self.records
        kept = jax.vmap(jax.vmap(predicate))(records)
        return replace(self, records=(records, jnp.where(kept, numbers, 0)), present=self.present & kept)

    def whole(self) -> "Canaried":
        records, numbers = self.records
        # Merge a canary's records whether it is present or not.
        all = replace(self, records=records, present=self.present | (numbers > 0))
        present = jnp.any(self.present, axis=1, keepdims=True)
        marks = jnp.max(numbers, axis=1, keepdims=True)
        return replace(self, records=(Access.whole(all).records, marks), present=present)

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        """The release, with the canaries' scores in its trace."""

        def marked(batch: Tree) -> Contributions:
            records, numbers = batch
            found = contribution(records)
            return _point(found, numbers, self.canaries) if self.is_worst else found

        release = super()._release(key, marked, limit)
        if not isinstance(self.mechanism, SubsampledGaussian):  # no noise: nothing to score
            return release
        level = self._level()
        clip, noise, rate = (
            jnp.asarray(values, jnp.result_type(float))[level]
            for values in (self.mechanism.clips, self.mechanism.noise_multipliers, self.mechanism.sampling_rates)
        )

        def clipped(records: Tree, present: Array, kept: Array) -> tuple[Any, Array]:
            batch = self._units(marked, records, present, limit)
            return batch, jnp.where(kept, clip_weights(batch.norms(), clip), 0)

        # The attacker knows the contributions of all other records, and which of them were sampled.
        records, present, chosen = self._sampled(jax.random.split(key)[0])
        batch, weights = clipped(records, present & chosen[:, None], chosen & (records[1][:, 0] == 0))
        known = batch.weighted_sum(weights)
        rest = jax.tree.map(lambda total, others: total * rate - others, release.value, known)
        batch, weights = clipped(*self._own(), jnp.ones(self.canaries, bool))
        # ⟨rest, v_k⟩ for each canary's clipped contribution v_k: the derivative of ⟨rest, Σ w_k v_k⟩.
        (inner,) = jax.vjp(lambda w: batch.weighted_sum(w * weights), jnp.ones_like(weights))[1](rest)
        shift = (inner - jnp.square(batch.norms() * weights) / 2) / jnp.square(noise * clip)
        shift = jnp.where(weights > 0, shift, 0)  # a contribution that is not finite counts as 0
        return replace(release, trace=(jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + shift),))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["records", "present", "level", "within", "is_within"],
    meta_fields=["mechanism", "unit"],
)
@dataclass(frozen=True)
class Paired(Access):
    """The records of two files as one access; each run reads one of them, and releases are scored.

    `records` are those of the file without a row, and `within` has those of the file with it, in the same form. Slots
    and reading may differ between the two, because the attacker makes no assumption about them. The attacker knows both
    files, hence every exact sum in both worlds, and scores the noise that explains the release in each:

        (⟨d, z⟩ ± ‖d‖²/2) / σ²,   d the difference of the exact sums, z the noise, + in the world with the row

    No score of Gaussian noise is more powerful. Sampling is refused: the attacker would know what the sample hides.
    """

    within: Access = None  # type: ignore[assignment]  # given always; fields before it have defaults
    is_within: Any = False

    canaries = 1

    @classmethod
    def of_both(cls, without: Access, within: Access) -> "Paired":
        """From two accesses of the same form."""
        form = [jax.tree.map(jnp.shape, access) for access in (without, within)]
        if form[0] != form[1]:
            raise ValueError("the two files' records differ in form; give both the same number of slots")
        plain = (without.records, without.present, without.mechanism, without.unit, without.level)
        return cls(*plain, within, jnp.asarray(False))

    def having(self, included: Any) -> "Paired":
        """The file with the row, if `included` (one for one canary) is true."""
        return replace(self, is_within=jnp.asarray(included, bool).reshape(()))

    def map(self, function: Callable[[Tree], Tree]) -> "Paired":
        return replace(self, records=jax.vmap(jax.vmap(function))(self.records), within=self.within.map(function))

    def where(self, predicate: Callable[[Tree], Array]) -> "Paired":
        kept = self.present & jax.vmap(jax.vmap(predicate))(self.records)
        return replace(self, present=kept, within=self.within.where(predicate))

    def whole(self) -> "Paired":
        raise ValueError("a row is not the unit of privacy here; audit a study with unit='record'")

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        mechanism = self.mechanism
        if any(rate < 1 for rate in mechanism.sampling_rates):
            raise ValueError("a sampled sum has no score for a row; use another canary")
        without = Access(self.records, self.present, mechanism, self.unit, self.level)
        within = replace(self.within, mechanism=mechanism, level=self.level)
        level, noise_key, event, out, coordinates, units = without._added_up(key, contribution, limit)
        # The clone allows a second use of the key: both worlds are read with it, and one is released.
        inside = within._added_up(jax.random.clone(key), contribution, limit)[3]
        sums = jax.tree.map(partial(jnp.where, self.is_within), inside, out)
        total = mechanism.release(noise_key, sums, level, coordinates, units)
        release = Released(total, event, not is_secure(key), witness(noise_key))
        if not isinstance(mechanism, SubsampledGaussian):  # no noise: nothing to score
            return release
        lattice = mechanism._lattice(coordinates, units)
        unit, spacing = float(1 << lattice.limb_bits), lattice.spacing(level)

        def exact(high: Array, low: Array) -> Array:
            return (high.astype(spacing.dtype) * unit + low.astype(spacing.dtype)) * spacing

        apart = jax.tree.map(  # subtract integers: floats of large sums would lose the difference
            lambda a, b, c, d: exact(a - b, (c - d).astype(jnp.int32)), inside[0], out[0], inside[1], out[1]
        )
        noise = jax.tree.map(lambda noised, *halves: noised - exact(*halves), total, *sums)
        dots = [jnp.sum(jnp.stack([d * z, d * d]).reshape(2, -1), axis=1) for d, z in _pairs(apart, noise)]
        inner, square = sum(dots, jnp.zeros(2, spacing.dtype))
        score = (inner + jnp.where(self.is_within, 0.5, -0.5) * square) / mechanism.standard_deviation**2
        return replace(release, trace=(score[None],))


def _pairs(first: Tree, second: Tree) -> list[tuple[Array, Array]]:
    return list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def _point(batch: Any, numbers: Array, canaries: int) -> Any:
    """The batch, with each canary's contribution huge and in its own direction."""
    is_canary = numbers > 0

    def direction(width: int) -> Array:
        """The first coordinate for a single canary; a random direction for each of many."""
        if canaries == 1:
            return jnp.zeros((1, width)).at[0, 0].set(1)
        drawn = jax.random.normal(insecure_key(DIRECTIONS), (canaries, width))
        return drawn[jnp.maximum(numbers - 1, 0)]

    def chosen(canary: Array, leaf: Array) -> Array:
        return jnp.where(is_canary.reshape(-1, *(1,) * (leaf.ndim - 1)), canary.astype(leaf.dtype), leaf)

    def marked(tree: Tree, canary: Callable[[Array], Array]) -> Tree:
        """The tree with the canary in its first leaf and zeros for it in the others."""
        leaves, treedef = jax.tree.flatten(tree)
        made = [chosen(canary(leaf) if j == 0 else jnp.zeros_like(leaf), leaf) for j, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, made)

    if isinstance(batch, Dense):
        return Dense(marked(batch.tree, lambda leaf: HUGE * direction(leaf[0].size).reshape(-1, *leaf.shape[1:])))
    coefficients = marked(batch.coefficients, lambda leaf: HUGE * jnp.ones_like(leaf))
    features = marked(batch.features, lambda leaf: direction(leaf.shape[1]))
    return (Linear if isinstance(batch, Linear) else Outer)(coefficients, features)


def total_score(release: Released[Any]) -> Array:
    """Each canary's score, summed over all releases of the run."""
    return sum((jnp.sum(leaf.reshape(-1, leaf.shape[-1]), axis=0) for leaf in release.trace), jnp.zeros(()))
