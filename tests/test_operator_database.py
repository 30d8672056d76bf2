"""PyTorch's own database of operators, with their samples, against the functions of its names here.

Every entry whose function exists is run on all its samples, at most 400, in float64 and float32:
results, dtypes, `requires_grad`, first gradients and, of a few samples, second ones.

The slow test changes a few samples of each in ways their authors did not think of: other dtypes and
memory layouts, empty Tensors, infinities, NaN, large numbers, zeros.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch.testing asks for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import SampleInput

import microtrain as mt  # noqa: E402

MOST = 400  # samples of an entry
TWICE = 6  # of these have their second gradients compared
DTYPES = {
    torch.float64: mt.float64, torch.float32: mt.float32, torch.float16: mt.float16,
    torch.int64: mt.int64, torch.int32: mt.int32, torch.int16: mt.int16, torch.int8: mt.int8,
    torch.uint8: mt.uint8, torch.bool: mt.bool,
}  # fmt: skip
TOLERANCES = {"float64": (1e-7, 1e-9), "float32": (2e-4, 2e-5), "float16": (2e-3, 2e-3)}

# Entries that differ on purpose (docs/differences.md), or where no user comes by.
DIFFERENT = {
    "as_strided_partial_views": "what lies in memory beside a view is refused",
    "logcumsumexp": "PyTorch's gradient in float32 of numbers near 10000, ten times less accurate",
    "nn_functional_batch_norm": "an input of shape (0,) has no channels",
    "nn_functional_dropout2d": "an input of 3 dimensions has no samples",
    "nn_functional_dropout3d": "an input of 4 dimensions has no samples",
    "nn_functional_gaussian_nll_loss": "a target of another shape than the input",
    "nn_functional_instance_norm": "running statistics",
}
# Sums that reach 900 in float32: both differ by 1e-4 from those in float64.
LARGE_SUMS = {"nn_functional_conv_transpose3d": 5.0}
RANDOM = (
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "dropout",
    "multinomial",
    "normal",
    "rand",
    "uniform",
    "empty",
)
OF_A_TRIANGLE = ("cholesky_inverse", "cholesky_solve")
UP_TO_SIGN = ("svd", "linalg.svd", "qr", "linalg.qr", "linalg.eigh")
CASTS = "bool byte char double float half int long short".split()
AS_HERE: dict[str, Callable[..., Any]] = {
    "T": lambda x: x.T,
    "H": lambda x: x.H,
    "mH": lambda x: x.mH,
    "mT": lambda x: x.mT,
    "einsum": lambda operands, equation: mt.einsum(equation, *operands),
    "polygamma": lambda x, n: mt.polygamma(n, x),
    "special.polygamma": lambda x, n: mt.special.polygamma(n, x),
    "nn.functional.embedding": lambda w, i, **k: mt.nn.functional.embedding(i, w, **k),
    "nn.functional.embedding_bag": lambda w, i, **k: mt.nn.functional.embedding_bag(i, w, **k),
    "where": lambda x, condition, y: mt.where(condition, x, y),
    "zero_": lambda x: x.clone().zero_(),
}

OF_VARIANTS: dict[str, Callable[..., Any]] = {
    "linalg_lstsq_grad_oriented": lambda a, b, **k: mt.linalg.lstsq(a, b, **k)[:2],
    "linalg_pinv_singular": lambda a, b: mt.linalg.pinv(a @ b.mT),
}


class NotHere(Exception):
    """A sample of what only PyTorch has: complex numbers, sparse Tensors."""


def function_of(op: Any) -> Any:
    """What has the name of the entry here, or None."""
    name = op.name
    if name in AS_HERE:
        return AS_HERE[name]
    if op.formatted_name in OF_VARIANTS:
        return OF_VARIANTS[op.formatted_name]
    if op.variant_test_name == "in_place":
        return getattr(mt.Tensor, f"{name}_", None)
    if name.startswith("__") or name in CASTS:
        return getattr(mt.Tensor, name, None)
    found: Any = mt
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if found is not None else getattr(mt.Tensor, name, None)


# Of the others no sample runs here: other devices, complex numbers, a GPU.
NO_SAMPLES = ("to", "nn_functional_silu_complex", "nn_functional_batch_norm_without_cudnn")
ENTRIES = {
    op.formatted_name: op
    for op in op_db
    if callable(function_of(op)) and op.formatted_name not in NO_SAMPLES
}


def here(value: Any) -> Any:
    """An argument for microtrain."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.dtype not in DTYPES:
            raise NotHere
        return mt.from_numpy(value.numpy(force=True)).requires_grad_(value.requires_grad)
    if isinstance(value, torch.dtype) and value in DTYPES:
        return DTYPES[value]
    if isinstance(value, torch.nn.PairwiseDistance):
        return mt.nn.PairwiseDistance()
    if callable(value) and hasattr(mt.nn.functional, getattr(value, "__name__", "")):
        return getattr(mt.nn.functional, value.__name__)
    if isinstance(value, torch.device):
        return "cpu"
    if isinstance(value, complex | torch.dtype | torch.layout | torch.memory_format):
        raise NotHere
    if isinstance(value, tuple):
        return tuple(map(here, value))
    if isinstance(value, list):
        return list(map(here, value))
    return {k: here(v) for k, v in value.items()} if isinstance(value, dict) else value


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)
    else:
        yield value


