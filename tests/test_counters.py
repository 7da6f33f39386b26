"""magneto.counters: a read-only view of what happened, zero for what did not."""

import collections.abc
import sys

import magneto
import pytest
import torch

pytestmark = pytest.mark.usefixtures("fresh")


def test_calls_captures_and_hits_are_counted():
    compiled = magneto.compile(lambda x: x.relu() + 1)
    for _ in range(3):
        compiled(torch.ones(2))
    stats = magneto.counters["stats"]
    assert (stats["captures"], stats["graphs"], stats["calls"], stats["hits"]) == (1, 1, 3, 2)
    compiled(torch.ones(3))
    assert (stats["captures"], stats["calls"], stats["hits"]) == (2, 4, 2)
    assert sum(magneto.counters["recompile"].values()) == 1


def test_reasons_for_staying_eager_are_counted():
    compiled = magneto.compile(lambda x: (x + 1, sys._getframe()))
    compiled(torch.ones(2))
    reasons = dict(magneto.counters["eager"])
    assert len(reasons) == 1
    assert "looks at frames" in next(iter(reasons))
    # The function adds the place to the reason.
    assert [failure.split(" (")[0] for failure in compiled.failures()] == list(reasons)


def test_missing_groups_are_empty_and_missing_names_zero():
    assert magneto.counters["nothing"]["at all"] == 0
    assert len(magneto.counters["nothing"]) == 0
    assert magneto.counters["stats"]["nothing"] == 0
    assert "nothing" not in magneto.counters
    assert "nothing" not in magneto.counters["stats"]
    assert dict(magneto.counters["nothing"]) == {}


def test_they_are_mappings_that_cannot_be_written():
    assert isinstance(magneto.counters, collections.abc.Mapping)
    assert isinstance(magneto.counters["stats"], collections.abc.Mapping)
    assert not isinstance(magneto.counters["stats"], collections.abc.MutableMapping)
    with pytest.raises(TypeError):
        magneto.counters["stats"]["captures"] = 3
    with pytest.raises(TypeError):
        magneto.counters["stats"] = {}


def test_a_group_is_a_live_view_and_prints_as_a_dict():
    stats = magneto.counters["stats"]
    assert stats["calls"] == 0
    magneto.compile(lambda x: x + 1)(torch.ones(2))
    assert stats["calls"] == 1
    assert repr(stats) == repr(dict(stats))
    assert set(magneto.counters) == {group for group in magneto.counters if group in magneto.counters}
    assert "stats" in repr(magneto.counters)
    magneto.reset()
    assert stats["calls"] == 0
