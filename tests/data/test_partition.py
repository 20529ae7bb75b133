"""Splits over sites: sizes and shares are those of the formulas, and no record is lost or doubled."""

import hashlib
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.data import adult
from tacit.data.partition import SHARMA, by_group, dirichlet, equal, rho_kappa

TARGET = np.repeat([0.0, 1.0], [760, 240])
SPLITS = {
    "equal": lambda seed: equal(1000, 7, seed),
    "rho_kappa": lambda seed: rho_kappa(TARGET, 10, 0.7, -3, seed),
    "dirichlet": lambda seed: dirichlet(TARGET, 7, 0.5, seed),
}
seeds = st.integers(0, 2**64)


def sizes(split: list[np.ndarray]) -> list[int]:
    return [len(site) for site in split]


def positives(target: np.ndarray, split: list[np.ndarray]) -> list[int]:
    return [int(target[site].sum()) for site in split]


def assert_disjoint(split: list[np.ndarray], count: int) -> None:
    """Rising indices within a site, in range, and none at two sites."""
    for site in split:
        assert np.issubdtype(site.dtype, np.integer)
        assert (np.diff(site) > 0).all()
    everywhere = np.concatenate(split)
    assert len(set(everywhere.tolist())) == len(everywhere)
    assert set(everywhere.tolist()) <= set(range(count))


# --- Conformance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
def test_a_seed_fixes_the_split_and_another_seed_gives_another(name):
    first, again, other = SPLITS[name](3), SPLITS[name](np.int64(3)), SPLITS[name](4)
    assert_disjoint(first, 1000)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", SPLITS)
def test_splitting_leaves_numpys_own_generator_and_the_target_alone(name):
    before, target = np.random.get_state()[1].copy(), TARGET.copy()  # noqa: NPY002
    SPLITS[name](5)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    np.testing.assert_array_equal(target, TARGET)


@pytest.mark.parametrize(("name", "start"), [("equal", "671a8b7d6fa04a93"), ("rho_kappa", "ece1a206970d8b70")])
def test_the_split_is_the_same_with_every_numpy(name, start):
    order = np.concatenate(SPLITS[name](2019)).astype("<i4")
    assert hashlib.sha256(order.tobytes()).hexdigest().startswith(start)


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("seed", [None, -1, 0.5, True])
def test_a_seed_that_fixes_nothing_is_refused(name, seed):
    with pytest.raises(ValueError, match=r"^seed=.* whole number of at least 0: give one\.$"):
        SPLITS[name](seed)


