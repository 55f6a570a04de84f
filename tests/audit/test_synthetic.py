"""``audit=synthetic`` over a finished run, and what of it a reader of the released page learns."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dpft.audit.base import AuditedRun, Finding
from dpft.audit.synthetic import SyntheticConfig, SyntheticFile, read_synthetic
from dpft.commands.guarantee import privacy_of as run_privacy
from dpft.commands.ledger_account import saved_run
from dpft.errors import StateError
from dpft.reports.terminal import Grid
from dpft.run_folder import CANARIES, private_audit_path, write_json
from dpft.tasks.custom import CustomTexts
from dpft.tasks.e2e import E2ETask
from dpft.training.training_config import DeviceConfig
from tests.audit.conftest import moods
from tests.rejections import rejects
from tests.reports.plain import privacy_of, stated
from tests.reports.test_privacy_record import record as private
from tests.stories.tiny import MARKER, Workspace, write_rows

TEXTS = [(f"name[New {n}]", f"New {n} is a pub by the river number {n % 7}.") for n in range(30)]
PRIVATE_PAGE = "private/audit/synthetic.html"
RELEASED_PAGE = "audit/synthetic.html"


def state(run: Path, file: Path, **changed: Any) -> None:
    """Write the statement that ``dpft generate`` writes beside its records."""
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


def audited(run: str, file: Path, limit: int = 10_000) -> Finding:
    folder, device = Path(run), DeviceConfig(device="cpu")
    about = AuditedRun(
        folder=folder, config=saved_run(run), privacy=run_privacy(folder),
        device=device, synthetic=file,
    )  # fmt: skip
    return SyntheticConfig(limit=limit).find(about)


def table(finding: Finding, title: str) -> Any:
    """Return a table of the record."""
    record = finding.record
    (found,) = (each for each in record.compared if each.title == title)
    return found


def share_test_split() -> None:
    """Make the run's test split one that its owner says may be shown, of enough records."""
    rows = [(f"name[Inn {n}]", f"Inn {n} is an inn of a town.") for n in range(30)]
    write_rows(Path("data/test.jsonl"), rows)
    path = Path("pairs/config.yaml")
    path.write_text(path.read_text().replace("split_is_public: null", "split_is_public: true"))


@pytest.mark.slow
def test_each_page_is_where_it_may_be(new: Path) -> None:
    result = audited("pairs", new)
    private, released = Path("pairs", PRIVATE_PAGE), Path("pairs", RELEASED_PAGE)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert "only for the owner of the data" in private.read_text()
    assert "it costs" in released.read_text()
    assert "owner" not in released.read_text()
    assert result.record.private is True
    titles = [part.title for part in result.parts if isinstance(part, Grid)]
    assert titles == ["Copies of single records", "The texts"]
    assert result.files == [
        f"Private page with all tables: {private}",
        f"A page that may be released: {released}",
    ]
    words = [row[0] for part in result.parts if isinstance(part, Grid) for row in part.rows]
    assert len(words) > 5 and "_" not in str(words), "words, no keys"


@pytest.mark.slow
def test_the_released_page_is_the_same_whatever_the_private_records_are(new: Path) -> None:
    """Other training records, other held-out ones, and none of either: the same bytes."""
    share_test_split()
    audited("pairs", new)
    released = Path("pairs", RELEASED_PAGE)
    pages = [released.read_bytes()]
    private = [Path("pairs", PRIVATE_PAGE).read_bytes()]
    assert b"other records" in pages[0]
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


@pytest.mark.slow
def test_a_private_test_split_is_not_on_the_released_page(new: Path) -> None:
    audited("pairs", new)
    before = Path("pairs", RELEASED_PAGE).read_bytes()
    write_rows(Path("data/test.jsonl"), TEXTS * 2)
    audited("pairs", new)
    assert Path("pairs", RELEASED_PAGE).read_bytes() == before
    assert b"other records" not in before


@pytest.mark.slow
def test_no_text_stands_on_a_page(new: Path) -> None:
    write_rows(new, [*TEXTS, (f"name[{MARKER}]", f"{MARKER} is a pub.")])
    share_test_split()
    audited("pairs", new)
    assert MARKER not in Path("pairs", PRIVATE_PAGE).read_text(), "no page quotes a record"
    assert MARKER not in Path("pairs", RELEASED_PAGE).read_text()


@pytest.mark.slow
def test_a_copied_training_record_is_found(new: Path) -> None:
    write_rows(new, [*TEXTS, ("name[x]", f"{MARKER} is a pub.")])
    copies = table(audited("pairs", new), "Copies of single records")
    training, others = copies.rows["identical to a synthetic text, %"]
    assert training == pytest.approx(100 / copies.rows["records compared"][0]) and others == 0


@pytest.mark.slow
def test_canaries_are_looked_for(new: Path) -> None:
    path = private_audit_path(Path("pairs"), CANARIES)
    canary = {"kind": "coin", "read": [], "learned": [], "number": 0, "copies": 1, "unit": "c"}
    found = {**canary, "texts": [TEXTS[3][1]]}
    write_json(path, {"canaries": [found]})
    assert table(audited("pairs", new), "Canaries").rows == {"included": (1, 1)}
    assert "included" in Path("pairs", PRIVATE_PAGE).read_text()
    assert "anar" not in Path("pairs", RELEASED_PAGE).read_text()


