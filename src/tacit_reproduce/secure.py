"""Secure sums: one noise, shared by ten sites of Adult, beside a noise of each site's own, at the same ε.

Ours, not a published figure. The sums are real ones: ten sites with keys, masks and ledgers, in one process.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tacit.federated.secure_terms import Tolerance
from tacit.report.style import COLOURS, panels
from tacit.study.front import federate
from tacit.study.plan import Plan
from tacit_reproduce import Result, Row, Track, mean_and_error
from tacit_reproduce.sharma import SITES, adult_tables, sites_of

EPSILONS, DELTA = (0.5, 1.0), 1e-4
WAYS: dict[str, dict[str, Any]] = {"each site's own noise": {}, "secure sums": {"secure_sum": True}}
SCORES = ("accuracy", "log_likelihood")


def scores(
    distribution: str, way: str, epsilon: float, rounds: int | None, seed: int
) -> tuple[dict[str, float], float]:
    """Scores on Adult's test set, and the most ε that a site has spent. rounds: by default the policy's."""
    sites = [replace(site, delta=DELTA) for site in sites_of(distribution, seed, epsilon)]
    plan = Plan("logistic", rounds=rounds, **WAYS[way])
    found = federate(plan, sites, test=adult_tables()[1], insecure_seed=seed)
    assert found.scores is not None
    return {name: found.scores[name] for name in SCORES}, max(row["spent"] for row in found.sites)


def sums(quick: bool, seeds: int, track: Track) -> Result:
    """Accuracy and log-likelihood by distribution, both ways."""
    rounds, distributions, epsilons = (3, "A", EPSILONS[:1]) if quick else (None, "ABCD", EPSILONS)
    rows: list[Row] = []
    for epsilon, distribution, way in track([(e, d, way) for e in epsilons for d in distributions for way in WAYS]):
        runs = [scores(distribution, way, epsilon, rounds, seed) for seed in range(seeds)]
        row: Row = {"budget": epsilon, "distribution": distribution, "method": way, "sites": SITES, "runs": seeds}
        row |= {"epsilon": max(spent for _, spent in runs), "delta": DELTA}
        for name in SCORES:
            row |= mean_and_error(name, np.array([found[name] for found, _ in runs]))
        rows.append(row)
    notes = [
        f"Adult, {SITES} sites, δ = {DELTA:g}, add-remove; ε is that of a record at its own site. Every setting is the "
        "default policy's. Seeded noise.",
        Tolerance.usual(SITES).words,
        "The split of the records is drawn anew for each seed. Sums depend on it only through their noise.",
    ]
    shown = {"budget": "ε", "distribution": "distribution", "method": "noise", "epsilon": "ε spent"}
    shown |= {"accuracy": "accuracy %", "log_likelihood": "log-lik."}
    return Result(rows, notes, shown, _draw(rows))


def _draw(rows: list[Row]) -> Any:
    words = (("accuracy", "accuracy on the test set"), ("log_likelihood", "mean test log-likelihood"))
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    wanted = [(budget, name, label) for name, label in words for budget in budgets]
    axes = panels(*((f"ε = {budget:g}", "distribution of records", label) for budget, _, label in wanted))
    for panel, (budget, name, _) in zip(axes, wanted, strict=True):
        for place, (way, colour) in enumerate(zip(WAYS, COLOURS, strict=False)):
            own = [row for row in rows if (row["budget"], row["method"]) == (budget, way)]
            at = np.arange(len(own)) + 0.1 * (2 * place - 1)
            errors = [row[f"{name}_standard_error"] or 0.0 for row in own]
            panel.errorbar(at, [row[name] for row in own], errors, fmt="o", color=colour, label=way, capsize=3)
        names = list(dict.fromkeys(row["distribution"] for row in rows))
        panel.set_xticks(range(len(names)), names)
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return axes[0]
