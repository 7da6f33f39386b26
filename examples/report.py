"""The demo's report: one HTML file without any outside resource, for light and dark screens."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from magneto import pages

_STYLE = """\
:root { --other: #9aa5b8; } @media (prefers-color-scheme: dark) { :root { --other: #56627a; } }
main { max-width: 60rem; }
.scroll { overflow-x: auto; } .notes { margin-top: 1rem; color: var(--soft); font-size: .88rem; }
th, td { padding: .5rem .7rem; } tr.ours td { color: var(--accent); font-weight: 600; }
figure { margin: .8rem 0; padding: 1rem 1.1rem; } figcaption { color: var(--soft); font-size: .88rem; }
.bars { display: grid; grid-template-columns: max-content 1fr; gap: .5rem 1rem; margin-top: .6rem; font-size: .88rem; }
.bars > div { display: flex; align-items: center; gap: .6rem; white-space: nowrap; }
.bar { height: 1.4rem; min-width: 2px; border-radius: .25rem; background: var(--other); }
.bar.ours { background: var(--accent); }
.picture { overflow: auto; max-height: 36rem; padding: 1rem; background: #fff; }
pre { padding: 1rem 1.1rem; overflow-x: auto; } .wrap { white-space: pre-wrap; }
.facts { padding: .4rem 1.1rem; } .facts td { white-space: normal; }
.facts tr:last-child td { border: 0; } .facts td:first-child { color: var(--soft); width: 11rem; }
.facts td:last-child { text-align: left; }
@media (max-width: 44rem) { th, td { padding: .5rem .4rem; } td:last-child, th:last-child { white-space: normal; }
  .facts td:first-child { width: 6rem; } }
"""

_BODY = Template("""\
<h2>Measured in one run</h2>
<div class="scroll"><table><thead><tr>$head</tr></thead><tbody>$rows</tbody></table></div>
<div class="notes">$notes</div>
$charts
<h2>What Magneto says about it</h2>
<pre class="card wrap">$explanation</pre>
<h2>The graph</h2>
$picture
<details><summary class="soft">$graph_caption</summary><pre class="card">$graph</pre></details>
<h2>The machine</h2>
<div class="card facts"><table><tbody>$facts</tbody></table></div>
""")


@dataclass
class Contender:
    """One way to run the model: milliseconds of the first and of a later call."""

    name: str
    first_ms: float
    call_ms: float
    ours: bool = False


@dataclass
class Report:
    """All that the page shows."""

    title: str
    subtitle: str
    tiles: Sequence[pages.Tile]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    contenders: Sequence[Contender]
    notes: Sequence[str]
    explanation: str
    graph: str
    graph_caption: str
    picture: str  # of the graph, as SVG; may be empty
    facts: dict[str, str]

    def write(self, path: Path) -> Path:
        """Write the page, with the folder it lies in."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def html(self) -> str:
        """The page as text."""
        body = _BODY.substitute(
            head="".join(f"<th>{html.escape(column)}</th>" for column in self.columns),
            rows="".join(self._row(row) for row in self.rows),
            notes="".join(f"<p>{html.escape(note)}</p>" for note in self.notes),
            charts=self._charts(),
            explanation=html.escape(self.explanation),
            graph=html.escape(self.graph),
            graph_caption=html.escape(self.graph_caption),
            picture=f'<div class="card picture">{self.picture}</div>' if self.picture else "",
            facts="".join(
                f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
                for name, value in self.facts.items()
            ),
        )
        return pages.page(self.title, self.subtitle, self.tiles, body, _STYLE)

    def _row(self, row: Sequence[str]) -> str:
        ours = any(contender.ours and contender.name == row[0] for contender in self.contenders)
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        return f'<tr class="ours">{cells}</tr>' if ours else f"<tr>{cells}</tr>"

    def _charts(self) -> str:
        first = [(c.name, c.first_ms, c.ours) for c in self.contenders]
        later = [(c.name, c.call_ms, c.ours) for c in self.contenders]
        return _chart("The first call: shorter is better", first) + _chart("A later call: shorter is better", later)


def _chart(caption: str, bars: Sequence[tuple[str, float, bool]]) -> str:
    """Horizontal bars on one linear scale that starts at zero; the longest leaves room for its figure."""
    longest = max(value for _, value, _ in bars) or 1.0
    parts = []
    for name, value, ours in bars:
        kind = "bar ours" if ours else "bar"
        bar = f'<span class="{kind}" style="width: calc((100% - 5rem) * {value / longest:.4f})"></span>'
        parts.append(f"<span>{html.escape(name)}</span><div>{bar}{milliseconds(value)}</div>")
    heading = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f'<figure class="card">{heading}<div class="bars">{"".join(parts)}</div></figure>'


def milliseconds(value: float) -> str:
    """A duration of three digits, which is as many as a reader can use."""
    if value >= 2000:
        return f"{value / 1000:.2f} s"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} ms"