# --- equal -------------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 200), sites=st.integers(1, 200), seed=seeds)
def test_equal_sites_differ_by_one_record_at_most_and_have_all(count, sites, seed):
    assume(sites <= count)
    split = equal(count, sites, seed)
    assert_disjoint(split, count)
    assert sizes(split) == [count // sites + (m < count % sites) for m in range(sites)]


@pytest.mark.parametrize(
    ("count", "sites", "words"),
    [
        (3, 4, "take at most 3 sites"),
        (3, 0, "sites=0 is not a whole number of at least 1"),
        (0, 1, "count=0 is not a whole number of at least 1"),
        (3, 1.0, "sites=1.0 is not a whole number"),
    ],
)
def test_equal_refuses_what_cannot_be_shared(count, sites, words):
    with pytest.raises(ValueError, match=words):
        equal(count, sites, 0)


# --- rho_kappa ---------------------------------------------------------------------------------------------------

# Sharma et al. (2019), table 1: size and percentage of positives at small and large sites
PUBLISHED = {
    "A": (3907, 24, 3907, 24),
    "B": (390, 1.3, 7424, 25),
    "C": (1172, 96, 6642, 11),
    "D": (1562, 60, 6251, 15),
}
SHARMAS_RECORDS = 39_074  # ⌈0.8 · 48,842⌉: the only number whose floors are the published sizes


@pytest.mark.parametrize("name", SHARMA)
def test_the_published_sizes_and_shares_come_out(name):
    data = adult()
    everyone = np.concatenate([data.target, data.test_target])
    target = everyone[:SHARMAS_RECORDS]
    split = rho_kappa(target, 10, **SHARMA[name], seed=2019)
    small, small_rate, large, large_rate = PUBLISHED[name]
    assert sizes(split) == [small] * 5 + [large] * 5
    rates = [100 * target[site].mean() for site in split]
    half_a_digit = 0.05 if name == "B" else 0.5
    np.testing.assert_allclose(rates[:5], small_rate, atol=half_a_digit)
    # Pooled, since a large site's own share is left to chance.
    assert np.mean(rates[5:]) == pytest.approx(large_rate, abs=0.5)


@pytest.mark.parametrize("records", [39_073, 39_075])
def test_no_other_number_of_records_gives_the_published_sizes(records):
    target = np.repeat([0, 1], [records - 9_350, 9_350])
    found = {name: sizes(rho_kappa(target, 10, **SHARMA[name], seed=0)) for name in SHARMA}
    assert found != {name: [row[0]] * 5 + [row[2]] * 5 for name, row in PUBLISHED.items()}


def test_our_training_records_of_adult_are_spread_as_documented():
    target = adult().target
    found = {name: rho_kappa(target, 10, **SHARMA[name], seed=2019) for name in SHARMA}
    assert {name: (len(split[0]), len(split[9])) for name, split in found.items()} == {
        "A": (3907, 3907),
        "B": (390, 7423),
        "C": (1172, 6642),
        "D": (1562, 6251),
    }
    assert {name: positives(target, split)[:5] for name, split in found.items()} == {
        "A": [934] * 5,
        "B": [5] * 5,
        "C": [1121] * 5,
        "D": [934] * 5,
    }


@given(
    majority=st.integers(1, 300),
    minority=st.integers(1, 300),
    half=st.integers(1, 6),
    rho=st.integers(0, 99).map(lambda percent: percent / 100),
    kappa=st.integers(-500, 100).map(lambda percent: percent / 100),
    is_positive=st.booleans(),
    seed=seeds,
)
def test_sizes_and_counts_of_the_small_sites_are_those_of_the_formula(
    majority, minority, half, rho, kappa, is_positive, seed
):
    assume(majority > minority)
    count, sites = majority + minority, 2 * half
    target = np.repeat([int(is_positive), int(not is_positive)], [majority, minority])
    decimal = {"rho": Fraction(round(rho * 100), 100), "kappa": Fraction(round(kappa * 100), 100)}
    small, large = (floor(Fraction(count, sites) * (1 + sign * decimal["rho"])) for sign in (-1, 1))
    share = Fraction(majority, count) + Fraction(minority, count) * decimal["kappa"]
    of_majority = floor(share * small)
    can = small > 0 and 0 <= share <= 1
    if not (can and half * (small - of_majority) <= minority):
        with pytest.raises(ValueError, match=r": (take|lower|raise) .*\.$"):
            rho_kappa(target, sites, rho, kappa, seed)
        return
    split = rho_kappa(target, sites, rho, kappa, seed)
    assert_disjoint(split, count)
    assert sizes(split) == [small] * half + [large] * half
    assert [int((target[site] == int(is_positive)).sum()) for site in split[:half]] == [of_majority] * half
    assert 0 <= count - sum(sizes(split)) < sites


def shares_look_alike(rates: list[float], rate: float, size: int) -> bool:
    """Within 5 binomial standard deviations: false alarm below 1e-6 per site; draws without return vary less."""
    return bool(np.abs(np.array(rates) - rate).max() < 5 * np.sqrt(rate * (1 - rate) / size))


def test_large_sites_have_equal_shares_up_to_chance():
    target = np.repeat([0, 1], [7600, 2400])
    order = np.random.default_rng(1).permutation(len(target))
    for values in (target, target[order]):
        split = rho_kappa(values, 10, 0.7, -3, seed=1)
        taken = sum(positives(values, split[:5]))
        rate = (2400 - taken) / (10_000 - sum(sizes(split[:5])))
        assert shares_look_alike([values[site].mean() for site in split[5:]], rate, len(split[5]))
    # Power: dealing the rest in one order for both steps leaves the first large site without minority records.
    shuffled = target[order]
    rest = np.concatenate([np.flatnonzero(shuffled == 0)[60:], np.flatnonzero(shuffled == 1)[1440:]])
    broken = [shuffled[site].mean() for site in np.array_split(np.sort(rest), 5)]
    assert not shares_look_alike(broken, shuffled[rest].mean(), len(rest) // 5)


def test_every_record_is_as_likely_to_be_at_a_small_site_as_others_of_its_class():
    target = np.repeat([0, 1], [30, 10])
    runs = 400
    hits = np.zeros(40)
    for seed in range(runs):
        hits[np.concatenate(rho_kappa(target, 4, 0.5, -1, seed)[:2])] += 1
    for value, taken in [(0, 4), (1, 6)]:  # 5 records at each of two small sites, half of either class, floored
        is_class = target == value
        probability = taken / is_class.sum()
        spread = np.sqrt(runs * probability * (1 - probability))
        assert np.abs(hits[is_class] - runs * probability).max() < 5 * spread  # 40 looks: false alarm below 1e-4


def test_decimals_are_floored_as_written():
    target = np.repeat([0, 1], [60, 40])
    assert floor((1 - 0.9) * 100 / 10) == 0  # the trap
    assert sizes(rho_kappa(target, 10, 0.9, 0, seed=0)) == [1] * 5 + [19] * 5


@pytest.mark.parametrize(
    ("majority", "minority", "kappa", "expected"),
    [(60, 40, -1.5, [25, 15]), (60, 40, 1, [0, 40]), (50, 30, -5 / 3, [20, 10])],  # -5/3 prints just below itself
)
def test_kappa_reaches_its_ends(majority, minority, kappa, expected):
    target = np.repeat([0, 1], [majority, minority])
    assert positives(target, rho_kappa(target, 2, 0.5, kappa, seed=0)) == expected


def test_of_two_classes_of_one_size_the_lesser_value_is_the_majority():
    target = np.repeat(["no", "yes"], 50)
    split = rho_kappa(target, 2, 0.5, 1, seed=0)
    assert set(target[split[0]]) == {"no"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sites": 3}, "sites=3 cannot be half small and half large: take an even number"),
        ({"sites": 0}, "sites=0 is not a whole number of at least 2"),
        ({"rho": 1.0}, r"rho=1.0 is not in \[0, 1\)"),
        ({"rho": -0.1}, r"rho=-0.1 is not in \[0, 1\)"),
        ({"rho": float("nan")}, "rho=nan is not in"),
        ({"rho": 0.9999}, "without a record of 1000: lower `rho` or `sites`"),
        ({"kappa": 1.01}, "take one from -3.167 to 1"),
        ({"kappa": -3.2}, "take one from -3.167 to 1"),
        ({"kappa": float("nan")}, "kappa=nan"),
        ({"kappa": float("-inf")}, "kappa=-inf"),
        (
            {"rho": 0.0, "kappa": -3},
            "the minority class at each of 5 small sites where the data have 240 in all: raise `rho`",
        ),
        ({"target": np.zeros(20)}, "target has 1 classes where two are expected"),
        ({"target": np.arange(20) % 3}, "target has 3 classes where two are expected: use `dirichlet`"),
        ({"target": TARGET[:, None]}, r"target has shape \(1000, 1\)"),
        ({"target": []}, r"target has shape \(0,\)"),
        ({"target": [0, 1, float("nan"), 1]}, "target has NaN for a label"),
    ],
)
def test_rho_kappa_refuses_what_cannot_be(arguments, words):
    with pytest.raises(ValueError, match=words):
        rho_kappa(**{"target": TARGET, "sites": 10, "rho": 0.7, "kappa": -3.0, "seed": 0} | arguments)


def test_the_published_settings_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        SHARMA["A"] = {}


# --- dirichlet ---------------------------------------------------------------------------------------------------


@given(
    target=st.lists(st.integers(0, 3), min_size=1, max_size=100),
    sites=st.integers(1, 8),
    concentration=st.floats(0.01, 1e6),
    seed=seeds,
)
def test_dirichlet_sites_are_disjoint_and_have_all_records(target, sites, concentration, seed):
    split = dirichlet(target, sites, concentration, seed, least=0)
    assert_disjoint(split, len(target))
    assert len(split) == sites
    assert sum(sizes(split)) == len(target)


def test_a_large_concentration_gives_equal_shares_and_a_small_one_whole_classes():
    even = dirichlet(TARGET, 10, 1e9, seed=0)
    assert sizes(even) == [100] * 10
    assert positives(TARGET, even) == [24] * 10
    skewed = dirichlet(TARGET, 10, 1e-3, seed=0, least=0)
    assert max(positives(TARGET, skewed)) > 230


@pytest.mark.parametrize("concentration", [0.3, 2.0])
def test_shares_vary_as_the_dirichlet_law_says(concentration):
    sites, runs = 4, 400
    target = np.repeat([0, 1], [3000, 1000])
    draws = np.array([positives(target, dirichlet(target, sites, concentration, s, least=0)) for s in range(runs)])
    shares = draws[:, 0] / 1000  # of one site: the marginal Beta(α, (M − 1) α)
    variance = (1 / sites) * (1 - 1 / sites) / (sites * concentration + 1)

    def fits(value: float) -> bool:
        return abs(shares.mean() - 1 / sites) < 5 * np.sqrt(variance / runs) and 0.7 < shares.var() / value < 1.4

    assert fits(variance)
    assert not fits(variance * 2)  # power: the spread of another concentration is told apart
    assert not fits(variance / 2)


def test_shares_are_drawn_again_until_every_site_has_the_least_number_of_records():
    assert min(sizes(dirichlet(TARGET, 10, 0.1, seed=0, least=0))) < 10
    assert min(sizes(dirichlet(TARGET, 10, 0.1, seed=0, least=10))) >= 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"concentration": 0.0}, "concentration=0.0 is not a positive, finite number"),
        ({"concentration": float("nan")}, "concentration=nan is not a positive, finite number"),
        ({"concentration": float("inf")}, "take 1e6, say"),
        ({"concentration": 1e308, "least": 0}, "not a positive, finite number"),
        ({"sites": 0}, "sites=0 is not a whole number of at least 1"),
        ({"least": -1}, "least=-1 is not a whole number of at least 0"),
        ({"sites": 1001}, "sites=1001 cannot have least=1 of 1000 records each"),
        ({"concentration": 1e-3}, "draws: raise `concentration`, or lower `sites` or `least`"),
        ({"target": np.array(["a", None, "b"], dtype=object), "sites": 1}, "mixes labels that have no order"),
    ],
)
def test_dirichlet_refuses_what_cannot_be(arguments, words):
    with pytest.raises(ValueError, match=words):
        dirichlet(**{"target": TARGET, "sites": 10, "concentration": 0.5, "seed": 0} | arguments)


# --- by_group ----------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["va", "cleveland", "hungarian", "switzerland"]), min_size=1))
def test_each_group_is_a_site_under_its_name(groups):
    sites, names = by_group(groups)
    assert names == tuple(sorted(set(groups)))
    assert sorted(np.concatenate(sites).tolist()) == list(range(len(groups)))
    for site, name in zip(sites, names, strict=True):
        assert {groups[i] for i in site} == {name}
        assert (np.diff(site) > 0).all()


def test_groups_may_be_numbers():
    sites, names = by_group(np.array([7, 3, 7]))
    assert names == (3, 7)
    assert [site.tolist() for site in sites] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (None, r"groups has shape \(\)"),
        ([], "give one label for each record"),
        ([["va"]], r"groups has shape \(1, 1\)"),
        ([1.0, float("nan")], "groups has NaN for a label"),
        (np.array(["va", float("nan")], dtype=object), "mixes labels that have no order"),
    ],
)
def test_by_group_refuses_what_names_no_groups(groups, words):
    with pytest.raises(ValueError, match=words):
        by_group(groups)
