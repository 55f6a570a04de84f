"""The page of the files of a run, the exit codes, and the keys of each JSON file."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.tools.reference.file_words import (
    EXIT_CODES,
    NOT_FILES,
    OF_CHECKPOINTS,
    OF_SWEEPS,
    PRIVATE,
    PUBLIC,
)
from docs.tools.reference.forms import ANSWER, FORMS, SUFFIX, schema
from docs.tools.reference.markup import anchored, code, head, prose, table
from dpft import run_folder
from dpft.commands.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, READER_GONE
from dpft.errors import InputError, RunError, StateError
from dpft.parallel.rank_environment import TERMINATED

INTRO = """
This page lists the files of a run folder, the exit codes, and the keys of each JSON file and of
`output=json`. Never release the files in `private/`; you may release the other files of a run. dpft
writes a file under a temporary name and renames it, so a file is either complete or missing. It
only appends to the ledger, the journal and the diagnostics. JSON files have a `schema_version`;
dpft rejects another version with exit code 2.
"""
EXIT_INTRO = """
If a command fails, it prints one message per error to stderr, beginning with `dpft: error:`.
Results go to stdout. A sweep ends with the highest exit code of its runs. In Python, the
functions raise `dpft.InputError` (code 2), `dpft.RunError` (code 1) or `dpft.StateError` (code 3).
All are a `dpft.DpftError`, whose `exit_code` is the code.
"""
ANSWERS_INTRO = """
`output=json` prints one object to stdout. `dpft eval` prints the content of
[metrics.json](#metrics) with the scores of private splits, marked "private: not covered by ε".
`dpft tokenizer` prints the [privacy.json](#tokenizer_privacy) of the run. `dpft audit` prints the
file of the audit, such as [one_run.json](#audit_one_run). `dpft report` prints an object with
`runs` and `left_out`. `runs` has the folder, the cost, the differing keys and the public scores of
each run. `left_out` has the folders of unfinished runs.

`[]` marks a list, and `NAME:` marks an object with arbitrary keys. A key with `?` can be absent.
Links lead to the [objects](#objects-in-json-files) that several files share.
"""
HEADINGS = ("Key", "Type", "Description")


def files_page() -> str:
    """Return the page.

    Raises:
        ValueError: A name of dpft/run_folder.py or an exit code has no description.
    """
    check_all_described()
    answers = [name for name, form in FORMS.items() if form[1].startswith(ANSWER[:9])]
    codes = [(code(str(number)), *texts) for number, texts in EXIT_CODES.items()]
    objects: dict[str, Mapping[str, Any]] = {}
    for name in FORMS:
        objects |= schema(name).get("$defs", {})
    parts = [
        head("Files and exit codes", ["dpft/run_folder.py", "dpft/errors.py"], INTRO),
        "## Public files of a run\n",
        _table(PUBLIC),
        "## Private files of a run\n",
        "The folder `private/` has mode 0700, and its files have mode 0600.\n",
        _table(PRIVATE),
        "## Files of a checkpoint\n",
        _table(OF_CHECKPOINTS),
        "## Files of a sweep\n",
        _table(OF_SWEEPS),
        f"## Exit codes\n{EXIT_INTRO}",
        table(("Code", "Meaning", "Action"), codes),
        f"## JSON output of commands\n{ANSWERS_INTRO}",
        *(part for name in answers for part in _form(name)),
        "## JSON files\n",
        *(part for name in FORMS if name not in answers for part in _form(name)),
        "## Objects in JSON files\n",
    ]
    cases = {case for name in FORMS for case in _cases(schema(name))}
    for name in sorted(name for name in {*objects} - cases if name.lower() not in FORMS):
        parts += [f"### {name}\n", *_object(objects[name])]
    return "\n".join(parts)


def check_all_described() -> None:
    """Check that every file and every exit code is described.

    Raises:
        ValueError: It names those that are not, and those that do not exist.
    """
    there = {
        name
        for name, value in vars(run_folder).items()
        if name.isupper() and isinstance(value, str)
    }
    wrong: set[Any] = there ^ {*PUBLIC, *PRIVATE, *OF_SWEEPS, *OF_CHECKPOINTS, *NOT_FILES}
    codes = {error.exit_code for error in (InputError, RunError, StateError)}
    wrong |= {0, FAILED, BAD_INPUT, INTERRUPTED, READER_GONE, TERMINATED, *codes} ^ {*EXIT_CODES}
    if wrong:
        raise ValueError(
            f"docs/tools/reference/file_words.py must describe {sorted(wrong, key=str)}."
        )


def _table(described: Mapping[str, tuple[str, str]]) -> str:
    rows = [
        (anchored(path, path), text, f"[keys](#{form})" if form else "")
        for name, (text, form) in described.items()
        if (path := getattr(run_folder, name))
    ]
    return table(("File or folder", "Description", "JSON"), rows)


def _form(name: str) -> Iterator[str]:
    """Yield the section of a schema: its keys, or those of each of its cases."""
    whole = schema(name)
    yield f"### {whole['title']} {{: #{name} }}\n"
    yield f"{prose(whole['description'])} [JSON Schema](schemas/{name}{SUFFIX}).\n"
    if "properties" in whole:
        yield _keys(whole)
    for case in _cases(whole):
        yield f"#### {case}\n"
        yield from _object(whole["$defs"][case])


def _object(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"{prose(part['description'].partition(chr(10) * 2)[0])}\n"
    if part.get("properties"):
        yield _keys(part)


def _cases(part: Mapping[str, Any]) -> list[str]:
    """Return the names of the definitions between which a schema chooses."""
    return [_name_of(case["$ref"]) for case in part.get("anyOf", ()) if "$ref" in case]


def _keys(part: Mapping[str, Any]) -> str:
    required = part.get("required", ())
    rows = [
        (
            code(name),
            _type(inner) + ("" if name in required else " `?`"),
            prose(inner.get("description", "")),
        )
        for name, inner in part["properties"].items()
        if name != "schema_version"
    ]
    return table(HEADINGS, rows)


def _type(part: Mapping[str, Any]) -> str:
    """Return the type of a key as Markdown."""
    if "const" in part:
        return code(str(part["const"]).lower())
    if "enum" in part:
        return ", ".join(code(str(value)) for value in part["enum"])
    if "$ref" in part:
        name = _name_of(part["$ref"])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        kinds = dict.fromkeys(_type(each) for each in part["anyOf"] if each.get("type") != "null")
        return " or ".join(kinds)
    if part.get("type") == "array":
        return f"{_type(part.get('items', {}))} \\[]"
    if part.get("type") == "object" and isinstance(part.get("additionalProperties"), Mapping):
        return f"NAME: {_type(part['additionalProperties'])}"
    return str(part.get("type", "any"))


def _name_of(reference: str) -> str:
    return reference.rpartition("/")[2]
