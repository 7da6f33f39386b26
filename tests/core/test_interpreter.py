"""Our interpreter gives what CPython gives: result or exception, on the watched call and on the calls after it."""

import dis
import types

import pytest

from core import worlds

pytestmark = worlds.needs_capture

FILES = sorted(worlds.PROGRAMS.glob("*.py"))
CALLS = 3


def all_programs() -> list[pytest.param]:
    return [
        pytest.param(file, name, id=f"{file.stem}-{name}")
        for file in FILES
        for name in worlds.load(file).program.programs
    ]


@pytest.mark.parametrize("file, name", all_programs())
def test_every_call_is_as_in_plain_python(file, name):
    plain, ours = (worlds.load(file).program.programs[name] for _ in range(2))
    compiled = worlds.watched(ours.function)
    raised = False
    for call in range(CALLS):
        expected, actual = plain.run(), ours.run(compiled)
        assert actual == expected, f"call {call + 1}"
        raised |= expected[0] == "raised"
    check_state(plain, compiled, raised)


def check_state(program, compiled, raised):
    """It was compiled; or it raised, or was left to CPython for the reason that the program names, and for no other."""
    reasons = list(compiled.failures())
    if program.eager is not None:
        assert not worlds.is_whole(compiled)
        assert any(part in reason for reason in reasons for part in program.eager.split("|")), reasons
    elif program.left is not None:
        assert compiled.state() == "compiled"
        assert all(any(part in reason for part in program.left.split("|")) for reason in reasons), reasons
        assert reasons and "cut:" in compiled.variants()[0]["program"]
    elif raised:
        assert all(reason.startswith("the call raised") for reason in reasons), reasons
    else:
        assert compiled.state() == "compiled", reasons
        assert compiled.variants()[0]["hits"] == CALLS - 1
        assert not reasons


# Instructions that no function contains, or that the compiler never emits for one.
NEVER_IN_FUNCTIONS = {
    "CACHE",
    "ENTER_EXECUTOR",
    "EXIT_INIT_CHECK",
    "IMPORT_STAR",
    "INTERPRETER_EXIT",
    "LOAD_FROM_DICT_OR_GLOBALS",  # in annotations of generic classes, which CPython 3.11 cannot read
    "PRINT_EXPR",
    "RESERVED",
}


def is_real(name: str, opcode: int) -> bool:
    """Neither of the compiler's own nor put in place of another by sys.monitoring."""
    return opcode < 256 and not name.startswith("INSTRUMENTED_")


def opcodes_of(code: types.CodeType) -> set[str]:
    found = {instruction.opname for instruction in dis.get_instructions(code)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= opcodes_of(constant)
    return found


def test_the_programs_contain_every_instruction():
    found: set[str] = set()
    for file in FILES:
        found |= opcodes_of(compile(file.read_text(encoding="utf-8"), str(file), "exec"))
        for program in worlds.load(file).program.programs.values():
            found |= opcodes_of(program.function.__code__)
    real = {name for name, opcode in dis.opmap.items() if is_real(name, opcode)}
    assert real - found - NEVER_IN_FUNCTIONS == set()


def test_there_are_enough_programs():
    assert sum(len(worlds.load(file).program.programs) for file in FILES) >= 200