@pytest.mark.slow
def test_what_cannot_be_released_takes_an_old_page_away(new: Path) -> None:
    audited("pairs", new)
    assert Path("pairs", RELEASED_PAGE).exists()
    Path("new.privacy.json").unlink()
    result = audited("pairs", new)
    assert not Path("pairs", RELEASED_PAGE).exists()
    assert any("there is no new.privacy.json next to" in str(part) for part in result.parts)
    assert len(result.files) == 1


@pytest.mark.slow
def test_without_its_private_folder_a_run_has_the_synthetic_text_alone(
    texts_runs: Workspace,
) -> None:
    path = Path("moods_new.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in moods()))
    state(Path("held"), path)
    shutil.rmtree("held/private")
    result = audited("held", path)
    assert [each.title for each in result.record.compared if each.rows] == ["The texts"]
    assert any("private/" in each for each in result.record.remarks)
    assert "The texts" in Path("held", RELEASED_PAGE).read_text()


PRIVACY = private()
STATEMENT = {**stated(PRIVACY), "notes": ["it costs"]}
FILE_ROWS = [("name[Cafe]", "A cafe."), ("name[Inn]", "An inn.")]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "new.jsonl"
    write_rows(path, FILE_ROWS)
    path.chmod(0o644)
    return path


def read(file: Path, privacy: dict[str, Any] | None = PRIVACY) -> SyntheticFile:
    return read_synthetic(
        Path("run"), E2ETask(name="e2e", data_dir="data"), file, privacy and privacy_of(privacy)
    )


def state_of(file: Path, **changed: Any) -> None:
    write_json(file.with_name("new.privacy.json"), {**STATEMENT, **changed})


def test_what_a_model_wrote_is_read(file: Path) -> None:
    state_of(file)
    found = read(file)
    assert found.texts(found.records, 10) == ["A cafe.", "An inn."]
    assert found.texts(found.records, 1) == ["A cafe."]
    assert (found.notes, found.why_private) == (("it costs",), None)


def test_a_learned_prompt_is_written_too_unless_it_was_given(tmp_path: Path) -> None:
    task = CustomTexts(
        name="custom", prompt_template="{q}: ", target_template="{a}", learn_prompt=True
    )
    file = tmp_path / "new.jsonl"
    file.write_text('{"q": "Why", "a": "so"}\n')
    for prompts, text in (("none", "Why: so"), ("the user's", "so")):
        state_of(file, prompts=prompts)
        found = read_synthetic(Path("run"), task, file, privacy_of(PRIVACY))
        assert found.texts(found.records, 1) == [text]


@pytest.mark.parametrize("column", ["mood", "Mood"])
def test_a_row_whose_label_is_none_is_left_out_and_counted(tmp_path: Path, column: str) -> None:
    task = CustomTexts(
        name="custom",
        prompt_template="{mood}: ",
        target_template="{text}",
        learn_prompt=True,
        label_column="mood",
        labels=("bad", "good"),
        column_aliases={"Mood": "mood"} if column == "Mood" else {},
    )
    file = tmp_path / "new.jsonl"
    labels = ("bad", "pgative", "good", "")
    lines = (json.dumps({column: mood, "text": f"day of {mood}"}) for mood in labels)
    file.write_text("\n".join(lines))
    found = read_synthetic(Path("run"), task, file, None)
    assert found.texts(found.records, 9) == ["day of bad", "day of good"]
    assert found.no_rows == 2
    file.write_text(json.dumps({column: "pgative", "text": "x"}))
    with rejects("synthetic", str(file)):
        read_synthetic(Path("run"), task, file, None)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("none.jsonl", None, "none.jsonl"),
        ("new.txt", "text", "new.txt"),
        ("new.jsonl", "", "new.jsonl"),
        ("new.jsonl", "text\n", "line 1"),
        ("new.jsonl", '{"text": "a"}\n', "line 1"),
    ],
)
def test_other_files_are_rejected(
    tmp_path: Path, name: str, content: str | None, place: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with rejects() as faults:
        read(tmp_path / name)
    assert len(faults) == 1 and place in str(faults[0])


def test_the_runs_own_records_are_refused(file: Path) -> None:
    (file.parent / "data").mkdir()
    write_rows(file.parent / "data/train.jsonl", FILE_ROWS)
    (file.parent / "link.jsonl").symlink_to(file.parent / "data/train.jsonl")
    with rejects("synthetic", str(file.parent / "link.jsonl")):
        read(file.parent / "link.jsonl")


def test_records_of_another_run_are_refused(file: Path) -> None:
    other = {**PRIVACY, "ledger": {"lines": 3, "head": "b" * 64}}
    state_of(file, guarantee=other, run="2026/1")
    with rejects("synthetic", str(file)) as faults:
        read(file)
    assert "2026/1" in str(faults[0])


def test_without_a_statement_nothing_may_be_released(file: Path) -> None:
    assert "there is no new.privacy.json next to" in str(read(file).why_private)


def test_of_a_run_without_privacy_nothing_may_be_released(file: Path) -> None:
    state_of(file)
    reproducible = {**PRIVACY, "private": False}
    for privacy in (reproducible, None):
        assert "the run has no guarantee" in str(read(file, privacy).why_private)


def test_prompts_are_no_more_open_than_their_file(file: Path) -> None:
    state_of(file, prompts="the user's")
    assert read(file).why_private is None
    file.chmod(0o600)
    assert "prompts, and only their owner can read the file" in str(read(file).why_private)


def test_a_damaged_statement_is_said(file: Path) -> None:
    for content in ("{", json.dumps({"schema_version": 2, "notes": "x", "prompts": "none"})):
        file.with_name("new.privacy.json").write_text(content)
        with pytest.raises(StateError, match="new.privacy.json"):
            read(file)
