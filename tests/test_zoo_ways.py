"""Ways of calling and programs written by hand: compiled equals eager, bit by bit, and what became of each is told."""

from __future__ import annotations

import collections
import logging
import warnings
from collections.abc import Callable, Iterator

import magneto
import pytest
from zoo import compare, harness, models, ways

# Shape and seed of each call: a capture, the same shape again, other shapes, and back.
CALLS = ((0, 0), (0, 1), (1, 2), (1, 3), (0, 4), (2, 5), (2, 6), (1, 7))
GENERATE_CALLS = ((0, 0), (0, 1), (1, 2), (2, 3))

pytestmark = pytest.mark.usefixtures("fresh")
reports: dict[str, harness.Report] = {}


def sample() -> list[str]:
    return ways.names() if harness.FULL else ways.sample()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", sample())
def test_compiled_equals_eager(name: str) -> None:
    eager, case = ways.get(name), ways.get(name)
    case.compile(magneto.compile)
    for variant, seed in GENERATE_CALLS if "generate" in name else CALLS:
        expected = compare.outcome(eager, (variant, seed), {}, eager.module)
        actual = compare.outcome(case, (variant, seed), {}, case.module)
        assert expected.error is None
        found = compare.outcome_difference(expected, actual)
        assert found is None, f"shape {variant}, seed {seed}: {found}"
    reports[name] = harness.report(case.compiled, lambda: case(0, 8))


def test_the_cases_do_what_their_names_say() -> None:
    """Labels give a loss, all outputs are there, a cache grows, and as many tokens are generated as asked for."""
    if not models.has_transformers():
        pytest.skip("without transformers there are only the programs written by hand")
    (result, _), (padded, _) = ways.get("bert/labels")(0, 0), ways.get("bert/padded")(0, 0)
    assert result.loss.item() > 0
    assert compare.difference(padded.logits, result.logits) is not None
    result, given = ways.get("llama/outputs")(0, 0)
    assert len(result.hidden_states) == 3
    assert [tuple(weights.shape) for weights in result.attentions] == [(2, 4, 16, 16)] * 2
    (_, second), _ = ways.get("llama/cache")(0, 0)
    assert second.logits.shape[1] == 1
    assert second.past_key_values.get_seq_length() == 17
    (tokens, logits), given = ways.get("llama/generate")(0, 0)
    assert tokens.shape[1] - given["input_ids"].shape[1] == len(logits) == ways.NEW_TOKENS
    assert len({name.partition("/")[0] for name in ways.names() if "/" in name}) >= 50


def test_nothing_stays_eager(record_property: Callable[[str, object], None]) -> None:
    """Runs last: what was compiled, what stayed eager, and where programs are cut, with the reasons."""
    if set(reports) != set(sample()):
        pytest.skip("only a part of the cases was run")
    outcomes = collections.Counter(report.outcome for report in reports.values())
    lines = [f"ways: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}"]
    for name, report in sorted(reports.items()):
        if report.outcome not in ("steady", "not called") or report.graphs > 1:
            lines.append(f"  {name}: {report.outcome}, graphs: {report.graphs}")
            lines += [f"      {reason}" for reason in report.why if harness.FULL]
    record_property("told", "\n".join(lines))
    assert not {name for name, report in reports.items() if report.outcome == "eager"}
    assert all(reports[name].outcome == "not called" for name in reports if name.endswith("generate_module"))
