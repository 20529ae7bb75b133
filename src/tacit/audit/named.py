"""Subjects of audits, by name."""

import math
from pathlib import Path
from typing import Any

from tacit.audit.studies import of_fit, of_row, of_study
from tacit.audit.subjects import ROW, Subject, of_mechanism
from tacit.privacy import accounting
from tacit.privacy.mechanism import SubsampledGaussian
from tacit.study.plan import Plan, VISettings

# Takes a minute or two on two cores; for a row, with a hundred records and a few rounds.
RUNS = {"fit": 100_000, "vi": 20_000, "sites": 20_000, "mechanism": 200_000, ROW: 10_000}
VI_GIVEN = {"steps": 100, "sampling_rate": 0.1, "learning_rate": 0.02}
ROUNDS = 5  # of a study that is audited by name


def named(
    what: str,
    epsilon: float,
    delta: float,
    canary: Any,
    steps: int | None = None,
    sampling_rate: float | None = None,
    *,
    site: str | None = None,
    row: int | None = None,
    seed: int = 0,
) -> tuple[Subject, int]:
    """The subject that the command line calls fit, vi, sites, mechanism or by a study file; and its usual runs."""
    given = {"steps": steps, "sampling_rate": sampling_rate}
    if what not in ("vi", "mechanism") and any(setting is not None for setting in given.values()):
        raise ValueError("steps and sampling_rate are settings of vi and mechanism; leave them out")
    if canary != ROW and (site, row) != (None, None):
        raise ValueError(f"site and row are settings of canary={ROW!r}; leave them out")
    if canary == ROW:
        if not what.endswith(".toml"):
            raise ValueError(f"canary={ROW!r} with {what}; expected a study file that ends in .toml and is read")
        return of_row(Path(what), site, row, seed=seed), RUNS[ROW]
    if what == "fit":
        return of_fit(epsilon, delta, canary=canary), RUNS[what]
    if what == "vi":
        vi = VISettings(**VI_GIVEN | {name: value for name, value in given.items() if value is not None})
        return of_fit(epsilon, delta, canary=canary, method="vi", vi=vi), RUNS[what]
    if what == "sites":
        return of_study(Plan("logistic", rounds=ROUNDS), (epsilon, delta), canary=canary), RUNS[what]
    if what == "mechanism":
        if canary != "worst":
            raise ValueError(f"canary={canary!r}; a mechanism alone has no records, expected worst")
        rate, count = 1.0 if sampling_rate is None else sampling_rate, 1 if steps is None else steps
        noise = accounting.calibrate(epsilon, delta, sampling_rate=rate, steps=count).noise_multiplier
        return of_mechanism(SubsampledGaussian(1.0, noise, rate), delta, count), RUNS[what]
    if not what.endswith(".toml"):
        raise ValueError(f"what={what!r}; expected fit, vi, sites, mechanism, or a study file that ends in .toml")
    from tacit.files.study_file import read_study

    found = read_study(Path(what))
    budgets = found.budgets()
    if not all(math.isfinite(epsilon) for epsilon, _ in budgets):
        raise ValueError(
            f"{what} has an infinite epsilon; a study without privacy claims nothing that could be audited"
        )
    # Every site gets the largest of the budgets, because that claim is the easiest to test.
    return of_study(found.plan, max(budgets), canary=canary), RUNS["sites"]
