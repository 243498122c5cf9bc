"""Shell scripts from a grammar: quoting, expansions, here-documents, compound commands, wrappers.

All chance comes from the generator given.  ``hostile`` scripts try to run ``zap x``; ``plain``
ones are what an agent writes all day, and should run without a question.
"""

from __future__ import annotations

import random

PIECES = (
    " ", " ", "\n", "\n", ";", ";", "&&", "||", "|", "&", "(", ")", "{ ", "; }", "$(", ")", "`",
    "`",
    "'", "'", '"', '"', "\\", "\\\n", "#", " #", "$'", '$"', "${u}", "$u", "${u:-", "}", "$((",
    "))",
    "((", "<<E\n", "\nE\n", "<<'E'\n", "<<-E\n", "<<\\E\n", "<<<", "<(", ">(", ">f", "<f",
    "2>&1", "&>f",
    "if ", "then ", "else ", "fi ", "for i in a; do ", "done ", "while ", "case a in a) ", ";; ",
    "esac ", "f() ", "[[ ", " ]]", "[ ", " ]", "! ", "time ", "eval ", "echo ", "true ", "zap x",
    "zap x", "zap x", "zap", "z", "ap", "x", "a", "b=", "a=zap ", "$a ", "sh ", "-c ", "cat ", "\r",
    "\f", "\v", "\t", "é", "=", "{a,b}", "*", "?", "[a]", "~", "!", ":", "in ", "a[0]=",
    "function f ",
    "test -v ", "'a[$(zap x)]'", "read a ", "printf ", "set -- ", "$1", "$@", "sh f", "./f", "> >(",
    "${a#z}", "${a@P}", "${!a}", "declare ", "export ", "local ", "trap ", " EXIT", "exec ", "env ",
    "xargs ", "coproc ", "select i in a; do ", "let ", "-v ", "|&", ";&", "<&", ">&", "1", "0",
)  # fmt: skip
_QUIET = (
    "echo a",
    "true",
    ":",
    "cat a.txt",
    "ls",
    "echo 'a b'",
    'echo "$u"',
    "wc -l < a.txt",
    "a=1",
)


