"""A setup is made of public facts alone: it reads no record, and is the same study for all sites."""

import math
from dataclasses import replace

import pytest
from tests.study.studies import PLAN, SECURE, SLOTS, make_sites, public, table

from tacit.study.answers import limits
from tacit.study.folder import name_of
from tacit.study.front import federate
from tacit.study.plan import Plan, VISettings
from tacit.study.program import Program
from tacit.study.setup import Setup

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once

# --- Without records ---------------------------------------------------------------------------------------------


def test_who_is_asked_when_does_not_depend_on_how_many_records_a_site_has() -> None:
    """Who answered when is published, and of a seeded schedule the sizes behind it could be found by trying."""
    plan = Plan("logistic", rounds=8, schedule="asynchronous")
    few = [replace(site, table=table(size)) for site, size in zip(make_sites(), (SLOTS, 11, 5), strict=True)]
    assert Setup(plan, few).steps() == Setup(plan, make_sites()).steps()


@pytest.mark.parametrize(
    "plan",
    [PLAN, Plan("logistic", rounds=2, method="vi"), Plan("logistic", rounds=2, unit="site", noise="per-site")],
    ids=["natural", "vi", "whole sites"],
)
def test_a_setup_needs_no_records_and_is_the_same_study_for_all_sites(plan):
    outline = Setup(plan, public(), is_remote=True)
    for own in range(3):
        mine = [replace(m, table=table(SLOTS - own, seed=own)) if j == own else m for j, m in enumerate(public())]
        setup = Setup(plan, mine, is_remote=True)
        assert name_of(setup) == name_of(outline)
        assert setup.mechanisms == outline.mechanisms
        assert setup.steps() == outline.steps()
        assert limits(setup, "inference")[own] == limits(outline, "inference")[own]
        assert setup._held == {}, "no record is looked at before it is asked for"
        setup.access("inference", own, setup.public_scaling())
        assert set(setup._held) == {own}, "nor any of another site"
    assert outline._held == {}
    local = Setup(plan, [replace(site, slots=SLOTS) for site in make_sites()])
    assert name_of(local) == name_of(outline)


def test_a_schedule_of_sites_elsewhere_goes_by_their_slots():
    plan = Plan("logistic", rounds=2, schedule="asynchronous")
    assert Setup(plan, public(), is_remote=True).steps() == Program(plan).schedule([SLOTS] * 3)


def test_slots_are_given_of_all_sites_or_of_none_and_hold_all_records():
    some = [replace(make_sites()[0], slots=SLOTS), *make_sites()[1:]]
    with pytest.raises(ValueError, match="site-1 has no number of slots and others have one; give"):
        Setup(PLAN, some)
    with pytest.raises(ValueError, match="site-0 has more records than its slots=9; raise slots") as error:
        Setup(PLAN, make_sites(slots=9))
    assert str(SLOTS) not in str(error.value), "how many there are is nobody's business"
    with pytest.raises(ValueError, match="slots=0 of site-0"):
        Setup(PLAN, [replace(site, slots=0) for site in public()])
    with pytest.raises(ValueError, match="leave one of them out"):
        Setup(PLAN, make_sites(slots=SLOTS), slots=SLOTS)
    with pytest.raises(ValueError, match="remote sites without slots"):
        Setup(PLAN, make_sites(), is_remote=True)
    with pytest.raises(ValueError, match="slots=5 and more records at a site; expected room for all"):
        Setup(PLAN, make_sites(), slots=5)


def test_a_site_without_records_is_no_unit_of_privacy_unless_its_records_are_elsewhere():
    plan = Plan("logistic", rounds=2, unit="site", noise="per-site")
    with pytest.raises(ValueError, match="a site has no records"):
        Setup(plan, public())
    assert Setup(plan, public(), is_remote=True).slots == [SLOTS] * 3


def test_records_are_not_read_without_the_scaling_of_the_study():
    with pytest.raises(ValueError, match="give the scaling"):
        Setup(PLAN, make_sites()).access("inference", 0)


def test_the_cost_of_a_part_is_within_its_budget_and_that_of_the_published_form_is_open():
    from tacit.privacy import accounting

    cost = Setup(PLAN, public(), is_remote=True).cost(0)
    assert cost is not None
    assert 3.9 < accounting.epsilon(cost, 1e-4) <= 4.0
    vi = Setup(Plan("logistic", method="vi"), public(), is_remote=True).cost(0)
    assert vi is not None
    assert 3.9 < accounting.epsilon(vi, 1e-4) <= 4.0
    published = Plan("logistic", method="vi", vi=VISettings(noise_multiplier=5.0))
    assert Setup(published, public(), is_remote=True).cost(0) is None


# --- A large δ -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "delta"), [(PLAN, 1 / SLOTS), (PLAN, 0.3), (SECURE.replace(rounds=2, unit="site"), 1 / 3)]
)
def test_a_delta_at_which_a_record_may_be_published_is_refused_or_shown(plan, delta):
    """By public numbers alone: the slots of a site, or how many sites there are."""
    sites = [replace(site, delta=delta) for site in make_sites(slots=SLOTS)]
    what = "sites" if plan.unit == "site" else "records"
    units = 3 if plan.unit == "site" else SLOTS
    with pytest.raises(ValueError, match=rf"site-0: delta={delta} for {units} {what}; .*allow_large_delta"):
        Setup(plan, sites)
    Setup(plan, [replace(site, delta=0.99 / units) for site in sites])
    Setup(plan, [replace(site, epsilon=math.inf) for site in sites] if not plan.secure_sum else make_sites())
    assert Setup(plan.replace(allow_large_delta=True), sites).remarks(0)
    assert not Setup(plan.replace(allow_large_delta=True), make_sites()).remarks(0)


def test_a_statement_shows_that_a_large_delta_was_allowed():
    plan = Plan("logistic", rounds=2, allow_large_delta=True)
    found = federate(plan, [replace(site, delta=0.1) for site in make_sites()], insecure_seed=1)
    assert all("(allow_large_delta): it allows one of them to be published" in t for t in found.statements.values())
