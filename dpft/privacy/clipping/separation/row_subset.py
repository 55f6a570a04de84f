"""Subset re-execution: runs of the model, and of the caller's losses, on a few rows of a batch.

*Which rows.* A model or loss that sorts its rows, or gathers them by value, may meet a batch that
is in order already; one that divides by their number shows it only where there are more or fewer.
So the rows are never taken as they lie, and never all of them. Nor is one choice enough: what only
the row of the maximum shows, or what hangs on a second largest value, is the same on rows without
it. So losses are compared on three choices, of which the largest loss is in two and the second
largest in one at most, and no row is in all: whichever row holds a maximum, some choice goes
without it. Two of them are of low and of high losses, so that medians and ranks are not what they
are among all (``choose_rows``, ``choose_other_rows``).

*How.* A function that computes losses holds its batch where nobody else can reach it. So each torch
function that meets a tensor from outside with as many rows as the batch is given some of them in
its place; what was computed from such rows is left alone (``RowSubset``). Where the function goes
on with numbers or lists of its own, sizes do not fit, it fails, and nothing can be said.

*When.* ``ModelCalls`` watches the model's calls. In training they pass. From a call on whose
signature has to be proved the run of ``compute_losses`` is a survey: the bare model answers without
a graph, and it is noted what it was called with. On a subset the model sees the chosen rows alone.

>>> import torch
>>> labels, weights = torch.tensor([5.0, 6.0, 7.0]), torch.tensor([1.0, 2.0, 3.0])
>>> subset = RowSubset(protected=())
>>> subset.choose(torch.tensor([2, 0]), count=3)
>>> with subset:
...     print(labels * weights, len(labels))
tensor([21.,  5.]) 2
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from dpft.privacy.clipping.separation.reexecution import (
    DeterministicMode,
    Draws,
    RandomState,
    batch_size_of,
    map_tensors,
    named_tensors,
)

MOST_ROWS = 8
"""Rows of a proof: of eight, weights tell every two apart in one backward pass (``proof``)."""
Arguments = tuple[Any, dict[str, Any]]
Forward = Callable[..., Any]
Context = Callable[[], AbstractContextManager[object]]
OnCall = Callable[[Arguments], bool]
"""Looks at a call in training; says whether its signature must be proved first."""
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
_FLAT = frozenset({Tensor, nn.Parameter, type(None), bool, int, float, str, torch.dtype, slice})
"""Types of arguments that hold no other arguments."""


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
        self._cut_there: dict[tuple[int, torch.device], Tensor] = {}
        """The same on the devices of the tensors that are cut: one copy waits for one."""

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
        self._cut, self._cut_there = {count: rows}, {}
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
        if not kwargs and all(type(each) in _FLAT for each in args):
            args = taken = [self._take(each) if isinstance(each, Tensor) else each for each in args]
            options = {}
        else:
            leaves, spec = pytree.tree_flatten((args, kwargs or {}))
            taken = [self._take(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            args, options = pytree.tree_unflatten(taken, spec)
        if self._as_tables and any(self._is_whole(leaf) for leaf in taken):
            indexed = func is Tensor.__getitem__ and isinstance(args[1], Tensor)
            if not indexed and func not in _LOOK_UPS:
                raise ValueError("what is used in another way than as a table may be rows")
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
        with torch._C.DisableTorchFunction():  # else asking for a size takes as long as a product
            size = tensor.shape[0] if tensor.dim() else None
        if size not in self._cut or tensor in self._derived:
            return tensor
        if id(tensor) not in self._taken:
            rows = tensor
            if len(self._taken) not in self._whole:
                key = size, tensor.device
                if key not in self._cut_there:
                    self._cut_there[key] = self._cut[size].to(tensor.device)
                rows = tensor.index_select(0, self._cut_there[key])
                self._derived[rows] = True
            self._taken[id(tensor)] = (tensor, rows)
        return self._taken[id(tensor)][1]


def choose_rows(
    arguments: object, count: int, units: Tensor | None, losses: Tensor | None = None
) -> Tensor:
    """Returns the numbers of at most ``MOST_ROWS`` rows, at least two units where there are two.

    They are spread over the rows ordered by what marks a kind of row: how many of its numbers are
    not zero, in masks and ids. Of two or three rows one comes twice, so that their number differs.
    Their number is no other size of the arguments, where that can be.

    Args:
        arguments: Of the call; the first tensor carries the batch.
        count: Rows of the batch.
        units: Unit of each row, shape (count,), whose rows are taken together; None where each
            row is its own.
        losses: Of each row, or of each unit. The largest and the smallest are left out, and the
            fullest row, and then more of the larger ones, as far as three are left: what an example
            takes from a maximum, a rank or a mean of its batch is another then.
    """
    if units is not None:
        labels, index = units.cpu().unique(return_inverse=True)
        order = _shuffled(torch.arange(len(labels)))
        if losses is not None and len(labels) > 2:  # one unit would meet no other
            order = order[order != _units_by_loss(index, losses)[-1]]
        fitting = int((torch.bincount(index)[order].cumsum(0) <= MOST_ROWS).sum())
        number = max(min(fitting, len(labels) - 1), min(2, len(order)))
        return _rows_of_units(index, order[:number])
    if count < 4:
        return torch.tensor([[], [0], [1, 0, 1], [2, 0, 1, 2]][count], dtype=torch.int64)
    tensors = named_tensors(arguments).values()
    fullness = torch.zeros(count, dtype=torch.int64)
    for tensor in tensors:
        if tensor.dim() > 1 and len(tensor) == count and not tensor.is_floating_point():
            fullness += (tensor != 0).flatten(1).sum(1).cpu()
    order, leave = torch.arange(count), [int(fullness.argmax())]
    if losses is not None and len(losses) == count:
        order = losses.detach().cpu().argsort()
        leave = [int(order[-1]), int(order[0]), *leave]
    for row in dict.fromkeys(leave[: count - 3]):
        order = order[order != row]
    kept = order[: max(3, MOST_ROWS, -(-2 * len(order) // 3))]
    ordered = kept[fullness[kept].argsort(stable=True)]
    most = min(len(ordered), MOST_ROWS)
    sizes = {size for tensor in tensors for size in tensor.shape[1:]}
    number = next((number for number in range(most, 2, -1) if number not in sizes), most)
    return _shuffled(ordered[torch.linspace(0, len(ordered) - 1, number).round().long()])


def choose_other_rows(count: int, units: Tensor | None, losses: Tensor) -> list[Tensor]:
    """Returns two more choices of rows, none where there is but one row or unit.

    Args:
        count: Rows of the batch.
        units: As ``choose_rows``.
        losses: Of each row, or of each unit.
    """
    if units is None:
        ranked = losses.detach().cpu().argsort().tolist()
        copies = 3 if count == 2 else 2
        return [
            _shuffled(torch.tensor(chosen if len(chosen) > 1 else chosen * copies))
            for chosen in _two_choices(ranked, MOST_ROWS)
        ]
    index = units.cpu().unique(return_inverse=True)[1]
    most = max(2, MOST_ROWS // int(torch.bincount(index).max()))
    choices = _two_choices(_units_by_loss(index, losses), most)
    return [_rows_of_units(index, torch.tensor(chosen)) for chosen in choices]


def _two_choices(ranked: Sequence[int], most: int) -> list[list[int]]:
    """Returns two lists of at most ``most`` numbers of those given in ascending order of losses.

    Of four and more both hold the largest, and neither the second largest. One has the lower and
    one the higher of the others: what is a rank or a median among all is neither's.
    """
    if len(ranked) < 2:
        return []
    *ordinary, second, largest = ranked
    if len(ordinary) < 2:
        return [[largest, *ordinary], [second]]
    choices = []
    for half in (ordinary[: len(ordinary) // 2], ordinary[len(ordinary) // 2 :]):
        places = torch.linspace(0, len(half) - 1, min(len(half), most - 1)).round().long()
        choices.append([largest, *(half[place] for place in places.tolist())])
    return choices


def _units_by_loss(index: Tensor, losses: Tensor) -> list[int]:
    """Returns the numbers of units in ascending order of their losses."""
    each = losses.detach().cpu()
    if len(each) == len(index):
        each = torch.zeros(int(index.max()) + 1, dtype=each.dtype).index_add(0, index, each)
    return each.argsort().tolist()


def _rows_of_units(index: Tensor, numbers: Tensor) -> Tensor:
    """Returns the rows of some units, whose numbers ``index`` has for each row.

    In their own order: a caller may have put the first rows of all units before the second.
    """
    return torch.isin(index, numbers).nonzero()[:, 0]


def _shuffled(rows: Tensor) -> Tensor:
    """Returns rows in an order other than theirs, the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(len(rows))
    order = torch.randperm(len(rows), generator=generator)
    in_order = torch.equal(order, torch.arange(len(rows)))
    return rows[order.roll(1) if in_order else order]


