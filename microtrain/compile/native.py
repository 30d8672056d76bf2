"""What generated native code is made of besides loops: memory by address, and NumPy's own BLAS.

Compiled code is kept on disk, so it knows no address: every call is given a table of them, and
slot k of the table is where array k (or a BLAS routine) is in this process. numba is imported when
the first step is compiled.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import types as python_types
from typing import Any

import numpy as np

# (prefix, suffix, bits of an integer) of the names that builds of OpenBLAS give their routines.
_NAMES = (("scipy_cblas_", "64_", 64), ("cblas_", "64_", 64), ("cblas_", "", 32))
ROUTINES = ("sgemm", "dgemm", "sgemv", "dgemv")


@functools.cache
def blas() -> tuple[dict[str, int], int] | None:
    """The addresses of `ROUTINES` in the OpenBLAS that NumPy brought, and the bits of its integers.

    The same routines give the same bits as NumPy. None where NumPy was built with something else:
    products then stay calls of NumPy.
    """
    package = os.path.dirname(np.__file__)
    for path in glob.glob(os.path.join(f"{package}.libs", "*openblas*")) + glob.glob(
        os.path.join(package, ".dylibs", "*openblas*")
    ):
        try:
            library = ctypes.CDLL(path)  # loaded already: the same handle
        except OSError:
            continue
        for prefix, suffix, bits in _NAMES:
            names = {name: f"{prefix}{name}{suffix}" for name in ROUTINES}
            if all(hasattr(library, symbol) for symbol in names.values()):
                routines = {name: getattr(library, symbol) for name, symbol in names.items()}
                void = ctypes.c_void_p
                return {n: ctypes.cast(f, void).value or 0 for n, f in routines.items()}, bits
    return None


@functools.cache
def routine_of(name: str, dtype: Any) -> tuple[int, int] | None:
    """NumPy's own inner loop of a function with one argument: the addresses of code and data.

    It stands in the ufunc as NumPy's C interface lays that out; None where it is not found there.
    """
    ufunc, head = getattr(np, name), object.__basicsize__
    if ctypes.sizeof(ctypes.c_void_p) != 8 or (ufunc.nin, ufunc.nout) != (1, 1):
        return None
    counts = (ctypes.c_int * 3).from_address(id(ufunc) + head)  # nin, nout, nargs
    codes, data = (ctypes.c_void_p * 2).from_address(id(ufunc) + head + 16)
    if tuple(counts) != (1, 1, 2) or not codes:
        return None
    for number, types in enumerate(ufunc.types):
        if types == f"{dtype.char}->{dtype.char}":
            found = (ctypes.c_void_p * (number + 1)).from_address(codes)[number]
            more = (ctypes.c_void_p * (number + 1)).from_address(data)[number] if data else None
            return (found, more or 0) if found and _works(ufunc, dtype, found, more) else None
    return None


def _works(ufunc: Any, dtype: Any, code: int, data: int | None) -> bool:
    """Whether the routine at `code` computes what `ufunc` does."""
    x = np.linspace(-2, 2, 37).astype(dtype)
    out, size = np.zeros_like(x), ctypes.c_ssize_t
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
    prototype(code)(
        (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data), (size * 1)(x.size),
        (size * 2)(x.itemsize, x.itemsize), data,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        return bool(np.array_equal(out, ufunc(x), equal_nan=True))


@functools.cache
def instructions() -> Any:
    """`address`, `pointer`, `get`, `put`, `gemm` and the others for code that numba compiles."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    word = ir.IntType(64)

    @intrinsic
    def pointer(_: Any, table: Any, slot: Any, dtype: Any) -> Any:
        """Slot `slot` of the table at the address `table`, as memory of `dtype`."""
        kind = dtype.dtype

        def code(context: Any, builder: Any, _: Any, args: Any) -> Any:
            slots = builder.inttoptr(args[0], word.as_pointer())
            address = builder.load(builder.gep(slots, [args[1]]))
            return builder.inttoptr(address, context.get_data_type(kind).as_pointer())

        return types.CPointer(kind)(table, types.int64, dtype), code

    @intrinsic
    def address(_: Any, table: Any, slot: Any) -> Any:
        """Slot `slot` of the table at the address `table`."""

        def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
            return builder.load(
                builder.gep(builder.inttoptr(args[0], word.as_pointer()), [args[1]])
            )

        return types.int64(table, types.int64), code

    def scoped(builder: Any, access: Any, text: str) -> None:
        """Tell LLVM which accesses of one loop never meet; `text` is "loop mine count"."""
        if not text:
            return
        loop, mine, count = text.split()
        module = builder.module

        def node(name: str, *more: Any) -> Any:
            return module.add_metadata([ir.MetaDataString(module, name), *more])

        domain = node(f"microtrain {loop}")
        scopes = [node(f"microtrain {loop} {number}", domain) for number in range(int(count))]
        others = [scope for number, scope in enumerate(scopes) if number != int(mine)]
        access.set_metadata("alias.scope", module.add_metadata([scopes[int(mine)]]))
        access.set_metadata("noalias", module.add_metadata(others))

    @intrinsic(prefer_literal=True)
    def get(_: Any, memory: Any, index: Any, scope: Any) -> Any:
        """Element `index` of `memory`."""

        def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
            access = builder.load(builder.gep(args[0], [args[1]]))
            scoped(builder, access, scope.literal_value)
            return access

        return memory.dtype(memory, types.int64, scope), code

    @intrinsic(prefer_literal=True)
    def put(_: Any, memory: Any, index: Any, value: Any, scope: Any) -> Any:
        """Set element `index` of `memory`."""

        def code(context: Any, builder: Any, _: Any, args: Any) -> Any:
            access = builder.store(args[2], builder.gep(args[0], [args[1]]))
            scoped(builder, access, scope.literal_value)
            return context.get_dummy_value()

        return types.void(memory, types.int64, memory.dtype, scope), code

    def routine(layout: str) -> Any:
        """A BLAS routine by its address; `layout`: e enumeration, i integer, r real, p memory."""

        def typing(_: Any, bits: Any, address: Any, *args: Any) -> Any:
            real = next(a.dtype for a, kind in zip(args, layout, strict=True) if kind == "p")
            taken = [
                {"e": types.int32, "i": types.int64, "r": real, "p": a}[kind]
                for a, kind in zip(args, layout, strict=True)
            ]

            def code(context: Any, builder: Any, _: Any, values: Any) -> Any:
                integer = ir.IntType(bits.literal_value)
                given = [
                    builder.trunc(v, integer) if kind == "i" and integer.width < 64 else v
                    for v, kind in zip(values[2:], layout, strict=True)
                ]
                target = builder.inttoptr(
                    values[1],
                    ir.FunctionType(ir.VoidType(), [v.type for v in given]).as_pointer(),
                )
                builder.call(target, given)
                return context.get_dummy_value()

            return types.void(bits, address, *taken), code

        return typing

    matrix_matrix, matrix_vector = routine("eeeiiirpipirpi"), routine("eeiirpipirpi")

    @intrinsic(prefer_literal=True)
    def gemm(
        context: Any, bits: Any, address: Any,
        order: Any, ta: Any, tb: Any, m: Any, n: Any, k: Any,
        alpha: Any, a: Any, lda: Any, b: Any, ldb: Any, beta: Any, c: Any, ldc: Any,
    ) -> Any:  # fmt: skip
        """C = A B, as cblas says it."""
        return matrix_matrix(
            context, bits, address, order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc
        )

    @intrinsic(prefer_literal=True)
    def gemv(
        context: Any, bits: Any, address: Any,
        order: Any, t: Any, m: Any, n: Any,
        alpha: Any, a: Any, lda: Any, x: Any, incx: Any, beta: Any, y: Any, incy: Any,
    ) -> Any:  # fmt: skip
        """y = A x, as cblas says it."""
        return matrix_vector(
            context, bits, address, order, t, m, n, alpha, a, lda, x, incx, beta, y, incy
        )

    @intrinsic
    def ahead(_: Any, memory: Any, count: Any) -> Any:
        """Memory from element `count` on."""

        def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
            return builder.gep(args[0], [args[1]])

        return memory(memory, types.int64), code

    @intrinsic
    def apply(
        _: Any, code: Any, data: Any, x: Any, out: Any, count: Any, x_step: Any, out_step: Any
    ) -> Any:  # fmt: skip
        """A routine of NumPy for `count` elements; its steps are in bytes."""

        def compiled(context: Any, builder: Any, _: Any, args: Any) -> Any:
            routine, more, source, target, length, *steps = args
            byte = ir.IntType(8).as_pointer()
            arrays = cgutils.alloca_once(builder, byte, 2)
            sizes = cgutils.alloca_once(builder, word, 1)
            strides = cgutils.alloca_once(builder, word, 2)
            index = [ir.Constant(word, n) for n in range(2)]
            for place, pointed, step in zip(index, (source, target), steps, strict=True):
                builder.store(builder.bitcast(pointed, byte), builder.gep(arrays, [place]))
                builder.store(step, builder.gep(strides, [place]))
            builder.store(length, sizes)
            given = [arrays, sizes, strides, builder.inttoptr(more, byte)]
            kind = ir.FunctionType(ir.VoidType(), [v.type for v in given]).as_pointer()
            builder.call(builder.inttoptr(routine, kind), given)
            return context.get_dummy_value()

        length = types.int64
        return types.void(length, length, x, out, length, length, length), compiled

    @intrinsic
    def call(_: Any, code: Any, table: Any) -> Any:
        """Call a function of `"void(int64)"` by its address, as numba does; 0 if it went well."""

        def compiled(_: Any, builder: Any, __: Any, args: Any) -> Any:
            byte = ir.IntType(8).as_pointer()
            places = [cgutils.alloca_once(builder, byte) for _ in range(2)]  # of result and error
            kind = ir.FunctionType(ir.IntType(32), [place.type for place in places] + [word])
            function = builder.inttoptr(args[0], kind.as_pointer())
            return builder.sext(builder.call(function, [*places, args[1]]), word)

        return types.int64(types.int64, types.int64), compiled

    @intrinsic
    def copy(_: Any, target: Any, source: Any, count: Any) -> Any:
        """Copy `count` bytes from one address to another."""

        def compiled(context: Any, builder: Any, _: Any, args: Any) -> Any:
            byte = ir.IntType(8).as_pointer()
            to, of = (builder.inttoptr(arg, byte) for arg in args[:2])
            cgutils.raw_memcpy(builder, to, of, args[2], 1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), compiled

    @intrinsic
    def acquire(_: Any, place: Any) -> Any:
        """The word at an address; what another process wrote before it is seen by then."""

        def compiled(_: Any, builder: Any, __: Any, args: Any) -> Any:
            return builder.load_atomic(builder.inttoptr(args[0], word.as_pointer()), "seq_cst", 8)

        return types.int64(types.int64), compiled

    @intrinsic
    def release(_: Any, place: Any, value: Any) -> Any:
        """Set the word at an address, after all that was written before."""

        def compiled(context: Any, builder: Any, _: Any, args: Any) -> Any:
            target = builder.inttoptr(args[0], word.as_pointer())
            builder.store_atomic(args[1], target, "seq_cst", 8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), compiled

    @intrinsic
    def invoke(_: Any, code: Any, args: Any) -> Any:
        """Call a function of C by its address, with a tuple of words."""

        def compiled(_: Any, builder: Any, __: Any, values: Any) -> Any:
            given = cgutils.unpack_tuple(builder, values[1])
            kind = ir.FunctionType(word, [word] * len(given)).as_pointer()
            return builder.call(builder.inttoptr(values[0], kind), given)

        return types.int64(types.int64, args), compiled

    @intrinsic
    def done(_: Any) -> Any:
        """The end of a turn: what follows may not be moved before what came, nor the reverse.

        Scopes say that accesses of one turn never meet; what one turn writes the next one reads.
        """

        def code(context: Any, builder: Any, _: Any, __: Any) -> Any:
            builder.fence("seq_cst", "singlethread")  # for the compiler; no instruction
            return context.get_dummy_value()

        return types.void(), code

    return python_types.SimpleNamespace(
        address=address, pointer=pointer, get=get, put=put, gemm=gemm, gemv=gemv, ahead=ahead,
        apply=apply, call=call, copy=copy, done=done, acquire=acquire, release=release,
        invoke=invoke,
    )  # fmt: skip
