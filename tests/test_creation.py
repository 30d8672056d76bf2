"""Making Tensors: dtypes, shapes, memory, random streams, and the same errors as torch."""

import warnings

import numpy as np
import pytest

import microtrain as mt

# Evaluated with L = torch and with L = microtrain: the printed Tensor, or the kind of error.
AS_IN_TORCH = """
L.tensor(3)                                L.tensor(1.5)
L.tensor(True)                             L.tensor([])
L.tensor([[]])                             L.tensor([1, 2.5])
L.tensor([True, False])                    L.tensor((1, 2))
L.tensor(range(3))                         L.tensor([[1, 2], [3, 4]])
L.tensor([np.float64(1)])                  L.tensor(np.float64(1))
L.tensor([np.float32(1)])                  L.tensor([np.int32(1)])
L.tensor(np.ones(2))                       L.tensor(np.ones(2, np.float16))
L.tensor([L.tensor(1.0), L.tensor(2.0)])   L.tensor([L.tensor(1.0, dtype=L.float64)])
L.tensor([1, 2], dtype=L.float32)          L.tensor(1.5, dtype=L.int64)
L.tensor('a')                              L.tensor('1', dtype=L.float32)
L.tensor([[1], [1, 2]])                    L.tensor(2**40)
L.tensor([1.0, 2.0], requires_grad=True)   L.tensor([1], dtype=L.int64, requires_grad=True)
L.as_tensor([1.0, 2.0])                    L.as_tensor(np.ones(2))
L.as_tensor(3)                             L.as_tensor(np.ones(2), dtype=L.float32)
L.from_numpy(np.arange(3))                 L.from_numpy([1])
L.from_numpy(np.array(['a']))              L.zeros(2, 3)
L.zeros((2, 3))                            L.zeros([2])
L.zeros(())                                L.zeros(0)
L.zeros(-1)                                L.zeros(2.5)
L.ones(2, dtype=L.int64)                   L.ones(2, 1, requires_grad=True)
L.full((2,), 3)                            L.full((2,), 3.0)
L.full((2,), True)                         L.full((), 1.5)
L.full((2, 2), 1, dtype=L.float64)         L.eye(3)
L.eye(2, 3)                                L.eye(-1)
L.arange(5)                                L.arange(1, 5)
L.arange(0, 1, 0.25)                       L.arange(5, 0, -2)
L.arange(0, 1, 0.1)                        L.arange(1, 2, 0.1)
L.arange(5.0)                              L.arange(0)
L.arange(3, 3)                             L.arange(10**17, 10**17 + 3)
L.arange(0, 5, 0)                          L.arange(0, 5, -1)
L.arange(3, dtype=L.float64)               L.arange(3.0, requires_grad=True)
L.linspace(0, 1, 5)                        L.linspace(0, 1, 1)
L.linspace(0, 1, 0)                        L.linspace(0, 1, -1)
L.linspace(3, -1, 4, dtype=L.float64)      L.randint(3, 3, (2,))
L.zeros_like(L.ones(2, dtype=L.int32))     L.ones_like(L.zeros(2), dtype=L.float64)
L.full_like(L.zeros(2), 7)                 L.zeros_like(L.ones(2), requires_grad=True)
L.Tensor([1, 2])                           L.Tensor([[1], [2]])
L.Tensor()                                 L.Tensor(2.5)
L.tensor([1, 2], dtype=float)              L.zeros(2, dtype=float)
L.ones(2).to(int)                          L.ones(2, dtype=L.float16).to(float)
L.ones(2).type(L.int64)                    L.ones(2).type(dtype=L.float64)
L.ones(2).byte()                           L.ones(2).char()
L.ones(2).short()
L.ones(2).equal(L.ones(2))                 L.ones(2).allclose(L.zeros(2))
L.allclose(input=L.ones(1), other=L.ones(1) + 1e-6, rtol=1e-5)
L.is_tensor(L.ones(2))                     L.is_tensor([1.0])
L.numel(L.ones(2, 3))                      L.is_floating_point(L.tensor(1))
L.finfo(L.float32).eps                     L.finfo(L.float16).max
L.finfo().min                              L.finfo(L.float64).tiny
L.finfo(L.float32).smallest_normal         L.finfo(L.float32).bits
L.finfo(L.float32).dtype                   L.finfo(L.int32)
L.iinfo(L.int64).max                       L.iinfo(L.uint8).min
L.iinfo(L.int8).bits                       L.iinfo(L.float32)
L.iinfo(L.int8).dtype                      (L.e, L.inf, L.nan, L.pi)
L.zeros(size=(2, 3))                       L.ones(size=[2])
L.zeros(2, size=(2,))                      L.randint(5)
L.randn(size=(2, 0))                       L.rand(size=(0,))
L.randint(5, size=(0,))                    L.randint(high=5, size=(2, 0))
L.randint(1, size=(2,))                    L.randint(low=3, high=4, size=(2,))
L.rand(2, dtype=L.int64)                   L.randn(2, dtype=L.int32)
L.rand_like(L.zeros(2, dtype=L.int64))     L.randn_like(L.tensor(True))
L.randperm(0)                              L.randperm(1, dtype=L.float32)
L.randperm(-1)                             L.randperm(2.5)
L.randperm(3, requires_grad=True)          L.normal(0, 1, (2, 0))
L.normal(1, 0, (2,))                       L.normal(L.tensor([1.0, 2.0]), 0.0)
L.normal(1.0, L.zeros(2))                  L.normal(L.ones(2, 1), L.zeros(2))
L.normal(0.0, 1.0)                         L.normal(L.zeros(2), 1.0, (2,))
L.normal(0, -1, (2,))                      L.normal(0.0, L.tensor([1.0, -1.0]))
L.normal(3, 0, (1,), dtype=L.float64)      L.normal(L.zeros(2, dtype=L.float64), L.zeros(2))
L.zeros(2).uniform_(3, 3)                  L.zeros(2).uniform_(1, 0)
L.zeros(2, dtype=L.int64).uniform_()       L.zeros(2, dtype=L.int64).normal_()
L.zeros(2).normal_(2, 0)                   L.zeros(2).normal_(0, -1)
L.zeros(2).bernoulli_(1.0)                 L.zeros(2, dtype=L.int64).bernoulli_(1)
L.zeros(2).bernoulli_(2.0)                 L.zeros(2, 2).bernoulli_(L.tensor([0.0, 1.0]))
L.zeros(2).bernoulli_(L.ones(3))           L.zeros(2).bernoulli_(L.tensor([0.0, 2.0]))
L.bernoulli(L.tensor([1.0, 0.0]))          L.bernoulli(L.tensor([1, 0]))
L.bernoulli(L.tensor([1.5]))               L.bernoulli(L.tensor([1.0], dtype=L.float16))
L.multinomial(L.tensor([0, 3.0]), 1)       L.multinomial(L.tensor([0, 3.0]), 3, True)
L.multinomial(L.eye(3), 1)                 L.multinomial(L.eye(3), 2, replacement=True)
L.multinomial(L.zeros(2), 1)               L.multinomial(L.tensor([-1.0, 2.0]), 1)
L.multinomial(L.ones(2), 3)                L.multinomial(L.ones(2), 0)
L.multinomial(L.tensor([1, 2]), 1)         L.multinomial(L.ones(()), 1)
L.multinomial(L.ones(1, 1, 2), 1)          L.multinomial(L.ones(0, 3), 2)
L.multinomial(L.ones(0), 1)                L.multinomial(L.ones(2, 0), 1, True)
"""
CASES = [case.strip() for line in AS_IN_TORCH.split("\n") for case in line.split("   ") if case]


