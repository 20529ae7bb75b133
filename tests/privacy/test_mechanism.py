"""The one way to read records: bounded, noised, receipted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tacit
from tacit.privacy.clipping import Dense, Limit, Linear, Outer, per_record
from tacit.privacy.events import Composed, Gaussian, NonPrivate, Repeated, TruncatedPoissonSampled
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.noise import SCALE, Lattice, lattice_gaussian
from tacit.privacy.released import Level, Released, price, repeat

DIMENSION = 3


def linear(records):
    return Linear(records[1], records[0])


def dense(records):
    return per_record(lambda r: r[1] * r[0])(records)


def outer(records):
    return Outer(records[1], records[0])


def records(n: int = 8, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, DIMENSION)).astype(np.float32), rng.normal(size=n).astype(np.float32)


any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
MECHANISMS = [SubsampledGaussian(1.0, 2.0), SubsampledGaussian(0.5, 1.0, 0.4), SubsampledGaussian(2.0, 0.5, 0.4, 3)]
_sum = jax.jit(lambda key, access, contribution: access.sum(key, contribution), static_argnums=2)


# --- Sensitivity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contribution", [linear, dense, outer])
@pytest.mark.parametrize("mechanism", MECHANISMS[:2])
@settings(max_examples=25)
@given(
    x=hnp.arrays(np.float32, (8, DIMENSION), elements=any_float),
    y=hnp.arrays(np.float32, (8,), elements=any_float),
    place=st.integers(0, 7),
)
def test_one_record_moves_the_release_by_at_most_the_clip(contribution, mechanism, x, y, place):
    """With one key, noise and sample are the same for both neighbours: what is left is the record's share."""
    key = tacit.insecure_key(11)
    access = Access.of((x, y), mechanism)
    without = Access(access.records, access.present.at[place].set(False), mechanism)
    a, b = (np.asarray(_sum(key, data, contribution).value, np.float64) for data in (access, without))
    assert np.all(np.isfinite(a))
    clip, rate = mechanism.clips[0], mechanism.sampling_rates[0]
    # The released float is an integer times the spacing: its own rounding is post-processing, allowed for here.
    slack = 1e-6 * (np.abs(a).max() + np.abs(b).max())
    assert np.linalg.norm(a - b) <= clip / rate * (1 + 1e-5) + slack


_within = jax.jit(lambda key, access, contribution, limit: access._release(key, contribution, limit), static_argnums=2)


@pytest.mark.parametrize("contribution", [linear, dense])
@settings(max_examples=25)
@given(
    x=hnp.arrays(np.float32, (8, DIMENSION), elements=any_float),
    y=hnp.arrays(np.float32, (8,), elements=any_float),
    place=st.integers(0, 7),
    norm=any_float,
)
def test_one_record_moves_a_release_within_a_limit_by_at_most_the_clip_whatever_the_limit(
    contribution, x, y, place, norm
):
    """The vector and the count by which the limit is moved, together, before either is brought back to its units."""
    mechanism, key = MECHANISMS[1], tacit.insecure_key(11)
    access = Access.of((x, y), mechanism)
    without = Access(access.records, access.present.at[place].set(False), mechanism)
    limit = Limit(jnp.float32(norm), jnp.float32(0.1))
    a, b = (
        np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(found.value)])
        for found in (_within(key, data, contribution, limit) for data in (access, without))
    )
    assert np.all(np.isfinite(a))
    slack = 1e-6 * (np.abs(a).max() + np.abs(b).max())
    assert np.linalg.norm(a - b) <= mechanism.clips[0] / mechanism.sampling_rates[0] * (1 + 1e-5) + slack


