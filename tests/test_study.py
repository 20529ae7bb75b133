"""Who conducts a study sees no record, believes no number beyond what an honest site could send, and lets sites go."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from tacit import study
from tacit.data.tables import Facts, Table, read_frame
from tacit.engines.coordinator import WITHDRAWN, Progress
from tacit.federated.messages import Broadcast, Update
from tacit.privacy.events import Composed, Event, Gaussian
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import Ledger
from tacit.privacy.statement import rounded_up
from tacit.study import HUGE, LocalHost, Member, Plan, Setup, conduct, federate, name_of

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once
ROUNDS, PLACES = 3, 24
PLAN = Plan("logistic", rounds=ROUNDS, evaluation=0.2)


def table(records: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(0, 10, records), rng.integers(0, 2, records)])
    y = rng.random(records) < 1 / (1 + np.exp(-(x[:, 0] - 5)))
    return Table.of(x, y.astype(np.float32), names=["a", "b"], indicators=["b"], bounds={"a": (0, 10)}, classes=(0, 1))


def members(count: int = 3, **more: Any) -> list[Member]:
    return [Member(f"site-{m}", table(PLACES - m, seed=m), 4.0, 1e-4, **more) for m in range(count)]


def public(count: int = 3) -> list[Member]:
    """The same sites as somebody sees them who has no record."""
    return [replace(member, table=table(0), places=PLACES) for member in members(count)]


# --- Without records ---------------------------------------------------------------------------------------------


def test_who_is_asked_when_does_not_depend_on_how_many_records_a_site_has() -> None:
    """Who answered when is published, and of a seeded schedule the sizes behind it could be found by trying."""
    plan = Plan("logistic", rounds=8, schedule="asynchronous")
    few = [replace(member, table=table(size)) for member, size in zip(members(), (PLACES, 11, 5), strict=True)]
    assert Setup(plan, few).steps() == Setup(plan, members()).steps()


@pytest.mark.parametrize(
    "plan",
    [PLAN, Plan("logistic", rounds=2, method="vi"), Plan("logistic", rounds=2, unit="site", noise="per-site")],
    ids=["natural", "vi", "whole sites"],
)
def test_a_setup_needs_no_records_and_is_the_same_study_for_all_parties(plan):
    outline = Setup(plan, public(), is_remote=True)
    for own in range(3):
        mine = [replace(m, table=table(PLACES - own, seed=own)) if j == own else m for j, m in enumerate(public())]
        setup = Setup(plan, mine, is_remote=True)
        assert name_of(setup) == name_of(outline)
        assert setup.mechanisms == outline.mechanisms
        assert setup.steps() == outline.steps()
        assert setup.limits("inference")[own] == outline.limits("inference")[own]
        assert setup._held == {}, "no record is looked at before it is asked for"
        setup.access("inference", own, setup.public_scaling())
        assert set(setup._held) == {own}, "nor any of another site"
    assert outline._held == {}
    local = Setup(plan, [replace(member, places=PLACES) for member in members()])
    assert name_of(local) == name_of(outline)


def test_a_schedule_of_sites_elsewhere_goes_by_their_places():
    plan = Plan("logistic", rounds=2, schedule="asynchronous")
    assert Setup(plan, public(), is_remote=True).steps() == plan.steps_of([PLACES] * 3)


def test_places_are_given_of_all_sites_or_of_none_and_hold_all_records():
    some = [replace(members()[0], places=PLACES), *members()[1:]]
    with pytest.raises(ValueError, match="site-1 has no number of places and others have one; give"):
        Setup(PLAN, some)
    with pytest.raises(ValueError, match="site-0 has more records than its places=9; raise places") as error:
        Setup(PLAN, members(places=9))
    assert str(PLACES) not in str(error.value), "how many there are is nobody's business"
    with pytest.raises(ValueError, match="places=0 of site-0"):
        Setup(PLAN, [replace(member, places=0) for member in public()])
    with pytest.raises(ValueError, match="leave one of them out"):
        Setup(PLAN, members(places=PLACES), capacity=PLACES)
    with pytest.raises(ValueError, match="sites elsewhere without places"):
        Setup(PLAN, members(), is_remote=True)
    with pytest.raises(ValueError, match="capacity=5 for 24 units; expected room for all"):
        Setup(PLAN, members(), capacity=5)


def test_a_site_without_records_is_no_unit_of_privacy_unless_its_records_are_elsewhere():
    plan = Plan("logistic", rounds=2, unit="site", noise="per-site")
    with pytest.raises(ValueError, match="a site has no records"):
        Setup(plan, public())
    assert Setup(plan, public(), is_remote=True).capacities == [PLACES] * 3


def test_records_are_not_read_without_the_scaling_of_the_study():
    with pytest.raises(ValueError, match="give the scaling"):
        Setup(PLAN, members()).access("inference", 0)


def test_the_cost_of_a_part_is_within_its_budget_and_that_of_the_published_form_is_open():
    from tacit.privacy import accounting

    cost = Setup(PLAN, public(), is_remote=True).cost(0)
    assert cost is not None
    assert 3.9 < accounting.epsilon(cost, 1e-4) <= 4.0
    assert Setup(Plan("logistic", method="vi"), public(), is_remote=True).cost(0) is None


# --- Sites that misbehave ----------------------------------------------------------------------------------------


class Between(LocalHost):
    """A host that hands on what `change` makes of each answer."""

    change: Callable[[str, int, Update], Any] = staticmethod(lambda phase, site, answer: answer)

    def open(self, phase: str, study: str, scaling: Any) -> Any:
        courier = super().open(phase, study, scaling)
        receive = courier.receive

        def changed() -> Any:
            site, answer = receive()
            return site, self.change(phase, site, answer) if isinstance(answer, Update) else answer

        courier.receive = changed  # type: ignore[method-assign]
        return courier


def conducted(folder: Path, host: type[LocalHost], plan: Plan = PLAN, **more: Any) -> study.Federation:
    setup = Setup(plan, members(places=PLACES))
    return conduct(setup, folder, host(setup, folder, 1), **more)


def is_sound(found: study.Federation) -> bool:
    block = found.posterior.blocks["coefficients"]
    covariance = np.asarray(block.covariance)
    return bool(np.all(np.isfinite(block.mean)) and np.all(np.linalg.eigvalsh(covariance) > 0))


def test_a_site_that_sends_huge_numbers_is_named_and_left_out_and_the_study_ends_well(tmp_path):
    """In every phase, from its first answer on or at its last ones."""

    class Huge(Between):
        def change(self, phase: str, site: int, answer: Update) -> Update:  # type: ignore[override]
            is_late = phase == "inference" and answer.round == 0
            blown = jax.tree.map(lambda leaf: np.full_like(leaf, 1e30), answer.content)
            return answer if site != 1 or is_late else replace(answer, content=blown)

    found = conducted(tmp_path, Huge)
    assert is_sound(found)
    assert [row["refused"] for row in found.sites] == [None, "its answer is larger than the study allows", None]
    assert all(row["factor_gap"] < 1e-4 for row in found.history)
    assert np.max(np.abs(found.posterior.blocks["coefficients"].mean)) < 100
    assert found.released is not None


def test_honest_answers_are_far_within_the_limits_and_the_limits_are_not_idle(tmp_path):
    """By at least a factor of two, in every phase; and no limit is where everything passes."""
    shares: dict[str, float] = {}
    setup = Setup(PLAN, members(places=PLACES))

    class Watching(Between):
        def change(self, phase: str, site: int, answer: Update) -> Update:  # type: ignore[override]
            limits = jax.tree.leaves(setup.limits(phase)[site])
            pairs = zip(jax.tree.leaves(answer.content), limits, strict=True)
            share = max(float(np.linalg.norm(np.ravel(leaf))) / limit for leaf, limit in pairs)
            shares[phase] = max(share, shares.get(phase, 0.0))
            return answer

    found = conducted(tmp_path, Watching)
    assert all(row["refused"] is None for row in found.sites)
    assert set(shares) == {"scaling", "inference", "evaluation"}
    assert all(0.001 < share < 0.5 for share in shares.values()), shares
    for phase in shares:
        assert all(limit < HUGE / 1e6 for limit in jax.tree.leaves(setup.limits(phase)))


@pytest.mark.parametrize(
    "plan",
    [
        Plan("logistic", rounds=4, method="ep"),
        Plan("linear", rounds=6, noise_scale=0.1),
        Plan("logistic", rounds=4, unit="site"),
        Plan("logistic", rounds=4, unit="site", participation=0.5),
        Plan("logistic", rounds=4, unit="site", noise="central"),
        Plan("logistic", rounds=4, unit="site", noise="per-site"),
        Plan("logistic", rounds=4, method="vi"),
    ],
    ids=["ep", "linear", "tied", "sampled", "central", "per-site", "vi"],
)
def test_limits_have_the_form_of_an_answer_for_every_plan(plan):
    def sized(records: int) -> Table:
        own = table(records)
        return own if plan.link == "logistic" else replace(own, low=np.array([0.0, -9.0]), high=np.array([10.0, 9.0]))

    setup = Setup(plan, [replace(member, table=sized(PLACES)) for member in members()])
    phases = ["inference", *(["scaling"] if setup.paid else [])]
    for phase in phases:
        shape = setup.answer_shape(phase)
        for limit in setup.limits(phase):
            assert jax.tree.structure(limit) == jax.tree.structure(shape)
            assert all(0 < bound <= HUGE for bound in jax.tree.leaves(limit))
    assert setup.most_updates("scaling") == 1
    assert setup.most_updates("inference") == (None if plan.method == "vi" else plan.rounds)


def test_without_privacy_nothing_is_clipped_and_limits_are_those_of_sums_that_stay_finite():
    setup = Setup(PLAN, [replace(member, epsilon=math.inf) for member in members()])
    assert set(jax.tree.leaves(setup.limits("inference"))) == {HUGE}


# --- Sites elsewhere ---------------------------------------------------------------------------------------------


class Elsewhere(LocalHost):
    """The sites of this process, as if they were on other machines."""

    is_remote = True


def test_free_sites_make_as_many_updates_as_the_plan_has_rounds_and_a_finished_study_is_found_again(tmp_path):
    plan = replace(PLAN, schedule="asynchronous")
    seen: list[tuple[str, int, int]] = []

    def observe(phase: str, done: int, total: int, spent: dict[str, float], progress: Progress) -> None:
        assert set(spent) == {"site-0", "site-1", "site-2"}
        assert isinstance(progress, Progress)
        seen.append((phase, done, total))

    found = conducted(tmp_path, Elsewhere, plan, observe=observe)
    assert [row["updates"] for row in found.sites] == [ROUNDS] * 3
    assert [row["round"] for row in found.history] == list(range(1, 3 * ROUNDS + 1))
    assert seen[0] == ("scaling", 1, 1)
    assert ("inference", 3 * ROUNDS, 3 * ROUNDS) in seen
    assert seen[-1] == ("evaluation", 1, 1)
    again = conducted(tmp_path, Elsewhere, plan)
    np.testing.assert_array_equal(
        again.posterior.blocks["coefficients"].mean, found.posterior.blocks["coefficients"].mean
    )  # fmt: skip
    assert [row["spent"] for row in again.sites] == [row["spent"] for row in found.sites]


def test_with_the_same_keys_sites_elsewhere_send_what_sites_here_do(tmp_path):
    """Where they are asked all at once: the same names, keys and numbers, to the bit."""
    there = conducted(tmp_path / "there", Elsewhere)
    here = federate(PLAN, members(places=PLACES), out=tmp_path / "here", insecure_seed=1)
    for name in ("scaling", "inference", "evaluation"):
        assert (tmp_path / "there" / f"{name}.progress").read_bytes() == (
            tmp_path / "here" / f"{name}.progress"
        ).read_bytes()  # fmt: skip
    assert there.sites == here.sites


# --- Withdrawals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["scaling", "inference", "evaluation", "afterwards"])
def test_a_site_that_withdraws_is_out_of_the_posterior_at_once(tmp_path, when):
    """Whatever is going on then. The scales that it took part in stay, once others read by them."""
    gone: list[int] = []

    def observe(phase: str, done: int, total: int, spent: dict[str, float], progress: Progress) -> None:
        if phase == when and done == 1:
            gone.append(1)

    found = conducted(tmp_path, Elsewhere, observe=observe, withdrawn=lambda: gone)
    before = (tmp_path / "scaling.progress").read_bytes()
    if when == "afterwards":
        assert found.sites[1]["refused"] is None
        gone.append(1)
        found = conducted(tmp_path, Elsewhere, withdrawn=lambda: gone)
    assert is_sound(found)
    assert [row["refused"] for row in found.sites] == [None, WITHDRAWN, None]
    setup = Setup(PLAN, members(places=PLACES))
    algorithm = setup.algorithm("inference", 0)
    state = Progress.from_bytes((tmp_path / "inference.progress").read_bytes(), algorithm, 3).state
    assert not any(np.any(leaf[1]) for leaf in jax.tree.leaves(state.factors))
    assert all(np.any(leaf[m]) for leaf in jax.tree.leaves(state.factors) for m in (0, 2))
    if when != "scaling":
        assert (tmp_path / "scaling.progress").read_bytes() == before
        sums = Progress.from_bytes(before, setup.algorithm("scaling", 0), 3).state
        assert np.any(sums["first"][1]), "what was released stays released"
    updates = {"scaling": 0, "inference": 1}.get(when, ROUNDS)
    assert found.sites[1]["updates"] == updates


def test_a_broadcast_that_was_not_planned_is_refused_by_the_sites_of_a_study(tmp_path):
    """By the plan that each of them has; its budget would allow more."""
    setup = Setup(PLAN, members(places=PLACES))
    host = LocalHost(setup, tmp_path, 1)
    scaling, algorithm = setup.public_scaling(), setup.algorithm("inference", 0)
    courier = host.open("inference", "heart/inference", scaling)
    q = jax.tree.map(np.asarray, algorithm.broadcast(algorithm.coordinator_init(3))[1])
    for round in range(ROUNDS + 1):
        courier.send(0, Broadcast("heart/inference", round, q))
    kinds = [type(courier.receive()[1]).__name__ for _ in range(ROUNDS + 1)]
    assert kinds == ["Update"] * ROUNDS + ["Refusal"]


# --- Those who look on -------------------------------------------------------------------------------------------


def test_a_study_that_is_looked_at_is_the_same_to_the_bit_and_shows_what_was_released(tmp_path):
    given: dict[str, Any] = {"insecure_seed": 1, "test": table(30, seed=9)}
    federate(PLAN, members(places=PLACES), out=tmp_path / "unseen", **given)
    compiled: list[str] = []
    sights: list[study.Sight] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    found = federate(PLAN, members(places=PLACES), out=tmp_path / "seen", look=sights.append, **given)
    for name in ("scaling.progress", "inference.progress", "evaluation.progress", "history.json"):
        assert (tmp_path / "seen" / name).read_bytes() == (tmp_path / "unseen" / name).read_bytes()
    assert compiled == [], "to look compiles nothing that a study does not"
    compiled.append("the count of them can fail")
    jax.jit(lambda x: x * 3.25)(np.float32(1))
    jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) > 1
    steps = [("scaling", 1, 1), *(("inference", done, ROUNDS) for done in range(1, ROUNDS + 1)), ("evaluation", 1, 1)]
    assert [(sight.phase, sight.done, sight.total) for sight in sights] == steps
    assert sights[0].posterior is None
    last = sights[-1]
    assert last.posterior is not None
    assert last.posterior.summary() == found.posterior.summary()
    assert last.history == found.history
    assert last.sites == [
        {part: row[part] for part in ("name", "epsilon", "updates", "spent", "ledger_spent", "budget")}
        | {"state": "here", "reason": ""}
        for row in found.sites
    ]
    assert all(sight.seeded for sight in sights)


def test_who_looks_on_without_a_test_set_sees_the_posterior_too_and_who_refused(tmp_path):
    sights: list[study.Sight] = []

    class Huge(Between):
        def change(self, phase: str, site: int, answer: Update) -> Update:  # type: ignore[override]
            blown = jax.tree.map(lambda leaf: np.full_like(leaf, 1e30), answer.content)
            return replace(answer, content=blown) if (phase, site) == ("inference", 1) else answer

    conducted(tmp_path, Huge, look=sights.append)
    assert sights[1].posterior is not None
    assert sights[1].posterior.summary() != sights[3].posterior.summary()  # type: ignore[union-attr]
    words = "its answer is larger than the study allows"
    assert [sight.sites[1]["state"] for sight in sights] == ["here", "refused", "left out", "left out", "here"]
    assert [sight.sites[1]["reason"] for sight in sights] == ["", words, words, words, ""]
    assert [sight.sites[0]["state"] for sight in sights] == ["here"] * 5


def test_noise_that_an_earlier_process_seeded_is_known_to_those_who_look(tmp_path):
    federate(PLAN, members(), out=tmp_path / "seeded", insecure_seed=1)
    setup = Setup(PLAN, members())
    assert LocalHost(setup, tmp_path / "seeded").is_seeded()
    assert not LocalHost(setup, tmp_path / "new").is_seeded()


# --- Secure sums -------------------------------------------------------------------------------------------------

SECURE = Plan("logistic", rounds=ROUNDS, secure_sum=True)


def mean_of(found: Any) -> np.ndarray:
    return np.asarray(found.posterior.blocks["coefficients"].mean)


@pytest.mark.slow
def test_a_study_of_secure_sums_is_one_of_all_records_together_with_the_noise_of_one(tmp_path):
    """At a large ε it is that of one site with all records, but for the noise; each site pays for all."""
    rich = [replace(member, epsilon=10.0, delta=1e-5, table=table(3000, seed=m)) for m, member in enumerate(members(4))]
    found = federate(replace(SECURE, rounds=8), rich, out=tmp_path / "all", insecure_seed=1)
    together = replace(rich[0], table=_joined([member.table for member in rich]))
    alone = federate(Plan("logistic", rounds=8), [together], insecure_seed=1)
    np.testing.assert_allclose(mean_of(found), mean_of(alone), atol=0.3)
    np.testing.assert_allclose(mean_of(found), [-5.0, 1.0, 0.0], atol=0.4)
    assert {row["updates"] for row in found.sites} == {8}
    assert {row["dropped"] for row in found.sites} == {0}
    for member in rich:
        ledger = study.Ledger.open(tmp_path / "all" / "sites" / member.name / "ledger.sqlite")
        assert len(ledger.entries()) == 1 + 8
        assert 9.9 < ledger.spent() <= 10.0
        assert "by shares of 4 sites, of which 3 are counted" in found.statements[member.name]


def _joined(tables: list[Table]) -> Table:
    return replace(
        tables[0],
        features=np.concatenate([one.features for one in tables]),
        target=np.concatenate([one.target for one in tables]),
    )


def test_noise_is_that_of_one_site_spread_over_all_and_enough_for_the_strictest():
    strict = [replace(member, epsilon=1.0 + m) for m, member in enumerate(members(4))]
    setup = Setup(SECURE, strict)
    alone = Setup(Plan("logistic", rounds=ROUNDS), strict[:1])
    assert setup.trust is not None
    made = setup.mechanisms[0]["gradients"]
    assert setup.mechanisms[0] == setup.mechanisms[3]
    assert made.deviation == pytest.approx(made.clips[0] * made.noise_multipliers[0] * math.sqrt(4 / 3))
    shares = [plan.plan.shares(1)["gradients"] for plan in (setup, alone)]
    ratio = made.noise_multipliers[0] / alone.mechanisms[0]["gradients"].noise_multipliers[0]
    assert ratio == pytest.approx(math.sqrt(shares[1] / shares[0]), rel=0.01)
    from tacit.privacy import accounting

    costs = [setup.cost(owner) for owner in range(4)]
    assert all(cost == costs[0] for cost in costs)
    assert 0.98 < accounting.epsilon(costs[0], 1e-4) <= 1.0


@pytest.mark.parametrize("more", [{}, {"evaluation": 0.2, "method": "ep"}, {"unit": "site"}], ids=str)
def test_what_a_site_pays_for_secure_sums_is_what_the_plan_costs_to_the_last_number(more):
    """What a site accepts it can pay for."""
    plan = replace(SECURE, rounds=6, **more)
    setup, phases = Setup(plan, members(4)), ["scaling", "inference", *(["evaluation"] if plan.evaluation else [])]
    paid: Counter[Event] = Counter()
    for phase in phases:
        terms = setup.terms(phase, "a", {str(j): bytes([j]) * 32 for j in range(4)})
        form = setup.form(phase, None if phase == "scaling" else setup.public_scaling())
        for kind in map(terms.algorithm.kind, range(terms.rounds)):
            event = terms.layout(kind, form).event
            paid.update(event.events if isinstance(event, Composed) else (event,))
    planned: Counter[Event] = Counter()
    for part in setup.cost(0).events:  # type: ignore[union-attr]
        planned[part.event] += part.steps  # type: ignore[attr-defined]
    assert paid == planned
    assert plan.early() == (0 if plan.unit == "site" else 2)


@pytest.mark.slow
def test_sites_that_drop_out_by_chance_are_made_up_for_and_counted(tmp_path):
    plan = replace(SECURE, rounds=6, dropout=0.15, seed=4, absent=1)
    found = federate(plan, members(5), out=tmp_path, insecure_seed=1)
    updates = {row["name"]: row["updates"] for row in found.sites}
    gone = [plan.leaving(round, list(updates)) for round in range(6)]
    made = [round for round, leaving in enumerate(gone) if len(leaving) <= 1]
    assert 0 < len(made) < 6, "a seed at which some rounds are lost"
    for name, count in updates.items():
        assert count == sum(gone[round].get(name, 9) > 2 for round in made)
    assert [row["dropped"] for row in found.sites] == [len(made) - count for count in updates.values()]
    assert np.all(np.isfinite(mean_of(found)))


def test_a_study_of_secure_sums_that_is_cut_off_goes_on_and_pays_for_no_round_twice(tmp_path):
    whole = federate(SECURE, members(), insecure_seed=1)

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        if (phase, done) == ("inference", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(SECURE, members(), out=tmp_path, insecure_seed=1, observe=cut)
    found = federate(SECURE, members(), out=tmp_path, insecure_seed=1)
    np.testing.assert_array_equal(mean_of(found), mean_of(whole))
    assert [row["spent"] for row in found.sites] == [row["spent"] for row in whole.sites]


@pytest.mark.slow
def test_whole_sites_are_the_unit_of_secure_sums_too(tmp_path):
    plan = Plan("logistic", rounds=2, unit="site", secure_sum=True)
    rich = [replace(member, epsilon=300.0) for member in members(4)]
    found = federate(plan, rich, out=tmp_path, insecure_seed=1)
    ledger = study.Ledger.open(tmp_path / "sites" / "site-0" / "ledger.sqlite")
    assert ledger.unit == "site"
    assert "for each site" in found.statements["site-0"]
    setup, pooled = Setup(plan, rich), Setup(replace(plan, secure_sum=False), rich)
    assert setup.units == pooled.units == 4
    # One party in both, whose noise is what the honest sites' shares come to here, and one draw there.
    ratio = setup.mechanisms[0]["curvature"].clips[0] / pooled.mechanisms[0]["curvature"].clips[0]
    assert ratio == pytest.approx(1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "vi"}, "whose steps read what the site released"),
        ({"schedule": "asynchronous"}, "adds up all sites in every round"),
        ({"straggling": 0.1}, "nobody late"),
        ({"unit": "site", "noise": "central"}, "expected noise='tied'"),
        ({"unit": "site", "participation": 0.5}, "all sites in every round"),
        ({"secure_sum": False, "absent": 1}, "settings of secure sums"),
    ],
)
def test_what_secure_sums_cannot_do_is_refused(more, words):
    with pytest.raises(ValueError, match=words):
        Plan("logistic", **({"secure_sum": True} | more))


def test_sums_that_protect_nobody_are_refused():
    with pytest.raises(ValueError, match="at least 3, to hide one"):
        Setup(SECURE, members(2))
    with pytest.raises(ValueError, match="more sites than twice the absent ones"):
        Setup(replace(SECURE, absent=1), members(3))
    with pytest.raises(ValueError, match="secure_sum with an infinite epsilon"):
        Setup(SECURE, [replace(member, epsilon=math.inf) for member in members()])


@pytest.mark.slow
def test_when_too_few_are_left_no_posterior_is_made(tmp_path):
    with pytest.raises(ValueError, match=r"no sum was made|sums of two rounds in a row were lost"):
        federate(replace(SECURE, dropout=0.99), members(), out=tmp_path, insecure_seed=1)


# --- Ledgers that cannot be lost, forgotten or bypassed ------------------------------------------------------------


def stopped(folder: Path, plan: Plan, sites: list[Member], rounds: int = 2) -> None:
    """A study that was stopped after some rounds of inference."""

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        if (phase, done) == ("inference", rounds):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(plan, sites, out=folder, insecure_seed=1, observe=cut)


def ledger_paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("ledger.sqlite"))


KINDS: dict[str, Plan] = {
    "each its own": PLAN,
    "secure sums": SECURE,
    "trusted coordinator": Plan("logistic", rounds=ROUNDS, unit="site"),
}
TRACES = {
    "store": ["*.progress", "history.json"],
    "progress": ["sites/*/*.store", "coordinator/*.store", "history.json"],
    "history": ["*.progress", "sites/*/*.store", "coordinator/*.store", "*.store"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["deleted", "older", "anew"])
def test_a_ledger_that_forgot_an_answered_round_is_refused_before_anything_is_charged(tmp_path, kind, damage):
    """One site's of several, in one process too. What it had spent would else be spent again."""
    plan, sites = KINDS[kind], members(places=PLACES)
    stopped(tmp_path, plan, sites, 1)
    path = ledger_paths(tmp_path)[-1]
    older = path.read_bytes()
    (tmp_path / "copy").write_bytes(older)
    stopped(tmp_path, plan, sites, 2)
    if damage == "older":
        path.write_bytes(older)
    else:
        path.unlink()
    if damage == "anew":
        study.Ledger.create(path, data_set="a", epsilon=4.0, delta=1e-4, unit=plan.unit)
    before = {one: one.read_bytes() for one in ledger_paths(tmp_path)}
    words = "is gone and had" if damage == "deleted" else "does not have round"
    with pytest.raises(ValueError, match=f"ledger=.*{words}.*answered by .*; .*go back to a"):
        federate(plan, sites, out=tmp_path, insecure_seed=1)
    assert {one: one.read_bytes() for one in ledger_paths(tmp_path)} == before, "none was made, none was charged"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", TRACES)
