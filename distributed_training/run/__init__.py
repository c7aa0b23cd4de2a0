"""The life of a job, one verb a file."""
