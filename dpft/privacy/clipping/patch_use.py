"""A convolution's recorded calls: its inputs unfolded into patches, a product with the weight.

Patches hold an input pixel once for each place of the kernel that passes over it, so they are never
kept: norms are taken of some examples' patches at a time, and the weighted sum is one ordinary
weight gradient of the whole batch, of output gradients that were scaled. Norms are ghost norms
where positions are few, and of formed gradients where they are many (Bu et al. 2022, arXiv
2205.10683, section 4), whichever the cost model calls cheaper.

Notation: b examples of r images each, g groups, t output positions, d numbers of a patch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dpft.privacy.clipping.choices import BLOCK_BYTES, FLOAT_BYTES, PatchShape, ghost_is_cheaper
from dpft.privacy.clipping.squares import (
    Squares,
    formed_squares,
    ghost_squares,
    in_norm_dtype,
    lengths,
    norm_dtype,
    sums_of_squares,
)

if TYPE_CHECKING:
    from dpft.privacy.clipping.trainable import Units

FEW_NUMBERS = 2**15
"""Numbers of an example's patches up to which a batch of them costs less than calls one by one."""
SMALL = 2**12
"""Weights up to which libraries add a product up one position after the other, not in tiles."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a kernel passes over an image, one or two numbers each.

    Attributes:
        weight_shape: (outputs, inputs / groups, *kernel).
        stride: Of the outputs.
        padding: Zeros on both sides of each dimension.
        dilation: Of the kernel.
        groups: Into which inputs and outputs are cut.
    """

    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def patches(self, images: Tensor) -> Tensor:
        """Returns what each output position sees, (n, g, d, t) of images (n, channels, …)."""
        images = images.unsqueeze(2) if images.dim() == 3 else images
        kernel, dilation, padding, stride = (
            numbers if len(numbers) == 2 else (fill, numbers[0])
            for numbers, fill in (
                (self.weight_shape[2:], 1),
                (self.dilation, 1),
                (self.padding, 0),
                (self.stride, 1),
            )
        )
        unfolded = F.unfold(images, kernel, dilation, padding, stride)
        patches: Tensor = unfolded.unflatten(1, (self.groups, -1))
        return patches

    def weight_gradient(self, images: Tensor, backprops: Tensor) -> Tensor:
        """Returns the gradient of the weight, summed over images (n, channels, …)."""
        gradient: Tensor = torch.ops.aten.convolution_backward(
            backprops,
            images,
            images.new_empty(1).expand(self.weight_shape),
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0,) * len(self.stride),
            self.groups,
            (False, True, False),
        )[1]
        return gradient