def test_any_file_that_says_a_round_was_answered_is_enough_to_notice(tmp_path, kind, left):
    plan, sites = KINDS[kind], members(places=PLACES)
    stopped(tmp_path, plan, sites)
    for pattern in TRACES[left]:
        for path in tmp_path.glob(pattern):
            path.unlink()
    ledger_paths(tmp_path)[0].unlink()
    with pytest.raises(ValueError, match="is gone"):
        federate(plan, sites, out=tmp_path, insecure_seed=1)
    assert len(ledger_paths(tmp_path)) == (0 if kind == "trusted coordinator" else 2)


@pytest.mark.parametrize("damage", ["deleted", "anew"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_whose_own_note_alone_is_left_does_not_begin_anew(tmp_path, kind, damage):
    """Ledgers, stores, progress and history went together: study.json says that there was a ledger, and which."""
    plan, sites = KINDS[kind], members(places=PLACES)
    stopped(tmp_path, plan, sites)
    paths = ledger_paths(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "study.json":
            path.unlink()
    if damage == "anew":
        for path in paths:
            study.Ledger.create(path, data_set="a", epsilon=4.0, delta=1e-4, unit=plan.unit)
    before = {one: one.read_bytes() for one in ledger_paths(tmp_path)}
    words = "is gone" if damage == "deleted" else "is not the one"
    with pytest.raises(ValueError, match=f"ledger=.* {words} with which this study was begun; go back to a copy"):
        federate(plan, sites, out=tmp_path, insecure_seed=1)
    assert {one: one.read_bytes() for one in ledger_paths(tmp_path)} == before, "none was made, none was charged"


@pytest.mark.parametrize("damage", ["lost", "another"])
def test_a_study_goes_on_only_with_the_key_by_which_it_held_out_records(tmp_path, damage):
    """Under another key it would be judged by records that it learned from."""
    sites = members(places=PLACES)

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(PLAN, sites, out=tmp_path, observe=cut)
    key = tmp_path / "sites" / "site-1" / "held-out.key"
    secret = key.read_bytes()
    key.unlink()
    if damage == "another":
        key.write_bytes(secret[::-1])
    with pytest.raises(ValueError, match=f"held-out.key is {'gone' if damage == 'lost' else 'not the key'}"):
        federate(PLAN, sites, out=tmp_path)
    assert key.exists() == (damage == "another"), "none was made in its place"
    key.write_bytes(secret)
    federate(PLAN, sites, out=tmp_path)


def own_ledger(folder: Path, name: str = "own", epsilon: float = 50.0, **more: Any) -> Path:
    path = folder / f"{name}.ledger"
    study.Ledger.create(path, data_set=name, **({"epsilon": epsilon, "delta": 1e-4} | more))
    return path


def test_a_study_takes_no_more_of_a_ledger_than_its_own_budget(tmp_path):
    """By the published form too, which goes on until it is refused, however much is left in the ledger."""
    plan = Plan("logistic", rounds=12, method="vi", steps=5, noise_multiplier=1.5, sampling_rate=0.5)
    own = [replace(m, ledger=own_ledger(tmp_path, m.name), epsilon=6.0) for m in members(places=PLACES)]
    found = federate(plan, own, out=tmp_path / "out", insecure_seed=1)
    for member, row in zip(own, found.sites, strict=True):
        ledger = study.Ledger.open(str(member.ledger))
        assert 0 < row["updates"] < 12
        assert row["spent"] == ledger.spent() <= 6.0 * (1 + 1e-9)
        assert "epsilon=6 of this study is spent" in row["refused"]
        assert (row["ledger_spent"], row["budget"]) == (ledger.spent(), 50.0)


@pytest.mark.parametrize("kind", [*KINDS, "ep", "sep"])
def test_every_kind_of_study_charges_through_its_allowance(tmp_path, monkeypatch, kind):
    """A ledger with room for ten times as much; each charge is asked for at the study's own ε."""
    plan = KINDS.get(kind) or Plan("logistic", rounds=ROUNDS, method=kind)  # type: ignore[arg-type]
    paths = [own_ledger(tmp_path, str(j), unit=plan.unit) for j in range(3)]
    sites = [replace(m, ledger=paths[0] if plan.is_pooled else paths[j]) for j, m in enumerate(members(places=PLACES))]
    asked: list[float] = []
    charge = study.Allowance.charge

    def watched(self: Any, *given: Any, **more: Any) -> Any:
        asked.append(self.epsilon)
        return charge(self, *given, **more)

    monkeypatch.setattr(study.Allowance, "charge", watched)
    federate(plan, sites, out=tmp_path / "out", insecure_seed=1)
    ledgers = {path: len(study.Ledger.open(path).entries()) for path in paths}
    assert len(asked) == sum(ledgers.values()) > 0
    assert set(asked) == {4.0}


def test_a_ledger_of_another_delta_is_refused(tmp_path):
    own = [replace(m, ledger=own_ledger(tmp_path, m.name, delta=1e-3)) for m in members()]
    with pytest.raises(ValueError, match=r"delta=0\.0001 of site-0, and 0\.001 in its ledger"):
        federate(PLAN, own, out=tmp_path / "out")


def test_one_table_at_two_sites_is_refused_and_one_record_or_none_is_not(tmp_path):
    first, second, third = members(3)
    again = replace(second, table=first.table.rows(np.arange(PLACES)[::-1]))
    with pytest.raises(ValueError, match="site-1 holds the same records as site-0, by another file or in another"):
        federate(PLAN, [first, again, third], out=tmp_path)
    assert not list(tmp_path.iterdir()), "before anything is made"
    for size in (0, 1):
        study.check_apart([replace(one, table=first.table.rows(slice(size))) for one in (first, second)])
    study.check_apart([first, replace(second, table=table(PLACES, seed=7))])


def test_two_sites_have_no_ledger_in_common(tmp_path):
    """A ledger takes each round of a study once: the second site would be told that its rounds were lost."""
    path = own_ledger(tmp_path)
    (tmp_path / "link").symlink_to(path)
    sites = [replace(m, ledger=path) for m in members(2)]
    for other in (path, tmp_path / "link", tmp_path / "." / "own.ledger"):
        with pytest.raises(ValueError, match="site-0 and site-1 have one ledger"):
            Setup(PLAN, [sites[0], replace(sites[1], ledger=other)])
    Setup(Plan("logistic", rounds=ROUNDS, unit="site"), sites)


# --- What is said of other studies ---------------------------------------------------------------------------------


def test_other_studies_are_said_to_be_counted_only_where_a_ledger_was_given(tmp_path):
    plan = Plan("logistic", rounds=2)
    given = [replace(m, ledger=own_ledger(tmp_path, m.name)) for m in members()]
    found = {
        "nowhere": federate(plan, members(), insecure_seed=1),
        "its own": federate(plan, members(), out=tmp_path / "own", insecure_seed=1),
        "given": federate(plan, given, out=tmp_path / "given", insecure_seed=1),
        "none": federate(plan, [replace(m, epsilon=math.inf) for m in members()], insecure_seed=1),
    }
    for name, one in found.items():
        for text in one.statements.values():
            assert (study.OWN in text) == (name == "given"), name
            assert (study.ALONE in text) == (name in ("nowhere", "its own")), name


def test_what_a_study_spent_and_what_its_ledger_has_spent_are_two_numbers(tmp_path):
    path = own_ledger(tmp_path)
    study.Ledger.open(path).charge(Gaussian(2.0), study="an earlier one", round=0)
    sites = [replace(members()[0], ledger=path), *members()[1:]]
    sights: list[study.Sight] = []
    found = federate(PLAN, sites, out=tmp_path / "out", insecure_seed=1, look=sights.append)
    shared, alone = found.sites[:2]
    ledger = study.Ledger.open(path)
    assert 3.9 < shared["spent"] <= 4.0 < shared["ledger_spent"] == ledger.spent()
    assert (shared["epsilon"], shared["budget"]) == (4.0, 50.0)
    stated = found.posterior.statement["sites"]["site-0"]
    assert stated["epsilon"] == shared["spent"], "of this study, and not of what an analyst did in all"
    assert (alone["spent"], alone["epsilon"]) == (alone["ledger_spent"], alone["budget"])
    seen = sights[-1].sites[0]
    assert (seen["spent"], seen["ledger_spent"], seen["budget"]) == (shared["spent"], ledger.spent(), 50.0)
    assert found.history[-1]["spent"]["site-0"] < 4.0


def test_a_statement_names_the_budget_as_what_is_covered_where_studies_follow_results(tmp_path):
    """What is spent when an analyst stops is no promise: to stop there may have followed from results."""
    rules = {"site-0": "gaussian", "site-1": "pld", "site-2": "gaussian"}
    paths = {name: own_ledger(tmp_path, name, 6.0, accountant=rule) for name, rule in rules.items()}
    for path in paths.values():
        study.Ledger.open(path).charge(Gaussian(2.0), study="an earlier one", round=0)
    study.Ledger.open(paths["site-2"]).extend(7.0)
    sites = [replace(member, ledger=paths[member.name]) for member in members()]
    found = federate(Plan("logistic", rounds=2), sites, out=tmp_path / "out", insecure_seed=1)
    for row in found.sites:
        notes = " ".join(found.posterior.statement["sites"][row["name"]]["notes"])
        assert rounded_up(row["ledger_spent"]) not in found.statements[row["name"]]
        assert f"at most the budget, ε = {row['budget']:g} at δ = 0.0001" in notes
        assert ("not covered by the rule 'pld'" in notes) == (row["name"] == "site-1")
        assert ("raised from ε = 6 to 7" in notes) == (row["name"] == "site-2")


SAMPLED = {
    "vi": Plan("logistic", rounds=2, method="vi", steps=2, noise_multiplier=3.0, sampling_rate=0.1),
    "whole sites": Plan("logistic", rounds=2, unit="site", participation=0.5),
    "nothing": Plan("logistic", rounds=2),
}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("kind", SAMPLED)
def test_every_study_makes_its_ledgers_whatever_its_adjacency_and_samples(tmp_path, kind, adjacency):
    """Neither proved rule prices samples under replace-one: the plan is fixed, and the statement says what is not."""
    plan = replace(SAMPLED[kind], adjacency=adjacency)
    sites = members(places=PLACES)
    host = LocalHost(Setup(plan, sites), tmp_path, insecure_seed=1)
    assert set(host.consents().values()) == {""}
    is_covered = kind == "nothing" or adjacency == "add-remove"
    for ledger in host.ledgers:
        assert ledger is not None
        assert ledger.accountant == "pld" or Filter.read(ledger.accountant)
        assert (ledger.accountant != "pld") >= (kind == "nothing")
        assert is_covered or ledger.rule_words.startswith("not covered by the rule 'pld'")


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_a_ledger_whose_rule_does_not_price_a_studys_samples_refuses_it_in_words(tmp_path, rule):
    plan = replace(SAMPLED["vi"], adjacency="replace-one")
    paths = [own_ledger(tmp_path, m.name, 6.0, accountant=rule, adjacency="replace-one") for m in members()]
    sites = [replace(m, ledger=path) for m, path in zip(members(), paths, strict=True)]
    with pytest.raises(ValueError, match=r"0 of 3 sites accept.*ledger does not admit the study: ") as error:
        federate(plan, sites, out=tmp_path / "out", insecure_seed=1)
    assert str(paths[0]) not in str(error.value)


# --- All are asked first -------------------------------------------------------------------------------------------


def some_poor(folder: Path, *poor: int, plan: Plan = PLAN) -> list[Member]:
    """Sites with ledgers of their own, of which some have too little left for the study."""
    found = []
    for j, member in enumerate(members(places=PLACES)):
        path = own_ledger(folder, member.name, 4.5, unit=plan.unit)
        if j in poor:
            study.Ledger.open(path).charge(Gaussian(2.0, plan.unit), study="an earlier one", round=0)
        found.append(replace(member, ledger=path))
    return found


def charges(sites: list[Member]) -> list[int]:
    return [len(study.Ledger.open(str(member.ledger)).entries()) for member in sites]


@pytest.mark.parametrize("plan", [PLAN, SECURE, replace(PLAN, schedule="asynchronous")], ids=["", "secure", "free"])
def test_nothing_is_charged_at_any_site_where_too_few_can_pay(tmp_path, plan):
    sites = some_poor(tmp_path, 1, plan=plan)
    with pytest.raises(ValueError, match="2 of 3 sites accept the study and at least 3 must, so nothing was charged"):
        federate(plan, sites, out=tmp_path / "out")
    assert charges(sites) == [0, 1, 0]
    assert not list((tmp_path / "out").glob("*.progress"))
    if plan.secure_sum:
        with pytest.raises(ValueError, match="at least 3 must"):  # with whom the trust numbers do not hold
            federate(plan, sites, out=tmp_path / "out", at_least=2)


def test_a_pooled_study_that_its_ledger_cannot_pay_for_is_not_begun(tmp_path):
    plan = KINDS["trusted coordinator"]
    path = own_ledger(tmp_path, "own", 4.5, unit="site")
    study.Ledger.open(path).charge(Gaussian(2.0, "site"), study="an earlier one", round=0)
    with pytest.raises(ValueError, match="0 of 3 sites accept"):
        federate(plan, [replace(m, ledger=path) for m in members()], out=tmp_path / "out", at_least=1)


def test_a_study_goes_on_with_those_who_accept_and_the_others_have_no_part_in_it(tmp_path):
    sites, said = some_poor(tmp_path, 1), []
    sights: list[study.Sight] = []
    found = federate(
        PLAN, sites, out=tmp_path / "out", at_least=2, insecure_seed=1, say=said.append, look=sights.append
    )
    assert charges(sites) == [2 + ROUNDS, 1, 2 + ROUNDS]
    assert [row["updates"] for row in found.sites] == [ROUNDS, 0, ROUNDS]
    assert [row["is_present"] for row in found.sites] == [True, False, True]
    assert found.sites[1]["spent"] == 0
    assert found.sites[1]["ledger_spent"] == study.Ledger.open(str(sites[1].ledger)).spent()
    assert "does not pay for the study" in found.sites[1]["refused"]
    assert [(seen.sites[1]["state"], seen.sites[1]["spent"]) for seen in sights] == [("left out", 0)] * len(sights)
    (words,) = said
    assert words.startswith("2 of 3 sites take part (site-1 does not: what is left of this site's budget")
    assert found.statements["site-1"] == "site-1 took no part in this study and released nothing."
    assert set(found.posterior.statement["sites"]) == {"site-0", "site-2"}
    assert "site-1\n------\nsite-1 took no part" in found.posterior.statement_text
    again = federate(PLAN, sites, out=tmp_path / "out", insecure_seed=1)
    assert again.sites == found.sites, "a study that was begun is not asked for again"


def test_a_site_that_could_not_pay_is_asked_again_by_nobody_when_a_study_goes_on(tmp_path):
    sites = some_poor(tmp_path, 1)

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        if (phase, done) == ("inference", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(PLAN, sites, out=tmp_path / "out", at_least=2, insecure_seed=1, observe=cut)
    richer = [sites[0], replace(sites[1], ledger=own_ledger(tmp_path, "richer", 50.0)), sites[2]]
    federate(PLAN, richer, out=tmp_path / "out", insecure_seed=1)
    assert charges(richer) == [2 + ROUNDS, 0, 2 + ROUNDS]


def test_the_published_form_is_not_begun_where_a_ledger_pays_for_no_update(tmp_path):
    plan = Plan("logistic", rounds=2, method="vi", noise_multiplier=2.0)
    sites = [replace(member, epsilon=0.01) for member in members()]
    with pytest.raises(ValueError, match=r"0 of 3 sites accept.*epsilon=0\.01 of the study does not pay for it"):
        federate(plan, sites, out=tmp_path)


@pytest.mark.parametrize("at_least", [0, 4, -1])
def test_at_least_is_a_number_of_sites(tmp_path, at_least):
    with pytest.raises(ValueError, match=f"at_least={at_least}; expected a number of sites from 1 to 3"):
        federate(PLAN, members(), out=tmp_path, at_least=at_least)


# --- A large δ -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "delta"), [(PLAN, 1 / PLACES), (PLAN, 0.3), (replace(SECURE, rounds=2, unit="site"), 1 / 3)]
)
def test_a_delta_at_which_a_record_may_be_published_is_refused_or_shown(plan, delta):
    """By public numbers alone: the places of a site, or how many sites there are."""
    sites = [replace(member, delta=delta) for member in members(places=PLACES)]
    what = "sites" if plan.unit == "site" else "records"
    units = 3 if plan.unit == "site" else PLACES
    with pytest.raises(ValueError, match=rf"site-0: delta={delta} for {units} {what}; .*allow_large_delta"):
        Setup(plan, sites)
    Setup(plan, [replace(member, delta=0.99 / units) for member in sites])
    Setup(plan, [replace(member, epsilon=math.inf) for member in sites] if not plan.secure_sum else members())
    assert Setup(replace(plan, allow_large_delta=True), sites).remarks(0)
    assert not Setup(replace(plan, allow_large_delta=True), members()).remarks(0)


def test_a_statement_shows_that_a_large_delta_was_allowed():
    plan = Plan("logistic", rounds=2, allow_large_delta=True)
    found = federate(plan, [replace(member, delta=0.1) for member in members()], insecure_seed=1)
    assert all("(allow_large_delta): it allows that one of them is published" in t for t in found.statements.values())


# --- Which records are held out ----------------------------------------------------------------------------------


def held(setup: Setup, party: int = 0) -> list[bool]:
    """Which records of a party are judged by, in the order of its table."""
    access = setup.access("evaluation", party, setup.public_scaling())
    count = len(setup.members[party].table.target)
    return np.asarray(access.present)[:count, 0].tolist()


def from_file(path: Path, columns: list[str]) -> Table:
    facts = Facts({"a": (0, 10), "b": (0, 2)}, {}, None)
    return Table.of_frame(read_frame(path), "y", "logistic", columns=columns, facts=facts)


def test_studies_of_one_data_set_hold_out_the_same_records_whatever_columns_they_use(tmp_path):
    """By the secret beside the ledger, which is made once, for its owner alone, and only where scores are paid for."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.uniform(0, 10, 200), "b": rng.uniform(0, 2, 200), "y": rng.integers(0, 2, 200)})
    frame.to_csv(tmp_path / "records.csv", index=False)
    ledger = tmp_path / "data" / "ledger.sqlite"
    ledger.parent.mkdir()
    Ledger.create(ledger, data_set="site", epsilon=9.0, delta=1e-4, unit="record", adjacency="add-remove")
    found = []
    for name, columns, plan in (
        ("plain", ["a"], Plan("logistic", rounds=1)),
        ("one", ["a"], PLAN),
        ("two", ["b"], PLAN),
    ):
        member = Member(name, from_file(tmp_path / "records.csv", columns), 4.0, 1e-4, ledger)
        host = LocalHost(Setup(plan, [member]), tmp_path / name)
        key = ledger.parent / "held-out.key"
        assert key.exists() == bool(plan.evaluation)
        assert not list((tmp_path / name).glob("**/held-out.key"))
        if plan.evaluation:
            found.append(held(host.setup))
    assert found[0] == found[1]
    assert 0 < sum(found[0]) < 200
    own = LocalHost(Setup(PLAN, [replace(member, ledger=None)]), tmp_path / "own")
    assert (tmp_path / "own" / "sites" / "two" / "held-out.key").exists()
    assert held(own.setup) != found[0], "another secret"


def test_a_record_is_learnt_from_or_judged_by_and_never_both(tmp_path):
    for plan in (PLAN, replace(PLAN, unit="site"), replace(PLAN, secure_sum=True)):
        folder = tmp_path / f"{plan.unit}-{plan.secure_sum}"
        setup = LocalHost(Setup(plan, members(places=PLACES)), folder, 1).setup
        learnt, judged = (
            np.asarray(setup.access(phase, 0, setup.public_scaling()).present) for phase in ("inference", "evaluation")
        )
        measured = np.asarray(setup.access("scaling", 0).present)
        whole = np.asarray(setup.records(0).present)
        np.testing.assert_array_equal(learnt, measured)
        np.testing.assert_array_equal(learnt | judged, whole)
        assert not np.any(learnt & judged)
        assert np.any(judged)
