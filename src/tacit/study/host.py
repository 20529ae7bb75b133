"""The host of a study, which connects the coordinator to its sites, and the snapshot of a running study."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tacit.engines.coordinator import Away, Progress, Transport
from tacit.posterior.posterior import Posterior
from tacit.privacy.statement import Statement
from tacit.tables.scaling import Scaling

Observer = Callable[[str, int, int, dict[str, float]], None]  # phase, steps done, steps, ε spent by each account
Watcher = Callable[[str, int, int, dict[str, float], Progress], None]  # the same, and the progress of the phase


class Host(Protocol):
    """The sites of a study, in this process, in others or elsewhere, as the coordinator reaches them.

    is_remote: sites are elsewhere and answer when they are ready. forgives: sites that refused in an earlier session
    are asked again, because their operators may have fixed the cause.
    """

    is_remote: bool
    forgives: bool

    def last_rounds(self, phase: str) -> dict[int, int]:
        """The last round that each respondent says it answered; -1 for none. Empty if the coordinator knows already."""
        ...

    def consents(self) -> dict[str, str | Away]:
        """Whether each account takes part, by name: "", the reason why it does not, or `Away`. Charges nothing."""
        ...

    def leave_out(self, refusing: Mapping[str, str]) -> None:
        """Never ask these accounts for anything, not even what is asked of all. refusing: the reason for each name."""
        ...

    def open(self, phase: str, study: str, scaling: Scaling | None) -> Transport:
        """The transport to all respondents in one phase. study: the name it is charged under."""
        ...

    def spent(self) -> dict[str, float]:
        """ε that each account has spent on this study, by name, where it is known."""
        ...

    def totals(self) -> dict[str, tuple[float, float]]:
        """ε that each account's ledger has spent over all studies, and its budget, by name, where they are known."""
        ...

    def updates(self) -> dict[str, int]:
        """The number of inference updates that each site has made, by name."""
        ...

    def statements(self, present: Collection[str]) -> dict[str, Statement | str]:
        """The statement of each account, or a sentence where it released nothing. present: who is in the result."""
        ...

    def is_seeded(self) -> bool:
        """Whether the noise of any site is known to come from a seed."""
        ...

    def absent(self) -> dict[str, str]:
        """The accounts missing from the latest secure sum, by name, and why."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """The current state of a study, for display: public settings and released values only.

    sites: for each account its name, its epsilon of the study and how much of it is spent, ledger_spent and budget of
    its ledger (None where unknown), updates, state ("here", "away", "refused" once, "left out") and the reason for the
    state. posterior: the newest, in the units of the data, after at least one step of inference in this process.
    history: rows of rounds, with scores on a public test set if there is one.
    """

    phase: str
    done: int
    total: int
    sites: list[dict[str, Any]]
    posterior: Posterior | None
    history: list[dict[str, Any]]
    seeded: bool
