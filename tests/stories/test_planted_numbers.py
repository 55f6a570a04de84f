"""Phone numbers that were planted in a table: without privacy they come through, with it none."""

import random
from pathlib import Path

import pytest

import dpft

ROWS, COPIES = 200, 50
SCHEMA = {
    "columns": {
        "city": {"type": "category", "values": ["Rome", "Oslo"]},
        "note": {"type": "text", "max_tokens": 16},
        "customer": {"type": "drop"},
    }
}
WORDS = (
    "model=tiny", "form=array", "train.expected_batch_size=50", "train.steps=60",
    "train.learning_rate=5e-3", "train.num_threads=1", "eval.held_out=null", "decode.top_p=1.0",
)  # fmt: skip


def planted() -> tuple[list[dict[str, str]], list[str]]:
    """Return rows with a number each, one of which stands 50 times, all of one customer."""
    choose = random.Random(7)
    numbers = [f"07{choose.randrange(10**9):09d}" for _ in range(ROWS)]
    owners = [(number, str(at)) for at, number in enumerate(numbers)]
    rows = [
        {"city": choose.choice(["Rome", "Oslo"]), "note": f"Call {number}.", "customer": owner}
        for number, owner in [*owners, *[owners[0]] * (COPIES - 1)]
    ]
    return rows, numbers


def came_through(made: dpft.Synthesized, numbers: list[str]) -> list[str]:
    texts = "\n".join(str(row["note"]) for row in made.rows)
    assert "Call" in texts, "something was learned"
    return [number for number in numbers if number in texts]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_planted_number_comes_through_under_privacy_and_one_does_without(
    tmp_path: Path,
) -> None:
    """The one of 50 copies is what an ordinary model repeats, so that the test can fail."""
    rows, numbers = planted()
    private = dpft.synthesize(
        rows, WORDS, schema=SCHEMA, privacy={"eps": 8, "unit": "customer"}, num=60,
        condition=["city"], folder=tmp_path / "private",
    )  # fmt: skip
    assert private.statement.private is True and private.statement.num_examples == ROWS
    assert came_through(private, numbers) == []
    ordinary = dpft.synthesize(
        rows, [*WORDS, "privacy=none"], schema=SCHEMA, num=60, condition=["city"],
        folder=tmp_path / "open",
    )  # fmt: skip
    assert numbers[0] in came_through(ordinary, numbers)
