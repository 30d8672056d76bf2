"""Every operation in the registry through every law that all operations obey."""

from __future__ import annotations

import copy
import gc
import inspect
import sys
import threading
from typing import Any

import numpy as np
import pytest
from mpi_run import run_job
from samples import REFERENCE, SAMPLES, Sample

import microtrain as mt
from microtrain.autograd import Node
from microtrain.backend import MODES, NUMPY
from microtrain.ops import REGISTRY
from microtrain.ops.registry import Operation, tracing
from microtrain.tensor import TENSORS, Tensor, wrap


def _has_gradient(name: str, sample: Sample) -> bool:
    op = REGISTRY.get(name)
    if not isinstance(op, Operation):
        return op is not None
    floats = (i for i, a in zip(op.inputs, sample.arrays, strict=True) if is_float(a))
    return (
        any(i in op.rules for i in floats)
        and sample.attrs.get("dtype", np.dtype(float)).kind == "f"
    )


def is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


CASES = [
    pytest.param(name, sample, id=f"{name}-{number}-{sample}")
    for name, samples in SAMPLES.items()
    for number, sample in enumerate(samples)
]
DIFFERENTIABLE = [c for c in CASES if _has_gradient(*c.values)]
SMOOTH = [c for c in DIFFERENTIABLE if c.values[1].smooth]


def apply(name: str, arrays: Any, attrs: dict[str, Any]) -> Any:
    """The operation on Tensors or on arrays."""
    op = REGISTRY[name]
    return op.apply(*arrays, **attrs) if isinstance(op, Operation) else op.apply(arrays, **attrs)


def wants_grad(name: str, number: int, array: Any) -> bool:
    """Whether argument `number` is an input with a gradient rule."""
    op = REGISTRY[name]
    ruled = not isinstance(op, Operation) or op.inputs[number] in op.rules
    return ruled and is_float(array)


def tensors(name: str, arrays: Any, grad: bool = True) -> tuple[Any, ...]:
    """Tensors over copies of `arrays`, requiring grad wherever they can."""
    found = []
    for number, array in enumerate(arrays):
        tensor = wrap(array.copy(order="K")) if isinstance(array, np.ndarray) else array
        if grad and wants_grad(name, number, array):
            tensor.requires_grad_()
        found.append(tensor)
    return tuple(found)


def leaves(inputs: tuple[Any, ...]) -> list[Tensor]:
    return [x for x in inputs if type(x) in TENSORS and x.requires_grad]


def as_dtype(arrays: Any, dtype: Any) -> tuple[Any, ...]:
    return tuple(a.astype(dtype) if is_float(a) else a for a in arrays)


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def gradients(name: str, arrays: Any, attrs: Any) -> tuple[Any, list[Any]]:
    """The value, and the gradients of its sum weighted with a fixed random array."""
    inputs = tensors(name, arrays)
    result = apply(name, inputs, attrs)
    weight = np.random.default_rng(1).standard_normal(result.shape).astype(result.dtype)
    grads = mt.autograd.grad(result, leaves(inputs), wrap(np.asarray(weight)))
    return result.detach().numpy(), [g.numpy() for g in grads]


def test_every_operation_has_samples_and_a_reference() -> None:
    assert SAMPLES.keys() == REGISTRY.keys()
    assert REFERENCE.keys() == REGISTRY.keys()
    assert {name for name, samples in SAMPLES.items() if len(samples) < 3} == set()


def test_every_operation_has_a_zero_size_sample() -> None:
    def empty(sample: Sample) -> bool:
        return any(isinstance(a, np.ndarray) and not a.size for a in sample.arrays)

    assert {name for name, samples in SAMPLES.items() if not any(map(empty, samples))} == set()


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_value_is_numpys(name: str, sample: Sample) -> None:
    result = apply(name, tensors(name, sample.arrays, grad=False), sample.attrs)
    expected = np.asarray(REFERENCE[name](*sample.arrays, **sample.attrs))
    assert type(result) is Tensor
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-14)
    plain = apply(name, sample.arrays, sample.attrs)  # arrays in, arrays out
    assert type(plain) not in TENSORS
    assert same_bits(plain, result.numpy())


@pytest.mark.daily("float32")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_float_dtype_is_kept(name: str, sample: Sample, dtype: Any) -> None:
    arrays = as_dtype(sample.arrays, dtype)
    result = apply(name, tensors(name, arrays), sample.attrs)
    wide = apply(name, tensors(name, sample.arrays, grad=False), sample.attrs)
    if wide.dtype == np.float64 and any(map(is_float, arrays)):
        assert result.dtype == sample.attrs.get("dtype", dtype)
    else:
        assert result.dtype == wide.dtype
    if result.requires_grad:
        for gradient in gradients(name, arrays, sample.attrs)[1]:
            assert gradient.dtype == dtype


