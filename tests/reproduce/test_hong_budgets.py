"""Budgets: costs add up, conversions are the best known, and a run ends where the budget refuses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.privacy import accounting as acc
from tacit.privacy import schedules
from tacit.privacy.accountants import concentrated, renyi
from tacit.privacy.clipping import Dense
from tacit.privacy.events import (
    Composed,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    Repeated,
    TruncatedPoissonSampled,
    compose,
)
from tacit.privacy.ledger import SLACK
from tacit.privacy.mechanism import Access
from tacit.privacy.released import repeat
from tacit.privacy.schedules import Schedule
from tacit_reproduce.hong_budgets import PLD, TCDP, ZCDP, BudgetFilter, affordable

SAMPLED = PoissonSampled(0.02, Gaussian(5.0))
TRUNCATED = TruncatedPoissonSampled(0.1, 1000, 130, Gaussian(5.0))
BUDGETS = [ZCDP(1.0), TCDP(1.0, 20.0), PLD(1.0, 1e-5)]

# --- Costs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adjacency", "factor"), [("add-remove", 1), ("replace-one", 4)])
def test_the_cost_of_bare_noise_is_its_closed_form(adjacency, factor):
    """Lemma 3.4 of the source, sensitivity² / (2σ²): under replace-one the sensitivity is twice the clip."""
    for event in (Gaussian(2.0), Laplace(2.0)):
        assert ZCDP(1.0, adjacency).cost(event) == factor / 8
    for omega in (1.5, 20.0, 5000.0):
        assert TCDP(1.0, omega, adjacency).cost(Gaussian(2.0)) == factor / 8
        assert TCDP(1.0, omega, adjacency).cost(Laplace(2.0)) <= factor / 8


@given(st.lists(st.tuples(st.floats(0.5, 50.0), st.integers(1, 1000)), min_size=1, max_size=6))
def test_costs_add_up(levels):
    bare = [Repeated(Gaussian(noise), count) for noise, count in levels]
    sampled = [Repeated(PoissonSampled(0.1, event.event), event.steps) for event in bare]
    for budget, events in ((ZCDP(1.0), bare), (TCDP(1.0, 6.0), bare), (TCDP(1.0, 6.0), sampled)):
        total = sum(budget.cost(event) for event in events)
        assert budget.cost(compose(*events)) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("omega", [1.002, 1.3, 3.0, 7.77, 12.0, 64.5, 900.0])
@pytest.mark.parametrize(
    "event",
    [SAMPLED, PoissonSampled(0.1, Gaussian(1.0)), PoissonSampled(0.5, Gaussian(20.0)), Laplace(0.7)],
    ids=["weak", "strong", "half", "laplace"],
)
def test_tcdp_covers_the_divergence_at_every_order_below_omega_and_hardly_more(event, omega):
    """Orders between those that the accountant looks at."""
    orders = 1 + np.geomspace(1e-4, omega - 1, 150)
    ratios = renyi.rdp(event, orders) / orders
    rho = concentrated.tcdp_rho(event, omega)
    assert np.all(ratios <= rho * (1 + 1e-9))
    assert rho <= 1.01 * ratios.max()


def test_tcdp_of_a_sample_grows_with_omega_to_the_cost_without_sampling():
    rhos = [concentrated.tcdp_rho(SAMPLED, omega) for omega in (2.0, 10.0, 100.0, 1024.0)]
    assert rhos == sorted(rhos)
    assert rhos[1] == pytest.approx(8.2e-6, rel=0.02)  # docs/errata.md, 10 and 14
    assert rhos[0] > 0.02**2 * math.expm1(1 / 25) / 2  # D_α/α of weak noise is about q²(e^{1/σ²} - 1)/2
    assert rhos[3] < 1 / 50


@pytest.mark.parametrize("noise", [1e-100, 1e-3, 1e3, 1e100])
def test_extreme_noise_has_a_cost_between_nothing_and_that_without_sampling(noise):
    """Nothing is free: where floats lose a divergence, the cost is rounded up."""
    for event in (Gaussian(noise), Laplace(noise), PoissonSampled(1e-9, Gaussian(noise))):
        for omega in (1.001, 5.0, 1000.0):
            assert 0 < concentrated.tcdp_rho(event, omega) <= 1 / (2 * noise**2)
        assert acc.epsilon(event, 1e-5, "tcdp") >= 0


def test_the_accountants_use_the_same_costs():
    """One event: covered as a whole or by its parts is the same, so the accountant's ε is that of the best ω."""
    assert acc.epsilon(Repeated(Gaussian(3.0), 7), 1e-5, "zcdp") == ZCDP(7 / 18).epsilon(1e-5)
    event = Repeated(SAMPLED, 500)
    by_omega = [TCDP(concentrated.tcdp_rho(event, omega), omega).epsilon(1e-5) for omega in range(12, 64, 4)]
    price = acc.epsilon(event, 1e-5, "tcdp")
    assert price * (1 - 1e-9) <= min(by_omega) <= 1.01 * price
    assert (
        acc.epsilon(event, 1e-5) <= acc.epsilon(event, 1e-5, "rdp") <= price <= 1.01 * acc.epsilon(event, 1e-5, "rdp")
    )


