"""Study files: what may be in them, how they are refused, and the sites that they make."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.files.studies import (
    ADULT,
    FACTS,
    HEART,
    NETWORK,
    PERSONS,
    ROOT,
    SECRET,
    SITES,
    SLOTTED,
    TOP,
    WHOLE,
    Read,
    people,
    public,
    refusal,
)

from tacit.data.datasets import abalone
from tacit.files.example_site import example_site
from tacit.files.forms import SiteForm, StudyForm
from tacit.files.study_file import read_study
from tacit.privacy.events import Gaussian
from tacit.privacy.ledger import Ledger
from tacit.study.charging import beside
from tacit.study.plan import Plan
from tacit.study.program import Program
from tacit.study.setup import Setup
from tacit.study.sites import slots_by_size

GUIDE = (ROOT / "docs" / "simulate.md").read_text()

# --- What is said and what is left out ---------------------------------------------------------------------------


def test_what_is_left_out_is_by_the_plan(read: Read) -> None:
    plan = read(WHOLE).plan
    assert (plan.model, plan.name, plan.rounds, plan.method) == ("logistic", "study", None, None)
    assert (Program(plan).rounds, plan.method_used) == (plan.rule.rounds, "natural")


# A value that is not the default of each setting of a plan, after the other settings that it needs.
GIVEN: dict[str, tuple[str, Any]] = {
    "model": ("", "probit"),
    "name": ("", "heart"),
    "rounds": ("", 7),
    "schedule": ("", "sequential"),
    "dropout": ("", 0.1),
    "straggling": ("", 0.2),
    "delay": ('schedule = "asynchronous"\n', 2),
    "schedule_seed": ("", 5),
    "adjacency": ("", "replace-one"),
    "prior_deviation": ("", 2.0),
    "noise_scale": ('model = "linear"\n', 0.5),
    "evaluation": ("", 0.3),
    "method": ("", "ep"),
    "unit": ("", "site"),
    "most_records": ('unit = "person"\nperson = "id"\n', 3),
    "scaling": ("", "bounds"),
    "site_effects": ("", ["intercept"]),
    "policy": ("", {"rounds": 7}),
    "clip": ("", 2.0),
    "sampling_rate": ("", 0.5),
    "noise": ('unit = "site"\n', "per-site"),
    "reset": ('unit = "site"\nnoise = "central"\n', 4),
    "participation": ('unit = "site"\n', 0.5),
    "secure_sum": ("", True),
    "absent": ("secure_sum = true\n", 1),
    "colluding": ("secure_sum = true\n", 2),
    "allow_large_delta": ("", True),
    "vi.steps": ('method = "vi"\n', 3),
    "vi.clip": ('method = "vi"\n', 4.0),
    "vi.noise_multiplier": ('method = "vi"\n', 7.0),
    "vi.sampling_rate": ('method = "vi"\n', 0.5),
    "vi.learning_rate": ('method = "vi"\n', 0.2),
    "vi.damping": ('method = "vi"\n', 0.3),
    "vi.is_adaptive": ('method = "vi"\n', True),
    "vi.per_coordinate": ('method = "vi"\n', True),
    "vi.optimiser": ('method = "vi"\n', "adagrad"),
    "vi.shape": ('method = "vi"\nvi.noise_end = 0.5\n', "linear"),
    "vi.noise_end": ('method = "vi"\nvi.shape = "linear"\n', 0.5),
    "vi.power": ('method = "vi"\nvi.shape = "polynomial"\nvi.noise_end = 0.5\n', 3.0),
    "vi.stages": ('method = "vi"\nvi.shape = "stepwise"\nvi.noise_end = 0.5\n', 5),
    "vi.contraction": ('method = "vi"\nvi.shape = "influence"\n', 0.9),
    "vi.momentum": ('method = "vi"\nvi.shape = "influence"\nvi.contraction = 0.9\n', 0.5),
}


def flat(plan: Plan) -> dict[str, Any]:
    """All settings by name, those of [vi] as vi.steps and so on."""
    whole = plan.model_dump()
    return {**{f"vi.{name}": value for name, value in whole.pop("vi").items()}, **whole}


def test_every_setting_of_a_plan_is_tried() -> None:
    assert set(GIVEN) == set(flat(Plan("logistic"))), "a new setting needs a line here"


@pytest.mark.parametrize("name", GIVEN)
def test_every_setting_reaches_the_plan_and_changes_no_other(read: Read, name: str) -> None:
    needed, value = GIVEN[name]
    section, _, last = name.rpartition(".")
    line = f"{last} = {json.dumps(value)}\n" if name != "policy" else "policy = { rounds = 7 }\n"
    inner = "".join(re.findall(r"(?m)^vi\.(.*\n)", needed))
    outer = re.sub(r"(?m)^vi\..*\n", "", needed)
    top, below = (outer, f"[{section}]\n{inner}{line}") if section else (outer + line, "")
    model = 'model = "logistic"\n' if "model = " not in top else ""
    facts = "[facts.bounds]\nill = [0, 9]\n" if "linear" in top else ""
    text = f'{model}{top}target = "ill"\nepsilon = 1.0\ndelta = 1e-5\n{facts}{below}'
    found, usual = flat(read(text + SITES).plan), flat(Plan("logistic", name="study"))
    assert found[name] == value != usual[name]
    others = set(re.findall(r"^([\w.]+) = ", needed, re.M)) - {"person"}
    assert {other for other in found if found[other] != usual[other]} == {name, *others}


def test_a_trusted_coordinator_is_one_that_adds_up_whole_sites(read: Read) -> None:
    for settings, is_trusted in (
        ("", False),
        ('unit = "site"\n', True),
        ('unit = "site"\nnoise = "central"\n', True),
        ('unit = "site"\nnoise = "per-site"\nschedule = "sequential"\n', False),
        ('unit = "site"\nsecure_sum = true\n', False),
    ):
        assert read(settings + WHOLE).plan.trusts_coordinator == is_trusted


def test_every_field_says_what_it_expects() -> None:
    waiting: list[Any] = [StudyForm, SiteForm]
    while waiting:
        section = waiting.pop()
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
            kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
            waiting += [k for k in kinds if isinstance(k, type) and hasattr(k, "model_fields")]


# --- Refusals before a record is read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("roundz = 3\n" + WHOLE, "'roundz' is not known there; expected rounds"),
        (WHOLE + "rounds = 3\n", "site 2: 'rounds' is not known there; expected it above all tables"),
        (WHOLE.replace("[facts]\n", "[facts]\nrounds = 3\n"), "settings of a study stand above all tables"),
        (ADULT + "[vi]\nstep = 3\n", "vi: 'step' is not known there; expected steps"),
        ('rounds = "3"\n' + WHOLE, "rounds='3'; expected a whole number of at least 1"),
        ("rounds = 3.0\n" + WHOLE, "rounds=3.0; expected a whole number"),
        ("rounds = true\n" + WHOLE, "rounds=True; expected a whole number"),
        ("rounds = 0\n" + WHOLE, "rounds=0; expected a whole number of at least 1"),
        (WHOLE.replace("epsilon = 1.0", "epsilon = 0"), "epsilon=0; expected a number above 0, or inf"),
        (WHOLE.replace("epsilon = 1.0", "epsilon = nan"), "epsilon=nan; expected a number above 0"),
        (WHOLE.replace("epsilon = 1.0", 'epsilon = "1"'), "epsilon='1'; expected a number above 0"),
        (WHOLE + "epsilon = -1\n", "site 2: epsilon=-1; expected a number above 0"),
        (WHOLE.replace("1e-5", "1"), "delta=1; expected a number above 0 and below 1"),
        (WHOLE.replace("epsilon = 1.0\n", ""), "there is no epsilon of site north; expected it above all tables"),
        (WHOLE.replace("epsilon = 1.0", "epsilon = inf") + "epsilon = 1\n", "epsilon=inf at some sites"),
        (WHOLE.replace('model = "logistic"\n', ""), "there is no model; expected one of logistic, linear, probit"),
        (WHOLE.replace("logistic", "cox"), "model='cox'; expected one of logistic, linear, probit"),
        (WHOLE.replace("logistic", "..m:cox"), "model='..m:cox'; expected one of logistic, linear, probit"),
        (WHOLE.replace('target = "ill"\n', ""), "there is no target; expected"),
        ('schedule = "ring"\n' + WHOLE, "schedule='ring'; expected one of synchronous"),
        ('schedule = "sequential"\ndropout = 0.1\n' + WHOLE, "dropout with schedule"),
        ("delay = 2\n" + WHOLE, "delay with schedule"),
        ("dropout = 1\n" + WHOLE, "dropout=1; expected a number of at least 0 and below 1"),
        ("noise_scale = 2\n" + WHOLE, "noise_scale with model"),
        ("prior_deviation = inf\n" + WHOLE, "prior_deviation=inf; expected a number from"),
        ("evaluation = 0.75\n" + WHOLE, "evaluation=0.75; expected a number of at least 0 and below 0.75"),
        ("evaluation = 0.1\n" + WHOLE.replace("logistic", "linear"), "evaluation=0.1; expected it with two classes"),
        ('evaluation = 0.1\nmethod = "vi"\n' + WHOLE + "[vi]\nnoise_multiplier = 2.0\n", "evaluation=0.1; expected it"),
        ("[vi]\nsteps = 3\n" + ADULT, "vi: 'model' is not known there; expected it above all tables"),
        (ADULT + "[vi]\nsteps = 3\n", 'vi with method="natural"; expected it with method = "vi"'),
        ('unit = "patient"\n' + WHOLE, "unit='patient'; expected one of record, person, site"),
        ('unit = "person"\n' + WHOLE, 'unit="person" without most_records; expected how many records of one person'),
        (PERSONS + WHOLE, "there is no person; expected the name of the column"),
        ('person = "town"\n' + WHOLE, 'person with another unit; expected it with unit = "person"'),
        (PERSONS + 'person = "ill"\n' + WHOLE, "person='ill' is the target"),
        (PERSONS + ADULT, 'unit="person" with dataset="adult", whose records are of different persons'),
        (
            PERSONS + 'person = "town"\n' + TOP + '[data]\nfile = "all.csv"\nsplit = "equal"\nsites = 2\n',
            "one person's",
        ),
        ('noise = "central"\n' + WHOLE, 'noise with unit="record"; expected it with unit = "site"'),
        ('unit = "site"\nreset = 2\n' + WHOLE, 'reset with noise="tied"; expected it with noise = "central" only'),
        ('unit = "site"\nnoise = "central"\nparticipation = 0.5\n' + WHOLE, 'participation with noise="central"'),
        ("participation = 0\n" + WHOLE, "participation=0; expected a number above 0 and at most 1"),
        ('unit = "site"\nmethod = "vi"\n' + WHOLE, 'method="vi" with unit="site"; expected method = "natural"'),
        ('unit = "site"\nschedule = "sequential"\n' + WHOLE, 'noise="tied" asks all sites at once'),
        ('unit = "site"\n' + WHOLE + "epsilon = 2\n", 'site south: epsilon with noise="tied", which has one budget'),
        (
            'ledger = "own"\n' + WHOLE,
            "ledger above all tables is a trusted coordinator's; expected it in each [[site]]",
        ),
        ('columns = "age"\n' + WHOLE, "columns='age'; expected a list of columns"),
        ("facts = 3\n" + TOP + SITES, "facts=3; expected a table [facts]"),
        ('facts = "no.toml"\n' + TOP + SITES, "facts="),
        (WHOLE.replace("classes =", "clases ="), "facts has 'clases'"),
        (WHOLE.replace("[0, 110]", "[110, 0]"), "facts: bounds of 'age'"),
        (WHOLE.replace('["no", "yes"]', '["a", "b", "c"]'), "facts: 3 classes; expected 2"),
        (WHOLE.replace("logistic", "linear"), 'facts: classes with model="linear"'),
        (TOP.replace("logistic", "linear") + SITES, "facts: no bounds of the target 'ill'"),
        (TOP, "neither [data] nor [[site]]; expected [data]"),
        (WHOLE + '[data]\ndataset = "adult"\nsplit = "A"\nsites = 2\n', "both [data] and [[site]]"),
        (TOP + '[site]\nname = "a"\n', "expected tables [[site]], in two brackets"),
        (TOP + '[[site]]\nfile = "a.csv"\n', "there is no name of site 1; expected a name for the site"),
        (WHOLE + "slots = 0\n", "site 2: slots=0; expected a whole number of at least 1: the public number"),
        (WHOLE + "slots = 32\n", "site north has no slots; expected a number of slots in each [[site]], or in none"),
        (WHOLE + "slots = 1e3\n", "site 2: slots=1000.0; expected a whole number of at least 1"),
        (WHOLE.replace('"south"', '"north"'), "two sites have name='north'"),
        (WHOLE.replace('"south.csv"', '"./north.csv"'), "two sites have file='north.csv'; expected each site's own"),
        (WHOLE.replace('"south"', '"a/b"'), "site 'a/b'; expected a name that can name a folder"),
        (WHOLE + 'ledger = "a"\n[[site]]\nname = "e"\nfile = "e.csv"\nledger = "a"\n', "two sites have ledger='a'"),
        (WHOLE.replace("1.0", "inf") + 'ledger = "a"\n', "site south: ledger with epsilon=inf"),
        (ADULT.replace('"C"', '"E"'), "data: split='E'; expected one of A, B, C, D, equal, dirichlet, group"),
        (ADULT.replace("10", "9"), "data: sites=9; expected an even number"),
        (ADULT.replace("sites = 10\n", ""), "without sites; expected how many"),
        (ADULT.replace("logistic", "linear"), 'data: dataset="adult" has two classes'),
        (ADULT.replace('"C"', '"group"'), "with sites"),
        (ADULT.replace('"C"\nsites = 10', '"group"'), "adult, which has no groups"),
        (ADULT.replace('"C"', '"dirichlet"'), "without concentration; expected one above 0"),
        (ADULT + "concentration = 1\n", "with concentration; expected it for dirichlet only"),
        (ADULT + 'by = "sex"\n', "with by; expected it for a file"),
        (ADULT + 'file = "all.csv"\n', "data: both dataset and file"),
        ('target = "ill"\n' + ADULT, "target with a dataset of [data]"),
        (ADULT + '[test]\nfile = "public.csv"\n', "test with a dataset of [data]"),
        (ADULT.replace("epsilon = 1\n", ""), "there is no epsilon; expected it above all tables"),
        (TOP + '[data]\nfile = "all.csv"\nsplit = "group"\n', "without by; expected the column"),
        (TOP + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "ill"\n', "by='ill' is the target"),
        (WHOLE.replace('"north"', r'"a\nb"').replace("epsilon = 1.0\n", ""), r"there is no epsilon of site a\nb;"),
        (r'facts = "a\nb"' + "\n" + TOP + SITES, r"a\nb: No such file"),
        ("rounds = \n", "cannot be read"),
    ],
)
def test_a_study_is_refused_by_field_and_remedy(read: Read, text: str, words: str) -> None:
    assert words in refusal(read, text)


def test_a_study_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    with pytest.raises(ValueError, match=r"study.toml: No such file or directory; expected a TOML file"):
        read_study(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"study.toml cannot be read \(it is not text\)"):
        read_study(path)


# --- Sites of a study --------------------------------------------------------------------------------------------


def test_sites_have_their_own_files_and_budgets_and_the_test_set_is_encoded_like_them(read: Read) -> None:
    sites, test = read(WHOLE + 'epsilon = 2\ndelta = 1e-4\n[test]\nfile = "public.csv"\n').gather()
    assert [(m.name, m.epsilon, m.delta, m.ledger) for m in sites] == [
        ("north", 1, 1e-5, None),
        ("south", 2, 1e-4, None),
    ]
    assert test is not None
    assert test.names == sites[0].table.names == ("age", "sex=M")
    np.testing.assert_array_equal(sites[0].table.features[:, 0], people(20, 0)["age"])
    np.testing.assert_array_equal(test.target, people(20, 2)["ill"] == "yes")


@pytest.mark.parametrize("way", ["symbolic link", "hard link", "copy", "a link that leads out of the folder"])
def test_two_sites_whose_files_are_one_are_refused(read: Read, tmp_path: Path, way: str) -> None:
    """A record at two sites is protected by neither's budget alone."""
    south, north = tmp_path / "south.csv", tmp_path / "north.csv"
    south.unlink()
    if way == "copy":
        shutil.copy(north, south)
    elif way == "hard link":
        south.hardlink_to(north)
    else:
        (tmp_path / "elsewhere").mkdir()
        target = tmp_path / "elsewhere" / "north.csv"
        target.symlink_to(north)
        south.symlink_to(north if way == "symbolic link" else target)
    words = refusal(read, WHOLE, gather=True)
    assert "site south: file='south.csv' holds the same records as that of site north, by a link or a copy" in words


