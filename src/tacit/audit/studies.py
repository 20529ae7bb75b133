"""Audits of studies of one site or many: on made-up records, and on the files of a study with and without a row."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.bounds import Assumption, check_confidence, one_run_bound
from tacit.audit.canaries import Canaried, Paired
from tacit.audit.eavesdropping import affordable, eavesdropped
from tacit.audit.subjects import COLUMNS, RECORDS, Canary, Subject, canaried, made_up
from tacit.federated.held_out import held_out, seeded_secret
from tacit.privacy import accounting
from tacit.privacy.checks import check_epsilon
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key
from tacit.privacy.released import Released
from tacit.study.plan import Plan
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.table import Table

SITES = 3
MOST_CANARIES = 100_000
MOST_BATCH = 2e7  # numbers held at once by a batch of runs, 80 MB


def of_setup(setup: Setup, name: str, canary: Canary = "worst") -> Subject:
    """All releases of the first respondent of a study, whose first unit is the canary.

    The other respondents' records stay as they are. The claim is under add-remove, whatever the plan's adjacency.
    """
    account = setup.accounts[0]
    event, updates = affordable(setup, account.epsilon, account.delta)
    marked = [canaried(setup.records(respondent), canary) for respondent in range(len(setup.respondents))]

    def program(key: Array, access: Canaried) -> Released[Any]:
        found, scores = eavesdropped(setup.reading([access, *marked[1:]]), key, updates=updates)
        return Released(vars(found), trace=(scores[:1],))

    return Subject(name, program, marked[0], event, account.delta, _batch(setup, marked[0].slots))


def of_study(
    plan: Plan,
    budget: tuple[float, float],
    *,
    sites: int = SITES,
    canary: Canary = "worst",
    records: int = RECORDS,
    columns: int = COLUMNS,
) -> Subject:
    """A study of many sites on made-up records, with the canary at the first site.

    budget: (ε, δ) of every site. The canary is a training record, so it is in none of the held-out scores. If whole
    sites are the unit, the canary is a site.
    """
    return of_setup(_setup_of(plan, budget, sites, canary, records, columns), f"a study of {sites} sites", canary)


def of_fit(
    epsilon: float,
    delta: float,
    *,
    canary: Canary = "worst",
    model: str = "logistic",
    records: int = RECORDS,
    columns: int = COLUMNS,
    **settings: Any,
) -> Subject:
    """What `tacit.fit` runs, a study with one site, on made-up records. settings: of its plan."""
    setup = _setup_of(Plan(model, **settings), (epsilon, delta), 1, canary, records, columns)
    return of_setup(setup, f"a {model} fit", canary)


def once(
    epsilon: float, delta: float, canaries: int = 2000, columns: int = 200, confidence: float = 0.95, *, seed: int
) -> dict[str, Any]:
    """One fit with many canaries, each included by a fair coin, and the bound that guesses about them prove."""
    check_epsilon(epsilon)
    check_confidence(confidence)
    if not 10 <= canaries <= MOST_CANARIES:
        raise ValueError(f"canaries={canaries}; expected from 10 to {MOST_CANARIES}")
    setup = _setup_of(Plan("logistic"), (epsilon, delta), 1, "worst", canaries + RECORDS, columns)
    claimed = accounting.epsilon(affordable(setup, epsilon, delta)[0], delta)
    included = np.random.default_rng(seed).random(canaries) < 0.5
    marked = Canaried.on(setup.records(0), canaries).having(included)
    scores = np.asarray(eavesdropped(setup.reading([marked]), insecure_key(seed), canaries)[1][0])
    each = 1 - (1 - confidence) / 2  # both bounds hold together; a fit claims a Gaussian shift, so both test it
    kinds: tuple[Assumption, ...] = ("nothing", "gaussian")
    found = {kind: one_run_bound(scores, included, delta, each, kind) for kind in kinds}
    best = max(kinds, key=lambda kind: found[kind][0])
    lower, guesses, correct = found[best]
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


def _setup_of(plan: Plan, budget: tuple[float, float], sites: int, canary: Canary, records: int, columns: int) -> Setup:
    """A study of made-up records, the first of which is the canary."""
    check_epsilon(budget[0])
    clinics = [Site(f"site-{m + 1}", made_up(records, columns, canary, seed=m), *budget) for m in range(sites)]
    if plan.unit == "site":  # all records of the first site equal its canary
        clinics[0] = replace(clinics[0], table=clinics[0].table.rows(np.zeros(records, int)))
    setup = Setup(_all_at_once(plan), clinics, slots=records)
    if not plan.evaluation:
        return setup
    return setup.splitting({clinics[0].name: _learning_from(clinics[0].table)})


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
    if plan.unit != "record":
        raise ValueError(f"canary='row' with unit={plan.unit!r}, where a row is only a part; use another canary")
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
    if within.releases.sampling_rate < 1:
        raise ValueError(f"canary='row' with method={plan.method_used!r}, which samples; use another canary")
    fewer = clinics[place].table.rows(np.delete(np.arange(rows), row))
    clinics[place] = replace(clinics[place], table=fewer)
    without = Setup(plan, clinics).splitting(secrets)
    respondent = 0 if plan.secure_sum else place
    most = max(within.records(other).slots for other in range(len(within.respondents)))
    both = [
        Paired.of_both(_padded(without.records(other), most), _padded(within.records(other), most))
        for other in range(len(within.respondents))
    ]
    event, updates = affordable(within, clinics[place].epsilon, clinics[place].delta, respondent)

    def program(key: Array, access: Paired) -> Released[Any]:
        records = [other.having(access.is_within) for other in both]
        records[respondent] = access
        found, scores = eavesdropped(within.reading(records), key, updates=updates)
        # Scores of all sites are added up: the row must move nothing at any other site.
        return Released(vars(found), trace=(jnp.sum(scores, axis=0),))

    words = f"row {row} of {names[place]} in {path.name}"
    return Subject(words, program, both[respondent], event, clinics[place].delta, _batch(within, most))


def _batch(setup: Setup, slots: int) -> int:
    """The number of runs in one compiled program, by the numbers in a batch of contributions to curvature."""
    return int(np.clip(MOST_BATCH / (slots * setup.releases.typical**4), 10, 1000))


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
