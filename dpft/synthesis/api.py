"""``dpft.synthesize``: the command from Python, with rows in memory and a schema as a mapping."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dpft.config.composing import given_text
from dpft.config.synthesize import SynthesizeConfig, configuration, expand
from dpft.data.raw_rows import MEMORY, Rows, file_rows
from dpft.errors import InputError
from dpft.models.loading import quiet_transformers
from dpft.records.form import as_json
from dpft.reports.terminal import Figures
from dpft.runs.api import Command, Folder, as_word, checked_words
from dpft.synthesis.command import synthesize as run

if TYPE_CHECKING:
    import datasets
    import pandas

COMMAND = Command("synthesize", SynthesizeConfig, configuration)


@dataclass(frozen=True, kw_only=True)
class Synthesized:
    """A synthetic table, and where everything lies."""

    rows: "datasets.Dataset" = field(repr=False)
    """The synthetic rows."""
    path: Path
    """Their file."""
    folder: Path
    """Of the synthesis; its private/ is for the owner alone."""
    statement: Figures = field(repr=False)
    """What may be released with the rows: ``.statement.epsilon``."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the rows as a frame of pandas."""
        frame: pandas.DataFrame = self.rows.to_pandas()
        return frame


def synthesize(
    rows: Folder | Rows | None = None,
    overrides: Sequence[str] = (),
    *,
    schema: Folder | Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    folder: Folder | None = None,
    **settings: Any,
) -> Synthesized:
    """Makes a synthetic table of a private one, as ``dpft synthesize`` does.

    Examples:
        >>> made = dpft.synthesize(  # doctest: +SKIP
        ...     "notes.csv", schema="notes.schema.yaml", privacy={"eps": 8}, num=5000
        ... )
        >>> made.to_pandas(), made.statement.epsilon  # doctest: +SKIP

    Args:
        rows: The private table: a file, a data set, a frame, or mappings. None: the words say
            where it is, or what to go on with.
        overrides: As on the command line, such as ``model=tiny``.
        schema: What is public of it: a file, or what such a file holds.
        privacy: Keys of the section ``privacy``: ``{"eps": 8, "unit": "customer_id"}``.
        folder: Of the synthesis; None: a new one under ``outputs/``.
        settings: Other keys of the command, such as ``num`` and ``condition``.

    Raises:
        InputError: Anything does not fit.
        RunError: Training failed.
        StateError: What a synthesis that goes on left is damaged.
    """
    in_memory = None if rows is None or isinstance(rows, str | os.PathLike) else rows
    words = list(checked_words(overrides, None))
    if rows is not None and given_text(words, "resume") is None:
        words.append(f"data={as_word(MEMORY if in_memory is not None else rows)}")
    words += [f"privacy.{key}={_word(value)}" for key, value in (privacy or {}).items()]
    words += [f"{key}={_word(value)}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as place:
        if isinstance(schema, Mapping):
            file = Path(place) / "schema.yaml"
            file.write_text(yaml.safe_dump(dict(schema), sort_keys=False, allow_unicode=True))
            schema = file
        if schema is not None:
            words.append(f"schema={as_word(schema)}")
        resumed = given_text(words, "resume")
        there = COMMAND.place(expand(words), folder, resumed)
        composed = COMMAND.compose(expand(words), there)
        quiet_transformers()
        config = configuration(composed.values, composed.words)
        if config.is_draft:
            raise InputError("schema=draft is for the command line: a person goes through it.")
        found = run(config, there, in_memory)
    assert found is not None
    return Synthesized(
        rows=_data_set(found.target),
        path=found.target,
        folder=there,
        statement=Figures(as_json(found.record.statement)),
    )


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    if value is None or isinstance(value, bool | float):
        return "null" if value is None else str(value).lower()
    return as_word(value)


def _data_set(path: Path) -> "datasets.Dataset":
    """Returns the rows of a file; read here, since a library would keep a copy in its cache."""
    import datasets

    found = [dict(row.sound()) for row in file_rows(path)]
    return datasets.Dataset.from_list(found)
