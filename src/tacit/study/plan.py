"""The plan of a study: all its public settings, declared once.

`Plan` declares the settings of study files, of Python calls and of agreements over a network. All defaults, the checks
of settings that clash, the JSON schema for editors and the documentation's table come from it. Importing it loads
neither NumPy nor JAX.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator
from pydantic.fields import FieldInfo

from tacit.basics.methods import study_methods
from tacit.basics.schema import LONGEST_NAME, REQUIRED, OneOf, Root, Section, before, setting
from tacit.links import Link, link_of, names

ModelName = Annotated[str, OneOf(lambda: names(in_studies=True))]
MethodName = Annotated[str, OneOf(study_methods)]
Unit = Literal["record", "site"]
AdjacencyName = Literal["add-remove", "replace-one"]
MOST_EVALUATION = 0.75  # of a budget at most: the rest pays for scales, curvature and gradients


class VISettings(Section):
    """[vi]: the settings of an update, with method = "vi"."""

    steps: int = setting(25, "noised steps of an update", ge=1)
    clip: float = setting(10.0, "the largest norm of a record's gradient", gt=0, allow_inf_nan=False)
    noise_multiplier: float = setting(5.0, "noise relative to the clip", gt=0, allow_inf_nan=False)
    sampling_rate: float = setting(0.02, "the probability with which a record is in a step's sample", gt=0, le=1)
    learning_rate: float = setting(0.5, "the learning rate of AdaGrad", gt=0, allow_inf_nan=False)
    damping: float = setting(0.1, "the share of an update that enters a site's factor", gt=0, le=1)
    is_adaptive: bool = setting(False, "whether the clip begins as `clip` and follows the gradients, at the same price")


class Plan(Root):
    """All public settings of a study.

    >>> Plan("logistic", rounds=10).rounds
    10
    >>> Plan("logistic", rounds=0)
    Traceback (most recent call last):
    ValueError: rounds=0; expected a whole number of at least 1
    """

    model: ModelName = setting(REQUIRED, "the kind of regression")
    name: str = setting(
        "study",
        "the study's name in ledgers; in a study file by default the file's",
        expected=f"a name of 1 to {LONGEST_NAME} characters",
        min_length=1,
        max_length=LONGEST_NAME,
    )
    rounds: int = setting(20, "how often each site is asked", ge=1)
    schedule: Literal["synchronous", "sequential", "asynchronous"] = setting(
        "synchronous",
        "who is asked when: all sites in every round, one after the other, or sites with few slots more often "
        "(`rounds` × sites updates in all)",
    )
    dropout: float = setting(0.0, "synchronous: the chance that a site is away in a round", ge=0, lt=1)
    straggling: float = setting(0.0, "synchronous: the chance that an answer comes a round late", ge=0, le=1)
    delay: int = setting(0, "asynchronous: how many updates later an answer arrives", ge=0)
    schedule_seed: int = setting(0, "the seed of the schedule's random choices, which are public", ge=0)
    adjacency: AdjacencyName = setting("add-remove", "which data sets are neighbours")
    prior_deviation: float = setting(
        1.0, "the prior's standard deviation, of coefficients of standardised features", gt=0, allow_inf_nan=False
    )
    noise_scale: float = setting(
        1.0,
        "linear: the standard deviation of the target around its mean, relative to the target's",
        gt=0,
        allow_inf_nan=False,
    )
    evaluation: float = setting(
        0.0, "the share of each budget that pays for scores on held-out records", ge=0, lt=MOST_EVALUATION
    )
    method: MethodName = setting(
        "natural",
        "how a site updates its factor: `natural` by natural gradients; `ep` and `sep` with factors of expectation "
        "propagation, at the same price; `vi`, the published form, with the settings of [vi]",
    )
    unit: Unit = setting("record", "the unit of privacy")
    noise: Literal["tied", "central", "per-site"] = setting("tied", '`unit = "site"`: how noise is added')
    reset: int | None = setting(None, '`noise = "central"`: after how many rounds factors are tied', ge=1)
    participation: float = setting(
        1.0,
        '`noise = "tied"`: the share of sites asked in each round, drawn at random; which ones must stay secret',
        gt=0,
        le=1,
    )
    secure_sum: bool = setting(
        False, "whether the coordinator learns only sums over sites, and all sites share one noise"
    )
    absent: int | None = setting(
        None, "`secure_sum`: how many sites may drop out of a sum; a tenth of them by default", ge=0
    )
    colluding: int | None = setting(
        None,
        "`secure_sum`: how many sites may collude with the coordinator; by default a tenth, at least one",
        ge=0,
    )
    allow_large_delta: bool = setting(
        False,
        "whether `delta` may be 1 / `slots` of a site or more (with whole sites as the unit, 1 / sites); such a δ "
        "allows a record to be published as it is, and the statement says so",
    )
    vi: VISettings = setting(
        VISettings(), '[vi], `method = "vi"`: the settings of an update', expected="a table [vi] of settings"
    )

    def __init__(self, model: Any = None, /, **settings: Any) -> None:
        super().__init__(**({} if model is None else {"model": model}), **settings)

    @model_validator(mode="after")
    def _check_clashes(self) -> Self:
        for words in self.clashes():
            raise ValueError(words)
        return self

    @property
    def link(self) -> Link:
        """The link of the regression."""
        return link_of(self.model)

    @property
    def trusts_coordinator(self) -> bool:
        """Whether one trusted coordinator adds up all sites, and adds the noise."""
        return self.unit == "site" and self.noise != "per-site" and not self.secure_sum

    # --- What must fit together -----------------------------------------------------------------------------------

    def is_given(self, name: str) -> bool:
        """Whether a setting differs from its default."""
        return getattr(self, name) != type(self).model_fields[name].get_default()

    def clashes(self) -> Iterator[str]:
        """Settings that do not fit together, each as a sentence that ends with a remedy."""
        if not self.name.isprintable():
            yield f"name={self.name!r}; expected printable characters on one line"
        for name, where, there in (
            ("dropout", "schedule", "synchronous"),
            ("straggling", "schedule", "synchronous"),
            ("delay", "schedule", "asynchronous"),
            ("vi", "method", "vi"),
            ("noise", "unit", "site"),
            ("reset", "noise", "central"),
            ("participation", "unit", "site"),
            ("participation", "noise", "tied"),
            ("absent", "secure_sum", True),
            ("colluding", "secure_sum", True),
        ):
            if self.is_given(name) and getattr(self, where) != there:
                found, expected = (_written(value) for value in (getattr(self, where), there))
                yield f"{name} with {where}={found}; expected it with {where} = {expected} only, so leave it out"
        if self.is_given("noise_scale") and not self.link.learns_scale:
            yield f"noise_scale with model={_written(self.model)}; expected it for a linear model only, so leave it out"
        if self.evaluation and (not self.link.target.has_two_classes or self.method == "vi"):
            yield f'evaluation={self.evaluation}; expected it with two classes and not with "vi", so leave it out'
        yield from self._unit_clashes()
        yield from self._secure_clashes()

    def _unit_clashes(self) -> Iterator[str]:
        if self.unit == "site" and self.method != "natural":
            yield f'method={_written(self.method)} with unit="site"; expected method = "natural", so leave it out'
        if self.trusts_coordinator and (self.schedule != "synchronous" or self.dropout or self.straggling):
            yield (
                f"noise={_written(self.noise)} asks all sites at once; expected a synchronous schedule without dropout "
                "and straggling"
            )

    def _secure_clashes(self) -> Iterator[str]:
        if not self.secure_sum:
            return
        if self.method == "vi":
            yield 'secure_sum with method="vi", whose steps read what the site released; expected another method'
        if self.schedule != "synchronous" or self.straggling:
            yield 'secure_sum adds up all sites in every round; expected schedule = "synchronous" without straggling'
        if self.unit == "site" and (self.noise != "tied" or self.participation < 1):
            yield 'secure_sum with unit="site"; expected noise = "tied", and all sites in every round'

    # --- What names a study ---------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """The settings that the name of a study hashes (`study.folder.name_of`), as plain data.

        Three have the names that they had at first, so that studies keep their names, and with them their ledgers,
        stores and seeded results. A setting with `before` is left out where it has that value.
        """
        fields = _fields()
        found = {name: value for name, value in dict(self).items() if name != "vi"} | dict(self.vi)
        return {
            _FIRST_NAMES.get(name, name): value
            for name, value in found.items()
            if before(fields[name]) is None or value != before(fields[name])
        }


_FIRST_NAMES = {"model": "link", "schedule_seed": "seed", "colluding": "pooling"}


def _fields() -> dict[str, FieldInfo]:
    """All settings, those of [vi] beside the others. No two may share a name: one would be missing in the identity."""
    both = set(Plan.model_fields) & set(VISettings.model_fields)
    if both:
        raise ValueError(f"{sorted(both)} are settings of a plan and of [vi]; give one of them another name")
    return Plan.model_fields | VISettings.model_fields


def _written(value: Any) -> str:
    """A value as a study file has it."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
