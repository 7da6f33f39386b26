"""Shape rules say what the real kernels give: every call of every rule is compared with the kernel itself."""

import collections
import contextlib
import itertools
import warnings

import pytest
import torch
from magneto import _C
from op_samples import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

RULES = frozenset(_C._rule_names())


def tensors(values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def describe(result, arguments: list[torch.Tensor]):
    """What a rule must get right about a result; `arguments` are what it may share its memory with."""
    if isinstance(result, (list, tuple)):
        return [describe(item, arguments) for item in result]
    if not isinstance(result, torch.Tensor):
        return result
    memory = result.untyped_storage()._cdata
    shared = [i for i, argument in enumerate(arguments) if argument.untyped_storage()._cdata == memory]
    bits = (result.is_conj(), result.is_neg())
    place = (result.stride(), result.storage_offset())
    return (result.dtype, str(result.device), tuple(result.shape), place, bits, shared)


class Compare(TorchDispatchMode):
    """While on, applies the rule of each operator that runs and compares it with what the kernel gives."""

    def __init__(self) -> None:
        super().__init__()
        self.covered: collections.Counter[str] = collections.Counter()
        self.declined: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = f"{op._schema.name}.{op._schema.overload_name}".rstrip(".")
        if name not in RULES or any(t.layout != torch.strided for t in tensors((args, kwargs))):
            self.declined[name] += 1
            return op(*args, **kwargs)
        error = None
        with torch._C._DisableTorchDispatch():
            try:
                answer = _C._apply_rule(name, args, kwargs)
            except Exception as raised:  # fine if the kernel raises one, too
                error = raised
        result = op(*args, **kwargs)
        if error:
            self.wrong.append(f"{name} {error!r}")
            return result
        if answer is None:
            self.declined[name] += 1
            return result
        self.covered[name] += 1
        with torch._C._DisableTorchDispatch():
            self.check(name, args, kwargs, answer, result)
        return result

    def check(self, name, args, kwargs, answer, result) -> None:
        traces, inferred = answer
        expected = describe(list(result) if isinstance(result, tuple) else [result], tensors((args, kwargs)))
        found = describe(inferred, [trace for trace in traces if trace is not None])
        if expected != found:
            shown = tree_map_only(torch.Tensor, lambda t: (tuple(t.shape), t.stride(), t.dtype), (args, kwargs))
            self.wrong.append(f"{name}{shown}\n  kernel {expected}\n  rule   {found}")


def layouts(tensor: torch.Tensor):
    """The same shape in other layouts: memory permuted, spaced out, moved, repeated."""
    yield tensor
    if tensor.dim() == 0:
        return
    yield tensor.repeat(*[1] * (tensor.dim() - 1), 2)[..., ::2]
    yield tensor[:1].expand(tensor.shape) if tensor.shape[0] else tensor
    if tensor.dim() >= 2:
        yield tensor.transpose(0, -1).contiguous().transpose(0, -1)
        yield tensor.transpose(-2, -1).contiguous().transpose(-2, -1)
        yield tensor.expand(2, *tensor.shape).transpose(0, 1).contiguous()[:, 1]
        yield tensor[..., :1].expand(tensor.shape) if tensor.shape[-1] else tensor
    if tensor.dim() == 4:
        yield tensor.contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        yield tensor.contiguous(memory_format=torch.channels_last_3d)


def relayout(sample, start: int):
    """The sample with its tensors in different layouts, from the `start`th on."""
    turn = itertools.count(start)

    def change(value):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        made = list(layouts(value.detach()))
        return made[next(turn) % len(made)].requires_grad_(value.requires_grad)

    return sample.transform(change)


def run_sample(op, sample, differentiate: bool, start: int) -> None:
    result = op(sample.input, *sample.args, **sample.kwargs)
    if not differentiate:
        return
    outputs = [t for t in tensors(result) if t.requires_grad]
    inputs = [t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
    gradients = []
    for output in outputs:
        made = list(layouts(torch.ones_like(output)))
        gradients.append(made[start % len(made)])
    if outputs and inputs:
        torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)


def sweep(op, dtype: torch.dtype, limit: int, variants: int) -> Compare:
    compare = Compare()
    differentiate = dtype.is_floating_point and op.supports_autograd
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiate), limit):
            for start in range(variants):
                with compare, contextlib.suppress(*REFUSALS):
                    run_sample(op, relayout(sample, start) if start else sample, differentiate, start // 2)
    return compare


# A kernel refuses an argument, or the layout that we gave it.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError)
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


@pytest.mark.parametrize("op", op_db, ids=lambda op: op.formatted_name)
def test_rules_agree_with_the_kernels_on_samples(op, request):
    full = request.config.getoption("--full")
    for dtype in DTYPES if full else DTYPES[:1]:
        if dtype in op.supported_dtypes("cpu"):
            compare = sweep(op, dtype, limit=20 if full else 3, variants=8 if full else 2)
            assert not compare.wrong, f"{len(compare.wrong)} wrong:\n" + "\n".join(compare.wrong[:5])


def small_models():
    """(name, a function that makes a model and its arguments), each small enough for a test."""
    from torch import nn
    from transformers import models as hub

    tokens = torch.arange(16).reshape(2, 8) * 7 % 61
    images = torch.rand(2, 3, 32, 32)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {"vocab_size": 61, **sizes}

    def residual(channels_last: bool):
        model = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        model.extend(
            [Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(16, 4)]
        )
        form = torch.channels_last if channels_last else torch.contiguous_format
        return model.to(memory_format=form), (images.to(memory_format=form),), {}

    def language(model, config):
        return model(config), (), {"input_ids": tokens, "labels": tokens}

    gpt2 = hub.gpt2.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    t5 = hub.t5.T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    t5.decoder_start_token_id = 0
    vit = {"image_size": 32, "patch_size": 8, **sizes}
    grouped = {"num_key_value_heads": 2, **text}
    mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4), nn.LogSoftmax(-1))
    encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1)
    return {
        "mlp": lambda: (mlp, (torch.rand(4, 8),), {}),
        "residual": lambda: residual(False),
        "residual channels last": lambda: residual(True),
        "encoder": lambda: (encoder, (torch.rand(5, 2, 16),), {}),
        "lstm": lambda: (
            nn.LSTM(8, 16, 2, batch_first=True, dropout=0.1, bidirectional=True),
            (torch.rand(2, 5, 8),),
            {},
        ),
        "gru": lambda: (nn.GRU(8, 16, bidirectional=True), (torch.rand(5, 2, 8),), {}),
        "gpt2": lambda: language(hub.gpt2.GPT2LMHeadModel, gpt2),
        "bert": lambda: language(hub.bert.BertForMaskedLM, hub.bert.BertConfig(**text)),
        "llama": lambda: language(hub.llama.LlamaForCausalLM, hub.llama.LlamaConfig(**grouped)),
        "mixtral": lambda: language(
            hub.mixtral.MixtralForCausalLM, hub.mixtral.MixtralConfig(**grouped, num_local_experts=4)
        ),
        "t5": lambda: language(hub.t5.T5ForConditionalGeneration, t5),
        "vit": lambda: (
            hub.vit.ViTForImageClassification(hub.vit.ViTConfig(**vit)),
            (images,),
            {"labels": torch.tensor([0, 1])},
        ),
    }


