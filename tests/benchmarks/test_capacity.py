import math

import pytest

from benchmarks import capacity, memory
from benchmarks.interleave import Comparison
from benchmarks.workload import Workload

TINY = Workload(
    engine="book_keeping", shape="small_gpt2", length=4, threads=1, memory_limit_bytes=2**20
)


@pytest.mark.parametrize("maximum", [0, 1, 2, 3, 7, 8, 9, 100, 1023])
def test_the_search_finds_the_largest_size_in_few_attempts(maximum):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= maximum

    assert capacity.largest(fits) == maximum
    assert len(tried) <= 2 * math.log2(maximum + 1) + 2
    assert len(set(tried)) == len(tried)
    assert max(tried) <= max(2 * maximum, 1)


def test_sizes_stay_as_they_are_where_their_common_multiple_is_within_bounds():
    assert capacity.whole_micro_batches(12, 8, 24) == (12, 8)
    assert capacity.whole_micro_batches(7, 5, 35) == (7, 5)


@pytest.mark.parametrize(("first", "second"), [(13, 11), (12, 8), (1, 40), (31, 5)])
@pytest.mark.parametrize("bound", [1, 10, 23, 60])
def test_sizes_are_rounded_to_the_largest_product_within_bounds(first, second, bound):
    allowed = [
        a * b for a in range(1, first + 1) for b in range(1, second + 1) if math.lcm(a, b) <= bound
    ]
    sizes = capacity.whole_micro_batches(first, second, bound)
    assert sizes[0] <= first and sizes[1] <= second
    assert math.lcm(*sizes) <= bound
    assert math.prod(sizes) == max(allowed)


def test_a_table_line_holds_sizes_and_speeds_as_ratios_to_ordinary():
    comparison = Comparison(ratios=(1.25, 1.25, 1.25), memory=1.0, seconds=(2.5, 2.0))
    result = capacity.Race(sizes=(6, 8), comparison=comparison)
    assert capacity.table_line("rows", 6, 8, result) == (
        "| rows | 6 | 0.750 | 24 = 4 x 6 = 3 x 8 | 9.60 / 12.00 | 0.800 (0.800 to 0.800) |"
    )


def test_a_table_line_without_a_race_leaves_the_speed_out():
    assert (
        capacity.table_line("opacus_hooks", 0, 8, None)
        == "| opacus_hooks | 0 | 0.000 | - | - | - |"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engines", "ordinary,row"], "got 'row'"),
        (["--memory-gb", "0"], "must be positive, got 0"),
        (["--max-examples", "-1"], "must be positive, got -1"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        capacity.main(arguments)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        (1, "torch.OutOfMemoryError: CUDA out of memory."),
        (1, "MemoryError"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'"),
        (-9, ""),
    ],
)
def test_a_worker_that_lacked_memory_is_told_from_others(exit_code, words):
    assert isinstance(memory.failure(exit_code, words), memory.OutOfMemory)


def test_another_failure_of_a_worker_is_shown():
    error = memory.failure(1, "ValueError: expected 3 layers")
    assert not isinstance(error, memory.OutOfMemory)
    assert "exit code 1" in str(error) and "expected 3 layers" in str(error)


@pytest.mark.slow
def test_what_does_not_fit_is_zero_and_another_failure_is_raised():
    assert capacity.largest_micro_batch(TINY) == 0
    with pytest.raises(RuntimeError, match="KeyError: 'fp64'"):
        capacity.largest_micro_batch(
            Workload(**{**vars(TINY), "precision": "fp64", "memory_limit_bytes": 2**30})
        )


@pytest.mark.slow
def test_a_run_writes_its_table(tmp_path):
    output = tmp_path / "capacity.md"
    capacity.main(
        ["--memory-gb", "0.3", "--shape", "small_gpt2", "--engines", "book_keeping",
         "--updates", "1", "--max-examples", "4", "--threads", "1", "--output", str(output)]
    )  # fmt: skip
    rows = {line.split(" | ")[0]: line for line in output.read_text().splitlines()}
    assert int(rows["| ordinary"].split(" | ")[1]) > 0
    assert " = " in rows["| book_keeping"]
