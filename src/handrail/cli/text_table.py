"""Tables: aligned columns, with colour where a person looks; ages and sizes in one unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handrail.cli import style
from handrail.cli.stdio import printable

#: The style of a cell by its text, for the words of several commands.
STATES = {
    "running": "green",
    "attached": "cyan",
    "exited": "dim",
    "signaled": "yellow",
    "terminated": "yellow",
    "timedOut": "yellow",
    "lost": "red",
    "unreachable": "red",
    "ok": "green",
    "MISSING": "bold red",
    "optional": "dim",
}

#: Characters that the last column has at least, where it is folded.
_LAST = 20


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    styles: Mapping[str, str] = STATES,
) -> None:
    """Print a table; the last column is as wide as it needs.

    In a terminal with too few columns for the others it is folded by the terminal, as a plain
    one is, instead of being squeezed until no id can be read.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if style.person_looks():
        _show_styled(columns, cells, styles)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) - 1)]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        print("  ".join([*padded, line[-1]]).rstrip())


def _show_styled(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column is not columns[-1])
    for row in rows:
        table.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    console = style.console()
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    if sum(widths[:-1]) + 2 * len(widths) + _LAST > console.width:
        console.width = sum(widths) + 2 * len(widths)
    console.print(table)


def age(seconds: float | None) -> str:
    """A duration in one unit, such as ``5m``; "-" if it is not known."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def size(count: int | None) -> str:
    """Bytes in one unit, such as ``12MiB``; "-" if it is not known."""
    if count is None:
        return "-"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.1f}{unit}".replace(".0", "")
    return f"{count}B"
