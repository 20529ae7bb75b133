"""What is audited: a mechanism alone, a fit, a study of many sites; and attacks on a released posterior.

Mechanisms, access, solvers, algorithms and plans are those that users run. Records are made up and the noise is
seeded; what a site does around an update (its own key, messages, store and ledger) is not part of it, and is what the
mutants of `tests/test_mutants.py` are for. `privacy/audit.py` has the attacker and what his scores prove.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.data.tables import Table
from tacit.engines import local, schedule
from tacit.families import register
from tacit.federated.site import unledgered
from tacit.fitting import prepare
from tacit.privacy import accounting, audit
from tacit.privacy.audit import Canaried
from tacit.privacy.clipping import per_record
from tacit.privacy.events import Adjacency, Event, Repeated, compose
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import SLACK
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released, price, repeat
from tacit.study import Member, Plan, Setup

Tree = Any
Canary = Literal["worst", "mislabelled", "outlying"]
CANARIES: tuple[Canary, ...] = ("worst", "mislabelled", "outlying")
RECORDS, COLUMNS = 20, 3
SITES = 3
MOST_CANARIES = 100_000


@dataclass(frozen=True, eq=False)
class Subject:
    """A program that is audited, what it reads, and what it claims to cost."""

    name: str
    program: Callable[[Array, Any], Released[Any]]
    access: Canaried
    event: Event
    delta: float

    def audit(self, runs: int, *, seed: int, **settings: Any) -> audit.Audit:
        """Run it that often and bound its ε from below (`privacy.audit.audit`)."""
        return audit.audit(self.program, self.access, self.delta, runs, seed=seed, claimed=self.event, **settings)


def made_up(records: int = RECORDS, columns: int = COLUMNS, canary: Canary = "worst", seed: int = 0) -> Table:
    """A table of numbers within [-1, 1] and a target of 0 and 1, whose first record is the canary.

    A mislabelled canary is where the model is surest, with the other label; an outlying one is at a far corner, where
    its neighbours are not.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (records, columns)) * 0.5
    slopes = _slopes(columns)
    y = rng.random(records) < 1 / (1 + np.exp(-x @ slopes))
    x[0] = np.sign(slopes) if canary != "outlying" else np.ones(columns)
    y[0] = canary == "outlying"
    return Table.of(x, y.astype(float), bounds=(-1.0, 1.0), target_bounds=(0.0, 1.0), classes=(0, 1))


def _slopes(columns: int) -> np.ndarray:
    return np.where(np.arange(columns) % 2, -2.0, 2.0).astype(np.float32)


def _access(table: Table) -> Access:
    return Access.of((table.features, table.target.astype(np.float32)), Exact())


def _check_epsilon(epsilon: float) -> None:
    accounting.check_epsilon(epsilon)  # no privacy is no claim to audit


def _canaried(access: Access, canary: Canary) -> Canaried:
    if canary not in CANARIES:
        raise ValueError(f"canary={canary!r}; expected one of {', '.join(CANARIES)}")
    return Canaried.on(access, is_worst=canary == "worst")


def of_mechanism(
    mechanism: SubsampledGaussian, delta: float, steps: int = 1, *, slots: int = 20, columns: int = COLUMNS
) -> Subject:
    """A mechanism alone: a sum of vectors, released `steps` times."""
    vectors = np.random.default_rng(0).normal(size=(slots, columns)).astype(np.float32)
    access = Canaried.on(Access.of(vectors, mechanism))
    contribution = per_record(lambda record: record)

    def program(key: Array, access: Canaried) -> Released[Array]:
        return repeat(key, steps, lambda key, level, _: access.at(level).sum(key, contribution), jnp.zeros(columns))

    return Subject("a mechanism alone", program, access, price(program, insecure_key(0), access), delta)


def of_fit(
    epsilon: float,
    delta: float,
    *,
    canary: Canary = "worst",
    given: Mapping[str, Any] = MappingProxyType({}),
    model: str = "logistic",
    records: int = RECORDS,
    columns: int = COLUMNS,
) -> Subject:
    """What `tacit.fit` runs on a table of made-up records, planned for (ε, δ).

    given: steps, clip, sampling_rate and learning_rate, as for `fit`; a learning rate asks for DPVI by Adam on Poisson
    samples in place of the default rule.
    """
    _check_epsilon(epsilon)
    table = made_up(records, columns, canary)
    access = _access(table)
    _, program = prepare(insecure_key(0), model, table, access, epsilon, delta, given=given)
    canaried = _canaried(access, canary)
    return Subject(f"a {model} fit", program, canaried, price(program, insecure_key(0), canaried), delta)


