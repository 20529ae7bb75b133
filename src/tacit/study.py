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
`method="ep"` and "sep" put factors of expectation propagation in place of the expansion, for the same price.

`method="vi"` is the published form (Sharma et al. 2019): many steps on samples at each update, with settings that are
given and not derived; there a site goes on until its ledger refuses, or its ε of the study is spent.

Whoever hosts the sites, a study takes of a ledger what its `Allowance` gives, and is not begun before enough sites have
said that they take part: a site that cannot pay for its whole part refuses, and nothing is charged.

With `unit="site"` a budget is that of a whole site, which is one unit with all its records (`federated/tied.py`).
`noise` says who adds it: each site for itself, or a coordinator that is trusted with the sums, has one ledger for all,
and is one party with all sites as its units.
"""

import copy
import hashlib
import itertools
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tacit import diagnostics
from tacit.data.tables import Table
from tacit.engines import coordinator, local, schedule
from tacit.engines.coordinator import Courier, Progress
from tacit.engines.schedule import Step
from tacit.families import FullGaussian
from tacit.federated.assembly import (
    EVERYBODY,
    STAGES,
    Assembly,
    Delegate,
    Terms,
    TooFew,
    Trust,
    new_identity,
    public_identity,
    traces_of,
)
from tacit.federated.evaluation import BINS, Evaluation, summary
from tacit.federated.evaluation import CLIP as EVALUATION_CLIP
from tacit.federated.held_out import HELD_OUT, PUBLIC, held_out, kept_secret, mark_of, seeded_secret
from tacit.federated.messages import Broadcast, Update
from tacit.federated.moments import Moments
from tacit.federated.pvi import PVI, Noise
from tacit.federated.site import SEEDED, Site, Trace, check_complete, trace_of, unledgered
from tacit.federated.tied import Central, Whole, of_sites
from tacit.policy import default_policy
from tacit.posterior import Posterior
from tacit.privacy import accounting
from tacit.privacy.events import Adjacency, Event, NonPrivate, Repeated, compose
from tacit.privacy.filters import Filter, admitting
from tacit.privacy.ledger import Allowance, Entry, Ledger
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.randomness import insecure_key, secure_key
from tacit.privacy.shared import SharedGaussian, empty
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
from tacit.scaling import Range, Scaling, moments_clip
from tacit.solvers import VI, Adaptive, NaturalStep

Mechanism = SubsampledGaussian | Exact
SHARES = {"scaling": 0.05, "curvature": 0.2}
EARLY_NOISE = 2.0  # times that of later gradients: what is found before the second curvature is not kept
_GRADIENTS = {"early", "gradients"}
SECURE_SHARES = {"scaling": 0.02, "curvature": 0.1}  # with the noise of one site where there would be that of all
SECOND_CURVATURE = 0.4  # of the updates are made when curvature is released again; never for fewer than
LEAST_ROUNDS = 5
ROUNDING = 1e-6  # in which the ε of the same releases may differ, relatively, from one machine to another
FACTOR_GAP = 1e-4  # q may differ from the product of its factors by this, relatively: rounding in single precision
MOST_UNEVEN = 8  # sites of sizes within this factor are padded to one, so that they share a compiled program
PHASES = ("scaling", "inference", "evaluation")
OWN = "The ε of this statement is that of this study alone, by its plan; its ledger counts other analyses apart."
ADAPTIVE = "All analyses in the ledger, also those that are chosen after seeing results of others: {words}."
LARGE = "δ is 1 / {units} or more, for {units} {what} (allow_large_delta): it allows that one of them is published."
ABSENT = "{name} took no part in this study and released nothing."
SILENT = "{name} is not in the result; it did not say that it released anything for this study."
ALONE = "The ledger is of this study alone: other studies of the same sites are not counted."
SECRET = "Who is asked in a round is drawn by chance and must stay secret, from the other sites and from the network."
KINDS = ("logistic", "probit", "linear")
METHODS = ("natural", "vi", "ep", "sep")
UNTRUSTED = "No party is trusted with records or with noise: each site's messages are private by themselves."
TRUSTED = (
    "The coordinator is trusted: it adds up what sites send and adds the noise. The promise is about what it "
    "publishes, against everybody else, other sites included."
)
Observer = Callable[[str, int, int, dict[str, float]], None]  # phase, steps done, steps, ε spent by each site
Watcher = Callable[[str, int, int, dict[str, float], Progress], None]  # the same, and how far the phase is
# Bounds on what an honest site can send, which no honest site meets; they keep numbers of others finite.
DEVIATIONS = 10.0  # of noise, beyond its typical length: once in 10²² draws
HUGE = 1e15  # where nothing is clipped, or where many steps are taken on the way: far below where sums overflow


@dataclass(frozen=True)
class Member:
    """A site of a study: its records, and what of their budget it spends on this study.

    ledger: of the data set, if it has one already, such as from other studies: what is left there must suffice too,
    or the site refuses the study. Without it the study makes one, with this budget. places: the public number of places
    for records, which all sites give or none.
    """

    name: str
    table: Table
    epsilon: float
    delta: float
    ledger: Path | None = None
    places: int | None = None


@dataclass(frozen=True)
class Plan:
    """All public settings of a study.

    evaluation: the share of each site's budget that pays for scores on held-out records, which one in five then is on
    average, by its own content (`federated.held_out`).
    steps to is_adaptive are those of method="vi". limits: the most updates of each site. seed is the schedule's.
    unit to participation: whose budget it is. With unit="site": how noise is added; after how many rounds
    noise="central" ties factors; the share of sites that noise="tied" asks in each round, by chance.
    secure_sum: the coordinator learns sums over sites alone, so that each adds a share of one noise; absent and
    pooling: how many sites may drop out of a sum, and how many may pool what they know with the coordinator.
    allow_large_delta: whether δ may be 1 / slots of a site or more, which statements then show.
    """

    link: str
    name: str = "study"
    rounds: int = 20
    schedule: Literal["synchronous", "sequential", "asynchronous"] = "synchronous"
    method: Literal["natural", "vi", "ep", "sep"] = "natural"
    prior_deviation: float = PRIOR_DEVIATION
    evaluation: float = 0.0
    dropout: float = 0.0
    straggling: float = 0.0
    delay: int = 0
    seed: int = 0
    adjacency: Adjacency = "add-remove"
    unit: Literal["record", "site"] = "record"
    noise: Literal["tied", "central", "per-site"] = "tied"
    reset: int | None = None
    participation: float = 1.0
    secure_sum: bool = False
    absent: int | None = None
    pooling: int | None = None
    allow_large_delta: bool = False
    noise_scale: float = 1.0
    steps: int = 25
    clip: float = 10.0
    noise_multiplier: float = 5.0
    sampling_rate: float = 0.02
    learning_rate: float = 0.5
    damping: float = 0.1
    is_adaptive: bool = False

    def __post_init__(self) -> None:
        if self.link not in KINDS:
            raise ValueError(f"model={self.link!r}; a study of many sites takes one of {', '.join(KINDS)}")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds}; expected a whole number of at least 1")
        if not 0 <= self.evaluation < 1 - sum(SHARES.values()):
            raise ValueError(f"evaluation={self.evaluation}; expected a share of the budget, at least 0 and below 0.75")
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r}; a study of many sites takes one of {', '.join(METHODS)}")
        if self.evaluation and (self.link == "linear" or self.method == "vi"):
            raise ValueError("evaluation= is not for method='vi', and for a target of two classes; leave it out")
        for fault in self._faults():
            raise ValueError(fault)

    def _faults(self) -> Iterator[str]:
        """Where settings of whole sites do not fit."""
        is_site = self.unit == "site"
        if self.reset is not None and not (is_site and self.noise == "central" and self.reset >= 1):
            yield f"reset={self.reset}; expected a whole number of at least 1 with unit='site' and noise='central'"
        if not 0 < self.participation <= 1:
            yield f"participation={self.participation}; expected a share above 0 and at most 1"
        if self.participation < 1 and not (is_site and self.noise == "tied"):
            yield f"participation={self.participation}; expected it with unit='site' and noise='tied', so leave it out"
        if is_site and self.method != "natural":
            yield f"unit='site' with method={self.method!r}; expected method='natural'"
        if self.is_pooled and (self.schedule != "synchronous" or self.dropout or self.straggling):
            yield "a coordinator that adds up whole sites asks all at once; expected a synchronous schedule alone"
        if not self.secure_sum and not (self.absent is None and self.pooling is None):
            yield "absent and pooling are settings of secure sums; leave them out, or take secure_sum=True"
        if self.secure_sum and self.method == "vi":
            yield "secure_sum with method='vi', whose steps read what the site released; expected another method"
        if self.secure_sum and (self.schedule != "synchronous" or self.straggling):
            yield "secure_sum adds up all sites in every round; expected schedule='synchronous', and nobody late"
        if self.secure_sum and is_site and (self.noise != "tied" or self.participation < 1):
            yield "secure_sum with unit='site'; expected noise='tied', and all sites in every round"

    @property
    def is_pooled(self) -> bool:
        """Whether one trusted party adds up all sites."""
        return self.unit == "site" and self.noise != "per-site" and not self.secure_sum

    def trust(self, sites: int) -> Trust:
        """Of so many sites, who has to be there and honest, where sums are secure."""
        return Trust.usual(sites, self.absent, self.pooling)

    def counts(self, numbers: int) -> dict[str, int]:
        """How often each kind of release is made."""
        early = self.early()
        found = {
            "scaling": int(numbers > 0),
            "curvature": len(self.stages()),
            "early": early,
            "gradients": self.rounds - early,
            "evaluation": int(self.evaluation > 0),
        }
        return {name: count for name, count in found.items() if count}

    def shares(self, numbers: int) -> dict[str, float]:
        """The part of the budget that each kind of release has."""
        known = (SECURE_SHARES if self.secure_sum else SHARES) | {"evaluation": self.evaluation}
        counts = self.counts(numbers)
        found = {name: known.get(name, 0.0) for name in counts}
        rest = 1 - sum(found.values())
        weights = {name: counts[name] / EARLY_NOISE ** (2 * (name == "early")) for name in _GRADIENTS & set(counts)}
        return found | {name: rest * weight / sum(weights.values()) for name, weight in weights.items()}

    def early(self) -> int:
        """How many of the updates have noisier gradients: of secure sums, those before curvature is released again."""
        return self.stages()[-1] if self.secure_sum and self.unit == "record" else 0

    def stages(self) -> tuple[int, ...]:
        """The updates at which curvature is released."""
        return (0,) if self.rounds < LEAST_ROUNDS else (0, round(SECOND_CURVATURE * self.rounds))

    def steps_of(self, sizes: Sequence[int]) -> list[Step]:
        """The schedule, for sites with these numbers of records."""
        sites = len(sizes)
        if self.schedule == "synchronous":
            chances = {"dropout": self.dropout, "straggling": self.straggling, "seed": self.seed}
            if self.secure_sum:  # who drops out does so in the middle of a sum
                chances["dropout"] = 0.0
            return schedule.synchronous(sites, self.rounds, limits=self._limits(sites), **chances)
        if self.schedule == "sequential":
            return schedule.sequential(sites, self.rounds, limits=self._limits(sites))
        rates = schedule.inverse_to_size(sizes)
        return schedule.asynchronous(
            rates, self.rounds * sites, limits=self._limits(sites), delay=self.delay, seed=self.seed
        )

    def leaving(self, round: int, names: Sequence[str]) -> dict[str, int]:
        """Of secure sums that are simulated: who drops out of a round by chance, and at which stage."""
        rng = np.random.default_rng([self.seed, round])
        chances = rng.random(len(names)), rng.integers(len(STAGES), size=len(names))
        return {name: int(stage) for name, chance, stage in zip(names, *chances, strict=True) if chance < self.dropout}

    def _limits(self, sites: int) -> list[int] | None:
        return None if self.method == "vi" else [self.rounds] * sites


@dataclass(frozen=True)
class Federation:
    """What a study found: the posterior, a row for each site and each round, and scores.

    scores: on a public test set, if there is one; released: on held-out records, if it was paid for. sites: the parties
    with a budget, which is one coordinator where that is trusted: their ε of this study, what of it they have `spent`,
    and what their ledgers have spent in all (`ledger_spent`) of their `budget`, None where that is not known. A site
    that released nothing has a line in place of a statement. members: how many sites there are. name: under which it
    was charged. trust: who has to be honest, where sums are secure; of how many of them each site dropped out is then
    in its row.
    """

    posterior: Posterior
    sites: list[dict[str, Any]]
    history: list[dict[str, Any]]
    communications: int
    scores: dict[str, Any] | None = None
    released: dict[str, Any] | None = None
    statements: dict[str, str] = field(default_factory=dict)
    members: int = 0
    name: str = ""
    trust: str | None = None


def federate(
    plan: Plan,
    members: Sequence[Member],
    *,
    out: Path | None = None,
    test: Table | None = None,
    capacity: int | None = None,
    insecure_seed: int | None = None,
    observe: Observer = lambda phase, done, total, spent: None,
    look: Callable[["Sight"], None] | None = None,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Federation:
    """One posterior from many sites' records, each within its own budget by its own ledger.

    out: the folder of the study, in which it can be resumed; each site has a folder there with its ledger and store.
    test: public records to score the posterior on after every round. capacity: the public number of places of each
    site; that of the largest site of about its size by default. An ε of infinity is a study without privacy and
    without ledgers. `observe(phase, done, total, spent)` is called as the study moves on, and before it `look(sight)`.
    at_least: how many sites must be able to pay for their whole part before any is charged; all by default. say: is
    told who does not take part.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else out
        setup = Setup(plan, members, capacity)
        check_apart(members)
        host = LocalHost(setup, folder, insecure_seed)

        def watch(phase: str, done: int, total: int, spent: dict[str, float], progress: Progress) -> None:
            del progress
            observe(phase, done, total, spent)

        return conduct(setup, folder, host, test=test, observe=watch, look=look, at_least=at_least, say=say)


