"""Whatever comes from outside is read whole or refused by a ValueError of one line: nothing else ever happens.

Messages, study and site files, tables, events and ledgers are made of anything at all (by hypothesis) and of sound ones
with something changed (by seeded loops). Each loop is also run on a reader with a planted fault, and must see it.
"""

import copy
import datetime
import hashlib
import json
import math
import random
import re
import sqlite3
import time
import tomllib
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated.messages import Broadcast, Refusal, Update, decode, decode_tree, encode, encode_tree
from tacit.files.example_site import example_site
from tacit.files.schedule_file import read_schedule
from tacit.files.site_file import SiteFile, Unfit, read_site
from tacit.files.study_file import StudyFile, read_study
from tacit.privacy import events, ledger, ledger_file
from tacit.privacy.events import Event, Gaussian, Laplace, NonPrivate, PoissonSampled, Repeated, TruncatedPoissonSampled
from tacit.privacy.ledger import AlreadyCharged, BudgetExceeded, Ledger
from tacit.privacy.ledger_file import BrokenLedger
from tacit.study.program import Program
from tacit.tables.facts import Facts
from tacit.tables.files import read_frame
from tacit.tables.table import Table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def outcome(read: Callable[..., Any], *given: Any, kinds: tuple[type, ...] = (ValueError,), shown: Any = None) -> Any:
    """What `read` makes of its input, or its refusal: one line, of one of these kinds and no subclass of them."""
    try:
        return read(*given)
    except Exception as error:
        if type(error) in kinds and "\n" not in str(error):
            return error
        raise AssertionError(f"{error!r} for {shown or given!r:.3000}") from error


# --- How sound input is changed ----------------------------------------------------------------------------------

# Plain values that do not belong; immutable, for they are handed out again and again.
ODD = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63), 10**400, -(10**400), 2**20_000),
    *(0.0, -0.0, 0.5, 1.0, -2.5, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", "a", "\n", "\r", "a\0b", "\x1b[2J", "é 北 🚫", "x" * 300, "1", "nan", "..", "/", "type", "float64"),
)


def altered(rng: random.Random, plain: Any) -> Any:
    """Plain data with a part replaced, left out, doubled, renamed, moved or put deeper. The data are changed."""
    for _ in range(rng.choice((1, 1, 2))):
        places: list[tuple[Any, Any]] = []
        waiting = [plain]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict | list):
                keys = list(part) if isinstance(part, dict) else range(len(part))
                places += [(part, key) for key in keys]
                waiting += [part[key] for key in keys]
        if not places:
            return rng.choice(ODD)
        part, key = rng.choice(places)
        match rng.randrange(6):
            case 0 | 1:
                part[key] = rng.choice(ODD)
            case 2:
                del part[key]
            case 3:
                name = rng.choice([other for _, other in places] + ["", "a"])
                if isinstance(part, dict):
                    part[str(name)] = part.pop(key)
                else:
                    part.append(part[key])
            case 4:
                other, place = rng.choice(places)
                part[key] = copy.deepcopy(other[place])  # a copy: no part may hold itself
            case 5:
                value = part[key]
                part[key] = rng.choice([[value], [value, 1], {"a": value}, {"entries": {"a": value}}])
    return plain


WORDS = (
    *('"', "'", "[", "]", "{", "}", "=", ",", ":", ".", "#", "\n", "\r", "\0", " ", "\\", "\ufeff", "é", "\U0001f6ab"),
    *("0", "-1", "1e999", "nan", "inf", "true", "null", "1979-05-27", "9" * 5000, "0x" + "f" * 5000, "[" * 3000),
    *("{a=" * 3000, '{"a":' * 3000, '"""', "[[a]]", "[a]", "a.b", "x" * 200_000),
)


def scribbled(rng: random.Random, text: str) -> str:
    """Text with one to three of its words or marks replaced, left out, put in or exchanged."""
    words = re.findall(r"\w+|\s|[^\w\s]", text)
    for _ in range(rng.randint(1, 3)):
        place, other = rng.randrange(len(words)), rng.randrange(len(words))
        match rng.randrange(5):
            case 0:
                words[place] = rng.choice(WORDS)
            case 1 if len(words) > 1:
                del words[place]
            case 2:
                words.insert(place, rng.choice(WORDS))
            case 3:
                words.insert(place, words[other])
            case _:
                words[place], words[other] = words[other], words[place]
    return "".join(words)


# --- Messages ----------------------------------------------------------------------------------------------------

Diagonal: Any = DiagonalGaussian  # of NumPy arrays, as families are when they come back
Full: Any = FullGaussian
DEEP: Any = np.float32(1.0)
for _ in range(8):
    DEEP = {"a": DEEP}
