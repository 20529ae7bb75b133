"""All commands: how what cannot be read is refused, what each says of itself, and what it loads to say so."""

import sys
from pathlib import Path

import pytest
from tests.cli.commands import PLAN, SCRIPT, Run, assert_refused, shell

import tacit


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


def test_an_option_that_is_not_a_number_is_named_with_its_value(run: Run) -> None:
    assert_refused(run(*PLAN, "--steps", "many"), "--steps", "many")


def test_a_demo_whose_folder_is_a_file_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.touch()
    assert_refused(run("demo", "--out", path), f"{path}")


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


@pytest.mark.parametrize("statement", ["import tacit", "from tacit.cli.app import main; main(['--help'])"])
def test_help_and_import_load_nothing_heavy(statement: str) -> None:
    code = (
        f"import sys\ntry:\n    {statement}\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'jax', 'numpy', 'scipy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = shell(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("Usage:" in done.stdout) == ("help" in statement)
