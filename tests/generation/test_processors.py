"""Nucleus sampling draws what it says, and each text on its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5ForConditionalGeneration,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dpft.generation.decoding import DecodeConfig, Draws, generate_texts
from dpft.generation.processors import (
    NEVER,
    GapFilling,
    nucleus_processors,
    prompts_read_once,
    repetition_processors,
    root_seed,
    uniforms,
)
from dpft.methods.base import METHODS
from tests.models import small
from tests.rejections import rejects
from tests.slowness import slow, slow_but

PROBABILITIES = torch.tensor([0.05, 0.5, 0.15, 0.3])
DRAWS = 1000


def frequencies(*, top_p: float, temperature: float = 1.0) -> list[float]:
    """How often each token is chosen by evenly spaced numbers, which give shares exactly."""
    grid = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    choose = nucleus_processors(grid[:, None], top_p=top_p, temperature=temperature)
    scores = choose(torch.zeros(DRAWS, 1, dtype=torch.long), PROBABILITIES.log().repeat(DRAWS, 1))
    assert (scores.isfinite().sum(dim=1) == 1).all()
    return (torch.bincount(scores.argmax(dim=1), minlength=4) / DRAWS).tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1.0, [0.05, 0.5, 0.15, 0.3]),
        # Holtzman et al. 2020, equations 2 and 3: the fewest tokens that hold top_p, renormalized.
        (0.9, [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
        (0.7, [0, 0.625, 0, 0.375]),
        (0.01, [0, 1, 0, 0]),
    ],
)
def test_tokens_of_the_nucleus_are_drawn_by_their_probabilities(top_p, expected):
    assert frequencies(top_p=top_p) == pytest.approx(expected, abs=1 / DRAWS)


def test_temperature_comes_before_the_nucleus():
    squares = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    assert frequencies(top_p=1.0, temperature=0.5) == pytest.approx(squares.tolist(), abs=1 / DRAWS)
    # 0.25 + 0.09 of 0.365 hold 0.9, where before the division three tokens were needed
    assert frequencies(top_p=0.9, temperature=0.5)[2] == 0


def test_the_numbers_of_a_prompt_depend_only_on_seed_and_place():
    three = uniforms(7, [4, 0, 2], 6)
    assert torch.equal(uniforms(7, [2], 6)[0], three[2])
    assert torch.equal(uniforms(7, [0], 3)[0], three[1, :3])
    assert len(torch.cat([three, uniforms(8, [4, 0, 2], 6)]).unique()) == 36
    assert three.min() >= 0 and three.max() < 1


def test_without_a_seed_the_root_is_fresh():
    assert root_seed(5) == 5
    assert root_seed(None) != root_seed(None)
    assert root_seed(None) > 2**64


def test_a_row_whose_logits_are_not_numbers_still_gets_a_token():
    choose = nucleus_processors(torch.full((1, 1), 0.5), top_p=0.9, temperature=1.0)
    scores = choose(torch.zeros(1, 1, dtype=torch.long), torch.full((1, 4), float("nan")))
    assert scores.isfinite().sum() == 1


@pytest.fixture(scope="module")
def writer():
    return small.language_model("gpt2"), small.blank_words(closes=False)


def texts(writer, prompts, **settings):
    model, tokenizer = writer
    config = DecodeConfig(strategy="nucleus", max_new_tokens=6, **settings)
    return generate_texts(model, tokenizer, prompts, config=config, batch_size=3)


@pytest.mark.slow
def test_the_seed_says_what_is_written(writer):
    prompts = [[5, 6]] * 8
    once = texts(writer, prompts, seed=1)
    assert once == texts(writer, prompts, seed=1)
    assert once != texts(writer, prompts, seed=2)
    assert texts(writer, prompts, seed=None) != texts(writer, prompts, seed=None)
    assert len(set(once)) > 4


@pytest.mark.slow
def test_a_part_of_the_prompts_keeps_its_places_and_another_attempt_writes_other_texts(writer):
    model, tokenizer = writer
    config = DecodeConfig(strategy="nucleus", max_new_tokens=6, seed=1)

    def drawn(places, attempt):
        prompts, draws = [[5, 6]] * len(places), Draws(places=places, attempt=attempt)
        return generate_texts(model, tokenizer, prompts, config=config, batch_size=2, draws=draws)

    whole = texts(writer, [[5, 6]] * 8, seed=1)
    assert drawn([6, 1, 3], 0) == [whole[6], whole[1], whole[3]]
    again = drawn(range(8), 1)
    assert drawn([6, 1, 3], 1) == [again[6], again[1], again[3]]
    assert not set(again) & set(whole)


def test_a_small_nucleus_is_greedy(writer):
    model, tokenizer = writer
    prompts = [[5, 6], [7], [9, 4, 8]]
    greedy = DecodeConfig(strategy="greedy", max_new_tokens=6)
    expected = generate_texts(model, tokenizer, prompts, config=greedy, batch_size=3)
    assert texts(writer, prompts, top_p=1e-6) == expected


def test_an_ngram_of_the_prompt_may_be_written_and_one_of_the_text_may_not_be_again() -> None:
    read, scores = [1, 2, 3, 1], torch.zeros(1, 5)
    copied = repetition_processors(4, ngram=2, penalty=1.0)
    assert not copied(torch.tensor([[*read, 1]]), scores.clone()).isinf().any()
    again = copied(torch.tensor([[*read, 1, 2, 1]]), scores.clone())
    assert again.isinf().nonzero().tolist() == [[0, 2]]


def test_a_penalty_is_of_written_tokens_alone() -> None:
    (made,) = repetition_processors(2, ngram=0, penalty=2.0)(
        torch.tensor([[0, 1, 2]]), torch.full((1, 4), 4.0)
    )
    assert made.tolist() == [4.0, 4.0, 2.0, 4.0]


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
    with rejects("decode.max_new_tokens", 4) as faults:
        filling([2], most=4)
    assert faults[0].hint == "decode.max_new_tokens=5"


@pytest.mark.parametrize("strategy", slow_but(["beam"], ["greedy", "beam", "nucleus"]))
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


SIZES = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
HALVES = {f"{half}_{name}": size for half in ("encoder", "decoder")
          for name, size in {"layers": 2, "attention_heads": 2, "ffn_dim": 24}.items()}  # fmt: skip
WRITERS = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, **SIZES},
    "bloom": {**SIZES, "n_head": 2, "n_layer": 2},
    "llama": GROUPED,
    "mistral, sliding window": {**GROUPED, "sliding_window": 3},
    "falcon_h1, states beside the cache": {
        **GROUPED, "mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4,
        "mamba_n_groups": 1, "mamba_chunk_size": 4,
    },
    "t5": {**SIZES, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2,
           "decoder_start_token_id": 0},
    "bart": {**SIZES, **HALVES, "d_model": 16, "decoder_start_token_id": 0,
             "forced_eos_token_id": None},
}  # fmt: skip
PROMPTS = [[5, 9, 7, 8, 4, 11], [6], [30, 12], [12, 11, 14, 40], [20, 21, 22]]
LENGTH = max(map(len, PROMPTS))
BEAMS, WRITTEN = 4, 5


def beginner(name: str) -> PreTrainedModel:
    """A model whose next-token distributions are far from uniform, the same every time."""
    config = CONFIG_MAPPING[name.partition(",")[0]](**WRITERS[name])
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model.eval()


def written(model: nn.Module, prompts=PROMPTS, **settings: object) -> list[list[int]]:
    """What plain transformers writes after the prompts."""
    seq2seq = model.config.is_encoder_decoder
    length = max(map(len, prompts))
    padding = [[0] * (length - len(prompt)) for prompt in prompts]
    pairs = list(zip(prompts, padding, strict=True))
    ids = [prompt + pad if seq2seq else pad + prompt for prompt, pad in pairs]
    ones = [([1] * len(prompt), pad) for prompt, pad in pairs]
    mask = [one + pad if seq2seq else pad + one for one, pad in ones]
    with torch.no_grad():
        found = model.generate(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False,
            num_beams=BEAMS, max_new_tokens=WRITTEN, **settings,
        )  # fmt: skip
    return found.tolist()


@contextmanager
def tokens_read(layer: nn.Module) -> Iterator[list[int]]:
    """Count the tokens, or their states, that each call of the layer is given."""
    counts: list[int] = []
    hook = layer.register_forward_pre_hook(
        lambda _, args: counts.append(args[0].shape[0] * args[0].shape[1])
    )
    yield counts
    hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["gpt2"], WRITERS))
def test_texts_are_those_of_transformers_alone(name: str) -> None:
    model = beginner(name)
    for prompts in (PROMPTS, PROMPTS[:1], [[7]]):
        expected = written(model, prompts)
        with prompts_read_once(model, BEAMS):
            assert written(model, prompts) == expected


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["gpt2", "falcon_h1, states beside the cache"],
        [name for name in WRITERS if name not in ("t5", "bart")],
    ),
)
def test_a_decoder_reads_each_prompt_once_and_then_a_token_for_each_beam(name: str) -> None:
    model = beginner(name)
    with tokens_read(model.get_input_embeddings()) as copies:
        written(model)
    with tokens_read(model.get_input_embeddings()) as once, prompts_read_once(model, BEAMS):
        written(model)
    steps = [BEAMS * len(PROMPTS)] * (WRITTEN - 1)
    assert copies == [BEAMS * len(PROMPTS) * LENGTH, *steps]
    assert once == [len(PROMPTS) * LENGTH, *steps]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("t5", "decoder.block.0.layer.1.EncDecAttention.k"),
        *slow(("bart", "model.decoder.layers.0.encoder_attn.k_proj")),
    ],
)
def test_a_decoder_makes_keys_of_what_the_encoder_read_once_for_each_input(name, keys) -> None:
    model = beginner(name)
    with tokens_read(model.get_submodule(keys)) as counts, prompts_read_once(model, BEAMS):
        written(model)
    assert counts == [len(PROMPTS) * LENGTH]


@pytest.mark.parametrize(
    ("method", "name"),
    slow_but(
        [("lora", "t5"), ("prefix", "gpt2")], product(("lora", "prefix", "prompt"), ("gpt2", "t5"))
    ),
)
def test_what_peft_adds_is_read_along(method: str, name: str) -> None:
    settings = {"lora": {"rank": 2, "targets": {"gpt2": ("c_attn",), "t5": ("q", "v")}[name]}}
    torch.manual_seed(0)
    model = METHODS.named(method)(name=method, **settings.get(method, {})).prepare(beginner(name))
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    model.eval()
    expected = written(model)
    projection = "transformer.h.0.attn.c_attn" if name == "gpt2" else "decoder.block.0.layer.0"
    layer = next(layer for path, layer in model.named_modules() if path.endswith(projection))
    with tokens_read(layer) as counts, prompts_read_once(model, BEAMS):
        assert written(model) == expected
    # the prompt's own 20 positions stand before a decoder's; a prefix is in its cache
    read = 1 if name == "t5" else LENGTH + 20 * (method == "prompt")
    assert counts == [len(PROMPTS) * read, *[BEAMS * len(PROMPTS)] * (WRITTEN - 1)]


def test_a_model_without_a_cache_of_transformers_reads_every_copy() -> None:
    model = beginner("gpt2")
    expected = written(model, use_cache=False)
    with tokens_read(model.get_input_embeddings()) as counts, prompts_read_once(model, BEAMS):
        assert written(model, use_cache=False) == expected
    assert counts[0] == BEAMS * len(PROMPTS) * LENGTH


def test_the_model_is_as_before_also_after_an_error() -> None:
    model = small.language_model("gpt2")
    with pytest.raises(KeyError), prompts_read_once(model, BEAMS):
        raise KeyError
    assert not model._forward_pre_hooks and not model._forward_hooks