def scattered(array: Any) -> Any:
    """The same elements with gaps between them, in memory of another order."""
    if not isinstance(array, np.ndarray) or not array.ndim:
        return array
    memory = np.zeros(tuple(2 * n for n in array.shape[::-1]), array.dtype).T
    view = memory[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_memory_layout_does_not_matter(name: str, sample: Sample) -> None:
    spread = [scattered(a) for a in sample.arrays]
    inputs = [
        wrap(a).requires_grad_(wants_grad(name, i, a)) if isinstance(a, np.ndarray) else a
        for i, a in enumerate(spread)
    ]
    result = apply(name, tuple(inputs), sample.attrs)
    plain = apply(name, tensors(name, sample.arrays, grad=False), sample.attrs)
    np.testing.assert_allclose(result.detach().numpy(), plain.numpy(), rtol=1e-13, atol=1e-15)
    if result.requires_grad and sample.smooth:
        result.backward(mt.ones_like(result))
        other = tensors(name, sample.arrays)
        apply(name, other, sample.attrs).backward(mt.ones_like(result))
        for a, b in zip(leaves(tuple(inputs)), leaves(other), strict=True):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12, atol=1e-14)


def weighted(name: str, arrays: Any, attrs: Any, weight: Any) -> float:
    result = apply(name, tensors(name, arrays, grad=False), attrs)
    return float(np.sum(result.numpy() * weight))


def moved(name: str, arrays: Any, directions: Any, step: float) -> list[Any]:
    wanted = iter(directions)
    return [
        np.asarray(a + step * next(wanted)) if wants_grad(name, i, a) else a
        for i, a in enumerate(arrays)
    ]


STEP = 1e-6


@pytest.mark.parametrize(("name", "sample"), SMOOTH)
def test_gradient_is_the_derivative(name: str, sample: Sample) -> None:
    rng = np.random.default_rng(2)
    inputs = tensors(name, sample.arrays)
    result = apply(name, inputs, sample.attrs)
    weight = rng.standard_normal(result.shape)
    directions = [rng.standard_normal(x.shape) for x in leaves(inputs)]
    grads = mt.autograd.grad(result, leaves(inputs), wrap(np.asarray(weight)))
    ours = sum(float(np.sum(g.numpy() * d)) for g, d in zip(grads, directions, strict=True))
    after = weighted(name, moved(name, sample.arrays, directions, STEP), sample.attrs, weight)
    before = weighted(name, moved(name, sample.arrays, directions, -STEP), sample.attrs, weight)
    assert ours == pytest.approx((after - before) / (2 * STEP), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("name", "sample"), SMOOTH)
def test_second_gradient_is_the_derivative_of_the_first(name: str, sample: Sample) -> None:
    rng = np.random.default_rng(3)
    inputs = tensors(name, sample.arrays)
    xs = leaves(inputs)
    result = apply(name, inputs, sample.attrs)
    seed = wrap(np.asarray(rng.standard_normal(result.shape))).requires_grad_()
    weights = [rng.standard_normal(x.shape) for x in xs]
    directions = [rng.standard_normal(x.shape) for x in xs]
    along = rng.standard_normal(result.shape)
    grads = mt.autograd.grad(result, xs, seed, create_graph=True)
    inner = mt.zeros((), dtype=mt.float64)
    for gradient, weight in zip(grads, weights, strict=True):
        assert gradient.dtype == np.float64
        inner = inner + (gradient * wrap(np.asarray(weight))).sum()
    ours = 0.0  # where the first gradient is constant, and so not in the graph
    if inner.requires_grad:
        second = mt.autograd.grad(inner, [*xs, seed], materialize_grads=True)
        pairs = zip(second, [*directions, along], strict=True)
        ours = sum(float(np.sum(g.numpy() * d)) for g, d in pairs)

    def first(step: float) -> float:
        at = tensors(name, moved(name, sample.arrays, directions, step))
        out = apply(name, at, sample.attrs)
        at_seed = wrap(np.asarray(seed.detach().numpy() + step * along))
        found = mt.autograd.grad(out, leaves(at), at_seed)
        return sum(float(np.sum(g.numpy() * w)) for g, w in zip(found, weights, strict=True))

    assert ours == pytest.approx((first(STEP) - first(-STEP)) / (2 * STEP), rel=1e-6, abs=1e-7)