def test_a_sum_within_a_limit_is_clipped_there_and_tells_how_many_were_within():
    x = np.array([[3.0, 0, 0], [0.5, 0, 0], [0, 0.25, 0], [np.nan, 0, 0]], np.float32)
    y = np.ones(4, np.float32)
    limit = Limit(jnp.float32(1.0), 0.25)
    access = Access.of((x, y), SubsampledGaussian(7.0, 1e-2))
    release = access.sum_within(tacit.insecure_key(0), linear, limit)
    total, share = release.value
    np.testing.assert_allclose(total, [1.5, 0.25, 0.0], atol=0.06)
    # Two within, one not; the record that is not a number and places without a record count as half.
    assert float(share) == pytest.approx((2 + 0.5) / 4, abs=0.03)
    assert release.event == Gaussian(1e-2, coordinates=4)
    exact, share = Access.of((x[:3], y[:3]), Exact()).sum_within(tacit.insecure_key(0), linear, limit).value
    np.testing.assert_allclose(exact, [3.5, 0.25, 0.0], rtol=1e-5)
    assert float(share) == pytest.approx(2 / 3)


def test_a_limit_is_refused_where_a_weight_could_overflow():
    access = Access.of((np.ones((2, 3), np.float32), np.ones(2, np.float32)), SubsampledGaussian(1.0, 1.0))
    limit = Limit(jnp.float32(1.0), 0.25)
    with pytest.raises(ValueError, match="Outer contributions cannot be summed within a limit"):
        access.sum_within(tacit.insecure_key(0), outer, limit)
    with pytest.raises(ValueError, match=r"clip=10000000000000\.0 cannot"):
        access.through(SubsampledGaussian(1e13, 1.0)).sum_within(tacit.insecure_key(0), linear, limit)
    found = access.sum_within(tacit.insecure_key(0), linear, Limit(jnp.float32(np.nan), jnp.float32(np.nan)))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found.value))


def test_all_the_records_of_a_person_are_within_a_limit_together_or_not():
    x, y = np.tile(np.array([[0.6, 0, 0]], np.float32), (4, 1)), np.ones(4, np.float32)
    limit = Limit(jnp.float32(1.0), 0.25)
    access = Access.of((x, y), SubsampledGaussian(1.0, 1e-2), groups=[0, 0, 1, 2], most_records=2)
    total, share = access.sum_within(tacit.insecure_key(0), linear, limit).value
    np.testing.assert_allclose(total, [1.0 + 1.2, 0.0, 0.0], atol=0.06)
    assert float(share) == pytest.approx(2 / 3, abs=0.03)


@settings(max_examples=25)
@given(
    x=hnp.arrays(np.float32, (8, DIMENSION), elements=any_float),
    y=hnp.arrays(np.float32, (8,), elements=any_float),
    place=st.integers(0, 7),
)
def test_a_truncated_sample_may_displace_one_other_record(x, y, place):
    mechanism = MECHANISMS[2]
    key = tacit.insecure_key(12)
    access = Access.of((x, y), mechanism)
    without = Access(access.records, access.present.at[place].set(False), mechanism)
    a, b = (np.asarray(_sum(key, data, linear).value, np.float64) for data in (access, without))
    slack = 1e-6 * (np.abs(a).max() + np.abs(b).max())
    # The choice of slots does not look at the data, so emptying one moves the sum by that one record.
    assert np.linalg.norm(a - b) <= mechanism.clips[0] / 0.4 * (1 + 1e-5) + slack


def test_all_the_records_of_a_person_together_move_it_by_at_most_the_clip():
    """Five records of norm 1 each: as records they would move the sum by 5, as a person by 1."""
    x = np.tile(np.array([[1.0, 0, 0]], np.float32), (10, 1))
    y = np.ones(10, np.float32)
    people = np.array([7] * 5 + [1, 2, 3, 4, 5])
    mechanism = SubsampledGaussian(1.0, 0.01)
    both = Access.of((x, y), mechanism, groups=people, most_records=5)
    rest = Access.of((x[5:], y[5:]), mechanism, groups=people[5:], most_records=5, slots=6)
    assert both.unit == "person"
    release = both.sum(tacit.insecure_key(1), linear)
    assert float(release.value[0]) == pytest.approx(6.0, abs=0.1)
    assert float(rest.sum(tacit.insecure_key(1), linear).value[0]) == pytest.approx(5.0, abs=0.1)
    assert release.event == Gaussian(0.01, unit="person", coordinates=3)
    as_records = Access.of((x, y), mechanism).sum(tacit.insecure_key(1), linear)
    assert float(as_records.value[0]) == pytest.approx(10.0, abs=0.1)