def array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True)
    return value.detach().numpy() if isinstance(value, mt.Tensor) else np.asarray(value)


def determined(name: str, values: list[Any]) -> list[Any]:
    """What is determined of factors: not the sign of vectors, nor those of no singular value."""
    if "svd" in name:
        k = values[1].shape[-1]
        last = values[2][..., :k] if name == "svd" else values[2][..., :k, :]
        values = [values[0][..., :k], values[1], last]
    return [abs(value) for value in values]


def overwritten(name: str, arguments: Any) -> bool:
    """Whether windows of an unpooling overlap: a value that is overwritten has the gradient 0."""
    if "max_unpool" not in name:
        return False
    lines = arguments[1].flatten(2 if arguments[1].ndim > int(name[-2]) + 1 else 1)
    return any(len(line.unique()) < line.numel() for line in lines.reshape(-1, lines.shape[-1]))


def leaves(value: Any) -> list[Any]:
    """The Tensors in it that require grad."""
    tensors = [t for t in flat(value) if isinstance(t, torch.Tensor | mt.Tensor)]
    return [t for t in tensors if t.requires_grad]


def same(ours: Any, theirs: Any, dtype: str, more: float = 1.0) -> None:
    a, b = array(ours), array(theirs)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    relative, absolute = TOLERANCES.get(dtype, (0, 0))
    if b.dtype.kind == "f" and b.size:
        absolute *= max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0) * 1e-3)
    np.testing.assert_allclose(
        a.astype(float), b.astype(float), rtol=relative * more, atol=absolute * more
    )


def same_gradients(
    ours: Any, theirs: Any, dtype: str, more: float = 1.0, points: Any = None
) -> None:
    """All gradients, or given the points those that are finite there and not at a NaN."""
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a is not None and b is not None:
            if points is not None:
                assert array(a).shape == array(b).shape
                known = np.isfinite(array(b)) & ~np.isnan(array(points[number]))
                a, b = (np.where(known, array(g), array(g).dtype.type(0)) for g in (a, b))
            same(a, b, dtype, more)
        else:  # one says "not in the graph", the other "zero"
            assert all(t is None or not np.any(array(t)) for t in (a, b))


def coarsest(values: Any) -> str:
    """The dtype of a computation with these, as far as its tolerance goes."""
    dtypes = {str(t.dtype).removeprefix("torch.") for t in flat(values) if hasattr(t, "dtype")}
    return next((d for d in ("float16", "float32") if d in dtypes), "float64")


