"""What may be chosen of a clipper, and which way of taking a norm its cost model calls cheaper."""

import pytest

from dpft.privacy.clipping.algorithms import ENGINES
from dpft.privacy.clipping.choices import (
    BLOCK_BYTES,
    ENGINE_NAMES,
    STYLE_NAMES,
    ProductShape,
    examples_per_block,
    ghost_is_cheaper,
    keeping_is_cheaper,
)
from dpft.privacy.clipping.engine import STYLES


def test_what_a_configuration_may_choose_is_what_there_is() -> None:
    assert tuple(ENGINES) == ENGINE_NAMES
    assert tuple(STYLES) == STYLE_NAMES


GIGABYTE = 2**30
GPT2_FC = {"rows": 3072, "columns": 768}


def test_short_sequences_take_the_ghost_norm_and_long_ones_do_not():
    """2 t^2 (p + d) operations against 2 t p d: even at t = p d / (p + d), 614 here."""
    assert ghost_is_cheaper(ProductShape(8, 100, **GPT2_FC))
    assert not ghost_is_cheaper(ProductShape(8, 2000, **GPT2_FC))


@pytest.mark.parametrize(
    ("examples", "steps", "kept"),
    # Of GPT-2's feed-forward layer: measured, ghost wins at 100 tokens and loses at 512.
    [(8, 100, False), (2, 512, True)],
)
def test_the_choice_is_made_anew_for_each_length(examples, steps, kept):
    assert keeping_is_cheaper(ProductShape(examples, steps, **GPT2_FC), GIGABYTE) == kept


@pytest.mark.parametrize(("steps", "kept"), [(40, False), (72, True), (100, True)])
def test_a_small_layers_gradients_are_kept_where_its_texts_are_not_short(steps, kept):
    """Measured: two products win at 40 tokens, one and its bytes at 72."""
    assert keeping_is_cheaper(ProductShape(32, steps, rows=480, columns=160), GIGABYTE) == kept
    assert keeping_is_cheaper(ProductShape(32, steps, rows=640, columns=160), GIGABYTE) == kept


def test_without_memory_only_what_saves_memory_is_kept():
    large, adapter = ProductShape(2, 512, **GPT2_FC), ProductShape(8, 100, 4, 768)
    assert not keeping_is_cheaper(large, large.instantiated_bytes - 1)
    assert keeping_is_cheaper(adapter, 0)


def test_blocks_hold_at_least_one_example_and_else_stay_small():
    assert examples_per_block(ProductShape(4, 10, 50257, 768)) == 1
    shape = ProductShape(64, 10, 768, 768)
    size = examples_per_block(shape)
    assert 1 < size < 64 and size * 768 * 768 * 4 <= BLOCK_BYTES