def test_only_the_first_records_of_a_person_are_used_and_order_of_people_does_not_matter():
    x = np.eye(3, dtype=np.float32)[[0, 1, 0, 2]]
    y = np.ones(4, np.float32)
    access = Access.of((x, y), Exact(), groups=["b", "a", "b", "b"], most_records=2)
    assert access.present.shape == (2, 2)
    assert np.asarray(access.sum(tacit.insecure_key(0), linear).value) == pytest.approx([2.0, 1.0, 0.0])


# --- Noise -------------------------------------------------------------------------------------------------------


def test_noise_is_wide_enough_for_clip_rounding_and_margin():
    for multiplier, dimension, clip in [(0.5, 1, 1.0), (5.0, 109, 2.0), (30.0, 10_000, 1e-3)]:
        lattice = Lattice.of((clip,), (multiplier,), dimension, 300, 1e-5)
        g = lattice.spacings[0]
        sensitivity = clip * (1 + 1e-5) / g + np.sqrt(dimension) / 2
        assert multiplier * sensitivity == pytest.approx(SCALE, rel=1e-12)
        assert SCALE * g / clip == pytest.approx(multiplier, rel=2e-3)  # and not much wider


@pytest.mark.parametrize("batch", [1, 300, 40_000, 400_000])
@pytest.mark.parametrize("multiplier", [1.0, 4.0, 50.0])
def test_sums_of_any_batch_fit_their_words(batch, multiplier):
    lattice = Lattice.of((1.0,), (multiplier,), 10, batch, 1e-5)
    largest = int(np.ceil(1.0 / lattice.spacings[0])) + 2
    bits = lattice.limb_bits
    noise = 2048 * (128**2 + 128 + 1)
    if bits == 0:
        assert largest * batch + noise < 2**31
    else:
        assert batch * 2**bits + 2**bits < 2**32
        assert ((largest >> bits) + 1) * batch + (noise >> bits) + batch < 2**31


def test_two_words_release_the_same_number_as_one():
    one, two = Lattice((0.5,), 0), Lattice((0.5,), 9)
    totals = jnp.array([0, 1, -1, 123_456, -98_765], jnp.int32)
    key = tacit.insecure_key(3)
    expected = one.add_noise(key, totals, jnp.zeros_like(totals, jnp.uint32))
    split = two.add_noise(key, (totals >> 9) - 3, ((totals & 511) + 3 * 512).astype(jnp.uint32))
    assert np.array_equal(np.asarray(expected), np.asarray(split))


def test_the_release_is_a_function_of_the_noised_total_alone():
    """Different ways to reach one total in two words give one answer: nothing of the summands is left in it."""
    lattice, key = Lattice((1.0,), 6), tacit.insecure_key(4)
    ways = [(10, 5), (9, 69), (7, 197), (-3, 837)]
    answers = {float(lattice.add_noise(key, jnp.int32(h)[None], jnp.uint32(low)[None])[0]) for h, low in ways}
    assert len(answers) == 1


