"""The files of a C function: text, header, module of Fortran, makefile, test vectors and a test."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from ..capture.elements import DTYPES
from ..capture.program import ALIGNED
from ..capture.standalone import HEAD, Standalone, array_of, comment, numbers
from ..common.files import write_whole, writing
from ..common.version import __version__

C = {"float32": "float", "float64": "double", "bool": "uint8_t"}
FORTRAN = {
    "float": "real(c_float)", "double": "real(c_double)", "uint8_t": "integer(c_int8_t)",
    "int8_t": "integer(c_int8_t)", "int32_t": "integer(c_int32_t)", "int64_t": "integer(c_int64_t)",
    "int": "integer(c_int)", "char": "character(kind=c_char)", "void": "real(c_double)",
}  # fmt: skip
VALUES = {"reduce": "type(c_funptr), value :: reduce", "context": "type(c_ptr), value :: context"}

HEADER = Template("""\
/* $title
 *
 * Written by microtrain $version. $call needs no memory but that of its arguments
 * and a few kilobytes of stack, keeps nothing between calls, and may be called by any number of
 * threads, each with a workspace of its own.
 *
$about
 */
#ifndef ${NAME}_H
#define ${NAME}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define ${NAME}_WORKSPACE $workspace /* bytes, aligned as malloc does */
#define ${NAME}_BOUND $bound /* of what Python gives, times the largest output: see test_$name.c */
$sizes$head
/* Returns 0, or why there is no result: $codes */
$main;
$more
#ifdef __cplusplus
}
#endif
#endif
""")

FORTRAN_MODULE = Template("""\
! The functions of $name.c. Arrays are as in C, the last dimension along memory: reverse the order
! of dimensions in Fortran.
module $name
  use, intrinsic :: iso_c_binding
  implicit none
  integer, parameter :: ${name}_workspace = $doubles ! numbers of real(c_double)
$state  interface
$interfaces
  end interface
end module $name
""")

MAKEFILE = Template("""\
# make -f $name.mk test                   try the test vectors
# make -f $name.mk BLAS=-lopenblas        products of matrices by a CBLAS library
CC ?= cc
FC = gfortran
CFLAGS ?= -O3
CFLAGS += -std=c99 -ffp-contract=off $$(if $$(BLAS),-DUSE_CBLAS)

$name.o: $name.c $name.h
	$$(CC) $$(CFLAGS) -c $name.c
$name.mod: $name.f90
	$$(FC) -fsyntax-only $name.f90
test_$name: test_$name.c ${name}_vectors.h $name.o
	$$(CC) $$(CFLAGS) -o $$@ test_$name.c $name.o $$(BLAS) -lm
test: test_$name
	./test_$name
.PHONY: test
""")

TEST = Template("""\
/* Tries $name.c on the test vectors: $call must give what Python gave. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "$name.h"
#include "${name}_vectors.h"
$include
static union { double aligned; unsigned char bytes[${NAME}_WORKSPACE]; } work;
$results
/* The largest difference, over the largest number that is expected. */
static double difference(const double *found, const double *expected, long count) {
    double largest = 0, most = 0;
    for (long i = 0; i < count; i++) {
        if (isfinite(expected[i])) largest = fmax(largest, fabs(expected[i]));
        if (found[i] == expected[i]) continue;
        if (isnan(found[i]) && isnan(expected[i])) continue;
        if (!(fabs(found[i] - expected[i]) <= most)) most = fabs(found[i] - expected[i]);
        if (isnan(most)) return INFINITY;
    }
    return most == 0 ? 0 : largest > 0 ? most / largest : INFINITY;
}

