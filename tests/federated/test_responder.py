"""A site prices, charges, reads, stores and sends, in this order, whatever it is asked and whenever it dies."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.basics import durable
from tacit.engines import coordinator
from tacit.engines.local import DirectTransport
from tacit.engines.schedule import synchronous
from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated import responder
from tacit.federated.messages import Broadcast, Refusal, Update, encode
from tacit.federated.moments import Moments
from tacit.federated.pvi import PVI
from tacit.federated.responder import Responder
from tacit.models import LinearRegression
from tacit.privacy import accounting
from tacit.privacy.events import Gaussian, Repeated
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access, Exact, SubsampledGaussian
from tacit.privacy.released import Released
from tacit.solvers import conjugate
from tacit.tables.scaling import Range, moments_clip

DIMENSION, RECORDS, NOISE = 2, 12, 4.0
MODEL = LinearRegression(DiagonalGaussian.standard(DIMENSION), 1.0)
PVI_STUDY = PVI(MODEL.prior, MODEL, (conjugate,))
EVENT = Gaussian(NOISE, coordinates=DIMENSION + DIMENSION**2)
BUDGET = {count: accounting.epsilon(Repeated(EVENT, count), 1e-5, "zcdp") for count in (2, 3, 50)}


def records(count: int = RECORDS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(count, DIMENSION)).astype(np.float32)
    return x, (x @ np.array([0.5, -1.0])).astype(np.float32)


def access_of(count: int = RECORDS, mechanism: Any = None) -> Access:
    return Access.of(records(count), mechanism or SubsampledGaussian(2.0, NOISE), slots=RECORDS)


ACCESS, KEY = access_of(), tacit.insecure_key(5)


def ledger_of(folder: Path, updates: int = 50, **settings: Any) -> Ledger:
    made = {"data_set": "ward 7", "epsilon": BUDGET[updates], "delta": 1e-5, "accountant": "zcdp", **settings}
    return Ledger.create(folder / "site.ledger", **made)


def site_of(folder: Path, **settings: Any) -> Any:
    """A site of the study "heart" with the ledger and the store of a folder, which may hold some already."""
    path = folder / "site.ledger"
    made: dict[str, Any] = {
        "name": "north",
        "study": "heart",
        "algorithm": PVI_STUDY,
        "access": ACCESS,
        "key": KEY,
        "store": folder / "heart.store",
        **settings,
    }
    if "ledger" not in made:
        made["ledger"] = Ledger.open(path) if path.exists() else ledger_of(folder)
    return Responder(**made)


def content(mean: float = 0.0) -> DiagonalGaussian:
    """A q that a coordinator might send, as NumPy arrays."""
    return jax.tree.map(np.asarray, DiagonalGaussian.of(np.full(DIMENSION, mean), 0.9))


def ask(site: Responder, round: int = 0, q: Any = None, study: str = "heart") -> Any:
    return site(Broadcast(study, round, content() if q is None else q))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a site does, in order: priced (from shapes), charged, read (the step itself), stored."""
    found: list[str] = []
    step, charge, write = responder._step, Ledger.charge, durable.write

    def watched_step(*arguments: Any) -> Any:
        found.append("priced" if isinstance(arguments[2], jax.core.Tracer) else "read")
        return step(*arguments)

    def watched_charge(*arguments: Any, **settings: Any) -> Any:
        entry = charge(*arguments, **settings)
        found.append("charged")
        return entry

    def watched_write(*arguments: Any) -> None:
        write(*arguments)
        found.append("stored")

    monkeypatch.setattr(responder, "_step", watched_step)
    monkeypatch.setattr(Ledger, "charge", watched_charge)
    monkeypatch.setattr(durable, "write", watched_write)
    return found


WHOLE = ["priced", "charged", "read", "stored"]


# --- One round ---------------------------------------------------------------------------------------------------


