"""A coordinator that nobody answers any more waits, and lets no round pass by."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tacit.engines.coordinator import Deserted
from tacit.network.channel import Lost
from tacit.network.site_session import HELLO


# One after the other, two sites lose a turn before the third is missed: a site that is away stops nobody else.
@pytest.mark.parametrize(("schedule", "taken"), [("synchronous", 9), ("sequential", 7), ("asynchronous", 9)])
def test_no_round_passes_by_while_nobody_is_there(clinics: Any, schedule: str, taken: int) -> None:
    clinics.study = clinics.read(schedule=schedule)
    asked, last = 0, 6  # requests until the network is cut

    def behind(name: str) -> Callable[[bytes], Any]:
        clinics.open(name)

        def answer(data: bytes) -> Any:
            nonlocal asked
            asked += data != HELLO
            return Lost("it cannot be reached") if asked > last else clinics.sessions[name](data)

        return answer

    parts = {name: behind(name) for name in ("north", "south", "west")}
    with pytest.raises(Deserted):
        clinics.coordinate(clinics.hosted(**parts))
    last = 10**6
    found = clinics.coordinate(clinics.hosted(**parts))
    assert found.communications == taken == sum(site["updates"] for site in found.sites)
    assert sum(clinics.charged(name) for name in parts) == taken + 3  # and the scaling
    assert [site["refused"] for site in found.sites] == [None] * 3
