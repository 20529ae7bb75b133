"""What a person holds: intervals, predictions, files without pickle."""

import json

import arviz
import numpy as np
import pytest
from scipy import special, stats

from tacit.posterior.posterior import Block, Posterior

STATEMENT = {"epsilon": 1.0, "unit": "record"}


def posterior(link: str = "logistic", **rest) -> Posterior:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3)) * 0.3
    block = Block(("intercept", "a", "b"), np.array([0.2, -1.0, 0.5]), root @ root.T)
    return Posterior({"coefficients": block}, link, STATEMENT, "words", {"method": "natural"}, **rest)


X = np.random.default_rng(1).normal(size=(20, 2))


def test_intervals_are_those_of_the_normal():
    q = posterior()
    low, high = q.interval(0.9)
    width = stats.norm.ppf(0.95) * np.sqrt(np.diagonal(q.coefficients.covariance))
    assert high - low == pytest.approx(2 * width)
    assert q.summary(0.9)[1] == pytest.approx(
        {"name": "a", "mean": -1.0, "sd": width[1] / stats.norm.ppf(0.95), "low": low[1], "high": high[1]}
    )
    with pytest.raises(ValueError, match="level=1"):
        q.interval(1.5)


@pytest.mark.parametrize("link", ["linear", "logistic", "probit", "poisson"])
def test_the_closed_form_agrees_with_sampling(link):
    q = posterior(link)
    closed, sampled = q.predict(X), q.predict(X, method="sampling", draws=40_000)
    assert closed == pytest.approx(sampled, rel=0.05, abs=0.02)
    low, high = q.predict_interval(X, 0.8)
    theta = q.sample(40_000, seed=3)["coefficients"]
    z = theta @ np.column_stack([np.ones(20), X]).T
    link_of = {"linear": lambda v: v, "logistic": special.expit, "probit": special.ndtr, "poisson": np.exp}[link]
    inside = np.mean((link_of(z) >= low) & (link_of(z) <= high), axis=0)
    assert inside == pytest.approx(0.8, abs=0.02)


def test_several_classes_are_predicted_in_blocks_of_rows(monkeypatch):
    block = Block(tuple("abcdef"), np.array([0.0, 1, 0, 0.5, 0, 1]), np.full(6, 0.01))
    q = Posterior({"coefficients": block}, "softmax", STATEMENT, "", {}, classes=("x", "y", "z"))
    whole = q.predict(X)
    monkeypatch.setattr("tacit.posterior.posterior.MOST_NUMBERS", 3 * 2000 * 3)
    assert q.predict(X) == pytest.approx(whole)
    assert whole.sum(axis=1) == pytest.approx(1)
    z = np.column_stack([np.zeros(20), np.column_stack([np.ones(20), X]) @ block.mean.reshape(2, 3).T])
    assert whole == pytest.approx(special.softmax(z, axis=1), abs=0.01)


def test_predictions_move_features_into_the_range_that_was_used():
    q = posterior(details={"range": {"low": [-1.0, None], "high": [1.0, None]}})
    assert q.predict([[5.0, 0.3]]) == pytest.approx(q.predict([[1.0, 0.3]]))
    assert q.predict([[0.0, 50.0]]) != pytest.approx(q.predict([[0.0, 1.0]]))


def test_what_is_saved_is_what_is_loaded_and_it_is_plain_json(tmp_path):
    q = posterior(noise_scale=0.3, classes=("no", "yes"), details={"schema": {"columns": ["a", "b"]}})
    q.save(tmp_path / "posterior.json")
    again = Posterior.load(tmp_path / "posterior.json")
    assert json.loads((tmp_path / "posterior.json").read_text())["format"] == "tacit-posterior-1"
    assert np.array_equal(again.coefficients.mean, q.coefficients.mean)
    assert np.array_equal(again.coefficients.covariance, q.coefficients.covariance)
    for name in ("link", "statement", "statement_text", "plan", "noise_scale", "classes", "details"):
        assert getattr(again, name) == getattr(q, name)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "tacit-posterior-1"}', "\x80\x04K\x01.", '{"format": "other"}', "null"]
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "posterior.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match="not a saved posterior"):
        Posterior.load(path)
    with pytest.raises(ValueError, match="No such file"):
        Posterior.load(tmp_path / "nothing.json")


def test_arviz_gets_named_draws_with_the_statement():
    data = posterior().to_arviz(draws=500, chains=2)
    assert data.posterior["coefficients"].shape == (2, 500, 3)
    assert list(data.posterior["coefficients_name"].values) == ["intercept", "a", "b"]
    assert json.loads(data.attrs["tacit_statement"]) == STATEMENT
    summary = arviz.summary(data, kind="stats")
    assert summary["mean"].to_numpy() == pytest.approx([0.2, -1.0, 0.5], abs=0.1)


def test_samples_are_kept_saved_drawn_from_and_handed_to_arviz_as_chains(tmp_path):
    drawn = np.random.default_rng(0).normal(size=(2, 50, 3))
    q = posterior(chains={"coefficients": drawn})
    q.save(tmp_path / "posterior.json")
    again = Posterior.load(tmp_path / "posterior.json")
    assert again.chains is not None
    assert np.array_equal(again.chains["coefficients"], drawn)
    assert np.array_equal(again.to_arviz().posterior["coefficients"].values, drawn)
    rows = {tuple(row) for row in drawn.reshape(-1, 3)}
    assert {tuple(row) for row in again.sample(20)["coefficients"]} <= rows
    text = (tmp_path / "posterior.json").read_text()
    (tmp_path / "bad.json").write_text(text.replace('"chains": {', '"chains": {"coefficients": [[1.0]], "x": {', 1))
    with pytest.raises(ValueError, match="not a saved posterior"):
        Posterior.load(tmp_path / "bad.json")


def test_the_families_are_the_same_distribution():
    q = posterior()
    assert np.asarray(q.families().mean) == pytest.approx(q.coefficients.mean, abs=1e-4)
    mixed = Posterior({"w": Block(("w0",), np.zeros(1), np.ones(1)), "m": q.coefficients}, "", STATEMENT, "", {})
    assert set(mixed.families()) == {"w", "m"}
    with pytest.raises(ValueError, match="no coefficients"):
        _ = mixed.coefficients


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="expected \\(rows, 2\\)"):
        posterior().predict(np.zeros((4, 3)))
    for features in ({"a": [1.0], "b": [2.0]}, [["x", "y"]]):
        with pytest.raises(ValueError, match=r"expected \(rows, 2\), the columns a, b"):
            posterior().predict(features)


def test_a_model_of_ones_own_is_told_how_it_predicts():
    own = Posterior({"slopes": posterior().coefficients}, "", STATEMENT, "words", {"model": "NumPyroModel"})
    with pytest.raises(ValueError, match=r"use model.predict\(posterior.families\(\), ...\)"):
        own.predict(X)
    assert repr(own) == "<Posterior: NumPyroModel, 3 coefficients, ε = 1>"


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"path=.*posterior.json: there is no folder .*nowhere; make it first"):
        posterior().save(tmp_path / "nowhere" / "posterior.json")
