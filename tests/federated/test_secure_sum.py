"""The coordinator learns the sum, to the bit, and nothing else; whatever is changed, repeated or forged is refused."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.federated import secure_sum as sums
from tacit.federated.secure_sum import Consent, Refused, SumSetup, SumSite

STAGES = ("advertise", "share", "mask", "agree", "open")


def secret(*parts: object) -> bytes:
    """32 bytes that repeat; sites of a study draw theirs from the operating system."""
    return hashlib.sha256(repr(parts).encode()).digest()


@dataclass
class Run:
    """A session of `count` sites, of which some leave before a stage: `gone["mask"]` never send masked integers.

    change: what a network may do to a message on its way from a site.
    """

    count: int = 5
    threshold: int = 4
    size: int = 3
    name: str = "a sum"
    seed: int = 0
    gone: dict[str, set[int]] = field(default_factory=dict)
    change: Callable[[Any], Any] = lambda message: message

    def __post_init__(self) -> None:
        self.names = [f"site-{j}" for j in range(self.count)]
        keys = {name: secret("identity", name) for name in self.names}
        roster = {n: Ed25519PrivateKey.from_private_bytes(k).public_key().public_bytes_raw() for n, k in keys.items()}
        self.setup = SumSetup(self.name, roster, self.threshold, self.size)
        self.sites = {n: SumSite(self.setup, n, keys[n], secret(self.seed, self.name, n)) for n in self.names}
        rng = np.random.default_rng(self.seed)
        self.vectors = {name: rng.integers(-(2**40), 2**40, self.size) for name in self.names}
        self.sent: dict[str, list[Any]] = {}

    def at(self, stage: str, names: Iterable[str], answer: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What those who are still there answer."""
        earlier = STAGES[: STAGES.index(stage) + 1]
        left = {self.names[j] for one in earlier for j in self.gone.get(one, ())}
        found = []
        for name in names:
            if name not in left:
                own = [argument(name) if callable(argument) else argument for argument in arguments]
                self.sites[name], answered = answer(self.sites[name], *own)
                found += answered if isinstance(answered, list) else [answered]
        self.sent[stage] = found
        return [self.change(message) for message in found]

    def whole(self) -> np.ndarray:
        """All stages."""
        advertised = self.at("advertise", self.names, sums.advertise)
        self.known = sums.checked(self.setup, advertised)
        sealed = self.at("share", self.known, sums.share, advertised)
        self.shared = sorted({one.sender for one in sealed})
        mine = lambda name: [one for one in sealed if one.receiver == name and one.sender in self.shared]  # noqa: E731
        masked = self.at("mask", self.shared, sums.mask, mine, self.vectors.__getitem__)
        self.survivors = [one.site for one in masked]
        consents = self.at("agree", self.survivors, sums.agree, self.survivors)
        opened = self.at("open", [one.site for one in consents], sums.reveal, consents)
        return sums.total(self.setup, self.known, self.shared, masked, opened)


# --- The sum -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [None, *STAGES])
def test_the_sum_is_exact_over_those_who_sent_integers_whoever_leaves_when(stage: str | None) -> None:
    run = Run(12, 8, 20, gone={} if stage is None else {stage: {1, 4, 7, 11}})
    total = run.whole()
    assert len(run.survivors) == (12 if stage in (None, "agree", "open") else 8)
    np.testing.assert_array_equal(total, sum(run.vectors[name] for name in run.survivors))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_fifty_sites_with_a_thousand_numbers_of_which_ten_leave_at_a_stage(stage: str) -> None:
    run = Run(50, 34, 1000, gone={stage: set(range(3, 13))})
    np.testing.assert_array_equal(run.whole(), sum(run.vectors[name] for name in run.survivors))
    assert len(run.survivors) == (50 if stage in ("agree", "open") else 40)


def test_fifty_sites_of_which_some_leave_at_every_stage() -> None:
    gone = {stage: set(range(2 * j, 2 * j + 2)) for j, stage in enumerate(STAGES)}
    run = Run(50, 34, 1000, gone=gone)
    np.testing.assert_array_equal(run.whole(), sum(run.vectors[name] for name in run.survivors))
    assert len(run.survivors) == 44


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_nothing_is_opened_and_it_says_why(stage: str) -> None:
    with pytest.raises(Refused, match=r"of 3 sites, below the threshold of 4: nothing is opened"):
        Run(gone={stage: {0, 3}}).whole()


def test_the_sum_wraps_as_integers_of_64_bits_do() -> None:
    run = Run()
    run.vectors = dict.fromkeys(run.names, np.full(3, 2**62))
    np.testing.assert_array_equal(run.whole(), np.full(3, 5 * 2**62 - 2**64))


