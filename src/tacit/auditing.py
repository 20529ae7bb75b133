"""What is audited: a mechanism alone, a fit, a study of many sites; and attacks on a released posterior.

Mechanisms, access, solvers, algorithms and plans are those that users run. Records are made up, but for a canary that
is a row of a study's file (`of_row`), and the noise is seeded; what a site does around an update (its own key,
messages, store and ledger) is not part of it, and is what the mutants of `tests/test_mutants.py` are for.
`privacy/audit.py` has the attacker and what his scores prove.
"""

import itertools
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
from tacit.federated.held_out import held_out, seeded_secret
from tacit.federated.site import unledgered
from tacit.fitting import prepare
from tacit.privacy import accounting, audit
from tacit.privacy.audit import Canaried, Paired
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
MOST_BATCH = 2e7  # numbers that a batch of runs holds at once, 80 MB


@dataclass(frozen=True, eq=False)
class Subject:
    """A program that is audited, what it reads, and what it claims to cost. batch: how many runs are one program."""

    name: str
    program: Callable[[Array, Any], Released[Any]]
    access: Canaried | Paired
    event: Event
    delta: float
    batch: int = 1000

    def audit(self, runs: int, *, seed: int, **settings: Any) -> audit.Audit:
        """Run it that often and bound its ε from below (`privacy.audit.audit`)."""
        settings = {"batch": self.batch, "claimed": self.event, **settings}
        return audit.audit(self.program, self.access, self.delta, runs, seed=seed, **settings)


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
        raise ValueError(f"canary={canary!r}; expected one of {', '.join((*CANARIES, ROW))}, the last for study files")
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
    plan = _all_at_once(plan)
    members = [Member(f"site-{m + 1}", made_up(records, columns, canary, seed=m), *budget) for m in range(sites)]
    if plan.unit == "site":  # all records of the first are like the canary among them
        table, first = members[0].table, np.zeros(records, int)
        members[0] = replace(
            members[0], table=replace(table, features=table.features[first], target=table.target[first])
        )
    setup = Setup(plan, members, capacity=records)
    if plan.evaluation:
        setup = setup.splitting({members[0].name: _learning_from(members[0].table)})
    event, rounds = _affordable(setup, *budget)
    steps = replace(plan, rounds=rounds).steps_of([records] * len(setup.parties))
    canaried = [_canaried(setup.records(party), canary) for party in range(len(setup.parties))]

    def program(key: Array, access: Canaried) -> Released[Any]:
        found, scores = _conducted(setup.reading([access, *canaried[1:]]), key, steps)
        return Released(found, trace=(scores[:1],))  # the canary is at the first site

    return Subject(f"a study of {sites} sites", program, canaried[0], event, budget[1])


def _conducted(setup: Setup, key: Array, steps: list[Any], judges: bool = False) -> tuple[Any, Array]:
    """A study on the records that its setup reads: what it finds, and what the releases of each party score.

    judges: whether held-out records are scored, too.
    """
    everybody = schedule.synchronous(len(setup.parties), 1)
    scaling_key, key = jax.random.split(key)
    judging_key = key
    if judges:
        key, judging_key = jax.random.split(key)
    total, scaling = jnp.zeros(len(setup.parties)), setup.public_scaling()
    if setup.paid:
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


# --- A row of the file -------------------------------------------------------------------------------------------


