"""A study's plan applied to its sites: algorithms, accesses and prices. Nothing here runs or reads a record."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tacit.engines.schedule import Step
from tacit.families import FullGaussian
from tacit.federated.evaluation import Evaluation
from tacit.federated.held_out import PUBLIC, held_out
from tacit.federated.moments import Moments
from tacit.federated.pvi import PVI, Noise
from tacit.federated.secure_terms import EVERYBODY, Terms
from tacit.federated.tied import Central, Whole, of_sites
from tacit.fitting.policy import default_policy
from tacit.posterior.posterior import Posterior
from tacit.privacy.checks import check_delta_of
from tacit.privacy.events import Event, Repeated
from tacit.privacy.mechanism import Access, Exact, PricedMechanism
from tacit.privacy.shared import empty
from tacit.solvers import VI, Adaptive, NaturalStep
from tacit.study.plan import Plan
from tacit.study.program import Program
from tacit.study.releases import Releases
from tacit.study.sites import Site, accounts, check_sites, has_own_slots, slots_of
from tacit.tables.scaling import Range, Scaling
from tacit.tables.standardising import (
    REACH,
    bounds_of,
    clip_of,
    in_units,
    measured,
    model_of,
    standardise,
    without_tails,
)

LARGE = "δ is 1 / {units} or more, for {units} {what} (allow_large_delta): it allows one of them to be published."


class Setup:
    """A study's plan applied to its sites.

    Parameters
    ----------
    plan, sites : the study.
    slots : one number of slots for every site, so that all can be simulated as one program; by default each site's own
        `slots`, or a number by its size.
    is_remote : the records of most sites, or of all, are elsewhere, and their tables are empty.

    Attributes
    ----------
    accounts : who has a budget and a ledger, in order: the sites, or a trusted coordinator for all of them.
    respondents : whom the coordinator asks, in order: the accounts, or, with secure sums, all sites as one. Each
        has a factor in q.
    slots : the public number of slots of each account.
    mechanisms : how each account makes each kind of release; `added` are those whose noise adds up in q.

    Everything about sites is public except records (`records`, `own_records`) and what is made of them, which is made
    on demand.
    """

    def __init__(self, plan: Plan, sites: Sequence[Site], slots: int | None = None, *, is_remote: bool = False) -> None:
        check_sites(plan, sites, is_remote)
        self.plan, self.sites, self.table, self.is_remote = plan, list(sites), sites[0].table, is_remote
        self.accounts = accounts(plan, sites)
        self.respondents = [replace(sites[0], name=EVERYBODY)] if plan.secure_sum else self.accounts
        link, is_site = plan.link, plan.unit == "site"
        self.model = model_of(link, self.table, plan.prior_deviation)
        if link.learns_scale:
            self.model = replace(self.model, noise_scale=plan.noise_scale)
        self.has_own_slots = has_own_slots(sites, slots, is_remote)
        self.slots = slots_of(sites, slots, is_site)
        if is_site:  # one number of slots for all: clips depend on it
            self.slots = [max(self.slots)] * len(self.accounts)
        self._check_deltas()
        # Columns whose means and variances are paid for: the published method has only public scales.
        self.program = Program(plan, self.scaled_columns if plan.method != "vi" else 0)
        self.tolerance = self.program.tolerance(len(sites)) if plan.secure_sum else None
        self.units = len(sites) if is_site else sum(self.slots)
        # How many sites are behind one answer, where sites are the units.
        self.sites_each = len(sites) if plan.trusts_coordinator or plan.secure_sum else 1
        self.releases = Releases(
            self.program,
            len(self.model.prior.precision_mean),
            math.sqrt(1 + len(self.table.numbers) + self.table.categories),
            self.slots[0] if is_site else 1,
            self.sites_each,
            self.tolerance,
        )
        self._noises = self._noise_multipliers()
        self.mechanisms = [self.releases.mechanisms(noise, self._clip()) for noise in self._noises]
        self.added = self.mechanisms[: len(self.respondents)]
        self._held: dict[int, Access] = {}
        self._secrets: Mapping[str, bytes] = {}

    @property
    def scaled_columns(self) -> int:
        """The number of rescaled columns: the numbers, and a numeric target."""
        return len(self.table.numbers) + self.plan.link.target.is_number

    def _noise_multipliers(self) -> list[float]:
        """The noise multiplier of each account, from its own budget; with secure sums the largest of them for all."""
        by_budget = {(account.epsilon, account.delta): account for account in self.accounts}
        known = {budget: self.releases.noise_of(account) for budget, account in by_budget.items()}
        found = [known[account.epsilon, account.delta] for account in self.accounts]
        return found if self.tolerance is None else [max(found)] * len(found)

    def _clip(self) -> float:
        """The clip of gradients, by their size relative to the noise of all sites together."""
        if self.tolerance is not None:
            total = self._noises[0] * math.sqrt(self.tolerance.sites / self.tolerance.honest)
        else:
            total = math.sqrt(sum(sigma**2 for sigma in self._noises))
        releases, link = self.releases, self.plan.link
        noise = total / math.sqrt(self.program.shares["gradients"])
        typical = releases.typical * math.sqrt(releases.most_records)
        return clip_of(typical, noise, self.units, releases.size, link.least_clip, link.most_clip)

    def reading(self, records: Sequence[Access]) -> "Setup":
        """The same set-up with other records, such as those of an audit."""
        found = copy.copy(self)
        found._held = dict(enumerate(records))
        return found

    def splitting(self, secrets: Mapping[str, bytes]) -> "Setup":
        """The same set-up, where the named sites hold out records by these secrets, and others by a public word.

        Every host gives secrets. The guarantee does not depend on them (`federated.held_out`), so simulations and
        audits may do without.
        """
        found = copy.copy(self)
        found._held, found._secrets = {}, dict(secrets)
        return found

    # --- Budgets --------------------------------------------------------------------------------------------------

    def _check_deltas(self) -> None:
        """Refuse a δ of 1 / units or more, for the public number of slots of a site, or of sites."""
        for account, units in zip(self.accounts, self.protected, strict=True):
            if math.isinf(account.epsilon):
                continue
            try:
                check_delta_of(account.delta, units, self.plan.allow_large_delta)
            except ValueError as error:
                words = str(error).replace("record", "site") if self.plan.unit == "site" else str(error)
                raise ValueError(f"{account.name}: {words}") from None

    @property
    def protected(self) -> list[int]:
        """The public number of units that each account's budget protects."""
        return [len(self.sites)] * len(self.accounts) if self.plan.unit == "site" else self.slots

    def remarks(self, account: int) -> tuple[str, ...]:
        """Remarks on δ that an account's statement must have."""
        units, what = self.protected[account], "sites" if self.plan.unit == "site" else "slots for records"
        is_large = math.isfinite(self.accounts[account].epsilon) and self.accounts[account].delta * units >= 1
        return (LARGE.format(units=units, what=what),) if is_large else ()

    def cost(self, account: int) -> Event | None:
        """The cost of an account's whole part; None where it goes on until its ledger refuses."""
        return None if self.plan.method == "vi" else self.releases.event(self._noises[account])

    def least(self, account: int) -> Event:
        """The cost that an account must be able to pay to begin: its whole part, or one update if that has no end."""
        whole = self.cost(account)
        if whole is not None:
            return whole
        units = self.sites_each if self.plan.unit == "site" else self.slots[account]
        step, *_ = self.mechanisms[account]["gradients"].level_events(units, self.plan.unit, self.releases.size)
        return Repeated(step, self.plan.vi.steps)

    # --- Records --------------------------------------------------------------------------------------------------

    def records(self, respondent: int) -> Access:
        """All records behind a respondent, without noise. Phases read them through a mechanism of the plan."""
        if respondent not in self._held:
            is_one = self.plan.trusts_coordinator or self.plan.secure_sum
            slots = sum(self.slots) if is_one and self.plan.unit == "record" else self.slots[respondent]
            self._held[respondent] = self._records(self.sites if is_one else [self.sites[respondent]], slots)
        return self._held[respondent]

    def own_records(self, site: int) -> Access:
        """All records of one site, for secure sums."""
        return self._records([self.sites[site]], self.slots[site])

    def form(self, phase: str, scaling: Scaling | None = None) -> Access:
        """The form of `own_access` at any site, with nothing in it."""
        table = self.table.without_records()
        width = table.features.shape[1]
        one = replace(table, features=np.zeros((1, width), np.float32), target=np.zeros(1), digests=None)
        site = replace(self.sites[0], table=one)
        return empty(self._read(phase, self._records([site], self.slots[0]), self.mechanisms[0], scaling))

    def _records(self, sites: Sequence[Site], slots: int) -> Access:
        held = [(site.table.features, site.table.target.astype(np.float32), self._held_out(site)) for site in sites]
        if self.plan.unit == "site":
            return of_sites(held, Exact(), records=slots)
        together = held[0] if len(held) == 1 else tuple(map(np.concatenate, zip(*held, strict=True)))
        return Access.of(together, Exact(), slots=slots)

    def access(self, phase: str, respondent: int, scaling: Scaling | None = None) -> Access:
        """A respondent's records as a phase reads them. scaling: the study's, for all phases but "scaling"."""
        return self._read(phase, self.records(respondent), self.mechanisms[respondent], scaling)

    def accesses(self, phase: str, scaling: Scaling | None = None) -> list[Access]:
        """`access` of all respondents."""
        return [self.access(phase, respondent, scaling) for respondent in range(len(self.respondents))]

    def own_access(self, phase: str, site: int, scaling: Scaling | None = None) -> Access:
        """One site's records as a phase reads them, where sums are secure."""
        return self._read(phase, self.own_records(site), self.mechanisms[site], scaling)

    def _read(self, phase: str, held: Access, made: dict[str, PricedMechanism], scaling: Scaling | None) -> Access:
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

    def _held_out(self, site: Site) -> np.ndarray:
        """Which records of a site are held out for scores. This depends on each record alone."""
        if not self.plan.evaluation:
            return np.zeros(len(site.table.target), bool)
        return held_out(self._secrets.get(site.name, PUBLIC), site.table.contents())

    # --- Phases ---------------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """The schedule. Asynchronous sites with more slots are slower.

        It depends on the public slots and never on records, because it is published who answered when.
        """
        return self.program.steps(self.slots[: len(self.respondents)])

    def messages(self, answers: int) -> int:
        """The number of site messages in this number of answers, in expectation where sites are sampled."""
        is_one = self.plan.trusts_coordinator or self.plan.secure_sum
        each = len(self.sites) * self.plan.participation if is_one else 1
        return round(answers * each)

    def algorithm(self, phase: str, respondent: int) -> Any:
        """The algorithm that a respondent runs in a phase."""
        if phase == "scaling":
            return Moments(self.bounds(), self.mechanisms[respondent]["scaling"].standard_deviation)
        return self.evaluation() if phase == "evaluation" else self._inference(self.mechanisms[respondent])

    def terms(self, phase: str, study: str, roster: Mapping[str, bytes]) -> Terms:
        """The terms of a phase's secure sums, the same for sites and coordinator. roster: the keys of all sites."""
        assert self.tolerance is not None
        rounds = self.plan.rounds if phase == "inference" else 1
        return Terms(study, self.algorithm(phase, 0), self.tolerance, roster, self.units, rounds)

    def most_updates(self, phase: str) -> int | None:
        """The number of updates a site makes in a phase; None where only its ledger ends it."""
        if phase != "inference":
            return 1
        return None if self.plan.method == "vi" and not self.is_remote else self.plan.rounds

    def answer_shape(self, phase: str) -> Any:
        """The shapes of what a respondent sends, as `jax.ShapeDtypeStruct`s."""
        algorithm = self.algorithm(phase, 0)
        return jax.eval_shape(algorithm.answer, jax.eval_shape(algorithm.site_init))

    # --- Scaling --------------------------------------------------------------------------------------------------

    def bounds(self) -> Range:
        """Public bounds of all columns that are rescaled."""
        return bounds_of(self.table, self.scaled_columns)

    def scaling(self) -> list[Moments]:
        """The round that releases means and variances, for each respondent."""
        return [self.algorithm("scaling", respondent) for respondent in range(len(self.respondents))]

    def scaled(self, algorithms: Sequence[Moments], state: Any) -> Scaling:
        """The scaling found by that round."""
        noise = math.sqrt(sum(algorithm.noise**2 for algorithm in algorithms) / len(algorithms))
        found = replace(algorithms[0], noise=noise).scaling(state)
        return without_tails(len(self.table.numbers), found)

    def public_scaling(self) -> Scaling:
        """The scaling by the middle and half-width of the bounds, for plans that release none."""
        bounds = self.bounds()
        return Scaling(bounds, (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2)

    # --- Inference ------------------------------------------------------------------------------------------------

    def inference(self) -> list[PVI]:
        """The algorithm with each respondent's noise; any of them is the coordinator's."""
        return [self.algorithm("inference", respondent) for respondent in range(len(self.respondents))]

    def _inference(self, mechanisms: dict[str, PricedMechanism]) -> PVI:
        """The algorithm of inference. Sites differ only in the noise they add; the coordinator uses any site's."""
        plan, program, vi = self.plan, self.program, self.plan.vi
        if plan.method == "vi":
            adaptive = Adaptive(start=vi.clip) if vi.is_adaptive else None
            solver = VI(vi.steps, _adagrad(vi.learning_rate), average=0.0, adaptive=adaptive)
            return PVI(self.model.prior, self.model, (solver,), damping=(vi.damping,))
        curvature = mechanisms["curvature"]
        units = self.releases.units if plan.unit == "record" else (1.0, 1.0)
        solvers = self._record_solvers(mechanisms, units) if plan.unit == "record" else self._site_solvers(curvature)
        # Without noise there is nothing to average.
        damping = (1.0,) if isinstance(curvature, Exact) else program.damping
        noise, prior = self._noise(mechanisms, units), self.model.prior.full()
        if plan.unit == "site" and plan.noise == "central":
            more = {"rounds": plan.rounds, "reset": plan.reset}
            return Central(prior, self.model, solvers, program.kinds, damping, noise, **more)
        return PVI(prior, self.model, solvers, program.kinds, damping, noise)

    def _record_solvers(self, mechanisms: dict[str, PricedMechanism], units: tuple[float, float]) -> tuple[Any, ...]:
        """A solver for each of `Program.kinds`."""
        curvature, early = mechanisms["curvature"], mechanisms.get("early")
        expansion: Any = "vi" if self.plan.method == "natural" else self.plan.method
        return (
            NaturalStep(curvature, False, units, expansion, early),
            NaturalStep(None, True, units, expansion, early),
            NaturalStep(curvature, True, units, expansion),
            *(() if early is None else (NaturalStep(None, True, units, expansion),)),
        )

    def _site_solvers(self, curvature: PricedMechanism) -> tuple[Any, ...]:
        steps = NaturalStep(Exact(), spread=False), NaturalStep(None), NaturalStep(Exact())
        through, clips = (curvature, None, curvature), "update" if self.plan.noise == "central" else "factor"
        return tuple(Whole(step, made, "centred", clips) for step, made in zip(steps, through, strict=True))

    def _noise(self, mechanisms: dict[str, PricedMechanism], units: tuple[float, float]) -> Noise:
        """The noise in the sum of all factors."""
        gradient, curvature = (
            math.sqrt(sum(made[name].standard_deviation ** 2 for made in self.added)) * unit
            for name, unit in zip(("gradients", "curvature"), units, strict=True)
        )
        shrinkage = default_policy().rule(self.plan.model).shrinkage
        noise = Noise(gradient, curvature, reach=REACH, shrinkage=shrinkage, shrinks=self.plan.secure_sum)
        if self.program.early:
            noise = replace(noise, early=mechanisms["early"].standard_deviation * units[0], until=self.program.early)
        return noise

    # --- Results --------------------------------------------------------------------------------------------------

    def evaluation(self, found: Any = None) -> Evaluation:
        """The round that releases scores. A site needs no posterior for it: it scores the one that it is sent."""
        found = self.model.prior.full() if found is None else found
        return Evaluation(FullGaussian.of(*found) if isinstance(found, tuple) else found, self.model)

    def evaluation_noise(self) -> float:
        """The standard deviation of the noise on the sum of all scores."""
        return math.sqrt(sum(made["evaluation"].standard_deviation ** 2 for made in self.added))

    def posterior(self, found: Any, scaling: Scaling, common: dict[str, Any] | None = None) -> Posterior:
        """The posterior in the units of the data. common: its statement."""
        plan = self.plan.model_dump() | {"numbers": list(self.table.numbers)}
        plain = {"statement": {}, "statement_text": "", "plan": plan} | (common or {})
        residual = jnp.asarray(self.plan.noise_scale) if self.plan.link.learns_scale else None
        return in_units(self.plan.link, self.table.numbers, self.table, found, scaling, residual, plain)


@cache
def _adagrad(learning_rate: float) -> Any:
    """AdaGrad, one object for each rate: compiled functions compare optimisers by identity."""
    return optax.adagrad(learning_rate)
