"""A row less in the file moves every exact sum by at most its clip, and changes nothing else that leaves.

Through every front, by `tests/neighbours.py`: rows are deleted from the file before anything reads it. The bugs that
this is for (records that cross between training and test, draws by a site's place) are planted in `tests/mutants`.
"""

import functools
import hashlib
import io
import itertools
import os
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.neighbours import Heard, Listened, Seen, charged, files, flat, listened, without, write

import tacit
from tacit.cli.app import main
from tacit.estimators.estimators import PrivateLogisticRegression
from tacit.families import DiagonalGaussian
from tacit.federated.pvi import PVI
from tacit.federated.tied import Whole, of_sites
from tacit.files.study_file import read_study
from tacit.models import GaussianMixture, LogisticRegression
from tacit.posterior.posterior import Posterior
from tacit.privacy.clipping import per_record
from tacit.privacy.events import from_dict
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.sampling import PoissonSampler
from tacit.solvers import VI
from tacit.study.coordinator import StudyResult
from tacit.study.front import federate
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table

pytestmark = pytest.mark.xdist_group("neighbours")  # in one process: fronts are compiled once
ROWS, SEED, ODD, ODD_LEAST = 24, 1, 10, 9.5  # the least of what is in "a" of that record alone
ORDERS = ("random", "sorted", "copies")
counted = itertools.count()


def frame(seed: int, order: str = "random") -> pd.DataFrame:
    """Records with a target for each model. copies: every third record is the first one again.

    Record `ODD` alone has a fraction in "code", a category "z" in "b" and the largest number in "a": without it, pandas
    takes a column for another, and what is read off the data is something else.
    """
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "a": rng.uniform(0, 9.5, ROWS).round(3),
            "b": rng.choice(["x", "y"], ROWS),
            "who": rng.integers(0, 9, ROWS),
            "two": rng.integers(0, 2, ROWS),
            "number": rng.normal(size=ROWS).round(3),
            "count": rng.poisson(2, ROWS),
            "class": rng.choice(["p", "q", "r"], ROWS),
            "code": np.arange(ROWS, dtype=object),
        }
    )
    found.loc[ODD, ["a", "b", "code"]] = [9.9, "z", 0.5]
    assert np.flatnonzero(found["a"] > ODD_LEAST).tolist() == [ODD]
    if order == "sorted":
        return found.sort_values(["two", "a"])
    if order == "copies":
        found.iloc[::3] = found.iloc[0]
    return found


class Files:
    """A front's file in each order, its first run on each, and neighbours of it."""

    def __init__(self, folder: Path, front: Callable[[Path], Any], sites: int = 0) -> None:
        self.folder, self.front, self.sites = folder, front, sites
        self._listened: dict[str, Listened] = {}

    def base(self, order: str) -> Path:
        """The file; of several sites, the folder of their files."""
        if not self.sites:
            return self.folder / order / "records.csv"
        return self.folder / order

    def listened(self, order: str) -> Listened:
        if order not in self._listened:
            if self.sites:
                for site in range(self.sites):
                    write(self.base(order) / f"s{site}.csv", frame(site, order))
            else:
                write(self.base(order), frame(0, order))
            self._listened[order] = listened(self.front, self.base(order))
        return self._listened[order]

    def forget(self) -> None:
        """Begin with a first run again, such as after the code was changed."""
        self._listened.clear()

    def without(self, order: str, gone: set[int], site: int = 0) -> Path:
        """The file (of a site) without these rows, and the files of all others as they are."""
        to, base = self.folder / f"neighbour-{next(counted)}", self.base(order)
        if not self.sites:
            return without(base, gone, to / "records.csv")
        for other in range(self.sites):
            without(base / f"s{other}.csv", gone if other == site else set(), to / f"s{other}.csv")
        return to


# --- One site ----------------------------------------------------------------------------------------------------

CATEGORIES = {"b": ("x", "y", "z")}
TARGETS = {"logistic": "two", "probit": "two", "linear": "number", "poisson": "count", "softmax": "class"}
PEOPLE = 9


