"""Charging a fit to a ledger, which is opened, or made at its first use. The whole price is charged before any read.

A ledger made here gets a rule that is proved even for analyses chosen after seeing results (`privacy.filters`):
`gaussian` if the first plan samples nothing, else `renyi`. No such rule prices sampling under replace-one: that ledger
gets `pld`, and the ledger and every statement say that analyses chosen after seeing results are not covered.
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tacit.federated.responder import SEEDED
from tacit.privacy import accounting, filters, parts
from tacit.privacy.checks import check_delta_of
from tacit.privacy.events import Adjacency, Event, check_number
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import SLACK, BudgetExceeded, Entry, Ledger
from tacit.privacy.statement import rounded_up

ENDING = ".ledger.sqlite"  # of a ledger beside its data
UNCOUNTED = "No ledger was charged: other analyses of the same data are not counted."
Place = str | os.PathLike[str] | Ledger
BudgetEpsilon = float | Literal["first"]


@dataclass(frozen=True)
class Budget:
    """The budget of a new ledger. epsilon "first" is the price of the first fit; delta None is the first fit's."""

    epsilon: BudgetEpsilon | None = None
    delta: float | None = None

    def check(self) -> None:
        """Refuse values that are not a budget."""
        if self.epsilon not in (None, "first"):
            valid = isinstance(self.epsilon, int | float) and 0 < self.epsilon < float("inf")
            check_number("budget_epsilon", self.epsilon, "a finite number above 0, or 'first'", valid)
        if self.delta is not None:
            valid = isinstance(self.delta, int | float) and 0 < self.delta < 1
            check_number("budget_delta", self.delta, "a number above 0 and below 1", valid)


@dataclass(frozen=True)
class Charge:
    """A fit's entry in a ledger."""

    ledger: Ledger
    entry: Entry

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the statement: the ledger's count, which is no promise, and the budget, which the rule covers."""
        ledger = self.ledger
        return (
            f"The ε above is of this fit alone. The ledger {ledger.path.name} counts all fits of these records: "
            f"ε = {rounded_up(self.entry.spent)} of its budget {ledger.epsilon:g} is spent at δ = {ledger.delta!r} "
            f"(rule {ledger.accountant}).",
            f"Budgets of adaptively chosen analyses: {ledger.rule_words}.",
        )

    def to_dict(self) -> dict[str, Any]:
        """The charge as plain data, with the name of the ledger's file but not its folder."""
        ledger = self.ledger
        return {
            "name": ledger.path.name,
            "charge": self.entry.study,
            "epsilon": ledger.epsilon,
            "delta": ledger.delta,
            "spent": self.entry.spent,
            "rule": ledger.accountant,
            "adaptive_analyses": ledger.rule_words,
        }


def beside(data: Path) -> Path:
    """The ledger of a file of records. A symbolic link shares the ledger of its target."""
    real = data.resolve()
    return real.with_name(real.name + ENDING)


def charge(
    place: Place,
    event: Event,
    budget: Budget,
    *,
    epsilon: float,
    delta: float,
    slots: int,
    unit: str,
    adjacency: Adjacency,
    seeded: bool,
    allow_large_delta: bool = False,
) -> Charge:
    """Charge a fit of promised (ε, δ) durably and in full, or refuse it in a sentence. Call it before reading records.

    A ledger that does not exist is made with `budget`, if this fit fits into it.
    """
    path = place.path if isinstance(place, Ledger) else Path(place).absolute()
    if os.path.lexists(path):
        ledger = Ledger.open(path)
        _check_same(ledger, budget)
    else:
        chosen = Budget(epsilon if budget.epsilon == "first" else budget.epsilon, budget.delta or delta)
        check_delta_of(chosen.delta or delta, slots, allow_large_delta)
        ledger = _make(path, event, chosen, budget.epsilon == "first", unit, adjacency)
    if (ledger.unit, ledger.adjacency) != (unit, adjacency):
        raise ValueError(
            f"ledger={path} is for each {ledger.unit} under {ledger.adjacency}, and this fit for each {unit} under "
            f"{adjacency}; fit for the ledger's unit and adjacency, or use a new ledger, which then counts separately"
        )
    name = f"fit-{secrets.token_hex(6)}"
    try:
        entry = ledger.charge(event, study=name, round=0, note=SEEDED if seeded else "")
    except BudgetExceeded as error:
        raise BudgetExceeded(_refusal(ledger, event, str(error))) from None
    return Charge(Ledger.open(path), entry)


def _check_same(ledger: Ledger, budget: Budget) -> None:
    """Refuse a budget that differs from the ledger's."""
    for name, given, there in (("epsilon", budget.epsilon, ledger.epsilon), ("delta", budget.delta, ledger.delta)):
        if given not in (None, "first", there):
            remedy = f", or raise it by 'tacit ledger extend {ledger.path}'" if name == "epsilon" else ""
            raise ValueError(
                f"budget_{name}={given}, but {there:g} in ledger={ledger.path}, whose budget a fit does not change; "
                f"leave it out{remedy}"
            )


def _make(path: Path, event: Event, budget: Budget, is_first: bool, unit: str, adjacency: Adjacency) -> Ledger:
    """Make a ledger that this event fits into, or refuse the event and make nothing."""
    epsilon, delta = budget.epsilon, budget.delta
    if epsilon is None or delta is None:
        raise ValueError(f"ledger={path} does not exist; give budget_epsilon to make it, or the path of one that does")
    assert not isinstance(epsilon, str)
    if is_first:
        epsilon = filters.first(event, epsilon, delta, adjacency)
    known = filters.name_for(event, adjacency)
    if known is None:
        rule, price = "pld", accounting.epsilon(event, delta, adjacency=adjacency)
    else:
        rule = Filter.of(known, epsilon, delta, parts.departure(event, adjacency))
        price = rule.price(event, epsilon, delta, adjacency)
    if price > epsilon * (1 + SLACK):
        raise BudgetExceeded(
            f"budget_epsilon={epsilon:g} is less than this fit costs at δ = {delta!r} by the rule {rule}, "
            f"{rounded_up(price)}; give a larger budget, or ask for a smaller epsilon"
        )
    name = path.name.removesuffix(ENDING)
    settings: dict[str, Any] = {"unit": unit, "adjacency": adjacency, "accountant": str(rule)}
    return Ledger.create(path, data_set=name, epsilon=epsilon, delta=delta, **settings)


def _refusal(ledger: Ledger, event: Event, words: str) -> str:
    spent, alone = ledger.spent(), ledger.price(event)
    if alone == float("inf"):
        return f"ledger={ledger.path}: {words}"
    left = max(0.0, ledger.epsilon - spent)
    return (
        f"ledger={ledger.path}: of its budget ε = {ledger.epsilon:g} at δ = {ledger.delta!r}, {spent:.4g} is spent and "
        f"{left:.4g} is left; this fit costs {alone:.4g} alone, and with all before it "
        f"{ledger.epsilon - ledger.remaining_after(event):.4g}; ask for a smaller epsilon, or raise the budget by "
        f"'tacit ledger extend', which is the data holder's decision"
    )
