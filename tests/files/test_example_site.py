"""Examples of site files: each is one, and fits its study."""

import json
import re

import pytest
from tests.files.studies import ADULT, FACTS, HEART, NETWORK, ROOT, SITES, SLOTTED, TOP, WHOLE, Join, Read, public

from tacit.files.example_site import example_site

GUIDE = (ROOT / "docs" / "simulate.md").read_text()
ODD = "o'k \"é #🚫 = [x]"


@pytest.mark.parametrize(
    "text",
    [
        NETWORK,
        WHOLE,
        f"name = {json.dumps(ODD + chr(92), ensure_ascii=False)}\n"
        + WHOLE.replace('"north"', json.dumps(ODD, ensure_ascii=False)).replace("south.csv", r"a\\b\"c.csv"),
        WHOLE.replace("age", r'"a\u007f\n \"ge"').replace('"F"', r'"F\t\b\u0000"').replace('"no"', '"nö"'),
        'adjacency = "replace-one"\nmethod = "vi"\nrounds = 7\n' + SLOTTED + "epsilon = 3\ndelta = 1e-7\n",
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
        *(text for text in re.findall(r"```toml\n(.*?)```", GUIDE, re.S) if "epsilon" in text),
        (ROOT / "examples" / "adult-c.toml").read_text(),
    ],
)
def test_an_example_of_a_site_file_is_one_and_fits_the_study(read: Read, join: Join, text: str) -> None:
    study = read(text)
    for name in (study.names()[0], study.names()[-1]):
        site = join(example_site(study, name))
        limits, given = site.settings.limits, study.settings
        assert (site.settings.name, limits.models, limits.methods) == (
            name,
            [study.plan.model],
            [study.plan.method_used],
        )
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
            assert site.slots == (entry.slots or 1000)
        if given.columns is not None or given.site is not None:
            assert site.facts == study.facts
            asked = site.public_table(given.columns, given.target, study.plan.model)
            if given.columns is not None:
                assert public(asked) == public(study.outline()[0][0].table)


def test_an_example_is_refused_where_the_study_does_not_say_enough(read: Read) -> None:
    for text, name, words in (
        (WHOLE, "east", "site='east' is not a site of the study; expected one of north, south"),
        (WHOLE.replace("epsilon = 1.0", "epsilon = inf"), "north", "epsilon=inf, which no site's ledger can pay"),
        (WHOLE.replace('classes = ["no", "yes"]\n', ""), "north", "target 'ill' has no classes"),
        ('columns = ["age", "bmi"]\n' + WHOLE, "north", "column 'bmi' has neither bounds nor categories"),
        (TOP + SITES, "north", "no column is left as a feature; expected at least one"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            example_site(read(text), name)
