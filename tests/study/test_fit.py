"""One call with ε and δ: priced before, paid once, in the units of the data."""

import math

import jax
import numpy as np
import pytest

import tacit
from tacit.federated import responder
from tacit.models import GaussianClusters, GaussianMixture, LogisticRegression
from tacit.privacy.events import Composed, Gaussian
from tacit.study import releases
from tacit.study.policy import default_policy

RECORDS = 3000
BOUNDS = ([0.0, -1.0], [100.0, 1.0])


def made_up(link: str, seed: int = 0):
    """Columns of very different scales, and a target of the link."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(50, 10, RECORDS), rng.normal(0, 0.1, RECORDS)])
    truth = np.array([-2.0, 0.05, 4.0])
    z = truth[0] + x @ truth[1:]
    y = {
        "linear": lambda: z + 0.5 * rng.normal(size=RECORDS),
        "logistic": lambda: (rng.uniform(size=RECORDS) < 1 / (1 + np.exp(-z))) * 1.0,
        "probit": lambda: (rng.normal(size=RECORDS) < z) * 1.0,
        "poisson": lambda: rng.poisson(np.exp(z)) * 1.0,
        "softmax": lambda: np.argmax(rng.gumbel(size=(RECORDS, 3)) + np.outer(z, [0, 1, 2]), axis=1) * 1.0,
    }[link]()
    return x, y, truth


def public(link: str) -> dict:
    ends = {"linear": (-6.0, 8.0), "poisson": (0.0, 40.0)}.get(link)
    return {"bounds": BOUNDS, "target_bounds": ends, "classes": (0, 1, 2) if link == "softmax" else None}


@pytest.mark.parametrize(
    "link", ["logistic", *(pytest.param(link, marks=pytest.mark.slow) for link in ("linear", "probit", "poisson"))]
)
def test_a_fit_finds_the_coefficients_within_its_own_intervals_and_its_budget(link):
    """Ten seeds, 99.9 % intervals: one of thirty misses at the most, unless something is wrong."""
    misses = 0
    for seed in range(10):
        x, y, truth = made_up(link, seed)
        posterior = tacit.fit(link, (x, y), 2.0, 1e-5, insecure_seed=seed, **public(link))
        low, high = posterior.interval(0.999)
        misses += int(np.sum((truth < low) | (truth > high)))
        assert 1.9 < posterior.epsilon <= 2.0
        assert posterior.statement["randomness"] == "seeded"
    assert misses <= 1
    assert posterior.coefficients.names == ("intercept", "x1", "x2")
    if link == "linear":
        assert posterior.noise_scale == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize(
    ("method", "link"), [("ep", "poisson"), ("sep", "linear"), ("sgld", "linear"), ("sgld", "logistic")]
)
def test_the_method_is_one_word_at_the_same_price(method, link):
    x, y, truth = made_up(link)
    posterior = tacit.fit(link, (x, y), 2.0, 1e-5, method=method, insecure_seed=1, **public(link))
    assert 1.9 < posterior.epsilon <= 2.0
    assert posterior.plan["method"] == method
    low, high = posterior.interval(0.9999)
    assert np.all((low < truth) & (truth < high))
    if link == "linear":
        assert posterior.noise_scale == pytest.approx(0.5, rel=0.15)
    assert (posterior.chains is not None) == (method == "sgld") == ("have mixed" in posterior.statement_text)
    if method == "sgld":
        drawn = posterior.chains["coefficients"]
        assert drawn.shape == (releases.CHAINS, 250 if link == "logistic" else 400, 3)
        np.testing.assert_allclose(drawn.reshape(-1, 3).mean(axis=0), posterior.coefficients.mean, rtol=1e-3)
        np.testing.assert_allclose(
            drawn.reshape(-1, 3).std(axis=0), posterior.coefficients.standard_deviation, rtol=1e-2
        )


def test_clusters_are_fitted_by_every_method_that_has_them():
    rng = np.random.default_rng(0)
    centres = np.array([[-2.0, 0.0], [2.0, 0.0]])[rng.integers(0, 2, 600)]
    x = (centres + 0.5 * rng.normal(size=(600, 2))).astype(np.float32)
    for method in ("sep", "sgld"):
        posterior = tacit.fit(GaussianClusters(2, 2), x, 2.0, 1e-5, method=method, insecure_seed=1)
        assert 1.9 < posterior.epsilon <= 2.0
        found = sorted(block.mean[0] for block in posterior.blocks.values())
        np.testing.assert_allclose(found, [-2, 2], atol=0.4)
    assert set(posterior.chains) == {"1", "2"}


def test_a_softmax_finds_the_classes():
    x, y, _ = made_up("softmax")
    posterior = tacit.fit("softmax", (x, y), 4.0, 1e-5, insecure_seed=1, **public("softmax"))
    probability = posterior.predict(x[:500])
    assert probability.shape == (500, 3)
    assert probability.sum(axis=1) == pytest.approx(1)
    best = tacit.fit("softmax", (x, y), math.inf, 1e-5, insecure_seed=1, **public("softmax")).predict(x[:500])
    agreement = np.mean(probability.argmax(axis=1) == best.argmax(axis=1))
    assert agreement > 0.85
    assert posterior.epsilon <= 4.0


def test_without_privacy_the_same_code_says_so():
    x, y, _ = made_up("logistic")
    posterior = tacit.fit("logistic", (x, y), math.inf, 1e-5, insecure_seed=0, bounds=BOUNDS)
    assert math.isinf(posterior.epsilon)
    assert "NOT differentially private" in posterior.statement_text


def test_without_bounds_the_ranges_are_paid_for_and_the_statement_says_so():
    x, y, truth = made_up("logistic")
    with_bounds = tacit.fit("logistic", (x, y), 2.0, 1e-5, insecure_seed=0, bounds=BOUNDS)
    without = tacit.fit("logistic", (x, y), 2.0, 1e-5, insecure_seed=0)
    half = tacit.fit("logistic", (x, y), 2.0, 1e-5, insecure_seed=0, bounds={"x1": (0, 100)})
    assert "ranges" not in with_bounds.plan["releases"]
    assert "ranges" in without.plan["releases"]
    assert "Ranges of numeric columns are public bounds" in with_bounds.statement_text
    share = f"{100 * default_policy().rule('logistic').ranges:.3g} %"
    assert f"Ranges of 2 of 2 numeric columns are private releases ({share} of the budget)" in without.statement_text
    assert "Ranges of 1 of 2 numeric columns are private releases" in half.statement_text
    for posterior in (with_bounds, without, half):
        assert posterior.epsilon <= 2.0
        assert posterior.coefficients.mean[1] == pytest.approx(
            truth[1], abs=5 * posterior.coefficients.standard_deviation[1]
        )


def test_public_scaling_pays_nothing_for_scales_and_needs_all_bounds():
    x, y, _ = made_up("logistic")
    posterior = tacit.fit("logistic", (x, y), 2.0, 1e-5, insecure_seed=0, bounds=BOUNDS, scaling="bounds")
    assert set(posterior.plan["releases"]) == {"curvature", "early", "gradients"}
    assert "middle and half-width of the bounds" in posterior.statement_text
    with pytest.raises(ValueError, match="needs public bounds"):
        tacit.fit("logistic", (x, y), 2.0, 1e-5, insecure_seed=0, scaling="bounds")


CONFIGURATIONS = [
    ("linear", {}),
    ("linear", {"bounds": None}),
    ("poisson", {"bounds": None, "target_bounds": None}),
    ("logistic", {"adjacency": "replace-one"}),
    ("logistic", {"sampling_rate": 0.5, "steps": 6}),
    ("probit", {"steps": 5, "clip": 3.0}),
    ("softmax", {"steps": 20}),
    ("logistic", {"method": "vi", "learning_rate": 0.05, "steps": 20}),
]


@pytest.mark.parametrize(("link", "settings"), CONFIGURATIONS)
def test_no_setting_spends_more_than_was_asked_for(link, settings):
    """The receipt itself, priced anew: not what the plan thinks it is."""
    x, y, _ = made_up(link)
    posterior = tacit.fit(link, (x[:300], y[:300]), 1.0, 1e-4, insecure_seed=3, **(public(link) | settings))
    event = tacit.events.from_dict(posterior.statement["event"])
    adjacency = settings.get("adjacency", "add-remove")
    spent = tacit.epsilon(event, 1e-4, "pld", adjacency)
    assert spent == pytest.approx(posterior.epsilon)
    assert 0.9 < spent <= 1.0


def test_a_release_that_the_plan_forgot_is_refused(monkeypatch):
    x, y, _ = made_up("logistic")
    original = releases.Releases.event

    def one_release_forgotten(*given):
        whole = original(*given)
        assert isinstance(whole, Composed)
        return Composed(whole.events[1:])

    monkeypatch.setattr(releases.Releases, "event", one_release_forgotten)
    with pytest.raises(ValueError, match=r"the fit ended before its last release \(epsilon=1 of this study is spent"):
        tacit.fit("logistic", (x, y), 1.0, 1e-5, insecure_seed=0, bounds=BOUNDS)
    monkeypatch.undo()
    tacit.fit("logistic", (x, y), 1.0, 1e-5, insecure_seed=0, bounds=BOUNDS)


def test_a_receipt_that_is_not_the_price_is_not_handed_out(monkeypatch):
    x, y, _ = made_up("logistic")
    monkeypatch.setattr(responder, "price", lambda *_: Gaussian(1e3))
    with pytest.raises(RuntimeError, match="the receipt is not the price"):
        tacit.fit("logistic", (x, y), 1.0, 1e-5, insecure_seed=0, bounds=BOUNDS)


def test_a_second_fit_of_the_same_sizes_compiles_nothing():
    x, y, _ = made_up("logistic")
    counted = []

    def listen(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.clear_caches()
    found = []
    for seed in range(3):
        tacit.fit("logistic", (x, y), 1.5, 1e-5, insecure_seed=seed, bounds=BOUNDS)
        found.append(len(counted))
    assert found[0] > 0
    assert found[0] == found[1] == found[2]


def test_several_records_of_one_person_are_one_unit_and_scales_stay_right():
    x, y, truth = made_up("linear")
    groups = np.arange(RECORDS) // 3
    posterior = tacit.fit(
        "linear", (x, y), 4.0, 1e-5, groups=groups, most_records=3, insecure_seed=0, **public("linear")
    )
    assert posterior.statement["unit"] == "person"
    assert posterior.details["location"][0] == pytest.approx(50, abs=1)
    assert posterior.details["scale"][0] == pytest.approx(10, rel=0.15)
    assert posterior.coefficients.mean[1] == pytest.approx(
        truth[1], abs=5 * posterior.coefficients.standard_deviation[1]
    )
    assert "At most 3 records of one person are used" in posterior.statement_text


def test_slots_are_public_in_place_of_the_number_of_records():
    """Settings, price and statement follow from the slots, and are the same however many of them are filled."""
    x, y, _ = made_up("logistic")
    given = {"bounds": BOUNDS, "insecure_seed": 1, "slots": 900}
    fits = [tacit.fit("logistic", (x[:n], y[:n]), 2.0, 1e-5, **given) for n in (800, 741)]
    assert fits[0].plan == fits[1].plan
    assert fits[0].statement == fits[1].statement
    assert "The number of slots for records, 900, is public" in fits[0].statement_text
    assert not any(number in fits[0].statement_text for number in ("800", "741"))
    people = np.arange(800) // 2
    with pytest.raises(ValueError, match="has more persons than its slots=399; raise slots"):
        tacit.fit("logistic", (x[:800], y[:800]), 2.0, 1e-5, **given | {"slots": 399}, groups=people, most_records=2)
    with pytest.raises(ValueError, match="slots=0 of data; expected a whole number"):
        tacit.fit("logistic", (x, y), 2.0, 1e-5, **given | {"slots": 0})


def test_a_record_that_is_not_a_number_or_huge_changes_nothing_for_the_others():
    x, y, _ = made_up("logistic")
    clean = tacit.fit("logistic", (x, y), 2.0, 1e-5, insecure_seed=0, bounds=BOUNDS)
    for value in (np.nan, np.inf, 1e38, -1e38):
        broken = x.copy()
        broken[7] = value
        posterior = tacit.fit("logistic", (broken, y), 2.0, 1e-5, insecure_seed=0, bounds=BOUNDS)
        assert np.all(np.isfinite(posterior.coefficients.mean))
        assert posterior.coefficients.mean == pytest.approx(clean.coefficients.mean, rel=0.1, abs=0.1)


def test_a_model_of_ones_own_sees_its_records_as_they_are():
    rng = np.random.default_rng(0)
    centres = np.array([[-2.0, 0.0], [2.0, 0.0]])
    x = (centres[rng.integers(0, 2, 600)] + 0.5 * rng.normal(size=(600, 2))).astype(np.float32)
    posterior = tacit.fit(GaussianMixture(2, 2), x, 5.0, 1e-5, insecure_seed=4, steps=300)
    assert set(posterior.blocks) == {"weights", "means", "log_scales"}
    means = np.sort(posterior.blocks["means"].mean.reshape(2, 2)[:, 0])
    assert means == pytest.approx([-2, 2], abs=0.8)
    assert "Records are used as they are given" in posterior.statement_text
    assert "do not include the noise" in posterior.statement_text
    features = np.column_stack([np.ones(600), x]).astype(np.float32)
    target = (x[:, 0] > 0).astype(np.float32)
    model = LogisticRegression(tacit.DiagonalGaussian.standard(3, 2.0))
    own = tacit.fit(model, (features, target), 5.0, 1e-5, insecure_seed=4)
    assert own.coefficients.mean[1] > 1
    assert own.epsilon <= 5.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "nonsense"}, "model='nonsense'; expected one of"),
        ({"epsilon": 0.0}, "epsilon=0.0; expected a number above 0"),
        ({"epsilon": -1.0}, "epsilon=-1.0; expected a number above 0"),
        ({"epsilon": math.nan}, "expected a number above 0"),
        ({"delta": 2.0}, "delta=2.0"),
        ({"data": np.zeros((3, 2))}, "expected \\(features, target\\)"),
        ({"data": (np.zeros((3, 2)), np.array([0.0, 1.0, 2.0]))}, "must be 0 or 1"),
        ({"data": (np.zeros((3, 2)), np.array([0.0, 1.0, np.nan]))}, "missing or not finite"),
        ({"model": "poisson", "data": (np.zeros((2, 1)), np.array([0.5, 1.0]))}, "whole numbers from 0 on"),
        ({"model": "softmax"}, "needs classes="),
        ({"classes": (0, 1, 2)}, r"classes=\(0, 1, 2\) for a logistic regression; expected two labels"),
        ({"bounds": ([1.0, 1.0], [0.0, 2.0])}, "lower bound is not below"),
        ({"steps": 1}, "steps=1"),
        ({"method": "mcmc"}, "method='mcmc'; expected one of natural, vi, ep, sep, sgld"),
        ({"method": "sgld", "steps": 1}, "steps=1; expected at least 2"),
        ({"method": "ep", "clip": "adaptive"}, "give method='vi'"),
        ({"method": "sep", "model": "softmax", "classes": (0, 1)}, "needs moments"),
        ({"names": ["a"]}, "names for 2 columns"),
        ({"indicators": ["z"]}, "no column is named 'z'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(arguments, words):
    x = np.zeros((4, 2))
    settings = {"model": "logistic", "data": (x, np.array([0.0, 1, 0, 1])), "epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(ValueError, match=words):
        tacit.fit(**(settings | arguments), insecure_seed=0)


def test_an_embedded_data_set_brings_its_public_facts():
    table = tacit.data.abalone().to_table()
    assert table.categories == 1
    assert len(table.numbers) == 7
    assert np.all(table.low[:7] == 0)


ACCURACY = {"abalone": (0.007, 0.03), "adult": (0.007, 0.03)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["abalone", "adult"])
def test_defaults_stay_near_the_non_private_posterior(name):
    """ε = 1 within .7 points of accuracy, ε = .1 within 3, means of ten seeds, δ = 1e-3."""
    data = getattr(tacit.data, name)()

    def accuracy(epsilon: float, seed: int) -> float:
        posterior = tacit.fit("logistic", data, epsilon, 1e-3, allow_large_delta=True, insecure_seed=seed)
        return float(np.mean((posterior.predict(data.test_features[:, 1:]) > 0.5) == data.test_target))

    exact = accuracy(math.inf, 0)
    for epsilon, allowed in zip((1.0, 0.1), ACCURACY[name], strict=True):
        assert np.mean([accuracy(epsilon, seed) for seed in range(10)]) > exact - allowed
