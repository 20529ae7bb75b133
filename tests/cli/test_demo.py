"""The demonstration, with its sites and rounds made small; `make demo` runs it whole."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.cli import demo_study as demo
from tacit.cli.app import main
from tacit.privacy.ledger import Ledger
from tacit.study.plan import Plan
from tacit.study.sites import Site
from tacit.tables.table import Table

pytestmark = pytest.mark.xdist_group("demo")  # one process, so that its study is run once

FILES = {"result.json", "posterior.json", "statement.txt", "statement.json", "report.html", "forest.png", "curve.png"}


def few() -> tuple[list[Site], Table]:
    """Three sites, and a test set."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (400, 2))
    whole = Table.of(x, (x[:, 0] + 0.3 * rng.normal(size=400) > 0) * 1.0, bounds=(-1, 1), classes=(0, 1))
    parts = np.split(np.arange(400), [60, 150, 300])
    tables = [replace(whole, features=whole.features[at], target=whole.target[at]) for at in parts]
    return [Site(f"site-{m + 1}", table, 1.0, 1e-4) for m, table in enumerate(tables[:3])], tables[3]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with a seed and one without."""
    pytest.importorskip("matplotlib")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "sites", few)
        patch.setattr(demo, "PLAN", Plan("logistic", name="demo", rounds=2))
        patch.setattr(demo, "EXACT_ROUNDS", 2)
        for name, options in {"seeded": ["--insecure-seed", "1"], "secure": []}.items():
            found[name] = tmp_path_factory.mktemp("demo") / name  # a folder that is not there yet
            with pytest.raises(SystemExit) as stop:
                main(["demo", "--out", str(found[name]), *options])
            assert stop.value.code == 0
    return found


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_the_demo_writes_what_a_study_writes(folders):
    for folder in folders.values():
        assert {path.name for path in folder.iterdir()} >= FILES
        assert "Compared" in (folder / "report.html").read_text()


def test_no_site_of_the_demo_passes_its_budget_by_its_own_ledger(folders):
    for folder in folders.values():
        for row in result(folder)["sites"]:
            ledger = Ledger.open(folder / "sites" / row["name"] / "ledger.sqlite")
            ledger.verify()
            assert 0.9 < ledger.spent() <= 1
            assert ledger.spent() == row["spent"]


def test_the_demo_compares_with_no_privacy_and_with_each_site_alone(folders):
    rows = result(folders["seeded"])["comparison"]
    assert [row["epsilon"] for row in rows][1] is None
    assert [row["name"] for row in rows][2:] == ["site-1 alone", "site-2 alone", "site-3 alone"]
    assert all(0 <= row["accuracy"] <= 1 and row["log_likelihood"] < 0 for row in rows)


def test_a_demo_says_where_its_noise_came_from(folders):
    assert "SEEDED" in (folders["seeded"] / "statement.txt").read_text()
    text = (folders["secure"] / "statement.txt").read_text()
    assert "cryptographically secure" in text
    assert "SEEDED" not in text
    assert result(folders["seeded"])["summary"] != result(folders["secure"])["summary"]


def test_a_finished_demo_is_shown_again_and_spends_nothing(folders, run):
    before = result(folders["seeded"])
    code, out, err = run("demo", "--out", folders["seeded"], "--json")
    assert (code, err) == (0, "")
    again = json.loads(out)
    assert "remove" in again.pop("note")
    assert again == before


def test_the_demo_table_fits_80_columns_and_wraps_nothing(folders, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("demo", "--out", folders["seeded"])
    assert code == 0
    rows = [line for line in out.splitlines() if line.startswith("│")]
    assert len(rows) == 5
    assert max(map(len, rows)) <= 80
    assert "SEEDED" in out
    assert "…" not in out
