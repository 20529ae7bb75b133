"""Whole steps of a site, on any records: one record moves a release by at most the clip, and nothing else by a bit.

Records are any floats (not numbers, infinities, huge and tiny ones), slots are filled or empty, and broadcasts are any
that a coordinator might send. Each case has one shape and is compiled once; examples differ in their numbers alone.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tacit
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.messages import Broadcast, Refusal, Update, encode
from tacit.federated.pvi import PVI, Noise, SiteState
from tacit.federated.responder import Responder, _step
from tacit.models import LinearRegression, LogisticRegression
from tacit.privacy.clipping import rounding_margin
from tacit.privacy.events import Composed, Event, Gaussian, Repeated, TruncatedPoissonSampled
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.released import price
from tacit.solvers import VI, NaturalStep, conjugate

SLOTS = 6


@dataclass(frozen=True)
class Sum:
    """A sum as it went into the noise, in steps of the lattice, and the settings it was made with."""

    mechanism: SubsampledGaussian
    level: int
    total: np.ndarray
    spacing: float

    @property
    def most(self) -> float:
        """By how much one record may move it (docs/privacy.md): the clip, its rounding, and that to the lattice."""
        size = self.total.size
        clip = self.mechanism.clips[self.level] * (1 + rounding_margin(size, np.float32))
        return clip / self.spacing + math.sqrt(size) / 2

    @property
    def event(self) -> Event:
        rate = self.mechanism.sampling_rates[self.level]
        event = Gaussian(self.mechanism.noise_multipliers[self.level], coordinates=self.total.size)
        return event if rate == 1 else TruncatedPoissonSampled(rate, SLOTS, self.mechanism.buffer or SLOTS, event)


noted: list[Sum] = []


class Cut(SubsampledGaussian):
    """Notes every sum when it is made, and releases the noise without it.

    So every release of a step is made where the ones before it came out the same, as composition asks; and a step whose
    result still differs has read records in another way.
    """

    def release(self, key: Any, sums: Any, level: Any, coordinates: int, units: int) -> Any:
        lattice = self._lattice(coordinates, units)

        def note(level: Any, high: Any, low: Any) -> None:
            pairs = zip(jax.tree.leaves(high), jax.tree.leaves(low), strict=True)
            whole = [np.ravel(h).astype(np.int64) * 2**lattice.limb_bits + np.ravel(w) for h, w in pairs]
            noted.append(Sum(self, int(level), np.concatenate(whole), lattice.spacings[int(level)]))

        jax.debug.callback(note, level, *sums, ordered=True)
        return super().release(key, jax.tree.map(jnp.zeros_like, sums), level, coordinates, units)


# --- Cases: an algorithm and the mechanism of its site -----------------------------------------------------------


def case(prior: Any, model: Any, solver: Any, mechanism: SubsampledGaussian, **more: Any) -> tuple[PVI, Any]:
    return PVI(prior, model(prior), (solver,), **more), mechanism


ONE, TWO, THREE = DiagonalGaussian.standard(1), DiagonalGaussian.standard(2), FullGaussian.standard(3)
SCHEDULED = Cut((2.0, 0.5), (3.0, 1.0), (0.5, 1.0))
CASES = {
    "conjugate": case(TWO, LinearRegression, conjugate, Cut(2.0, 4.0)),
    "curvature and gradient": case(THREE, LogisticRegression, NaturalStep(Cut(1.5, 3.0)), Cut(0.7, 2.0), noise=Noise()),
    "both in one": case(ONE, LogisticRegression, NaturalStep(), Cut(1.0, 2.0, 0.8, buffer=4), noise=Noise()),
    "two levels": case(TWO, LogisticRegression, VI((1, 2), optax.sgd(0.1)), SCHEDULED),
    "one draw": case(FullGaussian.standard(2), LogisticRegression, VI(1, optax.sgd(0.1)), Cut(1.0, 2.0, 0.8)),
}

SEEDS = st.integers(0, 3)  # few, for a key takes longer to make than a step
PLAIN, LARGE = st.floats(-3, 3, width=32), st.floats(2, 1e4, width=32)
TINY, HUGE = st.floats(0, 2.0**-64, width=32), st.floats(2.0**60, 2.0**127, width=32)
NONE = st.sampled_from([math.nan, math.inf, -math.inf])
KINDS = (PLAIN, LARGE, LARGE, TINY, HUGE, NONE, st.floats(width=32))


@st.composite
def records(draw, dimension: int, count: int = SLOTS):
    """Rows (x, y), with features of one kind and a target of another: what a norm hides is in how they meet."""
    rows = []
    for _ in range(count):
        x = draw(hnp.arrays(np.float32, (dimension,), elements=draw(st.sampled_from(KINDS))))
        rows.append(np.append(x, np.float32(draw(draw(st.sampled_from(KINDS))))))
    return np.stack(rows)


@st.composite
def gaussians(draw, like: Any, sizes: Any = None):
    """Members of the family of `like`: proper ones of any size."""
    dimension = like.precision_mean.shape[0]
    sizes = st.integers(-20, 30) if sizes is None else sizes
    mean = draw(hnp.arrays(np.float32, (dimension,), elements=PLAIN))
    precision = (10.0 ** np.array(draw(st.lists(sizes, min_size=dimension, max_size=dimension)))).astype(np.float32)
    if isinstance(like, FullGaussian):
        return FullGaussian(precision * mean, np.diag(precision))
    return DiagonalGaussian(precision * mean, precision)


@st.composite
def neighbours(draw, name: str):
    """A state and a broadcast, two tables of which one record differs, and how many records' worth that is."""
    algorithm, mechanism = CASES[name]
    dimension = algorithm.prior.precision_mean.shape[0]
    table = draw(records(dimension))
    present = np.array(draw(st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS)))
    place, replaces = draw(st.integers(0, SLOTS - 1)), draw(st.booleans())
    present[place] = True
    other, others = table.copy(), present.copy()
    if replaces:
        other[place] = draw(records(dimension, 1))[0]
    else:
        others[place] = False  # with its numbers beneath: an empty place is empty whatever is in it
    accesses = [
        Access((jnp.asarray(t[:, None, :-1]), jnp.asarray(t[:, None, -1])), jnp.asarray(p[:, None]), mechanism)
        for t, p in ((table, present), (other, others))
    ]
    factor = draw(gaussians(algorithm.prior) | st.just(algorithm.prior * 0.0))
    state = SiteState(jax.tree.map(jnp.asarray, factor), jnp.int32(0))
    content = jax.tree.map(
        jnp.asarray, draw(gaussians(algorithm.prior, st.integers(-2, 4)) | gaussians(algorithm.prior))
    )
    return (draw(SEEDS), state, content), accesses, 2 if replaces else 1


