"""The SavedModel of an export, and predictions as arrays.

saved_model.py      the SavedModel
signature_names.py  names of a signature's inputs
served_features.py  the features that it takes
predicted.py        outputs of several batches as one array
"""
