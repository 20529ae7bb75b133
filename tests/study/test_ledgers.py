"""Ledgers of a study cannot be lost, forgotten or bypassed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
from tests.study.studies import KINDS, PLAN, ROUNDS, SLOTS, ledger_paths, make_sites, own_ledger, stopped, table

from tacit.privacy import accounting
from tacit.privacy.allowance import Allowance
from tacit.privacy.events import compose
from tacit.privacy.ledger import Ledger
from tacit.study.front import federate
from tacit.study.plan import Plan, VISettings
from tacit.study.setup import Setup
from tacit.study.sites import Site, check_apart
from tacit.tables.table import Table

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once

# --- Ledgers that cannot be lost, forgotten or bypassed ------------------------------------------------------------


TRACES = {
    "store": ["*.progress", "history.json"],
    "progress": ["sites/*/*.store", "coordinator/*.store", "history.json"],
    "history": ["*.progress", "sites/*/*.store", "coordinator/*.store", "*.store"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["deleted", "older", "anew"])
def test_a_ledger_that_forgot_an_answered_round_is_refused_before_anything_is_charged(tmp_path, kind, damage):
    """One site's of several, in one process too. What it had spent would else be spent again."""
    plan, sites = KINDS[kind], make_sites(slots=SLOTS)
    stopped(tmp_path, plan, sites, 1)
    path = ledger_paths(tmp_path)[-1]
    older = path.read_bytes()
    (tmp_path / "copy").write_bytes(older)
    stopped(tmp_path, plan, sites, 2)
    if damage == "older":
        path.write_bytes(older)
    else:
        path.unlink()
    if damage == "anew":
        Ledger.create(path, data_set="a", epsilon=4.0, delta=1e-4, unit=plan.unit)
    before = {one: one.read_bytes() for one in ledger_paths(tmp_path)}
    words = "is gone and had" if damage == "deleted" else "does not have round"
    with pytest.raises(ValueError, match=f"ledger=.*{words}.*answered by .*; .*go back to a"):
        federate(plan, sites, out=tmp_path, insecure_seed=1)
    assert {one: one.read_bytes() for one in ledger_paths(tmp_path)} == before, "none was made, none was charged"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", TRACES)
def test_any_file_that_says_a_round_was_answered_is_enough_to_notice(tmp_path, kind, left):
    plan, sites = KINDS[kind], make_sites(slots=SLOTS)
    stopped(tmp_path, plan, sites)
    for pattern in TRACES[left]:
        for path in tmp_path.glob(pattern):
            path.unlink()
    ledger_paths(tmp_path)[0].unlink()
    with pytest.raises(ValueError, match="is gone"):
        federate(plan, sites, out=tmp_path, insecure_seed=1)
    assert len(ledger_paths(tmp_path)) == (0 if kind == "trusted coordinator" else 2)


