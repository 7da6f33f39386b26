"""The models of the zoo: `names()` lists them, `get(name)` builds one with its inputs.

Every model is made from a configuration, without any download, in evaluation mode, with weights that depend on nothing
but its name. All parameters are random (also those that a library starts at zero or one), so that a compiled
call that mixes two of them up cannot pass for a right one.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
MakeInputs = Callable[[int, int], Inputs]

VOCAB = 99
# The third shape has a batch of one, which broadcasts.
TEXT_SHAPES = ((2, 16), (3, 24), (1, 9))
IMAGE_BATCHES = (2, 3, 1)
IMAGE_SIZE = 32

_builders: dict[str, Callable[[], tuple[nn.Module, MakeInputs]]] = {}
_without_transformers: set[str] = set()
_classes: dict[str, tuple[str, MakeInputs]] = {}


def has_transformers() -> bool:
    """Whether the `transformers` package can be imported; without it the zoo has torch's own models only."""
    return importlib.util.find_spec("transformers") is not None


def names() -> list[str]:
    """Every model that can be built here, in a fixed order."""
    return [name for name in _builders if name in _without_transformers or has_transformers()]


def transformers_names() -> list[str]:
    """The models that come from the `transformers` package."""
    return [name for name in names() if name not in _without_transformers]


def architectures() -> set[str]:
    """The distinct `transformers` architectures (a variant such as `gpt2-uncached` counts as `gpt2`)."""
    return {name.partition("-")[0] for name in transformers_names()}


def class_name(name: str) -> str:
    """The class of a model of `transformers`, without building it."""
    return _classes[name][0]


def inputs(name: str) -> MakeInputs:
    """The inputs of a model of `transformers`, without building it."""
    return _classes[name][1]


def get(name: str) -> tuple[nn.Module, MakeInputs]:
    """A fresh copy of a model and `make_inputs(shape_variant, seed) -> (args, kwargs)`.

    `shape_variant` is 0, 1 or 2; two seeds give two inputs of one shape.
    """
    if name not in _builders:
        raise KeyError(f"no model {name!r} in the zoo; there are: {', '.join(names())}")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(zlib.crc32(name.encode()))
        module, make_inputs = _builders[name]()
        _randomise(module)
    return module.eval(), make_inputs


def _randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        for child in module.modules():
            if isinstance(child, nn.modules.batchnorm._BatchNorm) and child.running_mean is not None:
                child.running_mean.normal_(0, 0.1)
                child.running_var.uniform_(0.5, 1.5)


def _generator(seed: int, variant: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * variant + seed)


def _tokens(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    # 0, 1 and 2 are special tokens (padding, start, end) for most architectures.
    return torch.randint(3, VOCAB, shape, generator=generator)


def _text_inputs(**extra: Any) -> MakeInputs:
    def make(variant: int, seed: int) -> Inputs:
        return (), {"input_ids": _tokens(TEXT_SHAPES[variant], _generator(seed, variant)), **extra}

    return make


def _padded_inputs(variant: int, seed: int) -> Inputs:
    """Text with a padding mask, the way a tokenizer hands it over."""
    batch, length = TEXT_SHAPES[variant]
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, -3:] = 0
    return (), {"input_ids": _tokens((batch, length), _generator(seed, variant)), "attention_mask": mask}


