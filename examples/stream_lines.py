"""Lines of a command while it runs, tagged by their stream, in two ways.

python examples/stream_lines.py
"""

from __future__ import annotations

import tempfile

from handrail import Output, Workspace

BUILD = """
for name in one two three; do
    echo "compiling $name"
    [ $name != two ] || echo "warning: two is old" >&2
done
printf 'finished'  # without a newline
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Workspace(directory) as ws:
        build = ws.start(BUILD)
        for line in build.lines():  # as they come; ends when the command has
            print(f"{line.stream}: {line.text}")
        result = build.result()
        print(f"exit code {result.exit_code}; complete: {result.complete}")

        pieces: list[str] = []

        def piece(output: Output) -> None:  # called in a thread of its own
            pieces.append(output.text)

        ws.run(BUILD, on_output=piece, check=True)
        print(f"the same by a callback: {''.join(pieces).count('compiling')} files")


if __name__ == "__main__":
    main()
