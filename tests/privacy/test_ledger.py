"""The ledger: charged before a record is read, by many at once, through crashes, and shown when tampered with."""

import dataclasses
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.privacy import accounting, ledger, ledger_file
from tacit.privacy.accountants import concentrated, renyi
from tacit.privacy.events import (
    Composed,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    Repeated,
    Scheduled,
    compose,
)
from tacit.privacy.filters import in_theory
from tacit.privacy.ledger import AlreadyCharged, BudgetExceeded, Ledger
from tacit.privacy.ledger_file import BrokenLedger

QUARTER = Laplace(4.0)  # ε = 0.25, at every δ
STEP = Repeated(PoissonSampled(0.01, Gaussian(2.0, coordinates=10)), 20)


def make(folder: Path, epsilon: float = 1.0, accountant: Any = "basic", **settings: Any) -> Ledger:
    path = folder / "site.ledger"
    return Ledger.create(
        path, data_set="ward 7", epsilon=epsilon, delta=1e-5, accountant=accountant, **{"timeout": 10.0, **settings}
    )


def filled(folder: Path, rounds: int = 5) -> Ledger:
    found = make(folder, epsilon=10.0)
    for i in range(rounds):
        found.charge(Laplace(4.0 + i), study="heart", round=i, note=f"note {i}")
    return found


# --- Charging ----------------------------------------------------------------------------------------------------


def test_a_new_ledger_has_spent_nothing_and_opens_again_as_it_was_made(tmp_path: Path) -> None:
    made = make(tmp_path, unit="person", adjacency="replace-one", accountant="rdp", timeout=60.0)
    assert (made.spent(), made.entries()) == (0.0, ())
    assert made.verify() == made.head() == made.genesis
    assert Ledger.open(made.path) == made
    assert Ledger.open(str(made.path)) == made
    assert made.path.stat().st_mode & 0o077 == 0, "others need not see what studies there are"
    assert [p.name for p in tmp_path.iterdir()] == ["site.ledger"]


def test_a_charge_is_an_entry_that_every_reader_sees(tmp_path: Path) -> None:
    made = make(tmp_path)
    entry = made.charge(QUARTER, study="heart", round=3, note="first")
    other = Ledger.open(made.path)
    assert other.entries() == (entry,)
    assert (entry.position, entry.study, entry.round, entry.note, entry.event) == (1, "heart", 3, "first", QUARTER)
    assert (entry.spent, entry.previous) == (0.25, made.genesis)
    assert other.find("heart", 3) == entry
    assert other.find("heart", 4) is other.find("lung", 3) is None
    assert other.spent() == 0.25
    assert other.head() == entry.hash
    assert [p.name for p in tmp_path.iterdir()] == ["site.ledger"], "one file to copy, and nothing beside it"


@pytest.mark.parametrize(
    ("accountant", "quarter"), [("basic", QUARTER), ("zcdp", Gaussian(9.0)), ("pld", Gaussian(9.0)), ("pld", STEP)]
)
def test_a_budget_of_four_quarters_is_met_by_four_and_no_more(tmp_path: Path, accountant: Any, quarter: Event) -> None:
    budget = accounting.epsilon(Repeated(quarter, 4), 1e-5, accountant)
    made = make(tmp_path, budget, accountant)
    for i in range(4):
        made.charge(quarter, study=f"study {i % 2}", round=i)
    assert made.spent() == pytest.approx(budget, rel=1e-12)
    made.verify()
    with pytest.raises(BudgetExceeded):
        made.charge(Laplace(1e3) if quarter == QUARTER else Gaussian(1e3), study="heart", round=9)
    assert len(made.entries()) == 4


def test_the_slack_covers_rounding_and_nothing_else(tmp_path: Path) -> None:
    parts = (0.1, 0.2, 0.4, 0.3)
    for short_by, fits in ((ledger.SLACK / 2, True), (2 * ledger.SLACK, False)):
        made = make(tmp_path, epsilon=sum(parts) * (1 - short_by))
        for i, part in enumerate(parts[:-1]):
            made.charge(Laplace(1 / part), study="heart", round=i)
        if fits:
            made.charge(Laplace(1 / parts[-1]), study="heart", round=3)
            made.verify()
        else:
            with pytest.raises(BudgetExceeded):
                made.charge(Laplace(1 / parts[-1]), study="heart", round=3)
        made.path.unlink()