MESSAGES = (
    encode(Broadcast("heart", 3, Diagonal(np.arange(2.0, dtype=np.float32), np.ones(2, np.float32)))),
    encode(Update("heart", "north", 2**40, {"q": Full(np.ones(2), np.eye(2)), "n": np.int64(-2)})),
    encode(Update("s", "t", 0, {"b": np.array([True, False, True]), "none": np.zeros((0, 3), np.int32)})),
    encode(Refusal("heart", "north", 7, "the budget is spent")),
    encode_tree({"state": {"0": np.arange(3.0)}, "place": np.array([1, 2])}),
    encode_tree(DEEP),
)
START = 11  # of the header: after the name, the version and the length
READERS = ((decode, encode), (decode_tree, encode_tree))
PATIENCE = 1.0  # seconds of processor time for one input: thousands of times what it takes
MOST_LEFT = 300_000  # bytes that may stay after the inputs that are watched: of a million, three for each
MOST_AT_ONCE = 4_000_000  # bytes for one input: they have at most some 200,000, and text takes several for each

# Every sentence with which a message is refused: a fuzzer that meets them all reaches every check there is.
SENTENCES = (
    *("is no message, or cut short", "is of version", "does not match its hash", "inside of data", "canonical JSON"),
    *(" with [", "is neither a dict", "are left; send it again", "truth values", "after the last array"),
    *("1 to 200 printable", "inside 8 others", "of type", "of shape", "one floating type"),
    *("expected a Python int", "1 to 2000 printable", "read it with decode_tree", "so read it with decode"),
)


def sealed(header: bytes, payload: bytes, length: int | None = None) -> bytes:
    """A message that its hash and, if none is given, its length fit: the parser inside is reached."""
    length = len(header) if length is None else length
    return hashed(b"tacit\0\1" + length.to_bytes(4, "big") + header + payload)


def hashed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def scattered(rng: random.Random) -> bytes:
    """Random bytes: alone, behind the name of the format, or as the header or the arrays of a sound message."""
    some = rng.randbytes(rng.randrange(200))
    match rng.randrange(4):
        case 0:
            return some
        case 1:
            return hashed(b"tacit\0" + some)
        case 2:
            return sealed(some, b"")
    return sealed(b'{"content":{"dtype":"bool","shape":[%d]},"kind":"tree"}' % rng.randrange(200), some)


def damaged(rng: random.Random) -> bytes:
    """A sound message with something changed; hashed anew in most cases, so that a hash does not hide the rest."""
    data = rng.choice(MESSAGES)
    end = START + int.from_bytes(data[START - 4 : START], "big")
    header, payload = data[START:end], data[end:-32]
    match rng.randrange(8):
        case 0:  # bits of all of it, hashed or not
            changed = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return rng.choice([bytes(changed), hashed(bytes(changed[:-32]))])
        case 1:
            cut = data[: rng.randrange(len(data))]
            return rng.choice([cut, hashed(cut)])
        case 2:  # the beginning of one and the end of another
            other = rng.choice(MESSAGES)
            return hashed(data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) : -32])
        case 3:
            return sealed(header, payload, rng.choice([0, 1, len(header) - 1, len(header) + 1, 2**31, 2**32 - 1]))
        case 4:
            place = rng.randrange(len(payload) + 1)
            some = rng.randbytes(rng.randrange(9))
            return sealed(header, payload[:place] + some + payload[place + rng.randrange(9) :])
        case 5:
            return sealed(scribbled(rng, header.decode()).encode(), payload)
    plain = altered(rng, json.loads(header))
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    except ValueError:  # an integer of too many digits
        return sealed(b"", payload)
    return sealed(text, payload)


def fuzz_decoder(count: int, readers: Any = READERS, patience: float = PATIENCE) -> Counter[str]:
    """`count` inputs, every other one random bytes: how many were accepted, and how often each sentence was met.

    Memory is looked at over the last tenth of them, for that takes five times as long.
    """
    rng, found, slowest = random.Random(count), Counter[str](), 0.0
    try:
        for turn in range(count):
            if turn == count - count // 10:
                tracemalloc.start()
            data = damaged(rng) if turn % 2 else scattered(rng)
            before = time.process_time()  # of this process: other work on the machine does not count
            for read, write in readers:
                got = outcome(read, data)
                if isinstance(got, ValueError):
                    found.update([next((s for s in SENTENCES if s in str(got)), str(got))])
                else:
                    assert write(got) == data, f"accepted, and not the encoding of what it says: {data!r}"
                    found["accepted"] += 1
            slowest = max(slowest, time.process_time() - before)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < MOST_LEFT, f"{left} bytes are left after the last {count // 10} inputs"
    assert peak < MOST_AT_ONCE, f"{peak} bytes at once"
    assert slowest < patience, f"one input took {slowest:.3f} s"
    return found


