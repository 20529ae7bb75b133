"""Every drill, as `make drills` runs it: real processes, and after each the same checks (`Consortium.check`)."""

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.network.drills import DRILLS, Skipped

# One after the other: each has a coordinator and several sites, which share the machine.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.mark.parametrize("name", DRILLS)
def test_the_study_finishes_and_what_it_left_agrees_after(name: str, tmp_path: Path) -> None:
    try:
        DRILLS[name](tmp_path)
    except Skipped as reason:
        pytest.skip(str(reason))