def outcome(case: str, lib) -> str:
    try:
        return repr(eval(case, {"L": lib, "np": np})).replace("torch.", "")
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("case", [case for case in CASES if case])
def test_as_in_torch(case):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert outcome(case, mt) == outcome(case, torch)


@pytest.mark.parametrize(
    "make, values",
    [
        (lambda: mt.tensor([1, 2], requires_grad=True), [1.0, 2.0]),
        (lambda: mt.tensor(np.arange(2), requires_grad=True), [0.0, 1.0]),
        (lambda: mt.arange(3, requires_grad=True), [0.0, 1.0, 2.0]),
    ],
)
def test_integers_that_require_grad_become_floats_with_a_warning(make, values):
    """The one deliberate difference: the tutorials do it."""
    with pytest.warns(UserWarning, match="became float32"):
        x = make()
    assert (x.tolist(), x.dtype, x.requires_grad) == (values, mt.float32, True)


@pytest.mark.parametrize("data", [None, "text", ["a"], object(), 1 + 2j, [None]])
def test_data_that_is_not_numbers(data):
    with pytest.raises(TypeError, match="expected numbers or booleans"):
        mt.tensor(data)


@pytest.mark.parametrize(
    "make",
    [
        mt.tensor,
        mt.as_tensor,
        mt.asarray,
        mt.from_numpy,
        mt.Tensor,
        lambda masked: mt.tensor([masked]),
    ],
)
def test_a_mask_is_not_dropped_in_silence(make):
    with pytest.raises(TypeError, match="masked array, whose mask would be lost; fill it"):
        make(np.ma.array([1.0, 2.0], mask=[False, True]))


