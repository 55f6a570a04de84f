"""CIFAR, CelebA, digits and folders of your own, as they lie on a disk; what is refused of them."""

from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from dpft.data.pixels import Decoder, ImageForm
from dpft.data.raw_rows import rows_in_memory
from dpft.data.sources import has_split, has_training_split_alone, load_examples
from dpft.tasks.celeba import CelebA
from dpft.tasks.cifar import Cifar10, Cifar100
from dpft.tasks.digits import DigitsTask
from dpft.tasks.images import ImagesTask
from tests.data import made_images as made
from tests.rejections import rejects

TEN = tuple(f"class {n}" for n in range(10))
HUNDRED = tuple(f"class {n}" for n in range(100))


def own(folder: Path, **values: Any) -> ImagesTask:
    given = {"data_dir": str(folder), "labels": ("dark", "bright"), **values}
    return ImagesTask(name="images", **given)


def test_cifar_10_is_read_from_its_binary_version(tmp_path: Path) -> None:
    made.cifar_binary(tmp_path / "cifar-10-batches-bin", count=50)
    task = Cifar10(name="cifar10", data_dir=str(tmp_path), labels=TEN)
    records = load_examples(task, "train")
    assert [record.answer for record in records] == [(float(n % 10),) for n in range(50)]
    assert {record.image.content for record in records} == {b""}, "no image is held"
    assert len(load_examples(task, "test")) == 10
    assert has_split(task, "test") and not has_split(task, "validation")


def test_cifar_100_has_a_coarse_label_before_its_own(tmp_path: Path) -> None:
    folder = made.cifar_binary(tmp_path, hundred=True, count=50)
    task = Cifar100(name="cifar100", data_dir=str(folder), labels=HUNDRED)
    assert [record.label for record in load_examples(task, "train")] == list(range(50))