def test_an_update_is_priced_charged_read_and_stored_in_this_order(tmp_path, seen):
    site = site_of(tmp_path)
    answer = ask(site)
    assert seen == WHOLE
    assert isinstance(answer, Update)
    assert (answer.study, answer.site, answer.round, site.updates) == ("heart", "north", 0, 1)
    (entry,) = site.ledger.entries()
    assert (entry.event, entry.study, entry.round) == (EVENT, "heart", 0)
    assert ask(site, 1) is not answer
    assert seen == [*WHOLE, *WHOLE[1:]], "a price of shapes is found once"


def test_a_repeated_round_is_answered_from_the_store_and_costs_nothing(tmp_path, seen):
    site = site_of(tmp_path)
    first = encode(ask(site, 3))
    for q in (content(), content(7.0), jax.tree.map(lambda leaf: leaf * np.float32("nan"), content()), {}):
        assert encode(ask(site, 3, q)) == first
    assert encode(ask(site_of(tmp_path, key=tacit.insecure_key(99)), 3)) == first, "after a restart too"
    assert seen == WHOLE
    assert len(site.ledger.entries()) == site.updates == 1


def test_a_ledger_is_told_of_noise_from_a_seed(tmp_path):
    site = site_of(tmp_path)
    ask(site)
    (tmp_path / "secure").mkdir()
    secure = site_of(tmp_path / "secure", key=tacit.secure_key())
    ask(secure)
    assert "seed" in site.ledger.entries()[0].note
    assert secure.ledger.entries()[0].note == ""


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "other study": (lambda: Broadcast("lung", 5, content()), "this site takes part in 'heart' only"),
    "older round": (lambda: Broadcast("heart", 1, content()), "before round 2"),
    "not a number": (
        lambda: Broadcast("heart", 5, replace(content(), precision=np.array([np.nan, 1], np.float32))),
        "",
    ),
    "infinite": (
        lambda: Broadcast("heart", 5, replace(content(), precision_mean=np.array([np.inf, 1], np.float32))),
        "",
    ),
    "improper": (lambda: Broadcast("heart", 5, replace(content(), precision=np.array([-1, 1], np.float32))), "proper"),
    "flat": (lambda: Broadcast("heart", 5, replace(content(), precision=np.array([0, 1], np.float32))), "proper"),
    "more numbers": (lambda: Broadcast("heart", 5, numpy(DiagonalGaussian.standard(DIMENSION + 1))), "shape"),
    "another family": (lambda: Broadcast("heart", 5, numpy(FullGaussian.standard(DIMENSION))), "shape"),
    "another precision": (lambda: Broadcast("heart", 5, jax.tree.map(np.float64, content())), "shape"),
    "integers": (lambda: Broadcast("heart", 5, jax.tree.map(lambda a: np.ones_like(a, np.int32), content())), "shape"),
    "an array": (lambda: Broadcast("heart", 5, np.ones(2 * DIMENSION, np.float32)), "shape"),
    "a dict": (lambda: Broadcast("heart", 5, {"a": content()}), "shape"),
    "no arrays": (lambda: Broadcast("heart", 5, DiagonalGaussian(1.0, 1.0)), "shape"),  # type: ignore[arg-type]
    "nothing": (lambda: Broadcast("heart", 5, None), "shape"),
}


def numpy(q: Any) -> Any:
    return jax.tree.map(np.asarray, q)


def test_a_broadcast_that_does_not_fit_is_refused_before_anything_is_charged(tmp_path, seen):
    site = site_of(tmp_path)
    ask(site, 2)
    seen.clear()
    for name, (make, words) in BAD.items():
        answer = site(make())
        assert isinstance(answer, Refusal), name
        assert words in answer.reason, name
    assert seen == []
    assert len(site.ledger.entries()) == site.updates == 1
    assert isinstance(ask(site, 5), Update), "and the site goes on"