def test_prices_are_those_of_the_whole_composition(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=2.0, accountant="pld")
    for i in range(5):
        made.charge(STEP, study="heart", round=i)
    made.charge(Gaussian(20.0), study="lung", round=0)
    whole = compose(*[STEP] * 5, Gaussian(20.0))
    assert made.spent() == pytest.approx(accounting.epsilon(whole, 1e-5), rel=1e-6)
    assert made.spent() < 5 * accounting.epsilon(STEP, 1e-5), "composition is tighter than sums"
    left = made.remaining_after(Gaussian(20.0))
    assert left == pytest.approx(2.0 - accounting.epsilon(compose(whole, Gaussian(20.0)), 1e-5), rel=1e-6)
    assert len(made.entries()) == 6, "asking costs nothing"
    made.charge(Gaussian(20.0), study="lung", round=1)
    assert 2.0 - made.spent() == left


def test_what_is_spent_does_not_depend_on_the_order(tmp_path: Path) -> None:
    charges = [STEP, Gaussian(9.0), Laplace(30.0), STEP, Gaussian(9)]
    totals = []
    for name, order in {"a": charges, "b": charges[::-1]}.items():
        (tmp_path / name).mkdir()
        made = make(tmp_path / name, epsilon=50.0, accountant="pld")
        for i, event in enumerate(order):
            made.charge(event, study="heart", round=i)
        totals.append(made.spent())
    assert totals[0] == totals[1]


def test_a_refusal_names_budget_spending_price_and_remedy_in_one_sentence(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=0.5)
    made.charge(Laplace(1 / 0.47), study="heart", round=0)
    before = made.path.read_bytes()
    with pytest.raises(BudgetExceeded) as error:
        made.charge(Laplace(1 / 0.06), study="heart", round=1)
    words = str(error.value)
    for part in ("epsilon=0.5", "spent 0.47", "price 0.06", "δ=1e-05", "noise_multiplier"):
        assert part in words
    assert not re.search(r"[.!?]\s", words)
    assert made.remaining_after(Laplace(1 / 0.06)) == pytest.approx(-0.03)
    assert made.path.read_bytes() == before
    made.charge(Laplace(1 / 0.02), study="heart", round=1)  # a smaller one still fits


def test_a_round_of_a_study_is_charged_once(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.charge(QUARTER, study="heart", round=0)
    for event in (QUARTER, Laplace(100.0), Laplace(0.1)):  # also if it would not fit
        with pytest.raises(
            AlreadyCharged, match="round=0 of study='heart' is charged already; answer it from the store"
        ):
            made.charge(event, study="heart", round=0)
    made.charge(QUARTER, study="heart", round=1)
    made.charge(QUARTER, study="lung", round=0)
    assert made.spent() == 0.75


def test_the_table_itself_refuses_a_second_charge_for_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path)
    made.charge(QUARTER, study="heart", round=0)
    with sqlite3.connect(made.path) as raw, pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        raw.execute("INSERT INTO entries SELECT 2, time, study, round, event, spent, note, previous, hash FROM entries")
    raw.close()
    monkeypatch.setattr(Ledger, "_read", lambda self, connection: [])  # a bug that forgets
    with pytest.raises(AlreadyCharged):
        made.charge(QUARTER, study="heart", round=0)
    monkeypatch.undo()
    assert len(made.entries()) == 1


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (NonPrivate(), "without a guarantee"),
        (compose(QUARTER, NonPrivate()), "without a guarantee"),
        (Laplace(4.0, unit="person"), "unit person; expected 'record'"),
        (PoissonSampled(0.1, Gaussian(4.0, unit="person")), "unit person"),
        (compose(QUARTER, Laplace(4.0, unit="person")), "unit person, record"),
        (Gaussian(4.0, adjacency="replace-one"), "replace-one"),
        (FixedSizeSampled(100, 10, Gaussian(4.0)), "replace-one"),
        (Scheduled((QUARTER,), 0), "cannot be stored"),
        (Event(), "cannot be stored"),
        (PoissonSampled(0.5, Composed((QUARTER,))), "around one"),
    ],
)
def test_an_event_that_does_not_belong_is_refused_and_not_charged(tmp_path: Path, event: Event, words: str) -> None:
    made = make(tmp_path, epsilon=1e9)
    for refused in (lambda: made.charge(event, study="heart", round=0), lambda: made.remaining_after(event)):
        with pytest.raises(ValueError, match=re.escape(words)):
            refused()
    assert made.entries() == ()


@pytest.mark.parametrize("depth", [100, 100_000])
def test_an_event_too_deep_to_be_read_back_is_not_stored(tmp_path: Path, depth: int) -> None:
    event: Event = QUARTER
    for _ in range(depth):
        event = Composed((event,))
    made = make(tmp_path)
    with pytest.raises(ValueError, match="nested"):
        made.charge(event, study="heart", round=0)
    assert made.entries() == ()


