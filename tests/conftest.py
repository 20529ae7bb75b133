"""All tests: strict JAX dtype promotion (a silent cast is a bug), one hypothesis profile, keys and commands."""

import gc
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

import tacit
from tacit.cli.app import main

jax.config.update("jax_numpy_dtype_promotion", "strict")
# Tests trace and lower more than they run. To collect garbage seldom and leave source lines out of programs saves an
# eighth of the processor time.
jax.config.update("jax_traceback_in_locations_limit", 0)
gc.set_threshold(50_000, 20, 100)
settings.register_profile(
    "tacit", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tacit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one process must run by itself comes first, so that the other does not wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


MAPS = Path("/proc/self/maps")
MOST_MAPS = 25_000  # Linux allows a process some 65,000 mappings, and each compiled program takes several
CHECKS = 25  # tests of one file between two looks, each of which takes some milliseconds
_count = itertools.count(1)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget compiled programs before a process has no room for more: XLA would crash, and memory would run out."""
    is_due = nextitem is not None and (nextitem.path != item.path or next(_count) % CHECKS == 0)
    if is_due and MAPS.exists():
        with MAPS.open("rb") as file:
            count = sum(1 for _ in file)
        if count > MOST_MAPS:
            jax.clear_caches()


@pytest.fixture
def key() -> jax.Array:
    """A seeded key: tests repeat."""
    return tacit.insecure_key(7)


def without_stages(text: str) -> str:
    """Standard error without the line of each stage that a command without a terminal prints, as "0:03 Writing"."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"(\d+:)?\d?\d:\d\d [A-Za-z]", line))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, standard output and standard error (without lines of progress) of a command, in this process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return stop.value.code, output.out, without_stages(output.err)

    return run
