"""Secure sums between machines: the posterior of one process to the bit, by keys that sites have from each other."""

import json
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("nvflare")

from tests.network.conftest import RECORDS, SEED
from tests.network.test_remote import plain, row

from tacit.engines.coordinator import Deserted
from tacit.federated.messages import Update, decode
from tacit.federated.secure_terms import CHARGED, MASK, public_identity
from tacit.files.example_site import example_site
from tacit.files.site_file import read_site
from tacit.network import serve
from tacit.network.channel import Lost
from tacit.network.site_session import identity_of
from tacit.network.status import Status
from tacit.study.front import federate

pytestmark = pytest.mark.xdist_group("clinics")
KNOWN: dict[str, Any] = {}


def key_of(clinics: Any, name: str) -> str:
    return public_identity(identity_of(clinics.state(name))).hex()


def introduce(clinics: Any, **settings: Any) -> None:
    """Each clinic's file has the others' keys, as they told them."""
    clinics.study = clinics.read(secure_sum=True, **settings)
    for name in RECORDS:
        clinics.set(name)
        lines = [f'"{other}" = "{key_of(clinics, other)}"' for other in RECORDS if other != name]
        text = clinics.path(name).read_text()
        head = text.index("[peers]")
        end = text.find("\n[", head + 1)
        rest = text[end:] if end > 0 else ""
        clinics.path(name).write_text(text[:head] + "\n".join(["[peers]", *lines]) + "\n" + rest)


def honest(clinics: Any) -> Any:
    if "found" not in KNOWN:
        sites, _ = clinics.study.gather()
        KNOWN["found"] = federate(clinics.study.plan, sites, insecure_seed=SEED)
    return KNOWN["found"]


def test_the_posterior_is_that_of_one_process_bit_for_bit(clinics):
    introduce(clinics)
    found, alone = clinics.coordinate(), honest(clinics)
    assert plain(found) == plain(alone)
    assert found.tolerance == alone.tolerance
    for name in RECORDS:
        assert (row(found, name)["updates"], row(found, name)["dropped"]) == (3, 0)
        ledger = clinics.ledger(name)
        assert ledger.verify()
        assert len(ledger.entries()) == 4
        assert row(found, name)["spent"] == pytest.approx(ledger.spent())
        assert ledger.spent() <= ledger.epsilon
        kinds = [json.loads(line)["kind"] for line in (clinics.state(name) / "audit.jsonl").read_text().splitlines()]
        assert kinds == ["opened", *["exchanged", "exchanged", "answered", "answered", "answered"] * 4]
        assert "distributed discrete Gaussian noise of" in found.statements[name]
        assert "by shares of 3 sites, of which 2 are counted" in found.statements[name]
        assert "Trust: at least 2 of the 3 sites are honest" in found.statements[name]


def test_what_leaves_a_site_is_masked_whatever_its_records(clinics):
    """Integers of the mask stage are spread evenly over 64 bits; a false alarm in a million keys."""
    introduce(clinics)
    host = clinics.hosted()
    seen: list[np.ndarray] = []

    def overhear(inner: Any, data: bytes) -> Any:
        found = inner(data)
        answer = decode(found[0]) if data != b"hello" else None
        if isinstance(answer, Update) and int(answer.content["stage"]) == MASK:
            seen.append(answer.content["message"]["content"])
        return found

    for name, inner in list(host.post.answers.items()):
        host.post.answers[name] = partial(overhear, inner)
    clinics.coordinate(host)
    numbers = np.concatenate(seen).view("<u8").astype(float) / 2**64
    assert len(numbers) > 60
    assert stats.kstest(numbers, "uniform").pvalue > 1e-6


def test_a_site_killed_in_a_round_costs_the_round_and_the_study_goes_on(clinics):
    introduce(clinics)
    host = clinics.hosted()
    inner, count = host.post.answers["west"], [0]

    def dying(data: bytes) -> Any:
        count[0] += data != b"hello"
        if count[0] == 5 * 2 + 3:  # in the mask stage of the second round of inference, after it was charged
            inner(data)
            clinics.open("west")
            host.post.answers["west"] = clinics.sessions["west"]
            return Lost("it was killed")
        return clinics.sessions["west"](data)

    host.post.answers["west"] = dying
    found = clinics.coordinate(host)
    assert [row(found, name)["updates"] for name in RECORDS] == [2, 2, 2]
    assert clinics.charged("west") == 4
    assert all(clinics.ledger(name).verify() and clinics.ledger(name).spent() <= 2.0 for name in RECORDS)
    assert np.all(np.isfinite(found.posterior.blocks["coefficients"].mean))


def test_a_site_that_is_away_stops_a_round_before_it_is_charged_and_is_waited_for(clinics):
    introduce(clinics)
    host = clinics.hosted()
    inner = host.post.answers["west"]
    host.post.answers["west"] = lambda data: inner(data) if data == b"hello" else Lost("it is not connected")
    with pytest.raises(Deserted):
        clinics.coordinate(host)
    assert [clinics.charged(name) for name in RECORDS] == [0, 0, 0]
    assert plain(clinics.coordinate()) == plain(honest(clinics))


