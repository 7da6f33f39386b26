"""The lazy device: gradients, optimizers and trainings are those of the CPU, and repeated steps are one graph each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from features.extensions import InPlace
from lazy_stories import SEED, Story, check, conv_net, count, each, leaf, made_model, numbers, small_model, step, train
from magneto import lazy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo import compare, training

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("lazy_device")]


# ---- autograd


class Doubled(torch.autograd.Function):
    """Saves a tensor and counts its backwards."""

    backwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        Doubled.backwards += 1
        (x,) = ctx.saved_tensors
        return gradient * 2 * x * ctx.factor, None


def backward_twice(d: str) -> Any:
    x = leaf(d, 3)
    y = (x**3).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    error = compare.raised_by(y.backward)
    return [first, x.grad, type(error), str(error)[:60]]


def higher_derivatives(d: str) -> Any:
    x = leaf(d, 3)
    (first,) = torch.autograd.grad((x.sin() ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    second.sum().backward()
    return [first, second, x.grad]


def hooked(d: str) -> Any:
    x, seen_by_hooks = leaf(d, 3), []
    y = x * 2
    y.retain_grad()
    handle = x.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: seen_by_hooks.append(g) or g + 1)
    x.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 2))
    z = y.sum()
    z.grad_fn.register_hook(lambda gi, go: seen_by_hooks.extend([*gi, *go]))
    z.backward()
    handle.remove()
    return [x.grad, y.grad, seen_by_hooks]


def own_function(d: str) -> Any:
    x = leaf(d, 3)
    y = Doubled.apply(x, 1.5)
    y.sum().backward()
    z = x.detach().clone().requires_grad_()
    w = InPlace.apply(z * 1)
    w.sum().backward()
    return [y, x.grad, w, z.grad]


def checkpointed(d: str, use_reentrant: bool, preserve: bool = True) -> Any:
    model = made_model(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, 3)), d)
    x = leaf(d, 4, 3)
    torch.manual_seed(SEED)
    y = checkpoint(model, x, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    y.sum().backward()
    return [y, x.grad, [p.grad for p in model.parameters()]]


def views_with_gradients(d: str) -> Any:
    x = leaf(d, 4, 4)
    y = x * 1
    y[1:].mul_(2)
    y.t()[0].copy_(torch.ones(4))
    part = y.diagonal()
    part.add_(x[0])
    y.pow(2).sum().backward()
    return [y, part, x.grad]


def written_after_views(d: str) -> Any:
    x = leaf(d, 4)
    y = x * 1
    part = y[1:3]
    step(d)
    y.mul_(x)
    step(d)
    part.add_(1)
    (y.sum() + part.sum()).backward()
    return [y, part, x.grad]


def accumulated(d: str) -> Any:
    x = leaf(d, 3)
    for i in range(3):
        (x * i).sum().backward()
        step(d)
    x.grad.zero_()
    (x * 5).sum().backward()
    return x.grad


def saved_tensor_hooks(d: str) -> Any:
    x = leaf(d, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(d)):
        y = (x.exp() * x).sum()
    y.backward()
    return [y, x.grad]


def saved_on_cpu(d: str) -> Any:
    x = leaf(d, 3)
    with torch.autograd.graph.save_on_cpu():
        y = (x.exp() * x).sum()
    y.backward()
    return [y, x.grad]


def jacobians(d: str) -> Any:
    x = numbers(d, 3)
    f = lambda t: (t**2).cumsum(0)  # noqa: E731
    return [torch.autograd.functional.jacobian(f, x), torch.autograd.functional.hvp(lambda t: f(t).sum(), x, x)]


def transformed_functions(d: str) -> Any:
    x = numbers(d, 3, 2)
    f = lambda t: (t.sin() * t).sum()  # noqa: E731
    return [torch.func.grad(f)(x), torch.func.vmap(torch.func.grad(f))(x), torch.func.vmap(lambda t: t.sum())(x)]


def forward_mode(d: str) -> Any:
    x = numbers(d, 3)
    return torch.func.jvp(lambda t: t.sin() * t, (x,), (x,))


def unused_and_partial(d: str) -> Any:
    x, y = leaf(d, 3), leaf(d, 3)
    z = x * 2
    grads = torch.autograd.grad(z.sum(), [x, y], allow_unused=True, retain_graph=True)
    batched = torch.autograd.grad(z, x, torch.eye(3, device=d), is_grads_batched=True, retain_graph=True)
    return [grads[0], grads[1], batched, torch.autograd.grad(z, x, z.detach())]


def no_grad_modes(d: str) -> Any:
    x = leaf(d, 3)
    with torch.no_grad():
        y = x * 2
        x.add_(1)
    with torch.enable_grad():
        z = x * 3
    return [y, z, x, z.requires_grad]


def gradient_penalty(d: str) -> Any:
    model = made_model(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), d)
    x = leaf(d, 5, 3)
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    ((g.norm(2, 1) - 1) ** 2).mean().backward()
    return [g, [p.grad for p in model.parameters()]]


AUTOGRAD: dict[str, Story] = {
    story.__name__: story
    for story in (
        backward_twice,
        higher_derivatives,
        hooked,
        own_function,
        views_with_gradients,
        written_after_views,
        accumulated,
        saved_tensor_hooks,
        saved_on_cpu,
        jacobians,
        transformed_functions,
        forward_mode,
        unused_and_partial,
        no_grad_modes,
        gradient_penalty,
    )
}
AUTOGRAD["checkpoint"] = lambda d: checkpointed(d, False)
AUTOGRAD["checkpoint_reentrant"] = lambda d: checkpointed(d, True)


@each(AUTOGRAD)
def test_gradients_are_those_of_the_cpu(story: Story) -> None:
    check(story)


def test_a_checkpoint_draws_the_same_masks_again() -> None:
    x = torch.ones(64, device="lazy", requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()


# ---- optimizers


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "SGD_dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "SGD_foreach": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.1}),
    "Adam_amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    "Adam_foreach": (torch.optim.Adam, {"lr": 0.1, "foreach": True}),
    "Adam_tensor_lr": (torch.optim.Adam, {"lr": torch.tensor(0.1)}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1}),
    "AdamW_foreach": (torch.optim.AdamW, {"lr": 0.1, "foreach": True}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.1}),
    "Adamax_foreach": (torch.optim.Adamax, {"lr": 0.1, "foreach": True}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "Adagrad_foreach": (torch.optim.Adagrad, {"lr": 0.1, "foreach": True}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.1}),
    "NAdam_foreach": (torch.optim.NAdam, {"lr": 0.1, "foreach": True}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1}),
    "RMSprop_centered": (torch.optim.RMSprop, {"lr": 0.1, "centered": True, "momentum": 0.9}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.1}),
    "Rprop_foreach": (torch.optim.Rprop, {"lr": 0.1, "foreach": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.1}),
    "LBFGS": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 4}),
    "LBFGS_wolfe": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 4, "line_search_fn": "strong_wolfe"}),
    "Muon": (torch.optim.Muon, {"lr": 0.1}),
}


def test_every_optimizer_for_dense_parameters_is_tried() -> None:
    kinds = {k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)}
    assert kinds - {torch.optim.Optimizer, torch.optim.SparseAdam} == {kind for kind, _ in OPTIMIZERS.values()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_the_cpu(name: str) -> None:
    kind, settings = OPTIMIZERS[name]

    def story(d: str) -> Any:
        model = small_model(d, bias=kind is not torch.optim.Muon)
        optimizer = kind(model.parameters(), **settings)
        if kind is not torch.optim.LBFGS:
            return [train(model, optimizer, d, 5), list(model.parameters()), optimizer.state_dict()["state"]]
        losses = []
        for i in range(5):

            def closure(i: int = i) -> Tensor:
                optimizer.zero_grad()
                loss = model(numbers(d, 8, 3, seed=i)).pow(2).mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure))
        return [losses, list(model.parameters())]

    check(story)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("LBFGS", "LBFGS_wolfe", "Adafactor", "ASGD")])
def test_steps_of_an_optimizer_become_one_graph(name: str) -> None:
    kind, settings = OPTIMIZERS[name]
    model = small_model("lazy", bias=kind is not torch.optim.Muon)
    optimizer = kind(model.parameters(), **settings)

    def one_step() -> None:
        optimizer.zero_grad()
        model(numbers("lazy", 8, 3)).pow(2).mean().backward()
        optimizer.step()

    for _ in range(10):  # RAdam changes its way after some steps
        one_step()
    made, found = count("graphs made"), count("graphs found")
    for _ in range(10):
        one_step()
    assert count("graphs made") == made
    assert count("graphs found") == found + 10


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1 / (i + 1)),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_that_change_every_step_make_no_new_graphs(name: str, kind: type[torch.optim.Optimizer]) -> None:
    made = []

    def story(d: str) -> Any:
        model = small_model(d)
        optimizer = kind(model.parameters(), lr=0.1)
        scheduler = SCHEDULERS[name](optimizer)
        losses = []
        for i in range(12):
            losses += train(model, optimizer, d, 1)
            scheduler.step()
            if i in (4, 11):
                made.append(count("graphs made"))
        return [losses, list(model.parameters())]

    check(story)
    assert made[2] == made[3] == made[4] == made[5]


@pytest.mark.parametrize(
    "clip",
    [
        lambda p: nn.utils.clip_grad_norm_(p, 0.1),
        lambda p: nn.utils.clip_grad_norm_(p, 0.1, float("inf")),
        lambda p: nn.utils.clip_grad_value_(p, 0.01),
        lambda p: nn.utils.clip_grad_norm_(p, 1e9, error_if_nonfinite=True),
    ],
    ids=["norm", "inf_norm", "value", "error_if_nonfinite"],
)
def test_gradients_are_clipped(clip: Callable[[Any], Any]) -> None:
    def story(d: str) -> Any:
        model = small_model(d)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        norms = []
        for i in range(4):
            optimizer.zero_grad()
            model(numbers(d, 8, 3, seed=i)).pow(2).mean().backward()
            norms.append(clip(list(model.parameters())))
            optimizer.step()
        return [norms, list(model.parameters())]

    check(story)


def test_averages_of_weights_are_the_same() -> None:
    def story(d: str) -> Any:
        model = small_model(d)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            train(model, optimizer, d, 1)
            averaged.update_parameters(model)
        return list(averaged.parameters())

    check(story)


# ---- whole trainings


class LanguageModel(nn.Module):
    """The loss of a small model of `transformers`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        if kind == "gpt2":
            config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
            self.model = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.BertConfig(
                vocab_size=50,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=16,
            )
            self.model = transformers.BertForMaskedLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, labels=tokens).loss


