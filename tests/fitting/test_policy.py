"""A policy decides what is not given, from public sizes; whatever it says, a fit stays within ε."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.data.simulated import Task, simulate
from tacit.fitting import program
from tacit.fitting.policy import LIMITS, PLAIN, Policy, Rule, default_policy
from tacit.fitting.prepare import prepare
from tacit.links import LINKS
from tacit.privacy import accounting, parts
from tacit.privacy.mechanism import Access, Exact
from tacit.privacy.released import price
from tacit.tables.standardising import bounds_of, model_of

DATA = simulate(Task("logistic", 200, 2, (3,)), seed=1, tests=50)
LINEAR = simulate(Task("linear", 200, 3), seed=1, tests=50)
UNBOUNDED = simulate(Task("linear", 200, 3, bounds=0.0), seed=1, tests=50)


def prepared(kind: str, table, epsilon: float, policy: Policy):
    access = Access.of((table.features, table.target.astype(np.float32)), Exact())
    key = tacit.insecure_key(0)
    plan, program = prepare(key, kind, table, access, epsilon, 1e-4, policy=policy)
    return plan, price(program, key, access)


shares = st.floats(0.01, 0.2)
rules = st.builds(
    Rule,
    steps=st.sampled_from([(1, 1), (2, 3)]),
    noise=st.tuples(*[st.floats(0.05, 20)] * 2),
    **dict.fromkeys(("ranges", "moments", "residual", "curvature"), shares),
    clip_least=st.floats(0.01, 1),
    clip_most=st.floats(1, 5),
    clip_slope=st.floats(0.01, 3),
    clip_power=st.floats(0.1, 2),
)


@settings(max_examples=12)
@given(rule=rules, epsilon=st.floats(0.1, 8))
def test_whatever_a_policy_says_the_price_is_within_epsilon(rule, epsilon):
    """Price by shapes alone: the event of the very program that would run."""
    for kind, table in (("logistic", DATA.table), ("linear", LINEAR.table)):
        _, promised = prepared(kind, table, epsilon, Policy({kind: rule}))
        spent = accounting.epsilon(promised, 1e-4)
        assert 0.99 * epsilon < spent <= epsilon


@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 1, 1, 3), (2,)])
def test_any_number_of_stages_is_priced_and_run_alike(steps):
    rule = replace(PLAIN, steps=steps, noise=tuple(1.0 + stage for stage in range(len(steps))))
    for kind, table in (("logistic", DATA.table), ("linear", UNBOUNDED.table)):
        if kind == "linear" and len(steps) == 1:
            with pytest.raises(ValueError, match="two stages"):
                Policy({kind: rule})
            continue
        plan, promised = prepared(kind, table, 1.0, Policy({kind: rule}))
        found = parts.parts(promised, "add-remove")
        made, counts = plan.mechanisms(), plan.counts()
        assert sum(found.values()) == sum(counts.values())
        assert counts["curvature"] == len(steps)
        for stage, count in zip(made["gradients"], steps, strict=True):
            noise = stage.noise_multipliers[0]
            assert sum(n for part, n in found.items() if part.noise_multiplier == noise) == count
        assert 0.99 < accounting.epsilon(promised, 1e-4) <= 1.0
        assert accounting.epsilon(promised, 1e-4, adjacency="replace-one") > 1.0


def test_every_release_has_its_own_share():
    rule = replace(PLAIN, ranges=0.07, moments=0.11, residual=0.13, curvature=0.17)
    plan, _ = prepared("linear", UNBOUNDED.table, 1.0, Policy({"linear": rule}))
    counts, made = plan.counts() | {"gradients": 0}, plan.mechanisms()
    for name, share in (("ranges", 0.07), ("moments", 0.11), ("residual", 0.13), ("curvature", 0.17)):
        assert counts[name] / made[name][0].noise_multipliers[0] ** 2 == pytest.approx(share / plan.noise_multiplier**2)


def test_shares_and_relative_noise_are_what_the_rule_says():
    rule = replace(PLAIN, steps=(2, 3), noise=(3.0, 1.0), moments=0.1, curvature=0.3)
    plan, _ = prepared("logistic", DATA.table, 1.0, Policy({"logistic": rule}))
    made, total = plan.mechanisms(), plan.noise_multiplier**-2
    assert {name: len(found) for name, found in made.items()} == {"moments": 1, "curvature": 1, "gradients": 2}
    first, second = made["gradients"]
    assert first.noise_multipliers[0] == pytest.approx(3 * second.noise_multipliers[0])
    paid = sum(n / found.noise_multipliers[0] ** 2 for n, found in zip((2, 3), made["gradients"], strict=True))
    assert paid == pytest.approx(0.6 * total)
    assert 2 / made["curvature"][0].noise_multipliers[0] ** 2 == pytest.approx(0.3 * total)
    assert plan.to_dict()["releases"]["gradients"]["noise_multiplier"] == [
        pytest.approx(found.noise_multipliers[0]) for found in made["gradients"]
    ]


def test_noise_that_the_price_does_not_know_is_seen():
    """A planted bug: the first stage runs with less noise than its plan says. Its receipt is then not the price."""
    rule = replace(PLAIN, steps=(2, 3), noise=(3.0, 1.0))
    plan, promised = prepared("logistic", DATA.table, 1.0, Policy({"logistic": rule}))
    made = plan.mechanisms()
    less = made | {"gradients": (replace(made["gradients"][0], noise_multiplier=0.1), made["gradients"][1])}
    access = Access.of((DATA.table.features, DATA.table.target.astype(np.float32)), Exact())
    model = model_of(LINKS["logistic"], DATA.table, 1.0)
    bounds = bounds_of(DATA.table, plan.columns)
    key = tacit.insecure_key(0)
    honest, planted = (
        price(lambda k, a, m=m: program.carry_out(plan, m, k, a, model, model.prior.full(), bounds), key, access)
        for m in (made, less)
    )
    assert honest == promised
    assert accounting.epsilon(planted, 1e-4) > 5 > 1 >= accounting.epsilon(honest, 1e-4)


def test_a_fit_by_a_policy_of_ones_own(tmp_path):
    rule = replace(PLAIN, steps=(2, 2), noise=(2.0, 1.0), clip_least=0.3, clip_most=0.3)
    path = tmp_path / "policy.json"
    Policy({"logistic": rule}, {"by": "a test"}).write(path)
    posterior = tacit.fit("logistic", DATA.table, 1.0, 1e-4, policy=Policy.read(path), insecure_seed=0)
    assert posterior.plan["steps"] == (2, 2)
    assert posterior.plan["clip"] == pytest.approx(0.3 * math.sqrt(1 + 2 + 1))  # the constant, numbers, a category
    assert posterior.plan["rule"]["noise"] == (2.0, 1.0)
    assert posterior.epsilon <= 1.0
    assert "a policy that was given (by a test, on tasks that it does not name)" in posterior.statement_text


def test_given_settings_go_before_the_policy():
    plan, _ = prepared("logistic", DATA.table, 1.0, default_policy())
    access = Access.of((DATA.table.features, DATA.table.target.astype(np.float32)), Exact())
    given = {"steps": 6, "clip": 2.5}
    chosen, _ = prepare(tacit.insecure_key(0), "logistic", DATA.table, access, 1.0, 1e-4, given=given)
    assert (chosen.steps, chosen.clip) == ((3, 3), 2.5)
    assert plan.steps == default_policy().rule("logistic").steps


def test_the_default_policy_has_a_rule_for_each_regression_and_says_how_it_was_made():
    policy = default_policy()
    assert set(policy.rules) == {"linear", "logistic", "probit", "poisson"}
    assert set(policy.made["kinds"]) == set(policy.rules)
    for kind in policy.made["kinds"].values():
        assert kind["loss"] <= kind["start"]
        assert kind["trials"] > 0
    assert "simulated" in json.dumps(policy.made)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": []}, "steps"),
        ({"steps": [0, 3]}, "steps"),
        ({"steps": [True, 3]}, "steps"),
        ({"noise": [1.0]}, "noise"),
        ({"noise": 1.0}, "noise"),
        ({"steps": 5}, "steps"),
        ({"steps": None}, "steps"),
        ({"noise": [0.0, 1.0]}, "noise"),
        ({"curvature": 0.9, "moments": 0.2}, "sum of shares"),
        ({"curvature": "much"}, "curvature"),
        ({"clip_least": float("nan")}, "clip_least"),
        ({"speed": 3}, "speed"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_in_a_sentence(settings, words, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"rules": {"logistic": settings}}))
    with pytest.raises(ValueError, match=words) as refusal:
        Policy.read(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rules": {"cubic": {}}}', '{"rules": {}, "code": 1}', "\x00"])
def test_a_file_that_is_no_policy_is_refused(text, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy .*json"):
        Policy.read(path)
    with pytest.raises(ValueError, match="cannot be read"):
        Policy.read(tmp_path / "none.json")


def test_every_number_of_a_rule_has_limits():
    arrays = {"steps", "noise"}
    assert set(LIMITS) == set(Rule.__dataclass_fields__) - arrays
    for name, (low, high) in LIMITS.items():
        for value in (low - 1e-3, high + 1e-3):
            with pytest.raises(ValueError, match=rf"{name}|sum of shares"):
                replace(PLAIN, **{name: value})
    traced = jax.eval_shape(lambda x: replace(PLAIN, noise=(x, x), floor=x).floor, jax.ShapeDtypeStruct((), float))
    assert traced.shape == ()