def test_a_coordinator_killed_between_stages_goes_on_with_the_next_round(clinics):
    introduce(clinics)
    host = clinics.hosted()
    inner, count = host.post.answers["north"], [0]

    def cut(data: bytes) -> Any:
        count[0] += data != b"hello"
        if count[0] == 5 * 2 + 4:
            raise KeyboardInterrupt
        return inner(data)

    host.post.answers["north"] = cut
    with pytest.raises(KeyboardInterrupt):
        clinics.coordinate(host)
    found = clinics.coordinate()
    assert [row(found, name)["updates"] for name in RECORDS] == [2, 2, 2]
    assert [clinics.charged(name) for name in RECORDS] == [4, 4, 4]


def test_a_site_takes_part_only_with_keys_that_its_own_file_has(clinics):
    introduce(clinics)
    text = clinics.path("north").read_text()
    clinics.path("north").write_text(re.sub(r'\n"west" = .*', "", text))
    assert clinics.open("north").refusal.startswith("this site has no key of west in [peers]")
    with pytest.raises(ValueError, match=r"2 of 3 sites accept.*north: this site has no key of west"):
        clinics.coordinate()
    other = "0" * 64
    clinics.path("north").write_text(re.sub(r'\n"west" = .*', f'\n"west" = "{other}"', text))
    with pytest.raises(Deserted):
        clinics.coordinate(host := clinics.hosted())
    assert host.setup.tolerance is not None
    assert [clinics.charged(name) for name in RECORDS] == [0, 0, 0]
    clinics.path("north").write_text(text.replace('"west" = "', '"west" = "zz'))
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        read_site(clinics.path("north"))


def test_a_site_s_own_line_among_its_peers_does_no_harm(clinics):
    introduce(clinics)
    place = clinics.path("north")
    place.write_text(place.read_text().replace("[peers]", f'[peers]\n"north" = "{key_of(clinics, "north")}"'))
    assert clinics.open("north").refusal == ""


def test_an_example_of_a_site_file_asks_for_a_colluding_site_whatever_the_study(clinics):
    study = clinics.read(secure_sum=True, colluding=0)
    assert "\ncolluding = 1" in example_site(study, "north")


def test_one_key_of_two_sites_is_refused(clinics):
    introduce(clinics)
    text = clinics.path("north").read_text()
    for key in (key_of(clinics, "south"), key_of(clinics, "north")):
        clinics.path("north").write_text(re.sub(r'\n"west" = .*', f'\n"west" = "{key}"', text))
        assert clinics.open("north").refusal.startswith("two sites have one key in [peers]")


@pytest.mark.slow
def test_noise_of_one_site_from_a_seed_is_said_in_the_promise_to_all(clinics):
    introduce(clinics)
    for name in ("south", "west"):
        text = clinics.path(name).read_text()
        clinics.path(name).write_text(text.replace(f"insecure_seed = {SEED}", ""))
    found = clinics.coordinate()
    assert all("Randomness: SEEDED" in words for words in found.statements.values())


def test_a_site_says_how_many_may_collude(clinics):
    introduce(clinics)
    text = clinics.path("north").read_text()
    clinics.path("north").write_text(re.sub(r"\ncolluding = \d", "\ncolluding = 2", text))
    words = "the study's secure sums tolerate 1 colluding site; this site requires at least 2"
    assert words in clinics.open("north").refusal
    introduce(clinics, colluding=0)
    clinics.path("north").write_text(re.sub(r"\ncolluding = \d", "\ncolluding = 1", clinics.path("north").read_text()))
    assert "tolerate 0 colluding sites; this site requires at least 1" in clinics.open("north").refusal


def test_a_round_that_was_charged_is_not_run_again_whatever_the_coordinator_says(clinics):
    introduce(clinics)
    clinics.coordinate()
    spent = [clinics.ledger(name).spent() for name in RECORDS]
    for name in ("scaling.progress", "inference.progress", "scaling.store", "inference.store", "history.json"):
        (clinics.folder / "out" / name).unlink(missing_ok=True)
        (clinics.folder / name).unlink(missing_ok=True)
    with pytest.raises((ValueError, Deserted), match=re.escape(CHARGED)):
        clinics.coordinate()
    assert [clinics.ledger(name).spent() for name in RECORDS] == spent


@pytest.mark.slow
def test_whole_sites_are_protected_by_secure_sums_too(clinics):
    introduce(clinics, unit="site", epsilon=5.0)
    found = clinics.coordinate()
    assert all(ledger.unit == "site" for ledger in map(clinics.ledger, RECORDS))
    assert "for each site" in found.statements["north"]
    sites, _ = clinics.study.gather()
    assert plain(found) == plain(federate(clinics.study.plan, sites, insecure_seed=SEED))


def test_nobody_can_be_taken_out_of_a_sum(clinics):
    introduce(clinics)
    host = clinics.hosted()
    out = clinics.folder / "out"
    out.mkdir()
    Status(out, "clinics", host.setup).show(host, "inference", 1, 3, {}, {})
    with pytest.raises(ValueError, match="nobody has a site's factor"):
        serve.withdraw(out, "north")
