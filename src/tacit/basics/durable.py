"""Durable files: written whole or not at all, and still there after a loss of power."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path


def write(path: Path, data: bytes | str) -> None:
    """Write a file all or nothing: a reader finds the old file or the new one, also after a loss of power.

    The data go to `PATH.new` first, are synced to the disk and replace the file; then the folder is synced. Space set
    aside by `reserve` is overwritten, not given back first. The file keeps its permissions, a link stays a link to it,
    and a device or a pipe is written to.
    """
    plain = data.encode() if isinstance(data, str) else data
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(plain)
        return
    new = beside(path)
    with new.open("r+b" if new.exists() else "wb") as file:
        if path.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
        file.write(plain)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)


def write_once(path: Path, make: Callable[[], bytes]) -> bytes:
    """Make a file once, whole, durable and for its owner alone; return its bytes.

    If two processes make it at once, the first one's file is kept.
    """
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(make())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
        sync_folder(path.parent)
    return path.read_bytes()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def reserve(path: Path, size: int) -> None:
    """Set disk blocks aside for a later `write` of `size` bytes. Raises OSError if there is no room."""
    with beside(path).open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            try:
                return os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems without this call
                    raise
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def release(path: Path) -> None:
    """Give back the space that `reserve` has set aside."""
    beside(path).unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """The temporary file that is written before it replaces `path`."""
    return path.with_name(path.name + ".new")


def is_same(one: Path | None, other: Path | None) -> bool:
    """Whether two paths lead to the same file."""
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except OSError:  # one does not exist
        return one == other
