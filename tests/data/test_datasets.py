"""The public data sets: what was published is what is stored, and encodings look at no record."""

import csv
import hashlib
import io
from collections.abc import Callable

import numpy as np
import pytest
from tests.data.uci import UCI, needs_heart, needs_uci

from tacit.data import Dataset, abalone, adult, datasets, heart

LOADERS = [
    pytest.param(adult, (39_073, 9_769, 109), id="adult"),
    pytest.param(lambda **kw: adult(official=True), (32_561, 16_281, 109), id="adult-official"),
    pytest.param(abalone, (3_341, 836, 11), id="abalone"),
    pytest.param(heart, (736, 184, 27), id="heart", marks=needs_heart),
]


@pytest.fixture(autouse=True)
def uci_folder(monkeypatch, tmp_path):
    """UCI's files from the folder, no one's cache and no network."""

    def no_network(*args, **kwargs):
        raise OSError("no network in tests")

    monkeypatch.setenv("TACIT_DATA", str(UCI))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(datasets, "urlopen", no_network)


def rows_of(data: Dataset) -> np.ndarray:
    """All records with their targets, in an order that no split changes."""
    train = np.column_stack([data.features, data.target])
    test = np.column_stack([data.test_features, data.test_target])
    both = np.concatenate([train, test])
    return both[np.lexsort(both.T)]


# --- Conformance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "shape"), LOADERS)
def test_a_data_set_has_the_documented_shape_and_lies_in_the_unit_interval(load: Callable[..., Dataset], shape):
    data = load()
    train, test, columns = shape
    assert data.features.shape == (train, columns)
    assert data.test_features.shape == (test, columns)
    assert data.target.shape == (train,)
    assert data.test_target.shape == (test,)
    assert len(set(data.feature_names)) == columns
    assert data.feature_names[0] == "intercept"
    for features, target in [(data.features, data.target), (data.test_features, data.test_target)]:
        assert features.dtype == target.dtype == np.float32
        assert (features[:, 0] == 1).all()
        assert features.min() >= 0
        assert features.max() <= 1
        assert set(np.unique(target)) == {0, 1}


@pytest.mark.parametrize("load", [adult, abalone, pytest.param(heart, marks=needs_heart)])
def test_a_seed_fixes_the_split_and_another_seed_only_moves_records(load: Callable[..., Dataset]):
    first, again, other = load(), load(split_seed=2019), load(split_seed=2020)
    np.testing.assert_array_equal(first.features, again.features)
    np.testing.assert_array_equal(first.test_target, again.test_target)
    assert (first.features != other.features).any()
    np.testing.assert_array_equal(rows_of(first), rows_of(other))


def test_the_split_is_the_same_with_every_numpy():
    order = np.concatenate(datasets._split(48_842, 2019)).astype("<i4")
    assert sorted(order) == list(range(48_842))
    assert hashlib.sha256(order.tobytes()).hexdigest().startswith("aba29bada7e99942")


# --- Adult and Abalone -------------------------------------------------------------------------------------------


def test_adult_has_the_published_share_of_large_incomes():
    data = adult(official=True)
    everyone = np.concatenate([data.target, data.test_target])
    assert everyone.sum() == 11_687
    assert everyone.mean() == pytest.approx(0.2393, abs=5e-5)  # adult.names: 23.93 %


def test_every_category_of_a_record_is_in_the_codebook():
    for data, attributes in [(adult(), 8), (abalone(), 1)]:
        is_indicator = np.array(["=" in name for name in data.feature_names])
        assert (data.features[:, is_indicator].sum(axis=1) == attributes).all()
        assert (data.test_features[:, is_indicator].sum(axis=1) == attributes).all()


def test_the_first_record_of_adult_is_encoded_as_documented():
    data = adult(official=True)
    record = dict(zip(data.feature_names, data.features[0].tolist(), strict=True))
    present = {name for name, number in record.items() if "=" in name and number == 1}
    assert present == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    }
    assert record["age"] == pytest.approx((39 - 17) / (90 - 17))
    assert record["capital-gain"] == pytest.approx(2174 / 99_999)
    assert record["hours-per-week"] == pytest.approx((40 - 1) / (99 - 1))


