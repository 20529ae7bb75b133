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
from tacit.planning import learning
from tacit.planning.learning import Lesson, bias_of, learn, learn_policy, losses_of, read_tasks
from tacit.planning.trials import Batch, Spending, noise_of
from tacit.privacy.clipping import Dense
from tacit.privacy.mechanism import Access, Exact, Trial
from tacit.privacy.released import price
from tacit.study.plan import Plan
from tacit.study.policy import PLAIN, Policy
from tacit.study.setup import Setup
from tacit.study.sites import Site

pytestmark = pytest.mark.xdist_group("learning")  # they share compiled programs
TASK = Task("logistic", 300, 2, (3,), signal=2.0)
RULE = replace(PLAIN, rounds=5, early=2.0, clip_least=0.4, clip_most=0.8)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.of("logistic", [simulate(TASK, seed, 400) for seed in range(2)])


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_trial_of_many_sites_is_what_a_study_of_them_does(batch):
    """Ten studies of sites of 50, 100 and 150 records, and ten trials at √3 times the noise, on one task."""
    data, cuts = simulate(TASK, 0, 400), (slice(0, 50), slice(50, 150), slice(150, 300))
    sites = [Site(f"s{m}", data.table.rows(np.arange(300)[cut]), 4.0, 1e-4) for m, cut in enumerate(cuts)]
    plan, found = Plan("logistic", policy=RULE.to_dict()), []
    for seed in range(10):
        posterior = tacit.federate(plan, sites, slots=150, insecure_seed=seed).posterior
        found.append(tacit.diagnostics.log_likelihood(posterior.predict(data.test_features), data.test_target))
    trials = batch.run(RULE, Spending(4.0, 3).noise(1e-4), 10)["log_likelihood"][0, 0]
    error = math.hypot(np.std(trials), np.std(found)) / math.sqrt(10)
    assert abs(np.mean(trials) - np.mean(found)) < 4 * error + 0.003  # predictions are an approximation
    other = batch.run(RULE, Spending(4.0, 200).noise(1e-4), 10)["log_likelihood"][0, 0]
    assert abs(np.mean(other) - np.mean(found)) > 4 * error + 0.003


@pytest.mark.parametrize(("sites", "is_secure"), [(1, False), (5, False), (5, True)])
def test_the_noise_and_clip_of_a_trial_are_those_of_the_study(sites, is_secure, batch):
    table = simulate(TASK, 0, 400).table
    parts = [Site(f"s{m}", table.rows(np.arange(300) % sites == m), 2.0, 1e-4) for m in range(sites)]
    rule = replace(RULE, clip_least=0.001, clip_most=100.0)
    setup = Setup(Plan("logistic", policy=rule.to_dict(), secure_sum=is_secure), parts, slots=300 // sites)
    spent = Spending(2.0, sites, is_secure).noise(1e-4)
    clip = setup.releases.clip_of_gradients(spent, 300)
    assert setup.mechanisms[0]["gradients"].clips[0] == pytest.approx(clip, rel=1e-3)
    added = math.sqrt(sum(made["gradients"].standard_deviation ** 2 for made in setup.added))
    _, relative = setup.releases.settings(spent, clip)["gradients"]
    assert added == pytest.approx(clip * relative, rel=1e-3)


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
    """The search is over the settings of one tiny task; a start with clips twenty times too large is mended."""
    lesson = Lesson((batch,), (batch.exact(),), ((Spending(1.0),),), 4, "a test")
    bad = replace(RULE, clip_least=20.0, clip_most=20.0)
    begun = lesson.loss(bad)
    seen = []
    rule, loss = learn("logistic", lesson, 3, bad, observe=lambda rule, loss, done: seen.append((loss, done)))
    assert [done for _, done in seen] == [1, 2, 3]
    assert all(earlier[0] >= later[0] for earlier, later in pairwise(seen))
    assert loss <= begun - 0.1
    assert rule.clip_least < 20
    assert (rule.rounds, rule.second) == (bad.rounds, bad.second)
    assert lesson.loss(rule) == pytest.approx(loss, abs=0.1)  # rounded to three digits
    with pytest.raises(ValueError, match="trials=0"):
        learn("logistic", lesson, 0)


@pytest.mark.slow
def test_poor_coverage_costs_and_public_tables_have_none(batch, monkeypatch):
    lesson = Lesson((batch,), (batch.exact(),), ((Spending(4.0),),), 2, "a test")
    data = simulate(TASK, 0, 400)
    public = Simulated(*data[:3], np.full(5, np.nan))
    unknown = Batch.of("logistic", [public, public])
    blind = Lesson((unknown,), (unknown.exact(),), ((Spending(4.0),),), 2, "a test")
    held, free = lesson.loss(RULE), blind.loss(RULE)
    assert np.isfinite(free)
    monkeypatch.setattr(learning, "LEAST_COVERAGE", 2.0)  # more than there can be
    assert lesson.loss(RULE) >= held + learning.COVERAGE_WEIGHT
    assert blind.loss(RULE) == free


def results(slope: float, deviation: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Results of one task at one noise and two seeds whose coefficients are a multiple of those without privacy."""
    means = np.array([1.0, -2.0, 0.5])
    exact = {"coefficients": means[None], "deviations": np.full((1, 3), 0.01), "log_likelihood": np.zeros(1)}
    shape = (1, 1, 2)
    found = {"coefficients": np.broadcast_to(slope * means, (*shape, 3)), "coverage": np.full(shape, 0.9)}
    found |= {"deviations": np.full((*shape, 3), deviation), "log_likelihood": np.full(shape, -0.01)}
    return exact, found


def test_bias_of_coefficients_costs_where_the_data_tell_about_it():
    """Ten percent of bias, under deviations by which the slope is known to .5 % and to 44 %."""
    bias, sure = bias_of(*results(1.1, 0.01))
    assert bias[0, 0] == pytest.approx(0.1)
    assert sure[0, 0] > 0.99
    assert bias_of(*results(1.1, 1.0))[1][0, 0] < 0.1
    none, some = (losses_of(*results(slope, 0.01))[0, 0] for slope in (1.0, 1.1))
    assert some - none > 0.99 * learning.BIAS_WEIGHT * (0.1 - learning.MOST_BIAS)


def test_coefficients_that_are_not_finite_lose_everything():
    exact, found = results(1.0, 0.01)
    broken = found | {name: np.full_like(found[name], np.nan) for name in ("coefficients", "log_likelihood")}
    assert np.isfinite(losses_of(exact, broken)).all()
    assert losses_of(exact, broken)[0, 0] > losses_of(exact, found)[0, 0] + 10


TASKS = """
epsilons = [1.0]
sites = [1, 10]
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


@pytest.mark.slow
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
    assert [batch.arrays.features.shape[0] for batch in lesson.batches] == [2, 1]
    assert lesson.spendings == ((Spending(1.0), Spending(1.0, 10)),) * 2
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
    lesson = Lesson((batch,), (batch.exact(),), ((Spending(1.0),),), 2, "a test")
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
        ('sites = [0]\n[[task]]\nmodel = "linear"\nrecords = 50\nnumbers = 1', "sites"),
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
