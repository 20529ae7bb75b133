"""Speed as ratios inside one run, with the milliseconds beside them. Prints a table and writes nothing.

python -m benchmarks              all but the next
python -m benchmarks --memory     the peak memory of a fit of a million records, alone: a minute
"""

import argparse
import importlib
import importlib.util
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from rich.console import Console
from rich.table import Table

import tacit
from tacit import VI, Access, DiagonalGaussian, Exact, SubsampledGaussian, Target, repeat, secure_key
from tacit.data import adult, partition
from tacit.engines import local, schedule
from tacit.federated.pvi import PVI
from tacit.federated.simulated import unledgered
from tacit.models import LogisticRegression
from tacit.privacy import accounting
from tacit.privacy.clipping import Contributions, Linear, per_record
from tacit.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from tacit.privacy.noise import lattice_gaussian
from tacit.solvers import NaturalStep

RECORDS, DIMENSION, RATE, STEPS = 39_073, 109, 0.005, 500
CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 5.0, 0.01
VARIATIONAL_STEPS = 2000
PADDING = 64  # batches for jax_privacy have a multiple of this length: 128, 192, 256 or 320, each compiled once
MANY_RECORDS, MANY_COLUMNS = 1_000_000, 100
SCRIPT = Path(sysconfig.get_path("scripts")) / "tacit"


def milliseconds(*functions: Callable[[], Any], repeats: int = 9) -> list[float]:
    """The median time of each function, after a run that compiles; in turn, so that a busy moment hits all alike."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function())
            taken.append(1000 * (time.perf_counter() - start))
    return [statistics.median(taken[1:]) for taken in times]


def compare(
    table: Table,
    name: str,
    ours: float,
    other: str,
    theirs: float,
    target: float | None = None,
    most: float | None = None,
) -> None:
    """One row: our milliseconds beside theirs, and whether ours stay within `target` seconds or `most` × theirs."""
    verdict = ""
    if target is not None:
        name += f" ({target:g} s)"
        verdict = "target met" if ours <= 1000 * target else "missed"
    if most is not None:
        name += f" (at most {most:g} ×)"
        verdict = "target met" if ours <= most * theirs else "missed"
    shown = [f"{x:,.0f}" if x >= 100 else f"{x:.3g}" if x >= 1 else f"{x:.3f}" for x in (ours, theirs)]
    ratio = ours / theirs
    table.add_row(name, shown[0], other, shown[1], f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}", verdict)


def generator(table: Table) -> None:
    """Random words."""
    secure, plain = secure_key(), jax.random.key(0, impl="threefry2x32")
    for words in (300, 16_000, 1_600_000):
        bits = jax.jit(lambda key, words=words: jax.random.bits(key, (words,), jnp.uint32))
        ours, theirs = milliseconds(lambda f=bits: f(secure), lambda f=bits: f(plain))
        compare(table, f"ChaCha20 × {words:,}", ours, "threefry", theirs)


def noise(table: Table) -> None:
    """Gaussian noise, secure and on integers against the usual floats."""
    secure, plain = secure_key(), jax.random.key(0, impl="threefry2x32")
    for size in (100, 10_000, 1_000_000):
        lattice = jax.jit(lambda key, size=size: lattice_gaussian(key, (size,)))
        normal = jax.jit(lambda key, size=size: jax.random.normal(key, (size,)))
        ours, theirs = milliseconds(lambda f=lattice: f(secure), lambda f=normal: f(plain))
        compare(table, f"lattice × {size:,}", ours, "jax normal", theirs)


def made_up() -> tuple[np.ndarray, np.ndarray]:
    """Records of the size of Adult's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, DIMENSION)).astype(np.float32)
    return x, rng.integers(0, 2, RECORDS).astype(np.float32)


def linear(w: Array) -> Callable[[Any], Contributions]:
    """A logistic regression's gradients as a_i·x_i."""
    return lambda records: Linear(records[1] - jax.nn.sigmoid(records[0] @ w), records[0])


