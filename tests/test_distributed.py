"""Training in several processes: with compiled models, functions and backwards, each step is eager's to the bit."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import tempfile
import time
from pathlib import Path

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

import distributed_worker as worker
from distributed_worker import NOTHING, STEPS, STORIES, TIME_LIMIT, WAYS, WORLD, Told

# The process that forks has loaded torch, but has not run anything.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed.fsdp", "magneto"])

INSIDE = "the module inside"
BY_LAYERS = {"layers compiled, then sharded", "layers sharded, then compiled"}  # not the module, nor anything around it
ONLY_SHARDED = {"sharded", *BY_LAYERS}
CASES = [
    (story, way) for story in STORIES for way in WAYS if way == INSIDE or (way != NOTHING and story not in BY_LAYERS)
]


@functools.cache
def trained(story: str) -> tuple[dict[str, list[Told]], list[int | None], str]:
    """What each process told of each way, as far as they got, their exit codes, and what they said."""
    ways = [NOTHING, *(way for its_story, way in CASES if its_story == story)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [FORKS.Process(target=worker.work, args=(rank, folder, story, ways)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        end = time.monotonic() + TIME_LIMIT
        while any(process.is_alive() for process in processes) and time.monotonic() < end:
            time.sleep(0.01)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
            process.join()
        outputs = [worker.output_file(folder, rank) for rank in range(WORLD)]
        said = [file.read_text() for file in outputs if file.exists()]
        found = {}
        for way in ways:
            files = [worker.told_file(folder, rank, way) for rank in range(WORLD)]
            if all(file.exists() for file in files):
                found[way] = [pickle.loads(file.read_bytes()) for file in files]
        return found, codes, "\n".join(said)


def told(story: str, way: str) -> list[Told]:
    """By each process."""
    found, codes, said = trained(story)
    if way not in found:
        pytest.fail(f"exit codes {codes}; None is one that took too long\n{said}", pytrace=False)
    return found[way]


@pytest.mark.parametrize("story, way", CASES)
def test_each_step_equals_eager(story: str, way: str) -> None:
    for expected, actual in zip(told(story, NOTHING), told(story, way), strict=True):
        for index, (was, now) in enumerate(zip(expected.steps, actual.steps, strict=True)):
            assert now == was, f"step {index}"


@pytest.mark.parametrize("story", STORIES)
def test_processes_end_well(story: str) -> None:
    _, codes, said = trained(story)
    assert codes == [0] * WORLD, said


@pytest.mark.parametrize("story", STORIES)
def test_processes_have_their_own_data_and_learn_from_each_other(story: str) -> None:
    """Otherwise equal steps would prove nothing."""
    first, second = (each.steps for each in told(story, NOTHING))
    assert len(first) == STEPS
    assert all(one.loss != other.loss for one, other in zip(first, second, strict=True))
    if story not in ONLY_SHARDED:
        assert first[-1].parameters == second[-1].parameters
    assert first[0].parameters != first[-1].parameters


@pytest.mark.parametrize("way", WAYS)
def test_a_bucket_is_reduced_while_gradients_are_still_missing(way: str) -> None:
    for each in told("buckets", way):
        for step in each.steps[1:]:  # after the first, torch puts the buckets in the order of gradients
            kinds = [kind for kind, _ in step.order]
            assert kinds.count("bucket") == worker.DEPTH
            assert kinds.index("bucket") < kinds.index("gradient", kinds.index("bucket"))


@pytest.mark.parametrize("story", [story for story in STORIES if story not in ONLY_SHARDED | {"unused parameters"}])
def test_a_module_inside_the_wrapper_is_captured_once(story: str) -> None:
    for each in told(story, INSIDE):
        assert each.counters["stats"] | {"captures": 1, "hits": STEPS - 1} == each.counters["stats"]


@pytest.mark.parametrize("way", ["the wrapper", "a function that takes the loss", "forward and backward"])
@pytest.mark.parametrize("story", ["mlp", "encoder"])
def test_calls_around_the_wrapper_are_compiled_after_some_steps(story: str, way: str) -> None:
    for each in told(story, way):
        assert each.counters["stats"]["hits"] >= 5


@pytest.mark.parametrize("way", [way for way in WAYS if "backward" in way and way != "forward and backward"])
@pytest.mark.parametrize("story", [story for story in STORIES if story not in BY_LAYERS])
def test_a_compiled_backward_is_found_again_in_spite_of_the_hooks_that_reduce(story: str, way: str) -> None:
    for each in told(story, way):
        assert each.counters["compiled_autograd"]["hits"] >= STEPS - 2
