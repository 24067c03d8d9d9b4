"""What one job can be told: the fields of its configuration by subject, each with its flag.

A field, its flag, the argument of the Python API and the key in job.json have one name, so that a
search for it finds every use. The subjects are classes: who needs one subject takes that class,
which every JobConfig is.

Owns their declaration, and what follows from them alone. Which values go together is
checks.py's; where a job runs, kubernetes.py's; how data are written,
data_format.py's.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from shoal.config.data_format import FormatOptions
from shoal.config.flags import option
from shoal.config.kubernetes import KubernetesOptions

_RECORDS = "a file, a folder, a glob pattern in quotes or a URL."


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model, the job's name and folder, and its logs.

    command, token: set by the maker of the configuration; they have no flags.
    """

    model_def: str = option(
        "The model: file.function or file.ClassName. file is a Python module below --model-zoo, "
        "without .py; dots or slashes separate folders.",
        value="FILE.NAME",
    )
    command: str = field(default="train")
    token: str = field(default="")
    model_zoo: str = option("Folder that contains the model's module.", ".", value="FOLDER")
    job_name: str = option(
        "Name of the job. Letters, digits, dashes and underscores are allowed; underscores become "
        "dashes on Kubernetes. Default: the name of the model's file, with -evaluate or -predict "
        "for these commands.",
        "",
        value="NAME",
    )
    job_dir: str = option(
        "Folder for the job's configuration, journal, logs and result. Default: "
        "shoal-jobs/JOB_NAME.",
        "",
    )
    overwrite: bool = option(
        "Replace an ended job of the same name, and an earlier job's files in --output.", False
    )
    tls: str = option(
        "Protection of the job's processes against strangers. auto: Unix sockets that only your "
        "user can open, on one machine; as always where no such path is short enough. always: "
        "encrypted TCP, with a certificate for each process (mutual TLS).",
        "auto",
        choices=("auto", "always"),
    )
    insecure: bool = option(
        "Accept calls from everybody who reaches the ports of the job's processes, without "
        "encryption.",
        False,
    )
    log_level: str = option(
        "Write log messages of this severity and above.",
        "info",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = option(
        "Format of the log lines of all processes. json: one object per line, with the fields "
        "time, level, logger, job, role, index, task, message and exception.",
        "text",
        choices=("text", "json"),
    )


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The records, and the format of their files."""

    training_data: str = option(f"Training records: {_RECORDS}", "", commands="train", value="DATA")
    validation_data: str = option(
        f"Records for evaluation: {_RECORDS}", "", commands="train evaluate", value="DATA"
    )
    prediction_data: str = option(
        f"Records to predict: {_RECORDS}", "", commands="predict", value="DATA"
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Passes over the data, batches, tasks, and records that fail."""

    num_epochs: int = option("Passes over the training data.", 1, commands="train", least=1)
    minibatch_size: int = option("Records per step of one worker.", 256, least=1)
    num_minibatches_per_task: int = option(
        "Minibatches per task. A worker takes one task at a time from the master: small tasks "
        "balance uneven workers, large tasks need fewer calls to the master.",
        16,
        least=1,
    )
    accumulate: int = option(
        "Minibatches whose gradients a worker averages into one push, as "
        "gradient_accumulation_steps does in Keras. --num-minibatches-per-task must be a "
        "multiple of it.",
        1,
        commands="train",
        least=1,
    )
    seed: int = option("Seed for initial values and for the order of tasks.", 0, least=0)
    max_bad_records: int = option(
        "Number of records that the job may leave out because the reader, feed or the model "
        "fails on them. One more fails the job.",
        0,
        least=0,
    )
    nonfinite_gradients: str = option(
        "Response to a minibatch whose loss or gradients are NaN or infinite. fail: the same as "
        "if the model raised an error. skip: all servers leave it out, and it is counted. allow: "
        "nothing is checked.",
        "fail",
        commands="train",
        choices=("fail", "skip", "allow"),
    )
    step_losses: bool = option(
        "Write the loss of every training step to losses.csv in the job folder.",
        False,
        commands="train",
    )


@dataclass(frozen=True, kw_only=True)
class ConsistencyOptions:
    """How far the workers' views of the model may differ."""

    pipeline_depth: int = option(
        "How many training steps of one worker may overlap. Rows may lack up to this many of the "
        "worker's own pushes. 0: pull, compute and push one after the other.",
        2,
        commands="train",
        least=0,
    )
    row_cache_mb: int = option(
        "Memory in MB in which a worker keeps the rows it pulled, to use them again. 0: no cache.",
        0,
        commands="train",
        least=0,
    )
    row_cache_staleness: int = option(
        "Number of pushes that a server may apply before a worker pulls a row of --row-cache-mb "
        "again. The cached row lacks them, the worker's own included.",
        8,
        commands="train",
        least=0,
    )
    staleness_bound: int = option(
        "Number of training steps that a worker may be ahead of the slowest one before it waits. "
        "0: all workers advance step by step together. -1: no worker waits.",
        -1,
        commands="train",
        least=-1,
    )
    lr_staleness_modulation: bool = option(
        "Divide the learning rate of each push by its staleness: the number of pushes of other "
        "workers that the server applied after the values were pulled, if above 1.",
        False,
        commands="train",
    )
    sync: bool = option(
        "Train synchronously: average the gradients of --grads-to-wait minibatches, all computed "
        "from the same values, into one update of the model.",
        False,
        commands="train",
    )
    grads_to_wait: int = option(
        "With --sync, the number of gradients in one update. Fewer workers than this compute "
        "several each; of more workers, the first to finish count. 0: as many as --num-workers.",
        0,
        commands="train",
        least=0,
    )
    sync_late: str = option(
        "With --sync, the fate of a gradient that arrives after its update. drop: its minibatch "
        "is trained again from newer values. fold: it counts for the next update.",
        "drop",
        commands="train",
        choices=("drop", "fold"),
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The parameter servers, and the data they exchange with workers."""

    num_ps: int = option("Number of parameter servers.", 1, least=1)
    embedding_threshold: int = option(
        "Size in bytes, as float32, above which the parameter servers hold a plain "
        "keras.layers.Embedding as a table of rows. A smaller one is a dense variable.",
        2_000_000,
        least=0,
        value="BYTES",
    )
    wire_dtype: str = option(
        "Data type of rows and gradients between workers and servers. bfloat16 and float16 halve "
        "the bytes and round each value; servers always hold float32.",
        "float32",
        choices=("float32", "bfloat16", "float16"),
    )


@dataclass(frozen=True, kw_only=True)
class DurabilityOptions:
    """The updates that a parameter server's death may cost."""

    durability: str = option(
        "Protection of updates against the death of a parameter server. log: each update is also "
        "written to --log-place before the worker is answered, so none is lost. checkpoint: "
        "updates since the last checkpoint are lost, see --on-loss. auto: log; checkpoint with "
        "--sync, or with a warning if the job can keep no log.",
        "auto",
        commands="train",
        choices=("auto", "log", "checkpoint"),
    )
    on_loss: str = option(
        "Response to training records whose updates died with a server. retrain: they are trained "
        "again. accept: they stay lost, and the job ends as degraded. fail: the job fails; "
        "resume it from its checkpoint.",
        "retrain",
        commands="train",
        choices=("retrain", "accept", "fail"),
    )
    log_place: str = option(
        "Place of the log of updates. peer: the memory of the next server. file: files in "
        "--job-dir, which survive the death of all processes; on Kubernetes they need a --volume. "
        "auto: file on one machine and with a single server, otherwise peer.",
        "auto",
        commands="train",
        choices=("auto", "peer", "file"),
    )
    log_mb: int = option(
        "Limit in MB for the log of one server's updates. At half of it the job takes a "
        "checkpoint, which empties the log; at the limit, pushes wait for that.",
        1024,
        commands="train",
        least=1,
    )
    log_fsync: bool = option(
        "With a log in files, write each update to the disk before the worker is answered. Then "
        "no update is lost if the machine fails, either.",
        False,
        commands="train",
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """When checkpoints are taken, where they are, and the one to start from."""

    checkpoint_dir: str = option(
        "Folder for checkpoints: a path, or a URL such as gs://bucket/folder. Default: "
        "checkpoints in the job folder.",
        "",
        commands="train",
    )
    checkpoint_seconds: float = option(
        "Seconds of training between two checkpoints; the last one is taken at the end of "
        "training. 0: none by time; with --checkpoint-steps 0 too, none but where a trained model "
        "would be lost.",
        300.0,
        commands="train",
        least=0,
    )
    checkpoint_steps: int = option(
        "Model versions (pushes per server) between two checkpoints. 0: none by version.",
        0,
        commands="train",
        least=0,
    )
    keep_checkpoint_max: int = option(
        "Number of checkpoints to keep; older ones are removed.", 3, commands="train", least=1
    )
    restore_from: str = option(
        "Start from these trained values: the output folder of an earlier training job, a "
        "checkpoint, or a folder of checkpoints, of which the newest is taken.",
        "",
        value="FOLDER",
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Evaluation during training, the exported model, and predictions."""

    evaluation_steps: int = option(
        "Model versions (pushes per server) between two evaluations on --validation-data. 0: "
        "only one at the end.",
        0,
        commands="train",
        least=0,
    )
    output: str = option(
        "Folder for the exported model (train; also a URL) or the predictions (predict). It must "
        "be empty or not exist, unless --overwrite is given.",
        "",
        commands="train predict",
        value="FOLDER",
    )
    export: str = option(
        "Model formats that --output gets in addition to tables and dense values: keras, "
        "savedmodel, both with a comma between them, or none.",
        "keras,savedmodel",
        commands="train",
        value="FORMATS",
    )
    export_max_table_mb: int = option(
        "Limit in MB for the ids and rows of all tables in the exported models. Tables count in "
        "their order; for one that does not fit, the SavedModel takes the vectors as inputs.",
        512,
        commands="train",
        least=0,
    )
    in_order: bool = option(
        "Write the predictions to one Parquet file in the order of the input, instead of one "
        "file per task.",
        False,
        commands="predict",
    )


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The workers, restarts after failures, and how long processes wait for each other."""

    num_workers: int = option("Number of workers.", 1, least=1)
    relaunch_limit: int = option(
        "How many failures of one worker or server within --relaunch-window-seconds lead to its "
        "restart; one more fails the job. Pauses before restarts grow from 1 s to 30 s if "
        "failures follow each other within five minutes.",
        3,
        least=0,
    )
    relaunch_window_seconds: float = option(
        "Seconds after which a failure no longer counts against --relaunch-limit.", 3600.0, above=0
    )
    step_timeout_seconds: float = option(
        "Seconds that one operation of a worker, such as feed for a minibatch or a training step, "
        "may take, or three times the longest one so far if that is more; the first may take "
        "three times as long. Then the worker counts as stuck: the stacks of its threads are "
        "logged, and it is replaced.",
        600.0,
        above=0,
    )
    heartbeat_seconds: float = option("Seconds between two heartbeats of a worker.", 1.0, above=0)
    worker_timeout_seconds: float = option(
        "Seconds without a heartbeat after which a worker counts as dead and its task goes to "
        "another one.",
        30.0,
        above=0,
    )
    server_timeout_seconds: float = option(
        "Seconds without an answer to the master after which a parameter server counts as hung, "
        "is killed and started again.",
        60.0,
        above=0,
    )
    master_timeout_seconds: float = option(
        "Seconds, approximately, without contact to the master after which a worker or parameter "
        "server ends.",
        120.0,
        above=0,
    )
    server_patience_seconds: float = option(
        "Seconds that a worker tries to reach a parameter server which, for all the master knows, "
        "is up; then the worker is started again. A server that is starting is waited for "
        "without this limit.",
        120.0,
        above=0,
    )
    storage_patience_seconds: float = option(
        "Seconds of retries, with growing pauses, when storage fails: for a worker's data or "
        "predictions, for --output at the end, and for the checkpoint of a server that starts "
        "again. After that another worker tries the task; the job fails after three such tries "
        "of the same records, or if --output could not be written.",
        300.0,
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions(
    KubernetesOptions,
    ProcessOptions,
    OutputOptions,
    CheckpointOptions,
    DurabilityOptions,
    ServerOptions,
    ConsistencyOptions,
    TrainingOptions,
    FormatOptions,
    DataOptions,
    ModelOptions,
):
    """All fields of JobConfig, and what follows from several of them."""

    @property
    def gradients_per_update(self) -> int:
        """With --sync, how many gradients are averaged into one update."""
        return self.grads_to_wait or self.num_workers

    @property
    def log_in_files(self) -> bool:
        """Whether the log of updates, if one is kept, is in files of the job folder."""
        # As measured on one machine (docs/benchmarks.md). Files of a pod end with it.
        files = not self.image or self.num_ps == 1
        return self.log_place == "file" or (self.log_place == "auto" and files)

    @property
    def why_no_log(self) -> str:
        """Why no log of updates can be kept, and what to change; "" if one can.

        Of a resolved configuration. Not of --sync, whose updates no log has.
        """
        if not (self.checkpoint_steps or self.checkpoint_seconds):
            return (
                "the job takes no checkpoints, beyond which its log is let go of: set "
                "--checkpoint-seconds or --checkpoint-steps above 0"
                + (", and --checkpoint-dir to a place that all pods share" if self.image else "")
            )
        if self.image and self.log_in_files and not self.shared(self.job_dir):
            return (
                "files in --job-dir, where the log of a single server is, or with "
                "--log-place=file, would go with the servers' pods: have a --volume hold "
                "--job-dir, or use --log-place=peer with --num-ps 2 or more"
            )
        return ""

    @property
    def unprotected(self) -> str:
        """What a server's death costs where no log of updates can be kept, and why, in words.

        "" if one is kept, or could be. Of a resolved configuration.
        """
        if self.command != "train" or self.durability == "log" or self.sync or not self.why_no_log:
            return ""
        cost = {
            "retrain": "is trained again",
            "accept": "stays lost, and the job ends as degraded",
            "fail": "ends the job",
        }
        return (
            "no log of updates is kept: what a parameter server that dies has learned since the "
            f"last checkpoint {cost[self.on_loss]}. The reason: {self.why_no_log}"
        )

    @property
    def export_kinds(self) -> frozenset[str]:
        """What --export names."""
        kinds = frozenset(kind.strip().lower() for kind in self.export.split(","))
        return kinds - {"none", ""}

    @property
    def records_per_task(self) -> int:
        """Length of a whole task, in records."""
        return self.minibatch_size * self.num_minibatches_per_task


@dataclass(frozen=True)
class Group:
    """Flags of one subject: a section of the help and of the page of flags."""

    title: str
    options: tuple[type, ...]

    @property
    def about(self) -> str:
        """The subject in a sentence."""
        return (self.options[0].__doc__ or "").partition("\n")[0]

    @property
    def fields(self) -> list[Field[Any]]:
        """Its fields that have a flag, in order."""
        own = [each for options in self.options for each in fields(options)]
        return [each for each in own if each.metadata.get("commands")]


GROUPS = (
    Group("Model and job", (ModelOptions,)),
    Group("Data", (DataOptions, FormatOptions)),
    Group("Training", (TrainingOptions,)),
    Group("Consistency", (ConsistencyOptions,)),
    Group("Servers", (ServerOptions,)),
    Group("Durability", (DurabilityOptions,)),
    Group("Checkpoints", (CheckpointOptions,)),
    Group("Evaluation and export", (OutputOptions,)),
    Group("Processes", (ProcessOptions,)),
    Group("Kubernetes", (KubernetesOptions,)),
)
"""The subjects of a job's flags, in the order in which a reader needs them."""
