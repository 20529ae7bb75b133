"""A model's likelihood sees one record, and what could see more is refused before a record is read."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.families import DiagonalGaussian, register
from tacit.models import (
    GaussianClusters,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
    SoftmaxRegression,
    from_numpyro,
)
from tacit.study.one_record import check_one_record, shapes_of_one


@jax.custom_batching.custom_vmap
def peek(x: Any) -> Any:
    return x


@peek.def_vmap
def _(size: int, is_batched: Any, x: Any) -> Any:
    del size, is_batched
    return jnp.broadcast_to(jnp.where(jnp.any(x > 50), 1.0, -1.0), x.shape), True


def called(x: Any) -> Any:
    return jax.pure_callback(lambda at: at, jax.ShapeDtypeStruct(x.shape, x.dtype), jax.lax.stop_gradient(x))


def printed(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def slow(x: Any) -> Any:
    return jax.lax.while_loop(lambda at: jnp.sum(at) > 1, lambda at: at / 2, x)


@jax.custom_vjp
def backwards(x: Any) -> Any:
    return x


backwards.defvjp(lambda x: (x, x), lambda kept, slope: (slope + 0 * called(kept),))


def inside(x: Any) -> Any:
    """Behind a conditional, in a loop, in a compiled function."""
    step = jax.jit(lambda at: jax.lax.cond(at[0] > 0, called, lambda at: at, at))
    return jax.lax.fori_loop(0, 3, lambda _, at: step(at), x)


@register()
@dataclass(frozen=True)
class Peeking:
    prior: Any

    def log_likelihood(self, theta: Any, record: Any) -> Any:
        return -0.5 * jnp.sum((theta - peek(record)) ** 2)


class Through:
    """A normal model of a function of the record."""

    prior = DiagonalGaussian.standard(1)

    def __init__(self, function: Any) -> None:
        self.function = function

    def log_likelihood(self, theta: Any, record: Any) -> Any:
        return -0.5 * jnp.sum((theta - self.function(theta * 0 + record)) ** 2)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (peek, "which can see all records at once"),
        (called, "which runs code outside of the program"),
        (printed, "which acts on what it sees"),
        (backwards, "which runs code outside of the program"),
        (inside, "which runs code outside of the program"),
        (slow, "whose time depends on the record"),
    ],
)
def test_what_sees_more_than_one_record_or_acts_on_it_is_refused(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_one_record(Through(function), jax.ShapeDtypeStruct((1,), jnp.float32))


def test_a_fit_refuses_it_before_anything_is_charged_or_read(tmp_path: Any) -> None:
    ledger, records = tmp_path / "ledger.sqlite", np.zeros((400, 1), np.float32)
    more = {"ledger": ledger, "budget_epsilon": 1.0}
    with pytest.raises(ValueError, match="the model's log_likelihood uses custom_vmap_call"):
        tacit.fit(Peeking(DiagonalGaussian.standard(1)), records, 1.0, 1e-5, **more)
    assert not ledger.exists()


def test_what_is_refused_would_break_the_sensitivity() -> None:
    """Why it is refused: without the check, one record moves a sum by many clips."""
    from tacit.privacy.clipping import per_record
    from tacit.privacy.mechanism import Access, SubsampledGaussian

    records = np.zeros((400, 1), np.float32)
    changed = records.copy()
    changed[7] = 60
    sums = [
        Access.of(found, SubsampledGaussian(1.0, 0.1), slots=400)
        .sum(tacit.insecure_key(1), per_record(peek))
        .value.item()
        for found in (records, changed)
    ]
    assert abs(sums[1] - sums[0]) > 300


def negative_binomial(x: Any, y: Any) -> None:
    slope, shape = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("shape", dist.Gamma(1.0, 1.0))
    with numpyro.plate("n", len(x)):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(slope * x), shape), obs=y)


def mixture(x: Any, y: Any) -> None:
    slope, shares = numpyro.sample("slope", dist.Normal(0, 1)), numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("n", len(x)):
        parts = dist.StudentT(3.0, slope * jnp.arange(3.0) + x[:, None], 1.0)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(shares), parts), obs=y)


ROW = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0.0, 1.0], np.float32)
SOUND = {
    "logistic": (LogisticRegression(DiagonalGaussian.standard(3)), ROW),
    "probit": (ProbitRegression(DiagonalGaussian.standard(3)), ROW),
    "poisson": (PoissonRegression(DiagonalGaussian.standard(3)), ROW),
    "softmax": (SoftmaxRegression(DiagonalGaussian.standard(6), 3), ROW),
    "clusters": (GaussianClusters(2, 3), ROW[0]),
    "negative binomial": (
        from_numpyro(negative_binomial, (ROW[0][:, 0], np.arange(2))),
        (ROW[0][:, 0], np.arange(2)),
    ),
    "mixture": (from_numpyro(mixture, (ROW[0][:, 0], ROW[1])), (ROW[0][:, 0], ROW[1])),
}


@pytest.mark.parametrize("name", SOUND)
def test_ordinary_models_pass(name: str) -> None:
    model, records = SOUND[name]
    check_one_record(model, shapes_of_one(records))
