"""Messages between a coordinator and a site, as bytes: closed, versioned, one encoding for each message.

    "tacit\\0" · version (1 byte) · length of the header (4 bytes) · header · arrays · sha256 of all before (32 bytes)

The header is canonical JSON in ASCII: the message's fields, and for the content the type and shape of each array. The
arrays follow in the header's order, C-contiguous and little-endian; the length is big-endian. The hash shows damage. It
is **not authentication**: anyone who can change a message can hash it anew, so the channel must authenticate the
sender.

A content is a **tree**: arrays of the types of `DTYPES` (a scalar is one without dimensions), the families of
`FAMILIES`, and dicts of trees by name. It is decoded to read-only NumPy arrays, so that float64 survives where JAX
would make it float32. Any number may be sent, including NaN and infinity: the receiver checks them.
"""

import hashlib
import json
import math
import reprlib
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np

from tacit.basics.trees import Tree
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.privacy.events import check_number

Path = tuple[str, ...]  # the keys that lead to a part of a content

MAGIC = b"tacit\0"
VERSION = 1
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("bool", "float32", "float64", "int32", "int64", "uint8")}
FAMILIES = {"DiagonalGaussian": DiagonalGaussian, "FullGaussian": FullGaussian}

# Limits on what a message may cost its receiver, each far above what a study sends.
MOST_BYTES = 2**28  # of a whole message: a full Gaussian of 5,700 parameters in float64
MOST_HEADER = 2**20  # bytes of JSON; parsed, it takes some fifty times as much memory
MOST_ARRAYS = 4096  # a network of a thousand layers, with a Gaussian each for weights and biases
MOST_DIMENSIONS = 8  # a convolution has four
DEEPEST = 8  # dicts inside one another; far from Python's limit of recursion
LONGEST_NAME = 200  # characters of a study, a site or a key: a line or two on a terminal
LONGEST_REASON = 2000  # characters of a refusal: a paragraph
LAST_ROUND = 2**63 - 1  # the ledger's integers

_START = len(MAGIC) + 1 + 4  # where the header begins
_HASH = hashlib.sha256().digest_size


class _Envelope:
    """Checks the fields around a content when a message is made, on either side."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "round":
                valid = type(value) is int and 0 <= value <= LAST_ROUND
                check_number(name, reprlib.repr(value), f"a Python int from 0 to {LAST_ROUND}", valid)
            elif name != "content":
                _check_text(name, value, LONGEST_REASON if name == "reason" else LONGEST_NAME)


@dataclass(frozen=True)
class Broadcast(_Envelope):
    """From the coordinator to the sites. Compare messages by their `encode`: arrays have no single truth value."""

    study: str
    round: int
    content: Tree


@dataclass(frozen=True)
class Update(_Envelope):
    """A site's answer to the broadcast of the same round."""

    study: str
    site: str
    round: int
    content: Tree


@dataclass(frozen=True)
class Refusal(_Envelope):
    """A site's answer that there is no update. The reason is sent as it is, so it must not depend on a record."""

    study: str
    site: str
    round: int
    reason: str


Message = Broadcast | Update | Refusal
_KINDS: dict[str, type[Message]] = {"broadcast": Broadcast, "update": Update, "refusal": Refusal}
_FIELDS = {"tree": {"content"}} | {kind: {field.name for field in fields(made)} for kind, made in _KINDS.items()}


def encode(message: Message) -> bytes:
    """The bytes of a message; a ValueError for a content that is not a tree.

    Guarantee: `decode(encode(m))` is m to the bit, signs of zero and payloads of NaN included.

    >>> decode(encode(Refusal("heart", "north", 3, "the budget is spent")))
    Refusal(study='heart', site='north', round=3, reason='the budget is spent')
    """
    kind = type(message).__name__.lower()
    if _KINDS.get(kind) is not type(message):
        raise ValueError(f"message is a {type(message).__name__}; expected a Broadcast, an Update or a Refusal")
    return _pack({"kind": kind, **vars(message)})


def decode(data: bytes) -> Message:
    """The message in `data`.

    Guarantee: for any bytes, this returns a message m with `encode(m) == data` or raises a ValueError; it runs no code
    from the bytes, and takes memory in proportion to their length.
    """
    header = _unpack(data)
    kind = header.pop("kind")
    if kind == "tree":
        raise ValueError("data holds a tree alone; expected a message, so read it with decode_tree")
    return _KINDS[kind](**header)


def encode_tree(tree: Tree) -> bytes:
    """The bytes of a tree alone, for state that is stored. It has the guarantee of `encode`."""
    return _pack({"kind": "tree", "content": tree})


