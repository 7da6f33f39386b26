"""Faults of the lazy device: what goes wrong while a step runs is told clearly, costs nothing else, and never hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

TIMEOUT = 60
# Each script begins so; it says "done" when it has come to its end.
START = """
import gc, os, signal, sys, threading, time, traceback
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have turned off
import torch, magneto
from magneto import lazy
torch.set_num_threads(1)

def raised(call):
    try:
        call()
    except BaseException as error:
        return error
    return None

def fails(table=None):
    "A value that cannot be computed, recorded at a line that says so."
    table = torch.ones(3, 2, device="lazy") if table is None else table
    return torch.nn.functional.embedding(torch.tensor([7], device="lazy"), table)  # the line that fails

def slow(n=40, size=400):
    x = torch.ones(size, size, device="lazy")
    for _ in range(n):
        x = (x @ x).clamp(0, 1)
    return x

def works():
    assert (torch.ones(3, device="lazy") + 1).tolist() == [2.0] * 3
"""


def run(script: str, init: bool = True, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    code = START + ("lazy.init()\n" if init else "") + textwrap.dedent(script)
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as expired:
            os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipes, too
            pytest.fail(f"hangs; it wrote {expired.stdout!r}, {expired.stderr!r}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def check(script: str, init: bool = True, timeout: float = TIMEOUT) -> str:
    ran = run(textwrap.dedent(script) + "\nprint('done')", init, timeout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("done"), ran.stdout + ran.stderr
    return ran.stdout


# ---- operators that raise when they run

READS = {
    "item": "fails()[0, 0].item()",
    "cpu": "fails().cpu()",
    "print": "repr(fails())",
    "mark_step": "(y := fails(), lazy.mark_step())",
    "wait": "(y := fails(), lazy.mark_step(wait=False), lazy.wait_device_ops())",
    "copy_": "torch.zeros(1, 2).copy_(fails())",
    "sync_multi": "lazy.sync_multi([fails()], [])",
    "later_step": "(y := fails(), lazy.mark_step(wait=False), (y + 1).sum().item())",
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("beside", [True, False])
def test_the_error_names_the_operator_and_the_line_of_the_program(how: str, beside: bool) -> None:
    check(f"""
        magneto.config.lazy_async = {beside}
        error = raised(lambda: {READS[how]})
        assert type(error) is IndexError, repr(error)
        text = str(error)
        assert "index out of range" in text, text
        assert "aten::embedding" in text, text
        assert "<string>:" in text and "in fails" in text, text
        works()
    """)


def test_the_line_is_the_first_that_did_the_same() -> None:
    check("""
        def first(i):
            return torch.arange(3.0, device="lazy").gather(0, torch.tensor([i], device="lazy"))
        def second(i):
            return torch.arange(3.0, device="lazy").gather(0, torch.tensor([i], device="lazy"))
        assert first(1).tolist() == [1.0]
        assert "first recorded at" in (text := str(raised(lambda: second(9).cpu()))) and "in first" in text, text
        lazy.clear_ir_cache()
        assert "in second" in str(raised(lambda: second(9).cpu()))
    """)


def test_values_computed_before_it_are_readable() -> None:
    check("""
        early = torch.ones(3, device="lazy")
        lazy.mark_step()
        before = early + 1
        also = before * 2
        bad = fails()
        after = early + 5
        lazy.mark_step(wait=False)
        assert type(raised(bad.cpu)) is IndexError
        assert early.tolist() == [1.0] * 3
        assert before.tolist() == [2.0] * 3
        assert also.tolist() == [4.0] * 3
        works()
    """)


def test_reading_a_failed_value_raises_each_time() -> None:
    check("""
        bad = fails()
        derived = bad + 1
        errors = [raised(bad.cpu) for _ in range(3)] + [raised(derived.cpu) for _ in range(2)]
        errors += [raised((bad * 2).cpu), raised(lambda: repr(derived))]
        assert all(type(e) is IndexError and "aten::embedding" in str(e) for e in errors), errors
        works()
    """)


def test_the_text_of_an_error_does_not_grow_when_it_is_raised_again() -> None:
    check("""
        bad = fails()
        texts = [str(raised(bad.cpu)) for _ in range(4)]
        assert len(set(texts)) == 1, texts
        assert texts[0].count("aten::embedding") == 1, texts[0]
    """)


def test_an_error_is_told_once_where_nobody_reads_the_value() -> None:
    check("""
        bad = fails()
        lazy.mark_step(wait=False)
        assert type(raised(lazy.wait_device_ops)) is IndexError
        lazy.wait_device_ops()
        lazy.mark_step()
        works()
    """)


def test_an_error_after_a_write_does_not_stop_later_reads() -> None:
    check("""
        state = torch.zeros(3, device="lazy")
        other = torch.ones(3, device="lazy")
        lazy.mark_step()
        state.add_(1)
        bad = fails()
        del bad
        state.add_(1)
        assert type(raised(lazy.mark_step)) is IndexError
        assert other.tolist() == [1.0] * 3
        assert state.tolist() == [1.0] * 3, "as eager, which has made the first write only"
        state.add_(5)
        assert state.tolist() == [6.0] * 3
        works()
    """)


def test_an_error_after_a_write_told_beside_does_not_stop_later_reads() -> None:
    check("""
        state, other = torch.zeros(3, device="lazy"), torch.ones(3, device="lazy")
        lazy.mark_step()
        state.add_(1)
        bad = fails()
        lazy.mark_step(wait=False)
        assert type(raised(lazy.wait_device_ops)) is IndexError
        for _ in range(3):
            assert other.tolist() == [1.0] * 3
            assert state.tolist() == [1.0] * 3
        assert type(raised(bad.cpu)) is IndexError
    """)


def test_training_goes_on_after_a_step_that_failed() -> None:
    """A batch with a wrong index is skipped, as a program does on the CPU."""
    check("""
        def train(device):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 1)).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), 0.1)
            losses = []
            for i in range(8):
                try:
                    optimizer.zero_grad()
                    loss = model(torch.tensor([i % 5 if i != 3 else 99], device=device)).pow(2).sum()
                    loss.item()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                except IndexError:
                    losses.append("failed")
            return losses, [p.tolist() for p in model.parameters()]
        assert train("lazy") == train("cpu")
        assert train("lazy")[0][3] == "failed"
    """)


def test_a_failed_step_of_training_that_nobody_waited_for_is_told_at_the_next_read() -> None:
    check("""
        model = torch.nn.Embedding(5, 4).to("lazy")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        def step(i):
            optimizer.zero_grad()
            loss = model(torch.tensor([i], device="lazy")).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss
        step(1)
        bad = step(99)
        good = step(2)
        error = raised(bad.item)
        assert type(error) is IndexError and "aten::embedding" in str(error), repr(error)
        works()
        model.weight.data.fill_(1)
        assert step(2).item() == 4.0
    """)


def test_an_error_in_one_thread_reaches_the_threads_that_need_the_value() -> None:
    check("""
        bad = fails()
        results = []
        def read():
            results.append(raised(bad.cpu))
        threads = [threading.Thread(target=read) for _ in range(4)]
        [t.start() for t in threads]
        [t.join(20) for t in threads]
        assert [type(r) for r in results] == [IndexError] * 4, results
        works()
    """)


def test_an_error_in_an_operator_that_is_run_alone() -> None:
    check("""
        lazy.set_force_fallback(["aten::embedding"])
        table = torch.ones(3, 2, device="lazy")
        before = table + 1
        assert type(raised(lambda: fails(table))) is IndexError
        assert before.tolist() == [[2.0, 2.0]] * 3
        works()
    """)


def test_an_error_while_steps_wait_behind_it() -> None:
    check("""
        x = slow()
        bad = fails()
        lazy.mark_step(wait=False)
        good = [torch.full((2,), float(i), device="lazy") + 1 for i in range(3)]
        for value in good:
            lazy.mark_step(wait=False)
        needs = bad + 1
        lazy.mark_step(wait=False)
        assert [v.tolist() for v in good] == [[1.0] * 2, [2.0] * 2, [3.0] * 2]
        assert type(raised(needs.cpu)) is IndexError
        works()
    """)


def test_failures_leave_no_memory_behind() -> None:
    check("""
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def cycle():
            big = torch.ones(200_000, device="lazy") * 2
            bad = fails()
            assert raised(bad.cpu) is not None
        for _ in range(20):
            cycle()
        before = resident()
        for _ in range(200):
            cycle()
        gc.collect()
        assert resident() - before < 20 << 20, resident() - before
    """)


def test_a_check_of_the_program_that_fails_while_it_runs() -> None:
    check("""
        bad = torch.linalg.cholesky(-torch.eye(3, device="lazy"))
        error = raised(bad.cpu)
        expected = raised(lambda: torch.linalg.cholesky(-torch.eye(3)))
        assert type(error) is type(expected) and str(expected) in str(error), repr(error)
        works()
    """)


# ---- memory


def test_out_of_memory_is_an_error_and_the_device_goes_on() -> None:
    check("""
        before = torch.ones(3, device="lazy") * 2
        def huge():
            return torch.empty(1 << 50, device="lazy").fill_(1)  # too much
        x = huge()
        error = raised(lambda: x[0].item())
        assert isinstance(error, RuntimeError), repr(error)
        text = str(error)
        assert "memory" in text and "in huge" in text, text
        assert before.tolist() == [2.0] * 3
        del x
        works()
    """)


def test_out_of_memory_beside_the_program() -> None:
    check("""
        x = torch.empty(1 << 50, device="lazy").fill_(1)
        lazy.mark_step(wait=False)
        works()
        assert "memory" in str(raised(x.cpu))
        works()
    """)


def test_sizes_that_overflow_are_an_error_at_once() -> None:
    check("""
        assert raised(lambda: torch.empty(1 << 62, 8, device="lazy")) is not None
        works()
    """)


# ---- signals

INTERRUPTED = """
def interrupt_after(seconds):
    thread = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    thread.daemon = True
    thread.start()

