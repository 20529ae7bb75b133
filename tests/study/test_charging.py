"""Fits charge a ledger, release by release, each before its records are read; what is refused leaves no trace."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tacit
from tacit.estimators.estimators import PrivateLinearRegression, PrivateLogisticRegression
from tacit.federated import responder
from tacit.federated.responder import SEEDED
from tacit.privacy import accounting
from tacit.privacy.events import Composed, Gaussian
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.study import front
from tacit.study.charging import beside
from tacit.study.statements import ADAPTIVE, UNCOUNTED

RECORDS = 200
X = np.linspace(-1, 1, RECORDS)[:, None]
DATA = (X, (X[:, 0] > 0.1) * 1.0)
OPTIONS: dict[str, Any] = {"bounds": (-1, 1), "steps": 2, "insecure_seed": 1}


def fit(epsilon: float = 1.0, delta: float = 1e-5, model: str = "logistic", **options: Any) -> tacit.Posterior:
    return front.fit(model, DATA, epsilon, delta, **OPTIONS | options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ward.ledger.sqlite"


def assert_refused(words: str, kind: type[ValueError] = ValueError, **options: Any) -> None:
    with pytest.raises(kind, match=words) as error:
        fit(**options)
    assert not re.search(r"[.!?]\s\S", str(error.value))


def watch(monkeypatch: pytest.MonkeyPatch, see: Any) -> None:
    """Call `see` whenever a site's update is about to read records, not when it is priced by their shapes."""
    original = responder._step

    def step(algorithm: Any, kind: int, key: Any, state: Any, content: Any, access: Any) -> Any:
        if not isinstance(jax.tree.leaves(access.records)[0], jax.core.Tracer):
            see()
        return original(algorithm, kind, key, state, content, access)

    monkeypatch.setattr(responder, "_step", step)