# --- Conversions -------------------------------------------------------------------------------------------------


def best_of_orders(rho: float, delta: float, most: float) -> float:
    """ρα + (ln(1/δ) + (α-1) ln(1-1/α) - ln α)/(α-1) on a fine grid of orders."""
    alpha = 1 + np.geomspace(1e-9, most - 1, 200_000)
    spread = (math.log(1 / delta) + (alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha)) / (alpha - 1)
    return max(0.0, float(np.min(rho * alpha + spread)))


@given(st.floats(1e-5, 50.0), st.floats(1e-12, 0.1), st.floats(1.01, 500.0))
def test_conversions_take_the_best_order_that_they_may(rho, delta, omega):
    assert ZCDP(rho).epsilon(delta) == pytest.approx(best_of_orders(rho, delta, 1e6), rel=1e-6, abs=1e-9)
    assert TCDP(rho, omega).epsilon(delta) == pytest.approx(best_of_orders(rho, delta, omega), rel=1e-6, abs=1e-9)
    assert ZCDP(rho).epsilon(delta) <= ZCDP(rho).tcdp(omega).epsilon(delta) * (1 + 1e-12)
    assert ZCDP(rho).epsilon(delta) <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-12  # Bun & Steinke 2016


def test_a_large_omega_is_zcdp():
    assert TCDP(0.3, 1e6).epsilon(1e-5) == pytest.approx(ZCDP(0.3).epsilon(1e-5), rel=1e-9)
    assert ZCDP(0.3, "replace-one").tcdp(1e6) == TCDP(0.3, 1e6, "replace-one")


def test_a_conversion_is_above_the_truth_and_not_by_much():
    """One Gaussian mechanism is (1/(2σ²))-zCDP, and its exact ε is known."""
    for noise in (0.5, 1.0, 5.0, 20.0):
        exact = acc.epsilon(Gaussian(noise), 1e-5)
        assert exact <= ZCDP(concentrated.zcdp_rho(Gaussian(noise))).epsilon(1e-5) <= 1.15 * exact


@given(st.floats(0.01, 30.0), st.floats(1e-12, 1e-2))
def test_of_is_the_largest_rho_within_epsilon(epsilon, delta):
    omega = 2 + 20 * math.log(1 / delta) / epsilon
    for budget, more in (
        (ZCDP.of(epsilon, delta), lambda rho: ZCDP(rho)),
        (TCDP.of(epsilon, delta, omega), lambda rho: TCDP(rho, omega)),
    ):
        assert budget.epsilon(delta) <= epsilon
        assert more(budget.rho * (1 + 1e-9)).epsilon(delta) > epsilon


