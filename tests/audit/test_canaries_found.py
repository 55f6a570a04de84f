"""Canaries in synthetic text, those that were trained on apart from the others."""

import json
from pathlib import Path

import pytest

from dpft.audit.leakage import canaries_found
from dpft.errors import StateError
from dpft.records.audits import CanariesInTexts, KeptCanaries, KeptCanary
from dpft.records.form import as_json
from dpft.run_folder import CANARIES, private_audit_path

VERSION = {"schema_version": 1}


def plant(run: Path, content: object) -> None:
    private_audit_path(run, CANARIES).write_text(json.dumps(content))


def kept(*texts: str, included: bool) -> KeptCanary:
    return KeptCanary(
        kind="coin",
        read=("a",),
        learned=("b",),
        number=0,
        copies=int(included),
        unit="u",
        included=included,
        texts=texts,
    )


def test_canaries_are_counted_by_their_coins(tmp_path: Path) -> None:
    canaries = (
        kept("kilo echo zulu", "other text", included=True),
        kept("never written down", included=True),
        kept("alpha beta gamma delta", included=False),
    )
    plant(tmp_path, as_json(KeptCanaries(canaries=canaries)))
    found = canaries_found(tmp_path, ["so kilo echo zulu ends", "alpha beta x"])
    assert found == {
        "included": CanariesInTexts(canaries=2, found=1, longest_run=3),
        "not_included": CanariesInTexts(canaries=1, found=0, longest_run=2),
    }


def test_a_run_without_canaries_has_none(tmp_path: Path) -> None:
    assert canaries_found(tmp_path, ["text"]) == {}
    plant(tmp_path, as_json(KeptCanaries(canaries=())))
    assert canaries_found(tmp_path, ["text"]) == {}


@pytest.mark.parametrize(
    "content", [[], VERSION | {"canaries": [{"texts": ["a"]}]}, VERSION | {"canaries": 3}]
)
def test_a_damaged_file_is_said(tmp_path: Path, content: object) -> None:
    plant(tmp_path, content)
    with pytest.raises(StateError, match=r"canaries\.json is damaged"):
        canaries_found(tmp_path, ["text"])
