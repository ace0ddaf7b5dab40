"""What runs and distributions look like to a reader."""
