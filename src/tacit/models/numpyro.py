"""Models written in NumPyro: their unconstrained parameters, their prior, and the likelihood of one record."""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.families import DiagonalGaussian, log_density, register, sample

Theta = dict[str, Array]
Record = tuple[Any, ...]  # the model's arguments for one record
_Normal = tuple[np.ndarray, np.ndarray]  # means and standard deviations
VAGUE_SD = 3.0  # in unconstrained space; e^{±6} for a scale
POINTS = 3  # parameter values at which a model is checked
ROUNDING = 1e-4  # of a sum of log-likelihoods in single precision
DRAWS = 256  # for predictions


@register("model", "shapes", "has_gaussian_prior")
@dataclass(frozen=True)
class NumPyroModel:
    """A model made by `from_numpyro`.

    θ is a dict with an unconstrained flat array for each latent site (`constrain` maps it back).

    prior: a dict of DiagonalGaussian over θ. It *is* the model's prior when `has_gaussian_prior`, that is, if every
    latent site is Normal or LogNormal with fixed parameters. Other sites have a vague N(0, 3²) in it, and
    `log_prior_correction` is the difference.
    """

    prior: dict[str, DiagonalGaussian]
    example: Record  # one made-up record: priors are evaluated by running the model on it
    model: Callable[..., Any]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of each latent site in unconstrained space
    has_gaussian_prior: bool

    def log_likelihood(self, theta: Theta, record: Record) -> Array:
        """log p(record | θ): the sum over the observed sites in the plate, for a batch of exactly this record."""
        trace, _ = self._run(theta, record)
        return _log_probability(site for site in _samples(trace) if site["is_observed"])

    def log_prior(self, theta: Theta) -> Array:
        """log p(constrained θ) + log |det ∂ constrained / ∂θ|: the density of θ without constraints."""
        trace, log_jacobian = self._run(theta, self.example)
        return _log_probability(site for site in _samples(trace) if not site["is_observed"]) + log_jacobian

    def log_prior_correction(self, theta: Theta) -> Array:
        """log_prior(θ) - log prior(θ), where `prior` is the Gaussian dict; 0 if the model's prior is that Gaussian.

        It reads no record, so its gradient is exact and costs nothing. A solver that uses `prior` as its cavity without
        this term fits the model with the Gaussian in place of its own prior.
        """
        if self.has_gaussian_prior:
            return jnp.zeros((), jnp.result_type(float))
        return self.log_prior(theta) - log_density(self.prior, theta)

    def constrain(self, theta: Theta) -> dict[str, Array]:
        """The value of each latent site, by name, in its own shape and support."""
        trace, _ = self._run(theta, self.example)
        return {name: trace[name]["value"] for name, _ in self.shapes}

    def predict(
        self, posterior: Any, arguments: tuple[Any, ...], key: Array, draws: int = DRAWS
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Mean and standard deviation of each site in the plate, by name, from `draws` draws from the posterior.

        `arguments` are the model's own, with None for targets (the model must allow it), as for NumPyro's `Predictive`.
        Unlike other models this one takes a key.
        """
        infer = _numpyro("numpyro.infer")
        draw_key, site_key = jax.random.split(key)
        # NumPyro accepts JAX's own generators only; its draws here release nothing.
        site_key = jax.random.wrap_key_data(jax.random.bits(site_key, (2,), jnp.uint32), impl="threefry2x32")
        values = jax.vmap(self.constrain)(sample(draw_key, posterior, (draws,)))
        with jax.numpy_dtype_promotion("standard"):
            found = infer.Predictive(self.model, posterior_samples=values)(site_key, *arguments)
            found = {name: value.astype(jnp.result_type(float)) for name, value in found.items()}
        return tuple({name: f(value, axis=0) for name, value in found.items()} for f in (jnp.mean, jnp.std))  # type: ignore[return-value]

    def _run(self, theta: Theta, record: Record) -> tuple[dict[str, Any], Array]:
        shaped = {name: theta[name].reshape(shape) for name, shape in self.shapes}
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)
        return _run(self.model, batch, lambda name, shape: shaped[name])


def from_numpyro(model: Callable[..., Any], example_records: Record) -> NumPyroModel:
    """Turn a NumPyro model into one of ours: unconstrained parameters, a prior, and the likelihood of one record.

    `model(*records)` takes arrays with the records along the first axis and puts its observed sites in one
    `numpyro.plate` over them; all its latent sites are outside. `example_records` is a tuple of such arrays with two
    or more made-up rows, not all alike: the model is run on them to learn its sites and to check it. One of them
    stays in the result, so do not use real records.

        log p(θ, records) = log_prior(θ) + Σ_i log_likelihood(θ, record_i)

    Refused, with the reason: no plate, or more than one; a plate with subsampling or of another length than the
    records; latent sites in the plate; observed sites outside it; discrete latent sites; `numpyro.param`; a prior that
    depends on the records or their number; a log-likelihood that is not a sum over records (compared at three values of
    θ: a check, not a proof).

    >>> import numpyro, numpyro.distributions as dist
    >>> def coin(heads):
    ...     chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    ...     with numpyro.plate("tosses", len(heads)):
    ...         numpyro.sample("heads", dist.Bernoulli(chance), obs=heads)
    >>> coin = from_numpyro(coin, (jnp.array([0, 1]),))
    >>> float(jnp.exp(coin.log_likelihood({"chance": jnp.zeros(1)}, (jnp.array(1),))))
    0.5...
    """
    _numpyro("numpyro")
    rows = _example_rows(example_records)
    count = np.shape(jax.tree.leaves(example_records)[0])[0]
    whole, _ = _run(model, example_records, partial(_point, 0))
    shapes = _check_sites(whole, count)
    for row in rows:
        single, _ = _run(model, jax.tree.map(lambda leaf: leaf[None], row), partial(_point, 0))
        if _check_sites(single, 1) != shapes:
            raise ValueError(
                "latent sites change with the number of records, so they are per record; "
                "give the model global parameters only, and sum or integrate out the rest"
            )

    normals: dict[str, list[_Normal | None]] = {name: [] for name, _ in shapes}
    draft = NumPyroModel({}, rows[0], model, shapes, False)
    for index in range(POINTS):
        theta = {name: _point(index, name, shape).reshape(-1) for name, shape in shapes}
        trace, log_jacobian = _run(model, example_records, partial(_point, index))
        for name, found in normals.items():
            found.append(_normal_parameters(trace[name]))
        prior = _log_probability(site for site in _samples(trace) if not site["is_observed"]) + log_jacobian
        priors = [float(NumPyroModel({}, row, model, shapes, False).log_prior(theta)) for row in rows]
        _check_prior(float(prior), priors)
        likelihood = _log_probability(site for site in _samples(trace) if site["is_observed"])
        _check_likelihood(float(likelihood), [float(draft.log_likelihood(theta, row)) for row in rows])

    prior, exact = {}, True
    for name, shape in shapes:
        fixed = _if_equal(normals[name])
        exact = exact and fixed is not None
        mean, sd = fixed or (np.zeros(shape), np.full(shape, VAGUE_SD))
        prior[name] = DiagonalGaussian.of(np.ravel(mean), np.ravel(sd))
    return NumPyroModel(prior, rows[0], model, shapes, exact)


def _numpyro(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError("NumPyro is not installed; install tacit[numpyro]") from None


def _example_rows(example_records: Record) -> list[Record]:
    """One record for each row of the example."""
    if not isinstance(example_records, tuple):
        raise ValueError(
            f"example_records is a {type(example_records).__name__}; expected a tuple of arrays, the model's arguments"
        )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(example_records)]
    lengths = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(lengths) != 1 or min(lengths) < 2:
        raise ValueError(f"example_records have lengths {sorted(lengths)}; expected one common length of at least 2")
    if any((leaf == leaf[:1]).all() for leaf in leaves):
        raise ValueError(
            "an array of example_records has only equal rows, which cannot show whether records are treated alone; "
            "make up different rows"
        )
    return [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf)[i], example_records) for i in range(min(lengths))]


def _point(index: int, name: str, shape: tuple[int, ...]) -> Array:
    """A made-up value in unconstrained space, irregular enough to avoid coincidences; it needs no key."""
    phase = sum(map(ord, name)) + 1.7 * index
    values = 0.7 * np.sin(phase + 2.3 * np.arange(math.prod(shape)))
    return jnp.asarray(values, jnp.result_type(float)).reshape(shape)


def _run(model: Callable[..., Any], arguments: Record, value: Callable[..., Array]) -> tuple[dict[str, Any], Array]:
    """The trace of a model with `value(name, unconstrained shape)` at its latent sites, and their log-Jacobian.

    Nothing is drawn: every latent site is given. Foreign code may rely on dtype promotion.
    """
    handlers, distributions = _numpyro("numpyro.handlers"), _numpyro("numpyro.distributions")
    log_jacobians = [jnp.zeros((), jnp.result_type(float))]

    def give(site: dict[str, Any]) -> Any:
        if site["type"] == "plate" and site["args"][1] is not None:
            raise ValueError(
                f"plate {site['name']!r} has a subsample_size; remove it, since sampling belongs to the mechanism"
            )
        if site["type"] in ("param", "mutable"):
            raise ValueError(f"{site['name']!r} is a {site['type']} site without a prior; use numpyro.sample")
        if site["type"] != "sample" or site["is_observed"]:
            return None
        support = site["fn"].support
        if support.is_discrete:
            raise ValueError(
                f"latent site {site['name']!r} is discrete; sum it out, for example by dist.MixtureSameFamily"
            )
        try:
            transform = distributions.biject_to(support)
        except NotImplementedError:
            raise ValueError(f"latent site {site['name']!r} has support {support}, which has no bijection") from None
        free = value(site["name"], tuple(transform.inverse_shape(site["fn"].shape())))
        constrained = transform(free)
        log_jacobians.append(jnp.sum(transform.log_abs_det_jacobian(free, constrained)))
        return constrained

    with jax.numpy_dtype_promotion("standard"):
        trace = handlers.trace(handlers.substitute(model, substitute_fn=give)).get_trace(*arguments)
        return trace, jnp.sum(jnp.stack(log_jacobians))


def _samples(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [site for site in trace.values() if site["type"] == "sample"]


def _log_probability(sites: Any) -> Array:
    total = jnp.zeros((), jnp.result_type(float))
    with jax.numpy_dtype_promotion("standard"):
        for site in sites:
            scale = 1.0 if site["scale"] is None else site["scale"]
            total = total + jnp.sum(scale * site["fn"].log_prob(site["value"]))
    return total


def _check_sites(trace: dict[str, Any], count: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Refuse a model that is not of this form; return the latent sites' names and unconstrained shapes."""
    plates = {name: site["args"][0] for name, site in trace.items() if site["type"] == "plate"}
    if not plates:
        raise ValueError("the model has no plate; put the observed sites in one numpyro.plate over the records")
    if len(plates) > 1:
        raise ValueError(
            f"the model has more than one plate ({', '.join(plates)}); keep the one over the records, and write others "
            "as .expand([...]).to_event(1)"
        )
    ((plate, size),) = plates.items()
    if size != count:
        raise ValueError(f"plate {plate!r} has size {size} for {count} records; make it the length of the arrays")
    sites = _samples(trace)
    inside = {site["name"]: any(frame.name == plate for frame in site["cond_indep_stack"]) for site in sites}
    for site in sites:
        if not site["is_observed"] and inside[site["name"]]:
            raise ValueError(
                f"latent site {site['name']!r} is inside the plate, one for each record; sum or integrate it out"
            )
        if site["is_observed"] and not inside[site["name"]]:
            raise ValueError(f"observed site {site['name']!r} is outside the plate; move it into plate {plate!r}")
    if not any(inside.values()):
        raise ValueError(f"plate {plate!r} holds no observed site; give numpyro.sample its obs")
    biject_to = _numpyro("numpyro.distributions").biject_to
    latent = [site for site in sites if not site["is_observed"]]
    if not latent:
        raise ValueError("the model has no latent site, so there is nothing to infer")
    return tuple((s["name"], tuple(biject_to(s["fn"].support).inverse_shape(s["fn"].shape()))) for s in latent)


def _normal_parameters(site: dict[str, Any]) -> _Normal | None:
    """Mean and standard deviation if the site is Normal in unconstrained space: a Normal, or the log of a LogNormal."""
    distributions = _numpyro("numpyro.distributions")
    base = site["fn"]
    while type(base) in (distributions.Independent, distributions.ExpandedDistribution):
        base = base.base_dist
    if type(base) not in (distributions.Normal, distributions.LogNormal) or site["scale"] is not None:
        return None
    shape = site["fn"].shape()
    return np.broadcast_to(np.asarray(base.loc), shape), np.broadcast_to(np.asarray(base.scale), shape)


def _if_equal(found: list[_Normal | None]) -> _Normal | None:
    """The parameters that a site has at every point; None if they depend on other sites."""
    first, *others = found
    if first is None or not all(other is not None and np.array_equal(first, other) for other in others):
        return None
    return first


def _check_prior(whole: float, singles: list[float]) -> None:
    if not math.isfinite(whole):
        raise ValueError(f"the log-prior is {whole} at a value in its support; check the parameters of the prior")
    if any(not abs(single - whole) <= ROUNDING * (1 + abs(whole)) for single in singles):
        raise ValueError(
            f"the prior depends on the records or their number: its log is {whole:.6g} for all the example's records "
            f"and {', '.join(f'{single:.6g}' for single in singles)} for one of them; write it without the data"
        )


def _check_likelihood(whole: float, singles: list[float]) -> None:
    if not math.isfinite(whole):
        raise ValueError(f"the log-likelihood of the example's records is {whole}; make up records the model allows")
    if not abs(sum(singles) - whole) <= ROUNDING * (1 + sum(map(abs, singles))):
        raise ValueError(
            f"the likelihood does not factor over records: its log is {whole:.6g} for all the example's records and "
            f"{sum(singles):.6g} as a sum over them; let each record's term depend on that record and θ alone (scale "
            "and centre the data before, by public numbers)"
        )
