"""Variational inference: q is fitted by noised gradients of the likelihood and exact gradients of everything else.

    maximise  Σ_i E_q[log p(x_i | θ)] - KL(q ‖ cavity)        (up to a constant, so the cavity may be improper)

Only the likelihood term reads records, so only it is clipped and noised; the cavity's and the entropy's gradients are
exact (docs/errata.md, 5). There are two paths to the likelihood's gradient; the model and the family decide which:

| path    | when                                     | what a step releases                                       |
|---------|------------------------------------------|------------------------------------------------------------|
| linear  | θ enters through x·θ only; q is diagonal | Σ (a_i x_i, b_i x_i²), expectations by quadrature          |
| aligned | otherwise                                | Σ ∇log p(x_i, θ) at one draw θ ~ q, shared by all records  |

In the aligned form the gradient of the scale follows from that of the mean by the chain rule, so it costs nothing.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian, FullGaussian, kl_up_to_constant, over_parts
from tacit.privacy.clipping import Linear, per_record
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Level, Released, repeat
from tacit.solvers.adaptive import Adaptive
from tacit.solvers.base import Target
from tacit.solvers.quadrature import over_linear

LEAST_CAVITY = 1e-4  # of the start's precision


@dataclass(frozen=True)
class VI:
    """A variational solver: `VI(steps=500, optimiser=optax.adam(0.05))(key, target, access)`.

    steps: how many, or how many at each level of the mechanism's schedule. optimiser: from optax; it minimises.
    average: the share of late steps whose parameters are averaged; 0 takes the last. path: "auto", "linear"
    or "aligned". adaptive: a clip that follows the gradients in place of the mechanism's, at the same price.

    Set thresholds and decay in the optimiser: `optax.chain(optax.clip_by_global_norm(t), optax.sgd(schedule))` limits
    noised gradients after they are released, which costs nothing.
    """

    steps: int | tuple[int, ...]
    optimiser: optax.GradientTransformation
    average: float = 0.5
    path: str = "auto"
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.average < 1:
            raise ValueError(f"average={self.average}; expected a share of at least 0 and below 1")
        if self.path not in ("auto", "linear", "aligned"):
            raise ValueError(f"path={self.path!r}; expected 'auto', 'linear' or 'aligned'")

    def __call__(self, key: Array, target: Target, access: Access) -> Released[Any]:
        """q that maximises the bound, in the family of `target.start`, priced for all steps.

        With a cavity that has lost too much precision to noise, the bound has no maximum: such a cavity is raised to a
        small share of the start's precision.
        """
        target = replace(target, cavity=_raised(target.cavity, target.start))

        return self.resume(key, target, access, self.memory(target)).map(lambda found: found[0])

    def memory(self, target: Target) -> Tree:
        """What a site keeps from one update to the next: the state of its clip, computed from releases."""
        if self.adaptive is None:
            return ()
        parameters = moments(target.start)
        if self._is_linear(target):
            scale = parameters.scale.reshape(-1)
            return self.adaptive.begin({"mean": parameters.mean, "scale": scale})
        means = jax.tree.map(lambda pair: pair.mean, parameters, is_leaf=lambda tree: isinstance(tree, _Moments))
        return self.adaptive.begin(means)

    def resume(self, key: Array, target: Target, access: Access, memory: Tree) -> Released[tuple[Tree, Tree]]:
        """The answer of a call that starts from this memory, and the memory after it."""
        target = replace(target, cavity=_raised(target.cavity, target.start))

        def step(key: Array, level: Level, state: State) -> Released[State]:
            if self.adaptive is None:
                release = self.gradient(key, state.parameters, target, access.at(level))
                return release.map(lambda likelihood: self.step(state, target, likelihood))
            adaptive = _Following(self.adaptive, access.at(level), state.clipping)
            found = self._gradient(target)(key, state.parameters, adaptive)
            return found.map(lambda pair: replace(self.step(state, target, pair[0]), clipping=pair[1]))

        begin = replace(self.begin(target.start), clipping=memory)
        return repeat(key, self.steps, step, begin).map(lambda end: (self.end(end, target.start), end.clipping))

    # The parts of a step, for algorithms that take the gradient in one place and the step in another.

    def begin(self, start: Tree) -> "State":
        """The state before the first step."""
        parameters = moments(start)
        return State(jnp.int32(0), parameters, self.optimiser.init(parameters), parameters)

    def gradient(self, key: Array, parameters: Tree, target: Target, access: Access) -> Released[Tree]:
        """The gradient of the likelihood term at `parameters`: the only part that reads records."""
        return self._gradient(target)(key, parameters, access)

    def step(self, state: "State", target: Target, likelihood: Tree) -> "State":
        """The state after a step along a released gradient and the exact one of everything else."""
        total = self.steps if isinstance(self.steps, int) else sum(self.steps)
        first_averaged = total - max(1, round(self.average * total))
        exact = jax.grad(lambda p: _divergence(family(p, target.start), target.cavity))(state.parameters)
        descent = jax.tree.map(jnp.subtract, exact, likelihood)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            changes, optimiser = self.optimiser.update(descent, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, changes)
        weight = 1 / jnp.maximum(1, state.step - first_averaged + 1).astype(jnp.result_type(float))
        late = state.step >= first_averaged
        average = jax.tree.map(
            lambda mean, new: jnp.where(late, mean + (new - mean) * weight.astype(mean.dtype), new),
            state.average,
            parameters,
        )
        return State(state.step + 1, parameters, optimiser, average, state.clipping)

    def end(self, state: "State", start: Tree) -> Tree:
        """The answer: the average of late steps, in the family of `start`."""
        return family(state.average, start)

    def _is_linear(self, target: Target) -> bool:
        """Whether gradients take the linear path."""
        of_linear = getattr(target.likelihood, "of_linear", None)
        if self.path == "linear" and (of_linear is None or isinstance(target.start, dict)):
            raise ValueError("path='linear' needs a model in which θ enters through x·θ; use 'auto' or 'aligned'")
        correction = _correction(target)
        if self.path == "linear" and correction is not None:
            raise ValueError("path='linear' leaves out a prior that is not in the family; use 'auto' or 'aligned'")
        # A full q's second derivatives have d² coordinates, with noise on each: aligned gradients do better there.
        automatic = of_linear is not None and correction is None and isinstance(target.start, DiagonalGaussian)
        return self.path == "linear" or (automatic and self.path == "auto")

    def _gradient(self, target: Target) -> Any:
        likelihood, correction = target.likelihood, _correction(target)
        if self._is_linear(target):
            return lambda key, parameters, access: _linear_gradient(key, parameters, access, likelihood.of_linear)  # type: ignore[attr-defined]
        return lambda key, parameters, access: _aligned_gradient(key, parameters, access, likelihood, correction)


def _correction(target: Target) -> Any:
    return getattr(target.likelihood, "log_prior_correction", None) if target.corrects_prior else None


@dataclass(frozen=True)
class _Following:
    """An access whose sums are clipped by an adaptive clip, and come with the clip's next state."""

    adaptive: Adaptive
    access: Access
    state: Any

    def sum(self, key: Array, contribution: Any) -> "_Pair":
        return _Pair(self.adaptive.sum(key, self.access, contribution, self.state))


