"""What users of each training framework write, run through our operators on test hosts."""
