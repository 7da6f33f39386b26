"""The rules of the house: independence, layers, opening sentences, no traces of one machine, commands that exist."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NATIVE = {".c", ".cpp", ".h"}
TEXT = NATIVE | {".py", ".pyi", ".md", ".txt", ".toml", ".cmake", ".in", ".sh", ".yml", ".yaml", ".json", ""}

# Top to bottom; a folder may include its own layer and the ones below.
LAYERS = [
    {"python"},
    {"frame", "autograd", "lazy"},
    {"trace"},
    {"program", "guard"},
    {"compile"},
    {"codegen"},
    {"record"},
    {"graph"},
    {"runtime"},
    {"cpython"},
]
# (file, included folder) -> why this one may look up.
ALLOWED_UPWARD = {
    ("runtime/executor.h", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/replay.h", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/replay.cpp", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/cuda_replay.h", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/direct_kernels.h", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/direct_views.h", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/direct_views.cpp", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/kept_results.h", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/kept_results.cpp", "graph"): "an executable is made from a graph, and runtime/ is where executables live",
    ("runtime/number_casts.h", "graph"): "what an operator computes in is found in the graph",
    ("runtime/undo.h", "graph"): "what a run changes is found in the graph that it runs",
    ("runtime/undo.cpp", "graph"): "what a run changes is found in the graph that it runs",
}

MADE_BY_THE_BUILD = {"autograd/node_members.inc"}

PEER = re.compile(
    r"(?<![\w.])torch\.(_dynamo|_C\._dynamo|_functorch|_inductor|compile|_lazy)\b"
    r"|from torch(\._C)? import .*\b(_dynamo|_functorch|_inductor|compile|_lazy)\b"
    r"|\btorch::lazy\b|torch/csrc/lazy"
)
# The one product file that may name a peer: the optional adapter backend.
ADAPTER = re.compile(r"^python/magneto/backends/inductor\.py$")


def tracked() -> list[Path]:
    """Every file of the project: what git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def text_files() -> list[Path]:
    return [path for path in tracked() if path.suffix in TEXT]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def product_files() -> list[Path]:
    found = [path for path in tracked() if name(path).startswith(("src/", "python/"))]
    assert len(found) > 20
    return found


def without_comments(path: Path) -> list[str]:
    """Comments and docstrings may compare; code may not call."""
    text = path.read_text(encoding="utf-8")
    blank = lambda match: "\n" * match.group().count("\n")  # noqa: E731
    if path.suffix in NATIVE:
        text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
        return [re.sub(r"//.*", "", line) for line in text.splitlines()]
    text = re.sub(r'""".*?"""', blank, text, flags=re.S)
    return [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]


def test_the_product_calls_none_of_the_peers():
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in product_files()
        if not ADAPTER.match(name(path))
        for number, line in enumerate(without_comments(path), 1)
        if PEER.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_peer_search_finds_uses_and_ignores_comments(tmp_path: Path):
    source = tmp_path / "x.py"
    source.write_text('"""torch.compile"""\nf = torch.compile(f)  # x\ntorch.compiler.f()  # torch._dynamo\n')
    assert [bool(PEER.search(line)) for line in without_comments(source)] == [False, True, False]
    assert PEER.search("from torch import nn, _dynamo")
    assert PEER.search("torch::lazy::Node* node;")


def rank(folder: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if folder in layer)


