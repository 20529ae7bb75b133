"""What a terminal shows: progress, its absence elsewhere, colours, interrupts, completion and help."""

import io
import json
import os
import re
import select
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from rich.console import Console

import tacit
from tacit.audit import named, subjects
from tacit.cli import app, options
from tacit.report import progress
from tacit.report.progress import Watch

if os.name == "posix":
    import fcntl
    import pty
    import struct
    import termios

Run = Callable[..., tuple[int, str, str]]
SCRIPT = str(Path(sysconfig.get_path("scripts")) / "tacit")
ROOT = Path(__file__).parents[2]
COLOUR = re.compile(rb"\x1b\[[0-9;]*\b(3[0-8]|4[0-8]|9[0-7]|10[0-7])\b[0-9;]*m")
needs_pty = pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def shown(watch: Watch, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    console.print(watch)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


# --- What is shown -----------------------------------------------------------------------------------------------


def test_time_left_is_by_the_steps_after_the_first_which_compiles(clock: Clock) -> None:
    watch = Watch()
    watch.say("Inference", "rounds")
    watch.move(0, 10)
    clock.now += 60  # compiling
    watch.move(1, 10)
    assert watch.left(clock.now) is None
    for done in (2, 3):
        clock.now += 4
        watch.move(done, 10)
    assert watch.left(clock.now) == pytest.approx(7 * 4)
    assert watch.left(clock.now + 3) == pytest.approx(7 * 4 - 3)
    clock.now += 1
    watch.move(3, 10)  # told again: nothing is new
    assert watch.left(clock.now) == pytest.approx(7 * 4 - 1)
    assert watch.left(clock.now + 1000) == 0
    watch.move(10, 10)
    assert watch.left(clock.now) is None


def test_a_study_that_goes_on_is_timed_from_where_it_goes_on(clock: Clock) -> None:
    watch = Watch()
    for done in (7, 8, 9):
        clock.now += 5
        watch.step("inference", done, 20, {})
    assert watch.left(clock.now) == pytest.approx(11 * 5)
    watch.step("evaluation", 0, 3, {})  # another phase begins anew
    assert watch.left(clock.now) is None


def test_what_how_far_how_long_and_epsilon_are_shown_in_80_columns(clock: Clock) -> None:
    watch = Watch()
    assert shown(watch)[0].endswith("Starting 0:00 elapsed")
    watch.say("liu-fig41: Fig. 4.1: five sites, log KL and ε by server updates", "settings × 20 seeds")
    clock.now += 3600
    watch.move(1, 120)
    clock.now += 10
    watch.move(2, 120)
    watch.budgets, watch.spent = {"records.csv": 2.0}, {"records.csv": 0.5}
    title, bar, epsilon = shown(watch)
    assert title.endswith("by server updates")
    assert bar.endswith("2 of 120 settings × 20 seeds, 1:00:10 elapsed, about 19:40 left")
    assert epsilon.endswith("records.csv  ε = 0.5 of 2")
    assert epsilon.startswith("━")
    assert max(map(len, (title, bar, epsilon))) <= 80


def test_jobs_are_tracked_one_by_one() -> None:
    watch, seen = Watch(), []
    for job in watch.track(["a", "b"]):
        seen.append((job, shown(watch)[1]))
    assert [(job, line.split(",")[0].split("  ")[-1]) for job, line in seen] == [("a", "0 of 2"), ("b", "1 of 2")]
    assert "2 of 2" in shown(watch)[1]


# --- Where it is shown -------------------------------------------------------------------------------------------

SHOW = """
import sys, time
from tacit.report.progress import watching
with watching() as watch:
    watch.say("Learning [b]all[/b]", "rounds")
    watch.budgets, watch.spent = {"north": 2.0}, {"north": 0.5}
    for done in range(4):
        watch.move(done, 3)
        time.sleep(0.1)
    print("a line", file=sys.stderr)
print("result", watch.is_shown)
"""


def on_terminal(
    command: list[str], *, until: bytes | None = None, limit: float = 300, behind: bool = False, **environment: str
) -> tuple[int, bytes, bytes]:
    """Exit code, standard output (a pipe) and what a terminal saw of standard error.

    until: the words on the terminal at which Ctrl-C is pressed. behind: as the shell's `&` does.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    names = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "PYTHONWARNINGS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}

    shell = [sys.executable, "-c", TAKE, *([sys.executable, "-c", BEHIND] if behind else []), *command]
    process = subprocess.Popen(
        shell, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=env, cwd=ROOT, start_new_session=True
    )
    os.close(slave)
    seen, pressed, end = b"", False, time.monotonic() + limit
    while time.monotonic() < end:
        if select.select([master], [], [], 0.05)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            seen += data
        if until is not None and until in seen and not pressed:
            pressed = True
            os.write(master, b"\x03")
    else:
        process.kill()
    assert process.stdout is not None
    with process.stdout:
        out = process.stdout.read()
    code = process.wait(10)
    os.close(master)
    return code, out, seen


# A process of its own takes the terminal, not a fork of this one, in which JAX has threads. Whoever runs the tests
# may ignore interrupts.
TAKE = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
BEHIND = """
import subprocess, sys
sys.exit(subprocess.run(sys.argv[1:], process_group=0).returncode)
"""


@needs_pty
def test_a_terminal_sees_progress_and_standard_output_only_the_result() -> None:
    code, out, seen = on_terminal([sys.executable, "-c", SHOW])
    assert (code, out) == (0, b"result True\n")
    words = seen.decode()
    assert "Learning [b]all[/b]" in words
    assert "3 of 3 rounds" in words
    assert "ε = 0.5 of 2" in words
    assert "a line\r\n" in words
    assert COLOUR.search(seen)


@needs_pty
def test_no_color_leaves_progress_without_colours() -> None:
    code, out, seen = on_terminal([sys.executable, "-c", SHOW], NO_COLOR="1")
    assert (code, out) == (0, b"result True\n")
    assert "3 of 3 rounds" in seen.decode()
    assert not COLOUR.search(seen)


@needs_pty
@pytest.mark.parametrize("how", [{"TERM": "dumb"}, {"behind": True}], ids=["dumb", "behind"])
def test_a_terminal_that_cannot_be_drawn_on_gets_a_line_per_stage(how: dict[str, Any]) -> None:
    found = on_terminal([sys.executable, "-c", SHOW], **how)
    assert found == (0, b"result False\n", b"0:00 Learning [b]all[/b]\r\na line\r\n")


def test_elsewhere_each_stage_is_a_line_on_standard_error() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"result False\n")
    assert done.stderr == b"0:00 Learning [b]all[/b]\na line\n"


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param("2>&1 >result | head -c 1", marks=pytest.mark.slow, id="broken pipe"),
        pytest.param(">result 2>&-", id="closed"),
    ],
)
def test_a_result_that_was_paid_for_is_not_lost_to_a_closed_standard_error(tmp_path: Path, closed: str) -> None:
    (tmp_path / "records.csv").write_text("x,y\n" + "0.5,1\n0.4,0\n" * 50)
    words = "fit records.csv --target y --epsilon 1 --delta 1e-3 --bounds x=0:1 --classes 0,1 --json --insecure-seed 1"
    line = f"set -o pipefail; {shlex.quote(SCRIPT)} {words} {closed}"
    subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=300)
    result = json.loads((tmp_path / "result").read_text())
    assert result == json.loads((tmp_path / "fit-output" / "result.json").read_text()) | result
    assert (tmp_path / "fit-output" / "posterior.json").exists()


@needs_pty
def test_a_reproduction_shows_which_figure_and_how_far_and_prints_its_result(tmp_path: Path) -> None:
    command = [SCRIPT, "reproduce", "jalko-fig21", "--quick", "--seeds", "2", "--json", "--out", str(tmp_path)]
    code, out, seen = on_terminal(command, NO_COLOR="1")
    assert code == 0
    assert json.loads(out)["name"] == "jalko-fig21"
    assert "jalko-fig21: Fig. 2.1" in seen.decode()
    assert "9 of 9 settings × 2 seeds" in seen.decode()
    assert not COLOUR.search(seen)


# --- Interrupts --------------------------------------------------------------------------------------------------

PLAN = ("plan", "--records", "20000", "--features", "5", "--epsilon", "1", "--delta", "1e-5", "--sites", "3")
FIT = ("fit", "{}/records.csv", "--target", "y", "--epsilon", "1", "--delta", "1e-5", "--bounds", "x=0:1")
LONG = [  # a command, and the words at which it is interrupted
    pytest.param(PLAN, "Simulating", id="plan"),
    pytest.param(FIT, "compiling and running", id="fit", marks=pytest.mark.slow),
    pytest.param(("demo",), "Ten sites", id="demo", marks=pytest.mark.slow),
    pytest.param(("simulate", "examples/adult-c.toml"), "Planning", id="simulate", marks=pytest.mark.slow),
    pytest.param(("audit", "mechanism"), "Attacking", id="audit", marks=pytest.mark.slow),
    pytest.param(("reproduce", "jalko-fig21"), "jalko-fig21", id="reproduce", marks=pytest.mark.slow),
    pytest.param(("doctor",), "Private step", id="doctor", marks=pytest.mark.slow),
]


@needs_pty
@pytest.mark.parametrize(("command", "words"), LONG)
def test_ctrl_c_ends_a_long_command_with_exit_code_130_and_no_traceback(
    tmp_path: Path, command: tuple[str, ...], words: str
) -> None:
    (tmp_path / "records.csv").write_text("x,y\n" + "0.5,1\n0.4,0\n" * 500)
    place = ("--folder",) if command[0] == "doctor" else ("--out",)
    given = [word.format(tmp_path) for word in (*command, *place, str(tmp_path / "out"))]
    (tmp_path / "out").mkdir()
    code, out, seen = on_terminal([SCRIPT, *given], until=words.encode())
    assert (code, out) == (130, b"")
    assert b"Traceback" not in seen
    assert b"tacit: interrupted" in seen


# --- Completion --------------------------------------------------------------------------------------------------


def completed(shell: str, line: str) -> list[str]:
    """What a shell is told when TAB is pressed at the end of a line."""
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
    }
    env = {**os.environ, **asked[shell], "_TACIT_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([SCRIPT], capture_output=True, encoding="utf-8", env=env, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return re.findall(r'^(?:_arguments .*\(\()?"(.*?)"', done.stdout, re.M) if shell == "zsh" else done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tacit pre", ["predict"]),
        ("tacit fit x.csv --met", ["--method"]),
        ("tacit fit x.csv --method s", ["sep", "sgld"]),
        ("tacit reproduce jalko-fig2", ["jalko-fig21", "jalko-fig22"]),
    ],
)
def test_commands_options_and_values_are_completed(shell: str, line: str, expected: list[str]) -> None:
    assert completed(shell, line) == expected


def test_values_that_may_be_given_are_those_that_completion_offers() -> None:
    from tacit.basics.methods import METHODS
    from tacit.basics.schema import expected_of
    from tacit.links import LINKS
    from tacit.planning import forecast as planning
    from tacit.privacy import accounting
    from tacit.privacy.events import Adjacency
    from tacit.study.plan import Plan

    assert tuple(accounting.ACCOUNTANTS) == options.ACCOUNTANTS
    assert set(get_args(Adjacency)) == set(options.ADJACENCIES)
    assert set(options.MODELS) == set(LINKS)
    assert expected_of(Plan.model_fields["method"]) == f"one of {', '.join(METHODS)}"
    assert set(options.AUDITED) == set(named.RUNS) - {named.ROW}
    assert set(options.CANARIES) == {*subjects.CANARIES, named.ROW}
    with pytest.raises(ValueError, match="expected one of") as refused:
        planning.Question("other", 1000, 5, 1.0, 1e-5, 1, None, ())
    assert set(options.PLANNED_MODELS) == set(str(refused.value).partition("expected one of ")[2].split(", "))


@pytest.mark.parametrize(
    ("function", "incomplete", "expected"),
    [
        (options.kinds, "logistic,po", ["logistic,poisson"]),
        (options.kinds, "lin", ["linear"]),
        (options.among("a-b", "a-c"), "a-c", ["a-c"]),
    ],
)
def test_parts_of_values_are_completed(function: Any, incomplete: str, expected: list[str]) -> None:
    assert function(incomplete) == expected


@pytest.mark.parametrize("asked", [["--version"], []], ids=["version", "completion"])
def test_version_and_completion_load_nothing_slow(asked: list[str]) -> None:
    code = (
        "import sys\nfrom tacit.cli.app import main\n"
        f"sys.argv = ['tacit', *{asked}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "slow = {'jax', 'numpy', 'scipy', 'rich', 'pandas'} & set(sys.modules)\nassert not slow, slow\n"
    )
    env = {"COMP_WORDS": "tacit reproduce sep-t", "COMP_CWORD": "2", "_TACIT_COMPLETE": "complete_bash"}
    env = {**os.environ, **({} if asked else env)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=env, timeout=60)
    assert done.stderr == ""
    assert done.stdout.strip() == (f"tacit {tacit.__version__}" if asked else "sep-table")


# --- Help --------------------------------------------------------------------------------------------------------


def commands(group: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [before]
    for name, command in getattr(group, "commands", {}).items():
        found += commands(command, (*before, name))
    return found


@pytest.mark.parametrize("command", commands(typer.main.get_command(app.app)), ids=lambda words: " ".join(words))
def test_help_is_whole_and_fits_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    code, out, error = run(*command, "--help")
    assert (code, error) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    listed = out.partition("Commands:")[2]
    assert "..." not in listed, "the first sentence is too long for the list of commands: give a short_help"
    for option in re.findall(r"^  (--\S+).*\n?(.*)", out, re.M):
        assert any(part.strip() for part in option), f"{option} says nothing"
