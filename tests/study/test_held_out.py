"""Which records are held out: by a secret of the site, and never those that a study learns from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from tests.study.studies import PLAN, SLOTS, make_sites

from tacit.privacy.ledger import Ledger
from tacit.study.local import LocalHost
from tacit.study.plan import Plan
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table

# --- Which records are held out ----------------------------------------------------------------------------------


def held(setup: Setup, party: int = 0) -> list[bool]:
    """Which records of a party are judged by, in the order of its table."""
    access = setup.access("evaluation", party, setup.public_scaling())
    count = len(setup.sites[party].table.target)
    return np.asarray(access.present)[:count, 0].tolist()


def from_file(path: Path, columns: list[str]) -> Table:
    facts = Facts({"a": (0, 10), "b": (0, 2)}, {}, None)
    return Table.of_frame(read_frame(path), "y", "logistic", columns=columns, facts=facts)


def test_studies_of_one_data_set_hold_out_the_same_records_whatever_columns_they_use(tmp_path):
    """By the secret beside the ledger, which is made once, for its owner alone, and only where scores are paid for."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.uniform(0, 10, 200), "b": rng.uniform(0, 2, 200), "y": rng.integers(0, 2, 200)})
    frame.to_csv(tmp_path / "records.csv", index=False)
    ledger = tmp_path / "data" / "ledger.sqlite"
    ledger.parent.mkdir()
    Ledger.create(ledger, data_set="site", epsilon=9.0, delta=1e-4, unit="record", adjacency="add-remove")
    found = []
    for name, columns, plan in (
        ("plain", ["a"], Plan("logistic", rounds=1)),
        ("one", ["a"], PLAN),
        ("two", ["b"], PLAN),
    ):
        site = Site(name, from_file(tmp_path / "records.csv", columns), 4.0, 1e-4, ledger)
        host = LocalHost(Setup(plan, [site]), tmp_path / name)
        key = ledger.parent / "held-out.key"
        assert key.exists() == bool(plan.evaluation)
        assert not list((tmp_path / name).glob("**/held-out.key"))
        if plan.evaluation:
            found.append(held(host.setup))
    assert found[0] == found[1]
    assert 0 < sum(found[0]) < 200
    own = LocalHost(Setup(PLAN, [replace(site, ledger=None)]), tmp_path / "own")
    assert (tmp_path / "own" / "sites" / "two" / "held-out.key").exists()
    assert held(own.setup) != found[0], "another secret"


def test_a_record_is_learnt_from_or_judged_by_and_never_both(tmp_path):
    for plan in (PLAN, PLAN.replace(unit="site"), PLAN.replace(secure_sum=True)):
        folder = tmp_path / f"{plan.unit}-{plan.secure_sum}"
        setup = LocalHost(Setup(plan, make_sites(slots=SLOTS)), folder, 1).setup
        learnt, judged = (
            np.asarray(setup.access(phase, 0, setup.public_scaling()).present) for phase in ("inference", "evaluation")
        )
        measured = np.asarray(setup.access("scaling", 0).present)
        whole = np.asarray(setup.records(0).present)
        np.testing.assert_array_equal(learnt, measured)
        np.testing.assert_array_equal(learnt | judged, whole)
        assert not np.any(learnt & judged)
        assert np.any(judged)


def test_the_type_that_numpy_infers_from_all_records_moves_none_to_the_other_side():
    """A column of whole numbers is of another type where one record has a decimal."""
    from tacit.federated.held_out import held_out, seeded_secret
    from tacit.study.reading import contents_of

    whole = np.arange(200)
    with_decimal = np.append(whole, 2.5)
    assert with_decimal.dtype != whole.dtype
    secret, labels = seeded_secret(1), np.zeros(201)
    within = held_out(secret, contents_of((with_decimal, labels)))
    without = held_out(secret, contents_of((whole, labels[:200].astype(int))))
    np.testing.assert_array_equal(within[:200], without)
    assert 0 < without.sum() < 200
    assert len(contents_of((whole[:0], labels[:0]))) == 0