def decode_tree(data: bytes) -> Tree:
    """The tree in `data`. It has the guarantee of `decode`."""
    header = _unpack(data)
    if header["kind"] != "tree":
        raise ValueError(f"data holds a message, {header['kind']}; expected a tree alone, so read it with decode")
    return header["content"]


# --- Bytes -------------------------------------------------------------------------------------------------------


def _canonical(plain: Any) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _pack(header: dict[str, Any]) -> bytes:
    arrays: list[np.ndarray] = []
    if "content" in header:
        header["content"] = _describe(header["content"], (), arrays)
    text = _canonical(header)
    size = _START + len(text) + sum(array.nbytes for array in arrays) + _HASH
    if len(text) > MOST_HEADER or size > MOST_BYTES:
        limits = f"at most {MOST_HEADER} and {MOST_BYTES}"
        raise ValueError(f"a header of {len(text)} bytes in a message of {size}; expected {limits}: send less")
    body = b"".join([MAGIC, bytes([VERSION]), len(text).to_bytes(4, "big"), text, *map(_raw, arrays)])
    return body + hashlib.sha256(body).digest()


def _raw(array: np.ndarray) -> bytes:
    if array.dtype == np.bool_:
        array = array.view(np.uint8) != 0  # NumPy takes any byte but 0 for true; here true is 1
    return array.astype(DTYPES[array.dtype.name], copy=False).tobytes()


def _unpack(data: Any) -> dict[str, Any]:
    """The header of sound bytes, with the content in place of its description."""
    if not isinstance(data, bytes):
        raise ValueError(f"data is a {type(data).__name__}; expected bytes made by encode")
    if not data.startswith(MAGIC) or not _START + _HASH <= len(data) <= MOST_BYTES:
        raise ValueError(f"data of {len(data)} bytes is no message, or cut short; expected bytes made by encode")
    if (version := data[len(MAGIC)]) != VERSION:
        raise ValueError(f"data is of version {version}; this tacit reads {VERSION}: use the same tacit at both ends")
    body = memoryview(data)[:-_HASH]
    if hashlib.sha256(body).digest() != data[-_HASH:]:
        raise ValueError("data does not match its hash: it was damaged or cut short on the way; send it again")
    end = _START + int.from_bytes(body[_START - 4 : _START], "big")
    if end > min(_START + MOST_HEADER, len(body)):
        raise ValueError(f"a header of {end - _START} bytes; expected at most {MOST_HEADER}, inside of data")
    header = _parse(bytes(body[_START:end]))
    payload = _Payload(body[end:])
    if "content" in header:
        header["content"] = _build(header["content"], (), payload)
    if len(payload.rest):
        raise ValueError(f"{len(payload.rest)} bytes after the last array; expected none")
    return header


def _parse(text: bytes) -> dict[str, Any]:
    """The header as plain data with the fields of its kind; their values are unchecked."""
    header = None
    try:
        plain = json.loads(text.decode("ascii"))
        if _canonical(plain) == text:  # else a key comes twice, keys are not in order, or a number is 1e999
            header = plain
    except (ValueError, RecursionError):  # also an integer of too many digits
        pass
    if not isinstance(header, dict) or not isinstance(kind := header.get("kind"), str):
        raise ValueError("the header is not canonical JSON with a kind; expected bytes made by encode")
    if kind not in _FIELDS or set(header) != {"kind", *_FIELDS[kind]}:
        raise ValueError(
            f"a header of {reprlib.repr(kind)} with {reprlib.repr(list(header))}; expected bytes made by encode"
        )
    return header


@dataclass
class _Payload:
    """The bytes of arrays, taken from the front."""

    rest: memoryview
    taken: int = 0

    def take(self, plain: Any, path: Path) -> Any:
        match plain:
            case {"dtype": str(name), "shape": list(shape), **others} if not others:
                size = _check_array(name, shape, self.taken, path)
            case _:
                raise ValueError(f"{_place(path)} is neither a dict, a known family nor an array in the header")
        if size > len(self.rest):
            raise ValueError(f"{_place(path)} needs {size} bytes, but {len(self.rest)} are left; send it again")
        array = np.ndarray(shape, DTYPES[name], self.rest[:size]).astype(np.dtype(name))  # a copy, in native order
        if name == "bool" and np.any(array.view(np.uint8) > 1):
            raise ValueError(f"{_place(path)} holds truth values other than 0 and 1; expected bytes made by encode")
        array.flags.writeable = False
        self.rest, self.taken = self.rest[size:], self.taken + 1
        return array


