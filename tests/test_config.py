"""Study files: what may be in them, how they are refused, and the sites that they make."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.config import Settings, Study, read_study
from tacit.data.datasets import abalone
from tacit.privacy.events import Gaussian
from tacit.privacy.ledger import Ledger

ROOT = Path(__file__).parent.parent
SECRET = "s3cret"
TOP = 'model = "logistic"\ntarget = "ill"\nepsilon = 1.0\ndelta = 1e-5\n'
FACTS = '[facts]\nclasses = ["no", "yes"]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"] }\n'
SITES = '[[site]]\nname = "north"\nfile = "north.csv"\n[[site]]\nname = "south"\nfile = "south.csv"\n'
WHOLE = TOP + FACTS + SITES
ADULT = 'model = "logistic"\nepsilon = 1\ndelta = 1e-5\n[data]\ndataset = "adult"\nsplit = "C"\nsites = 10\n'

Read = Callable[[str], Study]


def people(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"age": rng.integers(18, 90, count), "sex": rng.choice(["F", "M"], count)}
    return pd.DataFrame(columns | {"ill": rng.choice(["no", "yes"], count), "town": rng.choice(["01", "2"], count)})


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The study of a text, beside files of three sites."""
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
    waiting = [Settings]
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
        (TOP + '[[site]]\nname = "a"\n', "there is no file of site 1; expected the name of a CSV"),
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


def test_the_studies_of_the_guide_are_sound(read: Read) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "simulate.md").read_text(), re.S)
    assert [read(block).plan.link for block in blocks] == ["logistic"] * 3


def test_the_example_is_a_study_of_ten_sites() -> None:
    path = ROOT / "examples" / "adult-c.toml"
    members, test = read_study(path).gather()
    assert len(members) == 10
    assert {member.epsilon for member in members} == {1.0}
    assert test is not None
    sizes = [len(member.table.target) for member in members]
    assert max(sizes[:5]) * 5 < min(sizes[5:])
