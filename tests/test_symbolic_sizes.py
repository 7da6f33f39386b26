"""Symbolic sizes in Python: what torch.SymInt computes, what it assumes, and what a recorder sees of it."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(os.environ.get("MAGNETO_CORE") or Path(__file__).resolve().parent.parent / "python" / "magneto")
torch.ops.load_library(FOLDER / "_sizes.so")
sizes = torch.ops.magneto_sizes


@pytest.fixture
def s0() -> Any:
    """x.size(0), 8 in the recorded call."""
    sizes.reset()
    return sizes.size(8, "x", 0)


@pytest.fixture
def s1(s0: Any) -> Any:
    """x.size(1), 6 in the recorded call."""
    return sizes.size(6, "x", 1)


COMPUTED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda a, b: a * 2, "2*s0"),
    (lambda a, b: 2 * a + b - 1, "2*s0 + s1 - 1"),
    (lambda a, b: a * b // b, "s0"),
    (lambda a, b: 100 // a, "100 // s0"),
    (lambda a, b: -a % 3, "2*s0 % 3"),
    (lambda a, b: a / 2, "float(s0) / 2.0"),
    (lambda a, b: a**2, "s0*s0"),
    (lambda a, b: a**-0.5, "float(s0)**(-0.5)"),
    (lambda a, b: a * 0.5, "float(s0)*0.5"),
    (lambda a, b: torch.sym_max(a, b), "max(s0, s1)"),
    (lambda a, b: torch.sym_min(a, 3), "min(3, s0)"),
    (lambda a, b: torch.sym_float(a), "float(s0)"),
    (lambda a, b: math.floor(a / 3), "floor(float(s0) / 3.0)"),
    (lambda a, b: math.ceil(a / 3), "ceil(float(s0) / 3.0)"),
]


@pytest.mark.parametrize(("compute", "text"), COMPUTED, ids=[text for _, text in COMPUTED])
def test_arithmetic_stays_symbolic_and_assumes_nothing(compute: Any, text: str, s0: Any, s1: Any):
    assert str(compute(s0, s1)) == text
    assert sizes.seen_number(compute(s0, s1)) == text
    assert sizes.guards() == []
    assert sizes.guards_in_words() == ["x.size(0) >= 2", "x.size(1) >= 2"]


@pytest.mark.parametrize("compute", [compute for compute, _ in COMPUTED], ids=[text for _, text in COMPUTED])
def test_the_numbers_of_the_recorded_call_are_python_s(compute: Any, s0: Any, s1: Any):
    found, expected = compute(s0, s1), compute(8, 6)
    assert (float(found) if isinstance(expected, float) else int(found)) == expected


def test_a_branch_becomes_a_guard(s0: Any, s1: Any):
    assert s0 % 2 == 0
    assert s0 != s1
    assert sizes.guards() == ["s0 % 2 == 0", "s0 != s1"]
    assert "x.size(0) % 2 == 0" in sizes.guards_in_words()


def test_a_branch_whose_answer_is_known_is_free(s0: Any, s1: Any):
    assert s0 >= 1 and s0 != 1 and s0 * s1 != 0 and s0 != 0 and s0 * 4 == 4 * s0
    assert sizes.guards() == []


def test_a_plain_number_asked_for_is_specialised(s0: Any, s1: Any):
    assert int(s0) == 8
    assert [0] * s1 == [0] * 6
    assert f"{s0 * s1}" == "48"
    assert sizes.guards_in_words() == ["x.size(0) == 8", "x.size(1) == 6"]


def test_operators_see_expressions(s0: Any, s1: Any):
    assert sizes.seen_int(s0 * s1) == "s0*s1"
    assert sizes.seen_int(s0 - s0 + 3) == "plain"
    assert sizes.seen_number(s0 + 1) == "s0 + 1"
    assert sizes.seen_number(s0 / s1) == "float(s0) / float(s1)"
    assert sizes.seen_number(2.5) == "plain"


def test_a_size_that_meets_a_tensor_can_be_recovered(s0: Any, s1: Any):
    x = torch.ones(3)
    numbers = (s0, s0 * 0.5, s0 == s1, 7777777, 7, 0.5, float("nan"), True, torch.tensor(7777777))
    sizes.look(True)
    try:
        for number in numbers:
            assert (x * number) is not None
    finally:
        sizes.look(False)
    assert sizes.take_seen() == ["s0", "float(s0)*0.5", "s0 == s1", *["a tensor"] * 6]
    assert sizes.guards() == []


def test_sizes_of_a_recording_that_is_over_are_plain_numbers(s0: Any):
    sizes.freeze()
    assert s0 > 5 and int(s0) == 8
    assert sizes.guards_in_words() == ["x.size(0) >= 2"]
    sizes.reset()
    other = sizes.size(5, "y", 0)
    assert str(other + s0) == "s0 + 8"
    assert sizes.seen_int(s0) == "plain"


@pytest.mark.parametrize(
    ("layout", "answers"),
    [
        (lambda n, c, h, w: ([n, c, h, w], [c * h * w, h * w, w, 1]), [1, 0, 0, 1]),
        (lambda n, c, h, w: ([n, c, h, w], [c * h * w, 1, c * w, c]), [0, 1, 1, 1]),
        (lambda n, c, h, w: ([n, c, w, h], [c * h * w, h * w, 1, w]), [0, 0, 0, 1]),
        (lambda n, c, h, w: ([n * c, h * w], [h * w, 1]), [1, 0, 0, 1]),
        (lambda n, c, h, w: ([n, 1, h], [h, 77, 1]), [1, 0, 0, 1]),
        (lambda n, c, h, w: ([n, c], [c * 2, 2]), [0, 0, 0, 0]),
    ],
)
def test_layouts_that_follow_from_the_expressions_need_no_guard(layout: Any, answers: list[int]):
    sizes.reset()
    symbols = [sizes.size(hint, "x", i) for i, hint in enumerate((4, 3, 5, 7))]
    assert sizes.layout(*layout(*symbols)) == answers
    assert sizes.guards() == []


def test_a_layout_that_does_not_follow_is_guarded(s0: Any, s1: Any):
    assert sizes.layout([s0, 5], [s1, 1]) == [0, 0, 0, 0]  # x[:, :5]
    assert sizes.guards() == ["s1 != 5"]


E = torch.empty
NUMBER = torch.tensor


@pytest.mark.parametrize(
    ("recorded", "guards", "wanted", "given", "answer"),
    [
        ([E(8, 4)], [], "s0*4", [E(5, 4)], "20"),
        ([E(8, 4)], [], "s0*4", [E(5, 3)], "x0.size(1) is 3, expected 4"),
        ([E(8, 4)], [], "s0", [E(1, 4)], "x0.size(0) >= 2 does not hold: x0.size(0) is 1"),
        ([E(8, 4)], [], "s0", [E(4)], "x0 has 1 dimensions, expected 2"),
        ([E(8, 4)], [], "s0", [E(4, 6).t()], "x0.stride(0) is 1, expected 4"),
        ([E(8, 6, 4)], [], "s1", [E(8, 12, 4)[:, :6]], "x0.stride(0) is 48, expected 4*x0.size(1) = 24"),
        ([E(8, 4)], ["s0 % 2 == 0"], "s0 // 2", [E(6, 4)], "3"),
        ([E(8, 4)], ["s0 % 2 == 0"], "s0", [E(7, 4)], "x0.size(0) % 2 == 0 does not hold: x0.size(0) is 7"),
        ([E(8, 4), E(8, 4)], ["s0 == s1"], "s1", [E(3, 4), E(3, 4)], "3"),
        (
            [E(8, 4), E(8, 4)],
            ["s0 == s1"],
            "s0",
            [E(3, 4), E(5, 4)],
            "x0.size(0) == x1.size(0) does not hold: x0.size(0) is 3, x1.size(0) is 5",
        ),
        ([E(8, 1)], [], "s0", [E(8, 2)[:, :1]], "x0.stride(0) is 2, expected 1"),
        ([E(1, 4)], [], "4", [E(2, 4)], "x0.size(0) is 2, expected 1"),
        ([E(8, 0)], [], "s0", [E(0, 3).t().expand(3, 0)], "3"),
        ([NUMBER(3)], [], "s0 + 1", [NUMBER(9)], "10"),
        ([NUMBER(3)], ["s0 <= 5"], "s0 + 1", [NUMBER(9)], "x0 <= 5 does not hold: x0 is 9"),
    ],
)
def test_a_run_binds_the_sizes_of_its_inputs_or_says_what_does_not_fit(
    recorded: Any, guards: list[str], wanted: str, given: Any, answer: str
):
    assert sizes.bind(recorded, guards, wanted, given) == answer
