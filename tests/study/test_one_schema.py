"""A setting of a study is declared in one place, `study.plan.Plan`: all that depends on it follows.

Here a field is added to the source of that class as it is read, in a process of its own, and looked for everywhere.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import jsonschema
import pytest

from tacit.basics.schema import rows_of, setting
from tacit.files.forms import SiteForm, StudyForm
from tacit.study import plan
from tacit.study.plan import Plan, VISettings

ADD_A_FIELD = '''
import sys
from importlib.machinery import PathFinder, SourceFileLoader


class Adding(SourceFileLoader):
    """`study/plan.py` with a field more in its class `Plan`."""

    def get_source(self, name):
        head, found, rest = super().get_source(name).partition("    schedule_seed:")
        assert found
        return f'{head}    salt: int = setting(7, "a made-up setting", before=7, ge=0, le=9)\\n{found}{rest}'

    def get_code(self, name):
        return self.source_to_code(self.get_source(name), self.path)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "tacit.study.plan":
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Adding(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)
'''
LOOK = '''
import json
from pathlib import Path
from tacit.basics.schema import rows_of, setting
from tacit.files.forms import StudyForm
from tacit.files.study_file import read_study
from tacit.network.agreement import Agreement
from tacit.study.folder import name_of
from tacit.study.plan import Plan

def refusal(make):
    try:
        make()
    except ValueError as error:
        return str(error)

folder = Path(sys.argv[1])
(folder / "data.csv").write_text("x,y\\n0.1,no\\n0.2,yes\\n")
text = """
model = "logistic"
{salt}target = "y"
columns = ["x"]
epsilon = 1
delta = 1e-3
facts = {{ bounds = {{ x = [0, 1] }}, classes = ["no", "yes"] }}
[[site]]
name = "north"
slots = 5
"""
def study(salt):
    (folder / "study.toml").write_text(text.format(salt=salt))
    return read_study(folder / "study.toml")

usual, given = study(""), study("salt = 5\\n")
agreed = [Agreement.from_json(Agreement.of(found).to_json()) for found in (usual, given)]
tables = [found.outline()[0][0].table for found in (usual, given)]
older = json.loads(Agreement.of(usual).to_json())
del older["plan"]["salt"]
print(json.dumps({
    "default": [Plan("logistic").salt, usual.plan.salt],
    "file": given.plan.salt,
    "agreement": [one.plan.salt for one in agreed],
    "names differ": name_of(agreed[0].setup(tables[0])) != name_of(agreed[1].setup(tables[1])),
    "name without it": usual.plan.identity().get("salt"),
    "refusals": [refusal(lambda: Plan("logistic", salt=10)), refusal(lambda: study("salt = 10\\n"))],
    "a version without it": refusal(lambda: Agreement.from_json(json.dumps(older).encode())),
    "row": [row for row in rows_of(StudyForm) if row[0] == "salt"],
    "schema": StudyForm.model_json_schema()["properties"]["salt"],
}))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("added")
    done = subprocess.run(
        [sys.executable, "-c", ADD_A_FIELD + LOOK, str(folder)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_field_that_is_added_to_the_plan_is_in_files_plans_and_agreements(seen):
    assert seen["default"] == [7, 7]
    assert seen["file"] == 5
    assert seen["agreement"] == [7, 5]


def test_it_is_checked_in_python_and_in_files_and_other_versions_are_refused(seen):
    assert all("salt=10; expected a whole number from 0 to 9" in words for words in seen["refusals"])
    assert "its plan has no salt" in seen["a version without it"]


def test_a_study_that_leaves_it_out_keeps_its_name_and_one_that_gives_it_has_another(seen):
    assert seen["name without it"] is None
    assert seen["names differ"]


def test_what_names_a_study_does_not_depend_on_the_defaults_of_a_version():
    """Else sites of two versions could sign one name for two plans, each leaving out its own default."""

    class Later(Plan):
        salt: int = setting(7, "a made-up setting", before=7)

    class Changed(Plan):
        salt: int = setting(8, "its default has changed", before=7)

    class Bold(Plan):
        salt: int = setting(7, "a made-up setting")

    usual = Plan("logistic").identity()
    with mock.patch.object(plan, "Plan", Later):
        assert Later("logistic").identity() == usual
        assert Later("logistic", salt=8).identity() == usual | {"salt": 8}
    with mock.patch.object(plan, "Plan", Changed):
        assert Changed("logistic").identity() == usual | {"salt": 8}
        assert Changed("logistic", salt=7).identity() == usual
    with mock.patch.object(plan, "Plan", Bold):
        assert Bold("logistic").identity() == usual | {"salt": 7}, "without `before`, it is always there"


def test_settings_of_a_solver_are_not_taken_for_those_of_the_plan():
    """`clip` and `sampling_rate` are names of both."""
    natural = Plan("logistic", clip=2.0).identity()
    vi = Plan("logistic", method="vi", vi=VISettings(clip=2.0)).identity()
    assert (natural["clip"], natural["vi.clip"], vi["clip"], vi["vi.clip"]) == (2.0, None, None, 2.0)


def test_a_study_is_named_by_the_rule_that_it_uses_and_not_by_where_it_came_from():
    """Else sites with policies of two versions could sign one name for two plans."""
    usual, rule = Plan("logistic"), Plan("logistic").rule.to_dict()
    assert Plan("logistic", policy=rule).identity() == usual.identity()
    other = rule | {"curvature": rule["curvature"] / 2}
    assert Plan("logistic", policy=other).identity() != usual.identity()
    later = mock.Mock(rule=lambda name: usual.replace(policy=other).rule)
    with mock.patch("tacit.study.policy.default_policy", return_value=later):
        assert usual.identity() == Plan("logistic", policy=other).identity()


def test_it_is_documented_and_in_the_schema_for_editors(seen):
    assert seen["row"] == [["salt", "7", "a made-up setting", "a whole number from 0 to 9"]]
    assert {"minimum": 0, "maximum": 9, "default": 7, "description": "a made-up setting"}.items() <= seen[
        "schema"
    ].items()


# --- The schema for editors --------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples"
SITE = """
name = "north"
data = "north.csv"
target = "ill"
columns = ["age"]
slots = 40
[facts]
classes = ["no", "yes"]
[limits]
epsilon = 3
delta = 1e-5
models = ["logistic"]
"""
SOUND = {
    "study": [tomllib.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*.toml"))],
    "site": [tomllib.loads(SITE)],
}


@pytest.mark.parametrize("form", ["study", "site"])
def test_the_command_prints_a_schema_that_takes_what_is_sound_and_refuses_a_slip(form, run, tmp_path):
    more = [] if form == "study" else ["--site-file"]
    code, printed, _ = run("study", "schema", *more)
    assert code == 0
    schema = json.loads(printed)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert run("study", "schema", *more, "--out", tmp_path / "schema.json")[0] == 0
    assert json.loads((tmp_path / "schema.json").read_text()) == schema
    for plain in SOUND[form]:
        jsonschema.validate(plain, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain, "ruonds": 3}, schema)


def test_the_schema_takes_models_of_one_s_own_by_name_alone(run):
    schema = json.loads(run("study", "schema")[1])
    plain = SOUND["study"][0]
    jsonschema.validate({**plain, "model": "my_models:sepsis"}, schema)
    for name in ("sepsis", "..outside:sepsis", "my_models:", "my_models:sepsis:x", "/etc/x:y"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain, "model": name}, schema)


def test_every_setting_says_what_it_means():
    for form in (Plan, VISettings, StudyForm, SiteForm):
        for name, _, meaning, expected in rows_of(form):
            assert len(meaning) > 3, f"{form.__name__}.{name}"
            assert expected, f"{form.__name__}.{name}"


def test_a_schema_that_cannot_be_written_is_refused_in_a_sentence(run, tmp_path):
    code, _, words = run("study", "schema", "--out", tmp_path / "nowhere" / "schema.json")
    assert code == 2
    assert "No such file or directory" in words
