"""Where UCI's files are for the tests, and the marks of tests that need them: a clean clone does not have them."""

import os
from pathlib import Path

import pytest

UCI = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data")
HAS_HEART = any((UCI / sub / "processed.va.data").is_file() for sub in (".", "heart-disease"))
needs_uci = pytest.mark.skipif(not (UCI / "adult" / "adult.data").is_file(), reason="UCI's files are not here")
needs_heart = pytest.mark.skipif(not HAS_HEART, reason="UCI Heart Disease is not here; set TACIT_DATA")
