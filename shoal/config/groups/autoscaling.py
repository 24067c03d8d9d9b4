"""The flags of a job that changes its numbers itself. A section of JobConfig's fields."""

from __future__ import annotations

from shoal.config.flags import option, subject
from shoal.config.groups.quantities import QUANTITY, number_of, parts_of, resource_of
from shoal.errors import UserError


@subject
class AutoscalingOptions:
    """Automatic choice of the numbers of workers and servers."""

    autoscale: str = option(
        "Effect of --workers N:M and --servers N:M. on: the job changes its numbers itself. dry: "
        "it only says what it would do.",
        "on",
        commands="train",
        choices=("on", "dry"),
    )
    scale_efficiency: float = option(
        "With --workers N:M, what a further worker must add to the speed, as a share of the mean "
        "speed of the workers before it. 0.5: half of it. Less makes jobs faster and costs more.",
        0.5,
        commands="train",
        above=0,
    )
    max_resources: str = option(
        "With --workers N:M or --servers N:M on Kubernetes, the most that all pods of workers and "
        "servers may request together, such as cpu=64,memory=256Gi.",
        "",
        commands="train",
        value="RESOURCES",
    )

    @property
    def limits(self) -> dict[str, float]:
        """Resource -> what may be requested of it, of those with a limit. Raises UserError."""
        form = "RESOURCE=QUANTITY, such as cpu=64 or memory=256Gi"
        limits = {}
        for name, value in parts_of("--max-resources", self.max_resources, form).items():
            if not QUANTITY.fullmatch(value):
                raise UserError(f"--max-resources: {name}={value} is not {form}")
            limits[resource_of(name)] = number_of(value)
        return limits

    def check_autoscaling(self, *, scales: bool) -> None:
        """Raise UserError naming the flag whose value cannot be used.

        scales: whether --workers or --servers is a range.
        """
        for limit, given in (
            ("--autoscale dry", self.autoscale == "dry"),
            ("--max-resources", self.max_resources),
        ):
            if given and not scales:
                raise UserError(
                    f"{limit} works only where the job changes its numbers: give --workers N:M, "
                    "such as --workers 1:8, or --servers N:M"
                )
        if self.scale_efficiency > 1:
            raise UserError(
                f"--scale-efficiency must be at most 1, not {self.scale_efficiency}: a worker "
                "seldom adds more than those before it do"
            )
