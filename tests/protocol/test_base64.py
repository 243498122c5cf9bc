"""Strict standard base64, as ``chunk`` and ``dataBase64`` have to be (exec-server.md 4.6)."""

from __future__ import annotations

import base64
import binascii

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handrail.errors import RpcError
from handrail.protocol.codec import decode_base64, encode_base64
from handrail.protocol.envelope import INVALID_PARAMS

GOOD = {
    "": b"",
    "AA==": b"\0",
    "QQ==": b"A",
    "QUI=": b"AB",
    "QUJD": b"ABC",
    "/+8=": b"\xff\xef",
    "+/+/": b"\xfb\xff\xbf",
}

BAD = [
    # padding that is missing, too much, or somewhere else
    "QQ", "QQ=", "QUI", "QUJD=", "QUJD==", "QUJD====", "=", "==", "====", "Q", "Q=", "Q==", "Q===",
    "A===", "QQ==QQ==", "QQ==QUJD", "=QUJ", "Q=JD", "QU=D", "QQ===", "QUI==",
    # white space and line ends
    " QQ==", "QQ== ", "QQ ==", "QQ==\n", "QU\nJD", "QUJD\r\n", "\tQUJD", "QUJD\x00",
    # other alphabets
    "-_-_", "QU-_", "QU.D", "QU,D", "Q\u00c1JD", "QUJ\u0141", "ＱＵＪＤ", "\U0001f600",
    # bits that belong to no byte
    "QR==", "QV==", "Qf==", "QUJ=", "QUK=", "QUL=", "//==", "///=",
]  # fmt: skip


@pytest.mark.parametrize(("text", "data"), GOOD.items())
def test_good_base64(text: str, data: bytes) -> None:
    assert decode_base64(text, "chunk") == data


@pytest.mark.parametrize("text", BAD)
def test_bad_base64(text: str) -> None:
    with pytest.raises(RpcError, match="`chunk` is not valid base64") as caught:
        decode_base64(text, "chunk")
    assert caught.value.code == INVALID_PARAMS


@given(st.binary())
def test_what_is_encoded_comes_back(data: bytes) -> None:
    assert decode_base64(encode_base64(data).decode(), "chunk") == data


def is_canonical(text: str) -> bool:
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return False
    return base64.b64encode(data).decode() == text


@given(st.text(alphabet="AQf/+=-_ \n", max_size=12))
@example("AAAA=AAA")
def test_exactly_the_canonical_form_is_taken(text: str) -> None:
    try:
        decode_base64(text, "chunk")
        taken = True
    except RpcError:
        taken = False
    assert taken == is_canonical(text)
