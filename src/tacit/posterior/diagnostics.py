"""Measures of the quality of a posterior and its predictions. Nothing here is private.

These functions add no noise and charge no budget. Use them on public test records, simulated records or released
values. Even an accuracy on private records reveals something, so it may leave a site only through a mechanism. All
computations are in double precision, whatever the arrays' type. A Gaussian here is diagonal or full, or a dict of them
(their product).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import ndtri

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian, Family, FullGaussian

_ROUNDING = 1e-6  # averages of single-precision probabilities pass 1 by less than this


# --- Predictions of 0/1 targets ------------------------------------------------------------------------------------


def accuracy(probabilities: Any, target: Any) -> float:
    """Share of records whose class is the likelier one; a probability of 0.5 counts as class 1.

    (1/n) Σ_i 1[(p_i ≥ 0.5) = y_i]

    >>> accuracy([0.9, 0.2, 0.5, 0.6], [1, 0, 1, 0])
    0.75
    """
    p, y = _predictions(probabilities, target)
    return float(np.mean((p >= 0.5) == (y == 1)))


def log_likelihood(probabilities: Any, target: Any, least: float = 1e-12) -> float:
    """Mean log-probability of the observed class.

    (1/n) Σ_i log p(y_i),  with every p(y_i) kept within [least, 1 − least]

    A record of predicted probability 0 thus costs log(least), not −∞.

    >>> round(log_likelihood([0.5, 0.25], [1, 0]), 3)
    -0.49
    """
    p, y = _predictions(probabilities, target)
    if not 0 < least < 0.5:
        raise ValueError(f"least={least!r} is not in (0, 0.5): take 1e-12 unless you need another.")
    return float(np.mean(np.log(np.clip(np.where(y == 1, p, 1 - p), least, 1 - least))))


def calibration(probabilities: Any, target: Any, bins: int = 10) -> list[dict[str, Any]]:
    """Predicted probabilities beside observed shares: one row for each of `bins` equal parts of [0, 1].

    Bin b holds the records with b/B ≤ p_i < (b + 1)/B; the last one holds p_i = 1 too. A row has the bin's `low` and
    `high`, its `count` n_b, `mean_probability` (the mean of p_i) and `share` (the mean of y_i). An empty bin has None
    for both means.

    >>> for row in calibration([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1], bins=2):
    ...     print(row)
    {'low': 0.0, 'high': 0.5, 'count': 2, 'mean_probability': 0.2, 'share': 0.5}
    {'low': 0.5, 'high': 1.0, 'count': 2, 'mean_probability': 0.9, 'share': 1.0}
    """
    p, y = _predictions(probabilities, target)
    if isinstance(bins, bool) or not isinstance(bins, Integral) or bins < 1:
        raise ValueError(f"bins={bins!r} is not a whole number of at least 1: take 10, say.")
    edges = np.arange(int(bins) + 1) / int(bins)
    where = np.searchsorted(edges[1:-1], p, side="right")
    rows = []
    for b in range(int(bins)):
        inside = where == b
        some = bool(inside.any())
        rows.append(
            {
                "low": float(edges[b]),
                "high": float(edges[b + 1]),
                "count": int(inside.sum()),
                "mean_probability": float(p[inside].mean()) if some else None,
                "share": float(y[inside].mean()) if some else None,
            }
        )
    return rows


def calibration_error(probabilities: Any, target: Any, bins: int = 10) -> float:
    """Expected calibration error: the distance of observed shares from predicted probabilities, averaged over records.

    Σ_b (n_b / n) · |share_b − mean_probability_b|,  over the bins of `calibration`

    Probabilities are those of class 1, so 0.1 is as confident as 0.9. Chance alone makes this positive: a
    calibrated predictor with evenly spread probabilities has about 0.3 · √(B / n). Compare on the same records.

    >>> round(calibration_error([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1], bins=2), 3)
    0.2

    Naeini, M. P., Cooper, G. F. & Hauskrecht, M. (2015). Obtaining well calibrated probabilities using Bayesian
    binning. AAAI.
    """
    rows = [row for row in calibration(probabilities, target, bins) if row["count"]]
    gaps = [row["count"] * abs(row["share"] - row["mean_probability"]) for row in rows]
    return float(sum(gaps) / sum(row["count"] for row in rows))


# --- Posteriors ----------------------------------------------------------------------------------------------------


def kl_to_exact(q: Tree, exact: Tree) -> float:
    """KL(q ‖ exact) between Gaussians: 0 for the exact posterior.

    ½ [ tr(Λ_p Σ_q) + (μ_p − μ_q)ᵀ Λ_p (μ_p − μ_q) − d − log |Λ_p Σ_q| ],  with p the exact one

    Parameters in single precision leave an error of about 1e-3 with some thousand records, by cancellation.

    >>> q = DiagonalGaussian(precision_mean=np.array([1.0]), precision=np.array([1.0]))
    >>> kl_to_exact(q, DiagonalGaussian(np.array([0.0]), np.array([1.0])))
    0.5
    """
    return _kl(q, exact, "exact")


def coverage(mean: Any, sd: Any, truth: Any, level: float = 0.9) -> float:
    """Share of coordinates whose central normal interval holds the truth: near `level` if the sds are right.

    (1/d) Σ_j 1[ |truth_j − mean_j| ≤ z · sd_j ],  with P(|N(0, 1)| ≤ z) = level

    >>> coverage([0.0, 0.0], [1.0, 1.0], [1.6, 1.7], level=0.9)
    0.5
    """
    m, s, t = (np.asarray(values, float) for values in (mean, sd, truth))
    if not m.size or not m.shape == s.shape == t.shape:
        raise ValueError(
            f"mean, sd and truth have shapes {m.shape}, {s.shape} and {t.shape}, where equal shapes, not empty, are "
            "expected: give one of each for every coordinate."
        )
    if not (np.isfinite(m).all() and np.isfinite(t).all() and np.isfinite(s).all() and (s >= 0).all()):
        raise ValueError("mean, sd or truth has NaN, inf or a negative sd: leave such coordinates out.")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} is not in (0, 1): take 0.9, say.")
    return float(np.mean(np.abs(t - m) <= ndtri((1 + level) / 2) * s))


def factor_gap(q: Tree, parts: Sequence[Tree]) -> float:
    """The distance of q from the product of its parts, such as the prior and the factors of all sites.

    max |η_q − Σ_k η_k| / max(|η_q|, |η_1|, |η_2|, …),  both maxima over all natural parameters

    Works for all families and products of them. Rounding leaves about 1e-7 for each addition in single precision.

    | input             | output |
    |-------------------|--------|
    | all η are 0       | 0      |
    | any η NaN or inf  | inf    |

    >>> part = DiagonalGaussian(precision_mean=np.array([1.0]), precision=np.array([2.0]))
    >>> factor_gap(part + part, [part, part]), factor_gap(part + part, [part])
    (0.0, 0.5)
    """
    if isinstance(parts, Family | Mapping):
        raise ValueError(f"parts is one {type(parts).__name__} where a list is expected: give [prior, *factors].")
    trees = [q, *parts]
    # As text: structures of two dataclasses with as many fields count as equal in JAX (0.10.2), whatever their classes.
    kind, *kinds = (str(jax.tree.structure(tree)) for tree in trees)
    for k, other in enumerate(kinds):
        if other != kind:
            raise ValueError(f"parts[{k}] is {other} where q is {kind}: give all of the same families.")
    gap = largest = 0.0
    for leaves in zip(*map(jax.tree.leaves, trees), strict=True):
        whole, *pieces = (np.asarray(leaf, float) for leaf in leaves)
        if any(piece.shape != whole.shape for piece in pieces):
            shapes = ", ".join(str(piece.shape) for piece in pieces)
            raise ValueError(f"parts have shapes {shapes} where q has {whole.shape}: give all of the same dimension.")
        if not all(np.isfinite(piece).all() for piece in (whole, *pieces)):
            return math.inf
        gap = max(gap, float(np.max(np.abs(whole - sum(pieces)), initial=0)))
        largest = max(largest, *(float(np.max(np.abs(piece), initial=0)) for piece in (whole, *pieces)))
    return gap / largest if largest else 0.0


# --- Free energies -------------------------------------------------------------------------------------------------


def free_energy(expected_log_likelihood: float, q: Tree, prior: Tree) -> float:
    """The global free energy of a Gaussian q: a lower bound on log p(data), reached by the exact posterior.

    F(q) = E_q[log p(data | θ)] − KL(q ‖ prior)

    It rises as q improves. See `local_free_energy` for the sites' parts of it.

    >>> prior = DiagonalGaussian(precision_mean=np.array([0.0]), precision=np.array([1.0]))
    >>> free_energy(-3.0, DiagonalGaussian(np.array([1.0]), np.array([1.0])), prior)
    -3.5
    """
    return float(expected_log_likelihood) - _kl(q, prior, "prior")


def local_free_energy(expected_log_likelihood: float, q: Tree, factor: Tree) -> float:
    """A site's free energy at a Gaussian q: the expected log-likelihood of its records less that of its factor t_m.

    F_m(q) = E_q[log p(data_m | θ)] − E_q[log t_m(θ)],  with log t_m(θ) = ⟨η_m, T(θ)⟩, not normalised

    If q is the normalised product of the prior and all factors, η_q = η_prior + Σ_m η_m, then

    F(q) = Σ_m F_m(q) + log Z,  with log Z = log ∫ prior(θ) Π_m t_m(θ) dθ = A(η_q) − A(η_prior)

    This holds exactly for any factors, not only at convergence: KL(q ‖ prior) = ⟨Σ_m η_m, E_q[T]⟩ − log Z. Equation
    (2.11) of Liu (2019) has no log Z because its factors absorb it: there prior · Π_m t_m is q, with Z = 1. A factor
    may be improper; q may not.

    >>> unit = DiagonalGaussian(precision_mean=np.array([0.0]), precision=np.array([1.0]))
    >>> local_free_energy(-3.0, unit, unit)  # E_q[log t] = −½ E_q[θ²]
    -2.5

    Liu, X. (2019). Distributed variational inference and privacy. MPhil dissertation, University of Cambridge.
    """
    explained = 0.0
    for of_q, of_factor in _pairs(q, factor, "factor"):
        mean, covariance = of_q.moments()
        second = covariance + (mean**2 if covariance.ndim == 1 else np.outer(mean, mean))
        explained += float(of_factor.precision_mean @ mean - np.sum(of_factor.precision * second) / 2)
    return float(expected_log_likelihood) - explained


# --- Gaussians in double precision ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Natural:
    """Λμ and Λ of one Gaussian; Λ is a vector if it is diagonal."""

    name: str
    precision_mean: np.ndarray
    precision: np.ndarray

    def root(self) -> np.ndarray:
        """R with Λ = RRᵀ."""
        try:
            if self.precision.ndim == 2:
                return np.linalg.cholesky(self.precision)
            if (self.precision > 0).all():
                return np.sqrt(self.precision)
        except np.linalg.LinAlgError:
            pass
        raise ValueError(f"{self.name} is improper: its precision is not positive. Use `families.project` on it first.")

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance, the latter a vector of variances if Λ is one."""
        root = self.root()
        if root.ndim == 1:
            return self.precision_mean / self.precision, 1 / self.precision
        inverse = solve_triangular(root, np.eye(len(root)), lower=True)
        return inverse.T @ (inverse @ self.precision_mean), inverse.T @ inverse


