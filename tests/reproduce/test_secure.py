"""Secure sums beside noise of each site's own: both ways run, within the budget, on a few records here."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tacit_reproduce import secure, sharma


@pytest.mark.slow
def test_both_ways_stay_within_the_budget_and_are_shown(monkeypatch):
    table, test = sharma.adult_tables()
    few = [
        replace(member, table=replace(table, features=table.features[m::2000], target=table.target[m::2000]))
        for m, member in enumerate(sharma._members("A", 0, secure.EPSILON)[:4])
    ]
    small = replace(test, features=test.features[:50], target=test.target[:50])
    monkeypatch.setattr(secure, "_members", lambda distribution, seed, epsilon: few)
    monkeypatch.setattr(secure, "adult_tables", lambda: (table, small))
    found = secure.sums(quick=True, seeds=1, track=lambda jobs: jobs)
    assert [row["method"] for row in found.rows] == list(secure.WAYS)
    for row in found.rows:
        assert 0.99 * secure.EPSILON < row["epsilon"] <= secure.EPSILON
        assert np.isfinite(row["log_likelihood"])
    assert {text.get_text() for text in found.axes.figure.legends[0].get_texts()} == set(secure.WAYS)
