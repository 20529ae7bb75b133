"""Jälkö's thesis (2017): figures 5.4 and 5.5, a mixture of five Gaussians by DPVI and DP-SGLD."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import tacit
from tacit.models import GaussianMixture
from tacit.privacy import accounting
from tacit.privacy.events import Event
from tacit.report.style import COLOURS, figure, panels
from tacit.solvers.optimisers import with_resets
from tacit_reproduce import Result, Row, Track, mean_and_error, over_seeds
from tacit_reproduce.drawing import curve, epsilon_axis, legend_beside
from tacit_reproduce.jalko import ACCOUNTANTS, DELTA, LANGEVIN, LANGEVIN_PLD, langevin

_CENTRES = np.array([[0, 0], [2, 2], [-2, -2], [-2, 2], [2, -2]], float)
_VARIANCE = 0.5
MIXTURE_STEPS = {LANGEVIN: 0.1, LANGEVIN_PLD: 0.3}  # of DP-SGLD, times records
MIXTURE_RATE, RESET = 0.05, 10  # of AdaGrad: see the notes; the steps after which it forgets
_MIXTURE_NOTES = [
    "1000 training and 100 test records drawn once; the noise and the start differ by seed.",
    "The thesis's text is followed (sampling rate .03, 1000 steps, clip 1); its code has 2000 records, rate .003, "
    "another prior and four draws a step.",
    f"AdaGrad is reset every {RESET} steps, as in the source's code, which has a rate for each kind of parameter; here "
    f"one rate, {MIXTURE_RATE}: of .02, .03, .05 and .1 the best on these records without noise (within its error) and "
    "at ε = 1. Plain AdaGrad did worse at ε = 1. The last step is taken.",
]


_LANGEVIN_NOTE = (
    f"'{LANGEVIN}': algorithm 2 with its noise formula, rate .03, 150 steps, the last 100 samples (docs/errata.md, 16)."
    f" '{LANGEVIN_PLD}': 1000 steps, noise by PLD. The thesis gives no step size: here {MIXTURE_STEPS[LANGEVIN]:g} / N"
    f" and {MIXTURE_STEPS[LANGEVIN_PLD]:g} / N, of .03 to 10 / N good ones at ε = 1, with gradients clipped to 1."
)


@cache
def _mixture_records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(52)
    records = _CENTRES[rng.integers(0, 5, 1100)] + math.sqrt(_VARIANCE) * rng.normal(size=(1100, 2))
    return records[:1000].astype(np.float32), records[1000:].astype(np.float32)


def _true_log_likelihood(records: np.ndarray) -> float:
    squares = ((records[:, None] - _CENTRES) ** 2).sum(axis=2)
    density = np.exp(-squares / (2 * _VARIANCE)).mean(axis=1) / (2 * math.pi * _VARIANCE)
    return float(np.log(density).mean())


def _mixture_run(setting: "_Mixture", mechanism: Any, steps: int, seeds: int) -> tuple[Array, Any, Event]:
    """For each seed the mean test log-likelihood and the posterior mean of the parameters, and the cost of one run."""
    train, test = _mixture_records()
    model = GaussianMixture(5, 2)
    access = tacit.Access.of(train, mechanism)
    solver = tacit.VI(steps, with_resets(optax.adagrad(MIXTURE_RATE), RESET), average=0.0)
    sampler = setting.sampler(steps)

    def one(key: Array, access: Any, test: Array) -> tuple[Array, Any]:
        start_key, fit_key, draw_key = jax.random.split(key, 3)
        target = tacit.Target(model.prior, model.start(start_key), model)
        if sampler is not None:
            thetas = jax.tree.map(lambda leaf: leaf[:, 0], sampler.samples(fit_key, target, access).value)
            logs = jax.vmap(lambda theta: jax.vmap(model.log_likelihood, (None, 0))(theta, test))(thetas)
            density = jax.nn.logsumexp(logs, axis=0) - math.log(len(logs))
            return jnp.mean(density), model.constrain(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), thetas))
        q = solver(fit_key, target, access).value
        found = model.constrain({name: part.mean for name, part in q.items()})
        return jnp.mean(model.predictive_log_density(q, test, draw_key)), found

    target = tacit.Target(model.prior, model.prior, model)
    event = tacit.price(solver if sampler is None else sampler.samples, tacit.insecure_key(0), target, access)
    return *over_seeds(one, seeds, access, jnp.asarray(test)), event


@dataclass(frozen=True)
class _Mixture:
    """One run of figures 5.4 and 5.5: an ε for an accountant to meet, or none (without noise)."""

    method: str
    accountant: accounting.Accountant | None = None
    epsilon: float = math.inf

    def row(self) -> tuple[Row, Any]:
        """The settings as columns, and the mechanism."""
        noise, rate, steps = None, 0.01, 2000  # without noise
        mechanism: tacit.SubsampledGaussian | tacit.Exact = tacit.Exact(rate)
        is_published = self.method == "as published"
        if self.is_langevin:
            rate, steps = 0.03, 150 if self.method == LANGEVIN else 1000
            _, sampled = self._langevin(steps)
            mechanism, noise = sampled, sampled.noise_multipliers[0]
        elif self.accountant is not None:
            rate, steps = 0.03, 1000
            found = accounting.calibrate(
                self.epsilon, DELTA, sampling_rate=rate, steps=steps, accountant=self.accountant
            )
            noise = found.noise_multiplier * (2 if is_published else 1)
            mechanism = tacit.SubsampledGaussian(1.0, noise, rate)
        row = {
            "dataset": "mixture",
            "plan": "published",
            "method": self.method,
            "accountant": self.accountant,
            "adjacency": None if noise is None else "replace-one" if is_published else "add-remove",
            "epsilon": self.epsilon,
            "delta": DELTA,
            "noise_multiplier": noise,
            "sampling_rate": rate,
            "steps": steps,
            "clip": None if noise is None else 1.0,
        }
        return row, mechanism

    @property
    def is_langevin(self) -> bool:
        return self.method in (LANGEVIN, LANGEVIN_PLD)

    def sampler(self, steps: int) -> Any:
        """The solver of a DP-SGLD run; None for others."""
        return self._langevin(steps)[0] if self.is_langevin else None

    def _langevin(self, steps: int) -> tuple[Any, Any]:
        step, records = MIXTURE_STEPS[self.method], len(_mixture_records()[0])
        return langevin(self.method == LANGEVIN, self.epsilon, 0.03, steps, records, step)


LEAST_OF_MOMENTS = 0.22  # 32 moments reach no ε below ln(1000) / 32 at δ = .001


def _mixtures(quick: bool) -> list[_Mixture]:
    """The runs of figure 5.4."""
    if quick:
        return [_Mixture("not private"), _Mixture("pld", "pld", 1.0), _Mixture("as published", "moments", 1.0)]
    epsilons = (0.1, 0.316, 1.0, 3.16, 10.0)
    found = [_Mixture("not private"), *(_Mixture("as published", "moments", e) for e in epsilons[1:])]
    for accountant in ACCOUNTANTS:
        reached = [e for e in epsilons if accountant != "moments" or e > LEAST_OF_MOMENTS]
        found += [_Mixture(accountant, accountant, e) for e in reached]
    return (
        found + [_Mixture(LANGEVIN, None, e) for e in epsilons] + [_Mixture(LANGEVIN_PLD, "pld", e) for e in epsilons]
    )


def fig54(quick: bool, seeds: int, track: Track) -> Result:
    """Predictive log-likelihood of a mixture of five Gaussians against ε, by accountant, and without noise."""
    rows = []
    for setting in track(_mixtures(quick)):
        row, mechanism = setting.row()
        found, _, event = _mixture_run(setting, mechanism, row["steps"], seeds)
        row |= {"epsilon_pld": tacit.epsilon(event, DELTA), **mean_and_error("log_likelihood", found)}
        rows.append(row)
    best = _true_log_likelihood(_mixture_records()[1])
    rows.append({"dataset": "mixture", "method": "the true mixture", "epsilon": math.inf, "log_likelihood": best})

    label = f"ε at δ = {DELTA:g}, as claimed"
    axes = figure("Mixture of five Gaussians", label, "log-likelihood of a test record", width=7.0)
    for method in dict.fromkeys(row["method"] for row in rows[1:-1]):
        curve(axes, [row for row in rows if row["method"] == method], "log_likelihood", method)
    axes.axhline(rows[0]["log_likelihood"], color="black", linestyle="--", label="not private")
    axes.axhline(best, color="grey", linestyle=":", label="the true mixture")
    epsilon_axis(axes, rows[1:-1])
    legend_beside(axes)
    notes = [
        *_MIXTURE_NOTES,
        "'as published' adds N(0, 4σ²C²) with σ from the moments accountant (docs/errata.md, 8).",
        "The thesis prints no numbers for this figure. The predictive density in its code keeps the last of ten draws.",
        _LANGEVIN_NOTE,
    ]
    shown = {
        "method": "noise",
        "epsilon": "ε",
        "epsilon_pld": "tight ε",
        "noise_multiplier": "multiplier",
        "log_likelihood": "log-likelihood",
    }
    return Result(rows, notes, shown, axes)


def fig55(quick: bool, seeds: int, track: Track) -> Result:
    """The mixture's components found by DPVI and DP-SGLD at ε = 1 beside the true ones; the first seed is drawn."""
    del quick  # four fits are quick enough
    settings = [
        _Mixture("DPVI", "pld", 1.0),
        _Mixture(LANGEVIN_PLD, "pld", 1.0),
        _Mixture(LANGEVIN, None, 1.0),
        _Mixture("not private"),
    ]
    train, _ = _mixture_records()
    found = panels(
        ("DPVI, ε = 1 (add-remove, PLD), δ = 0.001", "", ""),
        ("DP-SGLD, the same ε, δ and accountant", "", ""),
        ("DP-SGLD as published, ε = 1", "", ""),
        ("DPVI without noise", "", ""),
        width=4.4,
        height=4.9,
    )
    rows: list[Row] = []
    for axes, setting in zip(found, track(settings), strict=True):
        row, mechanism = setting.row()
        log_likelihood, theta, event = _mixture_run(setting, mechanism, row["steps"], seeds)
        row["epsilon_pld"] = tacit.epsilon(event, DELTA)
        for seed in range(seeds):
            for k in range(5):
                mean = np.asarray(theta["means"][seed, k], float)
                rows.append(
                    {
                        **row,
                        "seed": seed,
                        "log_likelihood": float(log_likelihood[seed]),
                        "component": k,
                        "weight": float(theta["weights"][seed, k]),
                        "mean_1": float(mean[0]),
                        "mean_2": float(mean[1]),
                        "scale": float(theta["scales"][seed, k]),
                        "distance_to_nearest_true_mean": float(np.linalg.norm(_CENTRES - mean, axis=1).min()),
                    }
                )
        _draw_mixture(axes, train, [r for r in rows if r["method"] == setting.method and r["seed"] == 0])
    notes = [
        *_MIXTURE_NOTES,
        "Circles have a radius of two standard deviations; black is the truth, components found are drawn at their "
        "posterior means, fainter the less weight they have.",
        _LANGEVIN_NOTE,
    ]
    shown = {
        "method": "",
        "seed": "seed",
        "weight": "weight",
        "mean_1": "mean",
        "mean_2": "",
        "scale": "scale",
        "distance_to_nearest_true_mean": "off by",
    }
    return Result(rows, notes, shown, found[0])


def _draw_mixture(axes: Any, records: np.ndarray, components: list[Row]) -> None:
    from matplotlib.patches import Circle

    axes.scatter(records[:, 0], records[:, 1], s=3, color=COLOURS[2], alpha=0.25, linewidths=0)
    radius = 2 * math.sqrt(_VARIANCE)
    for centre in _CENTRES:
        axes.add_patch(Circle(tuple(centre), radius, fill=False, color="black", linewidth=0.8))
        axes.plot(*centre, "o", color="black", markersize=4)
    for row, colour in zip(components, (*COLOURS[:2], *COLOURS[3:6]), strict=True):
        seen = min(1.0, 0.25 + 5 * row["weight"] * 0.75)  # a fifth of the weight is drawn in full
        place = (row["mean_1"], row["mean_2"])
        style = {"color": colour, "alpha": seen}
        axes.add_patch(Circle(place, 2 * row["scale"], fill=False, linestyle="--", linewidth=1.8, **style))
        axes.plot(*place, "o", markersize=6, label=f"weight {row['weight']:.2f}", **style)
    axes.set_aspect("equal")
    axes.set_xlim(-5, 5)
    axes.set_ylim(-5, 5)
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
