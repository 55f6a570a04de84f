"""What images are decoded to, here and in worker processes, and what is none."""

import io
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from PIL import Image

from dpft.data.pixels import BrokenImage, Decoder, ImageForm
from dpft.tasks.base import ImagePlace
from tests.data import made_images as made

COLOR = ImageForm(channels=3, height=32, width=32)
GRAY = ImageForm(channels=1, height=8, width=8)


def held(image: Image.Image, kind: str = "PNG", **options: object) -> ImagePlace:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return ImagePlace(content=stream.getvalue())


def test_a_raw_image_is_read_from_its_stretch_of_a_file(tmp_path: Path) -> None:
    folder = made.cifar_binary(tmp_path, count=10)
    place = ImagePlace(file=str(folder / "data_batch_1.bin"), offset=3073 + 1, shape=(3, 32, 32))
    (pixels,) = Decoder(COLOR).decode([place])
    assert np.array_equal(pixels, made.pixels(1).transpose(2, 0, 1))


def test_an_image_of_another_size_is_resized() -> None:
    place = ImagePlace(content=made.encoded(made.pixels(1, (50, 20))))
    assert Decoder(COLOR).decode([place, place]).shape == (2, 3, 32, 32)


@pytest.mark.slow
def test_worker_processes_decode_as_this_one_does() -> None:
    places = [ImagePlace(content=made.encoded(made.pixels(n))) for n in range(20)]
    assert np.array_equal(Decoder(COLOR, 2).decode(places), Decoder(COLOR).decode(places))
    # They are the processes that decoded, which stay.
    asked = delayed(eval)("sorted({'torch', 'transformers'} & {*__import__('sys').modules})")
    assert Parallel(n_jobs=2, backend="loky")([asked, asked]) == [[], []]


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "RGBA", "LA", "I;16"])
def test_every_mode_becomes_the_models_channels(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((8, 8), 65535, np.uint16))
    else:
        image = Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode)
    kind = "TIFF" if mode == "CMYK" else "PNG"
    for form in (GRAY, COLOR):
        (pixels,) = Decoder(form).decode([held(image, kind)])
        assert (pixels == 255).all()


def test_what_is_transparent_is_black() -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert (Decoder(COLOR).decode([held(image)]) == 0).all()


def test_a_photograph_is_turned_as_its_camera_says() -> None:
    image = Image.new("RGB", (8, 8))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    (pixels,) = Decoder(GRAY).decode([held(image, "PNG", exif=exif)])
    assert pixels[0, -1, -1] == 255


def test_what_is_no_image_is_named_and_nothing_of_it_shown(tmp_path: Path) -> None:
    whole = made.encoded(made.pixels(1, (64, 64)), "JPEG")
    for name, content in (
        ("a.png", b"secret"),
        ("b.jpg", whole[: len(whole) // 2]),
        ("c.png", b""),
    ):
        (tmp_path / name).write_bytes(content)
        place = ImagePlace(file=str(tmp_path / name))
        with pytest.raises(BrokenImage, match=name) as error:
            Decoder(COLOR).decode([place])
        assert "secret" not in str(error.value)
        (found,) = Decoder(COLOR).examine([place])
        assert found.is_broken and found.digest == b""


def test_an_image_that_no_memory_holds_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpft.data.pixels.MOST_PIXELS", 100)
    (found,) = Decoder(COLOR).examine([ImagePlace(content=made.encoded(made.pixels(1)))])
    assert found.is_broken


def test_an_image_is_known_by_its_pixels() -> None:
    png, bmp, other = (
        ImagePlace(content=made.encoded(made.pixels(n), kind))
        for n, kind in ((1, "PNG"), (1, "BMP"), (2, "PNG"))
    )
    one, same, another = Decoder(COLOR).examine([png, bmp, other])
    assert one.digest == same.digest != another.digest
    assert not one.is_converted
    assert Decoder(GRAY).examine([png])[0].is_converted
