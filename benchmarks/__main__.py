"""Speed as ratios inside one run, with the milliseconds beside them. Prints a table and writes nothing."""

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

from tacit import VI, Access, DiagonalGaussian, Exact, SubsampledGaussian, Target, repeat, secure_key
from tacit.models import LogisticRegression
from tacit.privacy import accounting
from tacit.privacy.clipping import Contributions, Linear, per_record
from tacit.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from tacit.privacy.noise import lattice_gaussian

RECORDS, DIMENSION, RATE, STEPS = 39_073, 109, 0.005, 500
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


def compare(table: Table, name: str, ours: float, other: str, theirs: float, target: float | None = None) -> None:
    """One row: our milliseconds beside the others', and whether ours stay within `target` seconds."""
    verdict = ""
    if target is not None:
        name += f" ({target:g} s)"
        verdict = "target met" if ours <= 1000 * target else "missed"
    shown = [f"{x:,.0f}" if x >= 100 else f"{x:.3g}" if x >= 1 else f"{x:.3f}" for x in (ours, theirs)]
    table.add_row(name, shown[0], other, shown[1], f"{ours / theirs:.2f}", verdict)


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
    """One step of variational inference on a logistic regression, against NumPyro's SVI with the batch handed in."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal

    records = made_up()
    model = LogisticRegression(DiagonalGaussian.standard(DIMENSION))
    target = Target(model.prior, model.prior, model)
    private = Access.of(records, SubsampledGaussian(1.0, 5.0, RATE))
    key = secure_key()

    def ours(path: str) -> Callable[[], Any]:
        run = jax.jit(VI(STEPS, optax.adam(0.01), path=path).__call__)
        return lambda: run(key, target, private).value

    def logistic(x: Array, y: Array) -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(DIMENSION), 1.0).to_event(1))
        with numpyro.plate("records", RECORDS, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)

    svi = SVI(logistic, AutoDiagonalNormal(logistic), optax.adam(0.01), Trace_ELBO())
    batch = tuple(jnp.asarray(leaf[: round(RATE * RECORDS)]) for leaf in records)
    begin = svi.init(jax.random.key(0), *batch)

    @jax.jit
    def plain(state: Any, x: Array, y: Array) -> Any:
        return jax.lax.scan(lambda s, _: (svi.update(s, x, y)[0], None), state, length=STEPS)[0]

    timed = milliseconds(ours("linear"), ours("aligned"), lambda: plain(begin, *batch))
    linear_path, aligned_path, numpyro_step = (taken / STEPS for taken in timed)
    compare(table, "private VI, linear", linear_path, "NumPyro SVI", numpyro_step)
    compare(table, "private VI, aligned", aligned_path, "NumPyro SVI", numpyro_step)


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
    table = Table(title=f"Medians on {jax.devices()[0].device_kind}; a ratio above 1 is slower than what it is against")
    for name in ("what", "ms", "against", "ms", "ratio", "target"):
        table.add_column(name, justify="right" if name in ("ms", "ratio") else "left")
    for group in (generator, noise, steps, variational, prices, commands):
        group(table)
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
