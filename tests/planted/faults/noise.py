"""Faults in the noise: N(0, (noise multiplier times sensitivity)^2), once, on every coordinate."""

from tests.planted.fault import Edit, Fault

DP_SGD = "tests/guarantees/test_dp_sgd.py"
REFERENCE = "tests/guarantees/test_reference.py"
FULL = f"{DP_SGD}::test_full_fine_tuning"
BITS = f"{REFERENCE}::test_noise"
RELEASED_BITS = f"{REFERENCE}::test_a_run_without_a_drawn_record_releases_the_same_noise"
ENGINE = "dpft/privacy/engine.py"
NOISE = "dpft/privacy/noise.py"
STD = "        noise_std = self.plan.event().noise_multiplier * sensitivity\n"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="noise/once-per-micro-batch",
        breaks="A step adds its noise once, however many micro-batches it has.",
        edits=(
            Edit(
                ENGINE,
                "        self._open_step = True\n        return result\n",
                """        self._open_step = True
        phase = self.plan.phase_at(self.steps_taken)
        noise_std = self.plan.event().noise_multiplier * phase.sensitivity
        sums = dict(self._model.named_parameters())
        self._noise.add(sums, noise_std, step=self.steps_taken, meter=None, ranks=ALONE)
        return result
""",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="noise/once-per-rank",
        breaks="A step adds its noise once, however many processes take it.",
        edits=(
            Edit(
                ENGINE,
                "        self._noise.add(sums, noise_std, step=step, meter=meter, ranks=ranks)\n",
                """        if ranks.size > 1:
            self._noise.add(sums, noise_std, step=step, meter=None, ranks=ALONE)
        self._noise.add(sums, noise_std, step=step, meter=meter, ranks=ranks)
""",
            ),
        ),
        tests=(f"{DP_SGD}::test_two_processes",),
    ),
    Fault(
        name="noise/without-the-multiplier",
        breaks="The noise's standard deviation is the multiplier times the sensitivity.",
        edits=(Edit(ENGINE, STD, "        noise_std = sensitivity\n"),),
        tests=(FULL, RELEASED_BITS),
    ),
    Fault(
        name="noise/divided-by-the-batch-size",
        breaks="The noise on the sum must not be divided by the expected batch size beforehand.",
        edits=(
            Edit(
                ENGINE,
                STD,
                STD + "        noise_std = noise_std / self.plan.expected_batch_size\n",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="noise/sensitivity-of-the-first-phase",
        breaks="Each phase's noise belongs to its own clipping norm.",
        edits=(
            Edit(
                ENGINE,
                "        sensitivity = self.plan.phase_at(self.steps_taken).sensitivity\n",
                "        sensitivity = self.plan.phase_at(0).sensitivity\n",
            ),
        ),
        tests=(f"{DP_SGD}::test_two_phases_with_clipping_norms_of_their_own",),
    ),
    Fault(
        name="noise/same-key-for-two-steps",
        breaks="No two steps share their noise.",
        edits=(
            Edit(
                NOISE,
                "        self._step, self._key = step, stream.key.at(step)\n",
                """        if step % 2 == 0:
            stream.kept = stream.key.at(step)
        self._step, self._key = step - step % 2, stream.kept
""",
            ),
        ),
        tests=(BITS, "tests/guarantees/test_noise.py::test_numbers_of_noise_are_independent"),
    ),
    Fault(
        name="noise/same-for-parameters-of-one-shape",
        breaks="No two parameters share their noise.",
        edits=(
            Edit(
                NOISE,
                "        address = Address(Purpose.NOISE, self._step, parameter, block)\n",
                "        address = Address(Purpose.NOISE, self._step, 0, block)\n",
            ),
        ),
        tests=(BITS, "tests/guarantees/test_noise.py::test_numbers_of_noise_are_independent"),
    ),
    Fault(
        name="noise/same-for-blocks-of-one-parameter",
        breaks="No two blocks of a parameter share their noise.",
        edits=(
            Edit(
                NOISE,
                "        address = Address(Purpose.NOISE, self._step, parameter, block)\n",
                "        address = Address(Purpose.NOISE, self._step, parameter, 0)\n",
            ),
        ),
        tests=("tests/guarantees/test_noise.py::test_blocks_of_a_parameter_differ",),
    ),
    Fault(
        name="noise/float32-before-the-grid",
        breaks="Noise and sum are added in float64 and rounded once.",
        edits=(
            Edit(
                NOISE,
                "        target.copy_(_on_grid(gaussians.mul_(noise_std)"
                ".add_(target.to(gaussians.device)), spacing))\n",
                "        noisy = gaussians.mul_(noise_std).float().add_(target.to(gaussians.device))\n"
                "        target.copy_(_on_grid(noisy, spacing))\n",
            ),
        ),
        tests=(BITS, RELEASED_BITS),
    ),
    Fault(
        name="noise/not-rounded-to-the-grid",
        breaks="Each noisy number is a multiple of a power of two that depends on the plan only.",
        edits=(
            Edit(
                NOISE,
                "    return values.mul_(1 / spacing).round_().mul_(spacing).add_(0.0)\n",
                "    return values\n",
            ),
        ),
        tests=("tests/guarantees/test_noise.py::test_noisy_numbers_are_on_the_grid", BITS),
    ),
    Fault(
        name="noise/none-on-one-parameter",
        breaks="Every coordinate of every trainable parameter gets noise.",
        edits=(
            Edit(
                NOISE,
                "        if not parameter.requires_grad or not parameter.numel():\n",
                "        if not parameter.requires_grad or parameter.numel() < 2:\n",
            ),
        ),
        tests=("tests/guarantees/test_noise.py::test_every_parameter_gets_noise", BITS),
    ),
    Fault(
        name="noise/none-where-a-gradient-is-missing",
        breaks="A parameter that no drawn record used gets noise like any other.",
        edits=(
            Edit(
                NOISE,
                """        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_contiguous():
""",
                """        if parameter.grad is None:
            continue
        if parameter.grad.is_contiguous():
""",
            ),
        ),
        tests=("tests/guarantees/test_noise.py::test_every_parameter_gets_noise", RELEASED_BITS),
    ),
    Fault(
        name="noise/predictable-key",
        breaks="Keys come from the operating system, unless a test seed is given.",
        edits=(
            Edit(
                "dpft/privacy/cipher.py",
                "    if noise_seed is None:\n        return secrets.token_bytes(KEY_BYTES)\n",
                "    noise_seed = noise_seed or 0\n",
            ),
        ),
        tests=("tests/guarantees/test_noise.py::test_two_runs_draw_other_noise",),
    ),
    Fault(
        name="noise/banded-coefficients-forgotten",
        breaks="Banded noise is correlated over the steps as the mechanism says.",
        edits=(
            Edit(
                NOISE,
                "            fresh.sub_(x * coefficient)\n",
                "            fresh.sub_(x * 0)\n",
            ),
        ),
        tests=("tests/guarantees/test_noise.py::test_banded_noise_is_correlated",),
    ),
)
