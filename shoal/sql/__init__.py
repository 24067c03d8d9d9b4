"""SELECT ... TO TRAIN: models from SQL, by `shoal sql` and in notebooks (`%load_ext shoal.sql`).

Needs the extra `sql-front`. Only the command line imports it, and it imports no framework.
"""

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magics %shoal and %%shoal (magic.py)."""
    from shoal.sql.magic import (
        Magics,  # late: who imports a module of this folder needs no notebook
    )

    Magics(shell).register()
