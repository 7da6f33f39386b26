"""Every test of the core compiles functions without tensors, and leaves the settings as they were."""

from collections.abc import Iterator

import pytest

from core import worlds


@pytest.fixture(autouse=True)
def without_tensors() -> Iterator[None]:
    with worlds.settings(without_tensors=True, capture_attempts=3, recapture_limit=1000):
        yield


# What the core is known to get wrong or to leave eager where it need not, by the end of the test's name. A test that
# starts to pass must be taken off this list.
WRONG = "known gap: "
KNOWN_GAPS = {
    "every_call[iterator_as_next]": WRONG + "a special method that is a C callable is called from C unseen",
    "every_call[finaliser_in_a_cycle]": WRONG + "what the collector runs during a watch is taken for part of the call",
    "change[equality_in_added_to_a_set]": WRONG + "the __eq__ of what is added to a new set is not guarded",
    "change[class_in_a_text]": WRONG + "the name that repr shows of a class is not guarded",
    "python[objects-property_without_a_setter]": "gives another reason for staying eager",
    "python[objects-dynamic_attributes]": "is captured once more than needed",
    "python[objects-operators_of_classes]": "stays eager: a slice in the result",
    "python[objects-objects_that_are_finalised]": WRONG + "a finaliser without effects on older objects is folded away",
    "python[variables-unpacking_strings_sets_dicts_and_iterators]": "stays eager: map over a C function",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if worlds._core.supported():
        return
    for item in items:
        for name, reason in KNOWN_GAPS.items():
            if "core" in item.nodeid and item.nodeid.endswith(name):
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
