"""Checks that tacit works on this machine: each part is run, not only looked up.

A check returns its finding or raises. Nothing heavy is imported before the check that needs it, so that a broken
installation gives a finding and not a traceback.
"""

import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import tacit

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {  # optional packages and their purpose
    "report": (("matplotlib",), "figures"),
    "dashboard": (("starlette", "uvicorn"), "a live page of a study"),
    "network": (("nvflare",), "studies between machines, by NVIDIA FLARE"),
    "numpyro": (("numpyro",), "any NumPyro model with one data plate"),
    "arviz": (("arviz",), "posteriors for ArviZ"),
    "policy": (("optuna",), "tacit policy learn"),
}
NEEDED = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "dp-accounting",
    "optax",
    "pandas",
    "pyarrow",
    "scikit-learn",
    "jinja2",
    "cryptography",
)
# RFC 8439, 2.3.2: key 00, 01, ..., 1f; nonce 000000090000004a00000000; block 1.
RFC_NONCE, RFC_COUNTER = "000000090000004a00000000", 1
RFC_BLOCK = (
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)
DRAWS = 20_000  # of noise: gives its standard deviation to 0.5 %
ALARM = 7.0  # standard errors: a false alarm in 10¹¹ checks
RECORDS, FEATURES, RUNS = 1000, 10, 5  # of the private step that is timed
INSTALL_AGAIN = "install tacit again: pip install --force-reinstall tacit"


@dataclass(frozen=True)
class Finding:
    """The result of a check. remedy: what to do about a fault. is_necessary: whether tacit needs the part."""

    name: str
    words: str
    is_well: bool = True
    remedy: str = ""
    is_necessary: bool = True
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        plain = {"name": self.name, "ok": self.is_well, "necessary": self.is_necessary, "words": self.words}
        return plain | ({"remedy": self.remedy} if self.remedy else {}) | dict(self.values)


class Faulty(Exception):
    """A part does not work as it must."""

    def __init__(self, words: str, remedy: str) -> None:
        super().__init__(words)
        self.remedy = remedy


# --- The checks --------------------------------------------------------------------------------------------------


def installed() -> Finding:
    """JAX and the other packages that tacit always needs."""
    versions = {name: _version(name) for name in NEEDED}
    lacking = [name for name, version in versions.items() if version is None]
    if lacking:
        raise Faulty(f"{', '.join(lacking)} not installed", f"pip install {' '.join(lacking)}")
    import jax

    words = f"{jax.__version__}, jaxlib {versions['jaxlib']}; NumPy {versions['numpy']}, SciPy {versions['scipy']}"
    return Finding("JAX", words, values={"versions": versions})


def devices() -> Finding:
    """The devices that JAX computes on."""
    import jax

    found = [f"{device.platform} {device.id} ({device.device_kind})" for device in jax.devices()]
    cores = os.cpu_count() or 1
    words = f"{', '.join(found)}; {cores} processor core{'s' * (cores != 1)}"
    values = {"devices": found, "cores": cores}
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        remedy = "to use the GPU, install JAX for CUDA as JAX's documentation says"
        words = f"{words}; there is an NVIDIA driver, but JAX sees no GPU"
        return Finding("Devices", words, is_well=False, remedy=remedy, is_necessary=False, values=values)
    return Finding("Devices", words, values=values)


