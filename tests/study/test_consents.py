"""All sites are asked whether they accept a study before any of them is charged."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.study.studies import KINDS, PLAN, ROUNDS, SECURE, SLOTS, make_sites, own_ledger

from tacit.privacy.events import Gaussian
from tacit.privacy.ledger import Ledger
from tacit.study.front import federate
from tacit.study.host import Snapshot
from tacit.study.plan import Plan, VISettings
from tacit.study.sites import Site

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once

# --- All are asked first -------------------------------------------------------------------------------------------


def some_poor(folder: Path, *poor: int, plan: Plan = PLAN) -> list[Site]:
    """Sites with ledgers of their own, of which some have too little left for the study."""
    found = []
    for j, site in enumerate(make_sites(slots=SLOTS)):
        path = own_ledger(folder, site.name, 4.5, unit=plan.unit)
        if j in poor:
            Ledger.open(path).charge(Gaussian(2.0, plan.unit), study="an earlier one", round=0)
        found.append(replace(site, ledger=path))
    return found


def charges(sites: list[Site]) -> list[int]:
    return [len(Ledger.open(str(site.ledger)).entries()) for site in sites]


@pytest.mark.parametrize("plan", [PLAN, SECURE, PLAN.replace(schedule="asynchronous")], ids=["", "secure", "free"])
def test_nothing_is_charged_at_any_site_where_too_few_can_pay(tmp_path, plan):
    sites = some_poor(tmp_path, 1, plan=plan)
    with pytest.raises(ValueError, match="2 of 3 sites accept the study and at least 3 must, so nothing was charged"):
        federate(plan, sites, out=tmp_path / "out")
    assert charges(sites) == [0, 1, 0]
    assert not list((tmp_path / "out").glob("*.progress"))
    if plan.secure_sum:
        with pytest.raises(ValueError, match="at least 3 must"):  # with whom the tolerance numbers do not hold
            federate(plan, sites, out=tmp_path / "out", at_least=2)


def test_a_pooled_study_that_its_ledger_cannot_pay_for_is_not_begun(tmp_path):
    plan = KINDS["trusted coordinator"]
    path = own_ledger(tmp_path, "own", 4.5, unit="site")
    Ledger.open(path).charge(Gaussian(2.0, "site"), study="an earlier one", round=0)
    with pytest.raises(ValueError, match="0 of 3 sites accept"):
        federate(plan, [replace(m, ledger=path) for m in make_sites()], out=tmp_path / "out", at_least=1)


def test_a_study_goes_on_with_those_who_accept_and_the_others_have_no_part_in_it(tmp_path):
    sites, said = some_poor(tmp_path, 1), []
    snapshots: list[Snapshot] = []
    found = federate(
        PLAN, sites, out=tmp_path / "out", at_least=2, insecure_seed=1, say=said.append, show=snapshots.append
    )
    assert charges(sites) == [2 + ROUNDS, 1, 2 + ROUNDS]
    assert [row["updates"] for row in found.sites] == [ROUNDS, 0, ROUNDS]
    assert [row["is_present"] for row in found.sites] == [True, False, True]
    assert found.sites[1]["spent"] == 0
    assert found.sites[1]["ledger_spent"] == Ledger.open(str(sites[1].ledger)).spent()
    assert "does not pay for the study" in found.sites[1]["refused"]
    assert [(seen.sites[1]["state"], seen.sites[1]["spent"]) for seen in snapshots] == [("left out", 0)] * len(
        snapshots
    )
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
    plan = Plan("logistic", rounds=2, method="vi", vi=VISettings(noise_multiplier=2.0))
    sites = [replace(site, epsilon=0.01) for site in make_sites()]
    with pytest.raises(ValueError, match=r"0 of 3 sites accept.*epsilon=0\.01 does not pay for the study"):
        federate(plan, sites, out=tmp_path)


@pytest.mark.parametrize("at_least", [0, 4, -1])
def test_at_least_is_a_number_of_sites(tmp_path, at_least):
    with pytest.raises(ValueError, match=f"at_least={at_least}; expected a number of sites from 1 to 3"):
        federate(PLAN, make_sites(), out=tmp_path, at_least=at_least)