def _seq2seq_inputs(**extra: Any) -> MakeInputs:
    def make(variant: int, seed: int) -> Inputs:
        batch, length = TEXT_SHAPES[variant]
        generator = _generator(seed, variant)
        ids = {
            "input_ids": _tokens((batch, length), generator),
            "decoder_input_ids": _tokens((batch, length // 2), generator),
        }
        return (), {**ids, **extra}

    return make


def _image_inputs(variant: int, seed: int) -> Inputs:
    shape = (IMAGE_BATCHES[variant], 3, IMAGE_SIZE, IMAGE_SIZE)
    return (), {"pixel_values": torch.randn(shape, generator=_generator(seed, variant))}


def _audio_inputs(variant: int, seed: int) -> Inputs:
    shape = ((2, 800), (2, 1200), (1, 1000))[variant]
    return (), {"input_values": torch.randn(shape, generator=_generator(seed, variant))}


def _speech_inputs(variant: int, seed: int) -> Inputs:
    """Mel features of a fixed length with a target text, as Whisper wants them."""
    generator = _generator(seed, variant)
    batch = IMAGE_BATCHES[variant]
    return (), {
        "input_features": torch.randn((batch, 8, 40), generator=generator),
        "decoder_input_ids": _tokens((batch, 6), generator),
        "use_cache": False,
    }


def _image_text_inputs(variant: int, seed: int) -> Inputs:
    batch, length = TEXT_SHAPES[variant]
    return (), {
        "input_ids": _tokens((batch, length), _generator(seed, variant)),
        "pixel_values": _image_inputs(variant, seed)[1]["pixel_values"],
    }


def _from_transformers(name: str, model: str, config: str, make_inputs: MakeInputs, **values: Any) -> None:
    def build() -> tuple[nn.Module, MakeInputs]:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**values)), make_inputs

    _builders[name] = build
    _classes[name] = model, make_inputs


