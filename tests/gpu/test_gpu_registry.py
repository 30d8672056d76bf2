"""Every sample of the registry on the real CuPy: values, first and second gradients are NumPy's.

In float16 only values are compared.
"""

from __future__ import annotations

import numpy as np
import pytest
from on_gpu import in_dtype, run
from real_cupy import ON_PROCESSOR, same
from samples import SAMPLES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


# Their first step is a call of cuSOLVER's or of cuBLAS's solvers.
SOLVERS = """cholesky cofactor det det_sign inverse linalg_eigh linalg_pinv linalg_qr linalg_solve
logabsdet matrix_exp minors orthonormal_completion svd""".split()
# Their vectors may have the other sign.
VECTORS = "linalg_eigh svd".split()
# Functions of CUDA's own that C++ has not.
CUDAS = "erfcx erfinv ndtri".split()


@pytest.mark.timeout(600)  # on the processor each kernel is compiled at its first use
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_numpys(name: str, dtype: str) -> None:
    if ON_PROCESSOR and name in SOLVERS:
        pytest.skip(f"{name}: no cuSOLVER on the processor")
    if ON_PROCESSOR and name in CUDAS:
        pytest.skip(f"{name}: a function of CUDA's, none of C++'s")
    if dtype == "float16" and name in SOLVERS:
        pytest.skip(f"{name}: NumPy has none of float16")
    if not ON_PROCESSOR and name.startswith("standing_"):
        pytest.skip(f"{name}: of values written to one place a GPU keeps any one")
    for number, sample in enumerate(SAMPLES[name]):
        one = in_dtype(sample, dtype)
        # Sums of float16 in another order are apart, and what gradients make of that is more so.
        gradients = dtype != "float16" and name not in VECTORS
        here, there = (run(name, one, device, gradients) for device in ("cpu", "cuda"))
        if name in VECTORS:
            here, there = (list(map(np.abs, found)) for found in (here, there))
        for place, (a, b) in enumerate(zip(here, there, strict=True)):
            try:
                same(b, a, 10 if name == "recurrent" else 1)  # sums over steps of products
            except AssertionError as error:
                error.add_note(f"sample {number}, {sample}, result {place}")
                raise
