"""Writes, for each type of node that torch generates, which of its fields may differ from run to run.

    python tools/node_members.py <torch's Functions.h> <the file to write>

The build runs it on the header of the torch that it builds against; src/autograd/members.cpp includes the result.
"""

import re
import sys
from pathlib import Path

NODE = re.compile(r"^struct TORCH_API (\w+) : public (?:TraceableFunction|Node) \{$")
FIELD = re.compile(r"^  ([\w:<> ]+) (\w+)(?: = .*|\{.*\})?;$")
SAVED = {"SavedVariable", "std::vector<SavedVariable>"}
SIZES = {
    "c10::SymInt",
    "std::vector<c10::SymInt>",
    "::std::optional<c10::SymInt>",
    "c10::OptionalArray<c10::SymInt>",
    "::std::vector<::std::vector<c10::SymInt>>",
    "torch::autograd::generated::TypeAndSize",
    "at::TensorGeometry",
}


def nodes(header: str) -> dict[str, list[str]]:
    """The fields of each node."""
    found: dict[str, list[str]] = {}
    fields: list[str] | None = None
    for line in header.splitlines():
        if match := NODE.match(line):
            fields = found.setdefault(match[1], [])
        elif line == "};":
            fields = None
        elif fields is not None and (match := FIELD.match(line)) and match[1] in SAVED | SIZES:
            fields.append(match[2])
    return found


def entry(name: str, fields: list[str]) -> str:
    pointers = "".join(f", &{name}::{field}" for field in fields)
    return f"{{typeid({name}), &find_members<{name}{pointers}>}},\n"


def main() -> None:
    header, result = map(Path, sys.argv[1:])
    found = nodes(header.read_text(encoding="utf-8"))
    if len(found) < 500:
        sys.exit(f"{header} has only {len(found)} nodes: its form has changed, and so must this program")
    lines = [entry(name, fields) for name, fields in found.items()]
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
