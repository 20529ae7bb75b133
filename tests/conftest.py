"""All tests: strict JAX dtype promotion (a silent cast is a bug) and one hypothesis profile."""

import jax
import pytest
from hypothesis import HealthCheck, settings

import tacit

jax.config.update("jax_numpy_dtype_promotion", "strict")
settings.register_profile(
    "tacit", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tacit")


@pytest.fixture
def key() -> jax.Array:
    """A seeded key: tests repeat."""
    return tacit.insecure_key(7)
