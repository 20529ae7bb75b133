"""Regressions on tables: standardised records, models with priors and clips, and back to the units of the data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.basics.plain import finite
from tacit.families import DiagonalGaussian
from tacit.links import INTERCEPT_SD, Link
from tacit.posterior.posterior import Block, Posterior
from tacit.posterior.site_effects import BetweenSites
from tacit.tables.scaling import Range, Scaling
from tacit.tables.table import Table

Record = tuple[Array, Array]
PRIOR_DEVIATION = 1.0  # of coefficients of standardised features
REACH_OF_FEATURES = 5.0  # standard deviations: features further out are moved there
REACH = 2.0  # the longest step in coefficients of standardised features


# --- Records -----------------------------------------------------------------------------------------------------


def without_tails(features: int, scaling: Scaling) -> Scaling:
    """Cut the first `features` ranges to a few sds around the means, so that far outliers are moved there."""
    r, reach = scaling.range, REACH_OF_FEATURES * scaling.scale
    is_feature = np.arange(scaling.location.shape[0]) < features
    low = jnp.where(is_feature, jnp.maximum(r.low, scaling.location - reach), r.low)
    high = jnp.where(is_feature, jnp.minimum(r.high, scaling.location + reach), r.high)
    return replace(scaling, range=Range(low, high))


def measured(link: Link, numbers: tuple[int, ...], record: Record) -> Array:
    """The parts of a record that are rescaled: its numbers, and a numeric target."""
    x, y = record
    found = x[np.array(numbers, int)]
    return jnp.append(found, y.astype(x.dtype)) if link.target.is_number else found


def standardise(link: Link, numbers: tuple[int, ...], scaling: Scaling, record: Record) -> Record:
    """(1, x) with its numbers rescaled, and y, rescaled too for a linear regression."""
    x, y = record
    scaled = scaling(measured(link, numbers, record))
    x = x.at[np.array(numbers, int)].set(scaled[: len(numbers)])
    if link.learns_scale:
        y = scaled[-1]
    elif link.target.is_number:
        y = jnp.clip(y.astype(x.dtype), 0, scaling.range.high[-1])
    return jnp.concatenate([jnp.ones(1, x.dtype), x]), y


# --- Models and clips --------------------------------------------------------------------------------------------


def check_target(link: Link, table: Table) -> None:
    """Refuse targets that the model does not allow; the message names no record."""
    try:
        y = np.asarray(table.target, float)
    except (TypeError, ValueError):
        raise ValueError("the target holds something that is not a number; recode it") from None
    if not np.all(np.isfinite(y)):
        raise ValueError("the target has values that are missing or not finite; remove those records")
    classes = table.classes
    if classes is not None and link.target.has_two_classes and len(classes) != 2:
        raise ValueError(
            f"classes={classes} for a {link.words}; expected two labels, the one that counts as 0 first, or "
            "model='softmax'"
        )
    if link.is_multiclass and table.classes is None:
        raise ValueError(f"model={link.name!r} needs classes=, the public list of classes behind 0, 1, ...")
    if not link.target.admits(y, len(table.classes or ())):
        remedy = ", or use model='softmax'" if link.target.has_two_classes else ""
        raise ValueError(f"a {link.words}'s target must be {link.target.expected}; recode it{remedy}")


def model_of(link: Link, table: Table, sd: float) -> Any:
    """The model on standardised features, with its prior."""
    size = len(table.names) + 1
    sds = np.full(size, sd)
    sds[0] = max(sd, INTERCEPT_SD)
    if link.is_multiclass:
        assert table.classes is not None
        sds = np.tile(sds, len(table.classes) - 1)
        return link.model(DiagonalGaussian.of(np.zeros(len(sds)), sds), len(table.classes))
    return link.model(DiagonalGaussian.of(np.zeros(size), sds))


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
    slope: Any,
    power: Any,
) -> Any:
    """The clip of gradients, set by how much the data can tell in spite of the noise, within limits.

    A small clip adds little noise and biases coefficients; how much bias can be seen depends on how well the data know
    them. With N records and d columns, a mean gradient has an error of about 1/√N in each coordinate from the records,
    and, at a clip of `typical`, of σ·typical/N from the noise, with σ that of all steps together (`noise`). So

        clip = typical · slope · J^power      1/J² = d/N + (d/N · σ · typical)²

    where J² is the number of records per column that the noised gradients are worth. typical: the length of a typical
    x; least and most are in units of it. Numbers, or arrays in a program that learns the rule.
    """
    if isinstance(noise, float | int) and noise == 0:
        return typical
    share = columns / records
    factor = slope * (share + (share * noise * typical) ** 2) ** (-power / 2)
    return typical * (jnp.clip(factor, least, most) if isinstance(factor, Array) else min(max(factor, least), most))


# --- Back to the units of the data -------------------------------------------------------------------------------


def in_units(
    link: Link,
    numbers: tuple[int, ...],
    table: Table,
    q: Any,
    scaling: Scaling,
    residual: Any,
    common: dict[str, Any],
    samples: np.ndarray | None = None,
) -> Posterior:
    """The posterior in the units of the data, from q over coefficients of standardised features.

    residual: the residual standard deviation of a linear regression's standardised target. common: statement and plan
    of the posterior. samples: of those coefficients, (chains, samples, ...), if any.
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
    size, places = len(table.names) + 1, np.array(numbers, int) + 1
    (back, shift), noise_scale = _to_units(link, numbers, size, location, scale), None
    if link.learns_scale:
        known = 1.0 if residual is None else float(np.asarray(residual))
        noise_scale = known * float(scale[-1])
    names: tuple[str, ...] = ("intercept", *table.names)
    if link.is_multiclass:
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
        "range": {"low": [finite(end) for end in ends[0]], "high": [finite(end) for end in ends[1]]},
        "location": location.tolist(),
        "scale": scale.tolist(),
        "schema": table.schema,
    }
    more = {"noise_scale": noise_scale, "classes": table.classes, "details": details}
    more["chains"] = None if samples is None else {"coefficients": shift + samples @ back.T}
    return Posterior({"coefficients": coefficients}, link.name, **more, **common)