once = time.time(); slow(20).sum().item(); once = (time.time() - once) / 20
n = int(8 / once)
print("n", n, flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    [
        "(x := slow(n), lazy.mark_step(wait=False), x.sum().item())",
        "(x := slow(n), lazy.mark_step(wait=False), lazy.wait_device_ops())",
        "slow(n).sum().item()",
        "(x := slow(n), lazy.mark_step())",
    ],
    ids=["read_beside", "wait_beside", "read", "mark_step"],
)
def test_an_interrupt_is_answered_while_a_long_step_runs(wait: str) -> None:
    check(f"""
{INTERRUPTED}
start = time.time()
interrupt_after(1.0)
error = raised(lambda: {wait})
took = time.time() - start
assert type(error) is KeyboardInterrupt, repr(error)
assert took < 4, f"answered after {{took:.1f}} s"
works()
assert slow(2).sum().item() == 160000.0
""")


def test_an_interrupted_value_can_be_read_later() -> None:
    check(f"""
{INTERRUPTED}
x = slow(n // 3)
lazy.mark_step(wait=False)
interrupt_after(0.3)
assert type(raised(x.cpu)) is KeyboardInterrupt
assert x.sum().item() == 160000.0
works()
""")


def test_another_signal_is_handled_while_waiting() -> None:
    check(f"""
{INTERRUPTED}
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(time.time()))
x = slow(n // 3)
lazy.mark_step(wait=False)
start = time.time()
signal.setitimer(signal.ITIMER_REAL, 0.3)
assert x.sum().item() == 160000.0
assert seen and seen[0] - start < 1.0, (seen, start)
""")


