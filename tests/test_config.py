"""Study files and site files: what may be in them, how they are refused, and the sites that they make."""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.data.uci import UCI, needs_heart

from tacit.config import Limits, Settings, SiteFile, SiteSettings, Study, Unfit, example_site, read_site, read_study
from tacit.data.datasets import abalone
from tacit.data.tables import Table
from tacit.privacy.events import Gaussian
from tacit.privacy.ledger import Ledger
from tacit.spending import beside
from tacit.study import Setup, _capacities

ROOT = Path(__file__).parent.parent
SECRET = "s3cret"
TOP = 'model = "logistic"\ntarget = "ill"\nepsilon = 1.0\ndelta = 1e-5\n'
FACTS = '[facts]\nclasses = ["no", "yes"]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"] }\n'
SITES = '[[site]]\nname = "north"\nfile = "north.csv"\n[[site]]\nname = "south"\nfile = "south.csv"\n'
WHOLE = TOP + FACTS + SITES
PLACED = WHOLE.replace("file =", "places = 20\nfile =")
ADULT = 'model = "logistic"\nepsilon = 1\ndelta = 1e-5\n[data]\ndataset = "adult"\nsplit = "C"\nsites = 10\n'
HEART = pytest.param(ADULT.replace('adult"\nsplit = "C"\nsites = 10', 'heart"\nsplit = "group"'), marks=needs_heart)

Read = Callable[[str], Study]


def people(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"age": rng.integers(18, 90, count), "sex": rng.choice(["F", "M"], count)}
    return pd.DataFrame(columns | {"ill": rng.choice(["no", "yes"], count), "town": rng.choice(["01", "2"], count)})


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The study of a text, beside files of three sites."""
    monkeypatch.setenv("TACIT_DATA", str(UCI))
    for seed, name in enumerate(("north", "south", "public")):
        people(20, seed).drop(columns="town").to_csv(tmp_path / f"{name}.csv", index=False)
    people(30, 3).to_csv(tmp_path / "all.csv", index=False)

    def read(text: str) -> Study:
        path = tmp_path / "study.toml"
        path.write_text(text)
        return read_study(path)

    return read


def refusal(read: Read, text: str, gather: bool = False) -> str:
    """The one sentence with which a text, or a study's files, are refused. It names the file and no record."""
    with pytest.raises(ValueError, match=r"^study=.*study\.toml") as error:
        read(text).gather() if gather else read(text)
    words = str(error.value)
    assert error.value.__cause__ is None
    assert "\n" not in words
    assert not re.search(r"[.!?]\s\S", words), f"more than one sentence: {words}"
    assert "pydantic" not in words
    assert SECRET not in words
    return words


# --- What is said and what is left out ---------------------------------------------------------------------------


def test_what_is_left_out_is_by_the_plan(read: Read) -> None:
    plan = read(WHOLE).plan
    assert (plan.link, plan.name, plan.rounds, plan.method) == ("logistic", "study", 20, "natural")


def test_every_setting_reaches_the_plan(read: Read) -> None:
    text = (
        'name = "heart"\nmodel = "probit"\ntarget = "ill"\nrounds = 7\nschedule = "asynchronous"\ndelay = 2\n'
        'schedule_seed = 5\nepsilon = inf\ndelta = 1e-5\nadjacency = "replace-one"\nprior_deviation = 2\n'
        'method = "vi"\n'
        "[vi]\nsteps = 3\nclip = 4\nnoise_multiplier = 5\nsampling_rate = 0.5\nlearning_rate = 0.1\ndamping = 0.2\n"
    )
    plan = read(text + SITES).plan
    assert (plan.name, plan.link, plan.rounds, plan.schedule, plan.delay, plan.seed) == (
        *("heart", "probit", 7, "asynchronous", 2, 5),
    )
    assert (plan.adjacency, plan.prior_deviation, plan.method) == ("replace-one", 2, "vi")
    assert (plan.steps, plan.clip, plan.noise_multiplier, plan.sampling_rate) == (3, 4, 5, 0.5)
    assert (plan.learning_rate, plan.damping) == (0.1, 0.2)
    linear = read(
        "noise_scale = 0.5\nfacts = { bounds = { ill = [0, 9] } }\n" + TOP.replace("logistic", "linear") + SITES
    )
    assert linear.plan.noise_scale == 0.5
    loose = read("dropout = 0.1\nstraggling = 0.2\nevaluation = 0.3\n" + WHOLE).plan
    assert (loose.dropout, loose.straggling, loose.evaluation) == (0.1, 0.2, 0.3)
    plain = WHOLE.replace("epsilon = 2.0\n", "")
    tied = read('unit = "site"\nparticipation = 0.5\n' + plain).plan
    assert (tied.unit, tied.noise, tied.participation, tied.is_pooled) == ("site", "tied", 0.5, True)
    central = read('unit = "site"\nnoise = "central"\nreset = 4\n' + plain).plan
    assert (central.noise, central.reset) == ("central", 4)
    assert not read('unit = "site"\nnoise = "per-site"\nschedule = "sequential"\n' + plain).plan.is_pooled
    assert read(text.replace("damping = 0.2", "damping = 0.2\nis_adaptive = true") + SITES).plan.is_adaptive


