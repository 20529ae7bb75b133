"""Mutants of a mechanism: its noise, its clip, its sample, and the receipts and keys of releases."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from tests.mutants.attacks_on_sums import (
    LISTENING,
    SAMPLED,
    TRUNCATED,
    Listening,
    Reading,
    by_bins,
    by_counting,
    by_displacement,
    by_patience,
    by_sum,
)
from tests.mutants.checks_of_mechanisms import SLOW
from tests.mutants.judging import Mutant
from tests.mutants.operators import calling, indexing
from tests.mutants.planting import broken, broken_function, replaced, with_lattice, with_noise

from tacit.families import register
from tacit.federated.tied import Central
from tacit.privacy import events
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.noise import Lattice, lattice_gaussian
from tacit.privacy.released import Released
from tacit.privacy.sampling import PoissonSampler

GUARD = "a guard: it takes another mistake to lose privacy"
MARK = "a mark for those who read it; the noise is the same"

# --- The noise ---------------------------------------------------------------------------------------------------


class ScaledNoise(SubsampledGaussian):
    """Noise as if it came after the scaling by 1 / rate."""

    def _lattice(self, coordinates, units):
        noise = (m * rate for m, rate in zip(self.noise_multipliers, self.sampling_rates, strict=True))
        return SubsampledGaussian(self.clips, tuple(noise))._lattice(coordinates, units)


class FloatingNoise(SubsampledGaussian):
    def release(self, key, sums, level, coordinates, units):
        total = sums[0].astype(jnp.result_type(float)) * self._lattice(coordinates, units).spacing(level)
        return total + self.clips[0] * self.noise_multipliers[0] * jax.random.normal(key, total.shape)


def first_spacing(self, level):
    return Lattice.spacing(self, 0)


NOISE = [
    Mutant("noise dropped", "mechanism", with_noise(lambda noise: 0 * noise), LISTENING),
    Mutant("noise halved", "mechanism", with_noise(lambda noise: noise // 2), LISTENING),
    Mutant(
        "one noise for all coordinates",
        "mechanism",
        with_noise(lambda noise: jnp.full_like(noise, noise[0])),
        LISTENING,
    ),
    Mutant(
        "noise twice on one coordinate, none on another",
        "mechanism",
        with_noise(lambda noise: noise.at[0].set(0).at[1].multiply(2)),
        LISTENING,
    ),
    Mutant(
        "noise from a key in the source",
        "mechanism",
        with_noise(lambda noise: lattice_gaussian(jax.random.key(0), noise.shape)),
        LISTENING,
    ),
    Mutant("noise after the scaling by 1/rate", "mechanism", replaced(mechanism=ScaledNoise), SAMPLED),
    Mutant(
        "noise in floating point",
        "mechanism",
        replaced(mechanism=FloatingNoise),
        unseen="the digits that betray a sum are the last ones, and no score looks at them",
    ),
    Mutant(
        "noise of the first level at all of them",
        "schedule",
        with_lattice(spacing=first_spacing),
        Listening((1.0, (1.0, 4.0)), (1, 1)),
    ),
]

# --- The clip ----------------------------------------------------------------------------------------------------


class ClipAfterNoise(SubsampledGaussian):
    """The sum of what is finite, noised, and then clipped as one."""

    def add_up(self, batch, chosen, level, coordinates, units):
        return batch.weighted_sum((chosen & jnp.isfinite(batch.norms())).astype(jnp.float32))

    def release(self, key, sums, level, coordinates, units):
        silent = jnp.zeros(sums.shape, jnp.int32), jnp.zeros(sums.shape, jnp.uint32)
        noised = sums + super().release(key, silent, level, coordinates, units)
        return noised * jnp.minimum(1, self.clips[0] / jnp.linalg.norm(noised))


class QuantileClip(SubsampledGaussian):
    """Clips to a quantile of the records' own norms, which nothing has released, and scales its noise by it."""

    def add_up(self, batch, chosen, level, coordinates, units):
        norms = jnp.where(jnp.isfinite(batch.norms()), batch.norms(), 0)
        scale = jnp.maximum(jnp.quantile(norms, 0.9), 1e-6) / self.clips[0]
        smaller = jax.tree.map(lambda leaf: leaf / scale, batch)
        return super().add_up(smaller, chosen, level, coordinates, units), scale

    def release(self, key, sums, level, coordinates, units):
        return sums[1] * super().release(key, sums[0], level, coordinates, units)


