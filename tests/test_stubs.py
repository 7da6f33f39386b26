"""The type stubs in the package are those of the module that was built."""

import difflib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generated() -> str:
    spec = importlib.util.spec_from_file_location("magneto_tools_stubs", ROOT / "tools" / "stubs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.stubs()


def test_the_stubs_are_those_of_the_built_module():
    stored = (ROOT / "python" / "magneto" / "_C.pyi").read_text(encoding="utf-8")
    difference = "".join(
        difflib.unified_diff(stored.splitlines(True), generated().splitlines(True), "_C.pyi", "the built module")
    )
    assert not difference, f"run `./run stubs`:\n{difference}"


def test_the_stubs_name_what_the_package_uses():
    text = generated()
    for name in ("class CompiledFunction", "def counters", "def settings", "def is_compiling", "class UserError"):
        assert name in text


def test_the_stubs_give_every_member_a_signature():
    text = generated()
    assert "escriptor" not in text, "tools/stub_patterns.txt lacks the signature of a member written in C"
    assert "(*args, **kwargs)" not in text
