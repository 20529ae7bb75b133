"""The coordinator under any network: whatever is lost, late, repeated or wrong, q is the product of what was taken in.

Sites here are functions that make up a factor for each round they are asked, so that it shows which ones q is made of.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.engines import coordinator
from tacit.engines.coordinator import WITHDRAWN, Away, Fault, Progress, Transport, run, run_free, withdraw
from tacit.engines.local import DirectTransport
from tacit.engines.schedule import Step, asynchronous, synchronous
from tacit.families import DiagonalGaussian
from tacit.federated.messages import Broadcast, Refusal, Update, decode_tree, encode_tree
from tacit.federated.pvi import PVI
from tacit.models import LinearRegression
from tacit.solvers import conjugate

DIMENSION, SITES, UPDATES = 2, 3, 4
MODEL = LinearRegression(DiagonalGaussian.standard(DIMENSION), 1.0)
STUDY = PVI(MODEL.prior, MODEL, (conjugate,))
PRIOR = jax.tree.map(np.asarray, MODEL.prior)
QUICK = settings(max_examples=50)


@cache
def factor(site: int, round: int) -> DiagonalGaussian:
    """The factor that a site answers a round with: one of its own for each."""
    rng = np.random.default_rng([site, round])
    pair = rng.normal(size=DIMENSION), rng.uniform(-0.05, 1, size=DIMENSION)
    return DiagonalGaussian(*(np.asarray(part, np.float32) for part in pair))  # type: ignore[arg-type]


def update(site: int, broadcast: Broadcast) -> Update:
    return Update(broadcast.study, f"{site}", broadcast.round, factor(site, broadcast.round))


def site_of(site: int) -> Callable[[Broadcast], Update]:
    return lambda broadcast: update(site, broadcast)


def scaled(answer: Update, by: float) -> Update:
    return replace(answer, content=jax.tree.map(lambda leaf: leaf * np.float32(by), answer.content))


def same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(np.array_equal(one, two) for one, two in pairs)


def check_product(now: Progress) -> None:
    """q = prior · own · Π factors, and each factor is the one of the round that was last taken in of its site."""
    state = jax.tree.map(np.asarray, now.state)
    for site in set(range(SITES)) - set(now.pending):
        found = jax.tree.map(lambda leaf, site=site: leaf[site], state.factors)
        is_in = site in now.answered and now.refused.get(site) != WITHDRAWN
        assert same(found, factor(site, now.answered[site]) if is_in else jax.tree.map(np.zeros_like, found)), site
    for name in ("precision_mean", "precision"):
        parts = [getattr(part, name).astype(float) for part in (PRIOR, state.refined, state.own)]
        product = sum(parts) + getattr(state.factors, name).astype(float).sum(axis=0)
        np.testing.assert_allclose(getattr(state.q, name), product, rtol=1e-5, atol=1e-5)
    assert np.all(state.q.precision > 0)


# --- Any network -------------------------------------------------------------------------------------------------

# What becomes of an ask. Strays come besides: late answers, and answers that come twice.
OUTCOMES = ("answer", "answer", "answer", "twice", "late", "away", "refusal", "fault", "wrong", "huge")
LIMITS = [DiagonalGaussian(100.0, 100.0)] * SITES  # type: ignore[arg-type]


class Stopped(BaseException):
    pass


@dataclass
class Wild:
    """A transport over which anything can happen, that keeps its word: each ask has an outcome in the end."""

    repeats = True
    choose: Callable[[int], int]  # which of so many comes next; strays are last
    outcome: Callable[[int, int], str]  # of a site and a round
    stops: int | None = None  # at which of its calls the whole process dies
    made: dict[int, list[int]] = field(default_factory=lambda: {site: [] for site in range(SITES)})
    sent: list[tuple[int, int]] = field(default_factory=list)
    on_the_way: list[tuple[int, Any]] = field(default_factory=list)
    strays: list[tuple[int, Any]] = field(default_factory=list)
    calls: int = 0

    def send(self, site: int, broadcast: Broadcast) -> None:
        self._live()
        rounds = self.made[site]
        assert not rounds or broadcast.round >= rounds[-1], "rounds grow for each site"
        assert np.all(broadcast.content.precision > 0)
        self.sent.append((site, broadcast.round))
        what, made = self.outcome(site, broadcast.round), update(site, broadcast)
        if what in ("answer", "twice", "late") and broadcast.round not in rounds:
            rounds.append(broadcast.round)
        results = {
            "away": Away("it is not connected"),
            "late": Away("it was not in time"),
            "refusal": Refusal(broadcast.study, f"{site}", broadcast.round, "no"),
            "fault": Fault("it cannot be read"),
            "wrong": scaled(made, np.nan),
            "huge": scaled(made, 1e30),
        }
        self.on_the_way.append((site, results.get(what, made)))
        if what in ("twice", "late"):
            self.strays.append((site, made))

    def receive(self) -> tuple[int, Any]:
        self._live()
        assert self.on_the_way, "it waits for what was not asked"
        place = self.choose(len(self.on_the_way) + len(self.strays))
        if place < len(self.on_the_way):
            return self.on_the_way.pop(place)
        return self.strays.pop(place - len(self.on_the_way))

    def _live(self) -> None:
        self.calls += 1
        if self.calls == self.stops:
            raise Stopped


def wild(data: st.DataObject, **settings: Any) -> Wild:
    """Outcomes and order by chance, of which a failing example is made small."""
    known: dict[tuple[int, int], str] = {}

    def outcome(site: int, round: int) -> str:
        if (site, round) not in known:
            known[site, round] = data.draw(st.sampled_from(OUTCOMES), label=f"site {site}, round {round}")
        found = known[site, round]
        # Who is away, or late, may be there when it is asked the same again.
        known[site, round] = "answer" if found in ("late", "away") and data.draw(st.booleans()) else found
        return found

    return Wild(lambda count: data.draw(st.integers(0, count - 1), label="comes"), outcome, **settings)


def watched(now: list[Progress]) -> Callable[[Progress], None]:
    """Whatever is observed can be stored, and is the product of its factors once it is settled."""

    def observe(progress: Progress) -> None:
        data = progress.to_bytes()
        again = Progress.from_bytes(data, STUDY, SITES)
        assert again.to_bytes() == data
        now.append(again)
        check_product(replace(again, state=coordinator.aggregate(STUDY, again.state)[0]))

    return observe


@given(data=st.data())
@QUICK
def test_a_run_takes_each_answer_once_and_ends_whatever_the_network_does(data):
    steps = data.draw(
        st.sampled_from(
            [synchronous(SITES, 4), synchronous(SITES, 4, straggling=0.5), asynchronous([1] * 3, 8, delay=1)]
        )
    )
    transport, seen = wild(data), []
    end = run(STUDY, transport, SITES, steps, "heart", limits=LIMITS, observe=watched(seen))
    check_product(end)
    assert end.communications == sum(end.taken.values()) == int(end.state.answered)
    for site, count in end.taken.items():
        assert count <= len(transport.made[site]), "no answer counts twice"
    assert end.position == len(steps) or len(end.refused) == SITES
    assert all(reason for reason in end.refused.values())
    assert not set(end.away) & set(end.refused)


@given(data=st.data())
@QUICK
def test_a_runs_result_does_not_depend_on_the_order_in_which_answers_come(data):
    """The same outcomes in two orders, with strays in between: not a bit differs, in what is stored too.

    Who is late is away, and that is up to the network: it is the only thing that is.
    """
    outcomes = [outcome for outcome in OUTCOMES if outcome != "late"]
    known = {
        (site, round): data.draw(st.sampled_from(outcomes)) for site in range(SITES) for round in range(5)
    }  # fmt: skip
    first = Wild(lambda count: 0, lambda site, round: known[site, round])
    second = Wild(lambda count: data.draw(st.integers(0, count - 1)), lambda site, round: known[site, round])
    ends = [
        run(STUDY, transport, SITES, synchronous(SITES, 5), "heart", limits=LIMITS) for transport in (first, second)
    ]  # fmt: skip
    assert ends[0].to_bytes() == ends[1].to_bytes()


@given(data=st.data())
@QUICK
def test_a_free_run_takes_each_answer_once_and_ends_whatever_the_network_does(data):
    transport, seen = wild(data), []
    end = run_free(STUDY, transport, SITES, UPDATES, "heart", limits=LIMITS, observe=watched(seen))
    check_product(end)
    assert end.communications == sum(end.taken.values()) == int(end.state.answered)
    for site in range(SITES):
        count = end.taken.get(site, 0)
        assert count <= len(transport.made[site]), "no answer counts twice"
        assert count <= UPDATES
        assert count == UPDATES or site in end.refused or site in end.away
    assert set(end.asked) == set(end.away), "all that is left to answer is away"
    positions = [now.position for now in seen]
    assert positions == sorted(positions)


def test_the_check_of_products_sees_a_factor_that_counts_twice(monkeypatch):
    """A planted bug: late answers are taken in as if they had been asked for."""
    monkeypatch.setattr(coordinator._Desk, "hear", lambda self, owed, under_way: self.transport.receive())
    monkeypatch.setattr(coordinator._Desk, "_fault", lambda self, site, round, answer: "")
    turns = cycle([0, -1])  # the oldest that was asked for, and the newest stray
    transport = Wild(lambda count: next(turns) % count, lambda site, round: "twice")
    with pytest.raises((AssertionError, KeyError)):
        run_free(STUDY, transport, SITES, UPDATES, "heart", observe=watched([]))


# --- Stopped, and gone on ----------------------------------------------------------------------------------------


@given(data=st.data())
@QUICK
def test_a_free_run_that_was_stopped_anywhere_asks_the_same_rounds_again(data):
    """Whatever was on the way is lost with the process. Sites answer what they are asked again from their stores."""
    made = {site: [] for site in range(SITES)}
    stored: list[bytes] = []

    def observe(now: Progress) -> None:
        stored.append(now.to_bytes())

    stops: list[int | None] = [*data.draw(st.lists(st.integers(1, 12), max_size=4)), None]
    for stop in stops:
        transport = Wild(lambda count: data.draw(st.integers(0, count - 1)), lambda site, round: "answer", stop, made)
        begun = Progress.from_bytes(stored[-1], STUDY, SITES) if stored else None
        owed = {} if begun is None else dict(begun.asked)
        try:
            end = run_free(STUDY, transport, SITES, UPDATES, "heart", progress=begun, observe=observe)
        except Stopped:
            first = dict(reversed(transport.sent))  # the first round that each was sent
            assert first.items() <= owed.items() or not owed
            continue
        if owed:
            assert {site: round for site, round in transport.sent[: len(owed)]} == owed
        check_product(end)
        assert end.taken == dict.fromkeys(range(SITES), UPDATES)
        assert {site: len(rounds) for site, rounds in made.items()} == end.taken, "nobody ran a round for nothing"
        assert end.asked == {}
        assert end.position == SITES * UPDATES


def test_asks_are_noted_before_they_are_sent():
    asked: dict[int, int] = {}
    here = DirectTransport([site_of(site) for site in range(SITES)])

    class Noted:
        def send(self, site: int, broadcast: Broadcast) -> None:
            assert asked[site] == broadcast.round
            here.send(site, broadcast)

        def receive(self) -> Any:
            return here.receive()

    def observe(now: Progress) -> None:
        asked.clear()
        asked.update(Progress.from_bytes(now.to_bytes(), STUDY, SITES).asked)

    run_free(STUDY, Noted(), SITES, UPDATES, "heart", observe=observe)


def test_progress_of_an_older_version_still_loads():
    whole = run(STUDY, DirectTransport([site_of(site) for site in range(SITES)]), SITES, synchronous(SITES, 2), "heart")
    tree = decode_tree(whole.to_bytes())
    old = encode_tree({name: part for name, part in tree.items() if name not in ("away", "asked", "taken")})
    back = Progress.from_bytes(old, STUDY, SITES)
    assert same(back.state, whole.state)
    assert (back.position, back.answered, back.away, back.asked, back.taken) == (2, whole.answered, {}, {}, {})


def test_all_of_a_progress_survives_as_bytes():
    now = Progress(STUDY.coordinator_init(SITES), 7, {1: factor(1, 3)}, {0: "ε"}, {1: "no"}, {1: 3}, 5)
    now = replace(now, away={2: "it is not connected"}, asked={2: 6, 1: 5}, taken={1: 2})
    back = Progress.from_bytes(now.to_bytes(), STUDY, SITES)
    assert replace(back, state=0, pending=0) == replace(now, state=0, pending=0)
    assert same((back.state, back.pending), (now.state, now.pending))


# --- Sites that are away -----------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """Sites that answer at once, but for what the script says of a site and a round, once each."""

    script: dict[tuple[int, int], Any]
    log: list[tuple[int, int]] = field(default_factory=list)
    _answers: list[tuple[int, Any]] = field(default_factory=list)

    def send(self, site: int, broadcast: Broadcast) -> None:
        self.log.append((site, broadcast.round))
        self._answers.append((site, self.script.pop((site, broadcast.round), update(site, broadcast))))

    def receive(self) -> tuple[int, Any]:
        return self._answers.pop(0)


AWAY = Away("it is not connected")


def test_a_site_that_is_away_is_not_left_out_and_keeps_its_last_factor():
    transport = Scripted({(1, round): AWAY for round in (1, 2, 3)})
    seen: list[Any] = []
    end = run(STUDY, transport, SITES, synchronous(SITES, 5), "heart", observe=lambda now: seen.append(dict(now.away)))
    assert seen == [{}, {1: AWAY.reason}, {1: AWAY.reason}, {1: AWAY.reason}, {}]
    assert (end.missed, end.refused, end.away) == ({}, {}, {})
    assert end.taken == {0: 5, 1: 2, 2: 5}
    check_product(end)
    transport = Scripted({(1, round): AWAY for round in (1, 2, 3, 4)})
    end = run(STUDY, transport, SITES, synchronous(SITES, 5), "heart")
    assert (end.away, end.answered[1]) == ({1: AWAY.reason}, 0)
    check_product(end)


def test_an_absence_between_two_refusals_does_not_make_them_two_in_a_row_less():
    transport = Scripted({(1, 1): Fault("it cannot be read"), (1, 2): AWAY, (1, 3): Fault("it cannot be read")})
    end = run(STUDY, transport, SITES, synchronous(SITES, 6), "heart")
    assert end.refused == {1: "it cannot be read"}
    assert (1, 4) not in transport.log


def test_a_free_site_that_is_away_is_tried_whenever_another_answers_and_keeps_its_round():
    """Site 2 is away for three asks of its first round: it is asked that same round each time another has answered."""
    tries: list[int] = []

    class Absent(Scripted):
        def send(self, site: int, broadcast: Broadcast) -> None:
            super().send(site, broadcast)
            if site == 2 and len(tries) < 3:
                tries.append(broadcast.round)
                self._answers[-1] = (2, AWAY)

    transport = Absent({})
    end = run_free(STUDY, transport, SITES, UPDATES, "heart")
    assert tries == [2, 2, 2]
    assert end.taken == dict.fromkeys(range(SITES), UPDATES)
    assert end.away == {}


def test_a_free_run_ends_when_only_sites_that_are_away_are_left_and_goes_on_when_they_are_back():
    class Absent(Scripted):
        def send(self, site: int, broadcast: Broadcast) -> None:
            super().send(site, broadcast)
            if site == 0:
                self._answers[-1] = (0, AWAY)

    transport = Absent({})
    end = run_free(STUDY, transport, SITES, UPDATES, "heart")
    assert (end.away, end.asked, end.taken) == ({0: AWAY.reason}, {0: 0}, {1: UPDATES, 2: UPDATES})
    rounds = [site for site, _ in transport.log]
    assert rounds == [*[0, 1, 2] * UPDATES, 0], "whenever another has answered and it is not being asked already"
    back = Scripted({})
    end = run_free(STUDY, back, SITES, UPDATES, "heart", progress=Progress.from_bytes(end.to_bytes(), STUDY, SITES))
    assert back.log[0] == (0, 0)
    assert end.taken == dict.fromkeys(range(SITES), UPDATES)
    check_product(end)


def test_what_a_free_site_sends_late_counts_if_it_is_still_owed():
    """Site 0 was not in time for round 0, which it is asked again; its first answer comes before that."""
    transport = Wild(lambda count: count - 1, lambda site, round: "late" if (site, round) == (0, 0) else "answer")
    end = run_free(STUDY, transport, SITES, 1, "heart")
    assert end.taken == dict.fromkeys(range(SITES), 1)
    assert end.away == {}


# --- Answers that are too large, or not to what was asked --------------------------------------------------------


def test_huge_answers_are_named_and_left_out_and_the_posterior_stays_proper():
    def huge(broadcast: Broadcast) -> Update:
        return scaled(update(1, broadcast), 1e30)

    sites = [site_of(0), huge, site_of(2)]
    for end in (
        run(STUDY, DirectTransport(sites), SITES, synchronous(SITES, 4), "heart", limits=LIMITS),
        run_free(STUDY, DirectTransport(sites), SITES, UPDATES, "heart", limits=LIMITS),
    ):
        assert end.refused == {1: "its answer is larger than the study allows"}
        check_product(end)
        assert np.all(np.abs(end.state.q.mean) < 100)
    free = run(STUDY, DirectTransport(sites), SITES, synchronous(SITES, 4), "heart")
    assert 1 in free.answered, "the check sees what limits are for"
    assert np.any(np.abs(np.asarray(free.state.factors.precision_mean)) > 1e28)


def test_an_answer_is_held_to_the_limit_of_each_of_its_arrays():
    whole = factor(1, 0)
    norms = [float(np.linalg.norm(leaf)) for leaf in jax.tree.leaves(whole)]
    for bounds, is_refused in (
        ([norms[0] * 1.01, norms[1] * 1.01], False),
        ([norms[0] * 0.99, norms[1] * 1.01], True),
        ([norms[0] * 1.01, norms[1] * 0.99], True),
    ):
        limits = [jax.tree.unflatten(jax.tree.structure(whole), bounds)]
        end = run(STUDY, DirectTransport([site_of(1)]), 1, synchronous(1, 1), "heart", limits=limits)
        assert bool(end.missed) == is_refused


@pytest.mark.parametrize("is_free", [False, True], ids=["run", "free"])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda broadcast: replace(update(1, broadcast), round=0), "it answered round 0 of heart, not round "),
        (lambda broadcast: replace(update(1, broadcast), round=99), "it answered round 99 of heart, not round "),
        (lambda broadcast: replace(update(1, broadcast), study="lung"), " of lung, not round "),
        (lambda broadcast: Refusal("lung", "1", 99, "the budget is spent"), "the budget is spent"),
    ],
    ids=["older", "later", "another study", "a refusal of another"],
)
def test_a_reply_to_something_else_is_a_fault_and_nobody_waits_for_another(is_free, wrong, reason):
    """A site that was asked once has replied once: it cannot stop a study by sending what is passed over."""
    sites = [
        site_of(0),
        lambda broadcast: wrong(broadcast) if broadcast.round > 1 else update(1, broadcast),
        site_of(2),
    ]
    if is_free:
        end = run_free(STUDY, DirectTransport(sites), SITES, UPDATES, "heart")
    else:
        end = run(STUDY, DirectTransport(sites), SITES, synchronous(SITES, UPDATES), "heart")
    assert list(end.refused) == [1]
    assert reason in end.refused[1]
    assert (end.taken[0], end.taken[2]) == (UPDATES, UPDATES)
    check_product(end)


# --- Withdrawals -------------------------------------------------------------------------------------------------


def test_a_withdrawn_factor_is_divided_out():
    end = run(STUDY, DirectTransport([site_of(site) for site in range(SITES)]), SITES, synchronous(SITES, 2), "heart")
    state, q = coordinator.aggregate(STUDY, withdraw(STUDY, end.state, 1))
    without = run(
        STUDY, DirectTransport([site_of(site) for site in range(SITES)]), SITES, [Step((0, 2), (0, 2))] * 2, "heart"
    )
    for name in ("precision_mean", "precision"):
        np.testing.assert_allclose(getattr(q, name), getattr(without.state.q, name), rtol=1e-4, atol=1e-4)
    assert same(jax.tree.map(lambda leaf: leaf[1], state.factors), jax.tree.map(jnp.zeros_like, factor(1, 0)))


@pytest.mark.parametrize("is_free", [False, True], ids=["run", "free"])
@pytest.mark.parametrize("when", range(8))
def test_a_site_that_withdraws_is_out_at_once_and_not_asked_again(is_free, when):
    """At any message: between steps, while its answer is on its way, and after the last one."""
    gone: set[int] = set()
    transport = Scripted({})
    receive, count = transport.receive, [0]

    def counted() -> Any:
        count[0] += 1
        if count[0] > when:
            gone.add(1)
        return receive()

    transport.receive = counted  # type: ignore[method-assign]
    asked_then: list[int] = []

    def observe(now: Progress) -> None:
        if gone:
            asked_then.append(sum(site == 1 for site, _ in transport.log))
            assert now.refused == {1: WITHDRAWN}
            assert 1 not in now.asked
            check_product(replace(now, state=coordinator.aggregate(STUDY, now.state)[0]))

    more: dict[str, Any] = {"observe": observe, "withdrawn": lambda: gone}
    if is_free:
        end = run_free(STUDY, transport, SITES, UPDATES, "heart", **more)
    else:
        end = run(STUDY, transport, SITES, synchronous(SITES, UPDATES), "heart", **more)
    check_product(end)
    assert end.refused == {1: WITHDRAWN}
    assert len(set(asked_then)) == 1, "it is not asked again"
    assert (end.taken[0], end.taken[2]) == (UPDATES, UPDATES)


def test_a_finished_run_lets_a_site_go_and_so_does_one_that_left_it_out():
    sites = [site_of(site) for site in range(SITES)]
    steps, kept = synchronous(SITES, 3), []
    end = run(STUDY, DirectTransport(sites), SITES, steps, "heart")
    end.refused[2] = "the budget is spent"
    again = run(
        STUDY,
        DirectTransport(sites),
        SITES,
        steps,
        "heart",
        progress=end,
        observe=kept.append,
        withdrawn=lambda: [0, 2],
    )
    assert again.refused == {0: WITHDRAWN, 2: WITHDRAWN}
    assert len(kept) == 1, "so that it is stored"
    check_product(again)
    count = int(again.state.answered)
    third = run(STUDY, DirectTransport(sites), SITES, steps, "heart", progress=again, withdrawn=lambda: [0, 2])
    assert int(third.state.answered) == count, "once is enough"


def test_couriers_are_what_the_protocol_says():
    transports: list[Transport] = [DirectTransport([]), Scripted({})]
    assert len(transports) == 2


# --- A coordinator that lost its state ---------------------------------------------------------------------------


def fresh() -> Progress:
    return Progress(STUDY.coordinator_init(SITES))


@pytest.mark.parametrize(
    ("lasts", "position"),
    [
        ({}, 0),
        ({0: -1, 1: -1, 2: -1}, 0),
        ({0: 3, 1: 3, 2: 3}, 3),  # asked again: they send that round's answer from their stores
        ({0: 3, 1: 2, 2: -1}, 2),  # half of them have reached it
        ({0: 10**18, 1: 0, 2: 0}, 0),  # one that lies
        ({0: 10**18, 1: 10**18, 2: 0}, 5),  # two of three: no further than the last step
    ],
)
def test_a_coordinator_that_lost_its_state_goes_on_from_the_round_that_half_of_the_sites_have_reached(lasts, position):
    now = fresh()
    coordinator.catch_up(now, lasts, 6, is_free=False)
    assert now.position == position
    ahead = replace(fresh(), position=5)
    coordinator.catch_up(ahead, lasts, 6, is_free=False)
    assert ahead.position == 5  # never back


def test_free_sites_are_asked_for_their_last_answers_and_then_for_new_ones():
    now = fresh()
    coordinator.catch_up(now, {0: 4, 1: -1, 2: 10**18}, SITES * UPDATES, is_free=True)
    assert (now.asked, now.position) == ({0: 4}, 5)
    done = run_free(STUDY, DirectTransport([site_of(m) for m in range(SITES)]), SITES, UPDATES, "study", progress=now)
    check_product(done)
    assert done.taken == dict.fromkeys(range(SITES), UPDATES)
    known = replace(fresh(), position=7, asked={0: 6})
    coordinator.catch_up(known, {0: 4}, SITES * UPDATES, is_free=True)
    assert (known.asked, known.position) == ({0: 6}, 7)  # what is known here counts


def test_who_has_made_all_updates_is_asked_for_the_last_one_and_not_for_another():
    asked: list[tuple[int, int]] = []

    def noted(site: int) -> Callable[[Broadcast], Update]:
        def answer(broadcast: Broadcast) -> Update:
            asked.append((site, broadcast.round))
            return update(site, broadcast)

        return answer

    steps = synchronous(SITES, 4)
    now = fresh()
    coordinator.catch_up(now, dict.fromkeys(range(SITES), 3), len(steps), is_free=False)
    done = run(STUDY, DirectTransport([noted(m) for m in range(SITES)]), SITES, steps, "study", progress=now)
    assert asked == [(0, 3), (1, 3), (2, 3)]
    check_product(done)
