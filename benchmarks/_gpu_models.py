"""The models of the CUDA benchmark, at their real sizes with random weights: each makes a module and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BATCH, SEQUENCE = 8, 128


def tokens(vocabulary: int, batch: int = BATCH, length: int = SEQUENCE) -> Tensor:
    return torch.randint(vocabulary, (batch, length), device="cuda")


def without_packed_sequences() -> None:
    """Keeps `transformers` from asking the GPU, at each call, whether position ids start anew within a row."""
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = lambda position_ids: None


class Picked(nn.Module):
    """A model of `transformers` as a function of one tensor to one tensor."""

    def __init__(self, model: nn.Module, result: str, **options: Any) -> None:
        super().__init__()
        self.model, self.result, self.options = model, result, options

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model(x, **self.options), self.result)


def bert_base() -> tuple[nn.Module, Tensor]:
    from transformers import BertConfig, BertModel

    config = BertConfig()
    return Picked(BertModel(config), "last_hidden_state"), tokens(config.vocab_size)


def gpt2() -> tuple[nn.Module, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    without_packed_sequences()
    config = GPT2Config(use_cache=False)
    return Picked(GPT2LMHeadModel(config), "logits", use_cache=False), tokens(config.vocab_size)


def vit_base() -> tuple[nn.Module, Tensor]:
    from transformers import ViTConfig, ViTModel

    return Picked(ViTModel(ViTConfig()), "last_hidden_state"), torch.rand(BATCH, 3, 224, 224, device="cuda")


def llama() -> tuple[nn.Module, Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    without_packed_sequences()
    config = LlamaConfig(
        hidden_size=1024,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=16,
        intermediate_size=2816,
        use_cache=False,
    )
    return Picked(LlamaForCausalLM(config), "logits", use_cache=False), tokens(config.vocab_size)


def resnet50() -> tuple[nn.Module, Tensor]:
    from transformers import ResNetConfig, ResNetForImageClassification

    return Picked(ResNetForImageClassification(ResNetConfig()), "logits"), torch.rand(BATCH, 3, 224, 224, device="cuda")


def mlp() -> tuple[nn.Module, Tensor]:
    layers = [module for _ in range(20) for module in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers), torch.rand(256, 1024, device="cuda")


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "bert_base": bert_base,
    "gpt2": gpt2,
    "vit_base": vit_base,
    "llama_1024x12": llama,
    "resnet50": resnet50,
    "mlp_20": mlp,
}