def test_every_field_says_what_it_expects() -> None:
    waiting: list[Any] = [Settings, SiteSettings]
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
        (WHOLE.replace('model = "logistic"\n', ""), "there is no model; expected one of logistic, probit, linear"),
        (WHOLE.replace("logistic", "poisson"), "model='poisson'; expected one of logistic, probit, linear"),
        (WHOLE.replace('target = "ill"\n', ""), "there is no target; expected"),
        ('schedule = "ring"\n' + WHOLE, "schedule='ring'; expected one of synchronous"),
        ('schedule = "sequential"\ndropout = 0.1\n' + WHOLE, "dropout with schedule"),
        ("delay = 2\n" + WHOLE, "delay with schedule"),
        ("dropout = 1\n" + WHOLE, "dropout=1; expected a number of at least 0 and below 1"),
        ("noise_scale = 1\n" + WHOLE, "noise_scale with model"),
        ("prior_deviation = inf\n" + WHOLE, "prior_deviation=inf; expected a number above 0"),
        ("evaluation = 0.75\n" + WHOLE, "evaluation=0.75; expected a number of at least 0 and below 0.75"),
        ("evaluation = 0.1\n" + WHOLE.replace("logistic", "linear"), "evaluation=0.1; expected it with two classes"),
        ('evaluation = 0.1\nmethod = "vi"\n' + WHOLE, "evaluation=0.1; expected it with two classes"),
        ("[vi]\nsteps = 3\n" + ADULT, "vi: 'model' is not known there; expected it above all tables"),
        (ADULT + "[vi]\nsteps = 3\n", '[vi] with method="natural"; expected method = "vi"'),
        ('unit = "person"\n' + WHOLE, "unit='person'; expected one of record, site"),
        ('noise = "tied"\n' + WHOLE, 'noise with unit="record"; expected it with unit = "site"'),
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
        (WHOLE + "places = 0\n", "site 2: places=0; expected a whole number of at least 1: the public number"),
        (WHOLE + "places = 32\n", "there is no places of site north; expected it in each [[site]], or in none"),
        (WHOLE + "places = 1e3\n", "site 2: places=1000.0; expected a whole number of at least 1"),
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
    members, test = read(WHOLE + 'epsilon = 2\ndelta = 1e-4\n[test]\nfile = "public.csv"\n').gather()
    assert [(m.name, m.epsilon, m.delta, m.ledger) for m in members] == [
        ("north", 1, 1e-5, None),
        ("south", 2, 1e-4, None),
    ]
    assert test is not None
    assert test.names == members[0].table.names == ("age", "sex=M")
    np.testing.assert_array_equal(members[0].table.features[:, 0], people(20, 0)["age"])
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
    members, _ = read(named).gather()
    assert [member.ledger for member in members] == [None, own]


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
    assert "site south: its ledger is that of site north; expected each site's own" in refusal(read, text, gather=True)


def test_a_delta_of_1_over_the_places_is_refused_unless_the_file_allows_it(read: Read) -> None:
    placed = 'columns = ["age", "sex"]\n' + PLACED
    text = placed.replace("delta = 1e-5", "delta = 0.05")
    with pytest.raises(ValueError, match=r"north: delta=0\.05 for 20 records; .*allow_large_delta"):
        Setup(read(text).plan, read(text).outline()[0], is_remote=True)
    allowed = read("allow_large_delta = true\n" + text)
    assert allowed.plan.allow_large_delta
    assert Setup(allowed.plan, allowed.outline()[0], is_remote=True).remarks(0)
    assert "allow_large_delta = true" in example_site(allowed, "north")
    assert "allow_large_delta" not in example_site(read(placed), "north")


