"""Regressions on tables: what a link needs to know, standardised records, and the way back to the units of the data."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.data.tables import Table
from tacit.families import DiagonalGaussian
from tacit.models import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression, SoftmaxRegression
from tacit.posterior import Block, Posterior
from tacit.scaling import Range, Scaling

Record = tuple[Array, Array]
PRIOR_DEVIATION, INTERCEPT_DEVIATION = 1.0, 5.0  # of coefficients of standardised features
MOST_DEVIATIONS = 5.0  # features further out are moved there
REACH = 2.0  # the longest step in coefficients of standardised features


@dataclass(frozen=True)
class Link:
    """What a kind of regression needs to know before it sees data.

    slope and bend: the size of a record's f' and f'' in x·θ, in units of the target's own (its deviation, the root of
    its mean) where it has one. least and most: the range of the gradients' clip in those units and in typical lengths
    of x: a small clip has little noise, a large one little bias. caution: how much curvature may grow on the way.
    """

    model: Any
    slope: float
    bend: float
    least: float
    most: float
    caution: float = 0.0


LINKS = {
    "linear": Link(LinearRegression, 1.0, 1.0, 1.0, 3.0),
    "logistic": Link(LogisticRegression, 1.0, 0.15, 0.5, 2.0),
    "probit": Link(ProbitRegression, 1.5, 0.4, 0.5, 2.0),
    "poisson": Link(PoissonRegression, 1.0, 4.0, 1.5, 4.0, caution=1.0),
    "softmax": Link(SoftmaxRegression, 1.0, 0.25, 0.7, 0.7),
}
TYPICAL_SLOPE = 0.4  # of a record, in units of its largest or of its deviation: what gradients vary by without noise


# --- Records -----------------------------------------------------------------------------------------------------


def without_tails(features: int, scaling: Scaling) -> Scaling:
    """The first `features` ranges cut to some deviations around the means: a record far outside is only clipped."""
    r, reach = scaling.range, MOST_DEVIATIONS * scaling.scale
    is_feature = np.arange(scaling.location.shape[0]) < features
    low = jnp.where(is_feature, jnp.maximum(r.low, scaling.location - reach), r.low)
    high = jnp.where(is_feature, jnp.minimum(r.high, scaling.location + reach), r.high)
    return replace(scaling, range=Range(low, high))


def scales_target(link: str) -> bool:
    """Whether the target is a number whose range and mean are needed."""
    return link in ("linear", "poisson")


def measured(link: str, numbers: tuple[int, ...], record: Record) -> Array:
    """What is rescaled of a record: its numbers, and a numeric target."""
    x, y = record
    found = x[np.array(numbers, int)]
    return jnp.append(found, y.astype(x.dtype)) if scales_target(link) else found


def standardise(link: str, numbers: tuple[int, ...], scaling: Scaling, record: Record) -> Record:
    """(1, x) with its numbers rescaled, and a linear regression's target too."""
    x, y = record
    scaled = scaling(measured(link, numbers, record))
    x = x.at[np.array(numbers, int)].set(scaled[: len(numbers)])
    if link == "linear":
        y = scaled[-1]
    if link == "poisson":
        y = jnp.clip(y.astype(x.dtype), 0, scaling.range.high[-1])
    return jnp.concatenate([jnp.ones(1, x.dtype), x]), y


# --- Models and clips --------------------------------------------------------------------------------------------


def check_target(link: str, table: Table) -> None:
    """Refuse targets that the model cannot have; the message names no record."""
    try:
        y = np.asarray(table.target, float)
    except (TypeError, ValueError):
        raise ValueError("the target holds something that is not a number; recode it") from None
    if not np.all(np.isfinite(y)):
        raise ValueError("the target has values that are missing or not finite; remove those records")
    if link in ("logistic", "probit") and not np.all((y == 0) | (y == 1)):
        raise ValueError(f"a {link} regression's target must be 0 or 1; recode it, or use model='softmax'")
    if link == "poisson" and not np.all((y >= 0) & (y == np.round(y))):
        raise ValueError("a Poisson regression's target must be whole numbers from 0 on")
    if link == "softmax":
        if table.classes is None:
            raise ValueError("model='softmax' needs classes=, the public list of classes behind 0, 1, ...")
        if not np.all((y >= 0) & (y < len(table.classes)) & (y == np.round(y))):
            raise ValueError(
                f"a softmax regression's target must be 0, ..., {len(table.classes) - 1}, one for each class"
            )


