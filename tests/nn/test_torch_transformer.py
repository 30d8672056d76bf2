"""Transformers and their layers with PyTorch's state: same text, outputs and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, normal, numpy_of  # noqa: E402

CAUSAL = np.tri(4, 4) == 0
PADDING = np.array([[0, 0, 1, 1], [0, 0, 0, 0]], bool)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "norm first": {"norm_first": True, "batch_first": True, "layer_norm_eps": 0.1},
    "no bias": {"bias": False},
    "tanh": {"activation": "tanh"},
}
CALLS: dict[str, dict[str, Any]] = {
    "all": {},
    "mask": {"src_mask": CAUSAL, "is_causal": True},
    "padding": {"src_key_padding_mask": PADDING},
}


def make(m: Any, dropout: float = 0.0, **options: Any) -> Any:
    if options.get("activation") == "tanh":
        options["activation"] = m.tanh
    return m.nn.TransformerEncoderLayer(6, 2, 5, dropout=dropout, **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("options", OPTIONS)
def test_layer_with_torchs_state(options: str, call: str, training: bool) -> None:
    ours, theirs = (make(m, **OPTIONS[options]).double().train(training) for m in (mt, torch))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    shape = (2, 4, 6) if OPTIONS[options].get("batch_first") else (4, 2, 6)
    x, t = both(normal(*shape))
    masks = {k: both(v, grad=False) for k, v in CALLS[call].items()}
    a = ours(x, **{k: v[0] for k, v in masks.items()})
    b = theirs(t, **{k: v[1] for k, v in masks.items()})
    assert_same(a, b)
    seed = normal(*shape)
    a.backward(mt.tensor(seed))
    b.backward(torch.tensor(seed))
    assert_same(x.grad, t.grad, rtol=1e-8)
    grads = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        np.testing.assert_allclose(
            numpy_of(p.grad), numpy_of(grads[name].grad), rtol=1e-8, atol=1e-10
        )


def test_without_a_batch() -> None:
    ours, theirs = (make(m).double() for m in (mt, torch))
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    x, t = both(normal(4, 6))
    assert_same(ours(x), theirs(t))


def test_text_and_errors() -> None:
    ours, theirs = make(mt, dropout=0.1), make(torch, dropout=0.1)
    assert repr(ours) == repr(theirs).replace("NonDynamicallyQuantizable", "")
    for m in (mt, torch):
        with pytest.raises(RuntimeError, match="relu/gelu"):
            make(m, activation="swish")


def test_dropout_is_for_training_and_does_not_depend_on_the_order_of_dimensions() -> None:
    layers = make(mt, dropout=0.5, batch_first=True), make(mt, dropout=0.5)
    layers[1].load_state_dict(layers[0].state_dict())
    x = mt.randn(2, 4, 6)
    found = []
    for layer, y in zip(layers, (x, x.transpose(0, 1)), strict=True):
        mt.manual_seed(3)
        found.append(layer(y).detach().numpy())
        assert not np.allclose(layer.eval()(y).detach().numpy(), found[-1])
    np.testing.assert_array_equal(found[0], found[1].swapaxes(0, 1))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_encoder_with_torchs_state(call: str, normalized: bool) -> None:
    def encoder(m: Any) -> Any:
        norm = m.nn.LayerNorm(6) if normalized else None
        return m.nn.TransformerEncoder(make(m, batch_first=True), 2, norm).double()

    ours, theirs = encoder(mt), encoder(torch)
    a, b = ours.layers
    assert mt.equal(a.linear1.weight, b.linear1.weight) and a.linear1 is not b.linear1
    for p in theirs.parameters():  # the two layers differ
        torch.nn.init.normal_(p)
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, t = both(normal(2, 4, 6))
    masks = {k.replace("src_mask", "mask"): both(v, grad=False) for k, v in CALLS[call].items()}
    assert_same(
        ours(x, **{k: v[0] for k, v in masks.items()}),
        theirs(t, **{k: v[1] for k, v in masks.items()}),
        rtol=1e-8,
    )


# The decoder, and both together -------------------------------------------------------------------

MEMORY = np.array([[0, 1, 1], [0, 0, 0]], bool)
LOOKS: dict[str, dict[str, Any]] = {
    "all": {},
    "mask": {"tgt_mask": CAUSAL, "tgt_is_causal": True},
    "padding": {"tgt_key_padding_mask": PADDING, "memory_key_padding_mask": MEMORY},
    "memory mask": {"memory_mask": np.tri(4, 3, 1) == 0},
}


def decoder_layer(m: Any, dropout: float = 0.0, **options: Any) -> Any:
    if options.get("activation") == "tanh":
        options["activation"] = m.tanh
    return m.nn.TransformerDecoderLayer(6, 2, 5, dropout=dropout, **options)


def loaded(make: Any) -> Any:
    """Of both libraries, with the same state."""
    ours, theirs = make(mt).double(), make(torch).double()
    for p in theirs.parameters():  # copies of a layer differ
        torch.nn.init.normal_(p)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    return ours, theirs


def compared(ours: Any, theirs: Any, inputs: Any, call: dict[str, Any]) -> None:
    masks = {k: both(v, grad=False) for k, v in call.items()}
    pairs = [both(x) for x in inputs]
    a = ours(*(x for x, _ in pairs), **{k: v[0] for k, v in masks.items()})
    b = theirs(*(t for _, t in pairs), **{k: v[1] for k, v in masks.items()})
    assert_same(a, b, rtol=1e-8)
    seed = normal(*a.shape)
    a.backward(mt.tensor(seed))
    b.backward(torch.tensor(seed))
    named = dict(theirs.named_parameters())
    leaves = [*pairs, *((p, named[name]) for name, p in ours.named_parameters())]
    for x, t in leaves:
        # Keys have a bias that no weight of attention depends on.
        np.testing.assert_allclose(numpy_of(x.grad), numpy_of(t.grad), rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", LOOKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_decoder_layer_with_torchs_state(options: str, call: str, training: bool) -> None:
    ours, theirs = loaded(lambda m: decoder_layer(m, **OPTIONS[options]).train(training))
    first = OPTIONS[options].get("batch_first")
    shapes = [(2, 4, 6), (2, 3, 6)] if first else [(4, 2, 6), (3, 2, 6)]
    compared(ours, theirs, [normal(*shape) for shape in shapes], LOOKS[call])


def test_decoder_layer_without_a_batch_and_its_text() -> None:
    ours, theirs = loaded(decoder_layer)
    compared(ours, theirs, [normal(4, 6), normal(3, 6)], {})
    assert repr(ours) == repr(theirs).replace("NonDynamicallyQuantizable", "")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("call", LOOKS)
def test_decoder_with_torchs_state(call: str, normalized: bool) -> None:
    def decoder(m: Any) -> Any:
        norm = m.nn.LayerNorm(6) if normalized else None
        return m.nn.TransformerDecoder(decoder_layer(m, batch_first=True), 2, norm)

    compared(*loaded(decoder), [normal(2, 4, 6), normal(2, 3, 6)], LOOKS[call])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("options", OPTIONS)
def test_whole_transformer_with_torchs_state(options: str) -> None:
    given = {k: v for k, v in OPTIONS[options].items() if k != "activation"}

    def whole(m: Any) -> Any:
        return m.nn.Transformer(6, 2, 1, 2, 5, 0.0, **given)

    first = given.get("batch_first")
    shapes = [(2, 3, 6), (2, 4, 6)] if first else [(3, 2, 6), (4, 2, 6)]
    call = LOOKS["padding"] | LOOKS["mask"] | {"src_key_padding_mask": MEMORY}
    compared(*loaded(whole), [normal(*shape) for shape in shapes], call)
    for m in (mt, torch):
        with pytest.raises(RuntimeError, match="batch number of src and tgt must be equal"):
            whole(m)(m.ones(2, 2, 6), m.ones(3, 3, 6))
        with pytest.raises(RuntimeError, match="must be equal to d_model"):
            whole(m)(m.ones(2, 2, 6), m.ones(2, 2, 5))


def test_the_mask_of_what_comes_later() -> None:
    masks = (m.nn.Transformer.generate_square_subsequent_mask(4) for m in (mt, torch))
    assert_same(*masks)


def test_a_decoders_dropout_does_not_depend_on_the_order_of_dimensions() -> None:
    layers = decoder_layer(mt, 0.5, batch_first=True), decoder_layer(mt, 0.5)
    layers[1].load_state_dict(layers[0].state_dict())
    x, memory = mt.randn(2, 4, 6), mt.randn(2, 3, 6)
    mt.manual_seed(3)
    found = layers[0](x, memory).detach().numpy()
    mt.manual_seed(3)
    other = layers[1](x.transpose(0, 1), memory.transpose(0, 1)).detach().numpy()
    np.testing.assert_array_equal(found, other.swapaxes(0, 1))