@cache
def key_of(seed: int) -> Any:
    return tacit.insecure_key(seed)


def made(algorithm: PVI, given: tuple[int, Any, Any], access: Access) -> tuple[Any, list[Sum]]:
    """A site's step, compiled as a site does it: the release, and the sums that went into it."""
    seed, state, content = given
    noted.clear()
    release = jax.block_until_ready(_step(algorithm, 0, key_of(seed), state, content, access))
    jax.effects_barrier()
    return release, list(noted)


# --- Sensitivity -------------------------------------------------------------------------------------------------


def check_neighbours(algorithm: PVI, example: Any) -> float:
    """No sum moves by more than a record may, and all else is the same to the bit. The most that one moved by."""
    given, accesses, worth = example
    (one, sums), (two, others) = (made(algorithm, given, access) for access in accesses)
    pairs = zip(sums, others, strict=True)
    moved = [np.linalg.norm((a.total - b.total).astype(float)) / a.most for a, b in pairs]
    assert max(moved) <= worth
    for a, b in zip(jax.tree.leaves(one.value), jax.tree.leaves(two.value), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), "something passed the mechanism by"
    return max(moved)


@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_each_release_by_at_most_the_clip_and_nothing_else_at_all(name):
    """Twice the clip for a record that is replaced. Key, sample and noise are the same for both."""
    moved = []

    @settings(max_examples=80)
    @given(neighbours(name))
    def check(example):
        moved.append(check_neighbours(CASES[name][0], example))

    check()
    assert max(moved) > 0.99, "some record was clipped: else they are too plain to show anything"


def weights_without_clip(norms: Any, clip: Any) -> Any:
    del clip
    return jnp.where(jnp.isfinite(norms), 1, 0).astype(norms.dtype)


def weights_blind_to_nan(norms: Any, clip: Any) -> Any:
    return jnp.where(jnp.isnan(norms), 1, jnp.minimum(1, clip / jnp.maximum(norms, 1e-30)))


@dataclass(frozen=True)
class Faulty(Cut):
    """Clips by another rule."""

    rule: Any = None

    def add_up(self, batch: Any, chosen: Any, level: Any, coordinates: int, units: int) -> Any:
        lattice = self._lattice(coordinates, units)
        norms = batch.norms()
        weights = jnp.where(chosen, self.rule(norms, jnp.asarray(self.clips, norms.dtype)[level]), 0)
        return batch.rounded_sum(weights, lattice.spacing(level), lattice.limb_bits)


def leaky(key: Any, target: Any, access: Access) -> Any:
    """A solver that looks at a record once more, beside the sum."""
    return conjugate(key, target, access).map(lambda q: q + target.start * jnp.sign(access.records[1][0, 0]))


@pytest.mark.parametrize("fault", [weights_without_clip, weights_blind_to_nan, leaky])
def test_a_step_that_does_not_clip_or_reads_a_record_beside_the_sum_is_noticed(fault):
    algorithm, mechanism = CASES["conjugate"]
    if fault is leaky:
        algorithm = replace(algorithm, solvers=(leaky,))
    else:
        mechanism = Faulty(mechanism.clip, mechanism.noise_multiplier, rule=fault)

    @settings(phases=[Phase.generate], max_examples=300)  # it ends at the first that shows it
    @given(neighbours("conjugate"))
    def check(example):
        given, accesses, worth = example
        check_neighbours(algorithm, (given, [access.through(mechanism) for access in accesses], worth))

    with pytest.raises(AssertionError):
        check()


