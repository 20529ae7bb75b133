"""A study's plan applied to its sites: algorithms, accesses and prices. Nothing here runs or reads a record."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tacit.engines.schedule import Step
from tacit.families import FullGaussian
from tacit.federated.evaluation import Evaluation
from tacit.federated.held_out import PUBLIC, held_out
from tacit.federated.moments import Moments, Ranges
from tacit.federated.released_sum import Addressed
from tacit.federated.residual import Residual
from tacit.federated.secure_terms import EVERYBODY, Terms
from tacit.federated.site_effects import Effects
from tacit.federated.tied import of_sites
from tacit.posterior.posterior import Posterior
from tacit.privacy.checks import check_delta_of
from tacit.privacy.events import Event, Repeated
from tacit.privacy.mechanism import Access, Exact, PricedMechanism
from tacit.privacy.shared import empty
from tacit.study.inference import Inference
from tacit.study.one_record import check_one_record, shapes_of_one
from tacit.study.plan import Plan
from tacit.study.program import INFERENCE, Program
from tacit.study.reading import at_least_zero, contents_of, contents_of_persons, reading_of, size_of
from tacit.study.releases import Releases
from tacit.study.results import posterior_of
from tacit.study.sites import Site, accounts, check_sites, has_own_slots, slots_of
from tacit.tables.scaling import Range, Scaling
from tacit.tables.standardising import without_tails
from tacit.tables.table import Table

LARGE = "δ is 1 / {units} or more, for {units} {what} (allow_large_delta): it allows one of them to be published."
MOST_COLUMNS = 400  # with more, a curvature matrix is mostly noise, so a diagonal q is fitted


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
        self.form_of_records = reading_of(plan, sites[0].table)
        self.model = self.form_of_records.model
        if not plan.is_table:
            check_one_record(self.model, shapes_of_one(self.form_of_records.records(sites[0].table)))
        size = sum(leaf.size for leaf in jax.tree.leaves(_means(self.model.prior)))
        if plan.method is None and plan.is_natural and size > MOST_COLUMNS:
            plan = plan.replace(method="vi")
        self.plan, self.sites, self.table, self.is_remote = plan, list(sites), sites[0].table, is_remote
        self.accounts = accounts(plan, sites)
        self.respondents = [replace(sites[0], name=EVERYBODY)] if plan.secure_sum else self.accounts
        is_site = plan.unit == "site"
        self.has_own_slots = has_own_slots(sites, slots, is_remote)
        self.slots = slots_of(plan, sites, slots)
        if is_site:  # one number of slots for all: clips depend on it
            self.slots = [max(self.slots)] * len(self.accounts)
        self._check_deltas()
        is_paid = plan.scaling == "moments" and not plan.is_published
        self.program = Program(
            plan,
            self.scaled_columns if is_paid else 0,
            len(self.form_of_records.unknown) if is_paid else 0,
            len(self.respondents),
        )
        self.tolerance = self.program.tolerance(len(sites)) if plan.secure_sum else None
        self.units = len(sites) if is_site else sum(self.slots)
        # How many sites are behind one answer, where sites are the units.
        self.sites_each = len(sites) if plan.trusts_coordinator or plan.secure_sum else 1
        self.releases = Releases(
            self.program,
            size,
            self.form_of_records.typical,
            self.slots[0] if is_site else plan.most_records or 1,
            self.sites_each,
            min(self.slots),
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
        return self.form_of_records.columns

    def _noise_multipliers(self) -> list[float]:
        """The noise multiplier of each account, from its own budget; with secure sums the largest of them for all."""
        is_sampled = self.releases.sampling_rate < 1  # only then does the price depend on the slots
        whose = [
            (account.epsilon, account.delta, slots if is_sampled else 0)
            for account, slots in zip(self.accounts, self.slots, strict=True)
        ]
        accounts = dict(zip(whose, zip(self.accounts, self.slots, strict=True), strict=True))
        known = {key: self.releases.noise_of(account, slots) for key, (account, slots) in accounts.items()}
        found = [known[key] for key in whose]
        return found if self.tolerance is None else [max(found)] * len(found)

    def _clip(self) -> float:
        """The clip of gradients, by their size relative to the noise of all sites together."""
        if not self.plan.is_natural:
            return self.releases.own_clip
        if self.plan.clip is not None:
            return self.plan.clip
        if self.tolerance is not None:
            total = self._noises[0] * math.sqrt(self.tolerance.sites / self.tolerance.honest)
        else:
            total = math.sqrt(sum(sigma**2 for sigma in self._noises))
        return self.releases.clip_of_gradients(total, self.units)

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
                words = str(error).replace("record", self.plan.unit)
                raise ValueError(f"{account.name}: {words}") from None

    @property
    def protected(self) -> list[int]:
        """The public number of units that each account's budget protects."""
        return [len(self.sites)] * len(self.accounts) if self.plan.unit == "site" else self.slots

    @property
    def effect_places(self) -> tuple[int, ...]:
        """The places of the coefficients that differ between sites."""
        names = ("intercept", *self.table.names) if self.plan.site_effects else ()
        return tuple(names.index(name) for name in self.plan.site_effects)

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return any(self._noises)

    def remarks(self, account: int) -> tuple[str, ...]:
        """Remarks on δ that an account's statement must have."""
        whose = {"site": "sites", "person": "slots for persons"}
        units, what = self.protected[account], whose.get(self.plan.unit, "slots for records")
        is_large = math.isfinite(self.accounts[account].epsilon) and self.accounts[account].delta * units >= 1
        return (LARGE.format(units=units, what=what),) if is_large else ()

    def cost(self, account: int) -> Event | None:
        """The cost of an account's whole part; None where it goes on until its ledger refuses."""
        return None if self.plan.is_published else self.releases.event(self._noises[account], self.slots[account])

    def least(self, account: int) -> Event:
        """The cost that an account must be able to pay to begin: its whole part, or one update if that has no end."""
        whole = self.cost(account)
        if whole is not None:
            return whole
        units = self.sites_each if self.plan.unit == "site" else self.slots[account]
        step, *_ = self.mechanisms[account]["gradients"].level_events(units, self.plan.unit, self.releases.size)
        return Repeated(step, self.program.steps)

    # --- Records --------------------------------------------------------------------------------------------------

    def records(self, respondent: int) -> Access:
        """All records behind a respondent, without noise. Phases read them through a mechanism of the plan."""
        if respondent not in self._held:
            is_one = self.plan.trusts_coordinator or self.plan.secure_sum
            slots = sum(self.slots) if is_one and self.plan.unit != "site" else self.slots[respondent]
            self._held[respondent] = self._records(self.sites if is_one else [self.sites[respondent]], slots)
        return self._held[respondent]

    def own_records(self, site: int) -> Access:
        """All records of one site, for secure sums."""
        return self._records([self.sites[site]], self.slots[site])

    def form(self, phase: str, scaling: Scaling | None = None) -> Access:
        """The form of `own_access` at any site, with nothing in it."""
        site = replace(self.sites[0], table=_one_record(self.table), groups=None)
        if self.plan.unit == "person":
            site = replace(site, groups=np.zeros(1, int))
        return empty(self._read(phase, self._records([site], self.slots[0]), self.mechanisms[0], scaling))

    def _records(self, sites: Sequence[Site], slots: int) -> Access:
        """Records with a mark for each whether it is held out."""
        held = [(self.form_of_records.records(site.table), self._held_out(site)) for site in sites]
        if self.plan.unit == "site":
            return of_sites(held, Exact(), records=slots)
        together = jax.tree.map(lambda *parts: np.concatenate(parts), *held)
        if self.plan.unit == "record":
            return Access.of(together, Exact(), slots=slots)
        groups = [np.unique(site.groups, return_inverse=True)[1] for site in sites]
        starts = np.cumsum([0, *(len(np.unique(found)) for found in groups[:-1])])  # persons of two sites are apart
        apart = np.concatenate([start + found for start, found in zip(starts, groups, strict=True)])
        return Access.of(together, Exact(), groups=apart, most_records=self.plan.most_records, slots=slots)

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
        form = self.form_of_records
        if phase not in ("ranges", "scaling") and scaling is None:
            raise ValueError(f"phase={phase!r} reads records that are scaled; give the scaling of the study")
        is_judged = phase == "evaluation"
        part = held.where(lambda record: record[1] == is_judged).through(
            made["gradients" if phase in INFERENCE else phase]
        )
        if scaling is None or phase in ("ranges", "scaling"):
            return part.map(lambda record: form.measured(record[0]))
        return part.map(lambda record: form.ready(scaling, record[0]))

    def _held_out(self, site: Site) -> np.ndarray:
        """Which records of a site are held out for scores. This depends on each record, or person, alone."""
        if not self.plan.evaluation:
            return np.zeros(size_of(site.table), bool)
        is_person = self.plan.unit == "person"
        contents = contents_of_persons(site.groups) if is_person else contents_of(site.table)
        return held_out(self._secrets.get(site.name, PUBLIC), contents)

    # --- Phases ---------------------------------------------------------------------------------------------------

    def steps(self, phase: str = "inference") -> list[Step]:
        """The schedule of a phase. Asynchronous sites with more slots are slower.

        It depends on the public slots and never on records, because it is published who answered when.
        """
        return self.program.schedule(self.slots[: len(self.respondents)], phase)

    def messages(self, answers: int) -> int:
        """The number of site messages in this number of answers, in expectation where sites are sampled."""
        is_one = self.plan.trusts_coordinator or self.plan.secure_sum
        each = len(self.sites) * self.plan.participation if is_one else 1
        return round(answers * each)

    def algorithm(self, phase: str, respondent: int, scaling: Scaling | None = None, found: Any = None) -> Any:
        """The algorithm that a respondent runs in a phase.

        scaling: that of the study so far, where there is one. found: what the coordinator found so far, for phases that
        use it: the mean for `residual` and `refinement`, the posterior for `evaluation`. Sites are sent it.
        """
        scaling = self.public_scaling() if scaling is None else scaling
        made = self.mechanisms[respondent]
        match phase:
            case "ranges":
                return Ranges(self.bounds(), self.form_of_records.unknown, made[phase].standard_deviation)
            case "scaling":
                return Moments(scaling.range, made[phase].standard_deviation)
            case "residual":
                residual = Residual(self.model.prior.mean if found is None or self.plan.site_effects else found)
                is_sent = self.plan.site_effects and found is not None
                return Addressed(residual, {"mean": found}) if is_sent else residual
            case "evaluation":
                return self.evaluation(found)
        return Inference(self, made, scaling, phase).algorithm(found)

    def terms(self, phase: str, study: str, roster: Mapping[str, bytes], scaling: Scaling | None = None) -> Terms:
        """The terms of a phase's secure sums, the same for sites and coordinator. roster: the keys of all sites."""
        assert self.tolerance is not None
        algorithm = self.algorithm(phase, 0, scaling)
        return Terms(study, algorithm, self.tolerance, roster, self.units, self.program.rounds_in(phase))

    def most_updates(self, phase: str) -> int | None:
        """The number of updates a site makes in a phase; None where only its ledger ends it."""
        if phase in INFERENCE and self.plan.is_published and not self.is_remote:
            return None
        return self.program.rounds_in(phase)

    def answer_shape(self, phase: str) -> Any:
        """The shapes of what a respondent sends, as `jax.ShapeDtypeStruct`s."""
        algorithm = self.algorithm(phase, 0)
        return jax.eval_shape(algorithm.answer, jax.eval_shape(algorithm.site_init))

    @property
    def phases(self) -> list[str]:
        """The phases of the study, in order."""
        counts = self.program.counts
        others = [name for name in ("ranges", "scaling") if name in counts]
        refined = ["residual", "refinement"] if self.plan.learns_residual else []
        return [*others, "inference", *refined, *(["evaluation"] if self.plan.evaluation else [])]

    @property
    def last_phase(self) -> str:
        """The phase that ends with the posterior."""
        return "refinement" if self.plan.learns_residual else "inference"

    # --- Scaling --------------------------------------------------------------------------------------------------

    def bounds(self) -> Range:
        """Public bounds of all columns that are rescaled."""
        return self.form_of_records.bounds()

    def ranged(self, state: Any) -> Scaling:
        """The scaling by the ranges that a round found."""
        noise = (sum(made["ranges"].standard_deviation ** 2 for made in self.added) / len(self.added)) ** 0.5
        found = replace(self.algorithm("ranges", 0), noise=noise).range(state)
        link = self.plan.link
        if link is not None and link.target.name == "count":
            found = at_least_zero(found)
        return _by_range(found)

    def scaled(self, state: Any, scaling: Scaling | None = None) -> Scaling:
        """The scaling by the means and variances that a round found, within the ranges of `scaling`."""
        noise = (sum(made["scaling"].standard_deviation ** 2 for made in self.added) / len(self.added)) ** 0.5
        found = replace(self.algorithm("scaling", 0, scaling), noise=noise).scaling(state)
        return without_tails(len(self.table.numbers), found)

    def public_scaling(self) -> Scaling:
        """The scaling by the middle and half-width of the bounds, for plans that release none."""
        return _by_range(self.bounds())

    def with_residual(self, scaling: Scaling, state: Any) -> Scaling:
        """The scaling with the residual's standard deviation that a round found."""
        noise = sum(made["residual"].standard_deviation ** 2 for made in self.added) ** 0.5
        return replace(scaling, residual=self.algorithm("residual", 0).scale(state, noise))

    # --- Results --------------------------------------------------------------------------------------------------

    def evaluation(self, found: Any = None) -> Any:
        """The round that releases scores. A site needs no posterior for it: it scores the one that it is sent."""
        if found is None:
            found = self.model.prior.full() if self.plan.is_natural else self.model.prior
        if isinstance(found, Effects):  # each site scores its own coefficients
            own = jax.vmap(FullGaussian.of)(found.means, found.covariances)
            return Addressed(self.evaluation(), own)
        return Evaluation(FullGaussian.of(*found) if isinstance(found, tuple) else found, self.model)

    def evaluation_noise(self) -> float:
        """The standard deviation of the noise on the sum of all scores."""
        return math.sqrt(sum(made["evaluation"].standard_deviation ** 2 for made in self.added))

    def posterior(self, found: Any, scaling: Scaling, common: dict[str, Any] | None = None) -> Posterior:
        """The posterior in the units of the data. common: its statement."""
        names = [respondent.name for respondent in self.respondents]
        return posterior_of(self.form_of_records, self.plan, found, scaling, self.described(), common or {}, names)

    def described(self) -> dict[str, Any]:
        """The plan as plain data, with what was chosen where it leaves a choice."""
        plan, program = self.plan, self.program
        plain = {name: value for name, value in dict(plan).items() if name not in ("vi", "model")} | {
            "model": plan.model_name,
            "method": plan.method_used,
            "rounds": program.rounds,
            "vi": plan.vi.model_dump() | {"steps": program.steps},
        }
        releases = {
            name: {"releases": count, "share": round(program.shares[name], 6), **_plain(self.mechanisms[0][name])}
            for name, count in program.counts.items()
            if name in self.mechanisms[0]
        }
        numbers = list(self.table.numbers) if isinstance(self.table, Table) else []
        return plain | {"numbers": numbers, "releases": releases}


def _means(prior: Any) -> Any:
    return jax.tree.map(lambda part: part.precision_mean, prior, is_leaf=lambda part: hasattr(part, "precision_mean"))


def _by_range(found: Range) -> Scaling:
    return Scaling(found, (found.low + found.high) / 2, (found.high - found.low) / 2)


def _one_record(table: Any) -> Any:
    """One empty record in the form of a site's."""
    if isinstance(table, Table):
        width, public = table.features.shape[1], table.without_records()
        return replace(public, features=np.zeros((1, width), np.float32), target=np.zeros(1), digests=None)
    return jax.tree.map(lambda leaf: np.zeros((1, *np.shape(leaf)[1:]), np.asarray(leaf).dtype), table)


def _plain(mechanism: PricedMechanism) -> dict[str, Any]:
    """Clip and noise of a mechanism."""
    if isinstance(mechanism, Exact):
        return {"noise_multiplier": 0.0}
    noises = mechanism.noise_multipliers
    found: dict[str, Any] = {"clip": mechanism.clips[0], "noise_multiplier": noises[0]}
    return found if len(noises) == 1 else found | {"noise_of_levels": list(noises)}
