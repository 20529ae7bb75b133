"""Mutants: mechanisms, sites, ledgers and stations that are broken on purpose, and which test kills which.

A test that passes says little until something broken has failed it. Here every known way to break the guarantee is
planted, one at a time, and tried by checks that pass on the sound code (that is a test too). Where a mutant changes
what an attacker sees, the **audit** has to find it as well: the attack must prove more than the mutant claims, with
confidence 0.999, and prove nothing against the sound code.

**To add a mutant** add one entry to `MUTANTS`: a name, the part it breaks (which says what checks it is tried by,
`TRIED`), the code it replaces, and an attack, or in its place why no audit can see it. Most are a line of the source
replaced by another (`rewritten`), so that they keep up with it; one whose line is gone says so. Every issue that adds
a promise adds its mutants here.

`test_the_kill_table_has_no_survivor` prints the table, and writes it to the file that `TACIT_KILL_TABLE` names.
"""

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy import stats

import tacit
from tacit import auditing, fitting
from tacit.auditing import Subject
from tacit.data import tables
from tacit.engines.nvflare import Answerer, refuses
from tacit.families import FullGaussian, register
from tacit.federated import secure_sum, tied
from tacit.federated.assembly import Delegate, Trust, public_identity
from tacit.federated.messages import Broadcast, Refusal, Update
from tacit.federated.site import Site
from tacit.federated.tied import Central, Whole, of_sites
from tacit.models import LinearRegression
from tacit.network.station import Station
from tacit.privacy import accounting, audit, shared
from tacit.privacy.audit import CONFIDENCE, HUGE, Canaried
from tacit.privacy.clipping import Limit, per_record, rounding_margin
from tacit.privacy.events import Gaussian, Repeated, TruncatedPoissonSampled
from tacit.privacy.filters import Filter
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.noise import Lattice
from tacit.privacy.released import Level, Released, price, repeat
from tacit.privacy.sampling import PoissonSampler
from tacit.privacy.shared import SharedGaussian, contributed, integers
from tacit.solvers import conjugate
from tacit.study import Setup

pytestmark = pytest.mark.xdist_group("mutants")  # in one process: the table is made of what the other tests found
ALARM = 1e-5  # of each statistical check on sound code
each_record = per_record(lambda record: record)


# --- Planting ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """The code under test: what a check or an attack builds with. A mutant is a world with one part replaced."""

    mechanism: type = SubsampledGaussian
    access: type = Access
    repeat: Callable[..., Any] = repeat
    site: type = Site
    ledger: type = Ledger
    filter: type = Filter
    central: type = Central
    station: type = Station
    answerer: type = Answerer
    gate: Callable[..., bool] = refuses
    sums: ModuleType = secure_sum
    shared: type = SharedGaussian
    delegate: type = Delegate
    contributed: Callable[..., Any] = contributed
    patches: tuple[tuple[Any, str, Any], ...] = ()  # (where, name, code) of what is not handed over


SOUND = World()
Plant = Callable[[], World]


def planting(make: Callable[..., World]) -> Callable[..., Plant]:
    """Not before it is asked for: a mutant that cannot be made any more fails its own test and no other."""
    return lambda *given, **parts: functools.cache(lambda: make(*given, **parts))


def rewritten(function: Any, *changes: tuple[str, str]) -> Any:
    """A function with pieces of its source replaced, in its own module: what is patched there is patched here too."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    source = textwrap.dedent(inspect.getsource(plain))
    for old, new in changes:
        found = source.count(old)
        assert found == 1, f"{old!r} is {found} times in {plain.__qualname__}; it has changed: write this mutant anew"
        source = source.replace(old, new)
    scope: dict[str, Any] = {}
    exec(compile(source, f"<mutant of {plain.__qualname__}>", "exec"), plain.__globals__, scope)
    return scope[plain.__name__]


def subclass(cls: type, method: str, *changes: tuple[str, str], **others: Any) -> type:
    """The class with changes in the source of a method, and maybe other methods."""
    return type(f"Mutant{cls.__name__}", (cls,), {method: rewritten(getattr(cls, method), *changes), **others})


@planting
def replaced(**parts: Any) -> World:
    return World(**parts)


@planting
def broken_mechanism(method: str, *changes: tuple[str, str]) -> World:
    """A mechanism is a static argument: a subclass equals no other, so nothing compiled before is run for it."""
    return World(mechanism=subclass(SubsampledGaussian, method, *changes))


@planting
def broken_access(method: str, *changes: tuple[str, str]) -> World:
    # `register`: by JAX's own registration a class can be taken for another with as many fields.
    return World(access=register("mechanism", "unit")(subclass(Access, method, *changes, _once=Once)))


@planting
def broken_repeat(*changes: tuple[str, str]) -> World:
    return World(repeat=rewritten(repeat, *changes))


@planting
def broken_site(method: str, *changes: tuple[str, str]) -> World:
    return World(site=subclass(Site, method, *changes, _as_asked=_as_asked))


@planting
def broken_station(method: str, *changes: tuple[str, str], **others: Any) -> World:
    return World(station=subclass(Station, method, *changes, **others))


@planting
def station_with_broken_site(*changes: tuple[str, str]) -> World:
    broken = staticmethod(subclass(Site, "__call__", *changes))
    return World(station=subclass(Station, "_site", ("= Site(", "= self._broken("), _broken=broken))


@planting
def broken_answerer(method: str, *changes: tuple[str, str]) -> World:
    return World(answerer=subclass(Answerer, method, *changes))


@planting
def broken_gate(*changes: tuple[str, str]) -> World:
    return World(gate=rewritten(refuses, *changes))


@planting
def broken_ledger(method: str, *changes: tuple[str, str]) -> World:
    return World(ledger=subclass(Ledger, method, *changes))


@planting
def broken_filter(method: str, *changes: tuple[str, str]) -> World:
    return World(filter=subclass(Filter, method, *changes))


@planting
def broken_sums(*changes: tuple[str, str]) -> World:
    """The whole module, for its functions know each other by name."""
    source = inspect.getsource(secure_sum)
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times there; it has changed: write it anew"
        source = source.replace(old, new)
    module = ModuleType("mutant_of_secure_sum")
    sys.modules[module.__name__] = module  # where dataclasses look for their types
    exec(compile(source, "<mutant of secure_sum>", "exec"), module.__dict__)
    return World(sums=module)


@planting
def broken_share(method: str, *changes: tuple[str, str]) -> World:
    return World(shared=subclass(SharedGaussian, method, *changes))


@planting
def broken_delegate(method: str, *changes: tuple[str, str]) -> World:
    return World(delegate=subclass(Delegate, method, *changes))


@planting
def patched(*patches: tuple[Any, str, Any]) -> World:
    return World(patches=patches)


@planting
def rewritten_in(*changes: tuple[Any, ...]) -> World:
    """Each change: a class or a module, the name of a function there, and the pieces of its source to replace."""
    made = ((home, name, rewritten(getattr(home, name), *pieces)) for home, name, *pieces in changes)
    return World(patches=tuple(made))


@contextlib.contextmanager
def planted(world: World) -> Any:
    with contextlib.ExitStack() as stack:
        for patch in world.patches:
            stack.enter_context(mock.patch.object(*patch))
        yield


@functools.cache
def canaried(access: type) -> type:
    """The attacker's access on top of any other: `Canaried.sum` reads by that of the next class in line."""
    if access is Access:
        return Canaried
    return register("mechanism", "unit", "canaries", "is_worst")(type("MutantCanaried", (Canaried, access), {}))


# --- Checks of a mechanism ---------------------------------------------------------------------------------------

# One setting and one shape for all of them, so that a mutant is compiled once.
SLOTS, COLUMNS, CLIP, NOISE, RATE, DRAWS = 8, 3, 0.5, 2.0, 0.4, 1000
ORDINARY = np.random.default_rng(0).normal(size=(SLOTS, COLUMNS)).astype(np.float32)


@functools.cache
def key_of(seed: int) -> Array:
    """A seeded key that may be used again: programs are handed it, and derive their own."""
    return tacit.insecure_key(seed)


@functools.cache
def keys_of(seed: int, count: int) -> Array:
    return jax.random.split(key_of(seed), count)


# For programs that run once or twice: half the time to compile.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@quick_jit
def _releases(keys: Array, access: Access, tables: Array, present: Array) -> Array:
    def one(key: Array, table: Array, present: Array) -> Array:
        return replace(access, records=table, present=present).sum(key, each_record).value

    return jax.vmap(one)(keys, tables, present)


def probe(world: World, tables: np.ndarray, present: Any, access: Any = None) -> np.ndarray:
    """A release of each table, by the same keys whatever the tables, times the rate: the sum and its noise."""
    access = access or world.access.of(ORDINARY, world.mechanism(CLIP, NOISE, RATE))
    shape = (DRAWS, SLOTS, 1)
    tables = jnp.broadcast_to(jnp.asarray(tables, jnp.float32).reshape(-1, *shape[1:], COLUMNS), (*shape, COLUMNS))
    present = jnp.broadcast_to(jnp.asarray(present, bool).reshape(-1, *shape[1:]), shape)
    found = _releases(keys_of(21, DRAWS), access, tables, present)
    return np.asarray(found, np.float64) * access.mechanism.sampling_rates[0]


@functools.cache
def noise_of(world: World) -> np.ndarray:
    """Releases without a record: noise alone."""
    return probe(world, ORDINARY, [False] * SLOTS)


@functools.cache
def inclusions_of(world: World) -> np.ndarray:
    """(draws, slots) of 0 and 1: whose record is in a release, told by what they add to the noise, each its digit."""
    digits = CLIP * 2.0 ** -np.arange(SLOTS)
    table = np.zeros((SLOTS, COLUMNS))
    table[:, 0] = digits
    left = (probe(world, table, [True] * SLOTS) - noise_of(world))[:, 0]
    found = []
    for digit in digits:
        found.append(left > digit - digits[-1] / 2)
        left = left - digit * found[-1]
    return np.stack(found, axis=1).astype(int)