def test_tensor_copies_and_as_tensor_shares():
    array = np.zeros(2)
    mt.tensor(array)[0] = 1
    assert array[0] == 0
    mt.as_tensor(array)[0] = 1
    mt.from_numpy(array)[1] = 2
    assert array.tolist() == [1.0, 2.0]
    x = mt.ones(2)
    assert mt.as_tensor(x) is x
    assert mt.as_tensor(x, dtype=mt.float64).dtype == mt.float64
    y = mt.tensor(x)
    y[0] = 5
    assert x[0] == 1


def test_a_copy_of_a_tensor_is_outside_its_graph():
    x = mt.ones(2, requires_grad=True) * 2
    assert not mt.tensor(x).requires_grad
    assert not mt.tensor([x[0], x[1]]).requires_grad


def test_from_numpy_keeps_strides_and_refuses_what_it_cannot_share():
    array = np.arange(6.0).reshape(2, 3)
    assert mt.from_numpy(array.T).tolist() == array.T.tolist()
    assert mt.from_numpy(array[::-1]).tolist() == array[::-1].tolist()
    with pytest.raises(TypeError, match="expected a NumPy array, got list"):
        mt.from_numpy([1.0])
    with pytest.raises(TypeError, match="complex128"):
        mt.from_numpy(np.ones(2, complex))
    with pytest.raises(TypeError):
        mt.from_numpy(np.ones(2, ">f8"))


def test_what_numpy_makes_an_array_of_keeps_its_dtype():
    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.array([0.1, 0.2], dtype)

    for data in (Column(), [Column(), Column()]):
        found = mt.tensor(data)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found.numpy().reshape(-1)[:2], [0.1, 0.2])
    assert mt.as_tensor(Column()).dtype == np.float64


def test_default_dtype():
    mt.set_default_dtype(mt.float64)
    try:
        assert mt.get_default_dtype() == mt.float64
        for x in (mt.tensor(1.0), mt.zeros(1), mt.randn(1), mt.arange(1.0), mt.Tensor([1])):
            assert x.dtype == mt.float64
        assert mt.tensor(1).dtype == mt.int64
    finally:
        mt.set_default_dtype(mt.float32)
    with pytest.raises(TypeError, match="floating type"):
        mt.set_default_dtype(mt.int64)


# Random numbers -----------------------------------------------------------------------------------

