"""A name of PyTorch's or NumPy's that is not here says what to write instead."""

import builtins
import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import microtrain as mt
from microtrain.common.missing_names import INSTEAD, torch_names

DOCS = Path(__file__).resolve().parent.parent / "docs"
MODULES = [place for place in INSTEAD if place not in ("Tensor", "Optimizer")]


def module_of(place: str) -> Any:
    return importlib.import_module(f"microtrain.{place}".rstrip("."))


@pytest.mark.parametrize("place, name", [(p, n) for p in MODULES for n in INSTEAD[p]])
def test_a_name_with_another_form_here_does_not_exist_and_says_it(place: str, name: str) -> None:
    module = module_of(place)
    assert name not in dir(module)
    with pytest.raises(AttributeError, match=re.escape(INSTEAD[place][name])):
        getattr(module, name)
    assert not hasattr(module, name)


@pytest.mark.parametrize("name", INSTEAD["Tensor"])
def test_a_method_with_another_form_here_does_not_exist_and_says_it(name: str) -> None:
    x = mt.ones(2)
    with pytest.raises(AttributeError, match=re.escape(INSTEAD["Tensor"][name])):
        getattr(x, name)
    assert not hasattr(x, name) and not hasattr(mt.Tensor, name) and name not in dir(x)


CASES = {
    "": {
        "LongTensor": r"'LongTensor'; write mt.tensor\(.*dtype=mt.int64\)$",
        "quantize_per_tensor_of": r"'quantize_per_tensor_of'",
        "sotfmax": "; did you mean softmax\\?",
        "nothing": r"^module 'microtrain' has no attribute 'nothing'$",
        "Linear": r"; write mt\.nn\.Linear$",
        "SGD": r"; write mt\.optim\.SGD$",
        "DataParallel": r"; write mt\.distributed\.DataParallel$",
        "Trainer": r"; write mt\.train\.Trainer$",
        "grad": r"; write mt\.autograd\.grad$",
    },
    "nn": {
        "Lineer": "; did you mean Linear\\?",
        "AdaptiveLogSoftmaxWithLoss": "one of PyTorch.s names",
        "relu": r"; write mt\.relu$",
    },
    "nn.init": {"xavier_uniform": "did you mean xavier_uniform_|one of PyTorch.s names"},
    "distributions": {"Beta": "one of PyTorch.s names", "Nrmal": "did you mean Normal\\?"},
    "special": {"bessel_j0": "one of PyTorch.s names"},
    "optim": {"Adamm": "; did you mean Adam\\?"},
    "cuda": {"memory_summary": "docs/differences.md"},
    "data": {"DataLoder": "; did you mean DataLoader\\?"},
}


@pytest.mark.parametrize("place, name", [(place, name) for place in CASES for name in CASES[place]])
def test_typos_and_other_names_of_torch(place: str, name: str) -> None:
    with pytest.raises(AttributeError, match=CASES[place][name]):
        getattr(module_of(place), name)


IMPORTS = {
    "from microtrain.utils.data import DataLoader": r"mt\.data\.ArrayDataset\(x, y\)",
    "from microtrain.utils.data import Dataset, TensorDataset": r"mt\.data\.DataLoader",
    "from microtrain.utils.data import random_split": "index the arrays",
    "from microtrain.nn import SyncBatchNorm": "DataParallel model uses the whole batch",
    "from microtrain.nn import Lineer": "did you mean Linear",
    "from microtrain.optim import SparseAdam": "write Adam",
    "from microtrain import FloatTensor": r"write mt\.tensor",
    "from microtrain.distributed import init_process_group": r"mt\.distributed\.world\(\)",
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_an_import_says_it_too(statement: str) -> None:
    with pytest.raises(ImportError, match=f"cannot import name .*; .*{IMPORTS[statement]}"):
        exec(statement, {})


def test_an_import_of_a_module_that_is_not_there_is_pythons_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("microtrain.nn.LSTM2")


@pytest.mark.parametrize("place", MODULES)
def test_a_module_behaves_as_modules_do(place: str) -> None:
    module = module_of(place)
    for name in ("__wrapped__", "__bases__", "_private", "pytest_plugins"):
        assert not hasattr(module, name)
        assert getattr(module, name, None) is None
    assert inspect.unwrap(module) is module
    namespace: dict[str, Any] = {}
    exec(f"from {module.__name__} import *", namespace)
    assert set(getattr(module, "__all__", ())) <= set(namespace)


def test_tensors_and_parameters_copy_and_pickle_as_before() -> None:
    for x in (mt.ones(2), mt.nn.Parameter(mt.ones(2))):
        for made in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            assert type(made) is type(x) and made.tolist() == [1, 1]
    assert getattr(mt.ones(2), "copy", builtins.len) is builtins.len


def test_an_optimizer_of_ones_own_is_a_formula() -> None:
    class Lion(mt.optim.Optimizer):
        def step(self) -> None:
            self.state[self.param_groups[0]["params"][0]]["average"] = 0

    optimizer = Lion([mt.ones(2, requires_grad=True)], {"lr": 0.1})
    with pytest.raises(AttributeError, match=r"write .*mt\.optim\.Formula\(params, function\)"):
        optimizer.step()
    assert not hasattr(copy.deepcopy(optimizer), "state")


def test_the_names_of_torch_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for place, names in torch_names().items():
        module = importlib.import_module(f"torch.{place}".rstrip("."))
        assert [name for name in names if not hasattr(module, name)] == []
    assert len(torch_names()[""]) > 500 and len(torch.__version__)


def test_what_the_documentation_calls_missing_has_a_hint() -> None:
    text = (DOCS / "differences.md").read_text(encoding="utf-8")
    table = text.partition("### Missing")[2]
    named = set(
        re.findall(r"`([A-Za-z_][A-Za-z_.]+)`", "".join(re.findall(r"(?m)^\| (.*?) \|", table)))
    )
    known = {name for names in [*torch_names().values(), *INSTEAD.values()] for name in names}
    for name in named:  # `InstanceNorm` is that of all dimensions
        last = name.rpartition(".")[2]
        assert [each for each in known if each.startswith(last)], name
    assert len(named) > 3
