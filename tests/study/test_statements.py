"""What a study says of other studies in its ledgers, and which rule covers all of them together."""

import math
from dataclasses import replace

import pytest
from tests.study.studies import PLAN, SLOTS, make_sites, own_ledger

from tacit.privacy.events import Gaussian
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import Ledger
from tacit.study.front import federate
from tacit.study.host import Snapshot
from tacit.study.local import LocalHost
from tacit.study.plan import Plan, VISettings
from tacit.study.setup import Setup
from tacit.study.statements import ALONE, UNCOUNTED

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once

# --- What is said of other studies ---------------------------------------------------------------------------------


def test_other_studies_are_said_to_be_counted_only_where_a_ledger_was_given(tmp_path):
    plan = Plan("logistic", rounds=2)
    given = [replace(m, ledger=own_ledger(tmp_path, m.name)) for m in make_sites()]
    found = {
        "nowhere": federate(plan, make_sites(), insecure_seed=1),
        "its own": federate(plan, make_sites(), out=tmp_path / "own", insecure_seed=1),
        "given": federate(plan, given, out=tmp_path / "given", insecure_seed=1),
        "none": federate(plan, [replace(m, epsilon=math.inf) for m in make_sites()], insecure_seed=1),
    }
    for name, one in found.items():
        for text in one.statements.values():
            assert ("counts all analyses of these records" in text) == (name == "given"), name
            assert (ALONE in text) == (name == "its own"), name
            assert (UNCOUNTED in text) == (name in ("nowhere", "none")), name


def test_what_a_study_spent_and_what_its_ledger_has_spent_are_two_numbers(tmp_path):
    path = own_ledger(tmp_path)
    Ledger.open(path).charge(Gaussian(2.0), study="an earlier one", round=0)
    sites = [replace(make_sites()[0], ledger=path), *make_sites()[1:]]
    snapshots: list[Snapshot] = []
    found = federate(PLAN, sites, out=tmp_path / "out", insecure_seed=1, show=snapshots.append)
    shared, alone = found.sites[:2]
    ledger = Ledger.open(path)
    assert 3.9 < shared["spent"] <= 4.0 < shared["ledger_spent"] == ledger.spent()
    assert (shared["epsilon"], shared["budget"]) == (4.0, 50.0)
    stated = found.posterior.statement["sites"]["site-0"]
    assert stated["epsilon"] == shared["spent"], "of this study, and not of what an analyst did in all"
    assert (alone["spent"], alone["epsilon"]) == (alone["ledger_spent"], alone["budget"])
    seen = snapshots[-1].sites[0]
    assert (seen["spent"], seen["ledger_spent"], seen["budget"]) == (shared["spent"], ledger.spent(), 50.0)
    assert found.history[-1]["spent"]["site-0"] < 4.0


def test_a_statement_names_the_budget_as_what_is_covered_where_studies_follow_results(tmp_path):
    """What is spent when an analyst stops is no promise: to stop there may have followed from results."""
    rules = {"site-0": "gaussian", "site-1": "pld", "site-2": "gaussian"}
    paths = {name: own_ledger(tmp_path, name, 6.0, accountant=rule) for name, rule in rules.items()}
    for path in paths.values():
        Ledger.open(path).charge(Gaussian(2.0), study="an earlier one", round=0)
    Ledger.open(paths["site-2"]).extend(7.0)
    sites = [replace(site, ledger=paths[site.name]) for site in make_sites()]
    found = federate(Plan("logistic", rounds=2), sites, out=tmp_path / "out", insecure_seed=1)
    for row in found.sites:
        notes = " ".join(found.posterior.statement["sites"][row["name"]]["notes"])
        assert ("is not a promise" in found.statements[row["name"]]) == (row["name"] != "site-1")
        assert f"at most the budget, ε = {row['budget']:g} at δ = 0.0001" in notes
        assert ("not covered by the rule 'pld'" in notes) == (row["name"] == "site-1")
        assert ("raised from ε = 6 to 7" in notes) == (row["name"] == "site-2")


FEW = VISettings(steps=2, noise_multiplier=3.0, sampling_rate=0.1)
SAMPLED = {
    "vi": Plan("logistic", rounds=2, method="vi", vi=FEW),
    "whole sites": Plan("logistic", rounds=2, unit="site", participation=0.5),
    "nothing": Plan("logistic", rounds=2),
}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("kind", SAMPLED)
def test_every_study_makes_its_ledgers_whatever_its_adjacency_and_samples(tmp_path, kind, adjacency):
    """Neither proved rule prices samples under replace-one: the plan is fixed, and the statement says what is not."""
    plan = SAMPLED[kind].replace(adjacency=adjacency)
    sites = make_sites(slots=SLOTS)
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
    plan = SAMPLED["vi"].replace(adjacency="replace-one")
    paths = [own_ledger(tmp_path, m.name, 6.0, accountant=rule, adjacency="replace-one") for m in make_sites()]
    sites = [replace(m, ledger=path) for m, path in zip(make_sites(), paths, strict=True)]
    with pytest.raises(ValueError, match=r"0 of 3 sites accept.*ledger does not admit the study: ") as error:
        federate(plan, sites, out=tmp_path / "out", insecure_seed=1)
    assert str(paths[0]) not in str(error.value)