# --- Nothing but the sum -----------------------------------------------------------------------------------------


def test_masked_integers_are_uniform_whatever_they_hide() -> None:
    for value in (0, 1, -(2**40)):
        run = Run(3, 2, 40_000)
        run.vectors = dict.fromkeys(run.names, np.full(40_000, value))
        run.whole()
        for one in run.sent["mask"]:
            counts = np.bincount(np.frombuffer(one.content, np.uint8), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-6
            bits = np.unpackbits(np.frombuffer(one.content, np.uint8)).mean()
            assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(64 * 40_000)


def test_masked_integers_of_two_vectors_have_no_relation() -> None:
    """A false alarm in 10⁶ runs of other seeds; with masks of one session used twice the difference is the data's."""
    first, second = Run(size=20_000), Run(size=20_000, seed=1)
    for run in (first, second):
        run.whole()
    pair = [np.frombuffer(run.sent["mask"][0].content, "<u8") for run in (first, second)]
    other = Run(size=20_000, name="another sum")
    other.whole()
    pair.append(np.frombuffer(other.sent["mask"][0].content, "<u8"))  # the same secrets and vectors, another session
    for j, k in ((0, 1), (0, 2)):
        high = ((pair[j] - pair[k]) >> np.uint64(48)).astype(float) / 2**16
        assert stats.kstest(high, "uniform").pvalue > 1e-6


def test_one_wrong_mask_gives_garbage_and_nothing_near_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    run, stream, calls = Run(size=1000), sums._stream, []

    def wrong(seed: bytes, size: int) -> np.ndarray:
        calls.append(seed)
        return stream(bytes([seed[0] ^ 1]) + seed[1:] if size == 1000 and len(calls) == 20 else seed, size)

    monkeypatch.setattr(sums, "_stream", wrong)
    gap = run.whole() - sum(run.vectors.values())
    assert np.median(np.abs(gap.astype(float))) > 2**60


def test_a_vector_of_the_wrong_kind_is_not_masked() -> None:
    run = Run()
    run.vectors["site-2"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"vector of float64\[3\]; expected int64\[3\]"):
        run.whole()


# --- What is refused ---------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    place = bit % (8 * len(data))
    return data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :]


FIELDS = {
    "advertise": ("seal", "mask", "seed", "signature"),
    "share": ("content",),
    "mask": ("content", "signature"),
    "agree": ("signature",),
    "open": ("signature", "gone", "here"),
}


@given(
    st.sampled_from([(s, f) for s, names in FIELDS.items() for f in names]), st.integers(0, 30), st.integers(0, 10**6)
)
def test_a_changed_bit_in_any_message_is_refused(place: tuple[str, str], which: int, bit: int) -> None:
    stage, part = place
    run = Run(gone={"mask": {4}})
    seen = 0

    def change(message: Any) -> Any:
        nonlocal seen
        if len(run.sent) - 1 != STAGES.index(stage):
            return message
        seen += 1
        if seen - 1 != which % len(run.sent[stage]):
            return message
        value = getattr(message, part)
        if isinstance(value, dict):
            name = sorted(value)[bit % len(value)]
            return replace(message, **{part: value | {name: flipped(value[name], bit)}})
        return replace(message, **{part: flipped(value, bit)})

    run.change = change
    if stage == "share" and run.names[4] in _receivers(run, which):
        return  # for a site that has left: nobody opens it
    with pytest.raises(Refused):
        run.whole()


def _receivers(run: Run, which: int) -> set[str]:
    pairs = [(a, b) for a in run.names for b in run.names if a != b]
    return {pairs[which % len(pairs)][1]}


@given(st.sampled_from(STAGES), st.integers(0, 4), st.integers(1, 4))
def test_a_message_under_anothers_name_is_refused(stage: str, which: int, by: int) -> None:
    run = Run()

    def change(message: Any) -> Any:
        if len(run.sent) - 1 != STAGES.index(stage):
            return message
        name = "sender" if stage == "share" else "site"
        own = getattr(message, name)
        other = run.names[(run.names.index(own) + by) % 5]
        return replace(message, **{name: other}) if own == run.names[which] and other != own else message

    run.change = change
    with pytest.raises((Refused, KeyError)):
        run.whole()


@pytest.mark.parametrize("stage", STAGES)
def test_a_message_of_another_session_is_refused(stage: str) -> None:
    old, run = Run(name="yesterday"), Run(name="today")
    old.whole()

    def change(message: Any) -> Any:
        here = len(run.sent) - 1 == STAGES.index(stage)
        return old.sent[stage][run.sent[stage].index(message)] if here else message

    run.change = change
    with pytest.raises(Refused):
        run.whole()