@pytest.mark.parametrize("way", ["reversed", "one more newline", "parquet", "columns"])
def test_two_sites_with_the_same_records_in_another_form_are_refused(read: Read, tmp_path: Path, way: str) -> None:
    north = pd.read_csv(tmp_path / "north.csv")
    text = WHOLE
    if way == "reversed":
        north[::-1].to_csv(tmp_path / "south.csv", index=False)
    elif way == "one more newline":
        (tmp_path / "south.csv").write_text((tmp_path / "north.csv").read_text() + "\n")
    elif way == "columns":
        north[north.columns[::-1]].to_csv(tmp_path / "south.csv", index=False)
        text = 'columns = ["age", "sex"]\n' + WHOLE
    else:
        pytest.importorskip("pyarrow")
        north.to_parquet(tmp_path / "south.parquet")
        text = WHOLE.replace("south.csv", "south.parquet")
    assert "south holds the same records as north, by another file or in another order" in refusal(
        read, text, gather=True
    )


def test_a_site_whose_file_has_a_ledger_beside_it_names_the_one_to_be_charged(read: Read, tmp_path: Path) -> None:
    """`tacit fit south.csv` charged it: a fresh ledger of the study would forget that."""
    own = Ledger.create(beside(tmp_path / "south.csv"), data_set="south", epsilon=1.0, delta=1e-5).path
    words = refusal(read, WHOLE, gather=True)
    assert "site south: file='south.csv' has the ledger south.csv.ledger.sqlite beside it" in words
    assert "expected its name as ledger = " in words
    assert "or that of another one" in words
    north, south = SITES.split("[[site]]")[1:]
    named = TOP + FACTS + f'[[site]]{north}[[site]]{south}ledger = "{own.name}"\n'
    sites, _ = read(named).gather()
    assert [site.ledger for site in sites] == [None, own]


