"""Schedules: shapes, the optimum by influence, levels, and that what runs is what was priced."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.privacy import schedules
from tacit.privacy.accounting import calibrate, epsilon
from tacit.privacy.clipping import Dense
from tacit.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated, TruncatedPoissonSampled
from tacit.privacy.mechanism import MOST_LEVELS, Access, SubsampledGaussian
from tacit.privacy.released import Released, repeat
from tacit.privacy.schedules import Schedule

# --- Shapes ------------------------------------------------------------------------------------------------------


def test_every_shape_has_the_values_of_its_formula():
    steps, start, end = 7, 4.0, 0.5
    progress = [t / (steps - 1) for t in range(steps)]
    found = {
        "constant": schedules.constant(steps, start),
        "linear": schedules.linear(steps, start, end),
        "polynomial": schedules.polynomial(steps, start, end, 3.0),
        "exponential": schedules.exponential(steps, start, end),
    }
    expected = {
        "constant": [start] * steps,
        "linear": [start + (end - start) * x for x in progress],
        "polynomial": [start + (end - start) * x**3 for x in progress],
        "exponential": [start * (end / start) ** x for x in progress],
    }
    for name, values in found.items():
        assert values == pytest.approx(expected[name], rel=1e-12), name
    assert schedules.stepwise(7, 8.0, 1.0, stages=4) == pytest.approx([8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0])


@pytest.mark.parametrize("shape", [schedules.linear, schedules.polynomial, schedules.exponential])
def test_a_shape_of_one_step_is_its_start(shape):
    assert shape(1, 3.0, 5.0).tolist() == [3.0]


@pytest.mark.parametrize("stages", range(1, 8))
def test_stages_differ_by_at_most_one_step_and_reach_both_ends(stages):
    values = schedules.stepwise(7, 2.0, 1.0, stages)
    lengths = [len(list(group)) for _, group in itertools.groupby(values)]
    assert len(lengths) == stages
    assert max(lengths) - min(lengths) <= 1
    assert values[0] == 2
    assert values[-1] == pytest.approx(2 if stages == 1 else 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.linear(0), "steps=0"),
        (lambda: schedules.linear(2_000_000), "at most a million"),
        (lambda: schedules.linear(3, 0.0, 1.0), "start=0.0"),
        (lambda: schedules.exponential(3, 1.0, np.inf), "end=inf"),
        (lambda: schedules.polynomial(3, power=0.0), "power=0.0"),
        (lambda: schedules.stepwise(3, stages=4), "stages=4; expected a whole number from 1 to steps=3"),
        (lambda: schedules.optimal([]), "influence must be"),
        (lambda: schedules.optimal([0.0, 0.0]), "not all of them 0"),
        (lambda: schedules.contraction_influence(3, 1.0), "contraction=1.0"),
        (lambda: schedules.momentum_influence(3, 0.5, 1.0), "decay=1.0"),
        (lambda: schedules.curvature_influence(3, [1.0, 4.0], 0.5), "learning_rate=0.5 diverges at curvature 4"),
        (lambda: schedules.curvature_influence(3, [-1.0], 0.5), "eigenvalues must be"),
        (lambda: Schedule.of([1.0, 2.0], [0.1, 0.2, 0.3]), "noise has 2 settings and another 3"),
        (lambda: Schedule.of([1.0, 0.0]), "noise has settings that are not"),
        (lambda: Schedule.of([1.0, 2.0], 1.5), "sampling_rate=1.5"),
        (lambda: Schedule.of([1.0, 2.0], levels=33), "levels=33"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- By influence ------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12), st.integers(0, 2**31))
def test_the_optimum_beats_random_schedules_and_every_constant_at_the_same_cost(influence, seed):
    q = np.array(influence)
    sigma = schedules.optimal(q)
    assert np.sum(sigma**-2) == pytest.approx(1, rel=1e-9)
    least = np.sum(q * sigma**2)
    assert least == pytest.approx(np.sum(np.sqrt(q)) ** 2, rel=1e-9)
    others = np.exp(np.random.default_rng(seed).normal(0, 1, (100, len(q))))
    others = np.concatenate([others, sigma * np.exp(1e-3 * np.log(others)), np.ones((1, len(q)))])
    others *= np.sqrt(np.sum(others**-2.0, axis=1, keepdims=True))  # each now costs the same; the last is constant
    assert np.sum(others**-2.0, axis=1) == pytest.approx(np.ones(len(others)))
    assert np.all(np.sum(q * others**2, axis=1) >= least * (1 - 1e-9))


def test_steps_without_influence_get_as_much_noise_as_the_largest_ratio_allows():
    sigma = schedules.optimal([0.0, 1.0, 0.0])
    assert sigma.max() / sigma.min() == pytest.approx(schedules.MOST_RATIO)
    assert np.argmin(sigma) == 1


@pytest.mark.parametrize(
    ("contraction", "decay"), [(0.9, 0.5), (0.5, 0.9), (0.81, 0.9), (0.7, 0.0), (0.81, 0.9 + 1e-7), (0.81, 0.9 - 1e-8)]
)
def test_momentum_influence_is_the_geometric_sum_also_where_both_ratios_are_equal(contraction, decay):
    steps = 40
    expected = []
    for t in range(1, steps + 1):
        k = steps - t + 1
        expected.append(sum(decay ** (2 * j) * contraction ** (k - 1 - j) for j in range(k)))
    found = schedules.momentum_influence(steps, contraction, decay)
    assert found == pytest.approx(expected, rel=1e-6)
    if decay == 0:
        assert found == pytest.approx(schedules.contraction_influence(steps, contraction))


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_curvature_influence_is_what_each_steps_noise_adds_to_the_last_loss(rate):
    """Exact covariances of θ ← θ - η(Aθ + ν), ν ~ N(0, σ_t²), on a loss θᵀAθ/2 whose axes are not the coordinates'."""
    rng = np.random.default_rng(3)
    turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    eigenvalues = np.array([0.05, 0.4, 1.0, 2.5])
    curvature = turn @ np.diag(eigenvalues) @ turn.T
    step = np.eye(4) - rate * curvature
    sigma = rng.uniform(0.5, 3.0, 9)
    covariance = np.zeros((4, 4))
    for sd in sigma:
        covariance = step @ covariance @ step.T + rate**2 * sd**2 * np.eye(4)
    loss = np.trace(curvature @ covariance) / 2
    influence = schedules.curvature_influence(9, eigenvalues, rate)
    assert rate**2 / 2 * np.sum(influence * sigma**2) == pytest.approx(loss, rel=1e-12)


