"""Transport to all sites as one respondent, which answers with secure sums."""

from tacit.engines.coordinator import Answer, Away
from tacit.federated.messages import Broadcast
from tacit.federated.secure_aggregator import SecureAggregator
from tacit.federated.secure_terms import TooFew


class SecureTransport:
    """A `Transport` that asks an aggregator of secure sums, which asks the sites."""

    def __init__(self, aggregator: SecureAggregator) -> None:
        self.aggregator = aggregator
        self._answers: list[Answer] = []

    def send(self, site: int, broadcast: Broadcast) -> None:
        """Ask all sites, stage by stage, and keep the answer."""
        del site
        try:
            self._answers.append(self.aggregator(broadcast))
        except TooFew as error:
            self._answers.append(Away(str(error)))

    def receive(self) -> tuple[int, Answer]:
        """The answer that was kept."""
        return 0, self._answers.pop(0)
