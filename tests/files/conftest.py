"""Study and site files of a text, beside made-up records."""

from pathlib import Path

import pytest
from tests.data.uci import UCI
from tests.files.studies import Join, Read, people

from tacit.files.site_file import SiteFile, read_site
from tacit.files.study_file import StudyFile, read_study


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The study of a text, beside files of three sites."""
    monkeypatch.setenv("TACIT_DATA", str(UCI))
    for seed, name in enumerate(("north", "south", "public")):
        people(20, seed).drop(columns="town").to_csv(tmp_path / f"{name}.csv", index=False)
    people(30, 3).to_csv(tmp_path / "all.csv", index=False)

    def read(text: str) -> StudyFile:
        path = tmp_path / "study.toml"
        path.write_text(text)
        return read_study(path)

    return read


@pytest.fixture
def join(read: Read, tmp_path: Path) -> Join:
    """The site file of a text, beside the files of `read`."""

    def join(text: str) -> SiteFile:
        path = tmp_path / "site.toml"
        path.write_text(text, encoding="utf-8")
        return read_site(path)

    return join