@pytest.mark.parametrize("way", ["link", "copy"])
def test_two_sites_whose_ledgers_are_one_are_refused(read: Read, tmp_path: Path, way: str) -> None:
    """A copy would forget what is charged to the other one."""
    own = Ledger.create(tmp_path / "a.ledger", data_set="a", epsilon=1.0, delta=1e-5).path
    if way == "link":
        (tmp_path / "b.ledger").symlink_to(own)
    else:
        shutil.copy(own, tmp_path / "b.ledger")
    north, south = SITES.split("[[site]]")[1:]
    text = TOP + FACTS + f'[[site]]{north}ledger = "a.ledger"\n[[site]]{south}ledger = "b.ledger"\n'
    assert "site south: it has the ledger of site north; expected each site's own" in refusal(read, text, gather=True)


def test_a_delta_of_1_over_the_slots_is_refused_unless_the_file_allows_it(read: Read) -> None:
    slotted = 'columns = ["age", "sex"]\n' + SLOTTED
    text = slotted.replace("delta = 1e-5", "delta = 0.05")
    with pytest.raises(ValueError, match=r"north: delta=0\.05 for 20 records; .*allow_large_delta"):
        Setup(read(text).plan, read(text).outline()[0], is_remote=True)
    allowed = read("allow_large_delta = true\n" + text)
    assert allowed.plan.allow_large_delta
    assert Setup(allowed.plan, allowed.outline()[0], is_remote=True).remarks(0)
    assert "allow_large_delta = true" in example_site(allowed, "north")
    assert "allow_large_delta" not in example_site(read(slotted), "north")


