# Written by `./run stubs` from the built module.
"""The native part of Magneto."""

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Sequence,
    Set
)
import os
from types import CodeType, FrameType
from typing import Any, overload

import torch
import torch.fx
import torch.nn


class UserError(ValueError):
    pass

class InternalError(RuntimeError):
    pass

class CompiledFunction:
    """A function that is compiled by its second call."""

    def __repr__(self) -> str: ...

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str = ...,
        whole: bool = ...,
        backend: Callable[..., Any] | None = ...,
        guard_export: Callable[[list[str]], object] | None = ...,
        guard_fail: Callable[[str], object] | None = ...,
        dynamic: bool | None = ...,
    ) -> None: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...

    def variants(self) -> list[dict[str, Any]]:
        """What was compiled, most recently used first."""

    def failures(self) -> dict[str, int]:
        """Why captures failed: reason -> count."""

    def misses(self) -> dict[str, int]:
        """Why calls were captured again: reason -> count."""

    def breaks(self) -> dict[str, int]:
        """Why programs are in several parts: reason -> count."""

    def state(self) -> str:
        """'new', 'compiled' or 'eager'."""

    def reset(self) -> None:
        """Forget everything that was compiled or counted."""

    def again(self, fn: Callable[..., Any], /) -> CompiledFunction:
        """Compiles another function in the same way."""

    def __reduce__(self) -> str: ...

    def guard_ns(self, repeats: int, /, *args: Any, **kwargs: Any) -> float:
        """Nanoseconds per check of the guards of the variant that fits."""

    def guard_ns_after_change(self, repeats: int, /, *args: Any, **kwargs: Any) -> float:
        """As guard_ns, if a dict that has nothing to do with the call is changed before each check."""

    fn: Callable[..., Any]

    @property
    def name(self) -> str: ...

    @property
    def whole(self) -> bool: ...

def is_compiling() -> bool:
    """Whether this thread is watching a call."""

def graph_break(msg: str = ...) -> None:
    """Cuts a compiled program in two where it is called, and does nothing else. `msg` is the reason that is told."""

class ScopedFunction:
    """
    A function that runs eagerly ('eager'), unwatched ('skip') or without capturing anything new ('run').
    """

    def __repr__(self) -> str: ...

    def __init__(self, fn: Callable[..., Any], scope: str) -> None: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...

    def again(self, fn: Callable[..., Any], /) -> ScopedFunction:
        """Scopes another function in the same way."""

    def __reduce__(self) -> str: ...

    fn: Callable[..., Any]

    @property
    def scope(self) -> str: ...

def counters() -> dict[str, dict[str, int]]:
    """What happened, as group -> name -> count."""

def count(group: str, name: str) -> None: ...

def reset_counters() -> None:
    """Sets the counters to zero and forgets the times."""

def compile_times() -> dict[str, list[float]]:
    """By phase, the seconds that each compilation took."""

def set_stance(stance: str) -> str:
    """Returns the stance before."""

def set_rule(function: object, rule: str) -> None:
    """
    What watched calls do when they meet the function: 'allow', 'disallow', 'aside', 'forbid', 'constant' or 'none'.
    """

def set_compile_callback(callback: object | None) -> None:
    """
    Calls callback(starts, name) before and after each compilation; None: nobody.
    """

def settings() -> list[tuple[str, str, bool | int | str]]:
    """All settings, as (name, what it does, default)."""

def get_setting(name: str) -> bool | int | str: ...

def set_setting(name: str, value: bool | int | str) -> None: ...

def supported() -> str:
    """Empty if calls can be captured on this Python; otherwise why not."""

def hook_installed() -> bool:
    """Whether Python frames pass through Magneto right now."""

def everywhere(mode: str) -> None:
    """
    'watch': all Python code of the process runs in Magneto's interpreter; 'capture': every function is compiled by its second call; 'off': neither.
    """