def test_a_handler_may_use_the_device() -> None:
    check(f"""
{INTERRUPTED}
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append((torch.ones(2, device="lazy") + 1).tolist()))
x = slow(n // 4)
lazy.mark_step(wait=False)
signal.setitimer(signal.ITIMER_REAL, 0.3)
assert x.sum().item() == 160000.0
assert seen == [[2.0, 2.0]], seen
""")


def test_other_python_threads_run_while_one_waits() -> None:
    check("""
        x = slow(60)
        lazy.mark_step(wait=False)
        ticks = []
        thread = threading.Thread(target=lambda: [ticks.append(time.sleep(0.005)) for _ in range(20)])
        thread.start()
        assert x.sum().item() == 160000.0
        assert ticks
        thread.join()
    """)


# ---- processes

FORKS = {
    "recorded": "x = torch.ones(3, device='lazy') + 1",
    "ended": "x = torch.ones(3, device='lazy') + 1; lazy.mark_step(wait=False)",
    "running": "s = slow(); x = torch.ones(3, device='lazy') + 1; lazy.mark_step(wait=False)",
    "running_and_recorded": "s = slow(); lazy.mark_step(wait=False); x = torch.ones(3, device='lazy') + 1",
    "done": "x = torch.ones(3, device='lazy') + 1; lazy.mark_step()",
    "written": "x = torch.ones(3, device='lazy'); lazy.mark_step(); x.add_(1)",
}


