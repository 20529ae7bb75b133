"""Data-set level inference: whole sites as the unit of privacy, by four ways to add the noise, at the same ε.

Ours, not a published figure: Liu's thesis (3.3) poses the problem and leaves it open. Two linear regressions, whose
exact posteriors are known: 200 sites that are alike, and 20 that are not. And Adult at 200 equal sites, run as a study.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.data import partition
from tacit.engines import local, schedule
from tacit.families import FullGaussian
from tacit.federated.pvi import PVI, Noise
from tacit.federated.simulated import unledgered
from tacit.federated.tied import Central, Whole, of_sites
from tacit.models import LinearRegression
from tacit.privacy import accounting
from tacit.privacy.events import Repeated
from tacit.privacy.mechanism import SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import price
from tacit.report.style import COLOURS, logarithmic, panels
from tacit.solvers import conjugate
from tacit.study.plan import Plan
from tacit.study.setup import Setup
from tacit.study.simulation import simulate
from tacit.study.sites import Site
from tacit.tables.standardising import REACH
from tacit_reproduce import Result, Row, Track, mean_and_error, over_seeds
from tacit_reproduce.liu import log_kl
from tacit_reproduce.sharma import adult_tables

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
    sigma = accounting.calibrate(EPSILON, DELTA, steps=rounds).noise_multiplier
    mechanism = SubsampledGaussian(CLIP, sigma)
    model = LinearRegression(FullGaussian.standard(DIMENSION), 1.0)
    reset = VARIANTS[variant]
    respondents = [[site] for site in sites] if reset == 0 else [sites]
    spread = sigma * CLIP * math.sqrt(len(respondents))  # of the noise added in a round; damping leaves less in q
    settings: dict[str, Any] = {
        "damping": (DAMPING,),
        "noise": Noise(spread, spread * math.sqrt(DAMPING / (2 - DAMPING)), reach=REACH),
    }
    solver = Whole(conjugate, norm="natural")
    if reset in (0, 1):
        algorithm = PVI(model.prior, model, (solver,), **settings)
    else:
        solver = replace(solver, clips="update")
        algorithm = Central(model.prior, model, (solver,), **settings, rounds=rounds, reset=reset)
    accesses = [of_sites(each, mechanism, records=RECORDS) for each in respondents]
    steps = schedule.synchronous(len(respondents), rounds)

    def one(key: Array) -> Any:
        _, path = local.simulate(algorithm, unledgered, key, local.stacked(accesses), steps, lambda state: state.q)
        return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), model.prior, path)

    step = partial(algorithm.site_step, kind=0)
    event = Repeated(price(step, insecure_key(0), algorithm.site_init(), model.prior, accesses[0]), rounds)
    return over_seeds(one, seeds), accounting.epsilon(event, DELTA)


ADULT_EPSILON, ADULT_DELTA, ADULT_ROUNDS, ADULT_SITES, ADULT_SEEDS = 1.0, 1e-3, 20, 200, 5
ADULT: dict[str, dict[str, Any]] = {
    "tied": {"noise": "tied"},
    "tied, half the sites": {"noise": "tied", "participation": 0.5},
    "reset every 5": {"noise": "central", "reset": 5},
    "central (alg. 4)": {"noise": "central"},
    "per-site (3.8)": {"noise": "per-site"},
    "not private": {"noise": "tied"},
}


def adult_rows(variant: str, rounds: int, seeds: int) -> list[Row]:
    """Scores on Adult's test set by round, for the first seeds only: they agree, and algorithm 4 is slow."""
    table, test = adult_tables()
    epsilon = math.inf if variant == "not private" else ADULT_EPSILON
    parts = partition.equal(len(table.target), ADULT_SITES, 0)
    sites = [
        Site(
            f"site-{m + 1}", replace(table, features=table.features[at], target=table.target[at]), epsilon, ADULT_DELTA
        )
        for m, at in enumerate(parts)
    ]
    setup = Setup(Plan("logistic", rounds=rounds, unit="site", **ADULT[variant]), sites)
    places = sorted({1, 2, 5, 10, 15, rounds} & set(range(1, rounds + 1)))
    runs = min(seeds, 1 if variant == "not private" else ADULT_SEEDS)
    found = [simulate(setup, insecure_key(seed), test, scored=[t - 1 for t in places]) for seed in range(runs)]
    common: Row = {"variant": variant, "sites": ADULT_SITES, "data": "Adult", "epsilon": epsilon, "delta": ADULT_DELTA}
    rows: list[Row] = []
    for j, t in enumerate(places):
        row: Row = {**common, "round": t, "kl": None, "runs": runs}
        for name in ("accuracy", "log_likelihood"):
            row |= mean_and_error(name, np.array([run[j][name] for run in found]))
        rows.append(row)
    return rows


