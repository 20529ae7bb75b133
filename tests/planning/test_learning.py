"""Policies are learned on runs that are what `fit` does, and a learned rule is never worse than its start."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest

import tacit
from tacit.data.simulated import Simulated, Task, simulate
from tacit.fitting.policy import PLAIN, Policy
from tacit.planning import learning
from tacit.planning.learning import Batch, Lesson, learn, learn_policy, noise_of, read_tasks
from tacit.privacy.clipping import Dense
from tacit.privacy.mechanism import Access, Exact, Trial
from tacit.privacy.released import price

pytestmark = pytest.mark.xdist_group("learning")  # they share compiled programs
TASK = Task("logistic", 300, 2, (3,), signal=2.0)
RULE = replace(PLAIN, steps=(2, 3), noise=(2.0, 1.0), clip_least=0.4, clip_most=0.8)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.of("logistic", [simulate(TASK, seed, 400) for seed in range(2)])


def test_a_trial_is_what_fit_does(batch):
    """Log-likelihoods of 12 runs each way, on one task: means within four standard errors (1e-4)."""
    data = simulate(TASK, 0, 400)
    trials = batch.run(RULE, noise_of(1.0, 1e-4), 12)["log_likelihood"][0, 0]
    fits = []
    for seed in range(12):
        found = tacit.fit("logistic", data.table, 1.0, 1e-4, policy=Policy({"logistic": RULE}), insecure_seed=seed)
        predicted = found.predict(data.test_features)
        fits.append(tacit.diagnostics.log_likelihood(predicted, data.test_target))
    error = math.hypot(np.std(trials), np.std(fits)) / math.sqrt(12)
    assert abs(np.mean(trials) - np.mean(fits)) < 4 * error + 0.003  # fit's predictions are an approximation
    other = batch.run(RULE, noise_of(1.0, 1e-4) * 8, 12)["log_likelihood"][0, 0]
    assert abs(np.mean(other) - np.mean(fits)) > 4 * error + 0.003  # with other noise the test would fail


def test_trials_without_noise_are_the_exact_fit(batch):
    data = simulate(TASK, 0, 400)
    exact = tacit.fit("logistic", data.table, math.inf, 1e-4)
    reached = tacit.diagnostics.log_likelihood(exact.predict(data.test_features), data.test_target)
    found = batch.exact()
    assert found["log_likelihood"][0] == pytest.approx(reached, abs=2e-3)
    wrong = 1 - tacit.diagnostics.accuracy(exact.predict(data.test_features), data.test_target)
    assert found["error"][0] == pytest.approx(wrong, abs=0.01)
    assert 0 < found["width"][0] < batch.run(RULE, noise_of(1.0, 1e-4), 2)["width"].min()


def test_a_trial_promises_nothing():
    access = Access.of(np.ones((10, 2), np.float32), Exact())

    def read(key, access):
        return access.through(Trial(1.0, 5.0)).sum(key, lambda x: Dense(x))

    event = price(read, tacit.insecure_key(0), access)
    assert tacit.epsilon(event, 1e-5) == math.inf


def test_a_trial_clips_and_adds_the_noise_it_says(key):
    """A chi-square of 4,000 draws: the deviation within 5 % (a false alarm in 1e5), and rejected at 2/3 of it."""
    access = Access.of(np.full((10, 1), 3.0, np.float32), Exact())

    def total(key, clip, noise):
        return access.through(Trial(clip, noise)).sum(key, lambda x: Dense(x)).value

    exact = jax.jit(total)(key, 2.0, 0.0)
    assert float(exact[0]) == pytest.approx(20.0, rel=1e-5)
    draws = jax.vmap(lambda k: total(k, 2.0, 1.5))(jax.random.split(key, 4000))[:, 0] - 20.0
    assert abs(float(draws.std()) / 3.0 - 1) < 0.05
    assert abs(float(draws.std()) / 2.0 - 1) > 0.05


def test_learning_is_never_worse_than_its_start_and_mends_a_bad_one(batch):
    """The search is over four settings of one tiny task; a start with a hundredth of the steps' length is mended."""
    exact = (batch.exact()["log_likelihood"],)
    lesson = Lesson((batch,), exact, (1.0,), 4, "a test")
    bad = replace(PLAIN, steps=(3, 5), learning_rate=0.01)
    begun = lesson.loss(bad)
    seen = []
    rule, loss = learn("logistic", lesson, 3, bad, observe=lambda rule, loss, done: seen.append((loss, done)))
    assert [done for _, done in seen] == [1, 2, 3]
    assert all(earlier[0] >= later[0] for earlier, later in pairwise(seen))
    assert loss <= begun - 0.1
    assert rule.learning_rate > 0.01
    assert lesson.loss(rule) == pytest.approx(loss, abs=0.1)  # rounded to three digits
    with pytest.raises(ValueError, match="trials=0"):
        learn("logistic", lesson, 0)