@pytest.mark.parametrize("state", FORKS)
def test_parent_and_child_of_a_fork_have_all_values(state: str) -> None:
    check(f"""
        {FORKS[state]}
        child = os.fork()
        good = x.tolist() == [2.0] * 3
        y = x * 2
        lazy.mark_step(wait=False)
        x.add_(1)
        good = good and y.tolist() == [4.0] * 3 and x.tolist() == [3.0] * 3
        works()
        if child == 0:
            os._exit(0 if good else 1)
        assert good
        assert os.waitpid(child, 0)[1] == 0
        works()
    """)


def test_a_fork_while_other_threads_record_and_wait() -> None:
    check("""
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                (torch.ones(50, 50, device="lazy") @ torch.ones(50, 50, device="lazy")).sum().item()
        threads = [threading.Thread(target=busy) for _ in range(2)]
        [t.start() for t in threads]
        for _ in range(20):
            child = os.fork()
            if child == 0:
                good = (torch.ones(3, device="lazy") + 1).tolist() == [2.0] * 3
                os._exit(0 if good else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        [t.join() for t in threads]
        works()
    """)


def test_a_fork_after_a_failure() -> None:
    check("""
        bad = fails()
        lazy.mark_step(wait=False)
        child = os.fork()
        good = type(raised(bad.cpu)) is IndexError
        works()
        if child == 0:
            os._exit(0 if good else 1)
        assert good and os.waitpid(child, 0)[1] == 0
    """)


def test_a_subprocess_is_started_with_work_under_way() -> None:
    check("""
        import subprocess
        x = slow(80)
        lazy.mark_step(wait=False)
        assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout == "1\\n"
        assert x.sum().item() == 160000.0
    """)


EXITS = {
    "recorded": "x = torch.ones(3, device='lazy') + 1",
    "never_ended_and_global": "model = torch.nn.Linear(3, 3).to('lazy'); y = model(torch.ones(1, 3, device='lazy'))",
    "ended": "x = torch.ones(3, device='lazy') + 1; lazy.mark_step(wait=False)",
    "running": "x = slow(); lazy.mark_step(wait=False)",
    "many": "xs = [slow(5) for _ in range(5) if lazy.mark_step(wait=False) is None]",
    "failed": "x = fails(); lazy.mark_step(wait=False)",
    "failed_and_recorded": "x = fails(); lazy.mark_step(wait=False); y = x + 1",
    "in_a_thread": "t = threading.Thread(target=lambda: slow().sum().item()); t.start()",
    "graph_of_autograd": "p = torch.ones(3, device='lazy', requires_grad=True); y = (p * 2).sum(); y.backward()",
    "used_at_exit": "import atexit; atexit.register(lambda: works())",
    "kept_in_a_module": "sys.kept = slow(3); torch.kept = fails()",
    "cycle": "a = [torch.ones(3, device='lazy') + 1]; a.append(a); del a",
}


@pytest.mark.parametrize("state", EXITS)
def test_the_interpreter_exits(state: str) -> None:
    ran = run(f"{EXITS[state]}\nprint('done', flush=True)\n")
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert "Traceback" not in ran.stderr and "terminate" not in ran.stderr, ran.stderr


def test_an_exception_that_ends_the_program_is_told_as_always() -> None:
    ran = run("x = slow(); lazy.mark_step(wait=False); y = x + 1; raise ValueError('ouch')")
    assert ran.returncode == 1 and ran.stderr.rstrip().endswith("ValueError: ouch"), ran.stderr


def test_exit_waits_no_longer_than_the_work_takes() -> None:
    start = time.monotonic()
    run("x = slow(5); lazy.mark_step(wait=False)")
    assert time.monotonic() - start < 30


# ---- the beginning


