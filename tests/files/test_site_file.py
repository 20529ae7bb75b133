"""Site files: what may be in them, how they are refused, and what a site gives of its records."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.files.studies import ADULT, FACTS, LIMITS, OWN, SECRET, SITE, TOP, TOWN, TRIAL, Join, Read, people, public

from tacit.files.forms import Limits
from tacit.files.site_file import Unfit
from tacit.privacy.ledger import Ledger
from tacit.study.charging import beside


def test_what_a_site_leaves_out_has_defaults(join: Join, tmp_path: Path) -> None:
    site = join(OWN)
    assert (site.kit_folder, site.state_folder, site.slots) == (tmp_path / "kit", tmp_path / "state", 32)
    limits, shares = site.settings.limits, site.settings.shares
    assert (limits.epsilon, limits.delta, limits.least_noise, limits.models) == (1.0, 1e-5, 0.5, ["logistic"])
    assert (limits.methods, limits.unit, limits.adjacency) == (
        *(["natural", "vi", "ep", "sep", "sgld"], "record", "add-remove"),
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


def test_a_site_file_s_rule_is_one_that_is_proved() -> None:
    limits: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "models": ["logistic"]}
    assert Limits(**limits).own_rule == "renyi"
    assert Limits(**limits, methods=["natural", "ep"]).own_rule == "gaussian"
    assert Limits(**limits, methods=["natural"], rule="renyi").own_rule == "renyi"
    assert Limits(**limits, methods=["natural", "vi"], adjacency="replace-one").own_rule == "gaussian"
    assert Limits(**limits, methods=["vi"], adjacency="replace-one").own_rule == "pld", "neither prices its samples"
    with pytest.raises(ValueError, match="rule"):
        Limits(**limits, rule="pld")


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
        (OWN.replace("slots = 32\n", ""), "slots is missing; expected a whole number of at least 1"),
        (OWN.replace("slots = 32", "slots = 0"), "slots=0; expected a whole number of at least 1: the public"),
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
        (OWN.replace('models = ["logistic"]\n', ""), "limits: models=[]; expected a list of some of logistic, linear"),
        (OWN.replace('["logistic"]', "[]"), "limits: models=[]; expected a list of some of logistic"),
        (OWN.replace('["logistic"]', '"logistic"'), "limits: models='logistic'; expected a list of some of logistic"),
        (OWN.replace('["logistic"]', '["cox"]'), "limits: models 1='cox'; expected a list of some of logistic"),
        (OWN.replace("models", 'methods = ["em"]\nmodels'), "limits: methods 1='em'; expected a list of some of nat"),
        (OWN.replace("models", 'unit = "patient"\nmodels'), "limits: unit='patient'; expected one of record, person"),
        (OWN.replace("models", 'unit = "person"\nmodels'), "there is no person; expected the name of the column"),
        ('person = "id"\n' + OWN, 'person with unit="record" in [limits]; expected unit = "person" there'),
        ('person = "ill"\n' + OWN.replace("models", 'unit = "person"\nmodels'), "an id is never a feature"),
        (TRIAL.replace("models", 'unit = "person"\nmodels'), "whose records are of different persons; leave it out"),
        (OWN.replace("models", 'adjacency = "swap"\nmodels'), "limits: adjacency='swap'; expected one of add-remove"),
        (OWN.replace("models", "least_noise = 0\nmodels"), "limits: least_noise=0; expected a number above 0"),
        (OWN.replace("models", "most_rounds = 0\nmodels"), "limits: most_rounds=0; expected a whole number"),
        (OWN.replace("models", "studies = []\nmodels"), "limits: studies=[]; expected a list of names of studies"),
        (OWN.replace("models", "modles = 1\nmodels"), "limits: 'modles' is not known there; expected models"),
        (OWN.replace("models", "slots = 1\nmodels"), "limits: 'slots' is not known there; expected it above all"),
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
        ("slots = 32\n" + TRIAL, "slots with [data], whose split says how many there are; leave it out"),
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
        (OWN, (["age", "age"], "ill", "logistic"), "columns are empty, or name one twice; expected each once"),
        (OWN, ([], "ill", "logistic"), "columns are empty, or name one twice; expected each once"),
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
        (40, "slots=32 and more records; expected a slot for each, so raise slots"),
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
def test_a_site_of_public_data_has_the_part_and_the_slots_that_the_study_says(
    join: Join, read: Read, site: str, study: str
) -> None:
    own, found = join(site), read(study)
    index = found.names().index(own.settings.name)
    real, outlined = found.gather()[0][index], found.outline()[0][index]
    table = own.table(None, found.settings.target, "logistic")
    np.testing.assert_array_equal(table.features, real.table.features)
    np.testing.assert_array_equal(table.target, real.table.target)
    assert public(table) == public(outlined.table) == public(own.public_table(None, None, "logistic"))
    assert own.slots == outlined.slots


def test_a_site_that_public_data_do_not_have_is_refused(join: Join) -> None:
    site = join(TOWN.replace('"01"', '"03"'))
    for give in (lambda: site.table(None, None, "logistic"), lambda: site.slots):
        with pytest.raises(Unfit, match=r"^site=.*: name='03' is none of the sites of \[data\]; expected one of its"):
            give()
