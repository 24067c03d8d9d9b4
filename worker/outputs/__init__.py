"""The outputs of a job: exports and predictions.

    export.py             the export, file by file
    export_tables.py      tables as Parquet files
    first_rows.py         rows that a model brings, for servers to begin with
    keras_export.py       the forms of an export that Keras and TensorFlow read
    keras_model.py        the user's model rebuilt of Keras's own layers
    export_check.py       an export tried before a job
    prediction.py         predictions to files
    prediction_output.py  the folder of predictions, begun and finished

The layout of an output folder is shoal/checkpoints/places.py's.
"""