def tokens(d: str, seed: int) -> Tensor:
    return torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(seed)).to(d)


TRAININGS: dict[str, tuple[Callable[[], nn.Module], Callable[[str, int], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5)),
        lambda d, i: numbers(d, 8, 6, seed=i),
    ),
    "conv": (conv_net, lambda d, i: numbers(d, 4, 3, 8, 8, seed=i)),
    "encoder": (lambda: training.encoder(2), lambda d, i: numbers(d, 2, 5, 32, seed=i)),
    "gpt2": (lambda: LanguageModel("gpt2"), tokens),
    "bert": (lambda: LanguageModel("bert"), tokens),
}


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_of_fifty_steps_is_that_of_the_cpu_in_one_graph_per_step(name: str, reads: bool) -> None:
    make, batch = TRAININGS[name]
    counts: list[tuple[int, int, int]] = []

    def story(d: str) -> Any:
        model = made_model(make, d).train()
        torch.manual_seed(SEED)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        losses: list[Any] = []
        for i in range(50):
            optimizer.zero_grad()
            result = model(batch(d, i))
            loss = (
                result if result.dim() == 0 else F.cross_entropy(result.flatten(0, -2), result.flatten(0, -2).argmax(1))
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item() if reads else loss.detach())
            if d == "lazy":
                counts.append((count("graphs made"), count("graphs found"), count("steps")))
        return [losses, list(model.parameters()), list(model.buffers())]

    check(story, 1)
    for before, after in itertools.pairwise(counts[5:]):
        assert (after[0] - before[0], after[1] - before[1], after[2] - before[2]) == (0, 1, 1)
    assert [name for name in lazy.counter_names() if "::" in name] == []
