"""Comparing two results for real equality: values bit by bit, layout, types, structure and aliasing."""

from __future__ import annotations

import copy
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

_ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)


def walk(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Every node of a nested result with its path: containers, plain objects, tensors and atoms, in a fixed order."""
    seen = set() if seen is None else seen
    yield path, value
    if isinstance(value, (*_ATOMS, torch.Tensor, nn.Module)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        for key in value:
            yield from walk(value[key], f"{path}[{key!r}]", seen)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]", seen)
    if hasattr(value, "__dict__") and not callable(value):
        for key, item in vars(value).items():
            yield from walk(item, f"{path}.{key}", seen)


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nested result, in the order of `walk`."""
    return [item for _, item in walk(value) if isinstance(item, torch.Tensor)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor's elements, so that NaN equals itself and -0.0 differs from 0.0."""
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.flatten().view(torch.uint8)


def look(tensor: torch.Tensor, contents: bool = True) -> tuple[Any, ...]:
    """The form of a dense tensor and the bytes of its elements, to be compared."""
    form = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
    return (*form, bits(tensor).numpy().tobytes()) if contents else form


def tensor_difference(expected: torch.Tensor, actual: torch.Tensor) -> str | None:
    """The first property in which two tensors differ, or None."""
    for name in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
        if getattr(expected, name) != getattr(actual, name):
            return f"{name} is {getattr(actual, name)}, eager has {getattr(expected, name)}"
    if expected.is_inference() != actual.is_inference():
        return f"is_inference() is {actual.is_inference()}, eager has {expected.is_inference()}"
    if expected.layout is not torch.strided:
        return None if torch.equal(expected.to_dense(), actual.to_dense()) else "values differ"
    if expected.stride() != actual.stride():
        return f"strides are {actual.stride()}, eager has {expected.stride()}"
    if expected.device.type != "meta" and not torch.equal(bits(expected), bits(actual)):
        if not (expected.is_floating_point() or expected.is_complex()):
            return "values differ"
        return f"values differ by up to {(expected.detach() - actual.detach()).abs().max().item():.3g}"
    return None


def aliasing(value: Any, state: Mapping[int, str]) -> list[tuple[str, int, int, str]]:
    """For each tensor of a result: which earlier one it *is*, whose memory it shares, and which state it shows."""
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    pattern = []
    for path, item in walk(value):
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            index = len(pattern)
            storage = item.untyped_storage()._cdata
            same_object = objects.setdefault(id(item), index)
            same_storage = storages.setdefault(storage, index)
            pattern.append((path, same_object, same_storage, state.get(storage, "")))
    return pattern


def difference(expected: Any, actual: Any) -> str | None:
    """Where two nested results first differ, in words, or None if they are equal."""
    left, right = list(walk(expected)), list(walk(actual))
    for (path, a), (other_path, b) in zip(left, right, strict=False):
        where = f"at result{path}: "
        if path != other_path:
            return f"{where}eager has this part, the compiled result has result{other_path} here"
        if type(a) is not type(b):
            return f"{where}type is {type(b).__qualname__}, eager has {type(a).__qualname__}"
        if isinstance(a, torch.Tensor):
            found = tensor_difference(a, b)
            if found:
                return where + found
        elif isinstance(a, _ATOMS) and a != b and not (a != a and b != b):
            return f"{where}is {b!r}, eager has {a!r}"
        elif isinstance(a, Mapping) and list(a) != list(b):
            return f"{where}keys are {list(b)}, eager has {list(a)}"
        elif isinstance(a, (set, frozenset)) and a != b:
            return f"{where}is {b!r}, eager has {a!r}"
    if len(left) != len(right):
        return f"the compiled result has {len(right)} parts, eager has {len(left)}"
    return None


@dataclass
class Outcome:
    """All that a caller can see of one call: result or exception, arguments afterwards, buffers and randomness."""

    result: Any = None
    error: BaseException | None = None
    arguments: Any = None
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    random: torch.Tensor | None = None
    state: dict[int, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The user's lines of the traceback: function and source line of each frame outside the packages."""
        frames = traceback.extract_tb(self.error.__traceback__) if self.error else []
        return [(frame.name, frame.line or "") for frame in frames if _is_user_file(frame.filename)]


def _is_user_file(filename: str) -> bool:
    parts = filename.replace("\\", "/").split("/")
    return "zoo" in parts or parts[-1].startswith("test_")


def outcome(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None = None
) -> Outcome:
    """Call a function with a fixed seed and note everything that can be seen; the module's buffers are put back."""
    saved = {name: buffer.clone() for name, buffer in module.named_buffers()} if module is not None else {}
    seen = Outcome()
    torch.manual_seed(4321)
    random.seed(4321)
    numpy.random.seed(4321)
    try:
        seen.result = function(*args, **kwargs)
    except Exception as error:  # the kind of error is part of what is compared
        seen.error = error
    seen.random = torch.get_rng_state()
    seen.arguments = (args, kwargs)
    if module is not None:
        seen.buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        named = [*module.named_parameters(), *module.named_buffers()]
        seen.state = {t.untyped_storage()._cdata: name for name, t in named if t.layout is torch.strided}
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in saved and saved[name].shape == buffer.shape and not torch.equal(saved[name], buffer):
                    buffer.copy_(saved[name])
    return seen


def outcome_difference(expected: Outcome, actual: Outcome) -> str | None:
    """Where two calls differ for the caller, in words, or None."""
    if type(expected.error) is not type(actual.error) or str(expected.error) != str(actual.error):
        return f"raised {actual.error!r}, eager raised {expected.error!r}"
    found = difference(expected.result, actual.result)
    if found:
        return found
    found = difference(expected.arguments, actual.arguments)
    if found:
        return f"the arguments afterwards: {found}"
    found = difference(expected.buffers, actual.buffers)
    if found:
        return f"the module's buffers afterwards: {found}"
    if not torch.equal(expected.random, actual.random):
        return "the random number generator stands elsewhere"
    left = aliasing((expected.arguments, expected.result), expected.state)
    right = aliasing((actual.arguments, actual.result), actual.state)
    for a, b in zip(left, right, strict=False):
        if a != b:
            return f"aliasing: (path, same object as, same memory as, state) is {b}, eager has {a}"
    return None


def fresh(tree: Any) -> Any:
    """Other tensors in place of those in a tree, with the same contents, strides and shared memory; they are leaves."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, torch.Tensor] = {}

    def copy_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = new_tensor(value).requires_grad_(value.requires_grad)
        return copies[id(value)]

    def new_tensor(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.detach().clone()
        storage = tensor.untyped_storage()
        own = storages.setdefault(storage._cdata, storage.clone())
        same = torch.empty(0, dtype=tensor.dtype).set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())
        same = torch._conj(same) if tensor.is_conj() else same
        return torch._neg_view(same) if tensor.is_neg() else same

    return pytree.tree_map(copy_of, tree)


def copied(value: Any) -> Any:
    """A deep copy of arguments in which tensors keep their strides and their sharing."""
    return copy.deepcopy(value)


def raised_by(call: Callable[[], Any]) -> BaseException | None:
    """What the call raises, whose kind is part of what is compared."""
    try:
        call()
    except BaseException as error:
        return error
    return None