class CaptureScope:
    """Every function that is called inside it is captured."""

    def __init__(self, whole: bool, backend: object | None, guard_export: object | None, guard_fail: object | None, skipped: Sequence[str], kept: Sequence[str], dynamic: object | None = None) -> None: ...

    def enter(self) -> int:
        """
        Of this thread, which must keep the scope alive until it leaves it; returns what to leave to.
        """

    @staticmethod
    def leave(outer: int) -> None: ...

    def clear(self) -> None:
        """Forgets everything that was compiled."""

def why_no_frame_hook() -> str:
    """Empty if frames can be hooked on this Python; else why not."""

class VectorUInt8:
    @overload
    def __init__(self) -> None:
        """Default constructor"""

    @overload
    def __init__(self, arg: VectorUInt8, /) -> None:
        """Copy constructor"""

    @overload
    def __init__(self, arg: Iterable[int], /) -> None:
        """Construct from an iterable object"""

    def __len__(self) -> int: ...

    def __bool__(self) -> bool:
        """Check whether the vector is nonempty"""

    def __repr__(self) -> str: ...

    def __iter__(self) -> Iterator[int]: ...

    @overload
    def __getitem__(self, arg: int, /) -> int: ...

    @overload
    def __getitem__(self, arg: slice, /) -> VectorUInt8: ...

    def clear(self) -> None:
        """Remove all items from list."""

    def append(self, arg: int, /) -> None:
        """Append ``arg`` to the end of the list."""

    def insert(self, arg0: int, arg1: int, /) -> None:
        """Insert object ``arg1`` before index ``arg0``."""

    def pop(self, index: int = -1) -> int:
        """Remove and return item at ``index`` (default last)."""

    def extend(self, arg: VectorUInt8, /) -> None:
        """Extend ``self`` by appending elements from ``arg``."""

    @overload
    def __setitem__(self, arg0: int, arg1: int, /) -> None: ...

    @overload
    def __setitem__(self, arg0: slice, arg1: VectorUInt8, /) -> None: ...

    @overload
    def __delitem__(self, arg: int, /) -> None: ...

    @overload
    def __delitem__(self, arg: slice, /) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __ne__(self, arg: object, /) -> bool: ...

    @overload
    def __contains__(self, arg: int, /) -> bool: ...

    @overload
    def __contains__(self, arg: object, /) -> bool: ...

    def count(self, arg: int, /) -> int:
        """Return number of occurrences of ``arg``."""

    def remove(self, arg: int, /) -> None:
        """Remove first occurrence of ``arg``."""

py_opcode_caches: VectorUInt8 = ...

def set_eval_frame(callback: Callable[..., Any] | bool | None, /) -> Callable[..., Any] | bool | None:
    """Asks callback(frame, cache_entry, frame_state) about the frames of this thread; None turns that off, False only runs what is cached. Returns what was set before."""

def set_guard_error_hook(hook: Callable[..., Any] | None, /) -> None:
    """Calls hook(check_fn, code, f_locals, index, is_last) when a check raises."""

def debug_get_cache_entry_list(code: CodeType, /) -> list[CacheEntry]:
    """The cache entries of a code object, the most recently used first."""

def reset_code(code: CodeType, /) -> None:
    """Forgets everything about a code object: cache entries, frame_state, and that it is skipped."""

def skip_code(code: CodeType, /) -> None:
    """Lets a code object run as it is from now on, and drops its cache entries."""

def unsupported(obj1: object, obj2: object, /) -> Any:
    """Returns obj2. A C function that no compiler knows, to test graph breaks with."""

class CacheEntry:
    """New code for a code object, and its check."""

    @property
    def check_fn(self) -> Any:
        """Called with the variables of a frame: whether it may run `code`."""

    @property
    def code(self) -> CodeType | None:
        """The new code, or None once the entry is invalid."""

    @property
    def next(self) -> CacheEntry | None:
        """The next entry of the same code object, or None."""

    @property
    def compile_id(self) -> Any:
        """What the guarded code said, or None."""

    @property
    def original(self) -> CodeType | None:
        """The code that `code` stands in for, or None once that is gone."""

    @property
    def trace_annotation(self) -> str:
        """The name of its region in profiles."""

    @property
    def backend(self) -> Any:
        """Whose callback made it."""

    @property
    def extra_state(self) -> ExtraState | None:
        """The _ExtraState that it belongs to, or None."""

