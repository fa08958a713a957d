"""Rank table in a ConfigMap: plain text if it fits, else gzip, else a clear error."""

import base64
import random

import pytest

from resnetboost_operator.ranktable import assembly, document, payload
from resnetboost_operator.ranktable.payload import CONFIG_MAP_BYTES, TooLarge
from support.gangs import gang

KEY = "hccl.json"


@pytest.mark.slow
def test_13000_devices_fit_as_text() -> None:
    data = assembly.build(gang(1625, 8), "910B").data
    packed = payload.pack(KEY, data)
    assert (list(packed.data), packed.binary_data) == ([KEY], {})
    assert payload.unpack(KEY, packed) == data


@pytest.mark.parametrize(("spare", "keys"), [(0, [KEY]), (-1, [KEY + ".gz"])], ids=["the last byte", "one too many"])
def test_large_tables_are_compressed(spare: int, keys: list[str]) -> None:
    content = b"x" * 1000
    packed = payload.pack(KEY, content, reserved_bytes=CONFIG_MAP_BYTES - len(content) - spare)
    assert [*packed.data, *packed.binary_data] == keys
    assert payload.unpack(KEY, packed) == content


def test_the_same_table_has_the_same_compressed_bytes() -> None:
    content = b"x" * (2 * CONFIG_MAP_BYTES)
    assert payload.pack(KEY, content) == payload.pack(KEY, content)


def test_too_large_tables_are_refused_with_their_sizes() -> None:
    content = base64.b64encode(random.Random(1).randbytes(2 * CONFIG_MAP_BYTES))
    with pytest.raises(
        TooLarge, match=r"^hccl.json has 2796204 bytes, [0-9]+ with gzip, .* has room for 1048576; use fewer"
    ):
        payload.pack(KEY, content)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "it is not valid JSON", id="nothing"),
        pytest.param(b'{"a": 1,\n "b": }', "in line 2", id="a syntax error"),
        pytest.param(b"[]", "no JSON object", id="a list"),
        pytest.param(b'{"a": "\xff"}', "not UTF-8", id="other bytes"),
        pytest.param(b'{"a": 1} // comment', "not valid JSON", id="a comment"),
        pytest.param(b'{"a":' * 30 + b"1" + b"}" * 30, "deeper than 20", id="thirty levels"),
        pytest.param(b"[" * 100_000, "deeper than 20", id="a hundred thousand levels"),
        pytest.param(b'{"a": 1e999}', "not valid JSON", id="a number out of range"),
        pytest.param(b" " * (document.MAX_BYTES + 1), "cannot be a rank table", id="more than 64 MiB"),
    ],
)
def test_untrusted_bytes_end_in_one_sentence(data: bytes, words: str) -> None:
    with pytest.raises(document.DocumentError, match=words) as caught:
        document.parse(data)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_error() -> None:
    assert document.parse(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
