"""What ``dpft audit`` prints: private findings only on a terminal, or as JSON for who asks."""

import json
import sys
from typing import Any

import pytest

from dpft.audit.base import AuditConfig, Finding
from dpft.audit.command import show
from dpft.audit.membership import MembershipConfig
from dpft.reports.terminal import Grid

FILES = ["A page with plots: run/private/audit/membership.html"]
ROWS = [("loss: AUC", "0.871")]


def shown(finding: Finding, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    show(finding, AuditConfig(run="run", audit=MembershipConfig(name="membership"), **options))
    return capsys.readouterr().out


@pytest.mark.parametrize("found", [{"rows": ROWS}, {"parts": [Grid(rows=ROWS), "0.871"]}])
def test_trust_rule_8_a_pipe_gets_the_place_of_a_private_finding_and_a_terminal_all_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]
) -> None:
    private = Finding(record={"auc": 0.871}, files=FILES, notes=["0.871 of 5 records"], **found)
    piped = shown(private, capsys)
    assert "0.871" not in piped and "5 records" not in piped
    assert piped.splitlines()[1:] == FILES and "audit=membership" in piped
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "0.871" in shown(private, capsys)


def test_what_the_report_has_as_well_is_shown_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    public = Finding(record={}, rows=ROWS, files=FILES, released={"auc": 0.871})
    assert "0.871" in shown(public, capsys)


def test_who_asks_for_an_object_of_json_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    private = Finding(record={"auc": 0.871}, files=FILES)
    assert json.loads(shown(private, capsys, output="json"))["auc"] == 0.871
