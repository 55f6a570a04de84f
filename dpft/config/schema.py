"""Configuration classes of the subcommands.

Each section is a class of the package that uses it. This module only states which sections each
subcommand has. ``ChosenBy`` marks the sections whose class depends on their values.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from dpft.config.keys import AUTO, in_shell
from dpft.config.output_keys import Output
from dpft.config.references import Reference, ReferenceMap
from dpft.config.section import ChosenBy, CrossCheck, Root, Section, by_name
from dpft.constants import TEXTS
from dpft.data.canaries import CanaryConfig
from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig, MetricsConfig, check_held_out, check_schedule
from dpft.generation.decoding import DecodeConfig
from dpft.methods.base import METHODS, Method
from dpft.models.source import ModelConfig
from dpft.parallel.parallel_config import LaunchConfig, ParallelConfig
from dpft.privacy.mechanisms.base import MECHANISMS, MechanismConfig
from dpft.privacy.mechanisms.dp_sgd import DPSGDConfig
from dpft.privacy.plan import CHUNK, EXAMPLE
from dpft.privacy.privacy_config import HistogramPrivacy, Privacy, privacy_class
from dpft.run_folder import PREDICTIONS
from dpft.strict_model import AtLeastOne, Count, Positive, values_of
from dpft.tasks.base import Task, chosen_task_class
from dpft.tasks.corpus import CHUNKS
from dpft.tokenizers import OF_PIECES, TokenizerConfig
from dpft.training.optimizers import OPTIMIZERS, OptimizerConfig, SchedulerConfig
from dpft.training.trackers import TRACKING, NoTracking, TrackingConfig
from dpft.training.training_config import DeviceConfig, TrainingConfig

AnyTask = Annotated[Task, ChosenBy(chosen_task_class)]
AnyMethod = Annotated[Method, ChosenBy(by_name(METHODS.named))]
AnyPrivacy = Annotated[Privacy, ChosenBy(by_name(privacy_class))]
AnyMechanism = Annotated[MechanismConfig, ChosenBy(by_name(MECHANISMS.named))]
AnyOptimizer = Annotated[OptimizerConfig, ChosenBy(by_name(OPTIMIZERS.named))]
AnyTracking = Annotated[TrackingConfig, ChosenBy(by_name(TRACKING.named))]


def check_complete(task: Task) -> None:
    """Reject a task without all of its required keys."""
    if task.lacks is not None:
        raise InputError(task.lacks, key="task", value=task.name)


def check_units_fit(privacy: Privacy, train: TrainingConfig) -> None:
    """Reject privacy units that may be larger than a micro-batch.

    A unit is clipped as a whole, so it must fit into one micro-batch.

    Raises:
        InputError: A unit may have more records than a micro-batch.
    """
    guarantee, size = privacy.guarantee, train.micro_batch_size
    if guarantee is None or not isinstance(size, int):
        return  # auto chooses a micro-batch with room for a unit
    if guarantee.has_units and guarantee.records_per_unit > size:
        raise InputError(
            f"privacy.records_per_unit must be at most train.micro_batch_size ({size}), got"
            f" {guarantee.records_per_unit}, because a unit is clipped as one piece.",
            key="privacy.records_per_unit",
            value=guarantee.records_per_unit,
            hint=f"train.micro_batch_size={guarantee.records_per_unit}",
        )


def check_adaptive_scale(privacy: Privacy, train: TrainingConfig) -> None:
    """Reject an adaptive loss scale without noise, because noisy gradients adapt the scale."""
    if train.adaptive_loss_scale and privacy.guarantee is None:
        raise InputError(
            "train.adaptive_loss_scale=true needs privacy=dp, because noisy gradients adapt the"
            f" scale, got privacy={privacy.name}.",
            key="train.adaptive_loss_scale",
            value=True,
            hint="train.adaptive_loss_scale=false",
        )


def check_mechanism(
    mechanism: MechanismConfig, privacy: Privacy, method: Method, train: TrainingConfig
) -> None:
    """Reject correlated noise with settings that do not support it."""
    if not mechanism.makes.has_streams:
        return
    name = f"mechanism={mechanism.name}"
    if privacy.guarantee is None:
        raise InputError(
            f"{name} has no effect with privacy={privacy.name}, which adds no noise. Remove the"
            " key.",
            key="mechanism",
            value=mechanism.name,
        )
    if method.name in mechanism.refuses:
        raise InputError(
            f"{name} does not support method={method.name}, because"
            f" {mechanism.refuses[method.name]}.",
            key="mechanism",
            value=mechanism.name,
            hint="mechanism=dp_sgd",
        )
    if train.adaptive_loss_scale:
        raise InputError(
            f"{name} needs a constant loss scale (train.loss_scale), because the noise of a skipped"
            " step would remain in later steps.",
            key="train.adaptive_loss_scale",
            value=True,
            hint="train.adaptive_loss_scale=false",
        )


def check_public_numbers(task: Task, privacy: Privacy) -> None:
    """Reject two public numbers of examples that differ by more than a factor of 2.

    The check happens before any record is read. A number that is too large counts records that do
    not exist. It lowers the sample rate and therefore the reported epsilon.
    """
    published, configured = task.public_num_train_examples, privacy.num_examples
    if published is None or configured is None or privacy.unit != EXAMPLE:
        return
    if max(published, configured) > 2 * min(published, configured):
        raise InputError(
            f"privacy.num_examples must be within a factor of 2 of task {task.name}'s"
            f" {published} published training records, got {configured}. Omit it, name the unit"
            " that it counts with privacy.unit=COLUMN, or set task.num_train_examples for your own"
            " copy.",
            key="privacy.num_examples",
            value=configured,
        )


def check_chunks(task: Task, privacy: Privacy, train: TrainingConfig) -> None:
    """Reject privacy units that do not fit the number of rows that a record becomes.

    privacy.unit=chunk needs task=corpus. If a unit has several records, each record must be one
    row. All rows of a record must fit into one micro-batch.
    """
    if privacy.clips is None:
        return
    key, rows = task.rows_key, task.most_rows
    if privacy.unit == CHUNK and key != CHUNKS:
        raise InputError(
            f"privacy.unit=chunk needs task=corpus, got task={task.name}. If a column has this"
            " name, rename the column.",
            key="privacy.unit",
            value=privacy.unit,
        )
    if privacy.has_units and rows > 1 and key != CHUNKS:
        raise InputError(
            f"task.{key} above 1 needs privacy.unit=example, got {privacy.unit}, because the views"
            " of a record already form a unit.",
            key=f"task.{key}",
            value=rows,
            hint=f"task.{key}=1",
        )
    size = train.micro_batch_size
    if privacy.unit == EXAMPLE and isinstance(size, int) and rows > max(size, 1):
        raise InputError(
            f"task.{key} must be at most train.micro_batch_size ({size}), got {rows}, because a"
            " record is clipped as one piece.",
            key=f"task.{key}",
            value=rows,
            hint=f"train.micro_batch_size={rows}",
        )


def check_mixture(task: Task, privacy: Privacy) -> None:
    """Reject ``task.mixture_limit`` in a private run, where one record could displace another."""
    limit = getattr(task, "mixture_limit", None)
    if limit is not None and privacy.guarantee is not None:
        raise InputError(
            f"task.mixture_limit={limit} needs privacy=none, because one more record could displace"
            " another one.",
            key="task.mixture_limit",
            value=limit,
            hint="task.mixture_limit=null",
        )


def check_scored_between(config: EvalConfig, parallel: ParallelConfig) -> None:
    """Reject scores during training of a sharded model, which is incomplete between steps."""
    key = config.schedule_key
    if key is not None and parallel.shards_model:
        raise InputError(
            f"{key} needs parallel=none or parallel=ddp, got parallel={parallel.name}. A sharded"
            " model is scored only before and after training.",
            key=key,
            hint=f"{key}=null",
        )


def check_start(method: Method, model: ModelConfig) -> None:
    """Reject a model without the initialization that the method requires."""
    required = method.required_init
    if required not in (None, model.init):
        raise InputError(
            f"method={method.name} needs model.init={required}, got {model.init}.",
            key="model.init",
            value=model.init,
            hint=f"model.init={required}",
        )


def check_quantization(method: Method, model: ModelConfig, parallel: ParallelConfig) -> None:
    """Reject quantized weights with methods that train them, or with sharding."""
    if not model.is_quantized:
        return
    key = f"model.quantization={model.quantization}"
    if not method.trains_beside:
        raise InputError(
            f"{key} needs a method that freezes the base weights, such as method=lora, got"
            f" method={method.name}.",
            key="model.quantization",
            value=model.quantization,
            hint="model.quantization=none",
        )
    if method.train_biases:
        raise InputError(
            f"{key} needs method.train_biases=false, because it also freezes the biases of its"
            " layers.",
            key="method.train_biases",
            value=True,
            hint="method.train_biases=false",
        )
    if parallel.shards_model:
        raise InputError(
            f"{key} needs parallel=none or parallel=ddp, got parallel={parallel.name}, because"
            " quantized weights cannot be sharded.",
            key="model.quantization",
            value=model.quantization,
            hint="parallel=ddp",
        )


def check_exposure(task: Task, audit: CanaryConfig) -> None:
    """Reject canaries or exposure canaries for a task that does not support them."""
    if audit.wanted and not task.has_canaries:
        raise InputError(
            f"audit.canaries needs a task with single texts as records, got task={task.name}.",
            key="audit.canaries",
            value=audit.canaries,
            hint="audit.canaries=0",
        )
    if audit.exposure_canaries and task.answers != TEXTS:
        raise InputError(
            f"audit.exposure_canaries needs a task that generates text, got task={task.name}. Use"
            " audit.canaries instead.",
            key="audit.exposure_canaries",
            value=audit.exposure_canaries,
            hint="audit.exposure_canaries=0",
        )


def check_suffixes(audit: CanaryConfig, resume: str | None) -> None:
    """Reject a new run whose canaries ``audit=exposure`` would reject after training.

    A run that already began with such canaries may be resumed, scored and used.
    """
    if resume in (None, AUTO):
        audit.check_suffixes()


def check_white_box(method: Method, audit: CanaryConfig) -> None:
    """Reject a white-box audit of a method without gradients of the model's own weights."""
    if audit.white_box and method.name == "rgp":
        raise InputError(
            "audit.white_box=true needs gradients of the model's own weights, which method=rgp does"
            " not compute.",
            key="audit.white_box",
            value=True,
            hint="audit.white_box=false",
        )


