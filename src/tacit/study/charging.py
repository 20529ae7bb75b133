"""The ledger of one table, which is opened, or made at its first use, and must be able to pay for a whole fit.

A ledger made here gets a rule that is proved even for analyses chosen after seeing results (`privacy.filters`):
`gaussian` if the first plan samples nothing, else `renyi`. No such rule prices sampling under replace-one: that ledger
gets `pld`, and the ledger and every statement say that analyses chosen after seeing results are not covered.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tacit.privacy import accounting, filters, parts
from tacit.privacy.checks import check_delta_of
from tacit.privacy.events import Adjacency, Event, check_number
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import SLACK, BudgetExceeded, Ledger
from tacit.privacy.statement import rounded_up

ENDING = ".ledger.sqlite"  # of a ledger beside its data
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


def charged(ledger: Ledger, study: str) -> dict[str, Any]:
    """What a study charged to a ledger, as plain data, with the name of the ledger's file but not its folder."""
    entries = ledger.entries()
    return {
        "name": ledger.path.name,
        "charge": study,
        "epsilon": ledger.epsilon,
        "delta": ledger.delta,
        "spent": entries[-1].spent if entries else 0.0,
        "rule": ledger.accountant,
        "adaptive_analyses": ledger.rule_words,
    }


def beside(data: Path) -> Path:
    """The ledger of a file of records. A symbolic link shares the ledger of its target."""
    real = data.resolve()
    return real.with_name(real.name + ENDING)


def ready(
    place: Place,
    event: Event,
    budget: Budget,
    *,
    epsilon: float,
    delta: float,
    slots: int,
    unit: str,
    adjacency: Adjacency,
    allow_large_delta: bool = False,
) -> Path:
    """The path of a ledger that can pay for a fit of promised (ε, δ), or a refusal in a sentence. Charges nothing.

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
    left = ledger.remaining_after(event)
    if not left >= -SLACK * ledger.epsilon:
        raise BudgetExceeded(_refusal(ledger, event, "its rule does not price this plan"))
    return path


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
