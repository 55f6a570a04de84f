"""Images in rows, views and batches."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpft.constants import ATTRIBUTES
from dpft.data.encoding import fingerprint
from dpft.data.images import (
    COLUMNS,
    VIEW_BYTES,
    ImageEncoding,
    ImageLayout,
    ImageRow,
    augmented,
    grid,
)
from dpft.data.pixels import ImageForm
from dpft.errors import RunError
from dpft.tasks.base import ImagePlace, LabeledImage
from tests.data import made_images as made

FORM = ImageForm(channels=3, height=16, width=16)
LAYOUT = ImageLayout(form=FORM, mean=(0.5,) * 3, std=(0.25,) * 3, outputs=2)


def record(number: int, content: bytes | None = None) -> LabeledImage:
    png = made.encoded(made.pixels(number, (16, 16)))
    place = ImagePlace(content=png if content is None else content)
    return LabeledImage(image=place, answer=(float(number % 2),))


def test_pixels_are_scaled_and_normalized_and_classes_are_probabilities() -> None:
    batch = LAYOUT.collate(ImageEncoding(layout=LAYOUT).rows([record(0), record(1)]))
    pixels = batch.inputs["pixel_values"]
    expected = (made.pixels(1, (16, 16)).transpose(2, 0, 1) / 255 - 0.5) / 0.25
    assert torch.allclose(pixels[1], torch.tensor(expected, dtype=torch.float32), atol=1e-6)
    assert batch.labels.tolist() == [[1, 0], [0, 1]]
    assert batch.weights is None


def test_broken_images_have_nothing_to_learn_and_are_named() -> None:
    rows = ImageEncoding(layout=LAYOUT).rows_together(
        [record(0), record(1, b"no image"), record(2)]
    )
    assert rows.has_label.tolist() == [True, False, True]
    assert rows.unreadable == ["an image in memory"] and rows.converted == 0
    gray = LabeledImage(
        image=ImagePlace(content=made.encoded(made.pixels(1, (16, 16), 1))), answer=(0.0,)
    )
    assert ImageEncoding(layout=LAYOUT).rows_together([gray, record(1)]).converted == 1
    assert [row.answer for row in rows.only(rows.has_label)] == [(1, 0), (1, 0)]


def test_complete_images_are_told_from_others() -> None:
    given = [record(0), record(1, b"no image"), record(2)]
    assert ImageEncoding(layout=LAYOUT).readable(given) == [given[0], given[2]]


def test_an_image_that_breaks_during_training_ends_the_run_by_name(tmp_path: Path) -> None:
    file = tmp_path / "one.png"
    file.write_bytes(b"gone")
    row = ImageRow(place=ImagePlace(file=str(file)), answer=(1.0, 0.0))
    with pytest.raises(RunError, match=r"one\.png"):
        LAYOUT.collate([row])


def test_a_fingerprint_follows_pixels_answers_and_order() -> None:
    def of(*records: LabeledImage) -> str:
        return fingerprint(ImageEncoding(layout=LAYOUT).rows_together(records), None, b"key")

    bmp = ImagePlace(content=made.encoded(made.pixels(0, (16, 16)), "BMP"))
    assert of(record(0), record(1)) == of(replace(record(0), image=bmp), record(1))
    assert len({of(record(0), record(1)), of(record(1), record(0)), of(record(0))}) == 3
    assert of(record(0)) != of(replace(record(0), answer=(1.0,)))


def test_views_of_a_record_are_rows_that_share_its_loss() -> None:
    rows, counts = ImageEncoding(layout=LAYOUT, views=4).rows_in_chunks([record(0), record(1)])
    assert counts.tolist() == [4, 4] and len(rows) == 8
    batch = LAYOUT.collate(rows[:8])
    assert batch.weights is not None and batch.weights.tolist() == [0.25] * 8
    encoding = ImageEncoding(layout=LAYOUT, views=4)
    assert encoding.by_record().views == 1 and ImageEncoding(layout=LAYOUT).by_record().views == 0


def test_a_view_is_a_shift_and_a_mirroring_that_its_bits_choose() -> None:
    pixels = np.arange(3 * 16 * 16, dtype=np.uint16).reshape(3, 16, 16).astype(np.uint8)
    generator = np.random.default_rng(0)
    views = {augmented(pixels, generator.bytes(VIEW_BYTES)).tobytes() for _ in range(400)}
    assert 40 < len(views) <= 5 * 5 * 2
    assert pixels.tobytes() in views, "no shift and no mirroring is one of them"
    bits = generator.bytes(VIEW_BYTES)
    assert np.array_equal(augmented(pixels, bits), augmented(pixels, bits))


@pytest.mark.parametrize("answer", ["classes", ATTRIBUTES])
def test_synthetic_images_need_no_data(answer: str) -> None:
    layout = replace(LAYOUT, answer=answer, outputs=5)
    rows = layout.synthetic(torch.nn.Linear(1, 1), 3, 1)
    batch = layout.collate(rows)
    assert batch.inputs["pixel_values"].shape == (3, 3, 16, 16)
    if answer == ATTRIBUTES:
        assert set(batch.labels.unique().tolist()) <= {0.0, 1.0}
    else:
        assert torch.allclose(batch.labels.sum(dim=1), torch.ones(3))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_holds_rows_of_images(channels: int) -> None:
    images = np.zeros((COLUMNS + 1, channels, 8, 8), np.uint8)
    with Image.open(io.BytesIO(grid(images))) as shown:
        assert shown.width > 4 * shown.height > 0