def test_every_integer_near_zero_comes_up():
    """No holes: each residue modulo 128 and modulo 128² / 64 is hit as often as it should be (χ², 1e-6)."""
    from scipy import stats

    draws = np.asarray(lattice_gaussian(tacit.insecure_key(9), (400_000,)))
    for modulus, shift in ((128, 0), (256, 7), (97, 0)):
        counts = np.bincount((draws >> shift) % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_too_much_or_too_little_noise_for_the_lattice_is_refused():
    with pytest.raises(ValueError, match=r"noise_multiplier=100000\.0 with 10000 dimensions"):
        Lattice.of((1.0,), (1e5,), 10_000, 10, 0.0)
    with pytest.raises(ValueError, match="too large for exact sums"):
        Lattice.of((1.0,), (1e-6,), 1, 10, 0.0)


# --- Receipts ----------------------------------------------------------------------------------------------------


def test_the_receipt_names_what_was_done():
    x, y = records(100)
    key = tacit.insecure_key(0)
    full = Access.of((x, y), SubsampledGaussian(1.0, 2.0)).sum(tacit.insecure_key(0), linear)
    assert full.event == Gaussian(2.0, coordinates=3)
    access = Access.of((x, y), SubsampledGaussian(1.0, 2.0, 0.1), slots=200)
    sampled = access.sum(key, linear)
    sampler = access.mechanism.sampler(200)
    assert sampler is not None
    assert sampled.event == TruncatedPoissonSampled(0.1, 200, sampler.buffer, Gaussian(2.0, coordinates=3))
    assert sampled.seeded
    assert Access.of((x, y), Exact()).sum(tacit.insecure_key(0), linear).event == NonPrivate()
    assert not access.sum(tacit.secure_key(), linear).seeded


def test_the_price_is_known_before_a_record_is_read():
    """The price comes from shapes alone: the same function, fed with shapes in place of records."""
    access = Access.of(records(50), SubsampledGaussian(1.0, 2.0, 0.2))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), access)
    key = tacit.insecure_key(0)

    def run(key, access):
        return repeat(key, 7, lambda k, level, w: access.at(level).sum(k, linear).map(lambda g: w + g), jnp.zeros(3))

    promised = price(run, key, shapes)
    assert isinstance(promised, Repeated)
    assert promised.steps == 7
    fast = jax.jit(run)
    assert fast(key, access).event == promised
    assert fast(tacit.insecure_key(1), access).event == promised  # cached: no trace, the same receipt


class CountingMechanism(SubsampledGaussian):
    """Counts at run time, inside the compiled program, how often records are really released."""

    count = 0

    def release(self, key, sums, level, coordinates, units):
        def tick():
            CountingMechanism.count += 1

        jax.debug.callback(tick)
        return super().release(key, sums, level, coordinates, units)


def steps_of(event) -> int:
    match event:
        case Composed(events):
            return sum(map(steps_of, events))
        case Repeated(inner, steps):
            return steps * steps_of(inner)
    return 1


@pytest.mark.parametrize("steps", [1, 5, (3, 4)])
def test_receipt_equals_price_equals_what_ran_on_cached_calls_too(steps):
    levels = len(steps) if isinstance(steps, tuple) else 1
    mechanism = CountingMechanism(1.0, tuple(2.0 + i for i in range(levels)), 0.5)
    access = Access.of(records(20), mechanism)

    def run(key, access):
        return repeat(
            key, steps, lambda k, level, w: access.at(level).sum(k, linear).map(lambda g: w + g), jnp.zeros(3)
        )

    fast = jax.jit(run)
    for seed in range(3):
        CountingMechanism.count = 0
        release = fast(tacit.insecure_key(seed), access)
        jax.block_until_ready(release)
        jax.effects_barrier()
        assert CountingMechanism.count == steps_of(release.event) == (sum(steps) if levels > 1 else steps)
        assert release.event == price(run, tacit.insecure_key(seed), access)


def test_a_schedule_is_priced_level_by_level_and_run_as_priced():
    """Noise at each level, measured on an empty table: variance ratio 100 within χ² bounds (false alarm < 1e-6)."""
    mechanism = SubsampledGaussian(1.0, (1.0, 10.0), (0.5, 1.0))
    access = Access.of((np.zeros((0, 3), np.float32), np.zeros(0, np.float32)), mechanism, slots=10)

    def run(key, access):
        def step(k, level, state):
            where = level.index
            return access.at(level).sum(k, linear).map(lambda g: state.at[where].add(g**2))

        return repeat(key, (200, 300), step, jnp.zeros((2, 3)))

    release = jax.jit(run)(tacit.insecure_key(5), access)
    assert release.event == Composed(
        (
            Repeated(TruncatedPoissonSampled(0.5, 10, 10, Gaussian(1.0, coordinates=3)), 200),
            Repeated(Gaussian(10.0, coordinates=3), 300),
        )
    )
    variances = np.asarray(release.value).sum(axis=1) / np.array([600, 900])
    assert variances[0] == pytest.approx((1.0 / 0.5) ** 2, rel=0.3)
    assert variances[1] == pytest.approx(10.0**2, rel=0.25)


