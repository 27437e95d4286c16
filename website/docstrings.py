"""Docstrings as the renderer of the API reads them."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:$", re.M)


class Examples(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Names the section of examples as griffe expects it, so that sessions are shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it, wherever an object is documented."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
