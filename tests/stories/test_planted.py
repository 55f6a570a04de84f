"""The search for markers finds them, in whatever form: else it would prove nothing."""

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.stories import observed, planted
from tests.stories.planted import FOREIGN, found
from tests.stories.tiny import MARKER, Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return planted.make_planted(tmp_path_factory.mktemp("planted"))


HIDDEN: dict[str, Callable[[str, list[int]], bytes]] = {
    "as it is": lambda text, _: text.encode(),
    "lower case": lambda text, _: text.lower().encode(),
    "utf-16": lambda text, _: text.encode("utf-16"),
    "hexadecimal": lambda text, _: text.encode().hex().upper().encode(),
    "base64": lambda text, _: base64.b64encode(text.encode()),
    "base64, 1 later": lambda text, _: base64.b64encode(b"-" + text.encode()),
    "base64, 2 later": lambda text, _: base64.b64encode(b"--" + text.encode()),
    "ids in JSON": lambda _, ids: json.dumps({"input_ids": ids}, indent=1).encode(),
    "ids of 8 bytes": lambda _, ids: b"".join(one.to_bytes(8, "little") for one in ids),
    "gzip": lambda text, _: gzip.compress(text.encode()),
    "zip": lambda text, _: _zipped(text),
}


@pytest.mark.parametrize("form", HIDDEN)
def test_the_search_finds_a_marker_in_any_form(workspace: Workspace, form: str) -> None:
    model = workspace.root / "model"
    ids = AutoTokenizer.from_pretrained(model)(f"Is it {MARKER} there?")["input_ids"]
    wanted = planted.needles(model)
    assert found(HIDDEN[form](f"Is it {MARKER} there?", ids), wanted)
    assert not found(HIDDEN[form]("Is it not there?", [1, 2, 3]), wanted)
    assert found(json.dumps(FOREIGN).encode(), wanted)


def test_the_watch_sees_a_file_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert observed.MARKER == MARKER
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "run" / "private").mkdir(mode=0o700, parents=True)
    (tmp_path / "run" / "private" / "kept").touch(0o600)
    assert list(observed.faults(tmp_path)) == []
    (tmp_path / "run" / "private" / "kept").chmod(0o640)
    (tmp_path / "tmp" / "copy").write_text(MARKER.lower())
    assert len(list(observed.faults(tmp_path))) == 2


def _zipped(text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", text)
    return content.getvalue()
