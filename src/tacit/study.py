"""Many sites, one posterior: `federate(model, members)`. Every site has its own budget, ledger and noise.

Each site spends its budget by this rule, in shares of 1/σ², which add up over Gaussian releases:

| release             | how often                       | share                                | communications |
|---------------------|---------------------------------|--------------------------------------|----------------|
| means and variances | once, if there are numbers      | 5 %                                  | 1              |
| curvature Σ w xxᵀ   | at two of the updates           | 20 %                                 |                |
| gradients Σ a x     | at every update                 | the rest                             | `rounds`       |
| held-out scores     | once, if asked for              | `evaluation`                         | 1              |

An update is one `NaturalStep` on all records of the site: with so few of them, sampling would buy nothing. Factors are
damped by 2 / (k + 1), k counted from the last release of curvature, so that they average the noise of updates since.
`method="vi"` is the published form (Sharma et al. 2019): many steps on samples at each update, with settings that are
given and not derived; there a site goes on until its ledger refuses.
"""

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tacit import diagnostics
from tacit.data.tables import Table
from tacit.engines import local, schedule
from tacit.engines.schedule import Step
from tacit.families import FullGaussian
from tacit.federated.evaluation import CLIP as EVALUATION_CLIP
from tacit.federated.evaluation import Evaluation, summary
from tacit.federated.moments import Moments
from tacit.federated.pvi import PVI, Noise
from tacit.federated.site import Site
from tacit.posterior import Posterior
from tacit.privacy import accounting
from tacit.privacy.events import Adjacency, Event, NonPrivate, Repeated, compose
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.privacy.statement import Statement
from tacit.regression import (
    LINKS,
    PRIOR_DEVIATION,
    REACH,
    bounds_of,
    check_target,
    clip_of,
    in_units,
    measured,
    model_of,
    standardise,
    without_tails,
)
from tacit.scaling import Scaling, moments_clip
from tacit.solvers import VI, NaturalStep

Mechanism = SubsampledGaussian | Exact
SHARES = {"scaling": 0.05, "curvature": 0.2}
SECOND_CURVATURE = 0.4  # of the updates are made when curvature is released again; never for fewer than
LEAST_ROUNDS = 5
FACTOR_GAP = 1e-4  # q may differ from the product of its factors by this, relatively: rounding in single precision
MOST_UNEVEN = 8  # sites of sizes within this factor are padded to one, so that they share a compiled program
KINDS = ("logistic", "probit", "linear")


@dataclass(frozen=True)
class Member:
    """A site of a study: its records, and what of their budget it spends on this study.

    ledger: of the data set, if it has one already, such as from other studies: what is left there must suffice too.
    Without it the study makes one, with this budget.
    """

    name: str
    table: Table
    epsilon: float
    delta: float
    ledger: Path | None = None


