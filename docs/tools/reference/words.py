"""The introductions of commands and groups, and the examples of commands."""

COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": (
        """
`dpft train` fine-tunes a model under (ε, δ)-differential privacy. It evaluates the model before and
after training, and writes a run folder with the model, the privacy report and the ledger. Set
`privacy.eps` to calibrate the noise, or `privacy=none` for training without privacy. `resume=RUN`
resumes an interrupted run. With `resume=auto` and a fixed `hydra.run.dir`, the same command starts
the run or resumes it. `--multirun` trains once for each combination of values. It ends with the
command that computes the total ε of all runs.
""",
        (
            "dpft train task=e2e model=gpt2 privacy.eps=3",
            "dpft train task=e2e model=tiny task.source=embedded privacy=none   # not private",
            "dpft train resume=outputs/DATE/TIME",
            "dpft train task=e2e model=gpt2 privacy.eps=3 resume=auto hydra.run.dir=outputs/mine",
        ),
    ),
    "eval": (
        """
`dpft eval` evaluates the model of a run, a model in a folder, or a file of outputs that another
system generated. With `run=RUN`, it uses the task of the run and replaces the scores of that split.
It also prints the scores of private splits, marked "private: not covered by ε".
""",
        (
            "dpft eval run=outputs/DATE/TIME",
            "dpft eval task=e2e model.path=DIR",
            "dpft eval task=e2e predictions=FILE output=json",
        ),
    ),
    "generate": (
        """
`dpft generate` generates synthetic records with the model of a run. This is post-processing and
costs no additional ε. Use `prompts=FILE` for one record per prompt, or `num=N` if the model was
trained on whole records. `NUMBER.privacy.json` next to the records states their guarantee. If the
prompts are the training or evaluation files of the run, that file states that the records are not
private.
""",
        (
            "dpft generate run=outputs/DATE/TIME prompts=FILE",
            "dpft generate run=outputs/DATE/TIME num=1000 to=rows.csv",
        ),
    ),
    "synthesize": (
        """
`dpft synthesize` creates a synthetic table from a private table. A private histogram of the columns
in `condition` determines how many rows of each kind there are. A model, fine-tuned with the rest of
ε, generates the rows. The grammar of the schema constrains it, so every row can be parsed and every
value is in range. The schema is public: write it in a file next to the data or in `schema=FILE`, or
draft it with `schema=draft`. dpft writes a report to release with the rows, and a private report
that compares them with held-out rows. `resume=RUN` resumes an interrupted synthesis.
""",
        (
            "dpft synthesize data=FILE schema=draft privacy.unit=customer_id",
            "dpft synthesize data=FILE 'condition=[city,smoker]' privacy.eps=8 num=5000",
            "dpft synthesize resume=outputs/DATE/TIME",
        ),
    ),
    "account": (
        """
`dpft account` converts a noise multiplier to ε, or ε to a noise multiplier. It reads no records and
trains nothing. `run=RUN` computes ε from the ledger of a run, even if the run has not finished.
`runs=[RUN,RUN]` composes several runs on the same data. Upper bounds are rounded up.
""",
        (
            "dpft account num_examples=42061 expected_batch_size=1024 epochs=10 eps=3",
            "dpft account run=outputs/DATE/TIME",
            "dpft account 'runs=[outputs/A,outputs/B]' output=json",
        ),
    ),
    "plan": (
        """
`dpft plan` prints what `dpft train` with the same arguments would do: ε, noise, steps, parameters,
memory and time. It measures the time on synthetic examples. `plan.measure=false` skips the
measurement.
""",
        (
            "dpft plan task=e2e model=gpt2 privacy.eps=3",
            "dpft plan task=e2e model=gpt2 privacy.eps=3 plan.measure=false output=json",
        ),
    ),
    "tune": (
        """
`dpft tune` searches for the best settings within one ε. It draws a secret number of trials. The
noise of each trial is so large that choosing the best one stays within `privacy.eps`. Only the best
model is published. The search compares scores of a public split; a private split is not supported.
`resume=RUN` resumes an interrupted search.
""",
        (
            "dpft tune tuning=default task=e2e model=gpt2 privacy.eps=3",
            "dpft tune tune.gamma=0.05 task=e2e model=gpt2 privacy.eps=3   # fewer trials",
        ),
    ),
    "tokenizer": (
        """
`dpft tokenizer` counts words in the training records and adds Gaussian noise to each count. Words
whose noisy count reaches a threshold form the vocabulary. The vocabulary has its own ε, which
composes with the ε of training. `resume=RUN` builds another vocabulary from the same noisy counts
at no additional ε.
""",
        (
            "dpft tokenizer task=corpus task.data_dir=DIR tokenizer.vocab_size=8000 privacy.eps=1",
            "dpft tokenizer resume=outputs/DATE/TIME tokenizer.vocab_size=4000",
        ),
    ),
    "audit": (
        """
`dpft audit` attacks the model of a run and compares the result with the reported ε. Each option of
the group `audit` is one attack. A lower bound above the reported ε shows an error. A lower bound
below it proves nothing. Results that depend on your records stay in `private/audit/` of the run.
""",
        (
            "dpft audit run=outputs/DATE/TIME audit=one_run",
            "dpft audit run=outputs/DATE/TIME audit=synthetic synthetic=FILE",
        ),
    ),
    "report": (
        """
`dpft report` creates a table or a plot of finished runs. `runs=` takes folders of runs or sweeps.
`to=csv` has one row per run. The other formats have the mean and the standard deviation over runs
that differ only in seeds. dpft computes ε from the ledger of each run, and never shows scores of
private splits. `rebuild=true` writes the report of each run again.
""",
        (
            "dpft report runs=outputs/multirun/DATE/TIME to=csv file=runs.csv",
            "dpft report runs=outputs/multirun/DATE/TIME metric=bleu to=plot file=bleu.png",
            "dpft report runs=outputs/DATE/TIME rebuild=true",
        ),
    ),
    "export": (
        """
`dpft export` writes the model of a run to a folder that you can publish, with its tokenizer and a
model card. `merge=true` adds the trained LoRA update to the weights of the base model. The folder
contains the ledger, so its recipient can compute ε. The ε of the run is unchanged.
""",
        ("dpft export run=outputs/DATE/TIME merge=true to=DIR",),
    ),
    "doctor": (
        """
`dpft doctor` checks Python, the packages, the device, memory, disk and the optional packages. The
exit code is 1 only if dpft cannot train on this machine.
""",
        ("dpft doctor", "dpft doctor output=json"),
    ),
    "list": (
        """
`dpft list` prints the names of all tasks, models, methods, recipes or metrics, with a description.
For models, it also prints the number of parameters, the license, and the memory that `dpft plan`
estimates for LoRA.
""",
        ("dpft list tasks", "dpft list models", "dpft list recipes output=json"),
    ),
}
"""The introduction and the examples of each command. A test composes each example."""

