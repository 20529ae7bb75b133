"""Audits: attack a claim of privacy, and say what ε the attack proves.

A guarantee is an upper bound on what anybody can tell; an attack that tells more refutes it, and any attack bounds ε
from below. Here the attacker runs the real program many times, with and without one unit, the **canary**. He knows all
other units, sees every release on the way (the trace), and scores each by the logarithm of how much likelier it is with
the canary, if the mechanism is what it claims to be. What he then tells apart is counted, and

    P(says "in" | in) ≤ e^ε P(says "in" | out) + δ, and the same of "out"

is solved for ε with exact (Clopper-Pearson) bounds on both probabilities: no assumption, however the program is
broken. Assuming that all that is between the two is a Gaussian shift of μ standard deviations, the same counts say
more.

Where a program can be run only once, many canaries are in or out by the toss of a coin, and their scores are guessed
from (Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2024 for the Gaussian shift).

Audits run on made-up records with seeded noise. They refute claims and prove none.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import optimize, special, stats

from tacit.privacy import accounting
from tacit.privacy.clipping import Contributions, Dense, Limit, Linear, Outer, clip_weights
from tacit.privacy.events import Event, Gaussian, check_number
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.randomness import insecure_key, is_secure, witness
from tacit.privacy.released import Released, price

Tree = Any
Assumption = Literal["nothing", "gaussian"]
CONFIDENCE = 0.999
SELECTION = 0.2  # of the runs choose the threshold (and a direction), and are not counted
HUGEST = 1e30  # of a score
HUGE = 1e6  # times what a canary of the worst kind contributes before it is clipped
THRESHOLDS = 400  # that are tried on the runs for selection
MOST_DEVIATIONS = 10.0  # of a value that is scored
DIRECTIONS = 3  # a seed, for where canaries point: they are public, and part of no noise
_NORMAL = NormalDist()


# --- The attacker's access ---------------------------------------------------------------------------------------


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["records", "present", "level"],
    meta_fields=["mechanism", "unit", "canaries", "is_worst"],
)
@dataclass(frozen=True)
class Canaried(Access):
    """Records of which the first `canaries` slots are canaries, read by the same code as any; releases are scored.

    With `is_worst` a canary contributes a huge vector in one direction, whatever its record, so that its clipped
    contribution is as large as it can be and always the same. Otherwise its record speaks for itself.
    Make it with `Canaried.on`; `records` are then pairs of a record and its canary's number, 0 for none.
    """

    canaries: int = 1
    is_worst: bool = True

    @classmethod
    def on(cls, access: Access, canaries: int = 1, is_worst: bool = True) -> "Canaried":
        """An access whose first slots are canaries."""
        if not 1 <= canaries <= access.slots:
            raise ValueError(f"canaries={canaries}; expected from 1 to the number of slots, {access.slots}")
        places = jnp.arange(1, access.slots + 1, dtype=jnp.int32)
        numbers = jnp.where(access.present & (places <= canaries)[:, None], places[:, None], 0)
        return cls(
            (access.records, numbers), access.present, access.mechanism, access.unit, access.level, canaries, is_worst
        )

    def _own(self) -> tuple[Tree, Array]:
        """The canaries' records, and which of them exist."""
        own = jax.tree.map(lambda leaf: leaf[: self.canaries], self.records)
        return own, own[1] > 0

    def having(self, included: Any) -> "Canaried":
        """The same with those canaries present for which `included` (one for each) is true."""
        inside = jnp.asarray(included, bool).reshape(self.canaries, 1)
        return replace(self, present=self.present.at[: self.canaries].set(inside & self._own()[1]))

    def map(self, function: Callable[[Tree], Tree]) -> "Canaried":
        return replace(self, records=(jax.vmap(jax.vmap(function))(self.records[0]), self.records[1]))

    def where(self, predicate: Callable[[Tree], Array]) -> "Canaried":
        records, numbers = self.records
        kept = jax.vmap(jax.vmap(predicate))(records)
        return replace(self, records=(records, jnp.where(kept, numbers, 0)), present=self.present & kept)

    def whole(self) -> "Canaried":
        records, numbers = self.records
        # A canary's records are its records, whether it is there or not.
        all = replace(self, records=records, present=self.present | (numbers > 0))
        present = jnp.any(self.present, axis=1, keepdims=True)
        marks = jnp.max(numbers, axis=1, keepdims=True)
        return replace(self, records=(Access.whole(all).records, marks), present=present)

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        """The release, with the canaries' scores in its trace."""

        def marked(batch: Tree) -> Contributions:
            records, numbers = batch
            found = contribution(records)
            return _point(found, numbers, self.canaries) if self.is_worst else found

        release = super()._release(key, marked, limit)
        if not isinstance(self.mechanism, SubsampledGaussian):  # there is nothing to tell from noise
            return release
        level = self._level()
        clip, noise, rate = (
            jnp.asarray(values, jnp.result_type(float))[level]
            for values in (self.mechanism.clips, self.mechanism.noise_multipliers, self.mechanism.sampling_rates)
        )

        def clipped(records: Tree, present: Array, kept: Array) -> tuple[Any, Array]:
            batch = self._units(marked, records, present, limit)
            return batch, jnp.where(kept, clip_weights(batch.norms(), clip), 0)

        # What all others contribute is known to the attacker, and so is who of them was sampled.
        records, present, chosen = self._sampled(jax.random.split(key)[0])
        batch, weights = clipped(records, present & chosen[:, None], chosen & (records[1][:, 0] == 0))
        known = batch.weighted_sum(weights)
        rest = jax.tree.map(lambda total, others: total * rate - others, release.value, known)
        batch, weights = clipped(*self._own(), jnp.ones(self.canaries, bool))
        # ⟨rest, v_k⟩ for each canary's clipped contribution v_k: the derivative of ⟨rest, Σ w_k v_k⟩.
        (inner,) = jax.vjp(lambda w: batch.weighted_sum(w * weights), jnp.ones_like(weights))[1](rest)
        shift = (inner - jnp.square(batch.norms() * weights) / 2) / jnp.square(noise * clip)
        shift = jnp.where(weights > 0, shift, 0)  # one that is not finite contributes nothing
        return replace(release, trace=(jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + shift),))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["records", "present", "level", "within", "is_within"],
    meta_fields=["mechanism", "unit"],
)
@dataclass(frozen=True)
class Paired(Access):
    """The records of two files as one access, of which a run reads one; releases are scored.

    `records` are those of the file without a row, `within` has those of the file with it: in the same form, but it may
    be in other slots, or read otherwise, for the attacker takes nothing for granted. He knows both files. At every sum
    he knows what it would be in either world, and scores the noise by which it is the one or the other:

        (⟨d, z⟩ ± ‖d‖²/2) / σ²,   d the difference of the exact sums, z the noise, + in the world with the row

    No score of Gaussian noise tells more. Nothing may be sampled: what a sample hides would be known to him.
    """

    within: Access = None  # type: ignore[assignment]  # given always; fields before it have defaults
    is_within: Any = False

    canaries = 1

    @classmethod
    def of_both(cls, without: Access, within: Access) -> "Paired":
        """From accesses of one form."""
        form = [jax.tree.map(jnp.shape, access) for access in (without, within)]
        if form[0] != form[1]:
            raise ValueError("two files whose records have other forms; give both the same number of slots")
        plain = (without.records, without.present, without.mechanism, without.unit, without.level)
        return cls(*plain, within, jnp.asarray(False))

    def having(self, included: Any) -> "Paired":
        """The file with the row, if `included` (one for one canary) is true."""
        return replace(self, is_within=jnp.asarray(included, bool).reshape(()))

    def map(self, function: Callable[[Tree], Tree]) -> "Paired":
        return replace(self, records=jax.vmap(jax.vmap(function))(self.records), within=self.within.map(function))

    def where(self, predicate: Callable[[Tree], Array]) -> "Paired":
        kept = self.present & jax.vmap(jax.vmap(predicate))(self.records)
        return replace(self, present=kept, within=self.within.where(predicate))

    def whole(self) -> "Paired":
        raise ValueError("a row is no unit where whole sites are; audit a study with unit='record'")

    def _release(self, key: Array, contribution: Callable[[Tree], Contributions], limit: Limit | None) -> Released[Any]:
        mechanism = self.mechanism
        if any(rate < 1 for rate in mechanism.sampling_rates):
            raise ValueError("a sampled sum has no score for a row; use another canary")
        without = Access(self.records, self.present, mechanism, self.unit, self.level)
        within = replace(self.within, mechanism=mechanism, level=self.level)
        level, noise_key, event, out, coordinates, units = without._added_up(key, contribution, limit)
        # A clone is another object: both worlds read by one key, of which one is released.
        inside = within._added_up(jax.random.clone(key), contribution, limit)[3]
        sums = jax.tree.map(partial(jnp.where, self.is_within), inside, out)
        total = mechanism.release(noise_key, sums, level, coordinates, units)
        release = Released(total, event, not is_secure(key), witness(noise_key))
        if not isinstance(mechanism, SubsampledGaussian):  # there is nothing to tell from noise
            return release
        lattice = mechanism._lattice(coordinates, units)
        unit, spacing = float(1 << lattice.limb_bits), lattice.spacing(level)

        def exact(high: Array, low: Array) -> Array:
            return (high.astype(spacing.dtype) * unit + low.astype(spacing.dtype)) * spacing

        apart = jax.tree.map(  # as integers first: of large sums, a float would lose it
            lambda a, b, c, d: exact(a - b, (c - d).astype(jnp.int32)), inside[0], out[0], inside[1], out[1]
        )
        noise = jax.tree.map(lambda noised, *halves: noised - exact(*halves), total, *sums)
        dots = [jnp.sum(jnp.stack([d * z, d * d]).reshape(2, -1), axis=1) for d, z in _pairs(apart, noise)]
        inner, square = sum(dots, jnp.zeros(2, spacing.dtype))
        score = (inner + jnp.where(self.is_within, 0.5, -0.5) * square) / mechanism.deviation**2
        return replace(release, trace=(score[None],))


