"""Which calls are taken over.  Expectations without a remark were seen on the tool itself."""

from __future__ import annotations

import pytest

from handrail.patch.intercept import BarePatch, PatchCall, recognise, recognise_script

pytest.importorskip("tree_sitter_bash")

PATCH = "*** Begin Patch\n*** Add File: f\n+hi\n*** End Patch"
HEREDOC = f"<<'EOF'\n{PATCH}\nEOF"


def kind(script: str) -> str | None:
    found = recognise_script(script)
    if isinstance(found, PatchCall):
        return found.directory or "."
    return None if found is None else "bare"


@pytest.mark.parametrize(
    "script",
    [
        f"apply_patch {HEREDOC}",
        f"applypatch {HEREDOC}",
        f"apply_patch{HEREDOC}",
        f"\n\n  apply_patch\t{HEREDOC}\n\n",
        f"apply_patch \\\n{HEREDOC}",
        f"apply_patch - {HEREDOC}",
        f"A=1 B=$(x) apply_patch {HEREDOC}",
        f"2>/dev/null apply_patch {HEREDOC}",
        f"apply_patch {HEREDOC};",
        f"apply_patch {HEREDOC} ",
        f"apply_patch << 'a b'\n{PATCH}\na b",
        f"apply_patch <<\\EOF\n{PATCH}\nEOF",
        f'apply_patch <<"EOF"\n{PATCH}\nEOF',
        f"apply_patch <<EOF\n{PATCH}\nEOF",
        f"apply_patch <<-EOF\n{PATCH}\n\tEOF",
        f"apply_patch <<'EOF'\r\n{PATCH}\r\nEOF\r\n",
    ],
)
def test_the_call_alone_is_taken_over(script: str) -> None:
    assert kind(script) == "."


@pytest.mark.parametrize(
    ("prefix", "directory"),
    [
        ("cd sub && ", "sub"),
        ("cd ../a.b-c_d/e && ", "../a.b-c_d/e"),
        ("cd /tmp && ", "/tmp"),
        ("cd 'sub dir' && ", "sub dir"),
        ('cd "sub dir" && ', "sub dir"),
        ("cd sub &&\n", "sub"),
        ("cd sub && \\\n", "sub"),
        ("A=1 cd sub && B=2 ", "sub"),
        ("cd '' && ", "."),
    ],
)
def test_one_cd_before_it_is_followed(prefix: str, directory: str) -> None:
    assert kind(f"{prefix}apply_patch {HEREDOC}") == directory


@pytest.mark.parametrize(
    "script",
    [
        f"cd sub; apply_patch {HEREDOC}",
        f"cd sub || apply_patch {HEREDOC}",
        f"cd sub | apply_patch {HEREDOC}",
        f"cd sub & apply_patch {HEREDOC}",
        f"cd && apply_patch {HEREDOC}",
        f"cd a b && apply_patch {HEREDOC}",
        f"cd -- a && apply_patch {HEREDOC}",
        f"cd a && cd b && apply_patch {HEREDOC}",
        f"cd a 2>/dev/null && apply_patch {HEREDOC}",
        f"cd a && (apply_patch {HEREDOC}\n)",
        f"pushd a && apply_patch {HEREDOC}",
        f'cd "" && apply_patch {HEREDOC}',
        f'cd "$HOME" && apply_patch {HEREDOC}',
        f"cd $HOME && apply_patch {HEREDOC}",
        f"cd 'a'b && apply_patch {HEREDOC}",
        f"cd $'a' && apply_patch {HEREDOC}",
        f"cd {{a,b}} && apply_patch {HEREDOC}",
        f"echo && apply_patch {HEREDOC}",
        f"set -e; apply_patch {HEREDOC}",
        f"# why\napply_patch {HEREDOC}",
        f"apply_patch {HEREDOC}\n# why",
        f"apply_patch {HEREDOC}\necho",
        f"(apply_patch {HEREDOC}\n)",
        f"! apply_patch {HEREDOC}",
        f"time apply_patch {HEREDOC}",
        f"exec apply_patch {HEREDOC}",
        f"./apply_patch {HEREDOC}",
        f"'apply_patch' {HEREDOC}",
        f"apply_patch -v {HEREDOC}",
        f"apply_patch '' {HEREDOC}",
        f"apply_patch <<'EOF' > o\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' && echo\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' | cat\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' &\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' # c\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' <<'EOG'\n{PATCH}\nEOF\nEOG",
        f"cat <<'EOF' | apply_patch\n{PATCH}\nEOF",
        f"apply_patch <<'EOF'\n{PATCH}",
        f"apply_patch '{PATCH}'",
        f"apply_patch <<< '{PATCH}'",
        f'bash -c "apply_patch {HEREDOC}\n"',
        "apply_patch",
        "apply_patch < f",
        "echo apply_patch",
        "",
    ],
)
def test_everything_else_is_left_to_the_shell(script: str) -> None:
    assert kind(script) is None


