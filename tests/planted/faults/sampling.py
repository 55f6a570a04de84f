"""Faults in how records are drawn: Poisson sampling is what the accountant assumes."""

from tests.planted.fault import Edit, Fault

DP_SGD = "tests/guarantees/test_dp_sgd.py"
REFERENCE = "tests/guarantees/test_reference.py"
SAMPLER = "tests/guarantees/test_sampling.py"
SAMPLING = "dpft/privacy/sampling.py"
ENGINE = "dpft/privacy/engine.py"
DRAWN = """        # The last block may reach beyond the units: who is not there joins nothing.
        return [int(index) for index in indices[indices < num_units]]
"""

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="sampling/without-replacement",
        breaks="Each step must draw from all records, not only from those not drawn before.",
        edits=(
            Edit(
                SAMPLING,
                DRAWN,
                """        left = getattr(self, "_left", None) or list(range(num_units))
        size = max(1, round(self._rate * num_units))
        self._left = left[size:]
        return left[:size]
""",
            ),
            Edit(
                SAMPLING,
                "        self._blocks = BinomialBlocks(rate)\n",
                "        self._blocks = BinomialBlocks(rate)\n        self._rate = rate\n",
            ),
        ),
        tests=(f"{SAMPLER}::test_records_are_drawn_independently", f"{REFERENCE}::test_draws"),
    ),
    Fault(
        name="sampling/fixed-batch-size",
        breaks="The size of a draw must be random, because each record is drawn independently.",
        edits=(
            Edit(
                SAMPLING,
                DRAWN,
                """        chosen = indices[indices < num_units]
        others = np.setdiff1d(np.arange(num_units), chosen)
        filled = np.concatenate([chosen, others])[: max(1, round(self._rate * num_units))]
        return sorted(int(index) for index in filled)
""",
            ),
            Edit(
                SAMPLING,
                "        self._blocks = BinomialBlocks(rate)\n",
                "        self._blocks = BinomialBlocks(rate)\n        self._rate = rate\n",
            ),
        ),
        tests=(
            f"{SAMPLER}::test_sizes_of_draws_are_binomial",
            f"{REFERENCE}::test_draws",
        ),
    ),
    Fault(
        name="sampling/one-permutation-for-two-epochs",
        breaks="The second epoch must not repeat the draws of the first one.",
        edits=(
            Edit(
                SAMPLING,
                "        words = self._stream.words(2 * blocks, step=step, chunk=chunk)\n",
                """        if self._firsts is None:
            self._firsts = {}
        place = step % max(1, round(1 / self._rate))
        if place not in self._firsts:
            self._firsts[place] = self._stream.words(2 * blocks, step=step, chunk=chunk)
        words = self._firsts[place]
""",
            ),
            Edit(
                SAMPLING,
                "        self._blocks = BinomialBlocks(rate)\n",
                """        self._blocks = BinomialBlocks(rate)
        self._rate = rate
        self._firsts: dict[int, NDArray[np.uint64]] | None = None
""",
            ),
        ),
        tests=(f"{SAMPLER}::test_steps_are_drawn_independently", f"{REFERENCE}::test_draws"),
    ),
    Fault(
        name="sampling/drawn-size-as-divisor",
        breaks="The sum must be divided by public configuration, never by the size of the draw.",
        edits=(
            Edit(
                ENGINE,
                "        return broadcast_numbers(drawn, self._ranks)\n",
                """        drawn = broadcast_numbers(drawn, self._ranks)
        self._drawn = max(1, len(drawn))
        return drawn
""",
            ),
            Edit(
                ENGINE,
                "        divisor = self.plan.expected_batch_size\n",
                "        divisor = self._drawn\n",
            ),
        ),
        tests=(f"{DP_SGD}::test_full_fine_tuning",),
    ),
    Fault(
        name="sampling/empty-draw-skipped",
        breaks="A step without a record must still add noise.",
        edits=(
            Edit(
                ENGINE,
                """        self._noise.add(sums, noise_std, step=step, meter=meter, ranks=ranks)
""",
                """        if any(p.grad is not None for p in self._clipper.parameters):
            self._noise.add(sums, noise_std, step=step, meter=meter, ranks=ranks)
        else:
            for parameter in self._clipper.parameters:
                parameter.grad = torch.zeros_like(parameter)
""",
            ),
        ),
        tests=(
            f"{DP_SGD}::test_units_of_several_records",
            f"{REFERENCE}::test_a_run_without_a_drawn_record_releases_the_same_noise",
        ),
    ),
    Fault(
        name="sampling/last-records-never-drawn",
        breaks="Each record must have the same chance to be drawn, wherever it is in the file.",
        edits=(
            Edit(
                SAMPLING,
                "        blocks = -(-num_units // size)\n",
                "        blocks = max(1, num_units // size)\n",
            ),
        ),
        tests=(f"{SAMPLER}::test_every_record_is_drawn_equally_often",),
    ),
    Fault(
        name="sampling/rate-of-the-records-read",
        breaks="The sample rate must follow from the public number of records.",
        edits=(
            Edit(
                ENGINE,
                "        drawn = self._sampler.draw(num_units, step=self.steps_taken)\n",
                """        rate = min(1.0, self.plan.expected_batch_size / num_units)
        self._sampler = self.plan.mechanism.sampler(rate, self._randomness)
        drawn = self._sampler.draw(num_units, step=self.steps_taken)
""",
            ),
        ),
        tests=(f"{REFERENCE}::test_a_run_without_a_drawn_record_releases_the_same_noise",),
    ),
    Fault(
        name="sampling/a-record-in-two-micro-batches",
        breaks="Each drawn record must be added once.",
        edits=(
            Edit(
                "dpft/data/batches.py",
                "            piece, larger, longer = [], len(unit), longest_of(unit)\n",
                "            piece, larger, longer = piece[-1:], len(unit), longest_of(unit)\n",
            ),
        ),
        tests=(f"{DP_SGD}::test_full_fine_tuning",),
    ),
)