# --- What is admitted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [ZCDP(1.0), TCDP(1.0, 20.0)])
def test_four_quarters_fit_and_a_fifth_does_not(budget):
    quarter = Gaussian(math.sqrt(2.0))
    assert budget.cost(quarter) == pytest.approx(0.25, rel=1e-15)
    budget = BudgetFilter(budget)
    assert [budget.ask(quarter) for _ in range(5)] == [True] * 4 + [False]
    assert not budget.ask(Gaussian(1e4))  # a ρ of 5e-9 is above the slack
    assert budget.spent == Repeated(quarter, 4)


def test_pld_is_spent_by_its_own_price_to_the_last_step():
    total = acc.epsilon(Repeated(SAMPLED, 40), 1e-5)
    budget = PLD(total, 1e-5)
    assert budget.admits(Repeated(SAMPLED, 39), SAMPLED)
    assert budget.admits(Repeated(SAMPLED, 20), Repeated(SAMPLED, 20))
    assert not budget.admits(Repeated(SAMPLED, 40), SAMPLED)
    assert not PLD(total * (1 - 1e-6), 1e-5).admits(Repeated(SAMPLED, 39), SAMPLED)


@given(st.floats(0.1, 3.0), st.lists(st.floats(0.5, 20.0), min_size=1, max_size=30))
def test_what_is_admitted_never_passes_the_budget_by_more_than_the_slack(rho, noise):
    budget = BudgetFilter(ZCDP(rho))
    asked = [Gaussian(multiplier) for multiplier in noise]
    admitted = [event for event in asked if budget.ask(event)]
    spent = sum(1 / (2 * event.noise_multiplier**2) for event in admitted)
    assert spent <= rho * (1 + SLACK) * (1 + 1e-12)
    assert budget.budget.cost(budget.spent) == pytest.approx(spent, rel=1e-12, abs=0)
    for event in asked:
        if event not in admitted:
            assert spent + 1 / (2 * event.noise_multiplier**2) > rho


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_refusal_changes_nothing_and_a_lesser_step_may_still_fit(budget):
    budget = BudgetFilter(budget)
    assert budget.spent == Composed()
    assert budget.ask(Gaussian(10.0))
    before = budget.spent
    assert not budget.ask(Gaussian(0.1))
    assert not budget.ask(NonPrivate())
    assert budget.spent == before
    assert budget.ask(Gaussian(50.0))
    assert budget.spent == compose(Repeated(Gaussian(10.0), 1), Repeated(Gaussian(50.0), 1))


def test_zcdp_refuses_samples_and_tcdp_refuses_truncated_ones_and_pld_pays():
    with pytest.raises(ValueError, match="no amplification by sampling; use the accountant tcdp"):
        ZCDP(1.0).admits(Composed(), SAMPLED)
    assert TCDP(1.0, 20.0).admits(Composed(), SAMPLED)
    with pytest.raises(ValueError, match="truncated sample has no useful Rényi divergence"):
        TCDP(1.0, 20.0).admits(Composed(), TRUNCATED)
    plain = acc.epsilon(PoissonSampled(0.1, Gaussian(5.0)), 1e-5)
    assert not PLD(plain, 1e-5).admits(Composed(), TRUNCATED)
    assert PLD(acc.epsilon(TRUNCATED, 1e-5), 1e-5).admits(Composed(), TRUNCATED)


def test_the_error_of_drawn_noise_is_paid_by_pld_and_no_part_of_rho():
    drawn = Gaussian(3.0, coordinates=1000)
    assert ZCDP(1.0).cost(drawn) == ZCDP(1.0).cost(Gaussian(3.0)) == TCDP(1.0, 9.0).cost(drawn)
    assert not PLD(acc.epsilon(Gaussian(3.0), 1e-9), 1e-9).admits(Composed(), drawn)


