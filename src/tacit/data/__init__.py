"""Public data sets with encodings that read no record, and ways to spread records over sites."""

from typing import TYPE_CHECKING

from tacit.basics.lazy import lazily

if TYPE_CHECKING:
    from tacit.data.datasets import Dataset, abalone, adult, heart

_HOMES = {
    "Dataset": "tacit.data.datasets",
    "abalone": "tacit.data.datasets",
    "adult": "tacit.data.datasets",
    "heart": "tacit.data.datasets",
}
__all__ = ["Dataset", "abalone", "adult", "heart"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
