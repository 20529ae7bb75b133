"""Three public data sets of people and shellfish, encoded without reading a record.

Categories and ranges come from publications about each file, or are limits stated here. Nothing is estimated from the
records, so an encoding costs no privacy. Values outside a range are moved to its end. Adult and Abalone are stored in
the package (DATA_LICENSES.md); Heart Disease is read from a folder or downloaded. Every file is checked against its
sha256 before a record is read.
"""

import csv
import hashlib
import lzma
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np

from tacit.tables.table import Table


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records to learn from and records to test on.

    `features` and `test_features` are float32 matrices, one line per record, in [0, 1]; their first column is the
    constant 1. `target` and `test_target` are float32 vectors of 0 and 1. `groups` and `test_groups`, if a data set
    has them, name the group of each record. `numbers` names the numeric columns; the others are 0 or 1.
    """

    name: str
    features: np.ndarray
    target: np.ndarray
    test_features: np.ndarray
    test_target: np.ndarray
    feature_names: tuple[str, ...]
    notes: str
    groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None
    numbers: tuple[str, ...] = ()

    def to_table(self) -> Table:
        """The training records as a table, with their public ranges."""
        names = self.feature_names[1:]
        return Table.of(
            self.features[:, 1:],
            self.target,
            names=names,
            indicators=[name for name in names if name not in self.numbers],
            bounds=(0.0, 1.0),
            classes=(0, 1),
            notes=(f"{self.name}: columns are encoded by public categories and ranges.",),
        )

    def test_table(self) -> Table:
        """The test records, in the same columns."""
        return replace(self.to_table(), features=self.test_features[:, 1:], target=self.test_target)


class _Range(NamedTuple):
    """Public limits of a number."""

    low: float
    high: float


_Table = dict[str, np.ndarray]  # attribute -> one string per record
_Domain = _Range | tuple[str, ...]


# --- Adult -------------------------------------------------------------------------------------------------------


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_ADULT: dict[str, _Domain] = {
    "age": _Range(17, 90),
    "workclass": _words(
        "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, Never-worked, ?"
    ),
    "fnlwgt": _Range(0, 1_500_000),
    "education": _words(
        "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, Masters, "
        "1st-4th, 10th, Doctorate, 5th-6th, Preschool"
    ),
    "education-num": _Range(1, 16),
    "marital-status": _words(
        "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, Married-AF-spouse"
    ),
    "occupation": _words(
        "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, Handlers-cleaners, "
        "Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, Protective-serv, "
        "Armed-Forces, ?"
    ),
    "relationship": _words("Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried"),
    "race": _words("White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black"),
    "sex": _words("Female, Male"),
    "capital-gain": _Range(0, 99_999),
    "capital-loss": _Range(0, 4_356),
    "hours-per-week": _Range(1, 99),
    "native-country": _words(
        "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), India, Japan, "
        "Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, "
        "Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, "
        "Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands, ?"
    ),
}
_ADULT_OFFICIAL = 32_561  # records of adult.data; those of adult.test follow


def adult(*, split_seed: int = 2019, official: bool = False) -> Dataset:
    """UCI Adult: 48,842 people of the 1994 US census survey; does a person earn more than 50,000 dollars a year?

    109 columns: the constant, 6 numbers and 102 indicators. All categories of the codebook (adult.names) are kept. The
    codebook's "?" for unknown is one more category of workclass, occupation and native-country: 99 + 3 = 102.

    | number         | range         | where the range comes from                                                |
    |----------------|---------------|---------------------------------------------------------------------------|
    | age            | 17-90         | codebook: only ages above 16 were taken; the survey codes older ages as 90 |
    | fnlwgt         | 0-1,500,000   | not in the codebook: a round limit above the weights of the public file   |
    | education-num  | 1-16          | codebook: 16 levels of education                                          |
    | capital-gain   | 0-99,999      | the survey's five-digit field                                             |
    | capital-loss   | 0-4,356       | not in the codebook: the largest amount in the public file                |
    | hours-per-week | 1-99          | codebook: only hours above 0 were taken; the survey's two-digit field     |

    The two limits that are not in the codebook are facts about the file as published since 1996. For a private data
    set, set such a limit before you look at the data.

    The test set is the last fifth (9,769) of the records after a permutation that `split_seed` fixes; 39,073 remain.
    `official=True` gives UCI's own split, 32,561 and 16,281 records in their order.

    >>> adult().features.shape
    (39073, 109)

    Becker, B. & Kohavi, R. (1996). Adult. UCI Machine Learning Repository. doi:10.24432/C5XW20. CC BY 4.0.
    """
    table = _embedded("adult.csv.xz")
    target = (table["income"] == ">50K").astype(np.float32)
    split = np.split(np.arange(len(target)), [_ADULT_OFFICIAL]) if official else _split(len(target), split_seed)
    notes = "Target: income above 50,000 dollars. An unknown value is a category of its own."
    return _dataset("adult", *_encode(table, _ADULT), target, split, notes, _ADULT)


# --- Abalone -----------------------------------------------------------------------------------------------------

_ABALONE: dict[str, _Domain] = {
    "sex": ("M", "F", "I"),
    **dict.fromkeys(("length", "diameter", "height"), _Range(0, 1.0)),
    **dict.fromkeys(("whole-weight", "shucked-weight", "viscera-weight", "shell-weight"), _Range(0, 3.0)),
}
_MANY_RINGS = 10


def abalone(*, split_seed: int = 2019) -> Dataset:
    """UCI Abalone: 4,177 shellfish; has the shell ten rings or more?

    11 columns: the constant, 3 indicators of the codebook's sexes (male, female, infant) and 7 measurements. The
    codebook (abalone.names) says that measurements are in units of 200 mm and 200 g. Lengths are limited to 1
    (200 mm), weights to 3 (600 g). The one height above that (226 mm) becomes 1.

    The target follows Jälkö (2017), section 5.1, "more or less than 10 rings", which does not say where ten belongs.
    The labels published with that work's code (DPBayes/DPVI-code) count ten as 1. There, features were divided by
    standard deviations of the records, and the first four fifths of the file were the training set; here ranges are
    public.

    The test set is the last fifth (836) of the records after a permutation that `split_seed` fixes; 3,341 remain.

    >>> abalone().features.shape
    (3341, 11)

    Nash, W., Sellers, T., Talbot, S., Cawthorn, A. & Ford, W. (1994). Abalone. UCI Machine Learning Repository.
    doi:10.24432/C55C7W. CC BY 4.0.
    """
    table = _embedded("abalone.csv.xz")
    target = (table["rings"].astype(int) >= _MANY_RINGS).astype(np.float32)
    notes = "Target: ten rings or more. Measurements are in units of 200 mm and 600 g."
    return _dataset("abalone", *_encode(table, _ABALONE), target, _split(len(target), split_seed), notes, _ABALONE)


# --- Heart Disease -----------------------------------------------------------------------------------------------

_HEART: dict[str, _Range] = {
    "age": _Range(0, 100),
    "sex": _Range(0, 1),
    "cp": _Range(1, 4),
    "trestbps": _Range(0, 250),
    "chol": _Range(0, 700),
    "fbs": _Range(0, 1),
    "restecg": _Range(0, 2),
    "thalach": _Range(0, 250),
    "exang": _Range(0, 1),
    "oldpeak": _Range(-5, 10),
    "slope": _Range(1, 3),
    "ca": _Range(0, 3),
    "thal": _Range(3, 7),
}
_HEART_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_DOWNLOAD_SECONDS = 30  # the largest file has 18 kB


def heart(*, split_seed: int = 2019) -> Dataset:
    """UCI Heart Disease: 920 patients of four hospitals; is a coronary artery narrowed (num > 0)?

    27 columns: the constant, 13 attributes, and for each attribute whether it is missing. A missing value ("?") is 0
    after scaling. `groups` names the hospital of each record: cleveland, hungarian, switzerland or va.

    | attribute                                      | range                           | where it comes from      |
    |------------------------------------------------|---------------------------------|--------------------------|
    | sex, fbs, exang                                | 0-1                             | codes of the codebook    |
    | cp, restecg, slope, ca, thal                   | 1-4, 0-2, 1-3, 0-3, 3-7         | codes of the codebook    |
    | age (years), trestbps (mm Hg), thalach (1/min) | 0-100, 0-250, 0-250             | round limits, set here   |
    | chol (mg/dl), oldpeak (mm)                     | 0-700, -5-10                    | round limits, set here   |

    The codebook (heart-disease.names) gives codes, but no limits for measured values. A cholesterol or a pressure of 0
    in the Swiss and VA files was surely not measured; it is kept as it is and not marked as missing.

    The files processed.HOSPITAL.data are read from the folder in the environment variable TACIT_DATA or its subfolder
    heart-disease; otherwise from ~/.cache/tacit, to which they are downloaded from UCI once.

    The test set is the last fifth (184) of the records after a permutation that `split_seed` fixes; 736 remain.

    Janosi, A., Steinbrunn, W., Pfisterer, M. & Detrano, R. (1989). Heart Disease. UCI Machine Learning Repository.
    doi:10.24432/C52P4X. CC BY 4.0.
    """
    contents = {hospital: _fetched(f"processed.{hospital}.data") for hospital in _HOSPITALS}
    parts = [_table(content, (*_HEART, "num")) for content in contents.values()]
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    groups = np.repeat(_HOSPITALS, [len(part["num"]) for part in parts])
    target = (table["num"].astype(int) > 0).astype(np.float32)
    features, names = _encode(table, _HEART)
    missing = np.stack([table[name] == "?" for name in _HEART], axis=1).astype(np.float32)
    return _dataset(
        "heart",
        np.concatenate([features, missing], axis=1),
        (*names, *(f"{name} is missing" for name in _HEART)),
        target,
        _split(len(target), split_seed),
        "Target: a coronary artery narrowed by more than half. A missing value is 0 and marked in a column of its own.",
        _HEART,
        groups,
    )


# --- Files, each with its fingerprint ----------------------------------------------------------------------------

_SHA256 = {
    "adult.csv.xz": "3e0eab3e5a32feaad85d0a898ccb6eaf5335cb4666d5df502ef2258d44bfbd72",
    "abalone.csv.xz": "94154e20196b06625342573f0f1e671725b1904c7279bbf9494d2d0951f9bd5c",
    "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "processed.switzerland.data": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


def _checked(name: str, content: bytes, place: str, remedy: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256[name]:
        raise ValueError(
            f"{name} from {place} has sha256 {found[:12]}… where {_SHA256[name][:12]}… is expected: {remedy}."
        )
    return content


def _read_embedded(name: str) -> bytes:
    return resources.files("tacit.data").joinpath(name).read_bytes()


def _embedded(name: str) -> _Table:
    return _table(lzma.decompress(_checked(name, _read_embedded(name), "the package tacit", "install tacit again")))


def heart_folder() -> Path | None:
    """The folder with the files of Heart Disease on this machine; None if `heart` has to download one."""
    names = [f"processed.{hospital}.data" for hospital in _HOSPITALS]
    return next((place for place in _folders() if all((place / name).is_file() for name in names)), None)


def _folders() -> list[Path]:
    """Folders that may hold files of Heart Disease, the cache last."""
    cache = Path.home() / ".cache" / "tacit"
    folder = os.environ.get("TACIT_DATA")
    return [Path(folder), Path(folder, "heart-disease"), cache] if folder else [cache]


def _fetched(name: str) -> bytes:
    """A file of Heart Disease: from TACIT_DATA, from the cache, or from UCI into the cache."""
    folder, cache = os.environ.get("TACIT_DATA"), _folders()[-1] / name
    for path in (place / name for place in _folders()):
        if path.is_file():
            return _checked(name, path.read_bytes(), str(path), "remove that file, or put UCI's original in its place")
    try:
        with urlopen(_HEART_URL + name, timeout=_DOWNLOAD_SECONDS) as response:
            content = response.read()
    except (OSError, HTTPException) as error:
        raise ValueError(
            f"{name} is neither in the folder TACIT_DATA={folder!r} nor in {cache.parent}, and {_HEART_URL} cannot be "
            f"reached ({error}): download UCI Heart Disease elsewhere and set TACIT_DATA to the folder that holds it."
        ) from error
    _checked(name, content, _HEART_URL, "download UCI Heart Disease by hand and set TACIT_DATA to its folder")
    with suppress(OSError):  # without write access, the file is downloaded again next time
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_name(f"{name}.{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(cache)
    return content


# --- From text to arrays -----------------------------------------------------------------------------------------


def _table(content: bytes, header: Iterable[str] | None = None) -> _Table:
    """The columns of a CSV text, by name; without `header`, the first line has the names."""
    lines = list(csv.reader(content.decode().splitlines()))
    names = lines.pop(0) if header is None else header
    return {name: np.array(column) for name, column in zip(names, zip(*lines, strict=True), strict=True)}


def _encode(table: _Table, domains: Mapping[str, _Domain]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The constant, then each attribute in [0, 1] or as one indicator per category. "?" in a number becomes 0."""
    records = len(next(iter(table.values())))
    blocks, names = [np.ones((records, 1))], ["intercept"]
    for name, domain in domains.items():
        column = table[name]
        if isinstance(domain, _Range):
            is_missing = column == "?"
            number = np.where(is_missing, "0", column).astype(float)
            scaled = np.clip((number - domain.low) / (domain.high - domain.low), 0, 1)
            blocks.append(np.where(is_missing, 0, scaled)[:, None])
            names.append(name)
        else:
            blocks.append(column[:, None] == np.array(domain))
            names += [f"{name}={category}" for category in domain]
    return np.concatenate(blocks, axis=1).astype(np.float32), tuple(names)


def _split(records: int, seed: int) -> list[np.ndarray]:
    """Indices of a permutation, split into training and testing (the last fifth).

    The permutation sorts raw 64-bit words, because numpy keeps these the same in all versions, unlike `permutation`.
    """
    order = np.argsort(np.random.PCG64(seed).random_raw(records), kind="stable")
    return np.split(order, [records * 4 // 5])


def _dataset(
    name: str,
    features: np.ndarray,
    feature_names: tuple[str, ...],
    target: np.ndarray,
    split: list[np.ndarray],
    notes: str,
    domains: Mapping[str, _Domain],
    groups: np.ndarray | None = None,
) -> Dataset:
    train, test = split
    return Dataset(
        name=name,
        features=features[train],
        target=target[train],
        test_features=features[test],
        test_target=target[test],
        feature_names=feature_names,
        notes=notes,
        groups=None if groups is None else groups[train],
        test_groups=None if groups is None else groups[test],
        numbers=tuple(name for name, domain in domains.items() if isinstance(domain, _Range)),
    )
