"""Published sizes of data sets, from the configuration that states them."""

import yaml

from dpft.config.keys import nearest
from dpft.config.location import config_directory
from dpft.errors import InputError


def published_size(task: str) -> int:
    """Returns the published number of training examples of a task, from conf/task.

    Args:
        task: Name of a YAML in conf/task.

    Raises:
        InputError: There is no such task, or it states no size.
    """
    folder = config_directory() / "task"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if task not in names:
        near = nearest(task, names)
        hint = f"; did you mean {near}?" if near else f": {', '.join(names)}."
        raise InputError(
            f"train.transfer_sample_rate_from must name a task, got {task!r}, which is none{hint}"
        )
    size = yaml.safe_load((folder / f"{task}.yaml").read_text())["num_train_examples"]
    if not isinstance(size, int):
        raise InputError(
            f"train.transfer_sample_rate_from must name a task of a published size, got {task}."
        )
    return size
