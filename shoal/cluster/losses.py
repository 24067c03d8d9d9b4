"""What a job loses with a pod where its pods share no folder: said when it is submitted."""

from __future__ import annotations

from shoal.config import JobConfig


def losses(config: JobConfig) -> list[str]:
    """Warnings, in words, for a resolved configuration."""
    found = []
    if config.output and not config.shared(config.output):
        found.append(
            "warning: --output is neither a URL nor on a --volume that the pods share; unless "
            "--pod-template mounts one there, the result is lost with the pods of the workers"
        )
    if config.command != "train":
        return found
    if not config.shared(config.job_dir):
        found.append(
            "warning: --job-dir is on no --volume that the pods share: if the master's pod is "
            "deleted or its node lost, the job begins anew, and it cannot be resumed"
        )
    if not config.checkpoint_dir:
        found.append(
            "warning: the job takes no checkpoints, as its pods share no folder: a server whose "
            "pod is killed, deleted or preempted loses ALL that its share of the model has "
            "learned. Put --job-dir on a --volume (pvc=), or give --checkpoint-dir a URL"
        )
    elif not (config.checkpoint_seconds or config.checkpoint_steps):
        found.append(
            "warning: the job takes no checkpoints: a server whose pod is killed, deleted or "
            "preempted loses ALL that its share of the model has learned. Give "
            "--checkpoint-seconds or --checkpoint-steps"
        )
    elif not config.shared(config.checkpoint_dir):
        found.append(
            "warning: --checkpoint-dir is neither a URL nor on a --volume that the pods share; "
            "unless --pod-template mounts one there, a server cannot find its checkpoint again"
        )
    return found
