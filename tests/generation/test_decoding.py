"""What is written on after a beginning, in tokens: greedy decoding, however it is batched."""

import itertools
import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5ForConditionalGeneration,
)

from dpft.generation.decoding import (
    DecodeConfig,
    DecodingPrompt,
    batches_by_tokens,
    continuations,
    evaluation_mode,
    generate_texts,
    generation_defaults,
)
from dpft.methods.base import METHODS
from tests.models import small
from tests.rejections import rejects
from tests.slowness import slow, slow_but

WORDS = [*"abcdefgh", "<end>"]
END = WORDS.index("<end>")
PROMPTS = ["a b c d e f", "h", "c c", "g f e d", "b", "a b", "d a d a d"]


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    model = Tokenizer(WordLevel(vocabulary, unk_token="a"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")


@pytest.fixture
def model():
    """A float64 model whose next-token distributions are far from uniform, dropout on."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.6,
        eos_token_id=END,
        bos_token_id=END,
    )
    return GPT2LMHeadModel(config).double().train()


STRATEGIES = [
    {"num_beams": 1},
    {"num_beams": 5},
    {"strategy": "greedy"},
    {"strategy": "nucleus", "seed": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", slow_but(STRATEGIES[1:2], STRATEGIES))
def test_batch_size_does_not_change_the_texts(model, tokenizer, strategy):
    config = DecodeConfig(max_new_tokens=8, **strategy)
    texts = {
        batch_size: generate_texts(model, tokenizer, PROMPTS, config=config, batch_size=batch_size)
        for batch_size in (1, 2, 3, 7)
    }
    assert len(set(texts[1])) > 3
    assert texts[1] == texts[2] == texts[3] == texts[7]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_model_reads_each_prompt_once_and_then_a_token_for_each_beam(
    model, tokenizer, strategy
):
    shapes = []
    model.transformer.wte.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    config = DecodeConfig(max_new_tokens=3, **strategy)
    generate_texts(model, tokenizer, ["a b c d", "e e"], config=config, batch_size=2)
    beams = config.num_beams if config.strategy == "beam" else 1
    assert [tuple(shape) for shape in shapes] == [(2, 4), (2 * beams, 1), (2 * beams, 1)]


def test_short_prompts_share_the_tokens_that_the_longest_takes(tokenizer):
    counts = []
    prompts = [[1, 2], [1] * 20, [3], [4, 5]]
    generate_texts(
        Echo(), tokenizer, prompts, config=DecodeConfig(max_new_tokens=8), batch_size=1,
        on_batch=counts.append,
    )  # fmt: skip
    # 20 + 8 tokens; then 2 + 8 twice; then 1 + 8
    assert counts == [1, 2, 1]


def test_greedy_is_a_beam_of_one(model, tokenizer):
    greedy, beam = (
        generate_texts(
            model, tokenizer, PROMPTS, config=DecodeConfig(max_new_tokens=8, **one), batch_size=7
        )
        for one in ({"strategy": "greedy"}, {"num_beams": 1})
    )
    assert greedy == beam


@pytest.mark.slow
def test_a_beam_that_holds_every_text_finds_the_likeliest_per_token(model, tokenizer):
    # 9 + 81 texts of at most two tokens; 90 beams drop none. transformers scores a text by its
    # log-likelihood over its number of tokens, end-of-text included.
    model.eval()
    prompt = [0, 1, 2]

    def score(text):
        ids = torch.tensor([[*prompt, *text]])
        with torch.no_grad():
            log_probabilities = model(ids).logits[0].log_softmax(-1)
        gains = [log_probabilities[len(prompt) - 1 + i, t].item() for i, t in enumerate(text)]
        return sum(gains) / len(text)

    pairs = itertools.product(range(END), range(END + 1))
    best = max([(END,), *pairs], key=score)
    (text,) = generate_texts(
        model,
        tokenizer,
        [prompt],
        config=DecodeConfig(num_beams=90, max_new_tokens=2),
        batch_size=1,
    )
    assert text == " ".join(WORDS[token] for token in best if token != END)


@pytest.mark.parametrize("strategy", ["beam", "greedy", "nucleus"])
def test_decoding_leaves_generators_modes_and_settings_alone(model, tokenizer, strategy):
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    settings, state = model.generation_config, torch.get_rng_state()
    before = (settings.to_dict(), model.config.to_dict())
    config = DecodeConfig(strategy=strategy, max_new_tokens=3, seed=None)
    generate_texts(model, tokenizer, ["a"], config=config, batch_size=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert model.generation_config is settings
    assert (settings.to_dict(), model.config.to_dict()) == before


@pytest.mark.parametrize("strategy", ["beam", "nucleus"])
def test_the_checkpoints_own_generation_settings_are_not_used(model, tokenizer, strategy):
    config = DecodeConfig(strategy=strategy, max_new_tokens=6)
    plain = generate_texts(model, tokenizer, PROMPTS, config=config, batch_size=7)
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.suppress_tokens = [0, 1, 2, 3]
    model.generation_config.min_length = 20
    model.generation_config.update(do_sample=True, top_k=1, temperature=0.1, top_p=0.1)
    assert generate_texts(model, tokenizer, PROMPTS, config=config, batch_size=7) == plain


class Echo(nn.Module):
    """Writes each prompt's last token, the end-of-text token, then ``a``."""

    device = torch.device("cpu")
    config = GPT2Config()

    def generate(
        self, *, input_ids, attention_mask, generation_config, logits_processor, synced_gpus
    ):
        end = torch.full((len(input_ids), 1), END)
        return torch.cat([input_ids, input_ids[:, -1:], end, torch.zeros_like(end)], dim=1)


def test_text_ends_at_the_end_of_text_token_and_keeps_its_place(tokenizer):
    counts = []
    texts = generate_texts(
        Echo(), tokenizer, PROMPTS, config=DecodeConfig(), batch_size=3, on_batch=counts.append
    )
    assert texts == [prompt[-1] for prompt in PROMPTS]
    assert counts == [3, 3, 1]


def test_no_prompts_give_no_texts(tokenizer):
    assert generate_texts(Echo(), tokenizer, [], config=DecodeConfig(), batch_size=2) == []


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(tokenizer, prompt):
    with rejects("prompts"):
        generate_texts(Echo(), tokenizer, [prompt], config=DecodeConfig(), batch_size=1)


@pytest.mark.parametrize(("name", "value"), [("strategy", "bean"), ("top_p", 1.5), ("seed", -1)])
def test_bad_settings_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        DecodeConfig(**{name: value})


@pytest.mark.parametrize("strategy", ["beam", "greedy", "nucleus"])
def test_a_strategys_yaml_holds_every_field(strategy):
    path = Path(__file__).parents[2] / "conf" / "decode" / f"{strategy}.yaml"
    values = yaml.safe_load(path.read_text())
    assert set(values) == set(DecodeConfig.model_fields)
    config = DecodeConfig(**values)
    assert (config.strategy, config.draws) == (strategy, strategy == "nucleus")
    assert (config.num_beams, config.top_p) == (5 if strategy == "beam" else 1, 0.9)
    assert config.strategy != "beam" or config == DecodeConfig()


SOURCES = [[5, 9, 7, 8, 4, 1], [6, 1], [30, 1], [12, 11, 1], [20, 21, 22, 1], [40, 1]]


@pytest.fixture
def seq2seq():
    """A float64 T5 whose next-token distributions are far from uniform, dropout on."""
    model = small.language_model("t5").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model.train()


def seq2seq_texts(model, sources, *, batch_size=1, **settings):
    return generate_texts(
        model, small.blank_words(closes=True), sources,
        config=DecodeConfig(**settings), batch_size=batch_size,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [{"num_beams": 4}, *slow(*((each,) for each in STRATEGIES[2:]))]
)
def test_a_seq2seq_models_texts_do_not_depend_on_their_batches(seq2seq, strategy):
    settings = {"max_new_tokens": 7, **strategy}
    alone = seq2seq_texts(seq2seq, SOURCES, **settings)
    assert len(set(alone)) > 2
    assert any(alone)
    for batch_size in (2, 4, 6):
        assert seq2seq_texts(seq2seq, SOURCES, batch_size=batch_size, **settings) == alone


@pytest.mark.slow
def test_a_seq2seq_model_writes_the_likeliest_token_after_its_start(seq2seq):
    seq2seq.eval()
    tokenizer = small.blank_words(closes=True)
    expected = []
    for source in SOURCES:
        written = [0]
        while len(written) < 6 and 1 not in written:
            with torch.no_grad():
                logits = seq2seq(
                    input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([written])
                ).logits
            written.append(int(logits[0, -1].argmax()))
        expected.append(tokenizer.decode(written[1:], skip_special_tokens=True).strip())
    texts = seq2seq_texts(seq2seq, SOURCES, batch_size=3, num_beams=1, max_new_tokens=5)
    assert texts == expected


@pytest.mark.slow
def test_a_seq2seq_beam_that_holds_every_text_finds_the_likeliest_per_token(seq2seq):
    # 48 + 48 * 48 texts of at most two tokens, of which the beams keep all that can lead
    seq2seq.eval()
    tokenizer, source = small.blank_words(closes=True), torch.tensor([SOURCES[0]])

    def gains(written):
        with torch.no_grad():
            logits = seq2seq(input_ids=source, decoder_input_ids=torch.tensor([written])).logits
        return logits[0, -1].log_softmax(-1)

    first = gains([0])
    scores = {(1,): float(first[1])}
    for token in range(48):
        if token != 1:
            second = gains([0, token])
            scores |= {(token, s): float(first[token] + second[s]) / 2 for s in range(48)}
    best = max(scores, key=scores.get)
    (text,) = seq2seq_texts(seq2seq, SOURCES[:1], num_beams=48, max_new_tokens=2)
    assert text == tokenizer.decode(best, skip_special_tokens=True).strip()


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_wrapper_of_pefts_around_a_seq2seq_model_writes_what_the_model_writes(seq2seq, num_beams):
    """A fresh LoRA changes nothing; peft's own ``generate`` takes nothing by position."""
    settings = {"num_beams": num_beams, "max_new_tokens": 7}
    expected = seq2seq_texts(seq2seq, SOURCES, **settings)
    wrapped = METHODS.named("lora")(name="lora", rank=2, targets=("q", "v")).prepare(seq2seq)
    assert seq2seq_texts(wrapped, SOURCES, batch_size=3, **settings) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefix", "prompt"])
def test_a_seq2seq_model_with_virtual_tokens_writes_the_same_alone_and_in_a_batch(seq2seq, name):
    prepared = METHODS.named(name)(name=name).prepare(seq2seq)
    settings = {"num_beams": 1, "max_new_tokens": 5}
    alone = seq2seq_texts(prepared, SOURCES, **settings)
    assert seq2seq_texts(prepared, SOURCES, batch_size=4, **settings) == alone


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_every_input_is_in_one_batch_and_no_batch_holds_more_than_the_longest_would(batch_size):
    lengths = random.Random(0).choices(range(1, 60), k=200)
    batches = list(batches_by_tokens(lengths, batch_size))
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= batch_size * max(lengths)


def test_modes_return_after_an_error():
    model = nn.Dropout()
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert model.training


def test_generation_settings_return_to_the_wrapped_model():
    inner = nn.Linear(1, 1)
    inner.generation_config = own = GenerationConfig(repetition_penalty=2.0)
    wrapper = nn.Sequential(inner)
    with generation_defaults(wrapper, blank := GenerationConfig()):
        assert inner.generation_config is blank
    assert inner.generation_config is own
    assert "generation_config" not in vars(wrapper)


READ = [(5, 6, 7, 8), (9,), (5, 6), (10, 11, 12, 13, 14, 15), (9, 9)]


@pytest.fixture(scope="module")
def causal() -> PreTrainedModel:
    """A model far from uniform, in float64; it does not end a text by itself."""
    torch.manual_seed(0)
    config = small.gpt2_config(initializer_range=0.6, n_positions=16, vocab_size=37)
    model = GPT2LMHeadModel(config).double().train()
    with torch.no_grad():
        model.transformer.wte.weight[config.eos_token_id] = 0.0
    return model


@pytest.fixture(scope="module")
def small_seq2seq() -> PreTrainedModel:
    torch.manual_seed(0)
    return T5ForConditionalGeneration(small.t5_config(vocab_size=40)).double()


def beginnings(*max_new_tokens: int) -> list[DecodingPrompt]:
    return [
        DecodingPrompt(read=read, max_new_tokens=lacks)
        for read, lacks in zip(READ, max_new_tokens, strict=True)
    ]


def continued(
    model: PreTrainedModel, asked: list[DecodingPrompt], **settings
) -> list[tuple[int, ...]]:
    reader = small.blank_words(closes=model.config.is_encoder_decoder)
    return continuations(model, reader, asked, **settings)


def test_it_is_what_greedy_decoding_writes(causal: PreTrainedModel) -> None:
    reader = small.blank_words(closes=False)
    found = continued(causal, beginnings(6, 6, 6, 6, 6), batch_size=5)
    config = DecodeConfig(strategy="greedy", max_new_tokens=6)
    texts = generate_texts(causal, reader, READ, config=config, batch_size=5)
    assert [reader.decode(list(tokens)).strip() for tokens in found] == texts
    assert len(set(found)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batches_do_not_change_it_and_none_writes_too_much(
    causal: PreTrainedModel, batch_size: int
) -> None:
    lacks = (3, 15, 3, 10, 1)
    told: list[int] = []
    found = continued(causal, beginnings(*lacks), batch_size=batch_size, on_batch=told.append)
    assert found == continued(causal, beginnings(*lacks), batch_size=9)
    assert all(len(tokens) <= most for tokens, most in zip(found, lacks, strict=True))
    assert sum(told) == 5
    assert causal.training


def test_a_text_to_the_last_position_is_written_on(causal: PreTrainedModel) -> None:
    """Others of the batch are longer, and lack less."""
    asked = [
        DecodingPrompt(read=tuple(range(5, 18)), max_new_tokens=3),
        DecodingPrompt(read=(5,), max_new_tokens=15),
    ]
    assert [*map(len, continued(causal, asked, batch_size=8))] == [3, 15]


def test_a_seq2seq_model_goes_on_from_what_its_decoder_has_begun(
    small_seq2seq: PreTrainedModel,
) -> None:
    read = [(5, 6, 1), (7, 8, 9, 1)]
    asked = [DecodingPrompt(read=r, max_new_tokens=8) for r in read]
    whole = continued(small_seq2seq, asked, batch_size=2)
    assert all(len(tokens) == 8 for tokens in whole)
    begun = [
        DecodingPrompt(read=r, decoder_tokens=w[:3], max_new_tokens=5)
        for r, w in zip(read, whole, strict=True)
    ]
    assert continued(small_seq2seq, begun, batch_size=2) == [w[3:] for w in whole]
    other = [DecodingPrompt(read=r, decoder_tokens=(20, 21), max_new_tokens=5) for r in read]
    mixed = continued(small_seq2seq, [begun[0], other[1]], batch_size=2)
    assert mixed[0] == whole[0][3:]


def test_what_is_written_ends_with_the_text(causal: PreTrainedModel) -> None:
    """A model that writes the end-of-text token at once has written nothing."""
    ending = deepcopy(causal)
    with torch.no_grad():
        ending.transformer.ln_f.weight.zero_()
        ending.transformer.ln_f.bias.fill_(1.0)
        ending.transformer.wte.weight[1] = 5.0
    assert continued(ending, beginnings(4, 4, 4, 4, 4), batch_size=2) == [()] * 5
