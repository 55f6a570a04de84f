"""Check the English of pages and messages: retired phrases and long sentences.

Run: python -m docs.tools.prose [FILE...]. Without files, it reads README.md, CHANGELOG.md, every
page of the site, the generated ones included, and the messages of dpft/. ``phrases.tsv`` lists the
retired phrases as regular expressions, each with a replacement. The exit code is 1 if a phrase
occurs or if more than 5 % of the sentences have more than 25 words.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.tools.pages import DOCS

ROOT = DOCS.parent
LONGEST = 25
"""Words of a sentence; inline code counts as one word."""
MOST_LONG = 0.05
"""Share of sentences that may be longer."""
PHRASES = [
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        line.split("\t") for line in (DOCS / "tools" / "phrases.tsv").read_text().splitlines()
    )
]
MESSAGES = {"InputError", "Fault", "RunError", "StateError", "info", "warning", "warn"}
"""Functions whose first argument is a text that users read."""
_NOT_PROSE = re.compile(r"(?ms)^```.*?^```$|<!--.*?-->|^    .*?$|<[^>]+>|\$[^$\n]+\$")
_CODE = re.compile(r"(?:`[^`]+`|\*\*[^*\n]+\*\*)+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*#>|:]|\d+\.|!!!) ?)|(?<=\S) \| | \|(?=\n|$)")
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bvs)(?<!\bno)[.!?]['\")]*(?:\s+|$)")


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One sentence of a file.

    Attributes:
        text: Without markup; inline code and bold text are kept.
        number_of_words: Of them; inline code counts as one.
    """

    text: str
    number_of_words: int


def sentences(markdown: str) -> Iterator[Sentence]:
    """Yield the sentences of prose, list items and table cells; code blocks are skipped."""
    prose = _LINK.sub(r"\1", _NOT_PROSE.sub("", markdown))
    for block in _BLOCK.split(prose):
        for text in _END.split(" ".join(block.split())):
            words = re.findall(r"[\w'’.,=-]*\w[\w'’%×-]*", _CODE.sub("code", text))
            if len(words) > 2:
                yield Sentence(text=text.strip("-*#|> "), number_of_words=len(words))


def messages(path: Path) -> str:
    """Return the literal messages of a Python file, one per paragraph; placeholders become X."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        argument = node.args[0]
        if name not in MESSAGES:
            continue
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            texts.append(argument.value)
        elif isinstance(argument, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "X" for p in argument.values)
            texts.append("".join(map(str, parts)))
    return "\n\n".join(texts)


def all_texts() -> dict[str, str]:
    """Return every page and every module's messages by name."""
    from docs.tools import made

    texts = {name: (ROOT / name).read_text() for name in ("README.md", "CHANGELOG.md")}
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        texts[name] = (ROOT / name).read_text()
    for page in sorted(DOCS.rglob("*.md")):
        texts[page.relative_to(ROOT).as_posix()] = page.read_text()
    for name, text in made.files().items():
        if name.endswith(".md") and name != "changelog.md":
            texts[f"site: {name}"] = text
    for module in sorted((ROOT / "dpft").rglob("*.py")):
        texts[module.relative_to(ROOT).as_posix()] = messages(module)
    return texts


def hits(text: str) -> list[str]:
    """Return one line for each retired phrase of a text."""
    prose = _CODE.sub("code", _LINK.sub(r"\1", _NOT_PROSE.sub("", text)))
    prose = " ".join(prose.split())
    return [
        f"{prose[max(0, match.start() - 30) : match.end() + 20]!r}: write {advice}"
        for pattern, advice in PHRASES
        for match in pattern.finditer(prose)
    ]


def main(files: list[str]) -> int:
    """Print the complaints; return 1 if there are phrases or too many long sentences."""
    texts = (
        {
            name: messages(Path(name)) if name.endswith(".py") else Path(name).read_text()
            for name in files
        }
        if files
        else all_texts()
    )
    number, long, phrases = 0, 0, 0
    for name, text in texts.items():
        found = hits(text)
        phrases += len(found)
        every = list(sentences(text))
        too_long = [each for each in every if each.number_of_words > LONGEST]
        number, long = number + len(every), long + len(too_long)
        for line in found:
            print(f"{name}: {line}")
        if files:
            for each in too_long:
                print(f"{name}: {each.number_of_words} words: {each.text}")
    share = long / max(number, 1)
    print(
        f"{phrases} retired phrases; {long} of {number} sentences ({share:.1%}) have more than"
        f" {LONGEST} words (at most {MOST_LONG:.0%})"
    )
    return int(phrases > 0 or share > MOST_LONG)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