def check(op: Any, sample: Any, dtype: str, twice: bool, changed: bool = False) -> None:
    """One sample in both libraries; NotHere where PyTorch alone has it."""
    arguments = [sample.input, *sample.args], sample.kwargs
    try:
        expected = op.op(*arguments[0], **arguments[1])
    except (RuntimeError, NotImplementedError):
        raise NotHere from None
    theirs = list(flat(expected))
    if any(isinstance(t, torch.Tensor) and t.dtype not in DTYPES for t in theirs):
        raise NotHere
    if changed:
        dtype = coarsest([arguments[0], theirs])
    given = here(arguments[0]), here(arguments[1])
    ours = list(flat(function_of(op)(*given[0], **given[1])))
    if op.name in UP_TO_SIGN:
        theirs, ours = (determined(op.name, values) for values in (theirs, ours))
    assert len(ours) == len(theirs)
    random = any(word in op.name for word in RANDOM)
    random = random or ("rrelu" in op.name and arguments[1].get("training"))
    drawn = random or arguments[1].get("dropout_p")
    for a, b in zip(ours, theirs, strict=True):
        assert isinstance(a, mt.Tensor) == isinstance(b, torch.Tensor)
        if drawn:
            assert (array(a).shape, array(a).dtype) == (array(b).shape, array(b).dtype)
            continue
        same(a, b, dtype, LARGE_SUMS.get(op.formatted_name, 1))
        assert getattr(a, "requires_grad", None) == getattr(b, "requires_grad", None)
    if drawn or not leaves(theirs) or overwritten(op.name, arguments[0]):
        return
    rng = np.random.default_rng(1)
    seeds = [rng.standard_normal(t.shape).astype(array(t).dtype) for t in leaves(theirs)]
    try:
        first = torch.autograd.grad(
            leaves(theirs), leaves(arguments), [torch.tensor(s) for s in seeds],
            allow_unused=True, create_graph=twice,
        )  # fmt: skip
    except (RuntimeError, IndexError):  # no gradient there
        return
    if op.name in OF_A_TRIANGLE:  # there what is not read has a gradient as well
        keep = torch.triu if arguments[1].get("upper") else torch.tril
        first = [*first[:-1], keep(first[-1])]
    xs = leaves(given)
    found = mt.autograd.grad(
        leaves(ours), xs, [mt.tensor(np.asarray(s)) for s in seeds],
        allow_unused=True, create_graph=twice,
    )  # fmt: skip
    same_gradients(found, first, dtype, points=leaves(arguments) if changed else None)
    again = [f for f in first if f is not None and f.requires_grad]
    if not twice or not again:
        return
    mine = [f for f in found if f is not None and f.requires_grad]
    try:
        second = torch.autograd.grad(
            sum((f * f).sum() for f in again), leaves(arguments), allow_unused=True
        )
    except (RuntimeError, NotImplementedError):
        return
    ours_again: Any = [None] * len(xs)
    if mine:
        ours_again = mt.autograd.grad(sum((f * f).sum() for f in mine), xs, allow_unused=True)
    if all(s is None or bool(torch.isfinite(s).all()) for s in second):
        same_gradients(ours_again, second, dtype, 1e2)


@pytest.mark.filterwarnings("ignore")  # what both say of the samples
@pytest.mark.parametrize("name", ENTRIES)
def test_entry(name: str) -> None:
    op = ENTRIES[name]
    differences: list[str] = []
    ran = 0
    for dtype in (torch.float64, torch.float32):
        if dtype not in op.dtypes:
            dtype = next((d for d in (torch.int64, torch.bool) if d in op.dtypes), None)
        if dtype is None:
            continue
        torch.manual_seed(0)
        differentiable = op.supports_autograd and dtype.is_floating_point
        samples = op.sample_inputs("cpu", dtype, requires_grad=differentiable)
        for number, sample in enumerate(itertools.islice(samples, MOST)):
            twice = number < TWICE and dtype == torch.float64 and op.supports_gradgrad
            try:
                check(op, sample, str(dtype).removeprefix("torch."), twice)
                ran += 1
            except NotHere:
                continue
            except Exception as error:
                ran += 1
                differences.append(f"sample {number}, {dtype}: {sample}\n{error}")
    assert ran, "no sample"
    if name in DIFFERENT:
        assert differences, f"{name} is as in PyTorch: strike it from DIFFERENT"
    else:
        assert not differences, f"{len(differences)} samples\n{differences[0][:1500]}"


