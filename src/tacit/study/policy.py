"""Policies: the settings that a plan chooses if only ε and δ are given. Public, learned once, in a small file.

A policy has a rule for each kind of regression. A rule turns public sizes (records, columns, ε and δ) into a plan: how
the budget is shared, how many steps there are and with what noise, where gradients are clipped. It never sees a record.
The default was learned on simulated tasks by `tacit policy learn` (docs/policies.md), and `policy.made` says how.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jax

from tacit.basics import durable
from tacit.links import LINKS
from tacit.privacy.events import check_number

FROM_LEARNING = "expected a file that 'tacit policy learn' wrote"
MOST_ROUNDS = 1000
LEAST_ROUNDS = 5  # with fewer, curvature is released once


@dataclass(frozen=True)
class Rule:
    """How one kind of regression spends its budget, at one site or at many.

    rounds: how often gradients are released. second: the share of rounds after which curvature is released again, and
    early: the relative noise of gradients until then. ranges, scaling, residual, curvature: shares of the budget,
    in 1/σ², if the plan makes that release; gradients get the rest. averaging: gradients since the last release
    of curvature are averaged with weights that grow like this power of their number; before the last release of it, an
    update enters by early_damping at least, because what is averaged there is far from where the answer will be.

    The gradients' clip, in units of a typical record's, is clip_slope · J^clip_power, but at least clip_least and at
    most clip_most. J² is the number of records per column that the noised gradients of all sites are worth
    (`tables.standardising.clip_of`): where the data tell much about a coefficient, bias is worse than noise.

    floor: added to curvature for stepping, as a share of the largest curvature that noise alone shows. shrinkage: the
    share kept of curvature that noise hides; a larger one makes intervals narrower. pull: how much of the way the
    noised mean is shrunk towards the prior by what is known of its noise.
    """

    rounds: int = 20
    second: float = 0.4
    early: float = 1.0
    ranges: float = 0.1
    scaling: float = 0.05
    residual: float = 0.05
    curvature: float = 0.2
    averaging: float = 0.5
    early_damping: float = 0.5
    clip_least: float = 0.5
    clip_most: float = 2.0
    clip_slope: float = 0.25
    clip_power: float = 0.4
    floor: float = 0.4
    shrinkage: float = 0.5
    pull: float = 0.5

    def __post_init__(self) -> None:
        valid = _is_whole(self.rounds) and 1 <= self.rounds <= MOST_ROUNDS
        check_number("rounds", self.rounds, f"a whole number from 1 to {MOST_ROUNDS}", valid)
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if not isinstance(value, jax.Array):  # in a program that learns the rule
                check_number(name, value, f"a number from {low:g} to {high:g}", _is_within(value, low, high))
        total = sum(getattr(self, name) for name in SHARES)
        if not isinstance(total, jax.Array):
            check_number(
                "the sum of shares", round(total, 6), "at most 0.95: gradients have the rest", total <= 0.95 + 1e-9
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


SHARES = ("ranges", "scaling", "residual", "curvature")
LIMITS = {
    "second": (0.0, 0.9),
    "early": (0.1, 10.0),
    **dict.fromkeys(SHARES, (0.001, 0.9)),
    "averaging": (0.0, 2.0),
    "early_damping": (0.0, 1.0),
    **dict.fromkeys(("clip_least", "clip_most"), (0.001, 100.0)),
    "clip_slope": (0.0, 100.0),
    "clip_power": (0.0, 4.0),
    "floor": (0.0, 10.0),
    "shrinkage": (0.0, 1.0),
    "pull": (0.0, 1.0),
}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_within(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


PLAIN = Rule()


@dataclass(frozen=True)
class Policy:
    """Rules by kind of regression, and how they were made. Kinds without a rule of their own have the plain one.

    >>> policy = default_policy()
    >>> Policy.of(policy.to_dict()).rule("logistic") == policy.rule("logistic")
    True
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)

    def rule(self, link: str) -> Rule:
        """The rule of a kind of regression: "linear", "logistic", ..."""
        return self.rules.get(link, PLAIN)

    @classmethod
    def of(cls, plain: Any) -> "Policy":
        """A policy from plain data, checked: unknown names are refused."""
        if not isinstance(plain, dict) or set(plain) - {"rules", "made"} or not isinstance(plain.get("rules"), dict):
            raise ValueError(f"a policy is an object with rules and made; {FROM_LEARNING}")
        known = {f.name for f in fields(Rule)}
        rules = {}
        for link, settings in plain["rules"].items():
            if link not in LINKS:
                raise ValueError(f"a policy with a rule for {link!r}; expected one of {', '.join(LINKS)}")
            if not isinstance(settings, dict) or set(settings) - known:
                names = sorted(set(settings) - known) if isinstance(settings, dict) else settings
                raise ValueError(f"the rule for {link} has {names}; expected some of {', '.join(sorted(known))}")
            try:
                rules[link] = Rule(**settings)
            except ValueError as error:
                raise ValueError(f"the rule for {link}: {error}") from None
        made = plain.get("made", {})
        return cls(rules, made if isinstance(made, dict) else {})

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """Read a file that `write` made."""
        try:
            return cls.of(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"policy={path}: {error.strerror}; {FROM_LEARNING}") from None
        except (json.JSONDecodeError, RecursionError, UnicodeDecodeError):
            raise ValueError(f"policy={path} is not JSON; {FROM_LEARNING}") from None
        except ValueError as error:
            raise ValueError(f"policy={path}: {error}") from None

    def write(self, path: Path) -> None:
        """Write a small JSON file."""
        durable.write(Path(path), json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")

    @property
    def words(self) -> str:
        """The maker of the policy and its tasks, for a statement; cut short, because a file may say anything."""
        kinds = self.made.get("kinds")
        tasks = {str(kind.get("tasks")) for kind in kinds.values()} if isinstance(kinds, dict) else set()
        said = f"by {self.made.get('by', 'hand')}, on {', '.join(sorted(tasks)) or 'tasks that it does not name'}"
        return "".join(letter for letter in said if letter.isprintable())[:200]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"rules": {link: asdict(rule) for link, rule in self.rules.items()}, "made": dict(self.made)}


@cache
def default_policy() -> Policy:
    """The policy that comes with tacit, learned on simulated tasks."""
    return Policy.of(json.loads(resources.files("tacit.study").joinpath("policy.json").read_text(encoding="utf-8")))
