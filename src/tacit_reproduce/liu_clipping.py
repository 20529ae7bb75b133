"""Liu's thesis (2019), figures 4.3 to 4.5: clips that follow the gradients.

*published*: the clip of every step is a percentile of that batch's own gradient norms. It is an unpaid function of
private records, so its ε is ∞, and it exists nowhere else in tacit. *tacit*: a quantile that is tracked by
a noised count, within the price of the gradients (`solvers/adaptive.py`). Both on the thesis's descent, one site.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.families import DiagonalGaussian
from tacit.federated.pvi import PVI
from tacit.privacy import accounting
from tacit.privacy.clipping import clip_weights
from tacit.privacy.events import NonPrivate
from tacit.privacy.mechanism import SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.report.style import COLOURS, logarithmic, panels
from tacit.solvers import Adaptive, Target
from tacit_reproduce import Result, Row, Track
from tacit_reproduce.liu import (
    DELTA,
    DPSGD,
    LIMIT,
    TRUTH,
    Run,
    Study,
    checkpoints,
    in_theory,
    log_kl,
    prices,
    scores,
    simulate,
    study,
    updates_until,
    wobble,
)

RECORDS, MOST_UPDATES, QUICK_UPDATES = 1000, 1000, 20
NOISE_MULTIPLIER = 1.0
CLIPS = (2.0, 5.0, 8.0)  # those of figure 4.2; the thesis compares with 5
PAID = {"paid quantile": Adaptive(), "paid quantile, coordinates": Adaptive(per_coordinate=True)}
REMEDIES: dict[str, dict[str, float]] = {
    "C = 5, threshold": {"threshold": 0.2},
    "C = 5, decay": {"decay": 10_000.0},
}


@dataclass(frozen=True)
class Setting:
    """One panel: sampling rate q, learning rate α, steps of an update, percentiles, and the data."""

    rate: float
    learning_rate: float
    steps: int
    percentiles: tuple[int, ...]
    truth: tuple[float, float] = TRUTH
    noise_scale: float = 1.0

    @property
    def data(self) -> Study:
        return study(1, RECORDS, self.noise_scale, 42, self.truth)

    @property
    def title(self) -> str:
        return f"q = {self.rate:g}, α = {self.learning_rate:g}"

    def solver(self, **more: Any) -> DPSGD:
        return DPSGD(self.steps, self.learning_rate, RECORDS, **more)


FIG43 = (
    Setting(1.0, 0.03, 1, (20, 40, 60, 80)),
    Setting(0.1, 0.03, 50, (20, 40, 60, 80)),
    Setting(0.03, 0.01, 100, (20, 40, 60, 80)),
)
FIG44 = (Setting(0.03, 0.03, 100, (20, 40, 60)),)
FIG45 = (Setting(0.03, 0.03, 100, (20, 40, 60), (5.0, -2.0), 3.0),)


def paid_run(setting: Setting, clip: float, updates: int, seeds: int, **more: Any) -> Run:
    """Through the mechanism: a fixed clip, or one that moves and is paid for. Its receipt is the price."""
    prior, data = DiagonalGaussian.standard(len(TRUTH)), setting.data
    algorithm = PVI(prior, data.model(prior), (setting.solver(**more),))
    return simulate(data, algorithm, SubsampledGaussian(clip, NOISE_MULTIPLIER, setting.rate), updates, seeds)


def percentile_run(setting: Setting, percentile: int, updates: int, seeds: int) -> Run:
    """As published: the clip of a step is a percentile of the norms of its own batch. Not private: ε = ∞.

    With one site the cavity is the prior, so that updates are stretches of one descent.
    """
    data, prior = setting.data, DiagonalGaussian.standard(len(TRUTH))
    target = Target(prior, prior, data.model(prior))
    records = (jnp.asarray(data.x[0]), jnp.asarray(data.y[0]))
    keys = jnp.stack([insecure_key(seed) for seed in range(seeds)])
    q = _percentile_paths(setting, percentile, updates, keys, target, records)
    q = jax.tree.map(np.asarray, q)
    improper = np.zeros(q.precision.shape[:2], bool)  # log-variances are always proper
    return Run(q, improper, NonPrivate(), NonPrivate(), log_kl(q, data.exact()))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _percentile_paths(
    setting: Setting, percentile: int, updates: int, keys: Array, target: Target, records: Any
) -> DiagonalGaussian:
    solver = setting.solver()

    def step(state: Any, key: Array) -> tuple[Any, None]:
        mean, log_variance, count = state
        batch_key, noise_key = jax.random.split(key)
        chosen = jax.random.bernoulli(batch_key, setting.rate, (RECORDS,))
        gradients = jnp.concatenate(solver.gradients(target, mean, log_variance, records), axis=1)
        norms = jnp.linalg.norm(gradients, axis=1)
        clip = jnp.nanpercentile(jnp.where(chosen, norms, jnp.nan), percentile)
        clip = jnp.where(jnp.isfinite(clip), clip, 1)  # an empty batch
        weights = jnp.where(chosen, clip_weights(norms, clip), 0)
        noise = NOISE_MULTIPLIER * clip * jax.random.normal(noise_key, gradients.shape[1:])
        total = (weights @ gradients + noise) / setting.rate
        size = len(TRUTH)
        return (*solver.descended(mean, log_variance, (total[:size], total[size:]), count), count + 1), None

    def one(key: Array) -> DiagonalGaussian:
        def update(state: Any, key: Array) -> tuple[Any, Any]:
            state, _ = lax.scan(step, state, jax.random.split(key, setting.steps))
            precision = jnp.exp(-state[1])
            return state, DiagonalGaussian(precision * state[0], precision)

        start = (target.start.mean, -jnp.log(target.start.precision), jnp.int32(0))
        return lax.scan(update, start, jax.random.split(key, updates))[1]

    return jax.vmap(one)(keys)


# --- The figures -------------------------------------------------------------------------------------------------


def fig43(quick: bool, seeds: int, track: Track) -> Result:
    """Percentiles and a paid quantile beside fixed clips, three settings."""
    return _figure(FIG43[1:2] if quick else FIG43, quick, seeds, track, remedies=False)


def fig44(quick: bool, seeds: int, track: Track) -> Result:
    """A setting in which a fixed clip of 5 is unstable, with the two remedies that section 4.2.2 proposes."""
    return _figure(FIG44, quick, seeds, track, remedies=not quick)


def fig45(quick: bool, seeds: int, track: Track) -> Result:
    """Another data set, the same settings."""
    return _figure(FIG45, quick, seeds, track, remedies=False)


def _figure(settings: tuple[Setting, ...], quick: bool, seeds: int, track: Track, remedies: bool) -> Result:
    jobs: list[tuple[Setting, str, Any]] = []
    for setting in settings:
        jobs += [(setting, f"C = {clip:g}", clip) for clip in (CLIPS[1:2] if quick else CLIPS)]
        jobs += [(setting, f"percentile {p}", p) for p in (setting.percentiles[:1] if quick else setting.percentiles)]
        jobs += [(setting, name, adaptive) for name, adaptive in list(PAID.items())[: 1 if quick else None]]
        jobs += [(setting, name, more) for name, more in REMEDIES.items() if remedies]
    rows: list[Row] = []
    for setting, method, what in track(jobs):
        updates = updates_until(LIMIT, setting.rate, setting.steps, QUICK_UPDATES if quick else MOST_UPDATES)
        if isinstance(what, int):
            run = percentile_run(setting, what, updates, seeds)
        elif isinstance(what, Adaptive):
            run = paid_run(setting, 1.0, updates, seeds, adaptive=what)
        elif isinstance(what, dict):
            run = paid_run(setting, 5.0, updates, seeds, **what)
        else:
            run = paid_run(setting, what, updates, seeds)
        rows += _rows(setting, method, run, 4 if quick else 7)
    notes = [
        "A percentile of the batch's own norms is a release that the thesis does not pay for: its ε is ∞, and what is "
        "drawn is what the thesis counts (docs/errata.md, 2). epsilon_of_gradients is the price of the noised sums.",
        f"paid quantile: begins at a clip of {Adaptive().start:g} and goes to the quantile 1 - σ/(2√L), L the expected "
        "lot; its count is part of the noised vector, so that ε is that of a fixed clip. It does not use C.",
        "late_log_kl: the mean over the last tenth of updates, with its standard deviation between seeds.",
        "Published: σ = 1, stop when the moments accountant passes ε = 100; the thesis compares with C = 5 alone.",
        "Guessed: the records (drawn once, seed 42), and in figure 4.5 that q and α are those of figure 4.4.",
    ]
    if remedies:
        notes.append("threshold: noised mean gradients are cut to a length of 0.2. decay: α / (1 + steps / 10,000).")
    shown = {
        "sampling_rate": "q",
        "learning_rate": "α",
        "method": "",
        "server_updates": "updates",
        "epsilon": "ε",
        "log_kl_median": "log KL",
        "late_log_kl": "late",
    }
    return Result(rows, notes, shown, _draw(rows, settings))


def _rows(setting: Setting, method: str, run: Run, count: int) -> list[Row]:
    updates = run.log_kl.shape[1]
    is_free = isinstance(run.first, NonPrivate)
    common: Row = {
        "plan": "published" if is_free or method == "C = 5" else "tacit",
        "method": method,
        "sampling_rate": setting.rate,
        "learning_rate": setting.learning_rate,
        "noise_multiplier": NOISE_MULTIPLIER,
    }
    late = run.log_kl[:, -max(1, updates // 10) :].mean(axis=1)
    rows: list[Row] = []
    for update in checkpoints(updates, count):
        steps = setting.steps * update
        of_gradients = accounting.subsampled_plan(NOISE_MULTIPLIER, setting.rate, steps)
        paid = prices(of_gradients if is_free else in_theory(run.event(update)))
        row: Row = {**common, "server_updates": update, "steps": steps, **paid}
        row |= {"epsilon_of_gradients": paid["epsilon"], **({"epsilon": math.inf} if is_free else {})}
        row |= {**scores(run, update), "wobble": wobble(run, update), "late_log_kl": None, "late_sd": None}
        rows.append(row)
    rows[-1] |= {"late_log_kl": float(late.mean()), "late_sd": float(late.std())}
    return rows


def _draw(rows: list[Row], settings: tuple[Setting, ...]) -> Any:
    label = f"ε of the noised gradients, δ = {DELTA:g}"
    found = panels(*((s.title, label, "log KL(q ‖ exact), median") for s in settings), width=5.4, height=4.6)
    names = list(dict.fromkeys(row["method"] for row in rows))
    greys = iter(("0.8", "0.65", "0.5", "0.35"))
    colours = {name: next(greys) for name in names if "percentile" in name}
    colours |= dict(zip([name for name in names if name not in colours], COLOURS, strict=False))
    for axes, setting in zip(found, settings, strict=True):
        for name in names:
            mine = [r for r in rows if (r["method"], r["sampling_rate"]) == (name, setting.rate)]
            values = [r["log_kl_median"] if math.isfinite(r["log_kl_median"]) else math.nan for r in mine]
            style = ":" if "percentile" in name else "o-" if "paid" in name else "--" if name in REMEDIES else "-"
            text = f"{name} (not paid for: ε = ∞)" if "percentile" in name else name
            places = [r["epsilon_of_gradients"] for r in mine]
            axes.plot(places, values, style, color=colours[name], markersize=3, label=text)
        logarithmic(axes, "x")
    handles, labels = found[0].get_legend_handles_labels()
    columns = 5 if len(found) > 1 else 2
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    found[0].figure.legend(handles, labels, **place)
    return found[0]
