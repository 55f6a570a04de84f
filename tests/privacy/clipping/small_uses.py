"""Small uses of each kind in float64, and their gradients by the definition."""

import torch

from dpft.privacy.clipping.uses import GradientUse, OuterProduct, RowsUse


def outer(b=3, t=5, rows=4, columns=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = {"generator": g, "dtype": torch.float64}
    return OuterProduct(torch.randn(b, t, rows, **shape), torch.randn(b, t, columns, **shape))


def rows_use(b=3, t=5, rows=4, columns=6, seed=1):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, rows, (b, t), generator=g)
    return RowsUse(ids, torch.randn(b, t, columns, generator=g, dtype=torch.float64), rows)


def gradient(b=3, rows=4, columns=6, seed=2):
    g = torch.Generator().manual_seed(seed)
    return GradientUse(torch.randn(b, rows, columns, generator=g, dtype=torch.float64))


def dense(use):
    """Per-example gradients by the definition of each kind, one position at a time."""
    if isinstance(use, GradientUse):
        return use.values
    if isinstance(use, OuterProduct):
        pairs = zip(use.left, use.right, strict=True)
        return torch.stack([sum(torch.outer(x, y) for x, y in zip(*p, strict=True)) for p in pairs])
    total = torch.zeros(len(use.ids), use.rows, use.values.shape[2], dtype=torch.float64)
    for example, (ids, values) in enumerate(zip(use.ids, use.values, strict=True)):
        for row, value in zip(ids, values, strict=True):
            total[example, row] += value
    return total
