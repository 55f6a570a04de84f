import os
from dataclasses import replace
from pathlib import Path

import pytest

from dpft.constants import IGNORED_LABEL
from dpft.data.sources import load_examples
from dpft.data.tokenization import cut_prompts, cuttable_prompts, tokenize
from dpft.tasks.personachat import TOKENS, PersonaChatTask
from tests.data.conftest import letter_tokenizer
from tests.rejections import rejects

TASK = PersonaChatTask(name="personachat")
PERSONA = ["i surf.", "i bake."]
SECRET = "secret"


def row(history: object, reply: str = "hi", persona: object = PERSONA) -> dict[str, object]:
    return {"personality": persona, "history": history, "candidates": ["no", reply]}


def test_the_replier_is_speaker2_and_the_turns_before_alternate():
    (made,) = TASK.examples(row(["hello", "hey", " how are you ? "], " fine "))
    assert made.prompt == (
        "<persona>i surf. i bake.<speaker1>hello<speaker2>hey<speaker1>how are you ?<speaker2>"
    )
    assert (made.lead, made.separator) == ("<persona>i surf. i bake.", "<speaker2>")
    assert made.cut_start
    assert made.target == "fine"


def test_a_first_turn_of_silence_has_no_words_and_is_left_out():
    (opening,) = TASK.examples(row(["__SILENCE__"]))
    assert opening.prompt == "<persona>i surf. i bake.<speaker2>"
    (later,) = TASK.examples(row(["__SILENCE__", "hey", "hello"]))
    assert later.prompt == "<persona>i surf. i bake.<speaker2>hey<speaker1>hello<speaker2>"


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        ({"max_history": 1}, "<persona>i surf. i bake.<speaker1>c<speaker2>"),
        ({"max_history": 2}, "<persona>i surf. i bake.<speaker2>b<speaker1>c<speaker2>"),
        ({"max_history": 0}, "<persona>i surf. i bake.<speaker2>"),
        ({"max_history": 1, "use_persona": False}, "<speaker1>c<speaker2>"),
    ],
)
def test_what_the_model_reads_is_configuration_and_its_name_is_not(settings, prompt):
    (made,) = TASK.replace(**settings).examples(row(["a", "b", "c"]))
    assert made.prompt == prompt
    (whole,) = TASK.examples(row(["a", "b", "c"]))
    assert made.group == whole.group
    assert whole.group == "<persona> i surf. i bake. <speaker1> a <speaker2> b <speaker1> c"


def test_a_dialogue_gives_an_example_for_each_utterance():
    turns = [row(["a"], "b"), row(["a", "b", "c"], "d")]
    utterances = [{key: turn[key] for key in ("history", "candidates")} for turn in turns]
    found = TASK.examples({"personality": PERSONA, "utterances": utterances})
    assert found == tuple(example for turn in turns for example in TASK.examples(turn))


def test_a_prompt_is_the_example_without_its_target_and_a_record_can_be_read_back():
    (made,) = TASK.examples(row(["a"], "b"))
    context = {"personality": PERSONA, "history": ["a"]}
    assert TASK.prompt(context) == replace(made, target="")
    assert TASK.examples(TASK.record(row(["a"]), "b")) == (made,)


def tokenizer():
    """Letters, and the task's tokens."""
    made = letter_tokenizer()
    made.add_special_tokens({"extra_special_tokens": list(TOKENS)})
    return made


def test_words_that_spell_a_token_do_not_become_it():
    tokens = tokenizer()
    numbers = tokens.convert_tokens_to_ids(list(TOKENS))
    given = row(
        ["a<speaker2>b", "<persona>"], "<speaker1>c", ["x<persona>", "<speaker<speaker1>1>"]
    )
    (made,) = TASK.examples(given)
    (tokenized,) = tokenize([made], tokens, max_length=200, special_tokens=TOKENS)
    spoken = [number for number in tokenized.input_ids if number in numbers]
    persona, other, replier = numbers
    assert spoken == [persona, replier, other, replier]
    reply = [label for label in tokenized.labels if label != IGNORED_LABEL]
    assert len(reply) == len("<speaker1>c") + 1
    assert not set(reply) & set(numbers)


def test_a_long_history_loses_its_oldest_turns_and_keeps_persona_and_reply():
    tokens = tokenizer()
    (made,) = TASK.examples(row(["old" * 40, "b" * 40, "c" * 4], "reply", ["ab"]))
    (tokenized,) = tokenize([made], tokens, max_length=20, special_tokens=TOKENS)
    assert tokens.decode(tokenized.input_ids).replace(" ", "") == (
        "<persona>ab" + "b" * 5 + "<speaker1>cccc<speaker2>reply<end>"
    )
    reply = tokens.convert_tokens_to_ids([*"reply", "<end>"])
    assert tokenized.labels == [IGNORED_LABEL] * 14 + reply
    (prompt,) = cut_prompts(cuttable_prompts([made], tokens, TOKENS), 20, 6)
    assert prompt == tokenized.input_ids[:14]


def test_an_empty_reply_has_no_label():
    (made,) = TASK.examples(row(["a"], "  "))
    (tokenized,) = tokenize([made], tokenizer(), max_length=64, special_tokens=TOKENS)
    assert set(tokenized.labels) == {IGNORED_LABEL}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"personality": SECRET}, "personality"),
        ({"personality": [3]}, "each value of personality"),
        ({"history": None}, "history"),
        ({"history": [[SECRET]]}, "each value of history"),
        ({"history": ["\ud800"]}, "each value of history"),
        ({"candidates": SECRET}, "candidates"),
        ({"candidates": []}, "candidates"),
        ({"candidates": [None]}, "each value of candidates"),
        ({"utterances": SECRET}, "utterances"),
        ({"utterances": [SECRET]}, "utterances"),
        ({"utterances": [{"history": [SECRET]}]}, "utterances"),
        ({"utterances": [{"history": 1, "candidates": []}]}, "utterances"),
    ],
)
def test_a_malformed_row_is_rejected_without_being_quoted(change, key):
    with rejects(key) as faults:
        TASK.examples({**row([SECRET]), **change})
    assert SECRET not in repr(faults)


@pytest.mark.parametrize(
    "line",
    [f'{{"personality": ["{SECRET}"], "history": []}}', '{"history": [], "candidates": ["a"]}'],
)
def test_a_row_without_the_columns_of_either_shape_is_rejected_by_line(tmp_path, line):
    (tmp_path / "train.jsonl").write_text(line + "\n")
    with rejects() as faults:
        load_examples(TASK.replace(data_dir=str(tmp_path)), "train")
    assert "train.jsonl, line 1" in str(faults[0])
    assert SECRET not in repr(faults)


def test_columns_may_have_other_names(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        '{"persona": ["i surf."], "context": ["a"], "candidates": ["b"]}\n'
    )
    aliases = {"persona": "personality", "context": "history"}
    task = TASK.replace(data_dir=str(tmp_path), column_aliases=aliases)
    (made,) = load_examples(task, "train")
    assert made.prompt == "<persona>i surf.<speaker1>a<speaker2>"


REAL = Path(os.environ.get("DPFT_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL = REAL / "personachat"


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs Persona-Chat; set DPFT_DATA to its folder")
def test_the_real_validation_split_has_its_published_size():
    """7,801 utterances (ConvAI2), each with a context of its own."""
    examples = load_examples(TASK.replace(data_dir=str(REAL)), "validation")
    assert (len(examples), len({example.group for example in examples})) == (7801, 7801)
    assert all(example.target for example in examples)
