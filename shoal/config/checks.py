"""Which configurations can be used: the values of each field, and which go together.

Looks at nothing but the fields; what there is at their paths is checks.py's, the syntax
of those about Kubernetes kubernetes.py's.
"""

from __future__ import annotations

import dataclasses

from shoal.config.conditions import FIRST, is_first, publish_conditions
from shoal.config.flags import COMMANDS, check_values, flag
from shoal.config.model_params import params_of
from shoal.config.options import JobOptions
from shoal.config.table_options import FLAG, NO_EVENT_TIME, table_options
from shoal.errors import UserError, holds_secret

MOST_HOT_IDS = 100
"""Of a table: each is a time series of Prometheus."""

_REQUIRED: dict[str, tuple[str, ...]] = {
    "check": (),
    "train": ("training_data",),
    "evaluate": ("validation_data", "restore_from"),
    "predict": ("prediction_data", "restore_from", "output"),
}
"""By command, the fields that have no default and must be given."""


_ONLY_WITH: dict[str, tuple[str, ...]] = {
    "image": (
        *("namespace", "server_image", "pod_template", "volume"),
        *("env_from_secret", "kueue_queue", "volcano"),
    ),
    "serve_metrics": ("metrics_hot_ids",),
    "publish": ("publish_seconds",),
    "arriving": ("until_idle", "leg"),
    "progressive_steps": ("progressive_window",),
}
"""Fields that do nothing without another one, by that."""


def check(options: JobOptions) -> None:
    """Raise UserError naming the flag whose value cannot be used."""
    if options.command not in _REQUIRED:
        raise UserError(f"command must be one of {', '.join(COMMANDS)}, not {options.command!r}")
    check_values(options)
    if options.seed >= 2**31:
        raise UserError(f"--seed must be at most {2**31 - 1}, not {options.seed}")
    _check_secrets(options)
    _check_names(options)
    params_of(options.model_params)
    _check_tables(options)
    _ = options.format_of_data
    _ = options.row_cache_limits
    if options.num_minibatches_per_task % options.accumulate:
        raise UserError(
            f"--num-minibatches-per-task ({options.num_minibatches_per_task}) must be a "
            f"multiple of --accumulate ({options.accumulate}): a push is of one task"
        )
    if options.tensorboard_dir and not options.metrics_seconds:
        raise UserError(
            "--tensorboard-dir needs --metrics-seconds above 0, at which its files are written"
        )
    if options.metrics_hot_ids > MOST_HOT_IDS:
        raise UserError(
            f"--metrics-hot-ids must be at most {MOST_HOT_IDS}, not {options.metrics_hot_ids}"
        )
    _check_order(options)
    _check_evaluation_workers(options)
    _check_numbers(options)
    _check_budget(options)
    _check_synchronous(options)
    _check_durability(options)
    options.check_kubernetes(options.num_servers, options.num_workers)
    if options.continue_from and options.restore_from:
        raise UserError(
            "--continue-from cannot be combined with --restore-from: remove one of them. The first "
            "keeps the optimizer's state, the second begins with values alone"
        )
    if options.only_new and not (options.continue_from or options.latest):
        raise UserError(
            "--only-new needs --continue-from or --latest, which name the job that has trained "
            "before"
        )
    if options.latest and options.image:
        raise UserError(
            "--latest cannot be combined with --image: it links jobs of this machine. Name the "
            "folder of the job before with --continue-from, as the pods see it"
        )
    _check_gate(options)
    _check_arriving(options)
    _check_progressive(options)
    for name, others in _ONLY_WITH.items():
        if not getattr(options, name) and (given := _given(options, *others)):
            raise UserError(
                f"{given} works only with {flag(name)}: add {flag(name)}, or leave {given} out"
            )
    if options.evaluation_steps > 0 and not options.validation_data:
        raise UserError("--evaluation-steps needs --validation-data, on which to evaluate")
    for name in _REQUIRED[options.command]:
        if not getattr(options, name):
            raise UserError(f"{flag(name)} is required by shoal {options.command}")


def _check_gate(options: JobOptions) -> None:
    """--evaluate-first and --publish-if have what they need."""
    begins = options.continue_from or options.restore_from or options.latest
    if options.evaluate_first and not begins:
        raise UserError(
            "--evaluate-first needs an earlier model, which it evaluates: name it with "
            "--continue-from, --restore-from or --latest"
        )
    needed = publish_conditions(options.publish_if)
    if needed and not (options.latest or options.publish):
        raise UserError(
            "--publish-if works only with --latest, the link that it holds, or --publish: add one"
        )
    for condition in needed:
        if is_first(condition) and not options.evaluate_first:
            raise UserError(
                f"--publish-if {condition}: metrics that begin with {FIRST} are those of "
                "--evaluate-first: add --evaluate-first"
            )
        if not is_first(condition) and not (options.validation_data or options.progressive_steps):
            raise UserError(
                f"--publish-if {condition} needs --validation-data, on which the metric is "
                "computed, or --progressive-steps"
            )


def _check_arriving(options: JobOptions) -> None:
    if not options.arriving:
        return
    if options.epochs != 1:
        raise UserError(
            f"--arriving trains on each file once, and --epochs is {options.epochs}: remove "
            "--epochs"
        )
    if options.evaluate_first:
        raise UserError(
            "--evaluate-first evaluates on all new records before training, and with --arriving "
            "they are never all there: remove one of the two"
        )


