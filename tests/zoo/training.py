"""Models to train, with inputs of any batch size and length; `make(name)` builds one as `zoo.models` does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from zoo import models

MakeBatch = Callable[[int, int], tuple[torch.Tensor, ...]]


class Only(nn.Module):
    """A model of `transformers` as a function of tensors: its logits, or what it calls its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        result = self.model(*tensors[:1], **dict(zip(("decoder_input_ids",), tensors[1:], strict=False)))
        return result["logits"] if "logits" in result else result["last_hidden_state"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


def encoder(layers: int = 1, width: int = 32, dropout: float = 0.1) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _floats(*shape: int | str) -> MakeBatch:
    def batch(size: int, length: int) -> tuple[torch.Tensor, ...]:
        sizes = {"batch": size, "length": length}
        return (torch.randn([sizes.get(s, s) if isinstance(s, str) else s for s in shape]),)

    return batch


def _tokens(count: int = 1) -> MakeBatch:
    return lambda size, length: tuple(torch.randint(3, models.VOCAB, (size, length)) for _ in range(count))


def _zoo(name: str) -> Callable[[], nn.Module]:
    return lambda: Only(models.get(name)[0])


IMAGES = _floats("batch", 3, models.IMAGE_SIZE, models.IMAGE_SIZE)
CASES: dict[str, tuple[Callable[[], nn.Module], MakeBatch]] = {
    "mlp": (lambda: models.MLP(), _floats("batch", 24)),
    "resnet18": (lambda: models.ResNet((8, 8, 16, 16, 32, 32, 64, 64)), IMAGES),
    "encoder layer": (encoder, _floats("batch", "length", 32)),
    "lstm": (Recurrent, _floats("batch", "length", 8)),
    "gpt2": (_zoo("gpt2"), _tokens()),
    "bert": (_zoo("bert"), _tokens()),
    "llama": (_zoo("llama"), _tokens()),
    "t5": (_zoo("t5"), _tokens(2)),
    "vit": (_zoo("vit"), IMAGES),
    "mixtral": (_zoo("mixtral"), _tokens()),
}


def names() -> list[str]:
    own = {"mlp", "resnet18", "encoder layer", "lstm"}
    return [name for name in CASES if name in own or models.has_transformers()]


def make(name: str) -> tuple[nn.Module, MakeBatch]:
    """A model in training mode, the same at each call, and `batch(size, length) -> arguments`."""
    build, batch = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().train(), batch