def fitted(path: Path, model: str = "logistic", bounds: bool = False, unit: str | None = None, **given: Any) -> Seen:
    """`tacit.fit` on a file."""
    target = TARGETS[model]
    limits = {"a": (0.0, 10.0), "number": (-5.0, 5.0), "count": (0.0, 9.0)}
    limits = {name: pair for name, pair in limits.items() if name in ("a", target)}
    facts = Facts(limits if bounds else {}, CATEGORIES, ("p", "q", "r") if model == "softmax" else None)
    read = read_frame(path, facts.listed(target) | ({} if unit is None else {unit: ()}))
    table = Table.of_frame(read, target, model, unit=unit, columns=["a", "b"], facts=facts)
    slots = ROWS if unit is None else PEOPLE + 1
    return found(tacit.fit(model, table, 2.0, 1e-4, slots=slots, insecure_seed=SEED, **given))


def found(posterior: Posterior, *more: Any) -> Seen:
    """All of a posterior, its file, and what else is made of it."""
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(Path(folder) / "posterior.json")
        return Seen.of([posterior, files(Path(folder)), *more], [from_dict(posterior.statement["event"])])


def mixed(path: Path, **given: Any) -> Seen:
    """A model of one's own on a file."""
    records = (read_frame(path)[["a", "number"]].to_numpy() / 10).astype(np.float32)
    return found(tacit.fit(GaussianMixture(2, 2), records, 2.0, 1e-4, slots=ROWS, steps=3, insecure_seed=SEED, **given))


def plain(path: Path) -> Seen:
    """The same of a regression that is a model of one's own."""
    read = read_frame(path)
    x = np.column_stack([np.ones(len(read)), read["a"].to_numpy() / 10]).astype(np.float32)
    records, model = (x, read["two"].to_numpy(np.float32)), LogisticRegression(DiagonalGaussian.standard(2))
    return found(tacit.fit(model, records, 2.0, 1e-4, slots=ROWS, insecure_seed=SEED))


def commanded(path: Path) -> Seen:
    """`tacit fit`: what it writes, prints and charges; what is for the holder's eyes alone is on standard error."""
    out, printed = path.parent / f"out-{next(counted)}", io.StringIO()
    arguments = [path, "--target", "two", "--model", "logistic", "--columns", "a,b", "--bounds", "a=0:10"]
    arguments += ["--categories", "b=x,y,z", "--epsilon", "2", "--delta", "1e-4", "--slots", ROWS, "--out", out]
    arguments += ["--insecure-seed", SEED, "--ledger", out / "ledger.sqlite", "--budget-epsilon", 4]
    out.mkdir()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "1000"})  # no name of a folder is folded
    with wide, redirect_stdout(printed), redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as stop:
        main(["fit", *map(str, arguments)])
    assert stop.value.code == 0
    digest = hashlib.sha256((out / "posterior.json").read_bytes()).hexdigest()  # of a file with a name that is drawn
    return Seen.of([files(out), printed.getvalue()], charged(out), out, digest)


def estimated(path: Path) -> Seen:
    """An estimator of scikit-learn's form, and what it predicts."""
    read = read_frame(path)
    estimator = PrivateLogisticRegression(
        2.0, 1e-4, bounds=([0, -5], [10, 5]), classes=[0, 1], slots=ROWS, insecure_seed=SEED
    )
    estimator.fit(read[["a", "number"]].to_numpy(), read["two"].to_numpy())
    left = {name: value for name, value in vars(estimator).items() if name.endswith("_") and name != "posterior_"}
    return found(estimator.posterior_, left, estimator.predict_proba([[1.0, 0.0], [9.0, 2.0]]))


def fits(**given: Any) -> Callable[[Path], Seen]:
    return functools.partial(fitted, **given)


