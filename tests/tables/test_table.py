"""Files become tables by public facts alone, and what cannot is refused by column, never by value."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.tables.digests import digests_of
from tacit.tables.encoding import encode
from tacit.tables.facts import Facts, split_list
from tacit.tables.files import read_frame
from tacit.tables.table import Table

FACTS = Facts({"age": (0.0, 100.0)}, {"region": ("north", "south", "NA")}, ("no", "yes"))
NAMES = st.text(st.sampled_from("ab é'"), min_size=1, max_size=3).filter(lambda name: name.strip())
LABELS = ("a", "b", "NA", "1", "c d")


def frame(**changes: Any) -> pd.DataFrame:
    columns = {
        "age": [31, 58, 44, 25],
        "weight": [61.5, 80.25, 70.0, 55.0],
        "smoker": [True, False, False, True],
        "region": ["north", "NA", "south", "north"],
        "ill": ["no", "yes", "yes", "no"],
    }
    return pd.DataFrame({name: column for name, column in {**columns, **changes}.items() if column is not None})


def table(data: pd.DataFrame, model: str = "logistic", facts: Facts = FACTS, **options: Any) -> Table:
    return Table.of_frame(data, "ill", model, facts=facts, **options)


# --- Encoding ----------------------------------------------------------------------------------------------------


def test_numbers_stay_bools_are_indicators_and_categories_one_indicator_each_but_the_first():
    found = table(frame())
    assert found.names == ("age", "weight", "smoker", "region=south", "region=NA")
    assert found.numbers == (0, 1)
    np.testing.assert_array_equal(found.features[1], np.float32([58, 80.25, 0, 0, 1]))
    np.testing.assert_array_equal(found.target, [0, 1, 1, 0])
    assert found.classes == ("no", "yes")
    np.testing.assert_array_equal(found.low, [0, np.nan, np.nan])
    np.testing.assert_array_equal(found.high, [100, np.nan, np.nan])


def test_no_category_comes_from_the_records():
    """Two sets of records under the same facts have the same columns, in the same order."""
    other = frame(region=["south", "south", "north", "north"])
    assert table(other).names == table(frame()).names
    assert table(other).schema == table(frame()).schema


@pytest.mark.parametrize("codes", [[1, 2, 1, 2], [1.0, 2.0, 1.0, 2.0], ["1", "2", "1", "2"], ["01", "02", "01", "02"]])
def test_codes_with_public_categories_are_categories_however_they_are_stored(codes):
    found = table(
        frame(region=None, code=codes), facts=Facts(categories={"code": ("1", "2", "3")}, classes=("no", "yes"))
    )
    assert found.names[-2:] == ("code=2", "code=3")
    np.testing.assert_array_equal(found.features[:, -2:], np.eye(3)[[0, 1, 0, 1], 1:])


def test_codes_that_differ_by_a_leading_zero_alone_are_kept_apart_where_both_are_listed():
    facts = Facts(categories={"code": ("1", "01")}, classes=("no", "yes"))
    found = table(frame(region=None, code=["1", "01", "01", "1"]), facts=facts)
    np.testing.assert_array_equal(found.features[:, -2:], np.eye(2)[[0, 1, 1, 0]])


@pytest.mark.parametrize(
    ("target", "classes", "expected"),
    [
        ([0, 1, 1, 0], None, (0, 1)),
        ([False, True, True, False], None, (False, True)),
        (["no", "yes", "yes", "no"], ("no", "yes"), ("no", "yes")),
        ([1, 2, 2, 1], ("1", "2"), ("1", "2")),
        ([False, True, True, False], ("false", "true"), ("false", "true")),
    ],
)
def test_a_target_of_two_labels_is_0_and_1(target, classes, expected):
    found = table(frame(ill=target), facts=Facts(categories=FACTS.categories, classes=classes))
    np.testing.assert_array_equal(found.target, [0, 1, 1, 0])
    assert found.classes == expected


def test_bounds_of_a_numeric_target_are_its_own():
    found = table(frame(ill=[1.0, 2.0, 3.0, 4.0]), "linear", Facts({"ill": (0, 10)}, FACTS.categories))
    assert (found.low[-1], found.high[-1]) == (0, 10)
    assert found.classes is None


def test_the_unit_is_no_feature_and_groups_records():
    found = table(frame(who=["b", "a", "b", "c"]), unit="who")
    assert "who" not in found.names
    assert found.groups is not None
    assert found.groups.tolist() == ["b", "a", "b", "c"], "as text, which no other record changes"


def test_columns_choose_features_and_their_order():
    assert table(frame(), columns=["smoker", "age"]).names == ("smoker", "age")


def test_further_records_are_encoded_alike_whatever_else_the_file_has():
    fitted = table(frame())
    new = frame(ill=None, note=["a", "b", "c", "d"])[["note", "region", "smoker", "age", "weight"]]
    np.testing.assert_array_equal(encode(new, fitted.schema), fitted.features)
    one = new.iloc[:1]  # constant columns are no fault in new records
    np.testing.assert_array_equal(encode(one, fitted.schema), fitted.features[:1])


# --- From public facts alone -------------------------------------------------------------------------------------


def public(found: Table) -> tuple[Any, ...]:
    """All that a table says beside its records."""
    ends = [found.low.tobytes(), found.high.tobytes()]
    return found.names, found.numbers, *ends, found.classes, found.schema, found.notes, found.categories


@pytest.mark.parametrize("model", ["logistic", "probit", "linear"])
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_table_of_facts_is_that_of_any_frame_under_the_same_facts(model, data):
    """Whatever the records are, and whichever columns beside the features the file has."""
    kinds = data.draw(st.dictionaries(NAMES, st.sampled_from(["number", "bool", "category"]), min_size=1, max_size=4))
    count = data.draw(st.integers(2, 5))
    columns: dict[str, Any] = {}
    bounds, categories = {}, {}
    for name, kind in kinds.items():
        if kind == "category":
            labels = data.draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True))
            categories[name] = tuple(labels)
            columns[name] = data.draw(st.lists(st.sampled_from(labels), min_size=count, max_size=count))
        else:
            bounds[name] = data.draw(st.sampled_from([(0.0, 1.0), (-5.5, 300.0), (1e-3, 2e-3)]))
            values = st.booleans() if kind == "bool" else st.integers(-9, 9) | st.floats(-9, 9, width=32)
            columns[name] = data.draw(st.lists(values, min_size=count, max_size=count))
    is_linear = model == "linear"
    columns["y"] = data.draw(
        st.lists(st.sampled_from([0.5, 2] if is_linear else ["a", "b"]), min_size=count, max_size=count)
    )
    chosen = data.draw(st.permutations(sorted(kinds)))[: data.draw(st.integers(1, len(kinds)))]
    facts = Facts(bounds | ({"y": (0.0, 9.0)} if is_linear else {}), categories, None if is_linear else ("b", "a"))
    found = Table.of_facts("y", model, chosen, facts)
    assert public(found) == public(Table.of_frame(pd.DataFrame(columns), "y", model, columns=chosen, facts=facts))
    assert (found.features.shape, found.target.shape) == ((0, len(found.names)), (0,))
    assert found.features.dtype == found.target.dtype == np.float32


@pytest.mark.parametrize(
    ("model", "columns", "facts", "words"),
    [
        ("logistic", ["age", "height"], {}, "column 'height' has neither bounds nor categories; give [low, high]"),
        ("logistic", ["age"], {"classes": None}, "target 'ill' has no classes; give its two labels as facts.classes"),
        ("probit", ["age"], {"classes": ("a", "b", "c")}, "3 classes; expected 2"),
        ("linear", ["age"], {}, "classes are for a target of labels"),
        ("linear", ["age"], {"classes": None}, "target 'ill' has no bounds; give [low, high]"),
        ("logistic", ["age", "age"], {}, "more than one column 'age'"),
        ("logistic", ["age", "ill"], {}, "expected features alone"),
        ("logistic", [], {}, "no column is left"),
        ("logistic", ["age"], {"bounds": {"region": (0, 1)}}, "column 'region' has bounds and categories"),
    ],
)
def test_facts_that_do_not_say_all_are_refused(model, columns, facts, words):
    given = {"bounds": FACTS.bounds, "categories": FACTS.categories, "classes": FACTS.classes} | facts
    with pytest.raises(ValueError, match=r".") as error:
        Table.of_facts("ill", model, columns, Facts(**given))
    assert words in str(error.value)


def test_bounds_make_true_and_false_numbers_whatever_a_file_holds():
    facts = Facts({"smoker": (0.0, 1.0)}, FACTS.categories, FACTS.classes)
    stored = [table(frame(smoker=values), facts=facts) for values in ([True, False, False, True], [1, 0, 0, 1])]
    assert public(stored[0]) == public(stored[1])
    assert 2 in stored[0].numbers
    np.testing.assert_array_equal(stored[0].features, stored[1].features)


def test_a_table_without_records_says_the_same_and_nothing_of_them():
    found = table(frame(age=[31] * 4, who=[1, 2, 1, 2]), unit="who")
    assert found.remarks
    empty = found.without_records()
    assert public(empty) == public(found)
    assert (empty.features.shape, empty.target.shape, empty.groups, empty.remarks) == ((0, 5), (0,), None, ())


# --- Refusals ----------------------------------------------------------------------------------------------------

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("changes", "model", "options", "words"),
    [
        ({"region": ["north", SECRET, "south", "north"]}, "logistic", {}, "column 'region' has values outside"),
        ({"age": ["31", SECRET, "44", "25"]}, "logistic", {}, "column 'age' holds text; give"),
        ({"age": ["a", "b"] * 2, "job": ["x", SECRET] * 2}, "logistic", {}, "columns 'age', 'job' hold text"),
        ({"age": [31, None, 44, 25]}, "logistic", {}, "column 'age' holds missing values; fill or drop"),
        ({"region": ["north", None, "south", "north"]}, "logistic", {}, "column 'region' holds missing"),
        ({"ill": ["no", None, "yes", "no"]}, "logistic", {}, "column 'ill' holds missing"),
        ({"age": [31, np.inf, 44, 25]}, "logistic", {}, "column 'age' holds numbers that are not finite"),
        ({"age": [31, 1e300, 44, 25]}, "logistic", {}, "column 'age' holds numbers that are not finite"),
        ({"age": [31 + 2j, 1, 44, 25]}, "logistic", {}, "column 'age' holds text"),
        ({"ill": ["no", "yes", SECRET, "no"]}, "logistic", {}, "labels outside the classes no, yes"),
        ({"ill": ["no", "yes", "yes", "no"]}, "logistic", {"classes": None}, "--classes no,yes"),
        ({"ill": [0, 1, 2, 0]}, "probit", {"classes": None}, "target 'ill' is not 0 or 1"),
        ({}, "logistic", {"classes": ("a", "b", "c")}, "3 classes; expected 2"),
        ({}, "softmax", {"classes": None}, "a softmax regression needs the public classes"),
        ({}, "linear", {"classes": None}, "target 'ill' holds text"),
        ({}, "linear", {}, "classes are for a target of labels"),
        ({"ill": [1.0, np.inf, 2, 3]}, "linear", {"classes": None}, "target 'ill' has numbers that are not finite"),
        ({"ill": [1, 2, -1, 0]}, "poisson", {"classes": None}, "whole numbers from 0 on"),
        ({"ill": [1, 2, 0.5, 0]}, "poisson", {"classes": None}, "whole numbers from 0 on"),
        ({}, "logistic", {"target": "sick"}, "target='sick' is not a column; expected one of age, weight, smoker"),
        ({}, "logistic", {"unit": "who"}, "unit='who' is not a column"),
        ({}, "logistic", {"unit": "ill"}, "unit='ill' is not a column beside the target"),
        ({}, "logistic", {"columns": ["height"]}, "columns name 'height', which is not a column"),
        ({}, "logistic", {"columns": ["age", "age"]}, "more than one column 'age'"),
        ({}, "logistic", {"columns": ["age", "ill"]}, "expected features alone"),
        ({}, "logistic", {"bounds": {"hight": (0, 1)}}, "bounds name 'hight'"),
        ({}, "logistic", {"bounds": {"region": (0, 1)}}, "column 'region' has bounds and categories"),
        ({}, "logistic", {"categories": {"ill": ("no", "yes")}}, "expected its labels as --classes"),
        (
            {"Unnamed: 0": [0, 1, 2, 3]},
            "logistic",
            {"columns": ["age", "Unnamed: 0"]},
            "numbers the rows of some table",
        ),
        (
            {"__index_level_0__": [0, 1, 2, 3]},
            "logistic",
            {"columns": ["__index_level_0__"]},
            "numbers the rows of some table",
        ),
        (
            dict.fromkeys(("age", "weight", "smoker", "region")),
            "logistic",
            {"categories": {}, "bounds": {}},
            "no column",
        ),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_column_and_not_by_value(changes, model, options, words):
    facts = {"bounds": FACTS.bounds, "categories": FACTS.categories, "classes": FACTS.classes}
    facts |= {name: options.pop(name) for name in list(options) if name in facts}
    target = options.pop("target", "ill")
    with pytest.raises(ValueError, match=r".") as error:
        Table.of_frame(frame(**changes), target, model, facts=Facts(**facts), **options)
    assert words in str(error.value)
    assert SECRET not in str(error.value)


def test_a_refusal_is_one_line_whatever_columns_and_categories_are_called():
    for data, target in ((frame(), "ill"), (frame().rename(columns={"age": "a\nge"}), "sick")):
        with pytest.raises(ValueError, match=r"^[^\n]*\\n[^\n]*$"):
            Table.of_frame(
                data, target, "logistic", facts=Facts(categories={"region": ("n\north",)}, classes=("no", "yes"))
            )


def test_fewer_than_two_records_are_refused():
    with pytest.raises(ValueError, match="has 1 record; expected at least 2"):
        table(frame().iloc[:1])
    with pytest.raises(ValueError, match="has no records; expected at least 2"):
        table(frame().iloc[:0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"age": None, "region": None}, "the file has no columns 'age', 'region'"),
        ({"age": ["x", SECRET, "y", "z"]}, "column 'age' held numbers in the fit and holds text here"),
        ({"smoker": [0, 1, 2, 0]}, "column 'smoker' held True and False"),
        ({"region": ["north", SECRET, "south", "north"]}, "column 'region' has values outside its categories"),
        ({"age": [31, None, 44, 25]}, "column 'age' holds missing values"),
    ],
)
def test_further_records_that_do_not_fit_the_schema_are_refused(changes, words):
    with pytest.raises(ValueError, match=words) as error:
        encode(frame(**changes), table(frame()).schema)
    assert SECRET not in str(error.value)


def test_true_and_false_may_be_1_and_0_in_further_records():
    fitted = table(frame())
    np.testing.assert_array_equal(encode(frame(smoker=[1, 0, 0, 1]), fitted.schema), fitted.features)


# --- Files -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[".csv", ".parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = tmp_path / f"data{request.param}"
    frame().to_csv(found, index=False) if request.param == ".csv" else frame().to_parquet(found)
    return found


def test_csv_and_parquet_are_the_same_table(path):
    found, expected = table(read_frame(path, FACTS.listed("ill"))), table(frame())
    assert found.names == expected.names
    assert found.schema == expected.schema
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.target, expected.target)


def test_a_parquet_file_may_store_text_as_a_dictionary(tmp_path):
    data = frame()
    data["region"] = data["region"].astype("category")
    data.to_parquet(tmp_path / "data.parquet")
    np.testing.assert_array_equal(table(read_frame(tmp_path / "data.parquet")).features, table(frame()).features)


def test_a_category_may_be_called_na_and_a_number_may_not(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("age,region,ill\n31,NA,0\nNA,north,1\n")
    found = read_frame(path, {"region": ("NA", "north")})
    assert found["region"].tolist() == ["NA", "north"]
    assert found["age"].isna().tolist() == [False, True]


@pytest.mark.parametrize("content", ["\ufeffage, ill\n31, 0\n58, 1\n", "\nage,ill\r\n31,0\r\n58,1\r\n"])
def test_marks_blanks_and_line_ends_of_other_programs_are_read(tmp_path, content):
    path = tmp_path / "data.csv"
    path.write_bytes(content.encode())
    assert read_frame(path).to_dict("list") == {"age": [31, 58], "ill": [0, 1]}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.csv", None, "No such file or directory; expected a file that ends in .csv or .parquet"),
        ("data.xlsx", b"x", "expected a file that ends in .csv or .parquet"),
        ("data", b"x", "expected a file that ends in .csv or .parquet"),
        ("data.csv", b"", "is empty"),
        ("data.csv", b"\n\n", "it has no column names"),
        ("data.csv", b"age,ill\n", "has no records"),
        ("data.csv", b"age,ill,age\n1,2,3\n", "has more than one column 'age'"),
        ("data.csv", b"age,ill\n1,2,3\n4,5,6\n", "a line has more values"),
        ("data.csv", b"age,ill\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
        ("data.csv", b"age,ill\n\xff\xfe,2\n", "it is not text in UTF-8"),
        ("data.csv", b"\xff\xfe\n", "it is not text in UTF-8"),
        ("data.parquet", b"age,ill\n1,2\n", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, content, words):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r".") as error:
        read_frame(path)
    assert f"data={path}" in str(error.value)
    assert words in str(error.value)


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "data.csv").mkdir()
    with pytest.raises(ValueError, match="Is a directory"):
        read_frame(tmp_path / "data.csv")


def test_semicolons_are_pointed_out(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("age;ill\n31;0\n58;1\n")
    with pytest.raises(ValueError, match="with commas between columns"):
        Table.of_frame(read_frame(path), "ill", "logistic")


# --- Facts -------------------------------------------------------------------------------------------------------

TOML = """classes = ["no", "yes"]

