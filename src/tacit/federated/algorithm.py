"""The protocol of federated methods: five pure functions, and nothing about how messages move.

| function           | where       | what                                                                             |
|--------------------|-------------|----------------------------------------------------------------------------------|
| `coordinator_init` | coordinator | the state before the first round, for a number of sites                          |
| `broadcast`        | coordinator | aggregate what has arrived; the content that every site is sent next             |
| `site_init`        | site        | the state of a site that was never asked                                         |
| `site_step`        | site        | the state after an update, released; the only function that reads records        |
| `coordinator_step` | coordinator | take in the answers that have arrived, from one site or from many                |

Whether sites are asked all at once, in turn or whenever they are ready is up to a schedule, not to the method.

An algorithm may also have `addressed(content, site)`, the part of a broadcast that one site is sent (`content_for`).
Without it every site is sent all.

A site's updates need not all be of one kind (some release more than others), and the price depends on the kind.
`kind(count)` is the kind of a site's update number `count`: public, and static where a step is compiled.
"""

from typing import Any, Protocol

from jax import Array

from tacit.basics.trees import Tree
from tacit.privacy.mechanism import Access
from tacit.privacy.released import Released


class Algorithm(Protocol):
    """A federated method. States and contents are pytrees of arrays; `messages` can encode contents."""

    def coordinator_init(self, sites: int) -> Tree:
        """The coordinator's state before the first round."""
        ...

    def broadcast(self, state: Tree) -> tuple[Tree, Tree]:
        """The state with everything that has arrived aggregated, and the content of the next broadcast."""
        ...

    def site_init(self) -> Tree:
        """A site's state before its first update."""
        ...

    def kind(self, count: int) -> int:
        """Which of its programs a site runs at its update number `count`, counted from 0."""
        ...

    def site_step(self, key: Array, state: Tree, content: Tree, access: Access, kind: int) -> Released[Tree]:
        """The site's state after an update, priced."""
        ...

    def answer(self, state: Tree) -> Tree:
        """The part of a site's state that it sends."""
        ...

    def coordinator_step(self, state: Tree, sites: Array, answers: Tree) -> Tree:
        """The state after answers (stacked, with the sites in front) of some sites (their numbers) arrived."""
        ...


def content_for(algorithm: Algorithm, content: Tree, site: Any) -> Tree:
    """What one site is sent of a broadcast's content. site: its number, which may be an array."""
    own = getattr(algorithm, "addressed", None)
    return content if own is None else own(content, site)
