"""Everyday calls with an open dimension: recorded once, none of them fixes it, and at other sizes they equal eager."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import magneto
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

RECORDED, OTHERS = 6, (5, 12)

# Arguments, as "name: sizes", and a call in each line. Numbers are between 0.1 and 0.9, those of `int9` below 9.
CALLS = [
    (
        "x: n 4",
        """
        x.sum(-1); x.sum(0); x.sum(-1, dtype=torch.float64); (x > 0.5).sum(-1); x.mean((0, 1), keepdim=True)
        x.amax(-1); x.amax(0); x.amin(-1); torch.aminmax(x); torch.aminmax(x, dim=0); torch.aminmax(x, dim=-1)
        x.max(-1); x.max(0); x.min(-1); x.argmax(-1); x.argmin(0); x.argsort(-1); (x > 0.5).all(-1); (x > 0.5).any(0)
        x.std(); x.std(-1); x.std(0); x.var(0, unbiased=False); torch.var_mean(x, -1); torch.std_mean(x, 0)
        x.norm(); x.norm(dim=-1); x.norm(p=1, dim=0); x.norm(p=float("inf"), dim=-1); torch.linalg.norm(x)
        torch.linalg.vector_norm(x, 3, dim=-1); torch.norm(x, 2, -1); torch.linalg.matrix_norm(x)
        x.logsumexp(-1); x.logsumexp((0, 1)); torch.logcumsumexp(x, 0); torch.logcumsumexp(x, 1)
        x.cumsum(0); x.cumsum(1); x.cummax(0); x.cummax(1); x.cummin(1); x.diff(dim=0); x.diff(dim=1)
        x.sort(0); x.sort(dim=1, descending=True, stable=True); x.topk(2, 0); x.topk(2, 1); x.kthvalue(2, 0)
        x.kthvalue(2, 1)
        x.median(0); x.median(1); x.nanmedian(1); x.mode(0); x.mode(1); x.quantile(0.3, dim=0); x.msort()
        x.nansum(); x.nansum(0); x.nanmean(1); torch.count_nonzero(x); torch.count_nonzero(x > 0.5, dim=0); x.trace()
        x.softmax(-1); x.softmax(0); x.log_softmax(-1); x.log_softmax(-1, dtype=torch.float64); F.softmin(x, -1)
        F.gumbel_softmax(x, dim=-1); torch.trapezoid(x, dim=0); torch.cumulative_trapezoid(x, dim=1); x.histc(5, 0, 1)
        x.roll(1, 0); x.roll((1, 2), (0, 1)); x.roll(2); x.flip(0); x.flip((0, 1)); x.fliplr(); x.rot90(); x.tril()
        x.triu(1)
        torch.ones(x.shape[0], x.shape[0]).tril(); x.diag_embed(); torch.eye(x.shape[0], 4) + x; torch.eye(x.shape[0])
        x.repeat(2, 3); torch.ones(3).repeat(x.shape[0], 1); x.tile((2, 2)); x.unsqueeze(1).expand(-1, 3, -1) * 2
        x.repeat_interleave(3, 0); x.repeat_interleave(3, 1); x.repeat_interleave(3); torch.cat([x, torch.zeros(3, 4)])
        x.chunk(2, -1); x.split(3, -1); x.split([1, 3], -1); x.tensor_split(2, -1); x.unbind(-1)
        torch.cat([x, x]).chunk(2)
        x.narrow(1, 1, 2); x[1:, ::2]; x[:-1] - x[1:]; x[-1]; x.t().contiguous(); x.view(-1); x.view(x.shape[0], -1, 2)
        x.t().reshape(-1, 2); x.unflatten(1, (2, -1)); x.flatten().unflatten(0, (-1, 4)); x.unsqueeze(1).squeeze()
        x.unfold(0, 2, 1); x.unfold(1, 2, 1); torch.atleast_3d(x); x.ravel(); x.index_select(1, torch.tensor([2, 0, 1]))
        x.index_fill(1, torch.tensor([2, 0]), 3.0); torch.where(x > 0.5, x, 0.0); torch.where(x > 0.5, 1.0, 0.0)
        x.multinomial(2); torch.bucketize(x, torch.arange(4.0)); torch.searchsorted(torch.arange(4.0), x)
        F.pad(x, (-1, 1)); F.pad(x, (0, 0, 0, x.shape[0])); F.pad(x, (0, 0, 1, 2)); F.normalize(x)
        F.normalize(x, dim=0)
        F.layer_norm(x, (4,)); F.rms_norm(x, (4,)); F.glu(x); F.dropout(x, 0.5); F.alpha_dropout(x, 0.5, True)
        F.pdist(x)
        F.relu(x); F.relu6(x); F.elu(x); F.selu(x); F.celu(x); F.gelu(x); F.gelu(x, approximate="tanh"); F.silu(x)
        F.mish(x)
        F.softplus(x); F.softsign(x); F.hardtanh(x); F.hardswish(x); F.hardsigmoid(x); F.hardshrink(x); F.softshrink(x)
        F.tanhshrink(x); F.leaky_relu(x); F.logsigmoid(x); F.threshold(x, 0.5, 0.1); torch.sigmoid(x); x.tanh()
        x.abs(); x.acos(); (x + 1).acosh(); x.asin(); x.asinh(); x.atan(); x.atanh(); x.ceil(); x.cos(); x.cosh()
        x.deg2rad()
        x.rad2deg(); x.digamma(); x.erf(); x.erfc(); x.erfinv(); x.exp(); x.exp2(); x.expm1(); x.floor(); x.frac()
        x.i0()
        x.lgamma(); x.log(); x.log10(); x.log1p(); x.log2(); x.logit(); x.nan_to_num(); x.neg(); x.reciprocal()
        x.round()
        x.round(decimals=1); x.rsqrt(); x.sign(); x.sin(); x.sinc(); x.sinh(); x.sqrt(); x.square(); x.tan(); x.trunc()
        x.isnan(); x.isinf(); x.isfinite(); x.signbit(); x.angle(); torch.special.entr(x); torch.special.erfcx(x)
        torch.special.i0e(x); torch.special.i1(x); torch.special.i1e(x); torch.special.ndtr(x); torch.special.ndtri(x)
        torch.special.log_ndtr(x); torch.special.bessel_j0(x.detach()); x**2; 2**x; x % 0.3; x.fmod(0.3)
        torch.xlogy(x, 2.0); x.div(0.3, rounding_mode="trunc"); x.clamp(0.2, 0.5); x.clamp(min=0.2); x.clamp_max(0.2)
        x.half(); x.bfloat16() * 2; x.double(); (x * 5).long(); x.clone().fill_(2.0); x.clone().add_(1).mul_(2)
        x.clone().masked_fill_(x > 0.5, 0.0); torch.empty_like(x).copy_(x); x * torch.tensor(2.0)
        torch.einsum("ij->ji", x); torch.einsum("ij->j", x)
        (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1)
        x * torch.clamp(1.0 / (torch.linalg.vector_norm(x) + 1e-6), max=1.0)
        torch.arange(x.shape[0]); torch.arange(0, x.shape[0], 2); torch.arange(x.shape[0] - 1, -1, -1)
        torch.zeros(x.shape[0], 3); torch.ones(x.shape[0], 3); torch.full((x.shape[0], 3), 2.0)
        x.new_zeros(x.shape[0], 3)
        x.new_full((x.shape[0],), 3); torch.full_like(x, 3); torch.rand(x.shape[0], 3); torch.randn(x.shape[0], 3)
        torch.randint(0, 5, (x.shape[0], 3)); torch.randint(x.shape[0], (3,)); torch.randperm(x.shape[0])
        torch.rand_like(x); torch.randint_like(x, 5); torch.randint_like(x, 2, 5); torch.normal(x.detach(), 1.0)
        torch.normal(0.0, 1.0, (x.shape[0], 3)); torch.normal(x.detach(), x.detach()); torch.bernoulli(x.detach(), 0.3)
        torch.poisson(x.detach()); torch.empty_like(x).uniform_(); torch.empty_like(x).normal_()
        torch.view_as_real(torch.fft.fft(x)); torch.fft.rfft(x).abs(); torch.fft.rfft(x, dim=0).abs()
        torch.fft.irfft(torch.fft.rfft(x), 4); torch.fft.ifft(torch.fft.fft(x)).real; torch.fft.fftshift(x, dim=-1)
        """,
    ),
    (
        "x: n 4, y: n 4",
        """
        torch.where(x > 0.5, x, y); torch.stack([x, y], 1); torch.cat([x, y]); torch.cat([x, y], 1)
        torch.hstack([x, y])
        torch.vstack([x, y]); torch.dstack([x, y]); torch.column_stack([x, y]); x.masked_fill(y > 0.5, -1.0)
        torch.dist(x, y); torch.cdist(x, y); F.cosine_similarity(x, y); F.pairwise_distance(x, y); torch.inner(x, y)
        x.t() @ y; torch.einsum("bi,bi->b", x, y); x.clamp(min=y); x.clamp(min=y, max=y + 0.3); torch.lerp(x, y, 0.3)
        torch.lerp(x, y, x); torch.addcmul(x, y, x, value=0.5); torch.addcdiv(x, y, x, value=0.5); torch.isclose(x, y)
        x + y; x - y; x * y; x / y; x.detach() // y.detach(); x % y; x.fmod(y); x**y; x.atan2(y); x.maximum(y)
        x.fmax(y); x.fmin(y); x.hypot(y)
        x.logaddexp(y); x.logaddexp2(y); x.copysign(y); x.detach().nextafter(y.detach())
        x.detach().heaviside(y.detach()); x.xlogy(y); x == y
        x < y; x.logical_and(y); x.logical_xor(y); x.ldexp(y); x.float_power(y); x.div(y, rounding_mode="floor")
        torch._foreach_add([x, y], 1.0); torch._foreach_mul([x, y], [y, x]); torch._foreach_norm([x, y])
        F.l1_loss(x, y); F.kl_div(x.log(), y, reduction="batchmean"); F.kl_div(x.log(), y, reduction="none")
        F.mse_loss(x, y); F.mse_loss(x, y, reduction="sum"); F.mse_loss(x, y, reduction="none"); F.smooth_l1_loss(x, y)
        F.smooth_l1_loss(x, y, reduction="none"); F.huber_loss(x, y); F.huber_loss(x, y, reduction="none")
        F.binary_cross_entropy(x, y); F.binary_cross_entropy(x, y, reduction="none"); F.poisson_nll_loss(x, y)
        F.binary_cross_entropy_with_logits(x, y); F.binary_cross_entropy_with_logits(x, y, reduction="none")
        F.soft_margin_loss(x, y.detach()); F.soft_margin_loss(x, y.detach(), reduction="none"); F.cross_entropy(x, y)
        F.multilabel_soft_margin_loss(x, y); F.hinge_embedding_loss(x, y); F.triplet_margin_loss(x, y, x * y)
        F.cosine_embedding_loss(x, y, torch.ones(x.shape[0])); F.margin_ranking_loss(x, y, torch.ones_like(x))
        F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.ones(4))
        torch.complex(x, y); torch.view_as_real(torch.complex(x, y)); torch.view_as_real(torch.polar(x, y))
        torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)); torch.complex(x, y).abs()
        torch.complex(x, y).conj() * 2; torch.complex(x, y).real + 1
        """,
    ),
    (
        "x: n",
        "x.diag(); x.diagflat(); torch.meshgrid(x, torch.ones(4), indexing='ij')[0] * 2; x @ x; x.outer(x); x.vdot(x); "
        "torch.cartesian_prod(x, torch.ones(4)); torch.einsum('i,j->ij', x, x); torch.searchsorted(x.sort()[0], x)",
    ),
    (
        "x: n n",
        "x.diag(); x.diagonal(); torch.eye(x.shape[0]) + x; "
        "x.masked_fill(torch.ones_like(x).tril() == 0, float('-inf')); "
        "x.triu() @ x; torch.full((x.shape[0], x.shape[0]), float('-inf')).triu(1) + x",
    ),
    (
        "i: int9 n 4",
        "i.sum(-1); i.prod(-1); i.float(); i**2; 2**i; i // 2; i % 3; i.div(2, rounding_mode='floor'); "
        "i & 3; i | 3; i ^ 3; "
        "~(i > 3); i << 1; i >> 1; i.gcd(i + 1); i.clamp(2, 5); i.clamp(min=2); i.masked_fill(i > 3, 3); i.max(-1); "
        "(i > 4).masked_fill(i > 3, True); torch.isin(i, torch.arange(3)); i.cumsum(1) * i; i.bool(); "
        "i.abs(); i.sort(0)",
    ),
    ("x: n 4, i: int3 n 4", "torch.where(x > 0.5, x, i); x * i; i / x; i.type_as(x); x.gather(1, i)"),
    (
        "x: n 4, i: int4 n 2",
        "x.gather(1, i); x.scatter(1, i, 2.0); torch.take_along_dim(x, i, 1); x.scatter(1, i[:, :1], x[:, 1:2]); "
        "x.detach().scatter(1, i, 2.0, reduce='multiply')",
    ),
    (
        "x: 6 4, i: int6 n, s: n 4",
        """
        x[i]; x[i, i % 4]; x.index_select(0, i); x.index_add(0, i, s); torch.zeros(6, 4).index_add_(0, i, s); x.take(i)
        x.index_put((i,), s, accumulate=True); x.put(i, s[:, 0], True); x.index_reduce(0, i, s, "mean")
        x.index_reduce(0, i, s, "amax"); F.embedding(i, x); F.embedding(i, x, padding_idx=0)
        """,
    ),
    (
        "x: 6 4, i: int6 n 4, s: n 4",
        """
        x.scatter_add(0, i, s); torch.zeros(6, 4).scatter_add_(0, i, s); x.scatter_reduce(0, i, s, "sum")
        x.scatter_reduce(0, i, s, "mean"); x.scatter_reduce(0, i, s, "amax"); x.scatter_reduce(0, i, s, "amin")
        torch.zeros(6, 4).scatter_reduce(0, i, s, "mean", include_self=False)
        """,
    ),
    ("x: n 4, s: n 2", "x.index_copy(1, torch.tensor([2, 0]), s); x.index_add(1, torch.tensor([2, 0]), s)"),
    ("x: n 4, v: 2 4", "x.index_put((torch.tensor([1, 0]),), v)"),
    ("x: n 5, y: n 4", "torch.searchsorted(x.sort(-1)[0], y)"),
    (
        "w: 9 4, i: int9 n 3",
        "F.embedding(i, w); F.embedding_bag(i, w); F.embedding_bag(i, w, mode='sum'); "
        "F.embedding_bag(i, w, mode='max')",
    ),
    (
        "x: n 4, t: int4 n",
        """
        F.cross_entropy(x, t); F.cross_entropy(x, t, reduction="none"); F.cross_entropy(x, t, label_smoothing=0.1)
        F.cross_entropy(x, t, torch.ones(4)); F.cross_entropy(x, t, ignore_index=0); F.nll_loss(x, t, reduction="sum")
        F.one_hot(t, 4); F.one_hot(t, 4).sum(0); F.one_hot(t, 5).float() * 2
        F.multi_margin_loss(x, t); F.multi_margin_loss(x, t, reduction="none"); x[torch.arange(x.shape[0]), t]
        """,
    ),
    ("x: n 4, t: int4 n 4", "F.multilabel_margin_loss(x, t); F.multilabel_margin_loss(x, t, reduction='none')"),
    ("x: 2 4 n, t: int4 2 n", "F.cross_entropy(x, t); F.cross_entropy(x, t, reduction='none')"),
    ("x: n 4 3 3, t: int4 n 3 3", "F.cross_entropy(x, t); F.cross_entropy(x, t, reduction='none')"),
    (
        "x: 2 n 4",
        "x.permute(0, 2, 1).relu() + 1; x.permute(2, 0, 1).sum(-1); F.layer_norm(x, (4,)); "
        "torch.cdist(x, x); x.mT @ x; "
        "x * torch.cos(torch.arange(x.shape[1]).float()[:, None] * torch.arange(4).float()); x.cumsum(1); x.roll(1, 1)",
    ),
    (
        "x: n 4 10",
        """
        F.pad(x, (1, 2)); F.pad(x, (1, 2), "reflect"); F.pad(x, (1, 2), "replicate"); F.pad(x, (1, 2), "circular")
        F.max_pool1d(x, 2); F.max_pool1d(x, 3, 2, 1); F.avg_pool1d(x, 2); F.adaptive_avg_pool1d(x, 3)
        F.lp_pool1d(x, 2, 2)
        F.adaptive_max_pool1d(x, 3); F.interpolate(x, scale_factor=2); F.interpolate(x, scale_factor=2, mode="linear")
        F.instance_norm(x); F.group_norm(x, 2); F.interpolate(x, size=7, mode="area")
        """,
    ),
    (
        "x: 2 4 n",
        """
        F.pad(x, (1, 2)); F.pad(x, (1, 2), "reflect"); F.pad(x, (1, 2), "replicate"); F.pad(x, (1, 2), "circular")
        F.max_pool1d(x, 2, 1); F.max_pool1d(x, 3, 2, 1); F.avg_pool1d(x, 2, 1); F.avg_pool1d(x, 3, 2, 1)
        F.adaptive_avg_pool1d(x, 1); F.adaptive_max_pool1d(x, 2); F.instance_norm(x); F.group_norm(x, 2)
        F.interpolate(x, scale_factor=2, mode="linear"); F.interpolate(x, scale_factor=0.5)
        F.interpolate(x, size=(x.shape[2] * 2,)); F.interpolate(x, size=x.shape[2] + 1, mode="linear")
        x.reshape(-1, x.shape[2]).unflatten(0, (x.shape[0], x.shape[1])); x.flatten(1).unflatten(1, (4, x.shape[2]))
        torch.kron(x[0], torch.eye(2))
        torch.kron(x, torch.ones(3)); torch.kron(torch.ones(2, 2, 2, 2), x)
        torch.nn.utils.rnn.pad_sequence([x[0].t(), x[1].t()[:2]])
        torch.nn.utils.rnn.pad_sequence([x[0].t()[:2], x[1].t()], batch_first=True, padding_value=0.5)
        torch.nn.utils.rnn.pad_sequence([x[0].t()[:2], x[1].t()], batch_first=True, padding_side="left")
        """,
    ),
    ("x: n 5 4", "torch.linalg.svdvals(x); torch.linalg.svd(x, full_matrices=False)[1]"),
    ("x: n 4", "torch.linalg.svdvals(x); torch.linalg.svd(x, full_matrices=False)[1]; F.group_norm(x, 2)"),
    ("x: 2 4 n n", "F.group_norm(x, 2); F.fold(F.unfold(x, (1, 2)), (x.shape[2], x.shape[3]), (1, 2))"),
    (
        "x: n 4 8 8",
        """
        F.pad(x, (1, 2, 1, 1), "reflect"); F.pad(x, (1, 2, 1, 1), "replicate"); F.pad(x, (1, 2, 1, 1), "circular")
        F.unfold(x, 3, padding=1); F.pixel_shuffle(x, 2); F.pixel_unshuffle(x, 2); F.channel_shuffle(x, 2); x.flatten(1)
        F.interpolate(x, scale_factor=2); F.interpolate(x, size=(5, 6)); F.interpolate(x, (5, 6), mode="nearest-exact")
        F.interpolate(x, scale_factor=2, mode="bilinear")
        F.interpolate(x, (16, 16), mode="bilinear", align_corners=True)
        F.interpolate(x, scale_factor=2, mode="bicubic"); F.interpolate(x, (5, 5), mode="bilinear", antialias=True)
        F.interpolate(x, (5, 5), mode="bicubic", antialias=True); F.interpolate(x, (5, 6), mode="area")
        F.interpolate(x, scale_factor=0.5, mode="bilinear", recompute_scale_factor=True)
        F.max_pool2d(x, 2); F.max_pool2d(x, 3, 2, 1); F.max_pool2d(x, 2, return_indices=True); F.avg_pool2d(x, 3, 2, 1)
        F.adaptive_avg_pool2d(x, 3); F.adaptive_max_pool2d(x, 3); F.adaptive_max_pool2d(x, 1); F.lp_pool2d(x, 2, 2)
        F.layer_norm(x, (8, 8)); F.group_norm(x, 2); F.instance_norm(x); F.batch_norm(x, None, None, training=True)
        F.local_response_norm(x, 2); F.glu(x, 1); F.dropout2d(x, 0.5); F.feature_alpha_dropout(x, 0.5, True)
        F.layer_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2); F.max_pool2d(x.permute(0, 3, 1, 2), 2)
        torch.fft.fft2(x).abs(); torch.fft.rfft2(x).abs(); torch.fft.irfft2(torch.fft.rfft2(x)); x.roll((1, 2), (2, 3))
        """,
    ),
    (
        "x: 2 4 n 8",
        """
        F.pad(x, (1, 2, 1, 1), "reflect"); F.pad(x, (1, 2, 1, 1), "replicate"); F.unfold(x, 3, padding=1)
        F.interpolate(x, scale_factor=2); F.interpolate(x, scale_factor=2, mode="bilinear"); F.max_pool2d(x, 2, 1)
        F.max_pool2d(x, 3, 2, 1); F.avg_pool2d(x, 3, 2, 1); F.adaptive_avg_pool2d(x, 1); F.adaptive_max_pool2d(x, 2)
        F.interpolate(x, scale_factor=2, mode="bicubic"); F.interpolate(x, scale_factor=0.5, mode="bilinear")
        """,
    ),
    (
        "x: n 2 4 4 4",
        """
        F.pad(x, (1, 1, 1, 1, 1, 1), "replicate"); F.interpolate(x, scale_factor=2); F.max_pool3d(x, 2)
        F.avg_pool3d(x, 2)
        F.interpolate(x, scale_factor=2, mode="trilinear"); F.adaptive_avg_pool3d(x, 2); F.adaptive_max_pool3d(x, 2)
        """,
    ),
    ("x: n 8 4", "F.fold(x, (4, 4), 2, stride=2)"),
    (
        "x: n 2 5 5, g: n 3 3 2",
        "F.grid_sample(x, g, align_corners=False); F.grid_sample(x, g, mode='nearest', align_corners=False)",
    ),
    ("x: n 4 10, w: 3 4 3", "F.conv1d(x, w, padding=1); F.conv1d(x, w, padding='same')"),
    ("x: 2 4 n, w: 4 1 3", "F.conv1d(F.pad(x, (2, 0)), w, groups=4)"),
    ("x: n 4 8 8, w: 3 4 3 3", "F.conv2d(x, w, stride=2, padding=1); F.conv2d(x, w, dilation=2)"),
    ("x: 2 4 n 8, w: 3 4 3 3", "F.conv2d(x, w, stride=2, padding=1)"),
    ("x: n 2 4 4 4, w: 3 2 3 3 3", "F.conv3d(x, w)"),
    ("x: n 4 10, w: 4 3 3", "F.conv_transpose1d(x, w, stride=2)"),
    ("x: n 4 8 8, w: 4 3 3 3", "F.conv_transpose2d(x, w, stride=2, output_padding=1)"),
    (
        "x: n 4, w: 4, b: 4",
        "F.layer_norm(x, (4,), w, b); F.rms_norm(x, (4,), w); F.batch_norm(x, None, None, w, b, training=True); "
        "F.prelu(x, w); F.prelu(x, w[:1]); x @ w; w.expand_as(x) * 2; F.batch_norm(x, w.detach(), b.detach())",
    ),
    ("x: n 4 8, w: 4, b: 4", "F.group_norm(x, 2, w, b); F.instance_norm(x, weight=w, bias=b); F.prelu(x, w)"),
    ("x: n 4, w: 3 4, b: 3", "F.linear(x, w, b); torch.addmm(b, x, w.t()); torch.cdist(x, w); torch.cdist(x, w, p=1)"),
    ("x: 2 n 4, w: 3 4, b: 3", "F.linear(x, w, b); F.linear(x, w); x @ w.t()"),
    ("x: n 4, y: n 3, w: 2 4 3", "F.bilinear(x, y, w)"),
    ("x: n 3, y: n 3", "torch.linalg.cross(x, y); torch.cross(x, y, dim=1)"),
    ("b: n, x: n 4, y: 4", "torch.addmv(b, x, y)"),
    (
        "x: n 3 4, y: n 4 3, b: n 3 3",
        "x @ y; torch.bmm(x, y); torch.baddbmm(b, x, y); torch.addbmm(b[0], x, y); torch.einsum('bij,bjk->bik', x, y)",
    ),
    (
        "x: n 3 3",
        """
        torch.linalg.inv(x + 5 * torch.eye(3)); torch.linalg.det(x + 5 * torch.eye(3)); torch.linalg.matrix_power(x, 3)
        torch.linalg.slogdet(x + 5 * torch.eye(3)); torch.logdet(x + 5 * torch.eye(3)); x.diagonal(0, 1, 2)
        torch.linalg.solve(x + 5 * torch.eye(3), x); torch.linalg.eigh(x + x.mT)[0]; torch.einsum("bii->b", x)
        torch.linalg.cholesky(x.detach() @ x.detach().mT + 5 * torch.eye(3))
        """,
    ),
    (
        "q: 2 3 n 8, k: 2 3 n 8, v: 2 3 n 8, m: 2 1 n n",
        """
        F.scaled_dot_product_attention(q, k, v); F.scaled_dot_product_attention(q, k, v, is_causal=True)
        F.scaled_dot_product_attention(q, k, v, m); F.scaled_dot_product_attention(q, k, v, m > 0.2)
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1); torch.einsum("bhld,bhmd->bhlm", q, k)
        torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
        """,
    ),
    (
        "x: n 4, f: n 2",
        "torch.view_as_real(torch.view_as_complex(x.view(-1, 2, 2)) * torch.polar(torch.ones_like(f), f)).flatten(1)",
    ),
]
# What their backwards do depends on contents (is there a zero?), so they cannot be recorded with them; or the backward
# keeps sizes as plain numbers.
ONLY_FORWARD = [
    (
        "x: n 4",
        "x.prod(); x.prod(-1); x.prod(0); x.prod(-1, dtype=torch.float64); x.cumprod(0); x.max(); x.min(); x.median()",
    ),
    ("x: n 4, y: n 4", "x.masked_scatter(y > 0.5, y)"),
    (
        "x: 2 4 n",
        """
        torch.block_diag(x[0], x[1]); torch.block_diag(x[0], x[0, 0], x[0, 0, 0])
        torch.view_as_real(torch.stft(x[0], 4, window=torch.ones(4), return_complex=True))
        torch.stft(x[0, 0], 4, 2, window=torch.ones(4), normalized=True, return_complex=True).abs()
        torch.stft(x[0], 4, 2, window=torch.ones(4), onesided=False, return_complex=True).abs()
        """,
    ),
    (
        "x: 2 n 4, w: 12 4, b: 12, v: 4 4, c: 4",
        """
        torch._native_multi_head_attention(x, x, x, 4, 2, w, b, v, c); F.group_norm(x.mT, 2, c, c)
        torch._native_multi_head_attention(x, x, x, 4, 2, w, b, v, c, None, False)
        torch._native_multi_head_attention(x, x, x, 4, 2, w, b, v, c, None, True, False)
        torch.gru(x, torch.zeros(1, 2, 4), (w, w, b, b), True, 1, 0.0, False, False, True)
        torch.gru(x.transpose(0, 1), torch.zeros(1, 2, 4), (w, w), False, 1, 0.0, False, False, False)
        torch.rnn_tanh(x, torch.zeros(2, 2, 4), (v, v, c, c, v, v, c, c), True, 1, 0.0, False, True, True)
        torch.rnn_relu(x, torch.zeros(2, 2, 4), (v, v, c, c, v, v, c, c), True, 2, 0.0, True, False, True)
        """,
    ),
]

Make = Callable[[int], tuple[torch.Tensor, ...]]


def make_tensor(words: list[str], n: int) -> torch.Tensor:
    below = int(words[0][3:]) if words[0].startswith("int") else 0
    shape = [n if word == "n" else int(word) for word in words if not word.startswith("int")]
    return torch.randint(0, below, shape) if below else torch.rand(shape) * 0.8 + 0.1


def calls(table: list[tuple[str, str]]) -> Iterator[Any]:
    """(function, what makes its arguments for a size), with the call as its name."""
    for arguments, text in table:
        names, shapes = zip(*(argument.split(":") for argument in arguments.split(", ")), strict=True)

        def make(n: int, shapes: tuple[str, ...] = shapes) -> tuple[torch.Tensor, ...]:
            torch.manual_seed(n)
            return tuple(make_tensor(shape.split(), n) for shape in shapes)

        for call in itertools.chain.from_iterable(line.split("; ") for line in text.strip().splitlines()):
            function = eval(f"lambda {', '.join(names)}: {call.strip()}", {"torch": torch, "F": F})
            yield pytest.param(function, make, id=f"{call.strip()}, {arguments}")


def wishes(make: Make) -> list[dict[int, str] | None]:
    """The open dimensions of each argument: those that differ from one size to the other."""
    pairs = zip(make(RECORDED), make(OTHERS[0]), strict=True)
    return [{d: "n" for d in range(a.dim()) if a.shape[d] != b.shape[d]} or None for a, b in pairs]


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=True)


def assert_open(graph: magneto.Graph) -> None:
    """Questions such as "is it at least 3" are fine; which number it is has not been asked."""
    assert graph.symbols
    asked = [guard for guard in graph.guards if any(sign in guard for sign in ("==", "!=", "%"))]
    assert not asked, asked


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("function", "make"), [*calls(CALLS), *calls(ONLY_FORWARD)])
def test_a_call_leaves_its_size_open(function: Callable[..., Any], make: Make):
    with torch.no_grad():
        graph = magneto.record(function, *make(RECORDED), dynamic=wishes(make))
    assert_open(graph)
    for n in OTHERS:
        arguments = make(n)
        torch.manual_seed(0)
        expected = tensors(function(*arguments))
        torch.manual_seed(0)
        assert_same(tensors(graph(*arguments)), expected)


def differentiable(make: Make, n: int) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.requires_grad_(tensor.is_floating_point()) for tensor in make(n))


@pytest.mark.parametrize(("function", "make"), calls(CALLS))
def test_its_backward_leaves_the_size_open(function: Callable[..., Any], make: Make):
    if not any(result.requires_grad for result in tensors(function(*differentiable(make, RECORDED)))):
        pytest.skip("it has no backward")
    graph = magneto.record(function, *differentiable(make, RECORDED), dynamic=wishes(make), joint=True)
    assert_open(graph)
    for n in OTHERS:
        arguments = differentiable(make, n)
        torch.manual_seed(0)
        results = tensors(function(*arguments))
        outputs = [result for result in results if result.requires_grad]
        gradients = [torch.empty_like(output).copy_(torch.rand(output.shape)) for output in outputs]
        inputs = [argument for argument in arguments if argument.requires_grad]
        expected = [*results, *torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)]
        torch.manual_seed(0)
        found, found_gradients = graph(*(argument.detach() for argument in arguments), gradients=gradients)
        assert_same([*tensors(found), *found_gradients], expected)


@pytest.mark.parametrize(("function", "make"), [*calls(CALLS), *calls(ONLY_FORWARD)])
def test_compiled_it_is_captured_twice(function: Callable[..., Any], make: Make):
    compiled = magneto.compile(function)
    before = magneto.counters["stats"]["captures"]
    for n in (RECORDED, RECORDED + 1, *OTHERS):
        arguments = make(n)
        torch.manual_seed(0)
        expected = tensors(function(*arguments))
        torch.manual_seed(0)
        assert_same(tensors(compiled(*arguments)), expected)
    assert magneto.counters["stats"]["captures"] - before == 2


MODULES = {
    "group norm": lambda: nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)),
    "attention": lambda: Attention(),
    "attention without weights": lambda: Attention(need_weights=False),
    "attention with a mask": lambda: Masked(nn.MultiheadAttention(6, 2, batch_first=True), "attn_mask", square=True),
    "attention with padding": lambda: Masked(nn.MultiheadAttention(6, 2, batch_first=True), "key_padding_mask"),
    "encoder with a mask": lambda: Masked(
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), "src_mask", square=True
    ),
    "encoder with padding": lambda: Masked(
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), "src_key_padding_mask"
    ),
    "decoder": lambda: Decoder(),
    "gru": lambda: nn.GRU(6, 4, 2, bidirectional=True, batch_first=True),
    "rnn": lambda: nn.RNN(6, 4, batch_first=True),
}


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(6, 2, batch_first=True), options

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x, **self.options)


class Masked(nn.Module):
    def __init__(self, inner: nn.Module, name: str, square: bool = False) -> None:
        super().__init__()
        self.inner, self.name, self.square = inner, name, square

    def forward(self, x: torch.Tensor) -> Any:
        inputs = (x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else (x,)
        steps = torch.arange(x.shape[1])
        mask = steps[:, None] < steps if self.square else (steps > 3).expand(x.shape[0], -1)
        return self.inner(*inputs, **{self.name: mask})


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(6, 2, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_captured_twice(name: str):
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    compiled = magneto.compile(module)
    before = magneto.counters["stats"]["captures"]
    with torch.no_grad():
        for n in (RECORDED, RECORDED + 1, *OTHERS):
            x = torch.rand(3, 4, n) if name == "group norm" else torch.rand(3, n, 6)
            assert_same(tensors(compiled(x)), tensors(module(x)))
    assert magneto.counters["stats"]["captures"] - before == 2


def test_a_class_that_is_not_there_is_eager_s_error():
    compiled = magneto.compile(lambda classes: F.one_hot(classes, 5) * 2)
    for n in (RECORDED, *OTHERS):
        assert compiled(torch.arange(n) % 5).shape == (n, 5)
    for wrong in (7, -1):
        with pytest.raises(RuntimeError, match="Class values must be"):
            compiled(torch.tensor([1, wrong, 2]))
