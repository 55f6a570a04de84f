"""A real language model, that of ``make smollm2``, trains offline with its own chat template."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dpft.cli.main import main
from dpft.data.batches import TextLayout
from dpft.data.chat import ChatEncoding
from dpft.tasks.custom import CustomChats

MODEL = Path(__file__).parents[2] / "build" / "smollm2"
CHAT = [
    {"role": "user", "content": "Where is the key?"},
    {"role": "assistant", "content": "Under the mat."},
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason="build/smollm2 is missing; run make smollm2"),
]


def test_a_conversation_has_the_tokens_that_the_template_gives_it() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    encoding = ChatEncoding(tokenizer=tokenizer, layout=TextLayout(), max_length=100)
    (example,) = CustomChats(name="custom", messages_column="chat").examples({"chat": CHAT})
    (row,) = encoding.rows([example])
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert "You are a helpful AI assistant named SmolLM" in whole
    assert tokenizer.decode(row.input_ids) == whole.rstrip("\n")


@pytest.mark.parametrize("task", ["e2e", "custom"])
def test_a_configuration_trains_from_the_folder_of_its_model(task: str, tmp_path: Path) -> None:
    rows = tmp_path / "chats.jsonl"
    rows.write_text("".join(json.dumps({"messages": CHAT}) + "\n" for _ in range(16)))
    data = {
        "e2e": ["model=smollm2-135m", "task.source=embedded"],
        "custom": [
            "model=smollm2-135m-instruct", f"task.data_dir={rows}", "task.messages=messages"
        ],
    }  # fmt: skip
    words = [f"task={task}", *data[task], f"model.path={MODEL}", "task.max_length=64"]
    words += [
        "method=lora",
        "train.steps=1",
        "train.expected_batch_size=2",
        "train.micro_batch_size=2",
    ]
    words += ["privacy.noise_multiplier=1", "eval.enabled=false", f"hydra.run.dir={tmp_path}/run"]
    assert main(["train", *words]) == 0
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert saved.chat_template == AutoTokenizer.from_pretrained(MODEL).chat_template