COORDINATOR = "coordinator"


def owners(plan: Plan, members: Sequence[Member]) -> list[Member]:
    """Who has a budget and a ledger: the sites, or a coordinator for all of them, whose budget is each one's."""
    if not plan.is_pooled:
        return list(members)
    return [replace(members[0], name=COORDINATOR)]


class Setup:
    """What a study's plan comes to at its sites: algorithms and accesses. Nothing here runs, or reads a record.

    capacity: the places of every site, so that all can be simulated as one program; by their own `places`, or by their
    sizes, otherwise. is_remote: the records of most sites, or of all, are elsewhere, and their tables are empty.

    Owners of a budget and a ledger have numbers, in the order of `owners`. Parties are those whose answers the
    coordinator puts together: the owners, or, where sums are secure, all sites as one. All that is said of them is
    public, but for records (`records`, `own_records`) and what is made of them, which is made when it is asked for.
    """

    def __init__(
        self, plan: Plan, members: Sequence[Member], capacity: int | None = None, *, is_remote: bool = False
    ) -> None:
        _check(plan, members, is_remote)
        self.plan, self.members, self.table, self.is_remote = plan, list(members), members[0].table, is_remote
        self.owners = owners(plan, members)
        self.parties = [replace(members[0], name=EVERYBODY)] if plan.secure_sum else self.owners
        self.trust = plan.trust(len(members)) if plan.secure_sum else None
        self.model = model_of(plan.link, self.table, plan.prior_deviation)
        if plan.link == "linear":
            self.model = replace(self.model, noise_scale=plan.noise_scale)
        is_site = plan.unit == "site"
        self.has_places = _has_places(members, capacity, is_remote)
        self.capacities = _places(members, capacity, is_site)
        if is_site:  # one number of places for all: clips rest on it
            self.capacities = [max(self.capacities)] * len(self.owners)
        self._check_deltas()
        # Columns whose means and variances are paid for: the published method has public scales alone.
        self.paid = len(self.table.numbers) + (plan.link == "linear") if plan.method != "vi" else 0
        self.most_records = self.capacities[0] if is_site else 1  # of a unit
        self.units = units = len(members) if is_site else sum(self.capacities)
        self.slots = len(members) if plan.is_pooled or plan.secure_sum else 1  # of a party, where units are sites
        self.typical = math.sqrt(1 + len(self.table.numbers) + self.table.categories)
        by_budget = {(owner.epsilon, owner.delta): owner for owner in self.owners}
        known = {budget: self._noise(owner) for budget, owner in by_budget.items()}
        self._noises = noises = [known[owner.epsilon, owner.delta] for owner in self.owners]
        if self.trust is not None:  # one noise for all, which is enough for each
            self._noises = noises = [max(noises)] * len(noises)
            total = noises[0] * math.sqrt(self.trust.sites / self.trust.honest)
        else:
            total = math.sqrt(sum(sigma**2 for sigma in noises))
        noise = total / math.sqrt(plan.shares(self.paid)["gradients"])
        columns = len(self.model.prior.precision_mean)
        typical, link = self.typical * math.sqrt(self.most_records), LINKS[plan.link]
        clip = clip_of(typical, noise, units, columns, link.least, link.most)
        self.mechanisms = [self._mechanisms(sigma, clip) for sigma in noises]
        self.added = self.mechanisms[: len(self.parties)]  # whose noise adds up in q
        self._held: dict[int, Access] = {}
        self._secrets: Mapping[str, bytes] = {}

    def reading(self, records: Sequence[Access]) -> "Setup":
        """The same, with other records, such as those of an audit."""
        found = copy.copy(self)
        found._held = dict(enumerate(records))
        return found

    def splitting(self, secrets: Mapping[str, bytes]) -> "Setup":
        """The same, where sites (by name) hold out records by these secrets; others by a public word.

        Every host gives them. The guarantee does not rest on them (`federated.held_out`), so that simulations and
        audits may do without.
        """
        found = copy.copy(self)
        found._held, found._secrets = {}, dict(secrets)
        return found

    def _mechanisms(self, sigma: float, clip: float) -> dict[str, Mechanism]:
        """How a site makes each kind of release; `clip` is that of gradients."""
        plan = self.plan
        if plan.method == "vi":
            noised = SubsampledGaussian(plan.clip, plan.noise_multiplier, plan.sampling_rate)
            return {"gradients": noised if sigma > 0 else Exact(plan.sampling_rate)}
        counts, shares = plan.counts(self.paid), plan.shares(self.paid)
        rates = {"curvature": plan.participation, "gradients": plan.participation}
        if sigma == 0:
            return {name: Exact(rates.get(name, 1.0)) for name in counts}
        most = self.most_records
        clips = {
            "scaling": moments_clip(self.paid, most, is_counted=True),
            "curvature": self.typical**2 * math.sqrt(most),
            "early": clip,
            "gradients": clip,
            # Of a site's held-out records, as many as there are on average; of more, the sum is scaled down as one.
            "evaluation": EVALUATION_CLIP * math.ceil(most / HELD_OUT),
        }
        if plan.unit == "site":  # a site's update is clipped as it is, a record's relative to the model's units
            slope, bend = self._units()
            clips |= {"gradients": clip * slope, "curvature": clips["curvature"] * bend}
        noises = {name: sigma * math.sqrt(count / shares[name]) for name, count in counts.items()}
        if self.trust is not None:
            of = {"sites": self.trust.sites, "honest": self.trust.honest}
            return {name: SharedGaussian(clips[name], noise, **of) for name, noise in noises.items()}
        return {name: SubsampledGaussian(clips[name], noise, rates.get(name, 1.0)) for name, noise in noises.items()}

    def _units(self) -> tuple[float, float]:
        """The size of a typical record's slope and bend."""
        link, scale = LINKS[self.plan.link], self.plan.noise_scale if self.plan.link == "linear" else 1.0
        return link.slope / scale, link.bend / scale**2

    def _event(self, sigma: float) -> Event:
        """What a site's whole part costs; receipts are the same but for the number of coordinates.

        Of secure sums they are all the same, so that what a site accepts it can pay for.
        """
        counts, made = self.plan.counts(self.paid), self._mechanisms(sigma, self.typical)
        size = len(self.model.prior.precision_mean)
        numbers = {"scaling": 2 * self.paid + 1, "curvature": size**2, "evaluation": 3 + 3 * BINS}
        numbers |= dict.fromkeys(_GRADIENTS, size)
        if self.trust is None:
            numbers = dict.fromkeys(numbers, 1)
        costs = {name: made[name].level_events(self.slots, self.plan.unit, numbers[name])[0] for name in counts}
        return compose(*(Repeated(costs[name], count) for name, count in counts.items()))

    def _noise(self, member: Member) -> float:
        """The noise multiplier of all of a site's releases together, from its own budget; 0 for none."""
        if math.isinf(member.epsilon):
            return 0.0
        if self.plan.method == "vi":
            return self.plan.noise_multiplier
        delta = member.delta
        if self.plan.participation == 1:  # room for a ledger by the Gaussian-DP filter, with this budget alone
            delta *= 1 - Filter.of("gaussian", member.epsilon, delta).reserve
        return accounting.calibrate(
            member.epsilon, delta, plan=self._event, adjacency=self.plan.adjacency
        ).noise_multiplier

    def _check_deltas(self) -> None:
        """A δ of 1 / units or more is refused, by the public number of slots of a site or by that of sites."""
        for owner, units in zip(self.owners, self.protected, strict=True):
            if math.isinf(owner.epsilon):
                continue
            try:
                accounting.check_delta_of(owner.delta, units, self.plan.allow_large_delta)
            except ValueError as error:
                words = str(error).replace("record", "site") if self.plan.unit == "site" else str(error)
                raise ValueError(f"{owner.name}: {words}") from None

    @property
    def protected(self) -> list[int]:
        """The public number of units that each owner's budget protects."""
        return [len(self.members)] * len(self.owners) if self.plan.unit == "site" else self.capacities

    def remarks(self, owner: int) -> tuple[str, ...]:
        """What an owner's statement must say of its δ."""
        units, what = self.protected[owner], "sites" if self.plan.unit == "site" else "slots for records"
        is_large = math.isfinite(self.owners[owner].epsilon) and self.owners[owner].delta * units >= 1
        return (LARGE.format(units=units, what=what),) if is_large else ()

    def least(self, owner: int) -> Event:
        """What an owner must be able to pay to begin: its whole part, or one update where there is no whole."""
        whole = self.cost(owner)
        if whole is not None:
            return whole
        slots = self.slots if self.plan.unit == "site" else self.capacities[owner]
        size = len(self.model.prior.precision_mean)
        step, *_ = self.mechanisms[owner]["gradients"].level_events(slots, self.plan.unit, size)
        return Repeated(step, self.plan.steps)

    def cost(self, owner: int) -> Event | None:
        """What an owner's whole part costs; None where it goes on until its ledger refuses."""
        return None if self.plan.method == "vi" else self._event(self._noises[owner])

    # --- Records --------------------------------------------------------------------------------------------------

    def records(self, party: int) -> Access:
        """All records of a party, yet without noise: everything below reads them through a mechanism of the plan."""
        if party not in self._held:
            is_one = self.plan.is_pooled or self.plan.secure_sum
            places = sum(self.capacities) if is_one and self.plan.unit == "record" else self.capacities[party]
            self._held[party] = self._records(self.members if is_one else [self.members[party]], places)
        return self._held[party]

    def own_records(self, owner: int) -> Access:
        """Those of one site alone, where sums are secure."""
        return self._records([self.members[owner]], self.capacities[owner])

    def form(self, phase: str, scaling: Scaling | None = None) -> Access:
        """What `own_access` gives, of any site, with nothing in it."""
        table = self.table.without_records()
        width = table.features.shape[1]
        one = replace(table, features=np.zeros((1, width), np.float32), target=np.zeros(1), digests=None)
        member = replace(self.members[0], table=one)
        return empty(self._read(phase, self._records([member], self.capacities[0]), self.mechanisms[0], scaling))

    def _records(self, members: Sequence[Member], places: int) -> Access:
        held = [
            (member.table.features, member.table.target.astype(np.float32), self._held_out(member))
            for member in members
        ]
        if self.plan.unit == "site":
            return of_sites(held, Exact(), records=places)
        together = held[0] if len(held) == 1 else tuple(map(np.concatenate, zip(*held, strict=True)))
        return Access.of(together, Exact(), capacity=places)

    def access(self, phase: str, party: int, scaling: Scaling | None = None) -> Access:
        """A party's records as a phase reads them. scaling: that of the study, for all phases but its own."""
        return self._read(phase, self.records(party), self.mechanisms[party], scaling)

    def own_access(self, phase: str, owner: int, scaling: Scaling | None = None) -> Access:
        """One site's records as a phase reads them, where sums are secure."""
        return self._read(phase, self.own_records(owner), self.mechanisms[owner], scaling)

    def _read(self, phase: str, held: Access, made: dict[str, Mechanism], scaling: Scaling | None) -> Access:
        link, numbers = self.plan.link, self.table.numbers
        if phase != "scaling" and scaling is None:
            raise ValueError(f"phase={phase!r} reads records that are scaled; give the scaling of the study")
        is_judged = phase == "evaluation"
        part = held.where(lambda record: record[2] == is_judged).through(
            made["gradients" if phase == "inference" else phase]
        )
        if scaling is None or phase == "scaling":
            return part.map(lambda record: measured(link, numbers, record[:2]))
        return part.map(lambda record: standardise(link, numbers, scaling, record[:2]))

    def accesses(self, phase: str, scaling: Scaling | None = None) -> list[Access]:
        """`access` of all parties."""
        return [self.access(phase, party, scaling) for party in range(len(self.parties))]

    def _held_out(self, member: Member) -> np.ndarray:
        """Which records of a site are judged by, in place of being learnt from: a matter of each record alone."""
        if not self.plan.evaluation:
            return np.zeros(len(member.table.target), bool)
        return held_out(self._secrets.get(member.name, PUBLIC), member.table.contents())

    # --- Phases ---------------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """The schedule. Where sites are asynchronous, those with more places are slower.

        By the public places, and never by the records: who answered when is published.
        """
        return self.plan.steps_of(self.capacities[: len(self.parties)])

    def messages(self, answers: int) -> int:
        """How many messages of sites so many answers of parties are, in expectation where sites are sampled."""
        is_one = self.plan.is_pooled or self.plan.secure_sum
        each = len(self.members) * self.plan.participation if is_one else 1
        return round(answers * each)

    def bounds(self) -> Range:
        """Public bounds of all columns that are rescaled."""
        return bounds_of(self.table, len(self.table.numbers) + (self.plan.link == "linear"))

    def algorithm(self, phase: str, party: int) -> Any:
        """What a party runs in a phase."""
        if phase == "scaling":
            return Moments(self.bounds(), self.mechanisms[party]["scaling"].deviation)
        return self.evaluation() if phase == "evaluation" else self._algorithm(self.mechanisms[party])

    def terms(self, phase: str, study: str, roster: Mapping[str, bytes]) -> Terms:
        """What sites and the coordinator must know alike of a phase's secure sums. roster: the keys of all sites."""
        assert self.trust is not None
        rounds = self.plan.rounds if phase == "inference" else 1
        return Terms(study, self.algorithm(phase, 0), self.trust, roster, self.units, rounds)

    def most_updates(self, phase: str) -> int | None:
        """How many updates a site makes in a phase; None where its ledger alone says when to end."""
        if phase != "inference":
            return 1
        return None if self.plan.method == "vi" and not self.is_remote else self.plan.rounds

    def answer_shape(self, phase: str) -> Any:
        """Of what a party sends, as `jax.ShapeDtypeStruct`s."""
        algorithm = self.algorithm(phase, 0)
        return jax.eval_shape(algorithm.answer, jax.eval_shape(algorithm.site_init))

    def limits(self, phase: str) -> list[Any]:
        """For each party, the largest norm that each array of an honest answer can have.

        A sum over n units that are clipped has norm nC at most, and its noise √d of its deviations, for d numbers, and
        hardly ten more. A factor is an average of sums (g + Hm, H), and q's mean m moves by `REACH` at most whenever
        something has arrived. Twice that leaves room for rounding.
        """
        shape = self.answer_shape(phase)
        leaves, form = jax.tree.flatten(shape)
        found = []
        for made, places in zip(self.added, self.capacities, strict=False):
            units = self.slots if self.plan.unit == "site" else self.units if self.plan.secure_sum else places
            if self.plan.method == "vi" or any(isinstance(one, Exact) for one in made.values()):
                bounds = [HUGE] * len(leaves)  # many steps, of which each depends on the one before; or no clip
            elif phase != "inference":
                bounds = [_largest(made[phase], units, sum(leaf.size for leaf in leaves))] * len(leaves)
            else:
                bounds = self._factor_limits(made, units)
            found.append(jax.tree.unflatten(form, [min(HUGE, 2 * bound) for bound in bounds]))
        return found

    def _factor_limits(self, made: dict[str, Mechanism], units: int) -> list[float]:
        """Of precision times mean, and of the precision."""
        plan, size = self.plan, len(self.model.prior.precision_mean)
        slope, bend = self._units() if plan.unit == "record" else (1.0, 1.0)
        gradient = slope * max(_largest(made[name], units, size) for name in _GRADIENTS & set(made))
        curvature = bend * _largest(made["curvature"], units, size**2)
        mean = REACH * len(self.parties) * (plan.rounds + 1)
        # Where a sum is of changes and not of factors, they add up.
        walks = plan.rounds if plan.unit == "site" and plan.noise == "central" else 1
        return [walks * (gradient + curvature * mean), walks * curvature]

    def scaling(self) -> list[Moments]:
        """The round that releases means and variances, for each party."""
        return [self.algorithm("scaling", party) for party in range(len(self.parties))]

    def scaled(self, algorithms: Sequence[Moments], state: Any) -> Scaling:
        """What that round has found."""
        noise = math.sqrt(sum(algorithm.noise**2 for algorithm in algorithms) / len(algorithms))
        found = replace(algorithms[0], noise=noise).scaling(state)
        return without_tails(len(self.table.numbers), found)

    def public_scaling(self) -> Scaling:
        """By the middle and half-width of the bounds, for plans that release no others."""
        bounds = self.bounds()
        return Scaling(bounds, (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2)

    def inference(self) -> list[PVI]:
        """The algorithm with each party's noise; any of them is the coordinator's."""
        return [self.algorithm("inference", party) for party in range(len(self.parties))]

    def _algorithm(self, mechanisms: dict[str, Mechanism]) -> PVI:
        """The coordinator's is that of any site: they differ in what a site adds in noise."""
        plan = self.plan
        if plan.method == "vi":
            adaptive = Adaptive(start=plan.clip) if plan.is_adaptive else None
            solver = VI(plan.steps, _adagrad(plan.learning_rate), average=0.0, adaptive=adaptive)
            return PVI(self.model.prior, self.model, (solver,), damping=(plan.damping,))
        units, curvature = self._units(), mechanisms["curvature"]
        if plan.unit == "site":
            locals = NaturalStep(Exact(), spread=False), NaturalStep(None), NaturalStep(Exact())
            through, clips = (curvature, None, curvature), "update" if plan.noise == "central" else "factor"
            solvers = tuple(Whole(step, made, "centred", clips) for step, made in zip(locals, through, strict=True))
            units = (1.0, 1.0)
        else:
            expansion = "vi" if plan.method == "natural" else plan.method
            early = mechanisms.get("early")
            solvers = (
                NaturalStep(curvature, False, units, expansion, early),
                NaturalStep(None, True, units, expansion, early),
                NaturalStep(curvature, True, units, expansion),
                *(() if early is None else (NaturalStep(None, True, units, expansion),)),
            )
        stages = plan.stages()
        kinds = tuple(0 if t == 0 else 2 if t in stages else 1 for t in range(plan.rounds))
        if plan.early():
            kinds = tuple(3 if kind == 1 and t > stages[-1] else kind for t, kind in enumerate(kinds))
        damping = tuple(2 / (t - max(stage for stage in stages if stage <= t) + 2) for t in range(plan.rounds))
        if isinstance(curvature, Exact):  # there is no noise to average
            damping = (1.0,)
        gradient, bend = (
            math.sqrt(sum(made[name].deviation ** 2 for made in self.added)) * unit
            for name, unit in zip(("gradients", "curvature"), units, strict=True)
        )
        trust = default_policy().rule(plan.link).trust
        prior, noise = self.model.prior.full(), Noise(gradient, bend, reach=REACH, trust=trust)
        if plan.early():
            noise = replace(noise, early=mechanisms["early"].deviation * units[0], until=plan.early())
        noise = replace(noise, shrinks=plan.secure_sum)
        if plan.unit == "site" and plan.noise == "central":
            more = {"rounds": plan.rounds, "reset": plan.reset}
            return Central(prior, self.model, solvers, kinds, damping, noise, **more)
        return PVI(prior, self.model, solvers, kinds, damping, noise)

    def evaluation(self, found: Any = None) -> Evaluation:
        """The round that releases scores. A site needs no posterior for it: it judges the one that it is sent."""
        found = self.model.prior.full() if found is None else found
        return Evaluation(FullGaussian.of(*found) if isinstance(found, tuple) else found, self.model)

    def evaluation_noise(self) -> float:
        """The deviation of the noise on the sum of all scores."""
        return math.sqrt(sum(made["evaluation"].deviation ** 2 for made in self.added))

    def posterior(self, found: Any, scaling: Scaling, common: dict[str, Any] | None = None) -> Posterior:
        """In the units of the data. common: its statement."""
        plan = asdict(self.plan) | {"numbers": list(self.table.numbers)}
        plain = {"statement": {}, "statement_text": "", "plan": plan} | (common or {})
        residual = jnp.asarray(self.plan.noise_scale) if self.plan.link == "linear" else None
        return in_units(self.plan.link, self.table.numbers, self.table, found, scaling, residual, plain)


def scores(posterior: Posterior, test: Table) -> dict[str, float]:
    """How good a posterior is on public records."""
    predicted, target = posterior.predict(test.features), np.asarray(test.target, float)
    if posterior.link == "linear":
        return {"root_mean_square_error": float(np.sqrt(np.mean((predicted - target) ** 2)))}
    return {
        "accuracy": diagnostics.accuracy(predicted, target),
        "log_likelihood": diagnostics.log_likelihood(predicted, target),
        "calibration_error": diagnostics.calibration_error(predicted, target),
    }


def judged(posterior: Posterior, test: Table) -> dict[str, Any]:
    """Beside what a posterior predicts for public records, what came: the rows of a calibration plot."""
    if posterior.link == "linear":
        return {}
    return {"calibration": diagnostics.calibration(posterior.predict(test.features), np.asarray(test.target, float))}


def simulate(
    setup: Setup,
    key: Array,
    test: Table,
    steps: list[Step] | None = None,
    scored: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """A study on public records as one compiled program, without ledgers: scores on `test` after every step.

    steps: the schedule, the plan's by default. scored: after which steps to score, from 0; all by default.

    For research: it is priced by `Setup`, and private only if the key is. All sites must have the same capacity.
    """
    scaling_key, key = jax.random.split(key)
    sites = len(setup.parties)
    if setup.paid:
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


# --- Who conducts a study, and who hosts its sites ----------------------------------------------------------------


class Host(Protocol):
    """Where the parties of a study are.

    is_remote: they are elsewhere, and answer when they are ready. forgives: those that refused in an earlier session
    are asked again, once those who run them may have mended what was wrong.
    """

    is_remote: bool
    forgives: bool

    def last_rounds(self, phase: str) -> dict[int, int]:
        """The last round that each party says it answered, by number; -1 for none. Empty where none can know better."""
        ...

    def consents(self) -> dict[str, "str | coordinator.Away"]:
        """Whether each owner of a budget takes part: "", the reason why it does not, or `Away`. Charges nothing."""
        ...

    def leave_out(self, refusing: Mapping[str, str]) -> None:
        """Ask these owners for nothing, whatever is asked of all; by name, with the reasons."""
        ...

    def open(self, phase: str, study: str, scaling: Scaling | None) -> Courier:
        """A courier to all parties for one phase. study: the name it is charged under; scaling: what it reads by."""
        ...

    def spent(self) -> dict[str, float]:
        """ε that each owner has spent on this study, by name, as far as that is known."""
        ...

    def totals(self) -> dict[str, tuple[float, float]]:
        """ε that the ledger of each owner has spent over all studies, and its budget, by name, where they are known."""
        ...

    def updates(self) -> dict[str, int]:
        """How many updates of inference each party has made, by name."""
        ...

    def statements(self, present: Collection[str]) -> dict[str, Statement | str]:
        """What each owner is promised, or a sentence where it released nothing. present: who is in the result."""
        ...

    def is_seeded(self) -> bool:
        """Whether the noise of any party is known to come from a seed."""
        ...

    def absent(self) -> dict[str, str]:
        """Who is not in the last of secure sums, and why, by name."""
        ...


@dataclass(frozen=True)
class Sight:
    """Where a study is, for those who look on: made of public settings and released values alone.

    sites: for each owner its name, epsilon of the study and what of it is spent, ledger_spent and budget of its ledger
    (None where they are not known), updates, state ("here", "away", "refused" once, "left out") and the reason of it.
    posterior: the newest, in the units of the data, after at least one step of inference in this process. history: rows
    of rounds, with scores on a public test set if there is one.
    """

    phase: str
    done: int
    total: int
    sites: list[dict[str, Any]]
    posterior: Posterior | None
    history: list[dict[str, Any]]
    seeded: bool


def conduct(
    setup: Setup,
    folder: Path,
    host: Host,
    *,
    test: Table | None = None,
    observe: Watcher = lambda phase, done, total, spent, progress: None,
    withdrawn: Callable[[], Collection[int]] = lambda: (),
    look: Callable[[Sight], None] | None = None,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Federation:
    """All phases of a study, each from where it was left in `folder`: the coordinator's part, which sees no record.

    withdrawn: the numbers of parties that have withdrawn by now. The factor of such a one is divided out of q, and it
    is not asked any more. What it told of locations and scales stays, once others read their records by them.
    look: is shown the study after every step, before `observe` is called. at_least: how many sites must accept before
    any is charged; all by default. say: is told in words who does not take part.
    """
    least = len(setup.members) if at_least is None else at_least
    if not 1 <= least <= len(setup.members):
        raise ValueError(f"at_least={least}; expected a number of sites from 1 to {len(setup.members)}")
    return _Conduct(setup, folder, host, test, observe, withdrawn, look, least, say).whole()


def name_of(setup: Setup) -> str:
    """The name under which a study is charged: other plans, columns, budgets or places have other names.

    It has the whole hash of them. Where sums are secure, sites sign this name, and so agree on all of it: of a shorter
    one a coordinator could find two plans with the same name, and give sites different noise for one sum.
    """
    return f"{setup.plan.name}-{_mark(setup)}"


def shortened(name: str) -> str:
    """The name of a study for terminals: the first letters of its hash."""
    return re.sub("-([0-9a-f]{12})[0-9a-f]{52}(?=$|/)", r"-\1", name)


def _mark(setup: Setup) -> str:
    table = setup.table
    facts = [table.names, table.numbers, table.low.tolist(), table.high.tolist(), table.classes]
    budgets = [(member.name, member.epsilon, member.delta) for member in setup.members]
    plain = json.dumps([asdict(setup.plan), facts, budgets, setup.capacities], sort_keys=True, default=str)
    return hashlib.sha256(plain.encode()).hexdigest()


def _claim(setup: Setup, folder: Path) -> None:
    """Refuse a folder with another study in it."""
    place, mark = folder / "study.json", _mark(setup)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if place.exists():
            if json.loads(place.read_text(encoding="utf-8")).get("plan") != mark:
                raise ValueError(
                    f"out={folder} holds a study with another plan, whose budget is spent; take a new folder"
                )
        elif any([*folder.glob("sites/*/ledger.sqlite"), *folder.glob(f"{COORDINATOR}/ledger.sqlite")]):
            raise ValueError(f"out={folder} holds ledgers and no study.json; take a new folder")
        else:
            _replace(place, (json.dumps({"plan": mark}) + "\n").encode())


def _bound(folder: Path, what: str) -> dict[str, str]:
    """What a study was begun with, by the name of its owner, as study.json has it: "ledgers" or "held_out"."""
    return json.loads((folder / "study.json").read_text(encoding="utf-8")).get(what, {})


def _bind(folder: Path, **found: Mapping[str, str]) -> None:
    """Note in study.json with what a study is begun. What was noted before stays."""
    place = folder / "study.json"
    known = json.loads(place.read_text(encoding="utf-8"))
    whole = known | {what: {**marks, **known.get(what, {})} for what, marks in found.items()}
    if whole != known:
        _replace(place, (json.dumps(whole) + "\n").encode())


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"out={folder}: {error.strerror}; expected a folder that can be written to") from None


class _Conduct:
    """The coordinator's work on a study in a folder. It knows parties by number and name, and what they send."""

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        host: Host,
        test: Table | None,
        observe: Watcher,
        withdrawn: Callable[[], Collection[int]],
        look: Callable[[Sight], None] | None,
        at_least: int,
        say: Callable[[str], None],
    ) -> None:
        self.setup, self.folder, self.host = setup, folder, host
        self.test, self.observe, self.withdrawn, self.look = test, observe, withdrawn, look
        self.at_least, self.say = at_least, say
        _claim(setup, folder)
        self.name = name_of(setup)
        self.history = _History(folder / "history.json")
        self.posterior: Posterior | None = None  # after the last step, where somebody asks for it
        self.refusals: dict[str, str] = {}  # the last of each party
        self.refusing: dict[str, str] = {}  # who did not accept the study, and why; they are not asked
        self.present: set[str] = set()  # of whom something is in the result

    def _agree(self) -> None:
        """Ask all whether they take part, before anything is charged; who refuses is not asked for anything else.

        A study that was begun is not asked for again, but those who refused are where the host `forgives`.
        """
        place = self.folder / "consents.json"
        known: dict[str, str] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
        is_begun = any(self._place(phase).exists() for phase in PHASES)
        if not is_begun or (known and self.host.forgives):
            found = self.host.consents()
            refused = {name: why for name, why in found.items() if isinstance(why, str) and why}
            if is_begun:
                refused = {name: refused[name] for name in known if name in refused}
            else:
                self._check_enough(found)
            known = refused
            _replace(place, json.dumps(known).encode())
        self.refusing = known
        self.refusals |= known
        self.host.leave_out(known)
        if known:
            some = "; ".join(f"{name} does not: {why}" for name, why in list(known.items())[:5])
            count = len(self.setup.owners)
            self.say(f"{count - len(known)} of {count} sites take part ({some})")

    def _check_enough(self, found: Mapping[str, "str | coordinator.Away"]) -> None:
        trust, each = self.setup.trust, len(self.setup.members) if self.setup.plan.is_pooled else 1
        least = self.at_least if trust is None else max(self.at_least, trust.threshold)
        accepted = each * sum(why == "" for why in found.values())
        if accepted >= least:
            return
        reasons = {name: why if isinstance(why, str) else why.reason for name, why in found.items() if why}
        words = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:5])
        raise ValueError(
            f"{accepted} of {len(self.setup.members)} sites accept the study and at least {least} must, so nothing was "
            f"charged ({words})"
        )

    def _phase(
        self,
        phase: str,
        algorithm: Any,
        steps: list[Step] | None,
        scaling: Scaling | None,
        judge: Callable[[Progress, int], None] = lambda now, done: None,
    ) -> Progress:
        """Run one phase, from where it was left. steps: its schedule; None for sites that answer when they like."""
        sites, study = len(self.setup.parties), f"{self.name}/{phase}"
        place, updates = self._place(phase), self.setup.plan.rounds
        courier = self.host.open(phase, study, scaling)
        stored = place.read_bytes() if place.exists() else None
        state = algorithm.coordinator_init(sites)
        progress = Progress(state) if stored is None else Progress.from_bytes(stored, algorithm, sites)
        total = sites * updates if steps is None else len(steps)
        progress.away.clear()  # that was in an earlier session
        if self.host.forgives or self.setup.trust is not None:
            progress.refused = {j: why for j, why in progress.refused.items() if why == coordinator.WITHDRAWN}
        for j, party in enumerate(self.setup.parties):
            if party.name in self.refusing:
                progress.refused.setdefault(j, self.refusing[party.name])
        lasts = {j: last for j, last in self.host.last_rounds(phase).items() if j not in progress.refused}
        coordinator.catch_up(progress, lasts, total, is_free=steps is None)

        def after(now: Progress) -> None:
            done = now.communications if steps is None else now.position
            if self.host.is_remote and coordinator.is_deserted(now, sites):  # the step that is over is not stored
                self._tell(phase, done - (steps is not None), total, now)
                raise coordinator.Deserted
            judge(now, done)
            _replace(place, now.to_bytes())
            self._tell(phase, done, total, now)

        more: dict[str, Any] = {"limits": self.setup.limits(phase), "progress": progress, "observe": after}
        if self.setup.trust is None and (phase != "scaling" or stored is None):
            more["withdrawn"] = self.withdrawn  # but a scaling that was found is part of the plan, and stays
        if steps is None:
            done = coordinator.run_free(algorithm, courier, sites, updates, study, **more)
        else:
            done = coordinator.run(algorithm, courier, sites, steps, study, **more)
        self._remember(done)
        self.present |= {self.setup.parties[j].name for j, count in done.taken.items() if count}
        if isinstance(courier, Gathering):  # all sites are one party: who is in its sums
            self.present |= {name for name, count in courier.assembly.present.items() if count}
        if self.setup.trust is not None and done.refused:
            words = f"sums of two rounds in a row were lost ({done.refused[0]})"
            raise ValueError(f"{words}; give the same command again to go on")
        if (self.host.is_remote or self.setup.trust) and not done.communications:  # nothing was learned
            place.unlink(missing_ok=True)
            reasons = done.missed | done.away | done.refused
            words = "; ".join(f"{self.setup.parties[j].name}: {why}" for j, why in list(reasons.items())[:5])
            raise ValueError(f"{'no sum was made' if self.setup.trust else 'no site took part'} ({words})")
        return done

    def _tell(self, phase: str, done: int, total: int, now: Progress) -> None:
        """Those who look on, and those who observe."""
        spent = self.host.spent()
        if self.look is not None:
            sites = self._sites(now, spent)
            self.look(Sight(phase, done, total, sites, self.posterior, self.history.rows, self.host.is_seeded()))
        self.observe(phase, done, total, spent, now)

    def _sites(self, now: Progress, spent: dict[str, float]) -> list[dict[str, Any]]:
        """A row of `Sight` for each party."""
        updates, rows, absent, totals = self.host.updates(), [], self.host.absent(), self.host.totals()
        for j, party in enumerate(self.setup.owners):
            states = {"left out": now.refused, "away": now.away, "refused": now.missed}
            if self.setup.trust is not None:
                states = {"away": {j: absent[party.name]} if party.name in absent else {}}
                states["left out"] = {j: self.refusing[party.name]} if party.name in self.refusing else {}
            state = next((state for state, reasons in states.items() if j in reasons), "here")
            row = {"name": party.name, "epsilon": _finite(party.epsilon), "updates": updates.get(party.name, 0)}
            row |= {"spent": _finite(spent.get(party.name, math.nan)), "state": state}
            rows.append(row | _of_ledger(totals.get(party.name)) | {"reason": states.get(state, {}).get(j, "")})
        return rows

    def _place(self, phase: str) -> Path:
        return self.folder / f"{phase}.progress"

    def _remember(self, done: Progress) -> None:
        reasons = done.missed | done.away | done.refused
        self.refusals |= {self.setup.parties[j].name: why for j, why in reasons.items()}

    def whole(self) -> Federation:
        """All phases, each from where it was left."""
        self._agree()
        setup, everybody = self.setup, schedule.synchronous(len(self.setup.parties), 1)
        scaling = setup.public_scaling()
        if setup.paid:
            moments = setup.scaling()
            scaling = setup.scaled(moments, self._phase("scaling", moments[0], everybody, None).state)
        algorithm = setup.algorithm("inference", 0)

        def judge(now: Progress, done: int) -> None:
            if done == 0:
                return
            state, _ = coordinator.settle(algorithm, now.state)
            row = {
                "round": done,
                "communications": self._messages(now),
                "factor_gap": _gap(algorithm, state),
                **self._told(done),
            }
            if self.test is not None or self.look is not None:
                self.posterior = setup.posterior(algorithm.posterior(state), scaling)
            if self.test is not None:
                assert self.posterior is not None
                row |= scores(self.posterior, self.test)
            self.history.add(row)

        is_free = setup.plan.schedule == "asynchronous" and self.host.is_remote
        done = self._phase("inference", algorithm, None if is_free else setup.steps(), scaling, judge)
        released = None
        if setup.plan.evaluation:
            judged = setup.evaluation(algorithm.posterior(done.state))
            scored = self._phase("evaluation", judged, everybody, scaling)
            released = summary(np.asarray(scored.state).sum(axis=0), setup.evaluation_noise())
            if setup.trust is None and coordinator.let_go(algorithm, done, self.withdrawn()):
                done.state, _ = coordinator.settle(algorithm, done.state)
                _replace(self._place("inference"), done.to_bytes())
                self._remember(done)
        return self._found(done, algorithm.posterior(done.state), scaling, released)

    def _found(self, done: Progress, found: Any, scaling: Scaling, released: dict[str, Any] | None) -> Federation:
        setup, stated = self.setup, self.host.statements(self.present)
        statements = {name: one for name, one in stated.items() if isinstance(one, Statement)}
        others = {name: one for name, one in stated.items() if isinstance(one, str)}
        spent, updates, totals = self._spent(statements), self.host.updates(), self.host.totals()
        posterior = setup.posterior(found, scaling, _words(statements, others))
        rows = [
            {
                "name": party.name,
                "epsilon": _finite(party.epsilon),
                "delta": party.delta,
                "spent": _finite(spent[party.name]),
                **_of_ledger(totals.get(party.name)),
                "updates": updates.get(party.name, 0),
                "refused": self.refusals.get(party.name),
                "is_present": party.name in self.present,
                "places": capacity,
            }
            for party, capacity in zip(setup.owners, setup.capacities, strict=True)
        ]
        if setup.trust is not None:
            made = done.taken.get(0, 0)
            for row in rows:
                row["dropped"] = made - row["updates"]
        tested = None if self.test is None else scores(posterior, self.test) | judged(posterior, self.test)
        messages = self._messages(done)
        texts = {name: statement.text() for name, statement in statements.items()} | others
        count = len(setup.members)
        trust = None if setup.trust is None else setup.trust.words
        return Federation(
            posterior, rows, self.history.rows, messages, tested, released, texts, count, self.name, trust
        )

    def _spent(self, statements: Mapping[str, Statement]) -> dict[str, float]:
        """ε that each owner has spent on this study: nothing where nothing was released.

        Of those elsewhere at least what their statements say: a site that is away may have released more than it told.
        """
        found = self.host.spent()
        for name in [owner.name for owner in self.setup.owners]:
            told = found.get(name, math.nan)
            if name not in statements:
                found[name] = 0.0
            elif self.host.is_remote and not told >= statements[name].epsilon * (1 - ROUNDING):
                found[name] = statements[name].epsilon
        return found

    def _messages(self, now: Progress) -> int:
        """How many updates of sites are in the posterior."""
        if self.setup.trust is not None:
            return sum(self.host.updates().values())
        return self.setup.messages(now.communications)

    def _told(self, done: int) -> dict[str, Any]:
        """What has changed at the parties by a round: how often they answered, and what ε of the study they spent.

        Of those elsewhere not the latter: what they tell of their ledgers is told to the coordinator alone.
        """
        told: dict[str, Any] = {"updates": self.history.changes("updates", done, self.host.updates())}
        if not self.host.is_remote:
            spent = {name: _finite(spent) for name, spent in self.host.spent().items()}
            told["spent"] = self.history.changes("spent", done, spent)
        return told


