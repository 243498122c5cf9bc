"""Tools that bring daemons, sockets and lock files along, used inside the sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.system.test_work_inside import inside, needs, workspace  # noqa: F401 (a fixture)

pytestmark = needs("bwrap")

SCRIPTS = {
    "git clone worktree": """
        git init -q first && cd first && echo 1 > f && git add f && git commit -qm one && cd ..
        git clone -q first second && cd second && git worktree add -q ../third && cd ../third
        echo 2 > f && git commit -qam two && git gc -q && git log --format=%s
    """,
    "sqlite3": """
        sqlite3 a.db 'pragma journal_mode=wal; create table t(x); insert into t values(7);'
        for i in 1 2 3; do
            sqlite3 a.db 'pragma busy_timeout=9000; insert into t values(1);' > /dev/null &
        done
        wait
        sqlite3 a.db 'select sum(x) from t'
    """,
    "gpg": """
        export GNUPGHOME=$PWD/g; mkdir -m 700 g; trap 'gpgconf --kill all' EXIT
        gpg --batch -q --passphrase '' --quick-gen-key a@example.com default default never
        echo signed > f; gpg --batch -q -s f; gpg -q -d f.gpg 2> /dev/null
    """,
    "tmux": """
        export TMUX_TMPDIR=$PWD
        tmux -f /dev/null new-session -d -s a 'echo shown; tmux wait-for -S said; sleep 60'
        tmux wait-for said; tmux capture-pane -pt a | head -1; tmux kill-server
    """,
    "ssh-agent ssh-keygen": """
        ssh-keygen -q -t ed25519 -N '' -f key; eval $(ssh-agent -a $PWD/agent) > /dev/null
        ssh-add -q key; ssh-add -l | grep -c ED25519; ssh-agent -k > /dev/null
    """,
    "redis-server": """
        redis-server --port 0 --unixsocket r.sock --dir $PWD --save '' --daemonize yes > /dev/null
        until redis-cli -s r.sock ping > /dev/null 2>&1; do sleep 0.05; done
        redis-cli -s r.sock incrby a 42; redis-cli -s r.sock shutdown nosave
    """,
    "node": """
        echo "const c = require('cluster'), h = require('http'); let n = 0;
        if (c.isPrimary) {
            c.fork(); c.fork();
            c.on('listening', (w, at) => ++n == 2 && h.get({port: at.port, agent: false},
                r => r.on('data', d => { console.log('' + d); process.exit() })));
        } else h.createServer((q, r) => r.end('cluster')).listen(39080, '127.0.0.1');" > c.js
        node c.js
    """,
    "npm": """
        mkdir lib app; cd lib
        echo '{"name": "lib", "version": "1.0.0", "main": "i.js"}' > package.json
        echo 'module.exports = 42' > i.js; npm pack --silent > /dev/null; cd ../app
        npm install --silent --offline --no-audit --no-fund ../lib/lib-1.0.0.tgz > /dev/null
        node -e 'console.log(require("lib"))'
    """,
    "gcc make": """
        for i in 1 2 3 4; do echo "int f$i() { return $i; }" > f$i.c; done
        echo 'int f1(), f4(); int main() { return f1() + f4() - 5; }' > m.c
        printf 'O = f1.o f2.o f3.o f4.o m.o\\np: $(O)\\n\\tgcc -o p $(O)\\n' > Makefile
        make -s -j4; ./p; echo built
    """,
    # Its pair of datagram sockets is refused to a sandbox by all that do not emulate it.
    "systemd-analyze": """
        printf '[Service]\\nExecStart=/bin/true\\nType=neither\\n' > x.service
        systemd-analyze verify ./x.service 2>&1 | grep -o 'neither'; echo ${PIPESTATUS[0]}
    """,
}
EXPECTED = {
    "git clone worktree": "two\none\n",
    "sqlite3": "wal\n10\n",
    "gpg": "signed\n",
    "tmux": "shown\n",
    "ssh-agent ssh-keygen": "1\n",
    "redis-server": "42\n",
    "node": "cluster\n",
    "npm": "42\n",
    "gcc make": "built\n",
    "systemd-analyze": "neither\n0\n",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs(*name.replace("git clone worktree", "git").split()))
        for name in SCRIPTS
    ],
)
async def test_it_works(workspace: Path, name: str) -> None:  # noqa: F811
    async with inside(workspace) as box:
        assert (await box.shell(SCRIPTS[name])).endswith(EXPECTED[name])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_every_way_to_start_a_worker(workspace: Path, method: str) -> None:  # noqa: F811
    (workspace / "many.py").write_text(
        "import multiprocessing as mp, multiprocessing.shared_memory as sm\n"
        "def square(n): return n * n\n"
        "if __name__ == '__main__':\n"
        f"    way = mp.get_context({method!r})\n"
        "    with way.Pool(2) as pool, way.Manager() as manager:\n"
        "        print(pool.map(square, [2, 3]), dict(manager.dict(a=1)))\n"
        "    memory = sm.SharedMemory(create=True, size=9); memory.close(); memory.unlink()\n"
    )
    async with inside(workspace) as box:
        assert await box.run(sys.executable, "many.py") == "[4, 9] {'a': 1}\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="it does not run as root")
@needs("initdb", "pg_ctl", "psql")
async def test_postgres_on_a_socket_of_the_workspace(workspace: Path) -> None:  # noqa: F811
    script = """
        initdb -D d -U u --no-locale -A trust > /dev/null
        pg_ctl -D d -w -l log -o "-k $PWD -c listen_addresses=''" start > /dev/null
        psql -h $PWD -U u postgres -Atc 'select sum(n) from generate_series(1, 100) n'
        pg_ctl -D d -m fast stop > /dev/null
    """
    async with inside(workspace) as box:
        assert await box.shell(script) == "5050\n"
