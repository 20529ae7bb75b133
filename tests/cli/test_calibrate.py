"""`tacit calibrate`: noise for a budget, schedules of noise, their figures, and how it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import (
    ACCOUNTED,
    ADJACENT,
    DELTA,
    HEADER,
    LEVELS,
    NOISE,
    RATE,
    SIGNATURES,
    STEPS,
    Run,
    assert_refused,
    event_of,
    one_object,
    refused,
    write_schedule,
)

import tacit
from tacit.privacy.events import Gaussian, PoissonSampled, Repeated


def test_calibrate_prints_the_noise_and_an_epsilon_just_within_the_target(run: Run) -> None:
    plan = ("--epsilon", "1", "--delta", "1e-5", "--sampling-rate", "0.01", "--steps", "2000")
    code, out, err = run("calibrate", *plan, "--json")
    assert (code, err) == (0, "")
    found = one_object(out)
    assert 0.99 <= found["epsilon"] <= 1
    event = Repeated(PoissonSampled(0.01, Gaussian(found["noise_multiplier"])), 2000)
    assert tacit.epsilon(event, 1e-5) == pytest.approx(found["epsilon"], rel=1e-9)


def test_calibrated_noise_given_back_to_account_costs_what_was_said(run: Run) -> None:
    _, out, _ = run("calibrate", "--epsilon", 2, "--delta", 1e-6, "--steps", 7, "--accountant", "zcdp", "--json")
    found = one_object(out)
    noise = ("--noise-multiplier", found["noise_multiplier"])
    _, out, _ = run("account", *noise, "--delta", 1e-6, "--steps", 7, "--accountant", "zcdp", "--json")
    assert one_object(out)["epsilon"] == found["epsilon"]


# --- Calibrated schedules ----------------------------------------------------------------------------------------

TARGET = ("calibrate", "--epsilon", "1", "--delta", "1e-5")
SHAPED: dict[str, tuple[object, ...]] = {
    "constant": (),
    "linear": ("--noise-end", 0.5),
    "polynomial": ("--noise-end", 2, "--power", 3),
    "exponential": ("--noise-end", 0.1),
    "stepwise": ("--noise-end", 0.5, "--stages", 3),
    "influence": ("--contraction", 0.9),
}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("shape", SHAPED)
def test_a_calibrated_shape_given_back_to_account_costs_what_was_said(
    run: Run, tmp_path: Path, shape: str, adjacency: str
) -> None:
    path = tmp_path / "levels.csv"
    given = ("--shape", shape, *SHAPED[shape], "--steps", 90, "--adjacency", adjacency, "--out", path, "--json")
    code, out, err = run(*TARGET, *given)
    assert (code, err) == (0, "")
    found = one_object(out)
    assert 0.999 <= found["epsilon"] <= 1
    assert (found["shape"], found["steps"], found["out"]) == (shape, 90, str(path))
    assert sum(level["steps"] for level in found["levels"]) == 90
    assert len(found["levels"]) <= 32
    assert 0 <= found["quantisation_error"] < 0.01
    _, out, _ = run("account", "--schedule", path, "--delta", 1e-5, "--adjacency", adjacency, "--json")
    assert one_object(out)["epsilon"] == found["epsilon"]
    lines = path.read_text().splitlines()
    assert lines[0] + "\n" == HEADER
    rows = [[float(word) for word in line.split(",")] for line in lines[1:]]
    assert rows == [[v["noise_multiplier"], v["sampling_rate"], v["steps"]] for v in found["levels"]]


def test_the_ends_of_a_shape_are_as_asked(run: Run) -> None:
    given = ("--sampling-rate", 0.1, "--rate-end", 0.4, "--steps", 3)
    _, out, _ = run(*TARGET, "--shape", "linear", "--noise-end", 0.5, *given, "--json")
    found = one_object(out)
    scale = found["noise_multiplier"]
    assert [level["noise_multiplier"] / scale for level in found["levels"]] == pytest.approx([1, 0.75, 0.5])
    assert [level["sampling_rate"] for level in found["levels"]] == pytest.approx([0.1, 0.25, 0.4])
    assert [level["steps"] for level in found["levels"]] == [1, 1, 1]
    assert (found["quantisation_error"], found["largest_difference"]) == (0, 0)
    event = event_of(tuple((v["noise_multiplier"], v["sampling_rate"], v["steps"]) for v in found["levels"]))
    assert tacit.epsilon(event, 1e-5) == found["epsilon"]


def test_momentum_makes_the_last_steps_matter_less(run: Run) -> None:
    """Theorem 3.4: with an average of gradients the last one's noise is not the most influential."""
    plan = (*TARGET, "--shape", "influence", "--contraction", 0.9, "--steps", 20, "--json")
    last = [one_object(run(*plan, *more)[1])["levels"] for more in ((), ("--momentum", 0.9))]
    assert last[0][-1]["noise_multiplier"] < last[0][-2]["noise_multiplier"]
    assert last[1][-1]["noise_multiplier"] > last[1][-2]["noise_multiplier"]


def test_the_levels_of_a_file_are_scaled_together(run: Run, tmp_path: Path) -> None:
    path = write_schedule(tmp_path, HEADER + "".join(f"{s},{q},{n}\n" for s, q, n in LEVELS))
    code, out, err = run(*TARGET, "--schedule", path, "--json")
    assert (code, err) == (0, "")
    found = one_object(out)
    scale = found["noise_multiplier"]
    levels = tuple((v["noise_multiplier"], v["sampling_rate"], v["steps"]) for v in found["levels"])
    assert levels == tuple((scale * s, q, n) for s, q, n in LEVELS)
    assert 0.999 <= found["epsilon"] <= 1
    assert found["epsilon"] == tacit.epsilon(event_of(levels), 1e-5)