def of_finite_norms(clip_weights):
    return lambda norms, clip: clip_weights(jnp.where(jnp.isfinite(norms), norms, 0), clip)


@register("mechanism", "unit")
class ExactCount(Access):
    """The share within a limit is the exact one."""

    def sum_within(self, key, contribution, limit):
        is_within = contribution(self.records[:, 0]).norms() <= limit.norm
        share = 0.5 + jnp.sum(jnp.where(self.present[:, 0], jnp.where(is_within, 0.5, -0.5), 0)) / self.slots
        return super().sum_within(key, contribution, limit).map(lambda found: (found[0], share))


def each_record_alone(_positions_of_groups):
    return lambda groups, most_records, count: np.arange(count)[:, None]


CLIP = [
    Mutant(
        "clip of the first level at all of them",
        "schedule",
        broken("mechanism", "add_up", indexing("clips", 0)),
        Listening(((1.0, 0.25), 1.0), (1, 1)),
    ),
    Mutant("clip after noise", "mechanism", replaced(mechanism=ClipAfterNoise), LISTENING),
    Mutant(
        "clip skipped for what is not finite",
        "mechanism",
        broken("mechanism", "add_up", calling("clip_weights", of_finite_norms)),
        Reading(Listening((1.0, 2.0), 1, (3e38, 0.0, 0.0)), by_bins),
    ),
    Mutant("uncharged quantile as clip", "mechanism", replaced(mechanism=QuantileClip), LISTENING),
    Mutant("a moved clip goes by a count without noise", "moved clip", replaced(access=ExactCount), by_counting),
    Mutant(
        "records of a person clipped one by one",
        "people",
        broken("access", "of", calling("_positions_of_groups", each_record_alone)),
        Reading(replace(LISTENING, records=3, settings=(1.0, 2.5)), by_sum),
    ),
]

# --- The scale of a sum, and its sample --------------------------------------------------------------------------


def scaled(release, factor):
    return release.map(lambda total: jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), total))


@register("mechanism", "unit")
class BatchMean(Access):
    """Scaled by how many were chosen, in place of how many are chosen on average."""

    def _release(self, key, contribution, limit):
        _, present, chosen = self._sampled(jax.random.split(key)[0])
        size = jnp.maximum(1, jnp.sum(present[:, 0] & chosen))
        rate = jnp.asarray(self.mechanism.sampling_rates)[self._level()]
        return scaled(super()._release(key, contribution, limit), rate * self.slots / size.astype(rate.dtype))


@register("mechanism", "unit")
class ShareOfRecords(Access):
    """Scaled by how many records there are."""

    def _release(self, key, contribution, limit):
        return scaled(super()._release(key, contribution, limit), jnp.mean(self.present.astype(jnp.float32)))


class InOrder(PoissonSampler):
    """As many slots as the rate says, one batch after the other, whatever the key. A step is a level here."""

    def draw(self, key, level=0):
        size = round(self.slots * self.sampling_rates[0])
        batch = (jnp.asarray(level, jnp.int32) * size + jnp.arange(size, dtype=jnp.int32)) % self.slots
        rest = jnp.zeros(self.draws - size, jnp.int32)
        return jnp.concatenate([batch, rest]), jnp.arange(self.draws) < size


class BatchesInOrder(SubsampledGaussian):
    def sampler(self, slots):
        sound = super().sampler(slots)
        return None if sound is None else InOrder(sound.slots, sound.sampling_rates, sound.buffer)


class TwiceTheRate(SubsampledGaussian):
    def sampler(self, slots):
        sound = super().sampler(slots)
        rates = tuple(min(1.0, 2 * rate) for rate in self.sampling_rates)
        return None if sound is None else PoissonSampler(sound.slots, rates, sound.buffer)


class ChargedAsPoisson(SubsampledGaussian):
    def level_events(self, slots, unit, coordinates):
        sound = super().level_events(slots, unit, coordinates)
        return tuple(
            events.PoissonSampled(event.sampling_rate, event.event)
            if isinstance(event, events.TruncatedPoissonSampled)
            else event
            for event in sound
        )


def one_key_twice(split):
    return lambda key: (key, key)


