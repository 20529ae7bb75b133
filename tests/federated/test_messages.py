"""Messages: what goes out comes back to the bit, and any other bytes are a ValueError and nothing else."""

import ast
import copy
import hashlib
import json
import math
import pickle
import random
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.families import DiagonalGaussian, FullGaussian
from tacit.federated import messages
from tacit.federated.messages import Broadcast, Refusal, Update, decode, decode_tree, encode, encode_tree

READERS: tuple[Any, ...] = (decode, decode_tree)
Diagonal: Any = DiagonalGaussian  # of NumPy arrays, as families are when they come back
Full: Any = FullGaussian


def seal(header: bytes, payload: bytes = b"", *, version: int = 1, length: int | None = None) -> bytes:
    """Bytes that are sound but for what is planted in them: the hash never hides a missing check."""
    length = len(header) if length is None else length
    body = b"tacit\0" + bytes([version]) + length.to_bytes(4, "big") + header + payload
    return body + hashlib.sha256(body).digest()


def sealed_tree(content: object, payload: bytes = b"") -> bytes:
    header = json.dumps({"kind": "tree", "content": content}, sort_keys=True, separators=(",", ":"))
    return seal(header.encode(), payload)


def array(dtype: object, *shape: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape)}


def assert_same(a: Any, b: Any) -> None:
    """Equal to the bit, types included."""
    assert type(b) is type(a) or isinstance(b, np.ndarray)
    if isinstance(a, dict):
        assert set(a) == set(b)
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, DiagonalGaussian | FullGaussian):
        assert_same(vars(a), vars(b))
    else:
        a = np.asarray(a)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def is_refused(data: object) -> bool:
    """Both readers raise a ValueError of one line. What else they might raise ends the test."""
    sentences = []
    for read in READERS:
        try:
            read(data)
        except ValueError as error:
            sentences.append(f"{type(error).__name__}: {error}")
    # Sentences of the library: neither a subclass such as UnicodeDecodeError nor the whole of the data.
    assert all(s.startswith("ValueError: ") and "\n" not in s and len(s) < 3000 for s in sentences)
    return len(sentences) == len(READERS)


# --- What goes out comes back ------------------------------------------------------------------------------------

NAMES = st.text(min_size=1, max_size=200).filter(str.isprintable)
ROUNDS = st.integers(0, 2**63 - 1)


