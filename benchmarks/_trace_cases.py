"""The plain-Python functions that `./run bench trace` measures; each case makes a world of its own."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

READS = "reads"  # reads much state, and does nothing else: the whole call is guards
SMALL = "small"  # the same with little state: what any call through C costs is most of it
WORK = "work"  # effects, results to build, unknown calls: some of it is left to do in each call
EAGER = "eager"  # what does not pay, or cannot be compiled
WATCH = "watch"  # long enough to tell what watching costs


class Call(NamedTuple):
    """What is called again and again."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})
    varying: Sequence[Any] = ()  # passed in turn, before the others


class Case(NamedTuple):
    name: str
    kind: str
    make: Callable[[], Call]


cases: list[Case] = []


def case(name: str, kind: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    def add(make: Callable[[], Call]) -> Callable[[], Call]:
        cases.append(Case(name, kind, make))
        return make

    return add


# -- state ------------------------------------------------------------------------------------------------------------


@dataclass
class Attention:
    heads: int = 12
    size: int = 768
    dropout: float = 0.1
    window: int | None = None


@dataclass
class Config:
    layers: int = 12
    attention: Attention = field(default_factory=Attention)
    activation: str = "gelu"
    norm: str = "layer"
    use_cache: bool = True
    training: bool = False
    extra: dict[str, Any] = field(default_factory=lambda: {"scale": 0.5, "bias": True, "rope": {"base": 10000}})

    @property
    def head_size(self) -> int:
        return self.attention.size // self.attention.heads

    @property
    def is_causal(self) -> bool:
        return self.use_cache and not self.training


class Layered:
    """Looks attributes up like nn.Module: children are found by __getattr__."""

    def __init__(self, name: str, children: dict[str, Layered] | None = None) -> None:
        self._children = children or {}
        self._hooks: dict[int, Callable[..., Any]] = {}
        self.name = name
        self.training = False

    def __getattr__(self, name: str) -> Any:
        children = self.__dict__["_children"]
        if name in children:
            return children[name]
        raise AttributeError(name)

    def __call__(self, mode: str) -> bool:
        if self._hooks:
            raise AssertionError("no hooks are registered")
        return self.forward(mode)

    def forward(self, mode: str) -> bool:
        if self.training or mode == "train":
            return False
        return all(child(mode) for child in self._children.values())


class Block(Layered):
    def __init__(self, name: str) -> None:
        super().__init__(name, {part: Layered(f"{name}.{part}") for part in ("query", "key", "value", "out")})

    def forward(self, mode: str) -> bool:
        return self.query(mode) and self.key(mode) and self.value(mode) and self.out(mode)


def tree(blocks: int) -> Layered:
    return Layered("model", {f"block{i}": Block(f"block{i}") for i in range(blocks)})


class Shape:
    kind = "shape"


class Square(Shape):
    kind = "square"


class Circle(Shape):
    kind = "circle"


def relu() -> str:
    return "relu"


def gelu() -> str:
    return "gelu"


REGISTRY: dict[str, Any] = {"relu": relu, "gelu": gelu, "norm": {"layer": Square, "rms": Circle}}
DEFAULTS = {"eps": 1e-5, "affine": True, "device": "cpu", "dtype": "float32", "heads": 12}
VERBOSE, LIMIT, MODE = False, 512, "eval"


# -- state reads only -------------------------------------------------------------------------------------------------


@case("a config object", READS)
def config_object() -> Call:
    def validate(config: Config) -> str | None:
        attention = config.attention
        if config.training or attention.window is not None or not config.use_cache:
            return None
        if attention.size % attention.heads or attention.heads < 1 or config.layers > 100:
            raise ValueError("size must be divisible by heads")
        if config.activation not in ("gelu", "relu") or config.norm not in ("layer", "rms"):
            raise ValueError("unknown activation or norm")
        if not 0 <= attention.dropout < 1 or config.extra["scale"] <= 0 or config.extra["rope"]["base"] < 100:
            raise ValueError("out of range")
        for name in ("bias", "rope", "scale"):
            if name not in config.extra:
                raise ValueError(name)
        return config.activation if config.extra["bias"] and config.norm == "layer" else config.norm

    return Call(validate, (Config(),))


@case("a config in the globals", READS)
def global_config() -> Call:
    def pick(names: tuple[str, ...]) -> Any:
        if VERBOSE or MODE != "eval":
            return LIMIT
        for name in names:
            if name not in DEFAULTS or DEFAULTS[name] is None:
                return MODE
        return DEFAULTS["dtype"] if DEFAULTS["affine"] and DEFAULTS["eps"] < 1 < LIMIT else DEFAULTS["device"]

    return Call(pick, (("eps", "affine", "device", "dtype", "heads"),))


@case("three globals", SMALL)
def globals_() -> Call:
    def choose() -> Any:
        return DEFAULTS["dtype"] if MODE == "eval" and not VERBOSE else LIMIT

    return Call(choose)


@case("an attribute", SMALL)
def attribute() -> Call:
    def is_windowed(config: Config) -> bool:
        return config.attention.window is not None

    return Call(is_windowed, (Config(),))


@case("three nested modules", READS)
def few_modules() -> Call:
    return Call(Layered("outer", {"inner": Layered("inner", {"core": Layered("core")})}), ("eval",))


@case("41 nested modules", READS)
def many_modules() -> Call:
    return Call(tree(8), ("eval",))


@case("a dataclass", READS)
def dataclasses_() -> Call:
    items = [Attention(heads=n, size=64 * n) for n in range(1, 13)]

    def largest(wanted: int) -> int | None:
        best = None
        for item in items:
            if item.heads <= wanted and item.window is None and item.dropout < 0.5:
                best = item
        return best.size if best else None

    return Call(largest, (8,))


@case("dict look-ups", READS)
def dict_lookups() -> Call:
    options = {"optimizer": {"name": "adam", "betas": (0.9, 0.999)}, "schedule": {"warm": 100}, "seed": 0}
    rates = {"weight": 0.1, "bias": 0.2, "norm": 0.0}

    def find(*keys: str) -> Any:
        if options.get("missing") is not None or options["schedule"].get("warm", 0) < 10:
            return None
        for key in keys:
            if key in options or rates.get(key, 1.0) >= 1.0:
                return key
        name = options["optimizer"]["name"]
        return options["optimizer"]["betas"][1] if name == "adam" and "seed" in options else rates["norm"]

    return Call(find, ("weight", "bias", "norm"))


@case("properties", READS)
def properties() -> Call:
    layers = [Config() for _ in range(4)]

    def check() -> bool:
        heads = 0
        for layer in layers:
            if layer.is_causal and layer.head_size == 64:
                heads += 1
        return heads == len(layers)

    return Call(check)


@case("an isinstance chain", READS)
def isinstance_chain() -> Call:
    things = [Square(), Circle(), "text", 3, 2.5, [1], {"a": 1}, None]

    def count() -> int:
        shapes = 0
        for thing in things:
            if isinstance(thing, (int, float)):
                continue
            if isinstance(thing, str) or thing is None:
                continue
            if isinstance(thing, Shape) and hasattr(thing, "kind"):
                shapes += 1
        return shapes

    return Call(count)


@case("a registry", READS)
def registry() -> Call:
    config = Config()

    def make(name: str) -> str:
        made = REGISTRY[name] if name in REGISTRY else REGISTRY["norm"][name]
        if not callable(made):
            raise TypeError(name)
        return made() if made.__name__ == name else made.kind

    def build() -> str:
        act, norm, other = make(config.activation), make(config.norm), make("relu")
        return act if norm == "square" and other == "relu" else norm

    return Call(build)


@case("string keys", READS)
def string_keys() -> Call:
    table = {f"layers.{i}.{name}.weight": i for i in range(4) for name in ("query", "key", "value")}

    def present(prefix: str) -> bool:
        return all(f"{prefix}.{i}.{name}.weight" in table for i in range(4) for name in ("query", "key", "value"))

    return Call(present, ("layers",))


@case("*args, **kwargs", READS)
def pass_through() -> Call:
    config = Config()

    def inner(a: str, b: str, *, scale: float = 1.0, flag: bool = False) -> bool:
        return flag and a != b and scale == 0.5 and config.use_cache

    def middle(*args: Any, **kwargs: Any) -> bool:
        return inner(*args, **kwargs)

    def outer(*args: Any, **kwargs: Any) -> bool:
        return middle(*args, flag=True, **kwargs)

    return Call(outer, ("a", "b"), {"scale": 0.5})


@case("closures", READS)
def closures() -> Call:
    def make(rate: float, names: list[str]) -> Callable[[str], bool]:
        limit = 3

        def keep(name: str) -> bool:
            return rate < 1 and len(names) <= limit and name in names

        def decorated(name: str) -> bool:
            return keep(name) and functools.partial(keep, name)()

        return decorated

    return Call(make(0.5, ["a", "b", "c"]), ("b",))


@case("inheritance and super", READS)
def inheritance() -> Call:
    class Base:
        depth = 1

        def enabled(self, mode: str) -> bool:
            return mode == "eval" and self.depth > 0

    class Middle(Base):
        def enabled(self, mode: str) -> bool:
            return super().enabled(mode) and type(self).depth == 3

    class Leaf(Middle):
        depth = 3

        def enabled(self, mode: str) -> bool:
            return super().enabled(mode) and not hasattr(self, "disabled")

    return Call(Leaf().enabled, ("eval",))


@case("attributes found by exceptions", READS)
def exceptions() -> Call:
    config = SimpleNamespace(name="a")

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            if name == "ready":
                return True
            raise AttributeError(name)

    lazy = Lazy()

    def find() -> str:
        try:
            return lazy.name
        except AttributeError:
            return config.name if lazy.ready else ""

    return Call(find)


# -- work -------------------------------------------------------------------------------------------------------------


@case("a counter", WORK)
def counter() -> Call:
    state = SimpleNamespace(step=0, every=10, log={})

    def tick() -> None:
        state.step += 1
        state.log["last"] = state.step

    return Call(tick)


@case("builds a result", WORK)
def builds() -> Call:
    config = Config()

    def summary() -> dict[str, Any]:
        return {
            "sizes": [config.layers, config.attention.size, config.head_size],
            "names": (config.activation, config.norm),
            "config": Attention(config.layers),
        }

    return Call(summary)


@case("an unknown call", WORK)
def unknown_call() -> Call:
    config = Config()
    data = b"0123456789" * 4

    def checksum() -> Any:
        if config.training or config.attention.window is not None:
            return None
        total = zlib.crc32(data)
        return config.norm if config.is_causal and total else config.activation

    return Call(checksum)


@case("six unknown calls", WORK)
def unknown_calls() -> Call:
    config = Config()
    data = [b"0123456789"] * 6

    def checksum() -> int:
        total = 0
        if config.is_causal:
            for part in data:
                total ^= zlib.crc32(part)
        return total

    return Call(checksum)


@case("arithmetic on state", WORK)
def arithmetic() -> Call:
    state = SimpleNamespace(value=1, total=0)

    def advance() -> int:
        value = state.value
        for _ in range(20):
            value = (value * 5 + 3) % 1024
        state.value = value
        return value

    return Call(advance)


# -- eager ------------------------------------------------------------------------------------------------------------


@case("an argument that seldom repeats", EAGER)
def new_argument() -> Call:
    config = Config()

    def scale(number: int) -> int:
        if config.training or config.attention.window is not None:
            return 0
        return number * config.attention.heads + config.layers

    return Call(scale, varying=range(1000))


@case("a list that it turns round", EAGER)
def turns() -> Call:
    values = list(range(64))

    def turn() -> int:
        values.append(values.pop(0))
        return values[0]

    return Call(turn)


@case("a generator that it resumes", EAGER)
def resumes() -> Call:
    def count() -> Iterator[int]:
        while True:
            yield 1

    counts = count()

    def total() -> int:
        return next(counts) + next(counts) + next(counts)

    return Call(total)


@case("a tiny function", EAGER)
def tiny() -> Call:
    values = itertools.repeat(1)

    def following() -> int:
        return next(values)

    return Call(following)


@case("it raises", EAGER)
def raises() -> Call:
    config = Config()

    def check(name: str) -> str:
        try:
            return fail(name)
        except ValueError:
            raise KeyError(name) from None

    def fail(name: str) -> str:
        if config.activation != name:
            raise ValueError(name)
        return name

    return Call(check, ("relu",))


# -- long calls -------------------------------------------------------------------------------------------------------


@case("201 nested modules", WATCH)
def forest() -> Call:
    return Call(tree(40), ("eval",))


@case("60 configs", WATCH)
def configs() -> Call:
    each = [Config() for _ in range(60)]
    describe = config_object().function

    def describe_all() -> bool:
        return all(map(describe, each))

    return Call(describe_all)


@case("a loop over local numbers", WATCH)
def loop() -> Call:
    def collatz(number: int) -> int:
        steps = 0
        while number != 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            steps += 1
        return steps

    return Call(collatz, (97,))


@case("local containers", WATCH)
def local_containers() -> Call:
    def squares(count: int) -> int:
        table: dict[int, list[int]] = {}
        for i in range(count):
            table.setdefault(i % 7, []).append(i * i)
        return sum(len(row) for row in table.values() if row[0] < 30)

    return Call(squares, (200,))


@case("recursive calls", WATCH)
def recursion() -> Call:
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    return Call(fibonacci, (12,))
