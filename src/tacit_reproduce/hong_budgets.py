"""Budgets that are asked for the cost of a step *before* the step. A run ends at the first refusal.

As in the source (Hong, algorithm 1), a step is made only if the rest of the budget pays for its cost. Costs do not
depend on the data, so asking is free.

| budget                  | cost of an event                  | prices                                              |
|-------------------------|-----------------------------------|-----------------------------------------------------|
| `ZCDP(rho)`             | ρ, adds up                        | bare noise; samples are refused (no amplification)  |
| `TCDP(rho, omega)`      | ρ for orders below ω, adds up     | bare noise; Poisson-sampled Gaussian noise          |
| `PLD(epsilon, delta)`   | ε at δ of all events as a whole   | all that `accounting` does with `pld`               |

ZCDP and TCDP are *in theory*: they refuse truncated samples, and the error of drawn noise is not in ρ. PLD pays for
both, so it is the budget for what is really run; a ledger is one, made durable.

Events may be chosen by looking at earlier results where costs are Rényi divergences, as with ZCDP and TCDP: stopping at
the budget costs no more (Feldman and Zrnic 2021). This is not claimed for PLD. A `Schedule`, fixed beforehand, is not
affected.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tacit.privacy import accounting
from tacit.privacy.accountants import concentrated
from tacit.privacy.checks import check_delta, check_epsilon
from tacit.privacy.events import Adjacency, Event, Repeated, check_adjacency, check_number, compose
from tacit.privacy.ledger import SLACK
from tacit.privacy.schedules import Schedule


@dataclass(frozen=True)
class ZCDP:
    """ρ of zero-concentrated differential privacy: D_α ≤ ρα for all α > 1. Costs add up.

    Guarantee: what it admits is, in theory, ρ(1 + SLACK)-zCDP.

    >>> from tacit.privacy.events import Gaussian
    >>> [ZCDP(1.0).admits(Repeated(Gaussian(2.0), steps), Gaussian(2.0)) for steps in (7, 8)]
    [True, False]
    """

    rho: float
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        _check_rho(self.rho)
        check_adjacency(self.adjacency)

    @classmethod
    def of(cls, epsilon: float, delta: float, adjacency: Adjacency = "add-remove") -> "ZCDP":
        """The largest ρ whose ε at δ is at most `epsilon`.

        >>> budget = ZCDP.of(1.0, 1e-5)
        >>> round(budget.rho, 4), round(budget.epsilon(1e-5), 9)
        (0.0306, 1.0)
        """
        return cls(_largest_rho(lambda rho: concentrated.zcdp_epsilon(rho, delta), epsilon), adjacency)

    def cost(self, event: Event) -> float:
        """ρ of the event, in theory; 1/(2σ²) of Gaussian noise. Refuses samples: zCDP has no amplification."""
        return concentrated.zcdp_rho(event, self.adjacency)

    def share(self, event: Event) -> float:
        """The share of the budget that the event takes: 1 is all of it."""
        return self.cost(event) / self.rho

    def admits(self, spent: Event, following: Event) -> bool:
        """Whether `following` may be done after `spent`."""
        return _fits(self.share(compose(spent, following)))

    def epsilon(self, delta: float) -> float:
        """The ε of the whole budget at δ, by the best order of `accounting.zcdp_epsilon`."""
        return concentrated.zcdp_epsilon(self.rho, delta)

    def tcdp(self, omega: float) -> "TCDP":
        """The same as a tCDP budget: ρ-zCDP implies (ρ, ω)-tCDP, for every ω."""
        return TCDP(self.rho, omega, self.adjacency)


@dataclass(frozen=True)
class TCDP:
    """(ρ, ω) of truncated concentrated differential privacy: D_α ≤ ρα for 1 < α < ω. Costs add up at the same ω.

    Guarantee: what it admits is, in theory, (ρ(1 + SLACK), ω)-tCDP. A small ω lowers the cost of samples, and gives a
    worse ε for the same ρ.

    >>> from tacit.privacy.events import Gaussian, PoissonSampled
    >>> step = PoissonSampled(0.01, Gaussian(2.0))
    >>> budget = TCDP.of(1.0, 1e-5, omega=30.0)
    >>> int(budget.rho / budget.cost(step))
    1958
    """

    rho: float
    omega: float
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        _check_rho(self.rho)
        concentrated.check_omega(self.omega)
        check_adjacency(self.adjacency)

    @classmethod
    def of(cls, epsilon: float, delta: float, omega: float, adjacency: Adjacency = "add-remove") -> "TCDP":
        """The largest ρ whose ε at δ is at most `epsilon`, for this ω. A small ω has none, and is refused."""
        concentrated.check_omega(omega)
        check_epsilon(epsilon)
        least = concentrated.tcdp_epsilon(LEAST_RHO, omega, delta)
        if least > epsilon:
            raise ValueError(
                f"omega={omega} leaves ε = {least:.4g} at delta={delta}, whatever ρ is; raise omega, epsilon={epsilon} "
                "or delta"
            )
        return cls(_largest_rho(lambda rho: concentrated.tcdp_epsilon(rho, omega, delta), epsilon), omega, adjacency)

    def cost(self, event: Event) -> float:
        """ρ of the event at this ω, in theory: its Rényi curve is covered. Refuses truncated samples."""
        return concentrated.tcdp_rho(event, self.omega, self.adjacency)

    def share(self, event: Event) -> float:
        """The share of the budget that the event takes: 1 is all of it."""
        return self.cost(event) / self.rho

    def admits(self, spent: Event, following: Event) -> bool:
        """Whether `following` may be done after `spent`."""
        return _fits(self.share(compose(spent, following)))

    def epsilon(self, delta: float) -> float:
        """The ε of the whole budget at δ, by the best order below ω."""
        return concentrated.tcdp_epsilon(self.rho, self.omega, delta)


@dataclass(frozen=True)
class PLD:
    """(ε, δ), with all events priced as a whole by privacy loss distributions. The tight one; it pays for everything.

    Guarantee: ε(δ) of what it admits, truncated samples and the error of drawn noise included, is at most ε(1 + SLACK).

    >>> from tacit.privacy.events import Gaussian, PoissonSampled
    >>> step = PoissonSampled(0.01, Gaussian(2.0))
    >>> [PLD(1.0, 1e-5).admits(Repeated(step, steps), step) for steps in (2000, 4000)]
    [True, False]
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_adjacency(self.adjacency)

    def share(self, event: Event) -> float:
        """The share of the budget that the event takes if nothing else is done: shares do not add up."""
        return accounting.epsilon(event, self.delta, "pld", self.adjacency) / self.epsilon

    def admits(self, spent: Event, following: Event) -> bool:
        """Whether `following` may be done after `spent`, by the price of both together."""
        return _fits(self.share(compose(spent, following)))