class LocalHost:
    """All parties in this process. Each keeps to its own folder, with its ledger and its stores."""

    is_remote = False
    forgives = False

    def __init__(self, setup: Setup, folder: Path, insecure_seed: int | None = None) -> None:
        self.setup, self.folder = setup, folder
        self.seeded = insecure_seed is not None
        self.key = secure_key() if insecure_seed is None else insecure_key(insecure_seed)
        _claim(setup, folder)
        self.name = name_of(setup)
        self._check_ledgers()
        with _writing(folder):
            for owner in setup.owners:
                self._own(owner).mkdir(parents=True, exist_ok=True)
        self.ledgers = [self._ledger(owner) for owner in setup.owners]
        self.allowances = [self._allowance(place, self.name) for place in range(len(setup.owners))]
        self._marks: dict[str, str] = {}  # of kept secrets, by which sites hold out records
        if setup.plan.evaluation:
            with _writing(folder):
                held = self._secrets(insecure_seed)
            self.setup = setup.splitting(held)
            if insecure_seed is None:
                self._marks = {name: mark_of(secret) for name, secret in held.items()}
        self.sites: dict[str, list[Site]] = {}  # by phase
        self.assembly: Assembly | None = None  # of the inference, where sums are secure
        self.refusing: dict[str, str] = {}
        self._was_seeded: bool | None = None
        self._identities = {owner.name: new_identity() for owner in setup.owners} if setup.trust is not None else {}

    def _check_ledgers(self) -> None:
        """Refuse ledgers that lack what the folder says was answered, before any is made, charged or read for.

        So is one that is gone or another than this study was begun with, if study.json alone is left to say so.
        """
        traces, bound = self._traces(), _bound(self.folder, "ledgers")
        for owner in self.setup.owners:
            if math.isfinite(owner.epsilon):
                path = self._path(owner)
                is_there = owner.ledger is not None or path.exists()
                found = Ledger.open(path) if is_there else None
                check_complete(path, None if found is None else found.entries(), traces[owner.name])
                if owner.name in bound and (found is None or found.genesis != bound[owner.name]):
                    what = "is gone" if found is None else "is not the one"
                    raise ValueError(
                        f"ledger={path} {what} with which this study was begun; go back to a copy that has all entries"
                    )

    def _traces(self) -> dict[str, list[Trace]]:
        """What stores, progress and history of the study say that each owner has answered."""
        setup, names = self.setup, [owner.name for owner in self.setup.owners]
        found: dict[str, list[Trace]] = {name: [] for name in names}
        for phase in PHASES:
            study, progress = f"{self.name}/{phase}", self.folder / f"{phase}.progress"
            answered = coordinator.answered_in(progress.read_bytes()) if progress.exists() else {}
            store = self.folder / f"{phase}.store"
            if setup.trust is not None:
                if answered and not store.exists():
                    raise ValueError(f"store={store} is gone, whose sums are in {progress.name}; go back to a copy")
                for name, trace in traces_of(store, study, names).items() if store.exists() else ():
                    found[name].append(trace)
                continue
            for j, (round, taken) in answered.items():
                found[names[j]].append(Trace(study, frozenset([round]), taken, progress.name))
            for owner in setup.owners:
                trace = trace_of(self._own(owner) / f"{phase}.store", owner.name, [study])
                found[owner.name] += [] if trace is None else [trace]
        history = _History(self.folder / "history.json")
        for name, count in history.last("updates").items():
            found[name].append(Trace(f"{self.name}/inference", frozenset(), count, history.path.name))
        return found

    def _allowance(self, place: int, study: str) -> Allowance | None:
        """What a study may take of an owner's ledger."""
        ledger = self.ledgers[place]
        return None if ledger is None else Allowance(ledger, study, self.setup.owners[place].epsilon)

    def consents(self) -> dict[str, "str | coordinator.Away"]:
        pairs = zip(self.setup.owners, self.allowances, strict=True)
        return {
            owner.name: "" if allowance is None else allowance.objection(self.setup.least(place))
            for place, (owner, allowance) in enumerate(pairs)
        }

    def leave_out(self, refusing: Mapping[str, str]) -> None:
        """The others begin: with which ledgers and keys is noted, before any is charged."""
        self.refusing = dict(refusing)
        pairs = zip(self.setup.owners, self.ledgers, strict=True)
        ledgers = {owner.name: found.genesis for owner, found in pairs if found and owner.name not in refusing}
        marks = {name: mark for name, mark in self._marks.items() if name not in refusing}
        with _writing(self.folder):
            _bind(self.folder, ledgers=ledgers, held_out=marks)

    def last_rounds(self, phase: str) -> dict[int, int]:
        """None: one folder holds what the coordinator and the parties know."""
        del phase
        return {}

    def _own(self, party: Member) -> Path:
        """The folder of a party."""
        return self.folder / party.name if self.setup.plan.is_pooled else self.folder / "sites" / party.name

    def _path(self, owner: Member) -> Path:
        return owner.ledger or self._own(owner) / "ledger.sqlite"

    def _ledger(self, member: Member) -> Ledger | None:
        if math.isinf(member.epsilon):
            return None
        plan, path = self.setup.plan, self._path(member)
        if member.ledger is not None or path.exists():
            found = Ledger.open(path)
            if (found.unit, found.adjacency) != (plan.unit, plan.adjacency):
                raise ValueError(
                    f"ledger={path} is for each {found.unit} under {found.adjacency}; expected each {plan.unit} "
                    f"under {plan.adjacency}, or another ledger"
                )
            if found.delta != member.delta:
                raise ValueError(
                    f"delta={member.delta} of {member.name}, and {found.delta} in its ledger; give both one"
                )
            return found
        budget: dict[str, Any] = {"epsilon": member.epsilon, "delta": member.delta, "accountant": self._rule(member)}
        return Ledger.create(path, data_set=member.name, unit=plan.unit, adjacency=plan.adjacency, **budget)

    def _rule(self, owner: Member) -> str:
        """The rule of a ledger made for this study: a filter that admits it, or else `pld`, for the plan is fixed."""
        least = self.setup.least(self.setup.owners.index(owner))
        return str(admitting(least, owner.epsilon, owner.delta, self.setup.plan.adjacency) or "pld")

    def _secrets(self, insecure_seed: int | None) -> dict[str, bytes]:
        """By which each site holds out records: kept beside its ledger, or else in its folder of this study.

        One trusted party has one for all sites. Of a seed, the seed's: such a study is repeated as it was.
        """
        names = [member.name for member in self.setup.members]
        if insecure_seed is not None:
            return dict.fromkeys(names, seeded_secret(insecure_seed))
        owners = self.setup.owners if len(self.setup.owners) == len(names) else self.setup.owners * len(names)
        folders = (self._own(owner) if owner.ledger is None else owner.ledger.parent for owner in owners)
        bound = _bound(self.folder, "held_out")
        return {name: kept_secret(folder, bound.get(name)) for name, folder in zip(names, folders, strict=True)}

    def open(self, phase: str, study: str, scaling: Scaling | None) -> Courier:
        """Sites for one phase. Its name in ledgers and keys, and its stores, are its own."""
        setup = self.setup
        if setup.trust is not None:
            return self._gather(phase, study, scaling)
        sites = [
            Site(
                party.name,
                study,
                setup.algorithm(phase, place),
                setup.access(phase, place, scaling),
                self.key,
                self._allowance(place, study.rpartition("/")[0]),
                self._own(party) / f"{phase}.store",
                setup.most_updates(phase),
            )
            for place, party in enumerate(setup.owners)
        ]
        self.sites[phase] = sites
        return local.Direct(sites)

    def _gather(self, phase: str, study: str, scaling: Scaling | None) -> "Gathering":
        """All sites as one, of which only sums are seen."""
        setup = self.setup
        terms = setup.terms(phase, study, {name: public_identity(key) for name, key in self._identities.items()})
        accesses = [setup.own_access(phase, place, scaling) for place in range(len(setup.owners))]
        delegates = {
            owner.name: Delegate(owner.name, terms, access, self.key, allowance, self._identities[owner.name])
            for owner, access, allowance in zip(setup.owners, accesses, self.allowances, strict=True)
        }

        def ask(round: int, contents: Mapping[str, Any]) -> dict[str, Update | str]:
            found: dict[str, Update | str] = {}
            gone = setup.plan.leaving(round, list(delegates)) if phase == "inference" else {}
            for name, content in contents.items():
                if name in self.refusing:
                    found[name] = self.refusing[name]
                    continue
                if content["stage"] >= gone.get(name, math.inf):
                    found[name] = "it dropped out"
                    continue
                answer = delegates[name](Broadcast(study, round, content))
                found[name] = answer if isinstance(answer, Update) else answer.reason
            return found

        assembly = Assembly(terms, setup.form(phase, scaling), ask, self.folder / f"{phase}.store")
        if phase == "inference":
            self.assembly = assembly
        return Gathering(assembly)

    def absent(self) -> dict[str, str]:
        return {} if self.assembly is None else self.assembly.absent

    def spent(self) -> dict[str, float]:
        """ε that each owner has spent on this study, by its own ledger."""
        pairs = zip(self.setup.owners, self.allowances, strict=True)
        return {owner.name: math.inf if allowance is None else allowance.spent() for owner, allowance in pairs}

    def totals(self) -> dict[str, tuple[float, float]]:
        pairs = zip(self.setup.owners, self.ledgers, strict=True)
        return {owner.name: (ledger.spent(), ledger.epsilon) for owner, ledger in pairs if ledger is not None}

    def updates(self) -> dict[str, int]:
        """How many updates of inference each party has made, or in how many sums it is."""
        if self.assembly is not None:
            return dict(self.assembly.present)
        return {site.name: site.updates for site in self.sites.get("inference", [])}

    def is_seeded(self) -> bool:
        """Also by an earlier process, before this one went on without a seed."""
        if self._was_seeded is None:
            self._was_seeded = any(_is_seeded(ledger) for ledger in self.ledgers if ledger is not None)
        return self.seeded or self._was_seeded

    def statements(self, present: Collection[str]) -> dict[str, Statement | str]:
        """What each site is promised for this study: its own events in the ledger, which its plan fixed."""
        del present  # ledgers know
        setup = self.setup
        found: dict[str, Statement | str] = {}
        for place, (member, allowance) in enumerate(zip(setup.owners, self.allowances, strict=True)):
            own = [] if allowance is None else allowance.own()
            if allowance is not None and not own:
                found[member.name] = ABSENT.format(name=member.name)
                continue
            entries = () if allowance is None else allowance.entries()
            counts = Counter(entry.event for entry in own)
            event = NonPrivate() if allowance is None else compose(*(Repeated(e, n) for e, n in counts.items()))
            # Also what an earlier process did, before this one went on without a seed.
            seeded = self.seeded or any(entry.note == SEEDED for entry in entries)
            if setup.trust is not None:  # its promise rests on the noise of the others, too
                seeded = self.is_seeded()
            found[member.name] = Statement.of(
                event, member.delta, seeded=seeded, adjacency=setup.plan.adjacency, notes=self._notes(place, entries)
            )
        return found

    def _notes(self, place: int, entries: Sequence[Entry]) -> tuple[str, ...]:
        """What an owner's statement takes for granted. entries: of its ledger."""
        setup, member = self.setup, self.setup.owners[place]
        origin = "as the plan gives it" if setup.has_places else "that of the largest site of about its size"
        places = f"at {member.name}, {setup.capacities[place]}, is public: {origin}."
        if setup.plan.unit == "site":
            places = (
                f"of a site, {setup.capacities[place]}, is public: that of the largest one. So is the number of sites."
            )
        whom = UNTRUSTED if setup.trust is None else setup.trust.words
        is_alone = member.ledger is None and all(entry.study.startswith(f"{self.name}/") for entry in entries)
        return (
            f"The number of places for records {places}",
            "Ranges of numeric columns are public bounds; categories and classes are public.",
            *(
                ("Locations and scales of numeric columns are private releases, summed over all sites.",)
                * bool(setup.paid)
            ),
            *(
                ("How often a site answers follows from its number of places.",)
                if setup.plan.schedule == "asynchronous"
                else ()
            ),
            TRUSTED if setup.plan.is_pooled else whom,
            *((SECRET,) if setup.plan.participation < 1 else ()),
            *setup.remarks(place),
            *((ALONE if is_alone else OWN,) if entries else ()),
            *(() if (ledger := self.ledgers[place]) is None else (ADAPTIVE.format(words=ledger.rule_words),)),
        )


