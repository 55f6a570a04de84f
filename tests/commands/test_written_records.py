"""What a model writes becomes rows by a template, is drawn anew where it is none, or kept apart."""

from typing import Any

import pytest

from dpft.commands.generate import GeneratedTexts, generate_texts
from dpft.config.schema import GenerateConfig
from dpft.generation.decoding import DecodeConfig, Draws
from dpft.tasks.custom import CustomTexts
from dpft.tasks.e2e import E2ETask

E2E = E2ETask(name="e2e")
PAIRS = CustomTexts(name="custom", prompt_template="{q}", target_template="{a}-{b}")
PROMPTS = [({"q": str(place)}, PAIRS.prompt({"q": str(place)})) for place in range(5)]


class Model:
    """Stands in for a run's model: a prompt ``n`` gets a row at its n-th attempt after the first.

    It writes two texts at a time.
    """

    def __init__(self) -> None:
        self.drawn: list[Draws] = []

    def outputs(self, *_: object, **settings: int) -> "Model":
        assert settings == {"batch_size": 2, "max_new_tokens": 100}
        return self

    def texts(
        self, examples: list[Any], decode: DecodeConfig, count: Any, draws: Draws
    ) -> list[str]:
        self.drawn.append(draws)
        for at in range(0, len(examples), 2):
            count(len(examples[at : at + 2]))
        prompts = [example.prompt for example in examples]
        assert [str(place) for place in draws.places] == prompts
        sign = {True: "-", False: "+"}
        return [f"{each}{sign[int(each) <= draws.attempt]}{draws.attempt}" for each in prompts]


def written(
    model: Model, task: Any = PAIRS, strategy: str = "nucleus", **given: Any
) -> GeneratedTexts:
    decode = DecodeConfig(strategy=strategy)
    given = {"task": task, "decode": decode, "run": "x", "prompts": "y", "batch_size": 2, **given}
    return generate_texts(GenerateConfig(**given), task, model, PROMPTS)  # type: ignore[arg-type]


def test_only_what_is_no_row_is_written_anew_at_its_own_place() -> None:
    model = Model()
    found = written(model)
    assert [list(draws.places) for draws in model.drawn] == [
        [0, 1, 2, 3, 4],
        [1, 2, 3, 4],
        [2, 3, 4],
        [3, 4],
    ]
    assert [draws.attempt for draws in model.drawn] == [0, 1, 2, 3]
    assert found.unread == (4, 3, 2, 1)
    assert found.rows == [{"q": n, "a": n, "b": n} for n in "0123"]
    assert found.unparsed(PROMPTS) == [{"text": "4+3", "prompt": {"q": "4"}}]


def test_retries_end_where_every_text_is_a_row_or_none_is_left() -> None:
    model = Model()
    assert written(model, retries=9).unread == (4, 3, 2, 1, 0)
    assert len(model.drawn) == 5
    assert written(Model(), retries=0).unread == (4,)


@pytest.mark.parametrize("strategy", ["beam", "greedy"])
def test_where_nothing_is_drawn_nothing_is_written_anew(strategy: str) -> None:
    assert written(Model(), strategy=strategy).unread == (4,)


def test_without_a_template_every_text_is_a_record() -> None:
    rows = [{"meaning_representation": "x"}] * 5
    model, decode = Model(), DecodeConfig(strategy="nucleus")
    config = GenerateConfig(task=E2E, decode=decode, run="x", prompts="y", batch_size=2)
    prompts = [(row, example) for row, (_, example) in zip(rows, PROMPTS, strict=True)]
    found = generate_texts(config, E2E, model, prompts)  # type: ignore[arg-type]
    assert [row["human_reference"] for row in found.rows] == ["0-0", "1+0", "2+0", "3+0", "4+0"]


def test_texts_from_nothing_are_kept_apart_by_themselves() -> None:
    found = GeneratedTexts(texts=("a", "b"), records=(None, {"x": "b"}), unread=(1,))
    assert found.unparsed([({}, PROMPTS[0][1])] * 2) == [{"text": "a"}]
