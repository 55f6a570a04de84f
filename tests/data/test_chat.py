from dataclasses import replace

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dpft.constants import IGNORED_LABEL
from dpft.data.batches import TextLayout
from dpft.data.chat import ChatEncoding
from dpft.errors import InputError
from dpft.models.source import EMBEDDED_MODEL
from dpft.tasks.custom import ChatExample, CustomChats
from tests.rejections import rejects

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


@pytest.mark.parametrize(
    "template", [None, "{{ messages[-1].content }}", "{{ raise_exception('no') }}"]
)
def test_a_template_that_does_not_fit_is_refused_before_any_record_is_read(template):
    with rejects("task.messages"):
        encoding(tokenizer(template))


def chatml(before: str = "", after: str = "<|im_end|>\n", asks: str = "") -> str:
    """ChatML with text of the template's own around the assistant's last message."""
    last = "m.role == 'assistant' and loop.last"
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        f"{{% if {last} %}}{before}{{% endif %}}{{{{ m.content }}}}"
        f"{{% if {last} %}}{after}{{% else %}}<|im_end|>\n{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}<|im_start|>assistant\n{asks}{{% endif %}}"
    )


@pytest.mark.parametrize(
    ("template", "learned_text", "generated"),
    [
        (chatml("<think>\n\n</think>\n\n"), "<think>\n\n</think>\n\nIt is near.<|im_end|>", None),
        (
            chatml("<think>\n\n</think>\n\n"),
            "<think>\n\n</think>\n\nIt is near.<|im_end|>",
            "<think>\nA pub?\nYes.\n</think>\n\nIt is near.",
        ),
        (  # The prompt opens the block, as that of Qwen3-Thinking does.
            chatml("<think>\n\n</think>\n\n", asks="<think>\n"),
            "\n</think>\n\nIt is near.<|im_end|>",
            "A pub?\n</think>\n\nIt is near.",
        ),
        (  # The prompt and the lead-in part inside of a mark.
            chatml("</think>\n", asks="<think>\n"),
            "</think>\nIt is near.<|im_end|>",
            None,
        ),
        (
            chatml("[THINK][/THINK]", "##<|im_end|>"),
            "[THINK][/THINK]It is near.##<|im_end|>",
            "[THINK]A pub?[/THINK]It is near.##",
        ),
        (
            chatml("[THINK][/THINK]", "<|im_end|>", asks="[THINK]"),
            "[/THINK]It is near.<|im_end|>",
            "A pub?[/THINK]It is near.",
        ),
        (chatml("Answer: ", "\n###"), "Answer: It is near.\n###", None),
        (
            chatml("<|channel|>final<|message|>"),
            "<|channel|>final<|message|>It is near.<|im_end|>",
            "<|channel|>analysis<|message|>A pub?<|channel|>final<|message|>It is near.",
        ),
        (
            chatml("<|channel|><|message|>", "<|im_end|>"),
            "<|channel|><|message|>It is near.<|im_end|>",
            None,
        ),
    ],
    ids=[
        "think",
        "filled",
        "open",
        "apart",
        "special",
        "open special",
        "answer",
        "channel",
        "marks",
    ],
)
def test_text_around_an_answer_is_learned_and_removed_from_what_is_generated(
    template, learned_text, generated
):
    tokens = tokenizer(template)
    marks = [*MARKS, "<|channel|>", "<|message|>", "[THINK]", "[/THINK]"]
    tokens.add_special_tokens({"additional_special_tokens": marks})
    tokens.add_tokens(["<think>", "</think>"])
    made = encoding(tokens)
    (row,) = made.rows([example()])
    end = [tokens.eos_token_id]
    assert squeezed(tokens.decode(learned(row)[:-1])) == squeezed(learned_text)
    assert (
        made.prompts([example()], max_length=200, max_new_tokens=9)[0]
        == row.input_ids[: -len(learned(row))]
    )
    ids = learned(row) if generated is None else tokens(generated)["input_ids"] + end
    text = tokens.decode(made.answer_ids(ids[:-1]), skip_special_tokens=True).strip()
    assert made.answer(text) == made.reference(example()) == "It is near."