class ExtraState:
    """The cache of a code object."""

    def invalidate(self, cache_entry: CacheEntry, check_fn: object = None, /) -> None:
        """Takes the entry out of the cache; a frame that runs its code goes on."""

class InterpreterFrame:
    """A frame that is about to run, or a caller of it."""

    @property
    def f_func(self) -> Any:
        """The function."""

    @property
    def f_globals(self) -> dict[str, Any]:
        """The global variables."""

    @property
    def f_builtins(self) -> dict[str, Any]:
        """The builtins."""

    @property
    def f_locals(self) -> Any:
        """A dict of the arguments and free variables; in a class body or module, the namespace."""

    @property
    def f_code(self) -> CodeType:
        """The code object."""

    @property
    def f_lasti(self) -> int:
        """The last instruction, as in frame objects: -1 if the frame has not started."""

    @property
    def f_lineno(self) -> int:
        """The line number."""

    @property
    def f_back(self) -> FrameType | None:
        """The frame object of the caller, or None."""

    @property
    def frame_obj(self) -> FrameType | None:
        """The frame object, or None if there is none yet."""

    @property
    def previous(self) -> InterpreterFrame | None:
        """The caller as such a view, or None."""

    @property
    def closure(self) -> tuple[Any, ...]:
        """The cells of the free variables."""

class GuardManager:
    """A place that guards look at; made by a RootGuardManager."""

    @property
    def source(self) -> str:
        """How it is called in messages."""

    def __repr__(self) -> str: ...

    def getattr_manager(self, name: str) -> GuardManager:
        """
        An attribute, as inspect.getattr_static finds it; slots give their value. Properties are not called.
        """

    def getitem_manager(self, key: object | None) -> GuardManager:
        """An item of a list or tuple by index, of a dict by key."""

    def dict_getitem_manager(self, key: object | None) -> GuardManager:
        """An item of a dict, also under a negative key."""

    def type_manager(self) -> GuardManager:
        """Its class."""

    def len_manager(self) -> GuardManager:
        """How many items it has, an int."""

    def keys_manager(self) -> GuardManager:
        """The keys of a dict, a tuple."""

    def tensor_property_manager(self, name: str) -> GuardManager:
        """Metadata of a tensor, such as 'dtype' or 'shape' (a tuple)."""

    def add_identity_guard(self, object: object | None) -> None:
        """
        It is this object (numbers and strings: an equal one of the same type). What can be referenced weakly is not mistaken for another one after its death.
        """

    def add_weak_identity_guard(self, object: object | None) -> None:
        """
        It is this object, which can be referenced weakly; fails once the object is gone.
        """

    def add_type_guard(self, type: object) -> None:
        """Its class is exactly this one."""

    def add_equals_guard(self, value: object | None) -> None:
        """It equals this constant and is of the same type; floats to the bit."""

    def add_truth_guard(self, value: bool) -> None:
        """It is true, or false, if that can be told without running code."""

    def add_none_guard(self, is_none: bool = True) -> None:
        """It is None, or is not."""

    def add_length_guard(self, length: int) -> None:
        """A container, str or bytes has this length."""

    def add_keys_guard(self, keys: object) -> None:
        """A dict has these keys in this order."""

    def add_dict_guard(self, example: dict[Any, Any], keys: Iterable[Any] | None = None) -> None:
        """
        A dict holds under these keys what the example holds; without keys: all of them, in this order.
        """

    def add_type_version_guard(self, type: object) -> None:
        """It is this class, and neither it nor a base of it was changed since."""

    def add_absent_guard(self) -> None:
        """There is nothing here."""

    def add_tensor_guard(self, tensor: object, sizes: object | None = None, strides: object | None = None) -> None:
        """
        It is a tensor of the same class, dtype, device, layout, requires_grad and dispatch keys, and of the same sizes and strides, or of those that are given: a number, or None for any, for each dimension.
        """

