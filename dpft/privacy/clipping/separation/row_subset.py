"""Computes losses on some rows of a batch that only the caller's function knows.

A function that computes losses holds its batch where nobody else can reach it. So each torch
function that meets a tensor from outside with as many rows as the batch is given some of them in
its place; what was computed from such rows is left alone. Where the function goes on with numbers
or lists of its own, sizes do not fit, it fails, and nothing can be said.

>>> import torch
>>> labels, weights = torch.tensor([5.0, 6.0, 7.0]), torch.tensor([1.0, 2.0, 3.0])
>>> subset = RowSubset(protected=())
>>> subset.choose(torch.tensor([2, 0]), count=3)
>>> with subset:
...     print(labels * weights, len(labels))
tensor([21.,  5.]) 2
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from dpft.privacy.clipping.separation.held_still import Draws
from dpft.privacy.clipping.separation.nested_values import map_tensors, named_tensors

_LOOK_UPS = frozenset(
    {
        F.embedding,
        F.cross_entropy,
        F.nll_loss,
        torch.gather,
        torch.index_select,
        torch.take,
        Tensor.gather,
        Tensor.index_select,
        Tensor.take,
    }
)


class RowSubset(TorchFunctionMode):
    """Makes what runs inside see some rows of its batch, as if the batch had no others."""

    def __init__(
        self,
        protected: Iterable[Tensor],
        whole: Collection[int] = (),
        *,
        as_tables: bool = False,
        draws: Draws | None = None,
    ) -> None:
        """Prepares to take rows, once it is known which of how many.

        Args:
            protected: Tensors that are no rows, whatever their shape: a model's weights.
            whole: Numbers of the tensors from outside, in the order in which they are met, that
                are no rows though they have as many.
            as_tables: Whether those may only be looked things up in: what is added up, say, may
                be the rows' own numbers.
            draws: What is drawn for all rows, of which these get theirs; None: drawn anew.
        """
        super().__init__()
        self._protected = {id(tensor) for tensor in protected}
        self._whole, self._as_tables = frozenset(whole), as_tables
        self._derived = WeakTensorKeyDictionary()
        self._taken: dict[int, tuple[Tensor, Tensor]] = {}
        self._asleep, self._draws = False, draws
        self.rows: Tensor | None = None
        """Numbers of the rows, or None where it takes all there are."""
        self._cut: dict[int, Tensor] = {}

    @property
    def met(self) -> int:
        """How many tensors from outside have been met that have as many rows as the batch."""
        return len(self._taken)

    def choose(self, rows: Tensor, *, count: int, units: tuple[Tensor, int] | None = None) -> None:
        """Begins to take rows.

        Args:
            rows: Their numbers, shape (n,).
            count: Rows of the batch.
            units: Numbers of the units that the rows are of, and of how many; None where each row
                is its own. What has an entry for each unit is cut too.
        """
        self.rows = rows
        self._cut = {count: rows}
        if units is not None:
            self._cut.setdefault(units[1], units[0])

    def rows_of(self, arguments: Any) -> Any:
        """Returns nested arguments with the chosen rows of each tensor.

        Raises:
            ValueError: The first of them was to be left whole: it carries the batch.
        """
        if self.rows is None:
            return arguments

        taken = map_tensors(arguments, lambda _, leaf: self._take(leaf))
        whole, cut = (next(iter(named_tensors(each).values()), None) for each in (arguments, taken))
        if whole is not None and cut is whole and id(whole) in self._taken:
            raise ValueError("the first argument of a model carries the batch")
        return taken

    def mark(self, outputs: Any) -> None:
        """Remembers nested outputs as computed from the chosen rows."""
        if self.rows is None:
            return
        for tensor in named_tensors(outputs).values():
            self._derived[tensor] = True

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Lets everything pass meanwhile."""
        before, self._asleep = self._asleep, True
        try:
            yield
        finally:
            self._asleep = before

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function on the chosen rows of what comes from outside."""
        if self._asleep:
            return func(*args, **(kwargs or {}))
        if self.rows is None:
            return self._called(func, args, kwargs or {})
        if func is torch._C._nn.pad_sequence:
            args = [self._entries_of(args[0]), *args[1:]]
        leaves, spec = pytree.tree_flatten((args, kwargs or {}))
        taken = [self._take(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, options = pytree.tree_unflatten(taken, spec)
        if self._as_tables and any(self._is_whole(leaf) for leaf in taken):
            _check_looked_up(func, args)
        result = self._called(func, args, options)
        # What comes of a tensor left whole is no rows either.
        known = [leaf for leaf in taken if isinstance(leaf, Tensor)]
        if any(leaf in self._derived or id(leaf) in self._taken for leaf in known):
            self.mark(result)
        return result

    def _called(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        if self._draws is None:
            return func(*args, **options)
        return self._draws.draw(func, args, options, self._cut)

    def _is_whole(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and self._taken.get(id(leaf), (None, None))[1] is leaf

    def _entries_of(self, argument: Any) -> Any:
        """Returns the chosen rows' entries of a list of texts, one of which may look like rows."""
        if len(argument) not in self._cut or any(each in self._derived for each in argument):
            return argument
        chosen = [argument[row].clone() for row in self._cut[len(argument)].tolist()]
        self.mark(chosen)
        return chosen

    def _take(self, tensor: Tensor) -> Tensor:
        """Returns the chosen rows of a tensor from outside; of one tensor always the same ones."""
        if isinstance(tensor, nn.Parameter) or id(tensor) in self._protected:
            return tensor
        if tensor in self._derived or tensor.dim() == 0 or len(tensor) not in self._cut:
            return tensor
        if id(tensor) not in self._taken:
            rows = tensor
            if len(self._taken) not in self._whole:
                rows = tensor.index_select(0, self._cut[len(tensor)].to(tensor.device))
                self._derived[rows] = True
            self._taken[id(tensor)] = (tensor, rows)
        return self._taken[id(tensor)][1]


def _check_looked_up(func: Any, args: Any) -> None:
    """Refuses a function that does something else with a table than to look things up.

    Raises:
        ValueError: It does.
    """
    if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
        return
    if func not in _LOOK_UPS:
        raise ValueError("what is used in another way than as a table may be rows")