def noise_is_the_promised_gaussian(world: World) -> None:
    """Each coordinate, all of them together, and what follows: independent and standard normal (KS, correlations)."""
    noise = noise_of(world) / (CLIP * NOISE)
    for sample in (noise, *noise.T):
        assert stats.kstest(sample.ravel(), "norm").pvalue > ALARM
    apart = [np.corrcoef(noise.T)[np.triu_indices(COLUMNS, 1)]]
    apart += [np.corrcoef(column[:-1], column[1:])[:1, 1] for column in noise.T]
    assert np.all(np.abs(np.concatenate(apart)) < 5 / np.sqrt(DRAWS))


def each_level_has_its_own_noise(world: World) -> None:
    """The second of two levels, whose noise is three times that of the first."""
    access = world.access.of(ORDINARY, world.mechanism(CLIP, (NOISE, 3 * NOISE))).at(Level(jnp.int32(1), 2, 0))
    noise = probe(world, ORDINARY, [False] * SLOTS, access)
    assert stats.kstest(noise.ravel() / (CLIP * 3 * NOISE), "norm").pvalue > ALARM


def each_level_has_its_own_clip(world: World) -> None:
    """The second of two levels, whose clip is a quarter of the first's: by the same keys, what one huge record adds."""
    access = world.access.of(ORDINARY, world.mechanism((CLIP, CLIP / 4), NOISE)).at(Level(jnp.int32(1), 2, 0))
    tables, alone = np.zeros((SLOTS, COLUMNS)), [True] + [False] * (SLOTS - 1)
    tables[0, 0] = 1e6
    moved = probe(world, tables, alone, access) - probe(world, tables, [False] * SLOTS, access)
    assert np.max(np.linalg.norm(moved, axis=1)) < 1.01 * CLIP / 4


def noise_is_on_the_lattice(world: World) -> None:
    """Releases are multiples of a public number: no digit of the sum shows in the digits of the noise."""
    spacing = Lattice.of((CLIP,), (NOISE,), COLUMNS, SLOTS, rounding_margin(COLUMNS, np.float32)).spacings[0]
    steps = noise_of(world) / spacing
    small = steps[np.abs(steps) < 2**20]  # where single precision has digits left to see them by
    assert len(small) > DRAWS / 2
    assert np.all(np.abs(small - np.round(small)) < 0.25)


NASTY = (1e-30, 1.0, HUGE, 1e30, 3e38, np.inf, -np.inf, np.nan)


def one_record_moves_a_release_by_at_most_the_clip(world: World) -> None:
    """By the same keys noise and sample are the same for both neighbours: what is left is the record's share."""
    tables = np.stack([ORDINARY] * DRAWS)
    tables[:, 3] = [(NASTY[draw % len(NASTY)], 0.0, -1.0) for draw in range(DRAWS)]
    within, without = (probe(world, tables, np.arange(SLOTS) != absent) for absent in (SLOTS, 3))
    assert np.all(np.isfinite(within))
    # The released float is an integer times the spacing: its own rounding is post-processing, allowed for here.
    slack = 1e-6 * (np.abs(within).max(axis=1) + np.abs(without).max(axis=1))
    assert np.all(np.linalg.norm(within - without, axis=1) <= CLIP * (1 + 1e-5) + slack)


def slots_are_chosen_independently_with_the_rate(world: World) -> None:
    assert suite("statistical/test_noise_and_sampling.py", world).looks_poisson(inclusions_of(world), RATE)


def noise_does_not_depend_on_the_sample(world: World) -> None:
    """Noise of the draws in which a slot was chosen is as that of the others (KS of two samples)."""
    noise = noise_of(world)
    for chosen in inclusions_of(world).T.astype(bool):
        if 0 < chosen.sum() < DRAWS:
            p_values = [stats.ks_2samp(column[chosen], column[~chosen]).pvalue for column in noise.T]
            assert min(p_values) > ALARM / (SLOTS * COLUMNS)


def the_receipt_names_what_is_done(world: World) -> None:
    """From shapes alone: nothing runs."""

    def seen(key: Array, *settings: Any, wrap: Callable[[Any], Any] = lambda f: f) -> Released[Any]:
        access = world.access.of(ORDINARY, world.mechanism(CLIP, NOISE, *settings), capacity=20)
        return jax.eval_shape(wrap(lambda key: access.sum(key, each_record)), key)

    one, seeded = Gaussian(NOISE, coordinates=COLUMNS), key_of(0)
    assert seen(seeded).event == one
    assert seen(seeded, RATE).event == TruncatedPoissonSampled(RATE, 20, 20, one)
    assert seen(seeded, 0.1, 3).event == TruncatedPoissonSampled(0.1, 20, 3, one)
    assert seen(keys_of(21, DRAWS), wrap=jax.vmap).event == Repeated(one, DRAWS)
    assert seen(seeded).seeded
    assert not seen(tacit.secure_key()).seeded


def a_key_makes_one_release(world: World) -> None:
    access = world.access.of(ORDINARY, world.mechanism(CLIP, NOISE))

    def scaled(key: Array, weight: Array) -> Any:
        return access.sum(key, per_record(lambda record: weight * record))

    weights = jnp.ones(2)
    with pytest.raises(ValueError, match="has made a release already"):
        jax.eval_shape(lambda key: scaled(key, weights[0]).join(scaled(key, weights[1])), key_of(0))
    with pytest.raises(ValueError, match="split the key"):
        jax.eval_shape(jax.vmap(scaled, in_axes=(None, 0)), key_of(0), weights)


def steps_share_no_noise(world: World) -> None:
    """The numbers of five steps on empty slots: no two are equal, but by chance."""
    access = world.access.of(ORDINARY, world.mechanism(CLIP, NOISE))
    access = replace(access, present=jnp.zeros((SLOTS, 1), bool))

    def step(key: Array, level: Any, state: Any) -> Any:
        place, found = state
        return access.sum(key, each_record).map(lambda value: (place + 1, found.at[place].set(value)))

    _, found = world.repeat(tacit.insecure_key(0), 5, step, (jnp.int32(0), jnp.zeros((5, COLUMNS)))).value
    assert len(np.unique(found)) == 5 * COLUMNS


SHARE = 0.1


def the_share_within_a_limit_has_its_noise(world: World) -> None:
    """Of a clip that is moved, the count by which it is moved: one is within, of as many places as there are."""
    table = np.full((SLOTS, COLUMNS), 0.1, np.float32)
    access = world.access.of(table, world.mechanism(CLIP, NOISE))
    limit = Limit(jnp.float32(1.0), SHARE)
    run = quick_jit(jax.vmap(lambda key: access.sum_within(key, each_record, limit).value[1]))
    shares = np.asarray(run(keys_of(22, DRAWS)), np.float64)
    expected = NOISE / (2 * np.sqrt(SHARE) * SLOTS)
    assert stats.kstest((shares - 1) / expected, "norm").pvalue > ALARM


def rounds_of(
    world: World, canary: float, sites: int, rounds: int, noise: float, keys: Array
) -> tuple[Any, np.ndarray]:
    """Liu's algorithm 4 on sites that know nothing, but for one; (runs, rounds) of the sum that is released.

    One dimension, damping SLOW, and the first site's record has the target `canary`.
    """
    x, y = np.zeros((sites, 1, 1), np.float32), np.zeros((sites, 1), np.float32)
    x[0], y[0] = canary != 0, canary
    access = of_sites(list(zip(x, y, strict=True)), world.mechanism(1.0, noise))
    model = LinearRegression(FullGaussian.standard(1), 1.0)
    whole = Whole(conjugate, norm="natural", clips="update")
    algorithm = world.central(model.prior, model, (whole,), damping=(SLOW,), rounds=rounds)

    def one(key: Array, access: Access) -> Array:
        def step(state: Any, place: Array) -> tuple[Any, Array]:
            state = algorithm.site_step(jax.random.fold_in(key, place), state, model.prior, access, 0).value
            return state, algorithm.answer(state).precision_mean[0]

        return jax.lax.scan(step, algorithm.site_init(), jnp.arange(rounds))[1]

    step = price(lambda key: algorithm.site_step(key, algorithm.site_init(), model.prior, access, 0), key_of(0))
    return step, np.asarray(quick_jit(jax.vmap(one, in_axes=(0, None)))(keys, access), np.float64)


SLOW = 0.4  # the damping of those rounds


def rounds_have_noise_of_their_own(world: World) -> None:
    """What a round adds does not hang together with what the rounds before it have left."""
    _, totals = rounds_of(world, 0.0, 4, 3, NOISE, keys_of(23, DRAWS))
    changes = np.diff(totals, axis=1)
    apart = [np.corrcoef(totals[:, t], changes[:, t])[0, 1] for t in range(changes.shape[1])]
    assert np.all(np.abs(apart) < 5 / np.sqrt(DRAWS))


# --- Checks that begin at a file ---------------------------------------------------------------------------------


@functools.cache
def front_of(kind: str) -> Any:
    """(the module, a front's files, the folder they are in, which is there as long as this is)."""
    module, folder = _loaded("test_neighbours.py"), tempfile.TemporaryDirectory()
    if kind == "fit":
        files = module.Files(Path(folder.name), module.fits(bounds=True))
    else:
        front = module.studied(module.of_lists if kind == "lists" else None, rounds=1, evaluation=0.2)
        front = module.numbered(front) if kind == "numbered" else front
        files = module.Files(Path(folder.name), front, sites=module.SITES)
    return module, files, folder


def a_row_less(kind: str) -> Callable[[World], None]:
    """A row less in the file moves each sum by at most its clip, and nothing else that leaves.

    The row is the first one, the last, and one unlike all others.
    """

    def check(world: World) -> None:
        module, files, _ = front_of(kind)
        with planted(world):
            files.forget()
            for place in (0, module.ODD, module.ROWS - 1):
                files.listened("random").check(files.without("random", {place}))

    return check


def a_site_less(world: World) -> None:
    module = _loaded("test_neighbours.py")
    with planted(world), tempfile.TemporaryDirectory() as folder:
        module.test_a_site_less_leaves_what_all_others_add_as_it_is(Path(folder))


# --- Checks that are tests of this suite -------------------------------------------------------------------------


