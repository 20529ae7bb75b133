"""What a long command shows on the way, on a terminal's standard error; nothing elsewhere.

All of it is made of public settings and released values.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

MOST_BARS = 12  # sites with a bar each; of more, the least, the median and the most
PHASES = {"scaling": "Means and variances", "inference": "Inference", "evaluation": "Evaluation"}


class Watch:
    """What is happening, as something that rich can show."""

    def __init__(self) -> None:
        self.spinner = Spinner("dots")
        self.budgets: dict[str, float] = {}
        self.spent: Mapping[str, float] = {}

    def say(self, words: str) -> None:
        """What is being done now."""
        self.spinner.update(text=Text(words))

    def step(self, phase: str, done: int, total: int, spent: Mapping[str, float]) -> None:
        """An observer of `tacit.study.federate`."""
        self.spent = spent
        self.say(f"{PHASES[phase]}: round {done} of {total}")

    def __rich__(self) -> RenderableType:
        if not self.spent or any(map(math.isinf, self.budgets.values())):
            return self.spinner
        shares = {name: self.spent[name] / budget for name, budget in self.budgets.items()}
        if len(shares) > MOST_BARS:
            parts = (min(shares.values()), statistics.median(shares.values()), max(shares.values()))
            least, middle, most = (f"{part:.0%}" for part in parts)
            words = (
                f"ε spent by {len(shares)} sites: at least {least}, median {middle}, at most {most} of their budgets"
            )
            return Group(self.spinner, Text(words))
        bars = Table.grid(padding=(0, 2))
        for name, share in shares.items():
            words = Text(f"ε = {self.spent[name]:.3g} of {self.budgets[name]:g}")
            bars.add_row(Text(name), ProgressBar(total=1.0, completed=min(1.0, share), width=30), words)
        return Group(self.spinner, bars)


@contextmanager
def watching() -> Iterator[Watch]:
    """Shows on a terminal's standard error what is happening; nothing elsewhere."""
    console, watch = Console(stderr=True), Watch()
    with Live(watch, console=console, transient=True) if console.is_terminal else nullcontext():
        yield watch
