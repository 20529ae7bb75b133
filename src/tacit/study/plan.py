"""The plan of a study: all its public settings, declared once.

`Plan` declares the settings of study files, of Python calls and of agreements over a network. All defaults, the checks
of settings that clash, the JSON schema for editors and the documentation's table come from it. Importing it loads
neither NumPy nor JAX.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import model_validator
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from tacit.basics.methods import METHODS
from tacit.basics.schema import LONGEST_NAME, REQUIRED, OneOf, Root, Section, before, setting
from tacit.basics.shapes import SETTINGS as SHAPE_SETTINGS
from tacit.basics.shapes import ShapeName, check_shape
from tacit.links import LINKS, Link, link_of, names
from tacit.study import own_models

if TYPE_CHECKING:
    from tacit.study.policy import Rule

MethodName = Annotated[str, OneOf(lambda: tuple(METHODS))]
Unit = Literal["record", "person", "site"]
AdjacencyName = Literal["add-remove", "replace-one"]
NATURAL = ("natural", "ep", "sep")
LEAST_DEVIATION, MOST_DEVIATION = 1e-6, 1e6  # of a prior: beyond, it decides all or nothing, but for rounding
MOST_EVALUATION = 0.75  # of a budget at most: the rest pays for scales, curvature and gradients


def model_words() -> str:
    """What may be given as a model, for refusals."""
    return f"one of {', '.join(names())}, or of your own, as {own_models.EXAMPLE!r}"


class ModelMark:
    """Marks a model: the name of a regression, "module:name", or, in Python, an object with prior and likelihood."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        del source, handler
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        del schema, handler
        own = {"type": "string", "pattern": f"^{own_models.NAME.pattern}$", "maxLength": own_models.LONGEST}
        return {"anyOf": [{"type": "string", "enum": list(names())}, own]}

    def _checked(self, value: Any) -> Any:
        if isinstance(value, str):
            is_known = value in names() or own_models.is_name(value)
        else:
            is_known = own_models.is_model(value)
        if not is_known:
            raise ValueError(f"expected {model_words()}")
        return value


ModelName = Annotated[Any, ModelMark()]


class VISettings(Section):
    """[vi]: the settings of `method = "vi"`, and of samples by `method = "sgld"`.

    With a `noise_multiplier`, a site goes on as long as its budget pays, as published; without one, noise is such that
    all rounds together cost the site's ε.
    """

    steps: int | None = setting(None, "noised steps of an update; about 1000 over all rounds by default", ge=1)
    clip: float | None = setting(
        None, "the largest norm of a record's gradient; by the model if left out", gt=0, allow_inf_nan=False
    )
    noise_multiplier: float | None = setting(
        None, "noise relative to the clip; from the budget if left out", gt=0, allow_inf_nan=False
    )
    sampling_rate: float | None = setting(
        None, "the probability with which a record is in a step's sample; about 0.1 by default", gt=0, le=1
    )
    learning_rate: float | None = setting(None, "the learning rate of the optimiser", gt=0, allow_inf_nan=False)
    optimiser: Literal["adam", "adagrad"] = setting("adam", "the optimiser of an update's steps")
    damping: float | None = setting(
        None, "the share of an update that enters a site's factor; 1 for one site by default", gt=0, le=1
    )
    is_adaptive: bool = setting(False, "whether the clip begins as `clip` and follows the gradients, at the same price")
    per_coordinate: bool = setting(False, "`is_adaptive`: whether each coordinate also has its own centre and scale")
    shape: ShapeName = setting(
        "constant", "how noise changes over the steps of an update, at the same price, as in `tacit calibrate --shape`"
    )
    noise_end: float | None = setting(None, "`shape`: the last step's noise, relative to the first's", gt=0)
    power: float | None = setting(None, "`polynomial`: above 1 noise changes late; 2 by default", gt=0)
    stages: int | None = setting(None, "`stepwise`: the number of stages; 4 by default", ge=1)
    contraction: float | None = setting(
        None, "`influence`: the factor by which a step shrinks earlier errors, in the loss", gt=0, lt=1
    )
    momentum: float | None = setting(None, "`influence`: the decay of the momentum, if any", ge=0, lt=1)

    @property
    def shape_settings(self) -> dict[str, Any]:
        """The settings of `shape` that are given."""
        found = {name: getattr(self, name) for name in SHAPE_SETTINGS}
        return {name: value for name, value in found.items() if value is not None}