def test_a_layer_includes_only_its_own_and_lower_ones():
    wrong, used = [], set()
    for path in product_files():
        if path.suffix not in NATIVE or not name(path).startswith("src/"):
            continue
        inside = path.relative_to(ROOT / "src")
        for number, line in enumerate(lines(path), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            included = match.group(1)
            folder = included.split("/")[0]
            if included in MADE_BY_THE_BUILD:
                continue
            if not (ROOT / "src" / included).exists():
                if "/" in included and (ROOT / "src" / folder).is_dir():
                    wrong.append(f"{name(path)}:{number}: {included} does not exist")
                elif not included.startswith("internal/"):
                    wrong.append(f"{name(path)}:{number}: {included} is not written from src/ on")
            elif rank(folder) < rank(inside.parts[0]):
                if (inside.as_posix(), folder) in ALLOWED_UPWARD:
                    used.add((inside.as_posix(), folder))
                else:
                    wrong.append(f"{name(path)}:{number}: {inside.parts[0]} may not include {included}")
    assert not wrong, "\n".join(wrong)
    assert used == set(ALLOWED_UPWARD), "an exception that nothing needs any more"


def test_cpython_versions_are_told_apart_in_one_place_only():
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in product_files()
        if path.suffix in NATIVE and not name(path).startswith("src/cpython/")
        for number, line in enumerate(without_comments(path), 1)
        if re.search(r"^\s*#\s*(el)?if.*\bPY_(VERSION|MINOR)", line) or re.search(r"\bPy_BUILD_CORE\b", line)
    ]
    assert not found, "\n".join(found)


OPENINGS = {".h": "//", ".c": "//", ".cpp": "//", ".py": '"""', ".sh": "#", ".cmake": "#", ".toml": "#", ".in": "#"}


def test_a_file_opens_with_a_sentence_that_says_what_it_is_for():
    wrong = []
    for path in text_files():
        opening = OPENINGS.get(path.suffix, "#" if name(path) in ("run", "CMakeLists.txt", ".ci/run") else None)
        if opening is None or not path.read_text(encoding="utf-8").strip():
            continue
        first = next(line for line in lines(path)[:3] if line.strip() and not line.startswith("#!"))
        if not first.startswith(opening) or len(first.strip('/"# ').split()) < 3:
            wrong.append(f"{name(path)}: {first}")
    assert not wrong, "\n".join(wrong)


def test_no_file_holds_a_path_of_one_machine():
    machine = re.compile(r"(?<![\w./~-])/(work|root|home|Users|opt|mnt)/\w|(?<![\w./~-])/tmp/\w|[A-Z]:\\\\Users")
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in text_files()
        if path != Path(__file__)
        for number, line in enumerate(lines(path), 1)
        if machine.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_source_is_too_long():
    long = [f"{name(path)}: {len(lines(path))} lines" for path in product_files() if path.suffix in NATIVE | {".py"}]
    long = [text for text in long if int(text.split()[-2]) > 1000]
    assert not long, "\n".join(long)


def documents() -> list[Path]:
    found = [path for path in tracked() if path.suffix == ".md"]
    assert ROOT / "README.md" in found
    return found


def test_the_commands_that_the_documents_show_exist():
    help_text = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True, check=True).stdout
    tasks = set(re.findall(r"^\./run (\w+)", help_text, flags=re.M))
    assert {"demo", "test", "bench", "lint"} <= tasks
    wrong = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        for task, argument in re.findall(r"\./run (\w+)(?: (\w+))?", text):
            if task not in tasks:
                wrong.append(f"{name(path)}: ./run {task}")
            if task == "bench" and argument and not (ROOT / "benchmarks" / f"{argument}.py").exists():
                wrong.append(f"{name(path)}: ./run bench {argument}")
    assert not wrong, "\n".join(wrong)


def test_the_links_between_documents_lead_somewhere():
    wrong = [
        f"{name(path)}: {target}"
        for path in documents()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not wrong, "\n".join(wrong)


def test_an_unknown_task_is_refused_with_the_list():
    result = subprocess.run([ROOT / "run", "dance"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "./run test" in result.stderr


def test_continuous_integration_runs_the_tests():
    assert re.search(r'exec .*/run" test\s*$', (ROOT / ".ci" / "run").read_text())


@pytest.mark.full
def test_pip_makes_a_wheel_that_holds_the_package_and_its_modules(tmp_path: Path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path, ROOT]
    subprocess.run([str(word) for word in command], check=True)
    (wheel,) = tmp_path.glob("magneto-*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    for wanted in (r"magneto/__init__\.py", r"magneto/_C\.[^/]*so", r"magneto/_core\.[^/]*so", r"magneto/py\.typed"):
        assert sum(bool(re.fullmatch(wanted, file)) for file in held) == 1, f"{wanted} in {held}"
