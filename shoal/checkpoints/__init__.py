"""The form of checkpoints on disk, which servers, master and command line share.

    storage.py    folders of files: of this machine, or behind a URL
    formats/      the files of rows and vectors; sizes and checksums in manifests
    folders.py    which checkpoints there are, opening and completing one
    newest.py     the newest one that is good
    contents.py   what is in them, compared with the manifests
    threads.py    reading by several threads
    migration_terms.py, variable_plan.py, slot_plan.py
                  what becomes of what in a checkpoint of another model

and of a job's results:

    outputs.py    which may be replaced
    places.py     how one comes to stand in its folder, or behind its URL

Decides nothing: when a checkpoint is taken is the master's to say, what is in a shard
the server's. Only formats/arrow.py needs pyarrow.
"""
