"""Settings of a plan as arguments of a call: those of `Plan` by name, and shorter words for those of its solver."""

from pathlib import Path
from typing import Any, Literal, TypedDict

from tacit.study.plan import AdjacencyName, Plan, Unit, VISettings
from tacit.study.policy import Policy

LEAST_STEPS = 2  # of gradients: one after each release of curvature


class Settings(TypedDict, total=False):
    """What may be set of a plan by `fit` and `federate`. `Plan` has the defaults, the meanings and the checks.

    Shorter words, which go where the method has them: `steps` (rounds of gradients, or the noised steps of an update),
    `clip` ("adaptive" follows the gradients, at the same price), `sampling_rate`, `learning_rate` and `optimiser`.
    `policy` may also be a `Policy`, or the path of its file.
    """

    name: str
    rounds: int | None
    schedule: Literal["synchronous", "sequential", "asynchronous"]
    dropout: float
    straggling: float
    delay: int
    schedule_seed: int
    adjacency: AdjacencyName
    prior_deviation: float
    noise_scale: float | None
    scaling: Literal["moments", "bounds"]
    policy: Policy | dict[str, float] | str | Path | None
    clip: float | Literal["adaptive"] | None
    sampling_rate: float | None
    evaluation: float
    method: str | None
    unit: Unit
    most_records: int | None
    noise: Literal["tied", "central", "per-site"]
    reset: int | None
    participation: float
    secure_sum: bool
    absent: int | None
    colluding: int | None
    allow_large_delta: bool
    site_effects: list[str] | None
    vi: VISettings
    steps: int | None
    learning_rate: float | None
    optimiser: Literal["adam", "adagrad"] | None


SHORTER = ("steps", "clip", "sampling_rate", "learning_rate", "optimiser")


def plan_of(model: Any, settings: Settings, name: str | None = None) -> Plan:
    """The plan of a model, or a plan that is given, with these settings. name: by default, if there is no plan.

    >>> plan_of("logistic", {"steps": 8}).rounds, plan_of("softmax", {"steps": 8}).vi.steps
    (8, 8)
    """
    given: dict[str, Any] = dict(settings)
    shorter = {word: given.pop(word, None) for word in SHORTER}
    shorter = {word: value for word, value in shorter.items() if value is not None}
    _check_shorter(shorter, given)
    policy = _policy_of(given.pop("policy", None))
    if isinstance(model, Plan):
        plan = model.replace(**given)
    else:
        plan = Plan(model, **({} if name is None else {"name": name}) | given)
    plan = _solved(plan.loaded(), shorter)
    if isinstance(policy, Policy):
        policy = policy.rule("" if plan.link is None else plan.link.name).to_dict()
    return plan if policy is None else plan.replace(policy=policy)


def _policy_of(policy: Any) -> Any:
    """A policy, read from its file if it is a path."""
    return Policy.read(Path(policy)) if isinstance(policy, str | Path) else policy


def words_of(policy: Any) -> tuple[str, ...]:
    """The remark of a statement on a policy that was given."""
    policy = _policy_of(policy)
    if not isinstance(policy, Policy):
        return ()
    return (f"Settings come from a policy that was given ({policy.words}), which is treated as public.",)


def _check_shorter(shorter: dict[str, Any], given: dict[str, Any]) -> None:
    clip, steps, method = shorter.get("clip"), shorter.get("steps"), given.get("method")
    if isinstance(clip, str) and clip != "adaptive":
        raise ValueError(f"clip={clip!r}; expected a number above 0, 'adaptive', or None for the policy's")
    if steps is not None and given.get("rounds") is not None and method in (None, "natural"):
        raise ValueError(f"steps={steps} with rounds={given['rounds']}; expected one of them")


def _solved(plan: Plan, shorter: dict[str, Any]) -> Plan:
    """The plan with the settings of its solver."""
    if not shorter:
        return plan
    steps, method = shorter.get("steps"), plan.method_used
    needs_vi = shorter.get("clip") == "adaptive" or "optimiser" in shorter
    if (needs_vi and method != "vi") or ("learning_rate" in shorter and method not in ("vi", "sgld")):
        raise ValueError(
            f"method={method!r} takes neither clip='adaptive' nor an optimiser or a learning rate; give method='vi', "
            "or leave them out"
        )
    if plan.is_natural:
        if steps is not None and steps < LEAST_STEPS:
            raise ValueError(f"steps={steps}; expected at least {LEAST_STEPS}, one after each release of curvature")
        names = {"steps": "rounds"}
        return plan.replace(**{names.get(word, word): value for word, value in shorter.items()})
    if plan.method_used == "sgld" and steps is not None and steps < LEAST_STEPS:
        raise ValueError(f"steps={steps}; expected at least {LEAST_STEPS} for method='sgld'")
    if shorter.get("clip") == "adaptive":
        shorter = {word: value for word, value in shorter.items() if word != "clip"} | {"is_adaptive": True}
    return plan.replace(vi=plan.vi.model_validate(dict(plan.vi) | shorter))
