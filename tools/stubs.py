"""Writes the type stubs of magneto._C to the file that is named, from the built module."""

import sys
from pathlib import Path

from nanobind.stubgen import StubGen

HEADER = '"""Type stubs of the native module; written by `./run stubs`."""\n\n'


def stubs() -> str:
    import torch  # noqa: F401  (loads the libraries that magneto._C needs)

    from magneto import _C

    generator = StubGen(_C)
    generator.put(_C)
    return HEADER + generator.get()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(stubs(), encoding="utf-8")
