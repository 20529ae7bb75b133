"""Persons by a column, and models of users' own on named columns, in study and site files."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from tests.files.studies import FACTS, LIMITS, PERSONS, SITES, TOP, Join, Read, people

from tacit.federated.held_out import held_out, seeded_secret
from tacit.files.example_site import example_site
from tacit.files.site_file import Unfit
from tacit.models import from_numpyro
from tacit.study.plan import Plan
from tacit.study.reading import contents_of_persons, records_for
from tacit.study.setup import Setup
from tacit.study.sites import Site
from tacit.tables.facts import Facts
from tacit.tables.table import Table

OF_PERSONS = PERSONS + 'person = "id"\n' + TOP + FACTS + SITES
SITE = 'name = "north"\ndata = "north.csv"\ntarget = "ill"\ncolumns = ["age", "sex"]\nslots = 12\nperson = "nhs"\n'
AT_SITE = SITE + LIMITS + 'unit = "person"\n' + FACTS


def with_ids(seed: int = 0, name: str = "id", persons: int = 10) -> pd.DataFrame:
    """Twenty records of ten persons, in an order of their own."""
    frame = people(20, seed).drop(columns="town")
    frame.insert(0, name, [f"{j % persons:03d}" for j in range(20)])
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


# --- Persons ------------------------------------------------------------------------------------------------------


def test_a_study_file_s_persons_are_known_by_a_column_that_is_no_feature(read: Read, tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        with_ids(seed).to_csv(tmp_path / f"{name}.csv", index=False)
    study = read(OF_PERSONS)
    sites, _ = study.gather()
    for site in sites:
        assert site.table.names == ("age", "sex=M")
        assert sorted(set(site.table.groups)) == [f"{j:03d}" for j in range(10)], "as text: 001 is not 1"
    assert Setup(study.plan, sites).slots == [10, 10]


def test_a_person_is_the_same_whoever_else_is_in_the_file(read: Read, tmp_path: Path) -> None:
    """An id that no number is, of somebody else, makes no two persons of 01 and 1, or one of them."""
    frame = with_ids()
    frame["id"] = [["01", "1", "2", "2.0", "A7"][j % 5] for j in range(20)]
    found = []
    for part in (frame, frame[frame["id"] != "A7"]):
        for name in ("north", "south"):
            part.to_csv(tmp_path / f"{name}.csv", index=False)
        table = read(OF_PERSONS).gather  # the two files are equal, which is refused later
        with pytest.raises(ValueError, match="holds the same records"):
            table()
        part.assign(age=part["age"] + 1).to_csv(tmp_path / "south.csv", index=False)
        found.append(read(OF_PERSONS).gather()[0][0].table)
    kept = found[0].groups != "A7"
    np.testing.assert_array_equal(found[0].groups[kept], found[1].groups)
    assert set(found[1].groups) == {"01", "1", "2", "2.0"}


def test_all_records_of_a_person_are_held_out_or_none_and_others_change_nothing() -> None:
    """By a hash of the id under the site's secret: deleting persons leaves the others on their side."""
    frame = pd.concat([with_ids(seed).assign(id=lambda part, s=seed: part["id"] + f"-{s}") for seed in range(10)])
    facts = Facts({"age": (0.0, 110.0)}, {"sex": ("F", "M")}, ("no", "yes"))
    plan, secret = Plan("logistic", unit="person", most_records=2, evaluation=0.2, rounds=3), seeded_secret(3)

    def sides(part: pd.DataFrame) -> dict[str, set[bool]]:
        table = Table.of_frame(part, "ill", "logistic", unit="id", columns=["age", "sex"], facts=facts)
        setup = Setup(plan, [Site("north", table, 1.0, 1e-5, slots=200)]).splitting({"north": secret})
        marks = held_out(secret, contents_of_persons(table.groups))
        assert np.array_equal(marks, setup._held_out(setup.sites[0]))
        found: dict[str, set[bool]] = {}
        for who, mark in zip(table.groups, marks, strict=True):
            found.setdefault(who, set()).add(bool(mark))
        return found

    whole = sides(frame)
    assert all(len(both) == 1 for both in whole.values())
    assert {True, False} == set().union(*whole.values())
    fewer = sides(frame[~frame["id"].isin(sorted(set(frame["id"]))[:30])])
    assert len(fewer) == 70
    assert all(whole[who] == side for who, side in fewer.items())


def test_a_site_reads_persons_by_its_own_column_and_counts_them_against_its_slots(join: Join, tmp_path: Path) -> None:
    with_ids(name="nhs").to_csv(tmp_path / "north.csv", index=False)
    table = join(AT_SITE).table(["age", "sex"], "ill", "logistic")
    assert table.names == ("age", "sex=M")
    assert len(set(table.groups)) == 10
    with_ids(name="nhs", persons=13).to_csv(tmp_path / "north.csv", index=False)
    with pytest.raises(Unfit, match="slots=12 and more persons; expected a slot for each") as error:
        join(AT_SITE).table(["age", "sex"], "ill", "logistic")
    assert "13" not in str(error.value)
    with_ids(name="other").to_csv(tmp_path / "north.csv", index=False)
    with pytest.raises(Unfit, match="person='nhs' is not a column") as error:
        join(AT_SITE).table(["age", "sex"], "ill", "logistic")
    assert error.value.public == "the records do not fit the site's own file; its log says why"


