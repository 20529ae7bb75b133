"""Studies of secure sums: the noise of one site spread over all, and what each of them pays."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.study.studies import ROUNDS, SECURE, make_sites, mean_of, table

from tacit.privacy.events import Composed, Event
from tacit.privacy.ledger import Ledger
from tacit.study.front import federate
from tacit.study.plan import Plan
from tacit.study.program import Program
from tacit.study.setup import Setup
from tacit.tables.table import Table

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once

# --- Secure sums -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_of_secure_sums_is_one_of_all_records_together_with_the_noise_of_one(tmp_path):
    """At a large ε it is that of one site with all records, but for the noise; each site pays for all."""
    rich = [replace(site, epsilon=10.0, delta=1e-5, table=table(3000, seed=m)) for m, site in enumerate(make_sites(4))]
    found = federate(SECURE.replace(rounds=8), rich, out=tmp_path / "all", insecure_seed=1)
    together = replace(rich[0], table=_joined([site.table for site in rich]))
    alone = federate(Plan("logistic", rounds=8), [together], insecure_seed=1)
    np.testing.assert_allclose(mean_of(found), mean_of(alone), atol=0.3)
    np.testing.assert_allclose(mean_of(found), [-5.0, 1.0, 0.0], atol=0.4)
    assert {row["updates"] for row in found.sites} == {8}
    assert {row["dropped"] for row in found.sites} == {0}
    for site in rich:
        ledger = Ledger.open(tmp_path / "all" / "sites" / site.name / "ledger.sqlite")
        assert len(ledger.entries()) == 1 + 8
        assert 9.9 < ledger.spent() <= 10.0
        assert "by shares of 4 sites, of which 3 are counted" in found.statements[site.name]


def _joined(tables: list[Table]) -> Table:
    return replace(
        tables[0],
        features=np.concatenate([one.features for one in tables]),
        target=np.concatenate([one.target for one in tables]),
    )


def test_noise_is_that_of_one_site_spread_over_all_and_enough_for_the_strictest():
    strict = [replace(site, epsilon=1.0 + m) for m, site in enumerate(make_sites(4))]
    setup = Setup(SECURE, strict)
    alone = Setup(Plan("logistic", rounds=ROUNDS), strict[:1])
    assert setup.tolerance is not None
    made = setup.mechanisms[0]["gradients"]
    assert setup.mechanisms[0] == setup.mechanisms[3]
    assert made.standard_deviation == pytest.approx(made.clips[0] * made.noise_multipliers[0] * math.sqrt(4 / 3))
    shares = [one.program.shares["gradients"] for one in (setup, alone)]
    ratio = made.noise_multipliers[0] / alone.mechanisms[0]["gradients"].noise_multipliers[0]
    assert ratio == pytest.approx(math.sqrt(shares[1] / shares[0]), rel=0.01)
    from tacit.privacy import accounting

    costs = [setup.cost(account) for account in range(4)]
    assert all(cost == costs[0] for cost in costs)
    assert 0.98 < accounting.epsilon(costs[0], 1e-4) <= 1.0


@pytest.mark.parametrize("more", [{}, {"evaluation": 0.2, "method": "ep"}, {"unit": "site"}], ids=str)
def test_what_a_site_pays_for_secure_sums_is_what_the_plan_costs_to_the_last_number(more):
    """What a site accepts it can pay for."""
    plan = SECURE.replace(rounds=6, policy={"early": 2.0}, **more)
    setup, phases = Setup(plan, make_sites(4)), ["scaling", "inference", *(["evaluation"] if plan.evaluation else [])]
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
    assert setup.program.early == (0 if plan.unit == "site" else 2)


@pytest.mark.slow
def test_sites_that_drop_out_by_chance_are_made_up_for_and_counted(tmp_path):
    plan = SECURE.replace(rounds=6, dropout=0.15, schedule_seed=4, absent=1)
    found = federate(plan, make_sites(5), out=tmp_path, insecure_seed=1)
    updates = {row["name"]: row["updates"] for row in found.sites}
    gone = [Program(plan).leaving(round, list(updates)) for round in range(6)]
    made = [round for round, leaving in enumerate(gone) if len(leaving) <= 1]
    assert 0 < len(made) < 6, "a seed at which some rounds are lost"
    for name, count in updates.items():
        assert count == sum(gone[round].get(name, 9) > 2 for round in made)
    assert [row["dropped"] for row in found.sites] == [len(made) - count for count in updates.values()]
    assert np.all(np.isfinite(mean_of(found)))


def test_a_study_of_secure_sums_that_is_cut_off_goes_on_and_pays_for_no_round_twice(tmp_path):
    whole = federate(SECURE, make_sites(), insecure_seed=1)

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        if (phase, done) == ("inference", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(SECURE, make_sites(), out=tmp_path, insecure_seed=1, observe=cut)
    found = federate(SECURE, make_sites(), out=tmp_path, insecure_seed=1)
    np.testing.assert_array_equal(mean_of(found), mean_of(whole))
    assert [row["spent"] for row in found.sites] == [row["spent"] for row in whole.sites]


@pytest.mark.slow
def test_whole_sites_are_the_unit_of_secure_sums_too(tmp_path):
    plan = Plan("logistic", rounds=2, unit="site", secure_sum=True)
    rich = [replace(site, epsilon=300.0) for site in make_sites(4)]
    found = federate(plan, rich, out=tmp_path, insecure_seed=1)
    ledger = Ledger.open(tmp_path / "sites" / "site-0" / "ledger.sqlite")
    assert ledger.unit == "site"
    assert "for each site" in found.statements["site-0"]
    setup, pooled = Setup(plan, rich), Setup(plan.replace(secure_sum=False), rich)
    assert setup.units == pooled.units == 4
    # One respondent in both, whose noise is what the honest sites' shares come to here, and one draw there.
    ratio = setup.mechanisms[0]["curvature"].clips[0] / pooled.mechanisms[0]["curvature"].clips[0]
    assert ratio == pytest.approx(1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "vi"}, "whose steps read what the site released"),
        ({"schedule": "asynchronous"}, "adds up all sites in every round"),
        ({"straggling": 0.1}, "without straggling"),
        ({"unit": "site", "noise": "central"}, 'expected noise = "tied"'),
        ({"unit": "site", "participation": 0.5}, "all sites in every round"),
        ({"secure_sum": False, "absent": 1}, "expected it with secure_sum = true only"),
    ],
)
def test_what_secure_sums_cannot_do_is_refused(more, words):
    with pytest.raises(ValueError, match=words):
        Plan("logistic", **({"secure_sum": True} | more))


def test_sums_that_protect_nobody_are_refused():
    with pytest.raises(ValueError, match="at least 3, to hide one"):
        Setup(SECURE, make_sites(2))
    with pytest.raises(ValueError, match="more sites than twice the absent ones"):
        Setup(SECURE.replace(absent=1), make_sites(3))
    with pytest.raises(ValueError, match="secure_sum with an infinite epsilon"):
        Setup(SECURE, [replace(site, epsilon=math.inf) for site in make_sites()])


@pytest.mark.slow
def test_when_too_few_are_left_no_posterior_is_made(tmp_path):
    with pytest.raises(ValueError, match=r"no sum was made|sums of two rounds in a row were lost"):
        federate(SECURE.replace(dropout=0.99), make_sites(), out=tmp_path, insecure_seed=1)
