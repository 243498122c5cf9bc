"""Words that are no text, and refusals that name one."""

from __future__ import annotations

import json
import os

from hypothesis import given
from hypothesis import strategies as st

from handrail.protocol import codec, percent_words


@given(st.binary())
def test_any_bytes_travel(word: bytes) -> None:
    text = percent_words.encode(word)
    assert text.isascii()
    assert os.fsencode(percent_words.decode(text)) == word


def test_what_can_be_read_stays_so() -> None:
    assert percent_words.encode(b"cp -r a/b 'c d'") == "cp -r a/b 'c d'"
    assert percent_words.encode(b"100% \xff") == "100%25 %FF"
    # As another client may write it.
    assert percent_words.decode("na\u00efve%20%e4") == "na\u00efve \udce4"


def test_a_refusal_that_names_a_file_that_is_no_text() -> None:
    message = codec.error_message(
        1, -32603, "cannot start /a\udcff", {"path": "/a\udcff", "errno": 2, "more": ["\udcfe"]}
    )
    error = json.loads(message)["error"]
    assert error["message"] == "cannot start /a\ufffd"
    assert error["data"] == {"path": "/a\ufffd", "errno": 2, "more": ["\ufffd"]}
