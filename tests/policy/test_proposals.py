"""Rules that are offered, and those that would allow almost anything."""

from __future__ import annotations

import shlex

import pytest

from handrail.policy.load import parse_rules
from handrail.policy.programs import plain_name
from handrail.policy.proposals import first_of, is_too_broad, proposed_prefix

BROAD = """
python3.11
python3
bash -xc
sh -ec
env -i
sudo -n
busybox
find
ssh
docker
uv run
xargs
perl5.36
node20
nice -n 5
timeout 5
npx
make
git -C
tar
awk
sed
vim
setsid
nohup
python3 -m
env X=1
env A=1 bash
sudo -u root
bash -o pipefail
git -c x=y
git -C /x
docker run
docker run -v /:/x img
xargs -n 1
nice
timeout -k 5 10
bash --norc -c
/usr/bin/python3.12 -c
Rscript
ruby3.1 -e
php8.2 -r
npm run
kubectl exec
ssh -p 22
stdbuf -oL
strace -f
uvx
pipx run
poetry run
python3-dbg
gawk
lua5.4
sed -i
make -j
make -C
parallel
watch -n 1
flock /tmp/x
chroot /x
unshare -r
su -
npm
yarn
pnpm exec
deno run
bun x
cargo
pip
tclsh8.6
ionice -c 3
command
exec
time
doas
setarch x86_64
script -c
bash -s
bash -lc
zsh -fc
fish -c
powershell.exe -Command
cmd.exe /c
npx -y
npm exec --
git
git --no-pager
xargs bash
xargs sh -c
env -S 'x y'
/lib64/ld-linux-x86-64.so.2
taskset 1
python
pypy3.10
sqlite3
gdb -ex
perl -ne
perl -e
ruby
ssh host
python3 -u
python3 -
conda run -n x
python3 -m pip
python3 -Im pip install
python3 -m pdb
python3 -m cProfile
uv tool run
uv pip
yarn node
npm explore
mise x
asdf exec
pyenv exec
op run --
doppler run --
git rebase -x
git rebase
git bisect run
git submodule foreach
git grep -O
sort --compress-program
go test -exec
gcc -wrapper
docker compose run
composer exec
stack exec
nix develop
lxc exec
oc rsh
sops exec-env
gtimeout 5
gxargs
gfind .
perf record
linux64
i386
capsh --
gosu root
proxychains4
mpirun -n 4
coreutils --coreutils-prog=sh
m4
mongosh
java -cp x
qemu-x86_64
rails runner
php artisan tinker
apt-get install
handrail
handrail sandbox
handrail run
codex exec
choom -n 0
start-stop-daemon -S
tini
logsave log
"""
NARROW = """
cargo run
git rebase main
git submodule update
git commit -m run
cat run
touch x
rm exec
wc -c
ls -x
tsc --noEmit
cargo test --release
ruff check --fix
python3 -m venv .venv
python3 -m pip list
python3 -m cProfile tools/x.py
pre-commit run
poetry run pytest
composer install
gtimeout 5 make test
java -jar app.jar
java -cp x Main
perl -I lib x.pl
cargo build
npm run lint
pytest tests/unit
git status
git pull
python3 -c 'print(1)'
rm -rf ./x
touch x
ls
make test
npm test
npm install
go test
ruff check
echo esc
python3 tools/x.py
python3 -m pytest
env X=1 make test
timeout 5 make test
uv run pytest tests
cat
grep -r
docker ps
pip list
git -C /x status
cargo test
curl https://x
bash build.sh
npx eslint
pytest
kubectl get pods
make all
true guarded
"""


def listed(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("prefix", listed(BROAD))
def test_prefixes_that_allow_almost_anything(prefix: str) -> None:
    words = tuple(shlex.split(prefix))
    assert is_too_broad(words)
    assert first_of([words]) is None
    assert proposed_prefix(parse_rules("", "r"), [words], [words], words) is None


@pytest.mark.parametrize("prefix", listed(NARROW))
def test_narrow_prefixes_are_offered(prefix: str) -> None:
    words = tuple(shlex.split(prefix))
    assert proposed_prefix(parse_rules("", "r"), [words], [words], words) == words


def test_a_rule_that_is_too_long_to_be_read_is_not_offered() -> None:
    words = ("touch", "x" * 600)
    assert not is_too_broad(words)
    assert first_of([words]) is None
    assert proposed_prefix(parse_rules("", "r"), [words], [words], words) is None


@pytest.mark.parametrize("program", ["touch", "mkdir", "truncate", "patch", "unzip", "sysctl"])
def test_a_program_that_changes_any_file_is_too_broad_without_an_operand(program: str) -> None:
    assert is_too_broad((program,))
    assert not is_too_broad((program, "build/x"))


def test_nothing_and_empty_words_are_too_broad() -> None:
    for prefix in ((), ("",), ("A=1",), ("A=1", "ls")):
        assert is_too_broad(prefix)


def test_wrappers_in_wrappers_are_followed_to_the_end() -> None:
    assert is_too_broad(("env", "-i", "nice", "-n", "5", "timeout", "9", "bash", "-c"))
    assert not is_too_broad(("env", "-i", "nice", "-n", "5", "timeout", "9", "make", "test"))
    assert is_too_broad(("nohup",) * 100 + ("ls",))


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("python3.11", "python"), ("/usr/bin/perl5.36", "perl"), ("node20", "node"),
        ("clang-15", "clang"), ("python3.11-dbg", "python"), ("Python.exe", "python"),
        ("x86_64", "x86_64"), ("7z", "7z"), ("git", "git"),
    ],
)  # fmt: skip
def test_a_version_is_no_part_of_a_name(program: str, name: str) -> None:
    assert plain_name(program) == name
