"""Is the noise what the receipt says, and the sample what the accountant thinks? With the power to notice if not.

Each test states its false-alarm rate and then runs on a broken version, which it must reject.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tacit
from tacit.privacy.clipping import Linear
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.sampling import STRIDE, PoissonSampler, default_buffer

ALARM = 1e-5  # of each accepted test


def linear(records):
    return Linear(records[1], records[0])


# --- Noise -------------------------------------------------------------------------------------------------------


def releases(mechanism: SubsampledGaussian, count: int = 2000, x=None, y=None) -> np.ndarray:
    """Many releases of a table, by default an empty one: noise alone, in units of σC."""
    x = np.zeros((0, 4), np.float32) if x is None else x
    y = np.zeros(len(x), np.float32) if y is None else y
    access = Access.of((x, y), mechanism, slots=max(10, len(x)))
    keys = jax.random.split(tacit.insecure_key(21), count)
    values = jax.jit(jax.vmap(lambda key: access.sum(key, linear).value))(keys)
    rate, clip, sigma = mechanism.sampling_rates[0], mechanism.clips[0], mechanism.noise_multipliers[0]
    return np.asarray(values, np.float64) * rate / (clip * sigma)


def is_standard_normal(sample: np.ndarray) -> bool:
    """Kolmogorov-Smirnov at level ALARM."""
    return stats.kstest(sample.reshape(-1), "norm").pvalue > ALARM


class NoNoise(SubsampledGaussian):
    """Noise computed and dropped: a bug that was published."""

    def release(self, key, sums, level, coordinates, units):
        super().release(key, sums, level, coordinates, units)
        high, _ = sums  # these small sums fit in one word
        return high.astype(jnp.float32) * self._lattice(coordinates, units).spacing(level)


class ScaledNoise(SubsampledGaussian):
    factor = 1.0

    def _wrong(self):
        return SubsampledGaussian(self.clip, tuple(self.factor * m for m in self.noise_multipliers), self.sampling_rate)

    def add_up(self, *arguments):
        return self._wrong().add_up(*arguments)

    def release(self, *arguments):
        return self._wrong().release(*arguments)


class HalfNoise(ScaledNoise):
    factor = 0.5


class TwoThirdsNoise(ScaledNoise):
    factor = 2 / 3


class ThreeHalvesNoise(ScaledNoise):
    factor = 3 / 2


@pytest.mark.parametrize("mechanism", [SubsampledGaussian(1.0, 2.0), SubsampledGaussian(0.01, 7.0, 0.3)])
def test_the_released_noise_is_the_promised_gaussian(mechanism):
    """False alarm 1e-5. The sampled mechanism's noise is scaled by the public 1/rate like the sum itself."""
    assert is_standard_normal(releases(mechanism))


@pytest.mark.parametrize("broken", [NoNoise, HalfNoise, TwoThirdsNoise, ThreeHalvesNoise])
def test_noise_that_is_not_as_promised_is_noticed(broken):
    assert not is_standard_normal(releases(broken(1.0, 2.0)))


def test_noise_is_independent_across_coordinates_and_releases():
    """Correlations of 2,000 × 4 normals: each within 5 / √2000 (false alarm 6e-6 in all)."""
    sample = releases(SubsampledGaussian(1.0, 2.0))
    correlations = np.corrcoef(sample.T)[np.triu_indices(4, 1)]
    successive = [np.corrcoef(sample[:-1, j], sample[1:, j])[0, 1] for j in range(4)]
    assert np.all(np.abs([*correlations, *successive]) < 5 / np.sqrt(2000))


@pytest.mark.slow
def test_noise_has_its_tails():
    """How many of 5e7 draws pass 5 deviations is a Poisson count of mean 28, within 1e-5; a cut tail is noticed.

    Only the leading table is drawn: it decides the tail.
    """
    from tacit.privacy.noise import TABLE_SCALE, _table

    draw = jax.jit(lambda key: jnp.sum(jnp.abs(_table().draw(key, (2_000_000,))) > 1000))
    hits = sum(int(draw(jax.random.fold_in(tacit.insecure_key(8), i))) for i in range(25))
    expected = 50_000_000 * 2 * stats.norm.sf(1000.5 / TABLE_SCALE)
    assert stats.poisson.cdf(hits, expected) > ALARM
    assert stats.poisson.sf(hits - 1, expected) > ALARM
    assert stats.poisson.cdf(0, expected) < ALARM


