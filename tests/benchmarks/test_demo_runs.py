"""What the benchmark of the demo takes for a loop, and the settings that keep the demo from one."""

from typing import Any

import pytest

from benchmarks.demo_runs import loops
from tests.config.test_conf import loaded


@pytest.mark.parametrize(
    "text",
    [
        "For Ne Ne Ne Ne",
        "a bar on the canal on the canal on the canal",
        "so it goes on, so it goes on, so it goes on, he said",
    ],
)
def test_parts_that_stand_three_times_in_a_row_loop(text: str) -> None:
    assert loops(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Plum Teapot",
        "very very good",
        "a bar on the canal, on the canal for Creole on the canal",
    ],
)
def test_other_texts_do_not(text: str) -> None:
    assert not loops(text)


@pytest.mark.slow
def test_the_demo_writes_no_three_tokens_twice_and_ends_on_small_steps() -> None:
    config: Any = loaded("train", ["experiment=demo"])
    assert config.decode.no_repeat_ngram_size == 3
    assert config.scheduler.name == "linear"