def _size(case: Any) -> int:
    return sum(np.size(a) for a in case.values[1].arrays)


# The checkers move every entry of every input: the two smallest samples of each operation.
SMALL = [
    case
    for name in SAMPLES
    for case in sorted(
        (c for c in SMOOTH if c.values[0] == name and all(map(np.size, c.values[1].arrays))),
        key=_size,
    )[:2]
]


def test_every_operation_with_a_smooth_sample_meets_the_checkers() -> None:
    assert {case.values[0] for case in SMALL} == {case.values[0] for case in SMOOTH}


@pytest.mark.daily("-0-", "-2-")
@pytest.mark.parametrize(("name", "sample"), SMALL)
def test_gradcheck_and_gradgradcheck_confirm_the_whole_jacobian(name: str, sample: Sample) -> None:
    inputs = tensors(name, sample.arrays)

    def function(*arguments: Any) -> Any:
        return apply(name, arguments, sample.attrs)

    assert mt.autograd.gradcheck(function, inputs, atol=1e-7, rtol=1e-6)
    assert mt.autograd.gradgradcheck(function, inputs, atol=1e-7, rtol=1e-6)


# Whose rules on Tensors are those of the formula step by step: the same but for rounding.
UNROLLED = {"recurrent"}


@pytest.mark.daily("-0-", "-1-", "-3-")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "sample"), DIFFERENTIABLE)
def test_rules_give_the_same_bits_on_arrays_and_on_tensors(
    name: str, sample: Sample, dtype: Any
) -> None:
    inputs = tensors(name, as_dtype(sample.arrays, dtype))
    result = apply(name, inputs, sample.attrs)
    g = np.random.default_rng(4).standard_normal(result.shape).astype(result.dtype)
    op, node = REGISTRY[name], result.grad_fn
    with np.errstate(all="ignore"):
        fast = op.backward_arrays(node, np.asarray(g))
        recorded = op.backward_tensors(node, wrap(np.asarray(g)).requires_grad_())
    for a, t, edge in zip(fast, recorded, node._edges, strict=True):
        if edge is not None:
            assert type(t) is Tensor
            if name in UNROLLED:
                tolerance = 20 * np.finfo(dtype).eps
                np.testing.assert_allclose(a, t.detach().numpy(), tolerance, tolerance)
            else:
                assert same_bits(a, t.detach().numpy())


# The kernels of gradients that go straight into the flat memory of the parameters.
INTO_MEMORY = {
    "convolution", "convolution_input", "convolution_weight", "embedding_dense_backward", "mm",
    "sum_rows",
}  # fmt: skip


def test_no_other_kernel_takes_memory_for_its_result() -> None:
    takes = {n for n, op in REGISTRY.items() if "out" in inspect.signature(op.kernel).parameters}
    assert takes == INTO_MEMORY


@pytest.mark.parametrize(("name", "sample"), [c for c in CASES if c.values[0] in INTO_MEMORY])
def test_kernel_writes_into_out(name: str, sample: Sample) -> None:
    kernel = REGISTRY[name].kernel
    plain = np.asarray(kernel(NUMPY, *sample.arrays, **sample.attrs))
    for out in (np.full_like(plain, 7, order="C"), np.full_like(plain, 7, order="F")):
        assert kernel(NUMPY, *sample.arrays, **sample.attrs, out=out) is out
        assert same_bits(out, plain)


@pytest.mark.parametrize(
    ("name", "sample"),
    [c for c in DIFFERENTIABLE if c.values[0] != "cat"],  # which saves shapes
)
def test_saved_values_are_checked_for_writes(name: str, sample: Sample) -> None:
    op = REGISTRY[name]
    for saved in [*op.inputs, "result"]:
        inputs = tensors(name, sample.arrays)
        result = apply(name, inputs, sample.attrs)
        if saved == "result" and op.view:
            continue
        target = result.detach() if saved == "result" else inputs[op.inputs.index(saved)]
        if target is None:
            continue
        with mt.no_grad():
            target.copy_(target.detach().clone())
        needed = saved in op._saved() and (saved == "result" or _is_kept(op, saved, result))
        g = mt.ones_like(result)
        if needed:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward(g)
        elif sample.smooth:
            result.backward(g)


