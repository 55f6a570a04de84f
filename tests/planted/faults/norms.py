"""Faults in the upper bounds of gradient norms: no record contributes more than C."""

from tests.planted.fault import Edit, Fault

PRODUCTS = "dpft/privacy/clipping/products.py"
WORST_CASE = (
    "tests/privacy/clipping/test_worst_case.py::"
    "test_no_record_contributes_more_than_the_clipping_norm"
)
ONE_LINE = (
    "tests/privacy/clipping/test_worst_case.py::test_records_crafted_against_one_line_of_the_proof"
)
WORST_ORDER = (
    "tests/privacy/clipping/test_worst_case.py::"
    "test_a_sum_in_the_worst_order_adds_at_most_the_clipping_norm"
)
EXACT = "tests/privacy/clipping/test_products.py"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="norms/as-computed",
        breaks="Records must be clipped by a bound of their norm: the computed one can be too small.",
        edits=(Edit(PRODUCTS, "(self.square.abs() + self.error)", "self.square.clamp(min=0)"),),
        tests=(WORST_CASE, ONE_LINE),
    ),
    Fault(
        name="norms/without-the-contraction",
        breaks="The rounding of the weighted sum lengthens what a record contributes.",
        edits=(
            Edit(
                PRODUCTS,
                "+ self.error).sqrt() + self.rounding)",
                "+ self.error).sqrt())",
            ),
        ),
        tests=(WORST_ORDER,),
    ),
    Fault(
        name="norms/without-underflow",
        breaks="Products that underflow must not shorten the norm.",
        edits=(
            Edit(
                PRODUCTS,
                "        lost = [4 * n * tiny for n, tiny in zip((p, d), least, strict=True)]  # (5)\n",
                "        lost = [0.0, 0.0]\n",
            ),
        ),
        tests=(ONE_LINE,),
    ),
    Fault(
        name="norms/factors-rounded-up",
        breaks="A clip factor must not grow when it is rounded to float32.",
        edits=(
            Edit(
                PRODUCTS,
                "    return (large.double() * (1 - 2.0**-23)).to(dtype)\n",
                "    return (large.double() * (1 + 2.0**-20)).to(dtype)\n",
            ),
        ),
        tests=(WORST_CASE,),
    ),
    Fault(
        name="norms/denormal-factors",
        breaks="A clip factor that float32 holds with few digits must not be used.",
        edits=(
            Edit(
                PRODUCTS,
                "    large = factors.where(factors >= LEAST_FACTOR, 0)\n",
                "    large = factors\n",
            ),
        ),
        tests=(ONE_LINE,),
    ),
    Fault(
        name="norms/tied-without-the-cross-term",
        breaks="The norm of a tied weight includes the inner product of its two gradients.",
        edits=(
            Edit(
                PRODUCTS,
                "        head.square + embedding.square + 2 * cross,\n",
                "        head.square + embedding.square,\n",
            ),
        ),
        tests=(f"{EXACT}::test_tied_weights_have_the_cross_term",),
    ),
    Fault(
        name="norms/non-finite-units-added",
        breaks="A unit that is not finite must contribute exactly zero.",
        edits=(
            Edit(
                PRODUCTS,
                "        return Outer(self.left.where(keep, 0), self.right.where(keep, 0))\n",
                "        return Outer(self.left * keep, self.right * keep)\n",
            ),
        ),
        tests=(f"{EXACT}::test_non_finite_units_are_seen_and_left_out",),
    ),
)