def test_noise_relative_to_the_clip_is_priced_by_a_replace_one_ledger_at_twice_the_distance(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=5.0, accountant="pld", adjacency="replace-one")
    made.charge(Gaussian(4.0), study="heart", round=0)
    assert made.spent() == accounting.epsilon(Gaussian(2.0), 1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("study", ""), ("study", "a\nb"), ("study", 3), ("study", "\ud800"), ("note", "\x1b[2J"), ("note", None)]
    + [("round", value) for value in (-1, 1.0, True, "0", 2**63)],
)
def test_bad_names_of_a_charge_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    made = make(tmp_path)
    with pytest.raises(ValueError, match=f"^{name}="):
        made.charge(QUARTER, **{"study": "heart", "round": 0, name: value})
    assert made.entries() == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epsilon", value) for value in (0.0, -1.0, float("inf"), float("nan"))),
        *(("delta", value) for value in (0.0, 1.0)),
        *((name, "") for name in ("data_set", "unit", "adjacency", "accountant")),
        ("timeout", -1.0),
    ],
)
def test_bad_settings_are_refused_and_leave_no_file(tmp_path: Path, name: str, value: Any) -> None:
    settings: dict[str, Any] = {"data_set": "a", "epsilon": 1.0, "delta": 1e-5, name: value}
    with pytest.raises(ValueError, match=f"^{name}="):
        Ledger.create(tmp_path / "site.ledger", **settings)
    assert list(tmp_path.iterdir()) == []


def test_thousands_of_entries_are_priced_as_a_few(tmp_path: Path) -> None:
    """Entries are written by the ledger's own seal, in one transaction: what is timed is the charge after them."""
    made = make(tmp_path, epsilon=50.0, accountant="pld")
    texts = [made.stored_form(STEP), made.stored_form(Gaussian(200.0))]
    previous = made.genesis
    with sqlite3.connect(made.path) as raw:
        for i in range(5000):
            values = (i + 1, "2026-01-01", "heart", i, texts[i % 2], 1.0, "", previous)
            previous = ledger_file.hash_of(ledger_file.ENTRY, values)
            raw.execute(f"INSERT INTO entries VALUES ({ledger_file.question_marks([0] * 9)})", (*values, previous))
    raw.close()
    begin = time.perf_counter()
    entry = made.charge(STEP, study="lung", round=0)
    assert time.perf_counter() - begin < 10
    whole = compose(Repeated(STEP, 2501), Repeated(Gaussian(200.0), 2500))
    assert entry.spent == pytest.approx(accounting.epsilon(whole, 1e-5), rel=1e-6)


# --- Tampering ---------------------------------------------------------------------------------------------------


def tamper(path: Path, *statements: str) -> None:
    """Change a ledger behind its triggers, and put them back."""
    raw = sqlite3.connect(path)
    triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        raw.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        raw.execute(statement)
    for _, sql in triggers:
        raw.execute(sql)
    raw.commit()
    raw.close()


