"""The mechanism, noise and cost of each kind of release at a site of a study, from public facts alone."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.federated.evaluation import BINS as SCORE_BINS
from tacit.federated.evaluation import CLIP as EVALUATION_CLIP
from tacit.federated.held_out import HELD_OUT
from tacit.federated.residual import MOST_RESIDUAL
from tacit.federated.secure_terms import Tolerance
from tacit.privacy import accounting
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.filters import Filter
from tacit.privacy.mechanism import Exact, PricedMechanism, SubsampledGaussian
from tacit.privacy.schedules import Schedule, shaped
from tacit.privacy.shared import SharedGaussian
from tacit.study.plan import Plan
from tacit.study.program import GRADIENTS, Program
from tacit.study.sites import Site
from tacit.tables.scaling import BINS, histogram_clip, moments_clip
from tacit.tables.standardising import clip_of

SAMPLING_RATE, LEAST_BATCH = 0.1, 200  # of methods without curvature: at least so many records in a sample on average
CLIP, FACTOR_CLIP = 1.0, 6.0  # of gradients of models that are not regressions, and of factors with their own moments
CHAINS = 4  # of Langevin dynamics
PUBLISHED_RATE, PUBLISHED_CLIP = 0.02, 10.0  # of the published form, if they are left out


@dataclass(frozen=True)
class Releases:
    """The mechanisms of a site's releases, and what they cost.

    size: how many parameters there are. typical: the length of a typical record. most_records: the most records of a
    unit. sites_each: how many sites are behind one answer, where sites are the units. least_slots: of any site.
    tolerance: that of secure sums.
    """

    program: Program
    size: int
    typical: float
    most_records: int
    sites_each: int
    least_slots: int
    tolerance: Tolerance | None

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self.program.plan

    @property
    def sampling_rate(self) -> float:
        """The probability with which a unit is in a sample of gradients."""
        plan = self.plan
        if plan.unit == "site":
            return plan.participation
        if plan.is_natural:
            return plan.sampling_rate
        if plan.vi.sampling_rate is not None:
            return plan.vi.sampling_rate
        if plan.is_published:
            return PUBLISHED_RATE
        if plan.method_used in ("ep", "sep"):
            return 1.0
        return min(1.0, max(SAMPLING_RATE, LEAST_BATCH / self.least_slots))

    @cached_property
    def levels(self) -> Schedule | None:
        """How the noise of gradients changes over the steps of an update; None if it does not."""
        vi = self.plan.vi
        if vi.shape == "constant":
            return None
        return Schedule.of(shaped(vi.shape, self.program.steps, **vi.shape_settings))

    @property
    def own_clip(self) -> float:
        """The clip of gradients (or factors) of methods without curvature."""
        plan = self.plan
        if plan.vi.clip is not None:
            return plan.vi.clip
        if plan.is_published:
            return PUBLISHED_CLIP
        other = FACTOR_CLIP if plan.method_used in ("ep", "sep") else CLIP
        found = other if plan.link is None else self.typical * plan.link.least_clip
        chains = math.sqrt(CHAINS) if plan.method_used == "sgld" else 1.0
        return found * math.sqrt(self.most_records) * chains

    def mechanisms(self, noise_multiplier: float, clip: float) -> dict[str, PricedMechanism]:
        """The mechanism of each kind of release. noise_multiplier: of all releases together. clip: of gradients."""
        plan, rate = self.plan, self.sampling_rate
        if plan.is_published:
            assert plan.vi.noise_multiplier is not None
            noised = SubsampledGaussian(self.own_clip, plan.vi.noise_multiplier, rate)
            return {"gradients": noised if noise_multiplier > 0 else Exact(rate)}
        rates = dict.fromkeys(GRADIENTS, rate) | {"curvature": plan.participation}
        if noise_multiplier == 0:
            return {name: Exact(rates.get(name, 1.0)) for name in self.program.counts}
        settings = self.settings(noise_multiplier, clip)
        if self.levels is not None:
            # Budgets add up in 1/σ²: all levels together have the share of their steps at one noise.
            clip, noise = settings["gradients"]
            pairs = zip(self.levels.steps, self.levels.noise, strict=True)
            scale = noise * (sum(count / other**2 for count, other in pairs) / self.levels.total) ** 0.5
            settings["gradients"] = clip, self.levels.noise_multipliers(scale)
        if self.tolerance is not None:
            of = {"sites": self.tolerance.sites, "honest": self.tolerance.honest}
            return {name: SharedGaussian(*found, **of) for name, found in settings.items()}
        return {name: SubsampledGaussian(*found, rates.get(name, 1.0)) for name, found in settings.items()}

    def settings(self, noise_multiplier: Any, clip: Any) -> dict[str, tuple[Any, Any]]:
        """Clip and noise multiplier of each kind of release; arrays in a program that learns the rule."""
        clips, shares = self._clips(clip), self.program.shares
        return {
            name: (clips[name], noise_multiplier * (count / shares[name]) ** 0.5)
            for name, count in self.program.counts.items()
        }

    def clip_of_gradients(self, noise_multiplier: Any, units: int) -> Any:
        """The clip of gradients by the rule. noise_multiplier: of all sites together; units: at all sites."""
        rule, noise = self.program.rule, noise_multiplier / self.program.shares["gradients"] ** 0.5
        typical = self.typical * math.sqrt(self.most_records)
        return clip_of(
            typical, noise, units, self.size, rule.clip_least, rule.clip_most, rule.clip_slope, rule.clip_power
        )

    def _clips(self, clip: Any) -> dict[str, Any]:
        most, link = self.most_records, self.plan.link
        found = {
            "ranges": histogram_clip(max(1, self.program.unknown), most),
            "scaling": moments_clip(self.program.paid, most),
            "residual": most * math.hypot(MOST_RESIDUAL, 1),
            "curvature": self.typical**2 * math.sqrt(most),
            "early": clip,
            "gradients": clip,
            "evaluation": EVALUATION_CLIP * self._most_held_out(),
        }
        if self.plan.unit == "site":  # a site's update is clipped as it is, a record's relative to the model's units
            assert link is not None
            scale = (self.plan.noise_scale or 1.0) if link.learns_scale else 1.0
            found |= {
                "gradients": clip * link.slope / scale,
                "curvature": found["curvature"] * link.curvature / scale**2,
            }
        return found

    def _most_held_out(self) -> int:
        """The most held-out records of a unit: all of a person's, or a site's as many as it has on average.

        The sum of more is scaled down as a whole.
        """
        is_person = self.plan.unit == "person"
        return self.most_records if is_person else math.ceil(self.most_records / HELD_OUT)

    def event(self, noise_multiplier: float, slots: int) -> Event:
        """The cost of a site's whole part: that of its receipts, or a little more where a method's own sums hold more.

        The numbers that each release holds are part of it, so that a site and its ledger can pay for what they accept.
        """
        counts, made = self.program.counts, self.mechanisms(noise_multiplier, self.own_clip)
        numbers = {
            "ranges": BINS * self.program.unknown,
            "scaling": 2 * self.program.paid + 1,
            "residual": 2,
            "curvature": self.size**2,
            "evaluation": 3 + 3 * SCORE_BINS,
        }
        numbers |= dict.fromkeys(GRADIENTS, self._numbers_of_a_gradient())
        units = self.sites_each if self.plan.unit == "site" else slots
        costs = {name: made[name].level_events(units, self.plan.unit, numbers[name]) for name in counts}
        each: dict[str, tuple[int, ...]] = {name: (count,) for name, count in counts.items()}
        if self.levels is not None and noise_multiplier > 0:
            each["gradients"] = tuple(self.program.rounds * count for count in self.levels.steps)
        return compose(
            *(Repeated(cost, count) for name in counts for cost, count in zip(costs[name], each[name], strict=True))
        )

    def _numbers_of_a_gradient(self) -> int:
        """The most numbers that one release of gradients, or of factors, holds."""
        plan, size = self.plan, self.size
        if plan.is_natural:
            return size
        if plan.method_used == "sgld":
            return CHAINS * size
        if plan.method_used in ("ep", "sep"):
            return size * (size + 1)
        return (4 if plan.vi.per_coordinate else 2) * size + int(plan.vi.is_adaptive)

    def noise_of(self, account: Site, slots: int) -> float:
        """The noise multiplier of all releases together, from an account's budget; 0 for an infinite one."""
        if math.isinf(account.epsilon):
            return 0.0
        if self.plan.is_published:
            assert self.plan.vi.noise_multiplier is not None
            return self.plan.vi.noise_multiplier
        delta = account.delta
        if self.plan.participation == 1:  # leaves room for a ledger with this budget by the Gaussian-DP filter
            delta *= 1 - Filter.of("gaussian", account.epsilon, delta).reserve
        found = accounting.calibrate(
            account.epsilon, delta, plan=lambda noise: self.event(noise, slots), adjacency=self.plan.adjacency
        )
        return found.noise_multiplier