def test_a_level_of_an_outer_schedule_is_not_taken_for_an_inner_one():
    mechanism = SubsampledGaussian(1.0, (1.0, 3.0))
    access = Access.of(records(5), mechanism)

    def outer(k, level, w):
        def inner(k2, _, v):
            return access.at(level).sum(k2, linear).map(lambda g: v + g)

        return repeat(k, 4, inner, w)

    release = repeat(tacit.insecure_key(0), (2, 3), outer, jnp.zeros(3))
    assert release.event == Composed(
        (Repeated(Repeated(Gaussian(1.0, coordinates=3), 4), 2), Repeated(Repeated(Gaussian(3.0, coordinates=3), 4), 3))
    )


def test_then_adds_receipts_and_map_does_not():
    access = Access.of(records(5), SubsampledGaussian(1.0, 2.0))
    k1, k2 = jax.random.split(tacit.insecure_key(0))
    release = access.sum(k1, linear).map(jnp.abs).then(lambda g: access.sum(k2, linear).map(lambda h: g + h))
    assert release.event == Composed((Gaussian(2.0, coordinates=3),) * 2)
    k3, k4 = jax.random.split(tacit.insecure_key(1))
    assert access.sum(k3, linear).join(access.sum(k4, linear)).event == release.event
    assert Released(1.0).map(lambda x: x + 1) == Released(2.0)
    with pytest.raises(ValueError, match="use then"):
        Released(1.0).map(lambda x: {"hidden": Released(x)})


def test_many_releases_by_vmap_scan_or_map_are_all_on_the_receipt():
    """A receipt is metadata, which `vmap` does not multiply: the witness does."""
    access = Access.of(records(5), SubsampledGaussian(1.0, 2.0))
    keys = jax.random.split(tacit.insecure_key(0), 6)
    one = Gaussian(2.0, coordinates=3)

    def release(key):
        return access.sum(key, linear)

    assert jax.vmap(release)(keys).event == Repeated(one, 6)
    assert jax.jit(jax.vmap(release))(keys).map(lambda v: v.sum(axis=0)).event == Repeated(one, 6)
    assert jax.lax.map(release, keys).event == Repeated(one, 6)
    _, stacked = jax.lax.scan(lambda c, k: (c, release(k)), 0, keys)
    assert stacked.event == Repeated(one, 6)
    assert jax.vmap(jax.vmap(release))(keys.reshape(2, 3)).event == Repeated(one, 6)
    assert price(jax.vmap(release), keys) == Repeated(one, 6)
    twice = repeat(
        tacit.insecure_key(1),
        4,
        lambda k, level, w: jax.vmap(release)(jax.random.split(k, 2)).map(sum),
        0.0 * jnp.ones(3),
    )
    assert twice.event == Repeated(Repeated(one, 2), 4)


def test_a_witness_cannot_be_averaged_away():
    """Each of these would turn the noise of many releases into that of one and keep the receipt of one."""
    access = Access.of(records(5), SubsampledGaussian(1.0, 2.0))
    keys = jax.random.split(tacit.insecure_key(0), 4)
    many = jax.vmap(lambda k: access.sum(k, linear))(keys)
    for collapse in (lambda r: jax.tree.map(lambda leaf: leaf.mean(0), r), lambda r: jax.tree.map(jnp.add, r, r)):
        with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError)):
            collapse(many)

    def averaged(key):
        return access.sum(key, linear).map(lambda v: jax.lax.pmean(v, "i"))

    with pytest.raises(ValueError, match="out_axes"):
        jax.vmap(averaged, axis_name="i", out_axes=None)(keys)
    assert jax.vmap(averaged, axis_name="i")(keys).event == Repeated(Gaussian(2.0, coordinates=3), 4)