class Gathering:
    """A courier to all sites as one party, whose answer is made of secure sums."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self._answers: list[coordinator.Answer] = []

    def send(self, site: int, broadcast: Broadcast) -> None:
        del site
        try:
            self._answers.append(self.assembly(broadcast))
        except TooFew as error:
            self._answers.append(coordinator.Away(str(error)))

    def receive(self) -> tuple[int, coordinator.Answer]:
        return 0, self._answers.pop(0)


def _is_seeded(ledger: Ledger) -> bool:
    return any(entry.note == SEEDED for entry in ledger.entries())


def _words(statements: dict[str, Statement], others: Mapping[str, str]) -> dict[str, Any]:
    """The weakest site's statement stands in front; all of them are there, and a line for each of the others."""
    if not statements:
        return {}
    worst = max(statements.values(), key=lambda statement: statement.epsilon)
    sites = {name: statement.to_dict() for name, statement in statements.items()}
    texts = {name: statement.text() for name, statement in statements.items()}
    texts |= {name: f"{words}\n" for name, words in others.items()}
    text = "\n".join(f"{name}\n{'-' * len(name)}\n{found}" for name, found in texts.items())
    return {"statement": worst.to_dict() | {"sites": sites, "others": dict(others)}, "statement_text": text}


def _of_ledger(total: tuple[float, float] | None) -> dict[str, float | None]:
    """What a row says of a ledger: ε that it has spent over all studies, and its budget."""
    spent, budget = (math.nan, math.nan) if total is None else total
    return {"ledger_spent": _finite(spent), "budget": _finite(budget)}