def test_a_site_without_budget_refuses_and_reads_nothing(tmp_path, seen):
    ledger_of(tmp_path, updates=2)
    site = site_of(tmp_path)
    ask(site, 0)
    ask(site, 1)
    seen.clear()
    for each in (site, site_of(tmp_path)):
        answer = ask(each, 2)
        assert isinstance(answer, Refusal)
        assert "would be exceeded by this update" in answer.reason
    assert seen == ["priced"]
    assert len(site.ledger.entries()) == 2
    site.ledger.verify()


def test_any_other_error_of_the_ledger_ends_the_round_before_a_record_is_read(tmp_path, seen):
    site = site_of(tmp_path, access=access_of(mechanism=Exact()))
    with pytest.raises(ValueError, match="without a guarantee"):
        ask(site)
    person = site_of(tmp_path, access=replace(access_of(), unit="person"))
    with pytest.raises(ValueError, match="unit person"):
        ask(person)
    site.ledger.path.unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        ask(site_of(tmp_path, ledger=site.ledger))
    assert "read" not in seen


def test_a_receipt_that_is_not_the_price_is_neither_stored_nor_sent(tmp_path, monkeypatch):
    """A planted bug: the step that runs is not the step that was priced."""
    site, step = site_of(tmp_path), responder._step

    def cheaper(algorithm: Any, kind: int, key: Any, *others: Any) -> Any:
        found = step(algorithm, kind, key, *others)
        if isinstance(key, jax.core.Tracer):
            return Released(found.value, Gaussian(2 * NOISE, coordinates=6), found.seeded, found.witness)
        return found

    monkeypatch.setattr(responder, "_step", cheaper)
    with pytest.raises(RuntimeError, match="the receipt is not the price"):
        ask(site)
    assert not site.store.exists()
    assert site.updates == 0
    monkeypatch.undo()
    answer = ask(site)
    assert isinstance(answer, Refusal), "it was charged: it is not run again at another price"
    assert "lost" in answer.reason


def test_names_that_no_message_can_carry_are_refused_before_a_charge(tmp_path):
    for bad in ({"name": ""}, {"name": "a\nb"}, {"study": "x" * 201}, {"study": ""}):
        with pytest.raises(ValueError, match="printable"):
            site_of(tmp_path, **bad)
    assert Ledger.open(tmp_path / "site.ledger").entries() == ()


def test_a_result_that_is_not_finite_is_dropped_and_paid_for(tmp_path):
    """The site answers with the factor it had: the coordinator never sees an infinity."""
    site = site_of(tmp_path)
    first = ask(site, 0)
    huge = jax.tree.map(np.asarray, DiagonalGaussian(jnp.full(DIMENSION, 3e38), jnp.full(DIMENSION, 1e-30)))
    answer = ask(site, 1, huge)
    assert isinstance(answer, Update)
    assert len(site.ledger.entries()) == site.updates == 2
    for old, new in zip(jax.tree.leaves(first.content), jax.tree.leaves(answer.content), strict=True):
        np.testing.assert_array_equal(old, new)
    assert isinstance(ask(site, 2), Update)


# --- Restarts and deaths -----------------------------------------------------------------------------------------


def test_a_site_that_starts_again_goes_on_as_if_it_had_not(tmp_path):
    """Same rounds, same key: a site that is made anew before every round answers as one that lives."""
    for name in ("lives", "restarts"):
        (tmp_path / name).mkdir()
    lives = site_of(tmp_path / "lives")
    for round in range(3):
        restarted = site_of(tmp_path / "restarts")
        assert restarted.updates == round
        expected = encode(ask(lives, round, content(0.1 * round)))
        assert encode(ask(restarted, round, content(0.1 * round))) == expected
        assert encode(ask(site_of(tmp_path / "restarts"), round)) == expected


