"""A row less in the file moves every exact sum by at most its clip, and changes nothing else that leaves.

Through every front, by `tests/neighbours.py`: rows are deleted from the file before anything reads it. The bugs that
this is for (records that cross between training and test, draws by a site's place) are planted in `tests/mutants`.
"""

import functools
import hashlib
import io
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
from tests.neighbours import (
    ODD,
    ODD_LEAST,
    ROWS,
    Files,
    Heard,
    Seen,
    charged,
    counted,
    files,
    flat,
    frame,
    listened,
    without,
    write,
)

import tacit
from tacit.cli.app import main
from tacit.estimators.estimators import PrivateLogisticRegression
from tacit.families import DiagonalGaussian
from tacit.federated.pvi import PVI
from tacit.federated.tied import Whole, of_sites
from tacit.files.study_file import read_study
from tacit.models import GaussianMixture, LogisticRegression, from_numpyro
from tacit.posterior.posterior import Posterior
from tacit.privacy.clipping import per_record
from tacit.privacy.events import from_dict
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.sampling import PoissonSampler
from tacit.solvers import VI
from tacit.study.coordinator import StudyResult
from tacit.study.front import federate
from tacit.study.plan import VISettings
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table

pytestmark = pytest.mark.xdist_group("neighbours")  # in one process: fronts are compiled once
SEED = 1
ORDERS = ("random", "sorted", "copies")


# --- One site ----------------------------------------------------------------------------------------------------

CATEGORIES = {"b": ("x", "y", "z")}
TARGETS = {"logistic": "two", "probit": "two", "linear": "number", "poisson": "count", "softmax": "class"}
PEOPLE = 9


def table_of(path: Path, model: str, bounds: bool, person: str | None = None) -> Table:
    """A file as a table, with or without public bounds of its numbers."""
    target = TARGETS[model]
    limits = {"a": (0.0, 10.0), "number": (-5.0, 5.0), "count": (0.0, 9.0)}
    limits = {name: pair for name, pair in limits.items() if name in ("a", target)}
    facts = Facts(limits if bounds else {}, CATEGORIES, ("p", "q", "r") if model == "softmax" else None)
    read = read_frame(path, facts.listed(target) | ({} if person is None else {person: ()}))
    return Table.of_frame(read, target, model, unit=person, columns=["a", "b"], facts=facts)


def fitted(path: Path, model: str = "logistic", bounds: bool = False, person: str | None = None, **given: Any) -> Seen:
    """`tacit.fit` on a file."""
    table, slots = table_of(path, model, bounds, person), ROWS if person is None else PEOPLE + 1
    return found(tacit.fit(model, table, 2.0, 1e-4, slots=slots, insecure_seed=SEED, **given))


def found(posterior: Posterior, *more: Any) -> Seen:
    """All of a posterior, its file, and what else is made of it."""
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(Path(folder) / "posterior.json")
        return Seen.of([posterior, files(Path(folder)), *more], [from_dict(posterior.statement["event"])])


@functools.cache
def written() -> Any:
    """A model written in NumPyro: a slope of 0 or 1 on a number."""
    import numpyro
    import numpyro.distributions as dist

    def model(x: Any, y: Any) -> None:
        slope, start = (numpyro.sample(name, dist.Normal(0.0, 2.0)) for name in ("slope", "start"))
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=start + slope * x), obs=y)

    return from_numpyro(model, (jnp.array([0.0, 0.5]), jnp.array([0, 1])))


def numbers(path: Path) -> Any:
    return (read_frame(path)[["a", "number"]].to_numpy() / 10).astype(np.float32)


def pairs(path: Path) -> Any:
    read = read_frame(path)
    return (read["a"].to_numpy() / 10).astype(np.float32), read["two"].to_numpy(np.int32)


def with_ones(path: Path) -> Any:
    x, y = pairs(path)
    return np.column_stack([np.ones(len(x), np.float32), x]), y.astype(np.float32)


# Models of one's own: the model, and how its records are read from a file.
OWN: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "mixture": (lambda: GaussianMixture(2, 2), numbers),
    "numpyro": (written, pairs),
    "regression": (lambda: LogisticRegression(DiagonalGaussian.standard(2)), with_ones),
}


