"""The mechanism, noise and cost of each kind of release at a site of a study, from public facts alone."""

import math
from dataclasses import dataclass

from tacit.federated.evaluation import BINS
from tacit.federated.evaluation import CLIP as EVALUATION_CLIP
from tacit.federated.held_out import HELD_OUT
from tacit.federated.secure_terms import Tolerance
from tacit.privacy import accounting
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.filters import Filter
from tacit.privacy.mechanism import Exact, PricedMechanism, SubsampledGaussian
from tacit.privacy.shared import SharedGaussian
from tacit.study.plan import Plan
from tacit.study.program import GRADIENTS, Program
from tacit.study.sites import Site
from tacit.tables.scaling import moments_clip


@dataclass(frozen=True)
class Releases:
    """The mechanisms of a site's releases, and what they cost.

    size: how many coefficients there are. typical: the length of a typical record. most_records: the most records of a
    unit. sites_each: how many sites are behind one answer, where sites are the units. tolerance: that of secure sums.
    """

    program: Program
    size: int
    typical: float
    most_records: int
    sites_each: int
    tolerance: Tolerance | None

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self.program.plan

    @property
    def units(self) -> tuple[float, float]:
        """The size of a typical record's slope and curvature."""
        link, scale = self.plan.link, self.plan.noise_scale if self.plan.link.learns_scale else 1.0
        return link.slope / scale, link.curvature / scale**2

    def mechanisms(self, noise_multiplier: float, clip: float) -> dict[str, PricedMechanism]:
        """The mechanism of each kind of release. noise_multiplier: of all releases together. clip: of gradients."""
        plan, vi = self.plan, self.plan.vi
        if plan.method == "vi":
            noised = SubsampledGaussian(vi.clip, vi.noise_multiplier, vi.sampling_rate)
            return {"gradients": noised if noise_multiplier > 0 else Exact(vi.sampling_rate)}
        counts, shares = self.program.counts, self.program.shares
        rates = {"curvature": plan.participation, "gradients": plan.participation}
        if noise_multiplier == 0:
            return {name: Exact(rates.get(name, 1.0)) for name in counts}
        clips = self._clips(clip)
        noises = {name: noise_multiplier * math.sqrt(count / shares[name]) for name, count in counts.items()}
        if self.tolerance is not None:
            of = {"sites": self.tolerance.sites, "honest": self.tolerance.honest}
            return {name: SharedGaussian(clips[name], noise, **of) for name, noise in noises.items()}
        return {name: SubsampledGaussian(clips[name], noise, rates.get(name, 1.0)) for name, noise in noises.items()}

    def _clips(self, clip: float) -> dict[str, float]:
        most = self.most_records
        found = {
            "scaling": moments_clip(self.program.paid, most, is_counted=True),
            "curvature": self.typical**2 * math.sqrt(most),
            "early": clip,
            "gradients": clip,
            # As many held-out records as a site has on average; the sum of more is scaled down as a whole.
            "evaluation": EVALUATION_CLIP * math.ceil(most / HELD_OUT),
        }
        if self.plan.unit == "site":  # a site's update is clipped as it is, a record's relative to the model's units
            slope, curvature = self.units
            found |= {"gradients": clip * slope, "curvature": found["curvature"] * curvature}
        return found

    def event(self, noise_multiplier: float) -> Event:
        """The cost of a site's whole part. Receipts are the same, except for the number of coordinates.

        With secure sums receipts are the same throughout, so that a site can pay for what it accepts.
        """
        counts, made = self.program.counts, self.mechanisms(noise_multiplier, self.typical)
        numbers = {"scaling": 2 * self.program.paid + 1, "curvature": self.size**2, "evaluation": 3 + 3 * BINS}
        numbers |= dict.fromkeys(GRADIENTS, self.size)
        if self.tolerance is None:
            numbers = dict.fromkeys(numbers, 1)
        costs = {name: made[name].level_events(self.sites_each, self.plan.unit, numbers[name])[0] for name in counts}
        return compose(*(Repeated(costs[name], count) for name, count in counts.items()))

    def noise_of(self, account: Site) -> float:
        """The noise multiplier of all releases together, from an account's budget; 0 for an infinite one."""
        if math.isinf(account.epsilon):
            return 0.0
        if self.plan.method == "vi":
            return self.plan.vi.noise_multiplier
        delta = account.delta
        if self.plan.participation == 1:  # leaves room for a ledger with this budget by the Gaussian-DP filter
            delta *= 1 - Filter.of("gaussian", account.epsilon, delta).reserve
        found = accounting.calibrate(account.epsilon, delta, plan=self.event, adjacency=self.plan.adjacency)
        return found.noise_multiplier