@dataclass(frozen=True)
class Plan:
    """All public settings of a study.

    evaluation: the share of each site's budget that pays for scores on held-out records (every fifth is then held out).
    steps to damping are those of method="vi". limits: the most updates of each site. seed is the schedule's.
    """

    link: str
    name: str = "study"
    rounds: int = 20
    schedule: Literal["synchronous", "sequential", "asynchronous"] = "synchronous"
    method: Literal["natural", "vi"] = "natural"
    prior_deviation: float = PRIOR_DEVIATION
    evaluation: float = 0.0
    dropout: float = 0.0
    straggling: float = 0.0
    delay: int = 0
    seed: int = 0
    adjacency: Adjacency = "add-remove"
    noise_scale: float = 1.0
    steps: int = 25
    clip: float = 10.0
    noise_multiplier: float = 5.0
    sampling_rate: float = 0.02
    learning_rate: float = 0.5
    damping: float = 0.1

    def __post_init__(self) -> None:
        if self.link not in KINDS:
            raise ValueError(f"model={self.link!r}; a study of many sites takes one of {', '.join(KINDS)}")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds}; expected a whole number of at least 1")
        if not 0 <= self.evaluation < 1 - sum(SHARES.values()):
            raise ValueError(f"evaluation={self.evaluation}; expected a share of the budget, at least 0 and below 0.75")
        if self.evaluation and (self.link == "linear" or self.method != "natural"):
            raise ValueError("evaluation= is for method='natural' and a target of two classes; leave it out")

    def counts(self, numbers: int) -> dict[str, int]:
        """How often each kind of release is made."""
        found = {
            "scaling": int(numbers > 0),
            "curvature": len(self.stages()),
            "gradients": self.rounds,
            "evaluation": int(self.evaluation > 0),
        }
        return {name: count for name, count in found.items() if count}

    def shares(self, numbers: int) -> dict[str, float]:
        """The part of the budget that each kind of release has."""
        found = {name: (SHARES | {"evaluation": self.evaluation}).get(name, 0.0) for name in self.counts(numbers)}
        return found | {"gradients": 1 - sum(found.values())}

    def stages(self) -> tuple[int, ...]:
        """The updates at which curvature is released."""
        return (0,) if self.rounds < LEAST_ROUNDS else (0, round(SECOND_CURVATURE * self.rounds))

    def steps_of(self, sizes: Sequence[int]) -> list[Step]:
        """The schedule, for sites of these public sizes."""
        sites = len(sizes)
        if self.schedule == "synchronous":
            chances = {"dropout": self.dropout, "straggling": self.straggling, "seed": self.seed}
            return schedule.synchronous(sites, self.rounds, limits=self._limits(sites), **chances)
        if self.schedule == "sequential":
            return schedule.sequential(sites, self.rounds, limits=self._limits(sites))
        rates = schedule.inverse_to_size(sizes)
        return schedule.asynchronous(
            rates, self.rounds * sites, limits=self._limits(sites), delay=self.delay, seed=self.seed
        )

    def _limits(self, sites: int) -> list[int] | None:
        return [self.rounds] * sites if self.method == "natural" else None


@dataclass(frozen=True)
class Federation:
    """What a study found: the posterior, a row for each site and each round, and scores.

    scores: on a public test set, if there is one; released: on held-out records, if it was paid for.
    """

    posterior: Posterior
    sites: list[dict[str, Any]]
    history: list[dict[str, Any]]
    communications: int
    scores: dict[str, Any] | None = None
    released: dict[str, Any] | None = None
    statements: dict[str, str] = field(default_factory=dict)


