"""`tacit account`: prices of one level and of schedules, their figures, and how it refuses."""

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
    PLAN,
    RATE,
    SCRIPT,
    SIGNATURES,
    STEPS,
    Run,
    assert_refused,
    event_of,
    one_object,
    refused,
    shell,
    write_schedule,
)

import tacit
from tacit.privacy.accounting import ACCOUNTANTS
from tacit.privacy.events import Gaussian, PoissonSampled, Repeated

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


# --- Figures -----------------------------------------------------------------------------------------------------


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


def test_zcdp_refuses_sampling_and_names_an_accountant_that_does_not(run: Run) -> None:
    words = assert_refused(run(*PLAN, "--sampling-rate", 0.1, "--accountant", "zcdp"), "zcdp", "sampling", "pld")
    with pytest.raises(ValueError, match="zcdp") as error:
        tacit.epsilon(Repeated(PoissonSampled(0.1, Gaussian(5.0)), 10), 1e-4, "zcdp")
    assert str(error.value) == words
    calibration = ("calibrate", "--epsilon", 1, "--delta", 1e-5, "--sampling-rate", 0.1, "--accountant", "zcdp")
    assert assert_refused(run(*calibration)) == words


@pytest.mark.parametrize("noise", ["1e-200", "1e300"])
def test_noise_at_the_ends_of_floating_point_is_priced_or_refused(run: Run, noise: str) -> None:
    outcome = run("account", "--noise-multiplier", noise, "--delta", "1e-5", "--json")
    if outcome[0] == 0:
        one_object(outcome[1])
    else:
        assert_refused(outcome, "noise_multiplier")


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
