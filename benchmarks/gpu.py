"""How soon is a model at its full speed on a GPU, and how fast is that? Inference and training under bf16 autocast.

Method: one process and wall-clock time. For each model and contender: eager calls warm the GPU and the libraries up, on
torch's thread of the backward pass and on the program's, since libraries make their plans for each thread; then the
contender's first calls are timed one by one, each waited for. A call is steady if it takes at most a quarter more than
the median of the later ones, and `ready` is the time of all calls up to the last one that is not. Magneto then runs a
CUDA graph of torch's kernels, while it compiles its own beside the program: `final` is the time from the first call
until a graph with these is captured, and steady figures are taken after that. Steady milliseconds are minima of batches
that take turns with eager ones, calls queued without waiting, so that the GPU idles only if the contender lets it. No
contender looks for packed sequences, which would wait for the GPU. torch.compile starts with empty caches.

An inference call takes a batch and gives the model's result. A training step takes a batch, gives the loss, and leaves
gradients in the parameters' `grad`; the optimiser is not part of it. Magneto's graphs come from `magneto.record`, whose
recording is the first call; `record ms` is its time. The contender `compile` is `magneto.compile` around the model's
loss, with `loss.backward()` outside, as torch.compile has it.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import magneto
import torch
from _common import Options, finish, goal, machine, table, versions
from _gpu_models import MODELS
from torch import Tensor, nn

Step = Callable[[Tensor], Any]
FIRST_CALLS = 12
CONTENDERS = ("eager", "magneto", "compile", "default", "reduce-overhead")
MOST_SECONDS = 10  # to wait for kernels
TOLD = (
    "stats",
    "eager",
    "cuda_graphs",
    "cuda_graphs_refused",
    "cuda_kernels",
    "cuda_kernels_refused",
    "compiled_autograd",
    "compiled_autograd_declined",
)
COLUMNS = {
    "case": "model",
    "eager": "eager ms",
    "default": "tc ms",
    "reduce-overhead": "tc r-o ms",
    "magneto": "magneto ms",
    "compile": "m.compile ms",
    "default_ready": "tc ready ms",
    "reduce-overhead_ready": "tc r-o ready ms",
    "magneto_ready": "magneto ready ms",
    "compile_ready": "m.compile ready ms",
    "magneto_final": "magneto final ms",
    "record": "record ms",
    "gain_over_eager": "eager/magneto",
    "over_peer": "magneto/tc r-o",
}


def forward(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return model(x)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return forward(model, x).float().square().mean()


def clear_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def plain_step(model: nn.Module, call: Callable[[Tensor], Tensor], training: bool) -> Step:
    """Eager's step, or that of torch.compile if `call` is compiled."""

    def infer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return call(x)

    def train(x: Tensor) -> Tensor:
        clear_gradients(model)
        value = call(x)
        value.backward()
        return value.detach()

    return train if training else infer