IN_PLACE = {
    op.formatted_name: op
    for op in op_db
    if hasattr(op.inplace_variant, "__name__")
    and op.formatted_name not in NO_SAMPLES
    and hasattr(mt.Tensor, op.inplace_variant.__name__)
    and not any(word in op.name for word in RANDOM)
}
FEW = 12  # samples of an in-place form


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_form(name: str) -> None:
    """Values and gradients of what is written into a computed Tensor."""
    op = IN_PLACE[name]
    dtype = next(d for d in (torch.float64, torch.int64, torch.bool) if d in op.dtypes)
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point)
    ran = 0
    for sample in itertools.islice(samples, FEW):
        arguments = sample.input, *sample.args
        try:
            if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
                continue
            given = here(arguments), here(sample.kwargs)
            theirs = sample.input.clone()
            op.inplace_variant(theirs, *sample.args, **sample.kwargs)
        except (NotHere, RuntimeError):  # PyTorch itself refuses the sample
            continue
        ours = given[0][0].clone()
        method = getattr(ours, op.inplace_variant.__name__)
        assert method(*given[0][1:], **given[1]) is ours
        same(ours, theirs, str(dtype).removeprefix("torch."))
        ran += 1
        try:
            wanted = torch.autograd.grad(
                theirs, leaves(arguments), torch.ones_like(theirs), allow_unused=True
            )
        except RuntimeError:  # no gradient there
            continue
        found = mt.autograd.grad(ours, leaves(given[0]), mt.ones_like(ours), allow_unused=True)
        same_gradients(found, wanted, "float64")
    assert ran, "no sample"


# Samples that are changed: what their authors did not think of -----------------------------------


def of_another_dtype(x: Any, draw: np.random.Generator) -> Any:
    wide = (torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8)
    narrow = (torch.int64, torch.int32, torch.uint8, torch.bool)
    choices = wide if x.dtype.is_floating_point else narrow
    return x.detach().to(choices[draw.integers(len(choices))])


def holding(*values: float) -> Callable[[Any, np.random.Generator], Any]:
    def change(x: Any, draw: np.random.Generator) -> Any:
        if not x.dtype.is_floating_point or not x.numel():
            return None
        changed = x.detach().clone().reshape(-1)
        for value in values:
            changed[draw.integers(len(changed))] = value
        return changed.reshape(x.shape)

    return change


# What is done to one argument of a sample; None where it cannot be.
MUTATIONS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "another dtype": of_another_dtype,
    "transposed memory": lambda x, _: x.detach().mT.clone().mT if x.ndim > 1 else None,
    "every other": lambda x, _: x.detach().repeat_interleave(2, -1)[..., ::2] if x.ndim else None,
    "one row for all": lambda x, _: x.detach()[:1].expand(x.shape) if x.ndim and len(x) else None,
    "empty": lambda x, _: x.detach()[:0] if x.ndim else None,
    "one row": lambda x, _: x.detach()[:1] if x.ndim and len(x) else None,
    "no dimensions": lambda x, _: x.detach().reshape(-1)[0] if x.numel() else None,
    "not finite": holding(np.nan, np.inf, -np.inf),
    "large": holding(1e30),
    "large negative": holding(-1e30),
    "zeros": holding(0.0, -0.0),
}