def check_coverage(found: Counter[str], count: int) -> None:
    assert set(found) == {"accepted", *SENTENCES}, "every check was reached, and none is unknown here"
    assert 0.01 * count < found["accepted"] < 0.3 * count


def test_any_bytes_are_one_encoding_of_a_message_or_refused():
    check_coverage(fuzz_decoder(20_000), 20_000)


@pytest.mark.slow
def test_a_million_byte_strings_are_one_encoding_of_a_message_or_refused():
    check_coverage(fuzz_decoder(1_000_000), 1_000_000)


def faulty(data: bytes) -> Any:
    """Forgets that the type of an array may be unknown."""
    if re.search(rb'"dtype":"(?!bool|float|int)', data):
        raise KeyError("dtype")
    return decode(data)


def lenient(data: bytes) -> Any:
    """Does not look at the hash."""
    return decode(hashed(data[:-32]))


def slow(data: bytes) -> Any:
    """Takes its time over a round that is far off."""
    if b'"round":10000000' in data:
        sum(range(10**7))
    return decode(data)


@cache
def remembered(data: bytes) -> bytes:
    return data + bytes(5000)


def forgetful(data: bytes) -> Any:
    """Forgets to let go of what it has read."""
    remembered(data)
    return decode(data)


@pytest.mark.parametrize(
    ("read", "words"),
    [(faulty, "KeyError"), (lenient, "not the encoding"), (slow, "one input took"), (forgetful, "bytes are left")],
)
def test_a_reader_of_messages_with_a_fault_is_noticed(read, words):
    with pytest.raises(AssertionError, match=words):
        fuzz_decoder(3000, ((read, encode),), patience=0.02)


# --- StudyFile files and schedules -----------------------------------------------------------------------------------

STUDIES = (
    'name = "heart"\nmodel = "logistic"\ntarget = "ill"\nrounds = 7\nschedule = "asynchronous"\ndelay = 2\n'
    "schedule_seed = 5\nepsilon = 1.0\ndelta = 1e-5\nprior_deviation = 2\nevaluation = 0.1\n"
    '[facts]\nclasses = ["no", "yes"]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"] }\n'
    '[test]\nfile = "north.csv"\n'
    '[[site]]\nname = "north"\nfile = "north.csv"\nepsilon = 2\n[[site]]\nname = "south"\nfile = "south.csv"\n',
    'model = "linear"\nepsilon = inf\ndelta = 1e-5\ntarget = "age"\nmethod = "vi"\nnoise_scale = 0.5\n'
    'columns = ["sex"]\nfacts = { bounds = { age = [0, 110] }, categories = { sex = ["F", "M"] } }\n'
    "[vi]\nsteps = 3\nclip = 4\nnoise_multiplier = 5\nsampling_rate = 0.5\nlearning_rate = 0.1\ndamping = 0.2\n"
    '[data]\nfile = "north.csv"\nsplit = "group"\nby = "ill"\n',
    'model = "probit"\nepsilon = 1\ndelta = 1e-5\ndropout = 0.1\nadjacency = "replace-one"\n'
    '[data]\ndataset = "adult"\nsplit = "dirichlet"\nsites = 10\nconcentration = 0.5\nseed = 3\n',
)
RECORDS = "age,sex,ill\n31,F,no\n58,M,yes\n44,M,no\n25,F,yes\n"
SCHEDULE = "noise_multiplier,sampling_rate,steps\n5.0,0.01,100\n2.5,1,3\n1e2,0.5,1000000\n"


def toml(value: Any) -> str:
    """A value as TOML, tables in one line."""
    match value:
        case bool():
            return str(value).lower()
        case int() if value > 10**1000:
            return hex(value)  # Python writes no longer ones in decimal
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{toml(name)} = {toml(part)}' for name, part in value.items())}}}"
        case None:
            return str(datetime.date(1979, 5, 27))  # TOML has dates, and no null
    return str(value)


def changed_file(rng: random.Random, text: str) -> str:
    """A TOML file with its text or its values changed."""
    if rng.random() < 0.5:
        return scribbled(rng, text)
    plain = altered(rng, tomllib.loads(text))
    if not isinstance(plain, dict):
        return toml(plain)
    return "\n".join(f"{toml(name)} = {toml(value)}" for name, value in plain.items())


