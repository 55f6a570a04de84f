"""Files of predictions: write predictions.jsonl and samples.md, and read any system's predictions.

Three formats are supported, each optionally gzipped. Their texts may be private, so no error
message quotes them.

- ``.jsonl``: one object per line with ``input`` and ``prediction``, as dpft writes it;
- ``.tsv``: header ``MR<tab>output``, with quoted or unquoted fields, like the outputs of the E2E
  challenge;
- ``.txt``: one line per distinct input, in order of first occurrence in the split.

samples.md shows some inputs, the model's outputs, and the references side by side. Texts of a data
set may contain any characters, so Markdown and HTML markup is escaped.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dpft.errors import InputError
from dpft.run_folder import write_jsonl, write_text
from dpft.strict_model import StrictModel, as_json


class Prediction(StrictModel):
    """A model's output for one distinct input."""

    input: str
    """The input of the model, as in the split."""
    prediction: str
    """The output of the model."""
    references: tuple[str, ...]
    """The correct answers."""


class Sample(StrictModel):
    """An input with the output of the model."""

    input: str
    """The input of the model."""
    prediction: str
    """The output of the model."""
    reference: str
    """One correct answer; empty if there is no correct answer."""


class _Row(NamedTuple):
    line: int
    input: str
    prediction: str


def write_predictions(
    path: Path, predictions: Sequence[Prediction], *, private: bool = False
) -> None:
    """Write the predictions as JSON lines, first under a temporary name."""
    write_jsonl(path, map(as_json, predictions), mode=0o600 if private else 0o644)


def read_predictions(
    path: Path,
    inputs: Sequence[str],
    *,
    repair: Callable[[str], str] = str,
    limit: int | None = None,
) -> list[str]:
    """Return the predictions of a file, in the order of the inputs.

    Args:
        path: A .jsonl, .tsv or .txt file, or such a file with the suffix .gz.
        inputs: All distinct inputs of the split, in order of first occurrence.
        repair: Function that fixes encoding errors in the files of the data set (``Task.repair``).
        limit: Number of inputs, from the first one, to return predictions for; None for all. The
            file may contain predictions for the whole split or only for these inputs.

    Raises:
        InputError: The file is missing, empty or in another format, or does not have exactly one
            prediction for each input. The message contains file and line, but no text. It does not
            reveal the number of inputs, which is private for a private split.
    """
    wanted = list(inputs)[:limit]
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".txt", *_ROW_READERS):
        raise InputError(
            f"predictions must end in .jsonl, .tsv or .txt (or .gz), got {path}.",
            key="predictions",
            value=path,
        )
    lines = _lines(path)
    if kind == ".txt":
        if len(lines) not in (len(inputs), len(wanted)):
            raise InputError(
                f"{path}: predictions must have one line for each distinct input of the split, in"
                f" order of first occurrence, but the file has {len(lines)} lines.",
                key="predictions",
            )
        return [repair(line) for line in lines[: len(wanted)]]
    rows = _ROW_READERS[kind](path, [repair(line) for line in lines])
    rows_by_input = _rows_by_input(path, rows, {repair(name).strip() for name in inputs}, repair)
    names = [repair(name).strip() for name in wanted]
    if any(name not in rows_by_input for name in names):
        raise InputError(
            f"{path}: predictions must contain one prediction for each distinct input of the split,"
            " but some are missing.",
            key="predictions",
        )
    return [rows_by_input[name].prediction for name in names]


def _lines(path: Path) -> list[str]:
    """Return the lines of a file without line ends and without a byte-order mark."""
    data = _bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: predictions must be UTF-8. Convert the file.", key="predictions"
        ) from None
    if not text.strip():
        raise InputError(
            f"{path}: predictions must have a line for each input, got an empty file.",
            key="predictions",
        )
    # Do not use splitlines, because a text may contain U+2028 and similar characters.
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(
            f"{path}: predictions ending in .gz must be complete gzip data.", key="predictions"
        ) from None
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise InputError(
            f"predictions must name a readable file, got {path}: {reason}.",
            key="predictions",
            value=path,
        ) from None


def _rows_by_input(
    path: Path, rows: Iterator[_Row], inputs: set[str], repair: Callable[[str], str]
) -> dict[str, _Row]:
    """Return the row of each repaired input; reject an unknown or repeated input."""
    rows_by_input: dict[str, _Row] = {}
    for row in rows:
        name = repair(row.input).strip()
        if name not in inputs:
            raise InputError(
                f"{path}:{row.line}: the input does not occur in the split. Check eval.split and"
                " the task.",
                key="predictions",
            )
        if name in rows_by_input:
            raise InputError(
                f"{path}:{row.line}: an input must have one prediction, got a second one (the"
                f" first is in line {rows_by_input[name].line}).",
                key="predictions",
            )
        rows_by_input[name] = row
    return rows_by_input


