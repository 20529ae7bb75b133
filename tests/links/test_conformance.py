"""Every link works everywhere, and so does one that is declared in one place: here, complementary log-log.

The whole way, by the commands that users give: fit, predict, report, simulate, and the agreement of a network.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax import Array

import tacit
from tacit.data.simulated import Task, simulate
from tacit.families import DiagonalGaussian, register
from tacit.files.forms import StudyForm
from tacit.files.study_file import read_study
from tacit.links import LABEL, LINKS, Link, Simulator, declared, link_of, names
from tacit.links.regressions import draw_labels
from tacit.models import GeneralisedLinear
from tacit.network.agreement import Agreement
from tacit.posterior.posterior import Posterior
from tacit.report import forest

RECORDS, LABELS = 120, ("low", "middle", "high")


@register()
@dataclass(frozen=True)
class CLogLogRegression(GeneralisedLinear):
    """P(y = 1 | x, θ) = 1 - exp(-exp(x·θ)), y in {0, 1}."""

    def of_linear(self, linear: Array, y: Array) -> Array:
        rate = jnp.exp(jnp.minimum(linear, 5.0))
        return jnp.where(jnp.asarray(y, linear.dtype) == 1, jnp.log(-jnp.expm1(-rate)), -rate)


def rate_to_share(z: Any) -> Any:
    return -np.expm1(-np.exp(np.minimum(z, 30)))


MADE_UP = Link(
    "cloglog",
    CLogLogRegression,
    LABEL,
    inverse=rate_to_share,
    link=lambda mean: np.log(-np.log1p(-mean)),
    slope=1.0,
    curvature=0.3,
    least_clip=0.5,
    most_clip=2.0,
    equation="The log of the hazard of {target} is an intercept plus each column's value times its coefficient.",
    effect="change of the log of the hazard",
    simulator=Simulator(draw_labels(rate_to_share), learned=(0.3, 3.5), planned=(0.7, 1.4)),
)


@pytest.fixture(params=[*LINKS, MADE_UP.name])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    if request.param in LINKS:
        yield LINKS[request.param]
    else:
        with declared(MADE_UP):
            yield MADE_UP


def target_of(link: Link, z: np.ndarray, rng: np.random.Generator) -> tuple[list[Any], str]:
    """Outcomes at linear predictors, as a file has them, and their public facts in TOML."""
    if link.target.is_number and link.target.admits(np.array([0.5])):
        return [float(number) for number in z + rng.normal(size=len(z))], "[bounds]\ny = [-6, 6]\n"
    if link.target.is_number:
        return [int(count) for count in rng.poisson(np.exp(0.5 * z))], "[bounds]\ny = [0, 20]\n"
    classes = LABELS if link.target.classes is None else ("no", "yes")
    chosen = np.digitize(z + rng.logistic(size=len(z)), [-0.5, 0.8][: len(classes) - 1])
    return [classes[j] for j in chosen], f"classes = {json.dumps(classes)}\n"


@pytest.fixture
def files(tmp_path: Path, link: Link) -> Path:
    """Records of two clinics in files, with public facts."""
    rng = np.random.default_rng(3)
    for name in ("north", "south"):
        x = rng.normal(size=RECORDS)
        sex = rng.choice(["F", "M"], RECORDS)
        y, facts = target_of(link, x + 0.5 * (sex == "M"), rng)
        pd.DataFrame({"x": x, "sex": sex, "y": y}).to_csv(tmp_path / f"{name}.csv", index=False)
    bounds = facts if facts.startswith("[bounds]") else f"{facts}[bounds]\n"
    (tmp_path / "facts.toml").write_text(f'{bounds}x = [-5, 5]\n\n[categories]\nsex = ["F", "M"]\n')
    return tmp_path


def study_of(link: Link, folder: Path, slots: str = "") -> Path:
    """A study file of the two clinics."""
    sites = "".join(f'[[site]]\nname = "{name}"\nfile = "{name}.csv"\n{slots}' for name in ("north", "south"))
    named = f'model = "{link.name}"\ntarget = "y"\ncolumns = ["x", "sex"]\nfacts = "facts.toml"\n'
    plain = f"{named}rounds = 2\nepsilon = 8\ndelta = 1e-3\n"
    (folder / "study.toml").write_text(plain + sites)
    return folder / "study.toml"


def test_a_link_goes_all_the_way_from_a_file_to_a_report_and_predictions(link, files, run):
    out, predictions = files / "out", files / "predictions.csv"
    code, _, words = run(
        *("fit", files / "north.csv", "--target", "y", "--model", link.name, "--epsilon", 8, "--delta", 1e-3),
        *("--schema", files / "facts.toml", "--out", out, "--insecure-seed", 1),
    )
    assert code == 0, words
    posterior = Posterior.load(out / "posterior.json")
    assert posterior.link == link.name
    page = (out / "report.html").read_text()
    assert link.equation.format(target="y").replace("'", "&#39;") in page
    assert forest.axes_of(posterior, 0.95).get_xlabel() == link.effect
    assert run("predict", out, files / "south.csv", "--out", predictions)[0] == 0
    found = pd.read_csv(predictions)
    columns = [f"probability_{label}" for label in LABELS] if link.is_multiclass else list(found.columns[:1])
    features = pd.read_csv(files / "south.csv")
    x = np.stack([features["x"], features["sex"] == "M"], axis=1)
    np.testing.assert_allclose(found[columns].to_numpy().squeeze(), posterior.predict(x), rtol=1e-5, atol=1e-6)
    z = 0.1 + 0.8 * (np.ones(1) if not link.is_multiclass else np.ones((1, 2)))
    np.testing.assert_allclose(link.link(link.inverse(z)), z, rtol=1e-6)
    (out / "report.html").unlink()
    assert run("report", out)[0] == 0
    assert (out / "report.html").exists()


def test_a_link_is_taken_by_every_study(link, files, run):
    study = study_of(link, files)
    code, _, words = run("simulate", study, "--out", files / "study", "--insecure-seed", 1)
    assert code == 0, words
    assert link.name in json.dumps(StudyForm.model_json_schema()["properties"]["model"])
    assert Posterior.load(files / "study" / "posterior.json").link == link.name
    agreed = Agreement.of(read_study(study_of(link, files, "slots = 150\n")))
    again = Agreement.from_json(agreed.to_json())
    assert again == agreed
    setup = again.setup(read_study(study).outline()[0][0].table)
    assert setup.plan.link is link
    assert isinstance(setup.model, link.model)


def test_a_link_is_simulated_and_planned_with_if_it_can_be(link):
    if link.simulator is None:
        assert link.name not in names(learned=True)
        with pytest.raises(ValueError, match="expected one of"):
            Task(link.name, 10, 2)
        return
    drawn = simulate(Task(link.name, 300, 2, (3,)), seed=0, tests=10)
    assert link.target.admits(drawn.table.target)
    assert np.ptp(drawn.table.target) > 0


def test_the_commands_refuse_what_no_link_declares(files, run):
    code, _, words = run(
        "fit", files / "north.csv", "--target", "y", "--model", "cubic", "--epsilon", 1, "--delta", 1e-3
    )
    assert code == 2
    assert all(name in words for name in LINKS)


def test_a_declared_link_is_gone_afterwards_and_no_name_is_declared_twice():
    with declared(MADE_UP), pytest.raises(ValueError, match="declared already"), declared(MADE_UP):
        raise AssertionError
    with pytest.raises(ValueError, match="cloglog"):
        link_of(MADE_UP.name)


@pytest.mark.slow
def test_the_made_up_link_finds_the_truth():
    """At a large ε on many records: within four standard deviations of what records were drawn from."""
    rng = np.random.default_rng(0)
    x, truth = rng.normal(size=(20_000, 2)), np.array([-0.5, 0.6, -0.4])
    y = (rng.uniform(size=len(x)) < rate_to_share(truth[0] + x @ truth[1:])).astype(float)
    with declared(MADE_UP):
        found = tacit.fit("cloglog", (x, y), 8.0, 1e-6, bounds=(-6, 6), insecure_seed=1).coefficients
    assert np.all(np.abs(found.mean - truth) < 4 * found.standard_deviation)


def test_a_prior_is_all_that_a_link_asks_of_a_model():
    prior = DiagonalGaussian.of(jnp.zeros(3), jnp.ones(3))
    for link in LINKS.values():
        assert link.model.__name__ in str(link.model_path)
    assert MADE_UP.model(prior).prior is prior


def test_a_declared_name_is_refused_and_stays_what_it_was():
    before = LINKS["logistic"]
    with pytest.raises(ValueError, match="is declared already"), declared(replace(MADE_UP, name="logistic")):
        pass
    assert LINKS["logistic"] is before
