"""Canaries in synthetic text, those that were trained on apart from the others."""

import json
from pathlib import Path

import pytest

from dpft.audit.canaries_found import CanariesFound, canaries_found
from dpft.errors import StateError
from dpft.run_folder import CANARIES, private_audit_path


def plant(run: Path, content: object) -> None:
    private_audit_path(run, CANARIES).write_text(json.dumps(content))


def test_canaries_are_counted_by_their_coins(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "canaries": [
                {"texts": ["kilo echo zulu", "other text"], "included": True},
                {"texts": ["never written down"], "included": True},
                {"texts": ["alpha beta gamma delta"], "included": False},
            ]
        },
    )
    found = canaries_found(tmp_path, ["so kilo echo zulu ends", "alpha beta x"])
    assert found == {
        "included": CanariesFound(canaries=2, found=1, longest_run=3),
        "not_included": CanariesFound(canaries=1, found=0, longest_run=2),
    }


def test_a_run_without_canaries_has_none(tmp_path: Path) -> None:
    assert canaries_found(tmp_path, ["text"]) == {}
    plant(tmp_path, {"canaries": []})
    assert canaries_found(tmp_path, ["text"]) == {}


@pytest.mark.parametrize("content", [[], {"canaries": [{"texts": ["a"]}]}, {"canaries": 3}])
def test_a_damaged_file_is_said(tmp_path: Path, content: object) -> None:
    plant(tmp_path, content)
    with pytest.raises(StateError, match=r"canaries\.json is damaged; put it back"):
        canaries_found(tmp_path, ["text"])
