"""Faults in per-example clipping: one unit moves a step's sum by at most the sensitivity."""

from tests.planted.fault import Edit, Fault

DP_SGD = "tests/guarantees/test_dp_sgd.py"
FULL = f"{DP_SGD}::test_full_fine_tuning"
STYLES = "dpft/privacy/clipping/styles.py"
RECORDER = "dpft/privacy/clipping/recorder.py"
FLAT = "        return (self.limit / bounds).clamp(max=1.0)\n"

PAIRS = "tests/privacy/test_pairs.py"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="clipping/per-batch",
        breaks="Each gradient must be clipped by its own norm, not by the mean of its batch.",
        edits=(
            Edit(
                STYLES,
                FLAT,
                """        bounds = bounds.mean(dim=-1, keepdim=True).expand_as(bounds)
        return (self.limit / bounds).clamp(max=1.0)
""",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/per-micro-batch",
        breaks="Gradients must be clipped one by one, not as the sum of a micro-batch.",
        edits=(
            Edit(
                STYLES,
                FLAT,
                """        together = bounds.sum(dim=-1, keepdim=True).expand_as(bounds)
        return (self.limit / together).clamp(max=1.0)
""",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/after-the-sum",
        breaks="Gradients must be clipped before they are added, not their sum afterwards.",
        edits=(
            Edit(STYLES, FLAT, "        return torch.ones_like(bounds)\n"),
            Edit(
                "dpft/privacy/engine.py",
                "        meter = SignalMeter(self._randomness.noise.device) if step < SIGNAL_STEPS"
                " else None\n",
                """        meter = SignalMeter(self._randomness.noise.device) if step < SIGNAL_STEPS else None
        torch.nn.utils.clip_grad_norm_(self._clipper.parameters, sensitivity)
""",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/by-the-squared-norm",
        breaks="The clipping norm is C, not C squared.",
        edits=(
            Edit(
                STYLES,
                "        return self.max_grad_norm * (1 - self.headroom)\n",
                "        return self.max_grad_norm**2 * (1 - self.headroom)\n",
            ),
        ),
        tests=(FULL, f"{DP_SGD}::test_biases_alone"),
    ),
    Fault(
        name="clipping/short-gradients-lengthened",
        breaks="A gradient shorter than C must be added as it is.",
        edits=(Edit(STYLES, FLAT, "        return self.limit / bounds\n"),),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/norm-without-one-layer",
        breaks="A gradient's norm must cover every trainable parameter.",
        edits=(
            Edit(
                RECORDER,
                """        for name, (use,) in self._outer.items():
            by_length[use.left.shape[1]].append(name)
""",
                """        for name, (use,) in self._outer.items():
            if not name.endswith("c_proj.weight"):
                by_length[use.left.shape[1]].append(name)
""",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/tied-weights-without-cross-term",
        breaks="A tied weight's norm must include the product of its two gradients.",
        edits=(
            Edit(
                "dpft/privacy/clipping/products.py",
                "        head.square + embedding.square + 2 * cross,\n",
                "        head.square + embedding.square,\n",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/a-bias-forgotten-in-the-norm",
        breaks="A gradient's norm must include the biases.",
        edits=(
            Edit(
                RECORDER,
                "            named_norms.append((names[:1], formed_norms(whole)))\n",
                """            if not any(name.endswith("bias") for name in names):
                named_norms.append((names[:1], formed_norms(whole)))
""",
            ),
        ),
        tests=(FULL, f"{DP_SGD}::test_biases_alone"),
    ),
    Fault(
        name="clipping/a-bias-forgotten-in-the-sum",
        breaks="Each trainable parameter must get its gradient.",
        edits=(
            Edit(
                RECORDER,
                """            yield from zip(names, parts, strict=True)
""",
                """            for name, part in zip(names, parts, strict=True):
                forgotten = name.endswith("attn.c_proj.bias")
                yield name, torch.zeros_like(part) if forgotten else part
""",
            ),
        ),
        tests=(f"{DP_SGD}::test_biases_alone",),
    ),
    Fault(
        name="clipping/padding-counted",
        breaks="A record's loss must not depend on how far its micro-batch is padded.",
        edits=(
            Edit(
                "dpft/models/losses.py",
                "    tokens = (labels != IGNORED_LABEL).sum(dim=1)\n    losses =",
                "    tokens = torch.full_like(labels[:, 0], labels.shape[1])\n    losses =",
            ),
        ),
        tests=(FULL,),
        stops_private_runs=True,
    ),
    Fault(
        name="clipping/non-finite-records-added",
        breaks="A record without a finite gradient must add nothing.",
        edits=(
            Edit(
                "dpft/privacy/clipping/engines.py",
                "        keep = clipped.finite if clipped.non_finite else None\n",
                "        keep = None\n",
            ),
        ),
        tests=(f"{DP_SGD}::test_a_record_whose_loss_is_not_finite_adds_nothing",),
    ),
    Fault(
        name="clipping/unit-norms-per-record",
        breaks="The records of one privacy unit must be clipped together.",
        edits=(
            Edit(
                "dpft/training/loop.py",
                "    result = engine.accumulate(batch, batch.rows_per_unit)\n",
                "    result = engine.accumulate(batch)\n",
            ),
        ),
        tests=(f"{DP_SGD}::test_units_of_several_records",),
    ),
    Fault(
        name="clipping/a-group-clipped-to-the-whole-norm",
        breaks="With per-layer clipping, each of K groups may have a norm of C over the root of K.",
        edits=(
            Edit(
                STYLES,
                "        return (self.limit / math.sqrt(self.groups) / bounds).clamp(max=1.0)\n",
                "        return (self.limit / bounds).clamp(max=1.0)\n",
            ),
        ),
        tests=(f"{DP_SGD}::test_per_layer_clipping",),
    ),
    Fault(
        name="clipping/second-phase-at-the-norm-of-the-first",
        breaks="Each phase must be clipped to its own norm, which its noise belongs to.",
        edits=(
            Edit(
                "dpft/privacy/phased_clipper.py",
                """        options = replace(self._options, max_grad_norm=phase.max_grad_norm, choice=choice)
        clipper = options.make(self._model, self._losses_of)
        _check_sensitivity(phase, clipper.sensitivity)
""",
                """        norm = self._plan.phases[0].max_grad_norm
        options = replace(self._options, max_grad_norm=norm, choice=choice)
        clipper = options.make(self._model, self._losses_of)
""",
            ),
        ),
        tests=(f"{DP_SGD}::test_two_phases_with_clipping_norms_of_their_own",),
    ),
    Fault(
        name="clipping/sum-not-reset-between-steps",
        breaks="A step's sum must not contain the gradient of the step before.",
        edits=(
            Edit(
                "dpft/privacy/engine.py",
                """        for parameter in self._model.parameters():
            parameter.grad = None
        if self._shards""",
                """        if self._shards""",
            ),
        ),
        tests=(FULL,),
    ),
    Fault(
        name="clipping/pair-in-two-units",
        breaks="Both rows of a preference pair belong to one privacy unit.",
        edits=(
            Edit(
                "dpft/data/batches.py",
                "    rows = replace(rows, rows_per_unit=most * each)",
                "    rows = replace(rows, rows_per_unit=most)",
            ),
        ),
        tests=(f"{PAIRS}::test_the_clipped_sum_is_that_of_single_example_execution",),
    ),
    Fault(
        name="clipping/pair-without-reference",
        breaks="DPO compares the answers' log-probabilities with those of the reference model.",
        edits=(
            Edit(
                "dpft/data/preference_loss.py",
                "            log_probabilities = log_probabilities - references.to(nll_sums.dtype)",
                "            pass",
            ),
        ),
        tests=("tests/data/test_preference_loss.py::test_dpo_is_equation_7_of_rafailov_et_al",),
    ),
)
