"""Rounds by secure sums: the update of one site with everybody's records; charged once, never run again."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.families import register
from tacit.federated import secure_responder, secure_terms
from tacit.federated.keys import key_of, words_of
from tacit.federated.messages import Broadcast, Refusal, Update, decode, encode
from tacit.federated.moments import Moments
from tacit.federated.secure_aggregator import SecureAggregator
from tacit.federated.secure_responder import SecureResponder
from tacit.federated.secure_terms import CHARGED, MASK, STAGES, Terms, Tolerance, TooFew
from tacit.privacy import accounting, noise
from tacit.privacy.clipping import per_record
from tacit.privacy.events import Gaussian, Repeated
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key
from tacit.privacy.shared import SharedGaussian, contributed, empty, integers, told
from tacit.tables.scaling import Range

STUDY, SLOTS, ROUNDS, DELTA = "heart/scaling", 12, 4, 1e-5
TOLERANCE = Tolerance(5, absent=1, colluding=1)
MECHANISM = SharedGaussian(math.sqrt(3), 5.0, sites=5, honest=TOLERANCE.honest)
ALGORITHM = Moments(Range(-jnp.ones(2), jnp.ones(2)), MECHANISM.standard_deviation)
NAMES = [f"site-{j}" for j in range(5)]
CONTENT = {"low": -np.ones(2, np.float32), "high": np.ones(2, np.float32)}
ONE = accounting.epsilon(MECHANISM.level_events(1, "record", 5)[0], DELTA)  # of a round


def rows(name: str) -> np.ndarray:
    return np.random.default_rng(NAMES.index(name)).uniform(-1, 1, (8, 2)).astype(np.float32)


class Group:
    """Five sites and a coordinator. gone: the stage from which on a site is not there; change: of what it answers."""

    def __init__(self, folder: Any = None, tolerance: Tolerance = TOLERANCE, epsilon: float = 2.0) -> None:
        self.folder, self.epsilon = folder, epsilon
        self.keys = {name: secure_terms.new_identity() for name in NAMES}
        roster = {name: secure_terms.public_identity(key) for name, key in self.keys.items()}
        self.terms = Terms(STUDY, ALGORITHM, tolerance, roster, 5 * SLOTS, ROUNDS)
        self.access = {name: Access.of(rows(name), MECHANISM, slots=SLOTS) for name in NAMES}
        self.sites = {name: self.site(name) for name in NAMES}
        self.gone: dict[str, int] = {}
        self.asked: list[tuple[str, Broadcast]] = []
        self.change: Any = lambda name, answer: answer
        self.coordinator = self.aggregator()

    def site(self, name: str, **changes: Any) -> SecureResponder:
        return SecureResponder(
            name, replace(self.terms, **changes), self.access[name], insecure_key(1), self.ledger(name), self.keys[name]
        )

    def ledger(self, name: str) -> Ledger | None:
        if self.folder is None:
            return None
        place, budget = self.folder / f"{name}.sqlite", {"epsilon": self.epsilon, "delta": DELTA}
        return Ledger.open(place) if place.exists() else Ledger.create(place, data_set=name, **budget)

    def charged(self) -> list[int]:
        return [len(Ledger.open(self.folder / f"{name}.sqlite").entries()) for name in NAMES]

    def aggregator(self) -> SecureAggregator:
        store = None if self.folder is None else self.folder / "all.store"
        return SecureAggregator(self.terms, empty(self.access[NAMES[0]]), self.ask, store)

    def ask(self, round: int, contents: Any) -> dict[str, Update | str]:
        found: dict[str, Update | str] = {}
        for name, content in contents.items():
            if int(content["stage"]) >= self.gone.get(name, 9):
                found[name] = "it is gone"
                continue
            request = decode(encode(Broadcast(STUDY, round, content)))
            assert isinstance(request, Broadcast)
            self.asked.append((name, request))
            answer = self.change(name, decode(encode(self.sites[name](request))))
            found[name] = answer if isinstance(answer, Update) else answer.reason
        return found

    def __call__(self, round: int = 0) -> Update | Refusal:
        return self.coordinator(Broadcast(STUDY, round, CONTENT))

    def expected(self, round: int, names: list[str] = NAMES) -> np.ndarray:
        """The total on the lattice, of sites that add up in the open."""
        total = np.zeros(5, np.int64)
        for name in names:
            key = key_of(insecure_key(1), words_of(STUDY, name, str(round)))
            step = lambda own, key=key: ALGORITHM.site_step(key, ALGORITHM.site_init(), CONTENT, own, 0)  # noqa: E731
            total += integers(contributed(step, self.access[name], 5 * SLOTS))
        return total


def total_of(answer: Any, group: Group) -> np.ndarray:
    """A total as what it was released as."""
    layout = group.terms.layout(0, group.access[NAMES[0]])
    program = lambda own: ALGORITHM.site_step(insecure_key(0), ALGORITHM.site_init(), CONTENT, own, 0)  # noqa: E731
    values = [jnp.asarray(value) for value in layout.values(answer)]
    return told(program, empty(group.access[NAMES[0]]), 5 * SLOTS, values)


def same(answer: Update | Refusal, expected: Any) -> None:
    assert isinstance(answer, Update), answer
    jax.tree.map(np.testing.assert_array_equal, answer.content, jax.tree.map(np.asarray, expected))


# --- The sum ------------------------------------------------------------------------------------------------------


def test_the_update_is_that_of_the_sum_of_all_sites_to_the_bit(tmp_path):
    group = Group(tmp_path)
    for round in range(2):
        same(group(round), total_of(group.expected(round), group))
    assert group.charged() == [2] * 5
    assert group.coordinator.present == dict.fromkeys(NAMES, 2)
    spent = Ledger.open(tmp_path / "site-0.sqlite")
    assert spent.spent() == pytest.approx(accounting.epsilon(Repeated(spent.entries()[0].event, 2), DELTA))


@pytest.mark.parametrize("stage", range(5))
def test_a_site_that_drops_out_at_any_stage_is_made_up_for(tmp_path, stage):
    group = Group(tmp_path)
    group.gone = {"site-3": stage}
    others = [name for name in NAMES if name != "site-3"]
    same(group(), total_of(group.expected(0, NAMES if stage > 2 else others), group))
    assert group.coordinator.absent == {"site-3": "it is gone"}
    assert group.coordinator.present["site-3"] == (stage > 2)
    assert group.charged()[3] == (stage > 2)


@pytest.mark.parametrize("stage", range(5))
def test_below_the_threshold_nothing_is_learned_and_nothing_is_run_twice(tmp_path, stage):
    group = Group(tmp_path)
    group.gone = {"site-3": stage, "site-4": stage}
    if stage < 2:
        with pytest.raises(TooFew, match="below the threshold of 4"):
            group()
        assert group.charged() == [0] * 5
        group.gone = {}
        same(group(), total_of(group.expected(0), group))  # it can be tried again
        return
    lost = group()
    assert isinstance(lost, Refusal)
    assert "this round is lost" in lost.reason
    assert "site-3: it is gone" in lost.reason
    group.gone = {}
    again = group()
    if stage == 2:  # two sites were not charged; the others do not add up again
        assert isinstance(again, Refusal)
        assert again.reason.count(CHARGED) == 3
    assert group.charged() == ([1, 1, 1, 0, 0] if stage == 2 else [1] * 5)
    same(group(1), total_of(group.expected(1), group))


def test_a_coordinator_that_was_cut_off_goes_on_with_the_next_round(tmp_path):
    group = Group(tmp_path)
    group.gone = dict.fromkeys(NAMES, 3)  # it ends after the sites were charged
    assert isinstance(group(), Refusal)
    group.gone, group.coordinator = {}, group.aggregator()
    lost = group()
    assert isinstance(lost, Refusal)
    assert CHARGED in lost.reason
    same(group(1), total_of(group.expected(1), group))
    assert group.charged() == [2] * 5


def test_a_coordinator_that_begins_again_sends_what_it_had(tmp_path):
    group = Group(tmp_path)
    first = group()
    group.coordinator = group.aggregator()
    same(group(), first.content)  # type: ignore[union-attr]
    assert group.charged() == [1] * 5
    assert group.coordinator.present == dict.fromkeys(NAMES, 1)
    (tmp_path / "all.store").write_bytes(b"something else")
    with pytest.raises(ValueError, match="go back to a sound copy"):
        group.aggregator()


def test_a_site_that_begins_again_has_its_ledger_and_needs_nothing_else(tmp_path):
    group = Group(tmp_path)
    group()
    group.sites = {name: group.site(name) for name in NAMES}
    assert [site.last_round for site in group.sites.values()] == [0] * 5
    same(group(1), total_of(group.expected(1), group))


def test_a_sum_is_charged_before_it_is_read(tmp_path, monkeypatch):
    group = Group(tmp_path)

    def dies(*arguments: Any) -> Any:
        raise MemoryError("in the middle of an update")

    monkeypatch.setattr(secure_responder, "_contribute", dies)
    with pytest.raises(MemoryError):
        group()
    assert sum(group.charged()) == 1
    monkeypatch.undo()
    lost = group.sites["site-0"]
    assert lost.updates == 1
    same(group(), total_of(group.expected(0, NAMES[1:]), group))  # the one that was charged takes no part again
    assert group.coordinator.absent == {"site-0": CHARGED}


def test_without_a_ledger_a_round_is_masked_once_too():
    group = Group()
    group()
    site, mask = group.sites["site-0"], [b for n, b in group.asked if n == "site-0"][MASK]
    site._answers.pop(MASK)  # as if it had forgotten
    refused(site(mask), CHARGED)


@pytest.mark.slow
def test_forty_sites_add_up(tmp_path):
    """More than one program could hold the noise of."""
    tolerance = Tolerance.usual(40)
    mechanism = SharedGaussian(math.sqrt(3), 5.0, sites=40, honest=tolerance.honest)
    names = [f"site-{j:02d}" for j in range(40)]
    keys = {name: secure_terms.new_identity() for name in names}
    roster = {name: secure_terms.public_identity(key) for name, key in keys.items()}
    terms = Terms(STUDY, ALGORITHM, tolerance, roster, 40 * SLOTS, 1)
    access = Access.of(rows("site-0"), mechanism, slots=SLOTS)
    sites = {name: SecureResponder(name, terms, access, insecure_key(1), None, keys[name]) for name in names}
    asked = lambda round, contents: {n: sites[n](Broadcast(STUDY, round, c)) for n, c in contents.items()}  # noqa: E731
    answer = SecureAggregator(terms, empty(access), asked)(Broadcast(STUDY, 0, CONTENT))
    assert isinstance(answer, Update)
    sd = mechanism.standard_deviation
    assert abs(answer.content["count"][0] - 320) < 5 * sd


def test_a_site_without_budget_is_left_out_and_the_others_go_on(tmp_path):
    group = Group(tmp_path)
    (tmp_path / "site-2.sqlite").unlink()
    Ledger.create(tmp_path / "site-2.sqlite", data_set="site-2", epsilon=ONE / 2, delta=DELTA)
    group.sites["site-2"] = group.site("site-2")
    same(group(), total_of(group.expected(0, [name for name in NAMES if name != "site-2"]), group))
    assert "would be spent" in group.coordinator.absent["site-2"] or "epsilon" in group.coordinator.absent["site-2"]


# --- What is refused ---------------------------------------------------------------------------------------------


def refused(answer: Update | Refusal, words: str) -> None:
    assert isinstance(answer, Refusal), answer
    assert words in answer.reason


def test_every_message_again_has_the_same_answer_and_another_one_none(tmp_path):
    group = Group(tmp_path)
    group()
    name, last = group.asked[-1][0], [(n, b) for n, b in group.asked if n == group.asked[-1][0]]
    for _, request in last:
        assert encode(group.sites[name](request)) == encode(group.sites[name](request))
    mask = last[2][1]
    other = replace(mask, content=mask.content | {"message": mask.content["message"] | {"sealed": {}}})
    refused(group.sites[name](other), "answered before")
    assert group.charged() == [1] * 5


def test_rounds_are_those_of_the_plan_and_each_is_charged_once(tmp_path):
    group = Group(tmp_path)
    group(1)
    first = group.asked[0][1]
    site = group.sites["site-0"]

    def begin(round: int, attempt: int) -> Update | Refusal:
        return site(Broadcast(STUDY, round, first.content | {"attempt": np.int64(attempt)}))

    refused(begin(0, 2**50), CHARGED)
    refused(begin(1, 2**50), CHARGED)
    refused(begin(ROUNDS, 2**50), f"the plan has {ROUNDS} of them")
    assert isinstance(begin(2, 7), Update)
    refused(begin(2, 6), "a later sum has begun")
    refused(site(replace(group.asked[-1][1], study="another/scaling")), "takes part in")
    refused(site(replace(group.asked[-1][1], round=3)), "no part in that sum")


def test_another_roster_is_refused_and_says_whose_key_differs():
    group = Group()
    roster = dict(group.terms.roster) | {"site-4": secure_terms.public_identity(secure_terms.new_identity())}
    group.sites["site-0"] = group.site("site-0", roster=roster)
    same(group(), total_of(group.expected(0, NAMES[1:]), group))
    assert group.coordinator.absent["site-0"].startswith("the key of site-4 is another one here")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"low": CONTENT["low"]}, "another shape"),
        ({"low": CONTENT["low"] * np.float32(np.nan), "high": CONTENT["high"]}, "not finite"),
    ],
)
def test_a_broadcast_that_does_not_fit_costs_nothing(tmp_path, content, words):
    group = Group(tmp_path)
    answer = group.coordinator(Broadcast(STUDY, 0, content))
    refused(answer, words)
    assert group.charged() == [0] * 5


def test_shares_that_were_changed_cost_nothing(tmp_path):
    group = Group(tmp_path)

    def spoil(name: str, answer: Any) -> Any:
        if isinstance(answer, Update) and int(answer.content["stage"]) == 1 and name != "site-0":
            message = dict(answer.content["message"])
            message["site-0"] = message["site-0"] ^ np.uint8(1)
            return replace(answer, content=answer.content | {"message": message})
        return answer

    group.change = spoil
    same(group(), total_of(group.expected(0, NAMES[1:]), group))
    assert "cannot be opened" in group.coordinator.absent["site-0"]
    assert group.charged()[0] == 0


@pytest.mark.parametrize("stage", [0, 2, 3, 4])
def test_a_site_whose_message_is_not_its_own_is_left_out(stage):
    group = Group()

    def forge(name: str, answer: Any) -> Any:
        if name == "site-1" and int(answer.content["stage"]) == stage:
            message = dict(answer.content["message"])
            message["signature"] = message["signature"] ^ np.uint8(1)
            return replace(answer, content=answer.content | {"message": message})
        return answer

    group.change = forge
    assert isinstance(group(), Update)
    assert "is not signed by it" in group.coordinator.absent["site-1"]


ARRAYS = st.sampled_from(
    [np.int32(0), np.int32(2), np.int32(9), np.int64(-1), np.zeros(3, np.uint8), np.zeros((2, 2), np.float32)]
)
TREES = st.recursive(ARRAYS, lambda inner: st.dictionaries(st.sampled_from([*NAMES, "sealed"]), inner, max_size=3))
KNOWN = Group()


@settings(max_examples=60)
@given(stage=ARRAYS, attempt=ARRAYS, message=TREES, more=st.booleans())
def test_whatever_a_message_holds_it_is_refused_in_words(stage, attempt, message, more):
    content = {"stage": stage, "attempt": attempt, "message": message} | ({"x": stage} if more else {})
    answer = KNOWN.sites["site-0"](Broadcast(STUDY, 0, content))
    assert isinstance(answer, Refusal)
    assert len(answer.reason) <= 2000


@settings(max_examples=40)
@given(stage=st.integers(0, 4), message=TREES)
def test_whatever_a_site_answers_the_sum_is_that_of_the_others(stage, message):
    group = KNOWN
    group.sites = {name: group.site(name) for name in NAMES}
    group.coordinator = group.aggregator()

    def answer(name: str, given: Any) -> Any:
        if name != "site-2" or int(given.content["stage"]) != stage:
            return given
        return replace(given, content={"stage": np.int32(stage), "message": message})

    group.change = answer
    others = [name for name in NAMES if name != "site-2"]
    same(group(), total_of(group.expected(0, NAMES if stage > 2 else others), group))


def outsider(name: str) -> SecureResponder:
    """A site with a key of another one."""
    return SecureResponder(name, KNOWN.terms, KNOWN.access["site-0"], insecure_key(0), None, KNOWN.keys["site-0"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tolerance(5, 2, 1), "more sites than twice"),
        (lambda: Tolerance(3, 0, 3), "more sites than twice"),
        (lambda: Tolerance(4, -1, 1), "-1 may be absent"),
        (lambda: Tolerance(2, 0, 1), "at least 3"),
        (lambda: replace(KNOWN.terms, tolerance=Tolerance(6, 1, 1)), "a roster of 5"),
        (lambda: replace(KNOWN.terms, roster=dict.fromkeys(NAMES, bytes(32))), "have one key"),
        (lambda: outsider("site-9"), "not in the roster"),
        (lambda: outsider("site-1"), "not in the roster"),
    ],
)  # fmt: skip
def test_settings_that_protect_nobody_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("sites", "absent", "colluding"), [(3, 0, 1), (5, 0, 1), (10, 1, 1), (50, 5, 5), (200, 20, 20)]
)
def test_a_tenth_may_be_absent_and_a_tenth_may_pool_by_default(sites, absent, colluding):
    tolerance = Tolerance.usual(sites)
    assert (tolerance.absent, tolerance.colluding) == (absent, colluding)
    assert 2 * tolerance.threshold > sites + colluding  # the condition of the protocol
    assert tolerance.honest == sites - absent - colluding


# --- No hidden share of noise ------------------------------------------------------------------------------------


@register()
@dataclass(frozen=True)
class Following:
    """An algorithm in one dimension: each record pulls the common factor to itself, by a part that is clipped."""

    start: Any

    def coordinator_init(self, sites: int) -> Any:
        return ()

    def broadcast(self, state: Any) -> Any:
        return state, {"nothing": jnp.zeros(())}

    def site_init(self) -> Any:
        return self.start

    def kind(self, count: int) -> int:
        return 0

    def site_step(self, key: Any, state: Any, content: Any, access: Access, kind: int) -> Any:
        return access.sum(key, per_record(lambda record: record - state / 100)).map(lambda total: state + 0.4 * total)

    def answer(self, state: Any) -> Any:
        return {"factor": state}


def shift_of_totals(monkeypatch: pytest.MonkeyPatch, takes_back: bool) -> float:
    """μ between the released totals of three rounds with and without one record that is clipped in each, exactly.

    By real sites and a real coordinator. All is linear in the draws, so each is moved alone; takes_back: sites but the
    one in question take their earlier draws back, as those with a hidden share of noise do.
    """
    rounds, count, step = 3, 3, 2**24
    mechanism = SharedGaussian(1.0, 5.0, sites=count, honest=count)
    names, keys = NAMES[:count], {name: secure_terms.new_identity() for name in NAMES[:count]}
    roster = {name: secure_terms.public_identity(key) for name, key in keys.items()}
    terms = Terms("one/inference", Following(jnp.zeros(1)), Tolerance(count, 0, 0), roster, count, rounds)
    spacing = terms.layout(0, Access.of(np.zeros((1, 1), np.float32), mechanism)).sums[0].spacing
    place = [0, 0]  # the round and the site whose integers are asked for

    def totals(draws: np.ndarray, has_record: bool) -> np.ndarray:
        """What is released, with some draws moved by so many steps."""
        moved = np.zeros(count)  # of each site's factor

        def more(release: Any) -> np.ndarray:
            t, m = place
            own = draws[t, m] - (moved[m] if takes_back and m else 0)
            moved[m] += 0.4 * own
            return integers(release) + np.int64(np.rint(own))

        monkeypatch.setattr(secure_responder, "integers", more)
        sites = {}
        for name in names:
            rows = np.full((1, 1), 1000.0 if name == names[0] else 0.1, np.float32)
            access = Access.of(rows, mechanism)
            if name == names[0] and not has_record:
                access = replace(access, present=jnp.zeros((1, 1), bool))
            sites[name] = SecureResponder(name, terms, access, insecure_key(1), None, keys[name])

        def ask(round: int, contents: Any) -> dict[str, Any]:
            found = {}
            for m, (name, content) in enumerate(contents.items()):
                place[:] = round, m
                found[name] = sites[name](Broadcast(terms.study, round, content))
            return found

        coordinator = SecureAggregator(terms, empty(access), ask)
        factors = [0.0]
        for round in range(rounds):
            answer = coordinator(Broadcast(terms.study, round, {"nothing": np.zeros((), np.float32)}))
            assert isinstance(answer, Update), answer
            factors.append(float(answer.content["factor"][0]))
        return np.diff(factors) / 0.4

    zero = totals(np.zeros((rounds, count)), False)
    basis = step * np.eye(rounds * count).reshape(-1, rounds, count)
    weights = np.stack([totals(one, False) - zero for one in basis]) / step * noise.SCALE
    assert weights[0, 0] == pytest.approx(noise.SCALE * spacing, rel=1e-4)
    signal = totals(np.zeros((rounds, count)), True) - zero
    return float(np.sqrt(signal @ np.linalg.solve(weights.T @ weights, signal)))


def test_ours_keeps_its_claim_exactly_and_a_hidden_share_breaks_it(monkeypatch):
    """docs/errata.md, 3; for many sites and rounds tests/federated/test_tied.py has the numbers."""
    claimed = accounting.epsilon(Repeated(Gaussian(5.0), 3), DELTA)
    ours = shift_of_totals(monkeypatch, takes_back=False)
    hidden = shift_of_totals(monkeypatch, takes_back=True)
    assert ours == pytest.approx(math.sqrt(3) / 5, rel=1e-3)
    assert accounting.epsilon(Gaussian(1 / ours), DELTA) <= claimed * 1.001
    assert accounting.epsilon(Gaussian(1 / hidden), DELTA) > 1.15 * claimed


def test_stages_are_those_of_the_protocol():
    assert STAGES == ("advertise", "share", "mask", "agree", "open")
