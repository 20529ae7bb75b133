"""The default policy beside hand-tuning: what the table is made of, and that it says when it fails."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from sklearn.datasets import load_breast_cancer

import tacit_reproduce as reproduce
from tacit_reproduce import policies


def test_bounds_are_those_that_the_description_prints():
    found = load_breast_cancer()
    kind, data = policies.task("cancer")
    assert kind == "logistic"
    assert len(data.table.numbers) == 30
    assert not np.isnan(data.table.low[:30]).any()
    assert data.table.names[0] == "mean_radius"
    assert data.table.low[0] == pytest.approx(6.981 * 0.9)
    inside = (found.data >= data.table.low[:30]) & (found.data <= data.table.high[:30])
    assert inside.mean() > 0.999  # it prints three digits after the point: a few tiny numbers are outside, and moved


def test_tasks_are_split_and_of_the_right_kind():
    kind, data = policies.task("diabetes")
    assert (kind, len(data.table.target), len(data.test_target)) == ("linear", 353, 89)
    assert policies.delta_of(353) == 1e-3
    assert policies.delta_of(39073) == 1e-5


@pytest.mark.slow
def test_a_quick_table_is_written(tmp_path):
    reproduce.run("policies", tmp_path, quick=True, seeds=2, as_json=True)
    (row,) = json.loads((tmp_path / "policies.json").read_text())["rows"]
    assert row["holds"] in ("both", "accuracy", "log-likelihood", "no")
    assert row["log_likelihood"] > -0.69
