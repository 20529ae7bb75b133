"""A policy decides what is not given, from public sizes; whatever it says, a site pays no more than its ε."""

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
from tacit.privacy import accounting
from tacit.privacy.events import compose
from tacit.study.plan import Plan
from tacit.study.policy import LIMITS, PLAIN, SHARES, Policy, Rule, default_policy
from tacit.study.program import Program
from tacit.study.setup import Setup
from tacit.study.sites import Site

DATA = simulate(Task("logistic", 200, 2, (3,)), seed=1, tests=50)
LINEAR = simulate(Task("linear", 200, 3), seed=1, tests=50)
UNBOUNDED = simulate(Task("linear", 200, 3, bounds=0.0), seed=1, tests=50)


def prepared(kind: str, table, rule: Rule, epsilon: float = 1.0, **more) -> Setup:
    return Setup(Plan(kind, policy=rule.to_dict(), **more), [Site("data", table, epsilon, 1e-4)])


def thirds(table) -> list[Site]:
    parts = (table.rows(np.arange(len(table.target)) % 3 == m) for m in range(3))
    return [Site(f"s{m}", part, 0.05, 1e-4) for m, part in enumerate(parts)]


def weight(setup: Setup, name: str) -> float:
    """The part of 1/σ² that all releases of a kind take."""
    return setup.program.counts[name] / setup.mechanisms[0][name].noise_multipliers[0] ** 2


shares = st.floats(0.01, 0.2)
rules = st.builds(
    Rule,
    rounds=st.integers(2, 30),
    second=st.floats(0, 0.9),
    early=st.floats(0.1, 10),
    **dict.fromkeys(SHARES, shares),
    averaging=st.floats(0, 2),
    early_damping=st.floats(0, 1),
    clip_least=st.floats(0.01, 1),
    clip_most=st.floats(1, 5),
    clip_slope=st.floats(0.01, 3),
    clip_power=st.floats(0.1, 2),
)


@settings(max_examples=12)
@given(rule=rules, epsilon=st.floats(0.1, 8))
def test_whatever_a_policy_says_the_price_is_within_epsilon(rule, epsilon):
    """Of all updates that a site would run, one by one: not of the sum by which noise was calibrated."""
    for kind, table in (("logistic", DATA.table), ("linear", LINEAR.table)):
        setup = prepared(kind, table, rule, epsilon)
        spent = accounting.epsilon(compose(*updates(setup)), 1e-4)
        assert 0.98 * epsilon < spent <= epsilon


def updates(setup: Setup):
    """The price of each update of each phase, by the program of a site."""
    for phase in setup.phases:
        kinds = setup.program.kinds(phase) if phase in ("inference", "refinement") else (0,)
        for kind in kinds:
            for name in releases_of(setup, phase, kind):
                yield setup.mechanisms[0][name].level_events(setup.slots[0], "record", 1)[0]


def releases_of(setup: Setup, phase: str, kind: int) -> list[str]:
    if phase not in ("inference", "refinement"):
        return [phase]
    solver = setup.algorithm(phase, 0).solvers[kind]
    early = "early" if solver.gradients is not None else "gradients"
    return [early] if solver.curvature is None else [early, "curvature"]


def test_every_release_has_its_own_share():
    rule = replace(PLAIN, ranges=0.07, scaling=0.11, residual=0.13, curvature=0.17)
    setup = prepared("linear", UNBOUNDED.table, rule)
    whole = sum(weight(setup, name) for name in setup.program.counts)
    for name, share in (("ranges", 0.07), ("scaling", 0.11), ("residual", 0.13), ("curvature", 0.17)):
        assert weight(setup, name) == pytest.approx(share * whole)


def test_shares_and_relative_noise_are_what_the_rule_says():
    rule = replace(PLAIN, rounds=5, second=0.4, early=3.0, scaling=0.1, curvature=0.3)
    setup = prepared("logistic", DATA.table, rule)
    assert setup.program.counts == {"scaling": 1, "curvature": 2, "early": 2, "gradients": 3}
    made = setup.mechanisms[0]
    assert made["early"].noise_multipliers[0] == pytest.approx(3 * made["gradients"].noise_multipliers[0])
    whole = sum(weight(setup, name) for name in setup.program.counts)
    assert weight(setup, "early") + weight(setup, "gradients") == pytest.approx(0.6 * whole)
    assert weight(setup, "curvature") == pytest.approx(0.3 * whole)


def test_noise_that_the_price_does_not_know_is_seen():
    """A planted bug: early gradients have less noise than the plan prices. The price of the updates shows it."""
    setup = prepared("logistic", DATA.table, replace(PLAIN, early=3.0))
    assert accounting.epsilon(compose(*updates(setup)), 1e-4) <= 1.0
    setup.mechanisms[0]["early"] = replace(setup.mechanisms[0]["early"], noise_multiplier=0.1)
    assert accounting.epsilon(compose(*updates(setup)), 1e-4) > 5