class GuardDebugInfo:
    """What check_verbose found."""

    @property
    def result(self) -> bool:
        """Whether all guards hold."""

    @property
    def reason(self) -> str:
        """The check that failed, in words; empty if none did."""

    @property
    def verbose_code_parts(self) -> list[str]: ...

    @property
    def num_guards_executed(self) -> int:
        """How many checks were made."""

    def __bool__(self) -> bool: ...

    def __repr__(self) -> str: ...

class TensorGuards:
    """Whether tensors have the metadata of the first ones and differ."""

    def __init__(self, *tensors: object, dynamic_dims_sizes: Sequence[Any] | None = None, dynamic_dims_strides: Sequence[Any] | None = None) -> None: ...

    def check(self, *tensors: object) -> bool: ...

    def check_verbose(self, *tensors: object, tensor_check_names: Sequence[str]) -> bool | str:
        """True, or the reason as text."""

class GlobalStateGuard:
    """Torch's global and per-thread state, as it is now."""

    def __init__(self) -> None: ...

    def check(self) -> bool:
        """Whether it is unchanged."""

    def reason(self) -> str:
        """What was changed; empty if nothing was."""

def check_type_id(obj: object | None, type_id: int) -> bool:
    """Whether type(obj) is the class of this id."""

def check_obj_id(obj: object | None, obj_id: int) -> bool:
    """Whether obj is the object of this id."""

def dict_version(dict: dict[Any, Any]) -> int:
    """
    A number that differs after the dict was changed (CPython 3.13: unless an attribute of its object was).
    """

def assert_size_stride(tensor: object, size: tuple[int, ...], stride: tuple[int, ...], op_name: str | None = None) -> bool:
    """
    True; raises AssertionError if the tensor has another shape. Strides that address nothing may differ.
    """

class RootGuardManager:
    """
    Guards on the local variables of a frame, on globals and on closures, and on all that these lead to.

    It is a callable (f_locals) -> bool, as magneto.eval_frame wants it. It keeps no guarded object alive.
    """

    def __call__(self, f_locals: dict[str, Any], /) -> bool:
        """Whether all guards hold for these local variables."""

    def check(self, f_locals: dict[str, Any], /) -> bool:
        """Whether all guards hold for these local variables, a dict. Runs no Python code."""

    def local_manager(self, name: str) -> GuardManager:
        """A local variable."""

    def global_manager(self, name: str, owner: object) -> GuardManager:
        """A global variable of a module or of the module of a function."""

    def builtin_manager(self, name: str) -> GuardManager:
        """A builtin."""

    def closure_manager(self, function: object, name: str) -> GuardManager:
        """A free variable of a function."""

    def add_same_object_guard(self, *managers: GuardManager) -> None:
        """All of them are the same object."""

    def add_no_aliasing_guard(self, *managers: GuardManager) -> None:
        """No two of them are the same object."""

    def add_global_state_guard(self) -> None:
        """Torch's global and per-thread state is what it is now."""

    def check_verbose(self, f_locals: object) -> GuardDebugInfo:
        """The same as check, slower, with the reason."""

