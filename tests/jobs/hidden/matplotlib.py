raise ImportError(
    "matplotlib is hidden from the jobs of tests: see HIDDEN in tests/jobs/running.py"
)
