"""Figures 4.3 to 4.5: a percentile that nobody pays for has no ε, and a quantile that is paid for costs no more."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import tacit_reproduce as reproduce
from tacit.privacy.events import Gaussian, NonPrivate, Repeated
from tacit.solvers import Adaptive
from tacit_reproduce import liu_clipping
from tacit_reproduce.liu_clipping import CLIPS, FIG43, FIG44, PAID, Setting, paid_run, percentile_run

SMALL = Setting(0.1, 0.03, 4, (50,))


def test_a_percentile_of_the_batch_is_not_private_and_is_said_to_be_so():
    run = percentile_run(SMALL, 50, 3, 2)
    assert run.log_kl.shape == (2, 3)
    assert np.all(np.isfinite(run.log_kl))
    assert run.first == NonPrivate()
    rows = liu_clipping._rows(SMALL, "percentile 50", run, 2)
    assert all(row["epsilon"] == math.inf for row in rows)
    assert 0 < rows[0]["epsilon_of_gradients"] < rows[-1]["epsilon_of_gradients"] < 100


def test_larger_percentiles_go_further_as_published():
    ends = [percentile_run(SMALL, percentile, 20, 2).log_kl[:, -1].mean() for percentile in (20, 60)]
    assert ends[1] < ends[0] - 0.1


def test_a_paid_quantile_has_the_price_of_a_fixed_clip():
    fixed, paid = paid_run(SMALL, 5.0, 2, 2), paid_run(SMALL, 1.0, 2, 2, adaptive=Adaptive())
    sums = [run.first.event.event for run in (fixed, paid)]
    assert sums == [Gaussian(1.0, coordinates=4), Gaussian(1.0, coordinates=5)]
    assert isinstance(paid.first, Repeated)
    prices = [liu_clipping._rows(SMALL, "C = 5", run, 2)[-1]["epsilon"] for run in (fixed, paid)]
    assert prices[0] == prices[1]


@pytest.mark.slow
def test_a_threshold_and_a_decay_shorten_steps():
    plain, *shorter = (
        paid_run(SMALL, 5.0, 2, 2, **more).q.precision[:, -1].mean()
        for more in ({}, {"threshold": 0.01}, {"decay": 1.0})
    )
    assert all(1 < found < plain for found in shorter)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [*FIG43, *FIG44], ids=lambda setting: setting.title)
def test_a_paid_quantile_is_within_noise_of_the_best_fixed_clip(setting):
    def late(**how):
        updates = liu_clipping.updates_until(100.0, setting.rate, setting.steps, 1000)
        found = paid_run(setting, updates=updates, seeds=5, **how).log_kl
        return found[:, -max(1, updates // 10) :].mean(axis=1)

    fixed = {clip: late(clip=clip) for clip in CLIPS}
    best = min(fixed.values(), key=np.mean)
    for adaptive in PAID.values():
        paid = late(clip=1.0, adaptive=adaptive)
        # Of one run against another: the deviation between seeds, of both.
        assert paid.mean() <= best.mean() + math.hypot(paid.std(), best.std()) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["liu-fig43", "liu-fig44", "liu-fig45"])
def test_the_figures_are_made(name, tmp_path, capsys):
    reproduce.run(name, tmp_path, quick=True, seeds=None, as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["method"] for row in rows} == {"C = 5", "percentile 20", "paid quantile"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json", ".png"}
