"""Ids of persons: each by itself, whatever the others are."""

import numpy as np
import pandas
import pytest

from tacit.tables.persons import persons_of

IDS = [1, 1.0, 2.5, "x", "x\0", True, "nan", 2**53, 2**53 + 1, 2**63, -1, "€", "a" * 500]


def test_the_text_of_an_id_does_not_depend_on_the_others() -> None:
    together = persons_of(IDS)
    assert together is not None
    for one, found in zip(IDS, together, strict=True):
        (alone,) = persons_of([one])  # type: ignore[misc]
        assert found == alone
        (beside,) = persons_of([one, "another"])[:1]  # type: ignore[index]
        assert beside == alone
    assert len(set(together)) == len(IDS) - 1, "1 and 1.0 are one person, and no others"


@pytest.mark.parametrize("ids", [np.array([3, 1, 2]), pandas.Series([3, 1, 2]), [3.0, 1, "2"], (3, 1, 2)])
def test_an_id_is_the_same_in_every_container(ids: object) -> None:
    found = persons_of(ids)
    assert found is not None
    assert found.tolist() == ["3", "1", "2"]


@pytest.mark.parametrize("missing", [None, "", " ", np.nan, pandas.NA, pandas.NaT, np.datetime64("NaT")])
def test_a_missing_id_is_refused_beside_words_too(missing: object) -> None:
    with pytest.raises(ValueError, match="groups lack an id"):
        persons_of(["p", missing])


def test_no_groups_are_none() -> None:
    assert persons_of(None) is None