[bounds]
age = [0, 100]
"body mass" = [10.0, 60.0]

[categories]
region = ["north", "south"]
grade = [1, 2, 3]
"""


def test_facts_come_from_a_file_and_the_command_line_goes_before_it(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(TOML)
    found = Facts.given(path, ["age=17:90", "temp=-20:40"], ['region=a,"b, c"'], "n,y")
    assert found.bounds == {"age": (17, 90), "body mass": (10, 60), "temp": (-20, 40)}
    assert found.categories == {"region": ("a", "b, c"), "grade": ("1", "2", "3")}
    assert found.classes == ("n", "y")
    assert found.listed("ill") == {**found.categories, "ill": ("n", "y")}
    assert Facts.given(path).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bounds": ["age"]}, 'expected "column=low:high"'),
        ({"bounds": ["age=0"]}, 'expected "column=low:high"'),
        ({"bounds": ["age=a:b"]}, 'expected "column=low:high"'),
        ({"bounds": ["age=5:1"]}, "the lower one first"),
        ({"bounds": ["age=0:inf"]}, "expected finite numbers"),
        ({"categories": ["sex"]}, 'expected "column=a,b"'),
        ({"categories": ["sex="]}, 'expected "column=a,b"'),
        ({"categories": ["sex=F,F"]}, "the same entry twice"),
        ({"classes": "yes"}, "expected at least two"),
        ({"classes": ""}, "expected at least two"),
    ],
)
def test_facts_that_cannot_be_read_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Facts.given(**given)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("classes = [", "cannot be read"),
        ("limits = 3", "has 'limits'"),
        ("bounds = 3", "has 'bounds'"),
        ("[bounds]\nage = 3", "bounds of 'age'; expected [low, high]"),
        ("[bounds]\nage = [3, 1]", "the lower one first"),
        ("[categories]\nsex = 'F'", "categories of 'sex'; expected a list"),
        ("[categories]\nsex = []", "categories of 'sex'; expected a list"),
        ("classes = ['a']", "classes; expected a list of at least two"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(tmp_path, content, words):
    path = tmp_path / "schema.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r".") as error:
        Facts.given(path)
    assert f"schema={path}" in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_is_split_at_commas_outside_quotes():
    assert split_list('a, b,"c,d"') == ["a", "b", "c,d"]
    assert split_list("") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"age": [31] * 4, "smoker": [True] * 4}, "columns 'age', 'smoker' have one value in all records"),
        ({"region": ["north"] * 4}, "column 'region' has one value in all records"),
        ({"ill": ["no"] * 4}, "target 'ill' has one value in all records"),
    ],
)
def test_what_one_record_could_change_is_remarked_and_not_refused(changes, words):
    """A refusal here would be an exact query: the same table with one other record would be fitted."""
    found = table(frame(**changes))
    assert any(words in remark for remark in found.remarks)
    assert not any(words in note for note in found.notes)
    assert table(frame()).remarks == ()


# --- What a record is, whatever stands beside it -----------------------------------------------------------------


def contents_of(tmp_path: Path, text: str, **more: Any) -> np.ndarray:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return digests_of(read_frame(path, **more))


ROWS = ["1,0.1,yes,True", "2,0.30000000000000004,no,False", "0012,1e-3,maybe,TRUE", "-0,5,NA,true"]


@pytest.mark.parametrize(
    "added", ["1.5,0.2,no,False", "word,other,no,maybe", ",,,", "9" * 400 + ",inf,-1,1", "1_0,.5,x,0"]
)
def test_what_a_row_is_does_not_depend_on_what_other_rows_make_of_its_columns(tmp_path, added):
    """A row of fractions, of text, of nothing or of huge numbers makes pandas read all others as something else."""
    plain = contents_of(tmp_path, "\n".join(["a,b,c,d", *ROWS]))
    for place in range(len(ROWS) + 1):
        rows = [*ROWS[:place], added, *ROWS[place:]]
        found = contents_of(tmp_path, "\n".join(["a,b,c,d", *rows]))
        np.testing.assert_array_equal(np.delete(found, place, 0), plain)
    for place in range(len(ROWS)):
        rows = [*ROWS[:place], *ROWS[place + 1 :]]
        found = contents_of(tmp_path, "\n".join(["a,b,c,d", *rows]))
        np.testing.assert_array_equal(found, np.delete(plain, place, 0))


def test_what_a_row_is_does_not_depend_on_how_a_study_reads_the_file(tmp_path):
    """Columns in another order, and columns read as text because they have public categories."""
    plain = contents_of(tmp_path, "\n".join(["a,b,c,d", *ROWS]))
    turned = [",".join(row.split(",")[::-1]) for row in ROWS]
    np.testing.assert_array_equal(contents_of(tmp_path, "\n".join(["d,c,b,a", *turned])), plain)
    listed = {name: ("NA",) for name in "abcd"}
    np.testing.assert_array_equal(contents_of(tmp_path, "\n".join(["a,b,c,d", *ROWS]), listed=listed), plain)
    assert len({row.tobytes() for row in plain}) == len(ROWS)


def test_every_value_of_a_row_is_part_of_what_it_is(tmp_path):
    plain = contents_of(tmp_path, "\n".join(["a,b,c,d", *ROWS]))
    for place in range(4):
        values = ROWS[1].split(",")
        values[place] = "7"
        assert np.any(contents_of(tmp_path, "\n".join(["a,b,c,d", ",".join(values), ROWS[0]]))[0] != plain[1])


def test_the_records_of_a_part_of_a_table_are_what_they_were():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "left": ["x", "y", "z"], "y": [0, 1, 1]})
    table = Table.of_frame(frame, "y", "logistic", columns=["a"])
    np.testing.assert_array_equal(table.rows([2, 0]).contents(), digests_of(frame)[[2, 0]])
    arrays = Table.of([[1.0], [2.0], [3.0]], [0, 1, 1])
    np.testing.assert_array_equal(arrays.rows([2, 0]).contents(), arrays.contents()[[2, 0]])
    np.testing.assert_array_equal(Table.of([[1.0], [2.5]], [0.0, 0.5]).contents()[0], arrays.contents()[0])
    assert table.without_records().contents().shape == (0, 16)
    assert arrays.without_records().contents().shape == (0, 16)
    torn = replace(table, features=table.features[:2], target=table.target[:2])
    with pytest.raises(ValueError, match="take a part of a table by rows"):
        torn.contents()


# --- What stands beside a record ---------------------------------------------------------------------------------


def kept(part: np.ndarray, gone: int) -> np.ndarray:
    return np.delete(part, gone, axis=0)


ODD_CELLS: list[tuple[list[Any], Any]] = [
    ([True, False] * 4, 1),
    ([0, 1] * 4, 1.0),
    ([0, 1] * 4, True),
    ([0.0, -0.0] * 4, 0),
    ([2**24 + 1, 2**25 + 3] * 4, 0.5),
    ([2**62 + 2**38 + 1, 0] * 4, 0.5),
    ([0, 1] * 4, np.float32(1)),
]


@pytest.mark.parametrize(("cells", "odd"), ODD_CELLS)
def test_what_a_record_of_lists_is_does_not_depend_on_the_type_of_another(cells, odd):
    """One number of another type, and numpy takes all of a list for something else."""
    for features in ([[0.5 * place] for place in range(9)], [[cell] for cell in [odd, *cells]]):
        whole = Table.of(features, [odd, *cells])
        rest = Table.of(features[1:], cells)
        assert np.array_equal(whole.contents()[1:], rest.contents())
        assert np.array_equal(whole.features[1:], rest.features)
        assert whole.target.dtype == rest.target.dtype
    assert len(np.unique(rest.contents(), axis=0)) == len(set(cells))


def test_missing_numbers_are_one_whatever_their_bits():
    quiet = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(float)
    assert len(np.unique(Table.of(quiet[:, None], np.zeros(3)).contents(), axis=0)) == 1


def with_row_numbers(data: pd.DataFrame, path: Path, name: str | None) -> pd.DataFrame:
    """Write a frame with its index, and read the file."""
    data = data.rename_axis(name)
    data.to_parquet(path) if path.suffix == ".parquet" else data.to_csv(path)
    return read_frame(path, FACTS.listed("ill"))


@pytest.mark.parametrize("is_counted_anew", [False, True])
@pytest.mark.parametrize(("ending", "name"), [(".parquet", None), (".parquet", "patient"), (".csv", None)])
def test_an_index_and_row_numbers_are_no_part_of_a_record(tmp_path, ending, is_counted_anew, name):
    """A row deleted by pandas: what it writes for its index appears, or changes in all later rows."""
    data = frame()
    less = data.drop(1).reset_index(drop=True) if is_counted_anew else data.drop(1)
    before, after = (with_row_numbers(one, tmp_path / f"{len(one)}{ending}", name) for one in (data, less))
    assert np.array_equal(kept(digests_of(before), 1), digests_of(after))
    whole, rest = table(before), table(after)
    assert whole.names == rest.names == table(data).names
    assert np.array_equal(kept(whole.features, 1), rest.features)
    assert len(np.unique(digests_of(after), axis=0)) == len(after)
    index = [one for one in map(str, after.columns) if one not in map(str, data.columns)]
    if index:
        assert any(repr(index[0]) in remark for remark in rest.remarks)
        with pytest.raises(ValueError, match="numbers the rows of some table"):
            table(after, columns=["age", *index])


def test_a_file_of_row_numbers_alone_has_a_record_in_each_row():
    assert digests_of(pd.DataFrame({"__index_level_0__": [0, 1, 2]})).shape == (3, 16)


@pytest.mark.parametrize("first", [0, 1])
def test_the_holder_hears_of_a_column_that_counts_rows(first):
    rows = 20
    data = pd.DataFrame({"age": np.arange(rows) % 7, "ill": [0, 1] * (rows // 2), "row": np.arange(rows) + first})
    counted = Table.of_frame(data, "ill", "logistic", columns=["age"])
    assert any("'row' counts the rows" in remark for remark in counted.remarks)
    assert Table.of_frame(data, "ill", "logistic").ids == ("row",)
    mixed = data.assign(row=data["row"].to_numpy()[::-1])
    assert not Table.of_frame(mixed, "ill", "logistic", columns=["age"]).remarks


CELLS = st.sampled_from([1, 1.0, True, np.True_, "1", "1.0", "01", "True", "true", 0, False, "0", 2, "2", "b"])
LISTED = ("b", "0", "1", "True", "False", "2")


@given(st.lists(CELLS, min_size=3, max_size=8), st.integers(0, 7))
@example([1, True, 1], 0)
@example([True, 1, True], 0)
def test_a_cell_of_any_kind_is_encoded_by_itself(cells, place):
    """Python takes 1 and True for one key, so that the first of them stood for both."""
    gone = place % len(cells)
    facts = Facts(categories={"code": LISTED}, classes=LISTED)
    column = pd.Series(cells, dtype=object)
    read = pd.DataFrame({"code": column, "label": column})
    whole, rest = (
        Table.of_frame(one, "label", "softmax", facts=facts) for one in (read, read.drop(gone).reset_index(drop=True))
    )
    assert np.array_equal(kept(whole.features, gone), rest.features)
    assert np.array_equal(kept(whole.target, gone), rest.target)
    alone = [Table.of_frame(read.iloc[[place] * 2], "label", "softmax", facts=facts) for place in range(len(cells))]
    assert np.array_equal(whole.features, np.concatenate([one.features[:1] for one in alone]))