@dataclass
class Survey:
    """What was seen of one computation of losses on all rows.

    Attributes:
        rows: Numbers of the rows that a subset run takes, shape (n,); ``choose`` says which.
        count: Rows of the batch.
        every_unit: Unit of each row of the batch, shape (count,), or None.
        inputs: First tensor of each call of the model.
        drawn: Whether random numbers were drawn outside of the model's calls.
        first: Arguments of the first call.
        with_graph: Whether the model answers with its graph, which takes its memory.
        compared: Which of the chosen rows' losses say something, shape (n,); None for all: a row
            that took another's place may meet what the caller keeps for that one in a list.
    """

    rows: Tensor
    count: int
    every_unit: Tensor | None
    inputs: list[Tensor] = field(default_factory=list)
    drawn: bool = False
    first: Any = None
    with_graph: bool = False
    compared: Tensor | None = None

    def choose(self, losses: Tensor) -> None:
        """Chooses the rows of a subset by the losses of all rows."""
        self.rows = choose_rows(self.first, self.count, self.every_unit, losses)

    def others(self, losses: Tensor) -> list["Survey"]:
        """Returns surveys of two more choices of rows by the losses of all; none of one unit."""
        choices = choose_other_rows(self.count, self.every_unit, losses)
        return [replace(self, rows=rows) for rows in choices]

    def in_order(self) -> "Survey":
        """Returns a survey of the chosen rows in the order in which they are in the batch."""
        return replace(self, rows=self.rows.sort().values)

    def repeated(self) -> "Survey | None":
        """Returns a survey of the chosen rows more than once, where their number says too much.

        What the caller makes for one row would be stretched to any number; for as many as there
        are units it looks like what it has for each, and for as many as there are rows like what
        it has for all. None where their number is none of these.
        """
        units, number = self.chosen_units, len(self.rows)
        if units is None or number not in (1, units[1], self.count) or units[1] == self.count:
            return None
        times = next(n for n in (2, 3, 4) if n * number not in (units[1], self.count))
        return replace(self, rows=self.rows.repeat(times))

    def exchanged(self) -> "Survey":
        """Returns a survey of as many rows, of which chosen ones replace those not chosen."""
        rows = torch.arange(self.count)
        stay = torch.isin(rows, self.rows)
        others = rows[~stay]
        rows[others] = self.rows[torch.arange(len(others)) % len(self.rows)]
        return replace(self, rows=rows, compared=stay)

    @property
    def chosen_units(self) -> tuple[Tensor, int] | None:
        """Numbers of the chosen rows' units among all units in order, and how many there are."""
        if self.every_unit is None:
            return None
        labels, index = self.every_unit.cpu().unique(return_inverse=True)
        return index[self.rows].unique(), len(labels)

    @property
    def units(self) -> Tensor | None:
        """Unit of each of the chosen rows, shape (n,), or None."""
        return None if self.every_unit is None else self.every_unit.cpu()[self.rows]