def federate(
    plan: Plan,
    members: Sequence[Member],
    *,
    out: Path | None = None,
    test: Table | None = None,
    insecure_seed: int | None = None,
    observe: Callable[[str, int, int, dict[str, float]], None] = lambda phase, done, total, spent: None,
) -> Federation:
    """One posterior from many sites' records, each within its own budget by its own ledger.

    out: the folder of the study, in which it can be resumed; each site has a folder there with its ledger and store.
    test: public records to score the posterior on after every round. An ε of infinity is a study without privacy and
    without ledgers. `observe(phase, done, total, spent)` is called as the study moves on.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else out
        return _Run(plan, list(members), folder, test, insecure_seed, observe).whole()


class _Run:
    """One process's work on a study. Sites and coordinator keep to their own folders."""

    def __init__(
        self,
        plan: Plan,
        members: list[Member],
        folder: Path,
        test: Table | None,
        insecure_seed: int | None,
        observe: Callable[[str, int, int, dict[str, float]], None],
    ) -> None:
        _check(plan, members)
        self.plan, self.members, self.folder, self.test, self.observe = plan, members, folder, test, observe
        self.seeded = insecure_seed is not None
        self.key = secure_key() if insecure_seed is None else insecure_key(insecure_seed)
        self.table = members[0].table
        self.numbers = len(self.table.numbers) + (plan.link == "linear")
        self.model = model_of(plan.link, self.table, plan.prior_deviation)
        if plan.link == "linear":
            self.model = replace(self.model, noise_scale=plan.noise_scale)
        self.size = len(self.model.prior.precision_mean)
        self.typical = math.sqrt(1 + len(self.table.numbers) + self.table.categories)
        self.capacities = _capacities([len(member.table.target) for member in members])
        self.noises = [self._noise(member) for member in members]
        noise = math.sqrt(sum(sigma**2 for sigma in self.noises) / plan.shares(self._paid_columns())["gradients"])
        clip = clip_of(plan.link, self.typical, noise, sum(self.capacities), self.size)
        self.mechanisms = [self._mechanisms(sigma, clip) for sigma in self.noises]
        self.accesses = [self._access(*pair) for pair in zip(members, self.capacities, strict=True)]
        self._prepare_folder()
        self.ledgers = [self._ledger(member) for member in members]

    # --- What each site does, from its own budget -----------------------------------------------------------------

    def _paid_columns(self) -> int:
        return self.numbers if self.plan.method == "natural" else 0

    def _mechanisms(self, sigma: float, clip: float) -> dict[str, Mechanism]:
        """How a site makes each kind of release; `clip` is that of gradients."""
        plan, columns = self.plan, self._paid_columns()
        if plan.method == "vi":
            noised = SubsampledGaussian(plan.clip, plan.noise_multiplier, plan.sampling_rate)
            return {"gradients": noised if sigma > 0 else Exact(plan.sampling_rate)}
        counts, shares = plan.counts(columns), plan.shares(columns)
        if sigma == 0:
            return dict.fromkeys(counts, Exact())
        clips = {
            "scaling": moments_clip(columns, is_counted=True),
            "curvature": self.typical**2,
            "gradients": clip,
            "evaluation": EVALUATION_CLIP,
        }
        return {
            name: SubsampledGaussian(clips[name], sigma * math.sqrt(count / shares[name]))
            for name, count in counts.items()
        }

    def _event(self, sigma: float) -> Event:
        """What a site's whole part costs; receipts are the same but for the number of coordinates."""
        counts, made = self.plan.counts(self._paid_columns()), self._mechanisms(sigma, self.typical)
        return compose(*(Repeated(made[name].level_events(1, "record", 1)[0], counts[name]) for name in counts))

    def _noise(self, member: Member) -> float:
        """The noise multiplier of all of a site's releases together, from its own budget; 0 for none."""
        if math.isinf(member.epsilon):
            return 0.0
        if self.plan.method == "vi":
            return self.plan.noise_multiplier
        found = accounting.calibrate(member.epsilon, member.delta, plan=self._event, adjacency=self.plan.adjacency)
        return found.noise_multiplier

    def _algorithm(self, mechanisms: dict[str, Mechanism]) -> PVI:
        """The study's algorithm with one site's noise; the coordinator's is that of any."""
        plan = self.plan
        if plan.method == "vi":
            solver = VI(plan.steps, optax.adagrad(plan.learning_rate), average=0.0)
            return PVI(self.model.prior, self.model, (solver,), damping=(plan.damping,))
        link = LINKS[plan.link]
        scale = plan.noise_scale if plan.link == "linear" else 1.0
        units = (link.slope / scale, link.bend / scale**2)
        curvature = mechanisms["curvature"]
        solvers = (
            NaturalStep(curvature, spread=False, units=units),
            NaturalStep(None, units=units),
            NaturalStep(curvature, units=units),
        )
        stages = plan.stages()
        kinds = [0 if t == 0 else 2 if t in stages else 1 for t in range(plan.rounds)]
        ages = [t - max(stage for stage in stages if stage <= t) for t in range(plan.rounds)]
        damping = tuple(2 / (age + 2) for age in ages)
        gradient, bend = (
            math.sqrt(sum(_deviation(made[name]) ** 2 for made in self.mechanisms)) * unit
            for name, unit in zip(("gradients", "curvature"), units, strict=True)
        )
        noise = Noise(gradient, bend, reach=REACH)
        return PVI(self.model.prior.full(), self.model, solvers, tuple(kinds), damping, noise)

    def _access(self, member: Member, capacity: int) -> Access:
        """All records of a site, yet without a mechanism that adds noise; every reading below has one."""
        records = (member.table.features, member.table.target.astype(np.float32))
        return Access.of(records, Exact(), capacity=capacity)

    def _parts(self, access: Access) -> tuple[Access, Access]:
        """Records to learn from and records to judge by. Which is which is a matter of their places alone."""
        held_out = (np.arange(access.slots) % 5 == 4) & bool(self.plan.evaluation)
        judged = jnp.asarray(held_out)[:, None]
        return replace(access, present=access.present & ~judged), replace(access, present=access.present & judged)

    # --- Folders --------------------------------------------------------------------------------------------------

    def _prepare_folder(self) -> None:
        facts = [self.table.names, self.table.numbers, self.table.low.tolist(), self.table.high.tolist()]
        budgets = [(member.name, member.epsilon, member.delta) for member in self.members]
        plain = json.dumps([asdict(self.plan), facts, budgets, self.capacities], sort_keys=True)
        mark = hashlib.sha256(plain.encode()).hexdigest()
        self.name = f"{self.plan.name}-{mark[:12]}"
        place = self.folder / "study.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if place.exists():
                found = json.loads(place.read_text(encoding="utf-8")).get("plan")
                if found != mark:
                    raise ValueError(
                        f"out={self.folder} holds a study with another plan, whose budget is spent; take a new folder"
                    )
            elif any(self.folder.glob("sites/*/ledger.sqlite")):
                raise ValueError(f"out={self.folder} holds ledgers and no study.json; take a new folder")
            else:
                place.write_text(json.dumps({"plan": mark}) + "\n", encoding="utf-8")
            for member in self.members:
                (self.folder / "sites" / member.name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out={self.folder}: {error.strerror}; expected a folder that can be written to") from None

    def _ledger(self, member: Member) -> Ledger | None:
        if math.isinf(member.epsilon):
            return None
        path = member.ledger or self.folder / "sites" / member.name / "ledger.sqlite"
        if member.ledger is not None or path.exists():
            return Ledger.open(path)
        budget = {"epsilon": member.epsilon, "delta": member.delta, "adjacency": self.plan.adjacency}
        return Ledger.create(path, data_set=member.name, **budget)

    def _sites(self, phase: str, algorithms: Sequence[Any], accesses: Sequence[Access]) -> list[Site]:
        """The sites of one phase, each with a key, a store and a name in its ledger that no other phase has."""
        phase_key = jax.random.fold_in(self.key, ("scaling", "inference", "evaluation").index(phase))
        return [
            Site(
                member.name,
                f"{self.name}/{phase}",
                algorithm,
                access,
                jax.random.fold_in(phase_key, place),
                ledger,
                self.folder / "sites" / member.name / f"{phase}.store",
            )
            for place, (member, algorithm, access, ledger) in enumerate(
                zip(self.members, algorithms, accesses, self.ledgers, strict=True)
            )
        ]

    def spent(self) -> dict[str, float]:
        """ε that each site has spent, by its own ledger."""
        pairs = zip(self.members, self.ledgers, strict=True)
        return {member.name: math.inf if ledger is None else ledger.spent() for member, ledger in pairs}

    # --- Phases ---------------------------------------------------------------------------------------------------

    def _phase(self, phase: str, algorithm: Any, sites: list[Site], steps: list[Any], observe: Any = None) -> Any:
        """Run one phase, from where it was left."""
        place = self.folder / f"{phase}.progress"
        progress = None
        if place.exists():
            progress = local.Progress.from_bytes(place.read_bytes(), algorithm, len(sites))

        def after(now: local.Progress) -> None:
            _replace(place, now.to_bytes())
            if observe is not None:
                observe(now)
            self.observe(phase, now.position, len(steps), self.spent())

        return local.run(algorithm, sites, steps, f"{self.name}/{phase}", progress=progress, observe=after)

    def _scaling(self) -> Scaling:
        """Locations and scales of numbers over all sites: released, or from public bounds."""
        bounds = bounds_of(self.table, self.numbers)
        if not self._paid_columns():
            return Scaling(bounds, (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2)
        plan, numbers = self.plan, self.table.numbers
        algorithms = [Moments(bounds, _deviation(made["scaling"])) for made in self.mechanisms]
        accesses = [
            self._parts(access)[0].map(lambda record: measured(plan.link, numbers, record)).through(made["scaling"])
            for access, made in zip(self.accesses, self.mechanisms, strict=True)
        ]
        sites = self._sites("scaling", algorithms, accesses)
        done = self._phase("scaling", algorithms[0], sites, schedule.synchronous(len(sites), 1))
        noise = math.sqrt(sum(a.noise**2 for a in algorithms) / len(algorithms))
        found = replace(algorithms[0], noise=noise).scaling(done.state)
        return without_tails(len(numbers), found)

    def whole(self) -> Federation:
        """All phases, each from where it was left."""
        plan = self.plan
        scaling = self._scaling()
        ready = [
            access.map(lambda record: standardise(plan.link, self.table.numbers, scaling, record))
            for access in self.accesses
        ]
        algorithms = [self._algorithm(made) for made in self.mechanisms]
        parts = [self._parts(access) for access in ready]
        through = [learn.through(made["gradients"]) for (learn, _), made in zip(parts, self.mechanisms, strict=True)]
        sites = self._sites("inference", algorithms, through)
        steps = plan.steps_of(self.capacities)
        history = _History(self.folder / "history.json")

        def judge(now: local.Progress) -> None:
            state, _ = algorithms[0].broadcast(now.state)
            gap = diagnostics.factor_gap(
                state.q, [self._prior(state), state.refined, state.own, *_factors(state.factors)]
            )
            if gap > FACTOR_GAP:
                raise RuntimeError(f"q is not the product of its factors (gap {gap:.2g}): this is a bug in tacit")
            row: dict[str, Any] = {"round": now.position, "communications": now.communications, "factor_gap": gap}
            if self.test is not None:
                row |= self._scores(self._in_units(algorithms[0].posterior(state), scaling, {}))
            history.add(row)

        done = self._phase("inference", algorithms[0], sites, steps, judge)
        found = algorithms[0].posterior(done.state)
        released = self._evaluate(found, [judged for _, judged in parts]) if plan.evaluation else None
        statements = self._statements()
        posterior = self._in_units(found, scaling, self._words(statements))
        rows = [
            {
                "name": member.name,
                "epsilon": _finite(member.epsilon),
                "delta": member.delta,
                "spent": _finite(spent),
                "updates": site.updates,
                "refused": done.refused.get(place),
            }
            for place, (member, site, spent) in enumerate(zip(self.members, sites, self.spent().values(), strict=True))
        ]
        scores = None if self.test is None else self._scores(posterior)
        words = {name: statement.text() for name, statement in statements.items()}
        return Federation(posterior, rows, history.rows, done.communications, scores, released, words)

    def _prior(self, state: Any) -> Any:
        return self.model.prior.full() if isinstance(state.q, FullGaussian) else self.model.prior

    def _evaluate(self, found: Any, judged: list[Access]) -> dict[str, Any]:
        q = FullGaussian.of(*found) if isinstance(found, tuple) else found
        algorithm = Evaluation(q, self.model)
        made = [mechanisms["evaluation"] for mechanisms in self.mechanisms]
        accesses = [access.through(mechanism) for access, mechanism in zip(judged, made, strict=True)]
        sites = self._sites("evaluation", [algorithm] * len(made), accesses)
        done = self._phase("evaluation", algorithm, sites, schedule.synchronous(len(sites), 1))
        return summary(np.asarray(done.state).sum(axis=0), math.sqrt(sum(_deviation(m) ** 2 for m in made)))

    # --- Results --------------------------------------------------------------------------------------------------

    def _in_units(self, found: Any, scaling: Scaling, common: dict[str, Any]) -> Posterior:
        plain = {"statement": {}, "statement_text": "", "plan": asdict(self.plan)} | common
        residual = jnp.asarray(self.plan.noise_scale) if self.plan.link == "linear" else None
        return in_units(self.plan.link, self.table.numbers, self.table, found, scaling, residual, plain)

    def _scores(self, posterior: Posterior) -> dict[str, Any]:
        assert self.test is not None
        predicted, target = posterior.predict(self.test.features), np.asarray(self.test.target, float)
        if self.plan.link == "linear":
            return {"root_mean_square_error": float(np.sqrt(np.mean((predicted - target) ** 2)))}
        return {
            "accuracy": diagnostics.accuracy(predicted, target),
            "log_likelihood": diagnostics.log_likelihood(predicted, target),
            "calibration_error": diagnostics.calibration_error(predicted, target),
        }

    def _statements(self) -> dict[str, Statement]:
        """What each site is promised: the events of its ledger."""
        found = {}
        for member, ledger, capacity in zip(self.members, self.ledgers, self.capacities, strict=True):
            event = NonPrivate() if ledger is None else compose(*(entry.event for entry in ledger.entries()))
            notes = (
                f"The number of places for records at {member.name}, {capacity}, is public: "
                "that of the largest site of about its size.",
                "Ranges of numeric columns are public bounds, categories and classes are public.",
                *(
                    ("Locations and scales of numeric columns are private releases, summed over all sites.",)
                    if self._paid_columns()
                    else ()
                ),
                "No party is trusted with records or with noise: each site's messages are private by themselves.",
            )
            found[member.name] = Statement.of(
                event, member.delta, seeded=self.seeded, adjacency=self.plan.adjacency, notes=notes
            )
        return found

    def _words(self, statements: dict[str, Statement]) -> dict[str, Any]:
        """The weakest site's statement stands in front; all of them are there."""
        worst = max(statements.values(), key=lambda statement: statement.epsilon)
        sites = {name: statement.to_dict() for name, statement in statements.items()}
        text = "\n".join(f"{name}\n{'-' * len(name)}\n{found.text()}" for name, found in statements.items())
        return {"statement": worst.to_dict() | {"sites": sites}, "statement_text": text}


class _History:
    """Rows of rounds, kept beside the study so that a resumed one has them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def add(self, row: dict[str, Any]) -> None:
        self.rows = [old for old in self.rows if old["round"] < row["round"]] + [row]
        _replace(self.path, json.dumps(self.rows).encode())


def _check(plan: Plan, members: list[Member]) -> None:
    if not members:
        raise ValueError("a study without sites; expected at least one")
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        raise ValueError(f"sites={names}; expected names that differ")
    first = members[0].table
    for member in members:
        if member.name in ("", ".", "..") or any(letter in member.name for letter in "/\\\0"):
            raise ValueError(f"name={member.name!r}; expected a site's name that can name a folder")
        if not member.epsilon > 0:
            raise ValueError(f"epsilon={member.epsilon} of {member.name}; expected a number above 0, or infinity")
        accounting.check_delta(member.delta)
        table = member.table
        same = (table.names, table.numbers) == (first.names, first.numbers)
        if not same or not np.array_equal([table.low, table.high], [first.low, first.high], equal_nan=True):
            raise ValueError(
                f"{member.name} has other columns or bounds than {names[0]}; encode both by the same facts"
            )
        if table.groups is not None:
            raise ValueError(f"{member.name} has several records of a person; a study takes one record of each, so far")
        check_target(plan.link, table)
    private = [math.isfinite(member.epsilon) for member in members]
    if any(private) and not all(private):
        raise ValueError("some sites have an infinite epsilon and others not; give all a budget, or none")
    ends = [*first.low[: len(first.numbers)], *(first.low[-1:] if plan.link == "linear" else [])]
    if any(math.isnan(end) for end in ends):
        raise ValueError("a number (or a numeric target) has no public bounds; a study needs them of every one")


def _capacities(sizes: list[int]) -> list[int]:
    """A public number of places for each site: that of the largest among those of about its size."""
    found: dict[int, int] = {}
    for size in sorted(set(sizes), reverse=True):
        near = [top for top in found.values() if top <= MOST_UNEVEN * max(1, size)]
        found[size] = near[-1] if near else max(1, size)
    return [found[size] for size in sizes]


def _deviation(mechanism: Mechanism) -> float:
    """Of the noise on each coordinate of a scaled sum, in units of the contributions."""
    if isinstance(mechanism, Exact):
        return 0.0
    return mechanism.clips[0] * mechanism.noise_multipliers[0] / mechanism.sampling_rates[0]


def _factors(stacked: Any) -> list[Any]:
    leaves, structure = jax.tree.flatten(stacked)
    return [jax.tree.unflatten(structure, parts) for parts in zip(*leaves, strict=True)]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _replace(path: Path, data: bytes) -> None:
    """All or nothing: a reader finds the old file or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)