def _gap(algorithm: PVI, state: Any) -> float:
    """How far q is from the product of its factors; more than rounding is a bug."""
    product = jax.tree.map(lambda leaf: np.asarray(leaf, float).sum(axis=0), state.factors)
    gap = diagnostics.factor_gap(state.q, [algorithm.prior, state.refined, state.own, product])
    if gap > FACTOR_GAP:
        raise RuntimeError(f"q is not the product of its factors (gap {gap:.2g}): this is a bug in tacit")
    return gap


class _History:
    """Rows of rounds, kept beside the study so that a resumed one has them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def changes(self, what: str, done: int, now: Mapping[str, float | None]) -> dict[str, float]:
        """Of each party's number those that are not what the rows of earlier rounds say."""
        known: dict[str, float] = {}
        for row in self.rows:
            if row["round"] < done:
                known |= row.get(what, {})
        return {name: value for name, value in now.items() if value and value != known.get(name)}

    def last(self, what: str) -> dict[str, Any]:
        """The number of each party after all rows."""
        known: dict[str, Any] = {}
        for row in self.rows:
            known |= row.get(what, {})
        return known

    def add(self, row: dict[str, Any]) -> None:
        self.rows = [old for old in self.rows if old["round"] < row["round"]] + [row]
        _replace(self.path, json.dumps(self.rows).encode())


