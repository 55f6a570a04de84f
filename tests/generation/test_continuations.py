"""What is written on after a beginning, in tokens: greedy decoding, however it is batched."""

import pytest
import torch
from transformers import PreTrainedModel

from dpft.generation.decoding import DecodeConfig, Prefix, continuations, generate_texts
from tests.models import small

READ = [(5, 6, 7, 8), (9,), (5, 6), (10, 11, 12, 13, 14, 15), (9, 9)]


def tokenizer(*, closes: bool = False):
    return small.blank_words(closes=closes)


@pytest.fixture(scope="module")
def causal() -> PreTrainedModel:
    """A model far from uniform, in float64; it does not end a text by itself."""
    torch.manual_seed(0)
    from transformers import GPT2LMHeadModel

    config = small.gpt2_config(initializer_range=0.6, n_positions=16, vocab_size=37)
    model = GPT2LMHeadModel(config).double().train()
    with torch.no_grad():
        model.transformer.wte.weight[config.eos_token_id] = 0.0
    return model


@pytest.fixture(scope="module")
def seq2seq() -> PreTrainedModel:
    torch.manual_seed(0)
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration(small.t5_config(vocab_size=40)).double()


def beginnings(*max_new_tokens: int) -> list[Prefix]:
    return [
        Prefix(read=read, max_new_tokens=lacks)
        for read, lacks in zip(READ, max_new_tokens, strict=True)
    ]


def test_it_is_what_greedy_decoding_writes(causal: PreTrainedModel) -> None:
    reader = tokenizer()
    found = continuations(causal, reader, beginnings(6, 6, 6, 6, 6), batch_size=5)
    config = DecodeConfig(strategy="greedy", max_new_tokens=6)
    texts = generate_texts(causal, reader, READ, config=config, batch_size=5)
    assert [reader.decode(list(tokens)).strip() for tokens in found] == texts
    assert len(set(found)) > 1


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batches_do_not_change_it_and_none_writes_too_much(
    causal: PreTrainedModel, batch_size: int
) -> None:
    together = continuations(causal, tokenizer(), beginnings(3, 15, 3, 10, 1), batch_size=9)
    told: list[int] = []
    found = continuations(
        causal, tokenizer(), beginnings(3, 15, 3, 10, 1), batch_size=batch_size,
        on_batch=told.append,
    )  # fmt: skip
    assert found == together
    assert all(len(tokens) <= lacks for tokens, lacks in zip(found, (3, 15, 3, 10, 1), strict=True))
    assert sum(told) == 5
    assert causal.training


def test_a_text_to_the_last_position_is_written_on(causal: PreTrainedModel) -> None:
    """Others of the batch are longer, and lack less."""
    read = [tuple(range(5, 18)), (5,)]
    max_new_tokens = [3, 15]
    asked = [Prefix(read=r, max_new_tokens=n) for r, n in zip(read, max_new_tokens, strict=True)]
    assert [*map(len, continuations(causal, tokenizer(), asked, batch_size=8))] == max_new_tokens


def test_a_seq2seq_model_goes_on_from_what_its_decoder_has_begun(seq2seq: PreTrainedModel) -> None:
    reader = tokenizer(closes=True)
    read = [(5, 6, 1), (7, 8, 9, 1)]
    whole = continuations(
        seq2seq, reader, [Prefix(read=r, max_new_tokens=8) for r in read], batch_size=2
    )
    assert all(len(tokens) == 8 for tokens in whole)
    begun = [
        Prefix(read=r, decoder_tokens=w[:3], max_new_tokens=5)
        for r, w in zip(read, whole, strict=True)
    ]
    assert continuations(seq2seq, reader, begun, batch_size=2) == [w[3:] for w in whole]
    other = [Prefix(read=r, decoder_tokens=(20, 21), max_new_tokens=5) for r in read]
    mixed = continuations(seq2seq, reader, [begun[0], other[1]], batch_size=2)
    assert mixed[0] == whole[0][3:]


def test_what_is_written_ends_with_the_text(causal: PreTrainedModel) -> None:
    """A model that writes the end-of-text token at once has written nothing."""
    from copy import deepcopy

    ending = deepcopy(causal)
    with torch.no_grad():
        ending.transformer.ln_f.weight.zero_()
        ending.transformer.ln_f.bias.fill_(1.0)
        ending.transformer.wte.weight[1] = 5.0
    assert continuations(ending, tokenizer(), beginnings(4, 4, 4, 4, 4), batch_size=2) == [()] * 5
