from dpft.reports.accounting.plan_table import plan_table
from dpft.reports.run.privacy_record import non_private_record, plan_record
from tests.reports.run.test_privacy_record import TWO_PHASES, accounting, plan

COUNTS = {"trainable_parameters": 1234567, "new_parameters": 0, "total_parameters": 1234568}
COUNTS |= {"micro_batch_size": 64}
MEASURED = {"seconds_per_step": 2.5, "seconds_total": 7380.0, "peak_memory_bytes": 3 * 2**29}
MEASURED |= {"typical_length": 50}


def test_the_table_has_parameters_mechanism_and_headline() -> None:
    record = plan_record(plan(), accounting()) | COUNTS
    table = plan_table(record, plan(), accounting())
    assert "trainable parameters  1,234,567" in table
    assert "noise multiplier    1" in table
    assert "pld         It timed out." in table
    assert "(upper bound by prv)" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_signal_that_leaves_little_to_learn_is_noted() -> None:
    record = plan_record(plan(), accounting()) | COUNTS | {"signal_to_noise": 0.225}
    table = plan_table(record, plan(), accounting())
    assert "signal to noise     0.23 at best, if all gradients of all steps point one way" in table
    assert "note: a signal-to-noise ratio below 0.5 leaves little to learn: more examples" in table
    assert max(map(len, table.splitlines())) <= 80
    enough = plan_table(record | {"signal_to_noise": 2.0}, plan(), accounting())
    assert "signal to noise     2 at best" in enough and "leaves little" not in enough


def test_phases_are_listed_where_there_are_several() -> None:
    table = plan_table(plan_record(plan(), accounting()) | COUNTS, plan(), accounting())
    assert "phase 1" not in table
    two = plan(phases=TWO_PHASES)
    table = plan_table(plan_record(two, accounting()) | COUNTS, two, accounting())
    assert "phase 1             full, 1 steps, max_grad_norm 0.1, sensitivity 0.1" in table
    assert "phase 2             bitfit, 3 steps, max_grad_norm 0.5, sensitivity 0.5" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_measurement_is_added_where_there_is_one() -> None:
    record = plan_record(plan(), accounting()) | COUNTS | {"measured": MEASURED}
    table = plan_table(record, plan(), accounting())
    assert "time for records of 50 tokens,\nmemory for the longest" in table
    assert "seconds per step      2.50" in table
    assert "training time         2 h 3 min" in table
    assert "peak memory           1.50 GiB" in table
    assert "micro-batch           64 records" in table


def test_without_a_measurement_the_estimate_stands_and_says_how_it_was_made() -> None:
    estimated = {**MEASURED, "how": "a probe"}
    record = plan_record(plan(), accounting()) | COUNTS | {"estimated": estimated}
    table = plan_table(record, plan(), accounting())
    assert "estimated by a probe of this machine as it is now, for records of 50 tokens" in table
    assert "evaluation left out; plan.measure=true" in table
    assert table.splitlines()[-1] == "about 2 hours, 1.5 GiB, ε 2.990"
    assert max(map(len, table.splitlines())) <= 80
    both = plan_table(record | {"measured": MEASURED}, plan(), accounting())
    assert "estimated" not in both, "what was measured wins"


def test_a_plan_without_privacy_says_so_in_the_first_line() -> None:
    table = plan_table({"steps": 4, **COUNTS}, None, None)
    assert table.startswith("NOT PRIVATE")
    assert "steps                 4" in table and "epsilon" not in table
    assert table.splitlines()[-1] == "no ε" and "clip" not in table


def test_a_plan_that_clips_without_noise_says_both_first() -> None:
    sizes = {"num_examples": 100, "expected_batch_size": 10, "steps": 4}
    record = non_private_record(**sizes, clipping=plan(phases=TWO_PHASES)) | COUNTS
    first, second, *rest = plan_table(record, None, None).splitlines()
    assert first.startswith("NOT PRIVATE: privacy=none")
    assert second == "Each example's gradient is clipped, and no noise is added."
    assert "max_grad_norm         0.1, 0.5" in rest and "sampler               poisson" in rest
    assert rest[-1] == "no ε"