def test_one_rule_clips_alike_at_one_site_and_by_the_noise_of_all():
    """Where noise is nearly all, a clip at power 1 shrinks by it: by √M with each site's own, less in secure sums."""
    rule = replace(PLAIN, clip_least=0.001, clip_most=100.0, clip_slope=1.0, clip_power=1.0)
    table = simulate(Task("logistic", 600, 3), seed=0, tests=10).table
    one, many, secure = (
        Setup(Plan("logistic", policy=rule.to_dict(), secure_sum=is_secure), sites, slots=slots)
        for sites, slots, is_secure in (
            ([Site("all", table, 0.05, 1e-4)], 600, False),
            (thirds(table), 200, False),
            (thirds(table), 200, True),
        )
    )
    clips = [setup.mechanisms[0]["gradients"].clips[0] for setup in (one, many, secure)]
    assert clips[1] == pytest.approx(clips[0] / math.sqrt(3), rel=0.03)
    assert clips[1] < clips[2] < clips[0]


def test_updates_before_the_last_curvature_enter_by_the_early_damping_at_least():
    """Numbers: (1 + a) / (k + a) from each release of curvature on, and .9 at least until the last."""
    rule = replace(PLAIN, rounds=8, second=0.5, averaging=1.0, early_damping=0.9)
    found = Program(Plan("logistic", policy=rule.to_dict())).damping("inference")
    assert found == pytest.approx((1, 0.9, 0.9, 0.9, 1, 2 / 3, 1 / 2, 2 / 5))
    patient = replace(rule, early_damping=0.0)
    found = Program(Plan("logistic", policy=patient.to_dict())).damping("inference")
    assert found == pytest.approx((1, 2 / 3, 1 / 2, 2 / 5, 1, 2 / 3, 1 / 2, 2 / 5))
    linear = Program(Plan("linear", policy=rule.to_dict()))  # its curvature is that of any mean: nothing to hurry for
    assert linear.damping("inference") == pytest.approx((1, 2 / 3, 1 / 2, 2 / 5))


def test_a_fit_by_a_policy_of_ones_own(tmp_path):
    rule = replace(PLAIN, rounds=4, early=2.0, clip_least=0.3, clip_most=0.3)
    path = tmp_path / "policy.json"
    Policy({"logistic": rule}, {"by": "a test"}).write(path)
    posterior = tacit.fit("logistic", DATA.table, 1.0, 1e-4, policy=Policy.read(path), insecure_seed=0)
    assert posterior.plan["rounds"] == 4
    typical = math.sqrt(1 + 2 + 1)  # the constant, numbers, a category
    assert posterior.plan["releases"]["gradients"]["clip"] == pytest.approx(0.3 * typical)
    assert posterior.plan["policy"]["early"] == 2.0
    assert posterior.epsilon <= 1.0
    assert "a policy that was given (by a test, on tasks that it does not name)" in posterior.statement_text


def test_given_settings_go_before_the_policy():
    chosen = prepared("logistic", DATA.table, PLAIN, rounds=6, clip=2.5)
    assert (chosen.program.rounds, chosen.mechanisms[0]["gradients"].clips[0]) == (6, 2.5)
    default = Setup(Plan("logistic"), [Site("data", DATA.table, 1.0, 1e-4)])
    assert default.program.rounds == default_policy().rule("logistic").rounds


def test_the_default_policy_has_a_rule_for_each_regression_and_says_how_it_was_made():
    policy = default_policy()
    assert set(policy.rules) == {"linear", "logistic", "probit", "poisson"}
    assert set(policy.made["kinds"]) == set(policy.rules)
    for kind in policy.made["kinds"].values():
        assert kind["loss"] <= kind["start"]
        assert kind["trials"] > 0
        assert max(kind["sites"]) == 100
    assert "simulated" in json.dumps(policy.made)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"rounds": None}, "rounds"),
        ({"early": [1.0]}, "early"),
        ({"early": 0.0}, "early"),
        ({"second": 1.0}, "second"),
        ({"curvature": 0.9, "scaling": 0.2}, "sum of shares"),
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
    with pytest.raises(ValueError, match=r"policy=.*json"):
        Policy.read(path)
    with pytest.raises(
        ValueError, match=r"none.json: No such file or directory; expected a file that 'tacit policy learn' wrote"
    ):
        Policy.read(tmp_path / "none.json")


def test_every_number_of_a_rule_has_limits():
    assert set(LIMITS) == set(Rule.__dataclass_fields__) - {"rounds"}
    for name, (low, high) in LIMITS.items():
        for value in (low - 1e-3, high + 1e-3):
            with pytest.raises(ValueError, match=rf"{name}|sum of shares"):
                replace(PLAIN, **{name: value})
    traced = jax.eval_shape(lambda x: replace(PLAIN, early=x, floor=x).floor, jax.ShapeDtypeStruct((), float))
    assert traced.shape == ()
