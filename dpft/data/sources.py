"""Sources of a task's examples: hub, URL, local files, memory and the bundled sample.

Records enter dpft only through this module. The error for an invalid file names the file and line
but never quotes the row, because rows may be private and messages are not (docs/dev/design.md, rule
7). With ``task.source=url``, only published files are kept in the user's cache folder. Private
files on disk are read in place.
"""

import hashlib
import http.client
import io
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from huggingface_hub import constants

from dpft.data.raw_rows import (
    EMBEDDED_SAMPLE,
    FORMATS,
    MEMORY,
    TRAIN,
    FaultyRow,
    LocalForm,
    Row,
    file_rows,
    held_splits,
    memory_rows,
    read_rows,
)
from dpft.data.rows import (
    Check,
    FaultyRows,
    accept_all,
    examples_of,
    unit_of,
    with_unique_groups,
)
from dpft.data.split_files import files_by_split, in_order
from dpft.errors import InputError, note_records_read
from dpft.hub import hub_is_reachable
from dpft.tasks.base import MISSING, REFUSED, OwnRows, Record, Task, shortened

TIMEOUT_SECONDS = 20
OFFLINE_ADVICE = (
    "Connect to the network, use local files with task.data_dir=DIR and model.path=DIR, or use"
    " bundled data"
)
OFFLINE_HINT = "task=e2e task.source=embedded model=tiny"
"""Advice and hint in the error for data that cannot be downloaded."""


