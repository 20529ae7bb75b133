"""Sentences of statements, and what a statement takes for granted."""

from collections.abc import Iterator

from tacit.federated.held_out import HELD_OUT
from tacit.study.setup import Setup
from tacit.tables.table import Table

COUNTED = (
    "The ε above is of this analysis alone, by its plan. The ledger {name} counts all analyses of these records: ε = "
    "{spent} of its budget {budget:g} is spent at δ = {delta!r} (rule {rule})."
)
UNCOUNTED = "No ledger was charged: other analyses of the same data are not counted."
ADAPTIVE = "All analyses in the ledger, including those chosen after seeing results of others: {words}."
ABSENT = "{name} took no part in this study and released nothing."
SILENT = "{name} is not in the result; it did not say that it released anything for this study."
ALONE = "The ledger covers this study alone: other studies of the same sites are not counted."
SECRET = "The sites asked in a round are drawn at random and must stay secret from the other sites and the network."
UNTRUSTED = "Nobody is trusted with records or with noise: each site's messages are private by themselves."
TRUSTED = (
    "The coordinator is trusted: it adds up what sites send and adds the noise. The promise is about what it "
    "publishes, against everybody else, other sites included."
)
TWICE = "A person with records at two sites is protected at each site by itself, and not for both together."
POLICY = "The plan has a policy of its own, which is treated as public: it must not follow from these records."
CLASSES = "The list of classes is treated as public."
AS_GIVEN = "Records are used as they are given; earlier processing of them is not covered."
NOISE_AWARE = "Posterior intervals include the noise that was added to gradients."
GUESSED = (
    "Where noise hides the curvature, {share:.0f} % of a guess takes its place. Intervals are too narrow where the "
    "records say less than the guess."
)
SAMPLED = (
    "Intervals come from samples: each step adds the larger of the noise of Langevin dynamics and the noise of "
    "privacy. Whether the chains have mixed is not checked; look at them."
)
NOISE_BLIND = "Posterior intervals do not include the noise that was added."
SCORED = (
    "Scores on held-out records, one in {count} on average, {paid}. Which ones are held out depends on each "
    "{unit} alone."
)
PAID = "are private releases ({share:.3g} % of the budget)"
FREE = "are the middle and half-width of the bounds, which are public"


def assumptions(setup: Setup, place: int) -> tuple[str, ...]:
    """What an account's guarantee takes for granted, whom it trusts, and what intervals hold."""
    plan, table = setup.plan, setup.sites[place if len(setup.accounts) > 1 else 0].table
    return (
        *_slots(setup, place),
        *_scales(setup),
        *_scored(setup),
        *((CLASSES,) if plan.is_table and plan.link is not None and not plan.link.target.is_number else ()),
        *((AS_GIVEN,) if not plan.is_table else ()),
        *(("How often a site answers follows from its number of slots.",) if plan.schedule == "asynchronous" else ()),
        *((POLICY,) if plan.policy is not None else ()),
        *_trust(setup),
        *setup.remarks(place),
        *_intervals(setup),
        *(table.notes if isinstance(table, Table) else ()),
    )


def _slots(setup: Setup, place: int) -> Iterator[str]:
    plan, slots = setup.plan, setup.slots[place]
    if plan.unit == "site":
        yield f"The number of slots for records of a site, {slots}, is public: it is the size of the largest site."
        yield "The number of sites is public too."
        return
    at = f" at {setup.accounts[place].name}" if len(setup.sites) > 1 else ""
    if setup.has_own_slots:
        yield f"The number of slots for {plan.unit}s{at}, {slots}, is public; how many are filled is not."
    elif len(setup.sites) > 1:
        yield (
            f"The number of slots for {plan.unit}s{at}, {slots}, is public: it is the size of the largest site of "
            "similar size."
        )
    else:
        yield f"The number of {plan.unit}s, {slots}, is treated as public: removing one leaves its slot empty."
    if plan.unit == "person":
        yield f"At most {plan.most_records} records of one person are used, the first ones."
        if len(setup.sites) > 1:
            yield TWICE


def _scales(setup: Setup) -> Iterator[str]:
    plan, columns = setup.plan, setup.scaled_columns
    if not plan.is_table or not columns:
        return
    assert plan.link is not None
    shares, unknown = setup.program.shares, setup.program.unknown
    what = "numeric columns and the target" if plan.link.target.is_number else "numeric columns"
    all_sites = ", summed over all sites" if len(setup.sites) > 1 else ""
    if unknown:
        paid = PAID.format(share=100 * shares["ranges"])
        yield f"Ranges of {unknown} of {columns} {what} {paid}; those of {columns - unknown} are public bounds."
    else:
        yield f"Ranges of {what} are public bounds."
    paid = PAID.format(share=100 * shares["scaling"]) + all_sites if setup.program.paid else FREE
    yield f"Locations and scales of {what} {paid}."


def _scored(setup: Setup) -> Iterator[str]:
    if "evaluation" in setup.program.counts:
        paid = PAID.format(share=100 * setup.program.shares["evaluation"])
        yield SCORED.format(unit=setup.plan.unit, count=HELD_OUT, paid=paid)


def _trust(setup: Setup) -> Iterator[str]:
    if setup.plan.trusts_coordinator:
        yield TRUSTED
    elif setup.tolerance is not None:
        yield setup.tolerance.words
    elif len(setup.sites) > 1:
        yield UNTRUSTED
    if setup.plan.participation < 1:
        yield SECRET


def _intervals(setup: Setup) -> Iterator[str]:
    plan = setup.plan
    if plan.is_natural:
        yield NOISE_AWARE
        if setup.program.rule.shrinkage and setup.is_private:
            yield GUESSED.format(share=100 * setup.program.rule.shrinkage)
    else:
        yield SAMPLED if plan.method_used == "sgld" else NOISE_BLIND
