"""Site effects in a report: who differs by how much, and the spread between sites."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.report.studies import PLAN, sites

from tacit.posterior.posterior import Posterior
from tacit.report import findings, page, site_effects, studied, style
from tacit.study.front import federate

ABOUT = {"version": "0", "name": "effects", "model": "logistic", "method": "natural", "target": "ill"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study with two effects."""
    folder = tmp_path_factory.mktemp("effects")
    plan = PLAN.replace(site_effects=["intercept", "a"], evaluation=0.0)
    studied.write(folder, federate(plan, sites(), insecure_seed=1), ABOUT, 0)
    return folder


def test_the_report_has_every_deviation_and_the_spread(done: Path) -> None:
    text, posterior = (done / "report.html").read_text(encoding="utf-8"), Posterior.load(done / "posterior.json")
    assert posterior.site_effects is not None
    assert "Differences between sites" in text
    for row in posterior.site_effects.summary(0.95):
        assert f"{row['site']}: {row['name']}" in text
        assert page.cells(row)[0] in text
    for row in posterior.site_effects.spread(0.95):
        assert f"{row['median']:.3g}" in text
    assert "the intercept is taken at a = " in text
    assert (done / "site_effects.png").exists()


def test_the_figure_has_a_panel_for_each_column_and_a_row_for_each_site(done: Path) -> None:
    pytest.importorskip("matplotlib")
    posterior = Posterior.load(done / "posterior.json")
    assert posterior.site_effects is not None
    axes = site_effects.axes_of(posterior, style.panels, 0.9)
    assert [panel.get_title() for panel in axes] == ["intercept: deviation of each site", "a: deviation of each site"]
    for panel, rows in zip(axes, posterior.site_effects.at_middle(0.9).values(), strict=True):
        assert [label.get_text() for label in panel.get_yticklabels()] == ["site-0", "site-1", "site-2"]
        drawn = sorted(float(x) for line in panel.get_lines()[:-1] for x in np.ravel(line.get_xdata()))
        np.testing.assert_allclose(drawn, sorted(row["mean"] for row in rows))


def test_a_study_without_site_effects_has_no_such_part(tmp_path: Path) -> None:
    plan = PLAN.replace(evaluation=0.0)
    studied.write(tmp_path, federate(plan, sites(), insecure_seed=1), ABOUT, 0)
    assert "Differences between sites" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "site_effects.png").exists()
    assert "site_effects" not in json.loads((tmp_path / findings.POSTERIOR).read_text(encoding="utf-8"))