@dataclass(frozen=True)
class _Pair:
    release: Released[Any]

    def map(self, function: Any) -> Released[Any]:
        """Map the sum alone."""
        return self.release.map(lambda pair: (function(pair[0]), pair[1]))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """The state between steps; `average` is the answer. clipping: the state of an adaptive clip."""

    step: Array
    parameters: Tree
    optimiser: Any
    average: Tree
    clipping: Any = ()


# --- Parameters: a mean and an unconstrained scale for each family ------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Moments:
    """A Gaussian to optimise. scale: log standard deviations, or a triangle whose diagonal is logarithmic."""

    mean: Array
    scale: Array


def _each(function: Any, start: Tree, *trees: Tree) -> Tree:
    """`function` of each family in a dict of families (or of the family) and the matching entries of `trees`."""
    if isinstance(start, dict):
        return {name: _each(function, start[name], *(tree[name] for tree in trees)) for name in start}
    return function(start, *trees)


def moments(start: Tree) -> Tree:
    """The moments of each family."""

    def one(q: Any) -> _Moments:
        if isinstance(q, DiagonalGaussian):
            return _Moments(q.mean, -jnp.log(q.precision) / 2)
        root = jnp.linalg.cholesky(q.covariance)
        return _Moments(q.mean, jnp.tril(root, -1) + jnp.diag(jnp.log(jnp.diagonal(root))))

    return _each(one, start)


def _root(scale: Array) -> Array:
    return jnp.tril(scale, -1) + jnp.diag(jnp.exp(jnp.diagonal(scale)))


