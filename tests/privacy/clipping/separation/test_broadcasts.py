"""One row for all examples becomes a row for each, where the model takes it as it took the one."""

import logging

import peft
import pytest
import torch
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.batches import causal_without_positions, examples
from tests.privacy.clipping.architectures.comparison import clipped, difference
from tests.privacy.clipping.architectures.zoo import EVERY
from tests.privacy.clipping.oracle import Clipped

STEPS, WIDTH = 5, 3


class Positioned(nn.Module):
    """Texts and positions that are looked up once for all, ``place`` putting them together."""

    def __init__(self, place, *layers: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(9, WIDTH)
        self.positions = nn.Embedding(STEPS, WIDTH)
        self.behind = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 1)
        self.place = place
        self.double()

    def forward(self, ids):
        rows = self.place(self, ids)
        return self.head(rows.tanh()).sum((1, 2))


def steps(ids):
    return torch.arange(ids.shape[1])


def as_one_row(model, ids):
    return model.tokens(ids) + model.behind(model.positions(steps(ids)[None]))


def as_one_sequence(model, ids):
    return model.tokens(ids) + model.positions(steps(ids))


def as_the_first_row(model, ids):
    """Right of one row for all, and wrong of a row for each."""
    return model.tokens(ids) + model.positions(steps(ids)[None])[0]


def repeated(model, ids):
    prompt = model.behind(model.positions(steps(ids)[None]))
    return torch.cat([prompt.repeat(len(ids), 1, 1), model.tokens(ids)], 1)


def repeated_as_four_numbers_are(model, ids):
    """The four are to be repeated also where there are four examples."""
    four = torch.arange(4, dtype=torch.float64)[:, None]
    return repeated(model, ids) * four.repeat(len(ids), 1).view(len(ids), -1, 1).sum(1, True)


def sums(model, batches, engine):
    model.zero_grad()
    with PerExampleClipper(model, 0.05, engine=engine) as clipper:
        norms = [clipper.accumulate(lambda ids=ids: model(ids)) for ids in batches]
    return Clipped(torch.cat(norms), {n: p.grad for n, p in model.named_parameters()})


def batch(count):
    return torch.randint(0, 9, (count, STEPS), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    "place",
    [as_one_row, as_one_sequence, as_the_first_row, repeated, repeated_as_four_numbers_are],
)
def test_gradients_are_the_loops_whatever_the_model_makes_of_the_rows(place):
    model = Positioned(place, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    if place in (as_one_sequence, as_the_first_row):
        del model.behind
    batches = [batch(count) for count in (1, 3, STEPS, 4, 1)]
    got = sums(model, batches, "book_keeping")
    assert difference(got, sums(model, batches, "loop")) < 1e-12


@pytest.mark.parametrize("place", [as_one_row, as_one_sequence, repeated])
def test_no_module_runs_example_by_example_for_it(place, caplog):
    model = Positioned(place, nn.Linear(WIDTH, WIDTH))
    if place is as_one_sequence:
        del model.behind
    with caplog.at_level(logging.INFO):
        sums(model, [batch(3)], "book_keeping")
    assert "example" not in caplog.text


def test_what_runs_without_gradients_meanwhile_sees_its_own_row():
    model = Positioned(as_one_row)
    expected = model(batch(2))
    with PerExampleClipper(model, 1.0) as clipper:
        clipper.accumulate(lambda: model(batch(4)))
        with torch.no_grad():
            assert model.positions(steps(batch(2))[None]).shape == (1, STEPS, WIDTH)
            assert torch.equal(model(batch(2)), expected)


@pytest.mark.parametrize("config", [peft.PromptTuningConfig, peft.PromptEncoderConfig])
def test_a_prompt_that_peft_looks_up_once_is_clipped_as_by_the_loop(config, caplog):
    base = EVERY["gpt2-tied"].build(dtype=torch.float32)
    model = peft.get_peft_model(base, config(task_type="CAUSAL_LM", num_virtual_tokens=4)).double()
    rows, kind = examples((5, 9, 3)), prompted
    with caplog.at_level(logging.INFO):
        got = clipped(model, kind, rows)
    assert difference(got, clipped(model, kind, rows, engine="loop")) < 1e-10
    assert "example" not in caplog.text


def prompted(model, rows):
    own = rows.ids.shape[1]

    def without_the_prompts_own_logits(**inputs):
        outputs = model(**{k: v for k, v in inputs.items() if k != "use_cache"})
        outputs.logits = outputs.logits[:, -own:]
        return outputs

    return causal_without_positions(without_the_prompts_own_logits, rows)
