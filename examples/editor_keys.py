"""A full-screen program by key presses: vim writes a file and leaves.

Needs vim on the PATH.  ``python examples/editor_keys.py`` runs it.
"""

from __future__ import annotations

import tempfile

from handrail import Workspace


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Workspace(directory) as ws:
        ws.files.write("poem.txt", "roses are red\n")
        vim = ws.start(["vim", "-u", "NONE", "-n", "poem.txt"], tty=True, size=(24, 80))
        vim.expect("roses are red", timeout=20)  # it has drawn the file
        vim.press("o")  # a new line below
        vim.send("violets are blue")
        vim.press("escape")
        vim.send(":wq")
        vim.press("enter")
        end = vim.wait(timeout=20)
        print(f"vim exited with {end.code if end else 'nothing: it still runs'}")
        print(ws.files.read("poem.txt"), end="")


if __name__ == "__main__":
    main()