def test_every_setting_of_a_plan_is_read_from_the_file(read: Read) -> None:
    """None is forgotten on the way: what a file may say of a plan, the plan says."""
    text = (
        'rounds = 7\nschedule = "synchronous"\ndropout = 0.1\nstraggling = 0.2\nschedule_seed = 3\n'
        'adjacency = "replace-one"\nprior_deviation = 2.0\nevaluation = 0.1\nallow_large_delta = true\n' + WHOLE
    )
    plan = read(text).plan
    assert (plan.rounds, plan.dropout, plan.straggling, plan.seed, plan.adjacency) == (7, 0.1, 0.2, 3, "replace-one")
    assert (plan.prior_deviation, plan.evaluation, plan.allow_large_delta) == (2.0, 0.1, True)


def test_a_site_file_s_rule_is_one_that_is_proved() -> None:
    limits: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "models": ["logistic"]}
    assert Limits(**limits).own_rule == "renyi"
    assert Limits(**limits, methods=["natural", "ep"]).own_rule == "gaussian"
    assert Limits(**limits, methods=["natural"], rule="renyi").own_rule == "renyi"
    assert Limits(**limits, methods=["natural", "vi"], adjacency="replace-one").own_rule == "gaussian"
    assert Limits(**limits, methods=["vi"], adjacency="replace-one").own_rule == "pld", "neither prices its samples"
    with pytest.raises(ValueError, match="rule"):
        Limits(**limits, rule="pld")


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
        (PLACED.replace("20", "19"), "site north: places=19 and more records; expected a place for each"),
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
        ("b", {"adjacency": "replace-one"}, "its ledger is of one record (replace-one)"),
        ("c", {"unit": "person"}, "its ledger is of one person (add-remove)"),
    ):
        Ledger.create(tmp_path / name, data_set="south", **({"epsilon": 1.0, "delta": 1e-5} | settings))
        assert words in refusal(read, WHOLE + f'ledger = "{name}"\n', gather=True)
    ledger = Ledger.create(tmp_path / "sound", data_set="south", epsilon=1.0, delta=1e-5)
    ledger.charge(Gaussian(9.0), study="another", round=0)
    assert read(WHOLE + 'ledger = "sound"\n').gather()[0][1].ledger == tmp_path / "sound"


def test_a_file_is_spread_over_sites_by_a_column_which_is_no_feature(read: Read) -> None:
    members, test = read(TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n').gather()
    towns = people(30, 3)["town"]
    assert test is None
    assert [member.name for member in members] == ["01", "2"]
    assert [len(member.table.target) for member in members] == [(towns == name).sum() for name in ("01", "2")]
    assert members[0].table.names == ("age", "sex=M")


@pytest.mark.parametrize("split", ['"equal"', '"A"', '"dirichlet"\nconcentration = 5'])
def test_a_data_set_is_spread_over_sites_and_its_own_test_part_is_public(read: Read, split: str) -> None:
    text = ADULT.replace("adult", "abalone").replace('"C"', split).replace("10", "4") + "seed = 3\n"
    members, test = read(text).gather()
    data = abalone()
    assert [member.name for member in members] == ["site-1", "site-2", "site-3", "site-4"]
    sizes = [len(member.table.target) for member in members]
    assert len(data.target) - 4 < sum(sizes) <= len(data.target)
    assert test is not None
    np.testing.assert_array_equal(test.target, data.test_target)
    assert test.features.shape == (len(data.test_target), 10)
    again, _ = read(text).gather()
    other, _ = read(text.replace("seed = 3", "seed = 4")).gather()
    for member, same, differs in zip(members, again, other, strict=True):
        np.testing.assert_array_equal(member.table.features, same.table.features)
        assert not np.array_equal(member.table.features, differs.table.features)


# --- What is public of a study -----------------------------------------------------------------------------------

NETWORK = 'columns = ["sex", "age"]\n' + re.sub(r'file = ".*"', "places = 32", WHOLE)


def public(table: Table) -> tuple[Any, ...]:
    """All that a table says beside its records."""
    ends = table.low.tobytes(), table.high.tobytes()
    return table.names, table.numbers, *ends, table.classes, table.schema, table.categories, table.notes


def test_an_outline_is_the_study_without_records_and_opens_no_file_of_a_site(read: Read, tmp_path: Path) -> None:
    files = NETWORK.replace("places = 32", 'places = 32\nfile = "north.csv"', 1) + 'file = "south.csv"\n'
    text = files + 'epsilon = 2\nledger = "no.sqlite"\n[test]\nfile = "public.csv"\n'
    study = read(text)
    real, test = read(files + 'epsilon = 2\n[test]\nfile = "public.csv"\n').gather()
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").unlink()
    members, same = study.outline()
    assert study.names() == [member.name for member in members] == ["north", "south"]
    assert [(m.epsilon, m.delta, m.places, m.ledger) for m in members] == [(1, 1e-5, 32, None), (2, 1e-5, 32, None)]
    for member, other in zip(members, real, strict=True):
        assert public(member.table) == public(other.table)
        assert member.table.features.shape == (0, 2)
        assert other.places == 32
    assert test is not None
    assert same is not None
    np.testing.assert_array_equal(test.features, same.features)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NETWORK.replace('columns = ["sex", "age"]\n', ""), "there is no columns; expected a list of them above all"),
        (NETWORK.replace("places = 32\n", ""), "site north: there is no places; expected a whole number"),
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
def test_an_outline_of_public_data_is_their_spread_with_places_by_size(read: Read, text: str) -> None:
    study = read(text)
    members, test = study.outline()
    real, same = study.gather()
    assert study.names() == [member.name for member in members] == [member.name for member in real]
    sizes = [len(member.table.target) for member in real]
    assert [member.places for member in members] == _capacities(sizes)
    for member, other in zip(members, real, strict=True):
        assert public(member.table) == public(other.table)
        assert member.table.features.shape == (0, len(other.table.names))
    assert (test is None) == (same is None)


