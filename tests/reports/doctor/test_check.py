from dpft.reports.doctor.check import (
    MISSING,
    OK,
    WARNING,
    Check,
    can_train,
    doctor_record,
    doctor_table,
)

FINE = Check(what="Python", state=OK, found="3.11.2", essential=True)
JAVA = Check(what="Java", state=MISSING, found="not in PATH", cost="no meteor", remedy="get it")
SLOW = Check(what="device", state=WARNING, found="CPU", cost="hours", remedy="a GPU")
BROKEN = Check(what="torch", state=MISSING, found="none", cost="all", remedy="pip", essential=True)


def test_only_something_essential_that_is_missing_keeps_dpft_from_training() -> None:
    assert can_train([FINE, JAVA, SLOW])
    assert not can_train([FINE, BROKEN])


def test_the_table_tells_state_cost_and_way_out_and_ends_with_the_verdict() -> None:
    lines = doctor_table([FINE, JAVA]).splitlines()
    assert lines[0] == "ok       Python  3.11.2"
    assert lines[1] == "missing  Java    not in PATH"
    assert [line.strip() for line in lines[2:4]] == ["costs: no meteor", "mend:  get it"]
    assert lines[-1] == "dpft can train here."
    assert doctor_table([BROKEN]).endswith("dpft cannot train here: torch.")


def test_the_record_holds_every_check_and_the_verdict() -> None:
    record = doctor_record([FINE, BROKEN])
    assert (record["schema_version"], record["can_train"]) == (1, False)
    assert [check["what"] for check in record["checks"]] == ["Python", "torch"]
    assert set(record["checks"][1]) == {"what", "state", "found", "cost", "remedy", "essential"}