def test_many_releases_need_many_keys():
    """One key under `vmap` over parameters or records gives one noise to all: differences would be exact."""
    access = Access.of(records(5), SubsampledGaussian(1.0, 2.0, 0.5))

    def at(weight, key):
        return access.sum(key, lambda r: Linear(weight * r[1], r[0]))

    weights, key = jnp.array([0.0, 0.05]), tacit.insecure_key(0)
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(ValueError, match="split the key"):
            wrap(jax.vmap(at, in_axes=(0, None)))(weights, key)
        keys = jax.random.split(tacit.insecure_key(1), 2)
        assert steps_of(wrap(jax.vmap(at))(weights, keys).event) == 2
    with pytest.raises(ValueError, match="pass the key in"):
        repeat(
            tacit.insecure_key(2),
            3,
            lambda k, level, w: access.at(level).sum(key, linear).map(lambda g: w + g),
            jnp.zeros(3),
        )
    with pytest.raises(ValueError, match="pass the key in"):
        jax.lax.map(lambda w: at(w, key), weights)


def test_a_key_makes_one_release():
    """Two sums with one key share their noise: the difference would be exact."""
    access = Access.of(records(5), SubsampledGaussian(1.0, 2.0))
    key = tacit.insecure_key(0)
    access.sum(key, linear)
    with pytest.raises(ValueError, match="has made a release already"):
        access.sum(key, linear)
    with pytest.raises(ValueError, match="has made a release already"):
        jax.jit(lambda k: access.sum(k, linear).join(access.sum(k, dense)))(tacit.insecure_key(1))
    with pytest.raises(ValueError, match="pass the key in"):
        jax.jit(lambda: access.sum(tacit.secure_key(), linear))()


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.int32, np.uint8, np.float64, bool])
@pytest.mark.parametrize("size", [1, 17, 100])
def test_records_of_any_type_are_bounded(dtype, size):
    """Half precision overflows, integers wrap: contributions are brought to the working precision first."""
    x = np.full((4, 100), size).astype(dtype)
    mechanism = SubsampledGaussian(1.0, 1.0)
    makers = [lambda r: Linear(r[1], r[0]), lambda r: Linear(r[1].astype(jnp.float32), r[0]), lambda r: Dense(r[0])]
    for maker in makers:
        access = Access.of((x, np.ones(4, dtype)), mechanism)
        without = Access(access.records, access.present.at[0].set(False), mechanism)
        a, b = (np.asarray(d.sum(tacit.insecure_key(2), maker).value, np.float64) for d in (access, without))
        assert np.linalg.norm(a - b) <= 1 + 1e-4


@pytest.mark.parametrize(
    ("maker", "words"),
    [
        (lambda r: Dense(r[0] * 1j), "complex"),
        (lambda r: Linear(r[1][:, None], r[0]), r"shapes \(5, 1\) and \(5, 3\)"),
        (lambda r: r[0], "must return Dense, Linear or Outer, not"),
        (lambda r: Linear(jnp.ones(1000), jnp.ones((1000, 2))), "1000.* rows for 5 records"),
    ],
)
def test_what_has_no_bounded_norm_is_refused(maker, words):
    with pytest.raises(ValueError, match=words):
        Access.of(records(5), SubsampledGaussian(1.0, 1.0)).sum(tacit.insecure_key(0), maker)


def test_a_number_beyond_single_precision_is_infinite_and_silent():
    x = np.array([[1e300, 0, 0], [1.0, 0, 0]])
    value = Access.of((x, np.ones(2)), SubsampledGaussian(1.0, 0.01)).sum(tacit.insecure_key(0), linear).value
    assert float(value[0]) == pytest.approx(1.0, abs=0.1)


def test_a_run_is_compiled_once():
    traces = []

    def run(key, access):
        traces.append(1)
        return repeat(key, 3, lambda k, level, w: access.at(level).sum(k, linear).map(lambda g: w + g), jnp.zeros(3))

    fast = jax.jit(run)
    for seed in range(3):
        fast(tacit.insecure_key(seed), Access.of(records(30, seed), SubsampledGaussian(1.0, 2.0, 0.3)))
    assert len(traces) == 1


# --- Sums --------------------------------------------------------------------------------------------------------


