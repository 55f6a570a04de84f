from dataclasses import replace

import pytest
from tokenizers.processors import TemplateProcessing

from dpft.data.tokenization import cut_prompts, cuttable_prompts, token_ids, tokenize
from dpft.tasks.base import Example
from tests.rejections import rejects


def example(record: str, target: str, separator: str = "\n") -> Example:
    return Example(prompt=record + separator, target=target, group=record, separator=separator)


def texts(tokenizer, ids: list[int]) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(ids))


def one(tokenizer, record: str, target: str, max_length: int) -> tuple[str, str]:
    """Return the sequence and the part of it that carries loss, as text."""
    (tokens,) = tokenize([example(record, target)], tokenizer, max_length=max_length)
    learnt = [label for label in tokens.labels if label != -100]
    assert len(tokens.input_ids) == len(tokens.labels) <= max_length
    assert tokens.input_ids[len(tokens.input_ids) - len(learnt) :] == learnt
    return texts(tokenizer, tokens.input_ids), texts(tokenizer, learnt)


@pytest.mark.parametrize(
    ("max_length", "sequence", "learnt"),
    [
        (20, "abcd\nxyz<end>", "xyz<end>"),
        (9, "abcd\nxyz<end>", "xyz<end>"),
        (8, "abc\nxyz<end>", "xyz<end>"),
        (5, "\nxyz<end>", "xyz<end>"),
        (4, "xyz<end>", "xyz<end>"),
        (3, "yz<end>", "yz<end>"),
        (2, "z<end>", "z<end>"),
    ],
)
def test_the_record_is_cut_first_and_the_targets_end_never(tokenizer, max_length, sequence, learnt):
    assert one(tokenizer, "abcd", "xyz", max_length) == (sequence, learnt)


@pytest.mark.parametrize("cut_end", [False, True])
@pytest.mark.parametrize(("max_length", "truncated"), [(9, False), (8, True), (3, True)])
def test_a_row_knows_whether_its_record_lost_a_part(tokenizer, max_length, truncated, cut_end):
    given = replace(example("abcd", "xyz"), cut_target_end=cut_end)
    (tokens,) = tokenize([given], tokenizer, max_length=max_length)
    assert tokens.truncated is truncated


def dialogue(middle: str) -> Example:
    prompt = f"p{middle}\n"
    return Example(prompt=prompt, target="xy", group="", separator="\n", lead="p", cut_start=True)


@pytest.mark.parametrize(
    ("max_length", "sequence"),
    [
        (9, "pabc\nxy<end>"),
        (7, "pbc\nxy<end>"),
        (5, "p\nxy<end>"),
        (4, "\nxy<end>"),
        (3, "xy<end>"),
    ],
)
def test_a_history_is_cut_from_its_far_end_and_lead_and_target_survive(
    tokenizer, max_length, sequence
):
    (tokens,) = tokenize([dialogue("abc")], tokenizer, max_length=max_length)
    assert texts(tokenizer, tokens.input_ids) == sequence


def test_a_text_without_a_prompt_has_its_first_token_predicted_and_loses_its_end(tokenizer):
    text = Example(prompt="", target="abcd", group="", cut_target_end=True)
    whole, cut = (tokenize([text], tokenizer, max_length=n)[0] for n in (6, 3))
    assert texts(tokenizer, whole.input_ids) == "<end>abcd<end>"
    assert texts(tokenizer, cut.input_ids) == "<end>ab"
    assert [row.labels.count(-100) for row in (whole, cut)] == [1, 1]


def learned(**settings) -> Example:
    return replace(example("abcd", "xyz"), after_start=True, learns_prompt=True, **settings)


@pytest.mark.parametrize(
    ("max_length", "sequence", "learnt"),
    [
        (10, "<end>abcd\nxyz<end>", "abcd\nxyz<end>"),
        (8, "<end>ab\nxyz<end>", "ab\nxyz<end>"),
        (4, "xyz<end>", "xyz<end>"),
    ],
)
def test_a_learned_prompt_follows_a_start_token_and_has_all_its_tokens_learned(
    tokenizer, max_length, sequence, learnt
):
    (row,) = tokenize([learned()], tokenizer, max_length=max_length)
    assert texts(tokenizer, row.input_ids) == sequence
    labels = row.labels if max_length == 4 else row.labels[1:]
    assert texts(tokenizer, labels) == learnt
    assert len(row.labels) == len(row.input_ids)
    assert -100 not in labels


def test_the_first_label_of_a_learned_prompt_is_none_and_of_an_empty_target_there_are_none(
    tokenizer,
):
    whole, empty = tokenize([learned(), replace(learned(), target="")], tokenizer, max_length=12)
    assert whole.labels[0] == -100
    assert empty.labels == [-100] * len(empty.input_ids)
    assert not empty.has_label


def test_a_learned_prompt_is_the_same_where_its_answer_is_written_or_scored(tokenizer):
    (row,) = tokenize([learned()], tokenizer, max_length=20)
    (prompt,) = cut_prompts(cuttable_prompts([learned()], tokenizer), 20, 10)
    assert row.input_ids[: len(prompt)] == prompt
    (scored,) = tokenize([replace(learned(), learns_prompt=False)], tokenizer, max_length=20)
    assert scored.input_ids == row.input_ids
    assert scored.labels == [-100] * len(prompt) + row.input_ids[len(prompt) :]


def test_only_the_tokens_that_are_named_are_read_as_tokens(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<you>"]})
    you, end = tokenizer.convert_tokens_to_ids("<you>"), tokenizer.eos_token_id
    plain, named = (token_ids(["a<you>b<end>"], tokenizer, names) for names in ((), ("<you>",)))
    assert you not in plain[0]
    assert named[0].count(you) == 1
    assert named[0].index(you) == 1
    assert end not in named[0]


def test_examples_stay_apart_and_in_order(tokenizer):
    tokens = tokenize([example("a", "x"), example("b", "y")] * 2, tokenizer, max_length=9)
    assert [texts(tokenizer, t.input_ids) for t in tokens] == ["a\nx<end>", "b\ny<end>"] * 2


def test_text_that_spells_a_special_token_is_read_as_text(tokenizer):
    (tokens,) = tokenize([example("a", "<end>")], tokenizer, max_length=20)
    assert tokens.input_ids.count(tokenizer.eos_token_id) == 1
    assert tokens.input_ids[-1] == tokenizer.eos_token_id


def test_a_tokenizer_that_opens_texts_keeps_doing_so(tokenizer):
    tokenizer.add_special_tokens({"bos_token": "<start>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", tokenizer.bos_token_id)]
    )
    assert one(tokenizer, "abcd", "xy", 7) == ("<start>ab\nxy<end>", "xy<end>")
    (row,) = tokenize([learned()], tokenizer, max_length=20)
    assert texts(tokenizer, row.input_ids) == "<start>abcd\nxyz<end>"
    assert row.labels == [-100, *row.input_ids[1:]]


def test_a_prompt_leaves_room_for_the_answer_and_keeps_its_separator(tokenizer):
    (prompt,) = cut_prompts(cuttable_prompts([example("abcdef", "x")], tokenizer), 10, 6)
    assert texts(tokenizer, prompt) == "abc\n"


def test_an_answer_that_leaves_no_room_is_refused_by_its_key(tokenizer):
    with rejects("decode.max_new_tokens", 10):
        cut_prompts(cuttable_prompts([example("a", "x")], tokenizer), 10, 10)