@pytest.mark.parametrize(
    "other", [{"study": "lung"}, {"name": "south"}, {"algorithm": PVI(FullGaussian.standard(2), MODEL, (conjugate,))}]
)
def test_a_store_of_another_study_or_site_is_refused(tmp_path, other):
    ask(site_of(tmp_path))
    with pytest.raises(ValueError, match="of another study or site"):
        site_of(tmp_path, **other)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"", lambda data: data[:99] + b"x" + data[100:]]
)
def test_a_damaged_store_is_refused_by_name(tmp_path, damage):
    site = site_of(tmp_path)
    ask(site)
    site.store.write_bytes(damage(site.store.read_bytes()))
    with pytest.raises(ValueError, match=r"heart\.store cannot be read"):
        site_of(tmp_path)


class Killed(BaseException):
    """Nothing in a site catches it: what is on the disk afterwards is what a death at that moment leaves."""


def before(function: Any) -> Any:
    """In place of a function: a death, before it does anything."""
    del function
    return after(lambda *arguments, **settings: None)


def after(function: Any) -> Any:
    def die(*arguments: Any, **settings: Any) -> Any:
        function(*arguments, **settings)
        raise Killed

    return die


def only_the_step(when: Any) -> Any:
    """Pricing passes; the step itself does not."""

    def make(step: Any) -> Any:
        deadly = when(step)
        return lambda *a: step(*a) if isinstance(a[2], jax.core.Tracer) else deadly(*a)

    return make


# Where it dies: whose function, its name, what becomes of it; whether the round is charged and stored then.
DEATHS: dict[str, tuple[Any, str, Any, bool, bool]] = {
    "after pricing": (responder, "price", after, False, False),
    "before the charge": (Ledger, "charge", before, False, False),
    "inside of the charge": (Ledger, "price_of", after, False, False),
    "after the charge": (Ledger, "charge", after, True, False),
    "before the step": (responder, "_step", only_the_step(before), True, False),
    "after the step": (responder, "_step", only_the_step(after), True, False),
    "before the store": (durable, "write", before, True, False),
    "in the store, before it is written": (os, "fsync", before, True, False),
    "in the store, before it is in place": (os, "replace", before, True, False),
    "in the store, after it is in place": (os, "replace", after, True, True),
    "before the answer is sent": (durable, "write", after, True, True),
}


@pytest.mark.parametrize("place", DEATHS)
@pytest.mark.parametrize("is_new", [False, True], ids=["the same site", "a new process"])
def test_a_death_anywhere_never_counts_too_little_and_at_most_one_too_much(tmp_path, monkeypatch, place, is_new):
    """Also for the object that lived through it (a disk that is full, an interrupt): it answers from what is stored."""
    whose, name, deadly, is_charged, is_stored = DEATHS[place]
    answers = [ask(site_of(tmp_path), 0)]
    site = site_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(whose, name, deadly(getattr(whose, name)))
        with pytest.raises(Killed):
            ask(site, 1, content(0.3))
    entries = site.ledger.entries()
    assert len(entries) == (2 if is_charged else 1)
    if is_new:
        site = site_of(tmp_path)
        assert site.updates == (2 if is_stored else 1)
    again = ask(site, 1, content(0.3))
    if is_charged and not (is_stored and is_new):
        assert isinstance(again, Refusal), "it was charged and is lost, not run again"
        assert "lost; go on with a later round" in again.reason
    else:
        assert isinstance(again, Update)
        answers.append(again)
    answers.append(ask(site, 2, content(0.6)))
    assert isinstance(answers[-1], Update)
    assert len(answers) <= len(site.ledger.entries()) <= len(answers) + 1
    site.ledger.verify()


def test_the_check_for_deaths_sees_a_site_that_charges_last(tmp_path, monkeypatch):
    """A planted bug: the charge is put off until the answer is stored. A death leaves an answer without an entry."""
    site, charge = site_of(tmp_path), Ledger.charge
    put_off: list[Any] = []
    write = durable.write

    def pay_at_last(*arguments: Any) -> None:
        write(*arguments)
        raise Killed  # before what was put off is charged

    monkeypatch.setattr(Ledger, "charge", lambda *a, **k: put_off.append((a, k)))
    monkeypatch.setattr(durable, "write", pay_at_last)
    with pytest.raises(Killed):
        ask(site)
    monkeypatch.setattr(Ledger, "charge", charge)
    assert len(Ledger.open(tmp_path / "site.ledger").entries()) == 0
    with pytest.raises(ValueError, match=r"does not have round 0 of heart, answered by heart\.store"):
        site_of(tmp_path)


