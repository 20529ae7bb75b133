"""Planning without data: more budget helps, more sites cost, and the forecast is near what a study comes to."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import tacit
from tacit.data.simulated import simulate
from tacit.planning.forecast import Question, forecast
from tacit.study.plan import Plan
from tacit.study.policy import PLAIN, Policy, default_policy
from tacit.study.scores import scores
from tacit.study.setup import Setup
from tacit.study.simulation import simulate as run_study
from tacit.study.sites import Site

SMALL = Question("logistic", 400, 4, 1.0, 1e-4, numbers=2, rounds=(4,))


@pytest.mark.slow
def test_more_budget_loses_less_and_narrows_intervals():
    done = []
    rows = forecast(SMALL, observe=lambda part, total: done.append((part, total)))
    assert [row["epsilon"] for row in rows] == [0.1, 0.316, 1.0, 3.16, 10.0]
    assert done == [(0, 1), (1, 1)]
    losses, widths = ([row[name] for row in rows] for name in ("log_likelihood_loss", "interval_widening"))
    assert losses[0] > 5 * max(losses[-1], 0.001)
    assert all(wide > narrow for wide, narrow in pairwise(widths))
    assert all(row["rounds"] == 4 for row in rows)
    two, many = (forecast(replace(SMALL, sites=sites)) for sites in (2, 32))
    shared = forecast(replace(SMALL, sites=32, secure_sum=True))  # near one site with all records
    assert rows[2]["interval_widening"] < shared[2]["interval_widening"] < many[2]["interval_widening"]
    assert many[2]["log_likelihood_loss"] > two[2]["log_likelihood_loss"]
    assert all(wide["interval_widening"] > narrow["interval_widening"] for wide, narrow in zip(many, two, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_forecast_of_a_study_is_near_what_studies_come_to(epsilon):
    """Four studies of five sites on stand-ins: accuracy within two points, log-likelihood within .03."""
    question = Question("logistic", 2000, 8, epsilon, 1e-5, sites=5, rounds=(20,))
    (row,) = (row for row in forecast(question) if row["epsilon"] == epsilon)
    lost = []
    for seed, (signal, balance) in enumerate([(1.0, 0.25), (2.0, 0.5)] * 2):
        found = simulate(question.task(signal, balance), seed % 2, 4000)
        table = found.table
        test = replace(table, features=found.test_features.astype(np.float32), target=found.test_target)
        parts = [
            Site(f"s{m}", replace(table, features=table.features[m::5], target=table.target[m::5]), epsilon, 1e-5)
            for m in range(5)
        ]
        made = Setup(Plan("logistic", rounds=20), parts, slots=400)
        reached = run_study(made, tacit.insecure_key(seed), test)[-1]
        exact = scores.scores(tacit.fit("logistic", table, np.inf, 1e-5), test)
        lost.append([exact[name] - reached[name] for name in ("accuracy", "log_likelihood")])
    accuracy, likelihood = np.mean(lost, axis=0)
    assert abs(accuracy - row["error_rise"]) < 0.02
    assert abs(likelihood - row["log_likelihood_loss"]) < 0.03


@pytest.mark.slow
def test_the_rounds_are_the_policys_unless_some_are_given():
    question = replace(SMALL, records=60, rounds=())
    (count,) = {row["rounds"] for row in forecast(question, Policy({"logistic": replace(PLAIN, rounds=3)}))}
    assert count == 3
    assert default_policy().rule("logistic").rounds > 3


def test_the_range_holds_the_epsilon_that_was_asked_for():
    for epsilon in (0.012345, 1.0, 1.2345, 13.9):
        question = replace(SMALL, epsilon=epsilon)
        assert epsilon in question.epsilons
        assert max(question.epsilons) <= 14


def test_stand_ins_have_the_sizes_that_were_asked_for():
    for features, numbers in ((109, 6), (5, None), (7, 0), (3, 3)):
        task = Question("probit", 50, features, 1.0, 1e-3, numbers=numbers).task(1.0, 0.5)
        assert task.columns == features
        assert task.numbers == (features if numbers is None else numbers)


def test_the_command_writes_a_figure_and_a_sentence(tmp_path, run):
    command = ("plan", "--records", 400, "--features", 4, "--numbers", 2, "--epsilon", 1, "--delta", 1e-4)
    code, said, _ = run(*command, "--rounds", "4", "--out", tmp_path)
    assert code == 0
    assert "At ε = 1 in 4 rounds: accuracy of about" in said
    assert "no record" in said
    result = json.loads((tmp_path / "plan.json").read_text())
    assert result["question"]["records"] == 400
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "plan.csv").read_text().splitlines()) == 6
    code, said, _ = run(*command, "--rounds", "4", "--out", tmp_path, "--json")
    assert json.loads(said)["rows"] == result["rows"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--epsilon", 0), "epsilon=0"),
        (("--epsilon", 200), "epsilon=200"),
        (("--delta", 2), "delta=2"),
        (("--records", 0), "records=0"),
        (("--features", 0), "features=0"),
        (("--sites", 0), "sites=0"),
        (("--sites", 500), "sites=500"),
        (("--numbers", 9), "numbers=9"),
        (("--model", "cubic"), "cubic"),
        (("--model", "softmax"), "softmax"),
        (("--secure-sum", "--sites", 2), "2 sites"),
        (("--rounds", "1,x"), "rounds"),
        (("--rounds", "1"), "rounds=1"),
        (("--policy", "none.json"), "none.json"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(more, words, tmp_path, run):
    command = ["plan", "--records", 400, "--features", 4, "--epsilon", 1, "--delta", 1e-4, "--out", tmp_path]
    code, _, said = run(*command, *more)
    assert code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1