def dense(w: Array) -> Callable[[Any], Contributions]:
    """The same gradients, each by differentiation."""

    def log_likelihood(w: Array, record: Any) -> Array:
        x, y = record
        return y * (x @ w) - jax.nn.softplus(x @ w)

    return per_record(lambda record: jax.grad(log_likelihood)(w, record))


def steps(table: Table) -> None:
    """One step of a compiled run, on made-up records."""
    records = made_up()
    private, exact = Access.of(records, SubsampledGaussian(1.0, 5.0, RATE)), Access.of(records, Exact(RATE))
    key, start = secure_key(), jnp.zeros(DIMENSION, jnp.float32)

    def ascent(access: Access, gradient: Callable[[Array], Callable[[Any], Contributions]]) -> Callable[[], Array]:
        @jax.jit
        def run(key: Array, access: Access, w: Array) -> Array:  # an argument, so that no record is in the program
            def ascend(key: Array, level: Any, w: Array) -> Any:
                return access.at(level).sum(key, gradient(w)).map(lambda total: w + 1e-5 * total)

            return repeat(key, STEPS, ascend, w).value

        return lambda: run(key, access, start)

    runs = ascent(private, linear), ascent(exact, linear), ascent(private, dense)
    ours, bare, general = (taken / STEPS for taken in milliseconds(*runs))
    compare(table, "private step", ours, "exact step", bare)
    compare(table, "private step, dense", general, "private step", ours)


def variational(table: Table) -> None:
    """One step of variational inference on a logistic regression, by four programs on the same records.

    NumPyro's SVI is not private and has its batch handed in; jax_privacy's step is private and reads Poisson batches.
    """
    records = made_up()
    model = LogisticRegression(DiagonalGaussian.standard(DIMENSION))
    target = Target(model.prior, model.prior, model)
    private = Access.of(records, SubsampledGaussian(CLIP, NOISE_MULTIPLIER, RATE))
    key = secure_key()

    def ours(path: str) -> Callable[[], Any]:
        run = jax.jit(VI(VARIATIONAL_STEPS, optax.adam(LEARNING_RATE), path=path).__call__)
        return lambda: run(key, target, private).value

    runs = [ours("linear"), ours("aligned"), of_numpyro(*records)]
    has_jax_privacy = importlib.util.find_spec("jax_privacy") is not None
    if has_jax_privacy:
        runs.append(of_jax_privacy(*records))
    step = [taken / VARIATIONAL_STEPS for taken in milliseconds(*runs, repeats=5)]
    compare(table, "private VI, linear", step[0], "NumPyro SVI", step[2], most=2)
    compare(table, "private VI, aligned", step[1], "NumPyro SVI", step[2])
    if has_jax_privacy:
        compare(table, "private VI, linear", step[0], "jax_privacy", step[3], most=1 / 20)
        compare(table, "private VI, aligned", step[1], "jax_privacy", step[3])
    else:
        table.add_row("private VI, linear", "", "jax_privacy", "", "", "left out: pip install jax-privacy")


