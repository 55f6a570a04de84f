"""Every gap of a text is filled, in order, by what the model finds likeliest."""

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, T5ForConditionalGeneration

from dpft.errors import InputError
from dpft.generation.decoding import DecodeConfig, generate_texts
from dpft.generation.gaps import NEVER, GapFilling
from tests.models import small

END, FIRST, SECOND, THIRD, WORD, OTHER = 1, 10, 11, 12, 5, 6


def filling(gaps: list[int], *, before: int = 1, most: int = 9) -> GapFilling:
    return GapFilling(
        gaps, sentinels=(FIRST, SECOND, THIRD), end=END, before=before, max_new_tokens=most
    )


def after(made: GapFilling, *rows: list[int], scores: torch.Tensor | None = None) -> torch.Tensor:
    given = torch.zeros(len(rows), 13) if scores is None else scores
    return made(torch.tensor([[0, *row] for row in rows]), given)


def possible(row: torch.Tensor) -> set[int]:
    return {at for at, score in enumerate(row.tolist()) if score > NEVER}


def test_a_text_begins_with_its_first_sentinel_and_no_gap_stays_empty() -> None:
    (scores,) = after(filling([2]), [])
    assert possible(scores) == {FIRST}
    (scores,) = after(filling([2]), [FIRST])
    assert possible(scores) == set(range(13)) - {END, FIRST, SECOND, THIRD}


def test_whatever_would_end_a_fill_is_the_next_sentinel_and_after_the_last_one_the_end() -> None:
    given = torch.randn(2, 13, generator=torch.Generator().manual_seed(0))
    scores = after(filling([2, 1]), [FIRST, WORD], [FIRST, WORD], scores=given)
    marks = [END, FIRST, SECOND, THIRD]
    for row, following in enumerate((SECOND, END)):
        assert possible(scores[row]) & set(marks) == {following}
        ended = given[row, marks].exp().sum().log()
        torch.testing.assert_close(scores[row, following], ended)
        words = sorted(set(range(13)) - set(marks))
        assert torch.equal(scores[row, words], given[row, words]), "words are as likely as before"


def test_a_fill_leaves_room_for_the_others_and_for_the_end() -> None:
    made = filling([2], most=7)  # two sentinels, two tokens each, the end
    assert possible(after(made, [FIRST, WORD, OTHER])[0]) == {SECOND}
    assert possible(after(made, [FIRST, WORD, OTHER, SECOND, WORD, OTHER])[0]) == {END}


def test_every_beam_of_a_prompt_has_its_gaps() -> None:
    rows = [[FIRST, WORD], [FIRST, OTHER]] * 2
    scores = after(filling([1, 2]), *rows)
    marks = {END, FIRST, SECOND, THIRD}
    assert [possible(row) & marks for row in scores] == [{END}] * 2 + [{SECOND}] * 2


def test_too_few_tokens_for_the_gaps_are_refused() -> None:
    with pytest.raises(InputError, match="max_new_tokens must be at least 5 for the 2 gaps"):
        filling([2], most=4)


@pytest.mark.parametrize("strategy", ["greedy", "beam", "nucleus"])
def test_a_model_that_has_learned_nothing_fills_every_gap(strategy: str) -> None:
    tokenizer: PreTrainedTokenizerBase = small.blank_words(closes=True)
    names = ["<extra_id_0>", "<extra_id_1>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    torch.manual_seed(0)
    model: PreTrainedModel = T5ForConditionalGeneration(
        small.t5_config(vocab_size=len(tokenizer), decoder_start_token_id=0, pad_token_id=0)
    )
    first, second = tokenizer.convert_tokens_to_ids(names)
    texts = generate_texts(
        model,
        tokenizer,
        [[5, first, 6, second, END], [first, END]],
        config=DecodeConfig(strategy=strategy, max_new_tokens=12, num_beams=3),
        batch_size=2,
        sentinels=(first, second),
    )
    assert texts[0].startswith("<extra_id_0> ") and " <extra_id_1> " in texts[0]
    assert texts[1].startswith("<extra_id_0> ") and "<extra_id_1>" not in texts[1]