@pytest.mark.parametrize("budget", BUDGETS)
def test_units_do_not_mix(budget):
    with pytest.raises(ValueError, match="different units do not add up"):
        budget.admits(Gaussian(10.0), Gaussian(10.0, unit="person"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZCDP(0.0), "rho=0.0; expected a finite number above 0"),
        (lambda: ZCDP(math.inf), "rho=inf"),
        (lambda: ZCDP(1.0, "swap"), "adjacency='swap'"),
        (lambda: TCDP(1.0, 1.0), "omega=1.0; expected a finite number of at least 1"),
        (lambda: TCDP(1.0, math.nan), "omega=nan"),
        (lambda: PLD(0.0, 1e-5), "epsilon=0.0"),
        (lambda: PLD(1.0, 0.0), "delta=0.0"),
        (lambda: ZCDP(1.0).epsilon(0.0), "delta=0.0"),
        (lambda: ZCDP.of(-1.0, 1e-5), "epsilon=-1.0"),
        (lambda: TCDP.of(1.0, 1e-5, 3.0), "omega=3.0 leaves ε = 4.80. at delta=1e-05, whatever ρ is; raise omega"),
        (lambda: TCDP(1.0, 2000.0).cost(SAMPLED), "omega=2000.0; expected at most 1024"),
    ],
)
def test_what_is_no_budget_is_refused_with_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- How many steps ----------------------------------------------------------------------------------------------


def asked_one_by_one(budget, schedule: Schedule, scale: float) -> int:
    """Hong's algorithm 1: ask before each step, end when refused."""
    budget, done = BudgetFilter(budget), 0
    for event in schedule.events(scale):
        for _ in range(event.steps):
            if not budget.ask(event.event):
                return done
            done += 1
    return done


FALLING = Schedule.of(schedules.exponential(60, 4.0, 1.0), levels=6)
SAMPLED_FALLING = Schedule.of(schedules.linear(60, 2.0, 1.0), schedules.stepwise(60, 0.05, 0.2, 3), levels=4)


@pytest.mark.parametrize("scale", [0.1, 2.0, 3.0, 3.5, 300.0])
@pytest.mark.parametrize("budget", BUDGETS)
def test_affordable_steps_of_all_records_are_those_asked_for_one_by_one(budget, scale):
    assert affordable(budget, FALLING, scale) == asked_one_by_one(budget, FALLING, scale)


@pytest.mark.parametrize(
    ("budget", "scale"),
    [(TCDP.of(1.0, 1e-5, 25.0), 1.5), (TCDP.of(1.0, 1e-5, 25.0), 3.0), (PLD(1.0, 1e-5), 1.1), (PLD(0.4, 1e-5), 0.5)],
)
def test_affordable_steps_of_samples_are_those_asked_for_one_by_one(budget, scale):
    found = affordable(budget, SAMPLED_FALLING, scale)
    assert found == asked_one_by_one(budget, SAMPLED_FALLING, scale)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40), st.floats(0.01, 100.0))
def test_affordable_steps_of_any_schedule_are_those_asked_for_one_by_one(noise, rho):
    schedule = Schedule.of(noise, levels=8)
    assert affordable(ZCDP(rho), schedule, 1.0) == asked_one_by_one(ZCDP(rho), schedule, 1.0)


def test_the_budgets_end_runs_between_nothing_and_everything():
    """The cases above are no trivial ones."""
    assert affordable(ZCDP(1.0), FALLING, 0.1) == 0
    assert 0 < affordable(ZCDP(1.0), FALLING, 2.0) < affordable(ZCDP(1.0), FALLING, 3.0) < 60
    assert affordable(ZCDP(1.0), FALLING, 300.0) == 60
    assert 0 < affordable(PLD(1.0, 1e-5), SAMPLED_FALLING, 1.1) < 60