def test_poor_coverage_costs_and_public_tables_have_none(batch):
    exact = (batch.exact()["log_likelihood"],)
    lesson = Lesson((batch,), exact, (4.0,), 2, "a test")
    data = simulate(TASK, 0, 400)
    public = Simulated(*data[:3], np.full(5, np.nan))
    unknown = Batch.of("logistic", [public, public])
    blind = Lesson((unknown,), (unknown.exact()["log_likelihood"],), (4.0,), 2, "a test")
    assert np.isfinite(blind.loss(RULE))
    original = learning.LEAST_COVERAGE
    try:
        held, unknown = lesson.loss(RULE), blind.loss(RULE)
        learning.LEAST_COVERAGE = 2.0  # more than there can be
        assert lesson.loss(RULE) >= held + learning.COVERAGE_WEIGHT
        assert blind.loss(RULE) == unknown
    finally:
        learning.LEAST_COVERAGE = original


TASKS = """
epsilons = [1.0]
seeds = 1
[[task]]
model = "logistic"
records = 300
numbers = 2
categories = [3]
draws = 2
[[task]]
model = "logistic"
file = "public.csv"
target = "y"
is_public = true
"""


def test_tasks_of_a_file_and_the_command_that_learns_on_them(tmp_path, run):
    data = simulate(TASK, 5, 0).table
    rows = [
        "a,b,c,y",
        *(",".join(map(str, (*x, int(y)))) for x, y in zip(data.features[:, :3], data.target, strict=True)),
    ]
    (tmp_path / "public.csv").write_text("\n".join(rows))
    path = tmp_path / "tasks.toml"
    path.write_text(TASKS)
    lesson = read_tasks(path, None)["logistic"]()
    assert [batch.arrays[0].shape[0] for batch in lesson.batches] == [2, 1]
    assert lesson.batches[1].records == 240
    out = tmp_path / "policy.json"
    code, said, warned = run("policy", "learn", "--tasks", path, "--trials", 1, "--out", out)
    assert code == 0
    assert "treated as public" in warned
    assert "logistic: loss" in said
    policy = Policy.read(out)
    assert policy.made["kinds"]["logistic"]["trials"] == 1
    assert policy.rule("linear") == tacit.policy.default_policy().rule("linear")
    code, said, _ = run("policy", "show", out, "--json")
    assert code == 0
    assert json.loads(said)["made"]["kinds"]["logistic"]["tasks"] == "tasks.toml with public.csv, treated as public"


def test_a_search_that_is_stopped_keeps_what_it_found(batch, monkeypatch):
    lesson = Lesson((batch,), (batch.exact()["log_likelihood"],), (1.0,), 2, "a test")
    calls = iter(range(3))

    def loss(self, rule):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return -1.0

    monkeypatch.setattr(Lesson, "loss", loss)
    policy = learn_policy({"logistic": lambda: lesson, "linear": lambda: lesson}, 5)
    assert list(policy.made["kinds"]) == ["logistic"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "task"),
        ('[[task]]\nmodel = "cubic"', "model"),
        ('[[task]]\nmodel = "linear"', "records"),
        ('[[task]]\nmodel = "linear"\nrecords = 50\nfile = "a.csv"', "target"),
        ('[[task]]\nmodel = "linear"\nfile = "none.csv"\ntarget = "y"', "is_public"),
        ('[[task]]\nmodel = "linear"\nfile = "none.csv"\ntarget = "y"\nis_public = true', "none.csv"),
        ('epsilons = [-1.0]\n[[task]]\nmodel = "linear"\nrecords = 50\nnumbers = 1', "epsilons"),
        ('[[task]]\nmodel = "linear"\nrecords = 50\nnumbers = 1\nspeed = 1', "speed"),
    ],
)
def test_tasks_that_make_no_sense_are_refused_in_a_sentence(text, words, tmp_path, run):
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    code, _, said = run("policy", "learn", "--tasks", path, "--out", tmp_path / "policy.json")
    assert code == 2
    assert words in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_kinds_that_are_none_are_refused(tmp_path, run):
    code, _, said = run("policy", "learn", "--kinds", "cubic", "--out", tmp_path / "policy.json")
    assert (code, "cubic" in said) == (2, True)
    code, _, said = run("policy", "learn", "--kinds", "linear", "--out", tmp_path / "none" / "policy.json")
    assert (code, "no folder" in said) == (2, True)
