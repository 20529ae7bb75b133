"""Trials of a rule on simulated tasks: the study's own phases, with the rule's numbers as arrays.

All ε, all numbers of sites and all seeds of a trial are one call of a compiled program (`privacy.mechanism.Trial`);
only the number of rounds and the place of the second curvature are compiled in. A `Trial` costs ε = ∞, so the records
must be public or simulated.

A study of many sites is tried as one site with more noise. This is exact where all sites answer in every round: a
natural step is affine in what a site releases, its damping is the same at all sites, and a new curvature enters in
full, so the product of all factors depends on the sum over sites alone. That sum is the sum over all records, whatever
the sizes of the sites, because all sites clip alike. With its own noise at each of M sites the noise is √M times that
of one; with secure sums it is larger by the sites that may be absent or collude.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tacit.basics.trees import Tree
from tacit.data.simulated import Simulated
from tacit.federated.secure_terms import Tolerance
from tacit.federated.simulated import unledgered
from tacit.links import Link, link_of
from tacit.privacy import accounting
from tacit.privacy.filters import Filter
from tacit.privacy.mechanism import Access, Exact, Trial
from tacit.privacy.randomness import insecure_key
from tacit.study.phases import Conducted, conduct
from tacit.study.plan import Plan
from tacit.study.policy import Rule
from tacit.study.program import Program
from tacit.study.reading import OfTable
from tacit.study.releases import Releases
from tacit.study.setup import Setup
from tacit.tables.scaling import Range, Scaling
from tacit.tables.standardising import PRIOR_DEVIATION, standardise
from tacit.tables.table import Table

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
MOST_NUMBERS = 2**19  # in a table whose runs are vectorised
HALF_WIDTH = 1.6449  # of 90 % intervals, in standard deviations
LEAST_LOG_LIKELIHOOD = -20.0  # of a record: a single improbable record does not dominate
COMPILED = ("rounds", "second")  # settings of a rule that a program is compiled for
SETTINGS = tuple(field.name for field in fields(Rule) if field.name not in COMPILED)
EXACT = Rule(rounds=20, clip_least=100.0, clip_most=100.0)
NO_NOISE, WIDE = 1e-9, 1e4  # of runs without privacy: σ, and the factor by which clips are widened


# --- Noise -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spending:
    """The budget of ε at each of `sites` sites, which adds its own noise or a share of the noise of a sum."""

    epsilon: float
    sites: int = 1
    is_secure: bool = False

    def noise(self, delta: float) -> float:
        """The noise multiplier of the whole budget in the sum over all sites."""
        if not self.is_secure:
            return noise_of(self.epsilon, delta) * math.sqrt(self.sites)
        tolerance = Tolerance.usual(self.sites)
        return noise_of(self.epsilon, delta) * math.sqrt(tolerance.sites / tolerance.honest)


def noise_of(epsilon: float, delta: float) -> float:
    """σ of one Gaussian release that costs (ε, δ): the noise of a site's whole budget without sampling."""
    reserve = Filter.of("gaussian", epsilon, delta).reserve  # as a study leaves to its ledger
    return accounting.calibrate(epsilon, delta * (1 - reserve)).noise_multiplier


# --- A study of one simulated site -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TrialProgram(Program):
    """A program whose updates enter in full where `is_exact`, an array of a program: there is no noise to average."""

    is_exact: Any = False

    def damping(self, phase: str) -> tuple[Any, ...]:
        return tuple(jnp.where(self.is_exact, 1.0, rho) for rho in super().damping(phase))


@dataclass(frozen=True, eq=False)
class _Reading(OfTable):
    """A regression on a table whose public bounds are arrays of a program."""

    ends: Range | None = None

    def bounds(self) -> Range:
        assert self.ends is not None
        return self.ends


class _TrialSetup(Setup):
    """The set-up of a study of one site whose rule and noise are arrays of a program."""

    def __init__(self, batch: "Batch", rule: Rule, noise: Any, task: "_Arrays", widened: Any) -> None:
        reading = _Reading(batch.link, batch.table, PRIOR_DEVIATION, task.bounds)
        plan = Plan(batch.kind)
        self.form_of_records, self.model, self.plan, self.table = reading, batch.model, plan, batch.table
        self.units = task.features.shape[0]
        paid = reading.columns, len(reading.unknown)
        self.program = _TrialProgram(plan, *paid, tried=rule, is_exact=widened > 1)
        size = batch.model.prior.precision_mean.shape[0]
        releases = Releases(self.program, size, reading.typical, 1, 1, self.units, None)
        settings = releases.settings(noise, releases.clip_of_gradients(noise, self.units))
        made: Any = {name: Trial(widened * clip, found / widened) for name, (clip, found) in settings.items()}
        self.releases, self.mechanisms, self.added, self.tolerance = releases, [made], [made], None
        marks = jnp.zeros((self.units, 1), bool)
        records = jax.tree.map(lambda leaf: leaf[:, None], ((task.features, task.target), jnp.zeros(self.units, bool)))
        self._all = Access(records, ~marks, Exact())

    def records(self, respondent: int) -> Access:
        """The simulated records, none of them held out."""
        del respondent
        return self._all

    def run(self, key: Array) -> Conducted:
        """All phases of the study."""
        keys = dict(zip(self.phases, jax.random.split(key, len(self.phases)), strict=True))

        def play(phase: str, algorithm: Any, scaling: Scaling | None) -> Tree:
            return _played(algorithm, keys[phase], self.access(phase, 0, scaling), self.program.rounds_in(phase))

        return conduct(self, play)