class Residual(torch.nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(outer),
            torch.nn.ReLU(inplace=True),
        )
        self.second = torch.nn.Sequential(
            torch.nn.Conv2d(outer, outer, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(outer)
        )
        self.short = torch.nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.short(x))


def needs_no_rule(name: str) -> bool:
    """In-place operators return their argument, and the answers of data-dependent ones are asked from the user."""
    return name.split(".")[0].endswith("_") or name == "aten::_local_scalar_dense"


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("model", small_models())
def test_models_train_and_run_with_rules_alone(model, dtype):
    if model == "lstm" and dtype:
        pytest.skip("eager itself has no fused LSTM in bfloat16 on every CPU")
    module, args, kwargs = small_models()[model]()
    compare = Compare()
    for train in (True, False):
        module.train(train)
        with compare, torch.autocast("cpu", dtype, enabled=dtype is not None):
            result = module(*args, **kwargs)
            (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
    with compare, torch.no_grad():
        module(*args, **kwargs)
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    lacking = {name: count for name, count in compare.declined.items() if not needs_no_rule(name)}
    assert not lacking, f"no rule covers {lacking}"


def calls_with_numbers(matrix: torch.Tensor, image: torch.Tensor):
    aten = torch.ops.aten
    whole = torch.arange(24).reshape(4, 6)
    for op in (aten.__lshift__, aten.__rshift__):
        yield op.Scalar, (whole, 1)
        yield op.Tensor, (whole, whole)
    for op in (aten.bitwise_left_shift, aten.bitwise_right_shift):
        yield op.Tensor_Scalar, (whole, 1)
    for mode in (None, "floor", "trunc"):
        yield aten.div.Scalar_mode, (whole, 2), {"rounding_mode": mode}
    yield aten.fmod.Scalar, (image, 0.3)
    yield aten.fmod.Scalar, (whole, 0.3)
    yield aten.xlogy.Scalar_Other, (image, 2)
    yield aten.xlogy.Scalar_Self, (2, whole)
    for op in (aten.special_xlog1py, aten.special_zeta):
        yield op.other_scalar, (image, 2)
        yield op.self_scalar, (2, whole)
    yield aten.clamp.default, (whole, 2, None)
    yield aten.clamp_min.default, (whole, 2)
    yield aten.clamp.Tensor, (matrix, None, torch.rand(6))
    yield aten.pow.Tensor_Scalar, (whole, 2)
    yield aten.pow.Scalar, (2, whole)
    yield aten.masked_fill.Scalar, (whole, whole > 3, 2)
    yield aten.masked_fill.Scalar, (whole > 5, whole > 3, True)
    yield aten.where.self, (matrix > 0.5, matrix, whole)
    yield aten.arange.start_step, (7, -1, -2)


def calls_on_grids(image: torch.Tensor):
    aten = torch.ops.aten
    volume = torch.rand(2, 3, 4, 5, 6)
    yield aten.im2col.default, (image, [2, 3], [1, 1], [1, 0], [2, 1])
    yield aten.col2im.default, (torch.rand(2, 12, 6), [4, 5], [2, 2], [1, 1], [0, 1], [2, 2])
    yield aten.constant_pad_nd.default, (image, [-1, 0, 0, -1])
    yield aten.constant_pad_nd.default, (image, [-1, 2])
    yield aten._upsample_bicubic2d_aa.default, (image, [3, 3], False)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        yield getattr(aten, f"{name}_backward").default, (image, [4, 5], [2, 3, 8, 9], False)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        yield getattr(aten, f"{name}_backward").default, (image, [4, 5], [2, 3, 8, 9])
    for op in (aten.upsample_nearest3d, aten._upsample_nearest_exact3d):
        yield op.default, (volume, [2, 7, 8])
    for op in (aten.upsample_nearest3d_backward, aten._upsample_nearest_exact3d_backward):
        yield op.default, (volume, [4, 5, 6], [2, 3, 2, 9, 4])
    yield aten.upsample_trilinear3d.default, (volume, [2, 7, 8], False)
    yield aten.upsample_trilinear3d_backward.default, (volume, [4, 5, 6], [2, 3, 2, 9, 4], False)
    for op in (aten.reflection_pad3d, aten.replication_pad3d):
        yield op.default, (volume, [1, 2, 0, 1, 1, 1])
    for op in (aten.reflection_pad3d_backward, aten.replication_pad3d_backward):
        yield op.default, (torch.rand(2, 3, 6, 6, 9), volume, [1, 2, 0, 1, 1, 1])
    for op in (aten.reflection_pad2d_backward, aten.replication_pad2d_backward):
        yield op.default, (torch.rand(2, 3, 5, 8), image, [1, 2, 0, 1])
    yield aten.max_pool1d.default, (image[0], [2], [], [1], [1], True)
    yield aten.max_pool3d_with_indices.default, (volume, [2, 2, 2])
    yield aten.max_pool3d_with_indices.default, (volume[0], [2, 2, 2])
    yield aten.avg_pool3d.default, (volume, [2, 2, 2])
    yield aten.avg_pool3d.default, (volume[0], [2, 2, 2])
    yield aten._adaptive_avg_pool3d.default, (volume, [2, 2, 2])
    yield aten.adaptive_max_pool3d.default, (volume, [2, 2, 2])
    places = torch.zeros(2, 3, 2, 2, 2, dtype=torch.int64)
    pooled = torch.rand(2, 3, 2, 2, 2)
    yield aten._adaptive_avg_pool3d_backward.default, (pooled, volume)
    yield aten.adaptive_max_pool3d_backward.default, (pooled, volume, places)
    pooled, places = aten.max_pool3d_with_indices(volume, [2, 2, 2])
    step = [[2, 2, 2], [2, 2, 2], [0, 0, 0]]
    yield aten.max_pool3d_with_indices_backward.default, (pooled, volume, *step, [1, 1, 1], False, places)
    yield aten.avg_pool3d_backward.default, (pooled, volume, *step, False, True, None)
    yield aten.roll.default, (image, [1, 2], [1, 2])
    yield aten.roll.default, (image[0], [3])


def direct_calls():
    """Calls of operators that samples and models do not reach, as (operator, arguments)."""
    aten = torch.ops.aten
    matrix, cube, image = torch.rand(4, 6), torch.rand(2, 3, 4), torch.rand(2, 3, 4, 5)
    mask = matrix > 0.5
    heads = torch.rand(2, 4, 8, 16)
    yield aten.clamp.default, (image, 0.1, None)
    yield aten.clamp.default, (image, 0, 1)
    yield aten.clamp_min.default, (image, 0.1)
    yield aten.clamp_max.default, (cube, 0.5)
    yield aten.lerp.Tensor, (cube, torch.rand(4), torch.rand(3, 1))
    yield aten.masked_fill.Tensor, (matrix, mask, torch.tensor(1.0))
    yield aten.rand_like.default, (image,)
    yield aten.native_dropout.default, (image, 0.5, True)
    yield aten.sort.stable, (image,), {"stable": True, "dim": 1}
    yield aten.all.dim, (image, 1)
    yield aten.any.dim, (image, -1, True)
    yield aten.max.dim, (image, 2)
    yield aten.cat.default, ([torch.empty(0), cube, cube], -1)
    yield aten.index.Tensor, (image, [None, torch.tensor([[0], [2]]), torch.tensor([1, 3])])
    yield aten.index.Tensor, (image, [torch.tensor([[0], [1]]), None, torch.tensor([1, 3, 2])])
    yield aten.index.Tensor, (cube, [None, torch.tensor([0, 2])])
    yield aten.where.self, (mask, matrix, torch.tensor(0.0))
    yield aten.mul.Tensor, (matrix, torch.tensor(2, dtype=torch.int64))
    yield aten.mul.Tensor, (mask, matrix.T.contiguous().T)
    yield aten.add.Tensor, (torch.ones(4, 6, dtype=torch.int32), mask)
    yield aten.div.Tensor, (torch.ones(4, 6, dtype=torch.int32), mask.T.contiguous().T)
    yield aten.rsub.Tensor, (cube, torch.rand(3, 4))
    yield aten.mul.Scalar, (torch.tensor(3), 2.5)
    yield aten.eq.Scalar, (torch.tensor(3), 2.5)
    for key_heads in (heads, heads[:, :, :5]):
        for causal in (False, True):
            attention = aten._scaled_dot_product_flash_attention_for_cpu.default
            yield attention, (heads, key_heads, key_heads, 0.0, causal)
    steps, memory = torch.rand(2, 5, 8), torch.rand(2, 7, 8)
    projection = (torch.rand(24, 8), torch.rand(24), torch.rand(8, 8), torch.rand(8))
    for key in (steps, memory):
        for needed in ((None, False), (None, True), (None, True, False)):
            yield aten._native_multi_head_attention.default, (steps, key, key, 8, 2, *projection, *needed)
    for kind, shape in enumerate(((5, 5), (2, 5), (2, 2, 5, 5))):
        arguments = (steps, steps, steps, 8, 2, *projection, torch.rand(shape) > 0.5)
        yield aten._native_multi_head_attention.default, (*arguments, True, kind == 0, kind)
        inner = (False, False, 1e-5, *[torch.rand(8)] * 4, torch.rand(16, 8), torch.rand(16), torch.rand(8, 16))
        layer = (steps, 8, 2, *projection, *inner, torch.rand(8), torch.rand(shape), kind)
        yield aten._transformer_encoder_layer_fwd.default, layer
    for side in (cube, cube.mT):
        for full, vectors in ((False, False), (False, True), (True, True)):
            yield aten._linalg_svd.default, (side, full, vectors)
    yield aten.block_diag.default, ([matrix, torch.rand(3), torch.tensor(2), torch.arange(6).reshape(2, 3)],)
    yield from calls_with_numbers(matrix, image)
    yield from calls_on_grids(image)
    yield aten._logcumsumexp.default, (image, 1)
    yield aten.all.dims, (mask, [0, 1], True)
    yield aten.any.dims, (image, [1, 3])
    yield aten.norm.Scalar, (image, 2)
    yield aten.normal.float_Tensor, (0.5, image)
    yield aten.normal.float_float, (0.5, 1.0, [4, 6])
    yield aten.poisson.default, (image,)
    for mode in range(3):
        for padding in (-1, 0):
            bag = (torch.rand(9, 8), torch.arange(6), torch.tensor([0, 2]), False, mode, False, None, False, padding)
            yield aten._embedding_bag.default, bag
            yield aten._embedding_bag_forward_only.default, bag
            yield aten._embedding_bag.default, (bag[0].bfloat16(), *bag[1:])
    yield aten.view_as_real.default, (torch.complex(matrix, matrix),)
    yield aten.view_as_complex.default, (torch.rand(3, 4, 2),)
    yield aten._conj.default, (torch.complex(matrix, matrix),)
    yield aten.clone.default, (torch.complex(matrix, matrix).conj(),)
    yield aten.mul.Tensor, (torch.complex(matrix, matrix), matrix)
    yield aten.add.Tensor, (torch.complex(matrix, matrix), torch.complex(cube[0], cube[1]).sum())
    yield aten.div.Tensor, (torch.complex(matrix, matrix), torch.arange(6))
    yield aten.abs.default, (torch.complex(image, image),)
    rows = torch.rand(12, 16, dtype=torch.bfloat16)
    ends = torch.tensor([4, 12], dtype=torch.int32)
    yield aten._grouped_mm.default, (rows, torch.rand(2, 16, 24, dtype=torch.bfloat16), ends)


@pytest.mark.parametrize("call", direct_calls(), ids=lambda call: str(call[0]))
def test_rules_agree_with_the_kernels_on_direct_calls(call):
    op, args, kwargs = (*call, {})[:3]
    compare = Compare()
    for start in range(12):
        turn = itertools.count(start)

        def change(tensor, turn=turn):
            made = list(layouts(tensor))
            return made[next(turn) % len(made)]

        with compare, contextlib.suppress(*REFUSALS):
            op(*tree_map_only(torch.Tensor, change, args), **kwargs)
    assert not compare.wrong, "\n".join(compare.wrong[:5])
    assert compare.covered


@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
def test_attention_has_the_layouts_of_the_kernel(order):
    def heads(order) -> torch.Tensor:
        whole = torch.rand(*(torch.Size((2, 4, 8))[dim] for dim in order), 16)
        return whole.permute(*(order.index(dim) for dim in range(3)), 3).requires_grad_()

    compare = Compare()
    with compare:
        query, key, value = heads(order), heads((0, 1, 2)), heads((0, 2, 1))
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)
        torch.autograd.grad(result[0].sum(), (query, key, value))
    assert not compare.wrong, "\n".join(compare.wrong)
    assert compare.covered["aten::_scaled_dot_product_flash_attention_for_cpu_backward"]