def test_a_folder_that_was_begun_before_there_were_places_is_still_the_studys(read: Read, tmp_path: Path) -> None:
    study = read(WHOLE)
    study.claim(tmp_path)
    assert "places" not in (tmp_path / "settings.json").read_text()
    (tmp_path / "scaling.progress").touch()  # it was begun: a budget is spent
    with pytest.raises(ValueError, match="another site"):
        read(PLACED).claim(tmp_path)


def test_a_study_for_which_nothing_was_charged_makes_room_for_another(read: Read, tmp_path: Path) -> None:
    """Such as one that sites refused. A trace of a round, or an entry of a ledger, keeps the folder."""
    out = tmp_path / "out"
    (out / "sites" / "north").mkdir(parents=True)
    ledger = Ledger.create(out / "sites" / "north" / "ledger.sqlite", data_set="north", epsilon=1.0, delta=1e-5)
    (out / "notes.json").write_text('{"north": {"refusal": "no", "events": []}}')
    read(WHOLE).claim(out)
    (out / "study.json").write_text("{}")
    read(PLACED).claim(out)
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
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "simulate.md").read_text(), re.S)
    assert [read(block).plan.link for block in blocks] == ["logistic"] * 4


def test_the_example_is_a_study_of_ten_sites() -> None:
    path = ROOT / "examples" / "adult-c.toml"
    members, test = read_study(path).gather()
    assert len(members) == 10
    assert {member.epsilon for member in members} == {1.0}
    assert test is not None
    sizes = [len(member.table.target) for member in members]
    assert max(sizes[:5]) * 5 < min(sizes[5:])


# --- Site files --------------------------------------------------------------------------------------------------

SITE = 'name = "north"\ndata = "north.csv"\ntarget = "ill"\ncolumns = ["age", "sex"]\nplaces = 32\n'
LIMITS = '[limits]\nepsilon = 1.0\ndelta = 1e-5\nmodels = ["logistic"]\n'
OWN = SITE + LIMITS + FACTS
TRIAL = 'name = "site-2"\n' + LIMITS + '[data]\ndataset = "abalone"\nsplit = "A"\nsites = 4\nseed = 3\n'
TOWN = 'name = "01"\ntarget = "ill"\ncolumns = ["age", "sex"]\n' + LIMITS + FACTS
TOWN += '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n'

Join = Callable[[str], SiteFile]


@pytest.fixture
def join(read: Read, tmp_path: Path) -> Join:
    """The site file of a text, beside the files of `read`."""

    def join(text: str) -> SiteFile:
        path = tmp_path / "site.toml"
        path.write_text(text, encoding="utf-8")
        return read_site(path)

    return join


