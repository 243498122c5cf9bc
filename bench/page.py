"""One HTML page of a run: what was wanted, tables, bars, the spread of the runs, the machine.

Pure: figures in, text out.  No script, no picture, nothing from the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from report import Results, figure, ratio
from targets import FLOOR, OURS, PEER, Verdict, judge

#: The floor of a metric: the same work by a plain program.
FLOORS = {
    ("spawn", "closed_p50_us"): "c_pipes_p50_us",
    ("spawn", "closed_quickack_p50_us"): "c_pipes_p50_us",
    ("spawn_pty", "closed_p50_us"): "c_pty_p50_us",
    ("spawn_sandboxed", "closed_p50_us"): "c_bwrap_p50_us",
    ("spawn_sandboxed", "closed_quickack_p50_us"): "c_bwrap_p50_us",
    ("stream_zero", "MB_s"): "c_relay_64K_MB_s",
    ("stream_zero", "server_cpu_s_per_GiB"): "c_relay_64K_cpu_s_per_GiB",
    ("stream_text", "MB_s"): "c_relay_64K_MB_s",
    ("echo", "round_trip_p50_us"): "py_echo_rpc_p50_us",
    ("read_rpc", "status_p50_us"): "py_echo_rpc_p50_us",
}
#: More is better of these; of everything else less is.
RATES = ("MB_s", "per_s", "lines_s", "connections_s", "entries_s")
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;color:#1f2328}
body{max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .3rem}
p,li{color:#57606a}ul{padding-left:1.2rem}table{border-collapse:collapse;width:100%}
td,th{padding:.15rem .5rem;text-align:right;border-bottom:1px solid #eaeef2;font-weight:400}
td:first-child,th:first-child{text-align:left}th{color:#57606a}
.b{width:16rem}.b i{display:block;height:5px;margin:2px 0;border-radius:2px;position:relative}
.b u{position:absolute;height:1px;top:2px;background:#1f2328}
.ours{background:#1f6feb}.codex{background:#d4630e}.floor{background:#8c959f}
.good{color:#1a7f37}.bad{color:#cf222e}
.k i{display:inline-block;width:1.2rem;height:7px;margin:0 .3rem 0 .9rem}
"""


def page(meta: dict[str, Any], results: Results) -> str:
    """The whole page."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>handrail: benchmark</title><style>{STYLE}</style></head><body>",
            "<h1>handrail beside its peer</h1>",
            *head(meta),
            "<h2>What was wanted</h2><ul>",
            *(
                f'<li><b class="{colour(verdict)}">{verdict.value}</b> {escape(sentence)}</li>'
                for verdict, sentence in judge(results)
            ),
            "</ul>",
            *(line for name in results if name != FLOOR for line in workload(name, results)),
            *floor(results),
            "</body></html>\n",
        ]
    )


def head(meta: dict[str, Any]) -> Iterator[str]:
    """The machine, the versions, and how to read the bars."""
    load = " to ".join(f"{meta[key][0]:.1f}" for key in ("load_before", "load_after"))
    yield (
        f"<p>{meta['cores']} cores, Linux {escape(meta['kernel'])}, Python {meta['python']}, load"
        f" {load}, {meta['seconds']:.0f} s" + (", a quick run" if meta["quick"] else "") + "</p>"
    )
    versions = meta.get("versions") or {}
    if versions:
        said = "; ".join(f"{name}: {text}" for name, text in versions.items())
        yield f"<p>{escape(said)}</p>"
    yield (
        '<p class="k"><i class="codex"></i>peer<i class="ours"></i>ours<i class="floor"></i>'
        "floor: a plain program that does the same. A thin line is the spread of the runs."
        " Ratios count, times belong to this machine.</p>"
    )


def workload(name: str, results: Results) -> Iterator[str]:
    """The table of one workload, with bars."""
    by = results[name]
    servers = [server for server in (PEER, OURS) if server in by] or list(by)
    keys = dict.fromkeys(key for server in servers for key in by[server])
    titles = "".join(f"<th>{escape(title)}</th>" for title in (*servers, "ours / peer", "floor"))
    yield f"<h2>{escape(name)}</h2><table><tr><th></th>{titles}<th></th></tr>"
    for key in keys:
        if key.startswith("_") or key.endswith("_n"):
            continue
        values = [by[server].get(key) for server in servers]
        low = results.get(FLOOR, {}).get(FLOOR, {}).get(FLOORS.get((name, key), ""))
        cells = "".join(f"<td>{escape(figure(value)[:60])}</td>" for value in values)
        spreads = [by[server].get("_spread", {}).get(key) for server in servers]
        compared = ratio(values[-1], values[0]) if len(values) > 1 else ""
        yield (
            f"<tr><td>{escape(key)}</td>{cells}<td{judged(key, compared)}>{compared}</td>"
            f'<td>{figure(low)}</td><td class="b">{bars(servers, values, spreads, low)}</td></tr>'
        )
    yield "</table>"


def bars(servers: list[str], values: list[Any], spreads: list[Any], low: float | None) -> str:
    """One bar for each server and for the floor, on one scale."""
    drawn = [
        (server, value, spread)
        for server, value, spread in zip(servers, values, spreads, strict=True)
        if isinstance(value, (int, float)) and value > 0
    ]
    if low is not None:
        drawn.append(("floor", low, None))
    if len(drawn) < 2:
        return ""
    most = max(max(value, (spread or [0, 0])[1]) for _, value, spread in drawn)
    made = []
    for server, value, spread in drawn:
        line = ""
        if spread and value:
            left, right = (100 * edge / value for edge in spread)
            line = f'<u style="left:{left:.0f}%;width:{max(0.0, right - left):.0f}%"></u>'
        width = max(0.5, 100 * value / most)
        made.append(f'<i class="{server}" style="width:{width:.1f}%">{line}</i>')
    return "".join(made)


def judged(key: str, compared: str) -> str:
    """The colour of a ratio, where it is not about the same."""
    if not compared or 0.95 <= float(compared) <= 1.05 or key.startswith(("BAD", "error")):
        return ""
    better = (float(compared) > 1) == any(rate in key for rate in RATES)
    return f' class="{"good" if better else "bad"}"'


def colour(verdict: Verdict) -> str:
    """The class of a verdict."""
    return {Verdict.OK: "good", Verdict.MISSED: "bad"}.get(verdict, "")


def floor(results: Results) -> Iterator[str]:
    """What the plain programs reached."""
    found = results.get(FLOOR, {}).get(FLOOR, {})
    if found:
        yield "<h2>Plain programs</h2><details><summary>all figures</summary><table>"
        for key, value in found.items():
            if not key.startswith("_") and not key.endswith("_n"):
                yield f"<tr><td>{escape(key)}</td><td>{escape(figure(value)[:60])}</td></tr>"
        yield "</table></details>"