class GraphValue:
    """A tensor of a graph."""

    @property
    def id(self) -> int:
        """Its number in the text of the graph."""

    @property
    def role(self) -> str:
        """
        'argument', 'parameter', 'buffer', 'constant', 'result', or 'size': a number, not a tensor.
        """

    @property
    def name(self) -> str:
        """As in the program; may be empty."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """As it was when the value came into being."""

    @property
    def stride(self) -> tuple[int, ...]: ...

    @property
    def memory(self) -> int:
        """
        The number of the first value that lives in the same memory; its own if none does.
        """

    @property
    def hint(self) -> int | float | None:
        """Of a size: the number in the recorded call."""

    @property
    def is_number(self) -> bool:
        """Whether it is a constant that was a Python number."""

    def __deepcopy__(self, memo: object) -> GraphValue: ...

    @property
    def type(self) -> str:
        """
        'f32[s0, 8]': dtype, sizes, strides unless contiguous, device unless the CPU. Of a size: 's0'.
        """

    def __repr__(self) -> str: ...

class GraphSize:
    """A number that depends on the sizes of the inputs."""

    @property
    def hint(self) -> bool | int | float:
        """The number in the recorded call."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class GraphOp:
    """A call of an operator in a graph."""

    @property
    def name(self) -> str:
        """'aten::add'"""

    @property
    def overload(self) -> str:
        """'Tensor'; empty for the default one."""

    @property
    def arguments(self) -> list[object]:
        """
        All of them, in the order of the schema; tensors as GraphValue, symbolic sizes as GraphSize.
        """

    @property
    def results(self) -> list[object]:
        """In the order of the schema; None for what is no tensor."""

    @property
    def line(self) -> tuple[str, int, str] | None:
        """File, line number and function that called it, if that is known."""

    @property
    def grad_mode(self) -> bool:
        """In force when it ran."""

    @property
    def below_inplace(self) -> bool:
        """
        Ran where version counters and views are not kept, as inside an autograd kernel.
        """

    @property
    def autocast(self) -> bool:
        """Runs with the autocast of the caller."""

    @property
    def inference(self) -> bool:
        """Runs in inference mode, also for a caller that is not in it."""

    @property
    def derives(self) -> bool:
        """Autograd takes part in each run."""

    @property
    def shared_cast(self) -> bool:
        """
        Is autocast's cast of a parameter, which all in the block of autocast share.
        """

    @property
    def expected(self) -> bool | int | float | complex | None:
        """The number that it must return, if anything relies on that."""

    def __repr__(self) -> str: ...