def mutated(value: Any, which: int, change: Callable[[Any], Any]) -> tuple[Any, int]:
    """`value` with its Tensor number `which` changed; below 0 when that has been done."""
    if isinstance(value, torch.Tensor):
        if which:
            return value, which - 1
        made = change(value)
        if made is None:
            raise NotHere
        return made.requires_grad_(value.requires_grad and made.dtype.is_floating_point), -1
    if type(value) in (list, tuple):
        items = []
        for item in value:
            changed, which = (item, which) if which < 0 else mutated(item, which, change)
            items.append(changed)
        return type(value)(items), which
    return value, which


def mutations(op: Any, dtype: Any) -> Iterator[tuple[str, Any]]:
    """Samples with one Tensor changed, by the name of the change."""
    draw = np.random.default_rng(len(op.formatted_name))
    differentiable = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for number, sample in enumerate(itertools.islice(samples, MUTATED)):
        arguments = [sample.input, *sample.args]
        for name, change in MUTATIONS.items():
            if (op.formatted_name, name) in CRASHES:
                continue
            which = number % max(1, sum(isinstance(t, torch.Tensor) for t in flat(arguments)))
            try:
                made, left = mutated(arguments, which, lambda x: change(x, draw))  # noqa: B023
            except (NotHere, RuntimeError):
                continue
            if left < 0:
                yield name, SampleInput(made[0], args=tuple(made[1:]), kwargs=sample.kwargs)


MUTATED = 8  # samples of an entry
# Where PyTorch ends the process: the gradient of no distances.
CRASHES = [("nn_functional_pdist", "empty"), ("nn_functional_pdist", "one row")]
# What differs, by reason, change and entries. What differs no more fails the test.
OTHERWISE: dict[str, dict[str, str]] = {
    # PyTorch is wrong
    "uint8 overflows in there, in what is computed on the way": {
        "another dtype": """atan2 cumulative_trapezoid ldexp nn_functional_hinge_embedding_loss
        trapezoid trapz""",
    },
    "half precision gives no digits of the result to the gradient in there": {
        "another dtype": "logcumsumexp",
    },
    "its gradient there is 0 or 1 at large numbers, whatever arrives": {
        "large": "logcumsumexp", "large negative": "logcumsumexp",
    },
    "what is not finite stays as it is through arithmetic in place there": {
        "another dtype": "nn_functional_binary_cross_entropy_with_logits nn_functional_huber_loss",
    },
    "a result of no elements has the wrong shape there": {
        "empty": "addmv nn_functional_pixel_unshuffle",
    },
    "memory behind an expanded Tensor is read there": {"one row for all": "median nanmedian"},
    "overflows there": {
        "large": "nn_functional_soft_margin_loss",
        "large negative": "nn_functional_soft_margin_loss",
    },
    "the margin is lost beside the first distance there": {
        "large": """nn_functional_triplet_margin_loss
        nn_functional_triplet_margin_with_distance_loss""",
        "large negative": """nn_functional_triplet_margin_loss
        nn_functional_triplet_margin_with_distance_loss""",
    },
    "NaN or infinity there, where there is a limit": {
        "not finite": """i0 nn_functional_gelu nn_functional_hardswish nn_functional_mish
        nn_functional_silu nn_functional_softsign special_i1 special_zeta std_mean var_mean""",
    },
    "numbers there at a pole": {
        "large negative": """digamma polygamma_polygamma_n_0 polygamma_polygamma_n_1
        polygamma_polygamma_n_2 polygamma_polygamma_n_3 polygamma_polygamma_n_4
        special_polygamma_special_polygamma_n_0""",
        "not finite": """polygamma_polygamma_n_0 polygamma_polygamma_n_1 polygamma_polygamma_n_2
        polygamma_polygamma_n_3 polygamma_polygamma_n_4 special_polygamma_special_polygamma_n_0""",
    },
    "a NaN is left out there": {
        "not finite": "nn_functional_multi_margin_loss nn_functional_multilabel_margin_loss",
    },
    "columns of the right hand side that are finite become NaN there": {
        "not finite": "linalg_lstsq linalg_lstsq_grad_oriented",
    },
    "a value that is masked out counts there, if it is NaN": {
        "not finite": "nn_functional_scaled_dot_product_attention",
    },
    # Differences on purpose (docs/differences.md)
    "equal elements stand in their order": {
        "another dtype": "argsort kthvalue mode topk",
        "one row for all": "kthvalue mode",
        "zeros": "argsort mode msort sort",
    },
    "samples are not recorded": {"another dtype": "normal"},
    "what is overwritten, or lies outside of the index, has the gradient 0": {
        "one row": "scatter_reduce_prod", "one row for all": "put scatter",
    },
    "no gradient of a singular matrix, or of one that is not finite: an error": {
        "not finite": "linalg_det linalg_slogdet logdet",
        "one row for all": "linalg_qr linalg_slogdet logdet qr",
        "zeros": "linalg_slogdet logdet qr",
    },
    "singular values that are next to nothing count as 0 with every driver": {
        "large": "linalg_lstsq linalg_lstsq_grad_oriented",
        "large negative": "linalg_lstsq linalg_lstsq_grad_oriented",
        "one row for all": "linalg_lstsq linalg_lstsq_grad_oriented",
    },
    # Either may be
    "a result without elements needs no graph": {"empty": "linalg_cond trapezoid trapz"},
    "no digits: elements 30 powers of ten apart, or a singular value of 0": {
        "large": """cholesky_inverse cholesky_solve linalg_cond linalg_eigh linalg_eigvalsh
        linalg_svdvals""",
        "large negative": """cholesky_inverse cholesky_solve linalg_eigh linalg_eigvalsh
        linalg_svdvals norm_nuc""",
        "one row for all": "linalg_svdvals norm_nuc",
    },
    "NaN here, as the product of 0 and infinity or the difference of two infinities": {
        "not finite": """cumprod gradient linalg_solve_triangular linspace_tensor_overload
        nn_functional_conv1d nn_functional_conv3d renorm""",
    },
    "a gradient of what is NaN or infinite": {"not finite": "clamp logcumsumexp"},
    "a NaN is the last of all that occur once": {"not finite": "mode"},
}  # fmt: skip
EXPECTED = {
    (name, change)
    for changes in OTHERWISE.values()
    for change, names in changes.items()
    for name in names.split()
}