def _check_progressive(options: JobOptions) -> None:
    """--progressive-steps has the job's evaluations to itself, and each record once."""
    if not options.progressive_steps:
        return
    if options.validation_data:
        raise UserError(
            "--progressive-steps cannot be combined with --validation-data: the job would have two "
            "kinds of evaluations. Remove one of them"
        )
    if options.epochs != 1:
        raise UserError(
            f"--progressive-steps needs --epochs 1, not {options.epochs}: in a second epoch the "
            "model predicts records that it has trained on"
        )


def _check_tables(options: JobOptions) -> None:
    for name, given in table_options(options.table).items():
        if options.command == "train" and given.get("expire_after") and not options.event_time:
            raise UserError(f"{FLAG} {name}.expire_after={given['expire_after']}: {NO_EVENT_TIME}")


def _check_order(options: JobOptions) -> None:
    _ = options.shuffle_buffer
    if options.shuffle == "time" and options.epochs != 1:
        raise UserError(
            f"--shuffle time trains on the data once, and --epochs is {options.epochs}: "
            "remove --epochs, or use --shuffle none"
        )


def _check_evaluation_workers(options: JobOptions) -> None:
    count = options.evaluation_workers
    if not count:
        return
    if count >= options.num_workers:
        raise UserError(
            f"--evaluation-workers ({count}) must be below --workers ({options.num_workers}): "
            "they are a part of these, and the others train"
        )
    if not options.validation_data:
        raise UserError("--evaluation-workers needs --validation-data, which they evaluate")


def _check_numbers(options: JobOptions) -> None:
    """The numbers of workers and servers, and how the job changes them."""
    for name in ("workers", "servers"):
        if ":" in getattr(options, name) and options.command != "train":
            raise UserError(
                f"{flag(name)} {getattr(options, name)}: shoal {options.command} does not change "
                "its numbers: give one"
            )
    options.check_autoscaling(scales=options.scales_workers or options.scales_servers)


def _check_secrets(options: JobOptions) -> None:
    """No URL has a credential in it: the configuration is read by many and kept for long."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, str) and holds_secret(value):
            raise UserError(
                f"{flag(field.name)}: {value} holds a password, key or signature. Everybody who "
                "can list processes or read the job's configuration would see it. Write a variable "
                "instead, as ${NAME} in single quotes: the process that opens the URL reads the "
                "value from its environment. For pods, --env-from-secret SECRET makes a variable "
                "of each key of a Secret"
            )


def _check_names(options: JobOptions) -> None:
    if unknown := options.export_kinds - {"auto", "keras", "savedmodel", "pt2", "state_dict"}:
        raise UserError(
            "--export must list keras, savedmodel, pt2 or state_dict, or be auto or none, not "
            f"{min(unknown)!r}"
        )
    module, dot, function = options.model_def.replace("/", ".").rpartition(".")
    if not dot or function == "py" or module.endswith(".py"):
        such = f"{module.removesuffix('.py') or 'deepfm'}.custom_model"
        raise UserError(
            f"--model-def must be file.function, such as {such}, not {options.model_def!r}"
        )
    if options.model_def.startswith("/"):
        folder, _, name = options.model_def.rpartition("/")
        raise UserError(
            f"--model-def must be a path below the folder --model-zoo: give --model-zoo "
            f"{folder or '/'} --model-def {name}"
        )
    characters = options.job_name.replace("-", "").replace("_", "")
    if options.job_name and not (characters.isalnum() and characters.isascii()):
        raise UserError(
            f"--job-name must consist of letters, digits, dashes and underscores, not "
            f"{options.job_name!r}"
        )


def _given(options: JobOptions, *names: str) -> str | None:
    """The flag of the first of these fields that is not at its default."""
    fields = type(options).__dataclass_fields__
    for name in names:
        if getattr(options, name) != fields[name].default:
            return flag(name)
    return None


def _check_synchronous(options: JobOptions) -> None:
    if not options.sync:
        if given := _given(options, "grads_to_wait", "sync_late"):
            raise UserError(f"{given} works only with --sync: add --sync")
        return
    # 0 is what --sync does anyway.
    depth = ("pipeline_depth",) if options.pipeline_depth else ()
    if given := _given(options, *depth, "staleness_bound", "lr_staleness_modulation", "row_cache"):
        raise UserError(f"{given} cannot be combined with --sync: remove one of them")


def _check_durability(options: JobOptions) -> None:
    given = _given(options, "log_mb")
    if options.durability == "checkpoint" and given:
        raise UserError(
            f"{given} cannot be combined with --durability=checkpoint, which keeps no log of "
            "updates: remove one of them"
        )
    if options.durability == "peer" and options.num_servers == 1:
        raise UserError(
            "--durability=peer needs a second server: use --servers 2, or --durability=file"
        )


def _check_budget(options: JobOptions) -> None:
    if not options.limits:
        return
    if not options.image:
        raise UserError("--max-resources counts what pods request: add --image, or leave it out")
    resource = options.budget.lacks(options.num_workers, options.num_servers)
    if resource:
        raise UserError(
            f"--max-resources {resource}: --workers {options.num_workers} and --servers "
            f"{options.num_servers}, with which the job begins, request more than that: see "
            "--worker-resources and --ps-resources"
        )