class Graph:
    """
    Straight-line tensor work: values, and calls of ATen operators in order.

    Keeps its state (parameters and buffers) alive and uses it by reference.
    """

    @staticmethod
    def parse(text: str, states: Iterable[torch.Tensor] | dict[str, torch.Tensor] | None = None, constants: Iterable[torch.Tensor] | None = None) -> Graph:
        """
        The graph that `text` describes: the inverse of `.text`.

        states: the tensors of its parameters and buffers, in order or by name; without them it cannot run.
        constants: the tensors of those constants that are written without contents, in order.
        """

    @property
    def text(self) -> str:
        """The graph as text that `parse` reads."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __len__(self) -> int: ...

    @property
    def hash(self) -> str:
        """
        Equal for graphs that do the same work, in every process: operators, arguments, values, constants; not names, source lines or numbers of values.
        """

    def to_dot(self) -> str:
        """A drawing for Graphviz."""

    def to_svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """A drawing, also written to `path`."""

    def to_fx(self) -> torch.fx.GraphModule:
        """
        A runnable module of ATen operators that shares the state.

        The operators are those below autograd, so run it under torch.no_grad(); a kernel that asks for the grad mode, as the LSTM of the CPU does, sees that of the caller. Each node has `tensor_meta`, the values of the graph under `magneto`, and the source line as `stack_trace` in its meta.
        """

    @staticmethod
    def from_fx(module: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor] | None = None) -> Graph:
        """
        The graph of a module of ATen operators, whose state it shares.

        What the values are is taken from a run on copies of `example_inputs` or, without these, from the meta of the nodes: `magneto`, as to_fx leaves it, or `val`.
        """

    def verify(self) -> None:
        """Raises InternalError if the graph means nothing."""

    def functional(self) -> Graph:
        """
        The same work without writes: no value ever changes, up to the edge, where inputs and state take their new contents.

        UserError: an operator has no functional partner.
        """

    @property
    def edge(self) -> int:
        """
        The index of the first operator that writes; of a functional form, where its edge begins.
        """

    @property
    def is_functional(self) -> bool:
        """
        Whether nothing is written before the edge, and there nothing but inputs and state, once each.
        """

    def run(self, inputs: Sequence[torch.Tensor | int]) -> list[Any]:
        """
        Runs the operators below autograd, after checking that the inputs are what the graph expects.
        """

    def __call__(self, *args: object, **kwargs: object) -> object:
        """
        Calls it like the function that it was recorded from; otherwise with its inputs, as `run`.
        """

    @property
    def calling(self) -> object:
        """
        How arguments become inputs, and outputs the result; see magneto.recording.
        """

    @calling.setter
    def calling(self, calling: object, /) -> None: ...

    @property
    def inputs(self) -> list[GraphValue]:
        """The tensors and sizes that `run` takes."""

    @property
    def states(self) -> list[tuple[str, torch.Tensor | None]]:
        """Parameters and buffers, with their names."""

    @property
    def state_values(self) -> list[GraphValue]:
        """What operators name `states` by."""

    @property
    def constants(self) -> list[torch.Tensor]:
        """Tensors whose contents belong to the graph; not to be written."""

    @property
    def constant_values(self) -> list[GraphValue]:
        """What operators name `constants` by."""

    @property
    def ops(self) -> list[GraphOp]:
        """The operators, in order."""

    @property
    def outputs(self) -> list[GraphValue]:
        """What `run` returns."""

    @property
    def symbols(self) -> list[tuple[str, int, int, int | None, int | None]]:
        """
        Sizes that may differ from run to run: name, input, dimension or -1 if the input is the size itself, smallest and largest number.
        """

    @property
    def guards(self) -> list[str]:
        """What is assumed of the symbols, in the names of the inputs."""

class Recording:
    """A recording of the operators that run on this thread."""

    def __init__(self, live: bool, module: torch.nn.Module | None, name_state: Callable[[torch.Tensor], str | None]) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def input(self, tensor: torch.Tensor, name: str, dynamic: Sequence[tuple[int, str, int, int | None]]) -> torch.Tensor:
        """Adds an argument; gives the tensor to call the program with."""

    def size(self, number: int, name: str, symbol: str, least: int | None, greatest: int | None) -> torch.SymInt | int:
        """
        Adds an integer argument that runs may change; gives the number to call the program with.
        """

    def gradient(self, output: torch.Tensor, name: str) -> torch.Tensor:
        """
        Adds the gradient of an output as an input; gives the tensor to start the backward with.
        """

    def gradients(self, outputs: list[torch.Tensor], tangents: list[torch.Tensor], asked: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
        """Runs the backward; None where torch's engine has to."""

    def output(self, tensor: torch.Tensor) -> None: ...

    def output_size(self, number: torch.SymInt | torch.SymFloat | torch.SymBool) -> None: ...

    def states(self) -> list[torch.Tensor]:
        """The tensors that were met and are not arguments."""

    def check(self) -> None:
        """Raises what the recording has refused, if anything."""

    def finish(self) -> Graph:
        """Stops, and gives the graph."""

def set_autograd_compiler(factory: object | None, dynamic: bool | None) -> None:
    """
    For this thread. None: nothing is said; False: off; True: native; otherwise a factory of compilers, kept alive by the caller.
    """

def set_autograd_logger(logger: object | None) -> None: ...

def clear_autograd_cache() -> None: ...

def is_autograd_cache_empty() -> bool: ...

def lazy_init(backing: str) -> None: ...

def lazy_exists() -> bool: ...

def lazy_backing() -> str: ...

def lazy_end_step(wait: bool) -> None: ...

def lazy_wait() -> None: ...

def lazy_stop() -> None: ...

def lazy_seed(seed: int) -> None: ...

def lazy_random_state() -> object: ...

def lazy_set_random_state(state: object) -> None: ...

def lazy_pending(tensors: object | None) -> object: ...

def lazy_latest() -> object: ...

def lazy_recent() -> list[object]: ...

def lazy_tensor_id(tensor: object) -> int: ...

def lazy_frames() -> list[tuple[str, list[str]]]: ...

def lazy_counters() -> dict[str, int]: ...

def lazy_timers() -> dict[str, tuple[int, float, list[float]]]: ...

def lazy_clear_metrics() -> None: ...

def lazy_cache_dot() -> str: ...

def lazy_clear_cache() -> None: ...

def lazy_set_reuse(on: bool) -> None: ...

def lazy_forced() -> set[str]: ...

def lazy_set_forced(names: Set[str]) -> None: ...
