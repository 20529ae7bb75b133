"""Helpers of long-lived processes: one process at a time in a folder, and kept compiled programs."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

POLL = 0.5  # seconds between looks


def keep_compiled(folder: Path) -> None:
    """Keep compiled programs in a folder of our own, so that a process that restarts is quick."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder.resolve() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@contextlib.contextmanager
def alone(path: Path, words: str) -> Iterator[None]:
    """Hold the lock of a file; refuse with these words if another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(words) from None
        yield
