"""Schedules keep their rules whatever the arguments, and their chances are those asked for."""

import hashlib
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines.schedule import (
    Step,
    asynchronous,
    communications,
    counts,
    inverse_to_size,
    sequential,
    synchronous,
)

seeds = st.integers(0, 2**64)
# A statistical test here rejects if a count is this many standard deviations off: 6e-7 false alarms, by the normal law.
FAR = 5


def breach(steps: list[Step], sites: int, limits: list[int | None] | None = None) -> str | None:
    """The first rule of the module that a schedule breaks, found by playing it."""
    outstanding: set[int] = set()
    asked = Counter()
    for step in steps:
        if not set(step.asked) | set(step.arrived) <= set(range(sites)):
            return "no such site"
        for m in step.asked:
            if m in outstanding:
                return "asked while outstanding"
            outstanding.add(m)
            asked[m] += 1
        for m in step.arrived:
            if m not in outstanding:
                return "arrived unasked"
            outstanding.remove(m)
    if outstanding:
        return "never arrived"
    if limits is not None and any(limit is not None and asked[m] > limit for m, limit in enumerate(limits)):
        return "over its limit"
    return None


@st.composite
def cases(draw):
    """Any schedule that can be asked for: (how to make it, sites, limits)."""
    sites, seed = draw(st.integers(1, 6)), draw(seeds)
    limit = st.one_of(st.none(), st.integers(0, 5))
    limits = draw(st.one_of(st.none(), st.lists(limit, min_size=sites, max_size=sites)))
    length = draw(st.integers(1, 12))
    chance = st.floats(0, 1, exclude_max=True)
    kind = draw(st.sampled_from(["synchronous", "sequential", "asynchronous"]))
    if kind == "synchronous":
        settings = {"dropout": draw(chance), "straggling": draw(st.floats(0, 1)), "seed": seed}
        return lambda: synchronous(sites, length, limits=limits, **settings), sites, limits
    if kind == "sequential":
        return lambda: sequential(sites, length, limits=limits), sites, limits
    rates = draw(st.lists(st.floats(1e-300, 1e300), min_size=sites, max_size=sites))
    delay = draw(st.integers(0, 8))
    return lambda: asynchronous(rates, length, limits=limits, delay=delay, seed=seed), sites, limits


# --- Conformance -------------------------------------------------------------------------------------------------


@given(case=cases())
def test_every_schedule_keeps_the_rules_and_is_fixed_by_its_arguments(case):
    make, sites, limits = case
    steps = make()
    assert breach(steps, sites, limits) is None
    assert make() == steps
    assert counts(steps, sites).sum() == communications(steps) == sum(len(step.asked) for step in steps)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([Step((0,), ()), Step((0,), (0,)), Step((), (0,))], "asked while outstanding"),
        ([Step((0,), ()), Step((0,), (0, 0))], "asked while outstanding"),
        ([Step((0, 0), (0, 0))], "asked while outstanding"),
        ([Step((), (0,)), Step((0,), ())], "arrived unasked"),
        ([Step((0,), (0, 0))], "arrived unasked"),
        ([Step((0,), (1,))], "arrived unasked"),
        ([Step((0, 1), (0,))], "never arrived"),
        ([Step((2,), (2,))], "no such site"),
        ([Step((1,), (1,)), Step((1,), (1,))], "over its limit"),
    ],
)
def test_a_schedule_that_breaks_a_rule_is_found_out(steps, found):
    assert breach(steps, 2, [None, 1]) == found


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: synchronous(5, 50, dropout=0.4, seed=seed),
        lambda seed: synchronous(5, 50, straggling=0.4, seed=seed),
        lambda seed: asynchronous([1, 2, 3], 50, seed=seed),
    ],
)
def test_another_seed_gives_another_schedule(make):
    assert make(3) == make(np.int64(3)) != make(4)


@pytest.mark.parametrize(
    ("steps", "start"),
    [
        (synchronous(4, 100, limits=[9, 99, 99, 99], dropout=0.3, straggling=0.2, seed=2019), "90d24db2be051b69"),
        (asynchronous([0.1, 0.2, 0.3, 0.4], 300, limits=[9, 99, 99, 99], delay=2, seed=2019), "94400b3df13cf7cc"),
    ],
)
def test_a_seed_means_the_same_with_every_numpy(steps, start):
    text = ";".join(f"{step.asked}{step.arrived}" for step in steps)
    assert hashlib.sha256(text.encode()).hexdigest().startswith(start)


def test_a_schedule_leaves_numpys_own_generator_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    synchronous(3, 9, dropout=0.5)
    asynchronous([1, 1], 9)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


# --- synchronous -------------------------------------------------------------------------------------------------


@given(limits=st.lists(st.integers(0, 8), min_size=1, max_size=6), rounds=st.integers(1, 10), seed=seeds)
def test_with_nobody_away_or_late_each_site_answers_every_round_up_to_its_limit(limits, rounds, seed):
    steps = synchronous(len(limits), rounds, limits=np.array(limits), seed=seed)
    assert len(steps) == min(rounds, max(limits))
    assert all(step.asked == step.arrived for step in steps)
    assert counts(steps, len(limits)).tolist() == [min(limit, rounds) for limit in limits]