def family(parameters: Tree, start: Tree) -> Tree:
    """The families with these moments, each of the kind it has in `start`."""

    def one(q: Any, p: _Moments) -> Any:
        if isinstance(q, DiagonalGaussian):
            precision = jnp.exp(-2 * p.scale)
            return DiagonalGaussian(precision * p.mean, precision)
        identity = jnp.eye(p.scale.shape[0], dtype=p.scale.dtype)
        inverse = jax.scipy.linalg.solve_triangular(_root(p.scale), identity, lower=True)
        precision = inverse.T @ inverse
        return FullGaussian(precision @ p.mean, precision)

    return _each(one, start, parameters)


def _raised(cavity: Tree, start: Tree) -> Tree:
    """The cavity, raised to at least LEAST_CAVITY of the start's precision where both are of one kind."""

    def one(part: Any, begin: Any) -> Any:
        return part.project(begin * LEAST_CAVITY) if type(part) is type(begin) else part

    return over_parts(cavity, one, start)


def _divergence(q: Tree, cavity: Tree) -> Array:
    """KL(q ‖ cavity) up to a constant; a diagonal and a full Gaussian are compared as full ones."""
    if isinstance(q, dict):
        parts = [_divergence(q[name], cavity[name]) for name in q]
        return jnp.sum(jnp.stack(parts))
    if type(q) is not type(cavity):
        q, cavity = q.full(), cavity.full()
    return kl_up_to_constant(q, cavity)


# --- Gradients of Σ E_q[log p] ------------------------------------------------------------------------------------


def _linear_gradient(key: Array, parameters: Tree, access: Any, of_linear: Any) -> Released[Tree]:
    """With z_i ~ N(x_i·m, x_iᵀΣx_i): Σ E[f'(z_i)] x_i for the mean, and half of Σ E[f''(z_i)] x_i x_iᵀ for Σ.

    A diagonal q needs only the diagonal of the latter, times its variances: the gradient in the log standard
    deviations. Its size is comparable to the mean's gradient, so that one clip serves both.
    """
    mean, scale = parameters.mean, parameters.scale
    diagonal = scale.ndim == 1

    def contribution(records: Tree) -> Linear:
        x, y = records
        if diagonal:
            second_features = x**2 * jnp.exp(2 * scale)
            variance = jnp.sum(second_features, axis=1)
        else:
            second_features = jax.vmap(jnp.outer)(x, x).reshape(x.shape[0], -1)
            variance = jnp.sum((x @ _root(scale)) ** 2, axis=1)
        first, second = over_linear(of_linear, x @ mean, variance, y)
        return Linear({"mean": first, "scale": second}, {"mean": x, "scale": second_features})

    def rebuild(total: Tree) -> Tree:
        if diagonal:
            return _Moments(total["mean"], total["scale"])
        _, pull = jax.vjp(lambda s: _root(s) @ _root(s).T, scale)
        half = total["scale"].reshape(scale.shape) / 2
        return _Moments(total["mean"], pull((half + half.T) / 2)[0])

    return access.sum(key, contribution).map(rebuild)


def _aligned_gradient(
    key: Array, parameters: Tree, access: Any, likelihood: Any, correction: Any = None
) -> Released[Tree]:
    """One θ = m + s·e for all records; Σ ∇_θ log p is released, and with e it gives the scale's gradient."""
    draw_key, sum_key = jax.random.split(key)
    pairs, treedef = jax.tree.flatten(parameters, is_leaf=lambda tree: isinstance(tree, _Moments))
    keys = jax.random.split(draw_key, len(pairs))
    noises = [jax.random.normal(k, p.mean.shape, p.mean.dtype) for k, p in zip(keys, pairs, strict=True)]

    def move(pair: _Moments, noise: Array) -> Array:
        spread = jnp.exp(pair.scale) * noise if pair.scale.ndim == 1 else _root(pair.scale) @ noise
        return pair.mean + spread

    theta = treedef.unflatten([move(p, e) for p, e in zip(pairs, noises, strict=True)])

    def rebuild(total: Tree) -> Tree:
        """The pull-back of Σ ∇_θ through θ(mean, scale): post-processing of the release.

        A prior that is not Gaussian enters here, by the gradient of its difference from the Gaussian in the cavity.
        """
        if correction is not None:
            total = jax.tree.map(jnp.add, total, jax.grad(correction)(theta))
        gradients = treedef.flatten_up_to(total)
        pulled = []
        for pair, noise, gradient in zip(pairs, noises, gradients, strict=True):
            _, pull = jax.vjp(lambda p, e=noise: move(p, e), pair)
            pulled.append(pull(gradient)[0])
        return treedef.unflatten(pulled)

    gradient = jax.grad(likelihood.log_likelihood)
    return access.sum(sum_key, per_record(lambda record: gradient(theta, record))).map(rebuild)
