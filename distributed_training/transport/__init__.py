"""Ways to reach a host: one small interface over paramiko, asyncssh and the local machine."""
