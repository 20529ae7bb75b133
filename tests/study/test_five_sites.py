"""Every kind of model over five sites, against the same model fitted to all records at once."""

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.models import GaussianMixture, from_numpyro

SITES, EACH = 5, 400
RNG = np.random.default_rng(3)
X = RNG.uniform(-1, 1, (SITES * EACH, 2)).astype(np.float32)
Z = X @ np.array([1.2, -0.8], np.float32)
CENTRES = np.array([[-2.0, 0.0], [2.0, 1.0]])
POINTS = (CENTRES[RNG.integers(0, 2, len(X))] + 0.6 * RNG.normal(size=(len(X), 2))).astype(np.float32)


def counts(x: Any, y: Any = None) -> None:
    """A Poisson regression as a statistician writes it."""
    shift = numpyro.sample("shift", dist.Normal(0, 1))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(np.e ** (shift + x @ slopes)), obs=y)


LABELS = np.argmax(np.stack([0 * Z, Z, -Z], 1) + RNG.gumbel(size=(len(X), 3)), axis=1).astype(float)
RATES = RNG.poisson(np.exp(0.4 + Z)).astype(np.float32)
BOUNDS: dict[str, Any] = {"bounds": (-1, 1)}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "softmax": ("softmax", (X, LABELS), BOUNDS | {"classes": (0, 1, 2)}),
    "poisson": ("poisson", (X, RATES), BOUNDS | {"target_bounds": (0, 30)}),
    "mixture": (GaussianMixture(2, 2), POINTS, {}),
    "numpyro": (from_numpyro(counts, (X[:4], RATES[:4])), (X, RATES), {}),
}


def parts(data: Any) -> dict[str, Any]:
    """The records of each of five sites."""

    def own(m: int) -> Any:
        return tuple(leaf[m::SITES] for leaf in data) if isinstance(data, tuple) else data[m::SITES]

    return {f"site-{m}": own(m) for m in range(SITES)}


def gaps(one: Any, other: Any) -> np.ndarray:
    """The differences of means, in standard deviations of the first: posteriors of the same model."""
    found = []
    for name, block in one.blocks.items():
        variances = block.covariance if block.covariance.ndim == 1 else np.diag(block.covariance)
        found.append((other.blocks[name].mean - block.mean) / np.sqrt(variances))
    return np.concatenate(found)


def test_records_that_are_not_one_array_for_each_argument_are_refused_by_their_number() -> None:
    model = CASES["numpyro"][0]
    for records, count in (((X, RATES, RATES), 3), (X, 1)):
        with pytest.raises(ValueError, match=f"the model takes 2 arguments and records have {count}; expected"):
            tacit.fit(model, records, 1.0, 1e-5, insecure_seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_five_sites_learn_what_one_table_with_all_records_does(case: str) -> None:
    model, data, facts = CASES[case]
    more: dict[str, Any] = {} if case == "poisson" else {"rounds": 30}
    pooled = tacit.fit(model, data, np.inf, 1e-5, **facts, insecure_seed=1, **({"steps": 3000} if more else {}))
    exact = tacit.federate(model, parts(data), np.inf, 1e-5, **facts, **more, insecure_seed=1).posterior
    limit = 0.1 if case == "poisson" else 1.0  # steps of stochastic gradients leave some error
    assert np.abs(gaps(pooled, exact)).max() < limit
    found = tacit.federate(model, parts(data), 5.0, 1e-5, **facts, insecure_seed=1)
    assert all(row["spent"] <= 5 for row in found.sites)
    truth = np.concatenate([block.mean for block in pooled.blocks.values()])
    private = np.concatenate([block.mean for block in found.posterior.blocks.values()])
    assert np.corrcoef(truth, private)[0, 1] > 0.95
    assert np.abs(private - truth).max() < 0.5, "of coefficients whose sizes are about 1"
