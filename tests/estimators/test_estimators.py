"""The estimators keep scikit-learn's conventions, and the guarantee stays with them."""

from collections.abc import Iterator

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from tacit.estimators.estimators import PrivateLinearRegression, PrivateLogisticRegression, PrivatePoissonRegression

EVERY = (PrivateLogisticRegression, PrivateLinearRegression, PrivatePoissonRegression)

# --- scikit-learn's own checks -----------------------------------------------------------------------------------

# Check by check, why privacy rules it out. It rules out none: with a seed a fit repeats exactly, and at this ε the
# records decide (at ε = 1 a check that demands accuracy on a few dozen records could not pass).
EXPECTED_FAILURES: dict[str, str] = {}
CHECKED_EPSILON = 1000.0


class CountingPoisson(PrivatePoissonRegression):
    """The checks hand over targets that are no counts, which a Poisson regression refuses: make them counts."""

    def fit(self, X, y, groups=None, most_records=None):
        values = np.asarray(y) if y is not None else None
        if values is not None and values.dtype.kind in "if" and np.all(np.isfinite(values)):
            y = np.abs(np.round(values))
        return super().fit(X, y, groups, most_records)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scores are against the targets from before
        return tags


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """The checks fit some fifteen shapes a few times each, so compiling takes nearly all of their time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(PrivateLogisticRegression, marks=pytest.mark.slow),
        pytest.param(PrivateLinearRegression, marks=pytest.mark.slow),
        pytest.param(CountingPoisson, marks=pytest.mark.slow),
    ],
)
def test_scikit_learns_own_checks_pass(kind):
    estimator = kind(epsilon=CHECKED_EPSILON, insecure_seed=0)
    done = check_estimator(
        estimator, expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None, callback=None
    )
    assert len(done) > 40
    failed = [f"{check['check_name']}: {check['exception']}" for check in done if check["status"] == "failed"]
    assert failed == []


# --- Data ------------------------------------------------------------------------------------------------------------

COEFFICIENTS, INTERCEPT = np.array([0.05, -0.8, 0.5]), -2.5
BOUNDS = {"age": (0, 100), "dose": (-1, 1)}


def people(records: int, seed: int = 3) -> tuple[pd.DataFrame, np.ndarray]:
    """A data frame and the linear predictor of each of its records."""
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.normal(50, 10, records),
        "dose": rng.uniform(-1, 1, records),
        "smoker": rng.random(records) < 0.3,
    }
    frame = pd.DataFrame(columns)
    return frame, frame.to_numpy(float) @ COEFFICIENTS + INTERCEPT


def answers(linear: np.ndarray, seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(linear)) < 1 / (1 + np.exp(-3 * linear)), "yes", "no")


@pytest.fixture(scope="module")
def classifier() -> PrivateLogisticRegression:
    X, linear = people(4000)
    return PrivateLogisticRegression(bounds=BOUNDS, insecure_seed=0).fit(X, answers(linear))


# --- Recovery --------------------------------------------------------------------------------------------------------


def is_near(estimator, coefficients: np.ndarray, intercept: float) -> bool:
    """Each within 4 posterior deviations: of 4 parameters, false alarm 3e-4 if the posterior is calibrated."""
    block = estimator.posterior_.coefficients
    return bool(np.all(np.abs(block.mean - [intercept, *coefficients]) < 4 * block.standard_deviation))


@pytest.mark.parametrize("bounded", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_linear_regression_recovers_coefficients_at_epsilon_one(bounded):
    X, linear = people(20_000)
    y = 2 * linear + np.random.default_rng(5).normal(0, 1, len(linear))
    public = {"bounds": BOUNDS, "target_bounds": (-20, 20)} if bounded else {}
    estimator = PrivateLinearRegression(epsilon=1.0, insecure_seed=0, **public).fit(X, y)
    assert is_near(estimator, 2 * COEFFICIENTS, 2 * INTERCEPT)
    assert not is_near(estimator, -2 * COEFFICIENTS, 2 * INTERCEPT)
    np.testing.assert_allclose(estimator.coef_, 2 * COEFFICIENTS, rtol=0.06)  # the smoker's deviation is 2 %
    mean, sd = estimator.predict(X, return_std=True)
    assert estimator.score(X, y) > 0.6  # R² of the truth: 0.67
    np.testing.assert_allclose(sd, 1, rtol=0.05)
    low, high = estimator.predict_interval(X)
    assert np.all((low < mean) & (mean < high))
    assert np.all(high - low < sd)  # about the mean, not about one outcome
    assert estimator.epsilon_ <= 1


@pytest.mark.parametrize("bounded", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_poisson_regression_recovers_coefficients_at_epsilon_one(bounded):
    X, linear = people(20_000)
    y = np.random.default_rng(5).poisson(np.exp(linear / 2 + 1))
    public = {"bounds": BOUNDS, "target_bounds": (0, 40)} if bounded else {}
    estimator = PrivatePoissonRegression(epsilon=1.0, insecure_seed=0, **public).fit(X, y)
    assert is_near(estimator, COEFFICIENTS / 2, INTERCEPT / 2 + 1)
    np.testing.assert_allclose(estimator.coef_, COEFFICIENTS / 2, rtol=0.15)  # the smoker's deviation is 4 %
    mean, sd = estimator.predict(X, return_std=True)
    np.testing.assert_allclose(mean, np.exp(linear / 2 + 1), rtol=0.15)
    np.testing.assert_allclose(sd, np.sqrt(mean), rtol=0.05)


# --- What stays with a fit -------------------------------------------------------------------------------------------


def test_posterior_spending_and_statement_are_there(classifier):
    assert 0.9 < classifier.epsilon_ <= 1.0
    assert classifier.epsilon_ == classifier.posterior_.epsilon
    assert classifier.statement_ == classifier.posterior_.statement
    assert "The list of classes is treated as public." in classifier.statement_["notes"]
    assert classifier.statement_["randomness"] == "seeded"


def test_without_a_seed_noise_is_the_operating_systems():
    X, linear = people(4000)
    first, second = (PrivateLogisticRegression(bounds=BOUNDS).fit(X, answers(linear)) for _ in range(2))
    assert first.statement_["randomness"] == "secure"
    assert np.all(first.coef_ != second.coef_)


def test_names_of_a_data_frame_are_those_of_the_coefficients_and_bool_columns_are_indicators(classifier):
    assert classifier.feature_names_in_.tolist() == ["age", "dose", "smoker"]
    assert classifier.posterior_.coefficients.names == ("intercept", "age", "dose", "smoker")
    assert classifier.posterior_.plan["numbers"] == [0, 1]
    assert classifier.posterior_.details["range"]["high"][2] is None


def test_string_labels_come_back_and_probabilities_follow_them(classifier):
    X, linear = people(1000, seed=8)
    assert classifier.classes_.tolist() == ["no", "yes"]
    assert (classifier.coef_.shape, classifier.intercept_.shape) == ((1, 3), (1,))
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert np.array_equal(classifier.predict(X), np.where(probabilities[:, 1] > 0.5, "yes", "no"))
    assert classifier.score(X, np.where(linear > 0, "yes", "no")) > 0.9
    low, high = classifier.predict_interval(X)
    assert np.all((low < probabilities[:, 1]) & (probabilities[:, 1] < high))


def test_several_classes_are_fitted_by_a_softmax():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 2))
    y = np.array(["a", "b", "c"])[np.argmax(np.column_stack([np.zeros(4000), 4 * X]) + rng.gumbel(size=(4000, 3)), 1)]
    estimator = PrivateLogisticRegression(epsilon=4.0, bounds=(-1, 1), insecure_seed=0).fit(X, y)
    assert estimator.predict_proba(X[:100]).shape == (100, 3)
    assert estimator.predict([[-1, -1], [1, -1], [-1, 1]]).tolist() == ["a", "b", "c"]
    assert estimator.coef_.shape == (3, 2)
    assert not np.any(estimator.coef_[0])
    assert estimator.epsilon_ <= 4


def test_classes_may_be_given_and_then_need_not_all_be_seen():
    X, _ = people(50)
    estimator = PrivateLogisticRegression(classes=[2, 1, 0], insecure_seed=0).fit(X, np.arange(50) % 2)
    assert estimator.classes_.tolist() == [0, 1, 2]
    assert estimator.predict_proba(X).shape == (50, 3)
    with pytest.raises(ValueError, match="not among classes"):
        PrivateLogisticRegression(classes=["no", "yes"]).fit(X, ["maybe"] * 50)


def test_all_records_of_one_id_can_be_the_unit_of_privacy():
    X, linear = people(60)
    estimator = PrivateLinearRegression(insecure_seed=0).fit(X, linear, groups=np.arange(60) // 3, most_records=2)
    assert estimator.statement_["unit"] == "person"


# --- With scikit-learn -----------------------------------------------------------------------------------------------


def test_slots_may_be_public_in_place_of_the_number_of_records():
    X, linear = people(300)
    given = {"epsilon": 2.0, "steps": 4, "insecure_seed": 1, "slots": 400, "bounds": (0, 120)}
    found = [PrivateLogisticRegression(**given).fit(X[:n], (linear > 0)[:n] * 1) for n in (300, 290)]
    assert found[0].statement_ == found[1].statement_
    assert PrivateLinearRegression(**given | {"target_bounds": (-9, 9)}).fit(X, linear).posterior_.plan is not None


@pytest.mark.slow
def test_a_pipeline_a_cross_validation_and_a_search_run():
    X, linear = people(3000)
    y = answers(linear)
    estimator = PrivateLogisticRegression(epsilon=4.0, bounds=BOUNDS, insecure_seed=0)
    public = FunctionTransformer(lambda X: X.assign(age=X["age"] / 10))  # reads no record but the one it changes
    pipeline = make_pipeline(public, clone(estimator).set_params(bounds={"age": (0, 10), "dose": (-1, 1)}))
    scores = cross_val_score(pipeline, X, y, cv=2)
    assert np.all(scores > 0.7)
    search = GridSearchCV(estimator, {"prior_deviation": [0.5, 2.0]}, cv=2, refit=False).fit(X, y)
    assert np.all(search.cv_results_["mean_test_score"] > 0.7)


@pytest.mark.parametrize("kind", EVERY)
def test_a_clone_has_the_parameters_and_not_the_fit(kind):
    estimator = kind(0.5, bounds=(0, 1), steps=4)
    assert clone(estimator).get_params() == estimator.get_params()
    for read in (lambda: estimator.epsilon_, lambda: estimator.statement_, lambda: estimator.predict([[0.0]])):
        with pytest.raises(NotFittedError):
            read()


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(("bad", "message"), [(np.nan, "Input X contains NaN"), (np.inf, "Input X contains infinity")])
def test_a_feature_that_is_not_finite_is_refused_in_scikit_learns_words(kind, bad, message):
    with pytest.raises(ValueError, match=message):
        kind().fit([[0.0], [bad], [1.0]], [0, 1, 1])


def test_a_target_of_one_class_is_refused_and_the_way_out_is_said():
    with pytest.raises(ValueError, match=r"1 class; expected at least 2.*give classes="):
        PrivateLogisticRegression().fit([[0.0], [1.0]], ["no", "no"])


def test_targets_that_are_no_counts_are_refused():
    with pytest.raises(ValueError, match="whole numbers"):
        PrivatePoissonRegression().fit([[0.0], [1.0]], [0.5, 1.0])
