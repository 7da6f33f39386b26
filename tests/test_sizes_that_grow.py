"""Everyday calls of compiled functions with sizes that grow: soon captured for all, and eager's to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

torch.manual_seed(0)
group_norm = nn.GroupNorm(2, 4)
batch_norm = nn.BatchNorm1d(4).eval()
instance_norm = nn.InstanceNorm1d(4)
gru = nn.GRU(4, 4, batch_first=True)
rnn = nn.RNN(4, 4, batch_first=True)
mha = nn.MultiheadAttention(4, 2, batch_first=True).eval()
convolution = nn.Conv1d(4, 4, 3, padding=1)
transposed = nn.ConvTranspose1d(4, 4, 2, 2)
embedding = nn.Embedding(10, 4)
decoder = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True).eval()
bilinear = nn.Bilinear(4, 4, 3)

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "interpolate": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2, mode="linear"),
    "interpolate_to_size": lambda x: F.interpolate(x.transpose(1, 2), size=(x.shape[1] * 2,)),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 3),
    "global_pool": lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1),
    "adaptive_max": lambda x: F.adaptive_max_pool1d(x.transpose(1, 2), 2),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "pad": lambda x: F.pad(x, (0, 0, 1, 1)),
    "pad_reflecting": lambda x: F.pad(x.transpose(1, 2), (1, 1), mode="reflect"),
    "pad_circular": lambda x: F.pad(x.transpose(1, 2), (1, 1), mode="circular"),
    "roll": lambda x: x.roll(1, 1),
    "roll_all": lambda x: x.roll(1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "tril": lambda x: (x @ x.mT).tril(),
    "causal": lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1),
    "cumsum": lambda x: x.cumsum(1).cumprod(1),
    "einsum": lambda x: torch.einsum("btd,bsd->bts", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([2], [2])),
    "chunk": lambda x: x.chunk(2, -1),
    "chunk_of_the_open": lambda x: x.chunk(2, 1)[0],
    "split": lambda x: x.split(2, 1)[0] + 1,
    "meshgrid": lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij"),
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[1]) % 3, 3),
    "gather": lambda x: x.gather(1, torch.zeros(x.shape[0], 1, 4, dtype=torch.long)),
    "topk": lambda x: x.topk(2, 1).values,
    "topk_of_the_open": lambda x: x.topk(x.shape[1] // 2, 1).values,
    "sort": lambda x: x.sort(1),
    "cross_entropy": lambda x: F.cross_entropy(x.flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long)),
    "cdist": lambda x: torch.cdist(x, x),
    "convolution": lambda x: convolution(x.transpose(1, 2)),
    "transposed_convolution": lambda x: transposed(x.transpose(1, 2)),
    "group_norm": lambda x: group_norm(x.transpose(1, 2)),
    "batch_norm": lambda x: batch_norm(x.transpose(1, 2)),
    "instance_norm": lambda x: instance_norm(x.transpose(1, 2)),
    "gru": lambda x: gru(x)[0],
    "rnn": lambda x: rnn(x)[0],
    "attention": lambda x: mha(x, x, x)[0],
    "attention_without_weights": lambda x: mha(x, x, x, need_weights=False)[0],
    "decoder_layer": lambda x: decoder(x, x),
    "causal_attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "masked_attention": lambda x: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    ),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "tile": lambda x: x.tile(2),
    "stack": lambda x: torch.stack([x, x], 1).flatten(1, 2),
    "kron": lambda x: torch.kron(x[0], torch.eye(2)),
    "outer": lambda x: torch.outer(x[0, :, 0], x[0, :, 1]),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 1:]),
    "patches": lambda x: F.unfold(x[:, None], (2, 2)),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.transpose(1, 2)[..., None], 2),
    "grid_sample": lambda x: F.grid_sample(x[:, None], torch.zeros(x.shape[0], 3, 3, 2), align_corners=False),
    "stft": lambda x: torch.stft(x[..., 0], 4, hop_length=2, window=torch.hann_window(4), return_complex=True),
    "fft": lambda x: torch.fft.rfft(x, dim=1),
    "embedding": lambda x: embedding((x[..., 0] * 3).long().clamp(0, 9)),
    "standardise": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "norm": lambda x: F.normalize(x, dim=1),
    "softmax_over_the_open": lambda x: x.softmax(1).logsumexp(1),
    "max_pool": lambda x: F.max_pool1d(x.transpose(1, 2), 2),
    "avg_pool": lambda x: F.avg_pool1d(x.transpose(1, 2), 2, ceil_mode=True),
    "flip": lambda x: x.flip(1),
    "diag": lambda x: torch.diagonal(x @ x.mT, dim1=1, dim2=2),
    "diag_embed": lambda x: torch.diag_embed(x[..., 0]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "masked_fill": lambda x: x.masked_fill(torch.arange(x.shape[1])[None, :, None] > 2, 0.0),
    "index": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)],
    "index_put": lambda x: x.clone().index_put_((torch.tensor([0]),), torch.ones(x.shape[1], 4)),
    "slice": lambda x: x[:, 1:-1:2],
    "scatter": lambda x: torch.zeros(x.shape[0], x.shape[1]).scatter(
        1, torch.zeros(x.shape[0], 1, dtype=torch.long), 1.0
    ),
    "median": lambda x: x.median(1).values,
    "quantile": lambda x: x.quantile(0.5, 1),
    "argmax": lambda x: x.argmax(1),
    "bmm": lambda x: torch.bmm(x, x.mT).softmax(-1) @ x,
    "bilinear": lambda x: bilinear(x, x),
    "movedim": lambda x: x.movedim(1, 0).contiguous().view(x.shape[1], -1),
    "unflatten": lambda x: x.reshape(-1, 4).unflatten(0, (x.shape[0], x.shape[1])),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[1])[None, :, None] * x,
    "full": lambda x: torch.full((x.shape[1],), float("-inf")),
    "positions": lambda x: x + torch.outer(torch.arange(x.shape[1]), 1 / 10000 ** (torch.arange(0, 4) / 4)).sin(),
    "block_diag": lambda x: torch.block_diag(x[0], x[0]),
    "cartesian_prod": lambda x: torch.cartesian_prod(torch.arange(x.shape[1]), torch.arange(2)),
    "tril_indices": lambda x: (x @ x.mT)[
        :, torch.tril_indices(x.shape[1], x.shape[1])[0], torch.tril_indices(x.shape[1], x.shape[1])[1]
    ],
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0])),
    "searchsorted": lambda x: torch.searchsorted(x[0, :, 0].sort().values, torch.tensor([0.0])),
    "cosine_similarity": lambda x: F.cosine_similarity(x[:, :, None], x[:, None], dim=-1),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
    "losses": lambda x: (
        F.mse_loss(x, x * 2) + F.smooth_l1_loss(x, x * 3) + F.binary_cross_entropy_with_logits(x, x.sigmoid())
    ),
    "activations": lambda x: F.glu(x) + F.silu(x[..., :2]) + F.mish(x[..., :2]) + F.hardswish(x[..., :2]),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3) + torch.addcmul(x, x, x, value=0.5),
    "singular_values": lambda x: torch.linalg.svdvals(x),
    "inverse": lambda x: torch.linalg.inv(x.mT @ x + torch.eye(4)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + 5 * torch.eye(x.shape[1])),
    "solve": lambda x: torch.linalg.solve(x @ x.mT + 5 * torch.eye(x.shape[1]), x),
    "random": lambda x: x + torch.randn_like(x) * torch.rand(x.shape[1], 1),
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x[0].softmax(-1), 2),
    "randperm": lambda x: x[:, torch.randperm(x.shape[1])],
    "pad_sequence": lambda x: nn.utils.rnn.pad_sequence([x[0], x[0, :1]], batch_first=True),
    "loop_over_columns": lambda x: sum(t * i for i, t in enumerate(x.unbind(-1))),
    "loop_over_rows": lambda x: torch.stack([r.sum() for r in x[:, 0]]),
    "comprehension": lambda x: torch.cat([x[:, i : i + 1] for i in range(2)], 1),
    "fold": lambda x: F.fold(F.unfold(x[:, None], (1, 2)), (x.shape[1], 4), (1, 2)),
    "ctc_loss": lambda x: F.ctc_loss(
        x.transpose(0, 1).log_softmax(-1),
        torch.ones(x.shape[0], 2, dtype=torch.long),
        torch.full((x.shape[0],), x.shape[1]),
        torch.full((x.shape[0],), 2),
    ),
}
# Captured for each size, because torch takes plain numbers there, or because how many results there are depends on it.
FIXED = {"linspace", "tril_indices", "split"}


@pytest.fixture(autouse=True)
def without_gradients():
    magneto.reset()
    with torch.no_grad():
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_sizes_that_grow_are_soon_captured_for_all(name: str) -> None:
    plain, compiled = CALLS[name], magneto.compile(CALLS[name])
    for turn in range(8):
        x = torch.randn(2 + (turn > 4), 4 + turn, 4)
        torch.manual_seed(turn)
        expected = tree_leaves(plain(x))
        torch.manual_seed(turn)
        for ours, theirs in zip(tree_leaves(compiled(x)), expected, strict=True):
            assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
            assert torch.equal(ours.nan_to_num(math.pi), theirs.nan_to_num(math.pi))
    assert (magneto.counters["stats"]["captures"] > 4) == (name in FIXED)
