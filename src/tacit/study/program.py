"""The program of a study: its releases, how often each is made, its share of each budget, and who is asked.

Each site spends its budget by this rule, in shares of 1/σ², which add up over Gaussian releases:

| release             | how often                       | share                                | communications |
|---------------------|---------------------------------|--------------------------------------|----------------|
| means and variances | once, if there are numbers      | 5 %                                  | 1              |
| curvature Σ w xxᵀ   | at two of the updates           | 20 %                                 |                |
| gradients Σ a x     | at every update                 | the rest                             | `rounds`       |
| held-out scores     | once, if asked for              | `evaluation`                         | 1              |

A secure sum has the noise of one site instead of all sites, so scales and curvature get smaller shares. Gradients
before the second release of curvature are not kept, so they get more noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.engines import schedule
from tacit.engines.schedule import Step
from tacit.federated.secure_terms import STAGES, Tolerance
from tacit.study.plan import Plan

PHASES = ("scaling", "inference", "evaluation")
SHARES = {"scaling": 0.05, "curvature": 0.2}
SECURE_SHARES = {"scaling": 0.02, "curvature": 0.1}
EARLY_NOISE = 2.0  # of early gradients in secure sums, relative to later ones
GRADIENTS = ("early", "gradients")
SECOND_CURVATURE = 0.4  # the share of updates made when curvature is released again
LEAST_ROUNDS = 5  # with fewer, curvature is released once


@dataclass(frozen=True)
class Program:
    """The program of a plan. paid: how many columns have their means and variances released."""

    plan: Plan
    paid: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of releases of each kind."""
        found = {
            "scaling": int(self.paid > 0),
            "curvature": len(self.stages),
            "early": self.early,
            "gradients": self.plan.rounds - self.early,
            "evaluation": int(self.plan.evaluation > 0),
        }
        return {name: count for name, count in found.items() if count}

    @property
    def shares(self) -> dict[str, float]:
        """The part of the budget that each kind of release has."""
        known = (SECURE_SHARES if self.plan.secure_sum else SHARES) | {"evaluation": self.plan.evaluation}
        counts = self.counts
        found = {name: known.get(name, 0.0) for name in counts}
        rest = 1 - sum(found.values())
        weights = {name: counts[name] / EARLY_NOISE ** (2 * (name == "early")) for name in GRADIENTS if name in counts}
        return found | {name: rest * weight / sum(weights.values()) for name, weight in weights.items()}

    @property
    def early(self) -> int:
        """The number of updates with noisier gradients: in secure sums, those before curvature is released again."""
        return self.stages[-1] if self.plan.secure_sum and self.plan.unit == "record" else 0

    @property
    def stages(self) -> tuple[int, ...]:
        """The updates at which curvature is released."""
        rounds = self.plan.rounds
        return (0,) if rounds < LEAST_ROUNDS else (0, round(SECOND_CURVATURE * rounds))

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kind of each update: 0 the first, 2 with curvature, 1 without, 3 without and with less noise."""
        stages, rounds = self.stages, range(self.plan.rounds)
        found = tuple(0 if t == 0 else 2 if t in stages else 1 for t in rounds)
        return tuple(
            3 if self.early and kind == 1 and t > stages[-1] else kind for t, kind in zip(rounds, found, strict=True)
        )

    @property
    def damping(self) -> tuple[float, ...]:
        """2 / (k + 1) of each update, k counted from the last release of curvature: factors average the noise since."""
        last = (max(stage for stage in self.stages if stage <= t) for t in range(self.plan.rounds))
        return tuple(2 / (t - stage + 2) for t, stage in enumerate(last))

    def steps(self, slots: Sequence[int]) -> list[Step]:
        """The schedule, for sites with these numbers of slots."""
        plan, sites = self.plan, len(slots)
        limits = None if plan.method == "vi" else [plan.rounds] * sites
        if plan.schedule == "synchronous":
            # In secure sums, sites drop out in the middle of a sum (`leaving`).
            dropout = 0.0 if plan.secure_sum else plan.dropout
            chances = {"dropout": dropout, "straggling": plan.straggling, "seed": plan.schedule_seed}
            return schedule.synchronous(sites, plan.rounds, limits=limits, **chances)
        if plan.schedule == "sequential":
            return schedule.sequential(sites, plan.rounds, limits=limits)
        rates = schedule.inverse_to_size(slots)
        chances = {"delay": plan.delay, "seed": plan.schedule_seed}
        return schedule.asynchronous(rates, plan.rounds * sites, limits=limits, **chances)

    def leaving(self, round: int, names: Sequence[str]) -> dict[str, int]:
        """In simulated secure sums: the sites that drop out of a round by chance, and the stage at which each does."""
        rng, chance = np.random.default_rng([self.plan.schedule_seed, round]), self.plan.dropout
        drawn = rng.random(len(names)), rng.integers(len(STAGES), size=len(names))
        return {name: int(stage) for name, own, stage in zip(names, *drawn, strict=True) if own < chance}

    def tolerance(self, sites: int) -> Tolerance:
        """The numbers of `sites` sites that may be absent or collude in secure sums."""
        return Tolerance.usual(sites, self.plan.absent, self.plan.colluding)
