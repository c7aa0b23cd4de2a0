"""What waits for a job while its task is deferred."""
