"""A record is held out by its own content under a secret that stays; nothing else has a part in it."""

import stat

import numpy as np
import pytest

from tacit.federated.held_out import PUBLIC, SECRET_BYTES, held_out, kept_secret, seeded_secret


def contents(records: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (records, 16)).astype(np.uint8)


def test_one_record_in_five_is_held_out():
    """Of 20,000, within five standard deviations: a false alarm in 1.7 million runs."""
    share = held_out(PUBLIC, contents(20_000)).mean()
    assert abs(share - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 20_000)


def test_no_record_has_a_say_in_the_side_of_another():
    rows = contents(50)
    whole = held_out(PUBLIC, rows)
    for gone in range(50):
        np.testing.assert_array_equal(held_out(PUBLIC, np.delete(rows, gone, 0)), np.delete(whole, gone))
    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(held_out(PUBLIC, rows[order]), whole[order])
    assert len({*held_out(PUBLIC, np.repeat(rows[:1], 9, axis=0))}) == 1, "equal rows share their fate"


def test_another_secret_is_another_split_and_a_seed_is_always_the_same_one():
    rows = contents(200)
    first, second = (held_out(seeded_secret(seed), rows) for seed in (1, 2))
    assert np.any(first != second)
    np.testing.assert_array_equal(first, held_out(seeded_secret(1), rows))


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    secret = kept_secret(tmp_path)
    assert len(secret) == SECRET_BYTES
    assert kept_secret(tmp_path) == secret != kept_secret(other)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["held-out.key"], "nothing is left beside it"
    assert stat.S_IMODE((tmp_path / "held-out.key").stat().st_mode) == 0o600
    (tmp_path / "held-out.key").write_bytes(secret[:9])
    with pytest.raises(ValueError, match="9 bytes; expected 32"):
        kept_secret(tmp_path)
