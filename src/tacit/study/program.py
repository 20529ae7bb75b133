"""The program of a study: its releases, how often each is made, its share of each budget, and who is asked.

Each site, or the only one, spends its budget by the policy's rule, in shares of 1/σ², which add up over Gaussian
releases:

| phase        | release                                            | how often                            |
|--------------|----------------------------------------------------|--------------------------------------|
| `ranges`     | histogram of orders of magnitude                   | once, if a number has no bounds      |
| `scaling`    | means and variances                                | once, if there are numbers           |
| `inference`  | curvature Σ w xxᵀ                                  | at the first round, and once more    |
|              | gradients Σ a x                                    | at every round                       |
| `residual`   | Σ (y - x·m)²                                       | once, if the residual is learned     |
| `refinement` | curvature and gradients anew, at the learned scale | then in all later rounds             |
| `evaluation` | scores on held-out records                         | once, if asked for                   |

Other methods release gradients alone in place of curvature and gradients. Gradients before the second release of
curvature are hardly kept, so a rule may give them more noise. Every phase is a function of what earlier phases
released; a phase that corrects the posterior by simulation would follow `refinement` and cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.engines import schedule
from tacit.engines.schedule import Step
from tacit.federated.secure_terms import STAGES, Tolerance
from tacit.study.plan import Plan
from tacit.study.policy import Rule

PHASES = ("ranges", "scaling", "inference", "residual", "refinement", "evaluation")
INFERENCE = ("inference", "refinement")  # phases that are rounds of the algorithm; each other one is one sum
GRADIENTS = ("early", "gradients")
LEAST_ROUNDS = 5  # with fewer, curvature is released once
ROUNDS, STEPS = 20, 1000  # of methods without curvature: rounds of many sites; steps in all
FACTOR_STEPS = 40  # of expectation propagation with a model's own moments
FIRST_SHARE = 0.2  # of the steps of Langevin dynamics, before the residual is released


@dataclass(frozen=True)
class Program:
    """The program of a plan.

    paid: how many columns have their means and variances released; unknown: how many have their ranges released.
    sites: how many respondents there are. tried: a rule in place of the policy's, whose numbers may be arrays.
    """

    plan: Plan
    paid: int = 0
    unknown: int = 0
    sites: int = 1
    tried: Rule | None = None

    @property
    def rule(self) -> Rule:
        """The policy's rule."""
        return self.plan.rule if self.tried is None else self.tried

    # --- Rounds and steps ---------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How often each site is asked during inference and refinement."""
        if self.plan.rounds is not None:
            return self.plan.rounds
        if self.plan.is_natural:
            return self.rule.rounds
        return ROUNDS if self.plan.is_published or self.sites > 1 else 1

    @property
    def steps(self) -> int:
        """Noised steps of an update; 1 where an update is one release of curvature or of a gradient."""
        plan = self.plan
        if plan.is_natural:
            return 1
        total = FACTOR_STEPS if plan.method_used in ("ep", "sep") else STEPS
        return plan.vi.steps or max(1, round(total / self.rounds))

    @property
    def stages(self) -> tuple[int, ...]:
        """The rounds at which curvature is released. The second one begins the refinement, where there is one."""
        rounds = self.rounds
        if rounds < LEAST_ROUNDS and not self.plan.learns_residual:
            return (0,)
        return 0, min(max(1, round(self.rule.second * rounds)), rounds - 1)

    def rounds_in(self, phase: str) -> int:
        """The number of rounds of a phase."""
        if phase not in INFERENCE or self.plan.method_used == "sgld":
            return 1
        if not self.plan.learns_residual:
            return self.rounds
        return self.stages[1] if phase == "inference" else self.rounds - self.stages[1]

    def steps_in(self, phase: str) -> int:
        """The number of noised steps of an update in a phase."""
        if self.plan.method_used != "sgld" or not self.plan.learns_residual:
            return self.steps
        early = max(1, round(FIRST_SHARE * self.steps))
        return early if phase == "inference" else self.steps - early

    @property
    def early(self) -> int:
        """The number of rounds with gradients of another noise: those before curvature is released again."""
        relative = self.rule.early
        is_even = isinstance(relative, int | float) and relative == 1
        return self.stages[-1] if self.plan.is_natural and self.plan.unit != "site" and not is_even else 0

    def kinds(self, phase: str) -> tuple[int, ...]:
        """The kind of each update: 0 the first, 2 with curvature, 1 without, 3 without and with the later noise."""
        count, stages = self.rounds_in(phase), self.stages
        if phase == "refinement":
            return tuple(0 if t == 0 else 1 for t in range(count))
        found = tuple(0 if t == 0 else 2 if t in stages else 1 for t in range(count))
        return tuple(3 if self.early and kind == 1 and t > stages[-1] else kind for t, kind in enumerate(found))

    def damping(self, phase: str) -> tuple[float, ...]:
        """(1 + a) / (k + a) of each update, k counted from 1 at the last release of curvature, a = `averaging`.

        A factor is then the average of what was released since, with weights that grow like k to the power of a. Before
        the last release of curvature, q is on its way, and the damping is at least `early_damping`.
        """
        count, power = self.rounds_in(phase), self.rule.averaging
        stages = self.stages if phase == "inference" and not self.plan.learns_residual else (0,)
        found = []
        for t in range(count):
            last = max(stage for stage in stages if stage <= t)
            share = (1 + power) / (t - last + 1 + power)
            found.append(share if last == stages[-1] else _larger(share, self.rule.early_damping))
        return tuple(found)

    # --- Releases ---------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> dict[str, int]:
        """The number of releases of each kind."""
        plan = self.plan
        found = {
            "ranges": int(self.unknown > 0),
            "scaling": int(self.paid > 0),
            "residual": int(plan.learns_residual),
            "curvature": len(self.stages) if plan.is_natural else 0,
            "early": self.early,
            "gradients": self.rounds - self.early if plan.is_natural else self.rounds * self.steps,
            "evaluation": int(plan.evaluation > 0),
        }
        return {name: count for name, count in found.items() if count}

    @property
    def shares(self) -> dict[str, float]:
        """The part of the budget that each kind of release has."""
        counts, evaluation = self.counts, self.plan.evaluation
        found = {
            name: evaluation if name == "evaluation" else getattr(self.rule, name) * (1 - evaluation)
            for name in counts
            if name not in GRADIENTS
        }
        rest = 1 - sum(found.values())
        weights = {
            name: counts[name] / self.rule.early ** (2 * (name == "early")) for name in GRADIENTS if name in counts
        }
        return found | {name: rest * weight / sum(weights.values()) for name, weight in weights.items()}

    # --- Who is asked -----------------------------------------------------------------------------------------------

    def schedule(self, slots: Sequence[int], phase: str = "inference") -> list[Step]:
        """The schedule of a phase, for sites with these numbers of slots."""
        plan, sites, rounds = self.plan, len(slots), self.rounds_in(phase)
        if phase not in INFERENCE:
            return schedule.synchronous(sites, 1)
        limits = None if plan.is_published else [rounds] * sites
        if plan.schedule == "synchronous":
            # In secure sums, sites drop out in the middle of a sum (`leaving`).
            dropout = 0.0 if plan.secure_sum else plan.dropout
            chances = {"dropout": dropout, "straggling": plan.straggling, "seed": plan.schedule_seed}
            return schedule.synchronous(sites, rounds, limits=limits, **chances)
        if plan.schedule == "sequential":
            return schedule.sequential(sites, rounds, limits=limits)
        rates = schedule.inverse_to_size(slots)
        chances = {"delay": plan.delay, "seed": plan.schedule_seed}
        return schedule.asynchronous(rates, rounds * sites, limits=limits, **chances)

    def leaving(self, round: int, names: Sequence[str]) -> dict[str, int]:
        """In simulated secure sums: the sites that drop out of a round by chance, and the stage at which each does."""
        rng, chance = np.random.default_rng([self.plan.schedule_seed, round]), self.plan.dropout
        drawn = rng.random(len(names)), rng.integers(len(STAGES), size=len(names))
        return {name: int(stage) for name, own, stage in zip(names, *drawn, strict=True) if own < chance}

    def tolerance(self, sites: int) -> Tolerance:
        """The numbers of `sites` sites that may be absent or collude in secure sums."""
        return Tolerance.usual(sites, self.plan.absent, self.plan.colluding)


def _larger(first: Any, second: Any) -> Any:
    """The larger of two numbers, or of two that a program that learns the rule computes."""
    if isinstance(first, int | float) and isinstance(second, int | float):
        return max(first, second)
    import jax.numpy as jnp

    return jnp.maximum(first, second)
