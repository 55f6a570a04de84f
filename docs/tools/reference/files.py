"""The page of the files: what a run's folder holds, and the fields of each JSON in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from docs.tools.reference.file_words import (
    NOT_FILES,
    OF_CHECKPOINTS,
    OF_SWEEPS,
    PRIVATE,
    PUBLIC,
    SCHEMA_GROUPS,
)
from docs.tools.reference.forms import SUFFIX, names, schema, schema_text
from docs.tools.reference.markup import code, head, prose, table
from dpft import run_folder as files

INTRO = """
A run's folder holds what may be handed on, and `private/`, which is never to be released. Files are
written under a temporary name and renamed, so that each is whole or not there; ledger, journal and
diagnostics are appended to. JSON has sorted keys and a `schema_version`; a reader refuses another
one with exit code 2. Each form has a JSON Schema, which its section links to.
"""
FORMS = {
    "Files": (
        "reference/forms.md",
        "Forms of files",
        """
Each JSON file of a [run's folder](files.md), key by key. A key within another stands behind a dot,
of each entry of a list behind `[]`, of each entry of an object behind `NAME`. A type with `?` is
of a key that may be absent, one with `[]` a list. Shared keys are described once, at the end.
""",
    ),
    "Answers": (
        "reference/answers.md",
        "Answers of output=json",
        """
`output=json` prints one object on standard output. `dpft eval output=json` prints what
[metrics.json](forms.md#metrics) contains, and the scores of a private split, marked "private: not
covered by ε". `dpft audit output=json` prints what [its files](forms.md#audit_one_run) contain,
and `dpft tokenizer output=json` the run's [privacy.json](forms.md#tokenizer_privacy).
`dpft report output=json` prints one object per run, in `runs`: its folder, its cost, the keys in
which the runs differ, and its public scores; `left_out` has the folders of runs that have not
ended.
""",
    ),
}
"""Where the forms of a group are described: path, title and introduction of their page."""
ABSENT = " `?`"
HEADINGS = ("Key", "Type", "What it is")
Row = tuple[str, str, str]
"""A key, its type and what it is."""


def files_pages() -> dict[str, str]:
    """Returns the pages of the files, of their forms and of answers, by path below docs/.

    Raises:
        ValueError: A name of dpft/run_folder.py, or a schema, is not described.
    """
    check_all_described()
    parts = [
        head("Files of a run", ["dpft/run_folder.py"], INTRO),
        "## Public files\n",
        _table(PUBLIC),
        "## Private files\n\n`private/` has mode 0700, its files 0600.\n",
        _table(PRIVATE),
        "In each checkpoint:\n",
        _table(OF_CHECKPOINTS),
        "## Files of a sweep\n",
        _table(OF_SWEEPS),
    ]
    made = {"reference/files.md": "\n".join(parts)}
    shared = shared_keys(_rows_of_objects())
    for group, (path, title, intro) in FORMS.items():
        parts = [head(title, ["the pydantic models of these forms"], intro)]
        parts += [_schema(name, shared) for name in SCHEMA_GROUPS[group]]
        if group == "Files":
            parts += [
                "## Keys of several forms\n",
                "Each means the same wherever a form names it.\n",
                table(HEADINGS, [(code(name), *said) for name, said in sorted(shared.items())]),
            ]
        made[path] = "\n".join(parts)
    return made


def shared_keys(objects: Mapping[str, Iterable[Row]]) -> dict[str, tuple[str, str]]:
    """Returns the keys that several objects say the same of: type and meaning by their own names.

    Where two meanings of a name are shared, the one that more objects have is chosen.
    """
    found: dict[tuple[str, str, str], set[str]] = {}
    for form, rows in objects.items():
        for key, kind, what in rows:
            found.setdefault((key.rpartition(".")[2], kind, what), set()).add(form)
    several = sorted((len(having), key) for key, having in found.items() if len(having) > 1)
    return {name: (kind, what) for _, (name, kind, what) in several}


def schema_files() -> dict[str, str]:
    """Returns the schemas as they ship, by the path at which the page links to them."""
    return {f"reference/schemas/{name}{SUFFIX}": schema_text(name) for name in names()}


def check_all_described() -> None:
    """Refuses names of the folder, and schemas, that the page would leave out.

    Raises:
        ValueError: It names them.
    """
    there = {
        name for name, value in vars(files).items() if name.isupper() and isinstance(value, str)
    }
    described = {*PUBLIC, *PRIVATE, *OF_SWEEPS, *OF_CHECKPOINTS, *NOT_FILES}
    of_schemas = {name for found in SCHEMA_GROUPS.values() for name in found}
    wrong = there.symmetric_difference(described) | set(names()).symmetric_difference(of_schemas)
    if wrong:
        raise ValueError(f"docs/tools/reference/file_words.py must describe {sorted(wrong)}.")


def _table(described: Mapping[str, tuple[str, str]]) -> str:
    rows = [
        (code(getattr(files, name)), what, f"[{form}](forms.md#{form})" if form else "")
        for name, (what, form) in described.items()
    ]
    return table(("File or folder", "What it is", "Form"), rows)


def _schema(name: str, shared: Mapping[str, tuple[str, str]]) -> str:
    """Returns a schema's section: its cases, and below them the objects within."""
    whole = schema(name)
    parts = [
        f"## {name}\n",
        f"{prose(whole['title'])}. {prose(whole['description'])}"
        f" [Schema](schemas/{name}{SUFFIX}).\n",
    ]
    for part, title in _objects(name):
        rows = list(_fields(part, whole.get("$defs", {})))
        alike = [key for key, *said in rows if shared.get(key.rpartition(".")[2]) == tuple(said)]
        own = [(code(key), *said) for key, *said in rows if key not in alike]
        if not rows:
            continue
        parts.append(f"{title} {_named_only(alike)}".strip() + "\n")
        parts += [table(HEADINGS, own)] if own else []
    return "\n".join(parts)


def _named_only(keys: Sequence[str]) -> str:
    """Returns a sentence of the keys that the table of shared keys describes."""
    named = ", ".join(map(code, keys))
    return f"[Shared](forms.md#keys-of-several-forms): {named}." if keys else ""


def _objects(name: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yields a schema's objects with their titles: the whole or its cases, then those within."""
    whole = schema(name)
    known = whole.get("$defs", {})
    cases = _cases(whole)
    if not cases:
        yield whole, ""
    for case in cases:
        yield known[case], prose(known[case]["description"])
    for inner, part in known.items():
        if inner not in cases:
            yield part, f"`{inner}`: {prose(part.get('description', ''))}"


def _rows_of_objects() -> dict[str, list[Row]]:
    """Returns the keys of every object of every schema, cases of one form apart."""
    return {
        f"{name} {number}": list(_fields(part, schema(name).get("$defs", {})))
        for name in names()
        for number, (part, _) in enumerate(_objects(name))
    }


def _cases(part: Mapping[str, Any]) -> list[str]:
    """Returns the definitions between which a schema chooses."""
    return [_name_of(case["$ref"]) for case in part.get("anyOf", ()) if "$ref" in case]


def _fields(part: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Row]:
    """Yields an object's keys, those of objects within it behind a dot."""
    yield from _rows(part, "", known)
    if not part.get("properties"):
        for ending, inner in _nested(part):
            yield from _rows(inner, ending.lstrip("."), known)


def _rows(part: Mapping[str, Any], parent: str, known: Mapping[str, Any]) -> Iterator[Row]:
    for name, inner in part.get("properties", {}).items():
        if inner is False:
            continue
        kind = _type(inner) + ("" if name in part.get("required", ()) else ABSENT)
        yield f"{parent}{name}", kind, prose(_said(inner, known))
        for ending, nested in _nested(inner):
            yield from _rows(nested, f"{parent}{name}{ending}", known)


def _said(part: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Returns what a key is: in its own words, else in those of the definition that it names."""
    if "description" in part or "$ref" not in part:
        return str(part.get("description", ""))
    return str(known[_name_of(part["$ref"])].get("description", ""))


def _nested(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the objects that stand within a key, and what is written between their keys and it."""
    places = [(".", part), ("[].", part.get("items")), (".NAME.", part.get("additionalProperties"))]
    for ending, inner in places:
        if isinstance(inner, Mapping):
            cases = (inner, *inner.get("anyOf", ()))
            yield from ((ending, each) for each in cases if each.get("properties"))


def _type(part: Mapping[str, Any]) -> str:
    """Returns a type in words."""
    if "const" in part:
        return code(str(part["const"]).lower() if part["const"] is not None else "null")
    if "enum" in part:
        return ", ".join(code(str(value)) for value in part["enum"])
    if "$ref" in part:
        return code(_name_of(part["$ref"]))
    if "anyOf" in part:
        kinds = dict.fromkeys(_type(each) for each in part["anyOf"] if each.get("type") != "null")
        return " or ".join(kinds)
    if part.get("type") == "array" and isinstance(part.get("items"), Mapping):
        return f"{_type(part['items'])} \\[]"
    if part.get("type") == "object" and isinstance(part.get("additionalProperties"), Mapping):
        return f"NAME: {_type(part['additionalProperties'])}"
    kinds = part.get("type", "object")
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def _name_of(reference: str) -> str:
    return reference.rpartition("/")[2]
