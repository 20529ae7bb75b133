"""Filters hold against an analyst who chooses each release after seeing the last; rules that are no filters do not.

The analyst makes a Gaussian release of parameter μ₁ and then chooses the second by its outcome y. Each choice fits into
the budget by the rule. The δ of the whole is exact, by integration over y:

    δ(ε) = ∫ p₁(y) H(e^ε q₁(y) / p₁(y)) dy,  with H(g) = sup P₂(A) - g Q₂(A) of the second release.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from tacit.privacy import accounting, filters, parts
from tacit.privacy.accountants import concentrated, renyi
from tacit.privacy.events import (
    Composed,
    DistributedGaussian,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    Repeated,
    TruncatedPoissonSampled,
)
from tacit.privacy.filters import Filter

EPSILON, DELTA = 1.0, 1e-2
FIRST = 0.5  # the first release's share of μ²
CHOICES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # the privacy loss of the first release above which the second is another
Stick = Callable[[np.ndarray], np.ndarray]
FORMS = ["gaussian(reserve=0.001)", "renyi(order=2, reserve=0.5)", "renyi(order=1024, reserve=0.01)"]


def nothing(g: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - g)


def gaussian(mu: float) -> Stick:
    """sup P(A) - g Q(A) of N(μ, 1) against N(0, 1); the same the other way round."""

    def stick(g: np.ndarray) -> np.ndarray:
        log = np.log(np.maximum(g, 1e-300))
        return np.where(g <= 0, 1 - g, special.ndtr(mu / 2 - log / mu) - g * special.ndtr(-mu / 2 - log / mu))

    return stick


def sampled(rate: float, mu: float, removed: bool) -> Stick:
    """Of (1 - q) N(0, 1) + q N(μ, 1) against N(0, 1), or the other way round."""

    def added(g: np.ndarray) -> np.ndarray:
        return np.where(g <= 1 - rate, 1 - g, rate * gaussian(mu)(np.maximum(g - 1 + rate, 0) / rate))

    def taken(g: np.ndarray) -> np.ndarray:
        rest = 1 - g * (1 - rate)
        some = np.maximum(rest, 1e-300)
        return np.where(rest <= 0, 0, some * gaussian(mu)(np.minimum(g * rate / some, 1e300)))

    return taken if removed else added


def delta_of(epsilon: float, mu: float, above: Stick, below: Stick, choice: float, removed: bool) -> float:
    """δ of the whole, where `above` follows a first release whose loss is above `choice`."""
    y, width = np.linspace(-12, 12 + mu, 40_001, retstep=True)
    mean, other = (0.0, mu) if removed else (mu, 0.0)
    loss = ((y - other) ** 2 - (y - mean) ** 2) / 2
    g = np.exp(epsilon - loss)
    density = np.exp(-((y - mean) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(density * np.where(loss > choice, above(g), below(g))) * width)


def worst(above: Stick, below: Callable[[bool], Stick], mu: float, epsilon: float = EPSILON) -> float:
    """The largest δ over when to choose what, and over both neighbours."""
    return max(
        delta_of(epsilon, mu, *pair, choice, removed)
        for choice in CHOICES
        for removed in (False, True)
        for pair in ((above, below(removed)), (below(removed), above))
    )


def test_the_integral_is_the_known_delta_where_nothing_is_chosen() -> None:
    for epsilon in (0.0, 0.5, 2.0):
        exact = accounting.delta(Composed((Gaussian(1 / 0.6), Gaussian(1 / 0.8))), epsilon)
        found = delta_of(epsilon, 0.6, gaussian(0.8), gaussian(0.8), 0.0, False)
        assert found == pytest.approx(exact, abs=1e-9)
        event = Composed((Gaussian(1 / 0.6), PoissonSampled(0.2, Gaussian(0.5))))
        both = [delta_of(epsilon, 0.6, *[sampled(0.2, 2.0, removed)] * 2, 0.0, removed) for removed in (False, True)]
        assert max(both) == pytest.approx(accounting.delta(event, epsilon), rel=1e-3)


def test_the_gaussian_filter_holds_for_whoever_chooses_by_what_was_seen() -> None:
    rule = Filter.of("gaussian", EPSILON, DELTA)
    least = 1 / _largest(lambda mu: rule.price(Gaussian(1 / mu), EPSILON, DELTA) <= EPSILON)
    mu, rest = FIRST**0.5 / least, (1 - FIRST) ** 0.5 / least
    paths = {rest: gaussian(rest), rest / 2: gaussian(rest / 2), 0.0: nothing}
    for second in paths:
        events = (Gaussian(1 / mu), *([Gaussian(1 / second)] if second else []))
        assert rule.price(Composed(events), EPSILON, DELTA) <= EPSILON * (1 + 1e-9)
    for epsilon in (0.0, 0.3, EPSILON, 2.0, 3.0):
        exact = accounting.delta(Gaussian(least), epsilon)
        found = [
            worst(paths[one], lambda removed, two=two: paths[two], mu, epsilon)
            for one, two in ((rest, 0.0), (rest, rest / 2))
        ]
        assert max(found) <= exact + 1e-9
    assert max(found) > 0.9 * exact  # nothing much is lost: the analyst comes near


def _largest(is_enough: Callable[[float], bool]) -> float:
    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return low


def test_a_price_recomputed_along_the_way_is_no_filter_where_samples_are_mixed_in() -> None:
    """The planted wrong rule: each path costs (1, 0.01) by the tight accountant, and the whole has δ = 0.0155."""
    mu = _largest(lambda mu: accounting.epsilon(Gaussian(1 / mu), DELTA) <= EPSILON)
    first, rest, rate, noise = FIRST**0.5 * mu, (1 - FIRST) ** 0.5 * mu, 0.0093, 0.1
    for second in (Gaussian(1 / rest), PoissonSampled(rate, Gaussian(noise))):
        assert accounting.epsilon(Composed((Gaussian(1 / first), second)), DELTA) <= EPSILON * (1 + 1e-9)
    broken = worst(gaussian(rest), lambda removed: sampled(rate, 1 / noise, removed), first)
    assert broken > 1.5 * DELTA
    with pytest.raises(ValueError, match="without sampling"):
        Filter.of("gaussian", EPSILON, DELTA).price(PoissonSampled(rate, Gaussian(noise)), EPSILON, DELTA)


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_the_renyi_filter_holds_for_the_same_analyst(noise: float) -> None:
    rule = Filter.of("renyi", EPSILON, DELTA)

    def fits(*events: Event) -> bool:
        return rule.price(Composed(events), EPSILON, DELTA) <= EPSILON

    mu = _largest(lambda mu: fits(Gaussian(1 / mu)))
    first = FIRST**0.5 * mu
    rest = _largest(lambda second: fits(Gaussian(1 / first), Gaussian(1 / second)))
    rate = min(1.0, _largest(lambda q: q <= 1 and fits(Gaussian(1 / first), PoissonSampled(q, Gaussian(noise)))))
    found = worst(gaussian(rest), lambda removed: sampled(rate, 1 / noise, removed), first)
    assert 0.02 * DELTA < found <= DELTA


def test_the_reserve_for_imperfect_draws_is_a_box_of_its_own() -> None:
    """Were it to grow at the cost of noise, noise on some paths and draws on others would pass δ."""
    rule = Filter.of("gaussian", 1.0, 1e-5)
    room = int(rule.reserve * 1e-5 / (1 + math.e) / parts.NOISE_DRAW_ERROR)
    price = accounting.epsilon(Gaussian(50.0), 1e-5 * (1 - rule.reserve))
    assert rule.price(Gaussian(50.0, coordinates=room), 1.0, 1e-5) == price
    assert rule.price(Gaussian(50.0, coordinates=room + 1), 1.0, 1e-5) == math.inf
    assert accounting.epsilon(Gaussian(50.0, coordinates=10 * room), 1e-5) < 1.0
    roomier = Filter.of("gaussian", 1.0, 1e-5, 10 * room * parts.NOISE_DRAW_ERROR)
    assert roomier.price(Gaussian(50.0, coordinates=10 * room), 1.0, 1e-5) < 1.0


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_gaussian_rule_costs_what_the_accountant_says(adjacency: str) -> None:
    event = Composed((Repeated(Gaussian(20.0, coordinates=30), 7), DistributedGaussian(9.0, coordinates=5, sites=3)))
    price = Filter.of("gaussian", 3.0, 1e-5).price(event, 3.0, 1e-5, adjacency)
    assert price == pytest.approx(accounting.epsilon(event, 1e-5, "pld", adjacency), rel=1e-9)


def test_the_renyi_rule_costs_the_divergence_at_its_order_and_what_is_cut_off_is_paid_from_the_reserve() -> None:
    rule = Filter.of("renyi", 1.0, 1e-5)
    step = TruncatedPoissonSampled(0.1, 1000, 200, Gaussian(8.0, coordinates=10))
    ideal = Repeated(PoissonSampled(0.1, Gaussian(8.0)), 100)
    (divergence,) = renyi.rdp(ideal, (rule.order,))
    expected = divergence + concentrated.renyi_spread(rule.order, 1e-5 * (1 - rule.reserve))
    assert rule.price(Repeated(step, 100), 1.0, 1e-5) == pytest.approx(expected, rel=1e-12)
    assert accounting.epsilon(ideal, 1e-5) < expected
    short = TruncatedPoissonSampled(0.1, 1000, 110, Gaussian(8.0))
    assert rule.price(short, 1.0, 1e-5) == math.inf


def test_orders_come_from_the_budget_alone_and_suit_gaussian_noise() -> None:
    for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-5), (1.0, 1e-8), (8.0, 1e-5)):
        rule = Filter.of("renyi", epsilon, delta)
        noise = accounting.calibrate(epsilon, delta, steps=30, accountant="zcdp").noise_multiplier
        price = rule.price(Repeated(Gaussian(noise), 30), epsilon, delta)
        assert price == pytest.approx(epsilon, rel=0.08)
    with pytest.raises(ValueError, match="below what any Rényi divergence gives"):
        Filter.of("renyi", 1e-3, 1e-9)


def test_what_a_rule_does_not_cover_is_refused() -> None:
    rule = Filter.of("gaussian", 1.0, 1e-5)
    for event in (Laplace(4.0), PoissonSampled(0.1, Gaussian(4.0)), Composed((Gaussian(4.0), Laplace(4.0)))):
        with pytest.raises(ValueError, match="without sampling"):
            rule.price(event, 1.0, 1e-5)
    assert rule.price(NonPrivate(), 1.0, 1e-5) == math.inf
    assert rule.price(Composed(()), 1.0, 1e-5) == 0.0
    with pytest.raises(ValueError, match="replace-one"):
        Filter.of("renyi", 1.0, 1e-5).price(FixedSizeSampled(100, 10, Gaussian(4.0)), 1.0, 1e-5)


@pytest.mark.parametrize("text", FORMS)
def test_a_rule_is_read_back_from_its_words(text: str) -> None:
    found = Filter.read(text)
    assert found is not None
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        *("gaussian", "pld", "", "gaussian(order=3, reserve=0.1)", "renyi(reserve=0.1)", "renyi(order=1, reserve=0.1)"),
        *("gaussian(reserve=0.9)", "gaussian(reserve=0.0)", "renyi(order=2000, reserve=0.1)", FORMS[0] + "\n"),
    ],
)
def test_other_words_are_no_rule(text: str) -> None:
    assert Filter.read(text) is None


def test_a_first_budget_has_room_for_its_plan_and_for_little_more() -> None:
    bare, poisson = Repeated(Gaussian(17.0, coordinates=50), 20), Repeated(PoissonSampled(0.1, Gaussian(12.0)), 1000)
    for plan in (bare, poisson):
        own = accounting.epsilon(plan, 1e-5)
        budget = filters.first(plan, own, 1e-5)
        rule = Filter.of(filters.name_for(plan), budget, 1e-5, parts.departure(plan))
        assert 0.99 * budget < rule.price(plan, budget, 1e-5) <= budget
    assert filters.first(bare, 1.0, 1e-5) == 1.0
    assert (filters.name_for(bare), filters.name_for(poisson)) == ("gaussian", "renyi")
