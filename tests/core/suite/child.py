"""Runs one module of CPython's own test-suite in one mode, and writes what became of each test, line by line.

    python child.py test_grammar plain|watch|capture OUTCOMES [PATTERN ...]

Every test runs twice on the same object, so that in mode `capture` programs make the second run, where there are any.
"""

import faulthandler
import json
import os
import sys
import traceback
import unittest
from types import ModuleType
from typing import TextIO

CAPTURE = {"without_tensors": True, "capture_attempts": 2, "recapture_limit": 8}


class Outcomes(unittest.TestResult):
    """A line per event: a test has started, or how it ended."""

    def __init__(self, file: TextIO, core: ModuleType | None) -> None:
        super().__init__()
        self.file = file
        self.core = core
        self.events = self.watched = 0  # all of them, and those that our interpreter has run

    def note(self, name, event, error=None):
        self.events += 1
        self.watched += self.core is not None and self.core.is_compiling()
        if error:
            event += " " + error[0].__name__
            print(f"-- {name}: {event}", file=sys.stderr)
            traceback.print_exception(*error)
        self.file.write(json.dumps([name, event]) + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.note(test.id(), "started")

    def addSuccess(self, test):
        self.note(test.id(), "passed")

    def addError(self, test, err):
        self.note(test.id(), "error", err)

    def addFailure(self, test, err):
        self.note(test.id(), "failed", err)

    def addSkip(self, test, reason):
        self.note(test.id(), "skipped")

    def addExpectedFailure(self, test, err):
        self.note(test.id(), "failed as expected")

    def addUnexpectedSuccess(self, test):
        self.note(test.id(), "passed unexpectedly")

    def addSubTest(self, test, subtest, err):
        if err:
            self.note(test.id(), "subtest", err)


def run_twice() -> None:
    original = unittest.TestCase.run

    def run(self, result=None):
        original(self, result)
        return original(self, result)

    unittest.TestCase.run = run


def turn_on(mode: str) -> ModuleType:
    sys.path.insert(0, os.environ["MAGNETO_CORE"])
    import _core

    del sys.path[0]
    for name, value in CAPTURE.items():
        _core.set_setting(name, value)
    _core.everywhere(mode)
    return _core


def main(module: str, mode: str, path: str, patterns: list[str]) -> None:
    faulthandler.enable()
    run_twice()
    core = turn_on(mode) if mode != "plain" else None
    loader = unittest.TestLoader()
    if patterns:
        loader.testNamePatterns = [f"*{pattern}*" for pattern in patterns]
    with open(path, "w", encoding="utf-8") as file:
        outcomes = Outcomes(file, core)
        suite = loader.loadTestsFromName(f"test.{module}")
        if loader.errors:  # a module or test that is not there would fail alike in every mode
            sys.exit("\n".join(loader.errors))
        suite.run(outcomes)
        hits = core.counters()["stats"]["hits"] if core else 0
        outcomes.note("", f"finished {outcomes.events} {outcomes.watched} {hits}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
