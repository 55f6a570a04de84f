"""``audit=synthetic`` over a finished run, and what of it a reader of the released page learns."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dpft.audit.kinds.synthetic import SyntheticText
from dpft.audit.synthetic_audit import SyntheticResult, audit_synthetic, written_pages
from dpft.errors import InputError
from dpft.files import CANARIES, private_audit_path, write_json
from dpft.reports.terminal import Grid
from dpft.training.training_config import DeviceConfig
from tests.audit.conftest import moods
from tests.reports.plain import stated
from tests.stories.tiny import MARKER, Workspace, write_rows

TEXTS = [(f"name[New {n}]", f"New {n} is a pub by the river number {n % 7}.") for n in range(30)]
PRIVATE_PAGE = "private/audit/synthetic.html"
RELEASED_PAGE = "audit/synthetic.html"


def state(run: Path, file: Path, **changed: Any) -> None:
    """Writes the statement that ``dpft generate`` writes beside its records."""
    privacy = json.loads((run / "privacy.json").read_text())
    statement = {**stated(privacy, run=run.name), "notes": ["it costs"], **changed}
    write_json(file.with_name(f"{file.stem}.privacy.json"), statement)


@pytest.fixture
def new(texts_runs: Workspace) -> Path:
    """Records that the run ``pairs`` is said to have written."""
    path = Path("new.jsonl")
    write_rows(path, TEXTS)
    path.chmod(0o644)
    state(Path("pairs"), path)
    return path


def audited(run: str, file: Path, **options: Any) -> SyntheticResult:
    device = DeviceConfig(device="cpu")
    return audit_synthetic(Path(run), file, **{"limit": 10_000, **options}, device=device)


def share_test_split() -> None:
    """Makes the run's test split one that its owner says may be shown, of enough records."""
    rows = [(f"name[Inn {n}]", f"Inn {n} is an inn of a town.") for n in range(30)]
    write_rows(Path("data/test.jsonl"), rows)
    path = Path("pairs/config.yaml")
    path.write_text(path.read_text().replace("split_is_public: null", "split_is_public: true"))


def test_each_page_is_where_it_may_be(new: Path) -> None:
    result = audited("pairs", new)
    private, released = Path("pairs", PRIVATE_PAGE), Path("pairs", RELEASED_PAGE)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert "This page is private" in private.read_text()
    assert "It costs." in released.read_text()
    assert "private" not in released.read_text()
    assert result.record().private is True
    titles = [part.title for part in result.parts() if isinstance(part, Grid)]
    assert titles[:2] == ["What the synthetic texts hold of single records", "The texts"]
    assert written_pages(Path("pairs"), result) == [
        f"A page with plots, for the owner of the data alone: {private}",
        f"A page that may be released: {released}",
    ]
    words = [row[0] for part in result.parts() if isinstance(part, Grid) for row in part.rows]
    assert len(words) > 5 and "_" not in str(words), "words, no keys"


def test_the_released_page_is_the_same_whatever_the_private_records_are(new: Path) -> None:
    """Other training records, other held-out ones, and none of either: the same bytes."""
    share_test_split()
    audited("pairs", new)
    released = Path("pairs", RELEASED_PAGE)
    pages = [released.read_bytes()]
    private = [Path("pairs", PRIVATE_PAGE).read_bytes()]
    assert b"Against test records" in pages[0]
    Path("pairs/private/fingerprint").unlink()
    write_rows(Path("data/train.jsonl"), TEXTS)
    audited("pairs", new)
    pages.append(released.read_bytes())
    private.append(Path("pairs", PRIVATE_PAGE).read_bytes())
    Path("data/train.jsonl").unlink()
    audited("pairs", new)
    pages.append(released.read_bytes())
    shutil.rmtree("pairs/private")
    audited("pairs", new)
    pages.append(released.read_bytes())
    assert len(set(pages)) == 1
    assert len(set(private)) == 2


def test_a_private_test_split_is_not_on_the_released_page(new: Path) -> None:
    audited("pairs", new)
    before = Path("pairs", RELEASED_PAGE).read_bytes()
    write_rows(Path("data/test.jsonl"), TEXTS * 2)
    audited("pairs", new)
    assert Path("pairs", RELEASED_PAGE).read_bytes() == before
    assert b"test records" not in before


def test_no_text_stands_on_the_released_page(new: Path) -> None:
    write_rows(new, [*TEXTS, (f"name[{MARKER}]", f"{MARKER} is a pub.")])
    share_test_split()
    audited("pairs", new)
    assert MARKER in Path("pairs", PRIVATE_PAGE).read_text()
    assert MARKER not in Path("pairs", RELEASED_PAGE).read_text()


def test_a_copied_training_record_is_found(new: Path) -> None:
    write_rows(new, [*TEXTS, ("name[x]", f"{MARKER} is a pub.")])
    leakage = audited("pairs", new).leakage
    assert leakage is not None and leakage.unseen is not None
    assert leakage.copies == 1
    assert (leakage.training.exact, leakage.unseen.exact) == (1, 0)


def test_canaries_are_looked_for(new: Path) -> None:
    path = private_audit_path(Path("pairs"), CANARIES)
    canary = {"kind": "coin", "read": [], "learned": [], "number": 0, "copies": 0, "unit": "c"}
    found = {**canary, "texts": [TEXTS[3][1]], "included": True}
    path.write_text(json.dumps({"schema_version": 1, "canaries": [found]}))
    assert audited("pairs", new).record().canaries["included"].found == 1
    assert "included" in Path("pairs", PRIVATE_PAGE).read_text()
    assert "anar" not in Path("pairs", RELEASED_PAGE).read_text()


def test_what_cannot_be_released_takes_an_old_page_away(new: Path) -> None:
    audited("pairs", new)
    assert Path("pairs", RELEASED_PAGE).exists()
    Path("new.privacy.json").unlink()
    result = audited("pairs", new)
    assert not Path("pairs", RELEASED_PAGE).exists()
    assert any("no new.privacy.json lies beside" in str(part) for part in result.parts())
    assert len(written_pages(Path("pairs"), result)) == 1


@pytest.mark.slow
def test_a_class_is_learned_from_synthetic_and_from_real_records(texts_runs: Workspace) -> None:
    path = Path("moods_new.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in moods()[::2]))
    state(Path("held"), path)
    record = audited("held", path, label="mood").record()
    assert record.quality.reference == "held-out records"
    assert record.utility.synthetic.accuracy > record.utility.commonest.accuracy
    assert "macro F1" in Path("held", PRIVATE_PAGE).read_text()
    assert "macro F1" not in Path("held", RELEASED_PAGE).read_text()


def test_without_its_private_folder_a_run_has_the_synthetic_text_alone(
    texts_runs: Workspace,
) -> None:
    path = Path("moods_new.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in moods()))
    state(Path("held"), path)
    shutil.rmtree("held/private")
    result = audited("held", path)
    assert result.leakage is None and result.quality is None
    assert "put its private/ back as it was" in result.not_there["training records"]
    assert "The texts" in Path("held", RELEASED_PAGE).read_text()


def test_what_is_asked_must_make_sense(new: Path) -> None:
    with pytest.raises(InputError, match=r"audit\.limit must be at least 1, got 0\."):
        SyntheticText(limit=0)
    with pytest.raises(InputError, match=r"audit\.label needs task=custom"):
        audited("pairs", new, label="food")