class TrainConfig(Root):
    """Configuration of a run, config.yaml in its folder."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "task=e2e model=gpt2 privacy.eps=3",
        "task=custom task.data_dir=DATA model=gpt2 method=lora privacy.eps=8",
        "task=sst2 model=roberta-base method=bitfit privacy.eps=3 train.epochs=10",
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "task",
        "task.data_dir",
        "model",
        "method",
        "privacy.eps",
        "privacy.unit",
        "train.epochs",
        "train.expected_batch_size",
        "train.learning_rate",
        "train.precision",
    )

    task: AnyTask
    model: ModelConfig
    method: AnyMethod
    privacy: AnyPrivacy
    train: TrainingConfig
    optimizer: AnyOptimizer
    scheduler: SchedulerConfig
    eval: EvalConfig
    decode: DecodeConfig
    mechanism: AnyMechanism = Field(default_factory=DPSGDConfig)
    """How the sampling and the noise of different steps are correlated in a private run."""
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    tracking: AnyTracking = Field(default_factory=NoTracking)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Number of processes that take the training steps."""
    audit: CanaryConfig = Field(default_factory=CanaryConfig)
    """Canaries among the training records, for ``dpft audit``."""
    reference: tuple[Reference, ...] = ()
    """Published results that the report shows next to the results of the run."""
    reference_maps: tuple[ReferenceMap, ...] = ()
    """Published heat maps. A report shows the cell with the settings of its run."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        (("task",), check_complete),
        (("task", "eval"), check_held_out),
        (("task", "eval"), check_schedule),
        (("eval", "parallel"), check_scored_between),
        (("task", "privacy"), check_mixture),
        (("task", "privacy"), check_public_numbers),
        (("privacy", "train"), check_units_fit),
        (("task", "privacy", "train"), check_chunks),
        (("privacy", "train"), check_adaptive_scale),
        (("method", "model"), check_start),
        (("method", "model", "parallel"), check_quantization),
        (("method", "audit"), check_white_box),
        (("mechanism", "privacy", "method", "train"), check_mechanism),
        (("task", "audit"), check_exposure),
    )


class TrainCommand(TrainConfig):
    """Configuration of ``dpft train``, conf/train.yaml."""

    resume: str | None = None
    """Folder of an interrupted run to resume; auto: the run in hydra.run.dir, or else a new run."""
    launch: LaunchConfig = Field(default_factory=LaunchConfig)
    """How the processes of the run are started."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        *TrainConfig.cross_checks,
        (("audit", "resume"), check_suffixes),
    )

    def settings(self) -> TrainConfig:
        """Return the configuration that is stored in the run's folder."""
        return TrainConfig(**values_of(self, TrainConfig))


