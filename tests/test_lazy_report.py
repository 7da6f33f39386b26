"""magneto.lazy.report: the page is well-formed, shows what was counted, escapes it, and lies where it was asked for."""

import importlib
import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import magneto
import pytest
import torch
from magneto import _C, lazy

ROOT = Path(__file__).resolve().parent.parent
VOID = {"meta", "input"}
page_module = importlib.import_module("magneto.lazy.report")  # the attribute of this name is the function


class Page(HTMLParser):
    """Raises where tags do not match; keeps rows of tables, and the texts of other elements by tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: dict[str, list[str]] = {}
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        else:
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> means something in pictures only"

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            assert not data.strip()
        elif self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif self.open[-1] in self.texts:
            self.texts[self.open[-1]][-1] += data

    def row(self, first: str) -> list[str]:
        (found,) = (row for row in self.rows if row[0] == first)
        return found


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    lazy.init()
    lazy.mark_step()
    lazy.reset_metrics()


def work(steps: int) -> None:
    x = torch.arange(6.0).to("lazy")
    for _ in range(steps):
        y = (x * 2).relu()
        lazy.mark_step()
        torch.nonzero(y)
    torch.unique(x)


def test_the_page_is_well_formed_and_shows_what_was_counted(tmp_path: Path) -> None:
    lazy.clear_ir_cache()
    work(5)
    path = lazy.report(tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    page = Page(path.read_text(encoding="utf-8"))
    for name in ("steps", "operators recorded", "graphs made", "graphs found"):
        assert page.row(name)[1] == str(lazy.counter_value(name)), name
    assert page.row("graphs found")[1] == "4"
    assert page.row("steps ended at the limit")[1] == "0"
    assert page.row("aten::nonzero")[1] == "5" and page.row("aten::_unique2")[1] == "1"
    assert [row[0] for row in page.rows if "::" in row[0]] == ["aten::nonzero", "aten::_unique2"]  # most often first
    for phase, times in (("execute", "5"), ("end of step", "5"), ("compile", "1")):
        name, count, total, median, most, _ = page.row(phase)
        assert (name, count) == (phase, times) and all(text.endswith("s") for text in (total, median, most))
    assert "80.0%" in page.texts["b"] and "6" in page.texts["b"]
    graph, *_ = page.texts["pre"]
    assert graph == lazy.backend.get_latest_computation_graph() and "aten.relu" in graph
    assert len(page.texts["svg"]) == len(page.texts["pre"])


def test_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    work(1)
    text = lazy.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert not Page(text).addresses
    assert "<script" not in text and "@import" not in text
    assert text.replace('xmlns="http://www.w3.org/2000/svg"', "").count("http") == 0


def test_a_page_without_a_step_says_so(tmp_path: Path) -> None:
    page = Page(page_module._page({}, {}, []))
    assert page.row("steps")[1] == "0"
    assert {"None.", "Nothing was timed.", "No step has run yet."} <= set(page.texts["p"])
    assert "svg" not in page.texts
    text = lazy.report(tmp_path / "page.html").read_text(encoding="utf-8")  # behind reset_metrics()
    assert Page(text).row("steps")[1] == "0"


def test_what_is_shown_is_escaped(tmp_path: Path) -> None:
    hostile = "</pre></svg><script>alert('&amp;')</script>"
    source = "import torch\ndef f(x):\n    return x.cos().sin()\n"
    space: dict[str, object] = {}
    exec(compile(source, f"{hostile}.py", "exec"), space)  # the name of the file is in the graph
    y = space["f"](torch.ones(3, device="lazy"))  # type: ignore[operator]
    lazy.mark_step()
    text = lazy.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert hostile in "".join(Page(text).texts["pre"]) and "<script" not in text
    del y

    counters = {f"my::{hostile}": 3, hostile: 2}
    timers = {hostile: (1, 2.0, [2.0])}
    text = page_module._page(counters, timers, [])
    page = Page(text)
    assert page.row(f"my::{hostile}")[1] == "3" and "<script" not in text
    assert [row[1] for row in page.rows if row[0] == hostile] == ["2", "1"]


def test_several_graphs_are_shown_in_their_order() -> None:
    x = torch.ones(3, device="lazy")
    graphs = []
    for f in (torch.sin, torch.cos):
        y = f(x)
        lazy.mark_step()
        graphs.append(_C.lazy_latest())
        del y
    page = Page(page_module._page({}, {}, graphs))
    assert ["aten.sin" in text for text in page.texts["pre"]] == [True, False]
    assert len(page.texts["svg"]) == 2


def test_steps_ended_at_the_limit_and_long_times_are_shown(tmp_path: Path) -> None:
    with magneto.config.patch(lazy_graph_limit=10):
        y = torch.ones(3, device="lazy")
        for _ in range(20):
            y = y + 1
    lazy.wait_device_ops()
    page = Page(lazy.report(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.row("steps ended at the limit")[1] == str(lazy.counter_value("steps ended at the limit")) != "0"
    page = Page(page_module._page({"steps": 12345}, {"execute": (3, 4e6, [1.0, 2000.0, 3e6])}, []))
    assert page.row("execute")[1:5] == ["3", "4.000s", "2.00ms", "3.000s"]
    assert page.row("steps")[1] == "12,345"


def test_it_is_written_to_the_working_folder_by_default_and_replaces_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lazy.html").write_text("old" * 100000)
    assert lazy.report() == Path("lazy.html")
    Page((tmp_path / "lazy.html").read_text(encoding="utf-8"))
    assert lazy.report("other.html").exists()


def test_a_bad_path_is_pythons_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        lazy.report(tmp_path / "nowhere" / "page.html")
    with pytest.raises(IsADirectoryError):
        lazy.report(tmp_path)
    with pytest.raises(ValueError, match="null"):
        lazy.report("a\0b")
    with pytest.raises(TypeError):
        lazy.report(3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def run_python(code: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


def test_without_a_device_it_says_what_to_call(tmp_path: Path) -> None:
    result = run_python(f"import magneto\nmagneto.lazy.report({str(tmp_path / 'page.html')!r})")
    assert result.returncode == 1 and "call magneto.lazy.init()" in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_the_example_trains_alike_on_both_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("lazy_training", ROOT / "examples" / "lazy_training.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(tmp_path / "new" / "lazy.html")
    assert "50 losses: equal" in capsys.readouterr().out
    page = Page((tmp_path / "new" / "lazy.html").read_text(encoding="utf-8"))
    assert page.row("steps")[1] == "50"
    assert int(page.row("graphs made")[1]) <= 3, "the learning rate changes; the graph does not"
    assert not [row for row in page.rows if "::" in row[0]], "every operator was recorded"