def _kl(q: Tree, p: Tree, name: str) -> float:
    """KL(q ‖ p) from R_q⁻¹R_p, whose squares add up to tr(Λ_p Σ_q) and whose diagonal has the determinant."""
    total = 0.0
    for of_q, of_p in _pairs(q, p, name):
        root_q, root_p = of_q.root(), of_p.root()
        gap = of_p.moments()[0] - of_q.moments()[0]
        if root_q.ndim == 1:
            ratio = diagonal = root_p / root_q
            away = root_p * gap
        else:
            ratio = solve_triangular(root_q, root_p, lower=True)
            diagonal, away = np.diagonal(ratio), root_p.T @ gap
        total += float(np.sum(ratio**2) + np.sum(away**2) - gap.size - 2 * np.sum(np.log(diagonal))) / 2
    return max(0.0, total)  # rounding may leave −1e-16


def _pairs(q: Tree, other: Tree, name: str) -> Iterator[tuple[_Natural, _Natural]]:
    """Pairs of Gaussians at the same place of q and of the other: as vectors if both are diagonal."""
    ours, theirs = dict(_gaussians("q", q)), dict(_gaussians(name, other))
    if [place.removeprefix("q") for place in ours] != [place.removeprefix(name) for place in theirs]:
        raise ValueError(f"q has {[*ours]} where {name} has {[*theirs]}: give both the same names.")
    for (place, part), (other_place, other_part) in zip(ours.items(), theirs.items(), strict=True):
        dense = isinstance(part, FullGaussian) or isinstance(other_part, FullGaussian)
        natural, other_natural = _natural(place, part, dense), _natural(other_place, other_part, dense)
        sizes = natural.precision_mean.size, other_natural.precision_mean.size
        if sizes[0] != sizes[1]:
            raise ValueError(f"{place} has {sizes[0]} coordinates and {other_place} {sizes[1]}: give both the same.")
        yield natural, other_natural