def model_of(link: str, table: Table, deviation: float) -> Any:
    """The model on standardised features, with its prior."""
    size = len(table.names) + 1
    deviations = np.full(size, deviation)
    deviations[0] = max(deviation, INTERCEPT_DEVIATION)
    if link == "softmax":
        assert table.classes is not None
        deviations = np.tile(deviations, len(table.classes) - 1)
        return SoftmaxRegression(DiagonalGaussian.of(np.zeros(len(deviations)), deviations), len(table.classes))
    return LINKS[link].model(DiagonalGaussian.of(np.zeros(size), deviations))


def bounds_of(table: Table, columns: int) -> Range:
    """The public bounds of the first columns that are measured; [-1, 1] where there are none."""
    low, high = (np.nan_to_num(end[:columns], nan=default) for end, default in ((table.low, -1.0), (table.high, 1.0)))
    return Range(jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))


def clip_of(
    typical: float,
    noise: Any,
    records: float,
    columns: int,
    least: Any,
    most: Any,
    slope: Any = TYPICAL_SLOPE,
    power: Any = 1.0,
) -> Any:
    """The clip of gradients by what they tell beside the noise, within limits.

    Where d features share N records, a gradient varies by about `slope` √(N / d) in each coordinate; its noise has
    deviation σ·clip when all steps are taken together, and `noise` is that σ. At power 1 the two are equal. typical:
    the length of a typical x; least and most are in units of it. Numbers, or arrays of a program that learns the rule.
    """
    if isinstance(noise, float | int) and noise == 0:
        return typical
    factor = slope * (math.sqrt(records / columns) / (noise * typical)) ** power
    return typical * (jnp.clip(factor, least, most) if isinstance(noise, Array) else min(max(factor, least), most))


# --- Back to the units of the data -------------------------------------------------------------------------------


def in_units(
    link: str,
    numbers: tuple[int, ...],
    table: Table,
    q: Any,
    scaling: Scaling,
    residual: Array | None,
    common: dict[str, Any],
    samples: np.ndarray | None = None,
) -> Posterior:
    """The posterior in the units of the data, from q over coefficients of standardised features.

    residual: the deviation of a linear regression's standardised target. common: statement and plan of the posterior.
    samples: of those coefficients, (chains, samples, ...), if there are any.
    """
    location, scale, low, high = (
        np.asarray(part, float)
        for part in (
            scaling.location,
            scaling.scale,
            scaling.range.low,
            scaling.range.high,
        )
    )
    size = len(table.names) + 1
    back = np.eye(size)
    places = np.array(numbers, int) + 1
    back[places, places] = 1 / scale[: len(places)]
    back[0, places] = -location[: len(places)] / scale[: len(places)]
    shift, noise_scale = np.zeros(size), None
    if link == "linear":
        back *= scale[-1]
        shift[0] = location[-1]
        known = 1.0 if residual is None else float(np.asarray(residual))
        noise_scale = known * float(scale[-1])
    names: tuple[str, ...] = ("intercept", *table.names)
    if link == "softmax":
        assert table.classes is not None
        free = table.classes[1:]
        names = tuple(f"{label}: {name}" for label in free for name in names)
        back, shift = np.kron(np.eye(len(free)), back), np.zeros(size * len(free))
    flat = block(q, names)
    covariance = np.diag(flat.covariance) if flat.covariance.ndim == 1 else flat.covariance
    covariance = back @ covariance @ back.T
    coefficients = Block(names, shift + back @ flat.mean, (covariance + covariance.T) / 2)
    ends = [np.full(size - 1, end) for end in (-np.inf, np.inf)]
    for end, found in zip(ends, (low, high), strict=True):
        end[places - 1] = found[: len(places)]
    details = {
        "range": {"low": _finite(ends[0]), "high": _finite(ends[1])},
        "location": location.tolist(),
        "scale": scale.tolist(),
        "schema": table.schema,
    }
    more = {"noise_scale": noise_scale, "classes": table.classes, "details": details}
    more["chains"] = None if samples is None else {"coefficients": shift + samples @ back.T}
    return Posterior({"coefficients": coefficients}, link, **more, **common)


def _finite(values: np.ndarray) -> list[float | None]:
    """JSON has no infinity."""
    return [float(v) if math.isfinite(v) else None for v in values]


def block(q: Any, names: tuple[str, ...]) -> Block:
    """In double precision, for the units of the data may differ by many orders."""
    if isinstance(q, tuple):
        mean, covariance = (np.asarray(part, float) for part in q)
        return Block(names, mean, (covariance + covariance.T) / 2)
    precision, scaled = np.asarray(q.precision, float), np.asarray(q.precision_mean, float)
    if precision.ndim == 1:
        return Block(names, scaled / precision, 1 / precision)
    covariance = np.linalg.inv(precision)
    return Block(names, covariance @ scaled, (covariance + covariance.T) / 2)
