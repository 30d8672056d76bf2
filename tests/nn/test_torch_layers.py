"""Layers with PyTorch's state: same names, same text, same outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, normal  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ROWS = np.array([[1, 0, 3], [3, 3, 2]])

# How to make the layer in either library, and its inputs.
LAYERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "LayerNorm": (lambda nn: nn.LayerNorm(4), (normal(3, 4),)),
    "LayerNorm shape": (lambda nn: nn.LayerNorm((3, 4), eps=0.1), (normal(2, 3, 4),)),
    "LayerNorm weight": (lambda nn: nn.LayerNorm([4], bias=False), (normal(2, 3, 4),)),
    "LayerNorm plain": (lambda nn: nn.LayerNorm(4, elementwise_affine=False), (normal(3, 4),)),
    "RMSNorm": (lambda nn: nn.RMSNorm(4), (normal(3, 4),)),
    "RMSNorm shape": (lambda nn: nn.RMSNorm((3, 4), eps=0.1), (normal(2, 3, 4),)),
    "RMSNorm plain": (lambda nn: nn.RMSNorm(4, elementwise_affine=False), (normal(3, 4),)),
    "GroupNorm": (lambda nn: nn.GroupNorm(2, 4), (normal(2, 4, 3),)),
    "GroupNorm plain": (lambda nn: nn.GroupNorm(2, 4, 0.1, affine=False), (normal(2, 4, 3, 2),)),
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(4), (normal(5, 4),)),
    "BatchNorm1d length": (lambda nn: nn.BatchNorm1d(4, momentum=0.3), (normal(3, 4, 2),)),
    "BatchNorm1d mean": (lambda nn: nn.BatchNorm1d(4, momentum=None), (normal(5, 4),)),
    "BatchNorm1d plain": (
        lambda nn: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        (normal(5, 4),),
    ),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(4, eps=0.1), (normal(3, 4, 2, 2),)),
    "BatchNorm2d weight": (lambda nn: nn.BatchNorm2d(4, bias=False), (normal(3, 4, 2, 2),)),
    "Embedding": (lambda nn: nn.Embedding(5, 3), (ROWS,)),
    "Embedding padding": (lambda nn: nn.Embedding(5, 3, padding_idx=-2), (ROWS,)),
    "CosineSimilarity": (lambda nn: nn.CosineSimilarity(dim=-1), (normal(2, 3), normal(2, 3))),
    "BatchNorm3d": (lambda nn: nn.BatchNorm3d(4), (normal(3, 4, 2, 1, 2),)),
    "InstanceNorm1d": (lambda nn: nn.InstanceNorm1d(4), (normal(3, 4, 5),)),
    "InstanceNorm2d": (lambda nn: nn.InstanceNorm2d(4, affine=True), (normal(3, 4, 2, 3),)),
    "InstanceNorm3d": (
        lambda nn: nn.InstanceNorm3d(4, 0.1, affine=True, bias=False),
        (normal(4, 2, 3, 2),),
    ),
    "LocalResponseNorm": (lambda nn: nn.LocalResponseNorm(3), (normal(2, 5, 3),)),
    "PairwiseDistance": (lambda nn: nn.PairwiseDistance(1), (normal(2, 3), normal(2, 3))),
    "Bilinear": (lambda nn: nn.Bilinear(3, 4, 2), (normal(2, 5, 3), normal(2, 5, 4))),
    "Bilinear plain": (lambda nn: nn.Bilinear(3, 4, 2, bias=False), (normal(3), normal(4))),
    "EmbeddingBag": (lambda nn: nn.EmbeddingBag(5, 3), (ROWS,)),
    "EmbeddingBag max": (
        lambda nn: nn.EmbeddingBag(5, 3, mode="max", padding_idx=-2),
        (ROWS.reshape(-1), np.array([0, 2, 2, 5])),
    ),
    "EmbeddingBag sum": (
        lambda nn: nn.EmbeddingBag(5, 3, mode="sum", include_last_offset=True),
        (ROWS.reshape(-1), np.array([0, 2, 6])),
    ),
    "Conv3d": (lambda nn: nn.Conv3d(2, 4, (1, 2, 3), 2, 1, groups=2), (normal(2, 2, 3, 4, 5),)),
    "ConvTranspose3d": (
        lambda nn: nn.ConvTranspose3d(2, 4, 3, 2, 1, 1, bias=False),
        (normal(2, 2, 3, 2, 2),),
    ),
    "MaxPool3d": (lambda nn: nn.MaxPool3d(2, 1, 1), (normal(2, 3, 3, 4),)),
    "AvgPool3d": (lambda nn: nn.AvgPool3d((1, 2, 2), 1), (normal(2, 3, 3, 4),)),
    "Upsample": (lambda nn: nn.Upsample(scale_factor=2), (normal(2, 3, 2, 3),)),
    "Upsample size": (
        lambda nn: nn.Upsample((5, 4), mode="bilinear", align_corners=True),
        (normal(2, 3, 2, 3),),
    ),
    "Upsample factors": (
        lambda nn: nn.Upsample(scale_factor=(1.5, 2), mode="bicubic"),
        (normal(2, 3, 4, 3),),
    ),
    "UpsamplingNearest2d": (lambda nn: nn.UpsamplingNearest2d(5), (normal(2, 3, 2, 3),)),
    "UpsamplingBilinear2d": (
        lambda nn: nn.UpsamplingBilinear2d(scale_factor=2),
        (normal(2, 3, 2, 3),),
    ),
    "PixelShuffle": (lambda nn: nn.PixelShuffle(2), (normal(8, 2, 3),)),
    "PixelUnshuffle": (lambda nn: nn.PixelUnshuffle(2), (normal(2, 3, 4, 2),)),
    "ChannelShuffle": (lambda nn: nn.ChannelShuffle(3), (normal(2, 6, 3),)),
    "Softmax2d": (lambda nn: nn.Softmax2d(), (normal(2, 3, 2, 2),)),
    "Hardshrink": (lambda nn: nn.Hardshrink(), (normal(2, 3),)),
    "Softshrink": (lambda nn: nn.Softshrink(0.2), (normal(2, 3),)),
    "ReflectionPad3d": (lambda nn: nn.ReflectionPad3d(1), (normal(2, 3, 2, 3, 2),)),
    "MultiheadAttention": (
        lambda nn: nn.MultiheadAttention(6, 2, batch_first=True),
        (normal(2, 4, 6), normal(2, 3, 6), normal(2, 3, 6)),
    ),
    "MultiheadAttention sizes": (
        lambda nn: nn.MultiheadAttention(6, 3, bias=False, kdim=4, vdim=5),
        (normal(4, 2, 6), normal(3, 2, 4), normal(3, 2, 5)),
    ),
}


def make_alike(make: Callable[..., Any]) -> tuple[Any, Any]:
    """The layer in both libraries, in double precision, with one random state."""
    theirs = make(torch.nn).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(normal(*p.shape)))
    ours = make(mt.nn).double()
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    return ours, theirs


def compare_layers(ours: Any, theirs: Any, *arrays: Any, **options: Any) -> None:
    """A call of both: outputs, gradients of inputs and parameters, buffers."""
    pairs = [both(a) for a in arrays]
    named = {k: both(v, grad=False) for k, v in options.items()}
    outs = ours(*(p[0] for p in pairs), **{k: v[0] for k, v in named.items()})
    expected = theirs(*(p[1] for p in pairs), **{k: v[1] for k, v in named.items()})
    if not isinstance(outs, tuple):
        outs, expected = (outs,), (expected,)
    ours.zero_grad()
    theirs.zero_grad()
    for number, (a, b) in enumerate(zip(outs, expected, strict=True)):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert_same(a, b, rtol=1e-9)
        seed = np.random.default_rng(number).standard_normal(a.shape)
        if a.requires_grad or b.requires_grad:
            a.backward(mt.tensor(seed), retain_graph=True)
            b.backward(torch.tensor(seed), retain_graph=True)
    for a, b in pairs:
        if getattr(b, "requires_grad", False):
            assert_same(a.grad, b.grad, rtol=1e-8)
    grads = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        assert_same(p.grad, grads[name].grad, rtol=1e-8)
    for (name, a), (other, b) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert name == other
        assert_same(a, b)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_with_torchs_state(name: str) -> None:
    make, arrays = LAYERS[name]
    ours, theirs = make_alike(make)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for _ in range(2):
        compare_layers(ours, theirs, *arrays)
    compare_layers(ours.eval(), theirs.eval(), *arrays)
    back = {name: torch.from_numpy(t.numpy()) for name, t in ours.state_dict().items()}
    theirs.load_state_dict(back)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_starts_and_reads_as_torchs(name: str) -> None:
    ours, theirs = LAYERS[name][0](mt.nn), LAYERS[name][0](torch.nn)
    assert repr(ours) == repr(theirs).replace("NonDynamicallyQuantizable", "")
    for (n, a), (m, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert n == m
        assert tuple(a.shape) == tuple(b.shape)
        assert str(a.dtype) == str(b.dtype).removeprefix("torch.")
        if "norm" in name.lower():
            assert (a.numpy() == b.numpy()).all()


def test_initial_tables_and_projections_are_drawn_as_torchs() -> None:
    mt.manual_seed(0)
    torch.manual_seed(0)
    for make in (
        lambda nn: nn.Embedding(300, 20, padding_idx=7),
        lambda nn: nn.MultiheadAttention(60, 3),
        lambda nn: nn.MultiheadAttention(60, 3, kdim=30, vdim=90),
    ):
        theirs = make(torch.nn).state_dict()
        for name, a in make(mt.nn).state_dict().items():
            b = theirs[name].numpy()
            assert a.numpy().std() == pytest.approx(b.std(), rel=0.05)
            assert (a.numpy() == 0).sum() == (b == 0).sum()
            if "proj" in name:
                assert np.abs(a.numpy()).max() == pytest.approx(np.abs(b).max(), rel=0.01)


MASK = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], bool)
PADDING = np.array([[0, 0, 1], [0, 1, 0]], bool)
FLOATS = normal(4, 3)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padding": {"key_padding_mask": PADDING},
    "mask": {"attn_mask": MASK},
    "causal": {"attn_mask": np.tri(4, 3) == 0, "is_causal": True},
    "both": {"attn_mask": np.tri(4, 3) == 0, "key_padding_mask": PADDING},
    "floats": {"attn_mask": FLOATS, "key_padding_mask": normal(2, 3)},
    "mixed": {"attn_mask": FLOATS, "key_padding_mask": PADDING},
    "heads": {"attn_mask": np.stack([MASK, ~MASK, MASK, MASK])},
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a target that may look nowhere: NaN
@pytest.mark.parametrize("weights", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["batch first", "sequence first"])
@pytest.mark.parametrize("call", CALLS)
def test_attention_masks_and_weights(call: str, first: bool, weights: tuple[bool, bool]) -> None:
    ours, theirs = make_alike(lambda nn: nn.MultiheadAttention(6, 2, batch_first=first))
    arrays = [normal(2, n, 6) if first else normal(n, 2, 6) for n in (4, 3, 3)]
    options = {"need_weights": weights[0], "average_attn_weights": weights[1]}
    compare_layers(ours, theirs, *arrays, **CALLS[call], **options)


@pytest.mark.parametrize("call", ["plain", "mask", "causal", "padding"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_without_a_batch(call: str, need_weights: bool) -> None:
    ours, theirs = make_alike(lambda nn: nn.MultiheadAttention(6, 2, batch_first=True))
    options = dict(CALLS[call])
    if "key_padding_mask" in options:
        options["key_padding_mask"] = PADDING[0]
    arrays = [normal(n, 6) for n in (4, 3, 3)]
    compare_layers(ours, theirs, *arrays, **options, need_weights=need_weights)


def test_self_attention_gives_one_input_all_three_gradients() -> None:
    ours, theirs = make_alike(lambda nn: nn.MultiheadAttention(6, 2, batch_first=True))
    x, t = both(normal(2, 4, 6))
    a, b = ours(x, x, x)[0], theirs(t, t, t)[0]
    assert_same(a, b)
    a.sum().backward()
    b.sum().backward()
    assert_same(x.grad, t.grad, rtol=1e-8)
    assert_same(ours.in_proj_weight.grad, theirs.in_proj_weight.grad, rtol=1e-8)


def attention(m: Any, *shapes: Any, **options: Any) -> Any:
    make = m.nn.MultiheadAttention(6, 2, batch_first=True)
    return make(*(m.ones(*s) for s in shapes), **options)


REFUSED: dict[str, Callable[..., Any]] = {
    "layer shape": lambda m: m.nn.LayerNorm(4)(m.ones(2, 3)),
    "layer integers": lambda m: m.nn.LayerNorm(3)(m.ones(2, 3).long()),
    "batch 4-D": lambda m: m.nn.BatchNorm1d(3)(m.ones(2, 3, 2, 2)),
    "batch 2-D": lambda m: m.nn.BatchNorm2d(3)(m.ones(2, 3)),
    "batch of one": lambda m: m.nn.BatchNorm1d(3)(m.ones(1, 3)),
    "batch channels": lambda m: m.nn.BatchNorm1d(3)(m.ones(2, 4)),
    "groups": lambda m: m.nn.GroupNorm(2, 3),
    "group channels": lambda m: m.nn.GroupNorm(2, 4)(m.ones(2, 6)),
    "row": lambda m: m.nn.Embedding(3, 2)(m.tensor([3])),
    "padding": lambda m: m.nn.Embedding(3, 2, padding_idx=3),
    "pretrained": lambda m: m.nn.Embedding.from_pretrained(m.ones(3)),
    "query size": lambda m: m.nn.MultiheadAttention(4, 2)(*[m.ones(3, 2, 5)] * 3),
    "no heads": lambda m: m.nn.MultiheadAttention(4, 0),
    "heads": lambda m: m.nn.MultiheadAttention(4, 3),
    "1-D": lambda m: attention(m, (6,), (6,), (6,)),
    "mixed dimensions": lambda m: attention(m, (2, 4, 6), (4, 6), (4, 6)),
    "lengths": lambda m: attention(m, (2, 4, 6), (2, 3, 6), (2, 4, 6)),
    "causal": lambda m: attention(m, *[(2, 4, 6)] * 3, is_causal=True),
    "mask shape": lambda m: attention(m, *[(2, 4, 6)] * 3, attn_mask=m.ones(3, 4).bool()),
    "mask integers": lambda m: attention(m, *[(2, 4, 6)] * 3, attn_mask=m.ones(4, 4).long()),
    "padding dims": lambda m: attention(m, *[(2, 4, 6)] * 3, key_padding_mask=m.ones(4).bool()),
    "padding shape": lambda m: attention(m, *[(2, 4, 6)] * 3, key_padding_mask=m.ones(2, 3).bool()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_torch(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        REFUSED[name](torch)
    kind = RuntimeError if theirs.type is NotImplementedError else theirs.type
    with pytest.raises(kind) as ours:
        REFUSED[name](mt)
    assert ours.type is kind
    assert str(ours.value)
