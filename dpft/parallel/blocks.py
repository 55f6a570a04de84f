"""Which modules of a model are its blocks: layers of one kind, one after the other."""

from collections.abc import Iterable

from torch import nn


def block_lists(model: nn.Module) -> list[nn.ModuleList]:
    """Returns the outermost lists of modules of one class that hold parameters.

    A seq2seq model has two: the layers of its encoder, and those of its decoder.
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and _are_blocks(m)]
    inner = {module for outer in lists for module in outer.modules() if module is not outer}
    return [module for module in lists if module not in inner]


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the modules of a model's block lists, in the model's order."""
    return [block for blocks in block_lists(model) for block in blocks]


def size_of(parameters: Iterable[nn.Parameter]) -> int:
    """Returns how many numbers parameters have."""
    return sum(parameter.numel() for parameter in parameters)


def _are_blocks(modules: nn.ModuleList) -> bool:
    return len({type(module) for module in modules}) == 1 and size_of(modules.parameters()) > 0
