"""What dates a run: a day, versions, and the commit of a checkout."""

import re
import stat
import subprocess
from pathlib import Path

from dpft.config.schema import TrainConfig
from dpft.records.form import as_json
from dpft.reports.sections import origin_rows, title
from dpft.runs.folder import checked_out_commit, origin, read_begun, write_begun
from tests.config.test_conf import loaded
from tests.models import small
from tests.reports.plain import plain
from tests.reports.test_report import CONFIG, non_private

origin_rows, title = plain(origin_rows), plain(title)


def test_a_run_is_dated_to_the_day_and_no_finer(tmp_path: Path) -> None:
    write_begun(tmp_path)
    begun = read_begun(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", begun.date or "")
    assert set(as_json(begun)) <= {"schema_version", "date", "versions", "commit"}
    assert stat.S_IMODE((tmp_path / "private/begun.json").stat().st_mode) == 0o600


def test_a_checkout_has_its_commit_and_any_other_folder_none(tmp_path: Path) -> None:
    assert checked_out_commit(tmp_path) is None
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert re.fullmatch(r"[0-9a-f]{40}", checked_out_commit(tmp_path) or "")


def test_a_report_of_an_older_run_has_no_day() -> None:
    assert title(CONFIG, non_private()) == "tiny on e2e, method full"
    assert origin_rows(CONFIG, non_private()) == [("model", "tiny"), ("data", "e2e")]


def test_a_model_in_a_folder_is_written_down_by_its_last_name_and_type(tmp_path: Path) -> None:
    base = Path(small.save("bert", tmp_path / "secret" / "mine"))
    given = ["task=e2e", "model=local", f"model.path={base}", "privacy=none"]
    config = loaded("train", given)
    assert isinstance(config, TrainConfig)
    written = {**non_private(), **as_json(origin(config, read_begun(tmp_path)))}
    assert written["model"] == "mine (bert)"
    assert title(CONFIG, written).startswith("mine (bert) on ")
    assert ("model", "mine (bert)") in origin_rows(CONFIG, written)
    (base / "config.json").unlink()
    assert origin(config, read_begun(tmp_path)).model == "mine"
