"""Records and table of the benchmark on a real language model."""

import gzip
import json
from pathlib import Path

from benchmarks.real_lm import GREETING, ROWS, chats, page, pairs


def test_a_dialogue_becomes_a_conversation_that_ends_with_its_own_answer(tmp_path: Path) -> None:
    rows = [
        {"personality": ["i ski."], "history": ["__SILENCE__"], "candidates": ["no", "hello"]},
        {
            "personality": ["i ski."],
            "history": ["__SILENCE__", "hello", "where are you?"],
            "candidates": ["no", "in the alps"],
        },
        {"personality": ["i read."], "history": ["hi"], "candidates": ["no", "hey"]},
    ]
    file = tmp_path / "train.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(f"{json.dumps(row)}\n" for row in rows)
    first, second = (conversation["messages"] for conversation in chats(file, 10))
    assert [message["role"] for message in first] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert [message["content"] for message in first[1:]] == [
        GREETING, "hello", "where are you?", "in the alps",
    ]  # fmt: skip
    assert second[-1] == {"role": "assistant", "content": "hey"}
    assert len([*chats(file, 1)]) == 1


def test_a_rejected_reference_is_that_of_another_input() -> None:
    rows = [{"meaning_representation": f"name[{n // 2}]", "human_reference": f"text {n}"}
            for n in range(12)]  # fmt: skip
    made = [*pairs(rows, 10)]
    assert 5 <= len(made) <= 10
    for pair in made:
        own = pair["prompt"].partition("name[")[2].rstrip("]")
        assert int(pair["chosen"].split()[1]) // 2 == int(own)
        assert int(pair["rejected"].split()[1]) // 2 != int(own)


def test_the_table_has_a_line_for_each_result_and_each_published_score(tmp_path: Path) -> None:
    scores = {"bleu": 60.1, "nist": 7.0, "meteor": 0.4, "rouge_l": 0.6, "cider": 1.9,
              "perplexity": 3.5}  # fmt: skip
    row = {"scores": scores, "eps": "8", "examples": 10240, "cpu_minutes": 120}
    (tmp_path / "e2e-8.json").write_text(json.dumps(row))
    table = page(tmp_path)
    assert "| e2e-8 | 8 | 60.10 |" in table and "10,240" in table
    assert "63.19" in table and "65.93" in table and "e2e-3" not in table
    assert "e2e-8" in ROWS
