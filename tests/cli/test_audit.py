"""`tacit audit`: claim and bound, an exit code of its own for a refuted claim, and refusals in a sentence."""

import json
import os
from typing import Any

import jax
import pytest
from tests.audit.rows import in_order

from tacit.privacy import mechanism


def test_the_command_prints_claim_and_bound_as_json_and_draws_the_curve(run, tmp_path):
    out = tmp_path / "audit"
    code, printed, _ = run("audit", "mechanism", "--epsilon", 4, "--runs", 2000, "--out", out, "--json")
    assert code == 0
    result = json.loads(printed)
    assert result == json.loads((out / "result.json").read_text())
    assert 1 < result["lower_bound"] <= result["claimed_epsilon"] <= 4
    assert (result["confidence"], result["runs"], result["refuted"]) == (0.999, 2000, False)
    assert result["tightness"] == pytest.approx(result["lower_bound"] / result["claimed_epsilon"])
    assert result["lower_bounds"].keys() == {"trace", "value"}
    assert (out / "roc.png").read_bytes().startswith(b"\x89PNG")
    code, printed, _ = run("audit", "mechanism", "--runs", 2000, "--out", out)
    assert code == 0
    assert "Not refuted" in printed
    assert "ε ≥" in printed


def test_a_claim_that_is_refuted_ends_in_an_exit_code_of_its_own(run, tmp_path, monkeypatch):
    def quiet(self: Any, key: Any, sums: Any, level: Any, coordinates: int, units: int) -> Any:
        """Noise that is computed and not used."""
        sound(self, key, sums, level, coordinates, units)
        spacing = self._lattice(coordinates, units).spacing(level)
        return jax.tree.map(lambda leaf: leaf.astype(spacing.dtype) * spacing, sums[0])

    sound = mechanism.SubsampledGaussian.release
    monkeypatch.setattr(mechanism.SubsampledGaussian, "release", quiet)
    code, printed, error = run("audit", "mechanism", "--runs", 1000, "--epsilon", 2, "--out", tmp_path)
    assert code == 3, error
    assert "REFUTED" in printed
    assert json.loads((tmp_path / "result.json").read_text())["refuted"]


def test_a_study_file_is_audited_by_its_plan_without_its_records(run, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'model = "logistic"\nname = "x"\nrounds = 1\nepsilon = 0.5\ndelta = 1e-5\ntarget = "y"\n'
        '[facts]\nclasses = ["no", "yes"]\n[[site]]\nname = "a"\nfile = "not-there.csv"\nepsilon = 1.5\n'
        '[[site]]\nname = "b"\nfile = "neither.csv"\n'
    )
    code, printed, error = run("audit", study, "--runs", 400, "--out", tmp_path / "out", "--json")
    assert code == 0, error
    assert 1.4 < json.loads(printed)["claimed_epsilon"] <= 1.5, "of the most generous budget"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "what='nothing'"),
        (("--canary", "blue"), "canary='blue'"),
        (("--epsilon", "0"), "epsilon=0"),
        (("--epsilon", "inf"), "epsilon=inf"),
        (("--one-run", "--epsilon", "nan"), "epsilon=nan"),
        (("--one-run", "--confidence", "2"), "confidence=2"),
        (("--one-run", "--canaries", "-30"), "canaries=-30"),
        (("--one-run", "--runs", "9"), "leave the other settings out"),
        (("--canaries", "30"), "canaries=30"),
        (("vi", "--steps", "0"), "steps=0"),
        (("--runs", "0"), "runs=0"),
        (("--delta", "2"), "delta=2"),
        (("--runs", "5"), "runs=5"),
        (("mechanism", "--confidence", "1"), "confidence=1"),
        (("--seed", "-1"), "insecure_seed=-1"),
        (("vi", "--one-run"), "--one-run is for a fit"),
        (("mechanism", "--sampling-rate", "2"), "sampling_rate=2"),
        (("missing.toml",), "missing.toml"),
        (("fit", "--canary", "row"), "canary='row' with fit; expected a study file"),
        (("sites", "--row", "3"), "leave them out"),
        (("--one-run", "--site", "north"), "leave the other settings out"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(run, tmp_path, arguments, words):
    code, _, error = run("audit", *arguments, "--out", tmp_path)
    assert code == 2
    assert words in error
    assert "Traceback" not in error


def test_the_command_deletes_a_row_of_the_study_s_own_file(run, tmp_path):
    out = tmp_path / "audit"
    chosen = ("--site", "south", "--row", 7, "--runs", 200)
    code, printed, error = run("audit", in_order(tmp_path), "--canary", "row", *chosen, "--out", out, "--json")
    assert code == 0, error
    result = json.loads(printed)
    assert (result["subject"], result["canary"]) == ("row 7 of south in study.toml", "row")
    assert result["claimed_epsilon"] == pytest.approx(1, abs=0.01)
    assert not list(tmp_path.glob("**/ledger.sqlite")), "nothing is charged"


def test_the_command_computes_in_one_thread_unless_the_environment_says_otherwise(monkeypatch, tmp_path, run):
    """With two threads XLA for processors may wait for ever in programs of thousands of runs."""
    seen = {}
    for given in (None, "3"):
        if given is None:
            monkeypatch.delenv("NPROC", raising=False)
        else:
            monkeypatch.setenv("NPROC", given)
        for command in (
            ("audit", "nothing"),
            ("plan", "--records", 0, "--features", 1, "--epsilon", 1, "--delta", 0.1),
        ):
            assert run(*command, "--out", tmp_path)[0] == 2
            seen.setdefault(given, set()).add(os.environ.get("NPROC"))
    assert seen == {None: {"1"}, "3": {"3"}}
