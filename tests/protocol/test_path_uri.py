"""Path URIs.  Observed on the Codex exec-server 0.166, first table and hosts on 0.169 too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.protocol.path_uri import BadUri, NotNative, to_path, to_uri

NATIVE = {
    "file:///tmp": b"/tmp",
    "file:tmp": b"/tmp",
    "file:/tmp": b"/tmp",
    "file://localhost/tmp": b"/tmp",
    "file://LOCALHOST/tmp": b"/tmp",
    "FILE:///tmp": b"/tmp",
    "File:/tmp": b"/tmp",
    "file:\\tmp": b"/tmp",
    "file:\\\\\\tmp": b"/tmp",
    "file:///tmp/%2e%2e/usr": b"/usr",
    "file:///tmp/%2E./usr": b"/usr",
    "file:///tmp/.%2e/usr": b"/usr",
    "file:///tmp/../../../usr": b"/usr",
    "file:///a/./b/%2e/c": b"/a/b/c",
    " file:///tmp ": b"/tmp",
    "\x00\x1ffile:///tmp\n": b"/tmp",
    "file:///tm\np": b"/tmp",
    "fi\tle:///tmp": b"/tmp",
    "file:": b"/",
    "file:.": b"/",
    "file:..": b"/",
    "file:/": b"/",
    "file://": b"/",
    "file:///": b"/",
    "file:////tmp": b"/tmp",
    "file:///C|/x": b"/C|/x",
    "file:///tmp/c:/x": b"/tmp/c:/x",
    "file:///cc:/x": b"/cc:/x",
    "file:///c:x": b"/c:x",
    "file:///c%3A/x": b"/c:/x",
    "file:///a%20b": b"/a b",
    "file:///a b": b"/a b",
    "file:///%ff%FE": b"/\xff\xfe",
    "file:///ü/€": "/ü/€".encode(),
    "file:///a%2fb": b"/a/b",
    "file:///a%5Cb": b"/a\\b",
    "file:///a\\b": b"/a/b",
    "file:///100%": b"/100%",
    "file:///%zz": b"/%zz",
    "file:///a%3Fb%23c": b"/a?b#c",
    "file://%6Cocal%48ost/tmp": b"/tmp",
}

FOREIGN = [
    "file:///c:",
    "file:///c:/",
    "file:///C:/x",
    "file:c:/x",
    "file:/c:/x",
    "file://C:/x",
    "file:\\C:\\x",
    "file://host/tmp",
    "file://host",
    "file://127.0.0.1/tmp",
    "file://[::1]/tmp",
    "file://localhost.localdomain/tmp",
    "file://a_b,~/tmp",
    "file:///%00/bad/path/YWI",
]

BAD = {
    "/tmp": "invalid URI: relative URL without a base",
    "": "invalid URI: relative URL without a base",
    "tmp": "invalid URI: relative URL without a base",
    "./tmp": "invalid URI: relative URL without a base",
    "//host/tmp": "invalid URI: relative URL without a base",
    "1file:/tmp": "invalid URI: relative URL without a base",
    ":": "invalid URI: relative URL without a base",
    "http://x/tmp": "unsupported path URI scheme `http`",
    "http:": "unsupported path URI scheme `http`",
    "HTTPS://x": "unsupported path URI scheme `https`",
    "data:,x": "unsupported path URI scheme `data`",
    "vscode-remote://x/y": "unsupported path URI scheme `vscode-remote`",
    "c:/x": "unsupported path URI scheme `c`",
    "file:///tmp?x": "query",
    "file:///tmp?": "query",
    "file:?x": "query",
    "file:///tmp#x": "fragment",
    "file:///tmp#": "fragment",
    "file:///tmp?x#y": "",
    "file:///tmp%00x": "invalid",
    "file:///%00": "invalid",
    "file:///%00/bad/path": "invalid",
    "file:///%00/bad/path/": "invalid",
    "file:///%00/bad/path/YWI=": "invalid",
    "file:///x/%00/bad/path/YWI": "invalid",
    **dict.fromkeys(
        (
            "file://u@localhost/x",
            "file://localhost:80/x",
            "file://a b/x",
            "file://a%20b/x",
            "file://%zz/x",
            "file://%2f/x",
            "file://[::1/x",
            "file://::1/x",
            "file://a|b/x",
        ),
        "invalid international domain name",
    ),
}


@pytest.mark.parametrize(("uri", "path"), NATIVE.items())
def test_a_path_uri_of_this_machine(uri: str, path: bytes) -> None:
    assert to_path(uri) == path


@pytest.mark.parametrize("uri", FOREIGN)
def test_a_path_uri_of_another_machine(uri: str) -> None:
    with pytest.raises(NotNative) as caught:
        to_path(uri)
    assert str(caught.value) == f"'{caught.value.uri}' is invalid on 'linux'"


@pytest.mark.parametrize(("uri", "says"), BAD.items())
def test_what_is_no_path_uri(uri: str, says: str) -> None:
    with pytest.raises(BadUri) as caught:
        to_path(uri)
    assert says in str(caught.value)


segments = st.binary(min_size=1, max_size=8).filter(
    lambda s: b"/" not in s and b"\0" not in s and s not in (b".", b"..")
)
paths = st.lists(segments, max_size=5).map(lambda s: b"/" + b"/".join(s))


@given(paths | st.sampled_from((b"/c:", b"/C:/x", b"/c:/", b"/%2e%2e/x", b"/~/a b", b"/a/")))
def test_any_path_comes_back_from_its_uri(path: bytes) -> None:
    uri = to_uri(path)
    assert uri.isascii()
    assert uri.isprintable()
    assert " " not in uri
    assert to_path(uri) == path
    # And through a client that strips, splits or decodes JSON.
    assert to_path(f"  {uri}\n") == path


@given(st.text())
def test_any_text_is_an_absolute_path_or_refused(text: str) -> None:
    for uri in (text, f"file:{text}", f"file:///{text}"):
        try:
            path = to_path(uri)
        except (BadUri, NotNative):
            continue
        assert path.startswith(b"/")
        assert b"\0" not in path
        assert b".." not in path.split(b"/") or "%2f" in uri.lower()