GROUPS: dict[str, str] = {
    "task": """
A task defines where records come from, how each record becomes input and targets of a model, and
which metrics score it. Published tasks download their data from the Hub or from a URL.
`task=custom`, `task=corpus`, `task=images` and `task=preference` read your data.
""",
    "model": """
A model is a Hugging Face model from the Hub, the bundled model (`model=tiny`), or a local folder
(`model.path=DIR`). dpft supports causal, masked and encoder-decoder language models, and image
classifiers. `dpft list models` prints the size, the license and the LoRA memory of each model.
""",
    "method": """
A method selects the trainable parameters. It does not change the learning rate; the
[recipes](recipes.md) have learning rates for each method. You can combine `method.train_biases`,
`method.train_embeddings` and `method.train_new_modules` with every method.
""",
    "privacy": """
`privacy=dp` trains under (ε, δ)-differential privacy. Set one of `privacy.eps`,
`privacy.noise_multiplier` and `privacy.total_eps`. `privacy=none` adds no noise and guarantees
nothing. If you also set `privacy.max_grad_norm`, gradients are clipped as in a private run. The
first lines of the report state which of these applies.
""",
    "mechanism": """
A mechanism defines how privacy units are sampled and how the noise of different steps is
correlated. With `dp_sgd`, the noise of each step is independent. With `banded`, later steps cancel
a fraction of it. The cost in ε depends on the mechanism, so `dpft account` takes the same keys.
""",
    "train": """
These keys set the batch size, the steps, the learning rate, the precision and the device. Some
tasks have other defaults, which the last table of this section lists.
""",
    "optimizer": """
An optimizer receives the private gradient: the noisy sum divided by the expected batch size.
Everything that it computes from this gradient is post-processing and costs no ε.
""",
    "scheduler": """
A scheduler changes the learning rate during training. It depends only on the number of the step, so
it costs no ε.
""",
    "eval": """
These keys set which split is scored, on how many records, and whether the scores may be shown. The
splits of published data sets count as public. Your data counts as private unless you set
`eval.split_is_public=true`. A public split can also be scored during training.
""",
    "decode": """
These keys set how text is generated, in evaluation and in `dpft generate`. A text does not depend
on the other texts in its batch.
""",
    "metrics": """
BERTScore and BLEURT need a model in a local folder. Without the folder, dpft does not compute the
metric, and `metrics.json` states this.
""",
    "parallel": """
Several processes can share a training run, `dpft eval` or `dpft generate`. Each privacy unit is
clipped by one process, and the noise is added once, so ε does not depend on the number of
processes.
""",
    "launch": """
`launch=local` starts the processes of a run on this machine. `launch=none` uses the current
process, or the processes that torchrun or Slurm started.
""",
    "audit": """
Each option is one attack on the model of a run. `audit=one_run` needs a run that was trained with
`audit.canaries`, and `audit=exposure` needs `audit.exposure_canaries`. The keys of these canaries
are in [dpft train](commands.md#dpft-train).
""",
    "tracking": """
A tracker receives only public quantities: an upper bound of the ε spent so far, the learning rate
and the steps per second. At the end, it receives the scores of a public split.
""",
    "tuning": """
A search space lists the values that trials can draw for each key. It can contain the keys of
`train`, `method`, `optimizer`, `scheduler` and `model`, and the clipping keys of `privacy`.
""",
}
"""The introduction of each group, in the order of the page."""
