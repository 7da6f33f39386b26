"""The demo must run through, with results that equal eager's and a report that has the graph drawn."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.py"


def test_a_small_demo_says_that_everything_equals_eager_and_draws_the_graph(tmp_path: Path):
    report = tmp_path / "report.html"
    words = ["--layers", "1", "--hidden", "48", "--tokens", "4", "--repeats", "2", "--report", report]
    run = subprocess.run([sys.executable, DEMO, *map(str, words)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "DIFFERENT" not in run.stdout and run.stdout.count("equal") >= 3
    page = report.read_text()
    assert "<svg" in page and "aten.addmm" in page and "new tokens" in page
