"""Programs for those who work on this project, and what its tests start."""
