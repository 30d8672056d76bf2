"""The tutorial's comparison: built-in sigmoid, a Function of one's own, the composed formula.

The book times forward and backward of 100 x 100 numbers and finds the built-in fastest and the
formula slowest: every recorded operation costs. All three run interleaved, pinned to one core; the
table shows medians in microseconds and the ratio to the built-in.

    python benchmarks/sigmoid.py
"""

from __future__ import annotations

import sys

from step import measure  # first: it pins the process and limits threads

import microtrain as mt


class Sigmoid(mt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        output = 1 / (1 + mt.exp(-x))
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        return output * (1 - output) * grad_output


FORMS = {
    "built-in": mt.sigmoid,
    "Function": Sigmoid.apply,
    "formula": lambda x: 1 / (1 + mt.exp(-x)),
}


def main() -> int:
    x = mt.randn(100, 100, requires_grad=True)
    ones = mt.ones(100, 100)
    steps = {name: lambda f=form: f(x).backward(ones) for name, form in FORMS.items()}
    found = measure(steps, seconds=5.0)
    print(f"{'sigmoid':<10}{'us':>8}{'ratio':>8}")
    for name, us in found.items():
        print(f"{name:<10}{us:>8.1f}{us / found['built-in']:>8.2f}")
    kept = found["built-in"] < found["Function"] < found["formula"]
    print("in the order of the book" if kept else "NOT in the order of the book")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