SHORT: dict[str, Any] = {"method": "sgld", "steps": 4}
FITS: dict[str, Callable[[Path], Seen]] = {
    "logistic": fits(),
    "linear, with bounds": fits(model="linear", bounds=True),
    "softmax, adaptive": fits(model="softmax", bounds=True, clip="adaptive", steps=3),
    "poisson by sgld": fits(model="poisson", **SHORT),
    "a mixture": mixed,
    "an estimator": estimated,
}
SLOW_FITS: dict[str, Callable[[Path], Seen]] = {
    "a mixture, adaptive": functools.partial(mixed, clip="adaptive"),
    "a mixture by sgld": functools.partial(mixed, method="sgld"),
    "a logistic model of one's own": plain,
    "scales by bounds": fits(bounds=True, scaling="bounds"),
    "probit, adaptive": fits(model="probit", clip="adaptive", steps=3),
    "samples, by Adam": fits(bounds=True, steps=3, sampling_rate=0.5, learning_rate=0.02),
    "softmax": fits(model="softmax", steps=3),
    "softmax by sgld": fits(model="softmax", **SHORT),
    **{
        f"{model} by {method}{', with bounds' * bounds}": fits(
            model=model, bounds=bounds, **(SHORT if method == "sgld" else {"method": method})
        )
        for model in ("logistic", "probit", "linear", "poisson")
        for method in ("vi", "ep", "sep", "sgld")
        for bounds in (False, True)
    },
}
EVERY_FIT = FITS | SLOW_FITS


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Files]:
    """Files of each front by its name, made once."""

    @functools.cache
    def made(name: str) -> Files:
        if name in EVERY_FIT:
            return Files(tmp_path_factory.mktemp("fit"), EVERY_FIT[name])
        front = WRAPPED.get(name, lambda front: front)(studied(**EVERY_STUDY[name]))
        return Files(tmp_path_factory.mktemp("study"), front, sites=SITES)

    return made


def marked(quick: Any, slow: Any) -> list[Any]:
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


PLACES = st.integers(0, ROWS - 1)


@pytest.mark.parametrize("name", marked(FITS, SLOW_FITS))
@settings(max_examples=4)
@given(order=st.sampled_from(ORDERS), place=PLACES)
@example(order="sorted", place=0)
@example(order="random", place=ROWS - 1)
@example(order="random", place=ODD)
@example(order="copies", place=0)
def test_a_row_less_moves_every_sum_of_a_fit_by_at_most_its_clip(fronts, name, order, place):
    files = fronts(name)
    files.listened(order).check(files.without(order, {place}))


def test_a_row_less_changes_nothing_that_the_command_line_gives_out(tmp_path):
    files = Files(tmp_path, commanded)
    for order, place in (("random", ODD), ("random", ROWS - 1), ("sorted", 0), ("copies", 0)):
        files.listened(order).check(files.without(order, {place}))


@pytest.mark.parametrize("settings", [{}, pytest.param({"method": "ep", "model": "linear"}, marks=pytest.mark.slow)])
def test_a_person_less_with_all_records_moves_every_sum_by_at_most_its_clip(tmp_path, settings):
    """Of whom some have more records than are used; their places in the file are between those of others."""
    files = Files(tmp_path, fits(unit="who", most_records=2, **settings))
    first = files.listened("random")
    who = frame(0)["who"].to_numpy()
    assert np.bincount(who).max() > 2
    for person in dict.fromkeys(who[[0, 5, -1]]):
        first.check(files.without("random", set(np.flatnonzero(who == person).tolist())))


# --- Many sites --------------------------------------------------------------------------------------------------

SITES = 3
FORM = """
name = "neighbours"
epsilon = 2.0
delta = 1e-4
columns = ["a", "b"]
[facts.bounds]
a = [0, 10]
number = [-5, 5]
[facts.categories]
b = ["x", "y", "z"]
"""


def study_file(folder: Path, **given: Any) -> Path:
    given = {"model": "logistic", **given}
    target = TARGETS[given["model"]]
    form = FORM if target == "number" else FORM.replace("number = [-5, 5]\n", "")
    lines = [f'target = "{target}"'] + [f"{name} = {_toml(value)}" for name, value in given.items() if name != "vi"]
    tables = [f'[[site]]\nname = "s{site}"\nfile = "s{site}.csv"\nslots = {ROWS}' for site in range(SITES)]
    if "vi" in given:
        tables.append("\n".join(["[vi]", *(f"{name} = {value}" for name, value in given["vi"].items())]))
    path = folder / "study.toml"
    path.write_text("\n".join([*lines, form, *tables]))
    return path


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