# --- Levels ------------------------------------------------------------------------------------------------------


def effect_of_merging(noise: np.ndarray, schedule: Schedule) -> float:
    """By how much Σ q_t σ_t² grows for q = σ⁻⁴ if the levels' noise, scaled to the same Σ 1/σ², is in its place."""
    levels = np.repeat(schedule.noise, schedule.steps)
    levels *= np.sqrt(np.sum(levels**-2.0) / np.sum(noise**-2.0))
    q = noise**-4.0
    return float(np.sum(q * levels**2) / np.sum(q * noise**2) - 1)


def error_of_partition(noise: np.ndarray, cuts: tuple[int, ...]) -> float:
    """The same for given levels, with the best noise for each by the optimum of their summed influence."""
    runs = np.split(noise, cuts)
    # n equal steps of summed influence Q at cost n/σ² are one step of influence Q·n at cost 1/s², s = σ/√n.
    least = np.sum([np.sqrt(len(run) * np.sum(run**-4.0)) for run in runs]) ** 2
    return float(least / np.sum(noise**-2.0) ** 2 - 1)


@given(st.lists(st.floats(0.3, 5.0), min_size=8, max_size=8))
def test_three_levels_of_eight_steps_are_the_best_of_all_partitions(values):
    noise = np.array(values)
    schedule = Schedule.of(noise, 0.1, levels=3)
    best = min(error_of_partition(noise, cuts) for cuts in itertools.combinations(range(1, 8), 2))
    assert schedule.error == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert schedule.error == pytest.approx(effect_of_merging(noise, schedule), rel=1e-6, abs=1e-9)
    difference = np.repeat(schedule.noise, schedule.steps) / noise - 1
    assert schedule.largest == pytest.approx(np.max(np.abs(difference)), rel=1e-9, abs=1e-12)