def check_apart(members: Sequence[Member]) -> None:
    """Refuse two sites with the same records, in whatever order: neither's budget alone would protect them.

    A single record may be equal to another person's.
    """
    sizes = Counter(len(member.table.target) for member in members)
    seen: dict[bytes, str] = {}
    for member in members:
        size = len(member.table.target)
        if size < 2 or sizes[size] < 2:  # that no other site has so many is seen without their contents
            continue
        contents = hashlib.sha256(b"".join(sorted(row.tobytes() for row in member.table.contents()))).digest()
        other = seen.setdefault(contents, member.name)
        if other != member.name:
            raise ValueError(
                f"{member.name} holds the same records as {other}, by another file or in another order; expected each "
                "site's own records"
            )


def _check(plan: Plan, members: Sequence[Member], is_remote: bool) -> None:
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
        if plan.secure_sum and math.isinf(member.epsilon):
            raise ValueError("secure_sum with an infinite epsilon hides what nothing protects; give a budget")
        table = member.table
        same = (table.names, table.numbers) == (first.names, first.numbers)
        if not same or not np.array_equal([table.low, table.high], [first.low, first.high], equal_nan=True):
            raise ValueError(
                f"{member.name} has other columns or bounds than {names[0]}; encode both by the same facts"
            )
        if table.groups is not None:
            raise ValueError(f"{member.name} has several records of a person; a study takes one record of each, so far")
        check_target(plan.link, table)
    given = [member for member in members if member.ledger is not None and not plan.is_pooled]
    for one, other in itertools.combinations(given, 2):
        if _is_same(one.ledger, other.ledger):
            raise ValueError(f"{one.name} and {other.name} have one ledger, {one.ledger}; give each site's own")
    if plan.is_pooled:
        if len({(member.epsilon, member.delta) for member in members}) > 1:
            raise ValueError("sites have different budgets and one noise is added for all; give all the same")
        if len({member.ledger for member in members}) > 1:
            raise ValueError("sites have ledgers of their own, and the coordinator's is charged; give all the same one")
    if plan.unit == "site" and not is_remote and any(len(member.table.target) == 0 for member in members):
        raise ValueError("a site has no records, and is the unit of privacy; leave it out")
    private = [math.isfinite(member.epsilon) for member in members]
    if any(private) and not all(private):
        raise ValueError("some sites have an infinite epsilon and others not; give all a budget, or none")
    ends = [*first.low[: len(first.numbers)], *(first.low[-1:] if plan.link == "linear" else [])]
    if any(math.isnan(end) for end in ends):
        raise ValueError("a number (or a numeric target) has no public bounds; a study needs them of every one")


