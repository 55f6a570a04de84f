"""Generated images in the layouts that CIFAR, CelebA and folders of your own are published in."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 200
ATTRIBUTES = ("Bald", "Male", "Smiling")


def pixels(number: int, size: tuple[int, int] = (32, 32), channels: int = 3) -> np.ndarray:
    """An image, shape (height, width, channels), brighter for odd numbers."""
    generator = np.random.default_rng(number)
    return generator.integers(0, 128, (*size, channels), np.uint8) + 100 * (number % 2)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image.squeeze()).save(stream, kind)
    return stream.getvalue()


def cifar_binary(folder: Path, *, hundred: bool = False, count: int = COUNT) -> Path:
    """The binary version: 1 label byte and 3072 of an image, of CIFAR-100 2."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, numbers: range) -> None:
        records = []
        for number in numbers:
            label = [number % 20, number % 100] if hundred else [number % 10]
            planes = pixels(number).transpose(2, 0, 1)
            records.append(bytes(label) + planes.tobytes())
        (folder / name).write_bytes(b"".join(records))

    if hundred:
        write("train.bin", range(count))
        write("test.bin", range(count, count + count // 5))
        return folder
    for batch in range(5):
        write(f"data_batch_{batch + 1}.bin", range(batch * count // 5, (batch + 1) * count // 5))
    write("test_batch.bin", range(count, count + count // 5))
    return folder


def parquet(file: Path, numbers: range, **columns: list[int]) -> None:
    import pyarrow
    from pyarrow import parquet as writer

    images = [{"bytes": encoded(pixels(number)), "path": None} for number in numbers]
    file.parent.mkdir(parents=True, exist_ok=True)
    writer.write_table(pyarrow.table({"img": images, **columns}), file)


def celeba(folder: Path, *, count: int = COUNT, names: tuple[str, ...] = ATTRIBUTES) -> Path:
    """Faces of 218 x 178 as JPEG, their attributes as -1 and 1, and their partition."""
    images = folder / "img_align_celeba"
    images.mkdir(parents=True, exist_ok=True)
    lines, parts = [str(count), " ".join(names)], []
    for number in range(count):
        name = f"{number + 1:06d}.jpg"
        (images / name).write_bytes(encoded(pixels(number, (218, 178)), "JPEG"))
        values = [1 if (number >> at) & 1 else -1 for at in range(len(names))]
        lines.append(f"{name} {' '.join(f'{value:2d}' for value in values)}")
        parts.append(f"{name} {0 if number < 0.7 * count else 1 if number < 0.85 * count else 2}")
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return folder


def folders(folder: Path, *, count: int = 40, splits: tuple[str, ...] = ("train", "test")) -> Path:
    """A folder for each of two classes in each split; without splits, the training split."""
    for split in splits or ("",):
        for number in range(count):
            place = folder / split / ("dark", "bright")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.png").write_bytes(encoded(pixels(number, (20, 24))))
    return folder
