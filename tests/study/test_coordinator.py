"""The coordinator takes no number in that no honest site could send, and lets sites go."""

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from tests.study.studies import PLAN, ROUNDS, SLOTS, Between, Elsewhere, coordinated, is_sound, make_sites, table

from tacit.engines.coordinator import WITHDRAWN, Progress
from tacit.federated.messages import Broadcast, Update
from tacit.study.answers import HUGE, limits
from tacit.study.front import federate
from tacit.study.host import Snapshot
from tacit.study.local import LocalHost
from tacit.study.plan import Plan, VISettings
from tacit.study.setup import Setup
from tacit.tables.table import Table

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once

# --- Sites that misbehave ----------------------------------------------------------------------------------------


def test_a_site_that_sends_huge_numbers_is_named_and_left_out_and_the_study_ends_well(tmp_path):
    """In every phase, from its first answer on or at its last ones."""

    class Huge(Between):
        def change(self, phase: str, site: int, answer: Update) -> Update:  # type: ignore[override]
            is_late = phase == "inference" and answer.round == 0
            blown = jax.tree.map(lambda leaf: np.full_like(leaf, 1e30), answer.content)
            return answer if site != 1 or is_late else replace(answer, content=blown)

    found = coordinated(tmp_path, Huge)
    assert is_sound(found)
    assert [row["refused"] for row in found.sites] == [None, "its answer is larger than the study allows", None]
    assert all(row["factor_gap"] < 1e-4 for row in found.history)
    assert np.max(np.abs(found.posterior.blocks["coefficients"].mean)) < 100
    assert found.released is not None


def test_honest_answers_are_far_within_the_limits_and_the_limits_are_not_idle(tmp_path):
    """By at least a factor of two, in every phase; and no limit is where everything passes."""
    shares: dict[str, float] = {}
    setup = Setup(PLAN, make_sites(slots=SLOTS))

    class Watching(Between):
        def change(self, phase: str, site: int, answer: Update) -> Update:  # type: ignore[override]
            bounds = jax.tree.leaves(limits(setup, phase)[site])
            pairs = zip(jax.tree.leaves(answer.content), bounds, strict=True)
            share = max(float(np.linalg.norm(np.ravel(leaf))) / limit for leaf, limit in pairs)
            shares[phase] = max(share, shares.get(phase, 0.0))
            return answer

    found = coordinated(tmp_path, Watching)
    assert all(row["refused"] is None for row in found.sites)
    assert set(shares) == {"scaling", "inference", "evaluation"}
    assert all(0.001 < share < 0.5 for share in shares.values()), shares
    for phase in shares:
        assert all(limit < HUGE / 1e6 for limit in jax.tree.leaves(limits(setup, phase)))


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
        Plan("logistic", rounds=4, method="vi", vi=VISettings(noise_multiplier=5.0)),
    ],
    ids=["ep", "linear", "tied", "sampled", "central", "per-site", "vi", "published"],
)
def test_limits_have_the_form_of_an_answer_for_every_plan(plan):
    def sized(records: int) -> Table:
        own = table(records)
        return own if plan.link == "logistic" else replace(own, low=np.array([0.0, -9.0]), high=np.array([10.0, 9.0]))

    setup = Setup(plan, [replace(site, table=sized(SLOTS)) for site in make_sites()])
    phases = ["inference", *(["scaling"] if setup.program.paid else [])]
    for phase in phases:
        shape = setup.answer_shape(phase)
        for limit in limits(setup, phase):
            assert jax.tree.structure(limit) == jax.tree.structure(shape)
            assert all(0 < bound <= HUGE for bound in jax.tree.leaves(limit))
    assert setup.most_updates("scaling") == 1
    assert setup.most_updates("inference") == (None if plan.is_published else plan.rounds)


def test_without_privacy_nothing_is_clipped_and_limits_are_those_of_sums_that_stay_finite():
    setup = Setup(PLAN, [replace(site, epsilon=math.inf) for site in make_sites()])
    assert set(jax.tree.leaves(limits(setup, "inference"))) == {HUGE}


# --- Sites elsewhere ---------------------------------------------------------------------------------------------


def test_free_sites_make_as_many_updates_as_the_plan_has_rounds_and_a_finished_study_is_found_again(tmp_path):
    plan = PLAN.replace(schedule="asynchronous")
    seen: list[tuple[str, int, int]] = []

    def observe(phase: str, done: int, total: int, spent: dict[str, float], progress: Progress) -> None:
        assert set(spent) == {"site-0", "site-1", "site-2"}
        assert isinstance(progress, Progress)
        seen.append((phase, done, total))

    found = coordinated(tmp_path, Elsewhere, plan, observe=observe)
    assert [row["updates"] for row in found.sites] == [ROUNDS] * 3
    assert [row["round"] for row in found.history] == list(range(1, 3 * ROUNDS + 1))
    assert seen[0] == ("scaling", 1, 1)
    assert ("inference", 3 * ROUNDS, 3 * ROUNDS) in seen
    assert seen[-1] == ("evaluation", 1, 1)
    again = coordinated(tmp_path, Elsewhere, plan)
    np.testing.assert_array_equal(
        again.posterior.blocks["coefficients"].mean, found.posterior.blocks["coefficients"].mean
    )  # fmt: skip
    assert [row["spent"] for row in again.sites] == [row["spent"] for row in found.sites]