# Processes that end at once, with nothing flushed, closed or rolled back: forks, made before JAX starts its threads.
DYING = """
import json, os, sys
from pathlib import Path
import numpy as np
import jax.numpy as jnp
from tacit.basics import durable
from tacit.federated.messages import Broadcast, Update
from tacit.federated.moments import Moments
from tacit.federated.responder import Responder
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.randomness import secure_key
from tacit.tables.scaling import Range

def play(folder, rounds):
    bounds = Range(jnp.array([-1.0]), jnp.array([1.0]))
    access = Access.of(np.zeros((4, 1), np.float32), SubsampledGaussian(2.0, 4.0))
    ledger = Ledger.open(folder / "ledger")
    site = Responder("north", "heart", Moments(bounds), access, secure_key(), ledger, folder / "store")
    content = {"low": np.array([-1], np.float32), "high": np.array([1], np.float32)}
    answers = [isinstance(site(Broadcast("heart", round, content)), Update) for round in rounds]
    return answers, len(ledger.entries())

def die_when(place):
    if place == "charged":
        Ledger.charge = lambda *a, charge=Ledger.charge, **k: (charge(*a, **k), os._exit(9))
    if place == "written":
        os.replace = lambda *paths: os._exit(9)
    if place == "stored":
        durable.write = lambda *a, write=durable.write: (write(*a), os._exit(9))

found = {}
for place in sys.argv[2:]:
    if (child := os.fork()) == 0:
        die_when(place)
        play(Path(sys.argv[1]) / place, [0])
        os._exit(0)
    found[place] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps({place: [code, *play(Path(sys.argv[1]) / place, [0, 1])] for place, code in found.items()}))
"""


def test_processes_that_end_at_once_leave_what_the_exceptions_above_leave(tmp_path):
    survives = {"charged": False, "written": False, "stored": True}
    for place in survives:
        (tmp_path / place).mkdir()
        Ledger.create(tmp_path / place / "ledger", data_set="a", epsilon=50.0, delta=1e-5, accountant="zcdp")
    command = [sys.executable, "-W", "ignore", "-c", DYING, str(tmp_path), *survives]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {place: [9, [is_answered, True], 2] for place, is_answered in survives.items()}


