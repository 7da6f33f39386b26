"""Writes the type stubs of magneto._C to the file that is named, from the built module."""

import sys
from pathlib import Path

from nanobind.stubgen import StubGen, load_pattern_file

PATTERNS = Path(__file__).with_name("stub_patterns.txt")
HEADER = "# Written by `./run stubs` from the built module.\n"


def stubs() -> str:
    from magneto import _C

    patterns = load_pattern_file(str(PATTERNS))
    generator = StubGen(_C, patterns=patterns)
    generator.put(_C)
    unused = [pattern.query.pattern for pattern in patterns if not pattern.matches]
    if unused:
        raise SystemExit(f"{PATTERNS.name} describes what the module does not have: {', '.join(unused)}")
    return HEADER + generator.get()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(stubs(), encoding="utf-8")