def canary_scores(mechanism: SubsampledGaussian) -> tuple[np.ndarray, np.ndarray]:
    """Releases with and without one record of largest influence, projected on it."""
    x = np.zeros((10, 4), np.float32)
    x[:, 1] = 1.0  # ordinary records
    y = np.ones(10, np.float32)
    without = releases(mechanism, 4000, x, y)[:, 0]
    x[0] = (1000.0, 0, 0, 0)
    return releases(mechanism, 4000, x, y)[:, 0], without


def distinguishable(mechanism: SubsampledGaussian, claimed: float) -> bool:
    """Whether some threshold tells the canary better than μ = `claimed` allows, at level ALARM (Gaussian DP)."""
    present, absent = canary_scores(mechanism)
    for threshold in np.linspace(-1, 2, 13):
        right, wrong = np.sum(present > threshold), np.sum(absent > threshold)
        lower = stats.beta.ppf(ALARM / 26, right, len(present) - right + 1) if right else 0.0
        upper = stats.beta.ppf(1 - ALARM / 26, wrong + 1, len(absent) - wrong) if wrong < len(absent) else 1.0
        if lower > stats.norm.cdf(claimed + stats.norm.ppf(upper)):
            return True
    return False


class ClipSkipped(SubsampledGaussian):
    """Clips nothing, and adds noise as if it had."""

    def add_up(self, batch, chosen, level, coordinates, units):
        lattice = self._lattice(coordinates, units)
        return batch.rounded_sum(chosen.astype(jnp.float32), lattice.spacing(level), lattice.limb_bits)


def test_a_canary_is_hidden_by_the_mechanism_and_found_in_broken_ones():
    """The canary's influence is the whole clip, so the pair is exactly N(0,1) against N(1/σ,1)."""
    claimed = 1 / 2.0
    assert not distinguishable(SubsampledGaussian(1.0, 2.0), claimed)
    for broken in (NoNoise, HalfNoise, ClipSkipped):
        assert distinguishable(broken(1.0, 2.0), claimed), broken.__name__


# --- Sampling ----------------------------------------------------------------------------------------------------


def inclusions(sampler: PoissonSampler, count: int = 4000) -> np.ndarray:
    """(count, slots) of 0 and 1: which slots each draw chose."""

    def one(key):
        indices, chosen = sampler.draw(key)
        return jnp.zeros(sampler.slots, jnp.int32).at[indices].add(chosen.astype(jnp.int32))

    keys = jax.random.split(tacit.insecure_key(31), count)
    return np.asarray(jax.jit(jax.vmap(one))(keys))