def of_numpyro(x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """NumPyro's own variational inference: no clip, no noise, and one batch for all steps."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal

    def logistic(x: Array, y: Array) -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(DIMENSION), 1.0).to_event(1))
        with numpyro.plate("records", RECORDS, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)

    svi = SVI(logistic, AutoDiagonalNormal(logistic), optax.adam(LEARNING_RATE), Trace_ELBO())
    batch = tuple(jnp.asarray(leaf[: round(RATE * RECORDS)]) for leaf in (x, y))
    begin = svi.init(jax.random.key(0), *batch)

    @jax.jit
    def run(state: Any, x: Array, y: Array) -> Any:
        return jax.lax.scan(lambda s, _: (svi.update(s, x, y)[0], None), state, length=VARIATIONAL_STEPS)[0]

    return lambda: run(begin, *batch)


def of_jax_privacy(x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """The same inference from jax_privacy's parts, as it documents them: a compiled step in a loop on the host.

    Poisson batches are chosen and gathered on the host and padded, records are clipped one by one, noise is added by
    its Gaussian privatizer. All records of a step share one draw of θ, as in our aligned path.
    """
    parts = importlib.import_module("jax_privacy")
    strategy = parts.batch_selection.CyclicPoissonSampling(sampling_prob=RATE, iterations=VARIATIONAL_STEPS)
    noise = parts.noise_addition.gaussian_privatizer(stddev=NOISE_MULTIPLIER * CLIP, prng_key=jax.random.key(0))
    optimiser = optax.adam(LEARNING_RATE)

    def loss(q: dict[str, Array], x: Array, y: Array, draw: Array) -> Array:
        linear = x @ (q["mean"] + jnp.exp(q["scale"]) * draw)
        return jax.nn.softplus(linear) - y * linear

    def divergence(q: dict[str, Array]) -> Array:
        return jnp.sum((jnp.exp(2 * q["scale"]) + q["mean"] ** 2) / 2 - q["scale"])

    gradient = parts.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False)

    @jax.jit
    def step(state: Any, x: Array, y: Array, is_padding: Array) -> Any:
        key, q, noised, moments = state
        key, draw_key = jax.random.split(key)
        clipped = gradient(q, x, y, jax.random.normal(draw_key, (DIMENSION,)), is_padding_example=is_padding)
        private, noised = noise.update(clipped, noised)
        descent = jax.tree.map(lambda total, exact: total / RATE + exact, private, jax.grad(divergence)(q))
        changes, moments = optimiser.update(descent, moments, q)
        return key, optax.apply_updates(q, changes), noised, moments

    start = {"mean": jnp.zeros(DIMENSION), "scale": jnp.zeros(DIMENSION)}

    def run() -> Any:
        state = jax.random.key(1), start, noise.init(start), optimiser.init(start)
        for chosen in strategy.batch_iterator(RECORDS, rng=0):
            indices = parts.batch_selection.pad_to_multiple_of(chosen, PADDING)
            state = step(state, x[indices], y[indices], indices == -1)
        return state[1]

    return run


def fits(table: Table) -> None:
    """The whole of `tacit.fit` on Adult, with its price: the first in this process, and later ones."""
    data = adult()

    def fit() -> Any:
        return tacit.fit("logistic", data, epsilon=1, delta=1e-5).coefficients.mean

    start = time.perf_counter()
    jax.block_until_ready(fit())
    first = 1000 * (time.perf_counter() - start)
    (later,) = milliseconds(fit, repeats=3)
    compare(table, "tacit.fit, Adult, again", later, "the first time", first)


def memory(table: Table) -> None:
    """The peak of a process that makes a million records and fits them; the records alone beside it."""
    command = "from benchmarks.__main__ import fit_many; fit_many()"
    done = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True)
    peak, records = float(done.stdout), 4 * MANY_RECORDS * MANY_COLUMNS / 2**30
    verdict = "target met" if peak < 4 else "missed"
    name = f"tacit.fit, {MANY_RECORDS:,} × {MANY_COLUMNS} (4 GiB)"
    table.add_row(name, f"{peak:.2f} GiB", "the records", f"{records:.2f} GiB", f"{peak / records:.2f}", verdict)


def fit_many() -> None:
    """Fit a million records and print the process's peak memory in GiB."""
    rng = np.random.default_rng(0)
    x = rng.random((MANY_RECORDS, MANY_COLUMNS), np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.float32)
    tacit.fit("logistic", (x, y), epsilon=1, delta=1e-7, bounds=(0, 1))
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(size / 2**30 if sys.platform == "darwin" else size / 2**20)  # bytes there, KiB elsewhere


def published_cell(table: Table) -> None:
    """A cell of Sharma's table 5: 1,000 asynchronous updates of 25 steps each, ten sites of Adult (distribution C)."""
    found = adult()
    features = found.features.astype(np.float32)
    places = partition.rho_kappa(found.target, 10, seed=0, **partition.SHARMA["C"])
    mechanism = SubsampledGaussian(4.0, 5.0, 0.02)
    largest = max(len(at) for at in places)
    accesses = local.stacked([Access.of((features[at], found.target[at]), mechanism, slots=largest) for at in places])
    prior = DiagonalGaussian.standard(features.shape[1])
    model = LogisticRegression(prior)
    algorithm = PVI(prior, model, (VI(25, optax.adagrad(0.05), average=0.0),), damping=(0.1,))
    visits = schedule.asynchronous(schedule.inverse_to_size([len(at) for at in places]), 1000, seed=0)
    alone = jax.tree.map(lambda leaf: leaf[-1], accesses)
    solver = VI(25_000, optax.adagrad(0.05), average=0.0)
    one = jax.jit(lambda key: solver(key, Target(prior, prior, model), alone))
    ours, theirs = milliseconds(
        lambda: local.simulate(algorithm, unledgered, secure_key(), accesses, visits)[0].q,
        lambda: one(secure_key()),
        repeats=3,
    )
    compare(table, "DP-PVI, 1,000 × 25 steps", ours, "25,000 steps at one site", theirs, target=5.0)


def many_sites(table: Table) -> None:
    """100 synchronous rounds: milliseconds for one update of one site, however many there are."""
    rng = np.random.default_rng(0)
    dimension, records, rounds = 20, 40, 100
    prior = DiagonalGaussian.standard(dimension)
    model = LogisticRegression(prior)
    algorithm = PVI(prior, model, (NaturalStep(),), damping=(0.1,))
    mechanism, times = SubsampledGaussian(1.0, 5.0), {}
    for sites in (10, 100, 1000):
        x = rng.normal(size=(sites, records, dimension)).astype(np.float32)
        y = (x[:, :, 0] > 0).astype(np.float32)
        accesses = local.stacked([Access.of((x[m], y[m]), mechanism) for m in range(sites)])
        visits = schedule.synchronous(sites, rounds)
        (taken,) = milliseconds(
            lambda a=accesses, v=visits: local.simulate(algorithm, unledgered, secure_key(), a, v)[0].q, repeats=3
        )
        times[sites] = taken / (sites * rounds)
        compare(table, f"an update, {sites:,} sites", times[sites], "an update, 10 sites", times[10], most=1.5)


def prices(table: Table) -> None:
    """2,000 steps priced by pld, afresh each time."""

    def price(event: Event) -> float:
        accounting.epsilon.cache_clear()
        return accounting.epsilon(event, 1e-5)

    plan = Repeated(PoissonSampled(0.01, Gaussian(1.5)), 2000)
    counts = [63] * 16 + [62] * 16  # 2,000 together
    levels = (Repeated(PoissonSampled(0.01, Gaussian(1.5 + i / 16)), count) for i, count in enumerate(counts))
    schedule = Composed(tuple(levels))
    one, many = milliseconds(lambda: price(plan), lambda: price(schedule), repeats=3)
    compare(table, "pld, 32 levels", many, "one level", one, target=3)


def commands(table: Table) -> None:
    """Whole processes, as a user waits for them."""

    def shell(*words: object) -> Callable[[], int]:
        return lambda: subprocess.run([str(word) for word in words], check=True, capture_output=True).returncode

    plan = ("--noise-multiplier", 5, "--sampling-rate", 0.02, "--steps", 1000, "--delta", 1e-4)
    processes = shell(SCRIPT, "account", *plan), shell(SCRIPT, "--help"), shell(sys.executable, "-c", "")
    account, explain, python = milliseconds(*processes, repeats=5)
    compare(table, "tacit account", account, "python -c ''", python, target=2)
    compare(table, "tacit --help", explain, "python -c ''", python, target=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed as ratios inside one run.")
    parser.add_argument("--memory", action="store_true", help="only the peak memory of a fit of a million records")
    # Memory alone, for a child's peak is at least what its parent held when it began.
    groups = (
        [memory]
        if parser.parse_args().memory
        else [generator, noise, steps, variational, fits, published_cell, many_sites, prices, commands]
    )
    table = Table(title=f"Medians on {jax.devices()[0].device_kind}; a ratio above 1 is slower than what it is against")
    for name in ("what", "ms", "against", "ms", "ratio", "target"):
        table.add_column(name, justify="right" if name in ("ms", "ratio") else "left")
    for group in groups:
        group(table)
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
