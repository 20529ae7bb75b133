"""A study as one compiled program, for research on public records."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import Array

from tacit.engines import local, schedule
from tacit.engines.schedule import Step
from tacit.federated.pvi import PVI
from tacit.federated.simulated import unledgered
from tacit.study.scores import scores
from tacit.study.setup import Setup
from tacit.tables.table import Table


def simulate(
    setup: Setup,
    key: Array,
    test: Table,
    steps: list[Step] | None = None,
    scored: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Simulate a study on public records as one compiled program without ledgers; scores on `test` after every step.

    steps: the schedule, the plan's by default. scored: after which steps to score, from 0; all by default.

    For research: `Setup` prices it, and it is private only if the key is. All sites must have the same number of slots.
    """
    scaling_key, key = jax.random.split(key)
    sites = len(setup.respondents)
    if setup.program.paid:
        moments, accesses = setup.scaling(), setup.accesses("scaling")
        state, _ = local.simulate(
            moments[0], unledgered, scaling_key, local.stacked(accesses), schedule.synchronous(sites, 1)
        )
        scaling = setup.scaled(moments, state)
    else:
        scaling = setup.public_scaling()
    algorithms, accesses = setup.inference(), setup.accesses("inference", scaling)
    steps = setup.steps() if steps is None else steps
    _, states = local.simulate(algorithms[0], unledgered, key, local.stacked(accesses), steps, _kept)
    made = np.cumsum([setup.messages(len(step.arrived)) for step in steps])
    rows = []
    for place in range(len(steps)) if scored is None else scored:
        found = _posterior(algorithms[0], states, place)
        scored_by = scores(setup.posterior(found, scaling), test)
        rows.append({"round": place + 1, "communications": int(made[place]), **scored_by})
    return rows


@jax.jit
def _posterior(algorithm: PVI, states: Any, place: int) -> Any:
    return algorithm.posterior(jax.tree.map(lambda leaf: leaf[place], states))


def _kept(state: Any) -> Any:
    """A coordinator's state without the factors, which are many."""
    return replace(state, factors=())