def check_study(path: Path, read: Any = read_study) -> bool:
    """A study, or a refusal that begins with the file's name. The records of a study are read and refused likewise."""
    study = outcome(read, path, shown=path.read_bytes())
    if isinstance(study, ValueError):
        assert str(study).startswith(f"study={path}"), study
        return False
    assert isinstance(study, StudyFile)
    assert Program(study.plan).rounds >= 1
    if study.settings.data is None or study.settings.data.dataset is None:  # the embedded ones take a second
        for sites in (outcome(study.gather, shown=path.read_bytes()), outcome(study.outline, shown=path.read_bytes())):
            assert isinstance(sites, ValueError) or len(sites[0]) >= 1
        names = outcome(study.names, shown=path.read_bytes())
        for name in [] if isinstance(names, ValueError) else names[:1]:
            text = outcome(example_site, study, name)
            if not isinstance(text, ValueError):
                own = path.with_name("example.toml")
                own.write_text(text, encoding="utf-8")
                assert read_site(own).settings.name == name
    return True


SITES = (
    'name = "north"\nkit = "kit"\nstate = "state"\ndata = "north.csv"\ntarget = "ill"\ncolumns = ["age", "sex"]\n'
    "slots = 10\ninsecure_seed = 7\n[limits]\nepsilon = 1.0\ndelta = 1e-5\nleast_noise = 1\n"
    'models = ["logistic", "probit"]\nmethods = ["natural"]\nunit = "record"\nadjacency = "add-remove"\n'
    'studies = ["heart"]\nmost_rounds = 9\n[shares]\nspent = true\nevaluation = false\n'
    '[facts]\nclasses = ["no", "yes"]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"] }\n',
    'name = "no"\ntarget = "age"\ncolumns = ["sex"]\n[data]\nfile = "north.csv"\nsplit = "group"\nby = "ill"\n'
    '[limits]\nepsilon = 1\ndelta = 1e-5\nmodels = ["linear"]\n'
    '[facts]\nbounds = { age = [0, 110] }\ncategories = { sex = ["F", "M"] }\n',
    'name = "site-01"\n[limits]\nepsilon = 1\ndelta = 1e-5\nmodels = ["probit"]\n'
    '[data]\ndataset = "adult"\nsplit = "dirichlet"\nsites = 10\nconcentration = 0.5\nseed = 3\n',
)


def check_site(path: Path, read: Any = read_site) -> bool:
    """A site, or a refusal that begins with the file's name. Records are read, or refused with no path for others."""
    site = outcome(read, path, shown=path.read_bytes())
    if isinstance(site, ValueError):
        assert str(site).startswith(f"site={path}"), site
        return False
    assert isinstance(site, SiteFile)
    assert 0 < site.settings.limits.epsilon < math.inf
    if isinstance(site.settings.data, str) or site.settings.data.dataset is None:
        link = site.settings.limits.models[0]
        public = outcome(site.public_table, None, None, link, shown=path.read_bytes())
        assert isinstance(public, Table), public  # all that is public is checked before
        table = outcome(site.table, None, None, link, kinds=(Unfit,), shown=path.read_bytes())
        if isinstance(table, Unfit):
            assert str(path) not in table.public
        else:
            assert table.names == public.names
            assert len(table.target) <= site.slots
    return True


def fuzz_sites(path: Path, count: int, read: Any = read_site) -> int:
    """How many of `count` changed site files are sites."""
    rng, accepted = random.Random(count), 0
    (path.parent / "north.csv").write_text(RECORDS)
    for _ in range(count):
        path.write_text(changed_file(rng, rng.choice(SITES)), encoding="utf-8")
        accepted += check_site(path, read)
    return accepted


def fuzz_studies(path: Path, count: int, read: Any = read_study) -> int:
    """How many of `count` changed study files are studies."""
    rng, accepted = random.Random(count), 0
    for name in ("north", "south"):
        (path.parent / f"{name}.csv").write_text(RECORDS)
    for _ in range(count):
        path.write_text(changed_file(rng, rng.choice(STUDIES)), encoding="utf-8")
        accepted += check_study(path, read)
    return accepted


def test_a_changed_study_file_is_a_study_or_refused_with_its_name(folder):
    assert 0.05 * 1200 < fuzz_studies(folder / "study.toml", 1200) < 0.6 * 1200


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_file_is_a_study_or_refused_with_its_name(folder, content):
    path = folder / "any.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert not check_study(path)


@pytest.mark.parametrize("text", STUDIES)
def test_the_studies_that_are_changed_are_sound(folder, text):
    for name in ("north", "south"):
        (folder / f"{name}.csv").write_text(RECORDS)
    path = folder / "study.toml"
    for sound in (text, "\n".join(f"{name} = {toml(value)}" for name, value in tomllib.loads(text).items())):
        path.write_text(sound)
        assert check_study(path)