def _played(algorithm: Any, key: Array, access: Access, rounds: int) -> Tree:
    """The coordinator's last state after rounds with one site. Each kind of update is compiled once."""
    kinds = [algorithm.kind(count) for count in range(rounds)]
    used = sorted(set(kinds))

    def step(carry: Tree, now: tuple[Array, Array]) -> tuple[Tree, None]:
        (state, own), (count, place) = carry, now
        state, content = algorithm.broadcast(state)

        def update(kind: int, key: Array, own: Tree, content: Tree) -> Tree:
            return unledgered(algorithm, kind, key, own, content, access)

        branches = [partial(update, kind) for kind in used]
        own = lax.switch(place, branches, jax.random.fold_in(key, count), own, content)
        answers = jax.tree.map(lambda leaf: leaf[None], algorithm.answer(own))
        return (algorithm.coordinator_step(state, jnp.zeros(1, jnp.int32), answers), own), None

    start = algorithm.coordinator_init(1), algorithm.site_init()
    times = jnp.arange(rounds, dtype=jnp.int32), jnp.asarray([used.index(kind) for kind in kinds], jnp.int32)
    (state, _), _ = lax.scan(step, start, times)
    return algorithm.broadcast(state)[0]


# --- Many runs of one rule ---------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Arrays:
    """A task as arrays. sizes: the standard deviations of features and target, by which coefficients are compared."""

    features: Any
    target: Any
    tests: Any
    answers: Any
    truth: Any
    bounds: Range
    sizes: Any


