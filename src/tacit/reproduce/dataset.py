"""Data-set level inference: whole sites as the unit of privacy, by four ways to add the noise, at the same ε.

Ours, not a published figure: Liu's thesis (3.3) poses the problem and leaves it open. Linear regression, whose exact
posterior is known: 200 sites alike, and 20 that are not.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.engines import local, schedule
from tacit.families import FullGaussian
from tacit.federated.pvi import PVI, Noise
from tacit.federated.site import unledgered
from tacit.federated.tied import Tied, Whole, of_sites
from tacit.models import LinearRegression
from tacit.privacy import accounting
from tacit.privacy.events import Repeated
from tacit.privacy.mechanism import SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import price
from tacit.report.style import COLOURS, logarithmic, panels
from tacit.reproduce import Outcome, Row, Track, over_seeds
from tacit.reproduce.liu import log_kl
from tacit.solvers import conjugate

EPSILON, DELTA = 8.0, 1e-5
ROUNDS, DAMPING = 40, 0.15
DIMENSION, RECORDS = 2, 5
CLIP = 12.0  # about the length of a factor of five records: public, from the model
VARIANTS = {"tied": 1, "reset every 5": 5, "central (alg. 4)": None, "per-site (3.8)": 0}


def made_up(sites: int, is_even: bool) -> tuple[list[Any], FullGaussian]:
    """Sites of five records of a linear regression, and the exact posterior of all; uneven ones differ in their x."""
    rng = np.random.default_rng(3)
    scale = np.ones((sites, 1, DIMENSION)) if is_even else rng.choice([0.3, 1.7], (sites, 1, DIMENSION))
    x = scale * rng.normal(size=(sites, RECORDS, DIMENSION))
    y = x @ np.array([1.0, -0.5]) + rng.normal(size=(sites, RECORDS))
    rows, targets = x.reshape(-1, DIMENSION), y.reshape(-1)
    exact = FullGaussian(rows.T @ targets, np.eye(DIMENSION) + rows.T @ rows)  # type: ignore[arg-type]
    return list(zip(x.astype(np.float32), y.astype(np.float32), strict=True)), exact


def paths(variant: str, sites: list[Any], rounds: int, seeds: int) -> tuple[Any, float]:
    """Posteriors (seeds, rounds + 1, ...) of a variant, and the ε that each site has paid after all rounds."""
    noise = accounting.calibrate(EPSILON, DELTA, steps=rounds).noise_multiplier
    mechanism = SubsampledGaussian(CLIP, noise)
    model = LinearRegression(FullGaussian.standard(DIMENSION), 1.0)
    reset = VARIANTS[variant]
    if reset != 0:
        tied = Tied(model.prior, model, conjugate, DAMPING, reset, is_preconditioned=False)
        access = of_sites(sites, mechanism)
        event = price(lambda key: tied(key, rounds, access), insecure_key(0))
        return over_seeds(lambda key: tied(key, rounds, access).value, seeds), accounting.epsilon(event, DELTA)
    spread = noise * CLIP * math.sqrt(len(sites))  # of what all sites add in a round; damped, less of it stays in q
    known = Noise(spread, spread * math.sqrt(DAMPING / (2 - DAMPING)))
    algorithm = PVI(model.prior, model, (Whole(conjugate, is_preconditioned=False),), damping=(DAMPING,), noise=known)
    accesses = local.stacked([of_sites([site], mechanism, records=RECORDS) for site in sites])
    steps = schedule.synchronous(len(sites), rounds)

    def one(key: Array) -> Any:
        _, path = local.simulate(algorithm, unledgered, key, accesses, steps, lambda state: state.q)
        return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), model.prior, path)

    event = Repeated(mechanism.level_events(1, "site", DIMENSION + DIMENSION**2)[0], rounds)
    return over_seeds(one, seeds), accounting.epsilon(event, DELTA)


def level(quick: bool, seeds: int, track: Track) -> Outcome:
    """KL to the exact posterior and noise in q against rounds, for every variant."""
    rounds = 5 if quick else ROUNDS
    settings = [(30 if quick else 200, True), (20, False)]
    rows: list[Row] = []
    for sites, is_even, variant in track([(s, even, name) for s, even in settings for name in VARIANTS]):
        members, exact = made_up(sites, is_even)
        path, epsilon = paths(variant, members, rounds, seeds)
        kls = np.exp(log_kl(path, exact))
        pulls = np.asarray(path.precision_mean, float)
        for t in sorted({1, 2, 5, rounds, *range(10, rounds + 1, 10)}):
            row: Row = {"variant": variant, "sites": sites, "alike": is_even, "round": t, "epsilon": epsilon}
            low, middle, high = (float(value) for value in np.quantile(kls[:, t], (0.25, 0.5, 0.75), method="nearest"))
            row |= {"kl": middle, "kl_low": low, "kl_high": high}
            row["noise"] = float(pulls[:, t].std(axis=0).mean()) if seeds > 1 else None
            rows.append(row)
    notes = [
        f"ε = {EPSILON:g} of a site, δ = {DELTA:g} (add-remove), all rounds together; α = {DAMPING}, C = {CLIP:g}.",
        "per-site: each message is private by itself. The others trust the coordinator with one noise for all.",
        "noise: deviation of Λμ over seeds. In theory tied is at most √(α/(2-α))·σC and central α√T·σC.",
        "per-site would have √M times the noise of tied while q stays proper (tested); at this ε it does not, and "
        "how `PVI` repairs an improper q makes it far worse: not a fair measure of that idea at its best.",
        "Sites that differ are clipped for good: their answer is biased, whatever the noise (docs/errata.md, 4).",
    ]
    shown = {"variant": "variant", "sites": "sites", "round": "round", "kl": "median KL", "noise": "noise in Λμ"}
    return Outcome([*rows], notes, shown, _draw(rows, settings))


def _draw(rows: list[Row], settings: list[tuple[int, bool]]) -> Any:
    titles = [f"{sites} sites, {'alike' if even else 'not alike'}" for sites, even in settings]
    axes = panels(*((title, "rounds", "KL to the exact posterior (median, quartiles)") for title in titles), width=4.6)
    for panel, (sites, even) in zip(axes, settings, strict=True):
        for variant, colour in zip(VARIANTS, COLOURS, strict=False):
            own = [r for r in rows if (r["variant"], r["sites"], r["alike"]) == (variant, sites, even)]
            places = [r["round"] for r in own]
            panel.plot(places, [r["kl"] for r in own], color=colour, label=variant)
            panel.fill_between(places, [r["kl_low"] for r in own], [r["kl_high"] for r in own], color=colour, alpha=0.2)
        logarithmic(panel, "y")
    axes[0].legend(fontsize=8)
    return axes[0]
