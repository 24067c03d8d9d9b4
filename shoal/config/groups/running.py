"""Options of running a job: servers, durability, checkpoints, outputs, metrics, processes.

Sections of JobConfig's fields, each field with its flag; options.py puts them together.
"""

from __future__ import annotations

from shoal.config.flags import option, subject

RELAUNCH_WINDOW_SECONDS = 3600.0
"""Failures this long ago do not count against --relaunch-limit."""


@subject
class ServerOptions:
    """The parameter servers, and the data they exchange with workers."""

    servers: str = option(
        "Number of parameter servers. With N:M the job begins with N, and gets more, up to M, when "
        "theirs is too little memory or processor time.",
        "1",
        value="N|N:M",
    )
    embedding_threshold: int = option(
        "Size in bytes, as float32, above which the parameter servers hold a plain "
        "keras.layers.Embedding as a table of rows. A smaller one is a dense variable.",
        2_000_000,
        least=0,
        value="BYTES",
    )
    table: str = option(
        "An option of one table, in place of its layer's argument. May be given several times. "
        "admit_after=N: an id gets a row when the N-th push contains it. Before, it is counted, "
        "and reads the table's default row. expire_after=14d: an id is removed so long after its "
        "last push, by --event-time. max_rows=N: at more rows, those of least use are removed.",
        "",
        value="NAME.OPTION=VALUE",
        repeated=True,
    )
    wire_dtype: str = option(
        "Data type of rows and gradients between workers and servers. auto: that of each table's "
        "rows on the servers. bfloat16 and float16 halve the bytes of float32, and round values.",
        "auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )


@subject
class DurabilityOptions:
    """The updates that a parameter server's death may cost."""

    durability: str = option(
        "Protection of updates from the death of a server. All but checkpoint log each update "
        "before the worker is answered. peer: in the memory of the next server. file: in "
        "--job-dir, on Kubernetes on a --volume. disk: there, synced, against the death of the "
        "machine too. log: file on one machine or with one server, else peer. checkpoint: see "
        "--on-loss. auto: log, or checkpoint, with a warning, if there can be no log.",
        "auto",
        commands="train",
        choices=("auto", "log", "peer", "file", "disk", "checkpoint"),
    )
    on_loss: str = option(
        "Response to training records whose updates died with a server. retrain: they are trained "
        "again. accept: they stay lost, and the job ends as degraded. fail: the job fails; "
        "resume it from its checkpoint.",
        "retrain",
        commands="train",
        choices=("retrain", "accept", "fail"),
    )
    log_mb: int = option(
        "Limit in MB for the log of one server's updates. At half of it the job takes a "
        "checkpoint, which empties the log; at the limit, pushes wait for that. 0: 1,024, or, if "
        "the log is in files, twice the memory of the server's tables where that is more.",
        0,
        commands="train",
        least=0,
    )

    @property
    def log_bytes(self) -> int:
        """Limit of the log of one server's updates, in bytes; of one that grows, the least."""
        return (self.log_mb or 1024) << 20

    @property
    def keeps_log(self) -> bool:
        """True if a log of updates is kept. For a resolved configuration."""
        return self.durability not in ("auto", "checkpoint")

    @property
    def log_fsync(self) -> bool:
        """True if each update is on the disk before the worker is answered."""
        return self.durability == "disk"


@subject
class CheckpointOptions:
    """The times and the place of checkpoints, and the checkpoint to start from."""

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
    continue_from: str = option(
        "Train on with the model of an earlier job, on other data: its rows, optimizer slots, "
        "steps, counts and clocks. A job that has succeeded, by its name or folder, a checkpoint, "
        "or a folder of checkpoints, of which the newest is taken. The model must be the same.",
        "",
        commands="train",
        value="JOB|FOLDER",
    )
    only_new: bool = option(
        "Train only on files of --training-data that neither the job of --continue-from nor those "
        "before it have trained on. Without a new file the job succeeds and trains nothing.",
        False,
        commands="train",
    )
    latest: str = option(
        "A link to the newest job of a series. The job continues from that one, if there is one; "
        "when it has succeeded, the link names this job. No other job of the series runs "
        "meanwhile. For jobs on this machine.",
        "",
        commands="train",
        value="LINK",
    )
    evaluate_first: bool = option(
        "Evaluate the earlier model, with which the job begins, on all records of --training-data "
        "before it trains on them. They are new to that model, so its metrics are honest. The "
        "first job of a series has no earlier model, and evaluates nothing.",
        False,
        commands="train",
    )
    publish_if: str = option(
        "The link of --latest moves to this job, and it publishes, only if these hold of its last "
        "metrics, with commas between several; if they do not at its end, the job ends with exit "
        "code 3. first.METRIC is that of --evaluate-first.",
        "",
        commands="train",
        value="METRIC>=VALUE",
    )


@subject
class OutputOptions:
    """Evaluation during training, the exported model, and predictions."""

    evaluation_steps: int = option(
        "Model versions (pushes per server) between two evaluations on --validation-data, beside "
        "the one at the end of training. -1: at the end of each epoch, or of 20 epochs if there "
        "are more. 0: only at the end of training.",
        -1,
        commands="train",
        least=-1,
    )
    progressive_steps: int = option(
        "Evaluate the predictions that every N-th minibatch got before the model trained on it, in "
        "place of --validation-data: for jobs whose data arrive, and are read once. 0: never.",
        0,
        commands="train",
        least=0,
    )
    progressive_window: int = option(
        "Records with such predictions to an evaluation; it ends with the next task that is done, "
        "and the last one with training.",
        100000,
        commands="train",
        least=1,
    )
    evaluation_workers: int = option(
        "Number of workers, of --workers, that do the evaluations while the others go on with "
        "training. 0: whoever is free evaluates before it trains on.",
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
        "Model formats that --output gets in addition to tables and dense values, with commas "
        "between them: keras and savedmodel, or of a torch.nn.Module pt2 and state_dict; none; "
        "auto: all of the engine.",
        "auto",
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
    export_dtype: str = option(
        "Data type of the rows in the export. auto: as the servers have them. int8: 8 bits a value "
        "and a float32 scale a row; the exported models multiply them in the lookup.",
        "auto",
        commands="train",
        choices=("auto", "int8"),
    )
    in_order: bool = option(
        "Write the predictions to one Parquet file in the order of the input, instead of one "
        "file per task.",
        False,
        commands="predict",
    )


@subject
class MonitoringOptions:
    """Metrics and other records of a running job."""

    metrics_seconds: float = option(
        "Seconds between two rows of metrics.csv in the job folder: throughput, loss, processes "
        "and tables over time; a tenth of that, but at least a second, in the first minute. Each "
        "evaluation has a row at once. 0: no file.",
        10.0,
        least=0,
    )
    tensorboard_dir: str = option(
        "Folder or URL for event files, which TensorBoard shows: metrics, staleness, norms of rows "
        "and flags, written every --metrics-seconds to a folder of the job's name in it.",
        "",
    )


@subject
class ProcessOptions:
    """The workers, restarts after failures, and how long processes wait for each other."""

    workers: str = option(
        "Number of workers. With N:M the job begins with N, tries other numbers up to M, and keeps "
        "those that pay by the speed that it measures.",
        "1",
        value="N|N:M",
    )
    relaunch_limit: int = option(
        "How many failures of one worker or server within an hour lead to its restart; one "
        "more fails the job, or, while another worker works, a worker is tried again "
        "after long pauses. Pauses before restarts grow from 1 s to 30 s if "
        "failures follow each other within a minute.",
        3,
        least=0,
    )
    step_timeout_seconds: float = option(
        "Seconds that one operation of a worker, such as feed for a minibatch or a training step, "
        "may take, or three times the longest one so far if that is more; the first may take "
        "three times as long. Then the worker counts as stuck: the stacks of its threads are "
        "logged, and it is replaced.",
        600.0,
        above=0,
    )
    timeout_seconds: float = option(
        "Seconds without a heartbeat after which a worker counts as dead and its task goes to "
        "another one. Twice as long without an answer, a server counts as hung, is killed and "
        "started again. Four times as long without contact to the master, workers and servers end; "
        "and a worker that cannot reach a server which is up is started again. A server that is "
        "starting is waited for without limit.",
        30.0,
        above=0,
    )
    serve_metrics: bool = option(
        "Have each process serve its metrics for Prometheus. On one machine at a free port of the "
        "loopback address; metrics_targets.json in the job folder says where. On Kubernetes at "
        "port 7300 of each pod, with the token of the Secret shoal-metrics.",
        False,
    )
    metrics_hot_ids: int = option(
        "Number of ids per table and server, at most 100, that the metrics name as the most "
        "frequent ones in pushes. 0: the metrics name no ids.",
        0,
        commands="train",
        least=0,
    )
    storage_patience_seconds: float = option(
        "Seconds of retries, with growing pauses, when storage fails: for a worker's data or "
        "predictions, for --output at the end, and for the checkpoint of a server that starts "
        "again. After that another worker tries the task; the job fails after three such tries "
        "of the same records, or if --output could not be written.",
        300.0,
        above=0,
    )

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a worker."""
        return min(1.0, self.timeout_seconds / 10)

    @property
    def worker_timeout_seconds(self) -> float:
        """Seconds without a heartbeat after which a worker counts as dead."""
        return self.timeout_seconds

    @property
    def server_timeout_seconds(self) -> float:
        """Seconds without an answer to the master after which a server counts as hung."""
        return 2 * self.timeout_seconds

    @property
    def master_timeout_seconds(self) -> float:
        """Seconds without contact to the master after which a worker or server ends."""
        return 4 * self.timeout_seconds

    @property
    def server_patience_seconds(self) -> float:
        """Seconds for which a worker tries to reach a server that is up."""
        return 4 * self.timeout_seconds