# --- Many sites --------------------------------------------------------------------------------------------------


@register()
@dataclass(frozen=True)
class Overheard:
    """An algorithm whose sites also send what their releases score: an attacker reads along."""

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
        score = jnp.clip(jnp.nan_to_num(audit.total_score(release)[0], nan=audit.HUGEST), -audit.HUGEST, audit.HUGEST)
        return release.map(lambda new: (new, jnp.clip(state[1] + score, -audit.HUGEST, audit.HUGEST)))

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
    """What a study of many sites runs on made-up records: all updates of the first site, which has the canary.

    budget: (ε, δ) of every site. The canary is a record that is learnt from, so held-out scores are no part of it, and
    the claim is under add-remove, whatever the plan's adjacency. Where whole sites are the unit, the canary is one.
    """
    _check_epsilon(budget[0])
    if plan.schedule == "asynchronous" or plan.dropout or plan.straggling:
        plan = replace(plan, schedule="synchronous", dropout=0.0, straggling=0.0, delay=0)  # what is released is equal
    members = [Member(f"site-{m + 1}", made_up(records, columns, canary, seed=m), *budget) for m in range(sites)]
    if plan.unit == "site":  # all records of the first are like the canary among them
        table, first = members[0].table, np.zeros(records, int)
        members[0] = replace(
            members[0], table=replace(table, features=table.features[first], target=table.target[first])
        )
    setup = Setup(plan, members, capacity=records)
    event, rounds = _affordable(setup, *budget)
    steps = replace(plan, rounds=rounds).steps_of([records] * len(setup.parties))
    everybody = schedule.synchronous(len(setup.parties), 1)
    canaried = [_canaried(setup.records(party), canary) for party in range(len(setup.parties))]

    def program(key: Array, access: Canaried) -> Released[Any]:
        looking = setup.reading([access, *canaried[1:]])
        scaling_key, key = jax.random.split(key)
        score, scaling = jnp.zeros(()), setup.public_scaling()
        if setup.paid:
            moments = setup.scaling()
            (state, scores), _ = _simulated(moments[0], scaling_key, looking.accesses("scaling"), everybody)
            score, scaling = scores[0], setup.scaled(moments, state)
        algorithm = setup.algorithm("inference", 0)
        (state, scores), _ = _simulated(algorithm, key, looking.accesses("inference", scaling), steps)
        found = algorithm.posterior(state), scaling
        return Released(found, trace=((score + scores[0])[None],))

    return Subject(f"a study of {sites} sites", program, canaried[0], event, budget[1])


def _simulated(algorithm: Any, key: Array, accesses: list[Access], steps: list[Any]) -> Any:
    return local.simulate(Overheard(algorithm), unledgered, key, local.stacked(accesses), steps)


def _affordable(setup: Setup, epsilon: float, delta: float) -> tuple[Event, int]:
    """What the first site's part costs, and for how many rounds its budget lasts: its ledger would refuse the next."""
    paid: list[Event] = []
    phases: dict[str, int] = ({"scaling": 1} if setup.paid else {}) | {"inference": setup.plan.rounds}
    for phase, count in phases.items():
        algorithm, access = setup.algorithm(phase, 0), setup.access(phase, 0, setup.public_scaling())
        state = algorithm.site_init()
        _, content = algorithm.broadcast(algorithm.coordinator_init(1))
        prices: dict[int, Event] = {}
        for kind in map(algorithm.kind, range(count)):
            if kind not in prices:
                prices[kind] = price(partial(algorithm.site_step, kind=kind), insecure_key(0), state, content, access)
            paid.append(prices[kind])
    before = len(paid) - setup.plan.rounds
    rounds = setup.plan.rounds
    rule = Filter.of("renyi", epsilon, delta) if setup.plan.method == "vi" else None  # that of its ledger

    def passes(whole: Event) -> bool:
        prices = [accounting.epsilon(whole, delta), 0.0 if rule is None else rule.price(whole, epsilon, delta)]
        return max(prices) > epsilon * (1 + SLACK)

    while passes(_counted(paid[: before + rounds])):
        rounds -= 1
        if rounds == 0:
            raise ValueError(f"epsilon={epsilon} pays for no update of this plan; raise it, or the noise multiplier")
    return _counted(paid[: before + rounds]), rounds