def effects_in_units(
    link: Link, numbers: tuple[int, ...], table: Table, found: Any, scaling: Scaling, sites: Sequence[str]
) -> BetweenSites:
    """Site effects in the units of the data.

    With β the coefficients of standardised columns and Bβ + b those in the units of the data, a site's are Bβ_s + b,
    and its deviation is BEδ_s: that of a slope is divided by its column's scale, and adds -location / scale times as
    much to the intercept.
    """
    location, scale = (np.asarray(part, float) for part in (scaling.location, scaling.scale))
    names = ("intercept", *table.names)
    back, shift = _to_units(link, numbers, len(names), location, scale)
    chosen = list(found.places)
    moved = back[:, chosen]
    rows = np.flatnonzero(np.any(moved != 0, axis=1))
    moved, differing = moved[rows], tuple(names[row] for row in rows)

    def around(by: np.ndarray, covariance: Any) -> np.ndarray:
        made = by @ np.asarray(covariance, float) @ by.T
        return (made + made.T) / 2

    means, deviations = np.asarray(found.means, float), np.asarray(found.deviations, float)
    own = {
        name: Block(names, shift + back @ means[s], around(back, found.covariances[s])) for s, name in enumerate(sites)
    }
    apart = {
        name: Block(differing, moved @ deviations[s], around(moved, found.deviation_covariances[s]))
        for s, name in enumerate(sites)
    }
    between = around(moved, np.diag(np.asarray(found.variances, float)))
    sizes = np.diagonal(back)[chosen]
    middles = dict(zip((names[place + 1] for place in numbers), location.tolist(), strict=False))
    columns = tuple(names[place] for place in chosen)
    return BetweenSites(
        columns,
        own,
        apart,
        Block(differing, np.zeros(len(differing)), between),
        np.asarray(found.grid, float) * sizes[:, None],
        _normalised(np.asarray(found.weights, float)),
        {name: middles[name] for name in columns if name in middles},
    )


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=1, keepdims=True)


def _to_units(
    link: Link, numbers: tuple[int, ...], size: int, location: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """B and b that take coefficients of standardised features to Bβ + b, in the units of the data."""
    back, shift = np.eye(size), np.zeros(size)
    places = np.array(numbers, int) + 1
    back[places, places] = 1 / scale[: len(places)]
    back[0, places] = -location[: len(places)] / scale[: len(places)]
    if link.learns_scale:
        back *= scale[-1]
        shift[0] = location[-1]
    return back, shift


def block(q: Any, names: tuple[str, ...]) -> Block:
    """A block in double precision, because units of the data may differ by many orders of magnitude."""
    if isinstance(q, tuple):
        mean, covariance = (np.asarray(part, float) for part in q)
        return Block(names, mean, (covariance + covariance.T) / 2)
    precision, scaled = np.asarray(q.precision, float), np.asarray(q.precision_mean, float)
    if precision.ndim == 1:
        return Block(names, scaled / precision, 1 / precision)
    covariance = np.linalg.inv(precision)
    return Block(names, covariance @ scaled, (covariance + covariance.T) / 2)
