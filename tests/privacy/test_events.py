"""Events are frozen data: checked, hashable, and read from JSON by a closed table."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    TruncatedPoissonSampled,
    at_level,
    compose,
    from_json,
    to_json,
)

noise = st.floats(1e-3, 1e3)
units = st.sampled_from(["record", "person", "site"])
adjacencies = st.sampled_from(["add-remove", "replace-one"])
rates = st.floats(1e-6, 1)
leaves = st.one_of(
    st.builds(Gaussian, noise, units, adjacencies),
    st.builds(Laplace, noise, units, adjacencies),
    st.just(NonPrivate()),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(PoissonSampled, rates, inner),
        st.builds(TruncatedPoissonSampled, st.floats(1e-6, 0.999), st.just(100), st.integers(1, 100), inner),
        st.builds(FixedSizeSampled, st.just(50), st.integers(1, 50), inner),
        st.builds(Repeated, inner, st.integers(1, 10_000)),
        st.builds(lambda es: Composed(tuple(es)), st.lists(inner, max_size=4)),
    ),
    max_leaves=8,
)


@given(events)
def test_an_event_survives_json_and_its_hash_is_its_meaning(event: Event):
    again = from_json(to_json(event))
    assert again == event
    assert hash(again) == hash(event)


def test_every_leaf_names_its_unit_and_its_adjacency():
    plain = json.loads(to_json(Repeated(PoissonSampled(0.1, Gaussian(2.0, unit="person")), 3)))
    assert plain["event"]["event"] == {
        "type": "gaussian",
        "noise_multiplier": 2.0,
        "unit": "person",
        "adjacency": "add-remove",
        "coordinates": 0,
    }


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda b: b.decode("latin-1"))))
def test_arbitrary_text_raises_a_value_error_and_nothing_else(text: str):
    with pytest.raises(ValueError, match=r".+"):
        from_json(text)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(["type", "event", "events", "steps", "noise_multiplier"]), st.text(max_size=5)),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from(["gaussian", "repeated", "composed", "poisson-sampled", "os.system"]))
def test_arbitrary_json_raises_a_value_error_or_is_an_event(value, name):
    for plain in (value, {"type": name, "event": value, "steps": 3}, {"type": name, "events": [value]}):
        try:
            event = from_json(json.dumps(plain))
        except ValueError:
            continue
        assert isinstance(event, Event)
        assert from_json(to_json(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "builtins.eval", "source": "1"}',
        '{"type": "gaussian"}',
        '{"type": "gaussian", "noise_multiplier": 1, "unit": "a", "adjacency": "add-remove", "coordinates": 0, "b": 1}',
        '{"type": "gaussian", "noise_multiplier": true, "unit": "record", "adjacency": "add-remove", "coordinates": 0}',
        '{"type": "gaussian", "noise_multiplier": "2", "unit": "record", "adjacency": "add-remove", "coordinates": 0}',
        '{"type": "gaussian", "noise_multiplier": NaN, "unit": "record", "adjacency": "add-remove", "coordinates": 0}',
        '{"type": "gaussian", "noise_multiplier": 1, "unit": 3, "adjacency": "add-remove", "coordinates": 0}',
        '{"type": "repeated", "event": {"type": "non-private"}, "steps": 1.5}',
        '{"type": "scheduled", "levels": [], "schedule": 0}',
        '{"type": "gaussian", "noise_multiplier": 1%s, "unit": "a", "adjacency": "add-remove", "coordinates": 0}'
        % ("0" * 400),
        '{"type": "repeated", "event": {"type": "non-private"}, "steps": 1%s}' % ("0" * 400),
        '{"type": "repeated", "event": {"type": "non-private"}, "steps": 1%s}' % ("0" * 9000),
        '{"type": "composed", "events": [' * 100 + "]}" * 100,
        "[" * 100_000,
        '{"type": "repeated", "steps": 1, "event": ' * 20_000,
    ],
)
def test_malformed_events_are_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        from_json(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gaussian(-1.0), "noise_multiplier=-1.0; expected a finite number above 0"),
        (lambda: Gaussian(0.0), "noise_multiplier=0.0"),
        (lambda: Gaussian(math.nan), "noise_multiplier=nan"),
        (lambda: Gaussian(math.inf), "noise_multiplier=inf"),
        (lambda: Gaussian(1.0, unit=""), "unit=''"),
        (lambda: Gaussian(1.0, adjacency="both"), "adjacency='both'"),  # type: ignore[arg-type]
        (lambda: PoissonSampled(1.5, Gaussian(1.0)), "sampling_rate=1.5; expected a number above 0 and at most 1"),
        (lambda: PoissonSampled(0.0, Gaussian(1.0)), "sampling_rate=0.0"),
        (lambda: Repeated(Gaussian(1.0), 0), "steps=0; expected a whole number of at least 1"),
        (lambda: Repeated(Gaussian(1.0), 2.5), "steps=2.5"),  # type: ignore[arg-type]
        (
            lambda: TruncatedPoissonSampled(0.1, 10, 11, Gaussian(1.0)),
            "buffer=11; expected a whole number from 1 to slots=10",
        ),
    ],
)
def test_an_impossible_event_is_refused_with_its_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_composition_is_flat_and_drops_nothing():
    a, b, c = Gaussian(1.0), Gaussian(2.0), NonPrivate()
    assert compose(a, compose(b, compose(), c)) == Composed((a, b, c))
    assert compose(a) == a
    assert compose() == Composed()


def test_a_level_replaces_its_own_schedule_and_no_other():
    a, b = Gaussian(1.0), Gaussian(2.0)
    mixed = compose(Scheduled((a, b), 1), Repeated(Scheduled((b, a), 2), 3))
    assert at_level(mixed, 1, 1) == compose(b, Repeated(Scheduled((b, a), 2), 3))
    with pytest.raises(ValueError, match="cannot be stored"):
        to_json(mixed)
