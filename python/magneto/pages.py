"""What the pages that Magneto writes have in common: one HTML file each, without any outside resource."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Tile", "page", "tile"]

Tile = tuple[str, str, str]  # a figure, its caption, and "good", "bad" or ""

# For light and dark screens, wide and narrow ones. What stands in a frame has the class `card`.
STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f27; --soft: #5c6675; --line: #dfe3ea; --page: #fbfbfd; --card: #ffffff;
  --accent: #5b3fd6; --good: #11805a; --bad: #b3362b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ecf2; --soft: #9aa4b5; --line: #2b313c; --page: #12151b;
  --card: #191d25; --accent: #a48bff; --good: #4cc796; --bad: #ff8a7d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { margin: 0 auto; padding: 3rem 1.25rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.02em; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 .8rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.card, .tile { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .8rem; margin: 1.8rem 0; }
.tile { padding: .9rem 1.1rem; } .tile b { display: block; font-size: 1.7rem; letter-spacing: -.02em; }
.tile span { color: var(--soft); font-size: .88rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; font-size: .88rem; }
pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; } summary { cursor: pointer; }
@media (max-width: 44rem) { main { padding: 1.5rem 1rem 3rem; } .tiles { grid-template-columns: 1fr 1fr; } }
"""


def page(title: str, subtitle: str, tiles: Iterable[Tile], body: str, style: str = "") -> str:
    """A whole page: headings and tiles above `body`, which is markup. `style`: rules of this page, which come last."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{STYLE}{style}</style>
</head>
<body><main>
<h1>{html.escape(title)}</h1>
<p class="soft">{html.escape(subtitle)}</p>
<div class="tiles">{"".join(tile(*each) for each in tiles)}</div>
{body}</main></body></html>
"""


def tile(figure: str, caption: str, mood: str) -> str:
    """One figure in large print, in the colour of its mood, above its caption."""
    return f'<div class="tile"><b class="{mood}">{html.escape(figure)}</b><span>{html.escape(caption)}</span></div>'