def test_few_prices_are_asked_for(monkeypatch):
    asked = []
    share = ZCDP.share
    monkeypatch.setattr(ZCDP, "share", lambda *arguments: asked.append(arguments) or share(*arguments))
    schedule = Schedule.of(schedules.linear(1_000_000, 2.0, 1.0))
    # ∫ 1/(2 (300 (2 - x))²) dx = 1e-6 where 1/(2 - x) - 1/2 = 0.18
    assert affordable(ZCDP(1.0), schedule, 300.0) == pytest.approx(1e6 * (2 - 1 / 0.68), rel=1e-3)
    assert len(asked) < 30


def test_a_run_of_the_affordable_steps_ends_where_the_budget_refuses_one_more():
    """As it runs: samples truncated, noise drawn. The receipt fits; that of a run longer by one step does not."""
    schedule, scale, budget = SAMPLED_FALLING, 1.1, PLD(1.0, 1e-5)
    steps = affordable(budget, schedule, scale, slots=40, coordinates=3)
    assert 0 < steps < 60

    def receipt(part: Schedule):
        access = Access.of(np.zeros((0, 3), np.float32), part.mechanism(1.0, scale), slots=40)

        def step(key, level, state):
            return access.at(level).sum(key, Dense).map(lambda total: state + total)

        return jax.eval_shape(lambda key: repeat(key, part.steps, step, jnp.zeros(3)), tacit.insecure_key(1)).event

    fits, passes = (receipt(part) for part in (schedule.first(steps), schedule.first(steps + 1)) if part is not None)
    assert budget.admits(Composed(), fits)
    assert not budget.admits(Composed(), passes)


# --- What a reviewer's mutants got past ---------------------------------------------------------------------------


def test_budgets_keep_the_adjacency_they_were_made_for():
    event = Gaussian(2.0)
    price = acc.epsilon(event, 1e-5, "pld", "replace-one")
    assert not PLD(price * (1 - 1e-6), 1e-5, "replace-one").admits(Composed(), event)
    assert PLD(price, 1e-5, "replace-one").admits(Composed(), event)
    assert ZCDP.of(1.0, 1e-5, "replace-one").adjacency == "replace-one"
    assert TCDP.of(1.0, 1e-5, 50.0, "replace-one").adjacency == "replace-one"


def test_the_curve_between_orders_is_covered_where_a_chord_is_highest_inside():
    # f(α) = (α - 1) D_α from 0 at 2 to 90 at 10: the chord over α(α - 1) is highest between them.
    alpha = np.linspace(2, 10, 100_001)
    chord = 90 * (alpha - 2) / 8
    assert concentrated._covering((2.0, 10.0), np.array([0.0, 10.0]))[-1] == pytest.approx(
        np.max(chord / (alpha * (alpha - 1)))
    )
    assert concentrated._covering((2.0, 3.0), np.array([1.0, np.inf]))[-1] == np.inf


def test_a_budget_that_no_rho_meets_is_refused():
    with pytest.raises(ValueError, match="below what any"):
        ZCDP.of(1e-12, 1e-300)
    with pytest.raises(ValueError, match=r"omega=1\.0000001"):
        TCDP(1.0, 1.0000001)


def test_the_clip_of_every_level_is_its_own(key):
    """A record of huge norm at a level whose clip is a hundredth: what is released is that much shorter."""
    schedule = Schedule((1, 1), (1.0, 1.0), (1.0, 1.0), (1.0, 0.01))
    access = Access.of(np.full((1, 2), 100.0, np.float32), schedule.mechanism(1.0, 1e-2))

    def step(key, level, sums):
        return access.at(level).sum(key, lambda x: Dense(x)).map(lambda total: (sums[1], total))

    found = repeat(key, schedule.steps, step, (jnp.zeros(2), jnp.zeros(2))).value
    assert [float(jnp.linalg.norm(total)) for total in found] == [
        pytest.approx(1.0, abs=0.08),
        pytest.approx(0.01, abs=8e-4),
    ]