def randomness() -> Finding:
    """The operating system's source, secure keys, ChaCha20 against its RFC, and moments and correlations of the noise.

    The check can find faults but cannot prove their absence: a seeded source looks like any other from within.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from tacit.privacy import noise
    from tacit.privacy import randomness as ours

    remedy = "do not protect records on this machine until this is fixed"
    draws = {os.urandom(32) for _ in range(4)}
    if len(draws) < 4 or any(len(set(draw)) < 8 for draw in draws):  # 8 different bytes of 32: misses with p < 10⁻³⁰
        raise Faulty("the operating system's source of randomness repeats itself", remedy)
    first, second = (ours.secure_key() for _ in range(2))
    if not (ours.is_secure(first) and ours.is_secure(second)):
        raise Faulty("secure_key() makes keys that are not marked as secure", INSTALL_AGAIN)
    pair = [np.asarray(jax.random.key_data(key)).astype("<u4").view(np.uint8) for key in (first, second)]
    if np.array_equal(pair[0], pair[1]):
        raise Faulty("two keys of secure_key() are the same", remedy)
    if any(len(np.unique(data)) < 8 for data in (*pair, pair[0] ^ pair[1])):  # such as a counter
        raise Faulty("keys of secure_key() follow a pattern", remedy)
    words = [np.frombuffer(data, "<u4") for data in (bytes(range(32)), bytes.fromhex(RFC_NONCE))]
    nonce = [jnp.uint32(word) for word in words[1]]
    block = ours.chacha20_blocks(jnp.asarray(words[0]), jnp.array([RFC_COUNTER], jnp.uint32), nonce)
    if np.asarray(block).astype("<u4").tobytes().hex() != RFC_BLOCK:
        raise Faulty(f"ChaCha20 on {jax.default_backend()} does not give the block of RFC 8439", remedy)
    drawn, other = (
        np.asarray(noise.lattice_gaussian(k, (DRAWS,))).astype(float) / noise.SCALE for k in (first, second)
    )
    mean, sd = float(drawn.mean()), float(drawn.std())
    if abs(mean) > ALARM / math.sqrt(DRAWS) or abs(sd - 1) > ALARM / math.sqrt(2 * DRAWS):
        raise Faulty(f"noise has mean {mean:.3g} and standard deviation {sd:.3g} where 0 and 1 are right", remedy)
    related = max(abs(float(np.mean(a * b))) for a, b in ((drawn, other), (drawn[1:], drawn[:-1])))
    fourth = float(np.mean(drawn**4))  # 3 for a Gaussian, with a standard deviation of √96 for one draw
    if related > ALARM / math.sqrt(DRAWS) or abs(fourth - 3) > ALARM * math.sqrt(96 / DRAWS):
        raise Faulty("noise is not independent, or not Gaussian", remedy)
    found = f"no fault found: keys of the operating system, ChaCha20 as in RFC 8439, {DRAWS:,} draws of noise"
    words = f"{found} with standard deviation {sd:.3f} where 1 is right"
    return Finding("Randomness", words, values={"noise_sd": sd})


def ledger(folder: Path) -> Finding:
    """A real ledger in a new folder under `folder`: charge, sync to disk, read again and verify."""
    from tacit.privacy.events import Gaussian
    from tacit.privacy.ledger import Ledger

    folder = folder.absolute()
    remedy = "give another folder with --folder, or free space and grant write access there"
    try:
        with tempfile.TemporaryDirectory(prefix="tacit-doctor-", dir=folder) as made:
            path = Path(made) / "ledger.sqlite"
            own = Ledger.create(path, data_set="doctor", epsilon=1.0, delta=1e-5)
            begun = time.perf_counter()
            entry = own.charge(Gaussian(10.0), study="doctor", round=1)
            seconds = time.perf_counter() - begun
            for place in (path, Path(made)):
                _reach_disk(place)
            again = Ledger.open(path)
            again.verify()
            is_kept = len(again.entries()) == 1 and math.isclose(again.spent(), entry.spent)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise Faulty(f"no ledger can be kept in {folder}: {words}", remedy) from None
    if not is_kept:
        raise Faulty(f"a ledger in {folder} does not keep what was charged", "use a local disk, not a network's")
    words = f"charged, on the disk and verified in {folder}: {1000 * seconds:.0f} ms"
    return Finding("Ledger", words, values={"folder": str(folder), "charge_seconds": seconds})


def private_step() -> Finding:
    """A private natural-gradient step on made-up records: receipt equals price, noise is fresh; and its time."""
    import jax
    import numpy as np

    from tacit.families import DiagonalGaussian
    from tacit.models import LogisticRegression
    from tacit.privacy.mechanism import Access, SubsampledGaussian
    from tacit.privacy.randomness import secure_key
    from tacit.privacy.released import price
    from tacit.solvers import NaturalVI, Target

    waves = np.sin(np.outer(np.arange(RECORDS), np.sqrt(np.arange(2, FEATURES + 3))))  # made up, not random
    x, y = waves[:, 1:].astype(np.float32), (waves[:, 0] > 0.5 * waves[:, 1]).astype(np.float32)
    model = LogisticRegression(DiagonalGaussian.standard(FEATURES, 1.0))
    target = Target(model.prior, model.prior.full(), model)
    access = Access.of((x, y), SubsampledGaussian(2.0, 5.0))
    solver = NaturalVI(SubsampledGaussian(1.0, 5.0), (1,))
    promised = price(solver, secure_key(), target, access)
    step, means, seconds = jax.jit(solver.__call__), [], []
    for _ in range(1 + RUNS):
        key, begun = secure_key(), time.perf_counter()
        release = jax.block_until_ready(step(key, target, access))
        seconds.append(time.perf_counter() - begun)
        means.append(np.asarray(release.value.mean))
        if release.event != promised:
            raise Faulty("the receipt of a step is not its price", "do not use this version; please report it")
    if not np.all(np.isfinite(means)) or np.array_equal(means[0], means[1]):
        raise Faulty("a step gives numbers that are not finite, or the same numbers twice", INSTALL_AGAIN)
    compiling, running = seconds[0], sorted(seconds[1:])[RUNS // 2]
    size = f"natural gradient, {RECORDS:,} records, {FEATURES} features"
    words = f"{1000 * running:.1f} ms, after {compiling:.1f} s to compile ({size})"
    return Finding("Private step", words, values={"compile_seconds": compiling, "run_seconds": running})


def figures() -> Finding:
    """A small figure, drawn into a temporary file."""
    from tacit.report.style import figure, save

    with tempfile.TemporaryDirectory(prefix="tacit-doctor-") as made:
        axes = figure("ε", "steps", "ε")
        axes.plot([0, 1], [0, 1])
        path = Path(made) / "figure.png"
        save(axes, path)
        size = path.stat().st_size
    if size < 1000:  # bytes; an empty PNG is far smaller
        raise Faulty("a figure was drawn but its file is empty", "pip install --force-reinstall matplotlib")
    return Finding("Figures", "can be drawn", is_necessary=False)


def data_sets() -> Iterator[Finding]:
    """The data sets that come with tacit, checked by their checksums, and the folder of Heart Disease."""
    from tacit.data import datasets

    found = {"Adult": datasets.adult(), "Abalone": datasets.abalone()}
    sizes = {name: len(data.target) + len(data.test_target) for name, data in found.items()}
    words = ", ".join(f"{name} ({size:,} records)" for name, size in sizes.items())
    yield Finding("Data sets", f"{words}, with tacit", values={"embedded": sizes})
    place = datasets.heart_folder()
    if place is None:
        words = "not here; downloaded at its first use"
        remedy = "without internet: set TACIT_DATA to a folder with UCI's files"
        yield Finding("Heart Disease", words, is_well=False, remedy=remedy, is_necessary=False)
    else:
        yield Finding("Heart Disease", f"in {place}", is_necessary=False, values={"folder": str(place)})


def extras() -> Iterator[Finding]:
    """Optional packages: version and purpose, or how to install them."""
    for extra, (packages, purpose) in EXTRAS.items():
        versions = {name: _version(name) for name in packages}
        is_there = None not in versions.values()
        words = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
        remedy = "" if is_there else f"pip install 'tacit[{extra}]'"
        values = {"extra": extra, "versions": versions}
        yield Finding(f"tacit[{extra}]", f"{words}: {purpose}", is_there, remedy, is_necessary=False, values=values)


# --- All of them -------------------------------------------------------------------------------------------------


def examine(folder: Path, say: Callable[[str], None] = lambda words: None) -> list[Finding]:
    """Run all checks in order; `say` gets the name of each."""
    checks: tuple[tuple[str, Callable[[], Any], bool], ...] = (
        ("JAX", installed, True),
        ("Devices", devices, True),
        ("Randomness", randomness, True),
        ("Ledger", lambda: ledger(folder), True),
        ("Private step", private_step, True),
        ("Data sets", data_sets, True),
        ("Figures", figures, False),
        ("Extras", extras, False),
    )
    findings: list[Finding] = []
    for name, check, is_necessary in checks:
        say(name)
        try:
            found = check()
            findings += [found] if isinstance(found, Finding) else list(found)
        except Faulty as fault:
            findings.append(Finding(name, str(fault), False, fault.remedy, is_necessary))
        except Exception as error:  # any fault of the installation is a finding
            words = " ".join(f"{type(error).__name__}: {error}".split())
            findings.append(Finding(name, words, False, INSTALL_AGAIN, is_necessary))
    return findings


def result_of(findings: list[Finding]) -> dict[str, Any]:
    """All findings as plain data."""
    return {
        "version": tacit.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "ok": not faults(findings),
        "checks": [finding.to_dict() for finding in findings],
    }


def faults(findings: list[Finding]) -> list[Finding]:
    """Findings about necessary parts that do not work."""
    return [finding for finding in findings if finding.is_necessary and not finding.is_well]


def show(findings: list[Finding]) -> None:
    """Print a line for each finding, with the remedy below it if there is one."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, grid = Console(), Table.grid(padding=(0, 2, 0, 0))
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    console.print(Text(f"tacit {tacit.__version__} on {python}, in {sys.prefix}"), soft_wrap=True)
    for finding in findings:
        mark = Text("✓", "green") if finding.is_well else Text("–", "yellow")
        if finding in faults(findings):
            mark = Text("✗", "bold red")
        words = f"{finding.words}\n→ {finding.remedy}" if finding.remedy else finding.words
        grid.add_row(mark, Text(finding.name), Text(words))
    console.print(grid)
    if not faults(findings):
        console.print(Text("All that is necessary works."))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _reach_disk(path: Path) -> None:
    """Sync a file or, on systems that allow it, a folder."""
    if os.name == "nt" and path.is_dir():
        return
    place = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(place)
    finally:
        os.close(place)
