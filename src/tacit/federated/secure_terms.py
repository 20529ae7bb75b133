"""Settings of secure sums on which sites and the coordinator must agree."""

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.basics.trees import Tree
from tacit.federated import secure_sum
from tacit.federated.algorithm import Algorithm
from tacit.federated.secure_sum import SumSetup
from tacit.privacy.mechanism import Access
from tacit.privacy.randomness import insecure_key
from tacit.privacy.shared import Layout, layout

STAGES = ("advertise", "share", "mask", "agree", "open")
MASK = STAGES.index("mask")
EVERYBODY = "all sites"
CHARGED = "this round, or one after it, was charged already; go on with a later round"


class TooFew(Exception):
    """Too few sites are there for a round. Nothing was charged: try it again."""


@dataclass(frozen=True)
class Tolerance:
    """How many sites must be present and honest.

    sites: all of them. absent: how many may drop out of a sum, for whatever reason. colluding: how many may share what
    they know with the coordinator.
    """

    sites: int
    absent: int
    colluding: int

    def __post_init__(self) -> None:
        if min(self.absent, self.colluding) < 0 or not self.sites > 2 * self.absent + self.colluding:
            raise ValueError(
                f"{self.sites} sites of which {self.absent} may be absent and {self.colluding} may collude; expected "
                "more sites than twice the absent ones plus the colluding ones, so that no secret can be rebuilt"
            )
        if self.sites < secure_sum.LEAST_SITES:
            raise ValueError(f"{self.sites} sites; expected at least {secure_sum.LEAST_SITES}, to hide one in a sum")

    @classmethod
    def usual(cls, sites: int, absent: int | None = None, colluding: int | None = None) -> "Tolerance":
        """A tenth of the sites may be absent, and a tenth, but at least one, may collude."""
        return cls(
            sites, sites // 10 if absent is None else absent, max(1, sites // 10) if colluding is None else colluding
        )

    @property
    def threshold(self) -> int:
        """How many sites must be in a sum."""
        return self.sites - self.absent

    @property
    def honest(self) -> int:
        """How many shares of noise are in every sum and stay secret."""
        return self.threshold - self.colluding

    @property
    def words(self) -> str:
        """The text for statements and reports."""
        return (
            f"The coordinator sees only sums over sites (secure sums), and each of {self.sites} sites adds a share of "
            f"the noise, a distributed discrete Gaussian. Trust: at least {self.sites - self.colluding} of the "
            f"{self.sites} sites are honest and draw their noise from a secure source; up to {self.colluding} may "
            f"collude with the coordinator, whatever it does, and up to {self.absent} may drop out of a sum: the noise "
            f"of {self.honest} is counted. With fewer than {self.threshold} sites nothing is opened."
            + ("" if self.colluding else " Nothing is promised against another site, which knows its own share.")
        )


def new_identity() -> bytes:
    """A fresh signing key of a site."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_identity(identity: bytes) -> bytes:
    """The public half of a signing key, by which others recognise the site."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Terms:
    """Settings of a phase's sums on which sites and the coordinator must agree.

    roster: all sites with the keys they sign with. slots: for units, over all sites. rounds: how many there are.
    """

    study: str
    algorithm: Algorithm
    tolerance: Tolerance
    roster: Mapping[str, bytes]
    slots: int
    rounds: int

    def __post_init__(self) -> None:
        if len(self.roster) != self.tolerance.sites:
            raise ValueError(f"a roster of {len(self.roster)} sites; expected {self.tolerance.sites}")
        if len(set(self.roster.values())) < len(self.roster):
            raise ValueError("two sites of the roster have one key; expected a key of its own for each")

    def sum_setup(self, round: int, attempt: int, size: int) -> SumSetup:
        return SumSetup(f"{self.study}/{round}/{attempt}", self.roster, self.tolerance.threshold, size)

    def layout(self, kind: int, access: Access) -> Layout:
        """The layout of a round of this kind, from shapes alone."""
        found = layout(
            lambda access: self.algorithm.site_step(insecure_key(0), *blank_content(self.algorithm), access, kind),
            access,
            self.slots,
        )
        found.check(self.slots, self.tolerance.sites)
        return found


def blank_content(algorithm: Algorithm) -> tuple[Tree, Tree]:
    """A site's state and a content, as they are before the first round."""
    return algorithm.site_init(), algorithm.broadcast(algorithm.coordinator_init(1))[1]
