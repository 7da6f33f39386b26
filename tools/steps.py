"""One line per step with its time; what the step's commands print goes to a log file that is shown when one fails."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path


class Failed(Exception):
    """Something that the reader can act on; ./run prints it without a traceback."""


def say(text: str) -> None:
    # A terminal that cannot show a letter gets a question mark, never an exception.
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


class Step:
    """`with Step("building", log) as step: step.run([...])`."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log

    def __enter__(self) -> "Step":
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        self.start = time.monotonic()
        self.done = threading.Event()
        self.ticker = threading.Thread(target=self.tick, daemon=True)
        if sys.stdout.isatty():
            self.ticker.start()
        return self

    def tick(self) -> None:
        """Shows on a terminal that time passes."""
        while not self.done.wait(0.5):
            print(f"\r{self.line()}", end="", flush=True)

    def line(self) -> str:
        return f"{self.name:.<46} {time.monotonic() - self.start:6.1f} s"

    def run(self, command: list[object], env: dict[str, str] | None = None) -> None:
        words = [str(word) for word in command]
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            result = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})}, check=False
            )
        if result.returncode:
            tail = self.log.read_text(errors="replace").splitlines()[-60:]
            self.end()
            say("\n".join(tail))
            raise Failed(f"{self.name} failed with status {result.returncode}; all of its output: {self.log}")

    def end(self) -> None:
        if not self.done.is_set():
            self.done.set()
            if self.ticker.is_alive():
                self.ticker.join()
            say(("\r" if sys.stdout.isatty() else "") + self.line())

    def __exit__(self, *error: object) -> None:
        self.end()