def of_row(path: Path, site: str | None = None, row: int | None = None, *, seed: int = 0) -> Subject:
    """A study as its file has it, with its own records: the worlds are a site's file with a row and without it.

    site: by default the first of the file; row: from 0, by default one at random. The row is deleted from the table
    before anything else reads it; what follows, the split into records to learn from and to judge by, the slots and
    all phases, is that of a run, but for messages, stores and ledgers. **Nothing is charged and the noise is seeded:
    what comes out is private to nobody, so take records that are public or made up.**
    """
    from tacit.config import read_study

    study = read_study(path)
    plan = _all_at_once(study.plan)
    if plan.unit != "record" or plan.method == "vi":
        what = "unit='site', of which a row is a part" if plan.unit != "record" else "method='vi', which samples"
        raise ValueError(f"canary='row' of a study with {what}; use another canary")
    members, _ = study.gather()
    names = [member.name for member in members]
    if site is not None and site not in names:
        raise ValueError(f"site={site!r}; expected one of {', '.join(names[:10])}")
    place = 0 if site is None else names.index(site)
    _check_epsilon(members[place].epsilon)
    rows = len(members[place].table.target)
    row = int(np.random.default_rng(seed).integers(rows)) if row is None else row
    if not 0 <= row < rows:
        raise ValueError(f"row={row} of {names[place]}; expected one of its {rows} rows, from 0")
    public = Setup(plan, members).capacities
    members = [replace(member, places=own) for member, own in zip(members, public, strict=True)]
    secrets = dict.fromkeys(names, seeded_secret(seed))
    within = Setup(plan, members).splitting(secrets)
    fewer = members[place].table.rows(np.delete(np.arange(rows), row))
    members[place] = replace(members[place], table=fewer)
    without = Setup(plan, members).splitting(secrets)
    party = 0 if plan.secure_sum else place
    most = max(within.records(other).slots for other in range(len(within.parties)))
    both = [
        Paired.of_both(_padded(without.records(other), most), _padded(within.records(other), most))
        for other in range(len(within.parties))
    ]
    judges = plan.evaluation > 0
    event, rounds = _affordable(within, members[place].epsilon, members[place].delta, party, judges)
    steps = replace(plan, rounds=rounds).steps_of(within.capacities[: len(within.parties)])

    def program(key: Array, access: Paired) -> Released[Any]:
        records = [other.having(access.is_within) for other in both]
        records[party] = access
        found, scores = _conducted(within.reading(records), key, steps, judges)
        return Released(found, trace=(jnp.sum(scores, keepdims=True),))  # a row should not move others' sums: see all

    size = most * within.typical**4  # numbers of the largest batch of contributions, those of curvature
    batch = int(np.clip(MOST_BATCH / size, 10, 1000))
    words = f"row {row} of {names[place]} in {path.name}"
    return Subject(words, program, both[party], event, members[place].delta, batch)


def _padded(access: Access, slots: int) -> Access:
    """The same with empty slots at the end: programs of all sites are one."""

    def pad(leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, slots - access.slots), *[(0, 0)] * (leaf.ndim - 1)])

    return replace(access, records=jax.tree.map(pad, access.records), present=pad(access.present))


def _all_at_once(plan: Plan) -> Plan:
    """The plan on a synchronous schedule from which nobody is away: what is released is equal."""
    if plan.schedule == "asynchronous" or plan.dropout or plan.straggling:
        return replace(plan, schedule="synchronous", dropout=0.0, straggling=0.0, delay=0)
    return plan


def _learning_from(table: Table) -> bytes:
    """A secret by which the first record, the canary, is not held out."""
    canary = table.rows(slice(1)).contents()
    return next(secret for secret in map(seeded_secret, itertools.count()) if not held_out(secret, canary)[0])


def _simulated(algorithm: Any, key: Array, accesses: list[Access], steps: list[Any]) -> Any:
    return local.simulate(Overheard(algorithm), unledgered, key, local.stacked(accesses), steps)


def _affordable(setup: Setup, epsilon: float, delta: float, party: int = 0, judges: bool = False) -> tuple[Event, int]:
    """What a party's part costs, and for how many rounds its budget lasts: its ledger would refuse the next."""
    known: list[Event] = []  # what is paid whatever the rounds
    updates: list[Event] = []
    phases: dict[str, int] = ({"scaling": 1} if setup.paid else {}) | ({"evaluation": 1} if judges else {})
    for phase, count in (phases | {"inference": setup.plan.rounds}).items():
        algorithm, access = setup.algorithm(phase, party), setup.access(phase, party, setup.public_scaling())
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


# --- By name -----------------------------------------------------------------------------------------------------

ROW = "row"  # a canary that is a row of a study's file
# Within a minute or two on two cores; of a row, with a hundred records and a few rounds.
RUNS = {"fit": 100_000, "vi": 20_000, "sites": 20_000, "mechanism": 200_000, ROW: 10_000}
VI_GIVEN = {"steps": 100, "sampling_rate": 0.1, "learning_rate": 0.02}
ROUNDS = 5  # of a study that is audited by name


def named(
    what: str,
    epsilon: float,
    delta: float,
    canary: Any,
    steps: int | None = None,
    sampling_rate: float | None = None,
    *,
    site: str | None = None,
    row: int | None = None,
    seed: int = 0,
) -> tuple[Subject, int]:
    """What the command line calls fit, vi, sites or mechanism, or a study's file; and how many runs are usual."""
    given = {"steps": steps, "sampling_rate": sampling_rate}
    if what not in ("vi", "mechanism") and any(setting is not None for setting in given.values()):
        raise ValueError("steps and sampling_rate are settings of vi and mechanism; leave them out")
    if canary != ROW and (site, row) != (None, None):
        raise ValueError(f"site and row are settings of canary={ROW!r}; leave them out")
    if canary == ROW:
        if not what.endswith(".toml"):
            raise ValueError(f"canary={ROW!r} of {what}; expected a study file that ends in .toml, which is read")
        return of_row(Path(what), site, row, seed=seed), RUNS[ROW]
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
