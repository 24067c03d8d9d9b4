"""Folders of files at paths and URLs, and patience with the storage that holds them.

storage.py          a folder: of this machine, or behind a URL
patient_storage.py  one that is read with patience
patience.py         tries again what storage fails at
described.py        what is known of sources of data, in a folder
"""
