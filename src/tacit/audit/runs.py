"""Many runs of a program, with and without the canary."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.bounds import CONFIDENCE, MOST_DEVIATIONS, Assumption, Bound, bound, check_confidence
from tacit.audit.canaries import SELECTION, Canaried, Paired, total_score
from tacit.privacy import accounting, parts
from tacit.privacy.events import Event
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price

AuditedProgram = Callable[[Array, Any], Released[Any]]
RunObserver = Callable[[int, int], None]  # runs done, of how many


@dataclass(frozen=True)
class Audit:
    """Bounds on ε from many runs of a program, from its trace and from its last value, beside its claim.

    without, within: scores of the trace, one for each run. bounds: keyed by what is scored and what is assumed; all
    hold jointly with the stated confidence.
    """

    claimed_epsilon: float
    delta: float
    event: Event
    runs: int
    confidence: float
    without: np.ndarray
    within: np.ndarray
    bounds: dict[tuple[str, Assumption], Bound]

    @property
    def best(self) -> Bound:
        """The largest bound among those that test only the claim.

        If a program claims only to add Gaussian noise, its claim *is* a Gaussian shift, and a bound that assumes one
        tests the claim too. With sampling and the like it does not.
        """
        found = parts.parts(self.event, "add-remove")
        is_gaussian = found is not None and all(part.noise == "gaussian" and part.rate is None for part in found)
        tests = [b for b in self.bounds.values() if b.assumption == "nothing" or is_gaussian]
        return max(tests, key=lambda b: b.epsilon)

    @property
    def is_refuted(self) -> bool:
        """Whether the claim is refuted, with the stated confidence."""
        return self.best.epsilon > self.claimed_epsilon


def audit(
    program: AuditedProgram,
    access: Canaried | Paired,
    delta: float,
    runs: int,
    *,
    seed: int,
    claimed: Event | None = None,
    confidence: float = CONFIDENCE,
    batch: int = 1000,
    observe: RunObserver = lambda done, runs: None,
) -> Audit:
    """Run `program(key, access)` many times, half of them without the canary, and bound its ε from below.

    All runs of a batch are one compiled program. claimed: the program's price, if its receipt does not give it. One
    bound uses the trace ("trace"), and one a function of the program's value and its square that the runs for
    selection choose ("value").
    """
    if runs < 100:
        raise ValueError(f"runs={runs}; expected at least 100")
    if access.canaries != 1:
        raise ValueError(f"canaries={access.canaries}; a claim is about one unit: expected 1, or use one_run_bound")
    check_confidence(confidence)
    key = insecure_key(seed)
    event = price(program, key, access) if claimed is None else claimed
    epsilon = accounting.epsilon(event, delta)
    each = runs // 2
    size = min(batch, each)
    ends = [access.having([False] * access.canaries), access.having([True] * access.canaries)]
    found: list[Any] = []
    for side, given in enumerate(ends):
        parts, done = [], 0
        while done < each:
            parts.append([np.asarray(part) for part in _one_batch(program, _keys(key, side, done, size), given)])
            done += size
            observe(side * each + min(done, each), 2 * each)
        found.append([np.concatenate(part)[:each] for part in zip(*parts, strict=True)])
    (without, out), (within, inside) = found
    scores: dict[str, tuple[Any, Any]] = {"trace": (without, within), "value": _value_scores(out, inside)}
    kinds: list[tuple[str, Assumption]] = [(name, kind) for name in scores for kind in ("nothing", "gaussian")]
    each_confidence = 1 - (1 - confidence) / len(kinds)
    bounds: dict[tuple[str, Assumption], Bound] = {
        (name, kind): bound(*scores[name], delta, each_confidence, kind) for name, kind in kinds
    }
    return Audit(epsilon, delta, event, 2 * each, confidence, without, within, bounds)


@partial(jax.jit, static_argnums=3)
def _keys(key: Array, side: Array | int, done: Array | int, size: int) -> Array:
    return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, side), done), size)


@partial(jax.jit, static_argnums=0)
def _one_batch(program: AuditedProgram, keys: Array, access: Canaried | Paired) -> tuple[Array, Array]:
    """(scores, values as vectors) of one run for each key."""

    def one(key: Array) -> tuple[Array, Array]:
        release = program(key, access)
        if not release.trace:
            raise ValueError("the program left no trace; it must read records through the access it is given")
        leaves = [leaf.ravel().astype(jnp.result_type(float)) for leaf in jax.tree.leaves(release.value)]
        return total_score(release)[0], jnp.concatenate(leaves)

    return jax.vmap(one)(keys)


def _value_scores(out: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of values: Fisher's linear discriminant of the values and their squares, fitted on the selection."""
    finite = [np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) for values in (out, inside)]
    chosen = np.concatenate([values[: round(SELECTION * len(values))] for values in finite])
    centre, spread = chosen.mean(axis=0), chosen.std(axis=0)
    scale = np.where(spread > 1e-6 * np.abs(chosen).max(axis=0), spread, np.inf)  # a constant carries no information
    plain = [np.clip((values - centre) / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS) for values in finite]
    without, within = (np.concatenate([z, z**2], axis=1) for z in plain)
    first, second = (z[: round(SELECTION * len(z))].astype(float) for z in (without, within))
    shape = np.cov(first, rowvar=False) + np.cov(second, rowvar=False) + 1e-3 * np.eye(first.shape[1])
    direction = np.linalg.solve(shape, second.mean(axis=0) - first.mean(axis=0))
    return without @ direction, within @ direction