Change = Callable[[Site], Site]


def studied(change: Change | None = None, **given: Any) -> Callable[[Path], Seen]:
    """`federate` on a study file and the files of its sites. change: of a site's records, on the way."""

    def front(folder: Path) -> Seen:
        study = read_study(study_file(folder, **given))
        sites, _ = study.gather()
        out = folder / f"out-{next(counted)}"
        sites = sites if change is None else [change(site) for site in sites]
        return seen_of(federate(study.plan, sites, out=out, insecure_seed=SEED), out, out)

    return front


def seen_of(found: StudyResult, out: Path, ledgers: Path) -> Seen:
    return Seen.of([found, files(out)], charged(ledgers), out)


def of_lists(site: Site) -> Site:
    """The same records as a Python program might have them: lists, in which a single number is of another type."""
    table = site.table
    features = table.features.tolist()
    target = [int(y) if x[0] > ODD_LEAST else bool(y) for x, y in zip(features, table.target, strict=True)]
    more = {"names": table.names, "indicators": [1, 2], "bounds": {"a": (0, 10)}, "classes": table.classes}
    return replace(site, table=Table.of(features, target, notes=table.notes, schema=table.schema, **more))


def numbered(front: Callable[[Path], Seen]) -> Callable[[Path], Seen]:
    """The front on files that are written by pandas on the way, which puts a number before each row."""

    def on(folder: Path) -> Seen:
        to = folder / f"numbered-{next(counted)}"
        to.mkdir()
        for site in range(SITES):
            pd.read_csv(folder / f"s{site}.csv", dtype=str, keep_default_na=False).to_csv(to / f"s{site}.csv")
        return front(to)

    return on


STUDIES: dict[str, dict[str, Any]] = {
    "priced scores": {"rounds": 2, "evaluation": 0.2},
    "secure sums": {"rounds": 1, "evaluation": 0.2, "secure_sum": True},
    "lists": {"rounds": 1, "evaluation": 0.2, "change": of_lists},
    "row numbers": {"rounds": 1, "evaluation": 0.2},
}
WRAPPED = {"row numbers": numbered}
SLOW_STUDIES: dict[str, dict[str, Any]] = {
    "ep": {"rounds": 2, "method": "ep", "evaluation": 0.2},
    "sep": {"rounds": 2, "method": "sep", "evaluation": 0.2},
    "vi": {"rounds": 2, "method": "vi", "vi": {"steps": 3, "noise_multiplier": 2.0, "sampling_rate": 0.5}},
    "two releases of curvature": {"rounds": 6, "model": "probit", "evaluation": 0.1},
    "a linear model": {"rounds": 2, "model": "linear"},
    "one after the other": {"rounds": 2, "schedule": "sequential", "evaluation": 0.2},
    "asynchronous": {"rounds": 2, "schedule": "asynchronous", "evaluation": 0.2},
    "replace-one": {"rounds": 2, "adjacency": "replace-one", "evaluation": 0.2},
    "secure sums by ep": {"rounds": 6, "method": "ep", "evaluation": 0.2, "secure_sum": True},
    "secure sums, linear": {"rounds": 2, "model": "linear", "secure_sum": True},
}
EVERY_STUDY = STUDIES | SLOW_STUDIES


@pytest.mark.parametrize("name", marked(STUDIES, SLOW_STUDIES))
@settings(max_examples=2)
@given(order=st.sampled_from(ORDERS), place=PLACES, site=st.integers(0, SITES - 1))
@example(order="sorted", place=0, site=0)
@example(order="random", place=ODD, site=2)
@example(order="copies", place=0, site=1)
def test_a_row_less_moves_every_sum_of_a_study_by_at_most_its_clip(fronts, name, order, place, site):
    files = fronts(name)
    files.listened(order).check(files.without(order, {place}, site))


