"""Checks of a mechanism: what a release is made of, told by many releases at once."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy import stats
from tests.mutants.borrowed import suite
from tests.mutants.planting import World

import tacit
from tacit.audit.canaries import HUGE
from tacit.families import FullGaussian
from tacit.federated.tied import Whole, of_sites
from tacit.models import LinearRegression
from tacit.privacy.clipping import Limit, per_record, rounding_margin
from tacit.privacy.events import Gaussian, Repeated, TruncatedPoissonSampled
from tacit.privacy.mechanism import Access
from tacit.privacy.noise import Lattice
from tacit.privacy.released import Level, Released, price
from tacit.solvers import conjugate

ALARM = 1e-5  # of each statistical check on sound code
each_record = per_record(lambda record: record)

# One setting and one shape for all of them, so that a mutant is compiled once.
SLOTS, COLUMNS, CLIP, NOISE, RATE, DRAWS = 8, 3, 0.5, 2.0, 0.4, 1000
ORDINARY = np.random.default_rng(0).normal(size=(SLOTS, COLUMNS)).astype(np.float32)


@functools.cache
def key_of(seed: int) -> Array:
    """A seeded key that may be used again: programs are handed it, and derive their own."""
    return tacit.insecure_key(seed)


@functools.cache
def keys_of(seed: int, count: int) -> Array:
    return jax.random.split(key_of(seed), count)


# For programs that run once or twice: half the time to compile.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@quick_jit
def _releases(keys: Array, access: Access, tables: Array, present: Array) -> Array:
    def one(key: Array, table: Array, present: Array) -> Array:
        return replace(access, records=table, present=present).sum(key, each_record).value

    return jax.vmap(one)(keys, tables, present)


def probe(world: World, tables: np.ndarray, present: Any, access: Any = None) -> np.ndarray:
    """A release of each table times the rate, which is the sum and its noise. All tables share the same keys."""
    access = access or world.access.of(ORDINARY, world.mechanism(CLIP, NOISE, RATE))
    shape = (DRAWS, SLOTS, 1)
    tables = jnp.broadcast_to(jnp.asarray(tables, jnp.float32).reshape(-1, *shape[1:], COLUMNS), (*shape, COLUMNS))
    present = jnp.broadcast_to(jnp.asarray(present, bool).reshape(-1, *shape[1:]), shape)
    found = _releases(keys_of(21, DRAWS), access, tables, present)
    return np.asarray(found, np.float64) * access.mechanism.sampling_rates[0]


@functools.cache
def noise_of(world: World) -> np.ndarray:
    """Releases without a record: noise alone."""
    return probe(world, ORDINARY, [False] * SLOTS)


@functools.cache
def inclusions_of(world: World) -> np.ndarray:
    """(draws, slots) of 0 and 1: whose record is in a release. Each adds a binary digit of its own to the noise."""
    digits = CLIP * 2.0 ** -np.arange(SLOTS)
    table = np.zeros((SLOTS, COLUMNS))
    table[:, 0] = digits
    left = (probe(world, table, [True] * SLOTS) - noise_of(world))[:, 0]
    found = []
    for digit in digits:
        found.append(left > digit - digits[-1] / 2)
        left = left - digit * found[-1]
    return np.stack(found, axis=1).astype(int)


def noise_is_the_promised_gaussian(world: World) -> None:
    """Coordinates are standard normal, one by one and together (KS), and not correlated with each other or in time."""
    noise = noise_of(world) / (CLIP * NOISE)
    for sample in (noise, *noise.T):
        assert stats.kstest(sample.ravel(), "norm").pvalue > ALARM
    apart = [np.corrcoef(noise.T)[np.triu_indices(COLUMNS, 1)]]
    apart += [np.corrcoef(column[:-1], column[1:])[:1, 1] for column in noise.T]
    assert np.all(np.abs(np.concatenate(apart)) < 5 / np.sqrt(DRAWS))


def each_level_has_its_own_noise(world: World) -> None:
    """At the second of two levels, whose noise is three times that of the first."""
    access = world.access.of(ORDINARY, world.mechanism(CLIP, (NOISE, 3 * NOISE))).at(Level(jnp.int32(1), 2, 0))
    noise = probe(world, ORDINARY, [False] * SLOTS, access)
    assert stats.kstest(noise.ravel() / (CLIP * 3 * NOISE), "norm").pvalue > ALARM


def each_level_has_its_own_clip(world: World) -> None:
    """At the second of two levels, whose clip is a quarter of the first's: what one huge record adds."""
    access = world.access.of(ORDINARY, world.mechanism((CLIP, CLIP / 4), NOISE)).at(Level(jnp.int32(1), 2, 0))
    tables, alone = np.zeros((SLOTS, COLUMNS)), [True] + [False] * (SLOTS - 1)
    tables[0, 0] = 1e6
    moved = probe(world, tables, alone, access) - probe(world, tables, [False] * SLOTS, access)
    assert np.max(np.linalg.norm(moved, axis=1)) < 1.01 * CLIP / 4