@pytest.mark.parametrize(
    "word", ["~", "~/a", "a*", "a?", "[ab]", "-", "a\\ b", '"$X/a"', '"a\\"b"']
)
def test_a_cd_that_means_more_than_it_says_is_left_to_the_shell(word: str) -> None:
    """The tool goes to a folder of that literal name (or a piece of it); the shell does not."""
    assert kind(f"cd {word} && apply_patch {HEREDOC}") is None


def test_a_command_behind_the_closing_tag_is_left_to_the_shell() -> None:
    """The tool takes the patch and forgets the rest."""
    assert kind(f"apply_patch {HEREDOC}; echo") is None


def test_tabs_before_a_dash_heredoc_go_as_in_the_shell() -> None:
    """The tool keeps them and then cannot read the patch."""
    text = "\t" + PATCH.replace("\n", "\n\t").replace("+hi", "+a\tb")
    found = recognise_script(f"apply_patch <<-EOF\n{text}\n\tEOF")
    assert isinstance(found, PatchCall)
    assert found.text.splitlines() == PATCH.replace("+hi", "+a\tb").splitlines()


def test_the_body_is_not_expanded() -> None:
    found = recognise_script("apply_patch <<EOF\n$HOME `x` \\$y\nEOF")
    assert isinstance(found, PatchCall)
    assert found.text.rstrip("\n") == "$HOME `x` \\$y"


@pytest.mark.parametrize(
    "script", [PATCH, f"  {PATCH}\n\n", f"<<EOF\n{PATCH}\nEOF", "*** Begin Patch\n*** End Patch"]
)
def test_a_patch_without_a_command_is_a_mistake(script: str) -> None:
    assert recognise_script(script) == BarePatch()
    assert recognise([script]) == BarePatch()


def test_what_only_looks_like_a_patch_is_a_script() -> None:
    assert recognise_script("*** Begin Patch\n*** Foo\n*** End Patch") is None


@pytest.mark.parametrize(
    "argv",
    [
        ["bash", "-lc"],
        ["/bin/sh", "-c"],
        ["/usr/local/bin/zsh", "-lc"],
        ["pwsh", "-NoProfile", "-Command"],
        ["C:\\Windows\\powershell.exe", "-Command"],
        ["cmd.exe", "/c"],
    ],
)
def test_the_script_of_a_shell_is_looked_at(argv: list[str]) -> None:
    assert recognise([*argv, f"apply_patch {HEREDOC}"]) == PatchCall(PATCH + "\n")


def test_the_direct_call_is_taken_over_whatever_its_argument() -> None:
    assert recognise(["apply_patch", "nonsense"]) == PatchCall("nonsense")
    assert recognise(["applypatch", PATCH]) == PatchCall(PATCH)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["ls"],
        ["ls", "-l"],
        ["apply_patch", "a", "b"],
        ["bash", "-x", f"apply_patch {HEREDOC}"],
        ["bash", "-lc", f"apply_patch {HEREDOC}", "name"],
        ["python", "-c", f"apply_patch {HEREDOC}"],
        ["pwsh", "-File", f"apply_patch {HEREDOC}"],
    ],
)
def test_other_calls_are_not(argv: list[str]) -> None:
    assert recognise(argv) is None
