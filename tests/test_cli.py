"""The command line: what it prints, what it writes, and how it refuses."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.privacy.accounting import ACCOUNTANTS
from tacit.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated

SCRIPT = Path(sysconfig.get_path("scripts")) / "tacit"
HEADER = "noise_multiplier,sampling_rate,steps\n"
PLAN = ("account", "--noise-multiplier", "5", "--steps", "10", "--delta", "1e-4")
LEVELS = ((5.0, 0.02, 100), (3.0, 1.0, 2), (8.0, 0.05, 50), (5.0, 0.02, 20))

Run = Callable[..., tuple[int, str, str]]


def shell(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it: a process of its own, at most two minutes."""
    words = [str(word) for word in command]
    env = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(words, capture_output=True, encoding="utf-8", env=env, timeout=120)


def one_object(text: str) -> dict[str, Any]:
    """The one JSON object, on one line, that is all of `text`."""
    assert text.count("\n") == 1
    assert text.endswith("\n")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def assert_refused(outcome: tuple[int, str, str], *named: str) -> str:
    """Exit code 2, nothing on standard output, and one sentence that holds every word of `named`; the sentence."""
    code, out, err = outcome
    assert code == 2
    assert out == ""
    assert err.startswith("tacit: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    sentence = err.removeprefix("tacit: ").rstrip("\n")
    if not sentence.endswith("See 'tacit --help'."):  # the command line library's own words may add a suggestion
        assert not re.search(r"[.!?]\s", sentence), f"more than one sentence: {sentence}"
    for word in named:
        assert word in sentence
    return sentence


def write_schedule(folder: Path, content: str | bytes) -> Path:
    path = folder / "schedule.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def event_of(levels: tuple[tuple[float, float, int], ...]) -> Event:
    """The levels as an event, written out here so that it does not share code with the reader of files."""
    sampled = [(Gaussian(s) if q == 1 else PoissonSampled(q, Gaussian(s)), n) for s, q, n in levels]
    return Composed(tuple(Repeated(mechanism, n) for mechanism, n in sampled))


# --- account and calibrate ---------------------------------------------------------------------------------------


REFERENCE = ("account", "--noise-multiplier", "5", "--sampling-rate", "0.02", "--steps", "1000", "--delta", "1e-4")
ACCOUNT = (*REFERENCE, "--accountant", "pld", "--adjacency", "add-remove", "--json")


def assert_reference_price(text: str) -> None:
    found = one_object(text)
    assert found["epsilon"] == pytest.approx(0.3669, rel=5e-3)
    assert (found["delta"], found["accountant"], found["adjacency"]) == (1e-4, "pld", "add-remove")
    assert (found["noise_multiplier"], found["sampling_rate"], found["steps"]) == (5, 0.02, 1000)


def test_account_prints_one_json_object_with_the_reference_price(run: Run) -> None:
    code, out, err = run(*ACCOUNT)
    assert (code, err) == (0, "")
    assert_reference_price(out)


def test_the_installed_script_prints_the_same_and_nothing_else() -> None:
    done = shell(SCRIPT, *ACCOUNT)
    assert (done.returncode, done.stderr) == (0, "")
    assert_reference_price(done.stdout)


def test_account_without_json_says_the_price_in_one_line(run: Run) -> None:
    code, out, err = run(*ACCOUNT[:-1])
    assert (code, err) == (0, "")
    assert re.fullmatch(r"ε = 0\.36\d+ at δ = 0\.0001 \(pld, add-remove\)\n", out)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_every_accountant_prices_an_unsampled_plan_as_the_library_does(
    run: Run, accountant: Any, adjacency: Any
) -> None:
    code, out, err = run(*PLAN, "--accountant", accountant, "--adjacency", adjacency, "--json")
    assert (code, err) == (0, "")
    expected = tacit.epsilon(Repeated(Gaussian(5.0), 10), 1e-4, accountant, adjacency)
    assert one_object(out)["epsilon"] == expected
    exact = tacit.epsilon(Repeated(Gaussian(5.0), 10), 1e-4, "pld", adjacency)
    assert expected >= exact * (1 - 1e-9)


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


# --- Schedules ---------------------------------------------------------------------------------------------------


def test_a_schedule_costs_what_the_library_says(run: Run, tmp_path: Path) -> None:
    path = write_schedule(tmp_path, HEADER + "".join(f"{s},{q},{n}\n" for s, q, n in LEVELS))
    code, out, err = run("account", "--schedule", path, "--delta", 1e-5, "--json")
    assert (code, err) == (0, "")
    found = one_object(out)
    assert found["epsilon"] == tacit.epsilon(event_of(LEVELS), 1e-5)
    assert (found["levels"], found["steps"]) == (4, 172)


def test_a_schedule_may_come_from_a_spreadsheet(run: Run, tmp_path: Path) -> None:
    """A byte order mark, Windows line ends, quotes, another order and a further column change nothing."""
    path = write_schedule(tmp_path, '\ufeffsteps,note,"noise_multiplier",sampling_rate\r\n2,"a, b","3.0",1\r\n')
    code, out, _ = run("account", "--schedule", path, "--delta", 1e-5, "--json")
    assert code == 0
    assert one_object(out)["epsilon"] == tacit.epsilon(Repeated(Gaussian(3.0), 2), 1e-5)


@pytest.mark.parametrize("repeats", [1, 2])
def test_32_distinct_levels_are_accepted_however_often_they_occur(run: Run, tmp_path: Path, repeats: int) -> None:
    rows = "".join(f"{5 + i},1,3\n" for i in range(32))
    path = write_schedule(tmp_path, HEADER + repeats * rows)
    code, out, _ = run("account", "--schedule", path, "--delta", 1e-5, "--json")
    assert code == 0
    assert one_object(out)["levels"] == 32 * repeats


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param("", ["no levels", "columns noise_multiplier, sampling_rate, steps"], id="empty"),
        pytest.param(HEADER, ["no levels", "columns noise_multiplier"], id="header-only"),
        pytest.param(b"\x89PNG\r\n\xff\xfe\x00\x01", ["not readable text", "a CSV file"], id="binary"),
        pytest.param(b"\x00\x01\x02\n\x03\x04", ["line 2", "a CSV file"], id="control-bytes"),
        pytest.param("noise_multiplier,steps\n5,2\n", ["line 2", "no value for sampling_rate"], id="missing-column"),
        pytest.param(HEADER + "5,0.1,2\n5,0.1\n", ["line 3", "no value for steps"], id="missing-value"),
        pytest.param(HEADER + "5,often,2\n", ["line 2", "often", "three numbers"], id="text-in-a-number"),
        pytest.param(HEADER + "5,0.1,2.5\n", ["line 2", "steps=2.5", "a whole number"], id="fractional-steps"),
        pytest.param(HEADER + "5,0.1,inf\n", ["line 2", "steps=inf", "a whole number"], id="endless-steps"),
        pytest.param(HEADER + "5,0.1,9\n-1,0.1,2\n", ["line 3", "noise_multiplier=-1.0", "above 0"], id="noise"),
        pytest.param(HEADER + "5,1.5,2\n", ["line 2", "sampling_rate=1.5", "at most 1"], id="rate"),
        pytest.param(
            HEADER + "".join(f"{5 + i},0.1,3\n" for i in range(33)),
            ["33 different levels", "at most 32"],
            id="33-levels",
        ),
    ],
)
def test_a_bad_schedule_is_refused_with_its_name_and_line(
    run: Run, tmp_path: Path, content: str | bytes, named: list[str]
) -> None:
    path = write_schedule(tmp_path, content)
    assert_refused(run("account", "--schedule", path, "--delta", 1e-5), f"schedule={path}", *named)


