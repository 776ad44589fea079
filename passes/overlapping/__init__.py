"""Where collectives start and wait, so that computation hides them within the memory there is."""