def own(path: Path, model: str = "mixture", **given: Any) -> Seen:
    """`tacit.fit` of a model of one's own on a file."""
    make, read = OWN[model]
    return found(tacit.fit(make(), read(path), 2.0, 1e-4, slots=ROWS, insecure_seed=SEED, **given))


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
    "softmax, adaptive": fits(model="softmax", bounds=True, clip="adaptive", steps=3),
    "poisson by sgld": fits(model="poisson", **SHORT),
    "linear, with ranges that are paid": fits(model="linear", rounds=3),
    "scores that are paid": fits(rounds=2, evaluation=0.2),
    "a mixture": functools.partial(own, steps=3),
    "a NumPyro model": functools.partial(own, model="numpyro", steps=3),
}
SLOW_FITS: dict[str, Callable[[Path], Seen]] = {
    "linear, with bounds": fits(model="linear", bounds=True),
    "an estimator": estimated,
    "a mixture, adaptive": functools.partial(own, clip="adaptive", steps=3),
    "a mixture by sgld": functools.partial(own, method="sgld", steps=3),
    "a mixture by ep": functools.partial(own, method="ep", steps=3),
    "a logistic model of one's own": functools.partial(own, model="regression"),
    "scales by bounds": fits(bounds=True, scaling="bounds"),
    "probit, adaptive": fits(model="probit", method="vi", clip="adaptive", steps=3),
    "samples, by Adam": fits(bounds=True, method="vi", steps=3, sampling_rate=0.5, learning_rate=0.02),
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
        if name in EVERY_PYTHON:
            front = functools.partial(together, **EVERY_PYTHON[name])
        else:
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
    files = Files(tmp_path, fits(person="who", most_records=2, **settings))
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
"""
LIMITS = {"a": [0, 10], "number": [-5, 5], "count": [0, 9]}


def study_file(folder: Path, **given: Any) -> Path:
    given = {"model": "logistic", **given}
    target = TARGETS[given["model"]]
    limits = [f"{name} = {ends}" for name, ends in LIMITS.items() if name in ("a", target)]
    facts = ["[facts]", *(['classes = ["p", "q", "r"]'] if target == "class" else [])]
    form = "\n".join([FORM, *facts, "[facts.bounds]", *limits, "[facts.categories]", 'b = ["x", "y", "z"]'])
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


def together(folder: Path, model: str, **given: Any) -> Seen:
    """`federate` in Python on the files of sites: a model of one's own, or a regression without public bounds."""
    make, read = OWN.get(model, (lambda: model, functools.partial(table_of, model=model, bounds=False)))
    out = folder / f"out-{next(counted)}"
    data = {f"s{site}": read(folder / f"s{site}.csv") for site in range(SITES)}
    return seen_of(federate(make(), data, 2.0, 1e-4, slots=ROWS, out=out, insecure_seed=SEED, **given), out, out)


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
    "site effects": {"rounds": 2, "evaluation": 0.2, "site_effects": ["intercept", "a"]},
    "a softmax model": {"rounds": 2, "model": "softmax", "vi": {"steps": 3}},
    "a Poisson model": {"rounds": 2, "model": "poisson"},
    "samples of gradients": {"rounds": 6, "sampling_rate": 0.5},
    "adaptive clips": {"rounds": 2, "method": "vi", "vi": {"steps": 3, "is_adaptive": "true"}},
    "one after the other": {"rounds": 2, "schedule": "sequential", "evaluation": 0.2},
    "asynchronous": {"rounds": 2, "schedule": "asynchronous", "evaluation": 0.2},
    "replace-one": {"rounds": 2, "adjacency": "replace-one", "evaluation": 0.2},
    "secure sums by ep": {"rounds": 6, "method": "ep", "evaluation": 0.2, "secure_sum": True},
    "secure sums, linear": {"rounds": 2, "model": "linear", "secure_sum": True},
}
EVERY_STUDY = STUDIES | SLOW_STUDIES


OWN_STUDY: dict[str, Any] = {"rounds": 2, "method": "vi", "vi": VISettings(steps=3)}
PYTHON: dict[str, dict[str, Any]] = {
    "sites, a NumPyro model": {"model": "numpyro", **OWN_STUDY},
    "sites, ranges that are paid": {"model": "linear", "rounds": 3},
}
SLOW_PYTHON: dict[str, dict[str, Any]] = {
    "sites, a mixture": {"model": "mixture", **OWN_STUDY},
    "sites, a logistic model of one's own": {"model": "regression", "rounds": 3},
    "sites, ranges that are paid, counts": {"model": "poisson", "rounds": 2},
    "sites, ranges that are paid, secure sums": {"model": "logistic", "rounds": 2, "secure_sum": True},
}
EVERY_PYTHON = PYTHON | SLOW_PYTHON
assert len(EVERY_FIT | EVERY_STUDY | EVERY_PYTHON) == len(EVERY_FIT) + len(EVERY_STUDY) + len(EVERY_PYTHON), (
    "a name twice"
)


@pytest.mark.parametrize("name", marked([*STUDIES, *PYTHON], [*SLOW_STUDIES, *SLOW_PYTHON]))
@settings(max_examples=2)
@given(order=st.sampled_from(ORDERS), place=PLACES, site=st.integers(0, SITES - 1))
@example(order="sorted", place=0, site=0)
@example(order="random", place=ODD, site=2)
@example(order="copies", place=0, site=1)
def test_a_row_less_moves_every_sum_of_a_study_by_at_most_its_clip(fronts, name, order, place, site):
    files = fronts(name)
    files.listened(order).check(files.without(order, {place}, site))


PERSONS: dict[str, Any] = {"unit": "person", "person": "who", "most_records": 2}


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": 2, "evaluation": 0.2},
        pytest.param({"rounds": 2, "model": "linear"}, marks=pytest.mark.slow),
        pytest.param({"rounds": 2, "secure_sum": True}, marks=pytest.mark.slow),
        pytest.param({"rounds": 2, "method": "vi", "vi": {"steps": 3, "sampling_rate": 0.5}}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_person_less_at_a_site_moves_every_sum_by_at_most_its_clip(tmp_path, given):
    """With all records, of which some have more than are used. The same person at another site stays there."""
    files = Files(tmp_path, studied(**PERSONS, **given), sites=SITES)
    first = files.listened("random")
    for site in (0, SITES - 1):
        who = frame(site)["who"].to_numpy()
        assert np.bincount(who).max() > 2
        for person in dict.fromkeys(who[[0, ODD, -1]]):
            first.check(files.without("random", set(np.flatnonzero(who == person).tolist()), site))


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
