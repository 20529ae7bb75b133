"""Policies: the settings that `fit` chooses if only ε and δ are given. Public, learned once, in a small file.

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

MOST_STAGES, MOST_STEPS = 4, 200  # of a rule: curvature is released at each stage


@dataclass(frozen=True)
class Rule:
    """How one kind of regression spends its budget.

    steps: gradients at each stage; each stage begins with a release of curvature. noise: the relative noise of the
    stages, a stepwise schedule whose scale follows from ε. ranges, moments, residual, curvature: shares of the budget,
    in 1/σ², if the plan makes that release; gradients get the rest.

    The gradients' clip, in units of a typical record's, is clip_slope · (√(N / d) / (σ r))^clip_power, but at least
    clip_least and at most clip_most: N records, d columns, r the length of a typical x, and σ the noise multiplier of
    all gradients together. At power 1 noise is then a share of what a gradient varies by anyway.

    learning_rate: the length of a step, 1 for Newton's. average: the share of the last stage's steps that the answer
    averages. floor: added to curvature for stepping, as a share of the largest curvature that noise alone shows.
    shrinkage: the share kept of curvature that noise hides; a larger one makes intervals narrower.
    """

    steps: tuple[int, ...] = (8, 12)
    noise: tuple[float, ...] = (1.0, 1.0)
    ranges: float = 0.1
    moments: float = 0.2
    residual: float = 0.05
    curvature: float = 0.2
    clip_least: float = 0.5
    clip_most: float = 2.0
    clip_slope: float = 0.4
    clip_power: float = 1.0
    learning_rate: float = 1.0
    average: float = 1.0
    floor: float = 0.4
    shrinkage: float = 0.5

    def __post_init__(self) -> None:
        for name in ("steps", "noise"):
            check_number(name, getattr(self, name), "a list of numbers", isinstance(getattr(self, name), tuple))
        stages = len(self.steps)
        valid = 1 <= stages <= MOST_STAGES and all(_is_whole(n) and 1 <= n <= MOST_STEPS for n in self.steps)
        check_number("steps", self.steps, f"1 to {MOST_STAGES} whole numbers from 1 to {MOST_STEPS}", valid)
        check_number("noise", self.noise, "a number for each stage", len(self.noise) == stages)
        if isinstance(self.noise[0], jax.Array):  # in a program that learns the rule
            return
        valid = all(_is_within(relative, 0.01, 100) for relative in self.noise)
        check_number("noise", self.noise, "a number from 0.01 to 100 for each stage", valid)
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            check_number(name, value, f"a number from {low:g} to {high:g}", _is_within(value, low, high))
        total = self.ranges + self.moments + self.residual + self.curvature
        check_number(
            "the sum of shares", round(total, 6), "at most 0.95: gradients have the rest", total <= 0.95 + 1e-9
        )


LIMITS = {
    **dict.fromkeys(("ranges", "moments", "residual", "curvature"), (0.001, 0.9)),
    **dict.fromkeys(("clip_least", "clip_most"), (0.001, 100.0)),
    "clip_slope": (0.0, 100.0),
    "clip_power": (0.0, 4.0),
    "learning_rate": (0.01, 2.0),
    "average": (0.01, 1.0),
    "floor": (0.0, 10.0),
    "shrinkage": (0.0, 1.0),
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

    def __post_init__(self) -> None:
        for link, rule in self.rules.items():
            if link in LINKS and LINKS[link].learns_scale and len(rule.steps) < 2:
                raise ValueError(
                    f"the rule for {link}: steps={rule.steps}; expected two stages, one to find the residual"
                )

    def rule(self, link: str) -> Rule:
        """The rule of a kind of regression: "linear", "logistic", ..."""
        return self.rules.get(link, PLAIN)

    @classmethod
    def of(cls, plain: Any) -> "Policy":
        """A policy from plain data, checked: unknown names are refused."""
        if not isinstance(plain, dict) or set(plain) - {"rules", "made"} or not isinstance(plain.get("rules"), dict):
            raise ValueError("a policy is an object with rules and made; expected a file that tacit policy learn wrote")
        known = {f.name for f in fields(Rule)}
        rules = {}
        for link, settings in plain["rules"].items():
            if link not in LINKS:
                raise ValueError(f"a policy with a rule for {link!r}; expected one of {', '.join(LINKS)}")
            if not isinstance(settings, dict) or set(settings) - known:
                names = sorted(set(settings) - known) if isinstance(settings, dict) else settings
                raise ValueError(f"the rule for {link} has {names}; expected some of {', '.join(sorted(known))}")
            ready: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
            try:
                rules[link] = Rule(**ready)
            except ValueError as error:
                raise ValueError(f"the rule for {link}: {error}") from None
        made = plain.get("made", {})
        return cls(rules, made if isinstance(made, dict) else {})

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """Read a file that `write` made."""
        try:
            return cls.of(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"policy {path} cannot be read: {error}; expected a file of tacit policy learn") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"policy {path} is not JSON: {error}; expected a file of tacit policy learn") from None
        except ValueError as error:
            raise ValueError(f"policy {path}: {error}") from None

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
    return Policy.of(json.loads(resources.files("tacit.fitting").joinpath("policy.json").read_text(encoding="utf-8")))