def test_without_limits_a_schedule_has_all_its_rounds():
    assert synchronous(3, 4) == [Step((0, 1, 2), (0, 1, 2))] * 4


def test_if_every_answer_is_late_sites_answer_every_other_round_and_the_last_come_at_the_end():
    ask, answer = Step((0, 1), ()), Step((), (0, 1))
    assert synchronous(2, 3, straggling=1) == [ask, answer, ask, answer]
    assert synchronous(2, 9, limits=[1, 1], straggling=1) == [ask, answer]


@given(dropout=st.floats(0, 0.9), straggling=st.floats(0, 1), seed=seeds)
def test_an_answer_is_one_round_late_at_most_and_a_round_with_everybody_away_is_an_empty_step(
    dropout, straggling, seed
):
    steps = synchronous(3, 20, dropout=dropout, straggling=straggling, seed=seed)
    assert len(steps) == 20 + bool(set(steps[19].asked) - set(steps[19].arrived))
    for before, after in pairwise([*steps, Step((), ())]):
        late = set(before.asked) - set(before.arrived)
        assert late <= set(after.arrived)
        assert after.arrived[: len(late)] == tuple(sorted(late)), "what was asked for earlier is taken in first"


@given(limits=st.lists(st.integers(0, 9), min_size=3, max_size=3), seed=seeds)
def test_limits_of_other_sites_do_not_change_when_a_site_is_away_or_late(limits, seed):
    chances = {"dropout": 0.4, "straggling": 0.3, "seed": seed}
    free = synchronous(4, 9, limits=None, **chances)
    bound = synchronous(4, 9, limits=[*limits, None], **chances)
    assert [(3 in s.asked, 3 in s.arrived) for s in free if 3 in s.asked + s.arrived] == [
        (3 in s.asked, 3 in s.arrived) for s in bound if 3 in s.asked + s.arrived
    ]


def standard_deviations(seen: float, of: int, probability: float) -> float:
    return abs(seen - of * probability) / np.sqrt(of * probability * (1 - probability))


def test_sites_are_away_and_late_as_often_as_asked():
    sites, rounds = 20, 1000
    steps = synchronous(sites, rounds, dropout=0.3, seed=5)
    away = sites * rounds - communications(steps)
    assert standard_deviations(away, sites * rounds, 0.3) < FAR
    assert standard_deviations(away, sites * rounds, 0.33) > FAR  # the power: a tenth more would be seen
    steps = synchronous(sites, rounds, straggling=0.3, seed=5)
    asked = sum(len(step.asked) for step in steps)
    late = sum(len(set(step.asked) - set(step.arrived)) for step in steps)
    assert standard_deviations(late, asked, 0.3) < FAR
    assert standard_deviations(late, asked, 0.33) > FAR


def test_who_is_away_and_who_is_late_are_drawn_apart():
    steps = synchronous(20, 1000, dropout=0.5, straggling=0.5, seed=6)  # one word for both: all or none would be late
    asked = sum(len(step.asked) for step in steps)
    late = sum(len(set(step.asked) - set(step.arrived)) for step in steps)
    assert standard_deviations(late, asked, 0.5) < FAR


# --- sequential --------------------------------------------------------------------------------------------------


@given(limits=st.lists(st.integers(0, 5), min_size=1, max_size=5), passes=st.integers(1, 6))
def test_sites_take_turns_until_their_limits(limits, passes):
    steps = sequential(len(limits), passes, limits=limits)
    turns = [(k, m) for k in range(passes) for m in range(len(limits)) if k < limits[m]]
    assert steps == [Step((m,), (m,)) for _, m in turns]


# --- asynchronous ------------------------------------------------------------------------------------------------


@given(
    rates=st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    updates=st.integers(1, 30),
    delay=st.integers(0, 7),
    seed=seeds,
    limit=st.integers(0, 6),
)
def test_all_updates_are_made_unless_limits_end_it_before(rates, updates, delay, seed, limit):
    limits = [limit] * len(rates)
    assert communications(asynchronous(rates, updates, delay=delay, seed=seed)) == updates
    steps = asynchronous(rates, updates, limits=limits, delay=delay, seed=seed)
    assert communications(steps) == min(updates, sum(limits))


@given(updates=st.integers(1, 30), seed=seeds)
def test_without_delay_each_step_is_one_site_that_answers_at_once(updates, seed):
    for step in asynchronous([1, 2, 3], updates, seed=seed):
        assert len(step.asked) == 1
        assert step.arrived == step.asked


