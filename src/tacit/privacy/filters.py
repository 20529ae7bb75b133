"""Filters: rules that keep to a budget even if analyses are chosen after seeing results. Both are proved.

Analyses whose number and settings depend on earlier results are *fully adaptive composition*. A rule that prices what
happened as if it had been planned, and stops at (ε, δ), promises (ε, δ) only if it is a **filter**:

| rule       | admits                      | stops where                                  | theorem                |
|------------|-----------------------------|----------------------------------------------|------------------------|
| `gaussian` | Gaussian noise, not sampled | Σ μᵢ² would pass μ², with μᵢ = 1/σᵢ          | Smith & Thakurta 2022; |
|            |                             |                                              | Koskela et al. 2023    |
| `renyi`    | what `rdp` prices           | Σ D_α would pass the D_α of (ε, δ), at one α | Feldman & Zrnic 2021   |

**Gaussian.** (ε, δ) is the guarantee of one Gaussian mechanism with parameter μ. The price is exact for the
composition, so nothing is lost. *Proof.* Let the μᵢ be chosen after seeing what came before, with Σ μᵢ² ≤ μ² always.
Spend what is left on one more release: then Σ μᵢ² = μ² on every path. Each release is post-processing of
Yᵢ ~ N(b μᵢ, 1), where b says which of two neighbours it is. For S = Σ μᵢ Yᵢ, iterated expectations give E exp(itS) =
exp(itbμ² - t²μ²/2): S ~ N(bμ², μ²). The likelihood ratio of all Yᵢ is exp(S - μ²/2), a function of S, so all releases
together reveal no more than S, which is one Gaussian mechanism with parameter μ. ∎

**Rényi.** The order α is fixed when the rule is made, from (ε, δ) alone: the order that admits the largest ρ of
Gaussian noise. *Proof.* Let the divergences Dᵢ at α be chosen after seeing what came before, with Σ Dᵢ ≤ B always. By
iterated expectations E_Q Π (Pᵢ/Qᵢ)^α exp(-(α - 1) Dᵢ) ≤ 1, so E_Q (P/Q)^α ≤ exp((α - 1) B): the whole has divergence B
at α, which is turned into (ε, δ) once. ∎ Two other rules are not proved: the best α *after the fact*, and the Gaussian
rule until the first sample with the Rényi rule from there.

**Imperfections** (draws of noise, truncated samples) are paid out of a separate part of δ, the `reserve`, also fixed
beforehand. If each release is within ηᵢ of its ideal in total variation, given what came before, and Σ ηᵢ ≤ η always,
the whole is within η of its ideal (take the first release that differs), and (1 + e^ε)η is paid out of δ. If the
reserve could grow at the cost of the noise, an analyst could use one on some paths and the other on others, and exceed
δ.

A. Smith & A. Thakurta (2022). Fully adaptive composition for Gaussian differential privacy. arXiv:2210.17520.
A. Koskela, M. Tobaben & A. Honkela (2023). Individual privacy accounting with Gaussian differential privacy. ICLR.
V. Feldman & T. Zrnic (2021). Individual privacy accounting via a Rényi filter. NeurIPS.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from tacit.privacy import accounting, events, parts
from tacit.privacy.accountants import concentrated, renyi
from tacit.privacy.checks import check_delta, check_epsilon
from tacit.privacy.events import Adjacency, Event

Name = Literal["gaussian", "renyi"]
NAMES: tuple[Name, ...] = get_args(Name)
LARGEST_ORDER = 1024
# The reserve: its least share of δ, how many draws of noise it should pay for, and its largest share.
_LEAST = {"gaussian": 1e-3, "renyi": 1e-2}
_DRAWS = {"gaussian": 1e5, "renyi": 1e6}
_MOST = 0.5
_FORM = re.compile(r"(gaussian|renyi)\((?:order=([1-9]\d{0,3}), )?reserve=(0\.\d+)\)")
_WORDS = {
    "gaussian": "covered, by the Gaussian-DP filter (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023), for "
    "Gaussian noise without sampling",
    "renyi": "covered, by the Rényi filter at the fixed order {order} (Feldman and Zrnic 2021)",
}


@dataclass(frozen=True)
class Filter:
    """One of the two rules, with the parameters fixed when it was made. `reserve` is a share of δ.

    Guarantee: for any choices made after seeing results, releases whose `price` together never exceeds ε are together
    (ε, δ)-differentially private, for the ε and δ passed to `price`.

    >>> rule = Filter.of("gaussian", 1.0, 1e-5)
    >>> str(rule), Filter.read(str(rule)) == rule
    ('gaussian(reserve=0.001)', True)
    >>> round(rule.price(events.Repeated(events.Gaussian(8.0), 4), 1.0, 1e-5), 3)
    0.926
    >>> str(Filter.of("renyi", 1.0, 1e-5))
    'renyi(order=18, reserve=0.01)'
    """

    name: Name
    reserve: float
    order: int | None = None

    @classmethod
    def of(cls, name: Name, epsilon: float, delta: float, departure: float = 0.0) -> "Filter":
        """The rule for a budget. departure: of a plan (`parts.departure`); the reserve has room for twice as much."""
        check_epsilon(epsilon)
        check_delta(delta)
        wanted = max(_DRAWS[name] * parts.NOISE_DRAW_ERROR, 2 * departure)
        share = min(max(_paid(wanted, epsilon) / delta, _LEAST[name]), _MOST)
        share = min(float(f"{share:.3g}"), _MOST)
        if name == "gaussian":
            return cls(name, share)
        left = delta * (1 - share)

        orders = np.arange(2.0, LARGEST_ORDER + 1)
        admitted = (epsilon - concentrated.renyi_spread(orders, left)) / orders  # ρ of Gaussian noise, at each order
        if np.max(admitted) <= 0:
            raise ValueError(f"epsilon={epsilon} is below what any Rényi divergence gives at delta={delta}; raise one")
        return cls(name, share, int(orders[np.argmax(admitted)]))

    @classmethod
    def read(cls, text: str) -> "Filter | None":
        """The rule that `str` wrote; None for any other text."""
        found = _FORM.fullmatch(text)
        if found is None or (found[1] == "renyi") != (found[2] is not None):
            return None
        order = None if found[2] is None else int(found[2])
        rule = cls(found[1], float(found[3]), order)  # type: ignore[arg-type]  # by the form
        valid = 0 < rule.reserve <= _MOST and (order is None or 2 <= order <= LARGEST_ORDER)
        return rule if valid else None

    def __str__(self) -> str:
        order = "" if self.order is None else f"order={self.order}, "
        return f"{self.name}({order}reserve={format(self.reserve, '.10f').rstrip('0')})"

    @property
    def words(self) -> str:
        """Which theorem covers adaptively chosen analyses, and what it asks."""
        return _WORDS[self.name].format(order=self.order)

    def price(self, event: Event, epsilon: float, delta: float, adjacency: Adjacency = "add-remove") -> float:
        """ε of `event`, everything done under this rule; inf if the reserve of a budget of `epsilon` is too small.

        Refuses events that the rule does not cover.
        """
        found = parts.parts(event, adjacency)
        if found is None:
            return math.inf
        if not found:
            return 0.0
        if self.name == "gaussian" and any(part.rate is not None or part.noise != "gaussian" for part in found):
            raise ValueError(
                "the rule 'gaussian' covers Gaussian noise without sampling, and this event has another; take all "
                "records at each step, or a ledger whose rule is 'renyi' from the start"
            )
        if _paid(parts.departure(event, adjacency), epsilon) > self.reserve * delta:
            return math.inf
        left, ideal = delta * (1 - self.reserve), in_theory(event)
        if self.order is None:
            return accounting.epsilon(ideal, left, "pld", adjacency)  # the closed form of one Gaussian mechanism
        (divergence,) = renyi.rdp(ideal, (float(self.order),), adjacency)
        return max(0.0, float(divergence + concentrated.renyi_spread(self.order, left)))


def _paid(departure: float, epsilon: float) -> float:
    """The part of δ that pays for this total variation."""
    return (1 + math.exp(min(epsilon, 700.0))) * departure


def in_theory(event: Event) -> Event:
    """The event with perfect draws of noise and untruncated samples.

    >>> in_theory(events.TruncatedPoissonSampled(0.1, 100, 50, events.Gaussian(2.0, coordinates=9)))
    PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=2.0, ..., coordinates=0))
    """
    match event:
        case events.Gaussian() | events.Laplace():
            return replace(event, coordinates=0)
        case events.TruncatedPoissonSampled(rate, _, _, inner):
            return events.PoissonSampled(rate, in_theory(inner))
        case events.PoissonSampled() | events.FixedSizeSampled() | events.Repeated():
            return replace(event, event=in_theory(event.event))
        case events.Composed(inner):
            return events.Composed(tuple(map(in_theory, inner)))
    return event


def name_for(event: Event, adjacency: Adjacency = "add-remove") -> Name | None:
    """The rule for a ledger whose first event this is: `gaussian` where nothing is sampled, else `renyi`.

    None where neither prices it, as for samples under replace-one: then everything must be fixed beforehand, and `pld`
    prices it.

    >>> name_for(events.PoissonSampled(0.1, events.Gaussian(2.0)), "replace-one") is None
    True
    """
    found = parts.parts(event, adjacency) or ()
    if all(part.rate is None and part.noise == "gaussian" for part in found):
        return "gaussian"
    try:
        renyi.rdp(in_theory(event), (2.0,), adjacency)
    except ValueError:
        return None
    return "renyi"


def admitting(event: Event, epsilon: float, delta: float, adjacency: Adjacency = "add-remove") -> Filter | None:
    """The filter of a budget (ε, δ) that admits a plan; None where none does, because of its kind or its price."""
    name = name_for(event, adjacency)
    if name is None:
        return None
    try:
        rule = Filter.of(name, epsilon, delta)
    except ValueError:  # too little for any order
        return None
    return rule if rule.price(event, epsilon, delta, adjacency) <= epsilon else None


def first(
    event: Event, epsilon: float, delta: float, adjacency: Adjacency = "add-remove", name: Name | None = None
) -> float:
    """The least budget of at least `epsilon` whose rule admits a plan, to 0.2 %: rules may price it above `epsilon`.

    Where no filter prices the plan: `epsilon` or the price by `pld`, whichever is larger. name: of the rule, by default
    that for the plan.

    >>> plan = events.Repeated(events.PoissonSampled(0.1, events.Gaussian(10.0)), 1000)
    >>> accounting.epsilon(plan, 1e-5) < 1.25 < first(plan, 1.25, 1e-5) < 1.35
    True
    """
    known = name_for(event, adjacency)
    name, departure = name or known, parts.departure(event, adjacency)
    if known is None or name is None:
        return max(epsilon, accounting.epsilon(event, delta, adjacency=adjacency))
    for step in range(2000):
        budget = epsilon if step == 0 else float(f"{epsilon * 1.002**step:.4g}")
        try:
            rule = Filter.of(name, budget, delta, departure)
        except ValueError:  # too small for any order
            continue
        if rule.price(event, budget, delta, adjacency) <= budget:
            return budget
    raise ValueError(f"delta={delta} does not pay for this plan at any epsilon; raise delta")
