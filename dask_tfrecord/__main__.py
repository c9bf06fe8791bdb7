"""Run the command line interface: ``python -m dask_tfrecord``."""

from dask_tfrecord.cli.main import main

if __name__ == "__main__":
    main()
