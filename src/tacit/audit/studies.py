"""Audits of a study of many sites."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.canaries import HUGEST, Canaried, Paired, total_score
from tacit.audit.subjects import (
    COLUMNS,
    MOST_BATCH,
    RECORDS,
    SITES,
    Canary,
    Subject,
    canaried,
    made_up,
)
from tacit.basics.trees import Tree
from tacit.engines import local, schedule
from tacit.families import register
from tacit.federated.held_out import held_out, seeded_secret
from tacit.federated.simulated import unledgered
from tacit.privacy import accounting
from tacit.privacy.checks import check_epsilon
from tacit.privacy.events import Event, Repeated, compose
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import SLACK
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price
from tacit.study.plan import Plan
from tacit.study.program import Program
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.table import Table


@register()
@dataclass(frozen=True)
class Eavesdropper:
    """An algorithm whose sites also send the scores of their releases to an attacker."""

    inner: Any

    def coordinator_init(self, sites: int) -> Tree:
        return self.inner.coordinator_init(sites), jnp.zeros(sites)

    def broadcast(self, state: Tree) -> tuple[Tree, Tree]:
        new, content = self.inner.broadcast(state[0])
        return (new, state[1]), content

    def site_init(self) -> Tree:
        return self.inner.site_init(), jnp.zeros(())

    def kind(self, count: int) -> int:
        return self.inner.kind(count)

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        release = self.inner.site_step(key, state[0], content, access, kind)
        score = jnp.clip(jnp.nan_to_num(total_score(release)[0], nan=HUGEST), -HUGEST, HUGEST)
        return release.map(lambda new: (new, jnp.clip(state[1] + score, -HUGEST, HUGEST)))

    def answer(self, state: Tree) -> Tree:
        return self.inner.answer(state[0]), state[1]

    def coordinator_step(self, state: Tree, sites: Array, answers: Tree) -> Tree:
        new = self.inner.coordinator_step(state[0], sites, answers[0])
        return new, state[1].at[sites].set(answers[1])


def of_study(
    plan: Plan,
    budget: tuple[float, float],
    *,
    sites: int = SITES,
    canary: Canary = "worst",
    records: int = RECORDS,
    columns: int = COLUMNS,
) -> Subject:
    """A study of many sites on made-up records: all updates of the first site, which has the canary.

    budget: (ε, δ) of every site. The canary is a training record, so held-out scores are not audited. The claim is
    under add-remove, whatever the plan's adjacency. If whole sites are the unit, the canary is a site.
    """
    check_epsilon(budget[0])
    plan = _all_at_once(plan)
    clinics = [Site(f"site-{m + 1}", made_up(records, columns, canary, seed=m), *budget) for m in range(sites)]
    if plan.unit == "site":  # all records of the first site equal its canary
        table, first = clinics[0].table, np.zeros(records, int)
        clinics[0] = replace(
            clinics[0], table=replace(table, features=table.features[first], target=table.target[first])
        )
    setup = Setup(plan, clinics, slots=records)
    if plan.evaluation:
        setup = setup.splitting({clinics[0].name: _learning_from(clinics[0].table)})
    event, rounds = _affordable(setup, *budget)
    steps = Program(plan.replace(rounds=rounds)).steps([records] * len(setup.respondents))
    marked = [canaried(setup.records(respondent), canary) for respondent in range(len(setup.respondents))]

    def program(key: Array, access: Canaried) -> Released[Any]:
        found, scores = _conducted(setup.reading([access, *marked[1:]]), key, steps)
        return Released(found, trace=(scores[:1],))  # the canary is at the first site

    return Subject(f"a study of {sites} sites", program, marked[0], event, budget[1])


def _conducted(setup: Setup, key: Array, steps: list[Any], judges: bool = False) -> tuple[Any, Array]:
    """Run a study on its setup's records: its result, and the scores of each respondent's releases.

    judges: whether held-out records are evaluated too.
    """
    everybody = schedule.synchronous(len(setup.respondents), 1)
    scaling_key, key = jax.random.split(key)
    judging_key = key
    if judges:
        key, judging_key = jax.random.split(key)
    total, scaling = jnp.zeros(len(setup.respondents)), setup.public_scaling()
    if setup.program.paid:
        moments = setup.scaling()
        (state, total), _ = _simulated(moments[0], scaling_key, setup.accesses("scaling"), everybody)
        scaling = setup.scaled(moments, state)
    algorithm = setup.algorithm("inference", 0)
    (state, scores), _ = _simulated(algorithm, key, setup.accesses("inference", scaling), steps)
    found, total = (algorithm.posterior(state), scaling), total + scores
    if not judges:
        return found, total
    judged = setup.evaluation(found[0])
    (state, scores), _ = _simulated(judged, judging_key, setup.accesses("evaluation", scaling), everybody)
    return (*found, state), total + scores


def of_row(path: Path, site: str | None = None, row: int | None = None, *, seed: int = 0) -> Subject:
    """A study with the records of its own file: the two worlds are a site's file with a row and without it.

    site: by default the first of the file; row: from 0, by default one at random. The row is deleted from the table
    before anything else reads it. Everything that follows (the split into training and held-out records, the slots and
    all phases) is that of a real run, except for messages, stores and ledgers. **Nothing is charged and the noise is
    seeded: the results are not private, so use public or made-up records.**
    """
    from tacit.files.study_file import read_study

    study = read_study(path)
    plan = _all_at_once(study.plan)
    if plan.unit != "record" or plan.method == "vi":
        what = "unit='site', where a row is only a part" if plan.unit != "record" else "method='vi', which samples"
        raise ValueError(f"canary='row' with {what}; use another canary")
    clinics, _ = study.gather()
    names = [site.name for site in clinics]
    if site is not None and site not in names:
        raise ValueError(f"site={site!r}; expected one of {', '.join(names[:10])}")
    place = 0 if site is None else names.index(site)
    check_epsilon(clinics[place].epsilon)
    rows = len(clinics[place].table.target)
    row = int(np.random.default_rng(seed).integers(rows)) if row is None else row
    if not 0 <= row < rows:
        raise ValueError(f"row={row} of {names[place]}; expected one of its {rows} rows, from 0")
    public = Setup(plan, clinics).slots
    clinics = [replace(site, slots=own) for site, own in zip(clinics, public, strict=True)]
    secrets = dict.fromkeys(names, seeded_secret(seed))
    within = Setup(plan, clinics).splitting(secrets)
    fewer = clinics[place].table.rows(np.delete(np.arange(rows), row))
    clinics[place] = replace(clinics[place], table=fewer)
    without = Setup(plan, clinics).splitting(secrets)
    respondent = 0 if plan.secure_sum else place
    most = max(within.records(other).slots for other in range(len(within.respondents)))
    both = [
        Paired.of_both(_padded(without.records(other), most), _padded(within.records(other), most))
        for other in range(len(within.respondents))
    ]
    judges = plan.evaluation > 0
    event, rounds = _affordable(within, clinics[place].epsilon, clinics[place].delta, respondent, judges)
    steps = Program(plan.replace(rounds=rounds)).steps(within.slots[: len(within.respondents)])

    def program(key: Array, access: Paired) -> Released[Any]:
        records = [other.having(access.is_within) for other in both]
        records[respondent] = access
        found, scores = _conducted(within.reading(records), key, steps, judges)
        return Released(found, trace=(jnp.sum(scores, keepdims=True),))  # over all sites: the row must move no other

    size = most * within.releases.typical**4  # numbers of the largest batch of contributions, those of curvature
    batch = int(np.clip(MOST_BATCH / size, 10, 1000))
    words = f"row {row} of {names[place]} in {path.name}"
    return Subject(words, program, both[respondent], event, clinics[place].delta, batch)


def _padded(access: Access, slots: int) -> Access:
    """The same access with empty slots at the end, so that all sites run one program."""

    def pad(leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, slots - access.slots), *[(0, 0)] * (leaf.ndim - 1)])

    return replace(access, records=jax.tree.map(pad, access.records), present=pad(access.present))


def _all_at_once(plan: Plan) -> Plan:
    """The plan on a synchronous schedule with no site away, which releases the same values."""
    if plan.schedule == "asynchronous" or plan.dropout or plan.straggling:
        return plan.replace(schedule="synchronous", dropout=0.0, straggling=0.0, delay=0)
    return plan


def _learning_from(table: Table) -> bytes:
    """A secret that does not hold out the first record, the canary."""
    canary = table.rows(slice(1)).contents()
    return next(secret for secret in map(seeded_secret, itertools.count()) if not held_out(secret, canary)[0])


def _simulated(algorithm: Any, key: Array, accesses: list[Access], steps: list[Any]) -> Any:
    return local.simulate(Eavesdropper(algorithm), unledgered, key, local.stacked(accesses), steps)


def _affordable(
    setup: Setup, epsilon: float, delta: float, respondent: int = 0, judges: bool = False
) -> tuple[Event, int]:
    """The price of a respondent's updates, and for how many rounds its budget lasts: its ledger refuses the next."""
    known: list[Event] = []  # paid whatever the number of rounds
    updates: list[Event] = []
    phases: dict[str, int] = ({"scaling": 1} if setup.program.paid else {}) | ({"evaluation": 1} if judges else {})
    for phase, count in (phases | {"inference": setup.plan.rounds}).items():
        algorithm, access = setup.algorithm(phase, respondent), setup.access(phase, respondent, setup.public_scaling())
        state = algorithm.site_init()
        _, content = algorithm.broadcast(algorithm.coordinator_init(1))
        prices: dict[int, Event] = {}
        for kind in map(algorithm.kind, range(count)):
            if kind not in prices:
                prices[kind] = price(partial(algorithm.site_step, kind=kind), insecure_key(0), state, content, access)
            (updates if phase == "inference" else known).append(prices[kind])
    rule = Filter.of("renyi", epsilon, delta) if setup.plan.method == "vi" else None  # that of its ledger

    def passes(whole: Event) -> bool:
        found = [accounting.epsilon(whole, delta), 0.0 if rule is None else rule.price(whole, epsilon, delta)]
        return max(found) > epsilon * (1 + SLACK)

    while passes(_counted(known + updates)):
        updates.pop()
        if not updates:
            raise ValueError(f"epsilon={epsilon} pays for no update of this plan; raise it, or the noise multiplier")
    return _counted(known + updates), len(updates)


def _counted(paid: list[Event]) -> Event:
    return compose(*(Repeated(event, count) for event, count in Counter(paid).items()))