@functools.cache
def _loaded(path: str) -> ModuleType:
    """A copy of a test module of our own, by its path: names in it can be replaced without harm to others."""
    spec = importlib.util.spec_from_file_location(f"mutants_of_{Path(path).stem}", Path(__file__).parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suite(path: str, world: World) -> ModuleType:
    """A module of this suite whose tests test the code of a world."""
    module = _loaded(path)
    names = {"SubsampledGaussian": world.mechanism, "Access": world.access, "repeat": world.repeat}
    for name, part in {
        **names,
        "Site": world.site,
        "Ledger": world.ledger,
        "refuses": world.gate,
        "Answerer": world.answerer,
        "Filter": world.filter,
    }.items():
        if hasattr(module, name):
            setattr(module, name, part)
    if hasattr(module, "sums"):
        module.sums = world.sums  # type: ignore[attr-defined]
        for name in ("Consent", "Refused", "Session", "Site"):
            setattr(module, name, getattr(world.sums, name))
    if isinstance(getattr(module, "MECHANISM", None), SharedGaussian):
        module.MECHANISM = world.shared(**vars(module.MECHANISM))  # type: ignore[attr-defined]
    if hasattr(module, "contributed"):
        module.contributed = world.contributed  # type: ignore[attr-defined]
    if hasattr(module, "Delegate"):
        module.Delegate = world.delegate  # type: ignore[attr-defined]
    return module


@contextlib.contextmanager
def clinics_of(world: World, folder: Path) -> Any:
    """The fixture of tests between machines, with the stations of a world."""
    base = _loaded("network/conftest.py").Clinics
    made = type("Clinics", (base,), {"Station": world.station})(folder)
    try:
        yield made
    finally:
        made.close()


def run_in_suite(path: str, *names: str, **given: Any) -> Callable[[World], None]:
    """A check that runs tests of a module, with the fixtures they ask for."""

    def check(world: World) -> None:
        module = suite(path, world)
        for name in names:
            with contextlib.ExitStack() as stack:
                _call(getattr(module, name), module, world, given, stack)

    return check


def _call(
    test: Callable[..., None], module: ModuleType, world: World, given: dict[str, Any], stack: contextlib.ExitStack
) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    fixtures: dict[str, Callable[[], Any]] = {
        "tmp_path": lambda: folder,
        "monkeypatch": lambda: patch,
        "seen": lambda: inspect.unwrap(module.seen)(patch),
        "clinics": lambda: stack.enter_context(clinics_of(world, folder)),
    }
    asked = inspect.signature(test).parameters
    test(**{name: given[name] if name in given else fixtures[name]() for name in asked})


def all_of(*checks: Callable[[World], None]) -> Callable[[World], None]:
    def check(world: World) -> None:
        for one in checks:
            one(world)

    return check


MECHANISM, SITE = "privacy/test_mechanism.py", "federated/test_site.py"
STATION, FLARE = "network/test_station.py", "network/test_nvflare.py"
OBJECTIONS = "test_what_a_site_does_not_allow_is_refused_before_a_charge_and_before_records_are_opened"

SUMS, ASSEMBLY, SHARED = "federated/test_secure_sum.py", "federated/test_assembly.py", "privacy/test_shared.py"
CHECKS: dict[str, Callable[[World], None]] = {
    "noise": noise_is_the_promised_gaussian,
    "lattice": noise_is_on_the_lattice,
    "clip": one_record_moves_a_release_by_at_most_the_clip,
    "sample": slots_are_chosen_independently_with_the_rate,
    "joint": noise_does_not_depend_on_the_sample,
    "receipt": the_receipt_names_what_is_done,
    "one key": a_key_makes_one_release,
    "person": run_in_suite(MECHANISM, "test_all_the_records_of_a_person_together_move_it_by_at_most_the_clip"),
    "level": each_level_has_its_own_noise,
    "level's clip": each_level_has_its_own_clip,
    "count": run_in_suite(MECHANISM, "test_receipt_equals_price_equals_what_ran_on_cached_calls_too", steps=5),
    "steps": steps_share_no_noise,
    "limit": the_share_within_a_limit_has_its_noise,
    "rounds": rounds_have_noise_of_their_own,
    "order": run_in_suite(
        SITE,
        "test_an_update_is_priced_charged_read_and_stored_in_this_order",
        "test_a_receipt_that_is_not_the_price_is_neither_stored_nor_sent",
        "test_a_ledger_is_told_of_noise_from_a_seed",
    ),
    "retry": run_in_suite(
        SITE,
        "test_a_repeated_round_is_answered_from_the_store_and_costs_nothing",
        "test_a_death_anywhere_never_counts_too_little_and_at_most_one_too_much",
        place="after the charge",
        is_new=True,
    ),
    "keys": run_in_suite(
        SITE, "test_no_two_rounds_sites_or_studies_share_their_noise_even_if_they_were_handed_one_key"
    ),
    "budget": run_in_suite(
        SITE,
        "test_a_site_without_budget_refuses_and_reads_nothing",
        "test_two_studies_on_one_data_set_share_its_budget",
    ),
    "adjacency": run_in_suite(
        "privacy/test_ledger.py",
        "test_noise_relative_to_the_clip_is_priced_by_a_replace_one_ledger_at_twice_the_distance",
    ),
    "filter": run_in_suite(
        "privacy/test_filters.py",
        "test_a_price_recomputed_along_the_way_is_no_filter_where_samples_are_mixed_in",
        "test_the_reserve_for_imperfect_draws_is_a_box_of_its_own",
        "test_the_renyi_rule_costs_the_divergence_at_its_order_and_what_is_cut_off_is_paid_from_the_reserve",
    ),
    "message": run_in_suite(
        SITE,
        "test_nothing_in_a_broadcast_reaches_the_noise_the_clip_or_the_price",
        "test_a_refusal_says_the_same_whatever_the_records",
    ),
    "limits": all_of(
        run_in_suite(STATION, OBJECTIONS, case="more ε"),
        run_in_suite(STATION, OBJECTIONS, case="less noise"),
        run_in_suite(STATION, "test_the_ledger_has_the_site_s_budget_and_not_the_study_s"),
    ),
    "store": run_in_suite(
        STATION,
        "test_the_same_request_is_answered_once_more_by_the_same_bytes_and_charged_once",
        "test_a_station_that_begins_again_gives_the_same_answers",
    ),
    "studies": run_in_suite(
        STATION,
        "test_two_studies_share_the_budget_of_a_site",
        "test_a_round_beyond_the_budget_is_refused",
    ),
    "allowance": run_in_suite(STATION, "test_a_study_spends_no_more_than_its_own_part_of_a_budget"),
    "forgotten": run_in_suite(
        STATION, "test_a_round_that_only_an_older_part_of_the_log_has_is_still_missed_in_a_ledger"
    ),
    "scales": run_in_suite(STATION, "test_the_scales_of_a_study_are_those_that_it_began_with"),
    "gate": run_in_suite(FLARE, "test_the_gate_lets_nothing_else_through"),
    "at once": run_in_suite(FLARE, "test_a_request_that_is_being_worked_on_is_not_begun_again"),
    "masks": run_in_suite(SUMS, "test_every_bit_of_a_seed_is_in_its_masks"),
    "roster": run_in_suite(SUMS, "test_a_roster_with_keys_that_are_not_signed_is_refused"),
    "opened": run_in_suite(SUMS, "test_no_site_opens_both_kinds_of_shares_of_another"),
    "shares": run_in_suite(
        SHARED,
        "test_noise_in_the_total_is_that_of_all_sites_and_of_the_honest_alone_that_of_the_claim",
        "test_shares_of_the_honest_sites_are_enough_and_hardly_more",
    ),
    "worth": run_in_suite(SHARED, "test_what_a_site_sums_up_is_worth_nothing_to_it"),
    "sums": run_in_suite(
        ASSEMBLY,
        "test_the_update_is_that_of_the_sum_of_all_sites_to_the_bit",
        "test_rounds_are_those_of_the_plan_and_each_is_charged_once",
        "test_a_site_that_begins_again_has_its_ledger_and_needs_nothing_else",
        "test_every_message_again_has_the_same_answer_and_another_one_none",
        "test_a_sum_is_charged_before_it_is_read",
    ),
    "file, fit": a_row_less("fit"),
    "file, study": a_row_less("study"),
    "lists": a_row_less("lists"),
    "row numbers": a_row_less("numbered"),
    "site": a_site_less,
}

# By the part that a mutant breaks: the checks that could notice, and cost little more than one.
_READING = ("noise", "lattice", "clip", "sample", "joint", "receipt")
_SITE = ("order", "retry", "keys", "budget", "message")
TRIED: dict[str, tuple[str, ...]] = {
    "mechanism": _READING,
    "access": _READING,
    "receipt": ("receipt", "one key"),
    "people": ("person",),
    "schedule": ("level", "level's clip"),
    "loop": ("count", "steps"),
    "moved clip": ("limit",),
    "central": ("rounds",),
    "site": _SITE,
    "ledger": ("order", "budget", "adjacency"),
    "filter": ("filter",),
    "station": ("limits", "store", "studies", "allowance", "forgotten", "scales"),
    "gate": ("gate",),
    "answerer": ("at once",),
    "secure sum": ("masks", "roster", "opened"),
    "share": ("shares", "worth"),
    "delegate": ("sums",),
    "table": ("file, fit",),
    "split": ("file, study",),
    "lists": ("lists",),
    "row numbers": ("row numbers",),
    "place": ("site",),
}


# --- Attacks -----------------------------------------------------------------------------------------------------

Verdict = tuple[float, float]  # the ε that is claimed, and the one that is proved


@dataclass(frozen=True)
class Listening:
    """An audit of a sum that is released over and over: all releases, with and without one unit.

    All records change their sign from step to step: noise that is used twice cancels. settings: of the mechanism.
    canary: its record, which a person may have several of (`records`); others: that of all others. copies: of each
    release, by `vmap`.
    """

    settings: tuple[Any, ...] = (1.0, 1.0)
    steps: int | tuple[int, ...] = 2
    canary: tuple[float, ...] = (HUGE, 0.0, 0.0)
    records: int = 1
    others: tuple[float, ...] = (0.0, 1.0, 0.0)
    slots: int = 6
    copies: int = 1
    delta: float = 1e-5
    runs: int = 8000

    def subject(self, world: World) -> Subject:
        others = self.slots - 1
        table = np.array([self.canary] * self.records + [self.others] * others, np.float32)
        people = {"groups": [0] * self.records + [*range(1, self.slots)], "most_records": self.records}
        mechanism = world.mechanism(*self.settings)
        access = world.access.of(table, mechanism, **(people if self.records > 1 else {}))
        access = canaried(world.access).on(access, access.slots - others, is_worst=False)
        steps = sum(self.steps) if isinstance(self.steps, tuple) else self.steps

        def program(key: Array, access: Any) -> Released[Any]:
            def step(key: Array, level: Any, state: Any) -> Released[Any]:
                place, heard = state
                sign = 1.0 - 2.0 * (place % 2).astype(jnp.float32)

                def one(key: Array) -> Released[Array]:
                    return access.at(level).sum(key, per_record(lambda record: sign * record))

                release = one(key) if self.copies == 1 else jax.vmap(one)(jax.random.split(key, self.copies))
                return release.map(lambda value: (place + 1, heard.at[place].set(value.ravel())))

            heard = jnp.zeros((steps, self.copies * len(self.canary)))
            return world.repeat(key, self.steps, step, (jnp.int32(0), heard))

        return Subject("mutant", program, access, price(program, key_of(0), access), self.delta)

    def __call__(self, world: World) -> Verdict:
        found = self.subject(world).audit(self.runs, seed=1)
        assert found.confidence == CONFIDENCE
        return found.claimed_epsilon, found.best.epsilon


@dataclass(frozen=True)
class Reading:
    """The same, by an attacker with a statistic of his own on what he hears: on (runs, steps, columns), out and in."""

    listening: Listening
    scores: Callable[[Listening, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

    def __call__(self, world: World) -> Verdict:
        subject, delta = self.listening.subject(world), self.listening.delta
        many = quick_jit(jax.vmap(lambda key, access: subject.program(key, access).value[1], in_axes=(0, None)))
        keys = keys_of(1, self.listening.runs)
        out, inside = (subject.access.having([there] * subject.access.canaries) for there in (False, True))
        halves = (keys[0::2], out), (keys[1::2], inside)
        without, within = (np.asarray(many(*half), np.float64) for half in halves)
        found = audit.bound(*self.scores(self.listening, without, within), delta, CONFIDENCE)
        return accounting.epsilon(subject.event, delta), found.epsilon


def by_sum(listening: Listening, without: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first number, over all steps: of a person whose records a mutant has spread over several slots."""
    assert isinstance(listening.steps, int)
    signs = np.where(np.arange(listening.steps) % 2, -1.0, 1.0)
    return without[:, :, 0] @ signs, within[:, :, 0] @ signs


def by_bins(listening: Listening, without: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How likely each bin of the first number is, learnt from half of the runs: whatever noise looks like."""
    del listening
    (first, without), (second, within) = (np.split(heard[:, 0, 0], 2) for heard in (without, within))
    edges = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, 101)[1:-1])
    counts = [np.bincount(np.digitize(part, edges), minlength=100) for part in (first, second)]
    ratio = np.log(counts[1] + 1) - np.log(counts[0] + 1)
    return ratio[np.digitize(without, edges)], ratio[np.digitize(within, edges)]


def by_displacement(listening: Listening, without: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Room for one: the canary, if chosen, takes the place of another, who is its opposite.

    A step is then -C if it was not chosen, and if it was, C or, where its slot is empty, 0: twice the distance that a
    plain sample shows, and at that end there is nobody to hide among.
    """
    _, noise, rate, _ = listening.settings
    signs = np.where(np.arange(listening.steps) % 2, -1.0, 1.0)

    def one(heard: np.ndarray) -> np.ndarray:
        likely = [stats.norm.pdf(heard[:, :, 0] * signs * rate, place, noise) for place in (-1, 0, 1)]
        empty, filled = ((1 - rate) * likely[0] + rate * other for other in likely[1:])
        return np.sum(np.log(filled) - np.log(empty), axis=1)

    return one(without), one(within)


CANARIES = 400
Question = tuple[str, str, int, float]  # site, study, round, and the number in the broadcast


@register()
@dataclass(frozen=True)
class Echo:
    """An algorithm whose answer is its release: the sum of all records, each times the number in the broadcast."""

    zeros: Array

    def coordinator_init(self, sites: int) -> Any:
        return ()

    def broadcast(self, state: Any) -> Any:
        return state, {"scale": jnp.ones(())}

    def site_init(self) -> Array:
        return self.zeros

    def kind(self, count: int) -> int:
        return 0

    def site_step(self, key: Array, state: Any, content: Any, access: Access, kind: int) -> Released[Array]:
        return access.sum(key, per_record(lambda record: content["scale"] * record))

    def answer(self, state: Array) -> Array:
        return state


@dataclass(frozen=True)
class Asking:
    """A coordinator that asks what it likes, against the budget of a real ledger. One run, many canaries.

    Each canary is in or out by the toss of a coin, and moves a coordinate of its own. Of the site "north" everything
    that it sends is added up, with the sign of the question; the other sites have no records, and share its key.
    """

    questions: tuple[Question, ...]
    updates: int = 1  # that the budget is good for
    is_restarted: bool = False  # before each question, by one who has kept the key and lost the store

    def __call__(self, world: World) -> Verdict:
        noise, delta = 4.0, 1e-5
        included = np.random.default_rng(5).random(CANARIES) < 0.5
        mechanism = world.mechanism(1.0, noise)
        access = world.access.of(HUGE * np.eye(CANARIES, dtype=np.float32), mechanism)
        budget = accounting.epsilon(Repeated(Gaussian(noise, coordinates=CANARIES), self.updates), delta, "zcdp")
        sites, heard = {}, []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger"
            ledger = world.ledger.create(path, data_set="a", epsilon=budget, delta=delta, accountant="zcdp")
            for name, study, round, scale in self.questions:
                if (name, study) not in sites or self.is_restarted:
                    present = jnp.asarray(included & (name == "north"))[:, None]
                    own = replace(access, present=present)
                    paid = ledger if name == "north" else None
                    sites[name, study] = world.site(name, study, Echo(jnp.zeros(CANARIES)), own, key_of(3), paid)
                answer = sites[name, study](Broadcast(study, round, {"scale": np.asarray(scale, np.float32)}))
                if isinstance(answer, Update):
                    heard.append(np.sign(scale) * answer.content)
        half = 1 - (1 - CONFIDENCE) / 2  # either bound may be the one that refutes
        scores = np.mean(heard, axis=0)
        bounds = [audit.one_run_bound(scores, included, delta, half, kind)[0] for kind in ("nothing", "gaussian")]
        return budget, max(bounds)


def by_counting(world: World) -> Verdict:
    """Reads the share within a limit that a moved clip goes by; the canary is outside of it, and all others within."""
    table = np.full((SLOTS, COLUMNS), 0.1, np.float32)
    table[0] = HUGE
    access, limit = world.access.of(table, world.mechanism(1.0, 2.0)), Limit(jnp.float32(1.0), SHARE)

    def release(key: Array, present: Array) -> Released[Any]:
        return replace(access, present=present).sum_within(key, each_record, limit)

    run = quick_jit(jax.vmap(lambda key, present: release(key, present).value[1], in_axes=(0, None)))
    keys = keys_of(24, 4000)
    worlds = (access.present.at[0].set(there) for there in (False, True))
    without, within = (
        -np.asarray(run(half, there)) for half, there in zip((keys[::2], keys[1::2]), worlds, strict=True)
    )
    claimed = accounting.epsilon(price(release, key_of(0), access.present), 1e-5)
    return claimed, audit.bound(without, within, 1e-5, CONFIDENCE).epsilon


def by_patience(world: World) -> Verdict:
    """A site that is clipped in every round, and the sum of all rounds: what others take back does not hide it.

    The claim is that of a Gaussian shift, and so may what refutes it be.
    """
    sites, rounds, noise, delta, keys = 12, 8, 6.0, 1e-5, keys_of(25, 4000)
    step, without = rounds_of(world, 0.0, sites, rounds, noise, keys[::2])
    _, within = rounds_of(world, HUGE, sites, rounds, noise, keys[1::2])
    claimed = accounting.epsilon(Repeated(step, rounds), delta)
    return claimed, audit.bound(without[:, -1], within[:, -1], delta, CONFIDENCE, "gaussian").epsilon


def by_opposites(world: World) -> Verdict:
    """One record, or its opposite, in as many releases as a ledger under replace-one pays for, which is one."""
    noise, delta = 2.0, 1e-5
    event, count = Gaussian(noise, coordinates=COLUMNS), 0
    budget = accounting.epsilon(event, delta, "zcdp", "replace-one")
    terms: dict[str, Any] = {"accountant": "zcdp", "adjacency": "replace-one"}
    with tempfile.TemporaryDirectory() as folder:
        ledger = world.ledger.create(Path(folder) / "ledger", data_set="a", epsilon=budget, delta=delta, **terms)
        with contextlib.suppress(BudgetExceeded):
            while True:
                ledger.charge(event, study="heart", round=count)
                count += 1
    access = world.access.of(ORDINARY, world.mechanism(1.0, noise))

    def heard(key: Array, table: Array) -> Array:
        own = replace(access, records=table)
        return jnp.mean(jax.vmap(lambda key: own.sum(key, each_record).value[0])(jax.random.split(key, count)))

    tables = (access.records.at[0, 0].set(jnp.array([side * HUGE, 0, 0], jnp.float32)) for side in (-1, 1))
    run, halves = quick_jit(jax.vmap(heard, in_axes=(0, None))), keys_of(27, 4000).reshape(2, -1)
    without, within = (np.asarray(run(half, table)) for half, table in zip(halves, tables, strict=True))
    return budget, audit.bound(without, within, delta, CONFIDENCE, "gaussian").epsilon


@dataclass(frozen=True)
class Refused:
    """A question that is refused, asked of two sites that differ by a record: does the reason?"""

    def __call__(self, world: World) -> Verdict:
        access = world.access.of(ORDINARY, world.mechanism(1.0, 2.0))

        def numbers(is_in: bool) -> list[float]:
            own = replace(access, present=access.present.at[0].set(is_in))
            site = world.site("north", "heart", Echo(jnp.zeros(COLUMNS)), own, key_of(0), None)
            answers = [site(Broadcast("lung", 0, {})) for _ in range(200)]
            assert all(isinstance(answer, Refusal) for answer in answers)
            return [sum(map(float, re.findall(r"\d+", answer.reason))) for answer in answers]

        return 0.0, audit.bound(numbers(False), numbers(True), 1e-5).epsilon


WIDTH = 1500  # coordinates of a sum, each with a canary of its own


@dataclass(frozen=True)
class Coordinating:
    """A coordinator that pools what it knows with some sites and drops others from a sum. One run, many canaries.

    Each canary is in or out by the toss of a coin, and moves a coordinate of its own at the site "north": coordinates
    are as many runs with and without a canary. The attacker takes from the total what the sites that pool have added,
    or gets hold of north's integers alone, as he may.
    """

    alone: Callable[["Sitting"], np.ndarray] | None = None

    def __call__(self, world: World) -> Verdict:
        noise, delta, trust = 1.0, 1e-5, Trust(12, absent=3, pooling=5)
        included = np.random.default_rng(5).random(WIDTH) < 0.5
        mechanism = world.shared(1.0, noise, sites=trust.sites, honest=trust.honest)
        own = Access.of(HUGE * np.eye(WIDTH, dtype=np.float32), mechanism)
        vectors, event = {}, None
        for j in range(trust.sites - trust.absent):
            access = replace(own, present=jnp.asarray(included & (j == 0))[:, None])
            program = lambda own, j=j: own.sum(tacit.insecure_key(40 + j), each_record)  # noqa: E731
            release = contributed(program, access, WIDTH)
            vectors[f"site-{j:02d}"], event = integers(release), release.event
        sitting = Sitting(world.sums, trust, vectors)
        pooled = [f"site-{j:02d}" for j in range(1, 1 + trust.pooling)]
        if self.alone is not None:
            heard = self.alone(sitting)
        else:
            heard = sitting.total() - sum(vectors[name] for name in pooled)
        assert event is not None
        half, scores = 1 - (1 - CONFIDENCE) / 2, heard.astype(float)
        kinds: tuple[audit.Assumption, ...] = ("nothing", "gaussian")  # the claim is a Gaussian shift
        bounds = [audit.bound(scores[~included], scores[included], delta, half, kind).epsilon for kind in kinds]
        return accounting.epsilon(event, delta), max(bounds)


class Sitting:
    """A session of secure sums as its coordinator has it, with the sites that are not dropped."""

    def __init__(self, sums: Any, trust: Trust, vectors: dict[str, np.ndarray]) -> None:
        self.sums, self.vectors, self.trust = sums, vectors, trust
        names = [f"site-{j:02d}" for j in range(trust.sites)]
        self.keys = {name: hashlib.sha256(name.encode()).digest() for name in names}
        roster = {name: public_identity(key) for name, key in self.keys.items()}
        self.session = sums.Session("a sum", roster, trust.threshold, WIDTH)
        self.sites = {name: self.site(name) for name in vectors}

    def site(self, name: str) -> Any:
        return self.sums.Site(self.session, name, self.keys[name], hashlib.sha256(b"secret" + name.encode()).digest())

    def total(self) -> np.ndarray:
        """All stages, as an honest coordinator has them; what came on the way is kept."""
        self.advertised = [self._at(self.sums.advertise, name) for name in self.vectors]
        sealed = [one for name in self.vectors for one in self._at(self.sums.share, name, self.advertised)]
        self.masked = {
            name: self._at(self.sums.mask, name, [one for one in sealed if one.receiver == name], self.vectors[name])
            for name in self.vectors
        }
        consents = [self._at(self.sums.agree, name, list(self.vectors)) for name in self.vectors]
        self.opened = [self._at(self.sums.reveal, name, consents) for name in self.vectors]
        return self.sums.total(
            self.session, self._known(), sorted(self.vectors), list(self.masked.values()), self.opened
        )

    def _known(self) -> dict[str, Any]:
        return {one.site: one for one in self.advertised}

    def _at(self, stage: Callable[..., Any], name: str, *given: Any) -> Any:
        self.sites[name], answer = stage(self.sites[name], *given)
        return answer

    def seed_of(self, name: str) -> bytes:
        """Of a survivor, from shares that were opened."""
        chosen = sorted(self.opened, key=lambda one: one.site)[: self.session.threshold]
        weights = self.sums._weights([self.sums._place(self.session, one.site) for one in chosen])
        return self.sums._joined(weights, [one.here[name] for one in chosen])

    def unmasked(self, name: str, seeds: dict[str, bytes], own: bytes) -> np.ndarray:
        """A site's integers alone, from the seeds of all its masks."""
        sums, result = self.sums, self.sums.received(self.session, self.masked[name])
        result = result - sums._stream(own, WIDTH)
        for other, seed in seeds.items():
            result = result - sums._sign_of(name, other) * sums._stream(seed, WIDTH)
        return result.astype(np.int64)


def by_total(sitting: Sitting) -> np.ndarray:
    """What is left where an attack does not succeed: the sum, without those who pool."""
    pooled = [f"site-{j:02d}" for j in range(1, 1 + sitting.trust.pooling)]
    return sitting.total() - sum(sitting.vectors[name] for name in pooled)


def by_both_shares(sitting: Sitting) -> np.ndarray:
    """North's mask key beside its seed, where sites open shares of both."""
    known = by_total(sitting)
    name, sums = "site-00", sitting.sums
    if any(name not in one.gone for one in sitting.opened):
        return known
    chosen = sorted(sitting.opened, key=lambda one: one.site)[: sitting.session.threshold]
    weights = sums._weights([sums._place(sitting.session, one.site) for one in chosen])
    key, keys = sums._joined(weights, [one.gone[name] for one in chosen]), sitting._known()
    others = {other: sums._pair(sitting.session, key, keys[other].mask, name, other) for other in keys if other != name}
    return sitting.unmasked(name, others, sitting.seed_of(name))


def by_impersonation(sitting: Sitting) -> np.ndarray:
    """North is told keys of the coordinator's own for all other sites, and shares its secrets with them."""
    known = by_total(sitting)
    name, sums = "site-00", sitting.sums
    false = {other: sums.Site(sitting.session, other, sitting.keys[other], bytes(32)) for other in sitting.keys}
    keys = [replace(sums.advertise(one)[1], signature=bytes(64)) for other, one in false.items() if other != name]
    north, own = sums.advertise(sitting.site(name))
    try:
        north, sealed = sums.share(north, [own, *keys])
    except sums.Refused:
        return known
    told = {one.site: one for one in [own, *keys]}
    false = {other: replace(one, advertised=told) for other, one in false.items()}
    shares = {}
    for one in sealed:
        plain = sums._sealer(false[one.receiver], name, False).decrypt(bytes(12), one.content, sitting.session.mark)
        shares[one.receiver] = plain[len(plain) // 2 :]
    chosen = sorted(shares)[: sitting.session.threshold]
    weights = sums._weights([sums._place(sitting.session, other) for other in chosen])
    seed = sums._joined(weights, [shares[other] for other in chosen])
    back = [
        sums.Sealed(
            other, name, sums._sealer(false[other], name, True).encrypt(bytes(12), bytes(132), sitting.session.mark)
        )
        for other in sorted(shares)
    ]
    sitting.masked[name] = sums.mask(north, back, sitting.vectors[name])[1]
    return sitting.unmasked(name, {other: sums._between(false[other], name) for other in shares}, seed)


def by_guessing(sitting: Sitting) -> np.ndarray:
    """Seeds of all masks, if they are short: those of three honest sites, as what leaves small integers behind."""
    known = by_total(sitting)
    name, sums, keys = "site-00", sitting.sums, sitting._known()
    pooled = [f"site-{j:02d}" for j in range(1, 1 + sitting.trust.pooling)]
    others = [other for other in sitting.vectors if other != name and other not in pooled]
    shared = {other: sums._between(replace(sitting.sites[other], advertised=keys), name) for other in pooled}
    rest = sitting.unmasked(name, shared, sitting.seed_of(name)).view(np.uint64)
    signs = [sums._sign_of(name, other) for other in others]
    streams = np.stack([sums._stream(seed.to_bytes(32), 2) for seed in range(SHORT)])
    if len(np.unique(streams[:, 0])) < SHORT:
        return known
    with np.errstate(over="ignore"):  # modulo 2^64
        first, second, third = (sign * streams for sign in signs)
        pairs = (first[:, None] + second[None]).reshape(-1, 2)
        order = np.argsort(pairs[:, 0])
        reach = np.uint64(2**34)  # a sum and its noise are smaller
        for place, one in enumerate(third):
            low = rest[0] - one[0] - reach
            begin, end = np.searchsorted(pairs[order, 0], [low, low + 2 * reach])
            for pair in order[begin:end]:
                left = rest[:2] - one - pairs[pair]
                if np.all(left + reach < 2 * reach):
                    seeds = (*divmod(int(pair), SHORT), place)
                    found = {other: seed.to_bytes(32) for other, seed in zip(others, seeds, strict=True)}
                    return sitting.unmasked(name, shared | found, sitting.seed_of(name))
    return known


SHORT = 2**9  # seeds of a generator that is too weak


def north(*rounds: int, scale: float = 1.0) -> tuple[Question, ...]:
    return tuple(("north", "heart", round, scale) for round in rounds)


LISTENING = Listening()
# Each step is a level of its own, so that a sampler knows which one it is at.
SAMPLED = Listening((1.0, (1.0,) * 5, (0.2,) * 5), (1,) * 5, slots=10, delta=0.05)
TRUNCATED = Listening((1.0, 0.7, 0.05, 1), 16, (1.0,), others=(-1.0,), slots=100, delta=0.03)
OVER_AND_OVER = 36  # questions, in place of the one that is paid for


# --- Mutants -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """What is broken, the code that is planted, and the attack that must find it; or, in its place, why none can."""

    name: str
    part: str
    plant: Plant
    attack: Callable[[World], Verdict] | None = None
    unseen: str = ""

    @property
    def changes_distribution(self) -> bool:
        """Whether an attacker sees something else than is claimed."""
        return self.attack is not None


def by_deleting_a_row(world: World) -> Verdict:
    """A study on its own files, with a row and without it."""
    with planted(world), tempfile.TemporaryDirectory() as folder:
        study = _loaded("test_auditing.py").in_order(Path(folder), evaluation=0.2)
        found = auditing.of_row(study, "north", 0).audit(400, seed=1, confidence=CONFIDENCE)
    return found.claimed_epsilon, found.best.epsilon


def by_place(self: Setup, member: Any) -> np.ndarray:
    """Every fifth row of the file is held out, as it was once."""
    return (np.arange(len(member.table.target)) % 5 == 4) & bool(self.plan.evaluation)


class ClipAfterNoise(SubsampledGaussian):
    """The sum of what is finite, noised, and then clipped as one."""

    def add_up(self, batch, chosen, level, coordinates, units):
        return batch.weighted_sum((chosen & jnp.isfinite(batch.norms())).astype(jnp.float32))

    def release(self, key, sums, level, coordinates, units):
        silent = jnp.zeros(sums.shape, jnp.int32), jnp.zeros(sums.shape, jnp.uint32)
        noised = sums + super().release(key, silent, level, coordinates, units)
        return noised * jnp.minimum(1, self.clips[0] / jnp.linalg.norm(noised))


class QuantileClip(SubsampledGaussian):
    """Clips to a quantile of the records' own norms, which nothing has released, and scales its noise by it."""

    def add_up(self, batch, chosen, level, coordinates, units):
        norms = jnp.where(jnp.isfinite(batch.norms()), batch.norms(), 0)
        scale = jnp.maximum(jnp.quantile(norms, 0.9), 1e-6) / self.clips[0]
        smaller = jax.tree.map(lambda leaf: leaf / scale, batch)
        return super().add_up(smaller, chosen, level, coordinates, units), scale

    def release(self, key, sums, level, coordinates, units):
        return sums[1] * super().release(key, sums[0], level, coordinates, units)


MOST_SHARES = 12


@register("solvers", "kinds", "damping", "prior_steps", "rounds", "reset")
@dataclass(frozen=True)
class HiddenShares(Central):
    """Each site adds its share of the noise, and takes back in the next round what of it is in its own factor.

    Only their sum is seen, and its noise has the deviation that is claimed (Liu's algorithm 3 under a secure sum). In
    one dimension, for sites that know nothing, but for the first, whose update is clipped and takes nothing back.
    """

    def site_init(self):
        return super().site_init(), jnp.zeros(MOST_SHARES)

    def answer(self, state):
        return state[0].factor

    def site_step(self, key, state, content, access, kind):
        plain, hidden = state
        first, second, third = jax.random.split(key, 3)
        claimed = super().site_step(first, plain, content, access, kind)
        sites, deviation = access.slots, access.mechanism.noise_multipliers[0] * access.mechanism.clips[0]
        quiet = access.through(replace(access.mechanism, noise_multiplier=1e-2))
        moved = super().site_step(second, plain, content, quiet, kind).value
        shares = jnp.pad(deviation / sites**0.5 * jax.random.normal(third, (sites,)), (0, MOST_SHARES - sites))
        change = SLOW * (shares - jnp.clip(hidden, -1, 1).at[0].set(0))
        factor = replace(moved.factor, precision_mean=moved.factor.precision_mean + jnp.sum(change))
        return claimed.map(lambda _: (replace(moved, factor=factor), hidden + change))


class InOrder(PoissonSampler):
    """As many slots as the rate says, one batch after the other, whatever the key. A step is a level here."""

    def draw(self, key, level=0):
        size = round(self.slots * self.sampling_rates[0])
        batch = (jnp.asarray(level, jnp.int32) * size + jnp.arange(size, dtype=jnp.int32)) % self.slots
        rest = jnp.zeros(self.draws - size, jnp.int32)
        return jnp.concatenate([batch, rest]), jnp.arange(self.draws) < size


class BatchesInOrder(SubsampledGaussian):
    def sampler(self, slots):
        sound = super().sampler(slots)
        return None if sound is None else InOrder(sound.slots, sound.sampling_rates, sound.buffer)


@planting
def broken_lattice(method: str, *changes: tuple[str, str]) -> World:
    broken = subclass(Lattice, method, *changes)

    class OtherNoise(SubsampledGaussian):
        def _lattice(self, coordinates, units):
            sound = super()._lattice(coordinates, units)
            return broken(sound.spacings, sound.limb_bits, sound.largest)

    return World(OtherNoise)


class ChargedLater(Delegate):
    def _masked(self, site, round, message):
        ledger, self.ledger = self.ledger, None
        try:
            found = super()._masked(site, round, message)
        finally:
            self.ledger = ledger
        if ledger is not None:
            ledger.charge(self._layout(round).event, study=self.terms.study, round=round)
        return found


class Careless(shared._Contributing):
    """At a site, a sum is worth what the site itself has added up, with its own noise."""

    def _release(self, key, contribution, limit):
        found = super()._release(key, contribution, limit)
        upper, lower = self.integers[-1]
        own = (upper.astype(jnp.float32) * 2.0**32 + lower.astype(jnp.float32)) * self.notes[-1].spacing
        return found.map(lambda zeros: own.reshape(zeros.shape))


def carelessly(program: Any, access: Access, places: int) -> Released[Any]:
    own = shared._shared(Careless, access, places, integers=[])
    release = program(own)
    return release.map(lambda _: own.integers[0])


@planting
def with_shares(changed: str) -> World:
    """Sites whose share of the noise, an array of integers, is another."""
    after = "noised, start = [], 0"
    broken = subclass(Lattice, "_noised", (after, f"noise = {changed}; {after}"))

    class OtherShares(SharedGaussian):
        def _lattice(self, coordinates, units):
            sound = super()._lattice(coordinates, units)
            return broken(sound.spacings, sound.limb_bits, sound.largest)

    return World(shared=OtherShares)


def with_noise(changed: str) -> Plant:
    """A mechanism whose noise, an array of integers, is another."""
    after = "noised, start = [], 0"
    return broken_lattice("_noised", (after, f"noise = {changed}; {after}"))


@register("receipt", "seeded")
class Once(Released):
    """A release that costs what one does, however many it is."""

    @property
    def event(self):
        return self.receipt


def _as_asked(site: Site, content: Any) -> Access:
    """A site's access, with as much less noise as the coordinator's largest number is below 1."""
    asked = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(content))
    own = site.access.mechanism
    small = tuple(m * min(1.0, max(asked, 0.01)) for m in own.noise_multipliers)
    return site.access.through(replace(own, noise_multiplier=small))


# Lines of the source that several mutants replace.
SCALING = "leaf / rates[level].astype(leaf.dtype)"
ADD_NOISE = "return self._lattice(coordinates, units).add_noise(_own_key(key, sums), high, low, level)"
KEY_WORDS = "_words(self.study, self.name, str(broadcast.round))"
LOST = 'return self._refuse(broadcast, "this round was charged and its answer lost; go on with a later round")'
PROMISED = "promised = self._prices[kind]\n"
READ = "release = step(key, self._state, content, self.access)"
RECEIPT = "release.event != promised"

GUARD = "a guard: somebody else has to err as well"
MARK = "a mark for those who read it; the noise is the same"
ADAPTIVE = "an analyst who chooses by results: computed exactly in the test, and no program of one run"
UNDER = "attacked above, at the site and the ledger that a station is made of; a run of a whole study is one sample"
OPEN = "what a job could do then is anything, and no release"
RUN_AGAIN = (
    ("return last\n", "pass\n"),
    (LOST, "pass"),
    (KEY_WORDS, "_words(self.study, self.name, str(broadcast.round), str(self._count))"),
)
TWISTER = (
    "Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * size))",
    f"np.random.RandomState(int.from_bytes(seed) % {SHORT}).bytes(8 * size)",
)
SENT = ("return self._refuse(broadcast, str(error) if self.tells_spent else NO_BUDGET)", "pass")

SPLITS = "attacked above: records cross from one side to the other, as by place"
READ_OFF = "an audit begins with a table, and these with the file"
KNOWN = "kind = _kind(name, facts)"
SEEN = (
    'kind = kind and (kind if "categories" not in kind else '
    '{**kind, "categories": [one for one in kind["categories"] if one in set(frame[name])]})'
)
REACHED = (
    'kind = kind and (kind if "bounds" not in kind else '
    '{**kind, "bounds": [float(frame[name].min()), float(frame[name].max())]})'
)
PAST = "an audit is given what mechanisms release, and this goes past them"


def leaking(plan, key, access, model, start, bounds):
    """A fit whose posterior is as it should be, and moved by the exact sum of all records."""
    release = sound_run(plan, key, access, model, start, bounds)
    exact = jnp.sum(jnp.where(access.present[..., None], access.records[0], 0))

    def moved(found):
        mean, *rest = found.q
        return replace(found, q=(mean + exact, *rest))

    return release.map(moved)


sound_run = fitting.run


# What a value is, with the type of its column.
TYPED = ("found.append(_cell(value))", 'found.append(_cell(f"{column.dtype} {value}"))')

MUTANTS: list[Mutant] = [
    # The noise.
    Mutant("noise dropped", "mechanism", with_noise("0 * noise"), LISTENING),
    Mutant("noise halved", "mechanism", with_noise("noise // 2"), LISTENING),
    Mutant("one noise for all coordinates", "mechanism", with_noise("jnp.full_like(noise, noise[0])"), LISTENING),
    Mutant(
        "noise twice on one coordinate, none on another",
        "mechanism",
        with_noise("noise.at[0].set(0).at[1].multiply(2)"),
        LISTENING,
    ),
    Mutant(
        "noise from a key in the source",
        "mechanism",
        with_noise("lattice_gaussian(jax.random.key(0), noise.shape)"),
        LISTENING,
    ),
    Mutant(
        "noise after the scaling by 1/rate",
        "mechanism",
        broken_mechanism(
            "_lattice",
            (
                "self.noise_multipliers",
                "tuple(m * r for m, r in zip(self.noise_multipliers, self.sampling_rates, strict=True))",
            ),
        ),
        SAMPLED,
    ),
    Mutant(
        "noise in floating point",
        "mechanism",
        broken_mechanism(
            "release",
            (
                ADD_NOISE,
                "sums = high.astype(jnp.result_type(float)) * self._lattice(coordinates, units).spacing(level); "
                "return sums + self.clips[0] * self.noise_multipliers[0] * jax.random.normal(key, high.shape)",
            ),
        ),
        unseen="the digits that betray a sum are the last ones, and no score looks at them",
    ),
    Mutant(
        "noise of the first level at all of them",
        "schedule",
        broken_lattice("spacing", ("jnp.result_type(float))[level]", "jnp.result_type(float))[0]")),
        Listening((1.0, (1.0, 4.0)), (1, 1)),
    ),
    Mutant(
        "clip of the first level at all of them",
        "schedule",
        broken_mechanism("add_up", ("clips[level]", "clips[0]")),
        Listening(((1.0, 0.25), 1.0), (1, 1)),
    ),
    # The clip.
    Mutant("clip after noise", "mechanism", replaced(mechanism=ClipAfterNoise), LISTENING),
    Mutant(
        "clip skipped for what is not finite",
        "mechanism",
        broken_mechanism("add_up", ("clip_weights(norms,", "clip_weights(jnp.where(jnp.isfinite(norms), norms, 0),")),
        Reading(Listening((1.0, 2.0), 1, (3e38, 0.0, 0.0)), by_bins),
    ),
    Mutant("uncharged quantile as clip", "mechanism", replaced(mechanism=QuantileClip), LISTENING),
    Mutant(
        "a moved clip goes by a count without noise",
        "moved clip",
        broken_access(
            "sum_within",
            (
                "lambda total: inside.back(total, self.slots)",
                "lambda total: (inside.back(total, self.slots)[0], 0.5 + jnp.sum(jnp.where(self.present[:, 0], "
                "jnp.where(contribution(self.records[:, 0]).norms() <= limit.norm, 0.5, -0.5), 0)) / self.slots)",
            ),
        ),
        by_counting,
    ),
    Mutant(
        "records of a person clipped one by one",
        "people",
        broken_access(
            "of", ("_positions_of_groups(np.asarray(groups), most_records, count)", "np.arange(count)[:, None]")
        ),
        Reading(replace(LISTENING, records=3, settings=(1.0, 2.5)), by_sum),
    ),
    # The scale of a sum.
    Mutant(
        "batch mean by realised size",
        "access",
        broken_access(
            "_release",
            (SCALING, "leaf * self.slots / jnp.maximum(1, jnp.sum(present[:, 0] & chosen)).astype(leaf.dtype)"),
            ("total = self", "_, present, chosen = self._sampled(jax.random.split(key)[0]); total = self"),
        ),
        LISTENING,
    ),
    Mutant(
        "scaled by the true number of records",
        "access",
        broken_access("_release", (SCALING, f"{SCALING} * jnp.mean(self.present.astype(leaf.dtype))")),
        LISTENING,
    ),
    # The sample.
    Mutant("batches in a fixed order", "mechanism", replaced(mechanism=BatchesInOrder), SAMPLED),
    Mutant(
        "sampled at twice the rate that is charged",
        "mechanism",
        broken_mechanism(
            "sampler",
            (
                "PoissonSampler(slots, self.sampling_rates,",
                "PoissonSampler(slots, tuple(min(1.0, 2 * rate) for rate in self.sampling_rates),",
            ),
        ),
        SAMPLED,
    ),
    Mutant(
        "truncated batch charged as Poisson",
        "mechanism",
        broken_mechanism(
            "level_events",
            (
                "events.TruncatedPoissonSampled(rate, slots, sampler.buffer, event)",
                "events.PoissonSampled(rate, event)",
            ),
        ),
        Reading(TRUNCATED, by_displacement),
    ),
    Mutant(
        "sample and noise from one stream",
        "access",
        broken_access(
            "_added_up", ("sampling_key, noise_key = jax.random.split(key)", "sampling_key = noise_key = key")
        ),
        Reading(Listening((1.0, 1.0, 0.1), 1, slots=20, delta=0.01, runs=16000), by_bins),
    ),
    # Whole sites.
    Mutant("a hidden share of noise is taken back", "central", replaced(central=HiddenShares), by_patience),
    # Receipts and the keys of steps.
    Mutant(
        "price of one step, scan of two",
        "loop",
        broken_repeat(("jnp.arange(sum(counts), dtype", "jnp.arange(2 * sum(counts), dtype")),
        LISTENING,
    ),
    Mutant(
        "noise key reused across steps",
        "loop",
        broken_repeat(("jax.random.fold_in(key, t)", "jax.random.fold_in(key, 0)")),
        LISTENING,
    ),
    Mutant(
        "many releases by vmap charged as one",
        "receipt",
        broken_access("_release", ("return Released(scaled", "return self._once(scaled")),
        replace(LISTENING, copies=4, steps=1),
    ),
    Mutant(
        "seeded noise not marked", "receipt", broken_access("_release", ("not is_secure(key)", "False")), unseen=MARK
    ),
    Mutant("a key may make two releases", "receipt", broken_access("_added_up", ("_spend(key)", "pass")), unseen=GUARD),
    Mutant(
        "one key for many releases by vmap",
        "receipt",
        broken_mechanism("release", ("_own_key(key, sums)", "key")),
        unseen=GUARD,
    ),
    # The keys of a site.
    Mutant(
        "noise key reused across sites",
        "site",
        broken_site("__call__", (KEY_WORDS, "_words(self.study, str(broadcast.round))")),
        Asking((*north(0), ("south", "heart", 0, -1.0))),
    ),
    Mutant(
        "noise key reused across rounds",
        "site",
        broken_site("__call__", (KEY_WORDS, "_words(self.study, self.name)")),
        Asking((*north(0), *north(1, scale=-1.0)), updates=2),
    ),
    Mutant(
        "noise key reused across rounds 2³² apart",
        "site",
        broken_site("__call__", (KEY_WORDS, "_words(self.study, self.name, str(broadcast.round % 2**32))")),
        Asking((*north(0), *north(2**32, scale=-1.0)), updates=2),
    ),
    Mutant(
        "noise key reused across studies",
        "site",
        broken_site("__call__", (KEY_WORDS, "_words(self.name, str(broadcast.round))")),
        Asking((*north(0), ("north", "lung", 0, -1.0)), updates=2),
    ),
    Mutant(
        "noise key reused across retries",
        "site",
        broken_site("__call__", (LOST, "pass")),
        Asking((*north(0), *north(0, scale=-1.0)), is_restarted=True),
    ),
    # What a site does, and when.
    Mutant(
        "retry that runs again",
        "site",
        broken_site("__call__", *RUN_AGAIN),
        Asking(north(*[0] * OVER_AND_OVER)),
    ),
    Mutant(
        "charged after reading",
        "site",
        broken_site("__call__", (READ, "pass"), (PROMISED, f"{PROMISED}    {READ}\n")),
        unseen="the answers are the same; only a crash tells",
    ),
    Mutant(
        "refused update sent all the same",
        "site",
        broken_site("__call__", SENT),
        Asking(north(*range(OVER_AND_OVER))),
    ),
    Mutant(
        "limits read from the coordinator's message",
        "site",
        broken_site("__call__", (READ, READ.replace("self.access", "self._as_asked(content)")), (RECEIPT, "False")),
        Asking(north(0, scale=1e-3)),
    ),
    Mutant("receipt not compared with the price", "site", broken_site("__call__", (RECEIPT, "False")), unseen=GUARD),
    Mutant(
        "note on seeded noise missing in the ledger",
        "site",
        broken_site("__call__", ('"" if is_secure(self.key) else SEEDED', '""')),
        unseen=MARK,
    ),
    Mutant(
        "refusal that counts the records",
        "site",
        broken_site("_refuse", ("round, reason)", 'round, f"{reason}; {int(self.access.present.sum())} records")')),
        Refused(),
    ),
    # The ledger.
    Mutant(
        "budget that refuses nothing",
        "ledger",
        broken_ledger("_fits", ("total <= budget * (1 + SLACK)", "True")),
        Asking(north(*range(OVER_AND_OVER))),
    ),
    Mutant(
        "replace-one priced as add-remove",
        "ledger",
        broken_ledger("_price", ("accountant, self.adjacency", "accountant, 'add-remove'")),
        by_opposites,
    ),
    Mutant(
        "budget of each study by itself",
        "ledger",
        broken_ledger(
            "charge",
            (
                "total = self._price(_counts(entries) +",
                "total = self._price(_counts([e for e in entries if e.study == study]) +",
            ),
        ),
        Asking(tuple(("north", f"study {number}", 0, 1.0) for number in range(OVER_AND_OVER))),
    ),
    Mutant(
        "a Gaussian filter that takes samples",
        "filter",
        broken_filter("price", ('self.name == "gaussian" and any(', "False and any(")),
        unseen=ADAPTIVE,
    ),
    Mutant(
        "imperfect draws paid by whatever noise leaves",
        "filter",
        broken_filter("price", ("> self.reserve * delta", "> delta")),
        unseen=ADAPTIVE,
    ),
    Mutant(
        "a Rényi filter at the best order after the fact",
        "filter",
        broken_filter(
            "price",
            ("(divergence,) = ", "return accounting.epsilon(ideal, left, 'rdp', adjacency); (divergence,) = "),
        ),
        unseen=ADAPTIVE,
    ),
    # Between machines.
    Mutant(
        "a station's budget is the one that is asked for",
        "station",
        broken_station(
            "_objections",
            ("if not self.epsilon <= limits.epsilon:", "if False:"),
            _ledger=rewritten(Station._ledger, ("epsilon=limits.epsilon", "epsilon=self.epsilon")),
        ),
        unseen=UNDER,
    ),
    Mutant(
        "a station's least noise is not looked at",
        "station",
        broken_station("_check_noise", ("if not noise >= least:", "if False:")),
        unseen=UNDER,
    ),
    Mutant(
        "a plan that is refused and begun all the same",
        "station",
        broken_station("_open", ("raise Refused(reason)", "continue")),
        unseen=UNDER,
    ),
    Mutant("a station that runs a repeated round again", "station", station_with_broken_site(*RUN_AGAIN), unseen=UNDER),
    Mutant(
        "a station that does not store its answers",
        "station",
        broken_station("_site", ('store = self.folder / f"{phase}.store"', "store = None")),
        unseen="the ledger knows the round, so it is lost and not run again",
    ),
    Mutant("a station that sends a refused update", "station", station_with_broken_site(SENT), unseen=UNDER),
    Mutant(
        "a station with a ledger for each study",
        "station",
        broken_station(
            "_ledger",
            ('/ "ledger.sqlite"', '/ f\'{self.plan.name.replace("clinics", "ledger")}.sqlite\''),
        ),
        unseen=UNDER,
    ),
    Mutant(
        "a station that begins what cannot be paid for",
        "station",
        broken_station("_check_budget", ("raise Refused(reason)", "return")),
        unseen=UNDER,
    ),
    Mutant(
        "a station's study may take all of a ledger",
        "station",
        broken_station("_open", ("self.study, self.epsilon)", "self.study, self.ledger.epsilon)")),
        unseen=UNDER,
    ),
    Mutant(
        "a station that goes on with an older copy of its ledger",
        "station",
        broken_station("_ledger", ("check_complete(path, entries, self._traces(entries))", "pass")),
        unseen="what was released before the copy was put back is on nobody's ledger",
    ),
    Mutant(
        "scales of columns from every message",
        "station",
        broken_station("_checked_scaling", ("if self.scales.exists():", "if False:")),
        unseen="records are clipped after they are scaled: it spoils a result and not its privacy",
    ),
    Mutant(
        "FLARE's own requests reach a site",
        "gate",
        broken_gate(
            ("        and (head(MessageHeaderKey.CHANNEL), head(MessageHeaderKey.TOPIC)) == (CHANNEL, TOPIC)\n", "")
        ),
        unseen=OPEN,
    ),
    Mutant(
        "objects are decoded by FLARE",
        "gate",
        broken_gate(("        and head(MessageHeaderKey.PAYLOAD_ENCODING) in encodings\n", "")),
        unseen=OPEN,
    ),
    Mutant(
        "an answer in another site's name",
        "gate",
        broken_gate(("head(MessageHeaderKey.ORIGIN) == head(MessageHeaderKey.FROM_CELL) == peer", "True")),
        unseen=OPEN,
    ),
    Mutant(
        "messages are passed on for others",
        "gate",
        broken_gate(("head(MessageHeaderKey.DESTINATION) == head(MessageHeaderKey.TO_CELL) == own", "True")),
        unseen=OPEN,
    ),
    Mutant(
        "a request that is worked on is begun again",
        "answerer",
        broken_answerer(
            "_answer",
            ("if self._latest is None or self._latest[1].done():", "if True:"),
        ),
        unseen="its site answers the second from the store: it costs time",
    ),
    # What is upstream of a sum.
    Mutant("held out by place", "split", patched((Setup, "_held_out", by_place)), by_deleting_a_row),
    Mutant(
        "held out under a secret made of the number of records",
        "split",
        rewritten_in(
            (
                Setup,
                "_held_out",
                ("self._secrets.get(member.name, PUBLIC)", "str(len(member.table.target)).encode()"),
            )
        ),
        by_deleting_a_row,
    ),
    Mutant(
        "a record is what pandas makes of its columns",
        "split",
        rewritten_in((tables, "_cells", ('    if column.dtype.kind in "iuf":', "    if False:"), TYPED)),
        unseen=SPLITS,
    ),
    Mutant(
        "a record is what numpy makes of a list",
        "lists",
        rewritten_in(
            (tables.Table, "of", ("y if y.dtype == np.float32 else y.astype(np.float64)", "y")),
            (tables.Table, "contents", ("_single(column)", "column")),
        ),
        unseen=SPLITS,
    ),
    Mutant(
        "row numbers are part of a record",
        "row numbers",
        patched((tables, "bookkeeping", lambda frame: [])),
        unseen=SPLITS,
    ),
    Mutant(
        "an exact sum in the posterior",
        "table",
        patched((fitting, "run", leaking)),
        unseen=PAST,
    ),
    Mutant(
        "a site draws by its place",
        "place",
        rewritten_in(
            (
                Access,
                "whole",
                ("records=together", "records=(together, jnp.arange(len(self.present))[:, None])"),
            ),
            (
                tied,
                "_update",
                ("records, filled = site", "(records, filled), number = site"),
                ("0 * jnp.sum(filled, dtype=jnp.int32)", "number"),
            ),
        ),
        unseen="a row of a site is no unit there, and made-up sites do not move up",
    ),
    Mutant(
        "slots that follow the number of records",
        "table",
        rewritten_in((tacit, "fit", ("capacity=slots", "capacity=None"))),
        unseen="the audit of a fit has as many slots in both worlds",
    ),
    Mutant(
        "categories read off the data",
        "table",
        rewritten_in((tables, "_kinds", (KNOWN, f"{KNOWN}; {SEEN}"))),
        unseen=READ_OFF,
    ),
    Mutant(
        "bounds read off the data",
        "table",
        rewritten_in((tables, "_kinds", (KNOWN, f"{KNOWN}; {REACHED}"))),
        unseen=READ_OFF,
    ),
    # Secure sums.
    Mutant("masks by a twister with a short seed", "secure sum", broken_sums(TWISTER), Coordinating(by_guessing)),
    Mutant(
        "keys that nobody has signed",
        "secure sum",
        broken_sums(("        verify(session, one)\n        found[one.site] = one", "        found[one.site] = one")),
        Coordinating(by_impersonation),
    ),
    Mutant(
        "both shares of a site answered",
        "secure sum",
        broken_sums(
            (
                "for name, both in site.shares.items() if name not in site.survivors",
                "for name, both in site.shares.items()",
            ),
            ("set(one.gone) != set(shared) - set(parts)", "False"),
        ),
        Coordinating(by_both_shares),
    ),
    Mutant(
        "no share of the noise",
        "share",
        with_shares("0 * noise"),
        Coordinating(),
    ),
    Mutant(
        "noise for which nobody may be gone or pool",
        "share",
        broken_share("_lattice", ("margin, self.honest)", "margin, self.sites)")),
        Coordinating(),
    ),
    Mutant(
        "a site that goes on from its own part of a sum",
        "share",
        replaced(contributed=carelessly),
        unseen="what it makes possible is attacked above, as a hidden share of noise",
    ),
    Mutant(
        "a secure round that is run again",
        "delegate",
        broken_delegate("_begin", ("if round in self._made or round < self.last_round:", "if False:")),
        unseen=UNDER,
    ),
    Mutant(
        "a secure sum that is not charged",
        "delegate",
        broken_delegate("_masked", ("self.ledger.charge(price.event", "(lambda *a, **k: None)(price.event")),
        unseen=UNDER,
    ),
    Mutant(
        "a secure sum that is charged after reading",
        "delegate",
        replaced(delegate=ChargedLater),
        unseen="the same is released, and charged but where it fails on the way",
    ),
]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


# --- Outcomes ----------------------------------------------------------------------------------------------------

STOPPED = "the receipt is not the price"  # the guard by which a site ends itself


@functools.cache
def is_killed(world: World, check: str) -> bool:
    """By a failed assertion or a guard. Any other error, such as a missing name, is of a mutant that cannot run."""
    try:
        CHECKS[check](world)
    except (AssertionError, pytest.fail.Exception):
        return True
    except RuntimeError as error:
        if STOPPED not in str(error):
            raise
        return True
    return False


@functools.cache
def verdict(world: World, attack: Callable[[World], Verdict]) -> Verdict:
    return attack(world)


def kills(mutant: Mutant) -> dict[str, bool]:
    """For each check that a mutant is tried by, whether it was killed; the audit is one of them."""
    found = {check: is_killed(mutant.plant(), check) for check in TRIED[mutant.part]}
    if mutant.attack is not None:
        claimed, shown = verdict(mutant.plant(), mutant.attack)
        found["audit"] = shown > claimed
    return found


def kill_table() -> str:
    """A row for each mutant: by what it was killed, and what the attack that is made for it proves."""
    columns = [*CHECKS, "audit"]
    words = {True: "killed", False: "lived", None: "·"}
    rows = [["mutant", *columns, "claimed ε", "proved ε", "of the sound code"], ["---"] * (len(columns) + 4)]
    for mutant in MUTANTS:
        found, epsilons = kills(mutant), ["·"] * 3
        if mutant.attack is not None:
            (claimed, shown), sound = verdict(mutant.plant(), mutant.attack), verdict(SOUND, mutant.attack)
            epsilons = [f"{claimed:.2f}", f"{shown:.2f}", f"{sound[1]:.2f} of {sound[0]:.2f}"]
        rows.append([mutant.name, *(words[found.get(column)] for column in columns), *epsilons])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


# --- Tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS)
def test_the_sound_code_passes_every_check(check):
    """Else a kill would mean nothing."""
    CHECKS[check](SOUND)


ATTACKS = {mutant.attack: mutant.name for mutant in reversed(MUTANTS) if mutant.attack is not None}


@pytest.mark.parametrize("attack", ATTACKS, ids=ATTACKS.get)
def test_no_attack_refutes_the_sound_code(attack):
    """An attack goes by the name of the first mutant that it is made for."""
    claimed, shown = verdict(SOUND, attack)
    assert shown <= claimed


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mutant_is_killed(name):
    """By a check at least; and by the audit, if it changes what an attacker sees."""
    mutant = BY_NAME[name]
    assert mutant.changes_distribution != bool(mutant.unseen), "an attack, or why there is none"
    found = kills(mutant)
    assert any(found[check] for check in TRIED[mutant.part])
    assert found.get("audit", True), verdict(mutant.plant(), mutant.attack)


def test_names_are_unique_and_a_mutant_whose_line_is_gone_says_so():
    assert len(BY_NAME) == len(MUTANTS)
    with pytest.raises(AssertionError, match="write this mutant anew"):
        rewritten(repeat, ("a line that is not there", ""))


def test_the_kill_table_has_no_survivor():
    table = kill_table()
    print(f"\n{table}")
    if path := os.environ.get("TACIT_KILL_TABLE"):
        Path(path).write_text(table + "\n")
    assert all(any(kills(mutant).values()) for mutant in MUTANTS)
    idle = {check for check in CHECKS if not any(kills(mutant).get(check) for mutant in MUTANTS)}
    assert not idle, "a check that kills nothing has shown no power"