def test_sums_are_scaled_by_the_public_rate_and_unbiased():
    """Mean of 400 sampled sums against the full clipped sum, within 5 standard errors (false alarm < 1e-6)."""
    x, y = records(60)
    access = Access.of((x, y), SubsampledGaussian(1.0, 0.1, 0.25))
    keys = jax.random.split(tacit.insecure_key(2), 400)
    sums = np.asarray(jax.vmap(lambda k: access.sum(k, linear).value)(keys))
    exact = np.asarray(Access.of((x, y), SubsampledGaussian(1.0, 0.01)).sum(keys[0], linear).value)
    assert np.all(np.abs(sums.mean(axis=0) - exact) < 5 * sums.std(axis=0) / np.sqrt(400) + 0.05)


def test_an_empty_table_gives_noise_alone():
    empty = (np.zeros((0, DIMENSION), np.float32), np.zeros(0, np.float32))
    for mechanism in MECHANISMS:
        value = Access.of(empty, mechanism, slots=4).sum(tacit.insecure_key(1), linear).value
        assert np.all(np.isfinite(value))
        assert np.all(np.asarray(value) != 0)
    assert np.all(np.asarray(Access.of(empty, Exact()).sum(tacit.insecure_key(1), linear).value) == 0)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float16, np.float32])
def test_empty_places_do_not_change_the_type_of_records(dtype):
    access = Access.of(np.ones(3, dtype), Exact(), slots=5)
    assert access.records.dtype == dtype
    assert access.records[3:].sum() == 0


def test_exact_is_the_plain_sum():
    x, y = records(40)
    release = Access.of((x, y), Exact()).sum(tacit.insecure_key(0), linear)
    assert np.asarray(release.value) == pytest.approx((y[:, None] * x).sum(axis=0), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SubsampledGaussian(0.0, 1.0), "clip=0.0"),
        (lambda: SubsampledGaussian(float("nan"), 1.0), "clip=nan"),
        (lambda: SubsampledGaussian(1.0, -1.0), r"noise_multiplier=-1\.0"),
        (lambda: SubsampledGaussian(1.0, 1.0, 1.5), r"sampling_rate=1\.5"),
        (lambda: SubsampledGaussian(1.0, (1.0, 2.0), (0.1, 0.2, 0.3)), "levels"),
        (lambda: SubsampledGaussian(1.0, (1.0,) * 33), "33 levels; expected 1 to 32"),
        (lambda: Exact(0.0), r"sampling_rate=0\.0"),
        (lambda: SubsampledGaussian(1.0, 1.0, 0.5, buffer=0), "buffer=0"),
        (
            lambda: (
                Access.of(records(5), SubsampledGaussian(1.0, (1.0, 1.0), (1.0, 0.5), buffer=2))
                .at(Level(jnp.int32(0), 2, 0))
                .sum(tacit.insecure_key(0), linear)
            ),
            "buffer=2 with a level that takes all 5 slots",
        ),
        (lambda: Access.of((np.ones((3, 2)), np.ones(4)), Exact()), "one common length"),
        (lambda: Access.of(np.ones((3, 2)), Exact(), slots=2), "slots=2 for 3 units"),
        (lambda: Access.of(np.ones((3, 2)), Exact(), groups=[1, 2, 3]), "most_records=None"),
        (lambda: Access.of(np.ones((3, 2)), Exact(), groups=[1, 2], most_records=1), "one id for each of the 3"),
        (
            lambda: Access.of(records(5), SubsampledGaussian(1.0, (1.0, 2.0))).sum(tacit.insecure_key(0), linear),
            "has 2 levels",
        ),
        (
            lambda: (
                Access.of(records(5), SubsampledGaussian(1.0, (1.0, 2.0)))
                .at(Level(jnp.int32(0), 3, 0))
                .sum(tacit.insecure_key(0), linear)
            ),
            "schedule has 3 levels and the mechanism 2",
        ),
        (lambda: repeat(tacit.insecure_key(0), (), lambda k, level, x: Released(x), 0), r"steps=\(\)"),
        (lambda: repeat(tacit.insecure_key(0), 0, lambda k, level, x: Released(x), 0), "steps=0"),
    ],
)
def test_bad_settings_are_refused_with_their_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# --- Sums in parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [7, 21, *(pytest.param(units, marks=pytest.mark.slow) for units in (1, 20))])
@pytest.mark.parametrize("mechanism", [SubsampledGaussian(1.0, 2.0), SubsampledGaussian(1.0, 2.0, 0.4)])
@pytest.mark.parametrize("most_records", [1, 3])
def test_a_sum_in_parts_is_to_the_bit_the_sum_in_one(monkeypatch, units, mechanism, most_records):
    rng = np.random.default_rng(units)
    x = rng.normal(size=(units * most_records, 3)).astype(np.float32)
    x[0, 0] = np.nan
    groups = np.repeat(np.arange(units), most_records)
    access = Access.of((x, x[:, 1]), mechanism, groups=groups, most_records=most_records)
    whole = access.sum(tacit.insecure_key(3), linear)
    for rows in (4, 20):
        monkeypatch.setattr("tacit.privacy.mechanism.MOST_NUMBERS", rows * 3 * most_records)
        parts = access.sum(tacit.insecure_key(3), linear)
        assert np.array_equal(whole.value, parts.value)
        assert whole.event == parts.event
        exact = access.through(Exact()).sum(tacit.insecure_key(3), linear)
        monkeypatch.undo()
        want = access.through(Exact()).sum(tacit.insecure_key(3), linear).value
        assert np.asarray(exact.value)[1:] == pytest.approx(np.asarray(want)[1:], rel=1e-4, abs=1e-5)


