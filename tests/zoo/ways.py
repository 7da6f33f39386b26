"""The ways in which models of the zoo are called: masks, labels, all outputs, a cache, `generate()`.

A case is a model and a way, or a program of `handmade`; `names()` lists them, and `get(name)` builds one. A name gives
the same weights each time, so an eager case and a compiled one can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from . import handmade, models

Compiler = Callable[[Any], Any]
Call = Callable[[str, Any, dict[str, Any], int], Any]

NEW_TOKENS = 16
_WITHOUT_MASK = {"fnet", "mamba"}
_WITHOUT_ATTENTIONS = {"fnet", "mamba", "convnext", "resnet_hf"}
_PER_TOKEN = ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForTokenClassification")
_PER_ROW = ("ForSequenceClassification", "ForImageClassification")
_SEQ2SEQ = ("ForConditionalGeneration", "MTModel")
_GENERATING = ("ForCausalLM", "LMHeadModel", *_SEQ2SEQ)
_CACHES = ("past_key_values", "cache_params")
# The models that are tried in every way where there is no time for all of them.
_SAMPLE = {"bert", "megatron_bert", "xlm_roberta", "gpt2", "llama", "mistral", "bloom", "mamba", "t5", "bart"}
_SAMPLE |= {"vit", "beit", "wav2vec2", "whisper", "clip"}


@dataclass
class Case:
    """Something to compile, and how it is called then."""

    name: str
    target: Callable[..., Any]
    call: Callable[
        [Any, int, int], Any
    ]  # (target, compiled or not; variant of the shapes; seed) -> all there is to see
    module: nn.Module | None = None
    gradients: bool = False
    compiled: Any = field(default=None, init=False)

    def compile(self, compiler: Compiler) -> None:
        self.compiled = compiler(self.target)

    def __call__(self, variant: int, seed: int) -> Any:
        with torch.set_grad_enabled(self.gradients):
            return self.call(self.target if self.compiled is None else self.compiled, variant, seed)


class ForwardCase(Case):
    """What is compiled is put in place of the module's `forward`, for methods that call the module itself."""

    def compile(self, compiler: Compiler) -> None:
        assert self.module is not None
        self.compiled = self.module.forward = compiler(self.module.forward)

    def __call__(self, variant: int, seed: int) -> Any:
        with torch.no_grad():
            return self.call(self.module, variant, seed)


def _ends(name: str, endings: tuple[str, ...]) -> bool:
    return models.class_name(name).endswith(endings)


def _main(kwargs: dict[str, Any]) -> torch.Tensor:
    """The argument that the others go with: tokens, pixels or a wave."""
    return next(iter(kwargs.values()))


def _plain(name: str, model: Any, kwargs: dict[str, Any], seed: int) -> Any:
    return model(**kwargs)


