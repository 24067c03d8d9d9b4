"""What one job can be told: the fields of its configuration, each with its flag and values.

Owns their declaration, and what follows from them alone. Which values go together is
config_checks.py's; where a job runs, kubernetes_options.py's; how data are written,
data_format.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.config.data_format import DataOptions
from shoal.config.flags import option
from shoal.config.kubernetes import KubernetesOptions


@dataclass(frozen=True)
class JobOptions(KubernetesOptions, DataOptions):
    """The fields of JobConfig. command, token: set by whoever makes it, and no flags."""

    model_def: str = option(
        "The user's module and model: file.function or file.ClassName, where file is a "
        "path below --model-zoo without .py, with dots or slashes between folders."
    )
    command: str = field(default="train")
    token: str = field(default="")
    model_zoo: str = option("Folder that --model-def is looked up in.", ".")
    job_name: str = option(
        "Name of the job: letters, digits, dashes and underscores, which are dashes on Kubernetes. "
        "Default: the model's file, followed by -evaluate or -predict for those commands.",
        "",
    )
    job_dir: str = option(
        "Folder for the job's configuration, logs and result. Default: shoal-jobs/JOB_NAME.", ""
    )
    training_data: str = option(
        "File, folder or glob pattern of training records.", "", commands="train"
    )
    validation_data: str = option(
        "File, folder or glob pattern of validation records.", "", commands="train evaluate"
    )
    prediction_data: str = option(
        "File, folder or glob pattern of records to predict.", "", commands="predict"
    )
    restore_from: str = option(
        "Output folder of an earlier training job, a checkpoint, or a folder of checkpoints (the "
        "newest), whose values the job starts from.",
        "",
    )
    output: str = option(
        "Folder for what the job makes: the exported model (train; also a URL) or the predictions "
        "(predict). Must not exist, or be empty.",
        "",
        commands="train predict",
    )
    export: str = option(
        "What is exported to --output beside tables and dense values: keras, savedmodel, both "
        "with a comma between, or none.",
        "keras,savedmodel",
        commands="train",
    )
    export_max_table_mb: int = option(
        "The ids and rows of all tables in the exported models take at most so many million bytes. "
        "Of a table that does not fit, in their order, the SavedModel takes the vectors as inputs.",
        512,
        commands="train",
        least=0,
    )
    in_order: bool = option(
        "Write the predictions as one Parquet file in the order of the input, instead of a "
        "file per task.",
        False,
        commands="predict",
    )
    overwrite: bool = option(
        "Replace an ended job of the same name and a non-empty --output.", False
    )
    num_epochs: int = option("Passes over the training data.", 1, commands="train", least=1)
    minibatch_size: int = option("Records per training step.", 256, least=1)
    num_minibatches_per_task: int = option(
        "Minibatches in one task, the unit that workers lease. Smaller tasks spread "
        "better, larger ones cost fewer calls to the master.",
        16,
        least=1,
    )
    num_workers: int = option("Worker processes.", 1, least=1)
    num_ps: int = option("Parameter server processes.", 1, least=1)
    embedding_threshold: int = option(
        "Bytes of float32 values above which a plain keras.layers.Embedding is held by the "
        "parameter servers; below, it is a dense variable.",
        2_000_000,
        least=0,
    )
    pipeline_depth: int = option(
        "How many of the worker's own pushes a row may lack, so that the rows of later steps are "
        "pulled and gradients of earlier ones pushed while a step computes. 0: pull, compute, "
        "push, one after the other.",
        2,
        commands="train",
        least=0,
    )
    wire_dtype: str = option(
        "How rows and their gradients travel between workers and servers: float32, bfloat16 or "
        "float16. The 16-bit types halve the bytes and round each value; servers always hold "
        "float32.",
        "float32",
        choices=("float32", "bfloat16", "float16"),
    )
    row_cache_mb: int = option(
        "Megabytes in which a worker keeps rows that it pulled, to use them again. 0: none.",
        0,
        commands="train",
        least=0,
    )
    row_cache_staleness: int = option(
        "A row of --row-cache-mb is pulled again when its server has applied more than this "
        "many pushes since. It lacks them, the worker's own included.",
        8,
        commands="train",
        least=0,
    )
    staleness_bound: int = option(
        "A worker more than this many training steps ahead of the slowest one that trains "
        "waits for it. 0: all go step by step together. -1: nobody waits.",
        -1,
        commands="train",
        least=-1,
    )
    lr_staleness_modulation: bool = option(
        "Divide the learning rate of each push by the number of other workers' pushes that the "
        "server applied since the values were pulled, where that is above 1.",
        False,
        commands="train",
    )
    accumulate: int = option(
        "Minibatches whose gradients a worker averages into one push, as Keras's "
        "gradient_accumulation_steps does. --num-minibatches-per-task must be a multiple.",
        1,
        commands="train",
        least=1,
    )
    sync: bool = option(
        "Synchronous training: gradients of --grads-to-wait minibatches, all computed from the "
        "same values, are averaged into one update of the model.",
        False,
        commands="train",
    )
    grads_to_wait: int = option(
        "With --sync, gradients in an update. With fewer workers, each gives several; of more, "
        "the first to come count. 0: as many as --num-workers.",
        0,
        commands="train",
        least=0,
    )
    sync_late: str = option(
        "With --sync, what becomes of a gradient whose update was made without it. drop: its "
        "minibatch is trained again, from newer values. fold: it counts for the next update.",
        "drop",
        commands="train",
        choices=("drop", "fold"),
    )
    step_losses: bool = option(
        "Write the loss of every training step to losses.csv in the job's folder.",
        False,
        commands="train",
    )
    evaluation_steps: int = option(
        "Evaluate on --validation-data every this many model versions (pushes per "
        "server); 0 evaluates only at the end.",
        0,
        commands="train",
        least=0,
    )
    checkpoint_dir: str = option(
        "Folder for checkpoints: a path, or a URL such as gs://bucket/folder. Default: "
        "checkpoints in the job folder.",
        "",
        commands="train",
    )
    checkpoint_steps: int = option(
        "Take a checkpoint every this many model versions (pushes per server). 0: not by steps.",
        0,
        commands="train",
        least=0,
    )
    checkpoint_seconds: float = option(
        "Take a checkpoint every this many seconds of training, and one at its end. 0: not by "
        "time; with --checkpoint-steps 0 too there are none, but where a trained model would be "
        "lost.",
        300.0,
        commands="train",
        least=0.0,
    )
    keep_checkpoint_max: int = option(
        "How many checkpoints are kept; older ones are removed.", 3, commands="train", least=1
    )
    durability: str = option(
        "What a parameter server's death costs. log: nothing; each update is also kept elsewhere, "
        "see --log-place, before the worker is answered. checkpoint: the updates since the last "
        "checkpoint; see --on-loss. auto: log; checkpoint where no log can be kept, which is said, "
        "and with --sync.",
        "auto",
        commands="train",
        choices=("auto", "log", "checkpoint"),
    )
    on_loss: str = option(
        "What becomes of training records whose updates a server has lost by its death. retrain: "
        "they are trained again. accept: they stay lost, and the job ends as degraded. fail: the "
        "job fails, to be resumed from its checkpoint.",
        "retrain",
        commands="train",
        choices=("retrain", "accept", "fail"),
    )
    log_mb: int = option(
        "Megabytes that the log of updates of one server may take, where it is kept. "
        "At half of it a checkpoint is taken; at all of it pushes wait for that.",
        1024,
        commands="train",
        least=1,
    )
    log_place: str = option(
        "Where the log of updates is kept. peer: in the next server's memory. file: in files of "
        "--job-dir, which outlive any number of processes; on Kubernetes they have to be on a "
        "--volume. auto: file on one machine; on Kubernetes peer, and file if there is one server.",
        "auto",
        commands="train",
        choices=("auto", "peer", "file"),
    )
    log_fsync: bool = option(
        "With a log in files, have each update on disk before the worker is answered, so that "
        "none is lost when the machine dies, either.",
        False,
        commands="train",
    )
    seed: int = option("Seed of initial values and of the order of tasks.", 0)
    relaunch_limit: int = option(
        "How often one worker or server is started again after failures within "
        "--relaunch-window-seconds before the job fails. The second failure within five minutes "
        "is followed by a pause of 1 s, each further one by twice as much, up to 30 s.",
        3,
        least=0,
    )
    relaunch_window_seconds: float = option(
        "Failures longer ago do not count against --relaunch-limit.", 3600.0, above=0
    )
    max_bad_records: int = option(
        "How many records may be given up at which feed, the model or the reader fails, before "
        "the job fails.",
        0,
        least=0,
    )
    nonfinite_gradients: str = option(
        "What becomes of a minibatch whose loss or gradients are NaN or infinite. fail: the same "
        "as of one at which the model raises. skip: it is left out on all servers, and counted. "
        "allow: nothing is checked.",
        "fail",
        commands="train",
        choices=("fail", "skip", "allow"),
    )
    heartbeat_seconds: float = option("Time between a worker's heartbeats.", 1.0, above=0)
    worker_timeout_seconds: float = option(
        "A worker silent for this long is taken for dead and its task given to another.",
        30.0,
        above=0,
    )
    master_timeout_seconds: float = option(
        "A worker or parameter server that has not heard of the master for about this long ends.",
        120.0,
        above=0,
    )
    server_patience_seconds: float = option(
        "How long a worker tries to reach a parameter server that is there, as far as the master "
        "knows, before the worker is started again. A server that is being started is waited for "
        "as long as that takes.",
        120.0,
        above=0,
    )
    storage_patience_seconds: float = option(
        "How long a worker tries again, with growing pauses, when storage fails at data that it "
        "reads or at predictions that it writes. Then its task goes back, for another worker to "
        "try; when the storage has not given the same records three times, the job fails. The job "
        "fails, too, when --output could not be written for this long at its end. "
        "A server that is started again has the same patience with its checkpoint.",
        300.0,
        above=0,
    )
    step_timeout_seconds: float = option(
        "How long a worker may take for one thing, such as feed for a minibatch or a training "
        "step, before it is taken for stuck, named with the stacks of its threads, and replaced; "
        "longer where such a thing has taken a third of that before, and three times as long for "
        "the first one.",
        600.0,
        above=0,
    )
    server_timeout_seconds: float = option(
        "A parameter server that has not answered the master for this long is taken for hung, "
        "killed and started again.",
        60.0,
        above=0,
    )
    log_level: str = option(
        "One of debug, info, warning, error.", "info", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option(
        "Form of the log lines of all processes: text, or json for an object a line, with the "
        "fields time, level, logger, job, role, index, task, message and exception.",
        "text",
        choices=("text", "json"),
    )

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
