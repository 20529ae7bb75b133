"""Whole audits: a mechanism keeps its claim, half the noise does not, and all runs are one compiled program.

Statistical tests are seeded and say their false-alarm rates.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest

import tacit
from tacit.audit import attacks, named, runs, subjects
from tacit.audit.bounds import Bound
from tacit.audit.canaries import Canaried
from tacit.privacy import accounting
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.noise import Lattice
from tacit.privacy.released import price

DELTA = 1e-5
ACCESS = Access.of(np.ones((8, 3), np.float32), SubsampledGaussian(1.0, 2.0))


@dataclass(frozen=True)
class HalfNoise(SubsampledGaussian):
    """Claims its noise and adds half of it."""

    def _lattice(self, coordinates: int, units: int) -> Lattice:
        sound = super()._lattice(coordinates, units)
        return replace(sound, spacings=tuple(spacing / 2 for spacing in sound.spacings))

    def release(self, key: Any, sums: Any, level: Any, coordinates: int, units: int) -> Any:
        return jax.tree.map(lambda leaf: leaf, SubsampledGaussian.release(self, key, sums, level, coordinates, units))


def subject(rate: float = 1.0, noise: float = 1.5, cls: Any = SubsampledGaussian, steps: int = 2) -> subjects.Subject:
    return subjects.of_mechanism(cls(1.0, noise, rate), DELTA, steps, slots=10)


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(1.0, 1.5, 2), (0.3, 1.0, 2), pytest.param(0.05, 0.7, 10, marks=pytest.mark.slow)]
)
def test_the_mechanism_keeps_its_claim_at_several_rates_and_half_the_noise_does_not(rate, noise, steps):
    # False alarm of each audit: 0.1 %.
    sound, broken = (subject(rate, noise, cls, steps).audit(20_000, seed=1) for cls in (SubsampledGaussian, HalfNoise))
    assert sound.claimed_epsilon == broken.claimed_epsilon
    assert not sound.is_refuted
    assert sound.best.epsilon > 0.1 * sound.claimed_epsilon
    assert broken.best.epsilon > 1.2 * sound.best.epsilon
    if rate == 1:
        assert broken.is_refuted


def test_a_gaussian_shift_is_a_test_of_the_claim_only_where_it_is_the_claim():
    plain, sampled = (subject(rate).audit(1_000, seed=1) for rate in (1.0, 0.3))
    bounds = {
        (look, kind): Bound(1e3 if kind == "gaussian" else 0.1, kind, 0.999, 0.0, True, 0.0, 0.0)
        for look in ("trace", "value")
        for kind in ("nothing", "gaussian")
    }
    assert replace(plain, bounds=bounds).is_refuted
    assert not replace(sampled, bounds=bounds).is_refuted


def test_all_runs_are_one_program_that_is_compiled_once():
    before = runs._one_batch._cache_size()
    seen: list[tuple[int, int]] = []
    found = subject(noise=3.25).audit(5_000, seed=1, batch=500, observe=lambda done, runs: seen.append((done, runs)))
    assert runs._one_batch._cache_size() == before + 1
    assert found.runs == len(found.without) + len(found.within) == 5_000
    assert seen[0] == (500, 5_000)
    assert seen[-1] == (5_000, 5_000)


def test_an_audit_repeats_by_its_seed_and_no_two_runs_share_their_noise():
    first, again, other = (subject().audit(1_000, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.without, again.without)
    assert len(np.unique(np.concatenate([first.without, first.within, other.without]))) == 1_500


def test_the_claim_is_the_price_of_the_program():
    found = subject(noise=2.0, steps=4)
    assert found.event == price(found.program, tacit.insecure_key(0), found.access)
    assert found.audit(200, seed=0).claimed_epsilon == accounting.epsilon(found.event, DELTA)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Canaried.on(ACCESS, 99), "canaries=99"),
        (lambda: subject().audit(10, seed=0), "runs=10"),
        (
            lambda: replace(subject(), access=Canaried.on(ACCESS, 2)).audit(100, seed=0),
            "canaries=2; a claim is about one",
        ),
        (lambda: subject().audit(100, seed=0, confidence=2.0), "confidence=2.0"),
        (lambda: named.named("everything", 1.0, DELTA, "worst"), "what='everything'"),
        (lambda: named.named("fit", 1.0, DELTA, "yellow"), "canary='yellow'"),
        (lambda: named.named("fit", 1.0, DELTA, "worst", steps=3), "settings of vi and mechanism"),
        (lambda: named.named("mechanism", 1.0, DELTA, "outlying"), "a mechanism alone has no records"),
        (lambda: attacks.membership(1.0, runs=1, seed=0), "runs=1"),
    ],
)
def test_bad_settings_are_refused_with_their_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()
