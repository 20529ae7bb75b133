"""The posterior of a study in the units of the data, made of released numbers alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tacit.federated.site_effects import Effects
from tacit.posterior.posterior import Posterior
from tacit.solvers.sgld import moments
from tacit.study.plan import Plan
from tacit.study.reading import OfTable, Reading
from tacit.tables.scaling import Scaling
from tacit.tables.standardising import block, effects_in_units, in_units


def posterior_of(
    form: Reading,
    plan: Plan,
    found: Any,
    scaling: Scaling,
    described: dict[str, Any],
    common: dict[str, Any],
    sites: Sequence[str] = (),
) -> Posterior:
    """What an algorithm found, in the units of the data.

    found: a family or a dict of them, (mean, covariance), samples, or `Effects` of these sites. described: the plan as
    plain data. common: the statement.
    """
    if isinstance(found, Effects):
        assert isinstance(form, OfTable)
        whole = posterior_of(form, plan, (found.mean, found.covariance), scaling, described, common)
        table = form.table
        return replace(whole, site_effects=effects_in_units(form.link, table.numbers, table, found, scaling, sites))
    plain = {"statement": {}, "statement_text": "", "plan": described} | common
    samples = None
    if plan.method_used == "sgld":
        samples = jax.tree.map(lambda leaf: np.asarray(leaf, float).swapaxes(0, 1), found)  # chains in front
        like = form.model.prior
        full = like if isinstance(like, dict) else like.full()
        found = moments(found, full)
    if isinstance(form, OfTable):
        residual = plan.noise_scale if scaling.residual is None else scaling.residual
        learned = residual if form.link.learns_scale else None
        return in_units(form.link, form.table.numbers, form.table, found, scaling, learned, plain, samples)
    if isinstance(found, dict):
        sizes = {name: len(part.precision) for name, part in found.items()}
        blocks = {name: block(part, tuple(f"{name}[{j}]" for j in range(sizes[name]))) for name, part in found.items()}
        return Posterior(blocks, "", **plain, chains=samples)
    size = len(found[0] if isinstance(found, tuple) else found.precision_mean)
    names = getattr(form, "names", ()) or tuple(f"theta[{j}]" for j in range(size))
    link = plan.link.name if plan.link is not None and names[0] == "intercept" else ""
    chains = None if samples is None else {"coefficients": samples}
    return Posterior({"coefficients": block(found, names)}, link, **plain, chains=chains)
