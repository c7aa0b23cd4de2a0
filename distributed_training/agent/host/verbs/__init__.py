"""What can be asked of the agent: each verb is a function in the module of its name."""
