"""Ways of writing a training step, one a file; each file is imported only if its library is installed."""
