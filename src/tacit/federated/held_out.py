"""Choose which records a site holds out for evaluation, from each record alone, under a secret of the site.

    record i is held out  ⟺  blake2b(content_i, key = secret) < 2⁶⁴ / 5

content_i consists of the record's own values (`Table.contents`). One in five is held out on average. Whether a record
is held out does not depend on the number of other records, their values, or its position among them.

Guarantee: for every secret, each sum of a study is a sum over records of a function of one record. Deleting a row of
the file takes that row's term out of the sums of its side and changes nothing else: a sum moves by at most its clip.
The guarantee does not rest on the secret. The secret prevents the author of a record from choosing its side.

A rule by position, such as every fifth row, has no such guarantee: one row fewer moves all later ones by a position, a
fifth of them change sides, and a sum moves by as many clips.

| records              | side                                                                                        |
|----------------------|---------------------------------------------------------------------------------------------|
| equal rows           | the same: only their position could tell them apart                                         |
| of one file          | the same in all studies under one secret, whatever columns they use: no record trains one   |
|                      | study and evaluates another                                                                 |
| replaced by another  | may change; a sum moves by at most two clips, as for any replaced record                    |
"""

import hashlib
import secrets
from pathlib import Path

import numpy as np

from tacit.basics import durable

HELD_OUT = 5  # one record in so many, on average
SECRET_BYTES = 32
PUBLIC = b"held out of a simulation"  # for public and made-up records; the guarantee does not rest on a secret


def held_out(secret: bytes, contents: np.ndarray) -> np.ndarray:
    """Whether each record is held out. contents: the bytes that represent the records, one row for each."""
    most = 2**64 // HELD_OUT
    found = (hashlib.blake2b(content.tobytes(), key=secret, digest_size=8).digest() for content in contents)
    return np.fromiter((int.from_bytes(word, "big") < most for word in found), bool, len(contents))


def seeded_secret(seed: int) -> bytes:
    """The secret of a site whose noise comes from a seed: as repeatable as the noise, and no more secret."""
    return hashlib.blake2b(f"tacit held out {seed}".encode(), digest_size=SECRET_BYTES).digest()


def kept_secret(folder: Path, mark: str | None = None) -> bytes:
    """The secret that is kept next to a ledger, made at the first call. It stays there, and is never sent.

    mark: `mark_of` the secret that a study began with: another would evaluate the study on records it learned from.
    """
    path = folder / "held-out.key"
    if mark is not None and not path.exists():
        raise ValueError(f"{path} is gone, by which this study holds out records; go back to a copy, or begin anew")
    found = durable.write_once(path, lambda: secrets.token_bytes(SECRET_BYTES))
    if len(found) != SECRET_BYTES:
        raise ValueError(f"{path} has {len(found)} bytes; expected {SECRET_BYTES}: go back to a sound copy")
    if mark not in (None, mark_of(found)):
        raise ValueError(f"{path} is not the key that this study was begun with; go back to a copy, or begin anew")
    return found


def mark_of(secret: bytes) -> str:
    """A hash by which a study recognises a secret, and which reveals nothing else about it."""
    return hashlib.sha256(b"tacit held out mark " + secret).hexdigest()
