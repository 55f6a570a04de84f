"""Every error message is plain English and carries the fields that other tests assert.

A message states what happened, why, and how to fix it, in at most two sentences. This test reads
all messages from the source, so that no other test has to compare their wording.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpft

PACKAGE = Path(dpft.__file__).parent
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
ERRORS = ("InputError", "Fault", "RunError", "StateError")
LONGEST = 50
"""Words of a message; a placeholder counts as one."""
RETIRED = re.compile(
    r"\b(anew|beside|besides|but for|as ever|goes on|go on|going on|broke off|breaks off|refused?|"
    r"refuses|what|whatever|whose|whoever|stands?|lies|bears?|mend|faulty|left out|own data|"
    r"own files|promised?|promises|tells?|told|says|said|alone|nobody|as well|held against|"
    r"looked at|the way out|drop it|words of|is of|are of)\b|, none\b|\bwhere\b"
)
"""Private vocabulary and inverted clauses of earlier versions."""


def message_of(node: ast.expr | None) -> str | None:
    """Return the text of a literal message with placeholders as ``X``, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
        )
    return None


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield each call that makes an error or a fault."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ERRORS
            and node.args
        ):
            yield node


def complaints(call: ast.Call) -> Iterator[str]:
    """Yield what is wrong with the message and the fields of one call."""
    message = message_of(call.args[0])
    if message is None:
        return
    if call.func.id in ("InputError", "Fault") and "key" not in {k.arg for k in call.keywords}:  # type: ignore[attr-defined]
        yield f"key= is missing: {message}"
    sentences = re.split(r"[.?!] (?=[A-Z`{X])", message.strip())
    if len(sentences) > 2:
        yield f"more than two sentences: {message}"
    if len(message.split()) > LONGEST:
        yield f"more than {LONGEST} words: {message}"
    if not re.search(r"[.?!:X)`'\n]$", message):
        yield f"no full stop: {message}"
    if retired := RETIRED.search(message):
        yield f"{retired[0]!r} is retired: {message}"


@pytest.mark.parametrize("file", FILES)
def test_messages_are_plain_and_have_fields(file: str) -> None:
    tree = ast.parse((PACKAGE / file).read_text())
    wrong = [
        f"line {call.lineno}: {complaint}" for call in calls(tree) for complaint in complaints(call)
    ]
    assert not wrong, "\n".join(wrong)
