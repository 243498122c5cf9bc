"""Files: by commands, by patches, and those the client reads for itself."""

from __future__ import annotations

import base64

from tests.interop.script import Look, Patch, Run
from tests.interop.tasks.task import FILES, Outcome, Task

NEEDS_FILES = frozenset({FILES})
#: One blue pixel.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SKILL = "knows how trains are drawn"
LINES = 200_000
BIG_FILE = "".join(f"line {n}\n" for n in range(LINES))


def patch(*lines: str) -> Patch:
    """A patch of these lines."""
    return Patch("\n".join(("*** Begin Patch", *lines, "*** End Patch", "")))


def patched(o: Outcome, step: int, *files: str) -> None:
    """Assert that a patch was applied to these files, each with its letter."""
    text = o.answer(step).text
    wanted = "Success. Updated the following files:\n" + "".join(f"{f}\n" for f in files)
    assert text.endswith(wanted), text


def told(o: Outcome, request: int) -> str:
    """What the model is told in messages, calls and their answers aside."""
    items = o.model.requests[request]["input"]
    return str([item for item in items if item["type"] == "message"])


def check_by_commands(o: Outcome) -> None:
    o.ran(0, "")
    o.ran(1, "2 notes/a.txt\n")
    o.ran(2, "given\n")
    assert (o.workspace / "notes" / "a.txt").read_text() == "one\ntwo\n"
    assert not (o.workspace / "given.txt").exists()


def check_patch(o: Outcome) -> None:
    patched(o, 0, "A sub/new.txt")
    patched(o, 1, "M sub/new.txt")
    o.ran(2, "one\nzwei\nthree\n")
    patched(o, 3, "M sub/moved.txt")
    o.ran(4, "sub/moved.txt\none\ntwo\nthree\n")
    patched(o, 5, "D sub/moved.txt")
    assert list((o.workspace / "sub").iterdir()) == []
    kinds = [change["kind"] for item in o.turn.items("file_change") for change in item["changes"]]
    assert kinds == ["add", "update", "update", "delete"]


def check_several(o: Outcome) -> None:
    patched(o, 0, "A added.txt", "M changed.txt", "D gone.txt")
    assert sorted(path.name for path in o.workspace.iterdir()) == ["added.txt", "changed.txt"]
    assert (o.workspace / "added.txt").read_text() == "new\n"
    assert (o.workspace / "changed.txt").read_text() == "a\nB\nc\n"


def check_by_shell(o: Outcome) -> None:
    patched(o, 0, "A from-shell.txt")
    assert (o.workspace / "from-shell.txt").read_text() == "hello\n"
    assert not o.recording.requests("process/start")  # the client does it itself


def check_misfit(o: Outcome) -> None:
    assert "apply_patch verification failed" in o.answer(0).text
    assert "apply_patch verification failed" in o.answer(1).text
    assert (o.workspace / "file.txt").read_text() == "a\nb\nc\n"


def check_odd_names(o: Outcome) -> None:
    patched(o, 0, "A žluť/100% 世界?#.txt")
    patched(o, 1, "M žluť/100% 世界?#.txt")
    assert (o.workspace / "žluť" / "100% 世界?#.txt").read_text() == "🚂\n"


def check_big_file(o: Outcome) -> None:
    patched(o, 0, "M big.txt")
    expected = BIG_FILE.replace("line 150000\n", "changed\n")
    assert (o.workspace / "big.txt").read_text() == expected


def check_instructions(o: Outcome) -> None:
    assert "Always wear a hat." in told(o, 0)
    assert "Mind the gap." in told(
        o, 0
    )  # of the directory above, which is the root of the repository
    o.ran(0, f"{o.workspace}\n")


def check_skill(o: Outcome) -> None:
    assert SKILL in told(o, 0)


