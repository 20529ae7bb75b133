"""Secure sums: what one site and the coordinator do and send for one sum, and how that grows with the sites.

python -m benchmarks.secure_sum [--size 1000] [--sites 10 50 200]
"""

import argparse
import secrets
import time
from dataclasses import fields
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.table import Table

from tacit.federated import secure_sum as sums
from tacit.federated.secure_sum import SumSetup, SumSite


class Timed:
    """Seconds of work, of a site on average or of the coordinator."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Any, *arguments: Any) -> Any:
        start = time.perf_counter()
        found = function(*arguments)
        self.seconds += time.perf_counter() - start
        return found


def weight(message: Any) -> int:
    """Bytes of a message."""
    if isinstance(message, dict):
        return sum(len(name.encode()) + weight(part) for name, part in message.items())
    if isinstance(message, list):
        return sum(map(weight, message))
    if isinstance(message, str | bytes):
        return len(message.encode() if isinstance(message, str) else message)
    return sum(weight(getattr(message, field.name)) for field in fields(message))


def measured(count: int, size: int) -> dict[str, float]:
    """One sum of `count` sites, of which a tenth leave before they send masked integers."""
    keys = {f"site-{j}": secrets.token_bytes(32) for j in range(count)}
    roster = {n: Ed25519PrivateKey.from_private_bytes(k).public_key().public_bytes_raw() for n, k in keys.items()}
    setup = SumSetup(secrets.token_hex(8), roster, 2 * count // 3 + 1, size)
    sites = {name: SumSite(setup, name, key, secrets.token_bytes(32)) for name, key in keys.items()}
    vectors = {name: np.random.default_rng(j).integers(-(2**40), 2**40, size) for j, name in enumerate(keys)}
    own, centre, sent, heard = Timed(), Timed(), 0, 0

    def step(name: str, function: Any, *arguments: Any) -> Any:
        nonlocal sent
        sites[name], answer = own(function, sites[name], *arguments)
        sent += weight(answer)
        return answer

    advertised = [step(name, sums.advertise) for name in sites]
    known = centre(sums.checked, setup, advertised)
    heard += count * weight(advertised)
    sealed = [one for name in sites for one in step(name, sums.share, advertised)]
    boxes: dict[str, list[Any]] = {name: [] for name in sites}
    for one in sealed:
        boxes[one.receiver].append(one)
    heard += weight(sealed)
    staying = list(sites)[count // 10 :]
    masked = [step(name, sums.mask, boxes[name], vectors[name]) for name in staying]
    consents = [step(name, sums.agree, staying) for name in staying]
    heard += len(staying) * (weight(list(staying)) + weight(consents))
    opened = [step(name, sums.reveal, consents) for name in staying]
    total = centre(sums.total, setup, known, list(sites), masked, opened)
    np.testing.assert_array_equal(total, sum(vectors[name] for name in staying))
    return {"site": own.seconds / count, "coordinator": centre.seconds, "sent": sent / count, "heard": heard / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--size", type=int, default=1000, help="integers of each site")
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 50, 200])
    given = parser.parse_args()
    table = Table(title=f"One secure sum of {given.size:,} integers; a tenth of the sites leave on the way")
    heads = ("sites", "site, ms", "growth", "centre, ms", "growth", "sends, kB", "growth", "hears, kB")
    for head in heads:
        table.add_column(head, justify="right")
    first: dict[str, float] = {}
    for count in given.sites:
        found = measured(count, given.size)
        first = first or found
        cells = [str(count)]
        for name, scale in (("site", 1000), ("coordinator", 1000), ("sent", 1e-3)):
            cells += [f"{found[name] * scale:.1f}", f"{found[name] / first[name]:.1f}×"]
        table.add_row(*cells, f"{found['heard'] / 1000:.1f}")
    Console().print(table)
    words = "Milliseconds of work and kilobytes of one site; centre: of the coordinator."
    Console().print(f"{words} The integers alone are {8 * given.size / 1000:.1f} kB.")


if __name__ == "__main__":
    main()
