"""Programs side by side with their source, compared with golden texts: tests/golden/program/NAME.py becomes NAME.txt
without bytecode, and where NAME-3.11.txt or the like exists, that with bytecode."""

import re
import subprocess
import sys
from pathlib import Path

import _core
import pytest

from core import worlds

pytestmark = worlds.needs_capture

GOLDEN = Path(__file__).parents[1] / "golden" / "program"
CASES = sorted(path.stem for path in GOLDEN.glob("*.py"))
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
RIGHT = 46  # where the column begins that says what became of an instruction
LEFT = "       "  # before an instruction


def listing(name: str) -> str:
    module = worlds.load(GOLDEN / f"{name}.py")
    compiled = worlds.watched(module.__dict__["f"])
    with worlds.settings(listings=True, capture_attempts=10):
        for _ in range(module.__dict__.get("calls", 2)):
            compiled(*module.__dict__.get("arguments", ()))
    assert compiled.variants(), compiled.failures()
    return "\n".join(variant["program"] for variant in reversed(compiled.variants()))


def without_bytecode(text: str) -> str:
    lines = []
    for line in text.splitlines():
        bars = re.match(r"(\| )*", line)[0]
        if not line.removeprefix(bars).startswith(LEFT):
            lines.append(line)
        elif line[RIGHT - 2 : RIGHT] == "  ":
            right = re.sub(r"(?<=stack )-, |, -", "", line[RIGHT:])  # calls have their hole elsewhere in CPython 3.13
            lines.append(bars + LEFT + right)
    return "\n".join(lines) + "\n"


def compare(path: Path, text: str, update: bool) -> None:
    if update:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "if this is right: pytest --update-golden"


@pytest.mark.parametrize("name", CASES)
def test_what_became_of_each_line_is_as_it_was(name, request):
    update = request.config.getoption("--update-golden")
    text = listing(name)
    assert max(map(len, text.splitlines())) <= 102, "too wide for a log line of 120 columns"
    compare(GOLDEN / f"{name}.txt", without_bytecode(text), update)
    if (GOLDEN / f"{name}-{VERSION}.txt").exists():
        compare(GOLDEN / f"{name}-{VERSION}.txt", text, update)


def test_without_being_asked_for_nothing_is_kept():
    compiled = worlds.watched(lambda x: [x])
    compiled(1)
    (variant,) = compiled.variants()
    assert "LOAD_FAST" not in variant["program"]
    assert "return r" in variant["program"]


def test_the_log_shows_it_when_a_program_is_made_and_when_it_grows():
    program = f"""
import sys
sys.path.insert(0, {str(Path(_core.__file__).parent)!r})
import _core, importlib.util
_core.set_setting("without_tensors", True)
_core.set_setting("logs", "program")
spec = importlib.util.spec_from_file_location("forms", {str(GOLDEN / "two_forms_behind_a_cut.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
f = _core.CompiledFunction(module.f, "f")
print([f() for _ in range(6)])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == str(["low", "high"] * 3), result.stderr
    lines = result.stderr.splitlines()
    assert all(line.startswith("[magneto program] ") and len(line) <= 120 for line in lines)
    assert result.stderr.count("cut: r") == 2
    assert result.stderr.count("behind the cut:") == 3  # the first program has one form behind it, then there are two


def test_source_that_is_gone_or_no_text_is_left_out(tmp_path):
    path = tmp_path / "strange.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\ndef f():\n    return ['\xe9']\n")
    for source in (path, None):
        space = {}
        exec(compile(path.read_bytes(), str(source or "<nowhere>"), "exec"), space)
        compiled = worlds.watched(space["f"])
        with worlds.settings(listings=True):
            assert compiled() == ["é"]
        (variant,) = compiled.variants()
        assert "LOAD_CONST 'é'" in variant["program"]
        assert ("return [" in variant["program"]) == (source is not None)
