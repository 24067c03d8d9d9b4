"""Warnings at submission of data that a job loses with a pod, as its pods share no folder."""

from __future__ import annotations

from shoal.config.job import JobConfig


def loss_warnings(config: JobConfig) -> list[str]:
    """Warnings, in words, for a resolved configuration."""
    found = []
    if config.output and not config.shared(config.output):
        found.append(
            "warning: --output is neither a URL nor on a --volume that the pods share; unless "
            "--pod-template mounts one there, the result is lost with the pods of the workers"
        )
    if config.command != "train":
        return found
    if config.publish and not config.shared(config.publish):
        found.append(
            "warning: --publish is neither a URL nor on a --volume that the pods share; unless "
            "--pod-template mounts one there, no delta can be published"
        )
    if not config.shared(config.job_dir):
        found.append(
            "warning: --job-dir is on no --volume that the pods share: if the master's pod is "
            "deleted or its node lost, the job begins anew, and it cannot be resumed"
        )
    if not config.checkpoint_dir:
        found.append(
            "warning: the job takes no checkpoints, as its pods share no folder: all that the "
            "servers have learned goes with their pods. Put --job-dir on a --volume (pvc=), or "
            "give --checkpoint-dir a URL"
        )
    elif not (config.checkpoint_seconds or config.checkpoint_steps):
        found.append(
            "warning: the job takes no checkpoints: all that the servers have learned goes with "
            "their pods. Give --checkpoint-seconds or --checkpoint-steps"
        )
    else:
        if not config.shared(config.checkpoint_dir):
            found.append(
                "warning: --checkpoint-dir is neither a URL nor on a --volume that the pods share; "
                "unless --pod-template mounts one there, a server cannot find its checkpoint again"
            )
        if config.unprotected:
            found.append(f"warning: {config.unprotected}")
    return found