def _pairs(first: Tree, second: Tree) -> list[tuple[Array, Array]]:
    return list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def _point(batch: Any, numbers: Array, canaries: int) -> Any:
    """The batch, with each canary's contribution huge and in its own direction."""
    is_canary = numbers > 0

    def direction(width: int) -> Array:
        """The first coordinate for a canary alone; for each of many, one at random."""
        if canaries == 1:
            return jnp.zeros((1, width)).at[0, 0].set(1)
        drawn = jax.random.normal(insecure_key(DIRECTIONS), (canaries, width))
        return drawn[jnp.maximum(numbers - 1, 0)]

    def chosen(canary: Array, leaf: Array) -> Array:
        return jnp.where(is_canary.reshape(-1, *(1,) * (leaf.ndim - 1)), canary.astype(leaf.dtype), leaf)

    def marked(tree: Tree, canary: Callable[[Array], Array]) -> Tree:
        """Of a tree of leaves, the first has the canary and the others nothing of it."""
        leaves, treedef = jax.tree.flatten(tree)
        made = [chosen(canary(leaf) if j == 0 else jnp.zeros_like(leaf), leaf) for j, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, made)

    if isinstance(batch, Dense):
        return Dense(marked(batch.tree, lambda leaf: HUGE * direction(leaf[0].size).reshape(-1, *leaf.shape[1:])))
    coefficients = marked(batch.coefficients, lambda leaf: HUGE * jnp.ones_like(leaf))
    features = marked(batch.features, lambda leaf: direction(leaf.shape[1]))
    return (Linear if isinstance(batch, Linear) else Outer)(coefficients, features)


