"""Where collectives start and wait, so that computation overlaps with them within the available memory."""
