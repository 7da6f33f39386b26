"""The lazy device: when steps end, which graphs are made and found, and what can be seen of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import magneto
import pytest
import torch
from lazy_stories import check, conv_net, count, grid, made_model, numbers, small_model, step, train
from magneto import lazy
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("lazy_device")]


# ---- steps and graphs


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, i: x * (i + 0.5),
        lambda x, i: x + i,
        lambda x, i: torch.add(x, x, alpha=i + 2),
        lambda x, i: x.pow(i + 0.5),
        lambda x, i: x.clamp(max=i + 0.5),
        lambda x, i: torch.full((3,), i + 0.5, device="lazy") + x,
        lambda x, i: x.fill_(i + 0.5),
        lambda x, i: F.leaky_relu(x, i + 0.1),
        lambda x, i: x.lerp(x + 1, i + 0.1),
        lambda x, i: x.addcmul(x, x, value=i + 0.5),
        lambda x, i: F.threshold(x, i + 0.5, 0),
        lambda x, i: torch.where(x > i, x, 0.5 * i),
        lambda x, i: x.masked_fill(x > 1, i + 0.5),
        lambda x, i: torch._foreach_mul([x, x], i + 0.5)[0],
        lambda x, i: torch._foreach_addcdiv([x], [x], [x + 1], [i + 0.5])[0],
        lambda x, i: F.dropout(x, (i + 1) / 20),
    ],
)
def test_numbers_that_change_every_step_make_no_new_graphs(operation: Callable[[Tensor, int], Tensor]) -> None:
    made, results = [], []
    for i in range(8):
        results.append(operation(torch.arange(3.0, device="lazy"), i))
        lazy.mark_step()
        made.append(count("graphs made"))
    assert made[3] == made[-1]


def test_the_numbers_of_each_step_are_its_own() -> None:
    def story(d: str) -> Any:
        results = []
        for i in (0.0, -0.0, 1.0, float("nan"), float("inf"), 2, 3, 1.0, 1):
            x = grid(d, 3)
            results += [x * i, torch.add(x, x, alpha=i), x.pow(i), torch.full_like(x, i), x.lerp(x + 1, float(i))]
            results += [x.long() * i, torch.full((2,), i, device=d)]
            step(d)
        return results

    check(story)


def test_a_repeated_step_is_found() -> None:
    for i in range(6):
        x = torch.full((3,), 2.0, device="lazy")
        y = (x * 3).sum()
        assert y.item() == 18.0
        assert (count("graphs made"), count("graphs found")) == (1, i)


def test_shapes_that_alternate_are_found_again() -> None:
    for i in range(12):
        n = (3, 5, 4)[i % 3]
        assert (torch.ones(n, device="lazy") * 2).sum().item() == 2 * n
    assert (count("graphs made"), count("graphs found")) == (3, 9)


def test_what_lives_at_the_end_of_a_step_decides_its_graph() -> None:
    for keep in (False, True, False, True):
        x = torch.ones(3, device="lazy")
        y = x * 2
        z = y + 1
        if not keep:
            del y
        lazy.mark_step()
        assert z.tolist() == [3.0] * 3
        if keep:
            assert y.tolist() == [2.0] * 3
    assert (count("graphs made"), count("graphs found")) == (2, 2)


def test_nothing_runs_before_a_value_is_needed() -> None:
    x = torch.ones(3, device="lazy")
    for _ in range(10):
        x = x * 2
    assert count("steps") == 0
    assert x[0].item() == 1024.0
    assert (count("steps"), count("operators recorded")) == (1, 12)


def test_reading_what_is_there_ends_no_step() -> None:
    x = torch.ones(3, device="lazy")
    lazy.mark_step()
    y = x + 1
    assert x.tolist() == [1.0] * 3
    assert count("steps") == 1
    assert y.tolist() == [2.0] * 3
    assert count("steps") == 2


def test_an_empty_step_is_none() -> None:
    lazy.mark_step()
    lazy.mark_step("lazy")
    lazy.mark_step(devices=["lazy:0"], wait=False)
    assert count("steps") == 0


@pytest.mark.parametrize("wait", [True, False])
def test_mark_step_and_waiting(wait: bool) -> None:
    x = torch.ones(3, device="lazy") + 1
    lazy.mark_step(wait=wait)
    lazy.wait_device_ops(["lazy"])
    assert count("steps") == 1
    assert x.tolist() == [2.0] * 3 and count("steps") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: lazy.mark_step("cpu"),
        lambda: lazy.mark_step(devices=["lazy", "meta"]),
        lambda: lazy.wait_device_ops(["cuda:0"]),
        lambda: lazy.sync_multi([], ["cpu"]),
        lambda: lazy.sync_multi([torch.ones(1)], []),
        lambda: lazy.get_tensor_id(torch.ones(1)),
        lambda: lazy.get_tensors_text([torch.ones(1)]),
        lambda: lazy.get_graph_hash([torch.ones(1)]),
    ],
)
def test_other_devices_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(magneto.UserError, match="lazy"):
        call()


def test_a_device_with_no_such_name_is_an_error() -> None:
    with pytest.raises((RuntimeError, magneto.UserError)):
        lazy.mark_step("nowhere")


def test_sync_multi_makes_values() -> None:
    x, y = torch.ones(3, device="lazy"), torch.zeros(2, device="lazy")
    lazy.sync_multi([x, y], ["lazy"])
    assert count("steps") == 1
    assert (x.tolist(), y.tolist()) == ([1.0] * 3, [0.0] * 2) and count("steps") == 1


def test_a_long_step_is_cut_at_the_limit() -> None:
    def story(d: str) -> Any:
        x = grid(d, 3)
        for i in range(100):
            x = x * 0.5 + i
        return x

    with magneto.config.patch(lazy_graph_limit=50):
        check(story, 1)
        assert count("steps ended at the limit") == 4
        made = count("graphs made")
        check(story, 3)
        assert count("graphs made") == made


def test_optimizers_end_steps_if_asked_to() -> None:
    for asked, expected in ((True, 3), (False, 0)):
        with magneto.config.patch(lazy_optimizer_steps=asked):
            model = small_model("lazy")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            lazy.reset_metrics()
            for _ in range(3):
                model(torch.ones(1, 3, device="lazy")).sum().backward()
                optimizer.step()
            assert count("steps") == expected


def test_an_optimizer_of_other_devices_ends_no_step() -> None:
    model = small_model("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(3, device="lazy") * 2
    train(model, optimizer, "cpu", 1)
    assert count("steps") == 0
    assert x.tolist() == [2.0] * 3


@pytest.mark.parametrize("runs_beside", [True, False])
def test_steps_run_beside_the_program_or_in_it(runs_beside: bool) -> None:
    with magneto.config.patch(lazy_async=runs_beside):
        check(lambda d: [train(m := small_model(d), torch.optim.AdamW(m.parameters()), d, 5), list(m.parameters())])
        slow = slow_step()
        lazy.mark_step(wait=False)
        before = count_of_runs()
        lazy.wait_device_ops()
        assert count_of_runs() - before == (1 if runs_beside else 0)
        assert slow.shape == (300, 300)


def slow_step() -> Tensor:
    x = torch.ones(300, 300, device="lazy")
    for _ in range(60):
        x = (x @ x).clamp(0, 1)
    return x


def count_of_runs() -> int:
    return int(lazy.metrics_report().split("Metric: execute\n  TotalSamples: ")[1].split()[0])


def test_the_next_steps_are_recorded_while_one_runs() -> None:
    """Writes of later steps wait for reads of earlier ones."""
    results = []
    for i in range(10):
        x = slow_step()
        y = torch.full((300, 300), float(i), device="lazy")
        lazy.mark_step(wait=False)
        total = y + x
        y.zero_()
        lazy.mark_step(wait=False)
        results.append(total.sum() / 90000)
    assert [round(r.item(), 3) for r in results] == [i + 1.0 for i in range(10)]


# ---- looking inside


def test_texts_and_drawings_show_what_was_recorded() -> None:
    x = torch.ones(2, device="lazy")
    lazy.mark_step()
    y, z = (x + 1).relu(), x.sigmoid()
    text = lazy.get_tensors_text([y])
    assert "aten.relu" in text and "aten.add" in text and "sigmoid" not in text
    assert magneto.Graph.parse(lazy.get_tensors_backend([y])).hash == lazy.get_graph_hash([y]).hex()
    dot, svg = lazy.get_tensors_dot([y]), lazy.get_tensors_svg([y])
    assert dot.startswith("digraph") and "relu" in dot
    assert "<svg" in svg and "relu" in svg
    assert count("steps") == 1, "looking ends no step"
    assert (y.tolist(), z[0].item()) == ([2.0, 2.0], torch.ones(1).sigmoid().item())


def test_there_is_nothing_to_see_of_values_that_are_there() -> None:
    x = torch.ones(2, device="lazy") * 2
    lazy.mark_step()
    assert "aten" not in lazy.get_tensors_text([x])


def test_ids_are_those_of_views() -> None:
    x = torch.ones(2, device="lazy")
    assert lazy.get_tensor_id(x) == lazy.get_tensor_id(x.detach()) == lazy.get_tensor_id(x.data)
    assert lazy.get_tensor_id(x) != lazy.get_tensor_id(x[:1])
    assert lazy.get_tensor_id(x) != lazy.get_tensor_id(torch.ones(2, device="lazy"))


HASH = """
import torch, magneto
from magneto import lazy
lazy.init()
{before}
x = torch.ones(2, 3, device="lazy")
lazy.mark_step()
y = (x * {factor}).relu() + x.sum({dim})
print(lazy.get_graph_hash([y]).hex())
"""


def hash_elsewhere(factor: float = 0.5, dim: int = 0, before: str = "") -> str:
    code = HASH.format(factor=factor, dim=dim, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_hashes_are_the_same_in_another_process_and_say_what_is_computed() -> None:
    x = torch.ones(2, 3, device="lazy")
    lazy.mark_step()
    y = (x * 0.5).relu() + x.sum(0)
    mine = lazy.get_graph_hash([y])
    assert isinstance(mine, bytes)
    assert mine.hex() == hash_elsewhere().strip()
    assert mine.hex() == hash_elsewhere(before="torch.ones(7, device='lazy').exp()").strip()
    assert mine.hex() == hash_elsewhere(before="[1 for _ in range(10)]\n\n\n").strip()
    assert lazy.get_graph_hash([y * 1]) != mine
    assert mine != lazy.get_graph_hash([(x * 0.5).relu() + x.sum(1, keepdim=True)])


def test_a_graph_runs_again_on_other_inputs() -> None:
    x = torch.arange(3.0, device="lazy")
    lazy.mark_step()
    y = x * 2 + 1
    ids, inputs = lazy.backend.get_tensors_device_data_node([y])
    key = lazy.get_graph_hash([y])
    assert len(ids) == len(inputs) == len(set(ids))
    assert any(torch.equal(tensor, torch.arange(3.0)) for tensor in inputs)
    (again,) = lazy.backend.run_cached_graph(key, inputs)
    assert again.tolist() == y.tolist() == [1, 3, 5]
    others = [tensor + 1 if tensor.dim() else tensor for tensor in inputs]
    assert lazy.backend.run_cached_graph(key, others)[0].tolist() == [3, 5, 7]
    assert "aten.mul" in lazy.backend.get_latest_computation_graph()


def test_graphs_with_draws_and_writes_run_again() -> None:
    x = torch.zeros(4, device="lazy")
    lazy.mark_step()
    y = x.add_(1) * 2
    key = lazy.get_graph_hash([y])
    _, inputs = lazy.backend.get_tensors_device_data_node([y])
    copies = [tensor.clone() for tensor in inputs]
    assert lazy.backend.run_cached_graph(key, copies)[0].tolist() == [2.0] * 4
    assert (x.tolist(), y.tolist()) == ([1.0] * 4, [2.0] * 4)


def test_a_hash_that_is_unknown_or_forgotten_is_an_error() -> None:
    with pytest.raises(magneto.UserError, match="no graph with the hash 0102"):
        lazy.backend.run_cached_graph(b"\x01\x02", [])
    x = torch.ones(2, device="lazy")
    lazy.mark_step()
    first = lazy.get_graph_hash([x + 1])
    for n in range(lazy.backend.LIMIT):
        lazy.get_graph_hash([torch.ones(n + 1, device="lazy")])
    with pytest.raises(magneto.UserError, match=first.hex()):
        lazy.backend.run_cached_graph(first, [])


def test_forced_operators_run_one_at_a_time_and_are_counted() -> None:
    lazy.set_force_fallback(["aten::mul", "aten::relu"])
    assert lazy.get_force_fallback() == ["aten::mul", "aten::relu"]
    x = torch.ones(2, device="lazy")
    y = (x * 3).relu() + 1
    assert y.tolist() == [4.0, 4.0]
    assert (count("aten::mul"), count("aten::relu")) == (1, 1)
    assert "aten::mul" in lazy.counter_names() and "aten::add" not in lazy.counter_names()
    lazy.set_force_fallback("")
    assert lazy.get_force_fallback() == []
    assert (x * 3).tolist() == [3.0, 3.0] and count("aten::mul") == 1
    lazy.set_force_fallback("aten::mul")
    assert lazy.get_force_fallback() == ["aten::mul"]


def test_forced_draws_are_those_of_the_device() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4, device="lazy").tolist()
    lazy.set_force_fallback(["aten::uniform_", "aten::rand"])
    torch.manual_seed(3)
    assert torch.rand(4, device="lazy").tolist() == expected


def test_operators_with_results_of_unknown_size_are_counted() -> None:
    torch.arange(4, device="lazy").nonzero()
    assert count("aten::nonzero") == 1


def test_training_falls_back_nowhere() -> None:
    for make in (lambda: small_model("lazy"), lambda: made_model(conv_net, "lazy")):
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        shape = (2, 3) if isinstance(model[0], nn.Linear) else (2, 3, 8, 8)
        for _ in range(2):
            optimizer.zero_grad()
            model(numbers("lazy", *shape)).sum().backward()
            optimizer.step()
    assert [name for name in lazy.counter_names() if "::" in name] == []


def test_without_reuse_each_step_is_made() -> None:
    lazy.set_reuse_ir(False)
    for _ in range(3):
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2.0, 2.0]
    assert (count("graphs made"), count("graphs found")) == (3, 0)
    lazy.set_reuse_ir(True)
    for _ in range(3):
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2.0, 2.0]
    assert (count("graphs made"), count("graphs found")) == (4, 2)


def test_cleared_caches_forget_graphs_and_no_values() -> None:
    def once() -> None:
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2.0, 2.0]

    once()
    pending = torch.ones(3, device="lazy") * 4
    lazy.clear_ir_cache()
    assert pending.tolist() == [4.0] * 3
    made = count("graphs made")
    once()
    assert count("graphs made") == made + 1


def test_the_cache_is_dropped_at_its_limit() -> None:
    with magneto.config.patch(lazy_cache_limit=20):
        for n in range(1, 30):
            assert (torch.ones(n, device="lazy") + 1).sum().item() == 2 * n
    assert count("caches dropped") > 0


def test_the_cache_is_dumped(tmp_path: Path) -> None:
    lazy.clear_ir_cache()
    (torch.ones(2, device="lazy") + 1).relu().tolist()
    (torch.ones(2, device="lazy") + 1).sigmoid().tolist()
    for file in (tmp_path / "steps.dot", str(tmp_path / "again.dot")):
        lazy.dump_ir_cache(file)
        text = Path(file).read_text()
        assert text.startswith("digraph") and text.count("aten::ones") == 1
        assert "aten::relu" in text and "aten::sigmoid" in text and text.rstrip().endswith("}")


def test_metrics_are_reported_and_reset() -> None:
    assert lazy.counter_value("steps") is None
    assert lazy.metrics_report() == "" and lazy.counter_names() == []
    for _ in range(3):
        (torch.ones(2, device="lazy") + 1).tolist()
    report = lazy.metrics_report()
    assert "Metric: execute\n  TotalSamples: 3\n" in report
    assert "50%=" in report and "Counter: steps\n  Value: 3\n" in report
    lazy.reset_metrics()
    assert lazy.metrics_report() == ""


def test_frames_are_kept_on_demand() -> None:
    lazy.clear_ir_cache()
    with magneto.config.patch(lazy_frames=True):
        x = torch.ones(2, device="lazy")
        y = in_a_function(x)
        frames = dict(lazy.get_frames())
    (name,) = [name for name in frames if "exp" in name]
    assert "test_lazy_steps.py" in frames[name][0] and "in_a_function" in frames[name][0]
    assert "test_frames_are_kept_on_demand" in frames[name][1]
    assert y.tolist() == x.exp().tolist()
    lazy.clear_ir_cache()
    torch.ones(2, device="lazy")
    assert all(not kept for _, kept in lazy.get_frames())


def in_a_function(x: Tensor) -> Tensor:
    return x.exp()


def test_the_names_of_the_other_module_are_there() -> None:
    from magneto.lazy import _C_compat

    x = torch.ones(2, device="lazy") + 1
    assert "aten.add" in _C_compat._get_tensors_text([x])
    _C_compat._mark_step("lazy", [], True)
    _C_compat._wait_device_ops([])
    assert _C_compat._counter_value("steps") == 1
    _C_compat._sync_multi([x], [], True, True)
    for name in vars(_C_compat):
        if name.startswith("_") and not name.startswith("__"):
            assert callable(getattr(_C_compat, name))


def test_small_settings() -> None:
    assert lazy.get_default_device_type() == "cpu" and lazy.is_initialized()
    before = lazy.get_symbolic_shape_mode()
    lazy.set_symbolic_shape_mode(True)
    assert lazy.get_symbolic_shape_mode() is True
    lazy.set_symbolic_shape_mode(before)
