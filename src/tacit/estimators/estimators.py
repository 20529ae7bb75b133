"""Private regressions in scikit-learn's conventions: `fit` and `predict`, with the posterior and its statement.

    estimator = PrivateLogisticRegression(epsilon=1.0, bounds={"age": (0, 120)}).fit(X, y)
    estimator.predict_proba(X_new), estimator.coef_, estimator.posterior_.summary(), estimator.statement_

Each call of `fit` is one call of `tacit.fit` and spends up to `epsilon` on the records it is given. Three habits of
scikit-learn need care, because the guarantee covers only what happens inside `fit`:

| habit                                   | effect on privacy                                                          |
|-----------------------------------------|----------------------------------------------------------------------------|
| a `StandardScaler` or the like before   | reads private records outside the accounting: leave it out, because `fit`  |
|                                         | standardises by itself and pays for it                                     |
| `cross_val_score`, `GridSearchCV`       | fit many times, and the cost of all fits adds up; `ledger=` counts and     |
|                                         | limits it. Scores on held-out records are not private at all               |
| `random_state`                          | does not exist: whoever knows the seed can subtract the noise. Noise comes |
|                                         | from the operating system, unless tests give `insecure_seed`               |

Column names of a data frame name the coefficients, and its bool columns are indicators: the schema is public.
"""

import abc
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from tacit.posterior.posterior import Posterior
from tacit.privacy.events import Adjacency
from tacit.study.charging import BudgetEpsilon, Place
from tacit.study.front import fit
from tacit.study.policy import Policy
from tacit.tables.standardising import PRIOR_DEVIATION


