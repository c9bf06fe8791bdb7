"""`dask-tfrecord view`: a server on this machine whose page shows rows, statistics, episodes and bytes of data sets."""