def refuses(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ArithmeticError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENTRIES)
def test_changed_samples(name: str) -> None:
    """What both take has the same values, dtypes and gradients; either may refuse a sample."""
    op = ENTRIES[name]
    dtypes = torch.float64, torch.float32, torch.int64, torch.bool
    dtype = next((d for d in dtypes if d in op.dtypes), None)
    differences: dict[str, str] = {}
    for change, sample in mutations(op, dtype):
        if refuses(lambda: op.op(sample.input, *sample.args, **sample.kwargs)):  # noqa: B023
            continue
        try:
            given = here([sample.input, *sample.args]), here(sample.kwargs)
            if refuses(lambda: function_of(op)(*given[0], **given[1])):  # noqa: B023
                continue
            check(op, sample, "", False, changed=True)
        except NotHere:
            continue
        except Exception as error:
            differences.setdefault(change, f"{sample}\n{error}")
    expected = {change for entry, change in EXPECTED if entry == name}
    unexpected = {c: text for c, text in differences.items() if c not in expected}
    assert not unexpected, "\n".join(f"{c}: {text[:1500]}" for c, text in unexpected.items())
    alike = sorted(expected - set(differences))
    assert not alike, f"{name} is as in PyTorch: strike {alike} from OTHERWISE"


def test_the_exceptions_name_entries_and_changes() -> None:
    assert all(entry in ENTRIES and change in MUTATIONS for entry, change in EXPECTED)


def test_almost_all_entries_are_as_there() -> None:
    different = [name for name in ENTRIES if name in DIFFERENT]
    assert len(ENTRIES) >= 509
    assert len(different) <= 0.015 * len(ENTRIES)
