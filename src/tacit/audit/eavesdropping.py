"""All phases of a study as one program whose releases an attacker scores, and what the program costs."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.audit.canaries import HUGEST, total_score
from tacit.basics.trees import Tree
from tacit.engines import local
from tacit.families import register
from tacit.federated.algorithm import content_for
from tacit.federated.simulated import unledgered
from tacit.privacy import accounting
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.filters import admitting
from tacit.privacy.ledger import SLACK
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price
from tacit.study.phases import Conducted, conduct
from tacit.study.setup import Setup
from tacit.tables.scaling import Scaling


@register("canaries")
@dataclass(frozen=True)
class Eavesdropper:
    """An algorithm whose sites also send the scores of their releases to an attacker, one score for each canary."""

    inner: Any
    canaries: int = 1

    def coordinator_init(self, sites: int) -> Tree:
        return self.inner.coordinator_init(sites), jnp.zeros((sites, self.canaries))

    def broadcast(self, state: Tree) -> tuple[Tree, Tree]:
        new, content = self.inner.broadcast(state[0])
        return (new, state[1]), content

    def addressed(self, content: Tree, site: Any) -> Tree:
        """The part of a broadcast that one site is sent."""
        return content_for(self.inner, content, site)

    def site_init(self) -> Tree:
        return self.inner.site_init(), jnp.zeros(self.canaries)

    def kind(self, count: int) -> int:
        return self.inner.kind(count)

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        release = self.inner.site_step(key, state[0], content, access, kind)
        found = total_score(release)[: self.canaries] if self.canaries else jnp.zeros(0)
        score = jnp.clip(jnp.nan_to_num(found, nan=HUGEST), -HUGEST, HUGEST)
        return release.map(lambda new: (new, jnp.clip(state[1] + score, -HUGEST, HUGEST)))

    def answer(self, state: Tree) -> Tree:
        return self.inner.answer(state[0]), state[1]

    def coordinator_step(self, state: Tree, sites: Array, answers: Tree) -> Tree:
        new = self.inner.coordinator_step(state[0], sites, answers[0])
        return new, state[1].at[sites].set(answers[1])


def eavesdropped(setup: Setup, key: Array, canaries: int = 1, updates: int | None = None) -> tuple[Conducted, Array]:
    """Run all phases of a study on its set-up's records: its result, and (respondents, canaries) of scores.

    Without canaries no release is scored. updates: how many of each respondent's updates its budget pays for, as by
    `affordable`; by default all.
    """
    keys, scores = dict(zip(setup.phases, jax.random.split(key, len(setup.phases)), strict=True)), []

    def play(phase: str, algorithm: Any, scaling: Scaling | None) -> Tree:
        steps = setup.steps(phase)
        if phase == "inference" and updates is not None:
            steps = steps[: len(steps) * updates // setup.program.rounds_in(phase)]
        accesses = local.stacked(setup.accesses(phase, scaling))
        heard = Eavesdropper(algorithm, canaries)
        (state, score), _ = local.simulate(heard, unledgered, keys[phase], accesses, steps)
        scores.append(score)
        return state

    found = conduct(setup, play)
    return found, sum(scores, jnp.zeros_like(scores[0]))


def affordable(setup: Setup, epsilon: float, delta: float, respondent: int = 0) -> tuple[Event, int]:
    """The price of a respondent's part by its receipts, and how many updates of inference are in it.

    These are all of the plan's; where sites go on with a fixed noise, as many as a ledger with this budget pays for.
    """
    prices: list[tuple[str, Event]] = []
    for phase in setup.phases:
        algorithm, access = setup.algorithm(phase, respondent), setup.access(phase, respondent, setup.public_scaling())
        state = algorithm.site_init()
        content = content_for(algorithm, algorithm.broadcast(algorithm.coordinator_init(1))[1], 0)
        known: dict[int, Event] = {}
        for kind in map(algorithm.kind, range(setup.program.rounds_in(phase))):
            if kind not in known:
                known[kind] = price(partial(algorithm.site_step, kind=kind), insecure_key(0), state, content, access)
            prices.append((phase, known[kind]))
    rule = admitting(setup.least(respondent), epsilon, delta) if setup.plan.is_published else None  # its ledger's

    def passes(whole: Event) -> bool:
        found = accounting.epsilon(whole, delta) if rule is None else rule.price(whole, epsilon, delta)
        return found > epsilon * (1 + SLACK)

    while passes(_whole(prices)):
        if not setup.plan.is_published or len(prices) == 1:
            raise ValueError(f"epsilon={epsilon} pays for no update of this plan; raise it, or the noise multiplier")
        prices.pop()
    return _whole(prices), sum(phase == "inference" for phase, _ in prices)


def _whole(prices: list[tuple[str, Event]]) -> Event:
    return compose(*(Repeated(event, count) for event, count in Counter(event for _, event in prices).items()))