def test_a_changed_site_file_is_a_site_or_refused_with_its_name(folder):
    assert 0.05 * 1200 < fuzz_sites(folder / "site.toml", 1200) < 0.6 * 1200


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_file_is_no_site(folder, content):
    path = folder / "any.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert not check_site(path)


@pytest.mark.parametrize("text", SITES)
def test_the_sites_that_are_changed_are_sound(folder, text):
    (folder / "north.csv").write_text(RECORDS)
    path = folder / "site.toml"
    for sound in (text, "\n".join(f"{name} = {toml(value)}" for name, value in tomllib.loads(text).items())):
        path.write_text(sound)
        assert check_site(path)


def test_a_reader_of_site_files_with_a_fault_is_noticed(folder):
    def faulty(path: Path) -> SiteFile:
        site = read_site(path)
        assert site.settings.model_dump(exclude_none=True)["insecure_seed"], "as if it were never left out"
        return site

    with pytest.raises(AssertionError, match="KeyError"):
        fuzz_sites(folder / "site.toml", 200, faulty)


def test_a_reader_of_study_files_with_a_fault_is_noticed(folder):
    def faulty(path: Path) -> StudyFile:
        study = read_study(path)
        assert study.settings.model_dump(exclude_none=True)["columns"], "as if they were never left out"
        return study

    with pytest.raises(AssertionError, match="KeyError"):
        fuzz_studies(folder / "study.toml", 200, faulty)


def check_schedule(path: Path, read: Any = read_schedule) -> bool:
    levels = outcome(read, path, shown=path.read_bytes())
    if isinstance(levels, ValueError):
        assert str(levels).startswith(f"schedule={path}"), levels
        return False
    assert levels
    for level in levels:
        assert isinstance(level, Repeated)
        assert level.steps >= 1
        assert events.from_json(events.to_json(level)) == level
    return True


def fuzz_schedules(path: Path, count: int, read: Any = read_schedule) -> int:
    rng, accepted = random.Random(count), 0
    for _ in range(count):
        path.write_text(scribbled(rng, SCHEDULE), encoding="utf-8")
        accepted += check_schedule(path, read)
    return accepted


def test_a_changed_schedule_is_a_schedule_or_refused_with_its_name(folder):
    assert 25 < fuzz_schedules(folder / "schedule.csv", 1000) < 750


@given(st.text(max_size=100) | st.binary(max_size=100), st.booleans())
def test_any_file_is_a_schedule_or_refused_with_its_name(folder, content, has_names):
    path = folder / "any.csv"
    lines = b"noise_multiplier,sampling_rate,steps\n" if has_names else b""
    path.write_bytes(lines + (content if isinstance(content, bytes) else content.encode()))
    check_schedule(path)


def test_a_reader_of_schedules_with_a_fault_is_noticed(folder):
    def faulty(path: Path) -> Any:
        levels = read_schedule(path)
        assert all(level.event.sampling_rate for level in levels), "as if all of them were on samples"
        return levels

    with pytest.raises(AssertionError, match="AttributeError"):
        fuzz_schedules(folder / "schedule.csv", 100, faulty)


# --- Facts and tables --------------------------------------------------------------------------------------------

SECRET = "s3cr3t"
FACTS_FILE = 'classes = ["no", "yes"]\n[bounds]\nage = [0, 110]\n[categories]\nregion = ["north", "south", "NA"]\n'
FACTS = Facts({"age": (0.0, 110.0)}, {"region": ("north", "south", "NA")}, ("no", "yes"))
HEADER = "age,weight,smoker,region,ill\n"
PEOPLE = "31,61.5,True,north,no\n58,80.25,False,NA,yes\n44,70.0,False,south,yes\n25,55.0,True,north,no\n"
CELLS = (
    *("", "NA", "nan", "inf", "-inf", "1e999", "-1e39", "1e-400", "9" * 30, "9" * 400, "18446744073709551616", "-0"),
    *("0x10", "1_0", "+5", "1.5.2", "1+2j", "2020-01-01", "TRUE", "False"),
    *("\t", "  ", "'", '""', '"', '"\n"', "\r", "\0"),
    *(SECRET, f'"{SECRET}', f'"{SECRET}"', f"{SECRET},1", f"{SECRET}\0", f"{SECRET}\n", f"1{SECRET}"),
)


def check_facts(facts: Any) -> bool:
    if isinstance(facts, ValueError):
        return False
    assert isinstance(facts, Facts)
    assert all(math.isfinite(low) and math.isfinite(high) and low < high for low, high in facts.bounds.values())
    for labels in (*facts.categories.values(), facts.classes or ()):
        assert len(set(labels)) == len(labels)
        assert all(isinstance(label, str) and label for label in labels)
    return True