def test_stages_come_in_order_and_are_answered_once() -> None:
    run = Run()
    run.whole()
    site = run.sites["site-0"]
    fresh = replace(site, heard=(), shares={}, survivors=(), advertised={})
    with pytest.raises(Refused, match="is for stage 1"):
        sums.share(fresh, run.sent["advertise"])
    sealed = [one for one in run.sent["share"] if one.receiver == "site-0"]
    again = sums.mask(site, sealed, run.vectors["site-0"])[1]
    assert again == run.sent["mask"][0], "the same has the same answer"
    with pytest.raises(Refused, match="answered before, to something else"):
        sums.mask(site, sealed, run.vectors["site-0"] + 1)
    with pytest.raises(Refused, match="answered before, to something else"):
        sums.mask(site, sealed[:3], run.vectors["site-0"])


def test_no_site_opens_both_kinds_of_shares_of_another() -> None:
    """A coordinator that says here that a site survived, and there that it is gone, would take off all of its masks."""
    run = Run()
    run.whole()
    site, without = run.sites["site-0"], run.names[:4]
    with pytest.raises(Refused, match="answered before, to something else"):
        sums.agree(site, without)
    before = replace(site, heard=site.heard[:3])  # one that has not signed yet
    signed = sums.agree(before, without)[0]
    consents = [one for one in run.sent["agree"] if one.site != "site-4"]  # others signed that all five are there
    with pytest.raises(Refused, match="not signed by it, or was changed"):
        sums.reveal(signed, consents)
    alone = [Consent("site-0", sums.agree(before, without)[1].signature)]
    with pytest.raises(Refused, match="consents to the survivors of 1 sites, below the threshold of 4"):
        sums.reveal(signed, alone)
    opened = run.sent["open"][0]
    assert not set(opened.gone) & set(opened.here)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found[1:], "do not include this site's own"),
        (lambda found: [*found, found[0]], "two advertisements"),
        (lambda found: found[:3], "below the threshold"),
        (lambda found: [*found[:4], replace(found[4], site="stranger")], "not in the roster"),
    ],
)
def test_an_inconsistent_roster_is_refused(change: Callable[[list[Any]], list[Any]], words: str) -> None:
    run = Run()
    advertised = run.at("advertise", run.names, sums.advertise)
    with pytest.raises(Refused, match=words):
        sums.share(run.sites["site-0"], change(advertised))


def test_a_roster_with_keys_that_are_not_signed_is_refused() -> None:
    """Else the coordinator would put its own in the place of others', and have all masks."""
    run = Run()
    advertised = run.at("advertise", run.names, sums.advertise)
    for one in advertised[1:]:
        false = sums.advertise(replace(run.sites[one.site], secret=secret("of the coordinator")))[1]
        with pytest.raises(Refused, match="is not signed by it, or was changed"):
            sums.share(run.sites["site-0"], [replace(false, signature=one.signature), *_without(advertised, one)])


def _without(found: list[Any], one: Any) -> list[Any]:
    return [other for other in found if other is not one]


def test_every_bit_of_a_seed_is_in_its_masks() -> None:
    """Masks are ChaCha20 of 256 bits: one bit of the seed changes half of theirs."""
    seed = secret("seed")
    plain = sums._stream(seed, 64)
    streams = [plain]
    for bit in range(256):
        other = bytearray(seed)
        other[bit // 8] ^= 1 << bit % 8
        streams.append(sums._stream(bytes(other), 64))
        share = np.unpackbits((plain ^ streams[-1]).view(np.uint8)).mean()
        assert 0.4 < share < 0.6
    assert len({stream.tobytes() for stream in streams}) == 257
    zero = np.frombuffer(sums._stream(bytes(32), 4).tobytes(), np.uint8)
    # The first block of ChaCha20 with key, counter and nonce 0 (RFC 8439, appendix A.1, test vector 1).
    assert zero[:16].tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count": 2, "threshold": 2}, "roster of 2 sites"),
        ({"threshold": 2}, "threshold=2 of 5 sites; expected more than half"),
        ({"threshold": 6}, "threshold=6 of 5 sites"),
        ({"size": 0}, "size=0"),
    ],
)
def test_a_session_that_protects_nobody_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Run(**settings)
    assert Run(10, 7).setup.colluding == 3


def test_a_site_that_shares_falsely_is_found_out() -> None:
    run = Run(gone={"mask": {4}})
    split = sums._split

    def false(site: SumSite) -> dict[str, tuple[bytes, bytes]]:
        found = split(site)
        return {n: (b, a) for n, (a, b) in found.items()} if site.name == "site-2" else found

    sums_split, sums._split = sums._split, false
    try:
        with pytest.raises(Refused, match="the shares of the seed of 'site-2' do not fit"):
            run.whole()
    finally:
        sums._split = sums_split
