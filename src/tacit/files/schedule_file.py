"""Schedules: CSV files of levels."""

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.privacy.events import Event, Gaussian, PoissonSampled, Repeated

if TYPE_CHECKING:  # they load JAX and pandas
    pass

SCHEDULE_COLUMNS = ("noise_multiplier", "sampling_rate", "steps")
MOST_LEVELS = 32  # distinct ones: heterogeneous accounting stays cheap


def read_schedule(path: Path) -> list[Event]:
    """The levels of a CSV file with the columns noise_multiplier, sampling_rate and steps, in order.

    A ValueError names the file, the line and what is expected.
    """
    expected = f"a CSV file with the columns {', '.join(SCHEDULE_COLUMNS)}"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not readable text"
        raise ValueError(f"schedule={path}: {reason}; expected {expected}") from None
    if not rows:
        raise ValueError(f"schedule={path} has no levels; expected {expected}")
    levels: list[Event] = []
    for line, row in rows:
        missing = [name for name in SCHEDULE_COLUMNS if not (row.get(name) or "").strip()]
        if missing:
            raise ValueError(f"schedule={path}, line {line}: no value for {', '.join(missing)}; expected {expected}")
        try:
            noise, rate, steps = (float(row[name]) for name in SCHEDULE_COLUMNS)
        except ValueError:
            values = ", ".join(repr(row[name]) for name in SCHEDULE_COLUMNS)
            raise ValueError(f"schedule={path}, line {line}: {values}; expected three numbers") from None
        try:
            mechanism: Event = Gaussian(noise)
            if rate != 1:
                mechanism = PoissonSampled(rate, mechanism)
            count = int(steps) if math.isfinite(steps) and steps == int(steps) else steps
            levels.append(Repeated(mechanism, count))  # type: ignore[arg-type]  # a fraction is refused there
        except ValueError as error:
            raise ValueError(f"schedule={path}, line {line}: {error}") from None
    distinct = len({level.event for level in levels if isinstance(level, Repeated)})
    if distinct > MOST_LEVELS:
        raise ValueError(f"schedule={path} has {distinct} different levels; expected at most {MOST_LEVELS}")
    return levels