# --- What scores prove -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε, and the event that shows it: scores from a threshold on (`is_above`), or those below it.

    The rates are how often the event was counted in the world where it is rarer, and in the other one.
    """

    epsilon: float
    assumption: Assumption
    confidence: float
    threshold: float
    is_above: bool
    false_positive_rate: float
    true_positive_rate: float


def _at_most(count: Any, trials: int, failure: float) -> Any:
    """An upper confidence bound on a probability (Clopper & Pearson 1934)."""
    return np.where(count < trials, stats.beta.ppf(1 - failure, np.asarray(count) + 1, trials - np.asarray(count)), 1.0)


def _shown(
    false: Any, wrong_trials: int, missed: Any, right_trials: int, delta: float, failure: float, assumption: Assumption
) -> Any:
    """ε, or μ where a Gaussian is assumed, from counts of false alarms and of misses: at least this, if above 0."""
    alarm = _at_most(false, wrong_trials, failure / 2)
    miss = _at_most(missed, right_trials, failure / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        if assumption == "gaussian":
            found = stats.norm.isf(alarm) - stats.norm.ppf(miss)
        else:
            found = np.log(np.maximum(1 - miss - delta, 0)) - np.log(alarm)
    return np.nan_to_num(found, nan=-np.inf, neginf=-np.inf)


def bound(
    without: Any,
    within: Any,
    delta: float,
    confidence: float = CONFIDENCE,
    assumption: Assumption = "nothing",
) -> Bound:
    """The ε that scores of runs without and with the canary prove, with this confidence.

    The first fifth of the runs chooses the event, the others are counted: the choice costs nothing.
    Scores may be anything; those that are not numbers count as high.

    >>> scores = np.random.default_rng(1).normal(size=(2, 20000)) + np.array([[0], [1]])
    >>> bound(*scores, delta=1e-5).epsilon, bound(*scores, delta=1e-5, assumption="gaussian").epsilon
    (1.9..., 4.0...)
    """
    accounting.check_delta(delta)
    check_confidence(confidence)
    scores = [
        np.clip(np.nan_to_num(np.asarray(part, float).ravel(), nan=HUGEST), -HUGEST, HUGEST)
        for part in (without, within)
    ]
    if min(map(len, scores)) < 10:
        raise ValueError(f"{min(map(len, scores))} runs; expected at least 10 without and 10 with the canary")
    parts = [np.split(part, [round(SELECTION * len(part))]) for part in scores]
    chosen, counted = ([np.sort(part[place]) for part in parts] for place in (0, 1))

    def shown(worlds: list[np.ndarray], thresholds: Any, is_above: bool, is_within: bool) -> Any:
        """ε (or μ) by an event that is likelier in one of the worlds."""
        below = [np.searchsorted(part, thresholds) for part in worlds]
        happened = [len(part) - count if is_above else count for part, count in zip(worlds, below, strict=True)]
        rarer, likelier = (0, 1) if is_within else (1, 0)
        sizes = len(worlds[rarer]), len(worlds[likelier])
        missed = sizes[1] - happened[likelier]
        return _shown(happened[rarer], sizes[0], missed, sizes[1], delta, 1 - confidence, assumption)

    tried = np.unique(np.quantile(np.concatenate(chosen), np.linspace(0, 1, THRESHOLDS)))
    found = {side: shown(chosen, tried, *side) for side in itertools.product((True, False), repeat=2)}
    side = max(found, key=lambda side: found[side].max())
    threshold = float(tried[np.argmax(found[side])])
    best = max(0.0, float(shown(counted, threshold, *side)))
    is_above, is_within = side
    rates = [float(np.mean((part >= threshold) == is_above)) for part in counted]
    return Bound(
        _of_shift(best, delta) if assumption == "gaussian" else best,
        assumption,
        confidence,
        threshold,
        is_above,
        *(rates if is_within else rates[::-1]),
    )


def check_confidence(confidence: float) -> None:
    """Refuse a confidence outside (0, 1)."""
    check_number("confidence", confidence, "a number above 0 and below 1", 0 < confidence < 1)


def _of_shift(mu: float, delta: float) -> float:
    """ε at δ of a Gaussian shift by μ standard deviations."""
    if mu <= 0:
        return 0.0
    return accounting.epsilon(Gaussian(1 / mu), delta) if mu < 1e3 else math.inf


# --- Many runs ---------------------------------------------------------------------------------------------------

Program = Callable[[Array, Any], Released[Any]]
Observer = Callable[[int, int], None]  # runs done, of how many


@dataclass(frozen=True)
class Audit:
    """What many runs of a program show: bounds from its trace and from its last value, beside its claim.

    without, within: scores on the trace, one for each run. `bounds` by what they look at and what they assume; all of
    them hold together with the stated confidence.
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
        """The largest bound among those that test the claim and nothing beside it.

        If all that a program claims to do is to add Gaussian noise, then what it claims *is* a Gaussian shift, and a
        bound that assumes one is a test of the claim too. Of samples and the like it is not.
        """
        found = accounting.parts(self.event, "add-remove")
        is_gaussian = found is not None and all(part.noise == "gaussian" and part.rate is None for part in found)
        tests = [b for b in self.bounds.values() if b.assumption == "nothing" or is_gaussian]
        return max(tests, key=lambda b: b.epsilon)

    @property
    def is_refuted(self) -> bool:
        """Whether the claim is refuted, with the stated confidence."""
        return self.best.epsilon > self.claimed_epsilon