def with_signature(forward: Forward, own: Forward) -> Forward:
    """Returns a forward that shows the signature of the module's own: ``generate`` asks for it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    vars(run)["__signature__"] = signature(own)
    return run


class ModelCalls:
    """The calls of one model: they pass, are surveyed, or run on a subset of rows."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._on_call: OnCall | None = None
        self._subset: RowSubset | None = None
        self._entering: Callable[[Arguments], object] = lambda _: None
        self._units: Tensor | None = None
        self._around: Context = nullcontext
        self._after: RandomState | None = None
        self.compiled = is_compiled(model)
        """Whether a caller compiled the model. A subset run is not: no compiler sees rows taken."""
        self.with_graph = False
        """Whether surveys answer with a graph, for a caller who needs one."""
        self.survey: Survey | None = None
        """Of the run that is watched, or was last; None where it was no survey."""
        self.inputs: list[Tensor] = []
        """First tensor of each call of a subset run."""

    def watched(
        self,
        own: Forward,
        *,
        passes: Callable[[], bool] = lambda: False,
        entering: Callable[[Arguments], object] = lambda _: None,
    ) -> Forward:
        """Returns a forward for the model of whose calls this decides.

        Args:
            own: What answers a call that passes.
            passes: Whether calls pass unseen at the moment.
            entering: Is told of what the model is called with in a subset run.
        """
        self._entering = entering
        # Under torch.compile calls are considered outside of what is compiled; the model is inside.
        consider = torch.compiler.disable(self._consider)
        answer = torch.compiler.disable(self._answer)

        def run(*args: Any, **kwargs: Any) -> Any:
            if passes() or not consider((args, kwargs)):
                return own(*args, **kwargs)
            return answer(own, (args, kwargs))

        forward = torch.compiler.disable(run, recursive=False)
        return with_signature(forward, partial(type(self.model).forward, self.model))

    @contextmanager
    def training(
        self,
        on_call: OnCall,
        units: Tensor | None,
        around: Context = nullcontext,
    ) -> Iterator[None]:
        """Looks at the calls that are made meanwhile, one of which may begin a survey.

        Args:
            on_call: Is told of each call that gradients are asked for.
            units: Unit of each row, or None.
            around: Context of each call of a survey; makes the model ready for it.
        """
        self._on_call, self._units, self._around, self.survey = on_call, units, around, None
        self._after = RandomState.now(next(self.model.parameters()).device)
        try:
            yield
            if self.survey is not None and self._after is not None:
                self.survey.drawn |= self._after.was_left
        finally:
            self._on_call = self._after = None

    @contextmanager
    def on_subset(
        self,
        survey: Survey,
        on_call: OnCall,
        around: Context,
        *,
        whole: Collection[int] = (),
        as_tables: bool = False,
        draws: Draws | None = None,
    ) -> Iterator[RowSubset]:
        """Makes the model, and all that computes losses around it, see few rows.

        Args:
            survey: Whose rows are taken.
            on_call: As in ``training``; what it returns is not heeded.
            around: As in ``training``, for each call of the subset run.
            whole: As ``RowSubset``.
            as_tables: As ``RowSubset``.
            draws: As ``RowSubset``.
        """
        weights = [*self.model.parameters(), *self.model.buffers()]
        subset = RowSubset(weights, whole, as_tables=as_tables, draws=draws)
        subset.choose(survey.rows, count=survey.count, units=survey.chosen_units)
        with self._answering(subset, on_call, around):
            yield subset

    @contextmanager
    def recording(self, draws: Draws, around: Context) -> Iterator[None]:
        """Keeps what the caller draws, on all rows, beside a model that runs as in a subset run."""
        with self._answering(RowSubset((), draws=draws), lambda _: False, around):
            yield

    @contextmanager
    def _answering(self, subset: RowSubset, on_call: OnCall, around: Context) -> Iterator[None]:
        self._on_call, self._subset, self.inputs, self._around = on_call, subset, [], around
        eager = torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()
        try:
            with eager, DeterministicMode(noise=False), subset:
                yield
        finally:
            self._on_call = self._subset = None

    def _consider(self, arguments: Arguments) -> bool:
        """Looks at a call of the model; returns whether it must be answered otherwise."""
        if torch.is_grad_enabled() and self._on_call is not None:
            due = self._on_call(arguments)
            if due and self._subset is None and self.survey is None:
                count, units = batch_size_of(arguments), self._units
                self.survey = Survey(
                    torch.arange(count),
                    count,
                    units if units is not None and len(units) == count else None,
                    first=arguments,
                    with_graph=self.with_graph,
                )
        return self._subset is not None or self.survey is not None and self._on_call is not None

    def _answer(self, forward: Forward, arguments: Arguments) -> Any:
        subset = self._subset
        if subset is None:
            return self._surveyed(forward, arguments)
        with subset.asleep():
            args, kwargs = subset.rows_of(arguments)
            if torch.is_grad_enabled():
                self.inputs.append(_first((args, kwargs)))
            with self._around():
                self._entering((args, kwargs))
                outputs = forward(*args, **kwargs)
        subset.mark(outputs)
        return outputs

    def _surveyed(self, forward: Forward, arguments: Arguments) -> Any:
        survey = self.survey
        assert survey is not None
        if self._after is not None:
            survey.drawn |= self._after.was_left
        if torch.is_grad_enabled():
            survey.inputs.append(_first(arguments).detach())
        args, kwargs = arguments
        graph = survey.with_graph and torch.is_grad_enabled()
        with self._around(), torch.set_grad_enabled(graph):
            outputs = forward(*args, **kwargs)
        self._after = RandomState.now(_first(arguments).device)
        if survey.with_graph:
            return outputs
        # A caller may expect that outputs require grad; these have no graph.
        return map_tensors(
            outputs, lambda _, x: x.detach().requires_grad_() if x.is_floating_point() else x
        )


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` was applied to a model, or to a part of it."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _first(arguments: Any) -> Tensor:
    return next(x for x in named_tensors(arguments).values() if x.dim())