@st.composite
def arrays(draw, dtypes=tuple(messages.DTYPES), shape=None):
    """Any bits: every NaN, infinity and zero is among them."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4)) if shape is None else shape
    size = math.prod(shape)
    if dtype == np.bool_:
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(shape)
    raw = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    return np.frombuffer(raw, dtype).reshape(shape) if size else np.zeros(shape, dtype)


@st.composite
def gaussians(draw):
    size, dtype = draw(st.integers(0, 4)), draw(st.sampled_from(["float32", "float64"]))
    family, shape = draw(st.sampled_from([(DiagonalGaussian, (size,)), (FullGaussian, (size, size))]))
    return family(draw(arrays((dtype,), (size,))), draw(arrays((dtype,), shape)))


TREES = st.recursive(
    arrays() | gaussians(), lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
) | st.just({})


@given(TREES)
def test_a_tree_comes_back_to_the_bit(tree):
    data = encode_tree(tree)
    back = decode_tree(data)
    assert_same(tree, back)
    assert encode_tree(back) == data


@given(NAMES, NAMES, ROUNDS, TREES, st.text(min_size=1, max_size=2000).filter(str.isprintable))
def test_a_message_comes_back_to_the_bit(study, site, round, tree, reason):
    for message in (
        Broadcast(study, round, tree),
        Update(study, site, round, tree),
        Refusal(study, site, round, reason),
    ):
        data = encode(message)
        back = decode(data)
        assert type(back) is type(message)
        assert_same(vars(message).get("content", {}), vars(back).get("content", {}))
        plain = [{k: v for k, v in vars(m).items() if k != "content"} for m in (message, back)]
        assert plain[0] == plain[1]
        assert encode(back) == data


def test_a_refusal_comes_back_equal():
    refusal = Refusal("Herz-Studie № 4", "北", 2**63 - 1, "ε = 1 would be exceeded 🚫")
    assert decode(encode(refusal)) == refusal


@pytest.mark.parametrize(
    "values",
    [
        np.array([0x7FF8000000000123, 0xFFF0000000000001, 1 << 63, 0x7FF0000000000000], np.uint64).view(np.float64),
        np.array([0x7FC00123, 0xFF800001, 1 << 31, 0x7F800000], np.uint32).view(np.float32),
    ],
    ids=["float64", "float32"],
)
def test_payloads_of_nan_signs_of_zero_and_infinities_survive(values):
    assert np.isnan(values[:2]).all()
    assert_same(values, decode_tree(encode_tree(values)))


def test_float64_survives_where_jax_has_only_float32():
    assert not jax.config.read("jax_enable_x64")
    q = Diagonal(np.array([0.1, 1 / 3]), np.array([1e300, 5e-324]))
    assert_same({"q": q}, vars(decode(encode(Broadcast("s", 0, {"q": q}))))["content"])


def test_jax_arrays_and_families_of_them_travel():
    tree = {"q": FullGaussian.standard(3), "step": jnp.int32(4), "done": jnp.array([True, False])}
    back = decode_tree(encode_tree(tree))
    assert_same(tree, back)
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(back))


def test_decoded_arrays_are_contiguous_own_their_memory_and_are_read_only():
    back = decode_tree(encode_tree({"a": np.ones((2, 3)), "empty": np.zeros((0, 2), np.int32), "scalar": np.True_}))
    for leaf in back.values():
        assert leaf.flags.c_contiguous
        assert leaf.flags.owndata
        assert leaf.flags.aligned
        assert not leaf.flags.writeable


@pytest.mark.parametrize(
    "other",
    [
        np.arange(12.0).reshape(4, 3).T,
        np.arange(24.0).reshape(3, 8)[:, ::2],
        np.arange(12.0).reshape(3, 4).astype(">f8"),
        np.broadcast_to(np.float64(2.0), (3, 4)),
    ],
    ids=["transposed", "strided", "big-endian", "broadcast"],
)
def test_how_an_array_lies_in_memory_does_not_matter(other):
    plain = np.array(other.tolist())
    assert encode_tree(other) == encode_tree(plain)
    assert decode_tree(encode_tree(other)).tolist() == plain.tolist()


def test_the_order_of_a_dict_does_not_matter():
    a, b = np.float64(1.0), np.arange(3)
    assert encode_tree({"a": a, "b": b}) == encode_tree({"b": b, "a": a})


def test_a_truth_value_stored_as_another_byte_is_true():
    odd = np.frombuffer(b"\x02\x00\xff", bool)
    assert encode_tree(odd) == encode_tree(np.array([True, False, True]))


def test_the_bytes_of_version_1_stay_as_they_are():
    tree = {"q": Diagonal(np.array([1.5], np.float32), np.array([2.0], np.float32)), "n": np.int64(-2)}
    header = (
        b'{"content":{"entries":{"n":{"dtype":"int64","shape":[]},"q":{"family":"DiagonalGaussian","parameters":'
        b'[{"dtype":"float32","shape":[1]},{"dtype":"float32","shape":[1]}]}}},"kind":"update","round":7,'
        b'"site":"north","study":"heart"}'
    )
    payload = bytes.fromhex("feffffffffffffff0000c03f00000040")
    assert encode(Update("heart", "north", 7, tree)) == seal(header, payload)


def nested(depth: int, leaf: object) -> object:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def test_the_limits_themselves_are_allowed():
    most = messages.MOST_ARRAYS
    for tree in (
        nested(8, np.float64(1.0)),
        nested(7, {}),
        np.zeros((1,) * 8),
        {str(i): np.int32(i) for i in range(most)},
        {"k" * 200: np.zeros(0)},
    ):
        assert_same(tree, decode_tree(encode_tree(tree)))


# --- What may not go out -----------------------------------------------------------------------------------------


class Sneaky(Diagonal):
    """A family that is not in the table."""


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (1, r"content is a int; expected an array \(for a number, np.float64\(0.5\)\)"),
        (0.5, "content is a float"),
        (True, "content is a bool"),
        ({"a": {"b": None}}, r"content\['a'\]\['b'\] is a NoneType"),
        ((np.ones(2),), "is a tuple"),
        ([1.0], "is a list"),
        ("text", "is a str"),
        (b"bytes", "is a bytes"),
        (object(), "is a object"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "is a MaskedArray"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "is a ShapeDtypeStruct"),
        (np.ones(2, np.float16), "of type 'float16'; expected one of bool, float32"),
        (np.ones(2, np.complex64), "of type 'complex64'"),
        (np.ones(2, np.uint16), "of type 'uint16'"),
        (jnp.ones(2, jnp.bfloat16), "of type 'bfloat16'"),
        (np.array([object()]), "of type 'object'"),
        (np.array(["a"]), "of type 'str32'"),
        (np.zeros(2, [("a", "f8")]), "of type 'void64'"),
        (np.datetime64("2020-01-01"), "of type 'datetime64"),
        ({1: np.ones(2)}, "a key of content=1; expected 1 to 200 printable"),
        ({"": np.ones(2)}, "a key of content=''"),
        ({"a\n": np.ones(2)}, "a key of content="),
        ({"k" * 201: np.ones(2)}, "a key of content="),
        (nested(9, np.ones(2)), "is a dict inside 8 others; expected 8"),
        (np.zeros((1,) * 9), "is of shape"),
        (np.zeros((0, 2**40)), "is of shape"),
        (np.broadcast_to(np.float64(0.0), (2**40,)), "is of shape"),
        ({"a": np.broadcast_to(0.0, 2**24), "b": np.broadcast_to(0.0, 2**24)}, "in a message of 268435"),
        ({str(i): np.int32(i) for i in range(4097)}, "comes after 4096 arrays; expected at most 4096"),
        ({f"{i:0200}": {} for i in range(6000)}, "a header of 13080[0-9]+ bytes"),
        (Diagonal(np.ones(2), np.ones(3)), r"float64\(2,\) and precision float64\(3,\); expected one floating"),
        (Diagonal(np.ones(2), np.ones((2, 2))), "expected one floating type"),
        (Diagonal(np.ones(()), np.ones(())), "expected one floating type"),
        (Diagonal(np.ones((5, 2)), np.ones((5, 2))), "without a batch"),
        (Full(np.ones(2), np.ones(2)), r"\(d, d\)"),
        (Full(np.ones(2), np.ones((2, 3))), r"\(d, d\)"),
        (Full(np.ones((5, 2)), np.ones((5, 2, 2))), "without a batch"),
        (Diagonal(np.ones(2), np.ones(2, np.float32)), "one floating type"),
        (Diagonal(np.ones(2, np.int64), np.ones(2, np.int64)), "one floating type"),
        (Diagonal({}, {}), "is a dict; expected an array"),
        (Diagonal(1.0, 2.0), "is a float"),
        (Sneaky(np.ones(2), np.ones(2)), "is a Sneaky"),
        (type("DiagonalGaussian", (Sneaky,), {})(np.ones(2), np.ones(2)), "is a DiagonalGaussian"),
        (OrderedDict(a=np.ones(2)), "is a OrderedDict"),
    ],
    ids=range(44),
)
def test_what_is_not_a_tree_is_refused_with_its_place_and_a_remedy(tree, sentence):
    for send in (encode_tree, lambda tree: encode(Broadcast("s", 0, tree))):
        with pytest.raises(ValueError, match=sentence):
            send(tree)


def test_a_key_of_randomness_does_not_travel(key):
    with pytest.raises(ValueError, match="content is of type 'key<"):
        encode_tree(key)


def test_a_dict_that_holds_itself_is_refused():
    tree = {}
    tree["a"] = tree
    with pytest.raises(ValueError, match="is a dict inside 8 others"):
        encode_tree(tree)


def test_an_array_without_its_numbers_is_refused():
    with pytest.raises(ValueError, match="traced by JAX or deleted"):
        jax.jit(encode_tree)(jnp.ones(2))
    gone = jnp.ones(2)
    gone.delete()
    with pytest.raises(ValueError, match="traced by JAX or deleted"):
        encode_tree(gone)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "a" * 201, None, 3, b"a", "\ud800"])
def test_a_name_is_printable_text_on_one_line(name):
    for build in (lambda: Broadcast(name, 0, {}), lambda: Update("s", name, 0, {}), lambda: Refusal("s", name, 0, "r")):
        with pytest.raises(ValueError, match=r"^(study|site)=.*; expected 1 to 200 printable characters"):
            build()


@pytest.mark.parametrize("round", [-1, 2**63, True, 1.0, "1", None, np.int64(1)])
def test_a_round_is_a_whole_number_of_63_bits(round):
    for build in (lambda: Broadcast("s", round, {}), lambda: Refusal("s", "t", round, "r")):
        with pytest.raises(ValueError, match=r"^round=.*; expected a Python int"):
            build()


@pytest.mark.parametrize("reason", ["", "a\nb", "r" * 2001, None])
def test_a_reason_is_a_short_paragraph(reason):
    with pytest.raises(ValueError, match="expected 1 to 2000 printable characters"):
        Refusal("s", "t", 0, reason)


@pytest.mark.parametrize("other", [None, {}, "broadcast", Broadcast, DiagonalGaussian.standard(2)])
def test_what_is_not_a_message_is_refused(other):
    with pytest.raises(ValueError, match="expected a Broadcast, an Update or a Refusal"):
        encode(other)


# --- What may not come in ----------------------------------------------------------------------------------------

SMALL = Update("s", "t", 1, {"q": Diagonal(np.array([1.0]), np.array([2.0])), "b": np.array([True, False])})


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data):
    assert is_refused(data)
    assert is_refused(seal(data))
    assert is_refused(seal(b"", data))


def test_every_change_of_a_byte_is_refused():
    data = encode(SMALL)
    for place in range(len(data)):
        for flip in range(1, 256):
            changed = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
            with pytest.raises(ValueError, match=r"; |: "):
                decode(changed)


def test_every_truncation_is_refused():
    data = encode(SMALL)
    assert all(is_refused(data[:length]) for length in range(len(data)))


def test_appended_and_prepended_bytes_are_refused():
    data = encode(SMALL)
    assert is_refused(data + b"\0")
    assert is_refused(data + data)
    assert is_refused(b"\0" + data)


def test_appended_bytes_are_refused_even_if_they_are_hashed():
    assert is_refused(seal(b'{"content":{"entries":{}},"kind":"tree"}', b"\0"))
    refusal = b'{"kind":"refusal","reason":"r","round":0,"site":"t","study":"s"}'
    assert encode(Refusal("s", "t", 0, "r")) == seal(refusal)
    assert is_refused(seal(refusal, b"\0"))


def accepts(data: bytes) -> bool:
    """Whether a reader takes the bytes; if it does, they are the one encoding of what it returns."""
    taken = False
    for read, write in ((decode, encode), (decode_tree, encode_tree)):
        try:
            value = read(data)
        except ValueError:
            continue
        assert write(value) == data
        taken = True
    return taken


def forged(rng: random.Random, text: bytes) -> bytes:
    """One to three bytes changed, left out or put in."""
    changed = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[place] = rng.randrange(256)
            case 1:
                del changed[place]
            case 2:
                changed.insert(place, rng.choice(b'"{}[],:0123456789-.e \\u'))
    return bytes(changed)


def test_a_forged_message_is_refused_or_the_only_encoding_of_what_it_says():
    whole = encode(SMALL)[:-32]
    start = 11 + int.from_bytes(whole[7:11], "big")
    header, payload = whole[11:start], whole[start:]
    assert seal(header, payload)[:-32] == whole
    rng = random.Random(5)
    headers = sum(accepts(seal(forged(rng, header), payload)) for _ in range(6000))
    payloads = sum(accepts(seal(header, forged(rng, payload))) for _ in range(600))
    for _ in range(600):
        body = forged(rng, whole)
        accepts(body + hashlib.sha256(body).digest())
    assert 10 < headers < 3000  # other names and rounds are sound; nearly all else is not
    assert 60 < payloads < 300  # so are other numbers


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["entries", "dtype", "shape", "family", "parameters", "a"]), inner, max_size=3
        )
    ),
    max_leaves=20,
)


@given(JSONS, st.binary(max_size=16))
def test_any_json_as_content_is_refused_or_canonical(content, payload):
    accepts(sealed_tree(content, payload))


@given(st.dictionaries(st.sampled_from(["kind", "study", "site", "round", "reason", "content"]), JSONS), st.data())
def test_any_json_as_header_is_refused_or_canonical(header, data):
    header["kind"] = data.draw(st.sampled_from(["broadcast", "update", "refusal", "tree", "Broadcast", "", None, []]))
    accepts(seal(json.dumps(header, sort_keys=True, separators=(",", ":")).encode()))


@pytest.mark.parametrize(
    "header",
    [
        b'{"kind":"tree","content":{"entries":{}}}',  # keys not in order
        b'{"content": {"entries":{}},"kind":"tree"}',
        b'{"content":{"entries":{}},"kind":"tree"}\n',
        b'{"content":{"entries":{}},"kind":"tree","kind":"tree"}',
        b'{"content":{"entries":{}},"content":{"entries":{}},"kind":"tree"}',
        b'{"content":{"entries":{}},"kind":"tre\\u0065"}',
        b'{"content":{"entries":{}},"extra":0,"kind":"tree"}',
        b'{"content":{"entries":{},"extra":0},"kind":"tree"}',
        b'{"kind":"tree"}',
        b'{"content":{"entries":{}}}',
        b'{"content":{"entries":{}},"kind":"tuple"}',
        b'{"content":{"entries":{}},"kind":["tree"]}',
        b'{"content":{"entries":{}},"kind":"tree","site":"s"}',
        '{"content":{"entries":{"é":{"entries":{}}}},"kind":"tree"}'.encode(),
        b'{"content":{"entries":{"\\ud800":{"entries":{}}}},"kind":"tree"}',
        b'{"content":{"entries":{"":{"entries":{}}}},"kind":"tree"}',
        b'{"content":{"entries":[]},"kind":"tree"}',
        b'{"content":null,"kind":"tree"}',
        b'{"content":NaN,"kind":"tree"}',
        b'{"content":1e999,"kind":"tree"}',
        b'{"content":' + b"9" * 5000 + b',"kind":"tree"}',
        b'["tree"]',
        b"null",
        b"",
        b"\xff",
        b'{"content":{"entries":{}},"kind":"broadcast","round":true,"study":"s"}',
        b'{"content":{"entries":{}},"kind":"broadcast","round":0.0,"study":"s"}',
        b'{"content":{"entries":{}},"kind":"broadcast","round":-1,"study":"s"}',
        b'{"content":{"entries":{}},"kind":"broadcast","round":9223372036854775808,"study":"s"}',
        b'{"content":{"entries":{}},"kind":"broadcast","round":0,"study":""}',
        b'{"content":{"entries":{}},"kind":"broadcast","round":0,"study":["s"]}',
        b'{"content":{"entries":{}},"kind":"broadcast","round":0,"study":"\\n"}',
        b'{"content":{"entries":{}},"kind":"refusal","round":0,"site":"t","study":"s"}',
        b'{"kind":"refusal","reason":null,"round":0,"site":"t","study":"s"}',
    ],
    ids=range(34),
)
def test_a_header_that_is_not_the_canonical_one_is_refused(header):
    assert is_refused(seal(header))


@pytest.mark.parametrize(
    "content",
    [
        array("float16"),
        array("object", 1),
        array("O", 1),
        array("<f8", 1),
        array(["float64"], 1),
        array("float64", -1, -1),
        array("float64", 1.0),
        array("float64", True),
        array("float64", "1"),
        array("float64", None),
        array("float64", 2),  # more than there is
        array("float64", 2**61),  # 2**64 bytes: nothing, modulo 64 bits
        array("float64", 2**32, 2**32, 0, 1),
        array("float64", *([1] * 9)),
        array("float32", 1),  # less than there is
        array("float64", 1) | {"order": "F"},
        {"dtype": "float64"},
        {"dtype": "float64", "shape": 1},
        array("bool", 8),  # the payload's bytes are not all 0 or 1
        {"family": "DiagonalGaussian", "parameters": [array("float32", 1), array("float32", 1)], "extra": 0},
        {"family": "DiagonalGaussian", "parameters": [array("float32", 1)]},
        {"family": "DiagonalGaussian", "parameters": [array("float32", 1)] * 3},
        {"family": "DiagonalGaussian", "parameters": [array("float32"), array("float32")]},
        {"family": "DiagonalGaussian", "parameters": [array("int32", 1), array("int32", 1)]},
        {"family": "DiagonalGaussian", "parameters": [array("float64", 0), array("float64", 1)]},
        {"family": "DiagonalGaussian", "parameters": [array("float32", 1, 1), array("float32", 1, 1)]},
        {"family": "DiagonalGaussian", "parameters": [{"entries": {}}, array("float64", 1)]},
        {"family": "DiagonalGaussian", "parameters": {"a": array("float32", 1), "b": array("float32", 1)}},
        {"family": "FullGaussian", "parameters": [array("float32", 1), array("float32", 1)]},
        {"family": "Family", "parameters": [array("float32", 1), array("float32", 1)]},
        {"family": "os.system", "parameters": [array("float32", 1), array("float32", 1)]},
        {"family": ["DiagonalGaussian"], "parameters": [array("float32", 1), array("float32", 1)]},
        {"entries": {"k" * 201: array("float64", 1)}},
    ],
    ids=range(33),
)
def test_a_content_that_does_not_fit_its_bytes_or_the_table_is_refused(content):
    payload = np.float64(math.pi).tobytes()
    assert not is_refused(sealed_tree(array("float64", 1), payload)), "else this test shows nothing"
    assert is_refused(sealed_tree(content, payload))


@pytest.mark.parametrize("depth", [9, 100, 100_000])
@pytest.mark.parametrize(("before", "after"), [('{"entries":{"a":', "}}"), ("[", "]"), ('{"a":', "}")])
def test_a_deep_header_is_refused_without_a_recursion_error(depth, before, after):
    depth = min(depth, messages.MOST_HEADER // (len(before) + len(after)) - 10)
    text = '{"content":' + before * depth + '{"entries":{}}' + after * depth + ',"kind":"tree"}'
    assert len(text) < messages.MOST_HEADER
    assert is_refused(seal(text.encode()))
    assert is_refused(seal(text.encode()[: len(text) // 2]))


def test_a_header_beyond_its_limit_or_beyond_the_data_is_refused():
    text = b'{"content":{"entries":{}},"kind":"tree"}'
    assert is_refused(seal(text, length=len(text) + 1))
    assert is_refused(seal(text, length=2**32 - 1))
    assert is_refused(seal(text, length=0))
    entries = {f"{i:0200}": {"entries": {}} for i in range(6000)}
    assert is_refused(sealed_tree({"entries": entries}))
    assert not is_refused(sealed_tree({"entries": dict(list(entries.items())[:4000])}))


def test_a_negative_shape_is_refused_before_numpy_sees_it():
    with pytest.raises(ValueError, match=r"content is of shape \[-1, -8\]; expected"):
        decode_tree(sealed_tree(array("bool", -1, -8), bytes(8)))


def test_too_many_arrays_are_refused_even_if_they_are_empty():
    entries = {f"{i:04}": array("float64", 0) for i in range(messages.MOST_ARRAYS + 1)}
    assert is_refused(sealed_tree({"entries": entries}))
    del entries["0000"]
    assert not is_refused(sealed_tree({"entries": entries}))


def test_data_beyond_the_limit_is_refused(monkeypatch):
    data = encode(SMALL)
    monkeypatch.setattr(messages, "MOST_BYTES", len(data))
    assert encode(decode(data)) == data
    monkeypatch.setattr(messages, "MOST_BYTES", len(data) - 1)
    assert is_refused(data)
    with pytest.raises(ValueError, match="send less"):
        encode(SMALL)


@pytest.mark.parametrize("shape", [[2**40], [2**20, 2**20], [2**63], [2**31, 2**31, 4], [0, 2**62, 2**62], [2**27]])
def test_a_huge_shape_is_refused_without_the_memory_it_asks_for(shape):
    data = sealed_tree(array("float64", *shape), b"12345678")
    tracemalloc.start()
    try:
        assert is_refused(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_the_worst_header_takes_memory_in_proportion_to_its_length():
    data = seal(b"[" + b",".join([b'{"":0}'] * (messages.MOST_HEADER // 7 - 1)) + b"]")
    tracemalloc.start()
    try:
        assert is_refused(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * messages.MOST_HEADER


@pytest.mark.parametrize("other", [None, "tacit", 3, bytearray(b"tacit\0"), memoryview(b"tacit\0"), [], np.zeros(9)])
def test_what_is_not_bytes_is_refused(other):
    for read in READERS:
        with pytest.raises(ValueError, match=r"^data is a \w+; expected bytes made by encode$"):
            read(other)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_with_both_versions_named(version):
    data = seal(b'{"content":{"entries":{}},"kind":"tree"}', version=version)
    for read in READERS:
        with pytest.raises(ValueError, match=f"data is of version {version}; this tacit reads 1"):
            read(data)


def test_a_tree_is_no_message_and_a_message_no_tree():
    with pytest.raises(ValueError, match="read it with decode_tree"):
        decode(encode_tree({}))
    with pytest.raises(ValueError, match=r"holds a message, broadcast; .* read it with decode$"):
        decode_tree(encode(Broadcast("s", 0, {})))


# --- Nothing is executed -----------------------------------------------------------------------------------------


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_is_refused_and_does_not_run(tmp_path):
    mark = tmp_path / "mark"
    payload = pickle.dumps(Bomb(mark))
    for data in (payload, seal(payload), seal(b"", payload), sealed_tree(array("float64", 1), payload)):
        assert is_refused(data)
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists(), "else this test shows nothing"
    with pytest.raises(ValueError, match="is a Bomb"):
        encode_tree(Bomb(mark))


FORBIDDEN = {"pickle", "cpickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "importlib"} | {
    *("eval", "exec", "compile", "__import__", "allow_pickle", "load", "save", "savez", "literal_eval", "globals")
}


def forbidden_words(source: str) -> set[str]:
    """Names, attributes, imports and keywords that could run what a message says."""
    words = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=str(word)):
                words.add(word)
            case ast.Import(names=names):
                words |= {part for name in names for part in name.name.split(".")}
            case ast.ImportFrom(module=module, names=names):
                words |= {*(module or "").split("."), *(name.name for name in names)}
            case ast.Constant(value=str(word)):
                words.add(word)
    return {word for word in words if word.lower() in FORBIDDEN}


def test_the_source_has_nothing_that_runs_a_message():
    assert forbidden_words(Path(messages.__file__).read_text()) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import dill as d",
        "from marshal import loads",
        "eval(x)",
        "builtins.exec(x)",
        "np.load(f)",
        "f(x, allow_pickle=True)",
        "getattr(np, 'load')",
    ],
)
def test_a_word_that_runs_a_message_is_reported(source):
    assert len(forbidden_words(source)) == 1


def test_encoding_leaves_the_message_as_it_was():
    message = copy.deepcopy(SMALL)
    encode(message)
    assert_same(SMALL.content, message.content)
