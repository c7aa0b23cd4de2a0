"""How fast it is, side by side with what a user would pick instead, on the same test hosts."""