def _counted(paid: list[Event]) -> Event:
    return compose(*(Repeated(event, count) for event, count in Counter(paid).items()))


# --- By name -----------------------------------------------------------------------------------------------------

RUNS = {"fit": 100_000, "vi": 20_000, "sites": 20_000, "mechanism": 200_000}  # within a minute or two on two cores
VI_GIVEN = {"steps": 100, "sampling_rate": 0.1, "learning_rate": 0.02}
ROUNDS = 5  # of a study that is audited by name


def named(
    what: str, epsilon: float, delta: float, canary: Any, steps: int | None = None, sampling_rate: float | None = None
) -> tuple[Subject, int]:
    """What the command line calls fit, vi, sites or mechanism, or a study's file; and how many runs are usual."""
    given = {"steps": steps, "sampling_rate": sampling_rate}
    if what not in ("vi", "mechanism") and any(setting is not None for setting in given.values()):
        raise ValueError("steps and sampling_rate are settings of vi and mechanism; leave them out")
    if what == "fit":
        return of_fit(epsilon, delta, canary=canary), RUNS[what]
    if what == "vi":
        settings = VI_GIVEN | {name: value for name, value in given.items() if value is not None}
        return of_fit(epsilon, delta, canary=canary, given=settings), RUNS[what]
    if what == "sites":
        return of_study(Plan("logistic", rounds=ROUNDS), (epsilon, delta), canary=canary), RUNS[what]
    if what == "mechanism":
        if canary != "worst":
            raise ValueError(f"canary={canary!r}; a mechanism alone has no records, expected worst")
        rate, count = 1.0 if sampling_rate is None else sampling_rate, 1 if steps is None else steps
        noise = accounting.calibrate(epsilon, delta, sampling_rate=rate, steps=count).noise_multiplier
        return of_mechanism(SubsampledGaussian(1.0, noise, rate), delta, count), RUNS[what]
    if not what.endswith(".toml"):
        raise ValueError(f"what={what!r}; expected fit, vi, sites, mechanism, or a study file that ends in .toml")
    from tacit.config import read_study

    found = read_study(Path(what))
    budgets = found.budgets()
    if not all(math.isfinite(epsilon) for epsilon, _ in budgets):
        raise ValueError(
            f"{what} has an infinite epsilon; a study without privacy claims nothing that could be audited"
        )
    # Every site has the most generous budget of them: that is the claim with most to show.
    return of_study(found.plan, max(budgets), canary=canary), RUNS["sites"]


# --- One run -----------------------------------------------------------------------------------------------------


def once(
    epsilon: float, delta: float, canaries: int = 2000, columns: int = 200, confidence: float = 0.95, *, seed: int
) -> dict[str, Any]:
    """One fit with many canaries, each in or out by the toss of a coin, and what guessing them proves."""
    _check_epsilon(epsilon)
    audit.check_confidence(confidence)
    if not 10 <= canaries <= MOST_CANARIES:
        raise ValueError(f"canaries={canaries}; expected from 10 to {MOST_CANARIES}")
    table = made_up(canaries + RECORDS, columns)
    access = _access(table)
    _, program = prepare(insecure_key(0), "logistic", table, access, epsilon, delta)
    canaried = Canaried.on(access, canaries)
    included = np.random.default_rng(seed).random(canaries) < 0.5
    release = program(insecure_key(seed), canaried.having(included))
    scores = np.asarray(audit.total_score(release))
    each = 1 - (1 - confidence) / 2  # both bounds hold together; a fit claims a Gaussian shift, so both test it
    kinds: tuple[audit.Assumption, ...] = ("nothing", "gaussian")
    found = {kind: audit.one_run_bound(scores, included, delta, each, kind) for kind in kinds}
    best = max(kinds, key=lambda kind: found[kind][0])
    lower, guesses, correct = found[best]
    claimed = accounting.epsilon(release.event, delta)
    return {
        "subject": "a logistic fit",
        "canary": "worst",
        "claimed_epsilon": claimed,
        "delta": delta,
        "lower_bound": lower,
        "assumes": best,
        "confidence": confidence,
        "runs": 1,
        "canaries": canaries,
        "guesses": guesses,
        "correct": correct,
        "tightness": lower / claimed,
        "refuted": lower > claimed,
        "adjacency": "add-remove",
        "randomness": "seeded",
    }