class PlanSettings(Section):
    """Settings of ``dpft plan`` for measurements and memory."""

    measure: bool = True
    """Measure the time of a step on synthetic micro-batches."""
    device_memory_gb: Positive | None = Field(default=None, examples=[80.0])
    """Memory per process for choosing the largest micro-batch, in 10^9 bytes (null: three quarters
    of the memory of this machine's device)."""


def _refuse_resume(resume: str | None) -> None:
    if resume is not None:
        raise InputError(
            "dpft plan plans a new run and does not take resume. The plan of an existing run is in"
            " its privacy.json.",
            key="resume",
            value=resume,
        )


class PlanConfig(TrainCommand):
    """Configuration of ``dpft plan``, conf/plan.yaml, with all keys of train."""

    plan: PlanSettings = Field(default_factory=PlanSettings)
    output: Output = "table"
    """Output format: table for people, or json for one object on stdout."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        *TrainCommand.cross_checks,
        (("resume",), _refuse_resume),
    )


class EvaluateConfig(Section):
    """Configuration of ``dpft eval``, conf/eval.yaml."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "run=outputs/2026-01-31/12-00-00",
        "run=outputs/2026-01-31/12-00-00 task.data_dir=DATA eval.split=test",
        "predictions=outputs/2026-01-31/12-00-00/predictions.jsonl task=e2e",
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "run",
        "predictions",
        "task",
        "task.data_dir",
        "eval.split",
        "eval.limit",
        "decode",
        "output",
    )

    task: AnyTask
    model: ModelConfig
    eval: EvalConfig
    decode: DecodeConfig
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    train: DeviceConfig = Field(default_factory=DeviceConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Number of processes that share the records."""
    run: str | None = None
    """Folder of a run, whose task and trained model are used."""
    predictions: str | None = None
    """File of outputs to score instead of a model."""
    output: Output = "table"
    """Output format: table for people, or json for one object on stdout."""

    def _check_fields(self) -> None:
        if self.parallel.name != "none" and self.predictions is not None:
            raise InputError(
                f"predictions needs parallel=none, got parallel={self.parallel.name}, because one"
                " process scores the file.",
                key="parallel",
                value=self.parallel.name,
                hint="parallel=none",
            )
        if self.run is None:
            check_complete(self.task)
        check_held_out(self.task, self.eval)
        if self.run is not None and self.predictions is not None:
            raise InputError(
                "at most one of run and predictions may be given, got both. To score the texts that"
                " a run has generated, give only predictions.",
                key="predictions",
                value=self.predictions,
                hint=in_shell("predictions", f"{self.run}/{PREDICTIONS}"),
            )


class ExportConfig(Section):
    """Configuration of ``dpft export``, conf/export.yaml."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "run=outputs/2026-01-31/12-00-00 to=my-model",
        "run=outputs/2026-01-31/12-00-00 merge=true push_to_hub=USER/NAME",
        "run=outputs/2026-01-31/12-00-00 dry_run=true",
    )

    run: str = Field(examples=["outputs/2026-01-31/12-00-00"])
    """Folder of a run."""
    to: str | None = None
    """Folder to write (null: ``export`` in the run's folder, or no folder with push_to_hub)."""
    merge: bool = False
    """Merge the LoRA adapter into the base weights, and write one whole model."""
    base_model: str | None = None
    """Hub id of the base model, such as openai-community/gpt2 (null: model.hub_name of the run).
    Required for an adapter."""
    license: str | None = None
    """License of the exported model as a Hub identifier, such as apache-2.0 (null: the base model's
    license)."""
    push_to_hub: str | None = Field(default=None, examples=["USER/NAME"])
    """Repository on the Hugging Face Hub for the export; created if it does not exist."""
    private: bool = True
    """Create a private repository; false: a public repository."""
    dry_run: bool = False
    """Print the files and the model card without writing or uploading anything."""


