"""Every message of the page of errors is one that the code can say."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import dpft
from docs.tools.pages import DOCS

PAGE = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
ROW = re.compile(r"(?m)^\| ([^|]+) \| [^|]+ \|$")
OF_OTHERS = {"CUDA out of memory", "can't allocate memory", "Killed"}
"""What PyTorch and the system say."""


def messages() -> list[str]:
    cells = [cell for cell in ROW.findall(PAGE) if "`" in cell]
    return [said for cell in cells for said in re.findall(r"`([^`]+)`", cell)]


@cache
def sentences() -> str:
    """Every text in the code, one a line, with … for what is put into it."""
    found = []
    for path in Path(dpft.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(" ".join(text.split()) for text in found)


def can_be_said(message: str) -> bool:
    """Whether some text of the code becomes the message, with anything put in its places.

    Both sides have places: a word of the message may be what the code puts in.
    """
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    loose = [re.sub(r"(?:\\ )", r"[ …]", part) for part in parts]
    return re.search(r"[^\n]*".join(loose), sentences()) is not None


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_page_is_said_by_the_code(message: str) -> None:
    assert message in OF_OTHERS or can_be_said(message)


def test_the_page_has_many_messages_and_a_message_of_nobody_is_found_out() -> None:
    assert len(messages()) > 35
    assert can_be_said("privacy.delta must be at most 1/num_examples = …")
    assert not can_be_said("privacy.delta must be at most 2/num_examples")
    assert not can_be_said("something that … nobody says")
