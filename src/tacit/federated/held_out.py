"""Which records a site holds out to be judged by: decided from each record alone, under a secret of the site.

    record i is held out  ⟺  blake2b(content_i, key = secret) < 2⁶⁴ / 5

content_i is made of the record's own values (`Table.contents`), so one in five is held out on average, and whether a
record is does not depend on how many others there are, what they hold, or where it stands among them.

Guarantee: for every secret, each sum of a study is a sum over records of a function of one record. Deleting a row of
the file takes that row's term out of the sums of its side and changes nothing else: a sum moves by at most its clip.
The guarantee does not rest on the secret. The secret keeps who writes records from choosing on which side they fall.

A rule by place, such as every fifth row, has no such guarantee: a row less moves all later ones by a place, a fifth of
them change sides, and a sum moves by as many clips.

| records              | side                                                                                        |
|----------------------|---------------------------------------------------------------------------------------------|
| equal rows           | the same: nothing but their place could tell them apart                                     |
| of one file          | the same in all studies under one secret, whatever columns they use: none is learnt from in |
|                      | one study and judged by in another                                                          |
| replaced by another  | may change; a sum moves by at most two clips, as for any replaced record                    |
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np

HELD_OUT = 5  # one record in so many, on average
SECRET_BYTES = 32
PUBLIC = b"held out of a simulation"  # for public and made-up records; the guarantee does not rest on a secret


def held_out(secret: bytes, contents: np.ndarray) -> np.ndarray:
    """For each record whether it is held out. contents: the bytes that stand for each, one row a record."""
    most = 2**64 // HELD_OUT
    found = (hashlib.blake2b(content.tobytes(), key=secret, digest_size=8).digest() for content in contents)
    return np.fromiter((int.from_bytes(word, "big") < most for word in found), bool, len(contents))


def seeded_secret(seed: int) -> bytes:
    """The secret of a site whose noise comes from a seed: it is repeated with the noise, and as little a secret."""
    return hashlib.blake2b(f"tacit held out {seed}".encode(), digest_size=SECRET_BYTES).digest()


def kept_secret(folder: Path, mark: str | None = None) -> bytes:
    """The secret that is kept beside a ledger, made when it is first asked for. It stays there, and is never sent.

    mark: `mark_of` the one that a study was begun with: under another it would be judged by records it learned from.
    """
    path = folder / "held-out.key"
    if mark is not None and not path.exists():
        raise ValueError(f"{path} is gone, by which this study holds out records; go back to a copy, or begin anew")
    found = kept(path, lambda: secrets.token_bytes(SECRET_BYTES))
    if len(found) != SECRET_BYTES:
        raise ValueError(f"{path} has {len(found)} bytes; expected {SECRET_BYTES}: go back to a sound copy")
    if mark not in (None, mark_of(found)):
        raise ValueError(f"{path} is not the key that this study was begun with; go back to a copy, or begin anew")
    return found


def mark_of(secret: bytes) -> str:
    """By which a study knows a secret again, and which tells nothing else of it."""
    return hashlib.sha256(b"tacit held out mark " + secret).hexdigest()


def kept(path: Path, make: Callable[[], bytes]) -> bytes:
    """A file of bytes for its owner alone, made once, whole and durable: of two processes the first one's is kept."""
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(make())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path.read_bytes()