def _tsv_rows(path: Path, lines: list[str]) -> Iterator[_Row]:
    header = [_unquoted(field).strip().lower() for field in lines[0].split("\t")]
    if header != ["mr", "output"]:
        raise InputError(
            f"{path}:1: a .tsv file of predictions must start with the header 'MR<tab>output', got"
            f" {len(header)} other columns.",
            key="predictions",
        )
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        fields = [_unquoted(field) for field in line.split("\t")]
        if len(fields) != 2:
            raise InputError(
                f"{path}:{number}: a row must have two columns, MR and output, separated by one"
                f" tab, got {len(fields)}.",
                key="predictions",
            )
        yield _Row(number, *fields)


def _unquoted(field: str) -> str:
    """Return a field without the quotes around it, if the file format added these quotes.

    Each line is parsed separately. In an unquoted file, an output may begin with a quotation mark,
    and a CSV reader would then swallow the following lines.
    """
    inner = field[1:-1].replace('""', "")
    quoted = len(field) >= 2 and field[0] == field[-1] == '"' and '"' not in inner
    return field[1:-1].replace('""', '"') if quoted else field


def _jsonl_rows(path: Path, lines: list[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            json.dumps(record, ensure_ascii=False).encode()  # fails for lone surrogates
        except (ValueError, RecursionError):
            record = None
        fields = (record.get("input"), record.get("prediction")) if isinstance(record, dict) else ()
        texts = [field for field in fields if isinstance(field, str)]
        if len(texts) != 2:
            raise InputError(
                f"{path}:{number}: a line must be a JSON object with the texts 'input' and"
                " 'prediction'.",
                key="predictions",
            )
        yield _Row(number, *texts)


_ROW_READERS: dict[str, Callable[[Path, list[str]], Iterator[_Row]]] = {
    ".jsonl": _jsonl_rows,
    ".tsv": _tsv_rows,
}


SAMPLES = 20
"""Number of inputs shown, selected at even spacing over the split."""
SHOWN_ON_PAGE = 3
"""Number of inputs of a public split in metrics.json, also selected at even spacing."""
SHOWN_REFERENCES = 5
"""Number of references shown for one input; E2E has up to 43."""

_ESCAPES = str.maketrans(
    {
        **{character: f"\\{character}" for character in "\\`*_[]|~$"},
        **{"&": "&amp;", "<": "&lt;", ">": "&gt;"},
        # Control characters are invalid in Markdown, and some readers end a file at a NUL.
        **{chr(code): "\N{REPLACEMENT CHARACTER}" for code in range(32)},
        "\t": " ",
    }
)


def write_samples(
    path: Path, predictions: Sequence[Prediction], *, heading: str, note: str = "", private: bool
) -> None:
    """Write samples.md, first under a temporary name."""
    text = render_samples(predictions, heading=heading, note=note)
    write_text(path, text, mode=0o600 if private else 0o644)


def render_samples(predictions: Sequence[Prediction], *, heading: str, note: str = "") -> str:
    """Return the Markdown of some predictions."""
    places = spread(len(predictions))
    rows = [f"| {place + 1} | {' | '.join(_cells(predictions[place]))} |" for place in places]
    return "\n".join(
        [
            f"# {_inline(heading)}",
            "",
            *([f"**{_inline(note)}**", ""] if note else []),
            f"{len(places)} of {len(predictions)} inputs, evenly spread over the split.",
            "",
            "| # | input | output | references |",
            "|---:|---|---|---|",
            *rows,
            "",
        ]
    )


def sample_records(predictions: Sequence[Prediction]) -> tuple[Sample, ...]:
    """Return a few inputs with the model's outputs and one reference each, for metrics.json."""
    chosen = [predictions[place] for place in spread(len(predictions), SHOWN_ON_PAGE)]
    return tuple(
        Sample(
            input=one.input,
            prediction=one.prediction,
            reference=one.references[0] if one.references else "",
        )
        for one in chosen
    )


def spread(count: int, most: int = SAMPLES) -> list[int]:
    """Return at most ``most`` positions among ``count``, evenly spaced from the first one."""
    chosen = min(count, most)
    return [index * count // chosen for index in range(chosen)]


def _cells(prediction: Prediction) -> list[str]:
    references = [_cell(reference) for reference in prediction.references[:SHOWN_REFERENCES]]
    left_out = len(prediction.references) - len(references)
    if left_out:
        references.append(f"*and {left_out} more*")
    separator = "<br>&bull; " if len(references) > 1 else ""
    return [
        _cell(prediction.input),
        _cell(prediction.prediction),
        separator.removeprefix("<br>") + separator.join(references),
    ]


def _cell(text: str) -> str:
    """Return a text as a cell of a Markdown table, with line ends as ``<br>``."""
    return "<br>".join(map(_inline, text.splitlines())) if text.strip() else "*empty*"


def _inline(text: str) -> str:
    return text.translate(_ESCAPES).strip()
