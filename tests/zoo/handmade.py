"""Programs written by hand as users write them: loops over time, index operations, decisions on values, training."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Program:
    """What is compiled, how it is called with a variant of the shapes and a seed, and what it works on."""

    target: Callable[..., Any]
    call: Callable[[Any, int, int], Any]
    module: nn.Module | None = None
    gradients: bool = False


_builders: dict[str, Callable[[], Program]] = {}


def names() -> list[str]:
    return list(_builders)


def get(name: str) -> Program:
    """A fresh copy, with weights that depend on nothing but the name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        return _builders[name]()


def _program(build: Callable[[], Program]) -> Callable[[], Program]:
    _builders[build.__name__] = build
    return build


def _with_inputs(make: Callable[[int, torch.Generator], tuple[Any, ...]]) -> Callable[[Any, int, int], Any]:
    """Calls with inputs made from a generator, and hands back what became of these, too."""

    def call(target: Any, variant: int, seed: int) -> Any:
        args = make(variant, torch.Generator().manual_seed(1000 * variant + seed))
        return target(*args), args

    return call


def _floats(*shapes: tuple[int, ...]) -> Callable[[Any, int, int], Any]:
    return _with_inputs(lambda variant, generator: (torch.randn(shapes[variant], generator=generator),))


class Double(nn.Module):
    """Two convolutions with group normalisation."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.SiLU()),
            *(nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.SiLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Down, across and up again, with skips; sizes that are not even are padded on the way up."""

    def __init__(self, channels: int = 3, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        pairs = list(zip((channels, *widths), widths, strict=False))
        self.down = nn.ModuleList(Double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs[1:]))
        self.join = nn.ModuleList(Double(2 * a, a) for a, _ in reversed(pairs[1:]))
        self.head = nn.Conv2d(widths[0], channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x, skip = up(x), skips.pop()
            rows, columns = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
            if rows or columns:
                x = F.pad(x, (0, columns, 0, rows))
            x = join(torch.cat([skip, x], dim=1))
        return self.head(x)


@_program
def unet() -> Program:
    model = UNet().eval()
    return Program(model, _floats((2, 3, 24, 24), (3, 3, 30, 30), (1, 3, 28, 28)), model)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.lstm(x, state)
        return self.head(out), state


@_program
def lstm() -> Program:
    model = Tagger().eval()
    return Program(model, _floats((2, 7, 8), (3, 11, 8), (1, 5, 8)), model)


class Cell(nn.Module):
    """An LSTM cell, gate by gate."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inner + outer, 4 * outer)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, memory = state
        enter, forget, out, new = self.gates(torch.cat([x, hidden], dim=-1)).chunk(4, dim=-1)
        memory = forget.sigmoid() * memory + enter.sigmoid() * new.tanh()
        return out.sigmoid() * memory.tanh(), memory


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Cell(8, 16), Cell(16, 16)])

    def forward(self, x: Tensor) -> Tensor:
        states = [(x.new_zeros(x.shape[0], 16), x.new_zeros(x.shape[0], 16)) for _ in self.cells]
        outputs = []
        for step in range(x.shape[1]):
            value = x[:, step]
            for index, cell in enumerate(self.cells):
                states[index] = cell(value, states[index])
                value = states[index][0]
            outputs.append(value)
        return torch.stack(outputs, dim=1)


@_program
def lstm_cell_loop() -> Program:
    model = CellLoop().eval()
    return Program(model, _floats((2, 7, 8), (3, 11, 8), (1, 5, 8)), model)


class SelectiveScan(nn.Module):
    """A state-space block whose step sizes and projections depend on the input, scanned step by step."""

    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.states = states
        self.enter = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.project = nn.Linear(width, 2 * states + 1)
        self.rates = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.leave = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        value, gate = self.enter(x).chunk(2, dim=-1)
        value = F.silu(self.conv(value.transpose(1, 2))[..., :length].transpose(1, 2))
        step, into, out = self.project(value).split([1, self.states, self.states], dim=-1)
        step = F.softplus(step)
        decay = torch.exp(-step[..., None] * self.rates.exp())
        drive = (step * value)[..., None] * into[:, :, None]
        state = torch.zeros_like(drive[:, 0])
        ys = []
        for t in range(length):
            state = decay[:, t] * state + drive[:, t]
            ys.append((state @ out[:, t, :, None]).squeeze(-1))
        return self.leave((torch.stack(ys, dim=1) + value * self.skip) * F.silu(gate))


@_program
def mamba_scan() -> Program:
    model = nn.Sequential(SelectiveScan(), SelectiveScan()).eval()
    return Program(model, _floats((2, 9, 16), (3, 12, 16), (1, 5, 16)), model)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(8, 16)
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 1, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(100) * torch.arange(4) / 4)
        angles = t[:, None] * frequencies
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        first, activation, last = self.layers
        return last(activation(first(x) + embedding[:, :, None, None]))


@_program
def diffusion_loop() -> Program:
    """Sampling: a schedule computed inside, noise added at every step but the last."""
    model = Denoiser().eval()

    def sample(x: Tensor, steps: int = 6) -> Tensor:
        betas = torch.linspace(1e-3, 0.2, steps)
        kept = torch.cumprod(1 - betas, dim=0)
        for step in reversed(range(steps)):
            noise = model(x, torch.full((x.shape[0],), float(step)))
            x = (x - betas[step] / (1 - kept[step]).sqrt() * noise) / (1 - betas[step]).sqrt()
            if step > 0:
                x = x + betas[step].sqrt() * torch.randn_like(x)
        return x.clamp(-1, 1)

    return Program(sample, _floats((2, 1, 8, 8), (3, 1, 12, 12), (1, 1, 10, 10)), model)


class GraphLayer(nn.Module):
    """Messages along edges, summed with index_add_, with attention normalised by scatter_reduce."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.score = nn.Linear(2 * width, 1)
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        both = torch.cat([nodes[source], nodes.index_select(0, target)], dim=-1)
        score = self.score(both).squeeze(-1)
        top = torch.full((nodes.shape[0],), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - top.gather(0, target)).exp()
        total = torch.zeros(nodes.shape[0]).scatter_add_(0, target, weight)
        message = self.message(both).relu() * (weight / total[target])[:, None]
        return self.update(torch.zeros_like(nodes).index_add_(0, target, message), nodes)


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(8) for _ in range(2))

    def forward(self, nodes: Tensor, edges: Tensor, groups: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = nodes + layer(nodes, edges)
        pooled = torch.zeros(2, nodes.shape[1]).index_add_(0, groups, nodes)
        return pooled / torch.bincount(groups, minlength=2).clamp(min=1)[:, None]


@_program
def gnn() -> Program:
    model = GraphNet().eval()

    def inputs(variant: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        nodes, edges = ((10, 24), (13, 40), (5, 9))[variant]
        numbers = torch.randint(0, nodes, (2, edges), generator=generator)
        return torch.randn(nodes, 8, generator=generator), numbers, torch.arange(nodes) % 2

    return Program(model, _with_inputs(inputs), model)


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    corner = torch.maximum(box[:2], others[:, :2])
    sides = (torch.minimum(box[2:], others[:, 2:]) - corner).clamp(min=0)
    both = sides.prod(-1)
    area = (box[2:] - box[:2]).prod()
    return both / (area + (others[:, 2:] - others[:, :2]).prod(-1) - both)


class Detector(nn.Module):
    """A convolutional head whose boxes are filtered by score and thinned out greedily."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3, padding=1)
        self.boxes = nn.Conv2d(8, 4, 1)
        self.scores = nn.Conv2d(8, 1, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(image).relu()
        scores = self.scores(features).flatten().sigmoid()
        centre, size = self.boxes(features).flatten(2)[0].t().split(2, dim=-1)
        boxes = torch.cat([centre - size.exp(), centre + size.exp()], dim=-1)
        likely = torch.nonzero(scores > 0.45).flatten()
        return self.thin_out(boxes[likely], scores[likely])

    def thin_out(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        order = scores.argsort(descending=True)
        kept: list[int] = []
        while order.numel() > 0 and len(kept) < 5:
            best = int(order[0].item())
            kept.append(best)
            order = order[1:]
            order = order[_overlap(boxes[best], boxes[order]) < 0.4]
        index = torch.tensor(kept, dtype=torch.long)
        return boxes[index], scores[index]


@_program
def detection() -> Program:
    model = Detector().eval()
    return Program(model, _floats((1, 3, 6, 6), (1, 3, 8, 8), (1, 3, 5, 7)), model)


def _training(model: nn.Module, optimizer: torch.optim.Optimizer, whole: bool) -> Program:
    """Training steps: with the backward and the optimizer inside what is compiled, or only the loss."""
    model.train()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def call(target: Any, variant: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * variant + seed)
        rows = (4, 6, 2)[variant]
        batch = torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator)
        if whole:
            loss = target(*batch)
        else:
            optimizer.zero_grad()
            loss = target(*batch)
            loss.backward()
            optimizer.step()
        weights = {name: (p.detach().clone(), p.grad.clone()) for name, p in model.named_parameters()}
        return loss.detach(), weights, optimizer.state_dict()

    return Program(step if whole else loss_of, call, model, gradients=True)


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))


@_program
def training_step_sgd() -> Program:
    model = _classifier()
    return _training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), whole=True)


@_program
def training_step_adamw() -> Program:
    model = _classifier()
    return _training(model, torch.optim.AdamW(model.parameters(), lr=0.01), whole=True)


@_program
def training_loss() -> Program:
    model = _classifier()
    return _training(model, torch.optim.SGD(model.parameters(), lr=0.1), whole=False)


@_program
def training_loop() -> Program:
    """Several steps by hand in one call, with gradients from torch.autograd.grad and updates in place."""
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).train()
    parameters = list(model.parameters())

    def fit(x: Tensor, y: Tensor, rate: float) -> list[Tensor]:
        losses = []
        for _ in range(3):
            loss = F.mse_loss(model(x), y)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(rate * gradient)
            losses.append(loss.detach())
        return losses

    def call(target: Any, variant: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * variant + seed)
        rows = (4, 6, 2)[variant]
        x, y = torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)
        return target(x, y, 0.05), {name: p.detach().clone() for name, p in model.named_parameters()}

    return Program(fit, call, model, gradients=True)
