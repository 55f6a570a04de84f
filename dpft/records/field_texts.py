"""The text that stands below a field of a dataclass, read from the source."""

import ast
import functools
import inspect
from pathlib import Path


def texts_of(cls: type) -> dict[str, str]:
    """Returns the text on each field of a dataclass, on one line; a base's where it has no own."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            texts |= _own_texts(base)
    return {name: " ".join(text.split()) for name, text in texts.items()}


def _own_texts(cls: type) -> dict[str, str]:
    """Returns the texts below the fields that a class itself declares."""
    found = _classes(inspect.getsourcefile(cls) or "").get(cls.__qualname__)
    if found is None:
        return {}
    return {
        field.target.id: text.value.value
        for field, text in zip(found.body, found.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a source file, by name."""
    source = Path(file).read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