def check_new_directory(o: Outcome) -> None:
    o.ran(0, "")
    [watch, *_] = o.recording.requests("fs/watchMissing")
    assert watch.params["missing"][0].endswith("/.agents/skills")
    assert watch.result == {"watching": True}
    told_of = o.recording.notes("fs/missingChanged")
    assert told_of[0] == {"watchId": watch.params["watchId"]}


def check_image(o: Outcome) -> None:
    last = str(o.model.requests[-1]["input"])
    assert base64.b64encode(PIXEL).decode() in last


TASKS = (
    Task(
        "files-by-commands",
        (
            Run("mkdir notes && printf 'one\\ntwo\\n' > notes/a.txt"),
            Run("wc -l notes/a.txt"),
            Run("cat given.txt && rm given.txt"),
        ),
        check_by_commands,
        files={"given.txt": "given\n"},
    ),
    Task(
        "patch-add-update-move-delete",
        (
            patch("*** Add File: sub/new.txt", "+one", "+two", "+three"),
            patch("*** Update File: sub/new.txt", "@@", " one", "-two", "+zwei"),
            Run("cat sub/new.txt"),
            patch(
                "*** Update File: sub/new.txt",
                "*** Move to: sub/moved.txt",
                "@@",
                "-zwei",
                "+two",
                " three",
            ),
            Run("ls sub/*; cat sub/moved.txt"),
            patch("*** Delete File: sub/moved.txt"),
        ),
        check_patch,
        needs=NEEDS_FILES,
    ),
    Task(
        "patch-of-several-files",
        (
            patch(
                "*** Add File: added.txt",
                "+new",
                "*** Update File: changed.txt",
                "@@",
                " a",
                "-b",
                "+B",
                "*** Delete File: gone.txt",
            ),
        ),
        check_several,
        needs=NEEDS_FILES,
        files={"changed.txt": "a\nb\nc\n", "gone.txt": "x\n"},
    ),
    Task(
        "patch-by-the-shell",
        (
            Run(
                "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: from-shell.txt\n+hello\n"
                "*** End Patch\nEOF\n",
                login=None,
            ),
        ),
        check_by_shell,
        needs=NEEDS_FILES,
    ),
    Task(
        "patch-that-does-not-fit",
        (
            patch("*** Update File: file.txt", "@@", "-x", "+y"),
            patch("*** Update File: missing.txt", "@@", "-x", "+y"),
        ),
        check_misfit,
        needs=NEEDS_FILES,
        files={"file.txt": "a\nb\nc\n"},
    ),
    Task(
        "patch-of-odd-names",
        (
            patch("*** Add File: žluť/100% 世界?#.txt", "+vlak"),
            patch("*** Update File: žluť/100% 世界?#.txt", "@@", "-vlak", "+🚂"),
        ),
        check_odd_names,
        needs=NEEDS_FILES,
    ),
    Task(
        "patch-of-a-big-file",
        (patch("*** Update File: big.txt", "@@", "-line 150000", "+changed"),),
        check_big_file,
        needs=NEEDS_FILES,
        files={"big.txt": BIG_FILE},
    ),
    Task(
        "project-instructions",
        (Run("pwd"),),
        check_instructions,
        needs=NEEDS_FILES,
        files={
            "AGENTS.md": "Always wear a hat.\n",
            "../AGENTS.md": "Mind the gap.\n",
            "../.git/HEAD": "ref: refs/heads/main\n",
        },
    ),
    Task(
        "project-skills",
        (),
        check_skill,
        needs=NEEDS_FILES,
        files={".agents/skills/trains/SKILL.md": f"---\nname: trains\ndescription: {SKILL}\n---\n"},
    ),
    Task(
        "directory-the-client-waits-for",
        (Run("mkdir -p .agents/skills"), Run("true")),
        check_new_directory,
        needs=NEEDS_FILES,
    ),
    Task(
        "image",
        (Look("pixel.png"),),
        check_image,
        needs=NEEDS_FILES,
        files={"pixel.png": PIXEL},
    ),
)
