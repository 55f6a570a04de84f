"""``audit=one_run``: which views of a run it looks at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dpft.audit.kinds.one_run import OneRunAudit
from dpft.audit.one_run import View
from dpft.commands.canary_steps import read_white_box
from dpft.data.canaries import Canary
from dpft.errors import InputError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that was to keep scores of its steps, and kept none."""
    scores = [0.0, 1.0]
    monkeypatch.setattr(OneRunAudit, "black_box_scores", lambda self, run, canaries: scores)
    return SimpleNamespace(
        folder=tmp_path, config=SimpleNamespace(audit=SimpleNamespace(white_box=True))
    )


def views(run: Any, **options: Any) -> list[View]:
    canaries = cast("list[Canary]", [None, None])
    return OneRunAudit(name="one_run", **options).views(run, canaries)


def test_a_run_whose_steps_have_no_scores_is_audited_by_its_model_alone_where_asked(
    run: Any,
) -> None:
    (alone,) = views(run, white_box=False)
    assert alone.name == "black box"


def test_what_to_do_without_scores_of_steps_is_what_can_be_done(run: Any) -> None:
    with pytest.raises(InputError, match=r"by its model alone with audit\.white_box=false\.$"):
        read_white_box(run.folder, canaries=2, steps=3)