def test_a_schedule_that_is_not_there_or_is_a_folder_is_refused(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    outcome = run("account", "--schedule", missing, "--delta", 1e-5)
    assert_refused(outcome, f"schedule={missing}", "No such file", "expected a CSV file")
    outcome = run("account", "--schedule", tmp_path, "--delta", 1e-5)
    assert_refused(outcome, f"schedule={tmp_path}", "Is a directory", "expected a CSV file")


def test_noise_and_schedule_exclude_each_other_and_one_is_needed(run: Run, tmp_path: Path) -> None:
    path = write_schedule(tmp_path, HEADER + "5,0.1,2\n")
    for plan in ((), ("--noise-multiplier", 5, "--schedule", path)):
        assert_refused(run("account", *plan, "--delta", 1e-5), "either --noise-multiplier", "or --schedule")


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
        (("--shape", "linear"), ["shape='linear' without --noise-end"]),
        (("--shape", "influence"), ["shape='influence' without --contraction"]),
        (("--shape", "constant", "--noise-end", 2), ["noise_end=2.0 is no setting of shape='constant'"]),
        (("--shape", "linear", "--noise-end", 2, "--power", 2), ["power=2.0 is no setting of shape='linear'"]),
        (("--shape", "influence", "--contraction", 0.9, "--stages", 2), ["stages=2 is no setting"]),
        (("--shape", "influence", "--contraction", 1.5), ["contraction=1.5", "above 0 and below 1"]),
        (("--shape", "influence", "--contraction", 0.9, "--momentum", 1), ["momentum=1.0", "below 1"]),
        (("--shape", "stepwise", "--noise-end", 2, "--stages", 11), ["stages=11", "from 1 to steps=10"]),
        (("--shape", "polynomial", "--noise-end", 2, "--power", 0), ["power=0.0", "above 0"]),
        *((("--shape", "linear", "--noise-end", end), [f"noise_end={end}"]) for end in (0.0, -1.0, "nan", "inf")),
        (("--rate-end", 1.5), ["rate_end=1.5", "at most 1"]),
        (("--shape", "constant", "--sampling-rate", 0), ["sampling_rate=0.0", "above 0"]),
        (("--shape", "constant", "--steps", 0), ["steps=0", "at least 1"]),
        (("--schedule", "x.csv"), ["--steps with --schedule", "give either"]),
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


# --- Figures -----------------------------------------------------------------------------------------------------

SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


@pytest.mark.parametrize("ending", SIGNATURES)
@pytest.mark.parametrize("plan", ["one-level", "schedule"])
def test_plot_writes_a_figure_of_the_kind_its_name_says(run: Run, tmp_path: Path, ending: str, plan: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"cost{ending}"
    # Cheap accountants: what is tested is the drawing, not thirty pld prices.
    given: tuple[object, ...] = (*PLAN, "--accountant", "zcdp")
    if plan == "schedule":
        levels = write_schedule(tmp_path, HEADER + "".join(f"{s},{q},{n}\n" for s, q, n in LEVELS))
        given = ("account", "--schedule", levels, "--delta", 1e-4, "--accountant", "basic")
    code, _, err = run(*given, "--plot", path)
    assert (code, err) == (0, "")
    content = path.read_bytes()
    assert content.startswith(SIGNATURES[ending])
    assert len(content) > 2000
    if ending == ".svg":
        assert b"<svg" in content
        assert "ε".encode() in content


@pytest.mark.parametrize("name", ["cost.bmp", "cost"])
def test_a_figure_of_unknown_kind_is_refused_and_not_written(run: Run, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    assert_refused(run(*PLAN, "--plot", path), f"plot={path}", ".png, .svg or .pdf")
    assert not path.exists()


def test_a_figure_in_a_folder_that_is_not_there_is_refused(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "missing" / "cost.png"
    assert_refused(run(*PLAN, "--plot", path), f"plot={path}", "expected a folder")


# --- Refusals ----------------------------------------------------------------------------------------------------

NOISE, RATE = "a finite number above 0", "a number above 0 and at most 1"
STEPS, DELTA = "a whole number of at least 1", "a number above 0 and below 1"
ACCOUNTED = "one of pld, rdp, moments, zcdp, tcdp, advanced, basic"
ADJACENT = "'add-remove' or 'replace-one'"


def refused(name: str, value: Any, expected: str) -> Any:
    return pytest.param(name, value, expected, id=f"{name}={value}")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(refused("noise_multiplier", value, NOISE) for value in (-1.0, 0.0, float("nan"), float("inf"))),
        *(refused("sampling_rate", value, RATE) for value in (0.0, -0.1, 1.5, float("nan"))),
        *(refused("delta", value, DELTA) for value in (0.0, 1.0, 2.0, float("nan"))),
        *(refused("steps", value, STEPS) for value in (0, -3)),
        refused("accountant", "gdp", ACCOUNTED),
        refused("adjacency", "neighbour", ADJACENT),
    ],
)
def test_account_refuses_in_the_words_that_python_raises(run: Run, name: str, value: Any, expected: str) -> None:
    plan: dict[str, Any] = {"noise_multiplier": 5.0, "sampling_rate": 0.02, "steps": 10, "delta": 1e-4, name: value}
    options = [word for key, given in plan.items() for word in (f"--{key.replace('_', '-')}", given)]
    shown = repr(value) if isinstance(value, str) else value
    sentence = assert_refused(run("account", *options), f"{name}={shown}", f"expected {expected}")

    def in_python(noise_multiplier: float, sampling_rate: float, steps: int, **asked: Any) -> float:
        return tacit.epsilon(Repeated(PoissonSampled(sampling_rate, Gaussian(noise_multiplier)), steps), **asked)

    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        in_python(**plan)
    assert str(error.value) == sentence


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


def test_zcdp_refuses_sampling_and_names_an_accountant_that_does_not(run: Run) -> None:
    words = assert_refused(run(*PLAN, "--sampling-rate", 0.1, "--accountant", "zcdp"), "zcdp", "sampling", "pld")
    with pytest.raises(ValueError, match="zcdp") as error:
        tacit.epsilon(Repeated(PoissonSampled(0.1, Gaussian(5.0)), 10), 1e-4, "zcdp")
    assert str(error.value) == words
    calibration = ("calibrate", "--epsilon", 1, "--delta", 1e-5, "--sampling-rate", 0.1, "--accountant", "zcdp")
    assert assert_refused(run(*calibration)) == words


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param((*PLAN, "--noise", "5"), "--noise", id="unknown-option"),
        pytest.param(("acount",), "acount", id="unknown-command"),
        pytest.param((*PLAN, "surplus"), "surplus", id="surplus-argument"),
        pytest.param(("account", "--noise-multiplier", "5"), "--delta", id="missing-option"),
        pytest.param((*PLAN, "--steps", "many"), "--steps", id="text-in-a-whole-number"),
        pytest.param((*PLAN, "--delta", "small"), "--delta", id="text-in-a-number"),
        pytest.param((*PLAN, "--delta"), "--delta", id="option-without-value"),
        pytest.param(("demo", "--insecure-seed", "-1"), "insecure_seed=-1", id="seed"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused_by_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*arguments), named)


@pytest.mark.parametrize(
    "arguments",
    [("account", "--noise-multiplier", "nan", "--delta", "1e-5"), ("acount",), (*PLAN, "--noise", "5")],
    ids=["value", "command", "option"],
)
def test_the_installed_script_refuses_without_a_traceback(arguments: tuple[str, ...]) -> None:
    done = shell(SCRIPT, *arguments)
    assert_refused((done.returncode, done.stdout, done.stderr))


@pytest.mark.parametrize("noise", ["1e-200", "1e300"])
def test_noise_at_the_ends_of_floating_point_is_priced_or_refused(run: Run, noise: str) -> None:
    outcome = run("account", "--noise-multiplier", noise, "--delta", "1e-5", "--json")
    if outcome[0] == 0:
        one_object(outcome[1])
    else:
        assert_refused(outcome, "noise_multiplier")


# Faults found by these tests and reported. Strict: whoever mends one is told to delete its mark.


def test_an_option_that_is_not_a_number_is_named_with_its_value(run: Run) -> None:
    assert_refused(run(*PLAN, "--steps", "many"), "--steps", "many")


def test_a_demo_whose_folder_is_a_file_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.touch()
    assert_refused(run("demo", "--out", path), f"{path}")


def test_a_bad_level_after_a_blank_line_is_refused_with_its_own_line(run: Run, tmp_path: Path) -> None:
    path = write_schedule(tmp_path, HEADER + "5,0.1,2\n\n5,often,2\n")
    assert_refused(run("account", "--schedule", path, "--delta", 1e-5), "line 4")


def test_a_line_break_inside_a_value_does_not_break_the_refusal(run: Run, tmp_path: Path) -> None:
    path = write_schedule(tmp_path, HEADER + '5,"0.1\nx",2\n')
    assert_refused(run("account", "--schedule", path, "--delta", 1e-5), "line 3")  # where the record ends


@pytest.mark.parametrize("option", [("--steps", 17), ("--sampling-rate", 0.5)], ids=["steps", "rate"])
def test_a_schedule_beside_steps_or_rate_is_refused(run: Run, tmp_path: Path, option: tuple[str, float]) -> None:
    path = write_schedule(tmp_path, HEADER + "5,0.1,2\n")
    assert_refused(run("account", "--schedule", path, *option, "--delta", 1e-5), option[0])


# --- Help --------------------------------------------------------------------------------------------------------


def test_version_is_the_package_version(run: Run) -> None:
    assert run("--version") == (0, f"tacit {tacit.__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("account",), ("calibrate",), ("demo",)], ids=lambda words: "-".join(words))
def test_every_command_explains_itself(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert "Usage:" in out
    if not command:
        assert all(name in out for name in ("account", "calibrate", "demo"))
    else:
        assert "--json" in out


@pytest.mark.parametrize("statement", ["import tacit", "import tacit.cli; tacit.cli.main(['--help'])"])
def test_help_and_import_load_nothing_heavy(statement: str) -> None:
    code = (
        f"import sys\ntry:\n    {statement}\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'jax', 'numpy', 'scipy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = shell(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("Usage:" in done.stdout) == ("help" in statement)
