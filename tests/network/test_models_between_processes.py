"""Studies of other models between real processes: what they leave is what one process leaves, to the bit."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("numpyro")

from tests.network.drills import Consortium, expect

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]

MODEL = """
import numpy as np
import numpyro
import numpyro.distributions as dist
from tacit.models import from_numpyro

def logistic(age, dose, sex, ill):
    shift = numpyro.sample("shift", dist.Normal(0.0, 2.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    line = shift + slopes[0] * (age - 50) / 20 + slopes[1] * (dose - 5) / 3 + slopes[2] * sex
    with numpyro.plate("people", len(age)):
        numpyro.sample("ill", dist.Bernoulli(logits=line), obs=ill)

def sepsis():
    return from_numpyro(logistic, tuple(np.array(pair) for pair in ([30.0, 60.0], [1.0, 9.0], [0.0, 1.0], [1, 0])))
"""


class OfNumber(Consortium):
    """A study of a target that is a number. kind: "linear", whose residual is learned, or "poisson"."""

    kind = "linear"

    def write_study(self, budgets: Mapping[str, float], **more: Any) -> None:
        super().write_study(budgets, model=self.kind, target="dose", columns=["age", "sex"], **more)
        self.study.write_text(self.study.read_text().replace('classes = ["no", "yes"]\n', ""))


class OfCounts(OfNumber):
    """A dose in whole units."""

    kind = "poisson"

    def write_study(self, budgets: Mapping[str, float], **more: Any) -> None:
        super().write_study(budgets, **more)
        for name in self.names:
            path = self.folder / f"{name}.csv"
            path.write_text(re.sub(r"(?m)^([\d.]+),(\d+)\.\d+,", r"\1,\2,", path.read_text()))


class OfOwnModel(Consortium):
    """A study of a model that is installed in a folder for all processes, and that each site's operator allows."""

    def __init__(self, folder: Path, **more: Any) -> None:
        (folder / "installed").mkdir(parents=True)
        (folder / "installed" / "drill_models.py").write_text(MODEL)
        super().__init__(folder, rounds=2, **more)
        line = self.tacit("study", "hash", "drill_models:sepsis").strip()
        for name in self.names:
            text = self.site_file(name).read_text()
            expect(f"# {line}" in text, "the example of a site file has the line that the command prints")
            self.site_file(name).write_text(text.replace(f"# {line}", line))

    def environment(self, role: str, **more: str) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "installed"), *filter(None, [more.pop("PYTHONPATH", "")])])
        return super().environment(role, **more) | {"PYTHONPATH": path}

    def write_study(self, budgets: Mapping[str, float], **more: Any) -> None:
        super().write_study(budgets, model="drill_models:sepsis", method="vi", **more)
        self.study.write_text(self.study.read_text().replace("[facts]", "[vi]\nsteps = 20\n[facts]"))


@pytest.mark.parametrize("kind", [OfNumber, OfCounts, OfOwnModel])
def test_the_posterior_is_that_of_one_process_to_the_bit(
    kind: type[Consortium], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))  # the checks read the study, too
    with kind(tmp_path) as group:
        group.start()
        result = group.wait_finished()
        assert [row["updates"] for row in result["sites"]] == [group.rounds] * 3
        group.check_sites()
        group.expect_undisturbed()


def test_a_study_with_a_residual_goes_on_after_all_were_killed_between_its_phases(tmp_path: Path) -> None:
    with OfNumber(tmp_path) as group:
        group.start()
        group.wait_charged("north", "refinement", 0)
        for name in group.names:
            group.kill_site(name)
        group.kill_serve()
        group.start()
        group.wait_finished()
        group.check_sites()
        for name in group.names:
            charges = group.charges(name)
            assert [phase for phase, _ in charges].count("residual") == 1
            assert len(set(charges)) == len(charges)
