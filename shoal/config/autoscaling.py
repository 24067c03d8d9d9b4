"""The flags of a job that changes its number of workers itself. A section of JobConfig's fields."""

from __future__ import annotations

from shoal.config.flags import option, subject
from shoal.config.quantities import number_of
from shoal.errors import UserError


@subject
class AutoscalingOptions:
    """A job that finds its number of workers by itself."""

    autoscale: str = option(
        "Whether the job changes its number of workers and servers itself. on: it begins with "
        "--num-workers, tries other numbers within --workers, and keeps those that pay by the "
        "speed that it measures; and it gets more servers within --servers when theirs is too "
        "little memory or processor time. dry: it only says what it would do. off: the numbers "
        "are --num-workers and --num-ps until shoal scale changes them.",
        "off",
        commands="train",
        choices=("off", "on", "dry"),
    )
    workers: str = option(
        "The least and the largest number of workers with --autoscale, such as 1:8.",
        "",
        commands="train",
        value="LEAST:MOST",
    )
    servers: str = option(
        "The least and the largest number of parameter servers with --autoscale, such as 1:4. The "
        "job begins with --num-ps of them.",
        "",
        commands="train",
        value="LEAST:MOST",
    )
    scale_efficiency: float = option(
        "With --autoscale, what a further worker must add to the speed, as a share of the mean "
        "speed of the workers before it. 0.5: half of it. Less makes jobs faster and costs more.",
        0.5,
        commands="train",
        above=0,
    )
    scale_seconds: float = option(
        "With --autoscale, seconds for which the speed is measured before the number of workers "
        "changes again.",
        20.0,
        commands="train",
        above=0,
    )

    max_cpu: float = option(
        "With --autoscale on Kubernetes, the most processor cores that all pods of workers and "
        "servers may request together. 0: no limit.",
        0.0,
        commands="train",
        least=0,
    )
    max_memory: str = option(
        "With --autoscale on Kubernetes, the most memory that all pods of workers and servers may "
        "request together, such as 256Gi.",
        "",
        commands="train",
        value="QUANTITY",
    )

    @property
    def worker_range(self) -> tuple[int, int]:
        """The numbers of --workers; (1, 1) without it. Raises UserError if it is none."""
        return _range("--workers", self.workers)

    @property
    def server_range(self) -> tuple[int, int]:
        """The numbers of --servers; (1, 1) without it. Raises UserError if it is none."""
        return _range("--servers", self.servers)

    @property
    def limits(self) -> dict[str, float]:
        """Resource -> what may be requested of it, of those with a limit. Raises UserError."""
        limits = {"cpu": self.max_cpu} if self.max_cpu else {}
        if self.max_memory:
            try:
                limits["memory"] = number_of(self.max_memory)
            except ValueError as error:
                raise UserError(
                    f"--max-memory must be an amount of memory, such as 256Gi, not "
                    f"{self.max_memory!r}"
                ) from error
        return limits

    def check_autoscaling(self, num_workers: int, evaluation_workers: int, num_ps: int) -> None:
        """Raise UserError naming the flag whose value cannot be used."""
        least, most = self.worker_range
        fewest, largest = self.server_range
        for limit, given in (("--max-cpu", self.max_cpu), ("--max-memory", self.max_memory)):
            if given and self.autoscale == "off":
                raise UserError(f"{limit} works only with --autoscale: add --autoscale on")
        if self.scale_efficiency > 1:
            raise UserError(
                f"--scale-efficiency must be at most 1, not {self.scale_efficiency}: a worker "
                "seldom adds more than those before it do"
            )
        if self.autoscale == "off":
            if self.workers:
                raise UserError(
                    "--workers works only with --autoscale: add --autoscale on, or give the "
                    "number of workers with --num-workers"
                )
            if self.servers:
                raise UserError(
                    "--servers works only with --autoscale: add --autoscale on, or give the "
                    "number of servers with --num-ps"
                )
            return
        if not (self.workers or self.servers):
            raise UserError(
                f"--autoscale {self.autoscale} needs --workers LEAST:MOST, such as --workers 1:8, "
                "or --servers LEAST:MOST"
            )
        if self.servers and not fewest <= num_ps <= largest:
            raise UserError(
                f"--num-ps ({num_ps}), with which the job begins, must be within "
                f"--servers {self.servers}"
            )
        if not self.workers:
            return
        if not least <= num_workers <= most:
            raise UserError(
                f"--num-workers ({num_workers}), with which the job begins, must be within "
                f"--workers {self.workers}"
            )
        if least <= evaluation_workers:
            raise UserError(
                f"--workers {self.workers}: at least {evaluation_workers + 1} workers are needed, "
                f"as --evaluation-workers ({evaluation_workers}) train nothing"
            )


def _range(flag: str, value: str) -> tuple[int, int]:
    """The numbers of LEAST:MOST; (1, 1) of nothing. Raises UserError if it is none."""
    if not value:
        return 1, 1
    least, colon, most = value.partition(":")
    numbers = colon and least.isdecimal() and most.isdecimal()
    if not numbers or not 1 <= int(least) <= int(most):
        raise UserError(
            f"{flag} must be LEAST:MOST, two numbers from 1 of which the second is not smaller, "
            f"such as 1:8, not {value!r}"
        )
    return int(least), int(most)