@given(delay=st.integers(1, 6), sites=st.integers(1, 5), seed=seeds)
def test_an_answer_arrives_as_many_steps_later_as_the_delay_says(delay, sites, seed):
    steps = asynchronous(np.ones(sites), 20, delay=delay, seed=seed)
    for k, step in enumerate(steps[:-1]):
        assert step.arrived == (steps[k - delay].asked if k >= delay else ())
    assert steps[-1] == Step((), tuple(m for step in steps[-1 - delay : -1] for m in step.asked))


def test_while_an_answer_is_on_its_way_others_are_asked():
    steps = asynchronous(np.ones(5), 50, delay=3, seed=1)
    assert all(len(set().union(*(step.asked for step in steps[k : k + 4]))) == 4 for k in range(47))


def test_sites_update_at_their_rates_and_at_these_among_the_rest_when_one_is_done():
    rates, updates = np.array([1, 2, 3, 4]), 20_000
    seen = counts(asynchronous(rates, updates, seed=7), 4)
    for m in range(4):
        assert standard_deviations(seen[m], updates, rates[m] / 10) < FAR
        assert standard_deviations(seen[m], updates, 1.1 * rates[m] / 10) > FAR  # the power: a tenth more would be seen
    seen = counts(asynchronous(rates, updates, limits=[None, None, None, 0], seed=7), 4)
    assert seen[3] == 0
    for m in range(3):
        assert standard_deviations(seen[m], updates, rates[m] / 6) < FAR
        assert standard_deviations(seen[m], updates, rates[m] / 10) > FAR


@given(sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=8))
def test_rates_inverse_to_size_add_up_to_one_and_times_size_are_equal(sizes):
    rates = inverse_to_size(sizes)
    assert rates.sum() == pytest.approx(1)
    np.testing.assert_allclose(rates * sizes, rates[0] * sizes[0])


# --- Counting ----------------------------------------------------------------------------------------------------


def test_what_counts_is_what_arrived():
    steps = [Step((0, 1), (1,)), Step((1,), (0, 1)), Step((), ())]
    assert communications(iter(steps)) == 3
    assert counts(iter(steps), 3).tolist() == [1, 2, 0]
    assert counts([], 2).tolist() == [0, 0]


# --- Errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: synchronous(0, 1), "sites=0 is not a whole number of at least 1"),
        (lambda: synchronous(2.0, 1), "sites=2.0 is not a whole number"),
        (lambda: synchronous(2, 0), "rounds=0 is not a whole number of at least 1"),
        (lambda: synchronous(2, True), "rounds=True is not a whole number"),
        (lambda: synchronous(2, 1, limits=[1]), "one number for each of 2 sites"),
        (lambda: synchronous(2, 1, limits=3), "limits=3 does not have one number for each of 2 sites"),
        (lambda: synchronous(2, 1, limits=[1, -1]), r"limits\[1\]=-1 is not a whole number of at least 0"),
        (lambda: synchronous(2, 1, limits=[1, 0.5]), r"limits\[1\]=0.5 is not a whole number"),
        (lambda: synchronous(2, 1, dropout=1), r"dropout=1 is not in \[0, 1\): take 0"),
        (lambda: synchronous(2, 1, dropout=float("nan")), r"dropout=nan is not in \[0, 1\)"),
        (lambda: synchronous(2, 1, straggling=1.1), r"straggling=1.1 is not in \[0, 1\]: take 0"),
        (lambda: synchronous(2, 1, seed=None), "seed=None is not a whole number of at least 0"),
        (lambda: sequential(2, 0), "passes=0 is not a whole number of at least 1"),
        (lambda: sequential(2, 1, limits=[1, 2, 3]), "one number for each of 2 sites"),
        (lambda: asynchronous([], 1), r"rates=\[\] does not have one number for each site"),
        (lambda: asynchronous(3, 1), "rates=3 does not have one number for each site"),
        (lambda: asynchronous([1, 0], 1), r"rates\[1\]=0.0 is not a positive, finite number"),
        (lambda: asynchronous([1, float("inf")], 1), r"rates\[1\]=inf is not a positive, finite number"),
        (lambda: asynchronous([1, float("nan")], 1), r"rates\[1\]=nan is not a positive, finite number"),
        (lambda: asynchronous([1], 0), "updates=0 is not a whole number of at least 1"),
        (lambda: asynchronous([1], 1, delay=-1), "delay=-1 is not a whole number of at least 0"),
        (lambda: asynchronous([1], 1, seed=-1), "seed=-1 is not a whole number of at least 0"),
        (lambda: asynchronous([1, 1], 1, limits=[1]), "one number for each of 2 sites"),
        (lambda: inverse_to_size([3, 0]), r"sizes\[1\]=0 is not a whole number of at least 1"),
        (lambda: inverse_to_size([]), r"sizes=\[\] does not have one number for each site"),
        (lambda: counts([Step((2,), (2,))], 2), "sites=2 is too few for steps with site 2"),
    ],
)
def test_what_makes_no_schedule_is_refused_with_a_remedy(make, words):
    with pytest.raises(ValueError, match=words) as refusal:
        make()
    assert str(refusal.value).endswith(".")
    assert ": " in str(refusal.value)