def test_a_changed_schema_is_facts_or_refused_with_its_name(folder):
    rng, path, accepted = random.Random(7), folder / "facts.toml", 0
    for _ in range(1000):
        path.write_text(changed_file(rng, FACTS_FILE), encoding="utf-8")
        facts = outcome(Facts.given, path, shown=path.read_bytes())
        assert not isinstance(facts, ValueError) or str(facts).startswith(f"schema={path}"), facts
        accepted += check_facts(facts)
    assert 50 < accepted < 700


@given(st.lists(st.text(st.sampled_from('ab=,:"\r\n\0\\ 09.e-'), max_size=12) | st.text(max_size=12), max_size=3))
@settings(max_examples=300)
def test_any_words_on_the_command_line_are_facts_or_refused(words):
    for bounds, categories in ((words, ()), ((), words)):
        check_facts(outcome(lambda b=bounds, c=categories: Facts.given(bounds=b, categories=c), shown=words))
    for text in words:
        check_facts(outcome(lambda t=text: Facts.given(classes=t), shown=text))


def check_table(path: Path, target: str, model: str, read: Any = read_frame) -> bool:
    """A table of numbers, or a refusal without a value of a record."""
    facts = FACTS if model == "logistic" else Facts(FACTS.bounds, FACTS.categories | {"ill": ("no", "yes")})

    def whole() -> Table:
        return Table.of_frame(read(path, facts.listed(target)), target, model, facts=facts)

    table = outcome(whole, shown=path.read_bytes())
    if isinstance(table, ValueError):
        assert SECRET not in str(table), table
        return False
    count, columns = table.features.shape
    assert count >= 2
    assert columns == len(table.names)
    assert table.target.shape == (count,)
    for numbers in (table.features, table.target):
        assert numbers.dtype == np.float32
        assert np.all(np.isfinite(numbers) | np.isnan(numbers))
    return True


def changed_records(rng: random.Random) -> bytes:
    """A CSV file with cells, lines or bytes changed below the names of the columns, which are public."""
    rows = [line.split(",") for line in PEOPLE.splitlines()]
    for _ in range(rng.randint(0, 2)):
        row = rng.choice(rows)
        match rng.randrange(8):
            case 0:
                row.append(rng.choice(CELLS))
            case 1 if len(row) > 1:
                row.pop(rng.randrange(len(row)))
            case 2:
                rows.append(list(row))
            case _:
                row[rng.randrange(len(row))] = rng.choice(CELLS)
    text = "\n".join(map(",".join, rows)).encode()
    if rng.random() < 0.2:
        place = rng.randrange(len(text))
        text = text[:place] + rng.randbytes(rng.randrange(3)) + text[place + rng.randrange(3) :]
    return HEADER.encode() + text + rng.choice([b"", b"\n", b"\r\n\r\n"])


def fuzz_tables(path: Path, count: int, read: Any = read_frame) -> int:
    """How many of `count` changed CSV files are tables."""
    rng, accepted = random.Random(count), 0
    for _ in range(count):
        path.write_bytes(changed_records(rng))
        accepted += check_table(path, *rng.choice([("ill", "logistic"), ("weight", "linear")]), read)
    return accepted


def test_changed_records_are_a_table_or_refused_without_a_value_of_a_record(folder):
    assert 0.2 * 600 < fuzz_tables(folder / "records.csv", 600) < 0.8 * 600


@given(st.text(max_size=100) | st.binary(max_size=100), st.booleans())
def test_any_file_is_a_table_or_refused(folder, content, has_names):
    path = folder / "anything.csv"
    lines = HEADER.encode() if has_names else b""
    path.write_bytes(lines + (content if isinstance(content, bytes) else content.encode()))
    check_table(path, "ill", "logistic")


def test_a_reader_of_tables_that_quotes_a_value_or_has_another_fault_is_noticed(folder):
    def quoting(path: Path, listed: Any) -> Any:
        frame = read_frame(path, listed)
        odd = [value for value in frame["region"] if value not in listed["region"]]
        if odd:
            raise ValueError(f"column 'region' has {odd[0]!r}; expected a category")
        return frame

    def faulty(path: Path, listed: Any) -> Any:
        frame = read_frame(path, listed)
        return frame.assign(smoker=~frame["smoker"])  # as if it were always True or False

    with pytest.raises(AssertionError, match=SECRET):
        fuzz_tables(folder / "records.csv", 500, quoting)
    with pytest.raises(AssertionError, match="TypeError"):
        fuzz_tables(folder / "records.csv", 500, faulty)


