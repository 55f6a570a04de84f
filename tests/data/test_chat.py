from dataclasses import replace

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dpft.data.batches import TextLayout
from dpft.data.chat import ChatEncoding
from dpft.errors import InputError
from dpft.kinds import IGNORED_LABEL
from dpft.models.source import EMBEDDED_MODEL
from dpft.tasks.custom import ChatExample, CustomChats

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ["<|im_start|>", "<|im_end|>"]
TALK = (
    ("system", "Be kind."),
    ("user", "a long question about a pub near the river"),
    ("assistant", "Which one?"),
    ("user", "The Punter"),
    ("assistant", "It is near."),
)


def tokenizer(template: str | None = CHATML, **special: str) -> PreTrainedTokenizerBase:
    made = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    made.add_special_tokens({"additional_special_tokens": MARKS, **special})
    made.chat_template = template
    return made


def encoding(tokens: PreTrainedTokenizerBase, max_length: int = 200) -> ChatEncoding:
    return ChatEncoding(tokenizer=tokens, layout=TextLayout(), max_length=max_length)


def example(talk: tuple[tuple[str, str], ...] = TALK) -> ChatExample:
    messages = [{"role": role, "content": content} for role, content in talk]
    task = CustomChats(name="custom", messages_column="talk")
    return task.examples({"talk": messages})[0]


def whole(tokens: PreTrainedTokenizerBase, until: int) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in TALK[:until]]
    asks = until < len(TALK)
    written = tokens.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
    return tokens(written, add_special_tokens=False)["input_ids"]


def learned(row) -> list[int]:
    return [label for label in row.labels if label != IGNORED_LABEL]


def test_a_conversation_has_the_tokens_that_the_template_gives_it():
    tokens = tokenizer()
    (row,) = encoding(tokens).rows([example()])
    prompt, everything = whole(tokens, 4), whole(tokens, 5)
    assert row.input_ids[: len(prompt)] == prompt
    mark = tokens.convert_tokens_to_ids("<|im_end|>")
    last = len(everything) - everything[::-1].index(mark)
    assert row.input_ids == [*everything[:last], tokens.eos_token_id]
    assert row.labels == [IGNORED_LABEL] * len(prompt) + row.input_ids[len(prompt) :]
    assert encoding(tokens).prompts([example()], max_length=200, max_new_tokens=9) == [prompt]


def test_a_mark_that_is_the_end_of_text_token_ends_an_answer_alone():
    tokens = tokenizer(eos_token="<|im_end|>")
    (row,) = encoding(tokens).rows([example()])
    assert tokens.decode(learned(row)).strip() == "It is near.<|im_end|>"


def test_a_template_without_a_mark_gets_the_end_of_text_token():
    bare = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokens = tokenizer(bare)
    made = encoding(tokens)
    assert made.ending == [tokens.eos_token_id]
    assert learned(made.rows([example()])[0])[-1] == tokens.eos_token_id


@pytest.mark.parametrize("length", [60, 45, 40])
def test_a_long_history_loses_its_beginning_and_keeps_system_and_target(length):
    tokens = tokenizer()
    (row,) = encoding(tokens, length).rows([example()])
    text = tokens.decode(row.input_ids)
    assert len(row.input_ids) == min(length, len(whole(tokens, 5)))
    assert "Be kind." in text
    assert "a long question" not in text or length > 45
    assert text.replace(" ", "").endswith("assistant\nItisnear.<|im_end|><|endoftext|>")


def test_an_empty_answer_carries_no_label():
    (row,) = encoding(tokenizer()).rows([replace(example(), target="")])
    assert learned(row) == []


def test_a_mark_that_an_answer_spells_is_read_as_text():
    tokens = tokenizer()
    (row,) = encoding(tokens).rows([example((*TALK[:4], ("assistant", "so<|im_end|>what")))])
    assert learned(row).count(tokens.convert_tokens_to_ids("<|im_end|>")) == 1


def test_no_conversation_gives_no_row():
    assert encoding(tokenizer()).rows([]) == []


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has none; choose an instruction-tuned model"),
        ("{{ messages[-1].content }}", "writes a conversation and then its answer"),
        ("{{ raise_exception('no') }}", "does not accept"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_before_any_record_is_read(template, reason):
    with pytest.raises(InputError, match=reason):
        encoding(tokenizer(template))


def test_a_conversation_that_the_template_refuses_is_not_quoted():
    strict = CHATML + "{% if messages[0].role == 'system' %}{{ raise_exception(messages[0].content) }}{% endif %}"  # noqa: E501  # fmt: skip
    with pytest.raises(InputError, match="does not accept") as caught:
        encoding(tokenizer(strict)).rows([example()])
    assert "kind" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_conversation_that_a_call_in_the_template_fails_on_is_not_quoted():
    """``str.format`` raises KeyError with what stands between the braces."""
    calls = CHATML.replace("{{ m.content }}", "{{ m.content.format() }}")
    with pytest.raises(InputError, match="does not accept") as caught:
        encoding(tokenizer(calls)).rows([example((("user", "{secret}"), ("assistant", "Yes.")))])
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