int main(void) {
    double worst = 0;
$before    for (long n = 0; n < VECTORS; n++) {
        int status = $call($given);
        if (status) {
            printf("vector %ld: status %d\\n", n, status);
            return 1;
        }
$keep    }
$compare    printf("$name: %d vectors, largest difference %.2g ", VECTORS, worst);
    printf("of the largest output, bound %.2g\\n", ${NAME}_BOUND);
    return worst <= ${NAME}_BOUND ? 0 : 1;
}
""")


class Function(NamedTuple):
    """A function of C: what it returns, its name and arguments, words on it, the lines in it."""

    result: str
    name: str
    arguments: Sequence[tuple[str, str]]
    about: str
    body: str
    constants: str = ""

    @property
    def head(self) -> str:
        """Its prototype."""
        return f"{self.result}{self.name}({', '.join(map(''.join, self.arguments))})"

    def fortran(self) -> list[str]:
        """Its interface in Fortran."""
        kind = "subroutine" if self.result == "void " else "function"
        given = ", ".join(argument for _, argument in self.arguments)
        lines = [f"{kind} {self.name}({given}) &", f'    bind(c, name="{self.name}")', "  import"]
        for type_, argument in self.arguments:
            plain = type_.removeprefix("const ").rstrip(" *")
            how = f"{FORTRAN.get(plain)}, value :: {argument}"
            if type_.endswith("*"):
                intent = "in" if type_.startswith("const ") else "inout"
                how = f"{FORTRAN[plain]}, intent({intent}) :: {argument}(*)"
            lines.append(f"  {VALUES.get(argument, how)}")
        if kind == "function":
            lines[1] += " result(found)"
            found = "type(c_ptr)" if self.result.endswith("*") else FORTRAN[self.result.strip()]
            lines.append(f"  {found} :: found")
        return [*lines, f"end {kind} {self.name}"]


@dataclass(frozen=True)
class Written:
    """A function of C, and what its files say of it.

    Attributes:
        name: what names begin with.
        verb: what the function does, the end of its name.
        code: the text of its program.
        inputs, outputs: of each argument its dtype and shape, and what it is.
        title: what the file is.
        given, expected: the test vectors, arrays with one more dimension in front.
        before: lines of C before the program's: checks of the inputs.
        codes: what the function returns but 0, in words.
        notes: what else the header says of the arguments.
        extra: further functions.
        weights: whether the constants are in a file beside.
        more: further arguments before the workspace and behind it, by type and name, and what the
            test program gives; `locals`: lines of C before the others.
    """

    name: str
    verb: str
    code: Standalone
    inputs: list[tuple[Any, tuple[int, ...], str]]
    outputs: list[tuple[Any, tuple[int, ...], str]]
    title: str
    given: Sequence[Any]
    expected: Sequence[Any]
    before: Sequence[str] = ()
    codes: str = "1: an index is out of bounds."
    notes: Sequence[str] = ()
    extra: Sequence[Function] = ()
    weights: bool = False
    more: Sequence[tuple[str, str, str]] = ()
    last: Sequence[tuple[str, str, str]] = ()
    head: str = ""
    fortran: str = ""
    begin: str = ""

    @property
    def main(self) -> Function:
        """The function, without its lines."""
        found = [
            (f"const {c_type(dtype)} *", f"in{n}") for n, (dtype, *_) in enumerate(self.inputs)
        ]
        found += [(f"{c_type(dtype)} *", f"out{n}") for n, (dtype, *_) in enumerate(self.outputs)]
        found += [("const void *", "weights")] * self.weights
        found += [each[:2] for each in self.more]
        found += [("void *", "workspace"), *(each[:2] for each in self.last)]
        return Function("int ", f"{self.name}_{self.verb}", found, "", "")


def pieces(kind: str, arrays: Sequence[Any], texts: Sequence[str], first: int) -> list[Any]:
    """Of each array its dtype, its shape from dimension `first` on, and what it is."""
    texts = texts or [f"{kind} {number}" for number, _ in enumerate(arrays)]
    return [(x.dtype, tuple(x.shape[first:]), t) for x, t in zip(arrays, texts, strict=True)]


def c_type(dtype: Any) -> str:
    """The type of numbers in C."""
    kind = DTYPES[np.dtype(dtype)]
    return C.get(kind, f"{kind}_t")


def files_of(one: Written) -> dict[str, bytes]:
    """The files by the ends of their names, `{}` standing for the name."""
    weights, places = _weights(one.code) if one.weights else (b"", {})
    largest = {np.dtype(dtype).itemsize for dtype, *_ in (*one.inputs, *one.outputs)}
    single = 4 in largest or any(v.dtype == np.float32 for v in one.code.constants.values())
    sizes = [f"#define {one.name.upper()}_WEIGHTS {len(weights)} /* bytes of {one.name}.weights */"]
    about = [
        f"    {name}{n}: {_size(dtype, shape)}, {comment(text)}"
        for name, pieces in (("in", one.inputs), ("out", one.outputs))
        for n, (dtype, shape, text) in enumerate(pieces)
    ]
    about += [f"    {comment(note)}" for note in one.notes]
    declared = "".join(f"\n/* {comment(each.about)} */\n{each.head};\n" for each in one.extra)
    interfaces = [line for each in (one.main, *one.extra) for line in each.fortran()]
    names = {
        "name": one.name, "NAME": one.name.upper(), "call": one.main.name, "version": __version__,
        "title": comment(one.title), "workspace": max(one.code.workspace, ALIGNED),
        "doubles": max(one.code.workspace, ALIGNED) // 8, "bound": "1e-5" if single else "1e-10",
        "sizes": "\n".join(sizes * one.weights), "head": one.head, "codes": comment(one.codes),
        "main": one.main.head, "state": one.fortran,
        "interfaces": "\n".join(f"    {line}" for line in interfaces),
        "about": "\n".join(f" * {line}" for line in about), "more": declared,
    }  # fmt: skip
    vectors, test = _test(one)
    found = {
        "{}.c": _source(one, places),
        "{}.h": HEADER.substitute(names),
        "{}.f90": FORTRAN_MODULE.substitute(names),
        "{}.mk": MAKEFILE.substitute(names),
        "{}_vectors.h": vectors,
        "test_{}.c": TEST.substitute(names, **test),
    }
    return {key: text.encode() for key, text in found.items()} | (
        {"{}.weights": weights} if one.weights else {}
    )


def _size(dtype: Any, shape: tuple[int, ...]) -> str:
    return f"{c_type(dtype)}[{']['.join(map(str, shape)) or 1}]"


def flat(owner: Any) -> Any:
    """What owns memory, as its elements in the order in which they lie there."""
    return np.lib.stride_tricks.as_strided(owner, (owner.size,), (owner.itemsize,))


def _weights(code: Standalone) -> tuple[bytes, dict[str, int]]:
    """The bytes of all constants, and where each begins."""
    content, places = bytearray(), dict[str, int]()
    for name, piece in code.constants.items():
        places[name] = len(content)
        content += piece.tobytes()
        content += bytes(-len(content) % ALIGNED)
    return bytes(content), places


def _source(one: Written, places: dict[str, int]) -> str:
    code, constants, lines = one.code, [], list(one.before)
    for name, piece in code.constants.items():
        kind = "uint8" if piece.dtype.kind == "b" else DTYPES[piece.dtype]
        if one.weights:
            at = f"(const {kind} *)((const char *)weights + {places[name]})"
            lines.insert(0, f"const {kind} *const {name} = {at};")
        else:
            constants.append(array_of(name, kind, numbers(piece)))
    body = [*lines, *code.calls, "return 0;"]
    used = {*re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", "\n".join(body)))}  # comments name layers
    for short, name in (("work", "workspace"), ("kept", "state")):
        if short in used:
            body.insert(0, f"unsigned char *const {short} = {name};")
            used.add(name)
    body[:0] = [f"(void){name};" for _, name in one.main.arguments if name not in used]
    text = "".join(f"{'' if line.startswith('#') else '    '}{line}\n" for line in body)
    return "\n".join(
        [f"/* {comment(one.title)}: see {one.name}.h. Written by microtrain {__version__}. */",
         HEAD, f'#include "{one.name}.h"\n', *constants, code.source,
         *(f"{each.constants}\n{each.head} {{\n{each.body}}}\n" for each in one.extra),
         f"{one.main.head} {{\n{text}}}\n"]
    )  # fmt: skip


def _test(one: Written) -> tuple[str, dict[str, str]]:
    """The test vectors, and what the program says of them."""
    count = len(one.given[0])
    arrays = [f"#define VECTORS {count}\n"]
    given, results, keep, compare = [], [], [], []
    for n, each in enumerate(one.given):
        arrays.append(array_of(f"given{n}", c_type(each.dtype), numbers(each)))
        given.append(f"given{n} + n * {each[0].size}")
    for n, each in enumerate(one.expected):
        size = each[0].size
        arrays.append(array_of(f"expected{n}", "double", numbers(each.astype(np.float64))))
        results += [f"static {c_type(each.dtype)} out{n}[{size}];",
                    f"static double found{n}[{each.size}];"]  # fmt: skip
        given.append(f"out{n}")
        keep.append(
            f"        for (long i = 0; i < {size}; i++)\n"
            f"            found{n}[n * {size} + i] = (double)out{n}[i];\n"
        )
        compare.append(
            f"    worst = fmax(worst, difference(found{n}, expected{n}, {each.size}));\n"
        )
    include, before = "", one.begin
    if one.weights:
        include = "#include <stdlib.h>\n\nstatic void *weights;"
        given.append("weights")
        before = (
            f"    weights = malloc({one.name.upper()}_WEIGHTS);\n"
            f'    FILE *file = fopen("{one.name}.weights", "rb");\n'
            f"    if (!weights || !file || fread(weights, 1, {one.name.upper()}_WEIGHTS, file) != "
            f"{one.name.upper()}_WEIGHTS) {{\n"
            f'        printf("cannot read {one.name}.weights\\n");\n        return 1;\n    }}\n'
            "    fclose(file);\n"
        )
    return "#include <math.h>\n" + "\n".join(arrays), {
        "include": include, "before": before, "results": "\n".join(results),
        "given": ", ".join(
            [*given, *(each[2] for each in one.more), "work.bytes", *(each[2] for each in one.last)]
        ),
        "keep": "".join(keep),
        "compare": "".join(compare),
    }  # fmt: skip


def write_files(path: Any, files: Mapping[str, bytes]) -> None:
    """Write all files, each whole; LaunchError where the file system refuses."""
    place = Path(os.path.expanduser(path)).resolve()
    for end, content in files.items():
        with writing(path):
            write_whole(place.with_name(end.format(place.stem)), content)
