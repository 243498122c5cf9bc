"""Files and edits made up, turned into a patch, applied, compared."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from handrail.errors import PatchError
from handrail.patch.apply import Mode, apply
from handrail.patch.grammar import parse
from handrail.patch.hunks import AddFile, Chunk, DeleteFile, Hunk, Line, LineKind, Patch, UpdateFile
from tests.patch.memory import MemoryFiles

_WORDS = st.text(st.sampled_from("ab -+@*#\u2013é"), max_size=4)
_LINES = st.lists(_WORDS, max_size=10)
_ENDINGS = st.sampled_from(["\n", "\r\n"])
_NAMES = st.sampled_from(["a", "b", "d/a", "d/e/b", "d"])


def write(patch: Patch) -> str:
    """A patch as text: the other way round than ``parse``."""
    out = ["*** Begin Patch"]
    if patch.environment_id is not None:
        out.append(f"*** Environment ID: {patch.environment_id}")
    for hunk in patch.hunks:
        match hunk:
            case AddFile(path, content):
                out.append(f"*** Add File: {path}")
                out += [f"+{line}" for line in content.split("\n")[:-1]]
            case DeleteFile(path):
                out.append(f"*** Delete File: {path}")
            case UpdateFile(path, chunks, move_to):
                out.append(f"*** Update File: {path}")
                if move_to is not None:
                    out.append(f"*** Move to: {move_to}")
                for chunk in chunks:
                    out.append("@@" if chunk.context is None else f"@@ {chunk.context}")
                    out += [f"{line.kind.value}{line.text}" for line in chunk.lines]
                    if chunk.end_of_file:
                        out.append("*** End of File")
    return "\n".join([*out, "*** End Patch"])


def difference(old: list[str], new: list[str]) -> Chunk:
    """One chunk over the whole file; so it can only be found at its beginning."""
    lines: list[Line] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [Line(LineKind.KEEP, text) for text in old[i:j]]
        else:
            lines += [Line(LineKind.REMOVE, text) for text in old[i:j]]
            lines += [Line(LineKind.ADD, text) for text in new[k:m]]
    return Chunk(tuple(lines))


_TEXT_LINES = st.builds(Line, st.sampled_from(LineKind), _WORDS)
_CONTEXTS = st.none() | st.from_regex(r"[a-c]([ a-c]{0,3}[a-c])?", fullmatch=True)
_CHUNKS = st.builds(
    Chunk, st.lists(_TEXT_LINES, min_size=1, max_size=4).map(tuple), _CONTEXTS, st.booleans()
)
_HUNKS: st.SearchStrategy[Hunk] = st.one_of(
    st.builds(AddFile, _NAMES, _LINES.map(lambda lines: "".join(f"{x}\n" for x in lines))),
    st.builds(DeleteFile, _NAMES),
    st.builds(
        UpdateFile, _NAMES, st.lists(_CHUNKS, min_size=1, max_size=3).map(tuple), st.none() | _NAMES
    ),
)
_PATCHES = st.builds(Patch, st.lists(_HUNKS, max_size=4).map(tuple), st.none() | st.just("there"))


@given(_PATCHES, _ENDINGS)
def test_a_patch_survives_being_written_and_read(patch: Patch, ending: str) -> None:
    assert parse(write(patch).replace("\n", ending)) == patch


@given(_LINES, _LINES, _ENDINGS, st.booleans())
def test_the_difference_of_two_files_makes_one_the_other(
    old: list[str], new: list[str], ending: str, moved: bool
) -> None:
    chunk = difference(old, new)
    if not chunk.lines:
        return
    files = MemoryFiles({"/w/f": "".join(line + ending for line in old).encode()})
    # A new file has no line ending to go by.
    ending = ending if old else "\n"
    target = "g" if moved else "f"
    text = write(Patch((UpdateFile("f", (chunk,), target if moved else None),)))
    apply(parse(text), files, "/w")
    assert files.files == {f"/w/{target}": "".join(line + ending for line in new).encode()}


@given(st.lists(st.text("abc", min_size=3), min_size=3, max_size=20, unique=True), st.data())
def test_chunks_with_little_context_find_their_places(old: list[str], data: st.DataObject) -> None:
    """Every line is unique, so one line of context before and after is enough."""
    picked = data.draw(st.sets(st.integers(0, len(old) - 1), min_size=1))
    places = [place for place in sorted(picked) if place - 1 not in picked]
    chunks, new = [], list(old)
    for place in places:
        fresh = f"new {place}"
        lines = [Line(LineKind.REMOVE, old[place]), Line(LineKind.ADD, fresh)]
        chunks.append(Chunk(tuple(lines), old[place - 1] if place else None))
        new[place] = fresh
    files = MemoryFiles({"/w/f": "".join(f"{line}\n" for line in old).encode()})
    apply(parse(write(Patch((UpdateFile("f", tuple(chunks)),)))), files, "/w")
    assert files.files["/w/f"].decode().split("\n")[:-1] == new


@given(
    _PATCHES,
    st.dictionaries(st.sampled_from(["/w/a", "/w/b", "/w/d/a"]), _LINES, max_size=3),
)
def test_all_or_none_agrees_with_one_by_one(patch: Patch, before: dict[str, list[str]]) -> None:
    """The same result and the same first error; after an error the files are untouched."""
    content = {path: "".join(f"{x}\n" for x in lines).encode() for path, lines in before.items()}
    outcomes = []
    for mode in Mode:
        files = MemoryFiles(content)
        folders = set(files.folders)
        try:
            changes = apply(patch, files, "/w", mode)
        except PatchError as error:
            outcomes.append(str(error))
            if mode is Mode.ATOMIC:
                assert files.files == content
                assert files.folders == folders
        else:
            outcomes.append((files.files, [(change.kind, change.shown) for change in changes]))
    assert outcomes[0] == outcomes[1]