def test_cifar_is_read_from_parquet_as_well(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        made.parquet(tmp_path / "data" / f"{name}.parquet", range(5), fine_label=[3] * 5)
    task = Cifar100(name="cifar100", data_dir=str(tmp_path), labels=HUNDRED)
    assert [record.label for record in load_examples(task, "train")] == [3.0] * 10


@pytest.mark.parametrize("name", ["data_batch_1", "cifar-10-python.tar.gz", "train.pkl"])
def test_rule_11_a_pickled_version_is_refused_by_name_and_never_opened(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    task = Cifar10(name="cifar10", data_dir=str(tmp_path), labels=TEN)
    with rejects("task.data_dir", str(tmp_path)) as faults:
        load_examples(task, "train")
    assert name in str(faults[0])


@pytest.mark.parametrize(
    ("content", "place"), [(b"\0" * 3072, ""), (b"\x0a" + b"\0" * 3072, ", record 1")]
)
def test_a_binary_file_of_another_form_is_refused(
    tmp_path: Path, content: bytes, place: str
) -> None:
    file = tmp_path / "data_batch_1.bin"
    file.write_bytes(content)
    with rejects(f"{file}{place}"):
        load_examples(Cifar10(name="cifar10", data_dir=str(tmp_path), labels=TEN), "train")


def test_celeba_has_all_attributes_or_one(tmp_path: Path) -> None:
    folder = str(made.celeba(tmp_path, count=20))
    task = CelebA(name="celeba", data_dir=folder, labels=made.ATTRIBUTES)
    records = load_examples(task, "train")
    assert len(records) == 14
    assert [record.answer for record in records[:3]] == [(0, 0, 0), (1, 0, 0), (0, 1, 0)]
    one = CelebA(name="celeba", data_dir=folder, labels=made.ATTRIBUTES, attribute="Male")
    assert one.classes == ("not Male", "Male") and one.answers == "labels"
    assert [record.label for record in load_examples(one, "train")[:4]] == [0, 0, 1, 1]


def test_celebas_lists_are_needed_and_say_what_is_wrong_by_line(tmp_path: Path) -> None:
    task = CelebA(name="celeba", data_dir=str(tmp_path), labels=made.ATTRIBUTES)
    with rejects("task.data_dir"):
        load_examples(task, "train")
    made.celeba(tmp_path, count=4)
    file = tmp_path / "list_attr_celeba.txt"
    file.write_text(file.read_text().replace("000002.jpg  1", "000002.jpg"))
    with rejects(f"{file}, line 4"):
        load_examples(task, "train")


@pytest.mark.slow
def test_digits_have_fixed_splits_and_a_public_half() -> None:
    def task(half: str = "all") -> DigitsTask:
        return DigitsTask(name="digits", half=half, labels=TEN, embedded_num_train_examples=1437)

    assert len(load_examples(task(), "test")) == 360
    for half in ("all", "public", "private"):
        count = len(load_examples(task(half), "train"))
        assert count == task(half).public_num_train_examples
    assert task("public").is_published("train")


def test_a_folder_is_a_class(tmp_path: Path) -> None:
    made.folders(tmp_path, count=6)
    task = own(tmp_path)
    assert Counter(record.label for record in load_examples(task, "train")) == {0: 3, 1: 3}
    assert not has_training_split_alone(task)
    assert not task.is_published("test")


def test_folders_of_classes_alone_are_a_training_split(tmp_path: Path) -> None:
    task = own(made.folders(tmp_path, count=4, splits=()))
    assert len(load_examples(task, "train")) == 4
    assert has_training_split_alone(task)
    with rejects("task.data_dir", str(tmp_path)):
        load_examples(task, "test")


def test_a_table_names_its_images(tmp_path: Path) -> None:
    made.folders(tmp_path / "x", count=4, splits=())
    table = tmp_path / "mine.csv"
    table.write_text("path,kind\nx/dark/0.png,dark\nx/bright/1.png,bright\n")
    task = own(table, image_column="path", label_column="kind")
    assert [record.label for record in load_examples(task, "train")] == [0, 1]
    table.write_text("path,kind\n../secret.png,dark\n")
    with rejects(f"{table}, line 2"):
        load_examples(task, "train")
    table.write_text("path,kind\nx/dark/0.png,gray\n")
    with rejects(f"{table}, line 2") as faults:
        load_examples(task, "train")
    assert "gray" not in str(faults[0])


def test_what_is_no_class_and_no_image_is_refused(tmp_path: Path) -> None:
    def is_rejected(folder: Path, key: str, **values: Any) -> None:
        with rejects(key):
            load_examples(own(folder, **values), "train")

    is_rejected(tmp_path, str(tmp_path))
    made.folders(tmp_path, count=2)
    is_rejected(tmp_path, "task.labels", labels=("dark", "other"))
    dark = tmp_path / "train" / "dark"
    (dark / "notes.txt").write_text("secret")
    is_rejected(tmp_path, str(dark))
    (dark / "notes.txt").unlink()
    (tmp_path / "else.png").write_bytes(b"")
    (dark / "link.png").symlink_to(tmp_path / "else.png")
    is_rejected(tmp_path, str(dark))
    empty = tmp_path / "empty"
    (empty / "dark").mkdir(parents=True)
    is_rejected(empty, str(empty))


def test_images_of_the_hub_stay_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    png = made.encoded(made.pixels(4))
    table = datasets.Dataset.from_dict({"img": [{"bytes": png, "path": None}], "label": [4]})
    monkeypatch.setattr("dpft.data.sources.hub_is_reachable", lambda: True)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: table.cast_column("img", datasets.Image())
    )
    task = Cifar10(
        name="cifar10", labels=TEN, hub_name="uoft-cs/cifar10", column_aliases={"img": "image"}
    )
    (record,) = load_examples(task, "train")
    assert record.image.content == png and record.label == 4
    assert task.is_published("train")


def test_a_program_may_give_images_of_pillow() -> None:
    image = Image.fromarray(made.pixels(1))
    with rows_in_memory([{"image": image, "label": "dark"}]):
        (record,) = load_examples(own(Path(), source="memory", data_dir=None), "train")
    (pixels,) = Decoder(ImageForm(channels=3, height=32, width=32)).decode([record.image])
    assert (pixels == made.pixels(1).transpose(2, 0, 1)).all()
