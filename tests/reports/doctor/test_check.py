from dpft.records.form import as_json
from dpft.records.machine import Check
from dpft.reports.doctor.check import (
    MISSING,
    OK,
    WARNING,
    can_train,
    doctor_parts,
    doctor_record,
)
from dpft.reports.terminal import Grid

FINE = Check(what="Python", state=OK, found="3.11.2", essential=True)
JAVA = Check(what="Java", state=MISSING, found="not in PATH", cost="no meteor", remedy="get it")
SLOW = Check(what="device", state=WARNING, found="CPU", cost="hours", remedy="a GPU")
BROKEN = Check(what="torch", state=MISSING, found="none", cost="all", remedy="pip", essential=True)


def test_only_something_essential_that_is_missing_keeps_dpft_from_training() -> None:
    assert can_train([FINE, JAVA, SLOW])
    assert not can_train([FINE, BROKEN])


def test_the_table_tells_state_cost_and_way_out_and_ends_with_the_verdict() -> None:
    table, _, last = doctor_parts([FINE, JAVA])
    assert isinstance(table, Grid)
    assert table.rows == [
        ("ok", "Python", "3.11.2"),
        ("missing", "Java", "not in PATH"),
        ("", "", "costs: no meteor"),
        ("", "", "mend:  get it"),
    ]
    assert last == "dpft can train here."
    assert doctor_parts([BROKEN])[-1] == "dpft cannot train here: torch."


def test_the_record_holds_every_check_and_the_verdict() -> None:
    record = as_json(doctor_record([FINE, BROKEN]))
    assert (record["schema_version"], record["can_train"]) == (1, False)
    assert [check["what"] for check in record["checks"]] == ["Python", "torch"]
    assert set(record["checks"][1]) == {"what", "state", "found", "cost", "remedy", "essential"}
