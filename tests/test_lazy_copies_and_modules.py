"""The lazy device: tensors, states and modules are copied, saved, moved and run there as on the CPU."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lazy_stories import BACKING, SEED, Story, check, each, grid, leaf, made_model, numbers, seen, step, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from zoo import training

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("lazy_device")]


# ---- copies


def test_a_deep_copy_shares_nothing() -> None:
    def story(d: str) -> Any:
        x = grid(d, 2, 3)
        y = copy.deepcopy(x.t())
        both = copy.deepcopy([x, x])
        assert both[0] is both[1]
        x.add_(1)
        step(d)
        both[0].mul_(2)
        leaf = copy.deepcopy(grid(d, 2).requires_grad_())
        return [x, y, both, leaf, copy.copy(x)]

    check(story)


def test_a_model_is_copied_deeply() -> None:
    def story(d: str) -> Any:
        model = made_model(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), d)
        other = copy.deepcopy(model)
        with torch.no_grad():
            model[0].weight.zero_()
        return [other(numbers(d, 4, 3)), list(other.parameters()), list(model.parameters())]

    check(story)


@pytest.mark.parametrize("make", [lambda d: grid(d, 2, 3), lambda d: grid(d, 3).requires_grad_(), lambda d: grid(d, 0)])
def test_tensors_are_pickled(make: Callable[[str], Tensor]) -> None:
    back = pickle.loads(pickle.dumps(make("lazy")))
    assert back.device.type == "lazy"
    assert seen(back) == seen(make("cpu"))


def test_parameters_and_modules_are_pickled() -> None:
    model = made_model(lambda: nn.Linear(2, 2), "lazy")
    back = pickle.loads(pickle.dumps(model))
    assert isinstance(back.weight, nn.Parameter) and back.weight.device.type == "lazy"
    assert [seen(p) for p in back.parameters()] == [seen(p) for p in model.parameters()]


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_state_is_saved_and_loaded(weights_only: bool) -> None:
    model = made_model(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "lazy")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where in ("cpu", None):
        file.seek(0)
        state = torch.load(file, map_location=where, weights_only=weights_only)
        assert all(tensor.device.type == (where or "lazy") for tensor in state.values())
        assert {k: seen(v) for k, v in state.items()} == {k: seen(v.detach()) for k, v in model.state_dict().items()}


def test_files_are_not_loaded_onto_the_device_at_once() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.arange(3.0)}, file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="lazy"):
        torch.load(file, map_location="lazy")


def test_states_go_round() -> None:
    def story(d: str) -> Any:
        make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))  # noqa: E731
        model, other = made_model(make, d), made_model(make, d, seed=1)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        train(model, optimizer, d, 3)
        states = {k: v.cpu() for k, v in model.state_dict().items()}
        other.load_state_dict(states)
        second = torch.optim.Adam(other.parameters(), 0.1)
        second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        losses = train(other, second, d, 3), train(model, optimizer, d, 3)
        assert losses[0] == losses[1]
        return [losses, list(other.state_dict().values())]

    check(story)


def test_a_state_is_loaded_by_assignment() -> None:
    source = made_model(lambda: nn.Linear(2, 2), "lazy")
    target = nn.Linear(2, 2, device="meta")
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.device.type == "lazy"
    assert seen(target(numbers("lazy", 1, 2)).detach()) == seen(source(numbers("lazy", 1, 2)).detach())


# ---- modules


def test_parameters_without_a_shape_get_one_on_the_device() -> None:
    def story(d: str) -> Any:
        model = nn.LazyLinear(2, device=d)
        torch.manual_seed(SEED)
        assert (model(grid(d, 2, 3)).device.type, model.weight.device.type) == (d, d)
        return [list(model.parameters())]

    check(story)


def test_sparse_gradients_are_refused() -> None:
    model = made_model(lambda: nn.Embedding(4, 2, sparse=True), "lazy")
    with pytest.raises(NotImplementedError, match="SparseLazy"):
        model(torch.tensor([1, 1, 3], device="lazy")).sum().backward()


def test_there_is_one_lazy_device() -> None:
    for call in (lambda: torch.ones(2, device="lazy:1"), lambda: torch.ones(2).to("lazy:1")):
        with pytest.raises(RuntimeError):
            call()


def test_module_to_keeps_ties_and_identities() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("b", torch.ones(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model[0].weight
    model.to("lazy")
    assert model[0].weight is model[1].weight is before
    assert (before.device.type, model.b.device.type, len(list(model.parameters()))) == ("lazy", "lazy", 1)
    model(torch.ones(1, 3, device="lazy")).sum().backward()
    optimizer.step()
    assert model[0].weight.grad is not None and model[0].weight.is_leaf
    model.to("cpu")
    assert model[0].weight is model[1].weight and model[0].weight.device.type == "cpu"


def test_modules_change_dtype_on_the_device() -> None:
    def story(d: str) -> Any:
        model = made_model(lambda: nn.Linear(3, 2), d).double()
        return [model(numbers(d, 2, 3).double()), made_model(lambda: nn.Linear(3, 2), d).bfloat16().weight]

    check(story)


def test_modules_made_on_the_device_draw_what_a_cpu_generator_draws() -> None:
    torch.manual_seed(SEED)
    expected = nn.Sequential(nn.Linear(3, 3), nn.Conv2d(2, 2, 3), nn.Embedding(4, 2), nn.LSTM(2, 2))
    torch.manual_seed(SEED)
    actual = nn.Sequential(
        nn.Linear(3, 3, device="lazy"),
        nn.Conv2d(2, 2, 3, device="lazy"),
        nn.Embedding(4, 2, device="lazy"),
        nn.LSTM(2, 2, device="lazy"),
    )
    assert [seen(p) for p in actual.parameters()] == [seen(p) for p in expected.parameters()]


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[str], tuple[Tensor, ...]]]] = {
    "linear_3d": (lambda: nn.Linear(4, 5), lambda d: (numbers(d, 2, 3, 4),)),
    "linear_of_transposed": (lambda: nn.Linear(3, 5), lambda d: (numbers(d, 2, 3, 4).transpose(1, 2),)),
    "bilinear": (lambda: nn.Bilinear(3, 4, 2), lambda d: (numbers(d, 5, 3), numbers(d, 5, 4))),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding="same"), lambda d: (numbers(d, 2, 3, 8),)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), lambda d: (numbers(d, 1, 3, 4, 4),)),
    "conv_grouped": (lambda: nn.Conv2d(4, 4, 3, groups=4, dilation=2), lambda d: (numbers(d, 1, 4, 8, 8),)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), lambda d: (numbers(d, 2, 3, 4, 4),)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), lambda d: (numbers(d, 2, 3, 4, 4),)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), lambda d: (numbers(d, 2, 4, 3, 3),)),
    "layer_norm": (lambda: nn.LayerNorm(4), lambda d: (numbers(d, 2, 4),)),
    "rms_norm": (lambda: nn.RMSNorm(4), lambda d: (numbers(d, 2, 4),)),
    "embedding": (lambda: nn.Embedding(5, 3, padding_idx=0), lambda d: (torch.tensor([[1, 0, 4]], device=d),)),
    "embedding_bag": (lambda: nn.EmbeddingBag(5, 3), lambda d: (torch.tensor([[1, 0, 4]], device=d),)),
    "lstm_cell": (lambda: nn.LSTMCell(3, 4), lambda d: (numbers(d, 2, 3),)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda d: (numbers(d, 2, 5, 8),) * 3),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
        lambda d: (numbers(d, 2, 5, 8), numbers(d, 2, 3, 8)),
    ),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        lambda d: (numbers(d, 1, 2, 12, 12),),
    ),
    "upsample": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), lambda d: (numbers(d, 1, 2, 4, 4),)),
    "pads": (
        lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ZeroPad2d(2), nn.CircularPad2d(1)),
        lambda d: (numbers(d, 1, 2, 4, 4),),
    ),
    "activations": (
        lambda: nn.Sequential(nn.GELU(), nn.PReLU(), nn.Softplus(), nn.ELU(inplace=True), nn.GLU(), nn.Hardswish()),
        lambda d: (numbers(d, 3, 4),),
    ),
    "silu": (nn.SiLU, lambda d: (numbers(d, 3, 4),)),
    "mish": (nn.Mish, lambda d: (numbers(d, 3, 4),)),
    "softmaxes": (lambda: nn.Sequential(nn.Softmax(1), nn.LogSoftmax(1), nn.Hardtanh()), lambda d: (numbers(d, 3, 4),)),
    "folds": (
        lambda: nn.Sequential(nn.Unfold(2), nn.Fold((4, 4), 2), nn.PixelShuffle(2)),
        lambda d: (numbers(d, 1, 4, 4, 4),),
    ),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), lambda d: (numbers(d, 2, 3),)),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), lambda d: (numbers(d, 2, 3),)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_modules_give_the_same_results_gradients_and_buffers(name: str, mode: str) -> None:
    make, inputs = MODULES[name]

    def story(d: str) -> Any:
        model = made_model(make, d).train(mode == "train")
        args = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in inputs(d))
        results = model(*args)
        sum(r.pow(2).sum() for r in pytree.tree_leaves(results) if isinstance(r, Tensor)).backward()
        return [results, [a.grad for a in args], [p.grad for p in model.parameters()], list(model.buffers())]

    check(story)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_modules_give_nearly_the_same(make: Any, bidirectional: bool) -> None:
    """The CPU has ways of its own for them, which sum up in another order."""

    def story(d: str) -> list[Tensor]:
        model = made_model(lambda: make(3, 4, 2, bidirectional=bidirectional), d)
        result, _ = model(numbers(d, 5, 2, 3))
        result.square().sum().backward()
        return [result.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]

    for ours, eager in zip(story("lazy"), story(BACKING), strict=True):
        torch.testing.assert_close(ours, eager)


LOSSES: dict[str, Story] = {
    "cross_entropy": lambda d: F.cross_entropy(
        leaf(d, 4, 5), torch.tensor([1, 4, 0, -100], device=d), label_smoothing=0.1
    ),
    "cross_entropy_probabilities": lambda d: F.cross_entropy(leaf(d, 4, 5), numbers(d, 4, 5).softmax(1)),
    "nll": lambda d: F.nll_loss(leaf(d, 2, 5).log_softmax(1), torch.tensor([1, 4], device=d), numbers(d, 5).abs()),
    "mse": lambda d: F.mse_loss(leaf(d, 4), numbers(d, 4, seed=1)),
    "smooth_l1": lambda d: F.smooth_l1_loss(leaf(d, 4), numbers(d, 4, seed=1)),
    "huber": lambda d: F.huber_loss(leaf(d, 4), numbers(d, 4, seed=1)),
    "bce": lambda d: F.binary_cross_entropy_with_logits(leaf(d, 4), numbers(d, 4, seed=1).sigmoid()),
    "kl": lambda d: F.kl_div(leaf(d, 2, 4).log_softmax(1), numbers(d, 2, 4, seed=1).softmax(1), reduction="batchmean"),
    "ctc": lambda d: F.ctc_loss(
        leaf(d, 6, 1, 4).log_softmax(2), torch.tensor([[1, 2]], device=d), torch.tensor([6]), torch.tensor([2])
    ),
    "cosine": lambda d: F.cosine_embedding_loss(
        leaf(d, 2, 4), numbers(d, 2, 4, seed=1), torch.tensor([1, -1], device=d)
    ),
    "triplet": lambda d: F.triplet_margin_loss(leaf(d, 2, 4), numbers(d, 2, 4, seed=1), numbers(d, 2, 4, seed=2)),
}


@each(LOSSES)
def test_losses_are_the_same(story: Story) -> None:
    def with_gradient(d: str) -> Any:
        loss = story(d)
        leaves = []
        node = loss.grad_fn
        todo = [node]
        while todo:
            for before, _ in todo.pop().next_functions:
                if before is not None:
                    todo.append(before)
                    leaves += [before.variable] if hasattr(before, "variable") else []
        loss.backward()
        return [loss, [x.grad for x in leaves]]

    check(with_gradient)


def test_attention_goes_the_ways_of_the_cpu() -> None:
    def story(d: str) -> Any:
        results = []
        for causal, masked, p in ((False, False, 0.0), (True, False, 0.0), (False, True, 0.0), (False, False, 0.3)):
            q, k, v = (numbers(d, 2, 2, 5, 8, seed=i).requires_grad_() for i in range(3))
            mask = (numbers(d, 5, 5) > 0).logical_or(torch.eye(5, device=d).bool()) if masked else None
            torch.manual_seed(0)
            y = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
            y.sum().backward()
            results += [y, q.grad, k.grad, v.grad]
        return results

    check(story)


def test_an_encoder_that_is_evaluated_is_near_the_cpu_which_has_a_kernel_of_its_own_for_it() -> None:
    def run(d: str) -> Tensor:
        model = made_model(lambda: training.encoder(2), d).eval()
        with torch.no_grad():
            return model(numbers(d, 2, 5, 32)).cpu()

    torch.testing.assert_close(run("lazy"), run(BACKING))