# --- Attacks on a released posterior -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """Scores of an attacker in two worlds that he tells apart: `without` and `within`, one for each run.

    event: what was released, `None` without privacy. adjacency: how the two worlds differ.
    """

    without: np.ndarray
    within: np.ndarray
    event: Event | None
    adjacency: Adjacency

    def hits(self, false_positive_rate: float) -> float:
        """How often he is right about the second world, if wrong this often about the first."""
        return float(np.mean(self.within > np.quantile(self.without, 1 - false_positive_rate, method="higher")))

    @property
    def area(self) -> float:
        """Under his ROC curve: how often the second world scores above the first. ½ is guessing."""
        places = np.searchsorted(np.sort(self.without), self.within)
        ends = np.searchsorted(np.sort(self.without), self.within, side="right")
        return float(np.mean(places + ends) / 2 / len(self.without))

    def limit(self, false_positive_rate: float) -> float:
        """The most that any attacker can hit, by the guarantee."""
        if self.event is None:
            return 1.0
        return accounting.true_positive_rate(self.event, false_positive_rate, self.adjacency)


def membership(
    epsilon: float, delta: float = 1e-5, *, runs: int = 2000, records: int = 60, columns: int = 10, seed: int
) -> Attack:
    """Was this person in the data? Scored by how well the released posterior predicts that person.

    The person is an unusual one, whose label nobody would expect. All others are drawn anew for every run: the
    attacker knows the population and not the data.
    """
    return _attack(
        epsilon, delta, runs, records, columns, seed, lambda world: (world == 1, 1.0), _surprise, "add-remove"
    )


def attribute(
    epsilon: float, delta: float = 1e-5, *, runs: int = 2000, records: int = 60, columns: int = 10, seed: int
) -> Attack:
    """Which of two values has this person's first column? Scored by which of them fits the released posterior better.

    The person is in the data in both worlds, and all the rest of the record is known to the attacker.
    """
    return _attack(
        epsilon, delta, runs, records, columns, seed, lambda world: (True, 2.0 * world - 1), _fit, "replace-one"
    )


def _surprise(predict: Callable[[Array], Array], person: Array) -> Array:
    return predict(person)


def _fit(predict: Callable[[Array], Array], person: Array) -> Array:
    return predict(person.at[0].set(1.0)) - predict(person.at[0].set(-1.0))


def _attack(
    epsilon: float,
    delta: float,
    runs: int,
    records: int,
    columns: int,
    seed: int,
    world: Callable[[int], tuple[Any, Any]],
    score: Callable[[Callable[[Array], Array], Array], Array],
    adjacency: Adjacency,
) -> Attack:
    """Fit again and again in two worlds. `world(0 or 1)` says whether the person is there, and the first column."""
    if runs < 2:
        raise ValueError(f"runs={runs}; expected at least 2")
    table = made_up(records, columns)
    blank = _access(table)
    _, program = prepare(
        insecure_key(0), "logistic", table, blank, epsilon, delta, scaling="bounds", adjacency=adjacency
    )
    slopes = jnp.asarray(_slopes(columns))
    person = jnp.sign(slopes)  # where the model is surest of a 1; the label is 0

    @jax.jit
    def scores(keys: Array, is_there: Array, secret: Array) -> Array:
        def one(key: Array) -> Array:
            people, labels, noise = jax.random.split(key, 3)
            x = jax.random.uniform(people, (records, columns), minval=-0.5, maxval=0.5)
            y = jax.random.bernoulli(labels, jax.nn.sigmoid(x @ slopes)).astype(x.dtype)
            x, y = x.at[0].set(person.at[0].set(secret)), y.at[0].set(0)
            given = replace(blank, records=(x[:, None], y[:, None]), present=blank.present.at[0, 0].set(is_there))
            mean, covariance = program(noise, given).value.q

            def predict(record: Array) -> Array:
                """log p(label 0 | record), the posterior averaged by MacKay's approximation."""
                whole = jnp.concatenate([jnp.ones(1), record])
                return jax.nn.log_sigmoid(-(whole @ mean) / jnp.sqrt(1 + jnp.pi / 8 * (whole @ covariance @ whole)))

            return score(predict, person)

        return jax.vmap(one)(keys)

    found = []
    for number in (0, 1):
        keys = jax.random.split(jax.random.fold_in(insecure_key(seed), number), runs // 2)
        found.append(np.asarray(scores(keys, *(jnp.asarray(value) for value in world(number)))))
    event = price(program, insecure_key(0), blank) if math.isfinite(epsilon) else None
    return Attack(found[0], found[1], event, adjacency)