def test_a_part_counted_twice_is_seen(monkeypatch):
    """Without the rule about what was counted before, the last, early part would let a record in twice."""
    x = np.ones((7, 3), np.float32)
    access = Access.of((x, x[:, 0]), SubsampledGaussian(10.0, 0.01))
    monkeypatch.setattr("tacit.privacy.mechanism.MOST_NUMBERS", 4 * 3)
    value = access.sum(tacit.insecure_key(3), linear).value
    assert np.asarray(value) == pytest.approx(7.0, abs=0.45)  # 8 if one were counted twice


def test_memory_of_a_sum_does_not_grow_with_the_records():
    """A million records of a hundred numbers, and their products: seen by the compiler, not run."""

    def contribution(records):
        return Dense(jax.vmap(lambda x: jnp.outer(x, x)[jnp.triu_indices(100)])(records))

    def run(key, access):
        return access.sum(key, contribution).value

    sizes = []
    for count in (100_000, 1_000_000):
        access = Access(
            jax.ShapeDtypeStruct((count, 1, 100), jnp.float32),
            jax.ShapeDtypeStruct((count, 1), bool),
            SubsampledGaussian(1.0, 20.0),
        )
        compiled = jax.jit(run).lower(jax.eval_shape(lambda: tacit.insecure_key(0)), access).compile()
        sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    assert sizes[1] < sizes[0] + 10 * 1_000_000 * 2  # a few bytes a record, and no product of all of them
    assert sizes[1] < 2**29


# --- Records through a function, and through another mechanism -----------------------------------------------------


def test_a_function_of_one_record_keeps_the_price_and_the_bound():
    x, y = np.ones((5, 3), np.float32), np.ones(5, np.float32)
    access = Access.of((x, y), SubsampledGaussian(1.0, 0.01))
    mapped = access.map(lambda record: (100 * record[0], record[1]))
    release = mapped.sum(tacit.insecure_key(1), linear)
    assert release.event == access.sum(tacit.insecure_key(2), linear).event
    assert float(jnp.linalg.norm(release.value)) == pytest.approx(5.0, abs=0.2)  # clipped after the function
    other = access.through(SubsampledGaussian(2.0, 3.0))
    assert other.sum(tacit.insecure_key(3), linear).event == Gaussian(3.0, coordinates=3)


def test_a_function_that_mixes_records_cannot():
    """It is handed one record at a time, so a mean over records is the record itself."""
    access = Access.of((np.arange(4, dtype=np.float32)[:, None], np.ones(4, np.float32)), Exact())
    mapped = access.map(lambda record: (record[0] - jnp.mean(record[0]), record[1]))
    assert float(mapped.sum(tacit.insecure_key(1), linear).value[0]) == 0.0