def test_the_order_of_columns_is_that_of_the_first_file(read: Read, tmp_path: Path) -> None:
    study = read(WHOLE)
    people(20, 1)[["ill", "sex", "age"]].to_csv(tmp_path / "south.csv", index=False)
    north, south = study.gather()[0]
    assert north.table.names == south.table.names
    np.testing.assert_array_equal(south.table.features[:, 0], people(20, 1)["age"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"age": SECRET}, "site south: column 'age' holds text; give the public list of categories, as in [facts"),
        ({"sex": SECRET}, "site south: column 'sex' has values outside its categories F, M; give them with [facts"),
        ({"ill": SECRET}, "site south: target 'ill' has labels outside the classes no, yes"),
        ({"age": np.nan}, "site south: column 'age' holds missing values"),
        ({"more": 1}, "site south: column 'more' is not in the file of north; expected the same ones"),
    ],
)
def test_a_sites_records_are_refused_by_site_and_column(
    read: Read, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    read(WHOLE)
    people(20, 1).drop(columns="town").assign(**changes).to_csv(tmp_path / "south.csv", index=False)
    assert words in refusal(read, WHOLE, gather=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WHOLE.replace("south.csv", "no.csv"), "site south: file="),
        (WHOLE.replace('file = "south.csv"\n', ""), "site south: there is no file; expected the name of a CSV"),
        (SLOTTED.replace("20", "19"), "site north: slots=19 and more records; expected a slot for each"),
        (WHOLE.replace("bounds = { age = [0, 110] }\n", ""), "site north: column 'age' has no bounds"),
        (WHOLE + 'ledger = "no.sqlite"\n', "site south: path="),
        (WHOLE + '[test]\nfile = "no.csv"\n', "test: file="),
        (ADULT.replace("adult", "abalone"), "data: split C does not fit these records (kappa=-3.0 asks for"),
        (TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "city"\n', "data: by='city' is not a column"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(read: Read, text: str, words: str) -> None:
    assert words in refusal(read, text, gather=True)


def test_a_ledger_that_could_not_be_charged_is_refused_before_any_is(read: Read, tmp_path: Path) -> None:
    for name, settings, words in (
        ("a", {"delta": 1e-6}, "delta=1e-05, and 1e-06 in its ledger; expected the ledger's"),
        ("b", {"adjacency": "replace-one"}, "its ledger is for each record (replace-one)"),
        ("c", {"unit": "person"}, "its ledger is for each person (add-remove)"),
    ):
        Ledger.create(tmp_path / name, data_set="south", **({"epsilon": 1.0, "delta": 1e-5} | settings))
        assert words in refusal(read, WHOLE + f'ledger = "{name}"\n', gather=True)
    ledger = Ledger.create(tmp_path / "sound", data_set="south", epsilon=1.0, delta=1e-5)
    ledger.charge(Gaussian(9.0), study="another", round=0)
    assert read(WHOLE + 'ledger = "sound"\n').gather()[0][1].ledger == tmp_path / "sound"


def test_a_file_is_spread_over_sites_by_a_column_which_is_no_feature(read: Read) -> None:
    sites, test = read(TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n').gather()
    towns = people(30, 3)["town"]
    assert test is None
    assert [site.name for site in sites] == ["01", "2"]
    assert [len(site.table.target) for site in sites] == [(towns == name).sum() for name in ("01", "2")]
    assert sites[0].table.names == ("age", "sex=M")


@pytest.mark.parametrize("split", ['"equal"', '"A"', '"dirichlet"\nconcentration = 5'])
def test_a_data_set_is_spread_over_sites_and_its_own_test_part_is_public(read: Read, split: str) -> None:
    text = ADULT.replace("adult", "abalone").replace('"C"', split).replace("10", "4") + "seed = 3\n"
    sites, test = read(text).gather()
    data = abalone()
    assert [site.name for site in sites] == ["site-1", "site-2", "site-3", "site-4"]
    sizes = [len(site.table.target) for site in sites]
    assert len(data.target) - 4 < sum(sizes) <= len(data.target)
    assert test is not None
    np.testing.assert_array_equal(test.target, data.test_target)
    assert test.features.shape == (len(data.test_target), 10)
    again, _ = read(text).gather()
    other, _ = read(text.replace("seed = 3", "seed = 4")).gather()
    for site, same, differs in zip(sites, again, other, strict=True):
        np.testing.assert_array_equal(site.table.features, same.table.features)
        assert not np.array_equal(site.table.features, differs.table.features)


# --- What is public of a study -----------------------------------------------------------------------------------


def test_an_outline_is_the_study_without_records_and_opens_no_file_of_a_site(read: Read, tmp_path: Path) -> None:
    files = NETWORK.replace("slots = 32", 'slots = 32\nfile = "north.csv"', 1) + 'file = "south.csv"\n'
    text = files + 'epsilon = 2\nledger = "no.sqlite"\n[test]\nfile = "public.csv"\n'
    study = read(text)
    real, test = read(files + 'epsilon = 2\n[test]\nfile = "public.csv"\n').gather()
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").unlink()
    sites, same = study.outline()
    assert study.names() == [site.name for site in sites] == ["north", "south"]
    assert [(m.epsilon, m.delta, m.slots, m.ledger) for m in sites] == [(1, 1e-5, 32, None), (2, 1e-5, 32, None)]
    for site, other in zip(sites, real, strict=True):
        assert public(site.table) == public(other.table)
        assert site.table.features.shape == (0, 2)
        assert other.slots == 32
    assert test is not None
    assert same is not None
    np.testing.assert_array_equal(test.features, same.features)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NETWORK.replace('columns = ["sex", "age"]\n', ""), "there is no columns; expected a list of them above all"),
        (NETWORK.replace("slots = 32\n", ""), "site north: slots is missing; expected a whole number"),
        (NETWORK.replace('"age"]', '"height"]'), "column 'height' has neither bounds nor categories; give [low, high]"),
        (NETWORK.replace('classes = ["no", "yes"]\n', ""), "target 'ill' has no classes; give its two labels"),
        (NETWORK + '[test]\nfile = "no.csv"\n', "test: file="),
        ('unit = "site"\nledger = "no.sqlite"\n' + NETWORK, "path="),
    ],
)
def test_an_outline_that_is_not_public_is_refused(read: Read, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^study=.*study\.toml") as error:
        read(text).outline()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        ADULT.replace("adult", "abalone").replace('"C"', '"A"').replace("10", "4"),
        HEART,
        TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n[test]\nfile = "public.csv"\n',
        'columns = ["age"]\n' + TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "equal"\nsites = 3\n',
    ],
)
def test_an_outline_of_public_data_is_their_spread_with_slots_by_size(read: Read, text: str) -> None:
    study = read(text)
    sites, test = study.outline()
    real, same = study.gather()
    assert study.names() == [site.name for site in sites] == [site.name for site in real]
    sizes = [len(site.table.target) for site in real]
    assert [site.slots for site in sites] == slots_by_size(sizes)
    for site, other in zip(sites, real, strict=True):
        assert public(site.table) == public(other.table)
        assert site.table.features.shape == (0, len(other.table.names))
    assert (test is None) == (same is None)


