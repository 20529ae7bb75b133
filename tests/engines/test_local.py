"""The local engine: any run can be stopped and go on, no site can stop it, and simulations are the same runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.engines import coordinator
from tacit.engines.coordinator import Progress
from tacit.engines.local import DirectTransport, simulate, simulate_many, stacked
from tacit.engines.schedule import Step, asynchronous, sequential, synchronous
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.messages import Broadcast, Refusal, Update, encode_tree
from tacit.federated.moments import Moments
from tacit.federated.pvi import PVI
from tacit.federated.responder import Responder
from tacit.federated.simulated import unledgered
from tacit.models import LinearRegression
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.solvers import conjugate
from tacit.tables.scaling import Range

DIMENSION, RECORDS, SITES = 2, 8, 3
MODEL = LinearRegression(DiagonalGaussian.standard(DIMENSION), 1.0)
NOISED = SubsampledGaussian(2.0, 1.0)
traces: list[str] = []


def first(key: Any, target: Any, access: Any) -> Any:
    """A solver that says when it is traced: compiled, it says nothing."""
    traces.append("first")
    return conjugate(key, target, access)


def later(key: Any, target: Any, access: Any) -> Any:
    traces.append("later")
    return conjugate(key, target, access)


STUDY = PVI(MODEL.prior, MODEL, (first, later), kinds=(0, 0, 1), damping=(1.0, 0.5))


@cache
def access_of(m: int, mechanism: Any = NOISED) -> Access:
    rng = np.random.default_rng(m)
    x = rng.uniform(-1, 1, size=(RECORDS - m % 3, DIMENSION)).astype(np.float32)
    return Access.of((x, (x @ np.array([0.5, -1.0])).astype(np.float32)), mechanism, slots=RECORDS)


@cache
def key_of(seed: int) -> jax.Array:
    return tacit.insecure_key(seed)


def sites_of(count: int = SITES, algorithm: Any = STUDY, mechanism: Any = NOISED) -> list[Any]:
    held = [access_of(m, mechanism) for m in range(count)]
    return [Responder(f"site {m}", "heart", algorithm, access, key_of(0), None) for m, access in enumerate(held)]


def run(algorithm: Any, sites: list[Any], steps: list[Step], study: str, **settings: Any) -> Progress:
    return coordinator.run(algorithm, DirectTransport(sites), len(sites), steps, study, **settings)


def same(a: Any, b: Any) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(one, other) for one, other in leaves)


def close(a: Any, b: Any) -> None:
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


# --- Stopped, and gone on ----------------------------------------------------------------------------------------

LATE = asynchronous([1, 2, 3], 7, delay=1, seed=1)  # answers are on their way between steps


class Stopped(BaseException):
    pass


@dataclass
class Stopping:
    """A site that the whole process dies with at its call number `at`, before or after it answers."""

    site: Any
    calls: list[int]
    at: int
    answers_first: bool

    def __call__(self, broadcast: Broadcast) -> Any:
        self.calls[0] += 1
        is_last = self.calls[0] == self.at
        if is_last and not self.answers_first:
            raise Stopped
        answer = self.site(broadcast)
        if is_last:
            raise Stopped
        return answer


@pytest.mark.parametrize("answers_first", [False, True], ids=["unasked", "answered and lost"])
def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_end(answers_first):
    """At every step of a schedule with answers on their way; what was stored is bytes."""
    whole = run(STUDY, sites_of(), LATE, "heart")
    asked = sum(len(step.asked) for step in LATE)
    for at in range(1, asked + 1):
        sites, calls, kept = sites_of(), [0], [Progress(STUDY.coordinator_init(SITES)).to_bytes()]
        stopping = [Stopping(site, calls, at, answers_first) for site in sites]
        with pytest.raises(Stopped):
            run(STUDY, stopping, LATE, "heart", observe=lambda now, kept=kept: kept.append(now.to_bytes()))
        progress = Progress.from_bytes(kept[-1], STUDY, SITES)
        end = run(STUDY, sites, LATE, "heart", progress=progress)
        assert same(end.state, whole.state), at
        assert (end.communications, end.position, end.answered) == (asked, len(LATE), whole.answered)
        assert end.pending == end.refused == {}


def test_the_check_for_resuming_sees_a_run_that_begins_anew():
    """Sites that answered already repeat themselves, so that a coordinator that forgot ends elsewhere."""
    whole, sites = run(STUDY, sites_of(), LATE, "heart"), sites_of()
    run(STUDY, sites, LATE[:4], "heart")
    assert not same(run(STUDY, sites, LATE, "heart").state, whole.state)


def test_progress_survives_as_bytes_and_other_bytes_are_refused():
    steps = LATE[:3]
    progress = run(STUDY, [*sites_of()[:2], refusing("budget: ε = 1 is spent")], steps, "heart")
    progress.pending[1] = STUDY.answer(STUDY.site_init())
    progress.missed[0] = "this round was charged and its answer lost"
    progress.refused[2] = "ε is spent"
    back = Progress.from_bytes(progress.to_bytes(), STUDY, SITES)
    assert same(back.state, progress.state)
    assert same(back.pending, progress.pending)
    assert replace(back, state=0, pending={}) == replace(progress, state=0, pending={})
    assert back.to_bytes() == progress.to_bytes()
    for data, words in (
        (b"", "no message"),
        (encode_tree({"a": np.zeros(1)}), "not a run's progress"),
        (Progress(STUDY.coordinator_init(2)).to_bytes(), "another study"),
    ):
        with pytest.raises(ValueError, match=words):
            Progress.from_bytes(data, STUDY, SITES)


# --- Sites that do not do as they should -------------------------------------------------------------------------


def refusing(reason: str) -> Callable[[Broadcast], Refusal]:
    return lambda broadcast: Refusal(broadcast.study, "x", broadcast.round, reason)


@dataclass
class Lying:
    """A site that is right but for some of its answers (by number), with which something is wrong."""

    wrong: Callable[[Update], Any]
    lies: tuple[int, ...] = (1, 2, 3)
    site: Any = field(default_factory=lambda: sites_of()[1])
    asked: int = 0

    def __call__(self, broadcast: Broadcast) -> Any:
        answer, number = self.site(broadcast), self.asked
        self.asked += 1
        return self.wrong(answer) if number in self.lies else answer


def leaves(change: Callable[[Any], Any]) -> Callable[[Update], Update]:
    return lambda answer: replace(answer, content=jax.tree.map(change, answer.content))


LIES: dict[str, tuple[Callable[[Update], Any], str]] = {
    "not a number": (leaves(lambda leaf: leaf * np.float32("nan")), "not finite"),
    "infinite": (leaves(lambda leaf: np.full_like(leaf, np.inf)), "not finite"),
    "more numbers": (leaves(lambda leaf: np.concatenate([leaf, leaf])), "another shape"),
    "scalars": (leaves(lambda leaf: leaf[0]), "another shape"),
    "integers": (leaves(lambda leaf: leaf.astype(np.int32)), "another shape or type"),
    "double": (leaves(lambda leaf: leaf.astype(np.float64)), "another shape or type"),
    "another family": (lambda a: replace(a, content=jax.tree.map(np.asarray, FullGaussian.standard(2))), "shape"),
    "a dict": (lambda a: replace(a, content={"a": a.content}), "another shape"),
    "nothing": (lambda a: replace(a, content=None), "another shape"),
    "an older round": (lambda a: replace(a, round=a.round - 1), "it answered round 1 of heart, not round 2 of heart"),
    "a later round": (lambda a: replace(a, round=a.round + 1), "it answered round 3"),
    "another study": (lambda a: replace(a, study="lung"), "of lung, not round 2 of heart"),
    "a refusal": (lambda a: Refusal(a.study, a.site, a.round, "the budget is spent"), "the budget is spent"),
    "a refusal of another": (lambda a: Refusal("lung", a.site, 9, "no"), "no"),
}
TOGETHER, WITHOUT = Step((0, 1, 2), (0, 1, 2)), Step((0, 2), (0, 2))


def run_with(liar: Lying) -> Progress:
    """Four rounds in which site 1 is the liar."""
    others = sites_of()
    return run(STUDY, [others[0], liar, others[2]], synchronous(SITES, 4), "heart")


def test_two_bad_answers_leave_their_site_out_with_a_reason_and_the_others_go_on():
    """The bad site's last good factor stays; the others' are those of a run in which it was away from then on."""
    expected = run(STUDY, sites_of(), [TOGETHER, WITHOUT, WITHOUT, WITHOUT], "heart")
    for name, (wrong, words) in LIES.items():
        liar = Lying(wrong)
        end = run_with(liar)
        assert set(end.refused) == {1}, name
        assert words in end.refused[1], name
        assert liar.asked == 3, "it is not asked again"
        close(end.state, expected.state)
        assert end.answered == {0: 3, 1: 0, 2: 3}
        assert end.communications == 9


def test_one_bad_answer_leaves_its_site_out_of_that_round_only():
    """Such as a round that a crash took: what the site sends later counts. Two losses that are not in a row are two."""
    for name, (wrong, _) in LIES.items():
        liar = Lying(wrong, (1, 3))
        end = run_with(liar)
        assert (end.refused, set(end.missed)) == ({}, {1}), name
        assert (liar.asked, end.communications, end.answered) == (4, 10, {0: 3, 1: 2, 2: 3})
        assert int(end.state.answered) == 10


def test_a_study_of_sites_that_all_refuse_ends_with_the_prior():
    end = run(STUDY, [refusing("no")] * SITES, synchronous(SITES, 50), "heart")
    assert end.position == 2
    assert end.refused == dict.fromkeys(range(SITES), "no")
    assert same(end.state.q, MODEL.prior)


# --- Simulations -------------------------------------------------------------------------------------------------


def mean_of(state: Any) -> Any:
    return state.q.mean


def all_accesses(mechanism: Any, count: int = SITES) -> Any:
    return stacked([access_of(m, mechanism) for m in range(count)])


@pytest.mark.parametrize(
    "steps",
    [synchronous(SITES, 4), sequential(SITES, 2), [TOGETHER, TOGETHER, Step((), ()), TOGETHER, TOGETHER]],
    ids=["synchronous", "sequential", "everybody away"],
)
def test_a_simulation_is_the_run_without_messages(steps):
    """Keys are handed on differently, so without noise."""
    expected = run(STUDY, sites_of(mechanism=Exact()), steps, "heart")
    state, means = simulate(STUDY, unledgered, key_of(0), all_accesses(Exact()), steps, mean_of)
    close(state, expected.state)
    assert means.shape == (len(steps), DIMENSION)
    np.testing.assert_array_equal(means[-1], state.q.mean)


def test_many_simulations_at_once_are_those_one_by_one_and_no_two_updates_share_their_noise():
    """Two keys, two schedules, one of which ends early. Sites without records: what each sends is noise alone."""
    pairs = [Step(pair, pair) for pair in ((0, 1), (1, 2), (0, 2))]
    schedules = [[*pairs, pairs[0]], [pairs[2], pairs[1]]]
    moments = Moments(Range(-jnp.ones(DIMENSION), jnp.ones(DIMENSION)))
    empty = Access.of(np.zeros((0, DIMENSION), np.float32), NOISED, slots=RECORDS)
    keys, held = jax.random.split(key_of(0), 2), stacked([empty] * SITES)
    many, steps_of_many = simulate_many(moments, unledgered, keys, held, schedules, lambda state: state)
    for m, steps in enumerate(schedules):
        one, found = simulate(moments, unledgered, keys[m], held, steps, lambda state: state)
        close(jax.tree.map(lambda leaf, m=m: leaf[m], many), one)
        close(jax.tree.map(lambda leaf, m=m, steps=steps: leaf[m, : len(steps)], steps_of_many), found)
        assert same(one, jax.tree.map(lambda leaf, m=m: leaf[m, -1], steps_of_many)), "one that has ended does nothing"
    sent = np.ravel(steps_of_many["first"])
    assert len(set(sent[sent != 0].tolist())) == (4 + 2) * 2 * DIMENSION, "each update has numbers of its own"


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        ([LATE, LATE], "use run"),
        ([synchronous(SITES, 2)], "2 keys and 1 schedules"),
        ([synchronous(SITES, 2), sequential(SITES, 1)], "of another kind"),
    ],
)
def test_what_cannot_be_simulated_at_once_is_refused(schedules, words):
    keys = jax.random.split(key_of(0), 2)
    with pytest.raises(ValueError, match=words):
        simulate_many(STUDY, unledgered, keys, all_accesses(Exact()), schedules)


# --- Compilation -------------------------------------------------------------------------------------------------


def test_ten_sites_and_five_rounds_compile_a_step_once_for_each_kind():
    """Rounds of kinds 0, 0, 1, 1, 1. A second run, and one with other records, compile nothing."""
    fresh = replace(STUDY, damping=(0.7,))  # of other public settings than all above
    traces.clear()
    run(fresh, sites_of(10, fresh, Exact()), synchronous(10, 5), "heart")
    assert sorted(traces) == ["first", "later"]
    run(fresh, sites_of(10, fresh, Exact())[::-1], synchronous(10, 5), "heart")
    assert sorted(traces) == ["first", "later"]


def test_the_count_of_compilations_sees_sites_of_another_shape():
    fresh = replace(STUDY, damping=(0.6,))
    traces.clear()
    larger = Access.of((np.ones((20, DIMENSION), np.float32), np.ones(20, np.float32)), Exact())
    sites = [*sites_of(2, fresh, Exact()), Responder("large", "heart", fresh, larger, key_of(0), None)]
    run(fresh, sites, synchronous(3, 2), "heart")
    assert traces == ["first", "first"]
