"""The plan of a fit: what is released, how often, and with what noise."""

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from tacit.fitting.policy import PLAIN, Rule
from tacit.links import LINKS, Link, link_of
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.mechanism import Exact, Mechanism, SubsampledGaussian, Trial
from tacit.tables.scaling import BINS, histogram_clip, moments_clip
from tacit.tables.standardising import clip_of

FitMethod = Literal["vi", "ep", "sep", "sgld"]

EXACT_STAGES = (3, 3, 4, 4, 6, 10)

MOST_RESIDUAL, LEAST_RESIDUAL = 4.0, 1e-3  # variances of the target: noise may hide a small residual

STEPS, SAMPLING_RATE, LEARNING_RATE, CLIP = 1000, 0.1, 0.02, 1.0  # of models that are not regressions

CHAINS, MOST_SAMPLES = 4, 250  # of Langevin dynamics; samples kept of each chain
FIRST_SHARE = 0.2  # of the steps of Langevin dynamics, before the residual is released


@dataclass(frozen=True)
class FitPlan:
    """All public settings of a fit: what is released, how often, and with what noise.

    noise_multiplier: of all releases together, 0 for none; the policy's rule gives each release its share. numbers:
    the numeric columns of the table; unknown: those of them (and, last, of the target) without public bounds.
    is_adaptive: whether the clip starts at `clip` and then follows the gradients. has_curvature: whether curvature is
    released separately from gradients. learning_rate: Adam's; for Langevin dynamics, a share of the largest step that
    curvature allows.
    """

    method: Literal["natural", "vi", "ep", "sep", "sgld"]
    link: str
    steps: tuple[int, ...]
    clip: float
    curvature_clip: float = 1.0
    sampling_rate: float = 1.0
    learning_rate: float = LEARNING_RATE
    optimiser: Any = None
    is_adaptive: bool = False
    has_curvature: bool = False
    is_table: bool = False
    most_records: int = 1
    numbers: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    scaling: Literal["moments", "bounds"] = "moments"
    rule: Rule = PLAIN
    noise_multiplier: float = 0.0

    @property
    def regression(self) -> Link | None:
        """The link of a regression; None for other models."""
        return LINKS.get(self.link)

    @property
    def scales_target(self) -> bool:
        """Whether the target is a number whose range and mean are needed."""
        return self.is_table and link_of(self.link).target.is_number

    @property
    def learns_scale(self) -> bool:
        """Whether the standard deviation of the target around its mean is released too."""
        return self.is_table and link_of(self.link).learns_scale

    @property
    def columns(self) -> int:
        """How many columns are rescaled."""
        return len(self.numbers) + self.scales_target

    def counts(self) -> dict[str, int]:
        """How often each kind of release is made."""
        is_paid = self.is_table and self.scaling == "moments" and self.columns > 0
        found = {
            "ranges": int(is_paid and bool(self.unknown)),
            "moments": int(is_paid),
            "residual": int(self.learns_scale and (self.has_curvature or self.method == "sgld")),
            "curvature": len(self.steps) if self.has_curvature else 0,
            "gradients": sum(self.steps),
        }
        return {name: count for name, count in found.items() if count}

    def shares(self) -> dict[str, float]:
        """The share of the budget that each kind of release gets."""
        found = {name: getattr(self.rule, name, 0.0) for name in self.counts()}
        return found | {"gradients": 1 - sum(found.values())}

    def mechanisms(self, is_trial: bool = False) -> dict[str, tuple[Mechanism, ...]]:
        """The mechanisms of each kind of release, one per stage for gradients. is_trial: without privacy, to learn."""
        clips = {
            "ranges": histogram_clip(len(self.unknown), self.most_records),
            "moments": moments_clip(self.columns, self.most_records),
            "residual": self.most_records * math.hypot(MOST_RESIDUAL, 1),
            "curvature": self.curvature_clip,
            "gradients": self.clip,
        }
        shares, found = self.shares(), {}
        for name, count in self.counts().items():
            rate, steps, relative = 1.0, (count,), (1.0,)
            if name == "gradients":
                rate, steps, relative = self.sampling_rate, self.steps, self.relative_noise()
            if not is_trial and self.noise_multiplier == 0:
                found[name] = (Exact(rate),) * len(steps)
                continue
            # Budgets add up in 1/σ²: all stages together use the share.
            scale = (
                self.noise_multiplier
                * (sum(n / r**2 for n, r in zip(steps, relative, strict=True)) / shares[name]) ** 0.5
            )
            made = Trial if is_trial else partial(SubsampledGaussian, sampling_rate=rate)
            found[name] = tuple(made(clips[name], r * scale) for r in relative)
        return found

    def relative_noise(self) -> tuple[float, ...]:
        """The relative noise of gradients at each stage."""
        return self.rule.noise if len(self.rule.noise) == len(self.steps) else (1.0,) * len(self.steps)

    def clip_for(self, slots: int, parameters: int) -> Any:
        """The clip of a regression's gradients by the rule. `clip` is still that of a typical record."""
        rule, noise = self.rule, self.noise_multiplier / self.shares()["gradients"] ** 0.5
        return clip_of(
            self.clip, noise, slots, parameters, rule.clip_least, rule.clip_most, rule.clip_slope, rule.clip_power
        )

    def event(self, slots: int, unit: str, parameters: int) -> Event:
        """The event that prices the plan; the run's receipt differs only in the number of coordinates."""
        gradients = 2 * parameters
        if self.method == "sgld":
            gradients = CHAINS * parameters
        elif not self.has_curvature and self.method in ("ep", "sep"):
            gradients = parameters * (parameters + 1)
        sizes = {
            "ranges": BINS * len(self.unknown),
            "moments": 2 * self.columns + 1,
            "residual": 2,
            "curvature": parameters**2,
            "gradients": gradients,
        }
        counts = {name: (count,) for name, count in self.counts().items()} | {"gradients": self.steps}
        return compose(
            *(
                Repeated(mechanism.level_events(slots, unit, sizes[name])[0], count)
                for name, made in self.mechanisms().items()
                for mechanism, count in zip(made, counts[name], strict=True)
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        plain = asdict(replace(self, optimiser=None)) | {"optimiser": "given" if self.optimiser else "default"}
        noise = {
            name: {"releases": self.counts()[name], "share": round(self.shares()[name], 6), **_plain(made)}
            for name, made in self.mechanisms().items()
        }
        return plain | {"releases": noise}


def _plain(made: tuple[Mechanism, ...]) -> dict[str, Any]:
    """Clip and noise; a list with the noise of each stage, if it changes."""
    noise = [mechanism.noise_multipliers[0] for mechanism in made if isinstance(mechanism, SubsampledGaussian)]
    if not noise:
        return {"noise_multiplier": 0.0}
    assert isinstance(made[0], SubsampledGaussian)
    return {"clip": made[0].clips[0], "noise_multiplier": noise[0] if len(set(noise)) == 1 else noise}