def looks_poisson(found: np.ndarray, rate: float) -> bool:
    """Marginal and pairwise inclusion of every slot and pair within their binomial bounds, ALARM in all."""
    count, slots = found.shape
    singles = found.sum(axis=0)
    level = ALARM / (slots + slots * (slots - 1) / 2) / 2
    low, high = stats.binom.ppf([level, 1 - level], count, rate)
    if not np.all((singles >= low) & (singles <= high)):
        return False
    pairs = (found.T @ found)[np.triu_indices(slots, 1)]
    low, high = stats.binom.ppf([level, 1 - level], count, rate**2)
    return bool(np.all((pairs >= low) & (pairs <= high)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_slots_are_chosen_independently_with_the_rate(rate):
    found = inclusions(PoissonSampler(12, (rate,), 12))
    assert found.max() == 1
    assert looks_poisson(found, rate)


def test_other_samplers_are_told_from_poisson():
    """Power: a rate 15 % off, a fixed-size batch, and shuffled passes are all noticed."""
    rng = np.random.default_rng(0)
    assert not looks_poisson(inclusions(PoissonSampler(12, (0.5 * 1.15,), 12)), 0.5)
    fixed = np.zeros((4000, 12), int)
    for row in fixed:
        row[rng.choice(12, 6, replace=False)] = 1
    assert not looks_poisson(fixed, 0.5)
    passes = np.tile(np.eye(12, dtype=int).reshape(6, 2, 12).sum(axis=1), (667, 1))[:4000]
    assert not looks_poisson(passes, 1 / 6)


def test_the_sample_size_is_binomial_for_small_rates_and_long_gaps():
    """100,000 slots at rate 1e-4: gaps pass the table's end often. χ² of the size against Binomial, 1e-5."""
    sampler = PoissonSampler(100_000, (1e-4,), default_buffer(100_000, 1e-4))
    keys = jax.random.split(tacit.insecure_key(5), 4000)
    sizes, firsts = jax.jit(jax.vmap(lambda k: _size_and_first(sampler, k)))(keys)
    sizes = np.asarray(sizes)
    edges = np.arange(4, 18)
    observed = np.array([np.sum(sizes <= 4), *(np.sum(sizes == e) for e in edges[1:-1]), np.sum(sizes >= 17)])
    cdf = stats.binom.cdf(edges, 100_000, 1e-4)
    expected = 4000 * np.array([cdf[0], *np.diff(cdf)[:-1], 1 - cdf[-2]])
    assert stats.chisquare(observed, expected).pvalue > ALARM
    assert stats.kstest(np.asarray(firsts)[sizes > 0], stats.geom(1e-4).cdf).pvalue > ALARM
    assert np.asarray(firsts).max() > 3 * STRIDE


def _size_and_first(sampler: PoissonSampler, key):
    indices, chosen = sampler.draw(key)
    first = jnp.min(jnp.where(chosen, indices, sampler.slots)) + 1
    return jnp.sum(chosen), first


def test_a_full_buffer_keeps_the_first_chosen():
    sampler, wide = PoissonSampler(50, (0.5,), 10), PoissonSampler(50, (0.5,), 50)
    key = tacit.insecure_key(3)
    kept, flags = sampler.draw(key)
    everything, all_flags = wide.draw(jax.random.clone(key))
    indices, complete = (np.asarray(i)[np.asarray(f)] for i, f in ((kept, flags), (everything, all_flags)))
    assert len(indices) == 10
    assert np.all(np.diff(complete) > 0)
    sizes = inclusions(sampler, 200).sum(axis=1)
    assert sizes.max() == 10


@pytest.mark.parametrize(
    ("slots", "rates", "buffer"), [(2_000_000, (1e-4,), 600_000), (3_000_000, (1.0, 1e-4), 3_000_000)]
)
def test_long_gaps_do_not_wrap_around_and_choose_again(slots, rates, buffer):
    """A running sum of 32 bits would pass 2³² here, come back positive and choose twice as many."""
    indices, chosen = PoissonSampler(slots, rates, buffer).draw(tacit.insecure_key(3), jnp.int32(len(rates) - 1))
    picked = np.asarray(indices)[np.asarray(chosen)]
    assert len(np.unique(picked)) == len(picked)
    assert abs(len(picked) - slots * 1e-4) < 6 * np.sqrt(slots * 1e-4)  # false alarm below 1e-8


def test_levels_have_their_own_rates():
    """Two levels in one program: mean sample sizes within 5 standard errors."""
    sampler = PoissonSampler(40, (0.1, 0.6), 40)
    keys = jax.random.split(tacit.insecure_key(6), 2000)
    for level, rate in enumerate((0.1, 0.6)):
        draw = jax.jit(jax.vmap(lambda k, index: jnp.sum(sampler.draw(k, index)[1]), (0, None)))
        sizes = np.asarray(draw(keys, jnp.int32(level)))
        assert abs(sizes.mean() - 40 * rate) < 5 * np.sqrt(40 * rate * (1 - rate) / 2000)