SAMPLE = [
    Mutant("batch mean by realised size", "access", replaced(access=BatchMean), LISTENING),
    Mutant("scaled by the true number of records", "access", replaced(access=ShareOfRecords), LISTENING),
    Mutant("batches in a fixed order", "mechanism", replaced(mechanism=BatchesInOrder), SAMPLED),
    Mutant("sampled at twice the rate that is charged", "mechanism", replaced(mechanism=TwiceTheRate), SAMPLED),
    Mutant(
        "truncated batch charged as Poisson",
        "mechanism",
        replaced(mechanism=ChargedAsPoisson),
        Reading(TRUNCATED, by_displacement),
    ),
    Mutant(
        "sample and noise from one stream",
        "access",
        broken("access", "_added_up", calling("jax.random.split", one_key_twice)),
        Reading(Listening((1.0, 1.0, 0.1), 1, slots=20, delta=0.01, runs=16000), by_bins),
    ),
]

# --- Whole sites -------------------------------------------------------------------------------------------------

MOST_SHARES = 12


@register("solvers", "kinds", "damping", "prior_steps", "rounds", "reset")
@dataclass(frozen=True)
class HiddenShares(Central):
    """Each site adds its share of the noise, and takes back in the next round what of it is in its own factor.

    Only the sum of the shares is seen, and its noise has the standard deviation that is claimed (Liu's algorithm 3
    under a secure sum). In one dimension, for sites without records, except the first, whose update is clipped and
    takes nothing back.
    """

    def site_init(self):
        return super().site_init(), jnp.zeros(MOST_SHARES)

    def answer(self, state):
        return state[0].factor

    def site_step(self, key, state, content, access, kind):
        plain, hidden = state
        first, second, third = jax.random.split(key, 3)
        claimed = super().site_step(first, plain, content, access, kind)
        sites, sd = access.slots, access.mechanism.noise_multipliers[0] * access.mechanism.clips[0]
        quiet = access.through(replace(access.mechanism, noise_multiplier=1e-2))
        moved = super().site_step(second, plain, content, quiet, kind).value
        shares = jnp.pad(sd / sites**0.5 * jax.random.normal(third, (sites,)), (0, MOST_SHARES - sites))
        change = SLOW * (shares - jnp.clip(hidden, -1, 1).at[0].set(0))
        factor = replace(moved.factor, precision_mean=moved.factor.precision_mean + jnp.sum(change))
        return claimed.map(lambda _: (replace(moved, factor=factor), hidden + change))


WHOLE_SITES = [
    Mutant(
        "a hidden share of noise is taken back", "central", replaced(central=HiddenShares), by_patience, is_long=True
    ),
]

# --- Receipts and the keys of steps ------------------------------------------------------------------------------


@register("receipt", "seeded")
class Once(Released):
    """Costs what one release does, however many there are."""

    @property
    def event(self):
        return self.receipt


@register("mechanism", "unit")
class PaidOnce(Access):
    def _release(self, key, contribution, limit):
        return Once(**vars(super()._release(key, contribution, limit)))


@register("mechanism", "unit")
class Unmarked(Access):
    def _release(self, key, contribution, limit):
        return replace(super()._release(key, contribution, limit), seeded=False)


def twice_as_many(arange):
    return lambda count, **more: arange(2 * count, **more)


def the_first_key(fold_in):
    return lambda key, step: fold_in(key, 0)


def nothing_spent(_spend):
    return lambda key: None


def any_key(own_key):
    return lambda key, sums: key


RECEIPTS = [
    Mutant(
        "price of one step, scan of two",
        "loop",
        broken_function("repeat", calling("jnp.arange", twice_as_many)),
        LISTENING,
    ),
    Mutant(
        "noise key reused across steps",
        "loop",
        broken_function("repeat", calling("fold_in", the_first_key)),
        LISTENING,
    ),
    Mutant(
        "many releases by vmap charged as one",
        "receipt",
        replaced(access=PaidOnce),
        replace(LISTENING, copies=4, steps=1),
    ),
    Mutant("seeded noise not marked", "receipt", replaced(access=Unmarked), unseen=MARK),
    Mutant(
        "a key may make two releases",
        "receipt",
        broken("access", "_added_up", calling("_spend", nothing_spent)),
        unseen=GUARD,
    ),
    Mutant(
        "one key for many releases by vmap",
        "receipt",
        broken("mechanism", "release", calling("own_key", any_key)),
        unseen=GUARD,
    ),
]

MUTANTS = [*NOISE, *CLIP, *SAMPLE, *WHOLE_SITES, *RECEIPTS]