def _is_kept(op: Operation, name: str, result: Tensor) -> bool:
    """Whether the node keeps the input `name`: a rule that needs it is going to run."""
    kept = [i for i in op._saved() if i in op.inputs]
    return result.grad_fn._saved[kept.index(name)] is not None


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rules_ask_for_what_there_is(name: str) -> None:
    op = REGISTRY[name]
    if not isinstance(op, Operation):  # `cat`, whose rule gets all there is
        return
    known = {"g", "result", "out", *op.inputs, *op.extras, *op.attrs}
    known |= {f"{i}_{what}" for i in op.inputs for what in ("shape", "dtype")}
    assert set(op.rules) <= set(op.inputs)
    for need in op.needs.values():
        assert set(need) <= known
        assert set(need) & set(op.extras) <= set(op.recompute)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_wrong_kinds_of_argument_name_the_operation(name: str) -> None:
    op, sample = REGISTRY[name], SAMPLES[name][0]
    good = tensors(name, sample.arrays, grad=False)
    for number in range(len(good)):
        for bad in ([1.0, 2.0], "text", np.zeros(3), object()):
            arguments = (*good[:number], bad, *good[number + 1 :])
            if all(type(a) not in TENSORS for a in arguments) and isinstance(bad, np.ndarray):
                continue  # arrays alone are what rules work on
            with pytest.raises(TypeError, match=rf"^{name}\(\)"):
                mt.cat(arguments) if name == "cat" else op.apply(*arguments, **sample.attrs)


def test_what_generates_the_code_at_the_first_call_has_its_signature() -> None:
    for op in REGISTRY.values():
        if isinstance(op, Operation):
            declared = inspect.signature(op._declare())
            op.generate()
            assert inspect.signature(op.apply) == declared, op.name
            assert op.source in vars(op).values()


class Tracer:
    """What `traced` leads to."""

    def __init__(self) -> None:
        self.calls, self.looks = [], []

    def call(self, operation, run, arguments):
        result = run(**arguments)
        self.calls.append((operation.name, sorted(arguments)))
        return result

    def look(self, tensor, what) -> None:
        self.looks.append(what)


def test_a_tracer_has_all_calls_of_its_thread_and_none_afterwards() -> None:
    x, one, other = mt.ones(3), Tracer(), Tracer()

    def compute() -> None:
        assert mt.cat([x * 2, x > 0.5, x[1:]]).tolist() == [2, 2, 2, 1, 1, 1, 1, 1]

    def elsewhere() -> None:
        compute()
        with tracing(other):
            compute()

    compute()
    with tracing(one):
        with pytest.raises(TypeError, match=r"^mul\(\) missing 1 required"):
            REGISTRY["mul"].apply(x)
        compute()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert bool(x.sum() > 0)
    compute()
    names = [name for name, _ in one.calls]
    assert [n for n in names if n != "to"] == ["mul", "gt", "select", "cat", "sum", "gt"]
    assert dict(one.calls)["cat"] == ["dim", "tensors"]
    assert one.looks == ["tolist()", "item()"]
    assert [n for n in names if n != "to"][:4] == [n for n, _ in other.calls if n != "to"]
    assert MODES.tracer is None
    assert "apply" not in vars(REGISTRY["cat"])  # asks nobody any more
    assert REGISTRY["mul"].apply.__code__ is REGISTRY["mul"]._scope["apply"].__code__


def test_an_operation_not_called_yet_goes_by_its_name() -> None:
    op = Operation("once", lambda xp, x, *, k=1: x)
    try:
        with pytest.raises(
            TypeError, match=r"^once\(\) missing 1 required positional argument: 'input'"
        ):
            op.apply()
        assert op.apply.__qualname__ == "once"
        assert vars(copy.copy(op)) == vars(op)
    finally:
        del REGISTRY["once"]


def test_the_import_generates_no_operation_and_a_call_only_its_own() -> None:
    found = run_job(
        [
            sys.executable,
            "-c",
            "import microtrain as mt\n"
            "def made(): return [n for n, op in mt.ops.REGISTRY.items() if 'source' in vars(op)]\n"
            "print(made()); mt.ones(2) * 3; print(made())",
        ]
    )
    assert found.stdout.splitlines() == ["[]", "['mul']"], found.stderr


def test_no_reference_cycles() -> None:
    def everything(create_graph: bool) -> None:
        for case in SMOOTH:
            name, sample = case.values
            inputs = tensors(name, sample.arrays)
            result = apply(name, inputs, sample.attrs)
            grads = mt.autograd.grad(
                result, leaves(inputs), mt.ones_like(result), create_graph=create_graph
            )
            del inputs, result, grads

    everything(True)
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        everything(False)
        everything(True)
        gc.collect()
        ours = [x for x in gc.garbage if isinstance(x, Node | Tensor)]
        count = len(ours)
        del ours
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert count == 0