class Scripts:
    """Makes scripts."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def hostile(self) -> str:
        """A script that may well run the program."""
        if self._chance.random() < 0.4:
            return self._soup()
        return self._script(self._chance.randint(1, 3))

    def _pick(self, *texts: str) -> str:
        return self._chance.choice(texts)

    def _soup(self) -> str:
        pieces = [self._chance.choice(PIECES) for _ in range(self._chance.randint(2, 14))]
        if self._chance.random() < 0.5:
            pieces.append(self._pick("\nzap x", ";zap x", "zap x", "\nzap x\n", "|zap x"))
        return "".join(pieces)

    def _script(self, depth: int) -> str:
        parts = [
            self._command(depth) if self._chance.random() < 0.6 else self._chance.choice(_QUIET)
            for _ in range(self._chance.randint(1, 3))
        ]
        text = parts[0]
        for part in parts[1:]:
            text += self._pick("; ", "\n", " && ", " | ", " || ", " &\n", ";") + part
        if self._chance.random() < 0.15:
            at = self._chance.randrange(len(text) + 1)
            text = text[:at] + self._chance.choice(PIECES) + text[at:]
        return text

    def _name(self) -> str:
        return self._pick(
            "zap", "z''ap", "z\\ap", "z${u}ap", "$(echo zap)", "$'zap'", "'za'p", "z$@ap", "$Z",
            "${Z}",
            "{zap,}", "z[a]p", "/tmp/zap/bin/zap", "/tmp/zap/bin/z?p", "`echo zap`", "$(:)zap",
            "z\\\nap", '"zap"', "${Z%q}", "${Z:-zap}", "${Z:=zap}", "${A[0]}", "$1", '"$@"',
            "${Z#q}", "${Z/q/z}", "${Z,,}", "$Z$Y", "./s", "q",
        )  # fmt: skip

    def _words(self) -> str:
        return self._name() + self._pick(
            " x", "", " 'x'", ' "$u"', " > o", " 2>&1", " <a.txt", " $(:)"
        )

    def _before(self) -> str:
        return self._pick(
            "", "", "", "Z=zap; ", "Z=z; Y=ap; ", "Z=zap\n", "A=(zap); ", "set -- zap x; ",
            "read Z <<< zap; ", "printf -v Z zap; ", "Z=qzap; ", "declare Z=zap; ",
            "export Z=zap; ",
            "for Z in zap; do :; done; ", "Z+=zap; ", "Z=ZAP; ", "echo zap x > s; ", "echo a > s; ",
            "cat > s <<E\nzap x\nE\n", "cp /tmp/zap/bin/zap s; ", "ln -s /tmp/zap/bin/zap s; ",
            "alias q=zap\n", "q() { zap x; }; ", "hash -p /tmp/zap/bin/zap q; ", "chmod +x s; ",
            "mapfile -t A <<< zap; ", "IFS=, read Z Y <<< zap,x; ", "PATH=.:$PATH; ",
            "f=s; echo zap > $f; ",
        )  # fmt: skip

    def _quoted(self, text: str) -> str:
        if "'" not in text:
            return self._pick(f"'{text}'", f"$'{text}'" if "\\" not in text else f"'{text}'")
        return (
            '"'
            + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
            + '"'
        )

    def _command(self, depth: int) -> str:
        inner = self._before() + (
            self._words() if depth <= 0 or self._chance.random() < 0.4 else self._command(depth - 1)
        )
        quoted = self._quoted(inner)
        index = "a[$(" + inner.replace("'", "") + ")]"
        line = inner.replace("\n", "; ")
        return self._pick(
            inner, f"( {inner} )", f"{{ {inner}; }}", f"! {inner}", f"if {inner}; then :; fi",
            f"if :; then\n{inner}\nfi", f"for i in a b; do {inner}; done",
            f"while {inner}; do break; done",
            f"case a in (a) {inner};; esac", f"case b in a) :;; *) {inner} ;; esac",
            f"f() {{ {inner}; }}; f", f"f() ( {inner} )\nf", f"function f {{ {inner}; }}; f",
            f"echo $({inner})", f'echo "$({inner})"', f"echo `{line}`", f"x=$({inner})",
            f"x=`{line}`",
            f"cat <<E\n$({line})\nE", f"cat <<E\n`{line}`\nE", f"cat <<'E'\n'\nE\n{inner}",
            f"cat <<E\n$'\nE\n{inner}", f'cat <<E\n"\nE\n{inner}', f"cat <<E; {inner}\nE",
            f"cat <<E\nE\n{inner}", f"cat <<-E\n\t`{line}`\n\tE", f"cat <(:; {inner})",
            f"tee >({inner}) < a.txt",
            f"[[ -n $({inner}) ]]", f"[[ -v '{index}' ]]", f"test -v '{index}'",
            f"[ -v '{index}' ]",
            f"x='{index}'; echo $((x))", f"x='{index}'; (( x ))", f"x='{index}'; [[ $x -eq 1 ]]",
            f"x='{index}'; [ $x -eq 1 ]", f"echo $(( {index} ))", f"unset '{index}'",
            f"read '{index}' <<< 1",
            f"printf -v '{index}' 1", f"printf '%n' '{index}'", f"declare '{index}=1'",
            f"let '{index}'",
            f"x='{index}'; echo ${{y:x}}", f"declare -i x='{index}'", f"SECONDS='{index}'",
            f"wait -p '{index}'",
            f"eval {quoted}", f"bash -c {quoted}", f"sh -c {quoted}", f"sh -ec {quoted} a b",
            f"bash -c{quoted}",
            f"echo {quoted} | sh", f"sh <<< {quoted}", f"sh <<E\n{inner}\nE",
            f"bash <(echo {quoted})",
            f"trap {quoted} EXIT", f'X={quoted}; eval "$X"', f"PS4={quoted}; set -x; :",
            f"x={quoted}; echo ${{x@P}}",
            f"BASH_ENV=<(echo {quoted}) bash -c :", f"echo {quoted} > s; sh s",
            f"echo {quoted} > s; . ./s",
            f"echo {quoted} > s; chmod +x s; ./s", f"cat > s <<'E'\n{inner}\nE\nsh s",
            f"xargs -I% sh -c {quoted} < a.txt",
            f"env {line}", f"env -i PATH=$PATH sh -c {quoted}", f"nice -n 5 {line}",
            f"timeout 1 {line}", f"time {line}",
            f"command {line}", f"exec {line}", f"builtin eval {quoted}", f"env -S{quoted}",
            f"nohup {line}",
            f"find . -maxdepth 0 -exec {line} ';'", f"find . -maxdepth 0 -exec sh -c {quoted} +",
            f"echo x | xargs {line}",
            f"awk 'BEGIN{{system(\"{self._name()}\")}}'", f"sed '1e {self._name()}' a.txt",
            "sed 's/one/zap/e' a.txt",
            "python3 -c 'import os; os.system(\"zap\")'",
            "python3 -c \"exec('import os; os.system(chr(122)+\\\"ap\\\")')\"",
            "perl -e 'system(\"zap\")'", "perl -pe 's/one/`zap`/e' a.txt",
            "tar cf o a.txt --checkpoint=1 --checkpoint-action=exec=zap",
            f"split --filter={quoted} a.txt", "sort -S1 --compress-program=zap a.txt",
            f"make --eval={self._quoted('x:;zap')} x",
            "echo 'x:;zap' > Makefile; make", f"a#b; {inner}", f"echo a#b; {inner}",
            f"true \\\n{inner}", f"coproc {line}",
            f"mapfile -C {quoted} -c 1 A < a.txt", f"compgen -C {quoted}",
            f"compgen -W '$({line})'", f"enable -f /x y; {inner}",
            f"shopt -s expand_aliases\nalias q={quoted}\nq", f"x={quoted}; $x",
            f'a=({line}); "${{a[@]}}"', f"echo ${{u:-$({line})}}",
            f"echo ${{u:-`{line}`}}", f'echo "${{u:-`{line}`}}"', f"echo $((`{line}`))",
            f"x[`{line}`]=1", f"for i in `{line}`; do :; done",
            f"2>&1 {inner}", f">o {inner}", f"A=1 {inner}", f"<a.txt {inner}",
            f"{{x}}>o {inner}", f"select i in a; do {inner}; done <<< 1",
            f"exec 5<<< {quoted}; sh <&5", "ENV=./s sh -i < a.txt", "git -c alias.q='!zap' q",
            f"busybox {line}", f"setsid {line}",
            f"[[ a && {inner} ]]", f"(( 1 )) && {inner}", f"echo ${{#u}} ${{u%%a}}; {inner}",
            f"echo {{a,b}} | {inner}",
            *self._with_values(inner, line, quoted),
        )  # fmt: skip

    def _with_values(self, inner: str, line: str, quoted: str) -> tuple[str, ...]:
        """Values in program texts, lists that are read, arrays, and what is written and run."""
        name, value = self._name(), self._pick("zap", "za", "z", "q", "e", "system", "")
        lists = self._pick("grep zap f", "cat f", "ls | cat f", "head f", "ls | grep -e zap f")
        stream = self._pick("//dev/stdin", "/dev/./stdin", "/dev/fd/0", "/usr/../dev/stdin")
        place, base = self._pick("/dev stdin", "/dev/fd 0", "/proc/self/fd 0").split()
        hidden = self._pick(". -exec zap ;", "-exec", "zap", "a b", "-x")
        return (
            f'Z={value}; bash -c "$Z x"', f'Z={value}; bash -c "${{Z}}p x"',
            f'bash -c "{value}$u x"',
            f"Z={value}; Y=ap; sh <<E\n$Z$Y x\nE", f"sh <<E\nza${{u}}p\n{line}\nE",
            f'Z={value}; sed "s/one/zap/$Z" a.txt', f'Z="zap/{value}"; sed "s/one/$Z/" a.txt',
            f'Z={value}; sed "1$Z zap" a.txt', f'sed "1${{u}}{value} zap" a.txt',
            f'Z={value}; awk "BEGIN{{$Z(\\"zap\\")}}"', f'awk "BEGIN{{{value}${{u}}(\\"zap\\")}}"',
            f"Z={value}; python3 -c \"import os; os.$Z('zap')\"",
            f"python3 <<E\nimport os\nos.{value}${{u}}('zap')\nE",
            f"true '{hidden}'; find $_", f"[[ '{hidden}' =~ .* ]]; find $BASH_REMATCH",
            f"IFS=_; X='{hidden.replace(' ', '_')}'; find $X", f"X='{hidden}'; find . $X",
            f"echo '{hidden}' > f; find $({lists})",
            f"find $({self._pick('dirname', 'basename', 'realpath -m', 'echo')} '{hidden}')",
            f"mkdir '{hidden}'; find $(ls)", f"touch '{hidden}'; ls | xargs find",
            f"ls | while read a; do {line}; done",
            f"echo '{hidden}' | while read a; do find $a; done",
            f"echo '{hidden}' > f; ls | while read a; do read b < f; find $b; done",
            f"declare -a m='($({line}))'", f"m=([0]=$({line}))", f"declare -A m=([a]=$({line}))",
            f"x='a[$({line})]'; m=([x]=1)", f"x='a[$({line})]'; echo ${{m[$x]}}",
            f"m=(a {name}); ${{m[1]}} x", f'm=(a b); for i in "${{!m[@]}}"; do {line}; done',
            f"echo $(( $({line}) ))", f"echo $(( $(wc -l < a.txt) + $({line}) ))",
            f"echo {quoted} > h.sh; echo . ./h.sh > m.sh; sh m.sh", f"echo {quoted} > s; sh s",
            f"printf {quoted} > s; sh s", f"gzip -c <<< {quoted} > s.gz; gunzip s.gz; sh s",
            "echo 'import os; os.system(\"zap\")' > re.py; python3 -c 'import json'",
            f"sh {stream} <<< {quoted}", f"cd {place}; sh {base} <<< {quoted}",
            f"f=/tmp/zap/bin/{self._pick('zap', 'z*', 'zap.x', 'ZAP')}; sh ${{f%.x}}",
            f"sh $({self._pick('which', 'command -v', 'type -P', 'realpath')} zap)",
            f"for f in /tmp/zap/bin/*; do {self._pick('sh', '.', 'bash')} $f; done",
            f"make -j$({line})", "Z='-wrapper zap'; CFLAGS=$Z make b.o",
            f"bash -n {quoted}; {inner}",
        )  # fmt: skip

    def plain(self) -> str:
        """What an agent writes all day."""
        text = ""
        for _ in range(self._chance.randint(1, 4)):
            # Behind a here-document only a new line begins a command.
            between = "\n" if text.endswith("\nE") else self._pick("; ", " && ", "\n")
            text += (between if text else "") + self._plain_command()
        return text

    def _plain_command(self) -> str:
        file = self._pick("a.txt", "src/main.py", '"$f"', "*.c", "$HOME/x", "'my file'")
        return self._pick(
            f"cat {file}", f"ls -la {file}", f"grep -rn 'def ' {file} | head -20", f"wc -l {file}",
            f"sed -n '1,80p' {file}", f"sed -i 's/foo/bar/g' {file}", "git status --short",
            "git log --oneline -5",
            f"git diff -- {file}", "git add -A && git commit -m 'fix it'", "pytest -q tests",
            "npm test", "make -j2",
            "python3 -m pytest -q -k x", "python3 -c 'import sys; print(sys.version)'",
            f"for f in *.c; do wc -l {file}; done",
            f"if [ -f {file} ]; then echo y; fi", f"[[ -f {file} ]] && echo y",
            'echo "$(date)" > out.log',
            "cat > n.txt <<'E'\nhello $x `y`\nE", "cat > n.txt <<E\nhello $HOME\nE",
            "find . -name '*.py' | xargs wc -l",
            "find . -type f -exec grep -l foo {} +",
            f'while read -r l; do echo "$l"; done < {file}',
            "n=$(wc -l < a.txt); echo $((n+1))", f"awk '{{print $1}}' {file} | sort | uniq -c",
            "set -e", "cd src",
            f"tar czf o.tgz {file}", f"diff -u {file} b.txt", f"timeout 20 ./run.sh {file}",
            "export A=1", "echo a#b # c",
            "mkdir -p d/{a,b}", "case $x in a) echo a;; *) echo b;; esac",
            'f() { echo "$1"; }', "bash -c 'ls | wc -l'",
            'bash -c "ls $HOME"', f'v=1.2; sed -i "s/a/$v/" {file}', 'n=3; awk "NR==$n" a.txt',
            'm=(a b); for i in "${!m[@]}"; do echo "${m[$i]}"; done', "make -j$(nproc)",
            'ls *.c | while read -r g; do gcc -c "$g"; done', "echo 'print(1)' > t.py",
        )  # fmt: skip
