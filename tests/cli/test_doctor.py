"""`tacit doctor`: what it tries, and that it notices what is broken."""

import errno
import json
import os
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import tacit
from tacit.cli import doctor_checks as doctor
from tacit.data import datasets
from tacit.privacy import noise, randomness

Run = Callable[..., tuple[int, str, str]]
NECESSARY = ["JAX", "Devices", "Randomness", "Ledger", "Private step", "Data sets"]


def test_all_that_is_necessary_works_here_and_json_says_how_well(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "FEATURES", 3)
    code, out, error = run("doctor", "--json", "--folder", tmp_path)
    assert (code, error) == (0, "")
    result = json.loads(out)
    checks = {check["name"]: check for check in result["checks"]}
    assert result["ok"] is True
    assert result["version"] == tacit.__version__
    assert [name for name, check in checks.items() if check["necessary"]] == NECESSARY
    assert all(checks[name]["ok"] for name in NECESSARY)
    assert checks["JAX"]["versions"]["jax"] == metadata.version("jax")
    assert 0 < checks["Private step"]["run_seconds"] < checks["Private step"]["compile_seconds"]
    assert checks["Ledger"]["folder"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_packages_and_extras_are_those_that_can_be_installed() -> None:
    """Whatever a user may want of pyproject.toml, and nothing that is only for developers."""
    root = Path(__file__).parents[2]
    text = (root / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    needed = {part.split(">=")[0] for part in tomllib.loads(text)["project"]["dependencies"]}
    assert set(doctor.NEEDED) - {"jaxlib"} == needed - {"pydantic", "rich", "typer"}  # without which it does not begin
    named = {extra: {part.split(">=")[0] for part in parts} for extra, parts in declared.items()}
    assert {extra: set(packages) for extra, (packages, _) in doctor.EXTRAS.items()} == {
        extra: packages for extra, packages in named.items() if extra not in ("dev", "docs", "bench")
    }


# --- Planted faults ----------------------------------------------------------------------------------------------


def constant(count: int) -> bytes:
    return b"\x07" * count


def one_round_less(key: Any, counter: Any, nonce: Any) -> Any:
    return jnp.zeros((counter.shape[0], randomness.BLOCK_WORDS), jnp.uint32)


def counted(count: int, seen: list[int] = []) -> bytes:  # noqa: B006  # it counts on
    seen.append(0)
    return len(seen).to_bytes(count, "big")


def alternating(key: Any, shape: tuple[int, ...]) -> Any:
    return jnp.int32(noise.SCALE) * (1 - 2 * (jnp.arange(shape[0], dtype=jnp.int32) % 2))


def too_quiet(key: Any, shape: tuple[int, ...]) -> Any:
    return jnp.zeros(shape, jnp.int32)


@pytest.mark.parametrize(
    ("place", "name", "broken", "words"),
    [
        (os, "urandom", constant, "repeats itself"),
        (randomness.secrets, "token_bytes", constant, "two keys of secure_key() are the same"),
        (randomness, "secure_key", lambda: randomness.insecure_key(0), "are not marked as secure"),
        (randomness, "chacha20_blocks", one_round_less, "does not give the block of RFC 8439"),
        (randomness.secrets, "token_bytes", counted, "keys of secure_key() follow a pattern"),
        (noise, "lattice_gaussian", too_quiet, "deviation 0 where"),
        (noise, "lattice_gaussian", alternating, "not independent, or not Gaussian"),
    ],
)
def test_randomness_that_is_broken_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any, words: str
) -> None:
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(doctor.Faulty, match=words.replace("(", r"\(").replace(")", r"\)")) as fault:
        doctor.randomness()
    assert fault.value.remedy


def test_a_source_of_randomness_that_is_broken_ends_in_one_sentence_and_exit_code_1(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", constant)
    for name in ("private_step", "data_sets", "figures"):  # not this test's
        monkeypatch.setattr(doctor, name, lambda name=name: doctor.Finding(name, "not tried"))
    code, out, error = run("doctor", "--folder", tmp_path)
    assert code == 1
    assert error == (
        "tacit: Randomness: the operating system's source of randomness repeats itself; "
        "do not protect records on this machine until this is fixed\n"
    )
    assert "✗  Randomness" in out
    assert "All that is necessary works" not in out


def test_a_folder_that_cannot_be_written_to_keeps_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(doctor.Faulty, match=f"no ledger can be kept in {folder}"):
            doctor.ledger(folder)

    def full(place: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(doctor.Faulty, match="No space left on device"):
        doctor.ledger(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_extra_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_flare(name: str) -> str:
        if name == "nvflare":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_flare)
    (missing,) = [finding for finding in doctor.extras() if "nvflare" in finding.words]
    assert (missing.is_well, missing.is_necessary) == (False, False)
    assert missing.remedy == "pip install 'tacit[network]'"
    assert doctor.faults([missing]) == []


def test_a_package_that_tacit_needs_and_is_missing_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("jax", "no-such-package"))
    with pytest.raises(doctor.Faulty, match="no-such-package not installed") as fault:
        doctor.installed()
    assert fault.value.remedy == "pip install no-such-package"


def test_a_check_that_falls_over_is_a_finding_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: Any) -> doctor.Finding:
        raise RuntimeError("libcudart\nis broken")

    for name in ("installed", "devices", "randomness", "ledger", "private_step", "data_sets", "figures"):
        monkeypatch.setattr(doctor, name, fall)
    findings = doctor.examine(tmp_path)
    assert [finding.name for finding in doctor.faults(findings)] == NECESSARY
    assert findings[0].words == "RuntimeError: libcudart is broken"
    assert findings[-1].name == "tacit[policy]"


@pytest.mark.parametrize("is_there", [True, False])
def test_heart_disease_is_looked_for_and_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(datasets, "urlopen", refuse)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(datasets, "adult", datasets.abalone)  # to be quick
    folder = tmp_path / "heart-disease"
    folder.mkdir()
    for hospital in datasets._HOSPITALS[is_there is False :]:
        (folder / f"processed.{hospital}.data").touch()
    assert datasets.heart_folder() == (folder if is_there else None)
    assert [finding.is_well for finding in doctor.data_sets()] == [True, is_there]


def test_the_findings_fit_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    doctor.show([doctor.Finding("Randomness", "word " * 40), *doctor.extras()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"tacit {tacit.__version__} on Python ")
    assert max(map(len, lines[1:])) <= 80
    assert sum("pip install" in line or line.startswith("✓") for line in lines) == 1 + len(doctor.EXTRAS)