@dataclass(frozen=True, eq=False)
class Batch:
    """Tasks of one kind and shape, run by one program: arrays have the tasks on the first axis.

    table: the public facts that all tasks share.
    """

    kind: str
    table: Table
    arrays: _Arrays

    @classmethod
    def of(cls, kind: str, tasks: Sequence[Simulated]) -> "Batch":
        """A batch of simulated tables with the same columns and the same number of records."""
        link = link_of(kind)
        parts = []
        for task in tasks:
            reading = OfTable(link, task.table, PRIOR_DEVIATION)
            sizes = np.append(task.table.features.std(axis=0), np.std(task.table.target) if link.learns_scale else 1.0)
            records = task.table.features, task.table.target, task.test_features, task.test_target
            parts.append(_Arrays(*records, task.truth, reading.bounds(), np.maximum(sizes, 1e-30)))
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in leaves]), *parts)
        return cls(kind, tasks[0].table.without_records(), stacked)

    @property
    def link(self) -> Link:
        """The kind of regression."""
        return link_of(self.kind)

    @property
    def model(self) -> Any:
        """The model with its prior."""
        return OfTable(self.link, self.table, PRIOR_DEVIATION).model

    @property
    def records(self) -> int:
        """The number of records of each task, at all sites."""
        return self.arrays.features.shape[1]

    @property
    def truth(self) -> np.ndarray:
        """The true coefficients (tasks, columns) without the intercept, of columns and target of unit variance."""
        sizes = np.asarray(self.arrays.sizes, float)
        return np.asarray(self.arrays.truth, float)[:, 1:] * sizes[:, :-1] / sizes[:, -1:]

    def run(self, rule: Rule, noises: Any, seeds: int, widened: float = 1.0) -> dict[str, np.ndarray]:
        """Scores of a rule, each an array (tasks, noises, seeds). A noise is σ of the whole budget, of all sites.

        log_likelihood: of test records. error: the share misclassified or, for numeric targets, the root mean square
        error. coverage and width: of 90 % intervals for coefficients of standardised features. coefficients and
        deviations: their means and standard deviations, as in `truth`, with the columns last. widened: by how much
        clips are widened at the same noise.
        """
        settings = {name: jnp.float32(getattr(rule, name)) for name in SETTINGS}
        noises = jnp.atleast_1d(jnp.asarray(noises, jnp.float32))
        keys = jax.random.split(insecure_key(0), (self.arrays.features.shape[0], len(noises), seeds))
        compiled = tuple(getattr(rule, name) for name in COMPILED)
        found = self._run(compiled, settings, jnp.float32(widened), noises, keys, self.arrays)
        return {name: np.asarray(part, float) for name, part in found.items()}

    def exact(self, noises: int = 1, seeds: int = 1) -> dict[str, np.ndarray]:
        """The same scores without clip and noise, each an array (tasks, ...).

        noises, seeds: numbers of runs, of which one is used, so that the program of other runs can serve.
        """
        found = self.run(EXACT, [NO_NOISE] * noises, seeds, WIDE)
        return {name: part[:, 0, 0] for name, part in found.items()}

    @partial(jax.jit, static_argnums=(0, 1))
    def _run(
        self, compiled: Any, settings: dict[str, Array], widened: Array, noises: Array, keys: Array, arrays: _Arrays
    ) -> dict[str, Array]:
        rule = replace(Rule(), **dict(zip(COMPILED, compiled, strict=True)), **settings)

        def one(noise: Array, key: Array, task: _Arrays) -> dict[str, Array]:
            return self._scores(_TrialSetup(self, rule, noise, task, widened).run(key), task)

        # Tasks run one after the other, and so do the runs of a large one: all at once they would not fit a
        # processor's cache, and XLA for CPUs was seen to hang on batches of large matrices.
        is_small = math.prod(arrays.features.shape[1:]) <= MOST_NUMBERS

        def runs(found: Any) -> dict[str, Array]:
            keys, task = found
            if is_small:
                return jax.vmap(jax.vmap(one, (None, 0, None)), (0, 0, None))(noises, keys, task)
            return lax.map(lambda at: lax.map(lambda key: one(at[0], key, task), at[1]), (noises, keys))

        return lax.map(runs, (keys, arrays))

    def _scores(self, conducted: Conducted, task: _Arrays) -> dict[str, Array]:
        """Scores of a run on test records and against the true coefficients."""
        link, numbers, scaling, model = self.link, self.table.numbers, conducted.scaling, self.model
        records = task.tests, task.answers
        x, y = jax.vmap(lambda *record: standardise(link, numbers, scaling, record))(*records)
        mean, covariance = conducted.found
        sd = jnp.sqrt(jnp.maximum(jnp.sum((x @ covariance) * x, axis=1), 0))
        unit = jnp.ones((), x.dtype)
        if link.learns_scale:
            unit = scaling.scale[-1]
            model, y = replace(model, noise_scale=scaling.residual), (task.answers - scaling.location[-1]) / unit
        z = (x @ mean)[:, None] + sd[:, None] * jnp.asarray(NODES, x.dtype)
        each = jax.vmap(lambda z, y: jax.vmap(lambda z: model.of_linear(z, y))(z))(z, y)
        weights = jnp.asarray(WEIGHTS / WEIGHTS.sum(), x.dtype)
        each = jax.scipy.special.logsumexp(each, b=weights, axis=1) - jnp.log(unit)
        if link.target.has_two_classes:
            error = jnp.mean((x @ mean > 0) != (y > 0.5), dtype=x.dtype)
        else:
            predicted = x @ mean if link.learns_scale else jnp.exp(jnp.minimum(x @ mean + sd**2 / 2, 20))
            error = unit * jnp.sqrt(jnp.mean((predicted - y) ** 2))
        scores = {"log_likelihood": jnp.mean(jnp.maximum(each, LEAST_LOG_LIKELIHOOD)), "error": error}
        return scores | self._coefficients(mean, covariance, unit, scaling, task)

    def _coefficients(
        self, mean: Array, covariance: Array, unit: Array, scaling: Scaling, task: _Arrays
    ) -> dict[str, Array]:
        """Coefficients, and how their intervals cover the true ones."""
        places, count, truth = np.array(self.table.numbers, int) + 1, len(self.table.numbers), task.truth
        moved = truth.at[0].add(jnp.sum(truth[places] * scaling.location[:count]))
        scales = jnp.ones_like(truth).at[places].set(scaling.scale[:count])
        moved = moved * scales
        if self.link.learns_scale:
            moved = moved.at[0].add(-scaling.location[-1]) / unit
        deviations = jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), 0))
        half = HALF_WIDTH * deviations
        covered = jnp.where(jnp.isnan(moved), moved, (jnp.abs(mean - moved) <= half).astype(mean.dtype))
        common = unit * task.sizes[:-1] / (scales[1:] * task.sizes[-1])
        return {
            "coverage": jnp.mean(covered),
            "width": jnp.mean(2 * half[1:]),
            "coefficients": mean[1:] * common,
            "deviations": deviations[1:] * common,
        }
