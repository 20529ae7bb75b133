"""What one study may spend of a ledger's budget."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy import accounting
from tacit.privacy.events import Event
from tacit.privacy.ledger import SLACK, BudgetExceeded, Entry, Ledger, counts_of, whole_of


@dataclass(frozen=True)
class Allowance:
    """What one study may spend of a ledger's budget, whatever else is left in it. Every host of a study applies this.

    Guarantee: ε of all charges of this study together, at the study's δ, is at most `epsilon` · (1 + SLACK), as long
    as one process at a time charges for the study. The price is by `pld`, as in statements, because the plan fixes what
    a study releases. The ledger's own rule prices all studies together, since one may depend on another's results.

    study: charges of `STUDY/PHASE` are the study's own. delta: the study's; by default the ledger's.
    """

    ledger: Ledger
    study: str
    epsilon: float
    delta: float | None = None

    @property
    def path(self) -> Path:
        """The ledger's path."""
        return self.ledger.path

    def own(self) -> list[Entry]:
        """The study's own charges."""
        return [entry for entry in self.ledger.entries() if entry.study.startswith(f"{self.study}/")]

    def entries(self) -> tuple[Entry, ...]:
        """All charges of the ledger, including those of other studies."""
        return self.ledger.entries()

    def spent(self) -> float:
        """ε of the study's own charges, by `pld`."""
        return self._price(counts_of(self.own()))

    def _price(self, counts: Counter[str]) -> float:
        delta = self.ledger.delta if self.delta is None else self.delta
        return accounting.epsilon(whole_of(counts), delta, "pld", self.ledger.adjacency)

    def charge(self, event: Event, *, study: str, round: int, note: str = "") -> Entry:
        """As `Ledger.charge`, if the study's charges including this one are within its allowance."""
        own = self.own()
        if all((entry.study, entry.round) != (study, round) for entry in own):
            total = self._price(counts_of(own) + Counter([self.ledger.stored_form(event)]))
            if not total <= self.epsilon * (1 + SLACK):
                raise BudgetExceeded(f"epsilon={self.epsilon:g} of this study is spent; end it here")
        return self.ledger.charge(event, study=study, round=round, note=note)

    def objection(self, whole: Event, *, tells: bool = True) -> str:
        """Why the budget does not pay for a study that costs `whole`; "" if it does, or if the study has begun.

        tells: whether the answer may say what is left. Charges nothing.
        """
        if self.own():
            return ""
        plain = Counter([self.ledger.stored_form(whole)])
        alone = self._price(plain)
        if not alone <= self.epsilon * (1 + SLACK):
            return (
                f"epsilon={self.epsilon:g} does not pay for the study, which costs {alone:.4g} or more; "
                "raise it, or lower steps"
            )
        try:  # reads no file, so the error cannot contain the ledger's path
            self.ledger.price_of(plain, self.ledger.epsilon)
        except ValueError as error:
            return f"the site's ledger does not admit the study: {error}"
        left = self.ledger.remaining_after(whole)
        if math.isinf(left):
            return (
                f"the site's ledger does not admit the study by its rule, {self.ledger.accountant}: the study's draws "
                "of noise need more of δ than is set aside; use a ledger with a smaller epsilon"
            )
        if left >= -SLACK * self.ledger.epsilon:
            return ""
        words = f" (epsilon={self.ledger.epsilon:g} would be exceeded by {-left:.4g})" if tells else ""
        return f"what is left of this site's budget does not pay for the study{words}; lower epsilon or leave it out"
