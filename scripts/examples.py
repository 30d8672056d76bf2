"""Makes the pages of the API show the examples in docstrings as code.

Google's style knows `Example:` and `Examples:`; griffe, which reads docstrings for mkdocstrings,
takes the first for an admonition. There, and in plain text, Markdown takes `>>>` for quotations.
"""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Named in mkdocs.yml."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Of a module, class, function or attribute that was read."""
        if obj.docstring is not None:
            text = re.sub("^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            plain = re.compile("^>>> .+(\n.+)*", re.MULTILINE)
            obj.docstring.value = plain.sub("```pycon\n\\g<0>\n```", text)