# --- Trees -------------------------------------------------------------------------------------------------------


def _describe(tree: Tree, path: Path, arrays: list[np.ndarray]) -> dict[str, Any]:
    """The header's description of a tree; its arrays are appended in the order of their bytes."""
    if type(tree) is dict:
        _check_entries(tree, path)
        return {"entries": {name: _describe(tree[name], (*path, name), arrays) for name in sorted(tree)}}
    name = type(tree).__name__
    if FAMILIES.get(name) is type(tree):
        parts = [_describe_array(part, path, arrays) for part in (tree.precision_mean, tree.precision)]
        _check_family(tree, path)
        return {"family": name, "parameters": parts}
    return _describe_array(tree, path, arrays)


def _describe_array(tree: Any, path: Path, arrays: list[np.ndarray]) -> dict[str, Any]:
    # No subclass of ndarray: a mask would be lost.
    if type(tree) is not np.ndarray and not isinstance(tree, np.generic | jax.Array):
        expected = f"an array (for a number, np.float64(0.5)), a dict or one of {', '.join(FAMILIES)}"
        raise ValueError(f"{_place(path)} is a {type(tree).__name__}; expected {expected}")
    name, shape = tree.dtype.name, list(tree.shape)
    _check_array(name, shape, len(arrays), path)
    try:
        arrays.append(np.asarray(tree))
    except (TypeError, RuntimeError):
        raise ValueError(f"{_place(path)} is traced by JAX or deleted; expected an array with its numbers") from None
    return {"dtype": name, "shape": shape}


def _build(plain: Any, path: Path, payload: _Payload) -> Tree:
    """The tree that the header describes, with arrays from the payload."""
    match plain:
        case {"entries": dict(entries), **others} if not others:
            _check_entries(entries, path)
            return {name: _build(entry, (*path, name), payload) for name, entry in entries.items()}
        case {"family": str(name), "parameters": [mean, precision], **others} if not others and name in FAMILIES:
            family = FAMILIES[name](payload.take(mean, path), payload.take(precision, path))
            _check_family(family, path)
            return family
    return payload.take(plain, path)


# --- Checks, the same for both ways ------------------------------------------------------------------------------


def _place(path: Path) -> str:
    return "content" + "".join(f"[{name!r}]" for name in path)


def _check_text(name: str, value: Any, longest: int) -> None:
    valid = isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()  # it is shown on terminals
    check_number(name, reprlib.repr(value), f"1 to {longest} printable characters on one line", valid)


def _check_entries(entries: dict[Any, Any], path: Path) -> None:
    if len(path) >= DEEPEST:
        raise ValueError(f"{_place(path)} is a dict inside {len(path)} others; expected {DEEPEST} in all at most")
    for name in entries:
        _check_text(f"a key of {_place(path)}", name, LONGEST_NAME)


def _check_array(name: str, shape: list[Any], before: int, path: Path) -> int:
    """The size in bytes of an array that may be sent, after `before` others."""
    if name not in DTYPES:
        raise ValueError(f"{_place(path)} is of type {reprlib.repr(name)}; expected one of {', '.join(DTYPES)}")
    if before >= MOST_ARRAYS:
        raise ValueError(f"{_place(path)} comes after {before} arrays; expected at most {MOST_ARRAYS}: stack some")
    valid = len(shape) <= MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    # max: NumPy refuses even an empty array if the product of its other dimensions is too large.
    if not valid or math.prod(max(n, 1) for n in shape) * DTYPES[name].itemsize > MOST_BYTES:
        expected = f"at most {MOST_DIMENSIONS} whole numbers, for at most {MOST_BYTES} bytes"
        raise ValueError(f"{_place(path)} is of shape {reprlib.repr(shape)}; expected {expected}")
    return math.prod(shape) * DTYPES[name].itemsize


def _check_family(family: DiagonalGaussian | FullGaussian, path: Path) -> None:
    mean, precision = family.precision_mean, family.precision
    same = mean.dtype.name == precision.dtype.name and mean.dtype.kind == "f"
    axes = 2 if isinstance(family, FullGaussian) else 1
    if not same or mean.ndim != 1 or precision.shape != mean.shape * axes:
        found = f"precision_mean {mean.dtype}{mean.shape} and precision {precision.dtype}{precision.shape}"
        expected = f"one floating type, (d,) and {'(d, d)' if axes == 2 else '(d,)'}, without a batch"
        raise ValueError(f"{_place(path)} has {found}; expected {expected}")