def cache_directory() -> Path:
    """Return the folder for downloads: ``$DPFT_CACHE``, or dpft in the user's cache folder."""
    if "DPFT_CACHE" in os.environ:
        return Path(os.environ["DPFT_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dpft"


def fetch(url: str, *, cache: bool) -> bytes:
    """Return the bytes of a file at a URL.

    Args:
        url: HTTP or HTTPS address.
        cache: Whether to keep a copy for the next call. Use it only for published files, because
            private text must not remain in a cache (docs/dev/design.md, rule 11).

    Raises:
        InputError: The address is not HTTP or HTTPS, or cannot be reached.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(
            f"task.urls must be http or https addresses, got {url!r}. For files on disk, use"
            " task.data_dir=DIR.",
            key="task.urls",
            value=url,
        )
    if not cache:
        return _download(url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    name = f"{digest}-{PurePosixPath(urlsplit(url).path).name}"
    cached = cache_directory() / "downloads" / name
    if cached.is_file():
        return cached.read_bytes()
    content = _download(url)
    _store(content, cached)
    return content


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
            return content
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"task.source=url could not fetch {url} ({error}). {OFFLINE_ADVICE}.",
            key="task.source",
            value="url",
            hint=OFFLINE_HINT,
        ) from error


def _store(content: bytes, path: Path) -> None:
    """Write a file to the cache atomically; do nothing if the cache is not writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(content)
        os.replace(part.name, path)
    except OSError:
        return


LETTERS_PER_TOKEN = 256
"""Number of characters to keep of a text, per token of ``task.longest`` and chunk; public.

The longest tokens of common vocabularies have 128 characters, so the removed text would not fit
anyway.
"""


_FORMS = {
    "celeba": "dpft.data.image_files:CELEBA_FORM",
    "cifar": "dpft.data.image_files:CIFAR_FORM",
    "corpus": "dpft.data.corpora:FORM",
    "digits": "dpft.data.image_files:DIGITS_FORM",
    "images": "dpft.data.image_files:IMAGES_FORM",
}
"""Module and name of the reader of each form of local data (``Task.local_form``)."""


def local_form(name: str) -> LocalForm:
    """Return the form of local data with a name from ``Task.local_form``."""
    module, _, attribute = _FORMS[name].partition(":")
    form: LocalForm = getattr(import_module(module), attribute)
    return form


def load_examples(task: Task, split: str, check: Check = accept_all) -> list[Record]:
    """Return every example of a split, or of one of its parts, in the order of the source.

    Args:
        task: Task that defines the location of the rows and the meaning of a row.
        split: train, validation or test, or one of the task's ``parts`` of a split.
        check: Function that raises ``InputError`` for an example that the model cannot read.

    Returns:
        Records that ``task.examples`` creates: ``Example``, ``LabeledExample`` or ``LabeledImage``.

    Raises:
        InputError: The source or split is missing, unreachable or empty, or has an invalid row.
    """
    read = read_examples(task, split, None, check)
    return [entry.record for entry in read if entry.record is not None]


class ReadRecord(NamedTuple):
    """A record that was read from a row."""

    record: Record | None
    """Example of the row; None if the row is invalid and skipped."""
    unit: str
    """Privacy unit of the row. A skipped row without a valid unit is a unit of its own."""
    is_cut: bool
    """Whether its texts were cut according to ``LETTERS_PER_TOKEN`` before tokenization."""


def read_examples(
    task: Task, split: str, column: str | None, check: Check = accept_all
) -> Iterator[ReadRecord]:
    """Yield every example of a split with its privacy unit, as the rows are read.

    ``task.on_invalid`` determines the treatment of an invalid row. The row is skipped, rejected
    together with the other invalid rows of the split, or read with empty texts for missing values.
    The treatment depends only on the row itself. A text that is far too long for ``task.longest``
    tokens is cut.

    Args:
        task: As in ``load_examples``.
        split: As in ``load_examples``.
        column: Column with the privacy unit of a row, such as customer_id. Values are compared as
            text without surrounding blanks, so 7 and " 7" are one unit. None: every unit is empty.
        check: As in ``load_examples``; a row is invalid if its example fails the check.

    Raises:
        InputError: As in ``load_examples``, or a row has no value in the column, or a value that is
            neither text nor a whole number.
    """
    if split not in task.all_parts:
        raise InputError(
            f"split must be one of {', '.join(task.all_parts)}, got {split!r}.",
            key="split",
            value=split,
        )
    taken_groups: set[str] = set()
    faulty = FaultyRows()
    letters = LETTERS_PER_TOKEN * task.longest * task.most_rows
    is_empty, is_sound = True, False

    def check_cut(example: Record) -> None:
        if task.is_checked_by_model:
            check(shortened(example, letters))

    try:
        for member, row in _rows_of_members(task, split):
            unit: str | None = None
            try:
                unit = "" if column is None else unit_of(row, column)
                examples = examples_of(member, row, check=check_cut)
                is_sound = True
            except FaultyRow as error:
                faulty.add(error)
                if task.on_invalid == REFUSED:
                    if faulty.are_enough:
                        break
                    continue
                examples = () if unit is None else _read_with_blanks(task, member, row, check_cut)
                if unit is None or not examples:
                    yield ReadRecord(None, row.place if unit is None else unit, False)
                    continue
            if task.scores_rows:
                examples = with_unique_groups(examples, taken_groups)
            for example in examples:
                is_empty = False
                cut = shortened(example, letters)
                yield ReadRecord(cut, unit, cut is not example)
    except InputError as error:
        if task.on_invalid != REFUSED or not faulty.are_any:
            raise
        raise faulty.refused(*error.faults, may_skip=False) from None
    if faulty.are_any and (task.on_invalid == REFUSED or not is_sound):
        raise faulty.refused(may_skip=is_sound and isinstance(task, OwnRows))
    if is_empty:
        origin = _origin(task, split)
        raise InputError(
            f"the {split} split of {origin} contains no rows. Add at least one.",
            key=origin.partition("=")[0],
        )


def _read_with_blanks(task: Task, member: Task, row: Row, check: Check) -> Sequence[Record]:
    """Return an invalid row's examples with empty texts for missing values.

    The result is empty if ``task.on_invalid`` does not allow this, or if the row is still invalid.
    """
    if task.on_invalid != MISSING:
        return ()
    try:
        return examples_of(member, row, blank=True, check=check)
    except FaultyRow:
        return ()


def _rows_of_members(task: Task, split: str) -> Iterator[tuple[Task, Row]]:
    """Yield the rows of a split, each with the task (of a mixture) that defines its meaning."""
    note_records_read()
    for member in task.members(split):
        rows = _ROWS[member.task.effective_source](member.task, member.part)
        for row in islice(rows, member.limit):
            yield member.task, row


def _local_rows(task: Task, split: str) -> Iterator[Row]:
    if task.data_dir is None:
        places = "FILE or DIR, the data" if task.takes_file else "DIR, the folder with the files"
        raise InputError(f"task.source=local needs task.data_dir={places}.", key="task.data_dir")
    if task.local_form is not None:
        return local_form(task.local_form).rows(task, split)
    folder = Path(task.data_dir).expanduser()
    if task.takes_file and folder.is_file():
        return file_rows(_only_file(folder, split))
    if not folder.is_dir():
        file = f", or a file that ends with {', '.join(FORMATS)}" if task.takes_file else ""
        fault = "is not one" if folder.exists() else "does not exist"
        raise InputError(
            f"task.data_dir must be a folder{file}, got {task.data_dir!r}, which {fault}."
            f" Use the folder that contains {_file_names(split)}.",
            key="task.data_dir",
            value=task.data_dir,
        )
    return _split_rows(folder, task, split)


def has_training_split_alone(task: Task) -> bool:
    """Return whether the data (a file, a corpus, a table in memory) have only a training split."""
    if task.effective_source == MEMORY:
        return held_splits() == (TRAIN,)
    if task.effective_source != "local" or task.data_dir is None:
        return False
    if task.local_form is not None:
        return local_form(task.local_form).splits(task) == {TRAIN}
    return task.takes_file and Path(task.data_dir).expanduser().is_file()


def has_split(task: Task, split: str) -> bool:
    """Return whether local data, or rows in memory, contain the split, in any of its parts."""
    if task.effective_source == MEMORY:
        return not set(task.parts(split)).isdisjoint(held_splits())
    if task.effective_source != "local" or task.data_dir is None:
        return False
    members = [member.task for part in task.parts(split) for member in task.members(part)]
    if any(member is not task for member in members):
        return any(has_split(member, split) for member in members)
    if task.local_form is not None:
        return not local_form(task.local_form).splits(task).isdisjoint(task.parts(split))
    files = files_by_split(Path(task.data_dir).expanduser(), task.all_parts, FORMATS)
    return not files.keys().isdisjoint(task.parts(split))


def _only_file(file: Path, split: str) -> Path:
    """Return the file, which is the training split.

    Raises:
        InputError: Another split is requested, or the format is not supported.
    """
    if split != "train":
        raise InputError(
            f"task.data_dir={file} is one file, the training split, and has no {split} split."
            " Hold out records when you train, or use a folder with train and"
            f" {_file_names(split)}.",
            key="task.data_dir",
            value=str(file),
            hint="eval.held_out=0.1",
        )
    if not file.name.endswith(tuple(FORMATS)):
        raise InputError(
            f"task.data_dir={file} must end with {', '.join(FORMATS)}. Rename the file.",
            key="task.data_dir",
            value=str(file),
        )
    return file


def _embedded_rows(task: Task, split: str) -> Iterator[Row]:
    if not task.ships_sample:
        raise InputError(
            f"task={task.name} has no bundled sample for task.source=embedded. Use the Hugging Face"
            " hub, or local files with task.data_dir=DIR.",
            key="task.source",
            value="embedded",
            hint="task.source=hub",
        )
    if task.local_form is not None:
        yield from local_form(task.local_form).rows(task, split)
        return
    yield from _split_rows(EMBEDDED_SAMPLE, task, split)


def _split_rows(folder: Path, task: Task, split: str) -> Iterator[Row]:
    """Return the rows of a split's file, or of its shards in order."""
    files = files_by_split(folder, task.all_parts, FORMATS).get(split)
    if not files:
        raise InputError(
            f"task.data_dir={folder} has no {split} split. It must contain {_file_names(split)}, or"
            f" shards such as {split}-00000-of-00002.parquet.",
            key="task.data_dir",
            value=str(folder),
        )
    return chain.from_iterable(map(file_rows, in_order(files)))


def _file_names(split: str) -> str:
    *names, last = (split + ending for ending in FORMATS)
    return f"{', '.join(names)} or {last}"


def _url_rows(task: Task, split: str) -> Iterator[Row]:
    url = task.urls.get(split)
    if url is None:
        raise InputError(
            f"task.source=url needs task.urls.{split}, the address of the split.",
            key=f"task.urls.{split}",
        )
    if not url.endswith(tuple(FORMATS)):
        raise InputError(
            f"task.urls.{split} must end with {', '.join(FORMATS)}, got {url!r}.",
            key=f"task.urls.{split}",
            value=url,
        )
    return read_rows(io.BytesIO(fetch(url, cache=task.is_published(split))), url)


def _hub_rows(task: Task, split: str) -> Iterator[Row]:
    if task.hub_name is None:
        raise InputError(
            "task.source=hub needs task.hub_name, a data set on the Hugging Face hub.",
            key="task.hub_name",
        )
    if Path(task.hub_name).exists():  # the library would copy local files into its cache
        raise InputError(
            f"task.hub_name must name a data set on the hub, got {task.hub_name!r}, a local path."
            " Use task.data_dir for local files.",
            key="task.hub_name",
            value=task.hub_name,
        )
    if not (hub_is_reachable() or constants.HF_HUB_OFFLINE):
        raise InputError(
            f"task.source=hub cannot reach the hub. {OFFLINE_ADVICE}.",
            key="task.source",
            value="hub",
            hint=OFFLINE_HINT,
        )
    import datasets  # takes a second to import, and no other source needs it

    try:
        rows = datasets.load_dataset(
            task.hub_name,
            task.hub_config,
            revision=task.hub_revision,
            split=split,
            streaming=task.streams_hub,
        )
        for name, feature in (rows.features or {}).items():
            if isinstance(feature, datasets.Image):  # keep the encoded bytes
                rows = rows.cast_column(name, datasets.Image(decode=False))
        for number, values in enumerate(rows, start=1):
            yield Row(f"{task.hub_name}, {split} split, row {number}", values)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"task.hub_name={task.hub_name} with task.hub_revision={task.hub_revision} and split"
            f" {split} could not be read ({type(error).__name__}). Correct these values, or"
            f" {OFFLINE_ADVICE[0].lower()}{OFFLINE_ADVICE[1:]}.",
            key="task.hub_name",
            value=task.hub_name,
            hint=OFFLINE_HINT,
        ) from error


def _origin(task: Task, split: str) -> str:
    """Return the key and value that set the source of a split, for messages."""
    origins = {
        "local": f"task.data_dir={task.data_dir}",
        "embedded": "task.source=embedded",
        "url": f"task.urls.{split}={task.urls.get(split)}",
        "hub": f"task.hub_name={task.hub_name}",
        MEMORY: "rows",
    }
    return origins[task.effective_source]


_ROWS = {
    "local": _local_rows,
    "embedded": _embedded_rows,
    "url": _url_rows,
    "hub": _hub_rows,
    MEMORY: lambda task, split: memory_rows(split),
}
