"""What the generated pages say in words of their own: introductions and examples."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CommandWords:
    """The introduction of a command's page."""

    intro: str
    examples: tuple[str, ...]
    """Commands, each composed by a test."""


COMMANDS: dict[str, CommandWords] = {
    "train": CommandWords(
        intro="""
`dpft train` fine-tunes a model on the records of a task under (ε, δ)-differential privacy, scores
it before and after, and writes a run's folder with the model, the privacy report and the ledger.
Give `privacy.eps` and the noise is calibrated to it, or choose `privacy=none` for ordinary
training. A run that broke off goes on with `resume=RUN`. With `--multirun` it runs once for every
combination of values and ends with the command that computes what all runs cost together. With
`resume=auto` and a fixed `hydra.run.dir` the same command begins its run or resumes it.
""",
        examples=(
            "dpft train task=e2e model=gpt2 privacy.eps=3",
            "dpft train task=e2e model=tiny task.source=embedded privacy=none   # no epsilon",
            "dpft train resume=outputs/DATE/TIME",
            "dpft train task=e2e model=gpt2 privacy.eps=3 resume=auto hydra.run.dir=outputs/mine",
        ),
    ),
    "tokenizer": CommandWords(
        intro="""
`dpft tokenizer` counts the words of a task's training records, adds Gaussian noise to each count,
and makes a vocabulary of the words whose noisy count reaches a threshold. The vocabulary has an ε
of its own, which composes with that of training. `resume=RUN` makes another vocabulary of the
same noisy counts at no further ε.
""",
        examples=(
            "dpft tokenizer task=corpus task.data_dir=DIR tokenizer.vocab_size=8000 privacy.eps=1",
            "dpft tokenizer resume=outputs/DATE/TIME tokenizer.vocab_size=4000",
        ),
    ),
    "tune": CommandWords(
        intro="""
`dpft tune` searches for the best settings within one ε. It draws a secret number of trials,
trains each with so much noise that choosing the best stays within `privacy.eps`, and publishes
the best alone. It chooses by a public split; a private one is refused. A search that broke off
goes on with `resume=RUN`.
""",
        examples=(
            "dpft tune tuning=default task=e2e model=gpt2 privacy.eps=3",
            "dpft tune tune.gamma=0.05 task=e2e model=gpt2 privacy.eps=3   # fewer trials",
        ),
    ),
    "eval": CommandWords(
        intro="""
`dpft eval` scores a run's model, any model folder, or a file of outputs that another system
wrote. With `run=RUN` it takes the run's own task and replaces its scores of that split. It prints
the scores of a private split, too, marked "private: not covered by ε".
""",
        examples=(
            "dpft eval run=outputs/DATE/TIME",
            "dpft eval task=e2e model.path=DIR",
            "dpft eval task=e2e predictions=FILE output=json",
        ),
    ),
    "generate": CommandWords(
        intro="""
`dpft generate` writes synthetic records with a run's model, at no further ε, since what is made
of a private model is post-processing. Give `prompts=FILE` for a record after each prompt, or
`num=N` where whole records were trained on. Beside the records it writes what they cost,
`NUMBER.privacy.json`. If the prompts are the run's own training or evaluation files, it states that
the records are not private.
""",
        examples=(
            "dpft generate run=outputs/DATE/TIME prompts=FILE",
            "dpft generate run=outputs/DATE/TIME num=1000 to=rows.csv",
        ),
    ),
    "synthesize": CommandWords(
        intro="""
`dpft synthesize` makes a synthetic table of a private one: a private histogram of the condition's
columns says which rows there are, a model fine-tuned under the rest of ε writes them, held to the
schema's grammar, so that every row parses and every value is in range. The schema, beside the data
or given by `schema=FILE`, is public and yours; `schema=draft` drafts one. A page to release goes
with the rows, and a private one compares them with rows that were held out. `resume=RUN` goes on.
""",
        examples=(
            "dpft synthesize data=notes.csv schema=draft privacy.unit=customer_id",
            "dpft synthesize data=notes.csv condition=[city,smoker] privacy.eps=8 num=5000",
            "dpft synthesize resume=outputs/DATE/TIME",
        ),
    ),
    "account": CommandWords(
        intro="""
`dpft account` turns a noise multiplier into ε, ε into a noise multiplier, or says what runs have
spent. It is arithmetic: it reads no records and trains nothing. With `run=RUN` it rebuilds ε from
the ledger, finished or not; with `runs=[A,B]` it composes several runs on the same data. Bounds
are rounded up, never down.
""",
        examples=(
            "dpft account num_examples=42061 expected_batch_size=1024 epochs=10 eps=3",
            "dpft account run=outputs/DATE/TIME",
            "dpft account runs=[outputs/A,outputs/B] output=json",
        ),
    ),
    "export": CommandWords(
        intro="""
`dpft export` writes a run's model as a folder to hand on, with its tokenizer and its model card.
With `merge=true` the change that LoRA trained is added to the base's weights, so that the folder
is one whole model. The folder contains the run's ledger, so that its recipient can compute ε. ε
stays that of the run.
""",
        examples=("dpft export run=outputs/DATE/TIME merge=true to=DIR",),
    ),
    "plan": CommandWords(
        intro="""
`dpft plan` states what `dpft train` with the same arguments would do and cost: ε, noise, steps,
parameters, memory, and the time that it measures on synthetic examples. It takes all keys of
`dpft train`, and `plan.measure=false` to omit the time.
""",
        examples=(
            "dpft plan task=e2e model=gpt2 privacy.eps=3",
            "dpft plan task=e2e model=gpt2 privacy.eps=3 plan.measure=false output=json",
        ),
    ),
    "audit": CommandWords(
        intro="""
`dpft audit` attacks a run's model and sets what was found beside what its report promises. Each
option of the group `audit` is one attack. A lower bound of ε above the reported one shows that
something is broken; finding nothing proves nothing. What an attack compares with your records
stays in the run's `private/audit/`.
""",
        examples=(
            "dpft audit run=outputs/DATE/TIME audit=one_run",
            "dpft audit run=outputs/DATE/TIME audit=synthetic synthetic=FILE",
        ),
    ),
    "report": CommandWords(
        intro="""
`dpft report` makes a table or a plot of finished runs. `runs=` takes folders of runs or of sweeps.
`to=csv` has one row per run. Other formats have the mean ± standard deviation over runs that differ
only in seeds. It computes ε from each run's ledger and never shows scores of private splits. With
`rebuild=true` it writes each run's own report again.
""",
        examples=(
            "dpft report runs=outputs/multirun/DATE/TIME to=csv file=runs.csv",
            "dpft report runs=outputs/multirun/DATE/TIME metric=bleu to=plot file=bleu.png",
            "dpft report runs=outputs/DATE/TIME rebuild=true",
        ),
    ),
    "list": CommandWords(
        intro="""
`dpft list` names the tasks, models, methods, recipes or metrics there are, with a line on each.
What is listed may be given as a word alone, as in `dpft list tasks`. Models also have their number
of parameters, their license, and the memory that LoRA needs as `dpft plan` estimates it.
""",
        examples=("dpft list tasks", "dpft list models", "dpft list recipes output=json"),
    ),
    "doctor": CommandWords(
        intro="""
`dpft doctor` checks Python and the packages, the device, memory, disk and the optional packages. It
ends with 1 only if dpft cannot train.
""",
        examples=("dpft doctor", "dpft doctor output=json"),
    ),
}