def peer_step(model: nn.Module, mode: str, training: bool) -> Step:
    call = torch.compile(functools.partial(loss if training else forward, model), mode=mode)
    step = plain_step(model, call, training)

    def marked(x: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return step(x)

    return marked


class MagnetoStep:
    """Records at the first call, then runs the graph."""

    def __init__(self, model: nn.Module, training: bool) -> None:
        self.model, self.training = model, training
        self.graph: Any = None
        self.record_ms = 0.0

    def record(self, x: Tensor) -> None:
        start = time.perf_counter()
        function = functools.partial(loss if self.training else forward, self.model)
        with torch.set_grad_enabled(self.training):
            self.graph = magneto.record(function, x, live=True, joint=self.training)
        torch.cuda.synchronize()
        self.record_ms = (time.perf_counter() - start) * 1000
        self.extra = [torch.ones((), device="cuda")] if self.training else []
        trained = [tensor for _, tensor in self.graph.states if tensor.requires_grad] if self.training else []
        used = self.graph.calling.gradients
        self.parameters = [parameter for parameter, has in zip(trained, used, strict=True) if has]

    def __call__(self, x: Tensor) -> Any:
        if self.graph is None:
            return self.record(x)
        value, *gradients = self.graph.run([x, *self.extra])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return value


def timed(step: Step, x: Tensor) -> float:
    """Milliseconds of one call, waited for."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000


def ready(times: list[float]) -> float:
    """The time before the steady state."""
    steady = statistics.median(times[len(times) // 2 :])
    late = [index for index, ms in enumerate(times) if ms > 1.25 * steady and index < len(times) // 2]
    return sum(times[: late[-1] + 1]) if late else 0.0


def until_final(step: Step, x: Tensor) -> float:
    """Milliseconds of calls until the kernels that are being compiled are in use; 0 if there are none."""
    start = time.perf_counter()
    while time.perf_counter() - start < MOST_SECONDS:
        if magneto.counters["cuda_kernels"].get("captured"):
            return (time.perf_counter() - start) * 1000
        if not magneto.counters["cuda_graphs"] or magneto.counters["cuda_kernels_refused"]:
            return 0.0
        timed(step, x)
    return 0.0


def batch_ms(step: Step, x: Tensor, calls: int) -> float:
    """Milliseconds per call of a queue of calls."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000 / calls


def make_step(name: str, model: nn.Module, training: bool) -> Step:
    if name == "eager":
        return as_the_engine_does(plain_step(model, functools.partial(loss if training else forward, model), training))
    if name == "magneto":
        return MagnetoStep(model, training)
    if name == "compile":
        compiled = magneto.compile(loss if training else forward)
        return plain_step(model, functools.partial(compiled, model), training)
    return as_the_engine_does(peer_step(model, name, training))


def as_the_engine_does(step: Step) -> Step:
    """Without the backwards that are compiled by default once a compiled function was trained."""

    def left_alone(x: Tensor) -> Any:
        with magneto.compiled_autograd.disable():
            return step(x)

    return left_alone


def measure(case: str, contenders: list[str], repeats: int, calls: int) -> dict[str, Any]:
    """All figures of one model in one mode: `bert_base inference`."""
    name, mode = case.split()
    training = mode == "training"
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model = model.to("cuda").train(training)
    row: dict[str, Any] = {"case": case, "unit": "ms"}
    eager = make_step("eager", model, training)
    for _ in range(5):
        timed(eager, x)
    with torch.autograd.set_multithreading_enabled(False):
        timed(eager, x)
    for contender in contenders:
        try:
            step = make_step(contender, model, training)
            times = [timed(step, x) for _ in range(FIRST_CALLS)]
        except Exception as error:
            traceback.print_exc()
            row[f"{contender}_error"] = f"{type(error).__name__}: {error}".split("\n")[0]
            continue
        row[f"{contender}_first_calls"] = [round(ms, 3) for ms in times]
        row[f"{contender}_ready"] = ready(times)
        if contender in ("magneto", "compile"):
            later = until_final(step, x)
            row[f"{contender}_final"] = sum(times) + later if later else row[f"{contender}_ready"]
        turns = [(batch_ms(eager, x, calls), batch_ms(step, x, calls)) for _ in range(repeats)]
        row[f"eager_beside_{contender}"] = min(turn[0] for turn in turns)
        row[contender] = min(turn[1] for turn in turns)
        if contender == "compile":
            row["counters"] = {name: dict(magneto.counters[name]) for name in TOLD if name in magneto.counters}
            magneto.reset()
        if isinstance(step, MagnetoStep):
            row["record"], row["ops"] = step.record_ms, len(step.graph)
            row["captured"] = sum(magneto.counters["cuda_graphs"].values()) == 1
            row["refused"] = list(magneto.counters["cuda_graphs_refused"])
            magneto.reset()
        del step
        if contender in ("default", "reduce-overhead"):
            torch._dynamo.reset()
        clear_gradients(model)
        gc.collect()
        torch.cuda.empty_cache()
    if "magneto" in row and "eager" in row:
        row["gain_over_eager"] = row["eager_beside_magneto"] / row["magneto"]
    if "compile" in row:
        row["compile_first"] = row["compile_first_calls"][0]
        if training:
            row["compile_training_ready"] = row["compile_final"]
        if training and "default" in row:
            row["compile_over_default"] = row["compile"] / row["default"]
        if not training and "reduce-overhead" in row:
            row["compile_over_peer"] = row["compile"] / row["reduce-overhead"]
    if "magneto" in row and "reduce-overhead" in row:
        row["over_peer"] = row["magneto"] / row["reduce-overhead"]
    return row


def goals(rows: list[dict[str, Any]]) -> list[Any]:
    def worst(name: str, key: str, bound: float) -> Any:
        return goal(name, [(row[key], row["case"]) for row in rows if key in row], "<=", bound)

    return [
        worst("steady call over that of torch.compile's reduce-overhead", "over_peer", 1.05),
        worst("ms until the steady state", "magneto_final", 100),
        worst("the same with torch's kernels", "magneto_ready", 100),
        worst("steady inference of magneto.compile over torch.compile's reduce-overhead", "compile_over_peer", 1.05),
        worst("first call of magneto.compile in ms", "compile_first", 100),
        worst("steady training of magneto.compile over that of torch.compile", "compile_over_default", 1.0),
        worst("ms until the steady state of magneto.compile in training", "compile_training_ready", 500),
    ]


def kept_rows(path: str | None, cases: list[str]) -> list[dict[str, Any]]:
    """Of an earlier run, what is not measured now."""
    if not path or not Path(path).exists():
        return []
    return [row for row in json.loads(Path(path).read_text())["rows"] if row["case"] not in cases]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Options("gpu", __doc__, repeats=5)
    parser.add_argument("--keep", action="store_true", help="keep the cases in FILE that are not measured now")
    parser.add_argument("--models", default=",".join(MODELS), help="names with commas between them; default: all")
    parser.add_argument("--modes", default="inference,training", help="inference, training or both; default: both")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="default: " + ",".join(CONTENDERS))
    parser.add_argument("--calls", type=int, default=20, help="calls in each turn; default 20")
    options = parser.parse(arguments)
    for given, known in (("models", MODELS), ("modes", ("inference", "training")), ("contenders", CONTENDERS)):
        words = getattr(options, given).split(",")
        unknown = [word for word in words if word not in known]
        if unknown:
            parser.error(f"no such {given}: {', '.join(unknown)}; there are: {', '.join(known)}")
        setattr(options, given, words)
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("there is no GPU here, so there is nothing to measure")
        return 0
    warnings.simplefilter("ignore")
    if {"default", "reduce-overhead"} & set(options.contenders):
        from torch._inductor import config

        config.force_disable_caches = True
    facts = {"gpu": torch.cuda.get_device_name(), **machine(), **versions()}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    cases = [f"{model} {mode}" for model in options.models for mode in options.modes]
    rows = kept_rows(options.json, cases) if options.keep else []
    for case in cases:
        row = measure(case, options.contenders, options.repeats, options.calls)
        rows.append({**row, "gpu": facts["gpu"]})
        print(json.dumps(row), flush=True)
        if options.json:  # a run that is cut short keeps what it has
            finish("gpu", arguments, options.json, rows, goals(rows))
    print(table(COLUMNS, rows))
    print(
        "\nminima of wall-clock time; tc = torch.compile, r-o = reduce-overhead; ready: time until the steady state\n"
    )
    finish("gpu", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