def test_what_a_site_leaves_out_has_defaults(join: Join, tmp_path: Path) -> None:
    site = join(OWN)
    assert (site.kit_folder, site.state_folder, site.record_places) == (tmp_path / "kit", tmp_path / "state", 32)
    limits, shares = site.settings.limits, site.settings.shares
    assert (limits.epsilon, limits.delta, limits.least_noise, limits.models) == (1.0, 1e-5, 0.5, ["logistic"])
    assert (limits.methods, limits.unit, limits.adjacency) == (
        *(["natural", "vi", "ep", "sep"], "record", "add-remove"),
    )
    assert (limits.studies, site.settings.insecure_seed) == (None, None)
    assert (limits.most_rounds, limits.most_studies) == (1000, 100)
    assert (shares.spent, shares.evaluation) == (True, True)


def test_a_site_says_where_things_are_and_what_it_allows(join: Join, tmp_path: Path) -> None:
    more = 'least_noise = 2\nmethods = ["vi"]\nunit = "site"\nadjacency = "replace-one"\nstudies = ["heart"]\n'
    more += "most_rounds = 7\n[shares]\nspent = false\nevaluation = false\n"
    (tmp_path / "facts.toml").write_text(FACTS.replace("[facts]\n", ""))
    top = 'kit = "../kits/a"\nstate = "/var/a"\ninsecure_seed = 7\nfacts = "facts.toml"\n'
    site = join(top + SITE + LIMITS + more)
    assert (site.kit_folder, site.state_folder) == (tmp_path / "../kits/a", Path("/var/a"))
    limits = site.settings.limits
    assert (limits.least_noise, limits.methods, limits.unit) == (2, ["vi"], "site")
    assert (limits.adjacency, limits.studies, limits.most_rounds) == ("replace-one", ["heart"], 7)
    assert (site.settings.shares.spent, site.settings.shares.evaluation) == (False, False)
    assert site.settings.insecure_seed == 7
    assert site.facts == join(OWN).facts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OWN.replace('name = "north"\n', ""), "there is no name; expected the site's name, as in its certificate"),
        (OWN.replace('"north"', '"a/b"'), "name='a/b'; expected a name that can name a folder"),
        (OWN.replace('"north"', '".."'), "name='..'; expected a name that can name a folder"),
        (OWN.replace('data = "north.csv"\n', ""), "there is no data; expected the name of a CSV"),
        (OWN.replace('data = "north.csv"', "data = 3"), "data=3; expected the name of a CSV"),
        (OWN.replace('data = "north.csv"', 'data = ""'), "data=''; expected the name of a CSV"),
        (OWN.replace('target = "ill"\n', ""), "there is no target; expected the name of a column"),
        (OWN.replace('columns = ["age", "sex"]\n', ""), "there is no columns; expected a list of the columns"),
        (OWN.replace('"sex"]', '"age"]'), "columns has more than one column 'age'"),
        (OWN.replace('"sex"]', '"ill"]'), "columns have 'ill'; expected features alone"),
        (OWN.replace('"sex"]', '"height"]'), "column 'height' has neither bounds nor categories; give [low, high]"),
        (OWN.replace("places = 32\n", ""), "there is no places; expected a whole number of at least 1"),
        (OWN.replace("places = 32", "places = 0"), "places=0; expected a whole number of at least 1: the public"),
        (SITE + LIMITS, "there is no facts; expected a table [facts]"),
        (OWN.replace('classes = ["no", "yes"]\n', ""), "target 'ill' has no classes; give its two labels"),
        (OWN.replace('["logistic"]', '["logistic", "linear"]'), "target 'ill' has no bounds; give [low, high]"),
        (OWN.replace("[0, 110]", "[110, 0]"), "facts: bounds of 'age'"),
        ('facts = "no.toml"\n' + SITE + LIMITS, "facts="),
        (SITE + FACTS, "there is no limits; expected a table [limits] with epsilon, delta and models"),
        (OWN.replace("epsilon = 1.0\n", ""), "there is no epsilon of limits; expected a number above 0"),
        (OWN.replace("epsilon = 1.0", "epsilon = inf"), "limits: epsilon=inf; expected a number above 0, the budget"),
        (OWN.replace("delta = 1e-5\n", ""), "there is no delta of limits; expected a number above 0 and below 1"),
        (OWN.replace("1e-5", "1"), "limits: delta=1; expected a number above 0 and below 1"),
        (OWN.replace('models = ["logistic"]\n', ""), "there is no models of limits; expected a list of some of"),
        (OWN.replace('["logistic"]', "[]"), "limits: models=[]; expected a list of some of logistic"),
        (OWN.replace('["logistic"]', '"logistic"'), "limits: models='logistic'; expected a list of some of logistic"),
        (OWN.replace('["logistic"]', '["poisson"]'), "limits: models 1='poisson'; expected a list of some of logistic"),
        (OWN.replace("models", 'methods = ["em"]\nmodels'), "limits: methods 1='em'; expected a list of some of nat"),
        (OWN.replace("models", 'unit = "person"\nmodels'), "limits: unit='person'; expected one of record, site"),
        (OWN.replace("models", 'adjacency = "swap"\nmodels'), "limits: adjacency='swap'; expected one of add-remove"),
        (OWN.replace("models", "least_noise = 0\nmodels"), "limits: least_noise=0; expected a number above 0"),
        (OWN.replace("models", "most_rounds = 0\nmodels"), "limits: most_rounds=0; expected a whole number"),
        (OWN.replace("models", "studies = []\nmodels"), "limits: studies=[]; expected a list of names of studies"),
        (OWN.replace("models", "modles = 1\nmodels"), "limits: 'modles' is not known there; expected models"),
        (OWN.replace("models", "places = 1\nmodels"), "limits: 'places' is not known there; expected it above all"),
        (OWN + "[shares]\nspend = true\n", "shares: 'spend' is not known there; expected spent"),
        (OWN + '[shares]\nspent = "no"\n', "shares: spent='no'; expected true or false"),
        ("insecure_seed = -1\n" + OWN, "insecure_seed=-1; expected a whole number of at least 0"),
        ('ledger = "a"\n' + OWN, "'ledger' is not known there; expected one of name, kit, state"),
        (TRIAL.replace('"A"', '"E"'), "data: split='E'; expected one of A, B, C, D"),
        (TRIAL.replace("split", "splt"), "data: 'splt' is not known there; expected split"),
        (TRIAL.replace('split = "A"\n', ""), "there is no split of data; expected one of A, B, C, D"),
        (TRIAL.replace("sites = 4\n", ""), "without sites; expected how many"),
        (TRIAL.replace("site-2", "site-5"), "name='site-5' is none of the 4 sites of [data]; expected site-1 to"),
        (TRIAL.replace("logistic", "linear"), 'data: dataset="abalone" has two classes'),
        ("places = 32\n" + TRIAL, "places with [data], whose split says how many there are; leave it out"),
        ('target = "ill"\n' + TRIAL, "target with a dataset of [data]; expected it for files only"),
        (TRIAL + FACTS, "facts with a dataset of [data]; expected it for files only"),
        (TOWN.replace('target = "ill"\n', ""), "there is no target; expected the name of a column"),
        (TOWN.replace('by = "town"', 'by = "ill"'), "by='ill' is the target"),
        ("name = \n", "cannot be read"),
    ],
)
def test_a_site_file_is_refused_by_field_and_remedy(join: Join, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^site=.*site\.toml") as error:
        join(text)
    found = str(error.value)
    assert words in found
    assert error.value.__cause__ is None
    assert "\n" not in found
    assert not re.search(r"[.!?]\s\S", found), f"more than one sentence: {found}"


def test_a_site_gives_the_columns_that_are_asked_for_in_their_order(join: Join) -> None:
    site, records = join(OWN), people(20, 0)
    found = site.table(["sex", "age"], "ill", "logistic")
    assert found.names == ("sex=M", "age")
    np.testing.assert_array_equal(found.features[:, 1], records["age"])
    np.testing.assert_array_equal(found.target, records["ill"] == "yes")
    assert site.table(None, None, "logistic").names == ("age", "sex=M")
    assert site.table(["sex"], None, "logistic").names == ("sex=M",)


@pytest.mark.parametrize("columns", [None, ["sex", "age"], ["age"]])
def test_what_is_public_of_a_site_is_told_without_its_records(join: Join, tmp_path: Path, columns: Any) -> None:
    site = join(OWN)
    real = site.table(columns, "ill", "logistic")
    (tmp_path / "north.csv").unlink()
    found = join(OWN).public_table(columns, "ill", "logistic")
    assert public(found) == public(real)
    assert len(found.target) == 0


def test_a_site_may_take_its_target_for_labels_and_for_a_number(join: Join, tmp_path: Path) -> None:
    records = people(20, 0).assign(ill=[0, 1] * 10)
    records.to_csv(tmp_path / "north.csv", index=False)
    text = OWN.replace('["logistic"]', '["linear", "probit"]').replace('["no", "yes"]', '["0", "1"]')
    site = join(text.replace("age = [0, 110]", "age = [0, 110], ill = [0, 1]"))
    linear, probit = (site.table(None, None, link) for link in ("linear", "probit"))
    assert (linear.classes, probit.classes) == (None, ("0", "1"))
    assert (linear.low[-1], linear.high[-1]) == (0, 1)
    np.testing.assert_array_equal(linear.target, probit.target)
    for link, real in (("linear", linear), ("probit", probit)):
        assert public(site.public_table(None, None, link)) == public(real)


@pytest.mark.parametrize(
    ("text", "asked", "words"),
    [
        (OWN, (["age", "town"], "ill", "logistic"), "columns name 'town', which the site does not offer"),
        (OWN, (["age", "age"], "ill", "logistic"), "columns are none, or name one twice; expected each once"),
        (OWN, ([], "ill", "logistic"), "columns are none, or name one twice; expected each once"),
        (OWN, (["age"], "sex", "logistic"), "target='sex' is not the site's"),
        (OWN, (["age"], "ill", "probit"), "model='probit' is none of the site's; expected one of logistic"),
        (TRIAL, (["age"], None, "logistic"), "columns name 'age', which the site does not offer"),
        (TRIAL, (["length"], None, "logistic"), "columns choose among those of a data set; expected all of them"),
        (TRIAL, (None, "ill", "logistic"), "target='ill' is not the site's"),
    ],
)
def test_what_a_site_does_not_offer_is_refused_in_words_for_both(
    join: Join, tmp_path: Path, text: str, asked: Any, words: str
) -> None:
    (tmp_path / "north.csv").write_text("not read before")
    site = join(text)
    for give in (site.table, site.public_table):
        with pytest.raises(Unfit) as error:
            give(*asked)
        assert words in str(error.value)
        assert words in error.value.public
        assert str(tmp_path) not in error.value.public


def test_a_site_whose_file_has_a_ledger_beside_it_tells_its_holder_alone(join: Join, tmp_path: Path) -> None:
    people(20, 0).to_csv(tmp_path / "north.csv", index=False)
    join(OWN).check()
    Ledger.create(beside(tmp_path / "north.csv"), data_set="north", epsilon=1.0, delta=1e-5)
    with pytest.raises(
        Unfit, match=r"has the ledger north\.csv\.ledger\.sqlite beside it.*ledger\.sqlite, with"
    ) as error:
        join(OWN).check()
    assert "ledger" not in error.value.public


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"age": SECRET}, "column 'age' holds text; give the public list of categories, as in [facts.categories]"),
        ({"sex": SECRET}, "column 'sex' has values outside its categories"),
        ({"age": np.nan}, "column 'age' holds missing values"),
        ({"ill": SECRET}, "target 'ill' has labels outside the classes"),
        (None, "north.csv: No such file or directory"),
        (40, "places=32 and more records; expected a place for each, so raise places"),
    ],
)
def test_records_that_do_not_fit_are_told_in_detail_to_their_holder_alone(
    join: Join, tmp_path: Path, changes: Any, words: str
) -> None:
    site, path = join(OWN), tmp_path / "north.csv"
    if changes is None:
        path.unlink()
    else:
        records = people(changes, 0) if isinstance(changes, int) else people(20, 0).assign(**changes)
        records.to_csv(path, index=False)
    with pytest.raises(Unfit, match=r"^site=.*site\.toml") as error:
        site.table(["age", "sex"], "ill", "logistic")
    assert words in str(error.value)
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.public == "the records do not fit the site's own file; its log says why"
    assert error.value.__cause__ is None
    copied = pickle.loads(pickle.dumps(error.value))
    assert (str(copied), copied.public) == (str(error.value), error.value.public)


