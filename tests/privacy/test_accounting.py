"""Prices against published figures, against closed forms, and against each other."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon as converted
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from tacit.privacy import accounting as acc
from tacit.privacy import losses, parts
from tacit.privacy.accountants import exact, pld, renyi
from tacit.privacy.checks import check_delta_of
from tacit.privacy.events import (
    Composed,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    Repeated,
    Scheduled,
    TruncatedPoissonSampled,
)

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def event_of(row: dict) -> Event:
    """The event of a published row: levels if it is a schedule."""
    if isinstance(row["rate"], list):
        levels = zip(row["noise_multiplier"], row["rate"], row["steps"], strict=True)
        return Composed(tuple(Repeated(PoissonSampled(q, Gaussian(s)), n) for s, q, n in levels))
    kind = Laplace if row["mechanism"] == "laplace" else Gaussian
    if row["sampling"] == "fixed-size":  # published relative to the replace-one sensitivity
        inner = Gaussian(row["noise_multiplier"], adjacency="replace-one")
        return Repeated(FixedSizeSampled(1_000_000, round(row["rate"] * 1_000_000), inner), row["steps"])
    mechanism: Event = kind(row["noise_multiplier"])
    if row["sampling"] == "poisson":
        mechanism = PoissonSampled(row["rate"], mechanism)
    return Repeated(mechanism, row["steps"])


def rows(kind: str, *accountants: str) -> list:
    chosen = [r for r in GOLDEN if r["kind"] == kind and (not accountants or r["accountant"] in accountants)]
    assert chosen
    return [
        pytest.param(r, id=f"{r['accountant']}-{r['noise_multiplier']}-{r['rate']}-{r['steps']}"[:60]) for r in chosen
    ]


@pytest.mark.parametrize("row", rows("upper_bound", "PRV"))
def test_pld_lands_within_two_hundredths_below_the_prv_upper_bounds(row):
    price = acc.epsilon(event_of(row), row["delta"])
    assert row["epsilon"] - 0.02 <= price <= row["epsilon"]
    assert price == pytest.approx(row["exact"], rel=0.005, abs=1e-4)
    assert price >= row["exact"] * (1 - 1e-6)


@pytest.mark.parametrize("row", rows("upper_bound", "PLD"))
def test_pld_is_at_most_the_published_pld(row):
    price = acc.epsilon(event_of(row), row["delta"], tolerance=1e-6)
    assert row["exact"] * (1 - 1e-6) <= price <= row["epsilon"] * (1 + 1e-6) + row["tolerance"]


@pytest.mark.parametrize("row", rows("upper_bound", "RDP"))
def test_rdp_is_at_most_the_published_rdp_and_at_least_the_truth(row):
    """More orders than the source can only lower the bound, so equality is asked with the source's own orders."""
    price = acc.epsilon(event_of(row), row["delta"], "rdp", row["adjacency"])
    assert price <= row["epsilon"] * (1 + 1e-6) + row["tolerance"]
    assert price >= row.get("exact", 0.0)
    if "FL4Health" in row["source"]:  # its orders are not published with it
        return
    tenths = [1 + x / 10 for x in range(1, 100)]
    grids = [
        [*tenths, *range(12, 64)],
        [*tenths, *range(11, 65), 128, 256, 512, 1024],
        [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512],
    ]
    if "google/differential-privacy" in row["source"]:
        grids = [[x / 1000 for x in range(1001, 100_000)]]
    values = [float(converted(grid, renyi.rdp(event_of(row), grid), row["delta"])[0]) for grid in grids]
    # Sources before and after us take fractional orders from a series that is up to 0.2 % loose; integer ones agree.
    near = [v for v in values if v == pytest.approx(row["epsilon"], abs=row["tolerance"], rel=2e-3)]
    assert near, values
    assert min(near) <= row["epsilon"] * (1 + 1e-7) + row["tolerance"]


@pytest.mark.parametrize("row", rows("rdp_vector"))
def test_renyi_divergences_agree_at_each_order(row):
    if row["rate"] == 0:  # nothing sampled is nothing done: the event is not constructible, its price is 0
        with pytest.raises(ValueError, match="sampling_rate=0"):
            event_of(row)
        assert np.all(np.array(row["rdp"]) == 0)
        return
    assert renyi.rdp(event_of(row), row["orders"]) == pytest.approx(np.array(row["rdp"]), rel=row["tolerance"])