SECTIONS: dict[str, str] = {
    "task": "What is read, how it becomes examples, and how it is scored.",
    "model": "Which model, and from where.",
    "method": "What of the model trains.",
    "privacy": "What is promised, and how it is kept.",
    "mechanism": "How draws and noise of the steps hang together.",
    "train": "Batches, steps, learning rate, numbers and the device.",
    "optimizer": "How the gradient moves the weights.",
    "scheduler": "How the learning rate changes over the steps.",
    "eval": "Which split is scored, and how much of it.",
    "decode": "How texts are written.",
    "metrics": "Models that metrics read.",
    "tracking": "Who is told public quantities while the run trains.",
    "parallel": "How many processes share the work, and how.",
    "launch": "Whether the processes are started, too.",
    "canaries": "Canaries among the training records, for `dpft audit`.",
    "audit": "Which attack, and its settings.",
    "tokenizer": "The vocabulary, and how much of a record is counted.",
    "tuning": "What trials draw from.",
    "tune": "How many trials are drawn, and by what the best is chosen.",
    "plan": "What is measured.",
}

GROUPS: dict[str, str] = {
    "task": """
A task says where records come from, how each becomes what a model reads and learns, and by which
metrics it is scored. Published tasks read their data from the hub or from an address; `custom`,
`corpus` and `images` read yours.
""",
    "model": """
A model is a Hugging Face model of the hub at a fixed revision, the small one that ships with
dpft, or a folder of your own with `model.path=DIR`. Causal, masked and encoder-decoder language
models and image classifiers are there.
""",
    "method": """
A method says what of the model trains, and nothing else: learning rates that suit it stand in the
recipes. Three switches join with any method: `method.train_biases`, `method.train_embeddings` and
`method.train_new_modules`.
""",
    "privacy": """
`privacy=dp` promises (ε, δ); give one of `privacy.eps`, `privacy.noise_multiplier` and
`privacy.total_eps`. `privacy=none` is ordinary training, and with `privacy.max_grad_norm` the
private run but for its noise: clipped, and not private. Either report begins by saying so.
""",
    "train": """
The section `train` has the batches, steps and learning rate, and what changes speed and memory
only. A file of `conf/train/task` replaces defaults that do not suit a task.
""",
    "mechanism": """
A mechanism says how units are drawn and how the noise of a step hangs together with that of others:
not at all (`dp_sgd`), or so that later steps take a part of it back (`banded`). What it costs
follows from it, and `dpft account` takes the same keys.
""",
    "optimizer": """
Optimizers are fed the private gradient: the noisy sum over the expected batch size. All that they
do with it is post-processing and costs no ε.
""",
    "scheduler": """
A scheduler changes the learning rate over the steps. It reads the number of the step alone, so it
costs no ε.
""",
    "eval": """
The section `eval` says which split is scored, how much of it, and whether it may be shown. A
split counts as public where it is published; your own files count as private unless you say
otherwise. A public one can be scored while training as well.
""",
    "decode": """
The section `decode` says how texts are written, when a model is scored or writes records. A text
does not depend on the texts beside it in a batch.
""",
    "metrics": """
Two metrics read a model of their own from a folder. Without it the metric is not computed, and
metrics.json says so.
""",
    "tracking": """
A tracker is told what may be released, and nothing else: an upper bound of ε spent so far, the
learning rate and steps per second, and at the end the scores of a public split.
""",
    "parallel": """
Several processes can share a run, `dpft eval` and `dpft generate`. Each unit is clipped by one
process and noise is added once, so ε is that of one process.
""",
    "launch": """
`launch=local` starts the processes of a run on this machine. `launch=none` takes the process that
it is, or those that torchrun or Slurm have started.
""",
    "audit": """
Each option is one attack on a run's model. Those by canaries need a run that was trained with
`audit.canaries` or `audit.exposure_canaries`.
""",
    "tuning": """
A search space is a list of values for each key that trials may draw. Keys of `train`, `method`,
`optimizer`, `scheduler` and `model` may be in it, and of `privacy` those of clipping.
""",
}