class GenerateConfig(Section):
    """Configuration of ``dpft generate``, conf/generate.yaml."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "run=outputs/2026-01-31/12-00-00 prompts=prompts.jsonl",
        "run=outputs/2026-01-31/12-00-00 num=1000 to=records.jsonl",
        "run=outputs/2026-01-31/12-00-00 num=1000 decode.temperature=0.7",
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "run",
        "prompts",
        "num",
        "to",
        "decode",
        "decode.temperature",
        "decode.max_new_tokens",
        "batch_size",
    )

    task: AnyTask
    decode: DecodeConfig
    run: str = Field(examples=["outputs/2026-01-31/12-00-00"])
    """Folder of a run, whose task and trained model are used."""
    prompts: str | None = None
    """File of rows in the format of the task; only the prompt columns are read. For a corpus with
    span_corruption: texts with gaps to fill, each gap written as four or more underscores in place
    of whole words. For a corpus with prefix_lm: beginnings of texts."""
    num: AtLeastOne | None = Field(default=None, examples=[1000])
    """Number of records to generate without prompts, for task.text, task.learn_prompt=true or a
    causal corpus."""
    to: str | None = None
    """File to write, .jsonl, .csv or .parquet (null: a new .jsonl file in ``generated`` in the
    run's folder)."""
    retries: Count = 3
    """Number of retries for a text that the task's template cannot parse into columns."""
    batch_size: AtLeastOne = 32
    """Batch size for the longest prompts; batches of shorter prompts contain the same number of
    tokens. Affects only memory and speed."""
    train: DeviceConfig = Field(default_factory=DeviceConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """Number of processes that share the prompts."""

    def _check_fields(self) -> None:
        if (self.prompts is None) == (self.num is None):
            which = "neither" if self.num is None else "both"
            raise InputError(
                f"exactly one of prompts=FILE and num=N must be given, got {which}. num needs a"
                " task that trained on whole records (task.text, or task.prompt and task.target"
                " with task.learn_prompt=true).",
                key="prompts",
                value=self.prompts,
            )
        if self.num is not None and not self.decode.draws:
            raise InputError(
                f"num needs decode=nucleus, got decode.strategy={self.decode.strategy}, which"
                " generates the same record every time.",
                key="num",
                value=self.num,
                hint="decode=nucleus",
            )


class TokenizerCommand(Section):
    """Configuration of ``dpft tokenizer``, which makes a vocabulary from training records."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "task=corpus task.data_dir=DATA privacy.eps=1 tokenizer.vocab_size=8000",
        "task=e2e privacy.eps=1 tokenizer.vocab_size=2000 tokenizer.algorithm=bpe",
        "resume=outputs/2026-01-31/12-00-00 tokenizer.vocab_size=4000",
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "task",
        "task.data_dir",
        "privacy.eps",
        "privacy.unit",
        "tokenizer.vocab_size",
        "tokenizer.algorithm",
        "tokenizer.words_per_record",
        "resume",
    )

    task: AnyTask
    tokenizer: TokenizerConfig
    privacy: HistogramPrivacy = Field(default_factory=HistogramPrivacy)
    resume: str | None = None
    """Folder of a tokenizer run; another vocabulary is made from its noisy histogram."""
    output: Output = "table"
    """Output format: table for people, or json for one object on stdout."""

    def _check_fields(self) -> None:
        check_complete(self.task)
        has_eps, noise = self.privacy.eps is not None, self.tokenizer.noise_std is not None
        if self.privacy.promises and has_eps == noise:
            raise InputError(
                "exactly one of privacy.eps and tokenizer.noise_std must be given, got"
                f" {'both' if has_eps else 'neither'}. For a vocabulary without privacy, use"
                " privacy=none.",
                key="privacy.eps",
                value=self.privacy.eps,
                hint=None if has_eps else "privacy.eps=3",
            )
        if noise and not self.privacy.promises:
            raise InputError(
                "tokenizer.noise_std has no effect with privacy=none, which adds no noise. Remove"
                " the key.",
                key="tokenizer.noise_std",
                value=self.tokenizer.noise_std,
            )


CHANGEABLE = ("resume", "output", *(f"tokenizer.{name}" for name in OF_PIECES))
"""Keys that ``dpft tokenizer resume=RUN`` accepts."""
