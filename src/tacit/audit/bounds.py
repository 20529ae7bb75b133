"""Lower bounds on ε from the scores of an attack."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import optimize, special, stats

from tacit.audit.canaries import HUGEST, NORMAL, SELECTION
from tacit.privacy import accounting
from tacit.privacy.checks import check_delta
from tacit.privacy.events import Gaussian, check_number

Assumption = Literal["nothing", "gaussian"]
CONFIDENCE = 0.999
THRESHOLDS = 400  # tried on the runs for selection
MOST_DEVIATIONS = 10.0  # standard deviations at which scored values are cut


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε, and the event that proves it: scores of at least `threshold` (`is_above`), or below it.

    The rates are the event's frequencies in the world where it is rarer, and in the other world.
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
    """A lower bound on ε, or on μ if a Gaussian is assumed, from counts of false alarms and misses, if above 0."""
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
    """The lower bound on ε that scores of runs without and with the canary prove, with this confidence.

    The first fifth of the runs chooses the event and the others are counted, so that the choice costs no confidence.
    Scores may be any numbers; NaN counts as high.

    >>> scores = np.random.default_rng(1).normal(size=(2, 20000)) + np.array([[0], [1]])
    >>> bound(*scores, delta=1e-5).epsilon, bound(*scores, delta=1e-5, assumption="gaussian").epsilon
    (1.9..., 4.0...)
    """
    check_delta(delta)
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
        """ε (or μ) from an event that is likelier in one of the worlds."""
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


GUESSED = (0.01, 0.03, 0.1, 0.3, 1.0)  # guessed shares of the canaries: all are tried, each at a part of 1 - confidence


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of so many correct guesses under (ε, δ) (Steinke et al., theorem 5.2).

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
    """The lower bound on ε that so many correct guesses about independently included canaries prove.

    >>> round(one_run_epsilon(1000, 100, 90, 1e-5, 0.95), 2)
    1.63
    """
    failure = 1 - confidence
    if assumption == "gaussian":
        return _of_shift(_largest(lambda mu: _refutes_shift(mu, canaries, guesses, correct, failure)), delta)
    return _largest(lambda epsilon: one_run_p_value(canaries, guesses, correct, epsilon, delta) <= failure)


def _largest(is_refuted: Callable[[float], bool]) -> float:
    """The largest refuted number; all numbers from 0 up to it are refuted."""
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

    The probabilities of being right and wrong about one canary in the tail grow from the allowed failure; the claim is
    refuted if their sum exceeds the share that was guessed.
    """
    right, wrong = failure * correct / canaries, failure * (guesses - correct) / canaries
    for place in range(correct - 1, -1, -1):
        least = max(wrong, NORMAL.cdf(NORMAL.inv_cdf(right) - mu) if 0 < right < 1 else float(right >= 1))
        if least == wrong:
            break
        right = min(1.0, right + place / (guesses - place) * (least - wrong))
        wrong = least
    return right + wrong > guesses / canaries


def one_run_bound(
    scores: Any, included: Any, delta: float, confidence: float = CONFIDENCE, assumption: Assumption = "nothing"
) -> tuple[float, int, int]:
    """The lower bound on ε that scores of many canaries in one run prove, with the numbers of guesses and correct ones.

    Each canary must have been included by its own fair coin. The highest scores are guessed to be in, and as many of
    the lowest out; several shares are tried, each with its part of the failure probability.
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