def test_an_example_of_a_site_file_asks_for_the_column_of_persons(read: Read, join: Join) -> None:
    site = join(example_site(read(OF_PERSONS), "north"))
    assert (site.settings.person, site.settings.limits.unit) == ("id", "person")
    without = OF_PERSONS.replace('person = "id"\n', "").replace('file = "north.csv"', "slots = 20")
    without = 'columns = ["age", "sex"]\n' + without.replace('file = "south.csv"', "slots = 20")
    site = join(example_site(read(without), "north"))
    assert site.settings.person == "person"


# --- Named columns ------------------------------------------------------------------------------------------------

TWO = (np.array([30.0, 60.0]), np.array([0.0, 1.0]), np.array([1, 0]))


def table(**more: Any) -> Table:
    facts = Facts({"age": (0.0, 110.0)}, {"sex": ("F", "M"), "town": ("01", "2", "3")}, ("no", "yes"))
    return Table.of_frame(people(20, 0), "ill", "own:model", facts=facts, **({"columns": ["age", "sex"]} | more))


def model(write: Any, example: tuple[Any, ...] = TWO) -> Any:
    pytest.importorskip("numpyro")
    return from_numpyro(write, example)


def _coin(target: Any, mean: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", len(target)):
        numpyro.sample("obs", dist.Normal(shift + mean, 1.0), obs=target)


def two(age: Any, sex: Any, y: Any) -> None:
    _coin(y, 0.01 * age + sex)


def turned(sex: Any, age: Any, y: Any) -> None:
    _coin(y, 0.01 * age + sex)


def three(age: Any, sex: Any, height: Any, y: Any) -> None:
    _coin(y, age + sex + height)


def whole(x: Any, y: Any) -> None:
    _coin(y, x.sum(axis=1))


def alone(age: Any, sex: Any) -> None:
    _coin(age, sex)


def test_a_numpyro_model_takes_columns_by_the_names_of_its_arguments_and_last_the_target() -> None:
    records = table()
    for write, places in ((two, (0, 1)), (turned, (1, 0))):
        *features, target = records_for(model(write), records)
        for place, column in zip(places, features, strict=True):
            np.testing.assert_array_equal(column, records.features[:, place])
        np.testing.assert_array_equal(target, records.target)
        assert (target.dtype.kind, features[0].dtype.kind) == ("i", "f"), "in the types of the example"
    pairs = np.array([[30.0, 0.0], [60.0, 1.0]])
    x, y = records_for(model(whole, (pairs, np.array([0.0, 1.0]))), records)
    np.testing.assert_array_equal(x, records.features)
    np.testing.assert_array_equal(y, records.target)


def test_without_a_target_a_model_takes_features_alone() -> None:
    facts = Facts({"age": (0.0, 110.0)}, {"sex": ("F", "M")})
    records = Table.of_frame(people(20, 0), None, "own:model", columns=["age", "sex"], facts=facts)
    age, sex = records_for(model(alone, TWO[:2]), records)
    np.testing.assert_array_equal(np.column_stack([age, sex]), records.features)
    np.testing.assert_array_equal(records_for(object(), records), records.features)
    found = Table.of_facts(None, "own:model", ["age", "sex"], facts)
    assert (found.names, found.schema, found.classes) == (records.names, records.schema, None)


@pytest.mark.parametrize(
    ("write", "example", "columns", "words"),
    [
        (three, (*TWO[:2], TWO[0], TWO[2]), ["age", "sex"], "the model takes 'height', and no column has this name"),
        (two, TWO, ["age", "sex", "town"], "column 'town=2' is none of the model's arguments, age, sex; leave it out"),
        (two, TWO, ["age"], "the model takes 'sex', and no column has this name and one number"),
        (whole, (np.eye(3)[:2], TWO[2]), ["age", "sex"], "holds 3 numbers and there are 2 columns; expected as many"),
    ],
)
def test_columns_that_do_not_fit_are_refused_in_one_sentence(
    write: Any, example: tuple[Any, ...], columns: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as error:
        records_for(model(write, example), table(columns=columns))
    assert "\n" not in str(error.value)


def test_other_models_take_what_they_say() -> None:
    records = table()
    x, y = records_for(object(), records)
    np.testing.assert_array_equal(x, records.features)
    np.testing.assert_array_equal(y, records.target)
    with_line = type("Line", (), {"of_linear": None})()
    x, _ = records_for(with_line, records)
    assert np.all(x[:, 0] == 1)
    assert x.shape == (20, 3)
    tree = {"a": np.zeros(3)}
    assert jax.tree.leaves(records_for(with_line, tree))[0] is tree["a"], "arrays are taken as they are"
