"""Curves as SVG, on two logarithmic axes.  Pure: figures in, text out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 96, 40, 40
COLOURS = ("#1f6feb", "#d4630e", "#6e7781")


@dataclass(frozen=True)
class Curve:
    """Points of one server."""

    name: str
    points: list[tuple[float, float]]


def draw(title: str, curves: list[Curve]) -> str:
    """One picture; a curve without points is left out."""
    curves = [Curve(c.name, sorted(p for p in c.points if p[1] > 0)) for c in curves]
    curves = [c for c in curves if c.points]
    xs = [x for c in curves for x, _ in c.points]
    ys = [y for c in curves for _, y in c.points]
    across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    down = Axis(lower_decade(min(ys)), upper_decade(max(ys)), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(title)}</title>",
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" fill="#1f2328">{escape(title)}</text>',
    ]
    for y in down.decades():
        parts.append(
            f'<path d="M{LEFT} {down(y):.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>'
            f'<text x="{LEFT - 8}" y="{down(y) + 4:.1f}" text-anchor="end"'
            f' fill="#57606a">{y:g}</text>'
        )
    for x in sorted(set(xs)):
        parts.append(
            f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle"'
            f' fill="#57606a">{x:,.0f}</text>'
        )
    for curve, colour in zip(curves, COLOURS, strict=False):
        points = [(across(x), down(y)) for x, y in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        parts.append(
            f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(curve.name)}</text>'
        )
    return "\n".join([*parts, "</g></svg>\n"])


class Axis:
    """Places of figures on one logarithmic axis."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = low, max(high, low * 1.01)
        self.begin, self.end = begin, end

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def decades(self) -> list[float]:
        """The powers of ten on it."""
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        return [10.0**power for power in range(first, last + 1)]


def lower_decade(value: float) -> float:
    """The power of ten at or below a figure."""
    return 10.0 ** math.floor(math.log10(value))


def upper_decade(value: float) -> float:
    """The power of ten at or above a figure."""
    return 10.0 ** math.ceil(math.log10(value))
