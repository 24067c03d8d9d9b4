"""The form of checkpoints on disk, which servers, master and command line share.

    storage.py    folders of files: of this machine, or behind a URL
    manifests.py  sizes and checksums: what makes a file count as damaged
    folders.py    which checkpoints there are, opening and completing one
    arrow.py      the files of rows and vectors
    contents.py   what is in them, compared with the manifests
    threads.py    reading by several threads
    migration_terms.py, migration_plan.py, variable_plan.py, slot_plan.py
                  what becomes of what in a checkpoint of another model
    migration.py  writing that

and of a job's results:

    outputs.py    which may be replaced
    places.py     how one comes to stand in its folder, or behind its URL

Decides nothing: when a checkpoint is taken is the master's to say, what is in a shard
the server's. Only arrow.py needs pyarrow.
"""
