"""Operations are declared here and run here: the one place that runs a kernel.

An operation is a kernel and one gradient rule per differentiable input, named after that input:

    mul = ufunc("mul", "multiply", x=lambda g, y: g * y, y=lambda g, x: g * x)

The names of a rule's parameters say what it needs, and nothing else is kept alive:

    g           the gradient of the result
    <input>     that input
    result      the result
    <extra>     an extra output of the kernel, with a formula that recomputes it from the inputs
    <attribute> an attribute of the call
    x_shape     the shape of input x, without keeping x
    x_dtype     its dtype, likewise
    out         memory that the gradient may be written into, or None

Callers name inputs `x` and `y` as in PyTorch: `mul(input=a, other=b)`.

Rules use operators and the functions of `ops`, which take arrays and return arrays, or take Tensors
and return Tensors. So one rule serves the fast pass over raw arrays and, given Tensors, is recorded
for higher derivatives.

For every operation one `apply` function and two backward functions are generated as source text:
straight lines, without loops over inputs. `Operation.source` is that text; of `exp` without its
error handling it reads

    def apply(input):
        a_x = input._array
        r = XP[type(a_x)].exp(a_x)
        t = new(Tensor)                     # around r
        if M.grad and input._rg:            # record the call
            t._edge = n = new(Node)
            n._op = OP
            n._edges = (input._edge or input,)
            n._saved = (r, v)               # what the rule asks for: its result, with a version
        return t

    def backward_arrays(n, g):
        result, v = n._saved
        return (rule_x(g, result),)

Generating all at once would be half the time of `import microtrain`. So the public function begins
as a stub with the right signature, whose first call replaces its code object by the generated one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from ..autograd.graph import Backward, Node, edge_of, freed, next_seq, record
from ..backend import MODES, XP
from ..common.stack_frames import OPERATION
from ..tensor import INFERENCE, TENSORS, as_array, with_history, wrap
from . import coercion
from .coercion import PUBLIC, REGISTRY, explain, promote, stale, version_of

_LOCK = threading.RLock()

# The value of `view` for operations that copy where the memory leaves no other way.
VIEW_IF_SHARED = "if shared"


class Operation(Backward):
    """One declared operation.

    Attributes:
        name: its name in PyTorch, which it is registered under.
        kernel: `kernel(xp, *arrays, **attrs)`; returns the result, or a tuple of the result and
            the extra outputs.
        inputs: names of the array inputs; `optional` may be None.
        attrs: names of the attributes, with `defaults`.
        rules: gradient rule by input.
        extras: names of the kernel's extra outputs; `recompute` has their formulas. A node that
            saves `small` ones only is not freed by a pass.
        promote: the inputs that may be Python numbers and are brought to one dtype.
        floating: whether integers and booleans become floats first.
        view: whether the result shares the memory of the first input; VIEW_IF_SHARED where that
            depends on the memory.
        apply: the public function.
        needs: for each rule the names of its parameters. This and the following are made when
            first used: source, saves_arrays, backward_arrays, backward_tensors.
    """

    needs: dict[str, tuple[str, ...]]
    source: str
    saves_arrays: bool
    backward_arrays: Callable[..., Any]
    backward_tensors: Callable[..., Any]

    def __init__(
        self, name: str, kernel: Callable[..., Any], doc: str | None = None, *,
        call: str | None = None, extras: tuple[str, ...] = (), small: tuple[str, ...] = (),
        recompute: dict[str, Callable[..., Any]] | None = None, promote: tuple[str, ...] = (),
        floating: bool = False, view: Any = False, node_name: str | None = None, **rules: Any,
    ) -> None:  # fmt: skip
        self.name = name
        self.kernel = kernel
        self.rules = rules
        self.extras = extras
        self.recompute = recompute or {}
        self.small = small
        self.promote = promote
        self.floating = floating
        self.view = view
        words = (node_name or name).split("_")
        self.node_name = "".join(w[:1].upper() + w[1:] for w in words) + "Backward0"
        signature = list(inspect.signature(kernel).parameters.values())[1:]
        # A few kernels take memory for rules to write into, which no call of the operation has.
        signature = [p for p in signature if p.name != "out"]
        ordinary = [p for p in signature if p.kind is not p.KEYWORD_ONLY]
        keyword = [p for p in signature if p.kind is p.KEYWORD_ONLY]
        self.inputs = tuple(p.name for p in ordinary)
        self.optional = tuple(p.name for p in ordinary if p.default is None)
        self.attrs = tuple(p.name for p in keyword)
        self.defaults = {p.name: p.default for p in keyword if p.default is not p.empty}
        self._call = call
        self._doc = doc or kernel.__doc__
        self._scope: dict[str, Any] = {"OP": self, "next_seq": next_seq}
        self.apply = self._declare()
        REGISTRY[name] = self

    def _declare(self) -> Callable[..., Any]:
        """The public function as a stub: the code of `_stub` with the operation's parameters."""
        names = (*(PUBLIC.get(i, i) for i in self.inputs), *self.attrs)
        code = _stub.__code__.replace(
            co_argcount=len(names),
            co_nlocals=len(names),
            co_varnames=names,
            co_name=self.name,
            co_qualname=self.name,  # which errors about the arguments begin with
        )
        given = {**dict.fromkeys(self.optional), **self.defaults}
        order = (*self.inputs, *self.attrs)
        defaults = tuple(given[name] for name in order if name in given)
        apply = FunctionType(code, self._scope, self.name, defaults)
        self._stub = code
        apply.__module__ = self.kernel.__module__
        apply.__doc__ = self._doc
        apply.operation = self  # type: ignore[attr-defined]
        return apply

    def __getattr__(self, name: str) -> Any:
        if name in Operation.__annotations__ and "backward_tensors" not in self.__dict__:
            self.generate()
            return getattr(self, name)
        raise AttributeError(f"an operation has no attribute {name!r}")

    def generate(self) -> None:
        """Generate the code, if that has not been done."""
        with _LOCK:
            if "backward_tensors" not in self.__dict__:
                rules = self.rules.items()
                self.needs = {i: names_of(rule) for i, rule in rules}
                self.source = self._write_source()
                large = {*self.inputs, "result", *self.extras} - {*self.small}
                self.saves_arrays = not large.isdisjoint(self._needed())
                self._compile()

    def from_stub(self, arguments: dict[str, Any]) -> Any:
        """A call of the stub: the first call, and every call while some thread traces."""
        self.generate()
        with _LOCK:
            if not _TRACING:
                self.apply.__code__ = self._scope["apply"].__code__
        return _run_or_trace(self, self._scope["apply"], arguments)

    def restore_stub(self) -> None:
        """Make the public function a stub again, as each call of it is to be traced."""
        self.apply.__code__ = self._stub

    def values(self, node: Node) -> dict[str, Any]:
        """What the rules may ask for by name at a `node` of this operation, as Tensors.

        Raises RuntimeError where that was freed, or written to since.
        """
        if node._saved is None:
            raise freed(node)
        found, saved, number = {"out": None}, iter(node._saved), 0
        for name in self._saved():
            value = next(saved)
            if name in self.inputs:
                then = node._versions[number] if node._versions else 0
                if value is not None and version_of(value) != then:
                    raise stale(node, name, version_of(value), node._versions, number)
                number += 1
            elif name == "result":
                version = next(saved)
                if version.n:
                    raise stale(node, "its result", version.n, None, 0)
                value = with_history(value, version, node)
            found[name] = value
        for extra in self.extras:
            if extra in found:
                formula = self.recompute[extra]
                found[extra] = formula(*[found[name] for name in names_of(formula)])
        return found

    def _needed(self) -> set[str]:
        return {n for need in self.needs.values() for n in need}

    def _unless_none(self, name: str, test: str) -> str:
        return f"({name} is None or {test})" if name in self.optional else test

    # Generated code ---------------------------------------------------------------------------

    def _write_source(self) -> str:
        """The text of `apply`, `backward_arrays` and `backward_tensors`."""
        ins, rules = self.inputs, self.rules
        parameters = [f"{i}=None" if i in self.optional else i for i in ins]
        parameters += [f"{a}=DEFAULTS[{a!r}]" if a in self.defaults else a for a in self.attrs]
        all_tensors = " and ".join(self._unless_none(i, f"type({i}) in TENSORS") for i in ins)
        lines = [f"def apply({', '.join(parameters)}):"]
        emit = lines.append
        arguments = ", ".join(ins) + ","
        attributes = "".join(f", {a}={a}" for a in self.attrs)
        emit(f"    if not ({all_tensors}):")
        arrays_only = [f"type({ins[0]}) in XP", *(f"type({i}) not in TENSORS" for i in ins[1:])]
        emit(f"        if {' and '.join(arrays_only)}:")
        first_output = "[0]" if self.extras else ""
        emit(f"            xp = XP[type({ins[0]})]")
        emit(f"            return {self._kernel_call(ins, attributes)}{first_output}")
        emit(f"        {', '.join(ins)}{',' if len(ins) == 1 else ''} = coerce(OP, ({arguments}))")
        for i in ins:
            none = f"None if {i} is None else " if i in self.optional else ""
            emit(f"    a_{i} = {none}{i}._array")
        if len(self.promote) > 1:
            first, *others = self.promote
            differ = " or ".join(f"a_{o}.dtype is not a_{first}.dtype" for o in others)
            emit(f"    if {differ}:")
            names = ", ".join(self.promote)
            emit(f"        {names} = promote(({names},){', True' if self.floating else ''})")
            for i in self.promote:
                emit(f"        a_{i} = {i}._array")
        if self.floating:
            emit(f"    if a_{ins[0]}.dtype.kind != 'f':")
            for i in ins:
                emit(f"        {i} = to_float({i})")
                emit(f"        a_{i} = {i}._array")
        emit(f"    xp = XP[type(a_{ins[0]})]")
        emit("    try:")
        arrays = [f"a_{i}" for i in ins]
        emit(f"        r = {self._kernel_call(arrays, attributes)}")
        emit("    except Exception as error:")
        emit(f"        raise explain(OP, error, ({', '.join(arrays)},)) from error")
        if self.extras:
            emit(f"    r, {', '.join('x_' + e for e in self.extras)} = r")
        emit("    if type(r) not in ARRAYS:")
        emit("        r = xp.asarray(r)")
        emit("    t = new(Tensor)")
        emit("    t._array = r")
        emit("    t._grad = t._extra = None")
        if self.view:
            first = ins[0]
            emit(f"    v = {first}._version")
            emit("    if v is None:")
            emit(f"        v = {first}._version = Version({first})")
            emit("    elif v.base is None:")
            emit(f"        v.base = ref({first})")
            if self.view == VIEW_IF_SHARED:
                emit(f"    if not shared(a_{first}, r):")
                emit("        v = INFERENCE if M.inference else Version(t)")
            emit("    t._version = v")
        else:
            emit("    t._version = None")
        if rules:
            self._emit_record(emit)
        emit("    t._rg = False")
        emit("    t._edge = None")
        if self.view:
            emit("    if grad:")
            emit(f"        watch(v, t, {ins[0]})")
        elif rules:  # a view of an ordinary Tensor is one, and counts its writes
            emit("    if grad is not True:")
            emit("        if M.inference:")
            emit("            t._version = INFERENCE")
            emit("        if grad is not False:")
            emit(f"            grad.result(OP, t, ({arguments}))")
        emit("    return t")
        # Rules say x and y; the parameters of the public function are PyTorch's input and other.
        lines = [re.sub(r"\b[xy]\b", lambda found: PUBLIC[found[0]], line) for line in lines]
        emit = lines.append
        for mode in ("arrays", "tensors"):
            self._emit_backward(emit, mode)
        return "\n".join(lines) + "\n"

    def _kernel_call(self, arrays: Iterable[str], attributes: str) -> str:
        names = ", ".join(arrays)
        return f"xp.{self._call}({names})" if self._call else f"KERNEL(xp, {names}{attributes})"

    def _saved(self) -> list[str]:
        """What a node keeps, in order: inputs, result, extras, attributes, shapes, dtypes."""
        needed = self._needed()
        if any(e in needed for e in self.extras):
            for formula in (self.recompute[e] for e in self.extras if e in needed):
                needed |= set(names_of(formula))
        kept = [i for i in self.inputs if i in needed]
        kept += ["result"] if "result" in needed else []
        kept += [e for e in self.extras if e in needed]
        kept += [a for a in self.attrs if a in needed]
        facts = [f"{i}_{what}" for i in self.inputs for what in ("shape", "dtype")]
        return kept + [fact for fact in facts if fact in needed]

    def _emit_record(self, emit: Callable[[str], None]) -> None:
        """The part of `apply` that makes the node."""
        differentiable = [i for i in self.inputs if i in self.rules]
        wants = " or ".join(
            f"({i} is not None and {i}._rg)" if i in self.optional else f"{i}._rg"
            for i in differentiable
        )
        emit("    grad = M.grad")
        emit(f"    if grad and ({wants}):")
        for i in differentiable:
            test = f"{i}._rg" if i not in self.optional else f"{i} is not None and {i}._rg"
            emit(f"        e_{i} = ({i}._edge or {i}) if {test} else None")
        emit("        t._rg = True")
        emit("        t._edge = n = new(Node)")
        emit("        n._op = OP")
        edges = ", ".join(f"e_{i}" if i in self.rules else "None" for i in self.inputs)
        emit(f"        n._edges = ({edges},)")
        kept = []
        saved_inputs = []
        for name in self._saved():
            if name in self.inputs:
                users = [i for i, need in self.needs.items() if name in need]
                for extra, formula in self.recompute.items():
                    if name in names_of(formula):
                        users += [i for i, need in self.needs.items() if extra in need]
                if set(users) >= set(differentiable) and len(differentiable) == 1:
                    kept.append(name)
                else:
                    test = " or ".join(f"e_{u} is not None" for u in dict.fromkeys(users))
                    kept.append(f"({name} if {test} else None)")
                saved_inputs.append(name)
            elif name == "result":
                emit("        t._version = v = new(Version)")  # without a call
                emit("        v.n = 0")
                emit("        v.base = v.viewers = v.lock = None")
                kept += ["r", "v"]
            elif name in self.extras:
                kept.append(f"x_{name}")
            elif name in self.attrs:
                kept.append(name)
            else:
                name, _, what = name.rpartition("_")
                kept.append(f"a_{name}.{what}")
        emit(f"        n._saved = ({', '.join(kept)}{',' if kept else ''})")
        if saved_inputs:
            versions = (self._unless_none(i, f"{i}._version is None") for i in saved_inputs)
            none = " and ".join(versions)
            numbers = ", ".join(
                f"version_of({i})"
                if i in self.optional
                else f"0 if {i}._version is None else {i}._version.n"
                for i in saved_inputs
            )
            emit(f"        n._versions = None if {none} else ({numbers},)")
        else:
            emit("        n._versions = None")
        emit("        n._shape = r.shape")
        emit("        n._seq = next_seq()")
        emit("        n._hooks = None")
        if self.view:
            emit(f"        watch(v, t, {self.inputs[0]})")
        emit("        if grad is not True:")
        emit(f"            grad.result(OP, t, ({', '.join(self.inputs)},))")
        emit("        return t")

    def _emit_backward(self, emit: Callable[[str], None], mode: str) -> None:
        """One of the two functions that run the rules over what a node saved."""
        emit("")
        emit(f"def backward_{mode}(n, g):")
        saved = self._saved()
        names = [x for name in saved for x in (("result", "v") if name == "result" else (name,))]
        if names:
            emit(f"    {', '.join(names)}{',' if len(names) == 1 else ''} = n._saved")
        if any(i in self.rules for i in self.inputs):
            edges = ", ".join(f"e_{i}" if i in self.rules else f"_{i}" for i in self.inputs)
            emit(f"    {edges}, = n._edges")
        for number, name in enumerate(i for i in saved if i in self.inputs):
            emit(f"    if {name} is not None:")
            emit(f"        v_ = {name}._version")
            then = f"(n._versions[{number}] if n._versions else 0)"
            emit(f"        if v_ is not None and v_.n != {then}:")
            emit(f"            raise stale(n, {name!r}, v_.n, n._versions, {number})")
            if mode == "arrays":
                emit(f"        {name} = {name}._array")
        if "result" in saved:
            emit("    if v.n:")
            emit("        raise stale(n, 'its result', v.n, None, 0)")
            if mode == "tensors":
                emit("    result = with_history(result, v, n)")
        if mode == "tensors":
            for name in (e for e in self.extras if e in saved):
                formula = ", ".join(names_of(self.recompute[name]))
                emit(f"    {name} = RECOMPUTE[{name!r}]({formula})")
        results = []
        for i in self.inputs:
            if i not in self.rules:
                results.append("None")
                continue
            need = self.needs[i]
            values = []
            for parameter in need:
                if parameter != "out":
                    values.append(parameter)
                elif mode == "arrays":  # one leaf as two inputs: both cannot have its memory
                    others = [o for o in self.inputs if o in self.rules and o != i]
                    same = " or ".join(f"e_{i} is e_{o}" for o in others)
                    offer = f"slot_of(e_{i})"
                    values.append(f"(None if {same} else {offer})" if same else offer)
                else:
                    values.append("None")
            results.append(f"rule_{i}({', '.join(values)}) if e_{i} is not None else None")
        lines = ",\n        ".join(results)
        emit(f"    return (\n        {lines},\n    )")

    def _compile(self) -> None:
        scope = self._scope
        for i, rule in self.rules.items():
            rule.__qualname__ = f"gradient of {i}"
            scope[f"rule_{i}"] = rule
        scope |= {
            **vars(coercion), "KERNEL": self.kernel, "RECOMPUTE": self.recompute,
            "DEFAULTS": self.defaults, "new": object.__new__, "Node": Node, "M": MODES,
            "with_history": with_history, "ref": weakref.ref,
        }  # fmt: skip
        source, file = self.source, f"{OPERATION}{self.name}>"
        linecache.cache[file] = len(source), None, source.splitlines(True), file  # for tracebacks
        exec(compile(source, file, "exec"), scope)
        self.backward_arrays = scope["backward_arrays"]
        self.backward_tensors = scope["backward_tensors"]