def level(quick: bool, seeds: int, track: Track) -> Result:
    """KL to the exact posterior and noise in q against rounds, for every variant."""
    rounds = 5 if quick else ROUNDS
    settings = [(30 if quick else 200, True), (20, False)]
    adults = ["tied"] if quick else list(ADULT)
    rows: list[Row] = []
    works = [*((s, even, name) for s, even in settings for name in VARIANTS), *((0, True, name) for name in adults)]
    for sites, is_even, variant in track(works):
        if sites == 0:
            rows += adult_rows(variant, rounds if quick else ADULT_ROUNDS, seeds)
            continue
        records, exact = made_up(sites, is_even)
        path, epsilon = paths(variant, records, rounds, seeds)
        kls = np.exp(log_kl(path, exact))
        pulls = np.asarray(path.precision_mean, float)
        for t in sorted({1, 2, 5, rounds, *range(10, rounds + 1, 10)}):
            row: Row = {"variant": variant, "sites": sites, "data": "alike" if is_even else "not alike", "round": t}
            row |= {"epsilon": epsilon, "delta": DELTA, "accuracy": None}
            low, middle, high = (float(value) for value in np.quantile(kls[:, t], (0.25, 0.5, 0.75), method="nearest"))
            row |= {"kl": middle, "kl_low": low, "kl_high": high}
            row["noise"] = float(pulls[:, t].std(axis=0).mean()) if seeds > 1 else None
            rows.append(row)
    notes = [
        f"Linear regression: ε = {EPSILON:g} of a site, δ = {DELTA:g}; α = {DAMPING}, C = {CLIP:g}. Adult: ε = "
        f"{ADULT_EPSILON:g}, δ = {ADULT_DELTA:g}, the rule of `tacit simulate`. Add-remove; all rounds together.",
        "per-site: each message is private by itself. The others trust the coordinator with one noise for all.",
        "noise: standard deviation of Λμ over seeds. In theory tied is at most √(α/(2-α))·σC, per-site √M times that, "
        "and central α√T·σC.",
        "tied and per-site clip a site's factor; central clips its change, as Liu does. Where the noise in tied "
        "factors is above the clip, clipped changes cannot undo it.",
        "Sites that differ stay clipped: their answer is biased, whatever the noise (docs/errata.md, 4).",
    ]
    shown = {"variant": "variant", "data": "data", "sites": "sites", "round": "round", "kl": "median KL"}
    shown |= {"noise": "noise in Λμ", "accuracy": "accuracy", "log_likelihood": "log-lik."}
    return Result([*rows], notes, shown, _draw(rows, settings))


def _draw(rows: list[Row], settings: list[tuple[int, bool]]) -> Any:
    kinds = [(sites, "alike" if even else "not alike") for sites, even in settings]
    titles = [
        (f"{sites} sites, {kind}", "rounds", "KL to the exact posterior (median, quartiles)") for sites, kind in kinds
    ]
    of_adult = f"Adult, {ADULT_SITES} sites, ε = {ADULT_EPSILON:g} of a site"
    axes = panels(*titles, (of_adult, "rounds", "accuracy on the test set"), width=4.8)
    names = list(dict.fromkeys(row["variant"] for row in rows))
    colours = dict(zip(names, COLOURS, strict=False))
    for panel, (sites, kind) in zip(axes[:-1], kinds, strict=True):
        for variant in VARIANTS:
            own = [r for r in rows if (r["variant"], r["sites"], r["data"]) == (variant, sites, kind)]
            places, colour = [r["round"] for r in own], colours[variant]
            panel.plot(places, [r["kl"] for r in own], color=colour, label=variant)
            panel.fill_between(places, [r["kl_low"] for r in own], [r["kl_high"] for r in own], color=colour, alpha=0.2)
        logarithmic(panel, "y")
    for variant in names:
        own = [r for r in rows if (r["variant"], r["data"]) == (variant, "Adult")]
        style = {"linestyle": "--"} if variant == "not private" else {"marker": "o", "markersize": 3}
        label = None if variant in VARIANTS else f"{variant} (Adult)"
        values = [r["accuracy"] for r in own]
        axes[-1].plot([r["round"] for r in own], values, color=colours[variant], label=label, **style)
    handles, labels = axes[0].get_legend_handles_labels()
    more, names = axes[-1].get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 6, "frameon": False, "fontsize": 9}
    axes[0].figure.legend([*handles, *more], [*labels, *names], **place)
    axes[-1].set_xlim(left=0)
    return axes[0]
