"""The messages of secure sums as plain trees."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tacit.basics.trees import Tree
from tacit.federated.secure_sum import Advertisement, Opened, Refused
from tacit.federated.secure_terms import STAGES


def array_of(data: bytes) -> np.ndarray:
    """Bytes as an array, which messages can carry."""
    return np.frombuffer(data, np.uint8)


def as_bytes(part: Any) -> bytes:
    """The bytes of such an array, or a refusal."""
    if not isinstance(part, np.ndarray) or part.dtype != np.uint8 or part.ndim != 1:
        raise Refused("a part of the message is no row of bytes")
    return part.tobytes()


def plain_of(message: Any) -> Tree:
    """A message's fields of bytes; its envelope says who sent it."""
    return {name: array_of(value) for name, value in vars(message).items() if isinstance(value, bytes)}


def bytes_of(plain: Any, *names: str) -> list[bytes]:
    """The bytes of exactly these parts of a message, in order, or a refusal."""
    if not isinstance(plain, dict) or set(plain) != set(names):
        raise Refused("the message has other parts than it should")
    return [as_bytes(plain[name]) for name in names]


def advertisement(name: str, plain: Any) -> Advertisement:
    """A site's advertised keys, from a message."""
    return Advertisement(name, *bytes_of(plain, "seal", "mask", "seed", "signature"))


def sealed_of(name: str, plain: Any, known: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A site's sealed shares for all others, from a message."""
    if not isinstance(plain, dict) or set(plain) != set(known) - {name}:
        raise Refused("it did not share its secrets with all others")
    for part in plain.values():
        as_bytes(part)
    return plain


def opened_plain(opened: Opened) -> Tree:
    """Opened shares as a message."""
    shares = {kind: {name: array_of(part) for name, part in getattr(opened, kind).items()} for kind in ("gone", "here")}
    return {**shares, "signature": array_of(opened.signature)}


def opened_of(name: str, plain: Any) -> Opened:
    """A site's opened shares, from a message."""
    if not isinstance(plain, dict) or set(plain) != {"gone", "here", "signature"}:
        raise Refused("the message has other parts than it should")
    gone, here = ({one: as_bytes(part) for one, part in pairs_of(plain[kind])} for kind in ("gone", "here"))
    return Opened(name, gone, here, as_bytes(plain["signature"]))


def pairs_of(message: Any) -> list[tuple[str, Any]]:
    """The parts of a message by site, or a refusal."""
    if not isinstance(message, dict):
        raise Refused("the message is not one of parts by site")
    return list(message.items())


def names_of(message: Any) -> list[str]:
    """The sites that a message has parts of."""
    return [name for name, _ in pairs_of(message)]


def envelope(content: Any, is_answer: bool = False) -> tuple[int, int, Tree]:
    """(stage, attempt, message) of a content."""
    names = {"stage", "message"} if is_answer else {"stage", "attempt", "message"}
    if not isinstance(content, dict) or set(content) != names:
        raise Refused("the message has another form than this version's; use the same version of tacit")
    numbers = {"stage": content["stage"], "attempt": content.get("attempt", np.int64(0))}
    for name, number in numbers.items():
        kind = np.int32 if name == "stage" else np.int64
        if getattr(number, "dtype", None) != kind or np.shape(number) != () or number < 0:
            raise Refused(f"the {name} of the message is no number")
    if numbers["stage"] >= len(STAGES):
        raise Refused(f"stage {int(numbers['stage'])} is not one of a secure sum")
    return int(numbers["stage"]), int(numbers["attempt"]), content["message"]


def leaves_of(tree: Tree) -> dict[str, np.ndarray]:
    """A tree's arrays by number, which messages can carry."""
    return {f"{place:04d}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}