def limiting_delta(row: dict):
    """δ as a function of ε as the grid goes to zero, from three grids: the error is a series in the grid's square."""
    found = parts.parts(event_of(row), row["adjacency"])
    assert found is not None
    grids = []
    for steps in pld.directions_of(found, row["adjacency"]):
        seen = losses.view_for_epsilon(steps, row["epsilon"])
        grid = seen.first_grid(1e-4)
        grids.append([losses.compose(steps, seen, grid / n) for n in (1, 2, 4)])

    def delta(epsilon: float) -> float:
        def limit(of: list[losses.Loss]) -> float:
            first, second, third = (float(loss.delta(np.array([epsilon]))[0]) for loss in of)
            one, two = (4 * second - first) / 3, (4 * third - second) / 3
            return (16 * two - one) / 15

        return max(map(limit, grids))

    return delta


@pytest.mark.parametrize("row", [p for p in rows("exact") if p.values[0]["mechanism"] == "gaussian"])
def test_exact_epsilons_are_met(row):
    price = acc.epsilon(event_of(row), row["delta"], "pld", row["adjacency"])
    assert row["epsilon"] - row["tolerance"] <= price <= row["epsilon"] * (1 + 1e-4) + row["tolerance"]
    if row["sampling"] == "poisson":  # without sampling the price is the closed form already
        delta = limiting_delta(row)
        near = row["epsilon"]
        value = optimize.brentq(lambda e: delta(e) - row["delta"], 0.9 * near, 1.1 * near, xtol=1e-12)
        assert value == pytest.approx(near, abs=row["tolerance"])


def test_sampled_laplace_noise_meets_its_closed_form():
    (row,) = [r for r in GOLDEN if r["mechanism"] == "laplace" and r["kind"] == "exact"]
    closed = 3 * math.log1p(0.2 * math.expm1(2.0))
    assert closed == pytest.approx(row["epsilon"], abs=1e-5)
    price = acc.epsilon(event_of(row), row["delta"], tolerance=1e-7)
    assert closed - 1e-9 <= price <= closed + row["tolerance"]


@pytest.mark.parametrize("row", rows("exact_delta"))
def test_exact_deltas_are_met(row):
    published = row.get("true_delta", row["delta"])
    price = acc.delta(event_of(row), row["epsilon"], "pld", row["adjacency"])
    assert published - row["tolerance"] <= price <= published * (1 + 1e-3)
    value = limiting_delta(row)(row["epsilon"])
    # At 100,000 steps under replace-one the published figure is 1.2e-6 too small: so says a contour integral.
    steps = row["steps"] if isinstance(row["steps"], int) else sum(row["steps"])
    assert value == pytest.approx(published, abs=max(row["tolerance"], 2e-11 * steps))


@pytest.mark.parametrize("row", rows("calibrated_sigma", "RDP", "PRV", "exact", "PLD"))
def test_published_calibrations_are_met_and_not_undercut(row):
    """The tight noise is at most the published one; where the source is itself exact, it is the same."""
    published = row["noise_multiplier"]
    shape = json.dumps(row)

    def plan(noise: float) -> Event:
        return event_of({**json.loads(shape), "noise_multiplier": noise})

    found = acc.calibrate(row["epsilon"], row["delta"], plan=plan, tolerance=1e-4)
    assert found.epsilon <= row["epsilon"]
    if row["accountant"] in ("exact", "PLD"):
        assert found.noise_multiplier == pytest.approx(published, rel=1e-3, abs=row["tolerance"])
    else:
        assert found.noise_multiplier <= published
        name = "rdp" if row["accountant"] == "RDP" else "pld"
        assert acc.epsilon(plan(published), row["delta"], name) <= row["epsilon"] + 1e-3


@pytest.mark.parametrize("row", rows("approximation_underestimates"))
def test_the_central_limit_approximation_is_below_the_truth_and_we_are_not(row):
    assert acc.epsilon(event_of(row), row["delta"]) > row["epsilon"][1]


@pytest.mark.parametrize("row", rows("conversion"))
def test_zcdp_converts_as_published(row):
    assert acc.epsilon(event_of(row), row["delta"], "zcdp") == pytest.approx(row["epsilon"], abs=row["tolerance"])


@pytest.mark.parametrize("row", rows("tradeoff"))
def test_the_attackers_best_rate_is_as_published(row):
    assert acc.true_positive_rate(event_of(row), row["fpr"]) == pytest.approx(row["tpr"], rel=row["tolerance"])