def noise_is_on_the_lattice(world: World) -> None:
    """Releases are multiples of a public number, so that no digit of the sum shows in the digits of the noise."""
    spacing = Lattice.of((CLIP,), (NOISE,), COLUMNS, SLOTS, rounding_margin(COLUMNS, np.float32)).spacings[0]
    steps = noise_of(world) / spacing
    small = steps[np.abs(steps) < 2**20]  # where single precision has digits left to see them by
    assert len(small) > DRAWS / 2
    assert np.all(np.abs(small - np.round(small)) < 0.25)


NASTY = (1e-30, 1.0, HUGE, 1e30, 3e38, np.inf, -np.inf, np.nan)


def one_record_moves_a_release_by_at_most_the_clip(world: World) -> None:
    """By the same keys, noise and sample are the same for both neighbours: what differs is the contribution."""
    tables = np.stack([ORDINARY] * DRAWS)
    tables[:, 3] = [(NASTY[draw % len(NASTY)], 0.0, -1.0) for draw in range(DRAWS)]
    within, without = (probe(world, tables, np.arange(SLOTS) != absent) for absent in (SLOTS, 3))
    assert np.all(np.isfinite(within))
    # The released float is an integer times the spacing: its own rounding is post-processing, allowed for here.
    slack = 1e-6 * (np.abs(within).max(axis=1) + np.abs(without).max(axis=1))
    assert np.all(np.linalg.norm(within - without, axis=1) <= CLIP * (1 + 1e-5) + slack)


def slots_are_chosen_independently_with_the_rate(world: World) -> None:
    assert suite("statistical/test_noise_and_sampling.py", world).looks_poisson(inclusions_of(world), RATE)


def noise_does_not_depend_on_the_sample(world: World) -> None:
    """Noise of the draws in which a slot was chosen is distributed as in the others (KS of two samples)."""
    noise = noise_of(world)
    for chosen in inclusions_of(world).T.astype(bool):
        if 0 < chosen.sum() < DRAWS:
            p_values = [stats.ks_2samp(column[chosen], column[~chosen]).pvalue for column in noise.T]
            assert min(p_values) > ALARM / (SLOTS * COLUMNS)


def the_receipt_names_what_is_done(world: World) -> None:
    """From shapes alone: nothing runs."""

    def seen(key: Array, *settings: Any, wrap: Callable[[Any], Any] = lambda f: f) -> Released[Any]:
        access = world.access.of(ORDINARY, world.mechanism(CLIP, NOISE, *settings), slots=20)
        return jax.eval_shape(wrap(lambda key: access.sum(key, each_record)), key)

    one, seeded = Gaussian(NOISE, coordinates=COLUMNS), key_of(0)
    assert seen(seeded).event == one
    assert seen(seeded, RATE).event == TruncatedPoissonSampled(RATE, 20, 20, one)
    assert seen(seeded, 0.1, 3).event == TruncatedPoissonSampled(0.1, 20, 3, one)
    assert seen(keys_of(21, DRAWS), wrap=jax.vmap).event == Repeated(one, DRAWS)
    assert seen(seeded).seeded
    assert not seen(tacit.secure_key()).seeded


