"""Options of learning: the model, its data, training and consistency.

Sections of JobConfig's fields, each field with its flag; options.py puts them together.
"""

from __future__ import annotations

from dataclasses import field

from shoal.config.flags import option, subject
from shoal.errors import UserError

_RECORDS = "a file, a folder, a glob pattern in quotes or a URL."


@subject
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
    model_params: str = option(
        "Values for parameters of the module's functions, by name, such as dim=8,rate=0.1. Each "
        "function gets those that it has a parameter for. A value is a Python literal, or else a "
        "string.",
        "",
        value="NAME=VALUE,...",
    )
    engine: str = option(
        "The framework that computes with the model. auto: the one that the model's module "
        "imports; if that is Keras alone, the backend that KERAS_BACKEND or keras.json names.",
        "auto",
        choices=("auto", "tensorflow", "jax", "torch"),
    )
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
        "user can open, on one machine; as always on Kubernetes, and where no such path is short "
        "enough. always: encrypted TCP, with a certificate for each process (mutual TLS). never: "
        "unencrypted TCP; whoever reaches the ports is obeyed.",
        "auto",
        choices=("auto", "always", "never"),
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

    @property
    def insecure(self) -> bool:
        """True if the job's processes take calls from everybody who reaches their ports."""
        return self.tls == "never"


@subject
class DataOptions:
    """The records, and the format of their files."""

    training_data: str = option(f"Training records: {_RECORDS}", "", commands="train", value="DATA")
    validation_data: str = option(
        f"Records for evaluation: {_RECORDS}", "", commands="train evaluate", value="DATA"
    )
    prediction_data: str = option(
        f"Records to predict: {_RECORDS}", "", commands="predict", value="DATA"
    )
    arriving: float = option(
        "Seconds between two looks for new files of --training-data, or new records of a topic of "
        "Kafka, which are trained as they come; the job ends by --until-idle, --leg or shoal stop. "
        "Rename a file into the folder when it is whole. 0: only what is there when the job "
        "begins.",
        0.0,
        commands="train",
        least=0,
        value="SECONDS",
    )
    until_idle: float = option(
        "The job of --arriving ends when no new file has come for so many seconds, and all are "
        "trained. 0: it waits for files without end.",
        0.0,
        commands="train",
        least=0,
        value="SECONDS",
    )
    leg: float = option(
        "The job of --arriving takes no new files after so many seconds, and ends when those it "
        "has are trained. The next one goes on with --latest and --only-new. 0: without end.",
        0.0,
        commands="train",
        least=0,
        value="SECONDS",
    )
    event_time: str = option(
        "Column of the training records with the time of each, which tells when rows expire. UNIT "
        "is that of its numbers since 1970: s, ms, us, ns or d; the types timestamp and date need "
        "none.",
        "",
        commands="train",
        value="COLUMN[:UNIT]",
    )
    index_dir: str = option(
        "Folder or URL that keeps what jobs have found out of data files: numbers of records, and "
        "where these begin. The next job begins at once. Files that have changed are read anew.",
        "",
        value="FOLDER",
    )


@subject
class TrainingOptions:
    """Passes over the data, batches, tasks, and records that fail."""

    epochs: int = option("Passes over the training data.", 1, commands="train", least=1)
    batch_size: int = option("Records per step of one worker.", 256, least=1)
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
    shuffle: str = option(
        "Order of the training records. tasks: tasks in an order that --seed draws for each epoch; "
        "the records of a task follow one another as in the data. buffer:N: these records too, "
        "within windows of N neighbours. none: files by name, day=2 before day=10, and records as "
        "they follow one another. time: the same, once, for records in the order of time.",
        "tasks",
        commands="train",
        value="tasks|buffer:N|none|time",
    )
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


@subject
class ConsistencyOptions:
    """Limits on how far the workers' views of the model may differ."""

    pipeline_depth: int = option(
        "How many training steps of one worker may overlap. Rows may lack up to this many of the "
        "worker's own pushes. 0: pull, compute and push one after the other. -1: by need, 0 for "
        "the job's first updates, then up to 2 while each makes the worker 1.2 times as fast.",
        -1,
        commands="train",
        least=-1,
    )
    row_cache: str = option(
        "Memory in MB in which a worker keeps the rows it pulled, to use them again until their "
        "server has applied more than so many pushes, the worker's own included; 8 if none is "
        "said. 0: no cache.",
        "0",
        commands="train",
        value="MB[:PUSHES]",
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
        "several each; of more workers, the first to finish count. 0: as many as --workers.",
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

    @property
    def row_cache_limits(self) -> tuple[int, int]:
        """Memory of a worker's cache of rows in MB, 0 for none, and pushes that a row may lack.

        Raises UserError.
        """
        size, colon, pushes = self.row_cache.partition(":")
        pushes = pushes if colon else "8"
        if not (size.isdecimal() and pushes.isdecimal()):
            raise UserError(
                "--row-cache must be a number of MB, or with pushes behind a colon, such as 64 or "
                f"64:8, not {self.row_cache!r}"
            )
        return int(size), int(pushes)