COLUMNS = {
    "lists": pa.array([[1], [2]]),
    "dicts": pa.array([{"a": 1}, {"a": 2}]),
    "maps": pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "bytes": pa.array([b"north", SECRET.encode()]),
    "decimals": pa.array([1, 2], pa.decimal128(5, 2)),
    "dates": pa.array([1, 2], pa.date32()),
    "times": pa.array([-(10**18), 10**18], pa.timestamp("us", "UTC")),
    "durations": pa.array([1, 2], pa.duration("s")),
    "nothing": pa.array([None, None]),
    "half precision": pa.array(np.array([1, 2], np.float16)),
    "large": pa.array([2**63, 2**64 - 1], pa.uint64()),
    "text": pa.array(["north", SECRET]),
}


@pytest.mark.parametrize("place", ["weight", "region", "ill", "who"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_any_type_in_a_parquet_file_is_encoded_or_refused(folder, name, place):
    path = folder / "records.parquet"
    columns = {"age": [31.0, 58.0], "weight": [61.5, 80.25], "region": ["north", "south"], "ill": ["no", "yes"]}
    parquet.write_table(pa.table({**columns, "who": [1, 2], place: COLUMNS[name]}), path)

    def whole() -> Table:
        return Table.of_frame(read_frame(path, FACTS.listed("ill")), "ill", "logistic", unit="who", facts=FACTS)

    table = outcome(whole, shown=(name, place))
    assert SECRET not in str(table) if isinstance(table, ValueError) else table.features.shape == (2, 4)


# --- Events ------------------------------------------------------------------------------------------------------

EVENTS: tuple[Event, ...] = (
    Gaussian(2.0, coordinates=6),
    Repeated(TruncatedPoissonSampled(0.5, 20, 10, Gaussian(1.5, "person", "replace-one")), 100),
    events.Composed((Laplace(4.0), Repeated(PoissonSampled(0.01, Gaussian(3.0)), 7), NonPrivate())),
    events.FixedSizeSampled(20, 3, Laplace(1.0)),
)


def fuzz_events(count: int, read: Any = events.from_json) -> int:
    """How many of `count` changed events are events, each of which comes back from its own text."""
    rng, accepted = random.Random(count), 0
    for _ in range(count):
        text = events.to_json(rng.choice(EVENTS))
        if rng.random() < 0.3:
            text = scribbled(rng, text)
        else:
            plain = altered(rng, json.loads(text))
            try:
                text = json.dumps(plain)
            except ValueError:  # an integer of too many digits
                continue
        event = outcome(read, text)
        if not isinstance(event, ValueError):
            assert isinstance(event, Event)
            assert events.from_json(events.to_json(event)) == event
            accepted += 1
    return accepted


def test_a_changed_event_is_an_event_or_refused():
    assert 0.02 * 5000 < fuzz_events(5000) < 0.5 * 5000


def test_a_reader_of_events_with_a_fault_is_noticed():
    def faulty(text: str) -> Event:
        try:
            return events.from_dict(json.loads(text))
        except ValueError:
            return {"non-private": NonPrivate()}[json.loads(text)["type"]]

    with pytest.raises(AssertionError, match=r"KeyError|TypeError"):
        fuzz_events(100, faulty)


# --- Ledgers -----------------------------------------------------------------------------------------------------

BAD_LEDGER = (ValueError, BrokenLedger)
CALLS: tuple[Callable[[Ledger], Any], ...] = (
    Ledger.verify,
    Ledger.to_dict,
    lambda found: found.remaining_after(Laplace(4.0)),
    lambda found: found.charge(Laplace(4.0), study="lung", round=0),
)


@pytest.fixture(scope="module")
def sound(folder: Path) -> Ledger:
    """A ledger with three charges, whose bytes are the same on every day."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_now", lambda: "2026-01-01T00:00:00.000000+00:00")
        made = Ledger.create(folder / "sound.ledger", data_set="a", epsilon=10.0, delta=1e-5, accountant="basic")
        for i in range(3):
            made.charge(Laplace(4.0 + i), study="heart", round=i, note=f"note {i}")
    return made


def opened(path: Path) -> Ledger:
    return Ledger.open(path, timeout=0.1)


def damaged_ledger(rng: random.Random, data: bytes) -> bytes:
    """A ledger's file with bits flipped, bytes changed where there are some, parts cut off or written over."""
    changed = bytearray(data)
    used = [place for place, byte in enumerate(data) if byte]
    match rng.randrange(4):
        case 0:
            return data[: rng.randrange(len(data))]
        case 1:
            place, size = rng.choice(used), rng.randint(1, 200)
            changed[place : place + size] = rng.randbytes(size)
        case 2:  # what SQLite goes by
            changed[rng.randrange(100)] = rng.randrange(256)
        case 3:
            for _ in range(rng.randint(1, 3)):
                changed[rng.choice(used)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def fuzz_ledgers(path: Path, true: Ledger, count: int, read: Any = opened) -> Counter[str]:
    """How many of `count` damaged files are ledgers, and of those how many are sound: they say what was charged."""
    rng, found, data, charged = random.Random(count), Counter[str](), true.path.read_bytes(), true.entries()
    for _ in range(count):
        path.write_bytes(damaged_ledger(rng, data))
        got = outcome(read, path, kinds=BAD_LEDGER)
        if isinstance(got, ValueError):
            continue
        found["opened"] += 1
        assert (got.genesis, got.epsilon, got.delta) == (true.genesis, true.epsilon, true.delta)
        head = outcome(got.verify, kinds=BAD_LEDGER)
        if not isinstance(head, ValueError):
            found["sound"] += 1
            entries = got.entries()
            assert entries == charged[: len(entries)], "the chain shows all but a tail that was cut off"
            assert head == (entries[-1].hash if entries else true.genesis)
    return found


def test_a_damaged_ledger_is_refused_or_says_what_was_charged(folder, sound):
    found = fuzz_ledgers(folder / "damaged.ledger", sound, 600)
    assert 60 < found["opened"] < 540
    assert 30 < found["sound"] < found["opened"]


@given(st.binary(max_size=300), st.booleans())
def test_any_file_is_no_ledger(folder, content, has_name):
    path = folder / "any.ledger"
    path.write_bytes((b"SQLite format 3\0" if has_name else b"") + content)
    assert isinstance(outcome(opened, path, kinds=BAD_LEDGER), ValueError)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "", ".", "no/such/folder"])
def test_a_path_that_cannot_be_a_ledger_is_refused(folder, name):
    assert isinstance(outcome(opened, folder / name), ValueError)


def test_a_reader_of_ledgers_with_a_fault_is_noticed(folder, sound, monkeypatch):
    def faulty(path: Path) -> Ledger:
        assert path.read_bytes()[:16] == b"SQLite format 3\0"
        return opened(path)

    with pytest.raises(AssertionError, match="AssertionError"):
        fuzz_ledgers(folder / "damaged.ledger", sound, 100, faulty)
    monkeypatch.setattr(ledger, "check_hash", lambda *_: None)
    with pytest.raises(AssertionError):
        fuzz_ledgers(folder / "damaged.ledger", sound, 300)


VALUES = (0, -1, 1.5, 2**62, 1e308, -1e308, 5e-324, "", "abc", "1", "pld", "[]", "ε", *map(events.to_json, EVENTS))


def forge(path: Path, data: bytes, column: str, value: Any) -> None:
    """A ledger in which a value is another, by one who makes the hashes right: they have no secret."""
    path.write_bytes(data)
    triggers = [statement for statement in ledger_file.SCHEMA if "TRIGGER" in statement]
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA synchronous=OFF")
        for statement in triggers:
            file.execute(f"DROP TRIGGER {statement.split()[2]}")
        table, name = column.split(".")
        file.execute(f"UPDATE {table} SET {name}=? WHERE rowid=1", (value,))
        (row,) = file.execute(f"SELECT {ledger_file.GENESIS} FROM genesis").fetchall()
        previous = ledger_file.hash_of(ledger_file.GENESIS, row)
        file.execute("UPDATE genesis SET hash=?", (previous,))
        for *values, _ in file.execute(f"SELECT {ledger_file.ENTRY} FROM entries ORDER BY position").fetchall():
            own = ledger_file.hash_of(ledger_file.ENTRY, (*values, previous))
            file.execute("UPDATE entries SET previous=?, hash=? WHERE position=?", (previous, own, values[0]))
            previous = own
        for statement in triggers:
            file.execute(statement)


FORGED = [f"genesis.{name}" for name in ledger_file.GENESIS.split(", ")]
FORGED += [f"entries.{name}" for name in ledger_file.ENTRY.split(", ")[:-1]]  # the last is the hash before


@pytest.mark.parametrize("column", FORGED)
def test_a_ledger_forged_with_right_hashes_is_refused_or_answers(folder, sound, column):
    """It may well be believed, as its docstring says; but whatever is in it, calls end as they promise."""
    path, data = folder / "forged.ledger", sound.path.read_bytes()
    promised = (*BAD_LEDGER, BudgetExceeded, AlreadyCharged)
    for value in VALUES:
        try:
            forge(path, data, column, value)
        except sqlite3.IntegrityError:  # no whole number for a position: the file cannot hold it
            continue
        found = outcome(opened, path, kinds=BAD_LEDGER, shown=value)
        for call in CALLS:
            if not isinstance(found, ValueError):
                outcome(call, found, kinds=promised, shown=(column, value))