DRAWS = {
    "rand": lambda: mt.rand(1000),
    "randn": lambda: mt.randn(1000),
    "randint": lambda: mt.randint(0, 10, (1000,)),
    "rand_like": lambda: mt.rand_like(mt.zeros(1000)),
    "randn_like": lambda: mt.randn_like(mt.zeros(1000)),
    "float64": lambda: mt.randn(1000, dtype=mt.float64),
    "float16": lambda: mt.rand(1000, dtype=mt.float16),
    "randperm": lambda: mt.randperm(1000),
    "normal": lambda: mt.normal(0, 1, (1000,)),
    "normal of Tensors": lambda: mt.normal(mt.zeros(1000), 1.0),
    "uniform_": lambda: mt.zeros(1000).uniform_(),
    "normal_": lambda: mt.zeros(1000).normal_(),
    "bernoulli": lambda: mt.bernoulli(mt.full((1000,), 0.5)),
    "bernoulli_": lambda: mt.zeros(1000).bernoulli_(),
    "multinomial": lambda: mt.ones(2, 1000).multinomial(100),
    "multinomial again": lambda: mt.ones(2, 1000).multinomial(100, replacement=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_follow_the_seed(name):
    mt.manual_seed(3)
    first, second = DRAWS[name](), DRAWS[name]()
    mt.manual_seed(3)
    assert mt.equal(first, DRAWS[name]())
    assert not mt.equal(first, second)
    mt.manual_seed(4)
    assert not mt.equal(first, DRAWS[name]())


def test_distributions_and_shapes():
    mt.manual_seed(0)
    uniform, normal, whole = mt.rand(100_000), mt.randn(100_000), mt.randint(2, 5, (10_000,))
    assert 0 <= uniform.min().item() < 1e-3
    assert 1 - 1e-3 < uniform.max().item() < 1
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02
    assert set(whole.tolist()) == {2, 3, 4}
    assert whole.dtype == mt.int64
    assert mt.rand(()).shape == mt.randn(()).shape == ()
    assert mt.randn(2, 0, 3).shape == (2, 0, 3)
    assert mt.randint(5, (2, 2)).shape == (2, 2)


@pytest.mark.parametrize("dtype", ["flaot32", "", True, False, 0, object(), "complex64", ">f4"])
def test_what_is_no_dtype_is_refused(dtype):
    for make in (
        lambda: mt.zeros(2, dtype=dtype),
        lambda: mt.tensor([1], dtype=dtype),
        lambda: mt.ones(2).to(dtype),
        lambda: mt.ones(2).to("cpu", dtype=dtype),
        lambda: mt.ones(2).sum(dtype=dtype),
        lambda: mt.nn.Linear(1, 1).to(dtype),
    ):
        with pytest.raises(TypeError, match="not a dtype of Tensors"):
            make()


def test_to_takes_what_training_loops_write():
    x = mt.ones(2)
    assert x.to("cpu", non_blocking=True) is x
    assert x.to("cpu", mt.float64, non_blocking=True).dtype == mt.float64
    assert x.to(mt.float32, copy=True) is not x
    layer = mt.nn.Linear(1, 1)
    assert layer.to("cpu", non_blocking=True) is layer


def test_draws_in_place_and_permutations():
    mt.manual_seed(0)
    x = mt.zeros(100_000).uniform_(-3, 1)
    assert -3 <= x.min() < -2.99 and 0.99 < x.max() < 1
    x.normal_(5, 0.1)
    assert abs(x.mean().item() - 5) < 0.01 and abs(x.std().item() - 0.1) < 0.01
    x.bernoulli_(mt.tensor(0.25))
    assert set(x.tolist()) == {0.0, 1.0} and abs(x.mean().item() - 0.25) < 0.01
    assert abs(mt.normal(2.0, mt.full((100_000,), 0.5)).std().item() - 0.5) < 0.01
    assert sorted(mt.randperm(100).tolist()) == list(range(100))


def test_draws_in_place_are_writes():
    x = mt.ones(3, requires_grad=True)
    y = x * 2
    y[1:].uniform_()
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 0.0]
    z = x.exp()
    total = z.sum()
    z.detach().normal_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    with pytest.raises(RuntimeError, match="leaf"):
        x.bernoulli_()


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_draws_by_weight(replacement):
    mt.manual_seed(0)
    weights = mt.tensor([1.0, 0.0, 2.0, 5.0])
    if replacement:
        drawn = mt.multinomial(weights, 80_000, replacement=True)
    else:
        drawn = mt.multinomial(weights.expand(80_000, 4), 2)
        assert (drawn[:, 0] != drawn[:, 1]).all()
        of_3 = drawn[:, 1][drawn[:, 0] == 3]  # the second draw is by the weights that are left
        assert abs((of_3 == 2).float().mean().item() - 2 / 3) < 0.01
        drawn = drawn[:, 0]
    found = [(drawn == i).float().mean().item() for i in range(4)]
    np.testing.assert_allclose(found, [1 / 8, 0, 2 / 8, 5 / 8], atol=0.01)


# Comparisons --------------------------------------------------------------------------------------


def test_equal_and_allclose():
    x = mt.tensor([1.0, 2.0])
    assert mt.equal(x, mt.tensor([1.0, 2.0]))
    assert not mt.equal(x, mt.tensor([[1.0, 2.0]]))
    assert mt.allclose(x, x + 1e-9)
    assert not mt.allclose(x, x + 1e-3)
    assert mt.allclose(x, x + 1e-3, atol=1e-2)
    nan = mt.tensor([float("nan")])
    assert not mt.allclose(nan, nan)
    assert mt.allclose(nan, nan, equal_nan=True)


def test_integers_beyond_int64_are_floats_among_floats():
    big = 2.0**64
    cases = [
        ([1.5, 2**64], [1.5, big]), ([[1.0, 2], [3, 2**64]], [[1.0, 2.0], [3.0, big]]),
        ([-(2**64), 0.5], [-big, 0.5]), ([True, 2**64, 1.0], [1.0, big, 1.0]),
        ([2**63, 1.0], [2.0**63, 1.0]),
    ]  # fmt: skip
    for data, expected in cases:
        for dtype in (None, mt.float64, mt.float32):
            found = mt.tensor(data, dtype=dtype)
            assert found.dtype == (dtype or mt.float32) and found.tolist() == expected
    assert mt.tensor([2**64, 1], dtype=mt.float64).tolist() == [big, 1.0]
    assert mt.tensor(2**63, dtype=mt.float32).item() == 2.0**63
    for data in (2**64, [2**63], [1, -(2**70)]):
        for dtype in (None, mt.int64, mt.uint8):
            with pytest.raises(ValueError, match="does not fit int64; give a float dtype"):
                mt.tensor(data, dtype=dtype)
    with pytest.raises(OverflowError):
        mt.tensor([10**400, 1.0])
    with pytest.raises(TypeError, match="cannot hold"):
        mt.tensor([2**64, "text"])
    assert mt.linspace(0, 2**64, 2).tolist() == [0.0, big]


def test_drawn_integers_that_require_grad():
    mt.manual_seed(0)
    for make in (
        lambda **more: mt.randint(3, (4,), **more),
        lambda **more: mt.randint_like(mt.ones(4), 3, **more),
        lambda **more: mt.full_like(mt.ones(4), 2.0, **more),
    ):
        x = make(dtype=mt.float32, requires_grad=True)
        assert x.requires_grad and x.is_leaf and x.dtype == mt.float32
        with pytest.raises(RuntimeError, match="floating point"):
            make(dtype=mt.int64, requires_grad=True)


def test_a_block_on_a_device():
    with mt.device("cpu") as outer:
        assert outer == mt.device("cpu")
        with mt.device("cpu:0"):
            made = mt.ones(2), mt.tensor([1.0]), mt.rand(2), mt.zeros_like(mt.ones(1)), mt.arange(3)
            assert {str(x.device) for x in made} == {"cpu"}
            assert mt.nn.Linear(2, 3).weight.device == mt.device("cpu")
        assert len(mt.backend.MODES.devices) == 1
    with pytest.raises(KeyError), mt.device("cpu"):
        raise KeyError
    assert mt.backend.MODES.devices == []
    if not mt.cuda.is_available():
        with pytest.raises(RuntimeError, match="no usable GPU"), mt.device("cuda"):
            raise AssertionError("entered")


def test_one_number_of_a_range_is_its_start() -> None:
    for start in (-np.inf, 3.0, np.nan):
        assert np.array_equal(mt.linspace(start, 5, 1).numpy(), [start], equal_nan=True)
    assert mt.logspace(-np.inf, 3, 1).tolist() == [0]
    assert mt.linspace(3, np.inf, 1, dtype=mt.float64).tolist() == [3]
    assert mt.linspace(1, 5, 0).shape == (0,)