@cache
def _adagrad(learning_rate: float) -> Any:
    """One object for one rate: compiled functions know optimisers by identity."""
    return optax.adagrad(learning_rate)


def _has_places(members: Sequence[Member], capacity: int | None, is_remote: bool) -> bool:
    """Whether sites say how many places for records they have."""
    given = [member.places is not None for member in members]
    if any(given) and not all(given):
        name = next(member.name for member in members if member.places is None)
        raise ValueError(f"{name} has no number of places and others have one; give places= of all sites, or of none")
    if any(given) and capacity is not None:
        raise ValueError(f"capacity={capacity} for sites that have places= of their own; leave one of them out")
    if is_remote and not any(given):
        raise ValueError("sites elsewhere without places=; give the public number of places for records of each")
    return all(given)


def _places(members: Sequence[Member], capacity: int | None, is_site: bool) -> list[int]:
    """The public number of places for records at each site, with room for all of them."""
    sizes = [len(member.table.target) for member in members]
    given = [member.places for member in members if member.places is not None]
    if given:
        for member, size, places in zip(members, sizes, given, strict=True):
            if places < 1:
                raise ValueError(f"places={places} of {member.name}; expected a whole number of at least 1")
            if size > places:  # how many records there are is nobody's business
                raise ValueError(
                    f"{member.name} has more records than its places={places}; raise places, or leave records out"
                )
        return given
    if capacity is None:
        return _capacities(sizes)
    if is_site and max(sizes) > capacity:
        raise ValueError(f"capacity={capacity} for {max(sizes)} records of a site; expected room for all of them")
    for size in sizes:
        if capacity < max(1, size):
            raise ValueError(f"capacity={capacity} for {size} units; expected room for all of them, and at least 1")
    return [capacity] * len(sizes)


def _largest(mechanism: Mechanism, units: int, numbers: int) -> float:
    """The largest norm of a sum of so many numbers over so many units; by far, for its noise."""
    assert isinstance(mechanism, SubsampledGaussian)
    parts = zip(mechanism.clips, mechanism.sampling_rates, strict=True)
    return max(units * clip / rate for clip, rate in parts) + mechanism.deviation * (math.sqrt(numbers) + DEVIATIONS)


def _capacities(sizes: list[int]) -> list[int]:
    """A public number of places for each site: that of the largest among those of about its size."""
    found: dict[int, int] = {}
    for size in sorted(set(sizes), reverse=True):
        near = [top for top in found.values() if top <= MOST_UNEVEN * max(1, size)]
        found[size] = near[-1] if near else max(1, size)
    return [found[size] for size in sizes]


def _is_same(one: Path | None, other: Path | None) -> bool:
    """Whether two paths lead to one file."""
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except OSError:  # one is not there
        return one == other


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _replace(path: Path, data: bytes) -> None:
    """All or nothing, after a loss of power too: a reader finds the old file or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
