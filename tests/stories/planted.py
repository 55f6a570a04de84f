"""Training records with a marker in every place a record has, and a search for what is left of it.

The marker is looked for as bytes, not as text: in any letter case, in the encodings that libraries
write, as the token ids that stand for it, and in the members of archives.
"""

import base64
import csv
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from transformers import AutoTokenizer

from tests.stories.tiny import MARKER, Workspace, make_workspace

FOREIGN = "Ωzxmärker"
"""What JSON may write in escapes."""
ROWS = 40
HEADER = ("question", "answer", "customer", "notes")
LONG, HUGE = 3, 4
"""Rows of the outliers."""
TRAINING = (
    "task=custom", "task.data_dir=qa", 'task.prompt="{question}\\nAnswer: "',
    'task.target="{answer}"', "task.max_length=48", "task.metrics=[bleu,perplexity]",
    "model=tiny", "model.path=model", "privacy.accountant=rdp", "privacy.noise_multiplier=1",
    "privacy.unit=customer", "privacy.records_per_unit=2", "train.expected_batch_size=10",
    "train.learning_rate=0.01", "train.num_threads=1", "train.checkpoint_every=1",
    "eval.limit=2", "decode.max_new_tokens=4", "decode.num_beams=1",
)  # fmt: skip
Needles = Mapping[str, re.Pattern[bytes]]


def make_planted(root: Path) -> Workspace:
    """Return a workspace with a model and ``qa``, whose training records hold the markers."""
    workspace = make_workspace(root)
    (root / "qa").mkdir()
    write_csv(root / "qa" / "train.csv", training_rows(MARKER, FOREIGN))
    held_out = [(f"{MARKER} held out {n}", f"In {FOREIGN}.", f"held {n}", "") for n in range(4)]
    write_csv(root / "qa" / "test.csv", held_out)
    prompts = "".join(json.dumps({"question": f"Where is {n}?"}) + "\n" for n in range(2))
    (root / "prompts.jsonl").write_text(prompts)
    return workspace


def training_rows(word: str, foreign: str) -> list[tuple[str, str, str, str]]:
    """Return the rows; ``word`` and ``foreign`` stand in each column, and in two outliers."""
    rows = [(f"Where is {n}?", f"In town {n}.", f"customer {n % 20}", "") for n in range(ROWS)]
    rows[0] = (f"Where is {word}?", "In town.", "customer 0", "")
    rows[1] = ("Where is it?", f"In {word} and {foreign}.", "customer 1", "")
    rows[2] = ("Where is 2?", "In town.", f"{word} the customer", f"{word} in a column not read")
    rows[LONG] = (f"Where is {word * 40}?", f"{foreign} " * 200, "customer 3", "")
    rows[HUGE] = ("?", f"\U0001f993\u2622 {word}" * 5, "customer 4", "")
    return rows


def write_csv(path: Path, rows: Iterable[tuple[str, str, str, str]]) -> None:
    """Write a header and rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])


def needles(model: Path) -> Needles:
    """Return every form of the markers to look for, by what it is called.

    Args:
        model: Folder of the tokenizer whose ids may stand for them.
    """
    forms = _forms("marker", MARKER.encode()) | _forms("foreign marker", FOREIGN.encode())
    escaped = json.dumps(FOREIGN)[1:-1].encode()
    patterns = {name: re.escape(form) for name, form in forms.items()}
    patterns["foreign marker in JSON"] = re.escape(escaped)
    ids = AutoTokenizer.from_pretrained(model)(f"x {MARKER} x")["input_ids"][2:-2]
    assert len(ids) >= 4, "too few ids to be told from others"
    patterns["ids as text"] = rb"(?<!\d)" + rb"\D{1,20}".join(b"%d" % one for one in ids)
    for size in (4, 8):
        packed = b"".join(one.to_bytes(size, "little") for one in ids)
        patterns[f"ids of {size} bytes"] = re.escape(packed)
    exact = {name for name in patterns if "base64" in name or name.startswith("ids of")}
    return {
        name: re.compile(pattern, re.DOTALL | (0 if name in exact else re.IGNORECASE))
        for name, pattern in patterns.items()
    }


def secret_needles(secret: bytes) -> Needles:
    """Return the forms in which a piece of a key or a generator's state may be written."""
    return {name: re.compile(re.escape(form)) for name, form in _forms("secret", secret).items()}


def found(content: bytes, wanted: Needles) -> list[str]:
    """Return what of the needles a content holds, the members of an archive included."""
    parts = [content, *_members(content)]
    return [name for name, pattern in wanted.items() if any(map(pattern.search, parts))]


def left_in(files: Iterable[Path], wanted: Needles) -> dict[str, list[str]]:
    """Return the files that hold any of the needles, in content or name, and which."""
    held = {path: found(str(path).encode() + b"\n" + path.read_bytes(), wanted) for path in files}
    held |= {path: found(path.read_bytes(), wanted) or names for path, names in held.items()}
    return {str(path): names for path, names in held.items() if names}


def public_files(folder: Path) -> list[Path]:
    """Return a run's files outside private/."""
    inside = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in inside if "private" not in path.relative_to(folder).parts]


def _forms(name: str, secret: bytes) -> dict[str, bytes]:
    """Return bytes as they are, in hexadecimal, and in base64 at each place in its groups."""
    forms = {name: secret, f"{name} in hexadecimal": secret.hex().encode()}
    for before, cut in ((0, 0), (1, 2), (2, 3)):
        written = base64.b64encode(bytes(before) + secret).rstrip(b"=")
        end = len(written) - bool((before + len(secret)) % 3)
        forms[f"{name} in base64, {before} later"] = written[cut:end]
    if name.endswith("marker"):
        text = secret.decode()
        forms |= {f"{name} in {code}": text.encode(code) for code in ("utf-16-le", "utf-16-be")}
        forms |= {f"{name} in latin-1": text.encode("latin-1", "ignore")}
    return forms


def _members(content: bytes) -> list[bytes]:
    if content.startswith(b"\x1f\x8b"):
        return [gzip.decompress(content)]
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [archive.read(name) for name in archive.namelist()]
    return []