def _stub() -> Any:
    return OP.from_stub(locals())  # type: ignore[name-defined]  # noqa: F821


_TRACING: list[Any] = []  # the tracers of all threads


def _run_or_trace(operation: Any, run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    tracer = MODES.tracer
    return run(**arguments) if tracer is None else tracer.call(operation, run, arguments)


@contextlib.contextmanager
def tracing(tracer: Any) -> Iterator[None]:
    """Hand every call of an operation in this thread to `tracer.call`.

    All operations become stubs, which look for a tracer; afterwards each gets its generated code
    back at its first call. So generated code has no question whether somebody traces.
    """
    before = MODES.tracer
    with _LOCK:
        _TRACING.append(tracer)
        for operation in REGISTRY.values():
            operation.restore_stub()
    try:
        MODES.tracer = tracer
        yield
    finally:
        MODES.tracer = before
        _TRACING.remove(tracer)


def names_of(formula: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a rule, or of the formula of an extra output: what it needs, by name."""
    if hasattr(formula, "operation"):
        return formula.operation.inputs
    return tuple(inspect.signature(formula).parameters)


def primitive(name: str, kernel: Any = None, doc: str | None = None, **more: Any) -> Any:
    """Declare an operation and return its public function; see `Operation` for more arguments.

    The function's docstring is `doc`, or that of the kernel. Without a kernel it decorates one.
    """
    if kernel is None:
        return functools.partial(primitive, name, doc=doc, **more)
    return Operation(name, kernel, doc, **more).apply


def ufunc(name: str, instruction: str, doc: str, *, floating: bool = False, **rules: Any) -> Any:
    """Declare an elementwise operation whose kernel is one instruction over its inputs.

    The inputs are the names of the rules; see `no_gradient` for those without rules.
    """
    kernel, inputs = _ufunc_kernel(instruction, tuple(rules)), tuple(rules)
    shared = {"call": instruction, "promote": inputs, "floating": floating}
    return primitive(name, kernel, doc, **shared, **rules)


def no_gradient(name: str, instruction: str, doc: str, inputs: tuple[str, ...] = ("x", "y")) -> Any:
    """Declare an elementwise operation that has no gradient, such as a comparison."""
    kernel, doc = _ufunc_kernel(instruction, inputs), f"{doc}, elementwise."
    return primitive(name, kernel, doc, call=instruction, promote=inputs)


def real_function(
    name: str, doc: str, rule: Callable[..., Any], instruction: str | None = None
) -> Any:
    """Declare a function of one real number that is one instruction; integers become floats.

    The instruction has the name of the function unless it is given.
    """
    return ufunc(name, instruction or name, f"{doc}, elementwise.", x=rule, floating=True)


def _ufunc_kernel(instruction: str, inputs: tuple[str, ...]) -> Callable[..., Any]:
    def kernel(xp, *arrays):
        return getattr(xp, instruction)(*arrays)

    kernel.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("xp", *inputs)]
    )
    return kernel


class Variadic(Backward):
    """An operation over a list of Tensors, such as `cat`; one rule gives all gradients.

    Args:
        kernel: `kernel(xp, arrays, **attrs)`.
        rule: `rule(g, shapes, **attrs)`, a sequence with one gradient for each Tensor.
    """

    saves_arrays = False
    inputs = ("tensors",)
    extras: tuple[str, ...] = ()

    def __init__(self, name: str, kernel: Callable[..., Any], rule: Callable[..., Any]) -> None:
        self.name = name
        self.kernel = kernel
        self.rule = rule
        self.rules = {"tensors": rule}
        self.node_name = name[:1].upper() + name[1:] + "Backward0"
        REGISTRY[name] = self

    def from_stub(self, tensors: tuple[Any, ...], **attrs: Any) -> Any:
        """A call of `apply` while some thread traces."""
        with _LOCK:
            if not _TRACING:
                vars(self).pop("apply", None)
        run = functools.partial(Variadic.apply, self)
        return _run_or_trace(self, run, {"tensors": tuple(tensors), **attrs})

    def restore_stub(self) -> None:
        """Hide `apply`, as each call of it is to be traced."""
        self.apply = self.from_stub  # type: ignore[method-assign]

    def apply(self, tensors: tuple[Any, ...], **attrs: Any) -> Any:
        """Run the kernel on all `tensors` (or arrays) and record the call."""
        if type(tensors[0]) not in TENSORS:
            return self.kernel(XP[type(tensors[0])], tensors, **attrs)
        if any(t._array.dtype is not tensors[0]._array.dtype for t in tensors):
            tensors = promote(tensors)
        arrays = tuple(t._array for t in tensors)
        try:
            result = self.kernel(XP[type(arrays[0])], arrays, **attrs)
        except Exception as error:
            raise explain(self, error, arrays) from error
        out = wrap(as_array(result))
        if MODES.grad and any(t._rg for t in tensors):
            node = out._edge = Node()
            edges, shapes = tuple(edge_of(t) for t in tensors), tuple(a.shape for a in arrays)
            record(node, self, edges, (shapes, attrs), out._array.shape)
            out._rg = True
        elif MODES.inference:
            out._version = INFERENCE
        return out

    def backward_arrays(self, node: Node, g: Any) -> tuple[Any, ...]:
        """The gradient of every input."""
        shapes, attrs = node._saved
        return tuple(self.rule(g, shapes, **attrs))

    backward_tensors = backward_arrays


def publish(module: dict[str, Any], *more: str) -> None:
    """Make the `__all__` of a module, of which these are the globals: its fronts, and `more`."""
    here = module["__name__"]
    fronts = [name for name, f in module.items() if hasattr(f, "front") and f.__module__ == here]
    module["__all__"] = [*(name for name in fronts if name[0] != "_"), *more]
