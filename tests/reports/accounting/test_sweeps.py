from dataclasses import replace

from dpft.privacy.accounting.batch_sizes import BatchSizeNoise
from dpft.records.form import as_json
from dpft.reports.accounting.sweeps import curve_table, failure_notes, noise_record, noise_table
from tests.reports.accounting.test_plots import noise, report


def test_the_curves_table_rounds_up_and_says_who_failed_where() -> None:
    first = replace(report(1), epsilon=2.00001)
    lines = curve_table([first, report(3)]).splitlines()
    assert lines[1].split() == ["1", "3.0000", "2.0000", "2.0000", "-", "2.0001", "pld"]
    assert failure_notes([first, report(3)]) == [
        "prv gave no bound at 2 of 2 points, steps 1, 3: no"
    ]
    assert "warning: prv gave no bound at 2 of 2 points" in "\n".join(lines)


def test_a_batch_size_without_noise_says_why() -> None:
    failed: BatchSizeNoise = replace(noise(0.1, None), error="eps=1 is out of reach.")
    points = [failed, noise(1.0, 3.0)]
    assert "eps=1 is out of reach." in noise_table({"steps = 1": points})
    assert "noise_multiplier" not in as_json(noise_record(points)[0])
    assert noise_record(points)[1].effective_noise_multiplier == 3.0