def test_every_kind_of_row_is_tested():
    kinds = {r["kind"] for r in GOLDEN}
    assert kinds == {
        "upper_bound", "rdp_vector", "exact", "exact_delta", "calibrated_sigma", "approximation_underestimates",
        "conversion", "tradeoff",
    }  # fmt: skip


def test_lius_figures():
    """σ = 1, rate 0.1, δ = 1e-4: the moments accountant with integer λ, and the truth beside it."""
    short, long = (acc.subsampled_plan(1.0, 0.1, n) for n in (5_000, 25_000))
    assert acc.epsilon(short, 1e-4, "moments") == pytest.approx(94.39, abs=0.01)
    assert acc.epsilon(long, 1e-4, "moments") == pytest.approx(435.13, abs=0.01)
    assert acc.epsilon(short, 1e-4) == pytest.approx(70.2, abs=0.1)
    assert acc.epsilon(long, 1e-4) == pytest.approx(257, abs=0.5)


def test_the_first_moment_is_its_closed_form():
    for sigma, rate in [(1.0, 0.1), (0.7, 0.01), (4.0, 0.5)]:
        part = parts.Part("gaussian", sigma, rate)
        assert renyi._log_moments(part)[0] == pytest.approx(math.log1p(rate**2 * math.expm1(sigma**-2)), rel=1e-9)


# --- Properties --------------------------------------------------------------------------------------------------

EVENTS: list[Event] = [
    Gaussian(2.0),
    Laplace(3.0),
    PoissonSampled(0.05, Gaussian(1.5)),
    PoissonSampled(0.05, Laplace(2.0)),
    TruncatedPoissonSampled(0.05, 1000, 120, Gaussian(1.5)),
    Composed((Gaussian(5.0), PoissonSampled(0.1, Gaussian(2.0)))),
]


def priced(event: Event, accountant: str, adjacency: str, delta: float = 1e-5) -> float | None:
    try:
        return acc.epsilon(event, delta, accountant, adjacency)  # type: ignore[arg-type]
    except ValueError:
        return None


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("accountant", acc.ACCOUNTANTS)
@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_repeated_is_composed_and_more_costs_more(event, accountant, adjacency):
    once = priced(event, accountant, adjacency)
    if once is None:
        return
    for steps in (2, 7):
        repeated = priced(Repeated(event, steps), accountant, adjacency)
        assert repeated == priced(Composed((event,) * steps), accountant, adjacency)
        assert repeated == priced(Composed((Repeated(event, steps - 1), event)), accountant, adjacency)
        assert repeated is not None
        assert repeated > once
    assert acc.epsilon(Composed((event, NonPrivate())), 1e-5, accountant, adjacency) == math.inf


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_no_accountant_goes_below_pld(event, adjacency):
    for steps in (1, 50):
        tight = priced(Repeated(event, steps), "pld", adjacency)
        for accountant in acc.ACCOUNTANTS:
            other = priced(Repeated(event, steps), accountant, adjacency)
            if tight is not None and other is not None:
                assert other >= tight * (1 - 0.006)


@pytest.mark.parametrize("event", EVENTS[::2], ids=repr)
@pytest.mark.parametrize("accountant", acc.ACCOUNTANTS)
def test_delta_inverts_epsilon(event, accountant):
    value = priced(Repeated(event, 20), accountant, "add-remove")
    pure = "Laplace" in repr(event) and accountant in ("basic", "advanced")  # every δ has the same ε
    if value is not None and math.isfinite(value) and not pure:
        assert acc.delta(Repeated(event, 20), value, accountant) == pytest.approx(1e-5, rel=0.1)


def test_replacing_costs_at_least_removing_and_at_most_two_removals():
    """Two removals: 2ε and δ(1 + e^ε) (Jälkö 2.15)."""
    for event in (
        Gaussian(3.0),
        PoissonSampled(0.02, Gaussian(1.2)),
        Repeated(PoissonSampled(0.02, Gaussian(1.2)), 300),
    ):
        one = acc.epsilon(event, 1e-6)
        two = acc.epsilon(event, 1e-6 * (1 + math.exp(one)), "pld", "replace-one")
        assert acc.epsilon(event, 1e-6 * (1 + math.exp(one))) <= two <= 2 * one


