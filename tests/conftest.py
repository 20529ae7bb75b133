"""All tests: strict JAX dtype promotion (a silent cast is a bug), one hypothesis profile, keys and commands."""

from collections.abc import Callable

import jax
import pytest
from hypothesis import HealthCheck, settings

import tacit
from tacit.cli import main

jax.config.update("jax_numpy_dtype_promotion", "strict")
settings.register_profile(
    "tacit", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tacit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one process must run by itself comes first, so that the other does not wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture
def key() -> jax.Array:
    """A seeded key: tests repeat."""
    return tacit.insecure_key(7)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, standard output and standard error of a command, in this process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return stop.value.code, output.out, output.err

    return run
