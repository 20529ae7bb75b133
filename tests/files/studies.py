"""What tests of study and site files share: texts of files, made-up records, and how a text is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.data.uci import needs_heart

from tacit.files.site_file import SiteFile
from tacit.files.study_file import StudyFile
from tacit.tables.table import Table

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"
TOP = 'model = "logistic"\ntarget = "ill"\nepsilon = 1.0\ndelta = 1e-5\n'
FACTS = '[facts]\nclasses = ["no", "yes"]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"] }\n'
SITES = '[[site]]\nname = "north"\nfile = "north.csv"\n[[site]]\nname = "south"\nfile = "south.csv"\n'
WHOLE = TOP + FACTS + SITES
SLOTTED = WHOLE.replace("file =", "slots = 20\nfile =")
ADULT = 'model = "logistic"\nepsilon = 1\ndelta = 1e-5\n[data]\ndataset = "adult"\nsplit = "C"\nsites = 10\n'
HEART = pytest.param(ADULT.replace('adult"\nsplit = "C"\nsites = 10', 'heart"\nsplit = "group"'), marks=needs_heart)
NETWORK = 'columns = ["sex", "age"]\n' + re.sub(r'file = ".*"', "slots = 32", WHOLE)
SITE = 'name = "north"\ndata = "north.csv"\ntarget = "ill"\ncolumns = ["age", "sex"]\nslots = 32\n'
PERSONS = 'unit = "person"\nmost_records = 3\n'
LIMITS = '[limits]\nepsilon = 1.0\ndelta = 1e-5\nmodels = ["logistic"]\n'
OWN = SITE + LIMITS + FACTS
TRIAL = 'name = "site-2"\n' + LIMITS + '[data]\ndataset = "abalone"\nsplit = "A"\nsites = 4\nseed = 3\n'
TOWN = 'name = "01"\ntarget = "ill"\ncolumns = ["age", "sex"]\n' + LIMITS + FACTS
TOWN += '[data]\nfile = "all.csv"\nsplit = "group"\nby = "town"\n'

Read = Callable[[str], StudyFile]
Join = Callable[[str], SiteFile]


def people(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"age": rng.integers(18, 90, count), "sex": rng.choice(["F", "M"], count)}
    return pd.DataFrame(columns | {"ill": rng.choice(["no", "yes"], count), "town": rng.choice(["01", "2"], count)})


def public(table: Table) -> tuple[Any, ...]:
    """All that a table says beside its records."""
    ends = table.low.tobytes(), table.high.tobytes()
    return table.names, table.numbers, *ends, table.classes, table.schema, table.categories, table.notes


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
