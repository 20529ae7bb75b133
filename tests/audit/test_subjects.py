"""What tacit runs keeps its claim under attack, and the attack is as strong as the claim allows.

No bound passes its claim (each audit's false-alarm rate is 0.1 %), and the worst canary shows most of it.
"""

from typing import Any

import numpy as np
import pytest

import tacit
from tacit.audit import named, studies, subjects
from tacit.links import link_of
from tacit.privacy import accounting
from tacit.privacy.events import compose
from tacit.privacy.ledger import Ledger
from tacit.study.front import federate
from tacit.study.plan import Plan, VISettings
from tacit.study.sites import Site
from tacit.tables.standardising import in_units

DELTA = 1e-5


def checked(subject: subjects.Subject, runs: int, least: float, kind: str = "gaussian", most: float = 1.0) -> Any:
    found = subject.audit(runs, seed=1)
    assert not found.is_refuted, found.bounds
    assert found.claimed_epsilon <= most
    assert found.bounds["trace", kind].epsilon >= least
    return found


@pytest.mark.slow
def test_the_default_fit_keeps_its_claim_of_1_and_an_attack_shows_more_than_half():
    found = checked(subjects.of_fit(1.0, DELTA), 40_000, 0.5)
    assert found.claimed_epsilon > 0.99
    assert found.best.epsilon >= 0.5
    assert found.bounds["value", "nothing"].epsilon <= found.bounds["trace", "gaussian"].epsilon


def test_a_study_of_three_sites_keeps_its_claim():
    checked(studies.of_study(Plan("logistic", rounds=2), (4.0, DELTA)), 2_000, 1.0, most=4.0)


def test_what_is_audited_is_what_fit_runs():
    # The same records and key through `fit` and through the audited program: the same posterior and the same price.
    table = subjects.made_up()
    posterior = tacit.fit("logistic", table, 1.0, DELTA, insecure_seed=3)
    subject = subjects.of_fit(1.0, DELTA, canary="mislabelled")
    release = subject.program(tacit.insecure_key(3), subject.access.having([True]))
    common = {"statement": {}, "statement_text": "", "plan": {}}
    found = in_units(
        link_of("logistic"), table.numbers, table, release.value.q, release.value.scaling, None, common
    ).blocks["coefficients"]
    np.testing.assert_allclose(found.mean, posterior.blocks["coefficients"].mean, rtol=1e-4, atol=1e-5)
    assert accounting.epsilon(subject.event, DELTA) == posterior.epsilon


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": "sequential"},
        {"schedule": "asynchronous"},
        {"method": "vi", "vi": VISettings(steps=2, noise_multiplier=4.0, sampling_rate=0.5), "rounds": 9},
    ],
    ids=["synchronous", "sequential", "asynchronous", "vi"],
)
def test_a_studys_price_is_what_its_ledgers_are_charged(tmp_path, settings):
    plan = Plan("logistic", **{"rounds": 2} | settings)
    members = [Site(f"site-{m + 1}", subjects.made_up(seed=m), 1.0, DELTA) for m in range(2)]
    federate(plan, members, out=tmp_path, slots=subjects.RECORDS, insecure_seed=1)
    ledger = Ledger.open(tmp_path / "sites" / "site-1" / "ledger.sqlite")
    spent = accounting.epsilon(compose(*(entry.event for entry in ledger.entries())), DELTA)
    subject = studies.of_study(plan, (1.0, DELTA), sites=2)
    assert accounting.epsilon(subject.event, DELTA) == pytest.approx(spent, rel=1e-9)
    assert spent <= ledger.spent() * (1 + 1e-9) <= 1, "by its own rule, which may be a looser one"


def test_an_outlying_record_is_one_that_no_other_resembles():
    table = subjects.made_up(canary="outlying")
    assert np.all(np.abs(table.features[1:]) <= 0.5)
    assert np.all(table.features[0] == 1)
    wrong = subjects.made_up(canary="mislabelled")
    assert wrong.target[0] == 0


def test_many_canaries_in_one_run_prove_less_than_the_claim():
    found = subjects.once(8.0, DELTA, canaries=300, columns=60, seed=1)
    assert 0.1 < found["lower_bound"] <= found["claimed_epsilon"] <= 8
    assert found["correct"] > found["guesses"] / 2
    assert not found["refuted"]


@pytest.mark.slow
@pytest.mark.parametrize("canary", subjects.CANARIES)
def test_the_default_fit_under_a_long_attack(canary):
    found = checked(subjects.of_fit(1.0, DELTA, canary=canary), 200_000, 0.5)
    if canary == "worst":
        assert found.bounds["trace", "nothing"].epsilon > 0.35
        assert found.bounds["trace", "gaussian"].epsilon > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("what", ["vi", "sites", "mechanism"])
def test_all_that_the_command_line_names_keeps_its_claim(what):
    subject, usual = named.named(what, 1.0, DELTA, "worst")
    checked(subject, usual, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps"), [(0.5, 1), (0.2, 10), (0.05, 50), (0.01, 200)])
def test_a_mechanism_on_samples_keeps_its_claim_under_a_long_attack(rate, steps):
    subject, _ = named.named("mechanism", 1.0, DELTA, "worst", steps, rate)
    checked(subject, 100_000, 0.1, "nothing")