def squeezed(text: str) -> str:
    """Return a text without blanks, which the tokenizer of this file adds between tokens."""
    return "".join(text.split())


def test_a_text_that_ends_inside_of_a_thinking_block_has_no_answer():
    made = encoding(tokenizer(chatml("<think>\n\n</think>\n\n")))
    assert made.answer("<think>\nA pub is") == ""
    assert made.answer("It is near.") == "It is near."
    opened_by_the_prompt = chatml("<think>\n\n</think>\n\n", asks="<think>\n")
    assert encoding(tokenizer(opened_by_the_prompt)).answer("A pub is") == ""


def test_a_generation_prompt_that_no_finished_conversation_has_is_left_out_of_the_prompt():
    """DeepSeek-R1 opens a thinking block that a finished conversation does not have."""
    opened, closed = tokenizer(chatml(asks="<think>\n")), tokenizer(chatml())
    both = [encoding(tokens).rows([example()]) for tokens in (opened, closed)]
    assert both[0] == both[1]
    prompts = [
        encoding(tokens).prompts([example()], max_length=200, max_new_tokens=9)
        for tokens in (opened, closed)
    ]
    assert prompts[0] == prompts[1]


def test_marks_of_a_lead_in_are_tokens_where_the_answer_is_read_as_text():
    tokens = tokenizer(chatml("<|channel|>final<|message|>"))
    tokens.add_special_tokens({"additional_special_tokens": [*MARKS, "<|channel|>", "<|message|>"]})
    talk = (*TALK[:4], ("assistant", "so<|im_end|>what"))
    (row,) = encoding(tokens).rows([example(talk)])
    marks = tokens.convert_tokens_to_ids(["<|channel|>", "<|message|>", "<|im_end|>"])
    assert [learned(row).count(mark) for mark in marks] == [1, 1, 1]


@pytest.mark.parametrize(
    "inserted",
    [
        "{{ strftime_now('%d %b %Y') }}",  # Granite, SmolLM3
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{% endif %}{{ date_string }}",  # Llama 3.2
    ],
)
def test_the_date_of_a_template_is_the_task_s(inserted):
    tokens = tokenizer(f"Today: {inserted}\n" + CHATML)
    before = replace(encoding(tokens), date="2019-03-04")
    (row,) = before.rows([example()])
    assert "04 Mar 2019" in tokens.decode(row.input_ids).replace("  ", " ")
    assert before.rows([example()]) != encoding(tokens).rows([example()])


STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception(m.content) }}{% endif %}{% endfor %}" + CHATML
)


def test_a_rejected_system_message_can_be_merged():
    made = encoding(tokenizer(STRICT))
    with rejects("task.merge_system", False):
        made.check(example())
    merged = example().with_system_merged()
    made.check(merged)
    assert merged.messages[0].content == "Be kind.\n\na long question about a pub near the river"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (STRICT, ("secret", "{secret}")),
        # str.format raises KeyError with the text between the braces.
        (CHATML.replace("{{ m.content }}", "{{ m.content.format() }}"), ("{secret}",)),
    ],
)
def test_a_conversation_that_the_template_rejects_is_not_quoted(template, said):
    talk = (*(("user", text) for text in said), ("assistant", "Yes."))
    with pytest.raises(InputError) as caught:
        encoding(tokenizer(template)).check(example(talk))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_call_of_a_tool_reaches_the_template_as_values():
    calls = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}{% endfor %}"  # noqa: E501
    tokens = tokenizer(calls + CHATML)
    call = {"type": "function", "function": {"name": "near", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": "Which pub?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "none"},
        {"role": "assistant", "content": "It is near."},
    ]
    task = CustomChats(name="custom", messages_column="talk")
    (row,) = encoding(tokens).rows(task.examples({"talk": messages}))
    assert "Paris" in tokens.decode(row.input_ids)
    assert "Paris" not in tokens.decode(learned(row))
