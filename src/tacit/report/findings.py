"""The input of a report: two files that a fit or a study wrote, reduced to the entries listed here.

A report shows public settings, prices, released values and scores on public records. `SHOWN` says for every entry of
`result.json` which of these it is; an entry that it does not list cannot reach a report. `posterior.json` holds only
released numbers, the statement and the plan.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.links import LINKS
from tacit.posterior.posterior import Posterior

RESULT, POSTERIOR = "result.json", "posterior.json"
SETTING = "a public setting"
TREATED = "treated as public, as the statement says"
PRICE = "a price or a charge, which depends on settings and on who answered"
OUTSIDE = "of another fit, on public records: not covered by the promise"
ANSWERED = "who answered, and what a site said why not"
PUBLIC = "a score on public records"
RELEASED = "released, and paid for"
# Entries of the result. A dict lists the entries below a name, or those of each row of a list; a name without a dict
# includes everything below it.
_SCORES = dict.fromkeys(("accuracy", "log_likelihood", "calibration_error", "root_mean_square_error"), PUBLIC)
SHOWN: dict[str, Any] = {
    "version": SETTING,
    "environment": SETTING,
    "name": SETTING,
    "model": SETTING,
    "method": SETTING,
    "target": SETTING,
    "data": SETTING,
    "records": TREATED,
    "persons": TREATED,
    "slots": SETTING,
    "epsilon": PRICE,
    "epsilon_asked": SETTING,
    "delta": SETTING,
    "adjacency": SETTING,
    "randomness": SETTING,
    "level": SETTING,
    "communications": ANSWERED,
    "site_count": SETTING,
    "study": SETTING,
    "sites": {
        "name": SETTING,
        "epsilon": SETTING,
        "delta": SETTING,
        "budget": SETTING,
        "slots": TREATED,
        "spent": PRICE,
        "ledger_spent": PRICE,
        "is_present": ANSWERED,
        "updates": ANSWERED,
        "refused": ANSWERED,
        "dropped": ANSWERED,
    },
    "tolerance": SETTING,
    "scores": {"records": PUBLIC, **_SCORES, "calibration": PUBLIC},
    "released": RELEASED,
    "history": {"round": SETTING, "communications": ANSWERED, "spent": PRICE, "updates": ANSWERED, **_SCORES},
    "comparison": dict.fromkeys(("name", "epsilon", *_SCORES), OUTSIDE),
}


@dataclass(frozen=True)
class Findings:
    """The output of a fit or a study. result: the entries in `SHOWN` alone; hashes: of the files, as hexadecimal."""

    result: dict[str, Any]
    posterior: Posterior
    hashes: dict[str, str]

    @property
    def is_study(self) -> bool:
        """Whether there were sites."""
        return "sites" in self.result

    @property
    def level(self) -> float:
        """The level of intervals."""
        return self.result["level"]

    @property
    def statement(self) -> dict[str, Any]:
        """The statement of the fit, or of the site with the weakest guarantee; a study's holds those of all sites."""
        return self.posterior.statement

    @property
    def statements(self) -> dict[str, dict[str, Any]]:
        """The statement of each site by its name; a fit's own has the name ""."""
        return statements_of(self.statement)

    @property
    def is_private(self) -> bool:
        """Whether every site has a guarantee."""
        return all(one["private"] for one in self.statements.values())

    @property
    def trusts_coordinator(self) -> bool:
        """Whether a trusted coordinator adds the noise and keeps the only ledger."""
        plan = self.posterior.plan
        return plan.get("unit") == "site" and plan.get("noise") != "per-site" and not plan.get("secure_sum")

    def attacks(self) -> dict[float, float]:
        """For each false-positive rate, the highest true-positive rate of an attack on a unit of any site."""
        return _largest((row["at_false_positive_rate"], row["at_most"]) for row in self._rows("true_positive_rates"))

    def promises(self) -> dict[float, float]:
        """For each δ at which all sites have an ε, the largest ε."""
        points = [(row["delta"], row["epsilon"]) for row in self._rows("epsilons") if row["epsilon"] is not None]
        counts = Counter(delta for delta, _ in points)
        return _largest((delta, epsilon) for delta, epsilon in points if counts[delta] == len(self.statements))

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        return (row for one in self.statements.values() for row in one.get(name, ()))


def _largest(points: Iterable[tuple[float, float]]) -> dict[float, float]:
    found: dict[float, float] = {}
    for place, value in points:
        found[place] = max(value, found.get(place, value))
    return dict(sorted(found.items()))


def statements_of(statement: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The statement of each site by its name; the only one has the name "".

    >>> statements_of({"epsilon": 1.0}), statements_of({"epsilon": 1.0, "sites": {"north": {"epsilon": 1.0}}})
    ({'': {'epsilon': 1.0}}, {'north': {'epsilon': 1.0}})
    """
    return statement.get("sites") or {"": dict(statement)}


def read(folder: Path) -> Findings:
    """The findings in a folder of `tacit fit`, `simulate`, `serve` or `demo`."""
    expected = "expected the folder of a finished 'tacit fit', 'simulate', 'serve' or 'demo'"
    try:
        plain = json.loads((folder / RESULT).read_bytes())
        if not isinstance(plain, dict) or "level" not in plain or "version" not in plain:
            raise ValueError
    except OSError:
        raise ValueError(f"{folder} has no {RESULT}; {expected}") from None
    except ValueError:
        raise ValueError(f"{folder / RESULT} is not from a fit or a study; {expected}") from None
    return of(plain, folder)


def of(result: Mapping[str, Any], folder: Path) -> Findings:
    """The findings of a result whose posterior is in a folder."""
    posterior = Posterior.load(folder / POSTERIOR)
    mark = hashlib.sha256((folder / POSTERIOR).read_bytes()).hexdigest()
    return Findings(shown(result), posterior, {POSTERIOR: mark})


def shown(found: Mapping[str, Any], listed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The entries of a result that `SHOWN` lists.

    >>> shown({"name": "heart", "mean_age": 54.2, "sites": [{"name": "north", "records": 303}]})
    {'name': 'heart', 'sites': [{'name': 'north'}]}
    """
    kept: dict[str, Any] = {}
    for name, entry in (SHOWN if listed is None else listed).items():
        if name not in found:
            continue
        value = found[name]
        if isinstance(entry, dict) and isinstance(value, list):
            value = [shown(row, entry) for row in value if isinstance(row, dict)]
        elif isinstance(entry, dict) and value is not None:
            value = shown(value, entry)
        kept[name] = value
    return kept


def dropped(result: Mapping[str, Any]) -> str:
    """How many sites dropped out of secure sums, in a sentence."""
    gone = {row["name"]: row["dropped"] for row in result["sites"] if row.get("dropped")}
    if not gone:
        return "No site dropped out of a sum."
    names = ", ".join(f"{name} of {count}" for name, count in list(gone.items())[:10])
    more = f" and {len(gone) - 10} more" if len(gone) > 10 else ""
    count = f"{len(gone)} site{'s' * (len(gone) != 1)}"
    return f"{count} dropped out of some sums: {names}{more}."


def title(name: str, model: str, target: str | None, sites: int) -> str:
    """The title of a study."""
    of = f" of {target}" if target else ""
    what = f"a {LINKS[model].words}" if model in LINKS else f"the model {model}"  # or one of the user's own
    return f"{name}: {what}{of} at {sites} site{'s' * (sites != 1)}"