@dataclass(frozen=True)
class PatchUse:
    """Gradient [i] = sum over images and positions of output gradient times patch.

    Attributes:
        backprops: Output gradients, shape (b, r, outputs, …).
        inputs: Shape (b, r, channels, …), with the padding that is not of zeros.
        window: What the patches are.
    """

    backprops: Tensor
    inputs: Tensor
    window: Window

    def squares(self) -> Squares:
        """Returns the squared gradient norms, some examples at a time.

        Ghost norms or those of formed gradients: the choice reads shapes only.
        """
        return Squares.joined(part._squares() for part in self._parts())

    def _squares(self) -> Squares:
        if not ghost_is_cheaper(self.shape):
            return formed_squares(sums_of_squares(self.instantiate()), self.norm_bound())
        groups = self.window.groups
        found = ghost_squares(self._rows_of_backprops(), self._rows_of_patches())
        values, terms = (x.unflatten(0, (-1, groups)).sum(1) for x in (found.values, found.terms))
        return Squares(values, terms)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of norms and sums."""
        return norm_dtype(self.backprops)

    @property
    def shape(self) -> PatchShape:
        """The sizes that decide how norms are taken; each group is a product by itself."""
        outputs, *patch = self.window.weight_shape
        groups = self.window.groups
        return PatchShape(
            examples=len(self.inputs) * groups,
            steps=self.backprops.shape[1] * math.prod(self.backprops.shape[3:]),
            rows=outputs // groups,
            columns=math.prod(patch),
            held_numbers=self.inputs.numel() + self.backprops.numel(),
        )

    def norm_bound(self) -> Tensor:
        """Returns sum over t of ``|output gradient| |patch|``, shape (b,)."""
        products = (
            lengths(part._rows_of_backprops()) * lengths(part._rows_of_patches())
            for part in self._parts()
        )
        return torch.cat([self._by_example(each) for each in products])

    def extent(self) -> Tensor:
        """Returns the larger of the sums of lengths of output gradients and patches, (b,)."""
        left, right = (
            torch.cat([self._by_example(lengths(rows(part))) for part in self._parts()])
            for rows in (PatchUse._rows_of_backprops, PatchUse._rows_of_patches)
        )
        return torch.maximum(left, right)

    def double(self, examples: Tensor) -> "PatchUse":
        """Returns the use of some examples in float64."""
        backprops, inputs = (x[examples].double() for x in (self.backprops, self.inputs))
        return replace(self, backprops=backprops, inputs=inputs)

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, *weight.shape)."""
        parts = list(self._parts())
        if len(parts) > 1:
            return torch.cat([part.instantiate() for part in parts])
        if self.inputs.device.type == "cpu" and self._patch_bytes > FLOAT_BYTES * FEW_NUMBERS:
            # As an ordinary backward pass would form each.
            pairs = zip(self.inputs, self.backprops, strict=True)
            return torch.stack(
                [self.window.weight_gradient(*map(in_norm_dtype, pair)) for pair in pairs]
            )
        product = self._rows_of_backprops().mT @ self._rows_of_patches()
        return product.reshape(len(self.inputs), *self.window.weight_shape)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, of the weight's shape."""
        total.add_(self.weighted_sum(factors))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, of the weight's shape."""
        scaled = in_norm_dtype(self.backprops) * factors.view(-1, *[1] * (self.backprops.dim() - 1))
        pair = in_norm_dtype(self.inputs).flatten(0, 1), scaled.flatten(0, 1)
        if math.prod(self.window.weight_shape) <= SMALL:
            return self.window.weight_gradient(*(x.double() for x in pair)).to(scaled.dtype)
        return self.window.weight_gradient(*pair)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return self.window.weight_shape

    def of_rows(self, start: int, stop: int) -> "PatchUse":
        """Returns the use of some of the filters alone.

        Those of a part of the groups meet a part of the channels, so each group is cut apart.
        """
        outputs, channels, *kernel = self.window.weight_shape
        width = outputs // self.window.groups
        if self.window.groups == 1:
            window = replace(self.window, weight_shape=(stop - start, channels, *kernel))
            return replace(self, backprops=self.backprops[:, :, start:stop], window=window)
        # A filter to a group: its group's channels are repeated for it.
        seen = [number // width for number in range(start, stop)]
        inputs = self.inputs.unflatten(2, (self.window.groups, -1))[:, :, seen].flatten(2, 3)
        window = replace(
            self.window, weight_shape=(stop - start, channels, *kernel), groups=stop - start
        )
        return PatchUse(self.backprops[:, :, start:stop], inputs, window)

    def keep(self, mask: Tensor) -> "PatchUse":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        backprops, inputs = (
            torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, x.new_zeros(()))
            for x in (self.backprops, self.inputs)
        )
        return replace(self, backprops=backprops, inputs=inputs)

    def by_unit(self, units: "Units") -> "PatchUse":
        """Returns the use whose example j is all images of unit j."""
        backprops, inputs = (units.concatenate(x) for x in (self.backprops, self.inputs))
        return replace(self, backprops=backprops, inputs=inputs)

    @property
    def _patch_bytes(self) -> int:
        """Bytes of one example's patches."""
        shape = self.shape
        return FLOAT_BYTES * shape.steps * shape.columns * self.window.groups

    def _parts(self) -> Iterator["PatchUse"]:
        """Yields the use of as many examples at a time as patches and gradients have room for."""
        shape = self.shape
        ghosts = FLOAT_BYTES * shape.steps**2 * self.window.groups
        formed = shape.instantiated_bytes // max(1, len(self.inputs))
        largest = max(self._patch_bytes, ghosts if ghost_is_cheaper(shape) else formed)
        size = max(1, BLOCK_BYTES // max(1, largest))
        if size >= len(self.inputs):
            yield self
            return
        for pair in zip(self.backprops.split(size), self.inputs.split(size), strict=True):
            yield PatchUse(*pair, self.window)

    def _rows_of_backprops(self) -> Tensor:
        """Returns the output gradients of each group, (b g, r t, outputs / g)."""
        rows = in_norm_dtype(self.backprops).flatten(3)
        return _by_position(rows.unflatten(2, (self.window.groups, -1)))

    def _rows_of_patches(self) -> Tensor:
        """Returns the patches of each group, (b g, r t, d)."""
        images = in_norm_dtype(self.inputs).flatten(0, 1)
        patches = self.window.patches(images)
        return _by_position(patches.unflatten(0, self.inputs.shape[:2]))

    def _by_example(self, positions: Tensor) -> Tensor:
        """Returns (b,) from (b g, t), added up."""
        sums: Tensor = positions.sum(1).unflatten(0, (-1, self.window.groups)).sum(1)
        return sums


def _by_position(rows: Tensor) -> Tensor:
    """Returns (b g, r t, d) from (b, r, g, d, t), without a copy where r is 1."""
    return rows.permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)