class Plan(Root):
    """All public settings of a study.

    >>> Plan("logistic", rounds=10).rounds
    10
    >>> Plan("logistic", rounds=0)
    Traceback (most recent call last):
    ValueError: rounds=0; expected a whole number of at least 1
    """

    model: ModelName = setting(
        REQUIRED,
        'the kind of regression; or "module:name", a model of your own in a module that is installed at each site',
        expected=model_words,
    )
    name: str = setting(
        "study",
        "the study's name in ledgers; in a study file by default the file's",
        expected=f"a name of 1 to {LONGEST_NAME} characters",
        min_length=1,
        max_length=LONGEST_NAME,
    )
    rounds: int | None = setting(None, "how often each site is asked; by the policy if left out", ge=1)
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
        1.0,
        "the prior's standard deviation, of coefficients of standardised features",
        ge=LEAST_DEVIATION,
        le=MOST_DEVIATION,
    )
    noise_scale: float | None = setting(
        None,
        "linear: the standard deviation of the target around its mean, relative to the target's; learned if left out",
        gt=0,
        allow_inf_nan=False,
    )
    scaling: Literal["moments", "bounds"] = setting(
        "moments",
        "how numbers are rescaled: `moments`, by means and variances that part of the budget pays for; `bounds`, by "
        "the middle and half-width of their public bounds, which is free",
    )
    policy: dict[str, float] | None = setting(
        None,
        "[policy]: the settings of the policy for this model, as the lines below its name in `tacit policy show`; by "
        "default tacit's",
        expected="a table of settings and numbers, as the lines below the model's name in `tacit policy show`",
    )
    clip: float | None = setting(
        None,
        "regressions: the largest norm of a record's gradient, relative to the model's units; by the policy if left "
        "out",
        gt=0,
        allow_inf_nan=False,
    )
    sampling_rate: float = setting(
        1.0, "regressions: the probability with which a record is in a round's sample of gradients", gt=0, le=1
    )
    evaluation: float = setting(
        0.0, "the share of each budget that pays for scores on held-out records", ge=0, lt=MOST_EVALUATION
    )
    method: MethodName | None = setting(
        None,
        "how a site updates its factor: `natural` by natural gradients; `ep` and `sep` with factors of expectation "
        "propagation, at the same price; `vi` by noised gradients, with the settings of [vi]; `sgld` by samples, at "
        "one site. By default `natural` for a regression with one linear predictor, and else `vi`",
    )
    unit: Unit = setting("record", "the unit of privacy")
    most_records: int | None = setting(
        None, '`unit = "person"`: how many records of a person are used, the first ones', ge=1
    )
    noise: Literal["tied", "central", "per-site"] = setting("tied", '`unit = "site"`: how noise is added')
    reset: int | None = setting(None, '`noise = "central"`: after how many rounds factors are tied', ge=1)
    participation: float = setting(
        1.0,
        '`noise = "tied"`: the share of sites asked in each round, drawn at random; which ones must stay secret',
        gt=0,
        le=1,
    )
    site_effects: list[str] = setting(
        [],
        'columns whose coefficients differ between sites, such as ["intercept"]: each site has its own deviation from '
        "the common coefficients, and the spread between sites is learned",
        expected='a list of columns, such as ["intercept"], each once',
        before=[],
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
    vi: VISettings = setting(VISettings(), "[vi]: the settings of `vi` and `sgld`", expected="a table [vi] of settings")

    def __init__(self, model: Any = None, /, **settings: Any) -> None:
        super().__init__(**({} if model is None else {"model": model}), **settings)

    @model_validator(mode="after")
    def _check_clashes(self) -> Self:
        for words in self.clashes():
            raise ValueError(words)
        return self

    @property
    def is_named(self) -> bool:
        """Whether the model is "module:name" and not loaded yet, so that nothing else is known of it."""
        return isinstance(self.model, str) and ":" in self.model

    def loaded(self) -> Self:
        """The plan with its model, where that is named as "module:name": the module is imported."""
        return self.replace(model=own_models.load(self.model)) if self.is_named else self

    @property
    def link(self) -> Link | None:
        """The link of a regression; None for other models."""
        self._check_loaded()
        if isinstance(self.model, str):
            return link_of(self.model)
        return next((link for link in LINKS.values() if isinstance(self.model, link.model)), None)

    @property
    def is_table(self) -> bool:
        """Whether the model is a regression on a table, whose columns are standardised."""
        self._check_loaded()
        return isinstance(self.model, str)

    def _check_loaded(self) -> None:
        if self.is_named:
            raise ValueError(f"model={self.model!r} is not loaded; expected plan.loaded(), where it is installed")

    @property
    def method_used(self) -> str:
        """The method, chosen by the model if it is left out."""
        if self.method is not None:
            return self.method
        return "natural" if self.has_one_predictor else "vi"

    @property
    def is_natural(self) -> bool:
        """Whether curvature and gradients of one linear predictor are released (`natural`, `ep`, `sep`)."""
        return self.has_one_predictor and self.method_used in NATURAL

    @property
    def has_one_predictor(self) -> bool:
        """Whether parameters enter the likelihood through one linear predictor x·θ."""
        self._check_loaded()
        if isinstance(self.model, str):
            return not link_of(self.model).is_multiclass
        return hasattr(self.model, "of_linear") and not isinstance(self.model.prior, dict)

    @property
    def learns_residual(self) -> bool:
        """Whether the standard deviation of a numeric target around its mean is released too."""
        is_learned = self.is_table and link_of(self.model).learns_scale and self.noise_scale is None
        return is_learned and self.unit != "site" and (self.is_natural or self.method_used == "sgld")

    @property
    def is_published(self) -> bool:
        """Whether sites go on with a fixed noise until their budgets refuse, as published."""
        return self.method_used == "vi" and self.vi.noise_multiplier is not None

    @property
    def rule(self) -> "Rule":
        """The policy's rule for this model."""
        from tacit.study.policy import Rule, default_policy

        if self.policy is not None:
            given: dict[str, Any] = {name: int(v) if name == "rounds" else v for name, v in self.policy.items()}
            return Rule(**given)
        return default_policy().rule("" if self.link is None else self.link.name)

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
            ("noise", "unit", "site"),
            ("reset", "noise", "central"),
            ("participation", "unit", "site"),
            ("participation", "noise", "tied"),
            ("absent", "secure_sum", True),
            ("colluding", "secure_sum", True),
            ("most_records", "unit", "person"),
        ):
            if self.is_given(name) and getattr(self, where) != there:
                found, expected = (_written(value) for value in (getattr(self, where), there))
                yield f"{name} with {where}={found}; expected it with {where} = {expected} only, so leave it out"
        if self.unit == "person" and self.most_records is None:
            yield 'unit="person" without most_records; expected how many records of one person to use, at least 1'
        if not self.is_named:
            yield from self._method_clashes()
            yield from self._unit_clashes()
            yield from self._secure_clashes()
            yield from self._effects_clashes()

    def _method_clashes(self) -> Iterator[str]:
        link, method = self.link, self.method_used
        if self.is_given("vi") and method not in ("vi", "sgld"):
            yield f'vi with method={_written(method)}; expected it with method = "vi" only, so leave it out'
        if self.vi.shape != "constant" and (method != "vi" or self.is_published):
            yield 'vi.shape without steps of "vi" whose noise the budget sets; leave it out, or noise_multiplier'
        try:
            check_shape(self.vi.shape, self.vi.shape_settings)
        except ValueError as error:
            yield f"vi.{error}"
        for name in ("clip", "sampling_rate"):
            if self.is_given(name) and not self.is_natural:
                yield f"{name} with method={_written(method)}; expected it in [vi]"
        if method == "natural" and not self.has_one_predictor:
            yield f'method="natural" with {self.model_name}; expected it for one linear predictor, so use "vi"'
        is_matched = self.has_one_predictor or hasattr(self.model, "match")
        if method in ("ep", "sep") and not is_matched:
            yield f"method={method!r} needs moments, which this model does not have; use method='vi' or 'sgld'"
        if self.is_given("noise_scale") and not (self.is_table and link is not None and link.learns_scale):
            yield (
                f"noise_scale with model={_written(self.model_name)}; expected it for a linear model only, so leave it "
                "out"
            )
        if self.learns_residual and (self.rounds or (self.policy or {}).get("rounds")) == 1:
            yield "rounds=1 with a residual that is learned between two rounds; expected at least 2, or noise_scale"
        has_two = link is not None and link.target.has_two_classes
        if self.evaluation and (not has_two or self.is_published or method == "sgld"):
            yield (
                f"evaluation={self.evaluation}; expected it with two classes and not with samples or a fixed noise "
                "multiplier, so leave it out"
            )
        if self.policy is not None:
            try:
                _ = self.rule
            except (TypeError, ValueError, OverflowError) as error:
                yield f"policy: {error}"

    @property
    def model_name(self) -> str:
        """The name of the model: that of a regression, or of the class of another one."""
        return self.model if isinstance(self.model, str) else type(self.model).__name__

    def _unit_clashes(self) -> Iterator[str]:
        if self.unit == "site" and self.method_used != "natural":
            yield f'method={_written(self.method_used)} with unit="site"; expected method = "natural", so leave it out'
        if self.unit == "site" and self.link is None:
            yield f'unit="site" with {self.model_name}, whose updates have no public size; expected a regression'
        if self.trusts_coordinator and (self.schedule != "synchronous" or self.dropout or self.straggling):
            yield (
                f"noise={_written(self.noise)} asks all sites at once; expected a synchronous schedule without dropout "
                "and straggling"
            )

    def _secure_clashes(self) -> Iterator[str]:
        if not self.secure_sum:
            return
        if not self.is_natural:
            words = "whose steps read what the site released; expected another method"
            yield f"secure_sum with method={_written(self.method_used)}, {words}"
        if self.schedule != "synchronous" or self.straggling:
            yield 'secure_sum adds up all sites in every round; expected schedule = "synchronous" without straggling'
        if self.unit == "site" and (self.noise != "tied" or self.participation < 1):
            yield 'secure_sum with unit="site"; expected noise = "tied", and all sites in every round'

    def _effects_clashes(self) -> Iterator[str]:
        if not self.site_effects:
            return
        name = f"site_effects={self.site_effects}"
        if len(set(self.site_effects)) < len(self.site_effects):
            yield f"{name}; expected each column once"
        if not (self.is_table and self.is_natural and self.method_used == "natural"):
            yield f'{name} with {self.model_name} by method="{self.method_used}"; expected a regression by "natural"'
        if self.secure_sum:
            yield (
                f"{name} with secure_sum: a sum over sites hides each site's part, from which its deviation would be "
                "learned; leave one of them out"
            )
        if self.unit == "site":
            yield f'{name} with unit="site", which hides what each site adds; expected unit = "record" or "person"'
        if self.schedule != "synchronous" or self.straggling:
            yield f'{name} needs answers to what was sent last; expected schedule = "synchronous" without straggling'

    # --- What names a study ---------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """The settings that the name of a study hashes (`study.folder.name_of`), as plain data.

        A setting with `before` is left out where it has that value, so that studies keep their names, and with them
        their ledgers, stores and seeded results. The policy's rule is there as it is used: another version of tacit may
        come with another one.
        """
        fields = _fields()
        found = {name: value for name, value in dict(self).items() if name != "vi"}
        found |= {f"vi.{name}": value for name, value in dict(self.vi).items()}
        found["model"] = self.model if isinstance(self.model, str) else described(self.model)
        found["policy"] = self.rule.to_dict()
        return {
            name: value
            for name, value in found.items()
            if before(fields[name]) is None or value != before(fields[name])
        }


def _fields() -> dict[str, FieldInfo]:
    """All settings, those of [vi] with their table's name in front."""
    return Plan.model_fields | {f"vi.{name}": field for name, field in VISettings.model_fields.items()}


def described(model: Any) -> list[str]:
    """What distinguishes a model given as an object: the hash of its source, if it is known by name; or else its class,
    its settings and a hash of its numbers.
    """
    import jax
    import numpy as np

    source = own_models.source_of(model)
    if source is not None:  # numbers computed from it may differ between machines in their last bits
        return list(source)
    leaves, form = jax.tree.flatten(model)
    arrays = [np.asarray(leaf) for leaf in leaves]
    plain = b"".join(f"{leaf.dtype.str}{leaf.shape}".encode() + leaf.tobytes() for leaf in arrays)
    numbers = hashlib.sha256(plain).hexdigest()
    return [type(model).__module__, type(model).__qualname__, re.sub(" at 0x[0-9a-f]+", "", str(form)), numbers]


def _written(value: Any) -> str:
    """A value as a study file has it."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