def _gaussians(place: str, q: Tree) -> Iterator[tuple[str, DiagonalGaussian | FullGaussian]]:
    if isinstance(q, Mapping):
        for name in sorted(q):
            yield from _gaussians(f"{place}[{name!r}]", q[name])
    elif isinstance(q, DiagonalGaussian | FullGaussian):
        yield place, q
    else:
        raise ValueError(f"{place} is of type {type(q).__name__}: give a diagonal or full Gaussian, or a dict of them.")


def _natural(name: str, q: DiagonalGaussian | FullGaussian, dense: bool) -> _Natural:
    precision_mean, precision = np.asarray(q.precision_mean, float).ravel(), np.asarray(q.precision, float)
    if not (np.isfinite(precision_mean).all() and np.isfinite(precision).all()):
        raise ValueError(f"{name} has NaN or inf among its natural parameters: look for the update that made them.")
    if isinstance(q, FullGaussian):
        return _Natural(name, precision_mean, (precision + precision.T) / 2)
    return _Natural(name, precision_mean, np.diag(precision.ravel()) if dense else precision.ravel())


def _predictions(probabilities: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(probabilities, float), np.asarray(target, float)
    if p.ndim != 1 or not p.size or p.shape != y.shape:
        raise ValueError(
            f"probabilities and target have shapes {p.shape} and {y.shape} where (n,) is expected for both: give the "
            "probability of class 1 and the class of each record."
        )
    if not ((p >= -_ROUNDING) & (p <= 1 + _ROUNDING)).all():  # also refuses NaN
        raise ValueError(f"probabilities from {p.min()} to {p.max()} are not within [0, 1]: give no scores or logits.")
    if not ((y == 0) | (y == 1)).all():
        raise ValueError(f"target has {y[(y != 0) & (y != 1)][0]} where 0 or 1 is expected: recode the two classes.")
    return np.clip(p, 0, 1), y
