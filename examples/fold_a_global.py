"""Rewrites functions while they are called: global numbers become constants, guarded against being changed.

    PYTHONPATH=python python examples/fold_a_global.py

Built on the public interface of magneto.eval_frame only.
"""

from __future__ import annotations

import contextlib
import dis
import types
import weakref
from collections.abc import Iterator
from typing import Any

from magneto import eval_frame

SCALE = 3
SHIFT = 0.5


def total(values: list[float]) -> float:
    """The function that is rewritten."""
    result = SHIFT
    for value in values:
        result += value * SCALE
    return result


def folded(code: types.CodeType, constants: dict[str, float]) -> types.CodeType:
    """The same code with LOAD_GLOBAL of these names replaced by LOAD_CONST, byte for byte in the same place."""
    units, consts = bytearray(code.co_code), list(code.co_consts)
    for instruction in dis.get_instructions(code):
        # A call would want one more value on the stack, which the lowest bit says.
        if instruction.opname != "LOAD_GLOBAL" or instruction.argval not in constants or instruction.arg & 1:
            continue
        if instruction.arg > 255 or len(consts) > 255:
            continue
        start = instruction.offset
        units[start : start + 2] = dis.opmap["LOAD_CONST"], len(consts)
        consts.append(constants[instruction.argval])
        for _ in range(eval_frame.py_opcode_caches[instruction.opcode]):
            start += 2
            units[start : start + 2] = dis.opmap["NOP"], 0
    return code.replace(co_code=bytes(units), co_consts=tuple(consts))


class FoldGlobals:
    """The callback: folds what it finds in functions of one module, and lets everything else run as it is."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.log: list[str] = []

    def __call__(self, frame: Any, cache_entry: Any, frame_state: dict[str, Any]) -> eval_frame.GuardedCode | None:
        code, space = frame.f_code, frame.f_globals
        if space.get("__name__") != self.module:
            return None
        constants = {name: space[name] for name in code.co_names if type(space.get(name)) in (int, float)}
        if not constants:
            return None
        self.log.append(f"{code.co_name}: {constants}")
        # Weakly: the check lives as long as the code object, which lives as long as the function.
        function = weakref.ref(frame.f_func)

        def unchanged(f_locals: dict[str, Any]) -> bool:
            alive = function()
            return alive is not None and all(alive.__globals__.get(name) is constants[name] for name in constants)

        return eval_frame.GuardedCode(folded(code, constants), unchanged, trace_annotation=f"{code.co_name}, folded")


@contextlib.contextmanager
def folding(callback: FoldGlobals) -> Iterator[None]:
    """Folds globals in what this thread calls."""
    before = eval_frame.set_eval_frame(callback)
    try:
        yield
    finally:
        eval_frame.set_eval_frame(before)


def main() -> list[float]:
    """Calls `total` before and after a global changes; returns what it gave."""
    global SCALE
    callback = FoldGlobals(__name__)
    results = []
    for scale in (3, 3, 10, 3):
        SCALE = scale
        with folding(callback):
            results.append(total([1.0, 2.0]))
    for line in callback.log:
        print("folded", line)
    print("results", results)
    for entry in eval_frame._debug_get_cache_entry_list(total.__code__):
        print(f"\n{entry.trace_annotation}, for SCALE = {entry.code.co_consts[-1]}:")
        dis.dis(entry.code)
    return results


if __name__ == "__main__":
    main()