def test_calibrate_says_levels_and_what_they_lose(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "levels.csv"
    given = ("--shape", "stepwise", "--noise-end", 0.25, "--stages", 2, "--steps", 10, "--out", path)
    code, out, err = run(*TARGET, *given)
    assert (code, err) == (0, "")
    first, count, head, *levels, lost, written = out.splitlines()
    assert re.fullmatch(r"scale of the noise [\d.]+: ε = 0\.999\d* at δ = 1e-05 \(pld, add-remove\)", first)
    assert (count, head.split()) == ("2 levels:", ["noise", "multiplier", "sampling", "rate", "steps"])
    assert [line.split()[1:] for line in levels] == [["1", "5"], ["1", "5"]]
    assert lost.startswith("Quantisation error: 0 ")
    assert written == f"Written to {path}"


def test_a_plain_calibration_says_what_it_always_said(run: Run) -> None:
    code, out, err = run(*TARGET, "--steps", 3)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"noise multiplier [\d.]+: ε = 0\.999\d* at δ = 1e-05 \(pld, add-remove\)\n", out)
    _, out, _ = run(*TARGET, "--steps", 3, "--json")
    names = ["noise_multiplier", "epsilon", "target_epsilon", "delta", "accountant", "adjacency"]
    assert list(one_object(out)) == [*names, "sampling_rate", "steps"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--shape", "cubic"), ["shape='cubic'", "expected one of constant, linear"]),
        (("--noise-end", 2), ["noise_end=2.0 without --shape", "expected one of constant"]),
        (("--shape", "linear"), ["shape='linear' without noise_end"]),
        (("--shape", "influence"), ["shape='influence' without contraction"]),
        (("--shape", "constant", "--noise-end", 2), ["noise_end=2.0 is not a setting of shape='constant'"]),
        (("--shape", "linear", "--noise-end", 2, "--power", 2), ["power=2.0 is not a setting of shape='linear'"]),
        (("--shape", "influence", "--contraction", 0.9, "--stages", 2), ["stages=2 is not a setting"]),
        (("--shape", "influence", "--contraction", 1.5), ["contraction=1.5", "above 0 and below 1"]),
        (("--shape", "influence", "--contraction", 0.9, "--momentum", 1), ["momentum=1.0", "below 1"]),
        (("--shape", "stepwise", "--noise-end", 2, "--stages", 11), ["stages=11", "from 1 to steps=10"]),
        (("--shape", "polynomial", "--noise-end", 2, "--power", 0), ["power=0.0", "above 0"]),
        *((("--shape", "linear", "--noise-end", end), [f"noise_end={end}"]) for end in (0.0, -1.0, "nan", "inf")),
        (("--rate-end", 1.5), ["rate_end=1.5", "at most 1"]),
        (("--shape", "constant", "--sampling-rate", 0), ["sampling_rate=0.0", "above 0"]),
        (("--shape", "constant", "--steps", 0), ["steps=0", "at least 1"]),
        (("--schedule", "x.csv"), ["--steps with --schedule", "use one or the other"]),
    ],
)
def test_settings_that_do_not_go_together_are_refused(run: Run, given: tuple[object, ...], named: list[str]) -> None:
    plan = given if "--steps" in given else ("--steps", 10, *given)
    assert_refused(run(*TARGET, *plan), *named)


def test_levels_that_cannot_be_read_or_written_are_refused(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "levels.csv"
    assert_refused(run(*TARGET, "--schedule", missing), f"schedule={missing}", "No such file")
    assert_refused(run(*TARGET, "--out", missing), f"out={missing}", "expected a file to write")


@pytest.mark.parametrize("more", [(), ("--sampling-rate", 0.5, "--rate-end", 1)], ids=["noise", "rate"])
@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_calibrated_schedule_is_drawn(run: Run, tmp_path: Path, ending: str, more: tuple[object, ...]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"noise{ending}"
    given = ("--shape", "stepwise", "--noise-end", 0.5, "--stages", 2, "--steps", 6, *more)
    code, _, err = run(*TARGET, *given, "--plot", path)
    assert (code, err) == (0, "")
    content = path.read_bytes()
    assert content.startswith(SIGNATURES[ending])
    if ending == ".svg":
        assert b"noise multiplier" in content
        assert (b"sampling rate" in content) == bool(more)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(refused("epsilon", value, NOISE) for value in (0.0, -1.0, float("nan"), float("inf"))),
        *(refused("sampling_rate", value, RATE) for value in (0.0, 1.5, float("nan"))),
        *(refused("delta", value, DELTA) for value in (0.0, 1.0, 2.0, float("nan"))),
        *(refused("steps", value, STEPS) for value in (0, -3)),
        refused("accountant", "gdp", ACCOUNTED),
        refused("adjacency", "neighbour", ADJACENT),
    ],
)
def test_calibrate_refuses_in_the_words_that_python_raises(run: Run, name: str, value: Any, expected: str) -> None:
    plan: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.01, "steps": 10, name: value}
    options = [word for key, given in plan.items() for word in (f"--{key.replace('_', '-')}", given)]
    shown = repr(value) if isinstance(value, str) else value
    sentence = assert_refused(run("calibrate", *options), f"{name}={shown}", f"expected {expected}")
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        tacit.calibrate(**plan)
    assert str(error.value) == sentence