def test_a_row_less_at_a_station_moves_every_sum_by_at_most_its_clip(tmp_path):
    """The same study between machines: stations that read their own files, and a coordinator that sees no record."""
    pytest.importorskip("nvflare")
    from tests.network.conftest import Clinics

    def front(folder: Path) -> Seen:
        """A folder with the file of the first clinic; those of others are as ever."""
        clinics = Clinics(folder)
        clinics.study = clinics.read(rounds=2, evaluation=0.2)
        for name in ("north", "south", "west"):
            clinics.set(name)
        records = folder / "records.csv"
        if records.exists():
            records.replace(folder / "north" / "north.csv")
        found = clinics.coordinate()
        clinics.close()
        return seen_of(found, folder / "out", folder)

    (tmp_path / "base").mkdir()
    first = listened(front, tmp_path / "base")
    records = tmp_path / "base" / "north" / "north.csv"
    for place in (0, 21, 39):
        neighbour = tmp_path / f"without-{place}"
        without(records, {place}, neighbour / "records.csv")
        first.check(neighbour)


# --- Whole sites -------------------------------------------------------------------------------------------------


def left(gone: str | None) -> Any:
    """Setups of which a site has left its place, as the number of sites is public: those after it move up."""
    sound = Setup._records

    def records(self: Setup, sites: Any, slots: int) -> Access:
        kept = [site for site in sites if site.name != gone]
        if not kept:
            found = sound(self, sites, slots)
            return replace(found, present=jnp.zeros_like(found.present))
        found = sound(self, kept, slots)

        def padded(leaf: Any) -> Any:
            return jnp.pad(leaf, [(0, len(sites) - len(kept)), *[(0, 0)] * (leaf.ndim - 1)])

        return replace(found, records=jax.tree.map(padded, found.records), present=padded(found.present))

    return mock.patch.object(Setup, "_records", records)


WHOLE: dict[str, dict[str, Any]] = {"tied": {"noise": "tied", "evaluation": 0.2}}
SLOW_WHOLE: dict[str, dict[str, Any]] = {
    "central": {"noise": "central"},
    "central, reset": {"noise": "central", "reset": 1, "evaluation": 0.2},
    "per-site": {"noise": "per-site", "evaluation": 0.2},
    "secure sums": {"noise": "tied", "secure_sum": True, "evaluation": 0.2},
    "sampled": {"noise": "tied", "participation": 0.5},
}


@pytest.mark.parametrize("name", marked(WHOLE, SLOW_WHOLE))
def test_a_site_less_moves_every_sum_by_at_most_its_clip(tmp_path, name):
    """A site with all its records is the unit, and those after it take the slots before theirs."""
    study = studied(rounds=2, unit="site", **(WHOLE | SLOW_WHOLE)[name])

    def front(given: tuple[Path, str | None]) -> Seen:
        with left(given[1]):
            return study(given[0])

    for site in range(SITES):
        write(tmp_path / f"s{site}.csv", frame(site))
    first = listened(front, (tmp_path, None))
    for site in range(SITES):
        first.check((tmp_path, f"s{site}"))


DRAWING = VI(2, optax.sgd(0.01), path="aligned")  # θ is drawn, and all records of a site see the draw


def drawn(given: tuple[Path, set[int]]) -> Seen:
    """Tied factors of sites whose local solver draws: one release of the first round. given: which sites there are."""
    folder, there = given
    found = []
    for site in sorted(there):
        read = read_frame(folder / f"s{site}.csv")
        x = np.column_stack([np.ones(len(read)), read["a"].to_numpy() / 10]).astype(np.float32)
        found.append((x, read["two"].to_numpy(np.float32)))
    model = LogisticRegression(DiagonalGaussian.standard(2))
    algorithm = PVI(model.prior, model, (Whole(DRAWING),), damping=(0.5,))
    access = of_sites(found, Heard(1.0, 1.0), records=ROWS, slots=SITES)
    release = algorithm.site_step(tacit.insecure_key(2), algorithm.site_init(), algorithm.prior, access, 0)
    return Seen.of(jax.tree.leaves(algorithm.answer(release.value)), [release.event])