class _PrivateRegression(BaseEstimator, abc.ABC):
    """The common part of the estimators. Attributes that end in _ are set by `fit`."""

    epsilon: float
    delta: float
    bounds: Any
    indicators: Any
    prior_deviation: float
    method: str | None
    policy: Policy | None
    slots: int | None
    steps: int | None
    clip: float | None
    adjacency: Adjacency
    ledger: Place | None
    budget_epsilon: BudgetEpsilon | None
    budget_delta: float | None
    allow_large_delta: bool
    insecure_seed: int | None

    posterior_: Posterior
    n_features_in_: int
    feature_names_in_: np.ndarray
    coef_: np.ndarray
    intercept_: Any

    @property
    def epsilon_(self) -> float:
        """The ε that the fit spent, at most `epsilon`."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.epsilon

    @property
    def statement_(self) -> dict[str, Any]:
        """The guarantee of the fit: its unit, its numbers and its assumptions."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.statement

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the interval that holds the mean response at each row with probability `level`.

        The mean response is the expected value, the rate or, for two classes, the probability of the second. A single
        new outcome varies more.
        """
        rows = self._rows(X)
        return self.posterior_.predict_interval(rows, level)

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _fit(self, link: str, X: np.ndarray, y: np.ndarray, indicators: list[int], **options: Any) -> None:
        """Fit validated arrays. `feature_names_in_` is then that of this fit, or missing."""
        names = getattr(self, "feature_names_in_", None)
        self.posterior_ = fit(
            link,
            (X, y),
            self.epsilon,
            self.delta,
            bounds=self.bounds,
            indicators=[*self.indicators, *indicators],
            names=names,
            prior_deviation=self.prior_deviation,
            method=self.method,
            policy=self.policy,
            slots=self.slots,
            steps=self.steps,
            clip=self.clip,
            adjacency=self.adjacency,
            ledger=self.ledger,
            budget_epsilon=self.budget_epsilon,
            budget_delta=self.budget_delta,
            allow_large_delta=self.allow_large_delta,
            insecure_seed=self.insecure_seed,
            **options,
        )


class PrivateLogisticRegression(ClassifierMixin, _PrivateRegression):
    """A private posterior over the coefficients of a logistic regression; of a softmax with three or more classes.

    Parameters
    ----------
    epsilon, delta : the guarantee of one fit; epsilon may be infinite, for no privacy.
    bounds : public limits of the features, (low, high), each one number or one for each column, or a dict of such pairs
        by column name, which may leave columns out. Without bounds, part of the budget pays for ranges.
    indicators : columns, by name or place, that are 0 or 1; bool columns are found by themselves.
    classes : the public list of labels. None reads them from y, which reveals a label that only one record has; the
        statement then says so. Give them for private records.
    prior_deviation : of the coefficients of standardised features.
    method : "natural", "vi", "ep", "sep" or "sgld", as for `tacit.fit`.
    policy : chooses all settings that are not given (`tacit.policy`); the default one if None.
    slots : the public number of places for records or persons; None takes their number, which is then public.
    steps, clip : settings of the solver; None leaves them to the rule of `tacit.fit`.
    adjacency : "add-remove" or "replace-one": how two neighbouring data sets differ.
    ledger, budget_epsilon, budget_delta : path of a ledger that every fit charges before it reads records, and the
        budget of a new ledger, as for `tacit.fit`. Without one, fits of the same records are not counted.
    allow_large_delta : whether delta may be 1 / records or more, which the statement then says.
    insecure_seed : None takes noise from the operating system. A number makes the fit repeatable and voids the
        guarantee against whoever knows it, so it is not called random_state.

    Attributes
    ----------
    posterior_ : the posterior (`tacit.Posterior`). epsilon_ : the ε spent. statement_ : the guarantee, as a dict.
    classes_ : the labels, sorted.
    coef_, intercept_ : posterior means. Two classes have one row, for the second; more classes have a row each, with
        the first, the reference, 0.
    n_features_in_, feature_names_in_ : of the features; names only if all are strings.

    A scaler before this in a pipeline, a search over its parameters and a cross-validation all read private records
    outside this guarantee, or spend ε again: see `tacit.estimators`.

    >>> X = np.linspace(-1, 1, 400)[:, None]
    >>> y = np.where(X[:, 0] > 0.1, "yes", "no")
    >>> estimator = PrivateLogisticRegression(epsilon=8, bounds=(-1, 1), insecure_seed=1).fit(X, y)
    >>> estimator.predict([[-0.9], [0.9]]).tolist(), estimator.epsilon_ <= 8
    (['no', 'yes'], True)
    """

    classes_: np.ndarray

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        indicators: Any = (),
        classes: Any = None,
        prior_deviation: float = PRIOR_DEVIATION,
        method: str | None = None,
        policy: Policy | None = None,
        slots: int | None = None,
        steps: int | None = None,
        clip: float | None = None,
        adjacency: Adjacency = "add-remove",
        ledger: Place | None = None,
        budget_epsilon: BudgetEpsilon | None = None,
        budget_delta: float | None = None,
        allow_large_delta: bool = False,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.indicators = indicators
        self.classes = classes
        self.prior_deviation = prior_deviation
        self.method: str | None = method
        self.policy = policy
        self.slots = slots
        self.steps = steps
        self.clip = clip
        self.adjacency: Adjacency = adjacency
        self.ledger = ledger
        self.budget_epsilon: BudgetEpsilon | None = budget_epsilon
        self.budget_delta = budget_delta
        self.allow_large_delta = allow_large_delta
        self.insecure_seed = insecure_seed

    def fit(self, X: Any, y: Any, groups: Any = None, most_records: int | None = None) -> Self:
        """Fit, and spend up to `epsilon`.

        groups, an id for each record, makes all records of one id the unit of privacy; the first `most_records` of each
        are used.
        """
        indicators = _bool_columns(X)
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError(
                f"the labels have {len(self.classes_)} class; expected at least 2. If some may be absent from the "
                "records, give classes=, the public list of all labels"
            )
        if not np.all(np.isin(y, self.classes_)):
            raise ValueError("y has labels that are not among classes; expected only labels of the public list")
        codes, labels = np.searchsorted(self.classes_, y), self.classes_.tolist()
        link = "logistic" if len(labels) == 2 else "softmax"
        read = ("The classes were READ FROM THE RECORDS: a class that only one record has is revealed. Give classes=.",)
        notes = read if self.classes is None else ()
        self._fit(link, X, codes, indicators, classes=labels, groups=groups, most_records=most_records, notes=notes)
        rows = self.posterior_.coefficients.mean.reshape(len(labels) - 1, -1)
        if len(labels) > 2:
            rows = np.concatenate([np.zeros_like(rows[:1]), rows])
        self.intercept_, self.coef_ = rows[:, 0], rows[:, 1:]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class at each row, averaged over the posterior; columns as in `classes_`."""
        rows = self._rows(X)
        found = self.posterior_.predict(rows)
        return np.column_stack([1 - found, found]) if found.ndim == 1 else found

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class at each row."""
        places = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[places]


class _PrivateRegressor(RegressorMixin, _PrivateRegression):
    """The common part of the regressors: a numeric target, with or without public bounds."""

    link: Literal["linear", "poisson"]

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        target_bounds: tuple[float, float] | None = None,
        indicators: Any = (),
        prior_deviation: float = PRIOR_DEVIATION,
        method: str | None = None,
        policy: Policy | None = None,
        slots: int | None = None,
        steps: int | None = None,
        clip: float | None = None,
        adjacency: Adjacency = "add-remove",
        ledger: Place | None = None,
        budget_epsilon: BudgetEpsilon | None = None,
        budget_delta: float | None = None,
        allow_large_delta: bool = False,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.indicators = indicators
        self.prior_deviation = prior_deviation
        self.method: str | None = method
        self.policy = policy
        self.slots = slots
        self.steps = steps
        self.clip = clip
        self.adjacency: Adjacency = adjacency
        self.ledger = ledger
        self.budget_epsilon: BudgetEpsilon | None = budget_epsilon
        self.budget_delta = budget_delta
        self.allow_large_delta = allow_large_delta
        self.insecure_seed = insecure_seed

    def fit(self, X: Any, y: Any, groups: Any = None, most_records: int | None = None) -> Self:
        """Fit, and spend up to `epsilon`.

        groups, an id for each record, makes all records of one id the unit of privacy; the first `most_records` of each
        are used.
        """
        indicators = _bool_columns(X)
        X, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        self._fit(
            self.link,
            X,
            y,
            indicators,
            target_bounds=self.target_bounds,
            groups=groups,
            most_records=most_records,
        )
        mean = self.posterior_.coefficients.mean
        self.intercept_, self.coef_ = float(mean[0]), mean[1:]
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target at each row; with `return_std` also the standard deviation of one new outcome there.

        The standard deviation includes the posterior's and that of outcomes around their mean.
        """
        rows = self._rows(X)
        found = self.posterior_.predict(rows)
        if not return_std:
            return found
        _, sd = self.posterior_.linear_predictor(rows)
        return found, self._sd(found, sd)

    @abc.abstractmethod
    def _sd(self, expected: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """The sd of one new outcome, from its expectation and the sd of the linear predictor."""


class PrivateLinearRegression(_PrivateRegressor):
    """A private posterior over the coefficients of a linear regression, whose noise scale is learnt too.

    Parameters
    ----------
    epsilon, delta : the guarantee of one fit; epsilon may be infinite, for no privacy.
    bounds : public limits of the features, (low, high), each one number or one for each column, or a dict of such pairs
        by column name, which may leave columns out. Without bounds, part of the budget pays for ranges.
    target_bounds : public limits of the target, (low, high), or None.
    indicators : columns, by name or place, that are 0 or 1; bool columns are found by themselves.
    prior_deviation : of the coefficients of standardised features, for a standardised target.
    method : "natural", "vi", "ep", "sep" or "sgld", as for `tacit.fit`.
    policy : chooses all settings that are not given (`tacit.policy`); the default one if None.
    slots : the public number of places for records or persons; None takes their number, which is then public.
    steps, clip : settings of the solver; None leaves them to the rule of `tacit.fit`.
    adjacency : "add-remove" or "replace-one": how two neighbouring data sets differ.
    ledger, budget_epsilon, budget_delta : path of a ledger that every fit charges before it reads records, and the
        budget of a new ledger, as for `tacit.fit`. Without one, fits of the same records are not counted.
    allow_large_delta : whether delta may be 1 / records or more, which the statement then says.
    insecure_seed : None takes noise from the operating system. A number makes the fit repeatable and voids the
        guarantee against whoever knows it, so it is not called random_state.

    Attributes
    ----------
    posterior_ : the posterior (`tacit.Posterior`). epsilon_ : the ε spent. statement_ : the guarantee, as a dict.
    coef_, intercept_ : posterior means, in the units of the data.
    n_features_in_, feature_names_in_ : of the features; names only if all are strings.

    A scaler before this in a pipeline, a search over its parameters and a cross-validation all read private records
    outside this guarantee, or spend ε again: see `tacit.estimators`.

    >>> X = np.linspace(-1, 1, 400)[:, None]
    >>> estimator = PrivateLinearRegression(epsilon=8, bounds=(-1, 1), target_bounds=(-3, 3), insecure_seed=1)
    >>> estimator.fit(X, 2 * X[:, 0]).coef_.round().tolist()
    [2.0]
    """

    link = "linear"

    def _sd(self, expected: np.ndarray, sd: np.ndarray) -> np.ndarray:
        return np.hypot(sd, self.posterior_.noise_scale or 0.0)


class PrivatePoissonRegression(_PrivateRegressor):
    """A private posterior over the coefficients of a Poisson regression of counts, with a logarithmic link.

    Parameters
    ----------
    epsilon, delta : the guarantee of one fit; epsilon may be infinite, for no privacy.
    bounds : public limits of the features, (low, high), each one number or one for each column, or a dict of such pairs
        by column name, which may leave columns out. Without bounds, part of the budget pays for ranges.
    target_bounds : public limits of the counts, (0, high), or None.
    indicators : columns, by name or place, that are 0 or 1; bool columns are found by themselves.
    prior_deviation : of the coefficients of standardised features.
    method : "natural", "vi", "ep", "sep" or "sgld", as for `tacit.fit`.
    policy : chooses all settings that are not given (`tacit.policy`); the default one if None.
    slots : the public number of places for records or persons; None takes their number, which is then public.
    steps, clip : settings of the solver; None leaves them to the rule of `tacit.fit`.
    adjacency : "add-remove" or "replace-one": how two neighbouring data sets differ.
    ledger, budget_epsilon, budget_delta : path of a ledger that every fit charges before it reads records, and the
        budget of a new ledger, as for `tacit.fit`. Without one, fits of the same records are not counted.
    allow_large_delta : whether delta may be 1 / records or more, which the statement then says.
    insecure_seed : None takes noise from the operating system. A number makes the fit repeatable and voids the
        guarantee against whoever knows it, so it is not called random_state.

    Attributes
    ----------
    posterior_ : the posterior (`tacit.Posterior`). epsilon_ : the ε spent. statement_ : the guarantee, as a dict.
    coef_, intercept_ : posterior means, in the units of the data.
    n_features_in_, feature_names_in_ : of the features; names only if all are strings.

    A scaler before this in a pipeline, a search over its parameters and a cross-validation all read private records
    outside this guarantee, or spend ε again: see `tacit.estimators`.

    >>> X = np.linspace(-1, 1, 400)[:, None]
    >>> estimator = PrivatePoissonRegression(epsilon=8, bounds=(-1, 1), target_bounds=(0, 20), insecure_seed=1)
    >>> estimator.fit(X, np.round(np.exp(1 + X[:, 0]))).coef_.round().tolist()
    [1.0]
    """

    link = "poisson"

    def _sd(self, expected: np.ndarray, sd: np.ndarray) -> np.ndarray:
        return np.sqrt(expected + expected**2 * np.expm1(sd**2))  # log-normal rate, Poisson noise on top


def _bool_columns(X: Any) -> list[int]:
    """Positions of the columns of type bool, in a data frame or an array."""
    kinds = getattr(X, "dtypes", None)
    if kinds is None:
        shape = getattr(X, "shape", ())
        kinds = [getattr(X, "dtype", None)] * (shape[1] if len(shape) == 2 else 0)
    return [place for place, kind in enumerate(kinds) if str(kind).lower().startswith("bool")]
