from dpft.estimates.rank_memory import RankMemory
from dpft.methods.base import ParameterCounts
from dpft.privacy.ledger import LedgerHead
from dpft.privacy.plan import StepsPlan
from dpft.reports.plan_table import (
    OpenPlan,
    PlannedLora,
    PlannedProcesses,
    PrivatePlan,
    RunCosts,
    plan_table,
    process_lines,
    summary_line,
)
from dpft.reports.privacy_json import TokenizerCost, WithTokenizer
from dpft.reports.privacy_record import (
    no_promise,
    promise_of,
)
from dpft.strict_model import merge_models
from dpft.training.step_time import MeasuredTime
from tests.reports.test_privacy_record import SIZES, TWO_PHASES, accounting, clipping_plan, plan

MEASURED = MeasuredTime(
    seconds_per_step=2.5, seconds_total=7380.0, timed_micro_batch=32, tokens_per_example=50
)
NOTHING = dict.fromkeys(("gradients", "optimizer", "activations", "other"), 0)
COSTS = RunCosts(
    parameters=ParameterCounts(trainable=1234567, new=0, total=1234568),
    num_examples_source="counted",
    micro_batch_size=64,
    processes=PlannedProcesses(
        strategy="fsdp", world_size=8, shard_size=4, accumulate="whole", engine="book_keeping"
    ),
    memory_per_rank_bytes=RankMemory(**NOTHING, weights=2 * 10**9, total=2 * 10**9),
    device_memory_bytes=80 * 10**9,
    largest_micro_batch=32,
    measured=MEASURED,
)


def private(signal: float = 2.0, **changes: object) -> PrivatePlan:
    promise = promise_of(plan(**changes), accounting())
    return merge_models(PrivatePlan, promise, COSTS, private=True, signal_to_noise=signal)


def test_memory_is_listed_by_part() -> None:
    assert process_lines(COSTS)[1:] == [
        "8 processes, fsdp: 2 replicas in 4 shards each, accumulate=whole",
        "memory of each process at its peak, estimated from shapes:",
        "weights               2.00 GB",
        "peak memory           2.00 GB",
        "largest micro-batch   32 records in 80.0 GB",
    ]


def test_the_summary_states_time_memory_and_epsilon() -> None:
    assert summary_line(private()) == "about 2 hours, 2.00 GB, ε 2.990"
    tokenizer = TokenizerCost(
        epsilon=1.0,
        delta=1e-3,
        ledger=LedgerHead(lines=2, head="ab" * 32),
        simple_composition=9.0,
    )
    both = WithTokenizer(epsilon=8.5, delta=2e-3, tokenizer=tokenizer)
    assert summary_line(private().replace(with_tokenizer=both)).endswith(
        "ε 2.990 for the training only, ε 8.500 with its tokenizer"
    )


def test_the_table_has_parameters_mechanism_and_headline() -> None:
    table = plan_table(private(), plan(), accounting())
    assert "trainable parameters  1,234,567" in table
    assert "noise multiplier    1" in table
    assert "pld         It timed out." in table
    assert "(upper bound by prv)" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_layers_that_lora_changes_are_listed() -> None:
    targets = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    lora = PlannedLora(rank=4, scale=8, layers=196, targets=targets)
    table = plan_table(private().replace(lora=lora), plan(), accounting())
    assert "LoRA targets          down_proj, gate_proj" in table
    assert "(196 layers, rank 4, scale 8)" in " ".join(table.split())
    assert max(map(len, table.splitlines())) <= 80


def test_a_signal_that_leaves_little_to_learn_is_noted() -> None:
    table = plan_table(private(0.225), plan(), accounting())
    assert "signal to noise     0.23 at best, if all gradients of all steps point one way" in table
    assert "note: with a signal-to-noise ratio below 0.5, the model can learn little." in table
    assert max(map(len, table.splitlines())) <= 80
    enough = plan_table(private(2.0), plan(), accounting())
    assert "signal to noise     2 at best" in enough and "can learn little" not in enough


def test_phases_are_listed_where_there_are_several() -> None:
    table = plan_table(private(), plan(), accounting())
    assert "phase 1" not in table
    two = plan(phases=TWO_PHASES)
    table = plan_table(private(phases=TWO_PHASES), two, accounting())
    assert "phase 1             full, 1 steps, max_grad_norm 0.1, sensitivity 0.1" in table
    assert "phase 2             bitfit, 3 steps, max_grad_norm 0.5, sensitivity 0.5" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_measured_time_states_what_was_measured() -> None:
    table = plan_table(private(), plan(), accounting())
    assert "measured on micro-batches of 32 synthetic examples of 50" in table
    assert "seconds per step      2.50" in table
    assert "training time         2 h 3 min" in table
    assert max(map(len, table.splitlines())) <= 80


def test_without_a_measurement_no_time_is_stated() -> None:
    table = plan_table(private().replace(measured=None), plan(), accounting())
    assert "seconds per step" not in table
    assert table.splitlines()[0] == "2.00 GB, ε 2.990"


def test_a_plan_without_privacy_says_so_in_the_first_line() -> None:
    table = plan_table(merge_models(OpenPlan, no_promise(StepsPlan(**SIZES)), COSTS), None, None)
    assert table.startswith("NOT PRIVATE")
    assert "steps                 4" in table and "epsilon" not in table
    assert "about 2 hours, 2.00 GB, no ε" in table.splitlines()[:3] and "clip" not in table


def test_a_plan_that_clips_without_noise_says_both_first() -> None:
    record = merge_models(OpenPlan, no_promise(clipping_plan(phases=TWO_PHASES)), COSTS)
    first, second, *rest = plan_table(record, None, None).splitlines()
    assert first.startswith("NOT PRIVATE: privacy=none")
    assert second == "Each example's gradient is clipped, and no noise is added."
    assert "max_grad_norm         0.1, 0.5" in rest and "sampler               poisson" in rest
    assert rest[0].endswith("no ε")
