"""Statements: what is promised, to whom, and what it means, in words and as JSON."""

import json
import math
from dataclasses import dataclass
from typing import Any

from tacit.basics.plain import finite
from tacit.privacy import accounting, events
from tacit.privacy.events import Adjacency, Event

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6)
FALSE_POSITIVE_RATE = 0.01
OTHER_RATES = (0.001, 0.002, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Statement:
    """The guarantee of one release or study.

    `notes` says what the guarantee takes for granted, such as public settings and a public number of units.
    """

    unit: str
    adjacency: Adjacency
    accountant: str
    delta: float
    epsilon: float
    epsilons: tuple[tuple[float, float], ...]  # (δ, ε)
    releases: tuple[str, ...]
    steps: int
    seeded: bool
    true_positive_rates: tuple[tuple[float, float], ...]  # (false positive rate, the most an attacker reaches)
    event: Event
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        event: Event,
        delta: float,
        *,
        seeded: bool,
        accountant: accounting.Accountant = "pld",
        adjacency: Adjacency = "add-remove",
        notes: tuple[str, ...] = (),
    ) -> "Statement":
        """The statement for a receipt.

        >>> print(Statement.of(events.Gaussian(4.0), 1e-5, seeded=True).text().splitlines()[0])
        This result is (ε = 0.9264, δ = 1e-05)-differentially private for each record.
        """
        epsilon = accounting.epsilon(event, delta, accountant, adjacency)
        curve = []
        for value in sorted({*DELTAS, delta}, reverse=True):
            try:
                curve.append((value, accounting.epsilon(event, value, accountant, adjacency)))
            except ValueError:  # below what the accountant resolves: not stated
                continue
        leaves = list(_leaves(event, 1))
        slots = sorted({s.slots for _, s, _ in leaves if isinstance(s, events.TruncatedPoissonSampled)})
        if slots:
            numbers = ", ".join(map(str, slots))
            notes = (f"The number of slots, {numbers}, is public; without `slots` it is the number of units.", *notes)
        rates = (FALSE_POSITIVE_RATE, *OTHER_RATES)
        try:
            attacks = accounting.true_positive_rates(event, rates, adjacency)
        except ValueError:  # an event that only another accountant prices: what its curve allows
            attacks = [min([1.0, *(math.exp(min(e, 700)) * rate + d for d, e in curve)]) for rate in rates]
        units = {leaf.unit for leaf, _, _ in leaves if isinstance(leaf, events.Gaussian | events.Laplace)}
        return cls(
            unit=", ".join(sorted(units)) or "record",
            adjacency=adjacency,
            accountant=accountant,
            delta=delta,
            epsilon=epsilon,
            epsilons=tuple(curve),
            releases=tuple(_in_words(leaf, sampling, count) for leaf, sampling, count in leaves),
            steps=sum(count for _, _, count in leaves),
            seeded=seeded,
            true_positive_rates=tuple(sorted(zip(rates, attacks, strict=True))),
            event=event,
            notes=notes,
        )

    @property
    def true_positive_rate(self) -> float:
        """The highest true positive rate of an attacker who is wrong about absent units one time in a hundred."""
        return dict(self.true_positive_rates)[FALSE_POSITIVE_RATE]

    def text(self) -> str:
        """The statement in plain words."""
        change = {
            "add-remove": f"adding or removing any one {self.unit}",
            "replace-one": f"replacing any one {self.unit} by any other",
        }[self.adjacency]
        factor = math.exp(self.epsilon) if self.epsilon < 700 else math.inf
        if math.isinf(self.epsilon):
            lines = [
                f"This result is NOT differentially private: nothing is promised to any {self.unit} (ε = ∞).",
                "",
            ]
        else:
            lines = [
                f"This result is (ε = {rounded_up(self.epsilon)}, δ = {self.delta!r})-differentially private "
                f"for each {self.unit}.",
                "",
                f"It means: {change} changes the probability of any outcome by a factor of at most "
                f"{rounded_up(factor)}, up to a probability of {self.delta!r}.",
            ]
        lines += [
            f"An attacker who tests for one {self.unit} and is wrong about absent ones "
            f"{100 * FALSE_POSITIVE_RATE:g} % of the time is right about present ones at most "
            f"{rounded_up(100 * self.true_positive_rate)} % of the time.",
            "",
            f"Accountant: {self.accountant}. Adjacency: {self.adjacency}. Unit of privacy: {self.unit}.",
            "ε at other δ: " + ", ".join(f"{rounded_up(e)} at {d!r}" for d, e in self.epsilons) + ".",
            f"What was released ({self.steps} step{'s' * (self.steps != 1)}):",
            *(f"  - {release}" for release in self.releases),
            "Randomness: "
            + (
                "SEEDED. Whoever knows or guesses the seed can remove the noise. For simulations only."
                if self.seeded
                else "cryptographically secure (ChaCha20, keyed by the operating system)."
            ),
            *(f"Note: {note}" for note in self.notes),
        ]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain data. ε = ∞ is written as null."""

        return {
            "unit": self.unit,
            "adjacency": self.adjacency,
            "accountant": self.accountant,
            "delta": self.delta,
            "epsilon": finite(self.epsilon),
            "epsilons": [{"delta": d, "epsilon": finite(e)} for d, e in self.epsilons],
            "private": math.isfinite(self.epsilon),
            "releases": list(self.releases),
            "steps": self.steps,
            "randomness": "seeded" if self.seeded else "secure",
            "true_positive_rate": {
                "at_false_positive_rate": FALSE_POSITIVE_RATE,
                "at_most": self.true_positive_rate,
            },
            "true_positive_rates": [
                {"at_false_positive_rate": rate, "at_most": most} for rate, most in self.true_positive_rates
            ],
            "notes": list(self.notes),
            "event": events.to_dict(self.event),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"


def rounded_up(value: float) -> str:
    """Four digits, never rounded down: a stated ε must not be below the true one."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"


def _leaves(event: Event, count: int) -> Any:
    """(mechanism, sampling or None, how often) of each release in an event."""
    match event:
        case events.Repeated(inner, steps):
            yield from _leaves(inner, count * steps)
        case events.Composed(inner):
            for e in inner:
                yield from _leaves(e, count)
        case events.PoissonSampled() | events.TruncatedPoissonSampled() | events.FixedSizeSampled():
            yield event.event, event, count
        case _:
            yield event, None, count


def _in_words(mechanism: Event, sampling: Event | None, count: int) -> str:
    match mechanism:
        case events.Gaussian() | events.Laplace():
            is_shared = isinstance(mechanism, events.DistributedGaussian)
            name = "distributed discrete Gaussian" if is_shared else type(mechanism).__name__
            what = (
                f"{name} noise of {mechanism.noise_multiplier:.4g} times the largest contribution of one "
                f"{mechanism.unit} ({mechanism.adjacency})"
            )
        case _:
            what = "an exact value, without noise"
    if isinstance(mechanism, events.DistributedGaussian):
        what += f", by shares of {mechanism.sites} sites, of which {mechanism.honest} are counted"
    match sampling:
        case events.PoissonSampled(rate, _):
            what += f", on Poisson samples at rate {rate:.4g}"
        case events.TruncatedPoissonSampled(rate, slots, buffer, _):
            what += f", on Poisson samples at rate {rate:.4g} of {slots} slots, cut off at {buffer} (accounted)"
        case events.FixedSizeSampled(dataset_size, sample_size, _):
            what += f", on random subsets of {sample_size} of {dataset_size}"
    return f"{count} × {what}"
