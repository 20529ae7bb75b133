"""Progress of a long command, on standard error: drawn on a terminal, a line per stage elsewhere.

It shows public settings and released values only.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

MOST_BARS = 12  # sites with a bar each; for more sites, the least, the median and the most
WIDTH = 24  # of a bar, in columns
PHASES = {
    "ranges": "Ranges",
    "scaling": "Means and variances",
    "inference": "Inference",
    "residual": "Spread around the mean",
    "refinement": "Inference at the learned spread",
    "evaluation": "Evaluation",
}
Task = TypeVar("Task")
Move = tuple[int, int, float]  # done, total, time


def tell(line: str) -> None:
    """Print a line on standard error if it is open: a closed pipe must not cost a result that was paid for."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


class Watch:
    """The progress of a command, drawn by rich: current activity, share done, times, and ε spent of budgets.

    is_shown: whether it is drawn. tell: gets a line when a stage begins, if nothing is drawn. budgets: ε by name;
    spent: ε charged so far, by name.
    """

    def __init__(self, is_shown: bool = False, tell: Callable[[str], None] = lambda line: None) -> None:
        self.is_shown, self._tell = is_shown, tell
        self.spinner = Spinner("dots")
        self.budgets: Mapping[str, float] = {}
        self.spent: Mapping[str, float] = {}
        self._begun = time.monotonic()
        self._moves: tuple[()] | tuple[Move, Move] = ()  # the first timed move, and the last one
        self._words, self._things = "Starting", ""

    def say(self, words: str, things: str = "") -> None:
        """Set the current activity. things: the unit that `move` counts."""
        self._words, self._things, self._moves = words, things, ()
        self._tell(f"{_clock(time.monotonic() - self._begun)} {self._words}")

    def move(self, done: int, total: int, words: str | None = None) -> None:
        """Set how many things are done, of how many. words: replaces the activity."""
        self._words = self._words if words is None else words
        now = (done, total, time.monotonic())
        first, last = self._moves or (now, now)
        if self._moves and (done, total) == last[:2]:  # repeated
            return
        if first[0] == 0 or done < last[0] or total != last[1]:  # the first thing compiles: timing starts after it
            first = now
        self._moves = (first, now)

    def track(self, jobs: Sequence[Task]) -> Iterable[Task]:
        """Yield the jobs one by one, moving on when the next is requested."""
        for done, job in enumerate(jobs):
            self.move(done, len(jobs))
            yield job
        self.move(len(jobs), len(jobs))

    def step(self, phase: str, done: int, total: int, spent: Mapping[str, float]) -> None:
        """An observer of `tacit.study.federate`."""
        self.spent = spent
        if self._words != PHASES[phase]:
            self.say(PHASES[phase], "rounds")
        self.move(done, total)

    def left(self, now: float) -> float | None:
        """Estimated seconds left, from the pace after the first thing; None before the second."""
        if not self._moves:
            return None
        (before, _, start), (done, total, end) = self._moves
        if done == before or done >= total:
            return None
        return max(0.0, (end - start) / (done - before) * (total - done) - (now - end))

    def __rich__(self) -> RenderableType:
        now = time.monotonic()
        elapsed = f"{_clock(now - self._begun)} elapsed"
        line = Table.grid(padding=(0, 1))
        if not self._moves:
            line.add_row(self.spinner, Text(self._words), Text(elapsed, style="dim"))
            return Group(line, *self._budgets())
        line.add_row(self.spinner, Text(self._words))
        done, total, _ = self._moves[1]
        left = self.left(now)
        words = [f"{done:,} of {total:,} {self._things}".rstrip(), elapsed]
        if left is not None:
            words.append(f"about {_clock(left)} left")
        bar = _bars()
        bar.add_row(ProgressBar(total=max(1, total), completed=done), Text(", ".join(words)))
        return Group(line, bar, *self._budgets())

    def _budgets(self) -> Iterator[RenderableType]:
        budgets, spent = self.budgets, self.spent
        if not budgets or not spent or any(map(math.isinf, budgets.values())):
            return
        shares = {name: spent.get(name, 0.0) / budget for name, budget in budgets.items()}
        if len(shares) > MOST_BARS:
            parts = (min(shares.values()), statistics.median(shares.values()), max(shares.values()))
            least, middle, most = (f"{part:.0%}" for part in parts)
            words = f"at least {least}, median {middle}, at most {most} of their budgets"
            yield Text(f"ε spent by {len(shares)} sites: {words}")
            return
        bars = _bars()
        for name, share in shares.items():
            words = Text(f"ε = {spent.get(name, 0.0):.3g} of {budgets[name]:g}")
            bars.add_row(ProgressBar(total=1.0, completed=min(1.0, share)), Text(name), words)
        yield bars


def _bars() -> Table:
    """Lines of a bar and words; the bar shrinks in a narrow terminal."""
    bars = Table.grid(padding=(0, 2))
    bars.add_column(max_width=WIDTH)
    bars.add_column(no_wrap=True)
    return bars


def _clock(seconds: float) -> str:
    """As 0:07, 12:34 or 1:02:03.

    >>> _clock(7.4), _clock(754), _clock(3723)
    ('0:07', '12:34', '1:02:03')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def watching() -> Iterator[Watch]:
    """Show progress on standard error: drawn, if that is a terminal.

    Elsewhere, on a terminal that cannot move its cursor (TERM=dumb), and for a background command (`&`), each stage is
    a line. Lines that are printed meanwhile appear above. rich leaves colours out if NO_COLOR is set.
    """
    console = Console(stderr=True)
    is_shown = console.is_terminal and not console.is_dumb_terminal and _is_in_front()
    watch = Watch(is_shown) if is_shown else Watch(tell=tell)
    live = Live(watch, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    with live if watch.is_shown else nullcontext():
        yield watch


def _is_in_front() -> bool:
    """Whether this command is in the terminal's foreground; true if the terminal cannot say."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return True