def a_key_makes_one_release(world: World) -> None:
    access = world.access.of(ORDINARY, world.mechanism(CLIP, NOISE))

    def scaled(key: Array, weight: Array) -> Any:
        return access.sum(key, per_record(lambda record: weight * record))

    weights = jnp.ones(2)
    with pytest.raises(ValueError, match="has made a release already"):
        jax.eval_shape(lambda key: scaled(key, weights[0]).join(scaled(key, weights[1])), key_of(0))
    with pytest.raises(ValueError, match="split the key"):
        jax.eval_shape(jax.vmap(scaled, in_axes=(None, 0)), key_of(0), weights)


def steps_share_no_noise(world: World) -> None:
    """The numbers of five steps on empty slots: no two are equal, except by chance."""
    access = world.access.of(ORDINARY, world.mechanism(CLIP, NOISE))
    access = replace(access, present=jnp.zeros((SLOTS, 1), bool))

    def step(key: Array, level: Any, state: Any) -> Any:
        count, found = state
        return access.sum(key, each_record).map(lambda value: (count + 1, found.at[count].set(value)))

    _, found = world.repeat(tacit.insecure_key(0), 5, step, (jnp.int32(0), jnp.zeros((5, COLUMNS)))).value
    assert len(np.unique(found)) == 5 * COLUMNS


SHARE = 0.1


def the_share_within_a_limit_has_its_noise(world: World) -> None:
    """The count by which a clip is moved: every slot has a record, and all of them are within the limit."""
    table = np.full((SLOTS, COLUMNS), 0.1, np.float32)
    access = world.access.of(table, world.mechanism(CLIP, NOISE))
    limit = Limit(jnp.float32(1.0), SHARE)
    run = quick_jit(jax.vmap(lambda key: access.sum_within(key, each_record, limit).value[1]))
    shares = np.asarray(run(keys_of(22, DRAWS)), np.float64)
    expected = NOISE / (2 * np.sqrt(SHARE) * SLOTS)
    assert stats.kstest((shares - 1) / expected, "norm").pvalue > ALARM


def rounds_of(
    world: World, canary: float, sites: int, rounds: int, noise: float, keys: Array
) -> tuple[Any, np.ndarray]:
    """Liu's algorithm 4 on sites without records, except the first: (runs, rounds) of the sum that is released.

    In one dimension, with damping SLOW. The first site has one record, whose target is `canary`.
    """
    x, y = np.zeros((sites, 1, 1), np.float32), np.zeros((sites, 1), np.float32)
    x[0], y[0] = canary != 0, canary
    access = of_sites(list(zip(x, y, strict=True)), world.mechanism(1.0, noise))
    model = LinearRegression(FullGaussian.standard(1), 1.0)
    whole = Whole(conjugate, norm="natural", clips="update")
    algorithm = world.central(model.prior, model, (whole,), damping=(SLOW,), rounds=rounds)

    def one(key: Array, access: Access) -> Array:
        def step(state: Any, round: Array) -> tuple[Any, Array]:
            state = algorithm.site_step(jax.random.fold_in(key, round), state, model.prior, access, 0).value
            return state, algorithm.answer(state).precision_mean[0]

        return jax.lax.scan(step, algorithm.site_init(), jnp.arange(rounds))[1]

    step = price(lambda key: algorithm.site_step(key, algorithm.site_init(), model.prior, access, 0), key_of(0))
    return step, np.asarray(quick_jit(jax.vmap(one, in_axes=(0, None)))(keys, access), np.float64)


SLOW = 0.4  # the damping of those rounds


def rounds_have_noise_of_their_own(world: World) -> None:
    """What a round adds is not correlated with what the rounds before it have left."""
    _, totals = rounds_of(world, 0.0, 4, 3, NOISE, keys_of(23, DRAWS))
    changes = np.diff(totals, axis=1)
    apart = [np.corrcoef(totals[:, t], changes[:, t])[0, 1] for t in range(changes.shape[1])]
    assert np.all(np.abs(apart) < 5 / np.sqrt(DRAWS))
