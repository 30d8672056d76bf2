"""Makes the pages of the API show examples as code and types as a reader knows them.

Google's style knows `Example:` and `Examples:`; griffe, which reads docstrings for mkdocstrings,
takes the first for an admonition. There, and in plain text, Markdown takes `>>>` for quotations.
"""

import re
from typing import Any

from griffe import Expr, ExprBinOp, ExprSubscript, ExprTuple, Extension, Function, Object


class Docstrings(Extension):
    """Named in mkdocs.yml."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Of a module, class, function or attribute that was read."""
        if obj.docstring is not None:
            text = re.sub("^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            plain = re.compile("^>>> .+(\n.+)*", re.MULTILINE)
            obj.docstring.value = plain.sub("```pycon\n\\g<0>\n```", text)
        if isinstance(obj, Function):
            for parameter in obj.parameters:
                parameter.annotation = unannotated(parameter.annotation)


def unannotated(kind: str | Expr | None) -> Any:
    """`float` of `Annotated[float, Gt(0)]`, wherever that stands in a type."""
    if isinstance(kind, ExprTuple):
        kind.elements = [*map(unannotated, kind.elements)]
    elif isinstance(kind, ExprBinOp):
        kind.left, kind.right = unannotated(kind.left), unannotated(kind.right)
    elif isinstance(kind, ExprSubscript):
        kind.slice = unannotated(kind.slice)
        if str(kind.left) == "Annotated" and isinstance(kind.slice, ExprTuple):
            return kind.slice.elements[0]
    return kind
