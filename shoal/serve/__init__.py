"""A server of predictions and rows for what a job publishes: the command `shoal serve`.

    rest.py       the bodies of requests and answers, as TensorFlow Serving and KServe have them
    app.py        the addresses, and who answers what
    figures.py    its page of metrics
    run.py        the process: sockets, TLS, signals
    data_plane.py rows over the data plane, for programs that ask often
    prediction_service.py  TensorFlow Serving's gRPC API

It joins no job and needs none: it reads the folder into which a job publishes.
"""
