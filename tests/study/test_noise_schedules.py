"""Schedules of noise in plans: the shapes of `tacit calibrate --shape`, at the price of constant noise."""

import numpy as np
import pytest

import tacit
from tacit.privacy import accounting
from tacit.study.plan import Plan, VISettings
from tacit.study.setup import Setup
from tacit.study.sites import Site

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (300, 2))
Y = (X[:, 0] + 0.3 * RNG.normal(size=300) > 0) * 1.0
SHAPES = {
    "linear": {"noise_end": 0.5},
    "polynomial": {"noise_end": 3.0, "power": 2.0},
    "exponential": {"noise_end": 0.2},
    "stepwise": {"noise_end": 0.5, "stages": 3},
    "influence": {"contraction": 0.8},
}


def sites(count: int, epsilon: float) -> list[Site]:
    """Sites with equal shares of made-up records."""
    facts = {"bounds": (-1.0, 1.0), "classes": (0, 1)}
    return [Site(f"site-{m}", tacit.Table.of(X[m::count], Y[m::count], **facts), epsilon, 1e-4) for m in range(count)]


def settings(shape: str) -> VISettings:
    return VISettings(steps=12, shape=shape, **SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_shape_costs_the_budget_and_has_the_noise_it_names(shape, rounds):
    setup = Setup(Plan("logistic", method="vi", rounds=rounds, vi=settings(shape)), sites(1 if rounds == 1 else 3, 2.0))
    event = setup.cost(0)
    assert event is not None
    spent = accounting.epsilon(event, 1e-4)
    assert 0.97 * 2 < spent <= 2
    noises = setup.mechanisms[0]["gradients"].noise_multipliers
    ends = {"linear": 0.5, "polynomial": 3.0, "exponential": 0.2, "stepwise": 0.5, "influence": 0.8 ** (11 / 4)}
    assert np.isclose(noises[-1] / noises[0], ends[shape], rtol=0.05)
    constant = Setup(Plan("logistic", method="vi", rounds=rounds, vi=VISettings(steps=12)), setup.sites)
    same = constant.mechanisms[0]["gradients"].noise_multipliers[0]
    assert min(noises) < same < max(noises)


def test_a_fit_with_a_shape_has_a_receipt_that_is_its_price():
    posterior = tacit.fit(
        "logistic", (X, Y), 4.0, 1e-4, bounds=(-1, 1), method="vi", vi=settings("linear"), insecure_seed=0
    )
    assert 3.5 < posterior.epsilon <= 4
    assert len(posterior.plan["releases"]["gradients"]["noise_of_levels"]) == 12


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shape": "linear"}, "without noise_end"),
        ({"noise_end": 2.0}, "noise_end=2.0 is not a setting of shape='constant'"),
        ({"shape": "linear", "noise_end": 2.0, "noise_multiplier": 3.0}, "whose noise the budget sets"),
        ({"shape": "influence", "contraction": 0.9, "stages": 3}, "stages=3 is not a setting"),
    ],
)
def test_a_shape_that_lacks_or_has_a_wrong_setting_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Plan("logistic", method="vi", vi=VISettings(**given))


def test_a_shape_without_noised_steps_is_refused():
    with pytest.raises(ValueError, match="leave it out"):
        Plan("logistic", vi=VISettings(shape="linear", noise_end=2.0))