def test_abalone_counts_ten_rings_as_many():
    data = abalone()
    # abalone.names: 2,096 records have nine rings or fewer.
    assert data.target.sum() + data.test_target.sum() == 4_177 - 2_096


@needs_uci
def test_the_stored_records_of_adult_are_those_of_uci_in_their_order():
    def read(name: str) -> list[list[str]]:
        lines = csv.reader(io.StringIO((UCI / "adult" / name).read_text()), skipinitialspace=True)
        return [[*line[:-1], line[-1].rstrip(".")] for line in lines if len(line) == 15]

    table = datasets._embedded("adult.csv.xz")
    stored = [list(row) for row in zip(*(column.tolist() for column in table.values()), strict=True)]
    assert stored == read("adult.data") + read("adult.test")


@needs_uci
def test_the_stored_records_of_abalone_are_those_of_uci_in_their_order():
    table = datasets._embedded("abalone.csv.xz")
    stored = "".join(",".join(row) + "\n" for row in zip(*table.values(), strict=True))
    assert stored == (UCI / "abalone" / "abalone.data").read_text()


@pytest.mark.parametrize(("load", "name"), [(adult, "adult.csv.xz"), (abalone, "abalone.csv.xz")])
def test_a_changed_file_in_the_package_is_refused(monkeypatch, load, name):
    original = datasets._read_embedded(name)
    monkeypatch.setattr(datasets, "_read_embedded", lambda _: original[:-1] + bytes([original[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"{name} from the package tacit has sha256 .* install tacit again"):
        load()


# --- Heart Disease -----------------------------------------------------------------------------------------------


@needs_heart
def test_heart_names_the_hospital_of_each_record_and_marks_what_is_missing():
    data = heart()
    assert data.groups is not None
    assert data.test_groups is not None
    hospital, records = np.unique(np.concatenate([data.groups, data.test_groups]), return_counts=True)
    assert dict(zip(hospital.tolist(), records.tolist(), strict=True)) == {
        "cleveland": 303,
        "hungarian": 294,
        "switzerland": 123,
        "va": 200,
    }
    # heart-disease.names: 164 + 188 + 8 + 51 patients without the disease.
    assert data.target.sum() + data.test_target.sum() == 920 - 411
    number, missing = data.features[:, 1:14], data.features[:, 14:]
    assert set(np.unique(missing)) == {0, 1}
    assert (number[missing == 1] == 0).all()
    is_ca_missing = data.features[:, data.feature_names.index("ca is missing")] == 1
    assert is_ca_missing[data.groups == "switzerland"].mean() > 0.9  # 118 of 123
    assert is_ca_missing[data.groups == "cleveland"].mean() < 0.05  # 4 of 303


@pytest.mark.parametrize("subfolder", [".", "heart-disease"])
def test_heart_refuses_files_that_are_not_the_original(monkeypatch, tmp_path, subfolder):
    folder = tmp_path / subfolder
    folder.mkdir(exist_ok=True)
    for hospital in datasets._HOSPITALS:
        (folder / f"processed.{hospital}.data").write_text("63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n" * 3)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"processed\.cleveland\.data from .* has sha256 .*: remove that file"):
        heart()


def test_heart_without_files_and_without_network_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot be reached \(no network in tests\): download .* set TACIT_DATA"):
        heart()


def test_heart_refuses_a_download_that_is_not_the_original(monkeypatch, tmp_path):
    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.setattr(datasets, "urlopen", lambda url, timeout: io.BytesIO(b"<html>moved</html>"))
    with pytest.raises(ValueError, match=r"from https://archive.ics.uci.edu/.* has sha256"):
        heart()
    assert not list(tmp_path.rglob("processed.*"))


@needs_heart
def test_heart_is_downloaded_once_and_then_read_from_the_cache(monkeypatch):
    originals = {name: datasets._fetched(name) for name in (f"processed.{h}.data" for h in datasets._HOSPITALS)}
    fetched = []

    def serve(url: str, timeout: float) -> io.BytesIO:
        fetched.append(url.rsplit("/", 1)[1])
        return io.BytesIO(originals[fetched[-1]])

    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.setattr(datasets, "urlopen", serve)
    first, second = heart(), heart()
    assert fetched == list(originals)
    np.testing.assert_array_equal(first.features, second.features)