@pytest.mark.parametrize("damage", ["deleted", "anew"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_whose_own_note_alone_is_left_does_not_begin_anew(tmp_path, kind, damage):
    """Ledgers, stores, progress and history went together: study.json says that there was a ledger, and which."""
    plan, sites = KINDS[kind], make_sites(slots=SLOTS)
    stopped(tmp_path, plan, sites)
    paths = ledger_paths(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "study.json":
            path.unlink()
    if damage == "anew":
        for path in paths:
            Ledger.create(path, data_set="a", epsilon=4.0, delta=1e-4, unit=plan.unit)
    before = {one: one.read_bytes() for one in ledger_paths(tmp_path)}
    words = "is gone" if damage == "deleted" else "is not the one that this study began with"
    with pytest.raises(ValueError, match=f"ledger=.* {words}; go back to a copy"):
        federate(plan, sites, out=tmp_path, insecure_seed=1)
    assert {one: one.read_bytes() for one in ledger_paths(tmp_path)} == before, "none was made, none was charged"


@pytest.mark.parametrize("damage", ["lost", "another"])
def test_a_study_goes_on_only_with_the_key_by_which_it_held_out_records(tmp_path, damage):
    """Under another key it would be judged by records that it learned from."""
    sites = make_sites(slots=SLOTS)

    def cut(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(PLAN, sites, out=tmp_path, observe=cut)
    key = tmp_path / "sites" / "site-1" / "held-out.key"
    secret = key.read_bytes()
    key.unlink()
    if damage == "another":
        key.write_bytes(secret[::-1])
    with pytest.raises(ValueError, match=f"held-out.key is {'gone' if damage == 'lost' else 'not the key'}"):
        federate(PLAN, sites, out=tmp_path)
    assert key.exists() == (damage == "another"), "none was made in its place"
    key.write_bytes(secret)
    federate(PLAN, sites, out=tmp_path)


def test_a_study_takes_no_more_of_a_ledger_than_its_own_budget(tmp_path):
    """By the published form too, which goes on until it is refused, however much is left in the ledger."""
    vi = VISettings(steps=5, noise_multiplier=1.5, sampling_rate=0.5)
    plan = Plan("logistic", rounds=12, method="vi", vi=vi)
    own = [replace(m, ledger=own_ledger(tmp_path, m.name), epsilon=6.0) for m in make_sites(slots=SLOTS)]
    found = federate(plan, own, out=tmp_path / "out", insecure_seed=1)
    for site, row in zip(own, found.sites, strict=True):
        ledger = Ledger.open(str(site.ledger))
        assert 0 < row["updates"] < 12
        assert row["spent"] == ledger.spent() <= 6.0 * (1 + 1e-9)
        assert "epsilon=6 of this study is spent" in row["refused"]
        assert (row["ledger_spent"], row["budget"]) == (ledger.spent(), 50.0)


@pytest.mark.parametrize("kind", [*KINDS, "ep", "sep"])
def test_every_kind_of_study_charges_through_its_allowance(tmp_path, monkeypatch, kind):
    """A ledger with room for ten times as much; each charge is asked for at the study's own ε."""
    plan = KINDS.get(kind) or Plan("logistic", rounds=ROUNDS, method=kind)  # type: ignore[arg-type]
    paths = [own_ledger(tmp_path, str(j), unit=plan.unit) for j in range(3)]
    sites = [
        replace(m, ledger=paths[0] if plan.trusts_coordinator else paths[j])
        for j, m in enumerate(make_sites(slots=SLOTS))
    ]
    asked: list[float] = []
    charge = Allowance.charge

    def watched(self: Any, *given: Any, **more: Any) -> Any:
        asked.append(self.epsilon)
        return charge(self, *given, **more)

    monkeypatch.setattr(Allowance, "charge", watched)
    federate(plan, sites, out=tmp_path / "out", insecure_seed=1)
    ledgers = {path: len(Ledger.open(path).entries()) for path in paths}
    assert len(asked) == sum(ledgers.values()) > 0
    assert set(asked) == {4.0}


def test_a_study_keeps_its_own_delta_and_its_ledger_another(tmp_path):
    own = [replace(m, ledger=own_ledger(tmp_path, m.name, delta=1e-3)) for m in make_sites()]
    found = federate(PLAN, own, out=tmp_path / "out", insecure_seed=1)
    for row, site in zip(found.sites, own, strict=True):
        assert site.ledger is not None
        ledger = Ledger.open(site.ledger)
        event = compose(*(entry.event for entry in ledger.entries()))
        assert row["delta"] == 1e-4
        assert 3.9 < row["spent"] <= 4.0
        assert row["spent"] == pytest.approx(accounting.epsilon(event, 1e-4), rel=1e-6), "at the study's δ"
        assert ledger.delta == 1e-3
        assert row["ledger_spent"] == ledger.spent() < row["spent"], "at the ledger's δ, which is larger"


def test_one_table_at_two_sites_is_refused_and_one_record_or_none_is_not(tmp_path):
    first, second, third = make_sites(3)
    again = replace(second, table=first.table.rows(np.arange(SLOTS)[::-1]))
    with pytest.raises(ValueError, match="site-1 holds the same records as site-0, by another file or in another"):
        federate(PLAN, [first, again, third], out=tmp_path)
    assert not list(tmp_path.iterdir()), "before anything is made"
    for size in (0, 1):
        check_apart([replace(one, table=first.table.rows(slice(size))) for one in (first, second)])
    check_apart([first, replace(second, table=table(SLOTS, seed=7))])


def test_two_sites_have_no_ledger_in_common(tmp_path):
    """A ledger takes each round of a study once: the second site would be told that its rounds were lost."""
    path = own_ledger(tmp_path)
    (tmp_path / "link").symlink_to(path)
    sites = [replace(m, ledger=path) for m in make_sites(2)]
    for other in (path, tmp_path / "link", tmp_path / "." / "own.ledger"):
        with pytest.raises(ValueError, match="site-0 and site-1 share one ledger"):
            Setup(PLAN, [sites[0], replace(sites[1], ledger=other)])
    Setup(Plan("logistic", rounds=ROUNDS, unit="site"), sites)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.array([1.0, np.nan, 2.0]), "north: groups lack an id"),
        ([1, None, 2], "north: groups lack an id"),
        (["p", np.nan, "q"], "north: groups lack an id"),
        (pandas.Series(["p", pandas.NA, "q"], dtype="string"), "north: groups lack an id"),
        ([[1], [2], [3]], "north: groups have 2 axes"),
        ([1, 2], "north has groups of 2 records and 3 records"),
    ],
)
def test_records_of_persons_without_an_id_are_refused(groups, words):
    """NumPy would take all of them for one person, of whom only the first records are used."""
    with pytest.raises(ValueError, match=words):
        Setup(Plan("logistic", unit="person", most_records=1), [Site("north", table(3), 1.0, 1e-4, groups=groups)])


def test_a_plan_of_many_numbers_costs_what_its_receipts_cost():
    """A ledger's reserve for draws of noise depends on how many numbers leave."""
    event = Setup(PLAN, make_sites()).cost(0)
    assert event is not None
    counts = {part.event.coordinates for part in event.events}  # type: ignore[attr-defined]
    assert {3, 9} <= counts, "gradients of three coefficients, and their curvature"


# --- A study of many phases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [pytest.param({}, id="own noise"), pytest.param({"secure_sum": True}, id="secure sums", marks=pytest.mark.slow)],
)
def test_a_study_that_stops_in_any_phase_goes_on_and_is_charged_as_one_that_does_not(tmp_path, more):
    """A linear study learns its residual in between: rounds of two phases of inference count together."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=90)
    tables = [Table.of(x[part::3], y[part::3], bounds=(-5, 5), target_bounds=(-9, 9)) for part in range(3)]

    def go(folder, stop=None):
        def observe(phase, done, total, spent):
            if (phase, done) == stop:
                raise KeyboardInterrupt

        sites = [Site(name, table, 2.0, 1e-3) for name, table in zip("abc", tables, strict=True)]
        found = federate("linear", sites, out=folder, rounds=4, insecure_seed=3, observe=observe, **more)
        ledgers = [Ledger.open(folder / "sites" / name / "ledger.sqlite").entries() for name in "abc"]
        charged = [[(entry.study.rpartition("/")[2], entry.round) for entry in entries] for entries in ledgers]
        return found.posterior.coefficients.mean.tolist(), charged

    expected = go(tmp_path / "whole")
    for place, stop in enumerate([("inference", 2), ("residual", 1), ("refinement", 1), ("refinement", 2)]):
        folder = tmp_path / str(place)
        with pytest.raises(KeyboardInterrupt):
            go(folder, stop)
        assert go(folder) == expected, stop
        assert go(folder) == expected, "a finished study is given again"