def test_a_site_less_leaves_what_all_others_add_as_it_is(tmp_path):
    """A sum moves by what the site that is gone adds by itself, to a millionth of the clip: others draw as before."""
    for site in range(SITES):
        write(tmp_path / f"s{site}.csv", frame(site))
    everybody = set(range(SITES))
    first = listened(drawn, (tmp_path, everybody))
    ((kind, whole, _),) = first.tape.first
    for site in everybody:
        first.check((tmp_path, everybody - {site}))
        ((_, rest, _),) = first.tape.now
        first.distances((tmp_path, {site}))
        ((_, alone, _),) = first.tape.now
        assert np.linalg.norm(alone) > 1e-3 * kind.most
        assert np.linalg.norm(whole - rest - alone) < 1e-6 * kind.most


# --- What the harness leaves out ---------------------------------------------------------------------------------


def test_slots_are_exchangeable():
    """A row less moves later records by a slot, which no distribution shows: slots are chosen alike and in pairs alike.

    20,000 samples of 12 slots: shares of single slots and of pairs are within 5 standard errors of the rate and of its
    square, a false alarm in 20,000 runs over the 78 of them; a slot that is twice as likely is seen in each.
    """
    slots, rate, draws = 12, 0.3, 20_000
    sampler = PoissonSampler(slots, (rate,), slots)

    @jax.jit
    @jax.vmap
    def chosen(key: Any) -> Any:
        indices, is_filled = sampler.draw(key, 0)
        return jnp.zeros(slots, jnp.int32).at[indices].max(is_filled.astype(jnp.int32))

    found = np.asarray(chosen(jax.random.split(tacit.insecure_key(5), draws)), float)
    pairs = found.T @ found / draws
    expected = np.full((slots, slots), rate**2) + np.diag(np.full(slots, rate - rate**2))
    errors = np.sqrt(expected * (1 - expected) / draws)
    assert np.all(np.abs(pairs - expected) < 5 * errors)
    assert np.all(np.abs(2 * np.diag(pairs) - rate) > 5 * np.diag(errors)), "twice the rate would be seen"


def test_the_harness_sees_a_sum_that_moves_too_far_and_a_sum_too_many(tmp_path):
    """The test of the test: a front that reads its number of rows moves too far, and one that stops by it too early."""

    def counting(path: Path) -> Seen:
        rows = read_frame(path)["a"].to_numpy(np.float32)
        access = Access.of(rows * (1 + len(rows) % 2), Heard(1.0, 1.0), slots=ROWS)
        release = access.sum(tacit.insecure_key(3), per_record(lambda row: 0.1 * row))
        return Seen.of(release.value, [release.event])

    def stopping(path: Path) -> Seen:
        return repeated(1 + len(read_frame(path)) % 2)

    def repeated(rounds: int, mechanism: SubsampledGaussian | None = None) -> Seen:
        access, events = Access.of(np.ones(ROWS, np.float32), Heard(1.0, 1.0)), []
        for round in range(rounds):
            through = access if mechanism is None or round == 0 else access.through(mechanism)
            release = through.sum(tacit.insecure_key(round), per_record(lambda row: row))
            jax.block_until_ready(release.value)
            events.append(release.event)
        return Seen.of(None, events)

    def leaking(path: Path) -> Seen:
        return replace(counting(path), left=dict(flat(float(read_frame(path)["a"].sum()))))

    for front, words in (
        (counting, "times what its noise hides"),
        (stopping, "other sums"),
        (leaking, "what leaves differs"),
    ):
        files = Files(tmp_path / front.__name__, front)
        first = files.listened("random")
        with pytest.raises(AssertionError, match=words):
            first.check(files.without("random", {3}))

    with pytest.raises(AssertionError, match="past the tape"):
        listened(lambda _: repeated(2, SubsampledGaussian(1.0, 1.0)), None)
