"""Nucleus sampling draws what it says, and each text on its own."""

import numpy as np
import pytest
import torch

from dpft.generation.decoding import DecodeConfig, Draws, generate_texts
from dpft.generation.nucleus import nucleus_processors, root_seed, uniforms
from tests.models import small

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


def test_the_numbers_of_a_prompt_depend_on_seed_and_place_alone():
    three = uniforms(7, [4, 0, 2], 6)
    assert torch.equal(uniforms(7, [2], 6)[0], three[2])
    assert torch.equal(uniforms(7, [0], 3)[0], three[1, :3])
    assert len(torch.cat([three, uniforms(8, [4, 0, 2], 6)]).unique()) == 36
    assert three.min() >= 0 and three.max() < 1


def test_another_attempt_has_other_numbers_and_the_first_is_the_prompts_own():
    first, second, third = (uniforms(7, [4, 0], 6, attempt=attempt) for attempt in range(3))
    own = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(4,)))
    assert first[0].tolist() == own.random(6).tolist()
    assert torch.equal(second[1:], uniforms(7, [0], 6, attempt=1))
    assert len(torch.cat([first, second, third, uniforms(7, [1, 2], 6)]).unique()) == 48


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


def test_the_seed_says_what_is_written(writer):
    prompts = [[5, 6]] * 8
    once = texts(writer, prompts, seed=1)
    assert once == texts(writer, prompts, seed=1)
    assert once != texts(writer, prompts, seed=2)
    assert texts(writer, prompts, seed=None) != texts(writer, prompts, seed=None)
    assert len(set(once)) > 4


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