def test_a_folder_that_was_begun_before_there_were_slots_is_still_the_studys(read: Read, tmp_path: Path) -> None:
    study = read(WHOLE)
    study.claim(tmp_path)
    assert "slots" not in (tmp_path / "settings.json").read_text()
    (tmp_path / "scaling.progress").touch()  # it was begun: a budget is spent
    with pytest.raises(ValueError, match="another site"):
        read(SLOTTED).claim(tmp_path)


def test_a_study_for_which_nothing_was_charged_makes_room_for_another(read: Read, tmp_path: Path) -> None:
    """Such as one that sites refused. A trace of a round, or an entry of a ledger, keeps the folder."""
    out = tmp_path / "out"
    (out / "sites" / "north").mkdir(parents=True)
    ledger = Ledger.create(out / "sites" / "north" / "ledger.sqlite", data_set="north", epsilon=1.0, delta=1e-5)
    (out / "notes.json").write_text('{"north": {"refusal": "no", "events": []}}')
    read(WHOLE).claim(out)
    (out / "study.json").write_text("{}")
    read(SLOTTED).claim(out)
    assert {path.name for path in out.rglob("*") if path.is_file()} == {"settings.json"}
    ledger = Ledger.create(ledger.path, data_set="north", epsilon=1.0, delta=1e-5)
    ledger.charge(Gaussian(9.0), study="one", round=0)
    with pytest.raises(ValueError, match="whose budget is spent; take a new folder"):
        read(WHOLE).claim(out)
    ledger.path.unlink()
    (out / "notes.json").write_text('{"north": {"events": [["what it says", 1]]}}')
    with pytest.raises(ValueError, match="whose budget is spent; take a new folder"):
        read(WHOLE).claim(out)


