from __future__ import annotations

import pytest

from handrail.errors import UsageError
from handrail.executor.keys import key_text


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("enter", "\r"),
        ("Ctrl-C", "\x03"),
        ("ctrl+d", "\x04"),
        ("C-z", "\x1a"),
        ("ctrl-space", "\0"),
        ("ctrl-]", "\x1d"),
        ("UP", "\x1b[A"),
        ("page_down", "\x1b[6~"),
        ("f1", "\x1bOP"),
        ("F5", "\x1b[15~"),
        ("f12", "\x1b[24~"),
        ("alt-x", "\x1bx"),
        ("alt-X", "\x1bX"),
        ("meta-enter", "\x1b\r"),
        ("q", "q"),
    ],
)
def test_keys_send_what_a_terminal_sends(key: str, sent: str) -> None:
    assert key_text([key]) == sent


def test_keys_are_pressed_in_order() -> None:
    assert key_text(["escape", "h", "j"]) == "\x1bhj"


@pytest.mark.parametrize("key", ["", "hyper-x", "ctrl-enter", "word", "alt-"])
def test_an_unknown_key_is_named(key: str) -> None:
    with pytest.raises(UsageError, match="unknown key"):
        key_text([key])