def test_with_the_same_keys_sites_elsewhere_send_what_sites_here_do(tmp_path):
    """Where they are asked all at once: the same names, keys and numbers, to the bit."""
    there = coordinated(tmp_path / "there", Elsewhere)
    here = federate(PLAN, make_sites(slots=SLOTS), out=tmp_path / "here", insecure_seed=1)
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

    found = coordinated(tmp_path, Elsewhere, observe=observe, withdrawn=lambda: gone)
    before = (tmp_path / "scaling.progress").read_bytes()
    if when == "afterwards":
        assert found.sites[1]["refused"] is None
        gone.append(1)
        found = coordinated(tmp_path, Elsewhere, withdrawn=lambda: gone)
    assert is_sound(found)
    assert [row["refused"] for row in found.sites] == [None, WITHDRAWN, None]
    setup = Setup(PLAN, make_sites(slots=SLOTS))
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
    setup = Setup(PLAN, make_sites(slots=SLOTS))
    host = LocalHost(setup, tmp_path, 1)
    scaling, algorithm = setup.public_scaling(), setup.algorithm("inference", 0)
    transport = host.open("inference", "heart/inference", scaling)
    q = jax.tree.map(np.asarray, algorithm.broadcast(algorithm.coordinator_init(3))[1])
    for round in range(ROUNDS + 1):
        transport.send(0, Broadcast("heart/inference", round, q))
    kinds = [type(transport.receive()[1]).__name__ for _ in range(ROUNDS + 1)]
    assert kinds == ["Update"] * ROUNDS + ["Refusal"]


# --- Those who look on -------------------------------------------------------------------------------------------


def test_a_study_that_is_looked_at_is_the_same_to_the_bit_and_shows_what_was_released(tmp_path):
    given: dict[str, Any] = {"insecure_seed": 1, "test": table(30, seed=9)}
    federate(PLAN, make_sites(slots=SLOTS), out=tmp_path / "unseen", **given)
    compiled: list[str] = []
    snapshots: list[Snapshot] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    found = federate(PLAN, make_sites(slots=SLOTS), out=tmp_path / "seen", show=snapshots.append, **given)
    for name in ("scaling.progress", "inference.progress", "evaluation.progress", "history.json"):
        assert (tmp_path / "seen" / name).read_bytes() == (tmp_path / "unseen" / name).read_bytes()
    assert compiled == [], "to look compiles nothing that a study does not"
    compiled.append("the count of them can fail")
    jax.jit(lambda x: x * 3.25)(np.float32(1))
    jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) > 1
    steps = [("scaling", 1, 1), *(("inference", done, ROUNDS) for done in range(1, ROUNDS + 1)), ("evaluation", 1, 1)]
    assert [(snapshot.phase, snapshot.done, snapshot.total) for snapshot in snapshots] == steps
    assert snapshots[0].posterior is None
    last = snapshots[-1]
    assert last.posterior is not None
    assert last.posterior.summary() == found.posterior.summary()
    assert last.history == found.history
    assert last.sites == [
        {part: row[part] for part in ("name", "epsilon", "updates", "spent", "ledger_spent", "budget")}
        | {"state": "here", "reason": ""}
        for row in found.sites
    ]
    assert all(snapshot.seeded for snapshot in snapshots)


def test_who_looks_on_without_a_test_set_sees_the_posterior_too_and_who_refused(tmp_path):
    snapshots: list[Snapshot] = []

    class Huge(Between):
        def change(self, phase: str, site: int, answer: Update) -> Update:  # type: ignore[override]
            blown = jax.tree.map(lambda leaf: np.full_like(leaf, 1e30), answer.content)
            return replace(answer, content=blown) if (phase, site) == ("inference", 1) else answer

    coordinated(tmp_path, Huge, show=snapshots.append)
    assert snapshots[1].posterior is not None
    assert snapshots[1].posterior.summary() != snapshots[3].posterior.summary()  # type: ignore[union-attr]
    words = "its answer is larger than the study allows"
    assert [snapshot.sites[1]["state"] for snapshot in snapshots] == ["here", "refused", "left out", "left out", "here"]
    assert [snapshot.sites[1]["reason"] for snapshot in snapshots] == ["", words, words, words, ""]
    assert [snapshot.sites[0]["state"] for snapshot in snapshots] == ["here"] * 5


def test_noise_that_an_earlier_process_seeded_is_known_to_those_who_look(tmp_path):
    federate(PLAN, make_sites(), out=tmp_path / "seeded", insecure_seed=1)
    setup = Setup(PLAN, make_sites())
    assert LocalHost(setup, tmp_path / "seeded").is_seeded()
    assert not LocalHost(setup, tmp_path / "new").is_seeded()