def test_a_bare_gaussian_has_the_exact_price_under_both_adjacencies():
    """dp-accounting's Rényi accountant ignores the relation here; ours must not."""
    for adjacency, sensitivity in (("add-remove", 1.0), ("replace-one", 2.0)):
        sigma = 2.5 / sensitivity
        price = acc.epsilon(Gaussian(2.5), 1e-5, "pld", adjacency, tolerance=1e-6)
        assert exact.gaussian_delta(price, sigma) == pytest.approx(1e-5, rel=1e-4)
        assert renyi.rdp(Gaussian(2.5), [2.0], adjacency) == pytest.approx([2 / (2 * sigma**2)])
    own = Gaussian(2.5, adjacency="replace-one")
    assert acc.epsilon(own, 1e-5, "pld", "replace-one") == pytest.approx(acc.epsilon(Gaussian(2.5), 1e-5), rel=1e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@settings(max_examples=8, deadline=None)
@given(noise=st.floats(0.8, 8), rate=st.floats(0.001, 0.3), steps=st.integers(1, 500))
def test_noise_helps_and_steps_and_rates_hurt(accountant, noise, rate, steps):
    def price(s: float, q: float, n: int) -> float:
        return acc.epsilon(acc.subsampled_plan(s, q, n), 1e-5, accountant)

    base = price(noise, rate, steps) * (1 + 1e-9)
    slack = 1.006 if accountant == "pld" else 1 + 1e-9  # two grids
    assert price(noise * 1.2, rate, steps) <= base * slack
    assert price(noise, rate / 2, steps) <= base * slack
    assert price(noise, rate, 2 * steps) * slack >= base


def test_halving_the_grid_changes_epsilon_by_less_than_half_a_percent():
    plan = acc.subsampled_plan(1.5, 0.001, 20_000)
    coarse = acc.epsilon(plan, 1e-6)
    assert coarse == pytest.approx(0.42697, rel=0.005)
    assert coarse >= 0.426966
    assert acc.epsilon(plan, 1e-6, tolerance=1e-5) == pytest.approx(0.42697, abs=1e-5)


def test_thirty_two_levels_are_priced_and_agree_with_the_same_levels_merged():
    noise, rates = np.linspace(1.6, 4, 32), np.linspace(0.005, 0.02, 32)
    levels = tuple(
        Repeated(PoissonSampled(float(q), Gaussian(float(s))), 62) for s, q in zip(noise, rates, strict=True)
    )
    price = acc.epsilon(Composed(levels), 1e-5)
    assert price == pytest.approx(0.7430, rel=0.005)
    assert price == pytest.approx(acc.epsilon(Composed(levels[::-1]), 1e-5), rel=1e-9)


def test_the_golden_heterogeneous_schedule():
    noise, rates = np.linspace(1.6, 1.8, 10), np.linspace(0.05, 0.06, 10)
    plan = Composed(
        tuple(Repeated(PoissonSampled(float(q), Gaussian(float(s))), 10) for s, q in zip(noise, rates, strict=True))
    )
    assert acc.epsilon(plan, 1e-3, tolerance=1e-5) == pytest.approx(0.9658, abs=1e-4)
    assert acc.epsilon(plan, 1e-3, "pld", "replace-one", tolerance=1e-5) == pytest.approx(1.8493, abs=1e-4)


# --- Truncated samples -------------------------------------------------------------------------------------------


def hockey_stick(p, q, epsilon: float) -> float:
    """∫ max(0, p - e^ε q) on the line."""
    value, _ = integrate.quad(
        lambda z: max(0.0, p(z) - math.exp(epsilon) * q(z)), -40, 40, limit=2000, points=[-2, 0, 2]
    )
    return value


SIGNS = [(1, 1), *(pytest.param(signs, marks=pytest.mark.slow) for signs in ((-1, 1), (1, -1), (-1, -1)))]


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_price_of_a_truncated_sample_covers_the_mechanism_itself(signs, adjacency):
    """Three slots with a buffer of one, by enumeration: every choice of slots, the first chosen kept."""
    rate, sigma, slots, buffer = 0.3, 1.0, 3, 1
    others, unit = signs

    def density(values):
        terms = []
        for mask in range(2**slots):
            chosen = [i for i in range(slots) if mask >> i & 1]
            weight = rate ** len(chosen) * (1 - rate) ** (slots - len(chosen))
            terms.append((weight, sum(values[i] for i in chosen[:buffer])))
        return lambda z: sum(w * stats.norm.pdf(z, m, sigma) for w, m in terms)

    event = TruncatedPoissonSampled(rate, slots, buffer, Gaussian(sigma))
    for place in range(slots):
        filled = [float(others)] * slots
        filled[place] = float(unit)
        empty = list(filled)
        empty[place] = 0.0 if adjacency == "add-remove" else -float(unit)
        # Under add-remove the others may also move up to fill the place, as they do in `Access.of`.
        moved = [*filled[:place], *filled[place + 1 :], 0.0]
        for epsilon in (0.05, 0.3, 0.8):
            real = max(
                hockey_stick(p, q, epsilon)
                for other in ([empty, moved] if adjacency == "add-remove" else [empty])
                for p, q in ((density(filled), density(other)), (density(other), density(filled)))
            )
            assert acc.delta(event, epsilon, "pld", adjacency, tolerance=1e-4) >= real - 1e-9


def test_untruncated_pricing_would_not_cover_a_truncated_sample():
    """The power of the test above: for this neighbour plain Poisson pricing is below the truth, and ours is not."""
    rate, sigma, epsilon = 0.9, 0.6, 2.0
    # Two slots and a buffer of one. A unit at -1 before another at +1; without it the other moves up.
    both = [(rate, -1.0), ((1 - rate) * rate, 1.0), ((1 - rate) ** 2, 0.0)]
    alone = [(rate, 1.0), (1 - rate, 0.0)]

    def density(terms):
        return lambda z: sum(w * stats.norm.pdf(z, m, sigma) for w, m in terms)

    pairs = ((density(both), density(alone)), (density(alone), density(both)))
    real = max(hockey_stick(p, q, epsilon) for p, q in pairs)
    assert acc.delta(PoissonSampled(rate, Gaussian(sigma)), epsilon) < 0.95 * real
    assert acc.delta(TruncatedPoissonSampled(rate, 2, 1, Gaussian(sigma)), epsilon) >= real


def test_truncation_far_out_costs_almost_nothing_and_close_in_costs_something():
    def price(buffer: int) -> float:
        return acc.epsilon(Repeated(TruncatedPoissonSampled(0.005, 39_073, buffer, Gaussian(1.5)), 2000), 1e-5)

    plain = acc.epsilon(acc.subsampled_plan(1.5, 0.005, 2000), 1e-5)
    assert price(320) == pytest.approx(plain, rel=2e-4)  # a thousandth of δ is kept for imperfect draws
    assert plain < price(320) < price(250) < price(220)
    assert price(39_073) == pytest.approx(plain, rel=1e-3)  # nothing cut, but every step draws and pays 39,083 gaps


# --- Calibration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments", "advanced"])
@pytest.mark.parametrize("target", [0.5, 1.0, 8.0])
def test_calibration_comes_close_and_never_above(accountant, target):
    found = acc.calibrate(target, 1e-5, sampling_rate=0.01, steps=500, accountant=accountant)
    assert target * 0.99 <= found.epsilon <= target
    assert acc.epsilon(found.event, 1e-5, accountant) == found.epsilon


@settings(max_examples=6, deadline=None)
@given(
    target=st.floats(0.05, 20), rate=st.sampled_from([0.001, 0.02, 0.3, 1.0]), steps=st.integers(1, 3000),
    adjacency=st.sampled_from(["add-remove", "replace-one"]),
)  # fmt: skip
def test_calibration_never_exceeds_its_target(target, rate, steps, adjacency):
    found = acc.calibrate(target, 1e-6, sampling_rate=rate, steps=steps, adjacency=adjacency)
    assert found.epsilon <= target
    assert found.epsilon >= 0.99 * target or found.noise_multiplier < 0.01


# --- Refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "arguments", "words"),
    [
        (Gaussian(1.0), {"delta": 1.0}, "delta=1.0; expected a number above 0 and below 1"),
        (Gaussian(1.0), {"delta": math.nan}, "delta=nan"),
        (Gaussian(1.0), {"delta": 1e-5, "accountant": "gdp"}, "accountant='gdp'; expected one of pld, rdp"),
        (Gaussian(1.0), {"delta": 1e-5, "adjacency": "swap"}, "adjacency='swap'"),
        (PoissonSampled(0.1, Gaussian(1.0)), {"delta": 1e-5, "accountant": "zcdp"}, "no amplification"),
        (PoissonSampled(0.1, PoissonSampled(0.1, Gaussian(1.0))), {"delta": 1e-5}, "one Gaussian or Laplace"),
        (PoissonSampled(0.1, Composed((Gaussian(1.0), Gaussian(1.0)))), {"delta": 1e-5}, "one Gaussian or Laplace"),
        (Scheduled((Gaussian(1.0),), 0), {"delta": 1e-5}, "no accountant prices"),
        (Composed((Gaussian(1.0), Gaussian(1.0, unit="person"))), {"delta": 1e-5}, "different units"),
        (Gaussian(1.0, adjacency="replace-one"), {"delta": 1e-5}, "says nothing about add-remove"),
        (FixedSizeSampled(100, 10, Gaussian(1.0)), {"delta": 1e-5}, "replace-one"),
        (PoissonSampled(0.1, Gaussian(1.0)), {"delta": 1e-250}, "below what pld can resolve"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_a_sentence(event, arguments, words):
    with pytest.raises(ValueError, match=words):
        acc.epsilon(event, **arguments)


def test_an_event_from_elsewhere_is_refused():
    class Stranger(Event):
        pass

    with pytest.raises(ValueError, match="no accountant prices"):
        acc.epsilon(Stranger(), 1e-5)


def test_draws_that_are_less_than_perfect_are_charged():
    """Each draw of noise is 2⁻⁴⁸ from its ideal: nothing in ordinary use, and refused where it would matter."""
    from tacit.privacy import noise

    assert parts.NOISE_DRAW_ERROR == noise.DRAW_ERROR
    ideal = acc.epsilon(Repeated(PoissonSampled(0.01, Gaussian(1.5)), 500), 1e-6)
    real = acc.epsilon(Repeated(PoissonSampled(0.01, Gaussian(1.5, coordinates=100)), 500), 1e-6)
    many = acc.epsilon(Repeated(PoissonSampled(0.01, Gaussian(1.5, coordinates=100_000)), 500), 1e-6)
    assert ideal < real < 1.001 * ideal
    assert real < many < 1.1 * ideal
    assert acc.epsilon(Repeated(Gaussian(50.0, coordinates=10**9), 500), 1e-6) == math.inf
    assert acc.delta(Gaussian(2.0, coordinates=10**6), 1.0) > acc.delta(Gaussian(2.0), 1.0) + 10**6 * 2.0**-48


def test_gaps_are_charged_with_and_without_truncation():
    full, cut = (
        parts.parts(TruncatedPoissonSampled(0.5, 1000, buffer, Gaussian(2.0)), "add-remove") for buffer in (1000, 999)
    )
    assert full is not None
    assert cut is not None
    (whole,), (part,) = full, cut
    assert whole.imperfection == pytest.approx(part.imperfection, rel=0.01)
    assert whole.imperfection > 1000 * 2.0**-52
    assert whole.truncation == 0 < part.truncation


def test_renyi_divergences_of_truncated_samples_are_refused():
    with pytest.raises(ValueError, match="truncated"):
        renyi.rdp(TruncatedPoissonSampled(0.5, 100, 1, Gaussian(1.0)))


def test_nothing_costs_nothing():
    assert acc.epsilon(Composed(), 1e-5) == 0
    assert acc.delta(Composed(), 0.0) == 0
    assert acc.true_positive_rate(Composed(), 0.01) == 0.01


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 9.9973, 10.0, 50.0])
def test_calibration_finds_noise_where_a_power_of_two_almost_does(epsilon):
    """At ε = 10, δ = 1e-5 a multiplier of ½ reaches 9.9973: within the tolerance of the target, and below it."""
    found = acc.calibrate(epsilon, 1e-5, plan=Gaussian)
    assert 0.998 * epsilon <= found.epsilon <= epsilon


@pytest.mark.parametrize(("delta", "records"), [(0.01, 100), (0.5, 100), (1 / 3, 3)])
def test_a_delta_at_which_a_record_may_be_published_is_refused_unless_it_is_allowed(delta, records):
    with pytest.raises(ValueError, match=f"delta={delta} for {records} records.*lower delta, or allow it"):
        check_delta_of(delta, records)
    check_delta_of(delta, records, allowed=True)
    check_delta_of(0.99 / records, records)
    with pytest.raises(ValueError, match="delta="):
        check_delta_of(1.0, records, allowed=True)
