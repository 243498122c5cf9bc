"""A forbidden program stays forbidden: the ways around a rule that do not lead around it.

``P`` is the program that may not run; every script here would run ``P x``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handrail.policy.context import Approval, Situation
from handrail.policy.decide import Action, Cause, decide
from handrail.policy.load import parse_rules

TABLE = {
    "redirection": [
        "P x > /dev/null", "P x 2>&1", ">o P x", "P <i >o x", "P x &> o", "P x >> o < i",
        "P x | tee o", "exec 3< <(P x)",
    ],
    "assignment": [
        "A=1 P x", "A=1 B=2 P x", "A=$(y) P x", "A=$(P x)", "export A=$(P x)", "X=P; $X x",
        'X=P; "$X" x', "X='P x'; $X", "X=P; Y=$X; $Y x", "X='P x'; eval $X", 'a=(P x); "${a[@]}"',
        "for c in P; do $c x; done", "${X:-P} x", "read c <<< P; $c x", "alias q=P; q x",
    ],
    "subshell and flow": [
        "(P x)", "{ P x; }", "! P x", "P x &", "true && P x", "false || P x", "a; P x", "a\nP x",
        "if true; then P x; fi", "while P x; do :; done", "case a in *) P x;; esac",
        "f() { P x; }; f", "time P x", "coproc P x", "[[ -n $(P x) ]]",
        "select a in b; do P x; done",
    ],
    "spelling": [
        "'P' x", '"P" x', "\\P x", "P'' x", "P\\\n x", "$'\\x50' x", "/usr/bin/P x", "./P x",
        "../P x", "{P,x}", "P 'x'", "P x # y",
    ],
    "command": [
        "command P x", "command -p P x", "command -- P x", "builtin command P x", "exec P x",
        "exec -a y P x", ". P x", "source P x",
    ],
    "env": [
        "env P x", "env -i P x", "env -u A P x", "env A=1 P x", "env -- P x", "env -S 'P x'",
        "env -iS 'P x'", "/usr/bin/env P x", "env X=P sh -c '$X x'",
    ],
    "sudo": [
        "sudo P x", "sudo -n P x", "sudo -u root -- P x", "sudo A=1 P x", "sudo sh -c 'P x'",
        "sudo -E env P x", "doas P x", "su -c 'P x'", "su - y -c 'P x'", "pkexec P x",
        "runuser -u y -- P x",
    ],
    "xargs": [
        "xargs P", "xargs -0 -n 1 P", "echo x | xargs P", "xargs -I{} sh -c 'P x'",
        "parallel P ::: x",
        "find . -exec P {} +", "find . -execdir P {} \\;", "find . -exec sh -c 'P x' \\;",
        "fd -x P",
    ],
    "bash -c": [
        "bash -c 'P x'", "bash -lc 'P x'", "bash -xec 'P x'", "bash --norc -c 'P x'",
        "bash -o pipefail -c 'P x'", "/bin/sh -c 'P x'", "sh -c \"bash -c 'P x'\"",
        "bash -c '\"$@\"' _ P x", "bash -c '$0 x' P", "bash -c 'exec \"$1\" x' _ P", "zsh -c 'P x'",
        "dash -c 'P x'", "busybox sh -c 'P x'", "bash <(echo P x)", "X=P bash -c '$X x'",
    ],
    "eval": [
        "eval P x", "eval 'P x'", "eval P\\ x", 'eval "$(echo P x)"', "eval $(printf 'P x')",
        "trap 'P x' EXIT", "trap -- 'P x' DEBUG", "eval eval P x",
    ],
    "here-documents": [
        "bash <<E\nP x\nE", "bash -s <<E\nP x\nE", "bash - <<'E'\nP x\nE", "sh <<< 'P x'",
        "sudo bash <<E\nP x\nE", "cat <<E | bash\nP x\nE", 'cat <<"E" | sudo sh\nP x\nE',
        "bash /dev/stdin <<E\nP x\nE", ". /dev/stdin <<E\nP x\nE", "cat <<E\n$(P x)\nE",
        'bash -c "$(cat <<E\nP x\nE\n)"', "at now <<E\nP x\nE", "source <(cat <<E\nP x\nE\n)",
    ],
    "pipe into a shell": [
        "echo P x | sh", "printf 'P x' | bash", "printf '%s %s\\n' P x | bash",
        "{ echo P x; } | sh",
        "(echo P x) | cat | sh", "echo P x | sudo bash", "echo UCB4 | base64 -d | sh",
        "sh < <(echo P x)", "printf P | xargs -I{} sh -c 'P x'", "echo 'P x' | tee l | bash -s",
    ],
    "command substitution": [
        "echo $(P x)", "echo `P x`", 'echo "$(P x)"', "cat <(P x)", "tee >(P x)", "$(echo P) x",
        "`echo P` x", "$(printf P) x", "echo ${A:-$(P x)}", "$(echo 'P x')", "x $(y $(P x))",
        "(( $(P x) ))", "a[$(P x)]=1", "$(which P) x", "t=$(command -v P); $t x",
        '"$(type -P P)" x',
    ],
    "parameters": [
        'set -- P x; "$@"', "set -- P x; $1 x", 'run() { "$@"; }; run P x',
        "function run { $1 x; }; run P",
    ],
    "other wrappers": [
        "timeout 5 P x", "nice -n 5 P x", "nohup P x", "setsid P x", "stdbuf -oL P x",
        "flock l P x",
        "script -qc 'P x' l", "strace -f P x", "chroot / P x", "unshare -r P x", "watch P x",
        "setarch x86_64 P x", "/lib64/ld-linux-x86-64.so.2 /usr/bin/P x", "ssh h P x",
        "ssh h 'P x'",
        "uv run P x", "npx P x", "bwrap --bind / / P x", "docker run -it i P x", "gdb --args P x",
        "handrail run -- P x", "handrail run --sandbox off P x",
        "setpriv --reuid 1 P x", "csh -c 'P x'", "tcsh -c 'P x'",
        "git bisect run P x", "git submodule foreach 'P x'",
        "git submodule foreach --recursive P x",
        "git -c alias.x='!P x' x", "tar cf o i --checkpoint-action=exec='P x'",
    ],
}  # fmt: skip
EVASIONS = [
    pytest.param(script, id=f"{way}: {script}")
    for way, scripts in TABLE.items()
    for script in scripts
]
FORBIDDEN = parse_rules('prefix_rule(["P"], "forbidden", justification="use Q")', "r.rules")
ALLOWING = parse_rules(
    'prefix_rule(["P"], "forbidden")\n'
    'prefix_rule([["bash", "/bin/bash", "sh", "sudo", "env", "echo", "git", "X"]])',
    "r.rules",
)
FREE = Situation(cwd="/w", restricted=False)


@pytest.mark.parametrize("script", EVASIONS)
def test_a_forbidden_program_stays_forbidden(script: str) -> None:
    verdict = decide(["/bin/bash", "-lc", script], FORBIDDEN, FREE)
    assert verdict.action is Action.FORBID
    assert verdict.reason is not None
    assert "use Q" in verdict.reason


@pytest.mark.parametrize("script", EVASIONS)
def test_no_allow_rule_lifts_it(script: str) -> None:
    verdict = decide(["/bin/bash", "-lc", script], ALLOWING, FREE)
    assert verdict.action is Action.FORBID


def test_the_table_is_long_enough() -> None:
    assert len(EVASIONS) >= 150


@pytest.mark.parametrize(
    "script",
    [
        "python3 -c 'import os; os.system(\"P x\")'",
        "perl -e 'system(\"P x\")'",
        "awk 'BEGIN{system(\"P x\")}'",
        'node -e \'require("child_process").execSync("P x")\'',
        "ruby -e '`P x`'",
        "python3 - <<E\nimport os\nos.system('P x')\nE",
        "python3 <<'E'\nimport os\nos.system(\"P x\")\nE",
        "echo 'system(\"P x\")' | perl",
        "$SUDO P x",
    ],
)
def test_what_another_language_may_do_with_its_strings_is_asked(script: str) -> None:
    assert decide(["bash", "-c", script], FORBIDDEN, FREE).action is Action.ASK
    unattended = Situation(cwd="/w", restricted=False, approval=Approval.NEVER)
    assert decide(["bash", "-c", script], FORBIDDEN, unattended).action is Action.FORBID


@pytest.mark.parametrize(
    "script",
    [
        "echo P x", "grep P f", "cat P", "echo 'P x' > f", "echo 'P x' | cat", "X=P; echo $X",
        "printf 'P x' | wc", "git commit -m 'P x'", "cat <<E\nP x\nE", "find . -name P",
        "python3 -c 'print(1)'", "bash script <<E\nP x\nE", "echo $(echo P x)", "ssh P",
        "command -v P", "which P", "echo $(which P)", "git bisect good P", "set -- P; echo $1",
        "f() { echo $1; }; f P", "python3 s.py <<E\n'P x'\nE", "test -x $(command -v P)",
        "for f in P; do echo $f; done", "read x <<< 'P x'; echo $x",
    ],
)  # fmt: skip
def test_a_word_is_no_command(script: str) -> None:
    assert decide(["bash", "-c", script], FORBIDDEN, FREE).action is Action.ALLOW


@pytest.mark.parametrize(
    "script",
    [
        "a|" * 3000 + "a",
        "$(" * 3000 + "a" + ")" * 3000,
        "X=$X$X;" * 2000 + "$X",
        "a=1;" + 'a="$a$a$a$a$a$a$a$a";' * 500 + "$a",
        "{ " * 200 + "sh;" + "} | sh;" * 200,
        "x $(echo $(echo $(echo a))) ;" * 300,
        "bwrap " * 200,
    ],
    ids=["pipes", "nested", "doubling", "growing", "groups", "many", "wrappers"],
)
def test_a_script_made_to_be_slow_is_judged_all_the_same(script: str) -> None:
    decide(["bash", "-c", script], FORBIDDEN, FREE)


@pytest.mark.parametrize(
    "script",
    [
        "command " * 40 + "P x",
        "nohup nice xargs exec time builtin " * 8 + "P x",
        "eval " * 40 + "P x",
        f"for c in {' '.join(map('v{}'.format, range(17)))} P; do $c x; done",
        f"for c in {' '.join(map('v{}'.format, range(17)))} P; do sudo $c x; done",
        f"for c in {' '.join(map('v{}'.format, range(17)))} P; do sh -c \"$c x\"; done",
        "".join(f"X=v{at};" for at in range(17)) + "X=P; $X x",
        "".join(f"X=v{at};" for at in range(17)) + "X=P; export X; bash -c '$X x'",
        "".join(f"c{at} >o;" for at in range(5001)) + "P x >o",
        "echo P x | " + "cat | " * 9 + "sh",
        "bwrap " + "--unshare-all " * 300 + "P x",
    ],
    ids=["command", "mixed", "eval", "loop", "wrapped", "shell", "values", "exported", "commands",
         "pipe", "flags"],
)  # fmt: skip
def test_what_a_limit_hides_is_asked(script: str) -> None:
    verdict = decide(["bash", "-c", script], FORBIDDEN, FREE)
    assert (verdict.action, verdict.cause) == (Action.ASK, Cause.UNCLEAR)
    unattended = Situation(cwd="/w", restricted=False, approval=Approval.NEVER)
    assert decide(["bash", "-c", script], FORBIDDEN, unattended).action is Action.FORBID


@pytest.mark.parametrize(
    "script",
    [
        f"for f in {' '.join(map('v{}'.format, range(40)))}; do cat $f; timeout 5 cat $f; done",
        "for i in 1 2 3 4 5 6; do for j in 1 2 3 4 5 6; do bash s.sh $i $j; done; done",
        "a | " * 12 + "wc",
        "python3 -c 'print(\"sudo sh\")'",
    ],
)
def test_much_that_is_harmless_is_not_asked(script: str) -> None:
    assert decide(["bash", "-c", script], FORBIDDEN, FREE).action is Action.ALLOW


SAME = [
    ("git push", "git send-pack o m", Action.FORBID),
    ("git push", "git http-push o", Action.FORBID),
    ("git push", "env - git -C d push o m", Action.FORBID),
    ("git push", "git -C d subtree push --prefix=a o m", Action.FORBID),
    ("git push", "git lfs push o m", Action.FORBID),
    ("git push", "/usr/lib/git-core/git-push o", Action.FORBID),
    ("git push", "git-send-pack o", Action.FORBID),
    ("git push", "git remote-https o u", Action.ASK),
    ("git push", "git x", Action.ASK),
    ("git push", "git -c alias.x=push x", Action.ASK),
    ("git push", "git pull", Action.ALLOW),
    ("git fetch", "git pull", Action.FORBID),
    ("git add", "git stage f", Action.FORBID),
    ("git stage", "git add f", Action.FORBID),
    ("docker push", "docker image push x", Action.FORBID),
    ("docker image push", "docker push x", Action.FORBID),
    ("npm install", "npm i x", Action.FORBID),
    ("npm i", "npm install x", Action.FORBID),
    ("npm publish", "npm publ", Action.ASK),
    ("npm publish", "npm run build", Action.ALLOW),
    ("cargo run", "cargo r", Action.FORBID),
]


@pytest.mark.parametrize(("rule", "script", "action"), SAME)
def test_a_verb_that_does_the_same_is_no_way_around(rule: str, script: str, action: Action) -> None:
    words = ", ".join(f'"{word}"' for word in rule.split())
    policy = parse_rules(f'prefix_rule([{words}], "forbidden")', "r")
    assert decide(("bash", "-c", script), policy, Situation()).action is action


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_no_script_that_may_run_it_is_allowed(shell: str) -> None:
    """Forbidden or asked about: spellings, values, evaluations, files and programs that run it."""
    lines = Path(__file__).with_name("evasions.jsonl").read_text().splitlines()
    rules = parse_rules('prefix_rule(["zap"], "forbidden")', "r.rules")
    verdicts = {line: decide([shell, "-c", json.loads(line)], rules, FREE) for line in lines}
    assert [line for line, one in verdicts.items() if one.action is Action.ALLOW] == []
