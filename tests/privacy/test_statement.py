"""The guarantee in words and as JSON says what the receipt says, and never more."""

import json
import math

import pytest

from tacit.privacy.accounting import epsilon, true_positive_rate
from tacit.privacy.events import Composed, FixedSizeSampled, Gaussian, NonPrivate, Repeated, TruncatedPoissonSampled
from tacit.privacy.statement import Statement, rounded_up

EVENT = Repeated(TruncatedPoissonSampled(0.02, 1000, 90, Gaussian(2.0, unit="person")), 100)


def test_a_statement_says_unit_adjacency_sampling_steps_and_randomness():
    text = Statement.of(EVENT, 1e-5, seeded=False, notes=("The number of people is public.",)).text()
    for words in (
        "differentially private for each person",
        "adding or removing any one person",
        "100 steps",
        "Poisson samples at rate 0.02 of 1000 slots, cut off at 90 (accounted)",
        "cryptographically secure",
        "Note: The number of people is public.",
    ):
        assert words in text
    assert "replacing any one person" in Statement.of(EVENT, 1e-5, seeded=False, adjacency="replace-one").text()


def test_a_seed_is_stamped_into_words_and_data():
    statement = Statement.of(EVENT, 1e-5, seeded=True)
    assert "SEEDED" in statement.text()
    assert json.loads(statement.to_json())["randomness"] == "seeded"


def test_the_curve_and_the_attacker_are_consistent_with_the_accountant():
    plain = Statement.of(EVENT, 1e-5, seeded=False).to_dict()
    assert plain["epsilon"] == epsilon(EVENT, 1e-5)
    for point in plain["epsilons"]:
        assert point["epsilon"] == epsilon(EVENT, point["delta"])
    curve = [p["epsilon"] for p in plain["epsilons"]]
    assert curve == sorted(curve)
    rate = plain["true_positive_rate"]["at_most"]
    assert 0.01 < rate <= math.exp(plain["epsilon"]) * 0.01 + 1e-5


@pytest.mark.parametrize("event", [EVENT, Gaussian(1.0), Repeated(Gaussian(9.0), 30)])
def test_what_an_attacker_reaches_is_bounded_at_every_rate(event):
    points = Statement.of(event, 1e-5, seeded=False).true_positive_rates
    assert [rate for rate, _ in points] == sorted({rate for rate, _ in points})
    assert [most for _, most in points] == sorted(most for _, most in points)
    for rate, most in points:
        assert most == pytest.approx(true_positive_rate(event, rate), rel=1e-3)  # which has a grid of its own


def test_without_privacy_nothing_is_promised():
    statement = Statement.of(Composed((EVENT, NonPrivate())), 1e-5, seeded=False)
    assert statement.text().startswith("This result is NOT differentially private")
    plain = json.loads(statement.to_json())
    assert plain["epsilon"] is None
    assert plain["private"] is False
    assert plain["true_positive_rate"]["at_most"] == 1.0


@pytest.mark.parametrize("value", [1.0, 1.00001, 0.99996, 123.4501, 3e-7, 7.0, 0.1 + 0.2])
def test_a_printed_epsilon_is_never_below_the_real_one(value):
    assert float(rounded_up(value)) >= value * (1 - 1e-9)
    assert float(rounded_up(value)) <= value * 1.0011


def test_the_attackers_rate_is_rounded_up_and_places_are_named_public():
    text = Statement.of(Gaussian(1.0), 1e-5, seeded=False).text()
    assert "at most 9.237 % of the time" in text
    assert "The number of slots, 1000, is public" in Statement.of(EVENT, 1e-5, seeded=False).text()


def test_an_event_for_another_accountant_still_has_a_statement():
    event = FixedSizeSampled(1000, 10, Gaussian(2.0))
    statement = Statement.of(event, 1e-5, seeded=False, accountant="rdp", adjacency="replace-one")
    assert 0.01 < statement.true_positive_rate < 0.1