# --- Receipts ----------------------------------------------------------------------------------------------------


def counted(event: Event, times: int = 1) -> Counter[Event]:
    match event:
        case Composed(events):
            return sum((counted(each, times) for each in events), Counter[Event]())
        case Repeated(inner, steps):
            return counted(inner, times * steps)
    return Counter({event: times})


def check_receipts(algorithm: PVI, example: Any) -> None:
    """The receipt is the price by shapes and the count of sums that were made, on either side."""
    (seed, state, content), accesses, _ = example

    def step(key: Any, *others: Any) -> Any:
        return _step(algorithm, 0, key, *others)

    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (state, content, accesses[0]))
    promised = price(step, key_of(seed), *shapes)
    for access in accesses:
        release, sums = made(algorithm, (seed, state, content), access)
        assert release.event == promised
        assert counted(promised) == Counter(each.event for each in sums)


@pytest.mark.parametrize("name", CASES)
def test_the_receipt_is_the_price_and_what_was_done_whatever_the_records(name):
    @settings(max_examples=15)
    @given(neighbours(name))
    def check(example):
        check_receipts(CASES[name][0], example)

    check()


def quiet(key: Any, target: Any, access: Access) -> Any:
    """A solver that makes two releases and shows the receipt of one."""
    one, two = jax.random.split(key)
    hidden = conjugate(one, target, access).value
    return conjugate(two, target, access).map(lambda q: (q + hidden) * 0.5)


def test_a_step_that_hides_a_receipt_is_noticed():
    @settings(phases=[Phase.generate], max_examples=1)
    @given(neighbours("conjugate"))
    def check(example):
        check_receipts(replace(CASES["conjugate"][0], solvers=(quiet,)), example)

    with pytest.raises(AssertionError):
        check()


# --- Any records, any question -----------------------------------------------------------------------------------


def plain(mechanism: Any) -> SubsampledGaussian:
    """The mechanism as it is, with its release."""
    return SubsampledGaussian(mechanism.clip, mechanism.noise_multiplier, mechanism.sampling_rate, mechanism.buffer)


def real(name: str) -> tuple[PVI, SubsampledGaussian]:
    algorithm, mechanism = CASES[name]
    solver = algorithm.solvers[0]
    if isinstance(solver, NaturalStep) and solver.curvature is not None:
        solver = replace(solver, curvature=plain(solver.curvature))
    return replace(algorithm, solvers=(solver,)), plain(mechanism)


REAL = {name: real(name) for name in ("conjugate", "curvature and gradient", "two levels")}


@st.composite
def questions(draw, like: Any):
    """Broadcasts of rounds from 0 to 9: sound ones, and ones that are not finite, not proper or of another shape."""
    q = draw(gaussians(like, st.integers(-2, 4)) | gaussians(like, st.integers(-37, 37)))
    part = draw(st.sampled_from(["", "", "", "precision", "precision_mean", "shape"]))
    if part == "shape":
        q = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), q)
    elif part:
        odd = draw(st.sampled_from([math.nan, math.inf, -1, 0, 1e30]))
        q = replace(q, **{part: np.full_like(getattr(q, part), odd)})
    return Broadcast("heart", draw(st.integers(0, 9)), q)


@pytest.mark.parametrize("name", REAL)
def test_a_site_answers_any_records_and_questions_with_finite_numbers_or_a_refusal(name, tmp_path):
    """An update is charged once and nothing else is; its length is that of any other, whatever the records."""
    algorithm, mechanism = REAL[name]
    dimension = algorithm.prior.precision_mean.shape[0]
    path: Path = tmp_path / "site.ledger"

    @settings(max_examples=20)
    @given(
        table=records(dimension),
        size=st.integers(0, SLOTS),
        seed=SEEDS,
        asked=st.lists(questions(algorithm.prior), min_size=1, max_size=4),
    )
    def check(table, size, seed, asked):
        path.unlink(missing_ok=True)
        ledger = Ledger.create(path, data_set="ward 7", epsilon=20.0, delta=1e-5, accountant="rdp")
        access = Access.of((table[:size, :-1], table[:size, -1]), mechanism, slots=SLOTS)
        site = Responder("north", "heart", algorithm, access, key_of(seed), ledger)
        answered: dict[int, bytes] = {}
        for broadcast in asked:
            answer = site(broadcast)
            if isinstance(answer, Update):
                assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(answer.content))
                assert encode(answer) == answered.setdefault(answer.round, encode(answer))
                empty = jax.tree.map(np.asarray, algorithm.answer(algorithm.site_init()))
                assert len(encode(answer)) == len(encode(replace(answer, content=empty)))
            else:
                assert isinstance(answer, Refusal)
                assert broadcast.round not in list(answered)[-1:], "a repeated question has the same answer"
            assert [entry.round for entry in ledger.entries()] == list(answered)
        assert site.updates == len(answered)
        ledger.verify()

    check()
