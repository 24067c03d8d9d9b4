"""Options of publishing: what has changed, told to those who answer with the model.

Sections of JobConfig's fields, each field with its flag; options.py puts them together.
"""

from __future__ import annotations

from shoal.config.flags import option, subject


@subject
class PublishingOptions:
    """The place of deltas, and how often there is one."""

    publish: str = option(
        "Folder for deltas, a path or a URL: each has the rows, dense values and removed ids that "
        "have changed since the one before. shoal.follow answers with them. A job with "
        "--continue-from goes on in the folder of the job before. Nothing is published while the "
        "newest metrics do not meet --publish-if.",
        "",
        commands="train",
        value="FOLDER",
    )
    publish_seconds: float = option(
        "Seconds between two deltas; the last one is published at the end of training. A delta "
        "takes a server a tenth of a core at most, if need be by coming later.",
        10.0,
        commands="train",
        above=0,
    )