def audit(
    program: Program,
    access: Canaried | Paired,
    delta: float,
    runs: int,
    *,
    seed: int,
    claimed: Event | None = None,
    confidence: float = CONFIDENCE,
    batch: int = 1000,
    observe: Observer = lambda done, runs: None,
) -> Audit:
    """Run `program(key, access)` many times, half of them without the canary, and bound its ε from below.

    All runs of a batch are one compiled program. claimed: what the program costs, if its receipt does not say so
    itself. Bounds are made from the trace ("trace") and from a function of the program's value and its square
    that the runs for selection choose ("value").
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
def _one_batch(program: Program, keys: Array, access: Canaried | Paired) -> tuple[Array, Array]:
    """(scores, values as vectors) of one run for each key."""

    def one(key: Array) -> tuple[Array, Array]:
        release = program(key, access)
        if not release.trace:
            raise ValueError("the program left no trace; it must read through the access that it is handed")
        leaves = [leaf.ravel().astype(jnp.result_type(float)) for leaf in jax.tree.leaves(release.value)]
        return total_score(release)[0], jnp.concatenate(leaves)

    return jax.vmap(one)(keys)


def total_score(release: Released[Any]) -> Array:
    """Each canary's score over all releases on the way."""
    return sum((jnp.sum(leaf.reshape(-1, leaf.shape[-1]), axis=0) for leaf in release.trace), jnp.zeros(()))