@pytest.mark.parametrize(
    ("site", "study"),
    [
        (TRIAL, ADULT.replace("adult", "abalone").replace('"C"', '"A"').replace("10", "4") + "seed = 3\n"),
        (TOWN, TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n'),
    ],
)
def test_a_site_of_public_data_has_the_part_and_the_places_that_the_study_says(
    join: Join, read: Read, site: str, study: str
) -> None:
    own, found = join(site), read(study)
    place = found.names().index(own.settings.name)
    (member, outlined) = (found.gather()[0][place], found.outline()[0][place])
    table = own.table(None, found.settings.target, "logistic")
    np.testing.assert_array_equal(table.features, member.table.features)
    np.testing.assert_array_equal(table.target, member.table.target)
    assert public(table) == public(outlined.table) == public(own.public_table(None, None, "logistic"))
    assert own.record_places == outlined.places


def test_a_site_that_public_data_do_not_have_is_refused(join: Join) -> None:
    site = join(TOWN.replace('"01"', '"03"'))
    for give in (lambda: site.table(None, None, "logistic"), lambda: site.record_places):
        with pytest.raises(Unfit, match=r"^site=.*: name='03' is none of the sites of \[data\]; expected one of its"):
            give()


# --- Examples of site files --------------------------------------------------------------------------------------

ODD = "o'k \"é #🚫 = [x]"


@pytest.mark.parametrize(
    "text",
    [
        NETWORK,
        WHOLE,
        f"name = {json.dumps(ODD + chr(92), ensure_ascii=False)}\n"
        + WHOLE.replace('"north"', json.dumps(ODD, ensure_ascii=False)).replace("south.csv", r"a\\b\"c.csv"),
        WHOLE.replace("age", r'"a\u007f\n \"ge"').replace('"F"', r'"F\t\b\u0000"').replace('"no"', '"nö"'),
        'adjacency = "replace-one"\nmethod = "vi"\nrounds = 7\n' + PLACED + "epsilon = 3\ndelta = 1e-7\n",
        ADULT,
        ADULT + "seed = 0x" + "f" * 5000 + "\n",
        HEART,
        TOP + FACTS + '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n',
        'unit = "site"\n'
        + TOP.replace("logistic", "probit")
        + FACTS.replace("sex =", 'town = ["01", "2"], sex =')
        + '[data]\nfile = "all.csv"\nsplit = "equal"\nsites = 2\n',
        TOP.replace("logistic", "linear").replace("ill", "age")
        + '[facts]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"], ill = ["no", "yes"] }\n'
        + SITES,
        *re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "simulate.md").read_text(), re.S),
        (ROOT / "examples" / "adult-c.toml").read_text(),
    ],
)
def test_an_example_of_a_site_file_is_one_and_fits_the_study(read: Read, join: Join, text: str) -> None:
    study = read(text)
    for name in (study.names()[0], study.names()[-1]):
        site = join(example_site(study, name))
        limits, given = site.settings.limits, study.settings
        assert (site.settings.name, limits.models, limits.methods) == (name, [study.plan.link], [study.plan.method])
        assert (limits.adjacency, limits.unit, limits.studies) == (
            *(study.plan.adjacency, study.plan.unit, [study.plan.name]),
        )
        entry = next((entry for entry in given.site or [] if entry.name == name), None)
        assert limits.epsilon == (given.epsilon if entry is None or entry.epsilon is None else entry.epsilon)
        assert limits.delta == (given.delta if entry is None or entry.delta is None else entry.delta)
        if entry is None:
            assert site.settings.data == given.data
        else:
            assert site.settings.data == (entry.file or "records.csv")
            assert site.record_places == (entry.places or 1000)
        if given.columns is not None or given.site is not None:
            assert site.facts == study.facts
            asked = site.public_table(given.columns, given.target, study.plan.link)
            if given.columns is not None:
                assert public(asked) == public(study.outline()[0][0].table)


def test_an_example_is_refused_where_the_study_does_not_say_enough(read: Read) -> None:
    for text, name, words in (
        (WHOLE, "east", "site='east' is none that the study can have; expected one of north, south"),
        (WHOLE.replace("epsilon = 1.0", "epsilon = inf"), "north", "epsilon=inf, which no site's ledger can pay"),
        (WHOLE.replace('classes = ["no", "yes"]\n', ""), "north", "target 'ill' has no classes"),
        ('columns = ["age", "bmi"]\n' + WHOLE, "north", "column 'bmi' has neither bounds nor categories"),
        (TOP + SITES, "north", "no column is left as a feature; expected at least one"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            example_site(read(text), name)