TAMPERINGS = {
    "note": (["UPDATE entries SET note = 'x' WHERE position = 3"], "entry 3 was changed"),
    "event": (["UPDATE entries SET event = replace(event, '6.0', '60.0') WHERE position = 3"], "entry 3 was changed"),
    "spent": (["UPDATE entries SET spent = 0.1 WHERE position = 5"], "entry 5 was changed"),
    "study": (["UPDATE entries SET study = 'lung' WHERE position = 1"], "entry 1 was changed"),
    "bytes": (["UPDATE entries SET note = x'ff00' WHERE position = 2"], "entry 2 was changed"),
    "infinity": (["UPDATE entries SET spent = 9e999 WHERE position = 2"], "entry 2 was changed"),
    "hash": (["UPDATE entries SET hash = 'a' || substr(hash, 2) || 'b' WHERE position = 2"], "entry 2 was changed"),
    "first": (["DELETE FROM entries WHERE position = 1"], "entry 1 is missing before entry 2"),
    "middle": (["DELETE FROM entries WHERE position = 3"], "entry 3 is missing before entry 4"),
    "middle, renumbered": (
        ["DELETE FROM entries WHERE position = 3", "UPDATE entries SET position = position - 1 WHERE position > 3"],
        "entry 3 does not follow",
    ),
    "reordered": (
        [
            "UPDATE entries SET position = 9 WHERE position = 2",
            "UPDATE entries SET position = 2 WHERE position = 3",
            "UPDATE entries SET position = 3 WHERE position = 9",
        ],
        "entry 2 does not follow",
    ),
    "added": (
        [
            "INSERT INTO entries SELECT 6, time, 'lung', round, event, spent, note, hash, hash FROM entries "
            "WHERE position = 5"
        ],
        "entry 6 was changed",
    ),
    "budget": (["UPDATE genesis SET epsilon = 100.0"], "genesis entry was changed"),
    "no genesis": (["DELETE FROM genesis"], "0 genesis entries"),
    "second genesis": (["INSERT INTO genesis SELECT * FROM genesis"], "2 genesis entries"),
    "table": (["CREATE TABLE more (x)"], "other tables or triggers"),
    "trigger": (
        ["CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END"],
        "other tables or triggers",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_seen_by_verify_and_stops_every_charge(tmp_path: Path, name: str) -> None:
    made = filled(tmp_path)
    statements, words = TAMPERINGS[name]
    tamper(made.path, *statements)
    with pytest.raises(BrokenLedger, match=words):
        Ledger.open(made.path).verify()
    for refused in (made.verify, made.spent, made.entries, lambda: made.charge(QUARTER, study="new", round=0)):
        with pytest.raises(BrokenLedger):
            refused()


def test_the_check_for_tampering_is_not_blind_to_doing_nothing(tmp_path: Path) -> None:
    made = filled(tmp_path)
    tamper(made.path)
    assert Ledger.open(made.path).verify() == made.entries()[-1].hash


def test_the_table_is_append_only_to_whoever_forgets(tmp_path: Path) -> None:
    made = filled(tmp_path)
    raw = sqlite3.connect(made.path)
    for table in ("entries", "genesis"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET hash = ''"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                raw.execute(statement)
    raw.close()
    made.verify()


def test_a_tail_cut_off_shows_only_against_a_noted_head(tmp_path: Path) -> None:
    made = filled(tmp_path)
    early, head = made.entries()[1].hash, made.head()
    assert made.verify(head) == made.verify(early) == made.verify(made.genesis) == head
    tamper(made.path, "DELETE FROM entries WHERE position > 3")
    made.verify()  # as the docstring says: the file alone cannot tell
    made.verify(early)
    with pytest.raises(BrokenLedger, match=f"expected_head={head} is not among its 3 entries"):
        made.verify(head)


def test_a_chain_that_holds_but_passes_the_budget_is_refused(tmp_path: Path) -> None:
    """A program that seals entries without pricing them: with what it says, and with a lie about it."""
    for spent, words in ((12.5, "entry 1 exceeds the budget"), (0.1, "its entries cost 12.5")):
        made = make(tmp_path)
        values = (1, "2026-01-01", "heart", 0, made.stored_form(Repeated(QUARTER, 50)), spent, "", made.genesis)
        with sqlite3.connect(made.path) as raw:
            row = (*values, ledger_file.hash_of(ledger_file.ENTRY, values))
            raw.execute(f"INSERT INTO entries VALUES ({ledger_file.question_marks(row)})", row)
        raw.close()
        with pytest.raises(BrokenLedger, match=words):
            made.verify()
        with pytest.raises(BudgetExceeded):
            made.charge(QUARTER, study="lung", round=0)
        made.path.unlink()


def test_a_ledger_swapped_for_another_is_not_charged(tmp_path: Path) -> None:
    made = filled(tmp_path)
    (tmp_path / "other").mkdir()
    shutil.copy(make(tmp_path / "other").path, made.path)
    with pytest.raises(BrokenLedger, match="is not the ledger that was opened"):
        made.charge(QUARTER, study="heart", round=9)


def test_a_budget_raised_in_memory_does_not_count(tmp_path: Path) -> None:
    made = make(tmp_path)
    with pytest.raises(BrokenLedger, match="is not the ledger that was opened"):
        dataclasses.replace(made, epsilon=100.0).charge(QUARTER, study="heart", round=0)
    assert made.entries() == ()


# --- Rules and raised budgets ------------------------------------------------------------------------------------


def test_a_gaussian_ledger_is_exact_takes_what_is_left_and_refuses_samples_in_a_sentence(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=1.0, accountant="gaussian", timeout=60.0)
    assert (made.accountant, Ledger.open(made.path)) == ("gaussian(reserve=0.001)", made)
    step = Gaussian(20.0, coordinates=10)
    while made.remaining_after(step) >= 0:
        made.charge(step, study="heart", round=len(made.entries()))
    steps = len(made.entries())
    assert made.spent() == pytest.approx(accounting.epsilon(Repeated(step, steps), 1e-5), rel=1e-9)
    assert accounting.epsilon(Repeated(step, steps + 1), 1e-5) > 1.0
    for refused in (STEP, QUARTER, compose(step, STEP)):
        with pytest.raises(ValueError, match=r"without sampling.*'renyi' from the start"):
            made.charge(refused, study="lung", round=0)
    with pytest.raises(BudgetExceeded):
        made.charge(step, study="lung", round=0)
    assert len(made.entries()) == steps
    assert made.price(step) == pytest.approx(accounting.epsilon(step, 1e-5), rel=1e-9)
    made.verify()


def test_a_renyi_ledger_keeps_the_order_it_was_made_with(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=1.0, accountant="renyi")
    assert made.accountant == "renyi(order=18, reserve=0.01)"
    for round, event in enumerate([STEP, Gaussian(20.0), Laplace(20.0), STEP]):
        made.charge(event, study="heart", round=round)
    whole = compose(Repeated(STEP, 2), Gaussian(20.0), Laplace(20.0))
    (divergence,) = renyi.rdp(in_theory(whole), (18.0,))
    assert made.spent() == pytest.approx(divergence + concentrated.renyi_spread(18, 0.99e-5), rel=1e-12)
    (tmp_path / "other").mkdir()
    other = make(tmp_path / "other", epsilon=1.0, accountant="renyi(order=7, reserve=0.25)", timeout=5.0)
    assert Ledger.open(other.path).accountant == "renyi(order=7, reserve=0.25)"


def test_draws_beyond_what_was_set_aside_are_refused_in_their_own_words(tmp_path: Path) -> None:
    made = make(tmp_path, accountant="gaussian")
    with pytest.raises(BudgetExceeded, match="draws of noise need more of δ=1e-05 than"):
        made.charge(Gaussian(1e3, coordinates=10**7), study="heart", round=0)
    assert made.entries() == ()


def test_a_ledger_says_which_theorem_covers_analyses_chosen_after_results(tmp_path: Path) -> None:
    words = {}
    for name in ("gaussian", "renyi", "pld", "rdp", "zcdp"):
        made = make(tmp_path, accountant=name)
        assert made.to_dict()["adaptive_analyses"] == made.rule_words
        words[name] = made.rule_words
        made.path.unlink()
    assert words["gaussian"].startswith("covered, by the Gaussian-DP filter")
    assert words["renyi"].startswith("covered, by the Rényi filter at the fixed order 18 ")
    assert all(words[name].startswith("not covered by the rule") for name in ("pld", "rdp", "zcdp"))
    assert all("at most the budget, ε = 1 at δ = 1e-05" in said for said in words.values()), "and not what is spent"


def test_a_raised_budget_is_an_entry_that_forgets_nothing_and_is_said(tmp_path: Path) -> None:
    made = make(tmp_path, accountant="gaussian")
    for round in range(2):
        made.charge(Gaussian(6.0), study="heart", round=round)
    third = Gaussian(6.0)
    with pytest.raises(BudgetExceeded):
        made.charge(third, study="heart", round=2)
    before = made.spent()
    entry = made.extend(2.0, note="by the board")
    assert (entry.budget, entry.spent, entry.event, entry.note) == (2.0, before, Composed(()), "by the board")
    opened = Ledger.open(made.path)
    assert (opened.epsilon, opened.first_epsilon, opened.spent()) == (2.0, 1.0, before)
    made.charge(third, study="heart", round=2)  # one that was opened before keeps to it too
    assert made.spent() == opened.spent() == pytest.approx(accounting.epsilon(Repeated(third, 3), 1e-5), rel=1e-4)
    assert opened.verify() == made.head()
    assert "raised from ε = 1 to 2, which is covered if it was decided without looking at results" in opened.rule_words
    assert opened.to_dict()["epsilon"] == made.to_dict()["epsilon"] == 2.0
    with pytest.raises(BudgetExceeded):
        opened.charge(Gaussian(1.0), study="heart", round=3)
    for wrong in (2.0, 1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^epsilon="):
            opened.extend(wrong)
    with pytest.raises(ValueError, match="for entries that raise the budget"):
        opened.charge(third, study=ledger._EXTENSIONS, round=0)
    assert len(opened.entries()) == 4


def test_an_extension_cannot_be_slipped_in_or_taken_out(tmp_path: Path) -> None:
    made = make(tmp_path, accountant="gaussian")
    made.charge(Gaussian(6.0), study="heart", round=0)
    made.extend(2.0)
    made.charge(Gaussian(6.0), study="heart", round=1)
    for statement in (
        """UPDATE entries SET event = '{"epsilon":9.0,"type":"budget"}' WHERE position = 2""",
        "DELETE FROM entries WHERE position = 2",
    ):
        copy = tmp_path / "copy.ledger"
        shutil.copy(made.path, copy)
        tamper(copy, statement)
        with pytest.raises(BrokenLedger):
            Ledger.open(copy).charge(Gaussian(6.0), study="heart", round=2)
    assert Ledger.open(made.path).verify() == made.head()


def test_a_ledger_of_the_first_format_still_opens_and_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "FORMAT", 1)
    made = make(tmp_path, accountant="pld", epsilon=5.0)
    monkeypatch.undo()
    old = Ledger.open(made.path)
    old.charge(STEP, study="heart", round=0)
    assert old.spent() == pytest.approx(accounting.epsilon(Repeated(STEP, 1), 1e-5))
    monkeypatch.setattr(ledger, "FORMAT", 3)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="is of ledger format 3; this version of tacit reads 1, 2"):
        make(tmp_path / "other")


# --- Files that are not as they should be ------------------------------------------------------------------------


def test_an_existing_file_is_never_made_anew(tmp_path: Path) -> None:
    made = filled(tmp_path)
    before = made.path.read_bytes()
    with pytest.raises(ValueError, match=r"exists; open it with Ledger\.open"):
        make(tmp_path)
    assert made.path.read_bytes() == before


def test_what_is_not_a_ledger_is_refused_by_name(tmp_path: Path) -> None:
    text, empty, other = tmp_path / "a.txt", tmp_path / "empty", tmp_path / "other.db"
    text.write_text("not a ledger\n" * 100)
    empty.touch()
    raw = sqlite3.connect(other)
    raw.execute("CREATE TABLE t (x)")
    raw.close()
    for path in (text, empty, other):
        before = path.read_bytes()
        with pytest.raises(ValueError, match=f"^path={re.escape(str(path))}.* ledger"):
            Ledger.open(path)
        assert path.read_bytes() == before
    with pytest.raises(ValueError, match="does not exist"):
        Ledger.open(tmp_path / "missing")
    with pytest.raises(ValueError, match="is not a file"):
        Ledger.open(tmp_path)
    with pytest.raises(ValueError, match="expected a new file in an existing folder"):
        make(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_ledger_that_is_gone_is_not_made_anew_by_a_charge(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.path.unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        made.charge(QUARTER, study="heart", round=0)
    assert not made.path.exists()


def test_a_path_with_odd_letters_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#ü %41.ledger"
    Ledger.create(path, data_set="a", epsilon=1.0, delta=1e-5)
    assert path.stat().st_size > 0
    assert Ledger.open(path).spent() == 0


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    made = filled(tmp_path, rounds=40)
    content = bytearray(made.path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    made.path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^path={re.escape(str(made.path))}"):
        made.verify()


def test_a_read_only_ledger_can_be_read_and_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SQLite's own read-only mode: the rights of a file do not bind root, who may run the tests."""
    made = filled(tmp_path)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda at, **k: connect(at.replace("mode=rw", "mode=ro"), **k))
    assert made.verify() == made.head()
    with pytest.raises(ValueError, match="the ledger is read-only; make the file and its folder writable"):
        made.charge(QUARTER, study="heart", round=9)


def test_a_full_disk_refuses_the_charge_and_leaves_the_ledger_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(tmp_path)
    connect = sqlite3.connect

    def small(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)
        connection.execute("PRAGMA max_page_count=1")  # no more than there are
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(ValueError, match="full; read no record before a charge succeeds"):
        made.charge(QUARTER, study="heart", round=9, note="x" * 100_000)
    monkeypatch.undo()
    assert made.verify() == made.entries()[4].hash
    made.charge(QUARTER, study="heart", round=9)


def test_a_ledger_whose_creation_failed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SCHEMA", (*ledger_file.SCHEMA, "CREATE NONSENSE"))
    with pytest.raises(ValueError, match="syntax error"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_locked_ledger_is_waited_for_and_then_refused_with_the_time(tmp_path: Path) -> None:
    made = make(tmp_path, timeout=0.3)
    raw = sqlite3.connect(made.path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"locked by another process for more than timeout=0\.3 seconds"):
        made.charge(QUARTER, study="heart", round=0)
    assert time.perf_counter() - begin >= 0.3
    assert made.spent() == 0, "reading is not held up by a charge in the making"
    raw.execute("ROLLBACK")
    raw.close()
    made.charge(QUARTER, study="heart", round=0)


# --- Processes: charging at once, and dying ----------------------------------------------------------------------


def child(script: str, *arguments: object) -> Any:
    """What `script` prints as JSON, from a process without JAX that may fork."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


AT_ONCE = """
import json, os, sys, time
from tacit.privacy.events import Laplace
from tacit.privacy.filters import in_theory
from tacit.privacy.ledger import AlreadyCharged, BudgetExceeded, Ledger

path, same = sys.argv[1], sys.argv[2] == "same"
start = time.time() + 0.1
pipes = []
for worker in range(4):
    read, write = os.pipe()
    if os.fork() == 0:
        ledger = Ledger.open(path)
        time.sleep(max(0, start - time.time()))
        outcome = {"charged": 0, "refused": 0, "twice": 0}
        for round in range(8):
            try:
                ledger.charge(Laplace(4.0), study="shared" if same else f"study {worker}", round=round)
                outcome["charged"] += 1
            except BudgetExceeded:
                outcome["refused"] += 1
            except AlreadyCharged:
                outcome["twice"] += 1
        os.write(write, json.dumps(outcome).encode())
        os._exit(0)
    pipes.append(read)
outcomes = [json.loads(os.read(pipe, 1000)) for pipe in pipes]
for _ in pipes:
    assert os.wait()[1] == 0
print(json.dumps(outcomes))
"""


def test_processes_that_charge_at_once_never_pass_the_budget_together(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=3.0)  # 12 of 32 quarters
    outcomes = child(AT_ONCE, made.path, "each its own")
    assert sum(o["charged"] for o in outcomes) == 12
    assert sum(o["refused"] for o in outcomes) == 20
    assert len(made.entries()) == 12
    assert made.spent() == 3.0
    made.verify()


def test_processes_that_run_one_round_at_once_pay_for_it_once_and_one_of_them_runs_it(tmp_path: Path) -> None:
    made = make(tmp_path, epsilon=100.0)
    outcomes = child(AT_ONCE, made.path, "same")
    assert sum(o["charged"] for o in outcomes) == 8
    assert sum(o["twice"] for o in outcomes) == 24
    assert made.spent() == 2.0


# One fork for each point of time at which it dies; a record is read after the charge (or, broken, before it).
DYING = """
import json, os, signal, sqlite3, sys, time
from pathlib import Path
from tacit.privacy.events import Laplace
from tacit.privacy.ledger import Ledger

path, order = Path(sys.argv[1]), sys.argv[2]
ledger, connect = Ledger.open(path), sqlite3.connect

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def run(round, trace, after=lambda: None):
    marker = path.parent / f"read-{round}"
    child = os.fork()
    if child == 0:
        def traced(*arguments, **settings):
            connection = connect(*arguments, **settings)
            trace(connection)
            return connection
        sqlite3.connect = traced
        if order == "broken":
            marker.touch()
        ledger.charge(Laplace(1e3), study="heart", round=round)
        after()
        if order != "broken":
            marker.touch()
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0
    journal = Path(f"{path}-journal").exists()
    charged = ledger.find("heart", round) is not None
    ledger.verify()
    return {"killed": killed, "journal": journal, "charged": charged, "read": marker.exists()}

def at_statement(n):
    def trace(connection):
        left = [n]
        def count(statement):
            left[0] -= 1
            if left[0] < 0:
                die()
        connection.set_trace_callback(count)
    return trace

def at_instruction(n):
    def trace(connection):
        left = [n]
        def count():
            left[0] -= 1
            if left[0] < 0:
                die()
        connection.set_progress_handler(count, 1)
    return trace

def in_commit(microseconds):
    # The kernel ends the process in the middle of whatever SQLite does then: SIGALRM is not handled.
    def trace(connection):
        def start(statement):
            if statement == "COMMIT":
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
        connection.set_trace_callback(start)
    return trace

round, found = 0, {"statement": [], "instruction": [], "commit": []}
for n in range(100):  # until it lives through all of its statements
    found["statement"].append(run(round := round + 1, at_statement(n)))
    if not found["statement"][-1]["killed"]:
        break
if order == "broken":
    print(json.dumps(found))
    sys.exit()
found["between"] = [run(round := round + 1, lambda connection: None, die)]
for n in range(0, 400, 9):
    found["instruction"].append(run(round := round + 1, at_instruction(n)))
begin = time.perf_counter()
run(round := round + 1, lambda connection: None)
longest = 1e6 * (time.perf_counter() - begin)  # of a whole charge
for i in range(60):
    found["commit"].append(run(round := round + 1, in_commit(1 + longest * (i / 60) ** 2)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, list[dict[str, bool]]]]:
    def run(order: str) -> dict[str, list[dict[str, bool]]]:
        return child(DYING, make(tmp_path_factory.mktemp("deaths"), epsilon=100.0).path, order)

    return run


def under_counted(found: dict[str, list[dict[str, bool]]]) -> int:
    return sum(trial["read"] and not trial["charged"] for trials in found.values() for trial in trials)


def test_a_charge_that_is_killed_anywhere_is_in_the_ledger_or_no_record_was_read(
    deaths: Callable[[str], dict[str, list[dict[str, bool]]]],
) -> None:
    """At every statement, at instructions of SQLite's machine, and at times within the commit."""
    found = deaths("charge, then read")
    assert under_counted(found) == 0
    statements = found["statement"]
    assert len(statements) > 8
    assert all(t["killed"] and not t["charged"] for t in statements[:-1]), "COMMIT is the last statement"
    assert statements[-1] == {"killed": False, "journal": False, "charged": True, "read": True}
    assert any(t["killed"] and t["journal"] for t in statements), "some left a journal behind that had to be undone"
    over_counted = {"killed": True, "journal": False, "charged": True, "read": False}
    assert found["between"] == [over_counted], "a death after the charge costs one update that was not made"
    assert sum(t["killed"] for t in found["instruction"]) > 10
    assert any(t["killed"] and t["journal"] for t in found["commit"]), "some died within the commit"


def test_the_check_for_deaths_sees_a_site_that_reads_before_it_charges(
    deaths: Callable[[str], dict[str, list[dict[str, bool]]]],
) -> None:
    assert under_counted(deaths("broken")) > 8


def test_a_charge_is_made_with_the_settings_that_survive_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path)
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)

        def note(statement: str) -> None:
            seen.append(statement)
            if statement == "COMMIT":
                connection.set_trace_callback(None)
                assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
                seen.append("checked")

        connection.set_trace_callback(note)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    made.charge(QUARTER, study="heart", round=0)
    assert seen[-2:] == ["COMMIT", "checked"]
    assert [s.split()[0] for s in seen].count("BEGIN") == 1
    assert seen.index("BEGIN IMMEDIATE") < next(i for i, s in enumerate(seen) if "FROM entries" in s)


def test_a_write_ahead_log_that_another_program_chose_is_taken_back(tmp_path: Path) -> None:
    made = make(tmp_path)
    raw = sqlite3.connect(made.path)
    assert raw.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    raw.close()
    made.charge(QUARTER, study="heart", round=0)
    raw = sqlite3.connect(made.path)
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    raw.close()


# --- The command line --------------------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


def test_show_prints_the_budget_and_every_entry(run: Run, tmp_path: Path) -> None:
    made = filled(tmp_path)
    code, out, err = run("ledger", "show", made.path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"ward 7: ε = {made.spent():.6g} of 10 is spent at δ = 1e-05 (basic, add-remove")
    assert [line.split()[0] for line in lines[1:-2]] == list("12345")
    assert lines[-2] == f"Analyses chosen after seeing results: {made.rule_words}"
    assert "round 2 of heart (note 2)" in lines[3]
    assert lines[-1] == f"Head: {made.head()}"
    code, out, err = run("ledger", "show", made.path, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    assert (found["spent"], found["epsilon"], found["head"]) == (made.spent(), 10.0, made.head())
    assert found["entries"] == [entry.to_dict() for entry in made.entries()]


def test_verify_says_that_a_ledger_is_sound(run: Run, tmp_path: Path) -> None:
    made = filled(tmp_path)
    code, out, err = run("ledger", "verify", made.path, "--expected-head", made.head())
    assert (code, err) == (0, "")
    assert "ward 7 is sound: 5 entries" in out
    assert f"Analyses chosen after seeing results: {made.rule_words}" in out
    code, out, _ = run("ledger", "verify", made.path, "--json")
    assert code == 0
    assert json.loads(out) == {
        "path": str(made.path),
        "sound": True,
        "entries": 5,
        "spent": made.spent(),
        "head": made.head(),
        "accountant": "basic",
        "adaptive_analyses": made.rule_words,
    }


@pytest.mark.parametrize("command", ["show", "verify"])
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["words", "json"])
def test_a_bad_ledger_is_refused_with_exit_code_2_and_one_sentence(
    run: Run, tmp_path: Path, command: str, options: tuple[str, ...]
) -> None:
    made = filled(tmp_path)
    tamper(made.path, "DELETE FROM entries WHERE position = 3")
    text = tmp_path / "text"
    text.write_text("not a ledger " * 100)
    for path, words in {
        made.path: "entry 3 is missing",
        text: "not a ledger",
        tmp_path / "no": "does not exist",
    }.items():
        code, out, err = run("ledger", command, path, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"tacit: path={path}")
        assert words in err
        assert not re.search(r"[.!?]\s", err.rstrip("\n"))


def test_verify_refuses_a_head_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, out, err = run("ledger", "verify", filled(tmp_path).path, "--expected-head", "0" * 64)
    assert (code, out) == (2, "")
    assert "expected_head=000" in err


@pytest.mark.parametrize("words", [("ledger",), ("ledger", "show"), ("ledger", "verify")], ids=" ".join)
def test_the_commands_explain_themselves(run: Run, words: tuple[str, ...]) -> None:
    code, out, err = run(*words, "--help")
    assert (code, err) == (0, "")
    assert "Usage:" in out
    assert ("--json" in out) == (len(words) > 1)
