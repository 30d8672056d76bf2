"""PyTorch's own databases of modules and optimizers against those of the same names here.

Of a module: its state's names, outputs, first gradients of inputs and parameters, with the other
library's parameters, training and evaluating, in float64 and float32. Of an optimizer: 20 steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch.testing asks for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

from test_operator_database import NotHere, array, flat, here, leaves, same, same_gradients  # noqa: E402

import microtrain as mt  # noqa: E402

MODULES = {
    m.formatted_name: m
    for m in module_db
    if hasattr(mt.nn, m.module_cls.__name__)
    and m.name != "nn.TransformerEncoder"  # whose samples hold PyTorch's layers
}
OPTIMIZERS = {o.name: o for o in optim_db if hasattr(mt.optim, o.name)}
# What differs on purpose (docs/differences.md), with the arguments of the samples that do.
DIFFERENT: dict[str, Any] = {
    "nn_MultiheadAttention": lambda args, kwargs: (
        kwargs.get("add_bias_kv") or kwargs.get("add_zero_attn")
    ),
    **dict.fromkeys(
        ("nn_InstanceNorm1d", "nn_InstanceNorm2d", "nn_InstanceNorm3d"),
        lambda args, kwargs: len(args) > 4 and args[4],  # track_running_stats
    ),
    **dict.fromkeys(
        ("SGD", "Adagrad", "LBFGS"), lambda args, kwargs: isinstance(kwargs.get("lr"), torch.Tensor)
    ),
}


def arguments(given: Any, seen: dict[int, Any] | None = None) -> Any:
    """For microtrain; a Tensor that is given twice is one there too."""
    seen = {} if seen is None else seen
    if isinstance(given, torch.Tensor):
        return seen.setdefault(id(given), here(given))
    if callable(given) and hasattr(torch.nn.functional, given.__name__):
        return getattr(mt.nn.functional, given.__name__)
    if isinstance(given, list | tuple):
        return type(given)(arguments(each, seen) for each in given)
    return (
        {k: arguments(v, seen) for k, v in given.items()}
        if isinstance(given, dict)
        else here(given)
    )


def compared(info: Any, sample: Any, training: bool, dtype: str) -> None:
    made, call = sample.constructor_input, sample.forward_input
    torch.manual_seed(0)
    theirs = info.module_cls(*made.args, **made.kwargs).train(training)
    theirs.to(getattr(torch, dtype))
    cls = getattr(mt.nn, info.module_cls.__name__)
    ours = cls(*arguments(made.args), **arguments(made.kwargs)).train(training)
    ours.to(getattr(mt, dtype))
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict({name: here(value) for name, value in state.items()})
    given = call.args, call.kwargs
    mine = arguments(given)
    expected, found = (list(flat(m(*a, **k))) for m, (a, k) in ((theirs, given), (ours, mine)))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert isinstance(a, mt.Tensor) == isinstance(b, torch.Tensor)
        if isinstance(b, torch.Tensor):
            same(a, b, dtype, 10)
    for name, value in theirs.state_dict().items():  # running statistics
        same(ours.state_dict()[name], value, dtype, 10)
    roots, tops = leaves(expected), leaves(found)
    assert len(roots) == len(tops)
    if not roots:
        return
    rng = np.random.default_rng(1)
    seeds = [rng.standard_normal(r.shape).astype(array(r).dtype) for r in roots]
    xs = leaves([given, *theirs.parameters()])
    ts = leaves([mine, *ours.parameters()])
    first = torch.autograd.grad(roots, xs, [torch.tensor(s) for s in seeds], allow_unused=True)
    again = mt.autograd.grad(tops, ts, [mt.tensor(np.asarray(s)) for s in seeds], allow_unused=True)
    same_gradients(again, first, dtype, 10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name: str, training: bool) -> None:
    info, differences = MODULES[name], list[str]()
    ran = 0
    for dtype in ("float64", "float32"):
        torch.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=getattr(torch, dtype), requires_grad=True, training=training
        )
        for number, sample in enumerate(samples):
            made = sample.constructor_input
            try:
                compared(info, sample, training, dtype)
                ran += 1
            except NotHere:
                continue
            except Exception as error:
                differ = DIFFERENT.get(name)
                if differ is None or not differ(made.args, made.kwargs):
                    differences.append(
                        f"sample {number} {dtype} {made.args} {made.kwargs}: {error!r}"
                    )
    assert ran or differences, "no sample"
    assert not differences, f"{len(differences)} of {ran}\n" + "\n".join(differences[:3])[:1500]


@pytest.fixture
def _numbers_of_float64() -> Iterator[None]:
    """PyTorch keeps ASGD's eta in its default dtype, microtrain in that of the parameters."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_numbers_of_float64")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    for sample in OPTIMIZERS[name].optim_inputs_func(device="cpu"):
        differ = DIFFERENT.get(name)
        if differ is not None and differ((), sample.kwargs):
            continue
        parameters = []
        for lib, kwargs in ((torch, sample.kwargs), (mt, arguments(sample.kwargs))):
            rng = np.random.default_rng(2)
            ps = [lib.tensor(rng.standard_normal(n)).requires_grad_() for n in ((3, 2), (4,), ())]
            optimizer = getattr(lib.optim, name)(ps, **kwargs)
            for step in range(20):

                def closure(step: int = step, ps: Any = ps, optimizer: Any = optimizer) -> Any:
                    optimizer.zero_grad()
                    loss = sum(((p - step % 3) ** 2).sum() for p in ps)
                    loss.backward()
                    return loss

                optimizer.step(closure)
            parameters.append(ps)
        for a, b in zip(parameters[1], parameters[0], strict=True):
            same(a, b, "float64")
