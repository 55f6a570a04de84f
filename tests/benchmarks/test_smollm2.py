"""The real language model of ``make smollm2``: it answers, and its chat template is its own."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from benchmarks.smollm2 import ANSWER, QUESTION, answer

MODEL = Path(__file__).parents[2] / "build" / "smollm2"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason="build/smollm2 is missing; run make smollm2"),
]


def test_the_model_answers_a_question() -> None:
    assert ANSWER in answer(MODEL, QUESTION)


def test_a_chat_has_the_marks_of_its_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    chat = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
