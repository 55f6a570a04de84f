"""Symbolic links in a run's folder are found wherever they are, and never followed."""

import os
from pathlib import Path
from typing import Any

import pytest

from dpft.run_folder import refuse_links
from tests.rejections import rejects

PLACES = ("model/x", ".hydra", "private", "private/checkpoints/a/b")


@pytest.mark.parametrize("target", ["file", "folder", "nothing"])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_is_refused_by_its_name(tmp_path: Path, place: str, target: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "run" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / target)
    with rejects(str(link)):
        refuse_links(tmp_path / "run")


def test_a_folder_without_links_passes_and_may_itself_be_reached_through_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk" / "run" / "private").mkdir(parents=True)
    (tmp_path / "disk" / "run" / "config.yaml").write_text("")
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    (tmp_path / "run").symlink_to(tmp_path / "outputs" / "run")
    refuse_links(tmp_path / "outputs" / "run")
    refuse_links(tmp_path / "run")
    refuse_links(tmp_path / "nowhere")
    refuse_links(tmp_path / "run" / "config.yaml")


def test_a_folder_that_cannot_be_listed_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files could be read, and links in it followed, without being seen."""
    hidden = tmp_path / "run" / "model"
    hidden.mkdir(parents=True)
    scandir = os.scandir

    def denied(path: Any) -> Any:
        if Path(path) == hidden:
            raise PermissionError(13, "Permission denied", str(hidden))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with rejects(str(hidden)):
        refuse_links(tmp_path / "run")
