"""The page of the files: what a run's folder holds, and the fields of each JSON in it."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.tools.reference.file_words import (
    NOT_FILES,
    OF_CHECKPOINTS,
    OF_SWEEPS,
    PRIVATE,
    PUBLIC,
    SCHEMA_GROUPS,
)
from docs.tools.reference.markup import code, head, prose, table
from dpft import files
from dpft.schemas import SUFFIX, names, path_of, schema

INTRO = """
A run's folder holds what may be handed on, and `private/`, which is never to be released. Files are
written under a temporary name and renamed, so that each is whole or not there; ledger, journal and
diagnostics are appended to. JSON has sorted keys and a `schema_version`; a reader refuses another
one with exit code 2. Each form has a JSON Schema (draft 2020-12) that ships with dpft, in the
folder `dpft/schemas`: `dpft.schemas.schema("privacy")` returns one, and
`python -c "import dpft.schemas; print(dpft.schemas.path_of('privacy'))"` prints its path.
"""
ANSWERS = """
`output=json` prints one object on standard output. `dpft eval output=json` prints what
[metrics.json](#metrics) holds, of a private split so no more than where its scores are, and
`dpft audit output=json` what [its files](#audit_one_run) hold.
"""


def files_page() -> str:
    """Returns the page of the files.

    Raises:
        ValueError: A name of dpft/files.py, or a schema, is not described.
    """
    check_all_described()
    parts = [
        head("Files", ["dpft/files.py", "dpft/schemas/"], INTRO),
        "## Public files\n",
        _table(PUBLIC),
        "## Private files\n\n`private/` has mode 0700, its files 0600.\n",
        _table(PRIVATE),
        "In each checkpoint:\n",
        _table(OF_CHECKPOINTS),
        "## Files of a sweep\n",
        _table(OF_SWEEPS),
    ]
    for group, found in SCHEMA_GROUPS.items():
        parts.append(f"## {'Forms of the files' if group == 'Files' else group}\n")
        parts += [ANSWERS] if group == "Answers" else []
        parts += [_schema(name) for name in found]
    return "\n".join(parts)


def schema_files() -> dict[str, str]:
    """Returns the schemas as they ship, by the path at which the page links to them."""
    return {
        f"reference/schemas/{path_of(name).name}": path_of(name).read_text(encoding="utf-8")
        for name in names()
    }


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
        (code(getattr(files, name)), what, f"[{form}](#{form})" if form else "")
        for name, (what, form) in described.items()
    ]
    return table(("File or folder", "What it is", "Form"), rows)


def _schema(name: str) -> str:
    """Returns a schema's section: its cases, and below them the objects within."""
    whole = schema(name)
    cases = _cases(whole)
    known = whole.get("$defs", {})
    shown = {case: known[case] for case in cases} or {name: whole}
    parts = [
        f"### {name}\n",
        f"{prose(whole['title'])}. {prose(whole['description'])}\n",
        f"Schema: [`dpft/schemas/{name}{SUFFIX}`](schemas/{name}{SUFFIX}).\n",
    ]
    for case, part in shown.items():
        parts += [f"{prose(part['description'])}\n"] if case != name else []
        parts.append(_fields(part, known))
    for inner, part in known.items():
        if inner not in shown:
            parts.append(f"`{inner}`: {prose(part['description'])}\n")
            parts.append(_fields(part, known))
    return "\n".join(parts)


def _cases(part: Mapping[str, Any]) -> list[str]:
    """Returns the definitions between which a schema chooses."""
    if "$ref" in part:
        return [_name_of(part["$ref"])]
    if "then" in part and "$ref" in part["then"]:
        return [*_cases(part["then"]), *_cases(part["else"])]
    return []


def _fields(part: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Returns the table of an object's keys, those of objects within it behind a dot."""
    rows = list(_rows(part, "", known))
    if not part.get("properties"):
        for ending, inner in _nested(part):
            rows += _rows(inner, ending.lstrip("."), known)
    return table(("Key", "Type", "What it is"), rows) if rows else ""


def _rows(
    part: Mapping[str, Any], parent: str, known: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name, inner in part.get("properties", {}).items():
        if inner is False:
            continue
        optional = "" if name in part.get("required", ()) else " *May be absent.*"
        yield code(f"{parent}{name}"), _type(inner), prose(_said(inner, known)) + optional
        for ending, nested in _nested(inner):
            yield from _rows(nested, f"{parent}{name}{ending}", known)


def _said(part: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Returns what a key is: in its own words, else in those of the definition that it names."""
    if "description" in part or "$ref" not in part:
        return str(part.get("description", ""))
    return str(known[_name_of(part["$ref"])]["description"])


def _nested(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the objects that stand within a key, and what is written between their keys and it."""
    places = [(".", part), ("[].", part.get("items")), (".NAME.", part.get("additionalProperties"))]
    places += [(".", each) for each in part.get("anyOf", ())]
    for ending, inner in places:
        if isinstance(inner, Mapping) and inner.get("properties"):
            yield ending, inner


def _type(part: Mapping[str, Any]) -> str:
    """Returns a type in words."""
    if "const" in part:
        return code(str(part["const"]).lower() if part["const"] is not None else "null")
    if "enum" in part:
        return ", ".join(code(str(value)) for value in part["enum"])
    if "$ref" in part:
        return code(_name_of(part["$ref"]))
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(each) for each in part["anyOf"]))
    if part.get("type") == "array" and isinstance(part.get("items"), Mapping):
        return f"list of {_type(part['items'])}"
    if part.get("type") == "object" and isinstance(part.get("additionalProperties"), Mapping):
        return f"object of {_type(part['additionalProperties'])}"
    kinds = part.get("type", "object")
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def _name_of(reference: str) -> str:
    return reference.rpartition("/")[2]
