"""Where jobs are kept: implementations of the JobStore contract in `jobs/store.py`."""
