from __future__ import annotations

from typing import Any

import pytest

from tests.wire.matching import match, substitute

UUID = "0123abcd-0123-4567-89ab-0123456789ab"


@pytest.mark.parametrize(
    ("pattern", "got"),
    [
        (1, 1),
        ("a", "a"),
        (None, None),
        ("${ANY}", {"a": [1]}),
        ("${INT}", -3),
        ("${STR}", ""),
        ("${UUID}", UUID),
        ([1, "${ANY}"], [1, None]),
        ({"a": "${INT}"}, {"a": 1}),
        ({"$subset": {"a": 1}}, {"a": 1, "b": 2}),
        ({"$contains": "bc"}, "abcd"),
        ({"$regex": "a.*d$"}, "a\nd"),
        ({"$oneOf": [1, 2]}, 2),
        ({"$unordered": [1, "${ANY}"]}, [2, 1]),
    ],
)
def test_fits(pattern: Any, got: Any) -> None:
    assert match(pattern, got)


@pytest.mark.parametrize(
    ("pattern", "got"),
    [
        (1, True),
        (1, 1.0),
        (0, None),
        ("a", "b"),
        ("${INT}", True),
        ("${INT}", 1.0),
        ("${STR}", 1),
        ("${UUID}", UUID.upper()),
        ([1], [1, 2]),
        ([1], 1),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, {}),
        ({"$subset": {"a": 1}}, {"b": 1}),
        ({"$subset": {}}, []),
        ({"$contains": "x"}, "abc"),
        ({"$contains": "1"}, 1),
        ({"$regex": "^b"}, "ab"),
        ({"$oneOf": [1, 2]}, 3),
        ({"$unordered": [1, 1]}, [1, 2]),
        ({"$unordered": [1]}, [1, 1]),
        ({"$unordered": []}, {}),
    ],
)
def test_does_not_fit(pattern: Any, got: Any) -> None:
    assert not match(pattern, got)


def test_placeholders_are_filled_in_everywhere() -> None:
    value = {"k${A}": ["x${A}y", 1, {"$contains": "${A}"}]}
    assert substitute(value, {"A": "z"}) == {"kz": ["xzy", 1, {"$contains": "z"}]}


def test_unknown_placeholders_stay() -> None:
    assert substitute("${ANY}", {"A": 1}) == "${ANY}"


def test_keys_that_begin_with_a_dollar_are_not_touched() -> None:
    assert substitute({"${A}": 1, "$subset": {}}, {"A": "b"}) == {"${A}": 1, "$subset": {}}
