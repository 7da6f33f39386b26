"""Finds the CPythons of this machine that the core can be built for: one of each of 3.11, 3.12 and 3.13."""

import functools
import json
import os
import subprocess
from pathlib import Path

MINORS = ("3.11", "3.12", "3.13")

PROBE = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:3],
    "cpython": sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
}))
"""


@functools.cache
def probe(python: object) -> dict[str, object] | None:
    """What an interpreter says about itself; None when it does not run (pyenv's shims may not)."""
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=True
        )
        return json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def version_of(python: object) -> tuple[int, ...] | None:
    answer = probe(python)
    return tuple(answer["version"]) if answer else None


def has_headers(python: object) -> bool:
    answer = probe(python)
    return bool(answer and answer["headers"])


def describe(python: object) -> str:
    return "CPython " + ".".join(map(str, version_of(python) or ()))


def candidates() -> list[Path]:
    found = [Path(folder) / f"python{minor}" for minor in MINORS for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for root in (pyenv / "versions", Path.home() / ".local" / "share" / "uv" / "python"):
        for minor in MINORS:
            found += sorted(root.glob(f"*/bin/python{minor}"))
    return [path for path in found if path.exists()]


def find(first: Path) -> dict[str, Path]:
    """Minor version -> interpreter. `first` stands for its own version."""
    found = {minor_of(first): first}
    for python in candidates():
        answer = probe(python)
        if answer and answer["cpython"] and answer["headers"]:
            found.setdefault(minor_of(python), python)
    return {minor: found[minor] for minor in MINORS if minor in found}


def minor_of(python: object) -> str:
    return ".".join(map(str, (version_of(python) or ())[:2]))
