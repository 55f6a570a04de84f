"""Hydra's record of a run says how it was composed, and names no machine."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from dpft.cli import commands
from dpft.cli.commands import composed_job, recorded_job
from dpft.cli.main import main


@pytest.mark.slow
def test_a_run_records_its_composition_and_nothing_else(fake: SimpleNamespace) -> None:
    assert main(["fake", "privacy.eps=3", "outcome=record"]) == 0
    (folder,) = Path("outputs").glob("*/*")
    record = [".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml"]
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*.yaml")) == record
    assert [path.name for path in folder.iterdir()] == [".hydra"]
    overrides = (folder / ".hydra" / "overrides.yaml").read_text()
    assert overrides == "- privacy.eps=3\n- outcome=record\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    """The configuration of a job, of which ``HydraConfig`` tells the rest."""
    words = ["task=e2e", "privacy.eps=3"]
    hydra = OmegaConf.create(
        {
            "runtime": {"cwd": str(tmp_path), "output_dir": str(tmp_path), "config_sources": []},
            "overrides": {"task": words},
            "job": {"name": "train", "override_dirname": ",".join(words)},
        }
    )
    monkeypatch.setattr(commands.HydraConfig, "get", lambda: hydra)
    return OmegaConf.create({"task": "e2e", "privacy": {"eps": 3}})


def test_the_record_names_no_machine(tmp_path: Path, config: DictConfig) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with recorded_job(config):
        composed_job().write_record(folder)
    texts = [path.read_text() for path in (folder / ".hydra").iterdir()]
    assert len(texts) == 3
    assert not [text for text in texts if str(tmp_path) in text]
    overrides = yaml.safe_load((folder / ".hydra/overrides.yaml").read_text())
    assert overrides == ["task=e2e", "privacy.eps=3"]
    assert yaml.safe_load((folder / ".hydra/config.yaml").read_text())["task"] == "e2e"
