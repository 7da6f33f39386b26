"""Exits: the programs of the feature tests are left at every cut, in two ways, and nobody notices.

Before the guards behind the cut are looked at (`leave_at_cut`), and after they held and all checks of the stretch were
made (`diverge_at_cut`). So that there are cuts everywhere, a call of an unknown function that does nothing is put before
every statement, or behind every operand, where the stack is in use.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import test_cuts, test_effects, test_interpreter, worlds
from core.effects import EFFECTS

pytestmark = worlds.needs_capture

CALLS = 8  # so many captures, in parts, come before programs that run
WAYS = ("leave_at_cut", "diverge_at_cut")
# Whose only cut raises, or whose programs have no part behind the cut that is run again in so few calls.
NEVER_LEFT = {
    "callbacks_that_raise",
    "a_body_that_raises",
    "a_name_that_a_body_does_not_have",
    "in_a_generator_and_raises",
    "raises",
    "raised_and_handled",
    "changes_what_decides",
    "star_and_keywords_in_a_callee",
    "attribute_of_a_class",
    "attribute_in_a_slot",
    "container_dict_del",
    "container_dict_ior",
    "container_set_ior",
    "container_sort_with_c_key",
    "container_map_with_c_function",
    "iterator_in_membership",
}
Play = Callable[[], tuple[Any, list[Any]]]


def sweep(name: str, play: Play, expected: list[Any], most: int) -> None:
    """`play` gives a compiled function and what its calls gave; at most so many of its cuts are left."""
    compiled, story = play()
    assert story == expected
    count = max((variant["program"].count("cut:") for variant in compiled.variants()), default=0)
    places = range(1, count + 1) if count <= most else sorted({1 + i * (count - 1) // (most - 1) for i in range(most)})
    with worlds.counted() as counts:
        for way, at in itertools.product(WAYS, places):
            with worlds.settings(**{way: at}):
                _, story = play()
            assert story == expected, f"{way} = {at} of {count}"
    assert counts["exits"] > 0 or not count or name in NEVER_LEFT


# -- cuts everywhere --------------------------------------------------------------------------------------------------


def pause(at: ast.expr | ast.stmt) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name("pause", ast.Load()), [], []), at)


class Statements(ast.NodeTransformer):
    """pause() before every statement of a function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        for child in ast.walk(node):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(child, name, None)
                if isinstance(block, list) and not isinstance(child, ast.ClassDef):
                    setattr(child, name, [line for statement in block for line in self.with_pause(statement)])
        return node

    @staticmethod
    def with_pause(statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.Global, ast.Nonlocal)) or hasattr(statement, "paused"):
            return [statement]
        statement.paused = True  # type: ignore[attr-defined]
        before = ast.copy_location(ast.Expr(pause(statement)), statement)
        before.paused = True  # type: ignore[attr-defined]
        return [before, statement]


class Operands(ast.NodeTransformer):
    """(operand, pause())[0] in the place of operands."""

    @staticmethod
    def behind(value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Starred):
            return value
        both = ast.copy_location(ast.Tuple([value, pause(value)], ast.Load()), value)
        index = ast.copy_location(ast.Constant(0), value)
        return ast.copy_location(ast.Subscript(both, index, ast.Load()), value)

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        node.left, node.right = self.behind(node.left), self.behind(node.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id == "super"):
            node.args = [self.behind(arg) for arg in node.args]
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        self.generic_visit(node)
        if node.value:
            node.value = self.behind(node.value)
        return node

    def visit_List(self, node: ast.List) -> ast.List:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.elts = [self.behind(item) for item in node.elts]
        return node


@functools.cache
def with_pauses(file: Path, where: type[ast.NodeTransformer]) -> types.CodeType:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    # The decorators and the other lines of the module run once, as they are.
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            decorators, node.decorator_list = node.decorator_list, []
            where().visit(node)
            node.decorator_list = decorators
    return compile(ast.fix_missing_locations(copy.deepcopy(tree)), str(file), "exec")


def load(code: types.CodeType) -> dict[str, Any]:
    module = types.ModuleType("world_with_pauses")
    module.__dict__["pause"] = __import__("time").perf_counter_ns
    sys.modules[module.__name__] = module  # dataclasses and enums look their module up
    try:
        exec(code, module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__["program"].programs


def leave_everywhere(file: Path, name: str, where: type[ast.NodeTransformer], most: int) -> None:
    code = with_pauses(file, where)
    plain = load(code)[name]
    expected = [plain.run() for _ in range(CALLS)]

    def play() -> tuple[Any, list[Any]]:
        program = load(code)[name]
        compiled = worlds.watched(program.function)
        return compiled, [program.run(compiled) for _ in range(CALLS)]

    sweep(name, play, expected, most)


@pytest.mark.parametrize("where", [Statements, Operands])
@pytest.mark.parametrize("file, name", test_interpreter.all_programs())
def test_a_program_can_be_left_anywhere(file, name, where):
    leave_everywhere(file, name, where, most=3)


@pytest.mark.full
@pytest.mark.parametrize("where", [Statements, Operands])
@pytest.mark.parametrize("file, name", test_interpreter.all_programs())
def test_a_program_can_be_left_everywhere(file, name, where):
    leave_everywhere(file, name, where, most=1000)


# -- the cuts that are there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", test_cuts.CASES)
def test_a_case_with_cuts_can_be_left_at_each(name):
    case = test_cuts.CASES[name]
    _, expected = test_cuts.play(case, compiled=False)

    def play():
        world, story = test_cuts.play(case, compiled=True)
        return world.compiled, story

    sweep(name, play, expected, most=1000)


@pytest.mark.parametrize("name", EFFECTS)
def test_a_case_with_effects_can_be_left_at_each_cut(name):
    _, expected = test_effects.play(EFFECTS[name], compiled=False)

    def play():
        world, story = test_effects.play(EFFECTS[name], compiled=True)
        return world.compiled, story

    sweep(name, play, expected, most=1000)


def test_there_is_something_to_leave():
    """The cuts that are put into programs are found there, before most of their statements."""
    cuts = []
    for file, name in [parameters.values for parameters in test_interpreter.all_programs()][::8]:
        program = load(with_pauses(file, Statements))[name]
        compiled = worlds.watched(program.function)
        for _ in range(CALLS):
            program.run(compiled)
        cuts.append(max((variant["program"].count("cut:") for variant in compiled.variants()), default=0))
    assert sum(map(bool, cuts)) > 0.9 * len(cuts)
    assert sum(cuts) > 3 * len(cuts)
