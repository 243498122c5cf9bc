"""Names that come from another machine."""

from __future__ import annotations

import pytest

from handrail.errors import FilesError
from handrail.filesystem.trees.inside_root import are_sound, check_relative

OUT = [b"", b".", b"..", b"/etc/x", b"../x", b"a/../../x", b"a/./x", b"a//x", b"a/", b"a\0b"]


@pytest.mark.parametrize("path", OUT)
def test_a_path_that_could_lead_out_is_refused(path: bytes) -> None:
    with pytest.raises(FilesError, match="is no name below the directory that is copied"):
        check_relative(path)
    assert not are_sound([b"good", path])


@pytest.mark.parametrize("path", [b"a", b"..a", b"...", b"a b", b"\xff"])
def test_a_name_below_the_root_is_taken(path: bytes) -> None:
    check_relative(path, alone=True)
    check_relative(b"deep/" + path)
    assert are_sound([b"good", path])


def test_a_path_is_not_one_name() -> None:
    check_relative(b"a/b")
    with pytest.raises(FilesError, match="is no name"):
        check_relative(b"a/b", alone=True)
    assert not are_sound([b"a/b"])