class Symbolic:
    """Tensors whose first sizes are torch's symbols, and what the rules made them depend on."""

    def __init__(self) -> None:
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)

    def tensor(self, *shape: int, dynamic: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        sizes = [DimDynamic.DYNAMIC if i < dynamic else DimDynamic.STATIC for i in range(len(shape))]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        return self.mode.from_tensor(torch.ones(shape, dtype=dtype), symbolic_context=context)

    def infer(self, name: str, *args, **kwargs) -> torch.Tensor:
        answer = _C._apply_rule(name, args, kwargs)
        assert answer is not None, f"the rule of {name} does not cover symbols"
        return answer[1][0]


def test_symbols_pass_through_rules_without_guards():
    world = Symbolic()
    batch = world.tensor(5, 7, 16, dynamic=2)
    image = world.tensor(5, 3, 8, 8)
    heads = world.tensor(5, 4, 7, 16)
    weight, filters, row = torch.ones(16, 24), torch.ones(6, 3, 3, 3), torch.ones(16)
    size, length = batch.shape[:2]
    cases = {
        "aten::add.Tensor": (batch, row),
        "aten::mul.Scalar": (batch, 2.0),
        "aten::gelu": (batch,),
        "aten::view": (batch, [size * length, 16]),
        "aten::transpose.int": (batch, 0, 2),
        "aten::expand": (world.tensor(5, 1, 16), [-1, 3, -1]),
        "aten::unsqueeze": (batch, 1),
        "aten::slice.Tensor": (batch, 1, 1),
        "aten::select.int": (batch, 2, 0),
        "aten::clone": (batch,),
        "aten::sum.dim_IntList": (batch, [2], True),
        "aten::_softmax": (batch, -1, False),
        "aten::native_layer_norm": (batch, [16], row, row, 1e-5),
        "aten::mm": (world.tensor(5, 16), weight),
        "aten::addmm": (torch.ones(24), world.tensor(5, 16), weight),
        "aten::bmm": (batch, batch.transpose(1, 2)),
        "aten::convolution": (image, filters, None, [1], [1], [1], False, [0], 1),
        "aten::native_batch_norm": (image, None, None, None, None, True, 0.1, 1e-5),
        "aten::_scaled_dot_product_flash_attention_for_cpu": (heads, heads, heads),
        "aten::embedding": (weight, world.tensor(5, 7, dtype=torch.int64)),
        "aten::cat": ([image, image], 1),
        "aten::zeros": ([size, 3],),
    }
    for name, args in cases.items():
        before = len(world.env.guards)
        result = world.infer(name, *args)
        guards = [str(guard.expr) for guard in world.env.guards[before:]]
        assert not guards, f"{name} asked {guards}"
        assert any(isinstance(number, torch.SymInt) for number in (*result.shape, *result.stride())), name
    assert not world.env.replacements
