"""Runs the C++ unit tests of a build folder: all of them, the one that is named, or just `--list`.

`--load NAME` imports that module from the folder instead.
"""

import importlib
import sys
import traceback


def main() -> int:
    folder, wanted = sys.argv[1], sys.argv[2:]
    sys.path.insert(0, folder)
    if wanted[:1] == ["--load"]:
        importlib.import_module(wanted[1])
        return 0
    import _units

    if wanted == ["--list"]:
        print("\n".join(_units.cases()))
        return 0
    failed = 0
    for name in wanted or _units.cases():
        try:
            _units.run(name)
        except BaseException:
            failed += 1
            print(f"FAILED {name}", file=sys.stderr)
            traceback.print_exc(limit=0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