def _value_scores(out: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of values by what tells those of the selection apart best: Fisher's function of them and their squares."""
    finite = [np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) for values in (out, inside)]
    chosen = np.concatenate([values[: round(SELECTION * len(values))] for values in finite])
    centre, spread = chosen.mean(axis=0), chosen.std(axis=0)
    scale = np.where(spread > 1e-6 * np.abs(chosen).max(axis=0), spread, np.inf)  # a constant tells nothing
    plain = [np.clip((values - centre) / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS) for values in finite]
    without, within = (np.concatenate([z, z**2], axis=1) for z in plain)
    first, second = (z[: round(SELECTION * len(z))].astype(float) for z in (without, within))
    shape = np.cov(first, rowvar=False) + np.cov(second, rowvar=False) + 1e-3 * np.eye(first.shape[1])
    direction = np.linalg.solve(shape, second.mean(axis=0) - first.mean(axis=0))
    return without @ direction, within @ direction


# --- One run -----------------------------------------------------------------------------------------------------

GUESSED = (0.01, 0.03, 0.1, 0.3, 1.0)  # shares of the canaries that are guessed; all are tried, and paid for


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are at most, if the program is (ε, δ)-private (Steinke et al., theorem 5.2).

    With δ = 0 the number of correct guesses is at most binomial, each right with probability e^ε / (1 + e^ε).
    """
    chance = special.expit(epsilon)
    tail = float(stats.binom.sf(correct - 1, guesses, chance))
    fewer = np.arange(1, correct + 1)
    steps = stats.binom.sf(correct - fewer - 1, guesses, chance) - tail
    return min(1.0, tail + 2 * canaries * delta * float(np.max(steps / fewer, initial=0.0)))


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float, assumption: Assumption = "nothing"
) -> float:
    """The ε that so many correct guesses about independently included canaries prove.

    >>> round(one_run_epsilon(1000, 100, 90, 1e-5, 0.95), 2)
    1.63
    """
    failure = 1 - confidence
    if assumption == "gaussian":
        return _of_shift(_largest(lambda mu: _refutes_shift(mu, canaries, guesses, correct, failure)), delta)
    return _largest(lambda epsilon: one_run_p_value(canaries, guesses, correct, epsilon, delta) <= failure)


def _largest(is_refuted: Callable[[float], bool]) -> float:
    """The end of the numbers from 0 on that are refuted."""
    if not is_refuted(0.0):
        return 0.0
    high = 1.0
    while is_refuted(high):
        high *= 2
        if high > 1e3:
            return math.inf
    return float(optimize.bisect(lambda x: 0.5 - is_refuted(x), 0.0, high, xtol=1e-7))  # type: ignore[arg-type]


def _refutes_shift(mu: float, canaries: int, guesses: int, correct: int, failure: float) -> bool:
    """Whether so many correct guesses refute a Gaussian shift by μ (Mahloujifar et al., algorithm 3).

    Probabilities of being right and wrong about one canary in the tail, grown from the failure that is allowed; the
    claim is refuted if together they pass what was guessed.
    """
    right, wrong = failure * correct / canaries, failure * (guesses - correct) / canaries
    for place in range(correct - 1, -1, -1):
        least = max(wrong, _NORMAL.cdf(_NORMAL.inv_cdf(right) - mu) if 0 < right < 1 else float(right >= 1))
        if least == wrong:
            break
        right = min(1.0, right + place / (guesses - place) * (least - wrong))
        wrong = least
    return right + wrong > guesses / canaries


def one_run_bound(
    scores: Any, included: Any, delta: float, confidence: float = CONFIDENCE, assumption: Assumption = "nothing"
) -> tuple[float, int, int]:
    """The ε that the scores of many canaries in one run prove, with how many guesses and how many correct.

    Each canary must have been included by a fair coin of its own. The highest scores are guessed to be in and as many
    of the lowest out; several shares are tried, each with its part of what the confidence leaves.
    """
    check_confidence(confidence)
    order = np.argsort(np.nan_to_num(np.asarray(scores, float), nan=np.inf), kind="stable")
    inside = np.asarray(included, bool)[order]
    canaries = len(inside)
    best = (0.0, 0, 0)
    for share in GUESSED:
        half = max(1, round(share * canaries / 2))
        if 2 * half > canaries:
            continue
        correct = int(np.sum(~inside[:half]) + np.sum(inside[canaries - half :]))
        failure = (1 - confidence) / len(GUESSED)
        found = one_run_epsilon(canaries, 2 * half, correct, delta, 1 - failure, assumption)
        best = max(best, (found, 2 * half, correct))
    return best
