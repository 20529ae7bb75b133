"""A study as one compiled program, for research on public records."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import Array

from tacit.engines import local
from tacit.engines.schedule import Step
from tacit.federated.pvi import PVI
from tacit.federated.simulated import unledgered
from tacit.study.phases import conduct
from tacit.study.program import INFERENCE
from tacit.study.scores import scores
from tacit.study.setup import Setup
from tacit.tables.scaling import Scaling
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
    keys, made = dict(zip(setup.phases, jax.random.split(key, len(setup.phases)), strict=True)), []
    offsets = {"refinement": setup.program.rounds_in("inference")}

    def play(phase: str, algorithm: Any, scaling: Scaling | None) -> Any:
        accesses = local.stacked(setup.accesses(phase, scaling))
        if phase not in INFERENCE:
            return local.simulate(algorithm, unledgered, keys[phase], accesses, setup.steps(phase))[0]
        asked = setup.steps(phase) if steps is None else steps
        state, states = local.simulate(algorithm, unledgered, keys[phase], accesses, asked, _kept)
        made.append((algorithm, states, scaling, asked, offsets.get(phase, 0)))
        return state

    conduct(setup, play)
    rows, sent = [], 0
    for algorithm, states, scaling, asked, before in made:
        for place, step in enumerate(asked):
            sent += setup.messages(len(step.arrived))
            if scored is None or before + place in scored:
                found = setup.posterior(_posterior(algorithm, states, place), scaling)
                rows.append({"round": before + place + 1, "communications": sent, **scores(found, test)})
    return rows


@jax.jit
def _posterior(algorithm: PVI, states: Any, place: int) -> Any:
    return algorithm.posterior(jax.tree.map(lambda leaf: leaf[place], states))


def _kept(state: Any) -> Any:
    """A coordinator's state without the factors, which are many."""
    return replace(state, factors=()) if hasattr(state, "factors") else state
