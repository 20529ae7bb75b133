"""Attacks on a released posterior."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.eavesdropping import eavesdropped
from tacit.audit.subjects import made_up, slopes
from tacit.privacy import accounting
from tacit.privacy.events import Adjacency, Event
from tacit.privacy.randomness import insecure_key
from tacit.study.plan import Plan
from tacit.study.setup import Setup
from tacit.study.sites import Site


@dataclass(frozen=True)
class Attack:
    """An attacker's scores in two worlds, `without` and `within`, one for each run.

    event: the release, `None` without privacy. adjacency: how the two worlds differ.
    """

    without: np.ndarray
    within: np.ndarray
    event: Event | None
    adjacency: Adjacency

    def hits(self, false_positive_rate: float) -> float:
        """The true-positive rate at this false-positive rate."""
        return float(np.mean(self.within > np.quantile(self.without, 1 - false_positive_rate, method="higher")))

    @property
    def area(self) -> float:
        """The area under the ROC curve: how often the second world scores above the first. ½ is guessing."""
        places = np.searchsorted(np.sort(self.without), self.within)
        ends = np.searchsorted(np.sort(self.without), self.within, side="right")
        return float(np.mean(places + ends) / 2 / len(self.without))

    def limit(self, false_positive_rate: float) -> float:
        """The highest true-positive rate that the guarantee allows any attacker."""
        if self.event is None:
            return 1.0
        return accounting.true_positive_rate(self.event, false_positive_rate, self.adjacency)


def membership(
    epsilon: float, delta: float = 1e-5, *, runs: int = 2000, records: int = 60, columns: int = 10, seed: int
) -> Attack:
    """Was this person in the data? Scored by how well the released posterior predicts that person.

    The person is unusual, with an unexpected label. All others are drawn anew for every run: the attacker knows the
    population but not the data.
    """
    return _attack(
        epsilon, delta, runs, records, columns, seed, lambda world: (world == 1, 1.0), _surprise, "add-remove"
    )


def attribute(
    epsilon: float, delta: float = 1e-5, *, runs: int = 2000, records: int = 60, columns: int = 10, seed: int
) -> Attack:
    """Which of two values does this person's first column have? Scored by which fits the released posterior better.

    The person is in the data in both worlds, and the attacker knows the rest of the record.
    """
    return _attack(
        epsilon, delta, runs, records, columns, seed, lambda world: (True, 2.0 * world - 1), _fit, "replace-one"
    )


def _surprise(predict: Callable[[Array], Array], person: Array) -> Array:
    return predict(person)


def _fit(predict: Callable[[Array], Array], person: Array) -> Array:
    return predict(person.at[0].set(1.0)) - predict(person.at[0].set(-1.0))


def _attack(
    epsilon: float,
    delta: float,
    runs: int,
    records: int,
    columns: int,
    seed: int,
    world: Callable[[int], tuple[Any, Any]],
    score: Callable[[Callable[[Array], Array], Array], Array],
    adjacency: Adjacency,
) -> Attack:
    """Fit many times in two worlds. `world(0 or 1)` gives the person's presence and first column."""
    if runs < 2:
        raise ValueError(f"runs={runs}; expected at least 2")
    plan = Plan("logistic", scaling="bounds", adjacency=adjacency)
    setup = Setup(plan, [Site("made-up", made_up(records, columns), epsilon, delta)])
    blank = setup.records(0)
    weights = jnp.asarray(slopes(columns))
    person = jnp.sign(weights)  # the model is surest of a 1 here; the label is 0

    @jax.jit
    def scores(keys: Array, is_there: Array, secret: Array) -> Array:
        def one(key: Array) -> Array:
            people, labels, noise = jax.random.split(key, 3)
            x = jax.random.uniform(people, (records, columns), minval=-0.5, maxval=0.5)
            y = jax.random.bernoulli(labels, jax.nn.sigmoid(x @ weights)).astype(x.dtype)
            x, y = x.at[0].set(person.at[0].set(secret)), y.at[0].set(0)
            drawn = (x[:, None], y[:, None]), blank.records[1]
            given = replace(blank, records=drawn, present=blank.present.at[0, 0].set(is_there))
            mean, covariance = eavesdropped(setup.reading([given]), noise, canaries=0)[0].found

            def predict(record: Array) -> Array:
                """log p(label 0 | record), the posterior averaged by MacKay's approximation."""
                whole = jnp.concatenate([jnp.ones(1), record])
                return jax.nn.log_sigmoid(-(whole @ mean) / jnp.sqrt(1 + jnp.pi / 8 * (whole @ covariance @ whole)))

            return score(predict, person)

        return jax.vmap(one)(keys)

    found = []
    for number in (0, 1):
        keys = jax.random.split(jax.random.fold_in(insecure_key(seed), number), runs // 2)
        found.append(np.asarray(scores(keys, *(jnp.asarray(value) for value in world(number)))))
    return Attack(found[0], found[1], setup.cost(0) if math.isfinite(epsilon) else None, adjacency)