def full(*arguments: Any) -> None:
    """In place of a function of `os`: the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")


def is_data_free(answer: Any) -> bool:
    return isinstance(answer, Refusal) and "/" not in answer.reason and not any(map(str.isdigit, answer.reason))


def test_a_disk_that_is_full_loses_the_round_and_nothing_is_sent_that_is_not_stored(tmp_path, monkeypatch):
    """What a site has sent it can send again: an answer that could not be stored is never sent."""
    site = site_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        answer = ask(site)
    assert is_data_free(answer)
    assert "could not be stored" in answer.reason
    assert (site.updates, site.last_round, len(site.ledger.entries())) == (0, -1, 1)
    assert isinstance(ask(site), Refusal)
    answer = ask(site, 1)
    assert encode(ask(site_of(tmp_path), 1)) == encode(answer)


@pytest.mark.parametrize("has_fallocate", [True, False], ids=["fallocate", "zeros"])
def test_without_room_for_the_answer_nothing_is_charged_or_read(tmp_path, monkeypatch, seen, has_fallocate):
    site = site_of(tmp_path)
    ask(site, 0)
    before, room = site.store.read_bytes(), site._room
    seen.clear()
    with monkeypatch.context() as patch:
        if not has_fallocate:
            patch.delattr(os, "posix_fallocate", raising=False)
        patch.setattr(os, "posix_fallocate" if has_fallocate else "fsync", full)
        answer = ask(site, 1)
    assert is_data_free(answer)
    assert "nothing was charged or read" in answer.reason
    assert seen == []
    assert len(site.ledger.entries()) == site.updates == 1
    assert site.store.read_bytes() == before
    assert isinstance(ask(site, 1), Update), "once there is room the round is made"
    assert len(before) <= len(site.store.read_bytes()) <= room, "what is set aside is enough"
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("is_supported", [True, False], ids=["fallocate", "zeros"])
def test_room_is_set_aside_before_the_charge_and_kept_until_the_answer_is_in_it(tmp_path, monkeypatch, is_supported):
    """Also by zeros, on a file system that has no better way."""
    site, sizes, charge, moved = site_of(tmp_path), [], Ledger.charge, os.replace
    beside = tmp_path / "heart.store.new"

    def watched(*arguments: Any, **settings: Any) -> Any:
        sizes.append(beside.stat().st_size)
        return charge(*arguments, **settings)

    def watched_move(*paths: Any) -> None:
        sizes.append(beside.stat().st_size)
        moved(*paths)

    def unsupported(*arguments: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(Ledger, "charge", watched)
    monkeypatch.setattr(os, "replace", watched_move)
    if not is_supported:
        monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert isinstance(ask(site), Update)
    assert sizes == [site._room, site.store.stat().st_size]
    assert sizes[0] >= sizes[1]


def test_a_folder_that_cannot_be_written_to_refuses_before_anything_is_charged(tmp_path, seen):
    site = site_of(tmp_path, store=tmp_path / "gone" / "heart.store")
    answer = ask(site)
    assert is_data_free(answer)
    assert "charged" not in seen
    assert "read" not in seen
    assert site.ledger.entries() == ()


def test_a_ledger_that_cannot_be_written_refuses_and_nothing_is_read(tmp_path, monkeypatch, seen):
    """Full, failing, read-only or held by another process; what else is wrong with a ledger is an error, as it was."""
    site = site_of(tmp_path, ledger=replace(ledger_of(tmp_path), timeout=0.01))
    with sqlite3.connect(tmp_path / "site.ledger", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert is_data_free(answer := ask(site))
        assert "nothing was read" in answer.reason
        other.execute("ROLLBACK")
    other.close()
    price = Ledger.price_of
    for code in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_READONLY", "SQLITE_CANTOPEN"):

        def fail(*arguments: Any, code: str = code) -> Any:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = code
            raise error

        monkeypatch.setattr(Ledger, "price_of", fail)
        assert is_data_free(ask(site)), code
    monkeypatch.setattr(Ledger, "price_of", price)
    assert "read" not in seen
    assert site.ledger.entries() == ()
    assert not list(tmp_path.glob("*.new"))
    assert isinstance(ask(site), Update)


# A small disk of its own, by Linux's namespaces; its free pages are the number of the round. The store needs about 18.
FULL = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
import numpy as np
import jax.numpy as jnp
from tacit.federated.messages import Broadcast, Update
from tacit.federated.moments import Moments
from tacit.federated.responder import Responder
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanism import Access, SubsampledGaussian
from tacit.privacy.randomness import insecure_key
from tacit.tables.scaling import Range

folder, page = Path(sys.argv[1]), 4096
bounds = Range(-jnp.ones(6000), jnp.ones(6000))
access = Access.of(np.zeros((4, 6000), np.float32), SubsampledGaussian(2.0, 4000.0))
content = dict(low=-np.ones(6000, np.float32), high=np.ones(6000, np.float32))
ledger = Ledger.create(folder / "ledger", data_set="a", epsilon=50.0, delta=1e-5, accountant="zcdp")
site = Responder("north", "heart", Moments(bounds), access, insecure_key(0), ledger, folder / "store")
for round in range(40):
    filler = folder / "filler"
    filler.write_bytes(b"")
    os.posix_fallocate(os.open(filler, os.O_RDWR), 0, (os.statvfs(folder).f_bavail - round) * page)
    before = len(ledger.entries())
    answer = site(Broadcast("heart", round, content))
    print(len(ledger.entries()) - before, isinstance(answer, Update), getattr(answer, "reason", ""))
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs Linux's unshare")
def test_on_a_small_disk_whatever_is_free_all_that_is_charged_is_answered(tmp_path):
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path)]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    script = FULL.format(path=sys.path)
    done = subprocess.run(
        [*command, sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [tuple(line.split(maxsplit=2)[:2]) for line in done.stdout.splitlines()]
    assert set(rows) == {("0", "False"), ("1", "True")}, rows
    assert (rows[0], rows[-1], len(rows)) == (("0", "False"), ("1", "True"), 40)


# --- How many updates a plan has ----------------------------------------------------------------------------------


def test_a_site_makes_no_more_updates_than_the_plan_has(tmp_path, seen):
    """Whatever is left of its budget; also after a restart, and the last answer can still be had again."""
    site = site_of(tmp_path, most=2)
    assert site.last_round == -1
    answers = [ask(site, round) for round in (0, 4)]
    assert all(isinstance(answer, Update) for answer in answers)
    seen.clear()
    for each in (site, site_of(tmp_path, most=2)):
        assert each.last_round == 4
        refused = ask(each, 5)
        assert isinstance(refused, Refusal)
        assert "the plan has 2 updates, and all were made" in refused.reason
        assert encode(ask(each, 4)) == encode(answers[-1])
    assert seen == []
    assert len(site.ledger.entries()) == 2


def test_a_round_that_was_lost_is_not_among_the_updates_that_were_made(tmp_path, monkeypatch):
    site = site_of(tmp_path, most=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert isinstance(ask(site, 0), Refusal)
    assert isinstance(ask(site, 1), Update)
    assert isinstance(ask(site, 2), Refusal)


# --- Many studies, many sites, one data set ----------------------------------------------------------------------


def test_two_studies_on_one_data_set_share_its_budget(tmp_path):
    ledger = ledger_of(tmp_path, updates=3)
    heart = site_of(tmp_path, ledger=ledger)
    lung = site_of(tmp_path, ledger=ledger, study="lung", store=tmp_path / "lung.store")
    kinds = [type(ask(heart, 0)), type(ask(lung, 0, study="lung")), type(ask(heart, 1))]
    assert kinds == [Update] * 3
    assert isinstance(ask(lung, 1, study="lung"), Refusal)
    assert isinstance(ask(heart, 2), Refusal)
    assert [(e.study, e.round) for e in ledger.entries()] == [("heart", 0), ("lung", 0), ("heart", 1)]
    ledger.verify()


COLUMNS = 3
BOUNDS = Range(-jnp.ones(COLUMNS), jnp.ones(COLUMNS))
LISTENER = Moments(BOUNDS)  # its answer is its release


def answer_of(
    key: Any, name: str = "north", study: str = "heart", round: int = 0, bounds: Range = BOUNDS, count: int = 0
) -> tuple[float, ...]:
    """What a site with so many records answers: without records, noise alone."""
    clip = moments_clip(COLUMNS)
    access = Access.of(np.full((count, COLUMNS), 0.5, np.float32), SubsampledGaussian(clip, 1.0), slots=4)
    site = Responder(name, study, LISTENER, access, key, None)
    answer = site(Broadcast(study, round, {"low": np.asarray(bounds.low), "high": np.asarray(bounds.high)}))
    assert isinstance(answer, Update)
    return tuple(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(answer.content)]).tolist())


def test_no_two_rounds_sites_or_studies_share_their_noise_even_if_they_were_handed_one_key():
    """Rounds beyond 32 bits are rounds of their own: a coordinator chooses them."""
    cases: list[dict[str, Any]] = [{"round": r} for r in (0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1)]
    cases += [
        {"name": "south"},
        {"study": "lung"},
        {"name": "nort", "study": "hheart"},
        {"name": "heart", "study": "north"},
    ]
    found = [answer_of(KEY, **case) for case in cases]
    numbers = [number for noise in found for number in noise]
    assert len(set(found)) == len(cases)
    assert len(set(numbers)) > 0.99 * len(numbers), "not even one number of another's, but by chance"
    assert answer_of(KEY) == found[0], "the check sees noise that is the same"


def test_a_process_that_starts_again_makes_noise_of_its_own():
    assert answer_of(tacit.secure_key()) != answer_of(tacit.secure_key())


def test_nothing_in_a_broadcast_reaches_the_noise_the_clip_or_the_price(tmp_path):
    """A coordinator that sends narrow bounds, to make one record count for more, changes not a bit of the answer."""
    narrow = Range(-1e-3 * jnp.ones(COLUMNS), 1e-3 * jnp.ones(COLUMNS))
    assert answer_of(KEY, count=4) == answer_of(KEY, count=4, bounds=narrow) != answer_of(KEY)
    site = site_of(tmp_path)
    for round, q in enumerate([content(), content(1e6), numpy(DiagonalGaussian.standard(DIMENSION, 1e-3))]):
        ask(site, round, q)
    assert {entry.event for entry in site.ledger.entries()} == {EVENT}


def test_a_refusal_says_the_same_whatever_the_records(tmp_path):
    """With all records, with one less, with none: only the released answer may differ."""
    refusals = []
    for count in (RECORDS, RECORDS - 1, 0):
        (tmp_path / str(count)).mkdir()
        site = site_of(tmp_path / str(count), access=access_of(count))
        ask(site, 2)
        refusals.append([encode(site(make())) for make, _ in BAD.values()])
    assert refusals[0] == refusals[1] == refusals[2]


def test_a_refusal_for_lack_of_budget_says_the_same_whatever_the_records(tmp_path):
    reasons = []
    for count in (RECORDS, 0):
        (tmp_path / str(count)).mkdir()
        ledger_of(tmp_path / str(count), updates=2)
        site = site_of(tmp_path / str(count), access=access_of(count))
        reasons.append([encode(ask(site, round)) for round in range(3)][-1])
    assert reasons[0] == reasons[1]


# --- A whole run -------------------------------------------------------------------------------------------------


def test_no_site_passes_its_budget_over_a_whole_run(tmp_path):
    """Three sites with budgets of their own and sampled records: each takes part as long as it can, and no longer."""
    mechanism = SubsampledGaussian(2.0, 2.0, sampling_rate=0.5)
    whole = access_of(mechanism=mechanism)
    one = mechanism.level_events(whole.slots, "record", DIMENSION + DIMENSION**2)[0]
    sites = []
    for m, updates in enumerate((1, 3, 5)):
        (tmp_path / str(m)).mkdir()
        budget = 1.0001 * accounting.epsilon(Repeated(one, updates), 1e-5)
        ledger = ledger_of(tmp_path / str(m), epsilon=budget, accountant="pld")
        sites.append(site_of(tmp_path / str(m), name=f"site {m}", access=whole, ledger=ledger))
    end = coordinator.run(PVI_STUDY, DirectTransport(sites), 3, synchronous(3, 7), "heart")
    assert [site.updates for site in sites] == [1, 3, 5]
    assert end.communications == 9
    assert set(end.refused) == {0, 1, 2}
    for site, updates in zip(sites, (1, 3, 5), strict=True):
        site.ledger.verify()
        assert site.ledger.spent() <= site.ledger.epsilon
        assert site.ledger.spent() == pytest.approx(accounting.epsilon(Repeated(one, updates), 1e-5), rel=1e-6)
        assert "would be exceeded" in end.refused[int(site.name[-1])]
