"""A row of a study's own file is hidden, and a split by place is refuted."""

import numpy as np
import pytest
from tests.audit.rows import ROWS, in_order

from tacit.audit import studies
from tacit.study.setup import Setup
from tacit.study.sites import Site


def test_a_row_of_the_file_is_hidden_and_a_split_by_place_is_refuted(tmp_path, monkeypatch):
    """400 runs refute the planted bug; none of the sound code is (each with a false alarm in 1000 at most)."""
    study = in_order(tmp_path, evaluation=0.2)
    sound = studies.of_row(study, "north", 0).audit(400, seed=1)
    assert sound.claimed_epsilon == pytest.approx(1, abs=0.01)
    assert not sound.is_refuted, sound.bounds

    def by_place(self: Setup, member: Site) -> np.ndarray:
        return np.arange(len(member.table.target)) % 5 == 4

    monkeypatch.setattr(Setup, "_held_out", by_place)
    broken = studies.of_row(study, "north", 0).audit(400, seed=1)
    assert broken.is_refuted, broken.bounds
    assert broken.bounds["trace", "nothing"].epsilon > 2, "without an assumption, too"


@pytest.mark.parametrize(
    ("settings", "chosen", "words"),
    [
        ({"unit": "site"}, {}, "unit='site', where a row is only a part"),
        ({"sampling_rate": 0.5}, {}, "method='natural', which samples"),
        ({}, {"site": "west"}, "site='west'; expected one of north, south"),
        ({}, {"row": ROWS}, "expected one of its 200 rows"),
    ],
)
def test_a_row_that_is_no_unit_or_is_not_there_is_refused(tmp_path, settings, chosen, words):
    with pytest.raises(ValueError, match=words):
        studies.of_row(in_order(tmp_path, **settings), **chosen)