def test_each_release_is_in_the_ledger_before_it_reads_a_record_and_all_together_are_the_price(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    watch(monkeypatch, lambda: seen.append(len(Ledger.open(path).entries())))
    posterior = fit(ledger=path, budget_epsilon=3.0, insecure_seed=None)
    found = Ledger.open(path)
    assert (found.epsilon, found.delta, found.data_set, found.unit) == (3.0, 1e-5, "ward", "record")
    entries = found.entries()
    assert seen == list(range(1, len(entries) + 1))
    assert [entry.study.rpartition("/")[2] for entry in entries] == ["scaling", "inference", "inference"]
    whole = Composed(tuple(entry.event for entry in entries))
    assert accounting.epsilon(whole, 1e-5) == pytest.approx(posterior.epsilon, rel=1e-9)
    assert all(re.fullmatch(r"fit-[0-9a-f]{12}-[0-9a-f]{64}/\w+", entry.study) for entry in entries)
    assert {entry.note for entry in entries} == {""}
    counted = posterior.statement["ledger"]
    assert (counted["charge"], counted["spent"], counted["epsilon"]) == (entries[-1].study, entries[-1].spent, 3.0)


def test_a_fit_that_the_ledger_cannot_pay_to_its_end_is_refused_before_its_first_release(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fit(ledger=path, budget_epsilon=1.5, budget_delta=1e-4)
    before = Ledger.open(path).entries()
    seen: list[None] = []
    watch(monkeypatch, lambda: seen.append(None))
    assert Ledger.open(path).remaining_after(before[0].event) > 0  # its first release alone would be paid for
    assert_refused(
        "of its budget ε = 1.5 .* is spent and .* is left; this fit costs", BudgetExceeded, ledger=path, epsilon=1.4
    )
    assert seen == []
    assert Ledger.open(path).entries() == before
    assert first.epsilon <= 1


def test_fits_of_one_ledger_add_up(path: Path) -> None:
    first = fit(ledger=path, budget_epsilon=1.5, budget_delta=1e-4)
    second = fit(ledger=Ledger.open(path))
    assert first.epsilon == second.epsilon <= 1
    whole = [entry.event for entry in Ledger.open(path).entries()]
    assert len(whole) == 6
    total = accounting.epsilon(tacit.events.Composed(tuple(whole)), 1e-4)
    assert second.statement["ledger"]["spent"] == pytest.approx(total, rel=1e-4)
    assert f"ε = {total:.3f}"[:8] in second.statement_text
    assert "all together are at most the budget, ε = 1.5 at δ = 0.0001" in second.statement_text


def test_seeded_fits_are_marked_in_the_ledger_and_have_names_that_differ(path: Path) -> None:
    for _ in range(2):
        fit(ledger=path, budget_epsilon=2.0)
    entries = Ledger.open(path).entries()
    assert {entry.note for entry in entries} == {SEEDED}
    assert len({entry.study.partition("/")[0] for entry in entries}) == 2


def test_two_fits_at_once_cannot_overdraw_a_ledger_and_the_later_one_says_what_it_spent(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are admitted; the other one is charged between this one's first and second release."""
    Ledger.create(path, data_set="ward", epsilon=1.2, delta=1e-5, accountant="gaussian")
    done: list[Any] = []

    def other() -> None:
        if not done:
            done.append(None)
            done.append(fit(ledger=path))

    watch(monkeypatch, other)
    assert_refused(
        r"the fit ended before its last release \(.*\), and ε = 0\.\d+ was spent on it, by ward", ledger=path
    )
    assert done[1].epsilon <= 1
    assert Ledger.open(path).spent() <= 1.2


def test_without_a_ledger_the_statement_says_so_and_without_privacy_none_is_made(path: Path) -> None:
    posterior = fit()
    assert UNCOUNTED in posterior.statement["notes"]
    assert posterior.statement["ledger"] is None
    exact = fit(epsilon=float("inf"), delta=0.5)
    assert UNCOUNTED in exact.statement["notes"]
    for more in ({"budget_epsilon": 1.0}, {}):
        assert_refused("epsilon=inf with a ledger", epsilon=float("inf"), delta=0.5, ledger=path, **more)
    assert not path.exists()


def test_what_does_not_go_with_a_ledger_is_refused_and_charges_nothing(path: Path, tmp_path: Path) -> None:
    assert_refused("does not exist; give budget_epsilon to make it", ledger=path)
    assert_refused("expected ledger, a path, with them", budget_epsilon=1.0)
    assert_refused("budget_epsilon=0", ledger=path, budget_epsilon=0.0)
    assert_refused("budget_delta=1", ledger=path, budget_epsilon=1.0, budget_delta=1.0)
    assert_refused("delta=0.01 for 200 records", ledger=path, budget_epsilon=1.0, budget_delta=0.01)
    assert_refused("less than this fit costs", BudgetExceeded, ledger=path, budget_epsilon=0.5)
    assert list(tmp_path.iterdir()) == []
    made = Ledger.create(path, data_set="ward", epsilon=9.0, delta=1e-5, accountant="gaussian")
    assert_refused("budget_epsilon=5.0, but 9 in", ledger=path, budget_epsilon=5.0)
    assert_refused("budget_delta=0.001, but 1e-05 in", ledger=path, budget_delta=1e-3)
    people = np.arange(RECORDS) // 2
    for other in ({"groups": people, "most_records": 2}, {"adjacency": "replace-one"}):
        assert_refused("is for each record under add-remove, and this fit for each", ledger=path, **other)
    assert_refused("a ledger whose rule is 'renyi' from the start", ledger=path, method="sgld", sampling_rate=0.5)
    assert made.entries() == ()
    fit(ledger=path, budget_epsilon=9.0, budget_delta=1e-5)  # its own budget, said again
    assert len(made.entries()) == 3


def test_a_posterior_that_is_not_finite_is_in_the_ledger_and_the_error_says_what_it_cost(path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"not finite, and ε = 0\.99\d* was spent on it, which the ledger ward"
    ) as error:
        fit(ledger=path, budget_epsilon="first", method="vi", learning_rate=1e30, steps=5)
    entry = Ledger.open(path).entries()[-1]
    assert entry.study in str(error.value)
    assert 0.99 < entry.spent < 1.2


def test_whatever_fails_after_a_charge_is_paid_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "price", lambda *_: Gaussian(30.0))
    with pytest.raises(RuntimeError, match="the receipt is not the price"):
        fit(ledger=path, budget_epsilon=1.0)
    assert len(Ledger.open(path).entries()) == 1


def test_a_ledger_made_for_a_first_fit_has_room_for_it_by_its_own_rule(tmp_path: Path) -> None:
    for rule, rate in (("gaussian", 1.0), ("renyi", 0.5)):
        path = tmp_path / rule
        posterior = fit(ledger=path, budget_epsilon="first", method="sgld", steps=4, sampling_rate=rate)
        found = Ledger.open(path)
        assert found.accountant.startswith(rule)
        assert posterior.epsilon <= found.spent() <= found.epsilon < 1.2
        assert "covered" in found.rule_words
        assert ADAPTIVE.format(words=found.rule_words) in posterior.statement["notes"]


@pytest.mark.parametrize("budget", ["first", 1.5])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_every_fit_makes_a_ledger_whatever_its_adjacency_and_samples(
    path: Path, rate: float, adjacency: str, budget: Any
) -> None:
    """Neither proved rule prices samples under replace-one: their ledger says what is not covered."""
    more: dict[str, Any] = {"method": "sgld", "steps": 4, "sampling_rate": rate, "adjacency": adjacency}
    fit(ledger=path, budget_epsilon=budget, **more)
    found = Ledger.open(path)
    assert 0 < found.spent() <= found.epsilon
    is_covered = rate == 1 or adjacency == "add-remove"
    assert found.rule_words.startswith("covered, by" if is_covered else "not covered by the rule 'pld'")


def test_a_delta_of_one_in_the_number_of_units_is_refused_or_said(path: Path) -> None:
    assert_refused("delta=0.005 for 200 records", delta=1 / RECORDS)
    people = {"groups": np.arange(RECORDS) // 2, "most_records": 2}
    assert_refused("delta=0.01 for 100 persons", delta=0.01, **people)
    assert "allow_large_delta" not in fit(delta=0.009, **people).statement_text
    allowed = fit(delta=0.01, allow_large_delta=True, **people)
    assert any(
        note.startswith("δ is 1 / 100 or more, for 100 slots for persons") for note in allowed.statement["notes"]
    )
    fit(epsilon=float("inf"), delta=0.5)


def test_estimators_charge_their_ledger_and_end_where_it_does(path: Path) -> None:
    common: dict[str, Any] = {"bounds": (-1, 1), "steps": 2, "insecure_seed": 1, "ledger": path}
    PrivateLogisticRegression(budget_epsilon=1.2, classes=[0, 1], **common).fit(*DATA)
    assert len(Ledger.open(path).entries()) == 3
    with pytest.raises(BudgetExceeded):
        PrivateLinearRegression(target_bounds=(-1, 1), **common).fit(X, X[:, 0])
    assert len(Ledger.open(path).entries()) == 3
    large = PrivateLogisticRegression(delta=0.1, classes=[0, 1], allow_large_delta=True, bounds=(-1, 1), steps=2)
    assert any("allow_large_delta" in note for note in large.fit(*DATA).statement_["notes"])


def test_a_link_has_the_ledger_of_the_file_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").symlink_to(tmp_path / "a.csv")
    assert beside(tmp_path / "b.csv") == beside(tmp_path / "a.csv") == (tmp_path / "a.csv.ledger.sqlite").resolve()