def test_the_studies_of_the_guide_are_sound(read: Read) -> None:
    blocks = [text for text in re.findall(r"```toml\n(.*?)```", GUIDE, re.S) if "epsilon" in text]
    assert [read(block).plan.model for block in blocks] == ["logistic"] * 4


def test_the_model_and_the_persons_of_the_guide_are_sound(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpyro")
    (module,) = re.findall(r"```python\n(# my_models.py.*?)```", GUIDE, re.S)
    (study,) = re.findall(r'```toml\n(model = "my_models.*?)```', GUIDE, re.S)
    (persons,) = re.findall(r'```toml\n(unit = "person".*?)```', GUIDE, re.S)
    (tmp_path / "guide_models.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    top = "epsilon = 1.0\ndelta = 1e-5\n" + study.replace("my_models", "guide_models") + persons
    facts = '[facts]\nclasses = ["no", "yes"]\nbounds = { age = [0, 110], lactate = [0, 20] }\n'
    found = read(top + facts + SITES.replace("file =", "slots = 20\nfile ="))
    sites, _ = found.outline()
    setup = Setup(found.plan, sites, is_remote=True)
    assert set(setup.model.prior) == {"shift", "slopes"}
    assert (setup.plan.unit, found.settings.person, found.source is None) == ("person", "patient_id", False)


def test_the_example_is_a_study_of_ten_sites() -> None:
    path = ROOT / "examples" / "adult-c.toml"
    sites, test = read_study(path).gather()
    assert len(sites) == 10
    assert {site.epsilon for site in sites} == {1.0}
    assert test is not None
    sizes = [len(site.table.target) for site in sites]
    assert max(sizes[:5]) * 5 < min(sizes[5:])