SHAPES = {
    "constant": schedules.constant(200),
    "linear": schedules.linear(200, 3.0, 1.0),
    "polynomial": schedules.polynomial(200, 1.0, 4.0, 2.0),
    "exponential": schedules.exponential(200, 10.0, 1.0),
    "stepwise": schedules.stepwise(200, 4.0, 1.0, 5),
    "influence": schedules.optimal(schedules.contraction_influence(200, 0.95)),
    "momentum": schedules.optimal(schedules.momentum_influence(200, 0.95, 0.9)),
    "curvature": schedules.optimal(schedules.curvature_influence(200, [0.01, 0.1, 1.0], 0.5)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_levels_keep_the_steps_and_their_order_and_lose_little(shape):
    noise = SHAPES[shape]
    schedule = Schedule.of(noise, schedules.linear(200, 0.1, 0.2) if shape == "linear" else 0.1, noise**-0.5)
    assert len(schedule.steps) <= MOST_LEVELS
    assert schedule.total == 200
    assert schedule.error == pytest.approx(effect_of_merging(noise, schedule), abs=1e-9)
    assert schedule.error < 0.01
    levels, ends = [], np.cumsum(schedule.steps)
    for part, level in zip(np.split(noise, ends[:-1]), schedule.noise, strict=True):
        assert part.min() <= level <= part.max()  # each level stands for its own run of steps
        levels.append(level)
    if shape not in ("constant", "momentum"):  # the others rise or fall all the way
        assert len(set(np.sign(np.diff(levels)))) == 1
    if shape != "linear":
        assert set(schedule.sampling_rate) == {0.1}  # what does not change stays, to the last digit


def test_many_steps_are_cut_quickly_into_levels_that_lose_little():
    noise = schedules.exponential(100_000, 20.0, 1.0)
    schedule = Schedule.of(noise, 0.01)
    assert (len(schedule.steps), schedule.total) == (MOST_LEVELS, 100_000)
    assert 0 < schedule.error < 5e-3


def test_nothing_is_lost_where_nothing_is_merged():
    for noise in (schedules.constant(50, 0.7), schedules.stepwise(50, 3.0, 0.7, 32), [1.3]):
        schedule = Schedule.of(noise, 0.3)
        assert (schedule.error, schedule.largest) == (0.0, 0.0)
        assert np.repeat(schedule.noise, schedule.steps).tolist() == np.asarray(noise).tolist()


def test_rates_and_clips_change_where_they_are_said_to():
    schedule = Schedule.of(1.0, [0.1] * 3 + [0.2] * 4, [1.0] * 5 + [0.5] * 2)
    assert schedule == Schedule((3, 2, 2), (1.0,) * 3, (0.1, 0.2, 0.2), (1.0, 1.0, 0.5))
    assert schedule.mechanism(4.0, 3.0) == SubsampledGaussian((4.0, 4.0, 2.0), 3.0, (0.1, 0.2, 0.2))


def test_the_first_steps_of_a_schedule():
    schedule = Schedule((3, 2, 2), (3.0, 2.0, 1.0), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert schedule.first(0) is None
    assert schedule.first(3) == Schedule((3,), (3.0,), (0.1,), (1.0,))
    assert schedule.first(4) == Schedule((3, 1), (3.0, 2.0), (0.1, 0.2), (1.0, 2.0))
    assert schedule.first(7) == schedule.first(9) == schedule


# --- Prices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adjacency", "published"), [("add-remove", 0.9658), ("replace-one", 1.8493)])
def test_the_golden_heterogeneous_schedule_through_levels(adjacency, published):
    noise, rates = np.linspace(1.6, 1.8, 10), np.linspace(0.05, 0.06, 10)
    schedule = Schedule.of(np.repeat(noise, 10), np.repeat(rates, 10))
    assert schedule.steps == (10,) * 10
    assert epsilon(schedule.event(1.0), 1e-3, "pld", adjacency, tolerance=1e-4) == pytest.approx(published, abs=1e-4)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_calibrated_scale_reaches_the_target_within_a_thousandth_and_not_above(shape, adjacency):
    schedule = Schedule.of(SHAPES[shape][::20], 0.1, levels=2)  # few, for each is a distribution to compose
    found = calibrate(2.0, 1e-5, plan=schedule.event, adjacency=adjacency)
    assert found.event == schedule.event(found.noise_multiplier)
    assert 2.0 * 0.999 <= found.epsilon <= 2.0
    assert epsilon(found.event, 1e-5, "pld", adjacency) == found.epsilon


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=40),
    st.floats(0.1, 10.0),
    st.floats(1e-7, 1e-2),
    st.integers(1, 6),
)
def test_any_schedule_of_all_records_is_calibrated_within_a_thousandth_and_not_above(noise, target, delta, levels):
    schedule = Schedule.of(noise, levels=levels)
    found = calibrate(target, delta, plan=schedule.event)
    assert target * 0.999 <= found.epsilon <= target


# --- What runs ---------------------------------------------------------------------------------------------------

RUN = Schedule.of(
    schedules.stepwise(300, 4.0, 1.0, 3), schedules.stepwise(300, 0.25, 1.0, 3), [1.0] * 150 + [0.5] * 150
)


def run(schedule: Schedule, mechanism: SubsampledGaussian, slots: int = 12) -> Released:
    """The sum of squares of released sums at each level, on a table without records: noise alone."""
    access = Access.of(np.zeros((0, 3), np.float32), mechanism, slots=slots)

    def step(key, level, state):
        where = level.index
        sums = access.at(level).sum(key, Dense)
        return sums.map(lambda total: state.at[where].add(jnp.sum(total**2)))

    start = jnp.zeros(len(schedule.steps))
    return jax.jit(lambda key: repeat(key, schedule.steps, step, start))(tacit.insecure_key(11))


def noise_in(event: Event) -> list[float]:
    """The noise multiplier of each level of a receipt, in order."""
    found = []
    for level in event.events if isinstance(event, Composed) else (event,):
        while not isinstance(level, Gaussian):
            assert isinstance(level, Repeated | PoissonSampled | TruncatedPoissonSampled)
            level = level.event
        found.append(level.noise_multiplier)
    return found


def runs_as_priced(schedule: Schedule, mechanism: SubsampledGaussian, scale: float) -> bool:
    """Whether receipt, schedule and measured noise agree at every level.

    A level has at least 50 steps of 3 coordinates: its variance is within 60 % but with probability below 1e-5, and
    one level's is at least 4 times another's.
    """
    release = run(schedule, mechanism)
    counts = 3 * np.array(schedule.steps)
    sds = np.sqrt(np.asarray(release.value) / counts)
    sds *= np.array(mechanism.sampling_rates) / np.array(mechanism.clips)  # as before scaling, in clips
    priced = np.array(noise_in(release.event))
    planned = np.array(noise_in(schedule.event(scale)))
    near = np.abs((sds / priced) ** 2 - 1) < 0.6
    return bool(np.allclose(priced, planned, rtol=1e-12) and np.all(near))


def test_a_run_makes_the_noise_that_its_receipt_and_its_schedule_name():
    assert len(RUN.steps) == 4
    assert runs_as_priced(RUN, RUN.mechanism(2.0, 1.5), 1.5)


@dataclass(frozen=True)
class ReversedReceipt(SubsampledGaussian):
    """A planted bug: noise in one order, receipt in the other. Its total price is right if levels are equally long."""

    def level_events(self, slots, unit, coordinates):
        return super().level_events(slots, unit, coordinates)[::-1]


@dataclass(frozen=True)
class ReversedSchedule(Schedule):
    """A planted bug: the mechanism runs the noise in another order than `event` prices it."""

    def mechanism(self, clip, noise_multiplier):
        right = super().mechanism(clip, noise_multiplier)
        return SubsampledGaussian(right.clips, right.noise_multipliers[::-1], right.sampling_rates)


def test_noise_reversed_against_the_levels_that_are_priced_is_seen():
    schedule = Schedule((100, 100), (4.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    right = schedule.mechanism(1.0, 1.0)
    assert runs_as_priced(schedule, right, 1.0)
    wrong = ReversedReceipt(right.clips, right.noise_multipliers, right.sampling_rates)
    assert epsilon(run(schedule, wrong).event, 1e-5) == epsilon(run(schedule, right).event, 1e-5)  # no price tells
    assert not runs_as_priced(schedule, wrong, 1.0)
    reversed_one = ReversedSchedule(schedule.steps, schedule.noise, schedule.sampling_rate, schedule.clip)
    assert not runs_as_priced(reversed_one, reversed_one.mechanism(1.0, 1.0), 1.0)


@pytest.mark.parametrize(
    "schedule",
    [
        RUN,
        Schedule.of([3.0, 2.0, 2.0, 1.0], 0.2),  # a level of one step
        Schedule.of(schedules.constant(5), 0.2),  # one level
        Schedule.of([2.0]),  # one step of all records
    ],
    ids=["levels", "short", "constant", "once"],
)
def test_the_plan_is_the_receipt_of_the_run(schedule):
    assert run(schedule, schedule.mechanism(3.0, 2.5)).event == schedule.plan(12, "record", 3)(2.5)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_run_calibrated_by_its_plan_costs_what_was_asked(adjacency):
    """Truncated samples and the error of draws are paid for: the scale is a little above that in theory."""
    schedule = Schedule.of(schedules.linear(30, 2.0, 1.0), 0.2, levels=3)
    found = calibrate(1.0, 1e-5, plan=schedule.plan(40, "record", 3), adjacency=adjacency)
    receipt = run(schedule, schedule.mechanism(1.0, found.noise_multiplier), slots=40).event
    assert receipt == found.event
    assert 0.999 <= epsilon(receipt, 1e-5, "pld", adjacency) <= 1.0
    in_theory = epsilon(schedule.event(found.noise_multiplier), 1e-5, "pld", adjacency)
    assert in_theory <= found.epsilon * (1 + 1e-6)
    assert found.epsilon == pytest.approx(in_theory, rel=5e-3)
