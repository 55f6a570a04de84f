from functools import cache

import pytest
from torch import nn

from benchmarks import complexity
from benchmarks.complexity import EXAMPLES, ROWS, Measurement
from benchmarks.counts import Counts
from benchmarks.interleave import Timings
from benchmarks.workload import LORA_RANK, Workload, make_model

WIDTH, LAYERS, VOCABULARY = 256, 4, 8192
DENSE = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
"""The widths of a block's dense layers, (p, d)."""


def counts(products: int, peak_mib: float, kept_mib: float) -> Counts:
    made = Counts()
    made.products = products
    made.peak_bytes, made.kept_bytes = int(peak_mib * 2**20), int(kept_mib * 2**20)
    return made


def test_a_table_line_holds_time_memory_and_operations_beside_the_formula():
    measured = Measurement(
        length=64,
        timings=Timings(private=[0.2, 0.3, 0.4], ordinary=[0.2, 0.2, 0.2]),
        private=counts(12_500_000, 7.5, 3.25),
        ordinary=counts(10_000_000, 5.0, 3.0),
        formula=2_600_000,
    )
    assert complexity.table_line("LoRA", measured) == (
        "| LoRA | 64 | 1.50 (1.25 to 1.75) | 300 / 200 | 2.5 | 0.2 | 2.50 (25.0 %) | 2.60 | 3 |"
    )


@cache
def model_of(method: str) -> nn.Module:
    return make_model(Workload(engine="ordinary", shape="small_gpt2", method=method))


def formula(name: str, length: int) -> int:
    row = ROWS[name]
    return row.formula(model_of(row.method), length)


def test_the_formulas_of_the_table_are_the_papers():
    dense = [(p, d) for p, d in DENSE for _ in range(LAYERS)] + [(VOCABULARY, WIDTH)]
    products, sides = sum(p * d for p, d in dense), sum(p + d for p, d in dense)
    # 32 < pd / (p + d) of every layer < 300
    short, long = (formula("full, book-keeping", length) for length in (32, 300))
    assert short == 2 * EXAMPLES * 32 * products + 2 * EXAMPLES * 32**2 * sides
    assert long == 2 * 2 * EXAMPLES * 300 * products
    low_rank = LAYERS * LORA_RANK * (3 * WIDTH + WIDTH)
    assert formula("LoRA", 64) == 2 * EXAMPLES * 64 * low_rank
    # Of the blocks' dense layers and of two norms each, and of the last norm.
    biases = LAYERS * sum(p for p, _ in DENSE) + (2 * LAYERS + 1) * WIDTH
    assert formula("BiTFiT", 64) == formula("BiTFiT", 512) == 3 * EXAMPLES * biases


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--rows", "LoRa"], "got 'LoRa'"), (["--lengths", "32;64"], "invalid _numbers value")],
)
def test_what_cannot_be_measured_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        complexity.main(arguments)
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_biases_and_lora_take_the_same_operations_more_at_every_length():
    for name in ("BiTFiT", "LoRA"):
        measured = [complexity.measure(ROWS[name], length, pairs=2) for length in (4, 12)]
        more = {m.private.products - m.ordinary.products for m in measured}
        assert len(more) == 1
        assert more.pop() == 2 * measured[0].formula / {"BiTFiT": 3, "LoRA": 2 * 4}[name]


@pytest.mark.slow
def test_a_run_writes_its_table(tmp_path):
    output = tmp_path / "results.md"
    complexity.main(
        ["--pairs", "2", "--rows", "BiTFiT", "--lengths", "4,8", "--output", str(output)]
    )
    assert "| BiTFiT | 8 |" in output.read_text()