# Two layers, hidden size 32, four heads: the names under which most configurations know them.
_ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": IMAGE_SIZE,
    "patch_size": 8,
}
_SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 32,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def _encoders() -> None:
    def add(name: str, model: str, config: str, **values: Any) -> None:
        _from_transformers(name, model, config, _text_inputs(), **{**_ENCODER, **values})

    add("bert", "BertForMaskedLM", "BertConfig")
    add("roberta", "RobertaForMaskedLM", "RobertaConfig", pad_token_id=1)
    add("xlm_roberta", "XLMRobertaForSequenceClassification", "XLMRobertaConfig", pad_token_id=1)
    add("camembert", "CamembertForTokenClassification", "CamembertConfig", pad_token_id=1)
    add("electra", "ElectraForPreTraining", "ElectraConfig", embedding_size=16)
    add("albert", "AlbertForMaskedLM", "AlbertConfig", embedding_size=16)
    add("mpnet", "MPNetForMaskedLM", "MPNetConfig")
    add("deberta_v2", "DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"])
    add("convbert", "ConvBertModel", "ConvBertConfig", embedding_size=32)
    add("roformer", "RoFormerModel", "RoFormerConfig", embedding_size=32)
    add("squeezebert", "SqueezeBertModel", "SqueezeBertConfig", embedding_size=32)
    add("fnet", "FNetForMaskedLM", "FNetConfig", type_vocab_size=4)
    add("ernie", "ErnieModel", "ErnieConfig")
    add("megatron_bert", "MegatronBertModel", "MegatronBertConfig")
    add("layoutlm", "LayoutLMModel", "LayoutLMConfig")
    add("esm", "EsmForMaskedLM", "EsmConfig", pad_token_id=1, mask_token_id=4, token_dropout=False)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    add("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", attn_implementation="sdpa", **special)
    mobile = {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}
    add("mobilebert", "MobileBertForMaskedLM", "MobileBertConfig", **mobile)
    distil = {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    _from_transformers("distilbert", "DistilBertForMaskedLM", "DistilBertConfig", _text_inputs(), **distil)
    funnel = {"vocab_size": VOCAB, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}
    blocks = {"block_sizes": [1, 1], "num_decoder_layers": 1}
    _from_transformers("funnel", "FunnelModel", "FunnelConfig", _text_inputs(), **funnel, **blocks)
    xlnet = {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
    _from_transformers("xlnet", "XLNetModel", "XLNetConfig", _text_inputs(use_mems=False), **xlnet)
    _from_transformers("bert-padded", "BertForMaskedLM", "BertConfig", _padded_inputs, **_ENCODER)
    tuples = _text_inputs(output_hidden_states=True, output_attentions=True, return_dict=False)
    all_outputs = {**_ENCODER, "attn_implementation": "eager"}
    _from_transformers("bert-tuples", "BertForMaskedLM", "BertConfig", tuples, **all_outputs)


def _decoders() -> None:
    def add(name: str, model: str, config: str, **values: Any) -> None:
        _from_transformers(name, model, config, _text_inputs(), **{**_DECODER, **values})

    def add_plain(name: str, model: str, config: str, **values: Any) -> None:
        special = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
        _from_transformers(name, model, config, _text_inputs(), **{**special, **values})

    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    add_plain("gpt2", "GPT2LMHeadModel", "GPT2Config", **gpt2)
    add_plain("codegen", "CodeGenForCausalLM", "CodeGenConfig", **gpt2, rotary_dim=4)
    add_plain("gptj", "GPTJForCausalLM", "GPTJConfig", **gpt2, rotary_dim=4)
    add_plain("gpt_bigcode", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", **gpt2)
    neo = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64, "window_size": 8}
    add_plain("gpt_neo", "GPTNeoForCausalLM", "GPTNeoConfig", **neo, attention_types=[[["global", "local"], 1]])
    bloom = {"hidden_size": 32, "n_layer": 2, "n_head": 4}
    add_plain("bloom", "BloomForCausalLM", "BloomConfig", **bloom)
    mpt = {"d_model": 32, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2, "max_seq_len": 64}
    add_plain("mpt", "MptForCausalLM", "MptConfig", **mpt)
    falcon = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    add_plain("falcon", "FalconForCausalLM", "FalconConfig", **falcon)
    mamba = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4}
    add_plain("mamba", "MambaForCausalLM", "MambaConfig", **mamba)
    opt = {"ffn_dim": 64, "word_embed_proj_dim": 32}
    add("opt", "OPTForCausalLM", "OPTConfig", **opt)
    add("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig")
    add("llama", "LlamaForCausalLM", "LlamaConfig")
    add("mistral", "MistralForCausalLM", "MistralConfig", sliding_window=8)
    add("mixtral", "MixtralForCausalLM", "MixtralConfig", num_local_experts=4)
    add("qwen2", "Qwen2ForCausalLM", "Qwen2Config")
    add("qwen3", "Qwen3ForCausalLM", "Qwen3Config", head_dim=8)
    add("gemma", "GemmaForCausalLM", "GemmaConfig", head_dim=8)
    add("gemma2", "Gemma2ForCausalLM", "Gemma2Config", head_dim=8, query_pre_attn_scalar=8, sliding_window=8)
    add("phi", "PhiForCausalLM", "PhiConfig")
    add("phi3", "Phi3ForCausalLM", "Phi3Config")
    add("olmo", "OlmoForCausalLM", "OlmoConfig")
    add("olmo2", "Olmo2ForCausalLM", "Olmo2Config")
    add("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config")
    add("stablelm", "StableLmForCausalLM", "StableLmConfig")
    add("granite", "GraniteForCausalLM", "GraniteConfig")
    add("cohere", "CohereForCausalLM", "CohereConfig")
    add("glm", "GlmForCausalLM", "GlmConfig", head_dim=8)
    # By default the output carries a new key-value cache; these go without it, or have a padding mask.
    without = _text_inputs(use_cache=False)
    special = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
    _from_transformers("gpt2-uncached", "GPT2LMHeadModel", "GPT2Config", without, **special, **gpt2)
    _from_transformers("llama-uncached", "LlamaForCausalLM", "LlamaConfig", without, **_DECODER)
    _from_transformers("llama-padded", "LlamaForCausalLM", "LlamaConfig", _padded_inputs, **_DECODER)


def _encoder_decoders() -> None:
    def add(name: str, model: str, config: str, **values: Any) -> None:
        _from_transformers(name, model, config, _seq2seq_inputs(use_cache=False), **{**_SEQ2SEQ, **values})

    t5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    start = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    plain = _seq2seq_inputs(use_cache=False)
    _from_transformers("t5", "T5ForConditionalGeneration", "T5Config", plain, **t5, **start)
    add("bart", "BartForConditionalGeneration", "BartConfig")
    add("mbart", "MBartForConditionalGeneration", "MBartConfig")
    add("pegasus", "PegasusForConditionalGeneration", "PegasusConfig")
    add("marian", "MarianMTModel", "MarianConfig")
    add("blenderbot", "BlenderbotForConditionalGeneration", "BlenderbotConfig")
    _from_transformers("t5-cache", "T5ForConditionalGeneration", "T5Config", _seq2seq_inputs(), **t5, **start)


def _vision_and_audio() -> None:
    def add(name: str, model: str, config: str, **values: Any) -> None:
        _from_transformers(name, model, config, _image_inputs, **values)

    add("vit", "ViTForImageClassification", "ViTConfig", **_VISION)
    add("deit", "DeiTForImageClassification", "DeiTConfig", **_VISION)
    add("dinov2", "Dinov2Model", "Dinov2Config", **{**_VISION, "mlp_ratio": 2})
    add("beit", "BeitForImageClassification", "BeitConfig", **_VISION, use_relative_position_bias=True)
    swin = {"image_size": IMAGE_SIZE, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
    add("swin", "SwinForImageClassification", "SwinConfig", **swin, window_size=4)
    convnext = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}
    add("convnext", "ConvNextForImageClassification", "ConvNextConfig", **convnext)
    resnet = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    add("resnet_hf", "ResNetForImageClassification", "ResNetConfig", **resnet)
    segformer = {
        "hidden_sizes": [16, 32],
        "depths": [1, 1],
        "num_encoder_blocks": 2,
        "sr_ratios": [2, 1],
        "patch_sizes": [3, 3],
        "strides": [2, 2],
        "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 32,
    }
    add("segformer", "SegformerForImageClassification", "SegformerConfig", **segformer)
    _from_transformers("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", _audio_inputs, **_SPEECH)
    _from_transformers("hubert", "HubertModel", "HubertConfig", _audio_inputs, **_SPEECH)
    whisper = {**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
    del whisper["max_position_embeddings"]
    _from_transformers("whisper", "WhisperForConditionalGeneration", "WhisperConfig", _speech_inputs, **whisper)
    text = {**_ENCODER, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    clip = {"text_config": text, "vision_config": _VISION, "projection_dim": 16}
    _from_transformers("clip", "CLIPModel", "CLIPConfig", _image_text_inputs, **clip)


class MLP(nn.Module):
    """Linear layers with an activation that is stored as a plain function."""

    def __init__(self, sizes: tuple[int, ...] = (24, 48, 48, 8), dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.activation = torch.relu
        self.dropout = nn.Dropout(dropout)
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index + 1 < len(self.layers):
                x = self.dropout(self.activation(x))
        return x * self.scale


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = x if self.shortcut is None else self.shortcut(x)
        x = torch.relu(self.first_norm(self.first(x)))
        x = self.second_norm(self.second(x))
        return nn.functional.relu(x + same, inplace=True)


class ResNet(nn.Module):
    """A small residual network."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 16), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(Residual(a, b, 1 if a == b else 2) for a, b in pairs))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def _torch_models() -> None:
    def add(name: str, build: Callable[[], tuple[nn.Module, MakeInputs]]) -> None:
        _builders[name] = build
        _without_transformers.add(name)

    def floats(*shapes: tuple[int, ...]) -> MakeInputs:
        def make(variant: int, seed: int) -> Inputs:
            return (torch.randn(shapes[variant], generator=_generator(seed, variant)),), {}

        return make

    def transformer_encoder(fast: bool) -> tuple[nn.Module, MakeInputs]:
        # Torch's fused inference path knows ReLU and GELU only.
        activation = nn.functional.gelu if fast else nn.functional.silu
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation=activation, batch_first=True, norm_first=not fast)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), floats((2, 16, 32), (3, 24, 32), (1, 9, 32))

    images = floats(*((batch, 3, IMAGE_SIZE, IMAGE_SIZE) for batch in IMAGE_BATCHES))
    add("mlp", lambda: (MLP(), floats((4, 24), (7, 24), (1, 24))))
    add("resnet", lambda: (ResNet(), images))
    add("transformer_encoder", functools.partial(transformer_encoder, False))
    add("transformer_encoder_fast", functools.partial(transformer_encoder, True))


_torch_models()
_encoders()
_decoders()
_encoder_decoders()
_vision_and_audio()