def _padded(name: str, model: Any, kwargs: dict[str, Any], seed: int) -> Any:
    """A mask as tokenizers make it; how much is padding differs from call to call."""
    mask = torch.ones(_main(kwargs).shape, dtype=torch.long)
    mask[-1, mask.shape[1] - (2 + seed % 3) * mask.shape[1] // 16 :] = 0
    kwargs["attention_mask"] = mask
    return model(**kwargs)


def _labelled(name: str, model: Any, kwargs: dict[str, Any], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    rows = _main(kwargs).shape[0]
    if name == "clip":
        return model(**kwargs, return_loss=True)
    if _ends(name, _PER_ROW):
        labels = torch.randint(0, 2, (rows,), generator=generator)
    elif _ends(name, ("ForTokenClassification", "ForPreTraining")):
        labels = torch.randint(0, 2, _main(kwargs).shape, generator=generator)
    elif _ends(name, ("ForCTC",)):
        labels = torch.randint(1, 32, (rows, 5), generator=generator)
    elif _ends(name, _SEQ2SEQ):
        labels = kwargs.pop("decoder_input_ids")
    else:
        labels = _main(kwargs).clone()
    return model(**kwargs, labels=labels)


def _all_outputs(name: str, model: Any, kwargs: dict[str, Any], seed: int) -> Any:
    attentions = {} if name in _WITHOUT_ATTENTIONS else {"output_attentions": True}
    return model(**kwargs, output_hidden_states=True, **attentions)


def _cached(name: str, model: Any, kwargs: dict[str, Any], seed: int) -> Any:
    """A call that makes a cache, then one more token with it."""
    generator = torch.Generator().manual_seed(seed)
    first = model(**{**kwargs, "use_cache": True})
    token = torch.randint(3, models.VOCAB, (_main(kwargs).shape[0], 1), generator=generator)
    seen = [value.clone() for key, value in first.items() if isinstance(value, torch.Tensor)]
    arguments = {key: first[key] for key in _CACHES if first.get(key) is not None}
    if "encoder_last_hidden_state" in first:
        arguments |= {"encoder_outputs": (first.encoder_last_hidden_state,), "decoder_input_ids": token}
    else:
        arguments["input_ids"] = token
    return seen, model(**arguments, use_cache=True)


def _generated(name: str, model: Any, kwargs: dict[str, Any], seed: int) -> Any:
    """Greedy, with the logits, in which a difference shows that tokens would hide."""
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    if name == "whisper":
        options |= {"max_new_tokens": 8, "min_new_tokens": 8}
    prompt = {key: value for key, value in kwargs.items() if key not in ("decoder_input_ids", "use_cache")}
    result = model.generate(**prompt, **options, return_dict_in_generate=True, output_logits=True)
    return result["sequences"], list(result["logits"])


def _takes_mask(name: str) -> bool:
    return name not in _WITHOUT_MASK and bool({"input_ids", "input_values"} & set(models.inputs(name)(0, 0)[1]))


def _takes_labels(name: str) -> bool:
    return name == "clip" or _ends(name, (*_PER_TOKEN, *_PER_ROW, *_SEQ2SEQ, "ForPreTraining", "ForCTC"))


def _generates(name: str) -> bool:
    return _ends(name, _GENERATING)


# The variants of a model that the zoo has under names of their own are ways of calling already.
_WAYS: dict[str, tuple[Call, Callable[[str], bool]]] = {
    "plain": (_plain, lambda name: True),
    "padded": (_padded, _takes_mask),
    "labels": (_labelled, _takes_labels),
    "outputs": (_all_outputs, lambda name: True),
    "cache": (_cached, _generates),
    "generate": (_generated, _generates),
    "generate_module": (_generated, _generates),
}


def names() -> list[str]:
    """Every case that can be built here, `model/way`, and the programs written by hand."""
    plain = [name for name in models.transformers_names() if "-" not in name]
    return [*handmade.names(), *(f"{name}/{way}" for name in plain for way, (_, fits) in _WAYS.items() if fits(name))]


def sample() -> list[str]:
    """The programs written by hand, and some models in every way."""
    return [name for name in names() if "/" not in name or name.partition("/")[0] in _SAMPLE]


def get(name: str) -> Case:
    """A fresh copy of a case; what it holds depends on nothing but its name."""
    if name in handmade.names():
        program = handmade.get(name)
        return Case(name, program.target, program.call, program.module, program.gradients)
    model, _, way = name.partition("/")
    module, make_inputs = models.get(model)
    call = _WAYS[way][0]
    if way == "outputs" and model not in _WITHOUT_ATTENTIONS:
        module.set_attn_implementation("eager")

    def call_with_inputs(target: Any, variant: int, seed: int) -> Any:
        _, kwargs = make_inputs(variant, seed)
        given = dict(kwargs)
        return call(model, target, kwargs, seed), given

    kind = ForwardCase if way == "generate" else Case
    return kind(name, module, call_with_inputs, module)