def test_before_init_the_device_is_an_error_and_not_a_crash() -> None:
    check(
        """
        assert not lazy.is_initialized()
        error = raised(lambda: torch.ones(3, device="lazy"))
        assert isinstance(error, (RuntimeError, NotImplementedError)), repr(error)
        assert raised(lambda: torch.ones(3).to("lazy")) is not None
        calls = [
            lazy.mark_step, lazy.wait_device_ops, lambda: lazy.manual_seed(1), lazy.counter_names, lazy.metrics_report,
            lazy.clear_ir_cache, lambda: lazy.get_tensors_text([]), lambda: lazy.get_tensor_id(torch.ones(1)),
            lazy.get_default_device_type, lambda: lazy.set_reuse_ir(True), lazy.get_force_fallback, lazy.get_frames,
            lazy.backend.get_latest_computation_graph, lazy.reset_metrics, lambda: lazy.dump_ir_cache("/dev/null"),
        ]
        for call in calls:
            error = raised(call)
            assert isinstance(error, magneto.UserError) and "magneto.lazy.init()" in str(error), (call, repr(error))
        torch.manual_seed(0)
        lazy.init()
        works()
        """,
        init=False,
    )


def test_init_twice_is_the_same_as_once() -> None:
    check("""
        x = torch.ones(3, device="lazy") + 1
        lazy.init()
        lazy.init("cpu")
        lazy.backend.init()
        assert lazy.is_initialized() and x.tolist() == [2.0] * 3
        model = torch.nn.Linear(2, 1).to("lazy")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, 2, device="lazy")).sum().backward()
        lazy.reset_metrics()
        optimizer.step()
        assert lazy.counter_value("steps") == 1
    """)


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "meta", "nowhere", "lazy", ""])
def test_a_device_that_is_not_there_cannot_be_under_it(device: str) -> None:
    check(
        f"""
        if {device!r} == "cuda" and torch.cuda.is_available():
            print("done"); sys.exit()
        error = raised(lambda: lazy.init({device!r}))
        assert isinstance(error, (magneto.UserError, RuntimeError)), repr(error)
        assert not lazy.is_initialized()
        lazy.init()
        works()
        """,
        init=False,
    )


def test_another_device_after_the_first_is_an_error() -> None:
    check("""
        error = raised(lambda: lazy.init("cuda"))
        assert isinstance(error, magneto.UserError), repr(error)
        works()
    """)


def test_beside_the_backend_of_torch_init_is_a_clear_error() -> None:
    check(
        """
        import importlib
        importlib.import_module("torch." + "_lazy" + ".ts_backend").init()
        error = raised(lazy.init)
        assert isinstance(error, magneto.UserError), repr(error)
        assert "torch's own lazy backend" in str(error)
        assert not lazy.is_initialized()
        assert (torch.ones(3, device="lazy") + 1).cpu().tolist() == [2.0] * 3
        """,
        init=False,
    )


def test_programs_of_other_devices_go_on_as_before() -> None:
    check("""
        model = torch.nn.Linear(2, 2)
        weight = model.weight
        kept = weight.data
        model.double()
        assert model.weight is weight
        compiled = magneto.compile(lambda x: (x * 2).sum())
        assert [compiled(torch.ones(3)).item() for _ in range(3)] == [6.0] * 3
        import weakref
        linear = torch.nn.Linear(2, 2)
        reference = weakref.ref(linear.weight)
        linear.double()
        assert linear.weight.dtype == torch.float64
    """)


def test_compiled_functions_get_lazy_tensors() -> None:
    check("""
        compiled = magneto.compile(lambda x: (x * 2).relu().sum())
        for _ in range(4):
            assert compiled(torch.ones(3, device="lazy")).item() == 6.0
        model = magneto.compile(torch.nn.Linear(3, 1).to("lazy"))
        for _ in range(4):
            model(torch.ones(1, 3, device="lazy")).sum().backward()
        works()
    """)


def test_methods_that_need_memory_are_refused_clearly() -> None:
    check("""
        x = torch.ones(3, device="lazy")
        for call in (x.data_ptr, x.untyped_storage, x.numpy, lambda: x.share_memory_(), lambda: torch.from_dlpack(x)):
            error = raised(call)
            assert isinstance(error, (RuntimeError, TypeError, NotImplementedError, ValueError)), (call, repr(error))
        works()
    """)
