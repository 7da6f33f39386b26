"""What the lazy device has done so far, as one HTML page without any outside resource, for light and dark screens."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import cast

import torch

from magneto import _C, pages
from magneto.lazy.metrics import duration

__all__ = ["report"]

# Counters of the device itself, in the order of the page; whatever else it counts comes behind them.
COUNTERS = {
    "steps": "steps that were ended and run",
    "operators recorded": "operators in these steps",
    "graphs made": "steps that were new: a graph was made",
    "graphs found": "steps that did what an earlier one did: its graph was found",
    "steps ended at the limit": "steps cut because they grew past lazy_graph_limit",
    "caches dropped": "times that all graphs were forgotten because they grew past lazy_cache_limit",
}
PHASES = {
    "end of step": "finding or making the graph of a step that ends",
    "compile": "making graphs; part of the line above",
    "execute": "running steps, also beside the program",
}

LARGEST_PICTURE = 2000  # operators; larger ones are text only

STYLE = """\
main { max-width: 75rem; } .soft { font-size: .88rem; }
.scroll { overflow: auto; } .graph { padding: .9rem 1.1rem; margin: .8rem 0; }
th, td { padding: .5rem .9rem; } tr:last-child td { border: 0; } td:first-child { overflow-wrap: anywhere; }
td.say, th.say { text-align: left; white-space: normal; color: var(--soft); font-size: .88rem; }
.bar { display: block; height: .35rem; min-width: 2px; border-radius: .2rem; background: var(--accent); }
label { display: block; margin: .6rem 0; font-size: .88rem; color: var(--soft); }
.picture { max-height: 85vh; background: #ffffff; } .picture svg { display: block; }
label:has(.fit:checked) ~ .picture svg { width: 100%; height: auto; }
pre { margin: .8rem 0 0; padding: .9rem 1.1rem; max-height: 85vh; }
@media (max-width: 44rem) { th, td { padding: .5rem; } }
"""

BODY = Template("""\
<h2>Steps and graphs</h2>
$counts
<h2>Operators that were run one at a time</h2>
$fallbacks
<h2>Time by phase</h2>
$times
<h2>Graphs</h2>
$graphs
""")


def report(file: str | Path = "lazy.html") -> Path:
    """Writes a page to look at: steps, what was not recorded, time by phase, and pictures of the graphs made last.

    It counts from the last ``reset_metrics()`` on. The folder must exist; a file that is there is replaced.
    """
    graphs = cast(list[_C.Graph], _C.lazy_recent())
    page = _page(_C.lazy_counters(), _C.lazy_timers(), graphs[::-1])
    path = Path(file)
    path.write_text(page, encoding="utf-8")
    return path


def _page(
    counters: Mapping[str, int], timers: Mapping[str, tuple[int, float, list[float]]], graphs: Sequence[_C.Graph]
) -> str:
    fallbacks = {name: count for name, count in counters.items() if "::" in name}  # all others have no namespace
    own = {name: counters.get(name, 0) for name in COUNTERS}
    own |= {name: count for name, count in sorted(counters.items()) if name not in fallbacks}
    body = BODY.substitute(
        counts=_table(["", "count", ""], [[name, f"{n:,}", COUNTERS.get(name, "")] for name, n in own.items()]),
        fallbacks=_fallbacks(fallbacks),
        times=_times(timers),
        graphs="".join(map(_graph, graphs)) or '<p class="soft">No step has run yet.</p>',
    )
    subtitle = f"over {_C.lazy_backing()}, torch {torch.__version__}"
    return pages.page("What the lazy device did", subtitle, _tiles(own, sum(fallbacks.values())), body, STYLE)


def _tiles(own: Mapping[str, int], fallbacks: int) -> list[pages.Tile]:
    steps, recorded, found = own["steps"], own["operators recorded"], own["graphs found"]
    asked = found + own["graphs made"]
    return [
        (f"{steps:,}", "steps", ""),
        (f"{recorded / steps:,.0f}" if steps else "-", "operators a step", ""),
        (f"{found / asked:.1%}" if asked else "-", "of the graphs were found, not made", "good" if found else ""),
        (f"{fallbacks:,}", "operators were not recorded", "bad" if fallbacks else "good"),
    ]


def _fallbacks(counts: Mapping[str, int]) -> str:
    if not counts:
        return '<p class="soft">None.</p>'
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _table(["operator", "times"], [[name, f"{count:,}"] for name, count in ordered])


def _times(timers: Mapping[str, tuple[int, float, list[float]]]) -> str:
    known = [name for name in PHASES if name in timers]
    names = known + sorted(set(timers) - set(known))
    if not names:
        return '<p class="soft">Nothing was timed.</p>'
    longest = max(total for _, total, _ in timers.values()) or 1.0
    rows, bars = [], []
    for name in names:
        count, total, last = timers[name]
        shares = [duration(_share(last, percent)) for percent in (50, 95)]
        rows.append([name, f"{count:,}", duration(total), *shares, PHASES.get(name, "")])
        bars.append(total / longest)
    note = '<p class="soft">Median and 95 % are of the last thousand times.</p>'
    return _table(["phase", "times", "total", "median", "95 %", ""], rows, bars) + note


def _share(times: Iterable[float], percent: int) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], bars: Sequence[float] = ()) -> str:
    """A column without a heading, except for the first one, is for sentences. `bars`: below the first cells."""
    kinds = [' class="say"' if i and not name else "" for i, name in enumerate(head)]
    text = "".join(f"<th{kind}>{html.escape(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    body = ""
    for number, row in enumerate(rows):
        cells = [html.escape(cell) for cell in row]
        if bars:
            cells[0] += f'<span class="bar" style="width: {bars[number]:.2%}"></span>'
        body += f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, cells, strict=True))}</tr>"
    return f'<div class="card scroll"><table><thead><tr>{text}</tr></thead><tbody>{body}</tbody></table></div>'


def _graph(graph: _C.Graph) -> str:
    picture = (
        '<label><input type="checkbox" class="fit"> fit the width</label>'
        f'<div class="card scroll picture">{graph.to_svg()}</div>'  # pictures escape what they show themselves
    )
    return (
        f'<details class="card graph"><summary>{len(graph):,} operators, hash {html.escape(graph.hash)}</summary>'
        f"{picture if len(graph) <= LARGEST_PICTURE else ''}"
        f'<pre class="card scroll">{html.escape(str(graph))}</pre></details>\n'
    )
