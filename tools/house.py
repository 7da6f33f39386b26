"""The tasks behind ./run: set-up, build, demo, test, bench, lint, stubs. Needs nothing but Python's own library."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import pythons
from steps import Failed, Step, say

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ROOT / "requirements"
CORE_SITE = BUILD / "core-site"
FAILURES = BUILD / "log" / "failures.txt"

USAGE = """\
./run demo                 compile a model, check it against eager, time it
./run test                 every test; [--full] adds the slow ones, [--asan] runs the core under the sanitizers,
                           and what else is given goes to pytest (then only pytest runs)
./run bench [suite] ...    a benchmark; without a name, the list of them
./run lint [--fix]         ruff, mypy, clang-format
./run build                set up and build only
./run stubs                write python/magneto/_C.pyi anew
"""


# -- set-up -----------------------------------------------------------------------------------------------------------


def set_up() -> None:
    """Makes .venv with what requirements/ names. Costs a few milliseconds when nothing changed."""
    stamp = VENV / "magneto-set-up"
    wanted = requirements_hash()
    if stamp.exists() and stamp.read_text() == wanted and PYTHON.exists():
        return
    make_venv()
    torch = installed_torch()
    if not torch:
        with Step("installing torch (about 200 MB)", BUILD / "log" / "torch.log") as step:
            step.run(pip("install", "-r", REQUIREMENTS / "torch.txt"))
        torch = installed_torch()
    if f"torch=={torch.split('+')[0]}" not in (REQUIREMENTS / "torch.txt").read_text():
        say(f"note: .venv has torch {torch}, not the one of requirements/torch.txt; remove .venv to renew it")
    with Step("installing the tools", BUILD / "log" / "tools.log") as step:
        # The constraint keeps a tool that asks for torch from replacing it.
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
            constraint.write(f"torch=={torch}\n")
            constraint.flush()
            step.run(pip("install", "-r", REQUIREMENTS / "dev.txt", "-c", constraint.name))
        if installed_torch() != torch:
            raise Failed(f"installing the tools replaced torch {torch} by {installed_torch()}")
        shutil.rmtree(CORE_SITE, ignore_errors=True)
        step.run(pip("install", "-r", REQUIREMENTS / "core.txt", "--target", CORE_SITE))
    for folder in VENV.glob("lib/python3*/site-packages"):
        (folder / "magneto.pth").write_text(f"{ROOT / 'python'}\n")
    stamp.write_text(wanted)


def requirements_hash() -> str:
    digest = hashlib.sha256(str(ROOT).encode())
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        digest.update(path.read_bytes())
    if os.environ.get("MAGNETO_PYTHON"):
        digest.update(sys.version.encode())
    return digest.hexdigest()


def make_venv() -> None:
    essentials()
    version = pythons.version_of(PYTHON) if PYTHON.exists() else None
    if version == sys.version_info[:3]:
        return
    with Step(f"making .venv with Python {sys.version.split()[0]}", BUILD / "log" / "venv.log") as step:
        step.run([sys.executable, "-m", "venv", "--clear", VENV])


def essentials() -> None:
    """Debian ships venv, the headers and g++ as packages of their own: fetches the missing ones, or says which."""
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    missing = []
    if not importlib.util.find_spec("ensurepip"):
        missing.append(f"python{minor}-venv")
    if not pythons.has_headers(sys.executable):
        missing.append(f"python{minor}-dev")
    if not shutil.which(os.environ.get("CXX", "c++")):
        missing.append("g++")
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.getuid() != 0 or not shutil.which("apt-get"):
        raise Failed(f"this machine lacks {', '.join(missing)}; on Debian or Ubuntu: sudo {' '.join(command)}")
    with Step(f"installing {', '.join(missing)}", BUILD / "log" / "apt.log") as step:
        step.run(["apt-get", "update"])
        step.run(command, env={"DEBIAN_FRONTEND": "noninteractive"})


def pip(*arguments: object) -> list[object]:
    return [PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments]


def installed_torch() -> str:
    code = "import importlib.metadata as m\ntry: print(m.version('torch'))\nexcept m.PackageNotFoundError: pass"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# -- build ------------------------------------------------------------------------------------------------------------


def build(folder: Path, python: Path, name: str, **options: object) -> None:
    """Configures when the options changed, then builds what changed."""
    nanobind = subprocess.run([PYTHON, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True)
    given = {
        "Python_EXECUTABLE": python,
        "nanobind_DIR": nanobind.stdout.strip(),
        "CMAKE_MAKE_PROGRAM": VENV / "bin" / "ninja",
        **options,
    }
    flags = [f"-D{key}={value}" for key, value in given.items()]
    stamp = folder / "magneto-options"
    wanted = json.dumps([str(ROOT), installed_torch(), sorted(flags)])
    with Step(f"building {name}", BUILD / "log" / f"{folder.name}.log") as step:
        if not stamp.exists() or stamp.read_text() != wanted or not (folder / "build.ninja").exists():
            step.run([VENV / "bin" / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *flags])
            stamp.write_text(wanted)
        step.run([VENV / "bin" / "cmake", "--build", folder, "--parallel", str(jobs())])


def jobs() -> int:
    """One per core, but no more than the memory holds: a source that includes torch takes up to 2 GB."""
    asked = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL")
    if asked:
        return int(asked)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory >> 31))


def build_main() -> None:
    set_up()
    build(BUILD / "main", PYTHON, "magneto")


# -- the tasks --------------------------------------------------------------------------------------------------------


def task_build(arguments: list[str]) -> int:
    build_main()
    return 0


def task_demo(arguments: list[str]) -> int:
    build_main()
    return call([PYTHON, ROOT / "examples" / "demo.py", *arguments])


def task_bench(arguments: list[str]) -> int:
    suites = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py")) if not path.stem.startswith("_")}
    if not arguments or arguments[0] not in suites:
        if arguments:
            say(f"there is no benchmark {arguments[0]!r}")
        for name, path in suites.items():
            say(f"./run bench {name:12} {first_sentence(path)}")
        return 1 if arguments else 0
    build_main()
    return call([PYTHON, suites[arguments[0]], *arguments[1:]])


def first_sentence(path: Path) -> str:
    return path.read_text(encoding="utf-8").lstrip("\"' \n").split("\n")[0].strip("\"' ")


def task_stubs(arguments: list[str]) -> int:
    build_main()
    return call([PYTHON, ROOT / "tools" / "stubs.py", ROOT / "python" / "magneto" / "_C.pyi"])


def task_lint(arguments: list[str]) -> int:
    set_up()
    fix = "--fix" in arguments
    sources = [
        path for folder in ("src", "tests/cpp") for path in sorted((ROOT / folder).rglob("*")) if is_native(path)
    ]
    checks: list[list[object]] = [
        ["ruff", "check", *(["--fix"] if fix else []), "."],
        ["ruff", "format", *([] if fix else ["--check"]), "."],
        ["mypy", "python/magneto"],
        ["clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *sources],
    ]
    failed = []
    for command in checks:
        name = " ".join(str(word) for word in command if not isinstance(word, Path))
        say(f"== {name}")
        if call([VENV / "bin" / str(command[0]), *command[1:]]):
            failed.append(name)
    say(f"lint: failed: {'; '.join(failed)}" if failed else "lint: all clean")
    return 1 if failed else 0


def is_native(path: Path) -> bool:
    return path.suffix in {".c", ".cpp", ".h"}


def task_test(arguments: list[str]) -> int:
    full = [word for word in arguments if word == "--full"]
    given = [word for word in arguments if word not in ("--full", "--asan")]
    set_up()
    FAILURES.unlink(missing_ok=True)
    if "--asan" in arguments:
        return test_sanitized(given)
    build_main()
    if given:
        return call([PYTHON, "-m", "pytest", *full, *given])

    interpreters = pythons.find(first=PYTHON)
    for version, python in interpreters.items():
        if python != PYTHON:
            build(BUILD / f"core-{version}", python, f"the core for Python {version}", MAGNETO_TORCH="OFF")
    failed = []
    for version, python in interpreters.items():
        failed += test_core(version, python, BUILD / ("main" if python == PYTHON else f"core-{version}"), full)
    tested = ", ".join(".".join(map(str, pythons.version_of(python))) for python in interpreters.values())
    say(f"== the core was tested on CPython {tested}")
    say(f"== all other tests, {pythons.describe(PYTHON)}, torch {installed_torch()}")
    threads = {"OMP_NUM_THREADS": "1"}  # there are as many processes as processors
    failed += pytest("pytest", PYTHON, ["tests", "--ignore=tests/core", *side_by_side(), *full], threads)
    return verdict(failed)


def test_core(version: str, python: Path, folder: Path, options: list[str]) -> list[str]:
    """The C++ units and the torch-free tests on one interpreter; the names of what failed."""
    failed = []
    say(f"== C++ units, Python {version}")
    if run_units(folder):
        failed.append(f"the C++ units on Python {version}")
    say(f"== torch-free tests, Python {version}")
    words = ["-q", "tests/core", *side_by_side(), *options]
    return failed + pytest(f"tests/core on Python {version}", python, words, {"PYTHONPATH": str(CORE_SITE)})


def pytest(name: str, python: Path, words: list[object], env: dict[str, str]) -> list[str]:
    """[] if all passed, else [what failed]; tests/conftest.py notes for `verdict` which tests these were."""
    status = call([python, "-m", "pytest", *words], env={**env, "MAGNETO_TEST_FAILURES": str(FAILURES)})
    return [f"{name} (status {status})"] if status else []


def side_by_side() -> list[object]:
    """For pytest: a process for each processor; a file, whose last test may look back at the others, stays in one."""
    return ["-n", jobs(), "--dist", "loadfile"]


def test_sanitized(given: list[str]) -> int:
    folder = BUILD / "asan"
    build(folder, PYTHON, "the core with sanitizers", MAGNETO_TORCH="OFF", MAGNETO_ASAN="ON")
    failed = []
    say("== C++ units, sanitized")
    if run_units(folder):
        failed.append("the C++ units")
    say(f"== torch-free tests, sanitized, on {pythons.describe(PYTHON)}")
    # The build wrote this wrapper: the interpreter with the sanitizers loaded first.
    words = ["-q", *(given or ["tests/core"])]
    failed += pytest("tests/core", folder / "python", words, {"MAGNETO_CORE": str(folder / "magneto")})
    return verdict(failed)


def run_units(folder: Path) -> int:
    """CTest's closing line when all pass, all of its output otherwise."""
    command = [VENV / "bin" / "ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace")
    if result.returncode:
        say(result.stdout + result.stderr)
    else:
        say(next(line for line in result.stdout.splitlines() if "tests passed" in line))
    return result.returncode


def verdict(failed: list[str]) -> int:
    """Silent on success, so that the output ends with the last runner's own summary; else with what failed, and how."""
    if failed:
        if FAILURES.exists():
            say(FAILURES.read_text(encoding="utf-8", errors="replace"))
        say(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def call(command: list[object], env: dict[str, str] | None = None) -> int:
    sys.stdout.flush()
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **(env or {})}, check=False).returncode


def main() -> int:
    tasks = {name[len("task_") :]: task for name, task in globals().items() if name.startswith("task_")}
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name not in tasks:
        print(USAGE, end="", file=sys.stdout if name in ("", "help", "-h", "--help") else sys.stderr)
        return 0 if name in ("", "help", "-h", "--help") else 2
    try:
        return tasks[name](arguments)
    except Failed as failure:
        print(f"\n{failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