PublishedBudget = ZCDP | TCDP | PLD


@dataclass
class BudgetFilter:
    """A budget and what was spent of it, for loops written by hand (Hong, algorithm 1). It lives as long as the loop.

    For private data over several runs, charge a `Ledger`: it is durable.

    >>> from tacit.privacy.events import Gaussian
    >>> budget, steps = BudgetFilter(ZCDP(1.0)), 0
    >>> while budget.ask(Gaussian(2.0)):  # the step itself comes after
    ...     steps += 1
    >>> steps
    8
    """

    budget: PublishedBudget
    _counts: dict[Event, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def spent(self) -> Event:
        """All that was charged. Equal events are one `Repeated`."""
        return compose(*(Repeated(event, count) for event, count in self._counts.items()))

    def ask(self, event: Event) -> bool:
        """Charge the event if the budget admits it; else nothing is changed. Ask before a record is read."""
        admitted = self.budget.admits(self.spent, event)
        if admitted:
            self._counts[event] = self._counts.get(event, 0) + 1
        return admitted


def affordable(
    budget: PublishedBudget,
    schedule: Schedule,
    noise_multiplier: float,
    *,
    slots: int | None = None,
    unit: str = "record",
    coordinates: int = 0,
) -> int:
    """The number of steps that the budget admits, asked before each; `noise_multiplier` is the schedule's scale.

    A run of `schedule.first(affordable(...))` by `repeat` ends where the budget would have refused. Steps are priced in
    theory, or with `slots` as they run (`Schedule.plan`), which PLD alone prices for samples. Prices grow with the
    steps, so only a few are computed.

    >>> affordable(ZCDP(1.0), Schedule.of([4.0, 2.0, 2.0, 1.0, 1.0]), 1.0)
    4
    """

    def share(steps: int) -> float:
        part = schedule.first(steps)
        assert part is not None
        price = part.event if slots is None else part.plan(slots, unit, coordinates)
        return budget.share(price(noise_multiplier))

    # Upwards first: a price far beyond the budget is slow, or more than the accountant can hold.
    admitted, refused, left = 0, 1, 1.0
    while _fits(found := share(refused)):
        if refused == schedule.total:
            return refused
        admitted, refused, left = refused, min(4 * refused, schedule.total), 1 - found
    over = found - 1
    # Then by false position: where a line through both shares meets 1. The share of an end that stays is halved, so
    # that both ends approach (the Illinois rule). Every fourth time the middle is taken instead.
    was_admitted, rounds = None, 0
    while refused - admitted > 1:
        rounds += 1
        gap = refused - admitted
        by_line = rounds % 4 > 0 and over < math.inf and left > 0
        middle = admitted + min(max(int(gap * left / (left + over) if by_line else gap / 2), 1), gap - 1)
        found = share(middle)
        is_admitted = _fits(found)
        if is_admitted:
            admitted, left, over = middle, 1 - found, over / 2 if was_admitted is True else over
        else:
            refused, over, left = middle, found - 1, left / 2 if was_admitted is False else left
        was_admitted = is_admitted
    return admitted


def _fits(share: float) -> bool:
    return share <= 1 + SLACK


LEAST_RHO, MOST_RHO = 1e-30, 1e30  # between them lies every ρ that is asked for


def _largest_rho(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """The largest ρ whose ε is at most `epsilon`, from below: ε grows with ρ."""
    check_epsilon(epsilon)
    low, high = LEAST_RHO, MOST_RHO
    if (least := epsilon_of(low)) > epsilon:
        raise ValueError(
            f"epsilon={epsilon} at this delta is below what any ρ gives ({least:.3g}); ask for more of either"
        )
    while high > low * (1 + 1e-12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon_of(middle) <= epsilon else (low, middle)
    return low


def _check_rho(rho: float) -> None:
    valid = isinstance(rho, int | float) and 0 < rho < math.inf
    check_number("rho", rho, "a finite number above 0", valid)
